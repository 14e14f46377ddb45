"""OPTIMIZE: our job, delta-spark in a child of its own, and deltalake, on the same 16 files and with the same target.

The target is an eighth of what delta-spark takes by itself, so that the table becomes two files and neither side is
held to one core. A clustered table becomes more, so that a reader of one customer can skip some; deltalake, which
clusters none, sorts it in Z-order. delta-spark stands aside where its jars are not there. Rows are compared, and the
files counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from tests.benchmarks.events import Events, in_order
from tests.benchmarks.row_cases import CONDITION, DeltaLakeSide, OurJob, RowSide
from tests.helpers.delta_spark import AT_FULL_SPEED, DeltaSpark, jars, running
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 128 * 1024 * 1024
CLUSTERED_TARGET_BYTES = 8 * 1024 * 1024
Z_ORDER = ("customer_id", "event_time")
MOST_FILES = {TARGET_BYTES: 4, CLUSTERED_TARGET_BYTES: 64}


@dataclass(kw_only=True)
class Optimized(RowSide):
    """The table that is to become files of about `target_bytes`."""

    target_bytes: int
    cluster_by: Sequence[str] = ()
    told: str = ""

    def prepare(self) -> None:
        super().prepare()
        if self.cluster_by:
            spec = job_spec(
                operation="alter", table_uri=str(self.table), arguments={"cluster_by": list(self.cluster_by)}
            )
            assert run_job(spec, None).status == "committed"
        self.told = ""

    def result(self) -> pa.Table:
        """All rows, of what must have become few files."""
        found = Table.open(self.uri, self.options)
        snapshot = found.snapshot()
        assert snapshot.num_files <= MOST_FILES[self.target_bytes]
        read = snapshot.files(snapshot.read_predicate(CONDITION)).num_rows
        seen = f"one customer is in {read} of {snapshot.num_files} files"
        self.told = f" ({self.told}; {seen})" if self.told else f" ({seen})"
        return in_order(found.to_arrow())


@dataclass(kw_only=True)
class OurOptimize(Optimized, OurJob):
    pass


@dataclass(kw_only=True)
class DeltaSparkOptimize(Optimized):
    """delta-spark's own command, in a session that is warm."""

    name = "delta-spark"
    child: DeltaSpark
    columns: Sequence[str]

    def run(self) -> None:
        order = f" ZORDER BY ({', '.join(self.columns)})" if self.columns else ""
        self.child.run(f"OPTIMIZE delta.`{self.table}`{order}")


@dataclass(kw_only=True)
class DeltaLakeOptimize(Optimized, DeltaLakeSide):
    columns: Sequence[str]

    def run(self) -> None:
        optimizer = self.opened.optimize
        if self.columns:
            optimizer.z_order(list(self.columns), target_size=self.target_bytes)
        else:
            optimizer.compact(target_size=self.target_bytes)


@contextlib.contextmanager
def optimize_sides(
    events: Events, folder: Path, spark: SparkSession | None, columns: Sequence[str], *, clusters: bool = False
) -> Iterator[list[RowSide]]:
    """Compaction of 16 files, or with `columns` their Z-order, or the clustering of a table by them."""
    target_bytes = CLUSTERED_TARGET_BYTES if clusters else TARGET_BYTES
    of_table, of_command = (columns, ()) if clusters else ((), columns)
    sides: list[RowSide] = [
        OurOptimize(
            events=events,
            folder=folder / "ours",
            spark=spark,
            operation="optimize",
            arguments={"target_bytes": target_bytes, "zorder_by": list(of_command) or None},
            target_bytes=target_bytes,
            cluster_by=of_table,
        ),
        DeltaLakeOptimize(events=events, folder=folder / "deltalake", columns=columns, target_bytes=target_bytes),
    ]
    if not jars():
        yield sides
        return
    with running(AT_FULL_SPEED) as child:
        for name in ("maxFileSize", "minFileSize"):
            child.run(f"SET spark.databricks.delta.optimize.{name} = {target_bytes}")
        sides.append(
            DeltaSparkOptimize(
                events=events,
                folder=folder / "delta-spark",
                child=child,
                columns=of_command,
                target_bytes=target_bytes,
                cluster_by=of_table,
            )
        )
        yield sides
