"""DELETE and MERGE: our jobs, plain PySpark in the same session, and deltalake, on the same files.

The plain forms are what a Spark user writes without a table format: read, work, write everything that results. The
classic MERGE is the full outer join after a pass that finds the touched files, as Delta's own does it; the anti-join
with a union is the cleverest plain form we know, and stands in a line of its own.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.contract import JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from tests.benchmarks.events import FORGOTTEN_CUSTOMER, SCHEMA, Events, in_order, read_parquet_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MATCH = "t.event_id = s.event_id"
DELETE_CONDITION = f"customer_id = {FORGOTTEN_CUSTOMER}"


@dataclass(kw_only=True)
class RowSide:
    """What all sides share: a table of their own in `folder`, made anew for every round."""

    events: Events
    folder: Path

    @property
    def table(self) -> Path:
        return self.folder / "table"

    def prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.events.link_table(self.table)


@dataclass(kw_only=True)
class OurJob(RowSide):
    """A job of ours, in the process and session of the benchmark."""

    name = "ours"
    spark: SparkSession
    operation: str
    arguments: dict[str, object]
    told: str = ""
    """Where the last run's time went, for the progress line."""

    def run(self) -> None:
        spec = JobSpec(operation=self.operation, table_uri=str(self.table), arguments=self.arguments)
        result = run_job(spec, self.spark)
        assert result.status == "committed", result.error
        self.told = " (" + ", ".join(f"{step['name']} {step['seconds']:.2f}" for step in result.steps) + ")"

    def result(self) -> pa.Table:
        return in_order(Table.open(str(self.table)).to_arrow())


@dataclass(kw_only=True)
class PlainSpark(RowSide):
    """Plain PySpark: reads the table's Parquet files, writes the files that result to a folder beside them."""

    spark: SparkSession

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def target(self, *paths: str) -> DataFrame:
        return self.spark.read.parquet(*(paths or [str(path) for path in sorted(self.table.glob("*.parquet"))]))

    def source(self) -> DataFrame:
        return self.spark.read.parquet(str(self.events.source))

    def files(self) -> list[Path]:
        """The files that hold the result."""
        return sorted(self.output.glob("*.parquet"))

    def result(self) -> pa.Table:
        return in_order(read_parquet_files([str(path) for path in self.files()]))


class PlainDelete(PlainSpark):
    """One pass: read, keep what the condition does not select, write."""

    name = "pyspark"

    def run(self) -> None:
        self.target().where(f"NOT coalesce({DELETE_CONDITION}, false)").write.parquet(str(self.output))


class PlainMergeFullOuter(PlainSpark):
    """Two passes: an inner join finds the touched files, a full outer join with those writes them anew."""

    name = "pyspark"

    def __post_init__(self) -> None:
        self._untouched: list[Path] = []

    def run(self) -> None:
        from pyspark.sql import functions as F

        source = self.source()
        found = (
            self.target()
            .select("event_id", F.col("_metadata.file_name").alias("file"))
            .join(source.select("event_id"), "event_id")
            .select("file")
            .distinct()
        )
        touched = {row["file"] for row in found.collect()}
        self._untouched = [path for path in sorted(self.table.glob("*.parquet")) if path.name not in touched]
        target = self.target(*(str(self.table / name) for name in sorted(touched)))
        t = target.select(*(F.col(name).alias(f"t_{name}") for name in SCHEMA.names), F.lit(True).alias("t_here"))
        s = source.select(*(F.col(name).alias(f"s_{name}") for name in SCHEMA.names), F.lit(True).alias("s_here"))
        rows = t.join(s, F.col("t_event_id") == F.col("s_event_id"), "full_outer").select(
            *(F.when(F.col("s_here"), F.col(f"s_{n}")).otherwise(F.col(f"t_{n}")).alias(n) for n in SCHEMA.names)
        )
        rows.write.parquet(str(self.output))

    def files(self) -> list[Path]:
        return [*super().files(), *self._untouched]


class PlainMergeAntiJoin(PlainSpark):
    """One pass: the target without what the source holds, and the source."""

    name = "pyspark-antijoin"

    def run(self) -> None:
        source = self.source()
        kept = self.target().join(source.select("event_id"), "event_id", "left_anti").select(*SCHEMA.names)
        kept.unionByName(source.select(*SCHEMA.names)).write.parquet(str(self.output))


class DeltaLakeSide(RowSide):
    """deltalake (delta-rs), which opens the table anew in every round, as our job does."""

    name = "deltalake"

    def result(self) -> pa.Table:
        from deltalake import DeltaTable

        return in_order(read_parquet_files(DeltaTable(str(self.table)).file_uris()))


class DeltaLakeDelete(DeltaLakeSide):
    def run(self) -> None:
        from deltalake import DeltaTable

        DeltaTable(str(self.table)).delete(DELETE_CONDITION)


class DeltaLakeMerge(DeltaLakeSide):
    def run(self) -> None:
        from deltalake import DeltaTable

        source = pq.read_table(self.events.source, schema=SCHEMA)
        (
            DeltaTable(str(self.table))
            .merge(source, MATCH, source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )


def delete_sides(events: Events, folder: Path, spark: SparkSession) -> list[RowSide]:
    """DELETE of one customer in a thousand."""
    ours = OurJob(
        events=events,
        folder=folder / "ours",
        spark=spark,
        operation="delete",
        arguments={"predicate": "customer_id = :customer", "parameters": {"customer": FORGOTTEN_CUSTOMER}},
    )
    return [
        ours,
        PlainDelete(events=events, folder=folder / "pyspark", spark=spark),
        DeltaLakeDelete(events=events, folder=folder / "deltalake"),
    ]


def merge_sides(events: Events, folder: Path, spark: SparkSession) -> list[RowSide]:
    """MERGE of 40,000 rows: half of them update, half are new."""
    ours = OurJob(
        events=events,
        folder=folder / "ours",
        spark=spark,
        operation="merge",
        arguments={
            "source": {"format": "parquet", "path": str(events.source)},
            "on": MATCH,
            "clauses": [
                {"when": "matched", "then": "update", "set": "*"},
                {"when": "not_matched", "then": "insert", "values": "*"},
            ],
        },
    )
    return [
        ours,
        PlainMergeFullOuter(events=events, folder=folder / "pyspark", spark=spark),
        PlainMergeAntiJoin(events=events, folder=folder / "pyspark-antijoin", spark=spark),
        DeltaLakeMerge(events=events, folder=folder / "deltalake"),
    ]
