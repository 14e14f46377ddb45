"""Jobs that change rows, with each harm done to each kind of request that they make, on a real S3 server.

The driver's requests and those of Spark's workers go through one proxy. Each job is run once unharmed, which shows the
kinds of its requests. Each pair of a kind and a fault is then tried with one of the jobs that make such a request, in
turn, so that every kind meets every fault. Whatever came of it: the rows are those before or those after, a failure is
one of ours and never said to be damage, and the same work again ends right, once. The number of cases is printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract import ApplicationTransaction, JobResult
from airflow_txlog.engine import Table
from airflow_txlog.errors import CorruptTable, from_dict
from airflow_txlog.storage import bucket
from tests.conftest import REPORTED
from tests.helpers import s3
from tests.helpers.fault_proxy import FAULTS, FaultProxy
from tests.helpers.harm import is_drawn, left_over
from tests.helpers.jobs import SCHEMA, application, by_id, insert, rows, run, update
from tests.helpers.rows import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long("every kind of request of four jobs, nine faults")]

# As long as a request waits for an answer, and longer.
PATIENCE_S, LATE_S = 1, 1.4
PLAIN = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
VECTORS = {**PLAIN, "delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
BEFORE = {number: f"n{number}" for number in range(8)}


@dataclass(frozen=True)
class Job:
    operation: str
    arguments: dict[str, Any]
    after: dict[int, str]
    properties: dict[str, str]


MERGED = {"sql": "SELECT id, 'm' AS name FROM range(6, 10)"}
JOBS = {
    "write": Job("write", {"source": {"sql": "SELECT 9L AS id, 'w' AS name"}}, {**BEFORE, 9: "w"}, PLAIN),
    "delete": Job("delete", {"predicate": "id % 4 = 1"}, {n: name for n, name in BEFORE.items() if n % 4 != 1}, PLAIN),
    "update with vectors": Job(
        "update", {"set": {"name": "'u'"}, "predicate": "id % 4 = 1"}, {**BEFORE, 1: "u", 5: "u"}, VECTORS
    ),
    "merge": Job(
        "merge",
        {
            "source": MERGED,
            "on": "t.id = s.id",
            "clauses": [update({"name": "s.name"}), insert({"id": "s.id", "name": "s.name"})],
        },
        {**BEFORE, 6: "m", 7: "m", 8: "m", 9: "m"},
        PLAIN,
    ),
}


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(s3.options()["endpoint_url"], late_s=LATE_S) as proxy:
        yield proxy


class Harness:
    """Jobs by way of the proxy."""

    def __init__(self, proxy: FaultProxy, spark: SparkSession) -> None:
        self.proxy, self.spark = proxy, spark
        self.options = {**s3.plain_options(), "endpoint_url": proxy.endpoint, "timeout_s": PATIENCE_S}

    def run(self, job: Job, table: Table, identity: ApplicationTransaction) -> JobResult:
        """The server is asked again whether it keeps conditions."""
        bucket._PROVED.clear()
        return run(
            self.spark,
            job.operation,
            table,
            application=identity,
            storage_options=self.options,
            conflict_deadline_s=60,
            **job.arguments,
        )

    def kinds(self, job: Job) -> list[str]:
        """The kinds of request that the job makes."""
        table = made(job)
        self.proxy.take()
        assert self.run(job, table, application()).status == "committed"
        return sorted(self.proxy.take())

    def harm(self, job: Job, kind: str, fault: str) -> str:
        """What the harmed job ended as. Raises AssertionError where it did not end as it should."""
        table, identity = made(job), application()
        self.proxy.harm(kind, fault)
        result = self.run(job, table, identity)
        was_done, _ = self.proxy.is_done, self.proxy.heal()
        outcome = result.status if result.error is None else f"{result.error['type']}: {result.error['message']}"
        assert was_done, f"the request was not made ({outcome})"
        if result.error is not None:
            assert not isinstance(from_dict(result.error), CorruptTable), f"it is called damage: {outcome}"
        found = by_id(reopened(table))
        assert found in (BEFORE, job.after), f"the rows are neither those before nor those after ({outcome})"
        assert result.status == "failed" or found == job.after, "done, and it is not there"
        again = self.run(job, table, identity)
        assert again.error is None, f"again: {again.error} (before: {outcome})"
        after = reopened(table)
        assert by_id(after) == job.after, f"done again, and the rows differ ({outcome})"
        assert after.latest_version() == 3, f"done twice ({outcome})"
        assert {finding.code for finding in after.check()} <= {"retention_short"}, outcome
        assert left_over(after) == set(), outcome
        assert by_id(reopened(table)) == job.after
        return result.status if result.error is None else str(result.error["type"])


def made(job: Job) -> Table:
    """Version 2, two files. Not through the proxy."""
    table = Table.create(s3.new_folder(), SCHEMA, properties=job.properties, storage_options=s3.options())
    append(table, rows(4))
    append(table, rows(4, start=4))
    return table


def reopened(table: Table) -> Table:
    return Table.open(table.uri, storage_options=s3.options())


@pytest.fixture(scope="module")
def kinds_of(spark: SparkSession, proxy: FaultProxy) -> dict[str, list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment().items():
            patch.setenv(name, value)
        harness = Harness(proxy, spark)
        return {name: harness.kinds(job) for name, job in JOBS.items()}


def share(name: str, kinds_of: dict[str, list[str]]) -> list[tuple[str, str]]:
    """The pairs of a kind and a fault that this job is tried with."""
    pairs = []
    for row, kind in enumerate(sorted({kind for kinds in kinds_of.values() for kind in kinds})):
        makers = [each for each in JOBS if kind in kinds_of[each]]
        columns = [column for column in range(len(FAULTS)) if is_drawn(row, column)]
        pairs += [(kind, list(FAULTS)[column]) for column in columns if makers[(row + column) % len(makers)] == name]
    return pairs


@pytest.mark.parametrize("name", JOBS)
def test_no_fault_of_the_store_hurts_the_table_of_a_job(
    name: str,
    spark: SparkSession,
    proxy: FaultProxy,
    kinds_of: dict[str, list[str]],
    record_property: Callable[[str, object], None],
) -> None:
    harness, failures, outcomes = Harness(proxy, spark), [], Counter[str]()
    pairs = share(name, kinds_of)
    for kind, fault in pairs:
        try:
            outcomes[harness.harm(JOBS[name], kind, fault)] += 1
        except AssertionError as error:
            failures.append(f"{kind}, {fault}: {error}")
    ended = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    record_property(
        REPORTED,
        f"faults of a store: job {name}: {len(pairs)} cases, {len(kinds_of[name])} kinds of request, ended as {ended}",
    )
    assert not failures, "\n".join(failures)
