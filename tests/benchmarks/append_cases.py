"""Append of four million rows, or of twenty: our job and plain PySpark in the same session, deltalake and delta-spark,
from the same files: as they are, through a query, and into 365 partitions.

The plain form is `read.parquet(...).write.parquet(...)`; it keeps no statistics and commits nothing.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from airflow_txlog.engine import Table
from tests.benchmarks.events import SCHEMA, Events
from tests.benchmarks.row_cases import DeltaLakeSide, PlainSpark, RowSide, run_as_a_runner
from tests.helpers.jobs import KEY, application
from tests.helpers.specs import job_spec
from tests.helpers.staged import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.contract.job import JobSpec
    from tests.helpers.delta_spark import DeltaSpark


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What is appended: `select` over the relation `rows`, None for the files as they are; and by what it is split."""

    select: str | None = None
    partition_by: tuple[str, ...] = ()


KINDS = {
    "append": Rows(),
    # Work for Spark in every row, and the same rows out of it.
    "append-query": Rows(
        select="SELECT event_id, customer_id, event_time, country, device, amount * 1 AS amount, "
        "concat(email, '') AS email, session FROM rows WHERE amount >= 0"
    ),
    "append-partitioned": Rows(
        select="SELECT *, CAST(event_time AS DATE) AS day FROM rows",
        partition_by=("day",),
    ),
}


# Simple conditions that every event passes.
FIVE_CONDITIONS = {
    "numbered": "event_id IS NOT NULL",
    "customer": "customer_id >= 0",
    "amount": "amount BETWEEN 0 AND 1000000",
    "country": "country <> 'XX'",
    "mail": "email IS NOT NULL AND device <> ''",
}


@dataclass(kw_only=True)
class AppendSide(RowSide):
    """Writes the rows of the local table into a table of its own, which is not there before."""

    rows: Rows = KINDS["append"]

    @property
    def uri(self) -> str:
        return str(self.folder / "written") if self.s3 is None else self.s3.uri

    def prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.events.link_table(self.table)
        if self.s3 is not None:
            self.s3.renew()

    @property
    def input(self) -> Path:
        """The data files, linked into a folder without a log: a job refuses the raw files of a Delta table."""
        folder = self.folder / "input"
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.table.glob("*.parquet"):
            link = folder / path.name
            if not link.exists():
                os.link(path, link)
        return folder

    def result(self) -> pa.Table:
        return self.events.in_order(Table.open(self.uri, self.options).to_arrow(columns=self.events.compared))


@dataclass(kw_only=True)
class OurAppend(AppendSide):
    """A write job that makes the table and appends the rows."""

    name: str = "ours"
    spark: SparkSession | None
    told: str = ""
    expect_or_fail: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        result = run_as_a_runner(self.spec(), self.spark)
        assert result.status == "committed", result.error
        self.told = f" ({result.files['added']} files)"

    def spec(self, **more: Any) -> JobSpec:
        view = {"format": "parquet", "path": str(self.input)}
        arguments: dict[str, Any] = {"source": view}
        if self.rows.select is not None:
            arguments = {"source": {"sql": self.rows.select, "views": {"rows": view}}}
        if self.expect_or_fail:
            arguments["expect_or_fail"] = self.expect_or_fail
        if self.rows.partition_by:
            arguments["partition_by"] = list(self.rows.partition_by)
        return job_spec(
            operation="write", table_uri=self.uri, arguments=arguments, storage_options=self.options, **more
        )


@dataclass(kw_only=True)
class AppendToTable(OurAppend):
    """The append to a table that is there already: at once, or staged and then published."""

    is_staged: bool

    def prepare(self) -> None:
        super().prepare()
        Table.create(self.uri, SCHEMA)

    def run(self) -> None:
        if not self.is_staged:
            super().run()
            return
        spec = self.spec(application=application(), saved_work_key=KEY, publish=False)
        staged = run_as_a_runner(spec, self.spark)
        assert staged.details.staged is not None, staged.error
        published = publish(staged.details.staged)
        assert published.status == "committed", published.error


@dataclass(kw_only=True)
class PlainAppend(PlainSpark):
    """What Spark's own writer takes for the same rows."""

    name: str = "pyspark"
    rows: Rows

    def run(self) -> None:
        frame = self.target()
        if self.rows.select is not None:
            frame.createOrReplaceTempView("rows")
            frame = self.spark.sql(self.rows.select)
        frame.write.partitionBy(*self.rows.partition_by).parquet(str(self.output))


class DeltaLakeAppend(AppendSide, DeltaLakeSide):
    """deltalake, batch by batch from the files."""

    def run(self) -> None:
        from deltalake import write_deltalake

        paths = [str(path) for path in sorted(self.table.glob("*.parquet"))]
        rows = ds.dataset(paths, schema=SCHEMA).scanner().to_reader()
        write_deltalake(self.uri, rows, storage_options=None if self.s3 is None else self.s3.peer_options)


@dataclass(kw_only=True)
class DeltaSparkAppend(AppendSide):
    """One statement of delta-spark's, which makes the table and appends the rows."""

    name: str = "delta-spark"
    child: DeltaSpark

    def run(self) -> None:
        partitions = f"PARTITIONED BY ({', '.join(self.rows.partition_by)})" if self.rows.partition_by else ""
        rows = f"parquet.`{self.input}`"
        select = f"SELECT * FROM {rows}" if self.rows.select is None else self.rows.select.replace("rows", rows)
        self.child.run(f"CREATE TABLE delta.`{self.uri}` USING delta {partitions} AS {select}")


def checked_sides(events: Events, folder: Path, spark: SparkSession) -> list[RowSide]:
    """The same append with five conditions that each row must pass, and without."""
    return [
        OurAppend(events=events, folder=folder / "ours", spark=spark, expect_or_fail=FIVE_CONDITIONS),
        OurAppend(events=events, folder=folder / "unchecked", spark=spark, name="ours without conditions"),
    ]


def staged_sides(events: Events, folder: Path, spark: SparkSession) -> list[RowSide]:
    """The same append staged and then published, and at once."""
    return [
        AppendToTable(events=events, folder=folder / "ours", spark=spark, is_staged=True),
        AppendToTable(events=events, folder=folder / "at-once", spark=spark, is_staged=False, name="ours at once"),
    ]


def append_sides(
    kind: str, events: Events, folder: Path, spark: SparkSession | None, child: DeltaSpark | None = None
) -> list[RowSide]:
    """Every row of the events, into a table of its own."""
    rows = KINDS[kind]
    sides: list[RowSide] = [
        OurAppend(events=events, folder=folder / "ours", spark=spark, rows=rows),
        PlainAppend(events=events, folder=folder / "pyspark", spark=spark, rows=rows),
    ]
    if rows.select is None:
        sides.append(DeltaLakeAppend(events=events, folder=folder / "deltalake"))
    if child is not None:
        sides.append(DeltaSparkAppend(events=events, folder=folder / "delta-spark", child=child, rows=rows))
    return sides
