"""OPTIMIZE: our job, delta-spark in a child of its own, and deltalake, on the same 16 files and with the same target.

The target is an eighth of what delta-spark takes by itself, so that the table becomes two files and neither side is
held to one core. delta-spark stands aside where its jars are not there. Rows are compared, and the files counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_txlog.engine import Table
from tests.benchmarks.events import Events, in_order
from tests.benchmarks.row_cases import DeltaLakeSide, OurJob, RowSide
from tests.helpers.delta_spark import AT_FULL_SPEED, DeltaSpark, jars, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 128 * 1024 * 1024
Z_ORDER = ("customer_id", "event_time")
MOST_FILES = 4


class OurOptimize(OurJob):
    def result(self) -> pa.Table:
        return rows_of(self.table)


@dataclass(kw_only=True)
class DeltaSparkOptimize(RowSide):
    """delta-spark's own command, in a session that is warm."""

    name = "delta-spark"
    child: DeltaSpark
    columns: Sequence[str]

    def run(self) -> None:
        order = f" ZORDER BY ({', '.join(self.columns)})" if self.columns else ""
        self.child.run(f"OPTIMIZE delta.`{self.table}`{order}")

    def result(self) -> pa.Table:
        return rows_of(self.table)


@dataclass(kw_only=True)
class DeltaLakeOptimize(DeltaLakeSide):
    columns: Sequence[str]

    def run(self) -> None:
        from deltalake import DeltaTable

        optimizer = DeltaTable(str(self.table)).optimize
        if self.columns:
            optimizer.z_order(list(self.columns), target_size=TARGET_BYTES)
        else:
            optimizer.compact(target_size=TARGET_BYTES)


def rows_of(table: Path) -> pa.Table:
    """All rows, of what must have become few files."""
    found = Table.open(str(table))
    assert found.snapshot().num_files <= MOST_FILES
    return in_order(found.to_arrow())


@contextlib.contextmanager
def optimize_sides(
    events: Events, folder: Path, spark: SparkSession, columns: Sequence[str]
) -> Iterator[list[RowSide]]:
    """Compaction of 16 files, or with `columns` their Z-order."""
    ours = OurOptimize(
        events=events,
        folder=folder / "ours",
        spark=spark,
        operation="optimize",
        arguments={"target_bytes": TARGET_BYTES, "zorder_by": list(columns) or None},
    )
    sides: list[RowSide] = [ours, DeltaLakeOptimize(events=events, folder=folder / "deltalake", columns=columns)]
    if not jars():
        yield sides
        return
    with running(AT_FULL_SPEED) as child:
        for name in ("maxFileSize", "minFileSize"):
            child.run(f"SET spark.databricks.delta.optimize.{name} = {TARGET_BYTES}")
        sides.append(DeltaSparkOptimize(events=events, folder=folder / "delta-spark", child=child, columns=columns))
        yield sides
