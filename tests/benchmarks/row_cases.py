"""DELETE, UPDATE and MERGE: our jobs, plain PySpark in the same session, and deltalake, on the same files.

The plain forms are what a Spark user writes without a table format: read, work, write everything that results. The
classic MERGE is the full outer join after a pass that finds the touched files, as Delta's own does it; the anti-join
with a union is the cleverest plain form we know, and stands in a line of its own.
"""

from __future__ import annotations

import gc
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.spark.session import is_local
from tests.benchmarks.events import FORGOTTEN_CUSTOMER, PARTITION, SCHEMA, Events, read_parquet_files
from tests.benchmarks.peaks import peaks_mb, set_back
from tests.benchmarks.places import S3Folder
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

MATCH = "t.event_id = s.event_id"
MATCH_IN_PARTITION = f"t.{PARTITION} = s.{PARTITION} AND {MATCH}"
CONDITION = f"customer_id = {FORGOTTEN_CUSTOMER}"
CHANGES = {"device": "'erased'", "amount": "amount + 1"}


@dataclass(kw_only=True)
class RowSide:
    """What all sides share: a table of their own in `folder`, made anew for every round."""

    events: Events
    folder: Path
    masking: bool = False
    """Whether the table has deletion vectors switched on."""
    s3: S3Folder | None = None
    """Where the table is put for the work, if not left in `folder`."""

    @property
    def table(self) -> Path:
        return self.folder / "table"

    @property
    def uri(self) -> str:
        """The table that is worked on."""
        return str(self.table) if self.s3 is None else self.s3.uri

    @property
    def options(self) -> dict[str, Any]:
        """`storage_options` of ours."""
        return {} if self.s3 is None else self.s3.options

    def prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.events.link_table(self.table, masking=self.masking)
        if self.s3 is not None:
            self.s3.renew()
            self.s3.put(self.table)


def run_as_a_runner(spec: JobSpec, spark: SparkSession | None) -> JobResult:
    """The result of a job that gets its session where it asks for Spark; on a cluster it begins with it.

    Without a session, the job starts one if it asks for Spark.
    """
    # As in a job's own process.
    gc.freeze()
    if spark is None:
        return run_job(spec, None)
    return run_job(spec, None, start=lambda: spark) if is_local(spark) else run_job(spec, spark)


@dataclass(kw_only=True)
class OurJob(RowSide):
    """A job of ours in the process of the benchmark."""

    name: str = "ours"
    spark: SparkSession | None
    operation: str
    arguments: dict[str, object]
    told: str = ""
    """Where the last run's time went, for the progress line."""
    peak_mb: dict[str, int] = field(default_factory=dict)

    def prepare(self) -> None:
        super().prepare()
        set_back()

    def run(self) -> None:
        spec = job_spec(
            operation=self.operation, table_uri=self.uri, arguments=self.arguments, storage_options=self.options
        )
        result = run_as_a_runner(spec, self.spark)
        assert result.status == "committed", result.error
        self.told = ", ".join(f"{step['name']} {step['seconds']:.2f}" for step in result.steps)

    def result(self) -> pa.Table:
        self.peak_mb = peaks_mb()
        peaks = ", ".join(f"{kind} {peak} MB" for kind, peak in self.peak_mb.items())
        self.told = f" ({self.told}; {peaks})"
        return self.events.in_order(Table.open(self.uri, self.options).to_arrow(columns=self.events.compared))


@dataclass(kw_only=True)
class PlainSpark(RowSide):
    """Plain PySpark: reads the table's Parquet files, writes the files that result to a folder beside them."""

    spark: SparkSession

    @property
    def output(self) -> Path:
        return self.folder / "output"

    @property
    def columns(self) -> list[str]:
        return [*SCHEMA.names, *([PARTITION] if self.events.partitions else [])]

    def target(self, *paths: str) -> DataFrame:
        chosen = paths or [str(path) for path in sorted(self.table.rglob("part-*.parquet"))]
        return self.spark.read.option("basePath", str(self.table)).parquet(*chosen)

    def write(self, rows: DataFrame) -> None:
        """The result's files."""
        partitions = [PARTITION] if self.events.partitions else []
        rows.write.partitionBy(*partitions).parquet(str(self.output))

    def source(self) -> DataFrame:
        return self.spark.read.parquet(str(self.events.source))

    def files(self) -> list[Path]:
        """The files that hold the result."""
        return sorted(self.output.rglob("part-*.parquet"))

    def result(self) -> pa.Table:
        names = self.events.compared
        return self.events.in_order(read_parquet_files([str(path) for path in self.files()], names))


@dataclass(kw_only=True)
class PlainDelete(PlainSpark):
    """One pass: read, keep what the condition does not select, write."""

    name = "pyspark"
    condition: str = CONDITION

    def run(self) -> None:
        self.write(self.target().where(f"NOT coalesce({self.condition}, false)"))


@dataclass(kw_only=True)
class PlainUpdate(PlainSpark):
    """One pass: read, change what the condition selects, write."""

    name = "pyspark"
    condition: str = CONDITION

    def run(self) -> None:
        target = self.target()
        for column, value in CHANGES.items():
            target = target.selectExpr(
                *(
                    f"CASE WHEN {self.condition} THEN {value} ELSE {name} END AS {name}" if name == column else name
                    for name in target.columns
                )
            )
        self.write(target)


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
        paths = sorted(self.table.rglob("part-*.parquet"))
        self._untouched = [path for path in paths if path.name not in touched]
        target = self.target(*(str(path) for path in paths if path.name in touched))
        names = self.columns
        t = target.select(*(F.col(name).alias(f"t_{name}") for name in names), F.lit(True).alias("t_here"))
        s = source.select(*(F.col(name).alias(f"s_{name}") for name in names), F.lit(True).alias("s_here"))
        rows = t.join(s, F.col("t_event_id") == F.col("s_event_id"), "full_outer").select(
            *(F.when(F.col("s_here"), F.col(f"s_{n}")).otherwise(F.col(f"t_{n}")).alias(n) for n in names)
        )
        self.write(rows)

    def files(self) -> list[Path]:
        return [*super().files(), *self._untouched]


class PlainMergeAntiJoin(PlainSpark):
    """One pass: the target without what the source holds, and the source."""

    name = "pyspark-antijoin"

    def run(self) -> None:
        source = self.source()
        kept = self.target().join(source.select("event_id"), "event_id", "left_anti").select(*self.columns)
        self.write(kept.unionByName(source.select(*self.columns)))


class DeltaLakeSide(RowSide):
    """deltalake (delta-rs), which opens the table anew in every round, as our job does."""

    name = "deltalake"

    @property
    def opened(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.uri, storage_options=None if self.s3 is None else self.s3.peer_options)

    def result(self) -> pa.Table:
        return self.events.in_order(self.opened.to_pyarrow_table(columns=self.events.compared))


class DeltaLakeDelete(DeltaLakeSide):
    def run(self) -> None:
        self.opened.delete(CONDITION)


class DeltaLakeUpdate(DeltaLakeSide):
    def run(self) -> None:
        self.opened.update(CHANGES, predicate=CONDITION)


class DeltaLakeMerge(DeltaLakeSide):
    def run(self) -> None:
        source = pq.read_table(self.events.source)
        (
            self.opened.merge(source, MATCH, source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )


def delete_sides(events: Events, folder: Path, spark: SparkSession | None) -> list[RowSide]:
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


def update_sides(events: Events, folder: Path, spark: SparkSession | None) -> list[RowSide]:
    """UPDATE of two columns of one customer in a thousand; both values are of their own row."""
    ours = OurJob(
        events=events,
        folder=folder / "ours",
        spark=spark,
        operation="update",
        arguments={
            "predicate": "customer_id = :customer",
            "set": CHANGES,
            "parameters": {"customer": FORGOTTEN_CUSTOMER},
        },
    )
    return [
        ours,
        PlainUpdate(events=events, folder=folder / "pyspark", spark=spark),
        DeltaLakeUpdate(events=events, folder=folder / "deltalake"),
    ]


def our_merge(events: Events, folder: Path, spark: SparkSession | None, on: str = MATCH, name: str = "ours") -> OurJob:
    """MERGE of 40,000 rows: half of them update, half are new."""
    return OurJob(
        events=events,
        folder=folder / name,
        name=name,
        spark=spark,
        operation="merge",
        arguments={
            "source": {"format": "parquet", "path": str(events.source)},
            "on": on,
            "clauses": [
                {"when": "matched", "then": "update", "set": "*"},
                {"when": "not_matched", "then": "insert", "values": "*"},
            ],
        },
    )


def merge_sides(events: Events, folder: Path, spark: SparkSession | None) -> list[RowSide]:
    """The same MERGE of all."""
    return [
        our_merge(events, folder, spark),
        PlainMergeFullOuter(events=events, folder=folder / "pyspark", spark=spark),
        PlainMergeAntiJoin(events=events, folder=folder / "pyspark-antijoin", spark=spark),
        DeltaLakeMerge(events=events, folder=folder / "deltalake"),
    ]
