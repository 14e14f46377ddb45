"""Ten thousand change events are applied to four million rows, and the same rows upserted."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.engine import Table
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append, make_table

ROWS = 4_000_000
EVENTS = 10_000
_FILES = 8


def rows_of(ids: list[int], sequence: int) -> pa.Table:
    numbers = pa.array(ids, pa.int64())
    notes = pa.array([f"note {number}" for number in ids], pa.string())
    return pa.table({"id": numbers, "at": pa.repeat(pa.scalar(sequence), len(ids)), "name": notes, "note": notes})


def table_and_changes(folder: Path, count: int) -> None:
    """Make a table of `count` rows, and the rows that change: nine in ten of the table, the others new."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    table = make_table(folder / "made", rows_of([], 0))
    for number in range(_FILES):
        append(table, rows_of(list(range(number * count // _FILES, (number + 1) * count // _FILES)), 1))
    drawn = random.Random(1).sample(range(count + count // 9), min(EVENTS, count))
    rows = rows_of(sorted(drawn), 2)
    pq.write_table(rows, folder / "rows.parquet")
    pq.write_table(rows.append_column("op", pa.array(["u"] * rows.num_rows)), folder / "events.parquet")


@dataclass
class OurUpsert:
    folder: Path
    name = "upsert"

    def prepare(self) -> None:
        shutil.rmtree(self.folder / self.name, ignore_errors=True)
        shutil.copytree(self.folder / "made", self.folder / self.name)

    def run(self) -> None:
        source = {"format": "parquet", "path": str(self.folder / "rows.parquet")}
        committed(run(None, "upsert", self.folder / self.name, source=source, keys=["id"]))

    def result(self) -> tuple[int, int]:
        """The number of rows, and of those that have changed."""
        found = Table.open(self.folder / self.name).to_arrow(columns=["at"]).column("at").to_pylist()
        return len(found), sum(found) - len(found)


@dataclass
class OurChanges(OurUpsert):
    name = "ours"

    def run(self) -> None:
        committed(
            run(
                None,
                "apply_changes",
                self.folder / self.name,
                source={"format": "parquet", "path": str(self.folder / "events.parquet")},
                keys=["id"],
                sequence_by="at",
                apply_as_deletes="op = 'd'",
                except_column_list=["op"],
            )
        )
