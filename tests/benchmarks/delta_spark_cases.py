"""delta-spark's own DELETE, UPDATE and MERGE, in a warm session of a child process, beside ours.

On a table that copies, where it copies too; and on one with deletion vectors switched on, where both mask, and where
delta-spark's copying is a peer as well. It stands aside where its jars are not there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_txlog.engine import Table
from tests.benchmarks.events import Events
from tests.benchmarks.row_cases import (
    CHANGES,
    CONDITION,
    MATCH,
    MATCH_IN_PARTITION,
    OurJob,
    RowSide,
    delete_sides,
    merge_sides,
    our_merge,
    update_sides,
)
from tests.helpers.delta_spark import DeltaSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MERGE = "MERGE INTO {table} t USING {source} s ON {on} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
STATEMENTS = {
    "delete": f"DELETE FROM {{table}} WHERE {CONDITION}",
    "update": f"UPDATE {{table}} SET {', '.join(f'{name} = {value}' for name, value in CHANGES.items())} "
    f"WHERE {CONDITION}",
    "merge": _MERGE.replace("{on}", MATCH),
    "merge-partition": _MERGE.replace("{on}", MATCH_IN_PARTITION),
}
SIDES: dict[str, Callable[[Events, Path, SparkSession], list[RowSide]]] = {
    "delete": delete_sides,
    "update": update_sides,
    "merge": merge_sides,
}


@dataclass(kw_only=True)
class DeltaSparkSide(RowSide):
    """One statement of delta-spark's."""

    name: str = "delta-spark"
    child: DeltaSpark
    statement: str

    def run(self) -> None:
        source = f"parquet.`{self.events.source}`"
        self.child.run(self.statement.format(table=f"delta.`{self.table}`", source=source))

    def result(self) -> pa.Table:
        return self.events.in_order(Table.open(str(self.table)).to_arrow(columns=self.events.compared))


def copying_sides(
    kind: str, events: Events, folder: Path, spark: SparkSession, child: DeltaSpark | None
) -> list[RowSide]:
    """All sides of a kind of work, on a table without deletion vectors."""
    sides = SIDES[kind](events, folder, spark)
    if child is not None:
        statement = STATEMENTS[kind]
        sides.append(DeltaSparkSide(events=events, folder=folder / "delta-spark", child=child, statement=statement))
    return sides


def masking_sides(
    kind: str, events: Events, folder: Path, spark: SparkSession, child: DeltaSpark | None
) -> list[RowSide]:
    """Ours on a table with deletion vectors; ours that copies; delta-spark with them and, copying, without."""
    copying = SIDES[kind](events, folder, spark)[0]
    assert isinstance(copying, OurJob)
    sides: list[RowSide] = [
        replace(copying, masking=True),
        replace(copying, name="ours, copying", folder=folder / "copying"),
    ]
    if child is not None:
        statement = STATEMENTS[kind]
        one = DeltaSparkSide(events=events, folder=folder / "delta-spark", child=child, statement=statement)
        masking = replace(one, name="delta-spark, vectors", folder=folder / "delta-spark-vectors", masking=True)
        sides += [one, masking]
    return sides


def partition_sides(events: Events, folder: Path, spark: SparkSession, child: DeltaSpark | None) -> list[RowSide]:
    """A MERGE whose source lies in one month: of the whole table, and of a table that is that month alone."""
    assert events.merged_from is not None
    month = events.part(events.month_of(events.merged_from[0]))
    month.make()
    sides: list[RowSide] = [
        our_merge(events, folder, spark, MATCH_IN_PARTITION),
        our_merge(month, folder, spark, MATCH_IN_PARTITION, "ours on the partition alone"),
    ]
    if child is not None:
        statement = STATEMENTS["merge-partition"]
        sides.append(DeltaSparkSide(events=events, folder=folder / "delta-spark", child=child, statement=statement))
    return sides
