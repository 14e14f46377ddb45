"""Ten thousand change events are applied to four million rows, and the same rows upserted; with and without history."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
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
    tables = [make_table(folder / "made", rows_of([], 0)), make_table(folder / "kept", as_history(rows_of([], 0)))]
    for number in range(_FILES):
        rows = rows_of(list(range(number * count // _FILES, (number + 1) * count // _FILES)), 1)
        append(tables[0], rows)
        append(tables[1], as_history(rows))
    drawn = random.Random(1).sample(range(count + count // 9), min(EVENTS, count))
    rows = rows_of(sorted(drawn), 2)
    # Other values than before begin a new row of a history.
    rows = rows.set_column(2, "name", pc.utf8_upper(rows.column("name")))
    pq.write_table(rows, folder / "rows.parquet")
    pq.write_table(as_history(rows), folder / "kept.parquet")
    pq.write_table(rows.append_column("op", pa.array(["u"] * rows.num_rows)), folder / "events.parquet")


def as_history(rows: pa.Table) -> pa.Table:
    """The rows with the time of a history instead of their sequence."""
    times = rows.rename_columns(["id", "__START_AT", "name", "note"])
    return times.append_column("__END_AT", pa.nulls(rows.num_rows, pa.int64()))


@dataclass
class OurUpsert:
    folder: Path
    keeps_history: bool = False
    name = "upsert"

    def prepare(self) -> None:
        shutil.rmtree(self.folder / self.name, ignore_errors=True)
        shutil.copytree(self.folder / ("kept" if self.keeps_history else "made"), self.folder / self.name)

    def run(self) -> None:
        name = "kept.parquet" if self.keeps_history else "rows.parquet"
        source = {"format": "parquet", "path": str(self.folder / name)}
        committed(run(None, "upsert", self.folder / self.name, source=source, keys=["id"]))

    def result(self) -> tuple[int, int]:
        """The number of current rows, and of those that have changed."""
        found = Table.open(self.folder / self.name).to_arrow()
        if self.keeps_history:
            found = found.filter(found.column("__END_AT").is_null())
        at = found.column("__START_AT" if self.keeps_history else "at")
        return found.num_rows, pc.sum(at).as_py() - found.num_rows


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
                except_column_list=["op", "at"] if self.keeps_history else ["op"],
                stored_as_scd_type=2 if self.keeps_history else 1,
            )
        )
