"""The table of the row benchmarks: 16 files of 250,000 events, and the source that is merged into them.

Ids are dealt to the files in turn and customers are drawn at random, so that no file can be pruned by its
statistics: every side has to look everywhere. All of it comes from fixed seeds.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FILES = 16
ROWS_PER_FILE = 250_000
CUSTOMERS = 1000
MERGED_ROWS = 40_000
# One customer of a thousand: 0.1 % of the rows, scattered over every file.
FORGOTTEN_CUSTOMER = 417

SCHEMA = pa.schema(
    [
        pa.field("event_id", pa.int64()),
        pa.field("customer_id", pa.int64()),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("country", pa.string()),
        pa.field("device", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("email", pa.string()),
        pa.field("session", pa.string()),
    ]
)
COUNTRIES = [f"{a}{b}" for a in "ABCDEFGHIJKLMN" for b in "AEIOUY"]
DEVICES = ["android", "ios", "linux", "macos", "tv", "windows"]


def make_events(event_ids: np.ndarray, seed: int) -> pa.Table:
    """One row for each id, in the order given; everything else is drawn from the seed."""
    rng = np.random.default_rng(seed)
    rows = len(event_ids)
    start = np.datetime64("2025-01-01T00:00:00", "us").astype(np.int64)
    names = pa.array(rng.integers(0, 1_000_000, rows)).cast(pa.string())
    sessions = np.frombuffer(rng.bytes(rows * 8).hex().encode(), dtype="S16")
    columns = [
        pa.array(event_ids),
        pa.array(rng.integers(0, CUSTOMERS, rows)),
        pa.array(start + np.sort(rng.integers(0, 365 * 86_400_000_000, rows))).cast(pa.timestamp("us", tz="UTC")),
        pa.array(COUNTRIES).take(pa.array(rng.integers(0, len(COUNTRIES), rows))),
        pa.array(DEVICES).take(pa.array(rng.integers(0, len(DEVICES), rows))),
        pa.array(np.round(rng.gamma(2.0, 30.0, rows), 2)),
        pc.binary_join_element_wise("user", names, "@example.org", ""),
        pa.array(sessions).cast(pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


@dataclass(frozen=True)
class Events:
    """The benchmark's input at one scale, made once under `folder` and only linked to afterwards."""

    folder: Path
    scale: float

    @property
    def rows_per_file(self) -> int:
        return max(int(ROWS_PER_FILE * self.scale), CUSTOMERS)

    @property
    def merged_rows(self) -> int:
        return max(int(MERGED_ROWS * self.scale), 200)

    @property
    def source(self) -> Path:
        """A Parquet file of rows to merge: half of the ids are in the table, spread over every file."""
        return self.folder / "source" / "part-0.parquet"

    @property
    def table(self) -> Path:
        """A Delta table holding the data files; nobody writes to it."""
        return self.folder / "table"

    def make(self) -> None:
        """Write data files, source and log, unless a finished folder of this scale is there."""
        if (self.folder / "finished").exists():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.table.mkdir(parents=True)
        self.source.parent.mkdir(parents=True)
        for index in range(FILES):
            ids = np.arange(self.rows_per_file, dtype=np.int64) * FILES + index
            pq.write_table(make_events(ids, index), self.table / f"part-{index:05d}.parquet", store_schema=False)
        pq.write_table(self._source_rows(), self.source, store_schema=False)
        self._commit_files()
        (self.folder / "finished").touch()

    def _source_rows(self) -> pa.Table:
        rng = np.random.default_rng(FILES)
        total = self.rows_per_file * FILES
        known = rng.choice(total, self.merged_rows // 2, replace=False)
        new = total + np.arange(self.merged_rows - len(known))
        return make_events(rng.permutation(np.concatenate([known, new])).astype(np.int64), FILES + 1)

    def _commit_files(self) -> None:
        from airflow_txlog.datafiles.statistics import file_statistics
        from airflow_txlog.engine import Table

        transaction = Table.create(str(self.table), SCHEMA).begin()
        for path in sorted(self.table.glob("*.parquet")):
            info = path.stat()
            transaction.add(
                path=path.name,
                partition_values={},
                size=info.st_size,
                modification_time=info.st_mtime_ns // 1_000_000,
                stats=file_statistics(pq.read_table(path)),
            )
        transaction.commit("WRITE", {"mode": "Append"})

    def link_table(self, to: Path) -> None:
        """A table of its own at `to`: the data files as hard links (nobody changes a data file), the log as a copy."""
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        shutil.copytree(self.table / "_delta_log", to / "_delta_log")
        for path in self.table.glob("*.parquet"):
            os.link(path, to / path.name)

    @cached_property
    def rows(self) -> pa.Table:
        return in_order(pq.read_table(self.table, schema=SCHEMA))

    @cached_property
    def rows_after_delete(self) -> pa.Table:
        return self.rows.filter(pc.not_equal(self.rows["customer_id"], FORGOTTEN_CUSTOMER))

    @cached_property
    def rows_after_merge(self) -> pa.Table:
        source = pq.read_table(self.source, schema=SCHEMA)
        kept = self.rows.filter(pc.invert(pc.is_in(self.rows["event_id"], value_set=source["event_id"])))
        return in_order(pa.concat_tables([kept, source]))


def in_order(rows: pa.Table) -> pa.Table:
    """The rows by id, in the one schema and in one chunk a column: two equal results are equal tables."""
    return rows.select(SCHEMA.names).cast(SCHEMA).sort_by("event_id").combine_chunks()


def read_parquet_files(paths: list[str]) -> pa.Table:
    """Rows of plain Parquet files, whoever wrote them; Spark's INT96 timestamps are read as microseconds."""
    tables = [pq.read_table(path, columns=SCHEMA.names, coerce_int96_timestamp_unit="us") for path in paths]
    times = SCHEMA.get_field_index("event_time")
    for number, table in enumerate(tables):
        column = table["event_time"].cast(SCHEMA.field("event_time").type)
        tables[number] = table.set_column(times, SCHEMA.field("event_time"), column)
    return pa.concat_tables([table.cast(SCHEMA) for table in tables])
