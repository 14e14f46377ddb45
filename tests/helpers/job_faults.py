"""Jobs on the tests' S3 server by way of a proxy that harms one of their requests, and what must come of it.

Each job is run once unharmed, which shows the kinds of its requests. Each pair of a kind and a fault is then tried with
one of the group's jobs that make such a request, in turn; with TXLOG_TEST_FAULTS=all with each of them. Whatever came
of it: the rows are those before or those after, a failure is one of ours and never said to be damage, and the same work
again ends right, once.
"""

from __future__ import annotations

import io
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from airflow_txlog.contract.operations import OPERATIONS
from airflow_txlog.engine import Table
from airflow_txlog.errors import CorruptTable, from_dict
from airflow_txlog.storage import bucket
from tests.helpers import s3
from tests.helpers.fault_proxy import FAULTS, FaultProxy
from tests.helpers.harm import Earlier, left_over
from tests.helpers.jobs import DAY, SCHEMA, application, by_id, rows, run
from tests.helpers.rows import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As long as a request waits for an answer, and longer.
PATIENCE_S, LATE_S = 1, 1.4
PLAIN = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
VECTORS = {**PLAIN, "delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
BEFORE = {number: f"n{number}" for number in range(8)}
NEXT_DAY = DAY.replace(day=2)


@dataclass(frozen=True)
class Job:
    """`after`: its rows. `version`: of the table then, once done; None: a job that commits each time."""

    operation: str
    arguments: dict[str, Any]
    after: dict[int, str] = field(default_factory=lambda: BEFORE)
    version: int | None = 3
    properties: dict[str, str] = field(default_factory=lambda: PLAIN)
    partition_by: tuple[str, ...] = ()
    makes_table: bool = False
    converts_files: bool = False
    removes: bool = False

    @property
    def before(self) -> dict[int, str] | None:
        """The rows before it; None where there is no table."""
        return None if self.makes_table else BEFORE

    def table(self, *, is_of_an_earlier_second: bool = False) -> Table:
        """A copy of the job's table in a folder of its own. Not through the proxy.

        Commits of an earlier second of the store's clock than now are those that a vacuum writes down as passed.
        """
        table = Table.at(s3.copy(self._original), s3.access())
        if is_of_an_earlier_second:
            made_ms = table.store.now_ms()
            while table.store.now_ms() == made_ms:
                time.sleep(0.05)
        return table

    @cached_property
    def _original(self) -> str:
        """The folder of version 2, two files of four rows, each of its day; of nothing or of a file for some jobs."""
        uri = s3.new_folder()
        if self.converts_files:
            file = io.BytesIO()
            pq.write_table(rows(4), file)
            key = f"{uri.removeprefix(f's3://{s3.BUCKET}/')}/day=2024-01-01/a.parquet"
            s3.client().put_object(Bucket=s3.BUCKET, Key=key, Body=file.getvalue())
        if self.makes_table:
            return uri
        options = {"properties": self.properties, "storage_options": s3.options()}
        # As if made three days ago: a store's clock has whole seconds, so which removal a vacuum counts as passed
        # would be chance.
        table = Table.create(uri, SCHEMA, self.partition_by, clock=Earlier(), **options)
        append(table, rows(4))
        append(table, rows(4, start=4, day=NEXT_DAY))
        if self.removes:
            append(table, rows(4, start=100))
            tx = table.begin()
            tx.remove(tx.read("id >= 100"))
            tx.commit("DELETE")
        return uri


class Harness:
    """Jobs by way of the proxy; `spark`: None for those that must do without."""

    def __init__(self, jobs: Mapping[str, Job], proxy: FaultProxy, spark: SparkSession | None) -> None:
        self.jobs, self.proxy, self.spark = jobs, proxy, spark
        self.options = {**s3.plain_options(), "endpoint_url": proxy.endpoint, "timeout_s": PATIENCE_S}
        self.kinds_of = {name: self._kinds(job) for name, job in jobs.items()}

    def check(self, name: str, record: Callable[[str], None]) -> None:
        """Do the harms that fall to the job, and fail with all that went wrong. `record` gets a line of counts."""
        failures, outcomes = [], Counter[str]()
        pairs = self._share(name)
        for kind, fault in pairs:
            try:
                outcomes[self._harm(self.jobs[name], kind, fault)] += 1
            except AssertionError as error:
                failures.append(f"{kind}, {fault}: {error}")
        ended = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        kinds = len(self.kinds_of[name])
        record(f"faults of a store: job {name}: {len(pairs)} cases, {kinds} kinds of request, ended as {ended}")
        assert not failures, "\n".join(failures)

    def _share(self, name: str) -> list[tuple[str, str]]:
        """The pairs of a kind and a fault that this job is tried with."""
        kinds = sorted({kind for kinds in self.kinds_of.values() for kind in kinds})
        is_all, pairs = os.environ.get("TXLOG_TEST_FAULTS") == "all", []
        for row, kind in enumerate(kinds):
            makers = [each for each in self.jobs if kind in self.kinds_of[each]]
            for column, fault in enumerate(FAULTS):
                if name in makers and (is_all or makers[(row + column) % len(makers)] == name):
                    pairs.append((kind, fault))
        return pairs

    def _run(self, job: Job, table: Table, identity: ApplicationTransaction) -> JobResult:
        """The server is asked again whether it keeps conditions."""
        bucket._PROVED.clear()
        return run(
            self.spark,
            job.operation,
            table,
            application=identity if OPERATIONS[job.operation].changes_rows else None,
            storage_options=self.options,
            conflict_deadline_s=60,
            **job.arguments,
        )

    def _kinds(self, job: Job) -> list[str]:
        """The kinds of request that the job makes."""
        table = job.table(is_of_an_earlier_second=job.removes)
        self.proxy.take()
        result = self._run(job, table, application())
        assert result.status == "committed", result.error
        made = self.proxy.take()
        assert rows_of(table) == job.after
        return sorted(made)

    def _harm(self, job: Job, kind: str, fault: str) -> str:
        """What the harmed job ended as. Raises AssertionError where it did not end as it should."""
        table, identity = job.table(is_of_an_earlier_second=job.removes and kind == "PUT log"), application()
        self.proxy.harm(kind, fault)
        result = self._run(job, table, identity)
        was_done, _ = self.proxy.is_done, self.proxy.heal()
        outcome = result.status if result.error is None else f"{result.error['type']}: {result.error['message']}"
        assert was_done, f"the request was not made ({outcome})"
        if result.error is not None:
            assert not isinstance(from_dict(result.error), CorruptTable), f"it is called damage: {outcome}"
        found = rows_of(table)
        assert found in (job.before, job.after), f"the rows are neither those before nor those after ({outcome})"
        assert result.status == "failed" or found == job.after, "done, and it is not there"
        again = self._run(job, table, identity)
        assert again.error is None, f"again: {again.error} (before: {outcome})"
        after = reopened(table)
        assert by_id(after) == job.after, f"done again, and the rows differ ({outcome})"
        assert job.version in (None, after.latest_version()), f"done twice ({outcome})"
        assert {finding.code for finding in after.check()} <= {"retention_short"}, outcome
        assert left_over(after) == set(), outcome
        assert rows_of(table) == job.after
        return result.status if result.error is None else str(result.error["type"])


def reopened(table: Table) -> Table:
    return Table.open(table.uri, storage_options=s3.options())


def rows_of(table: Table) -> dict[int, str] | None:
    """Not through the proxy; None where there is no table."""
    return by_id(reopened(table)) if Table.exists(table.uri, s3.options()) else None
