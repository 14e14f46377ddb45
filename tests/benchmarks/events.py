"""The tables of the row benchmarks: files of 250,000 events, and the source that is merged into them.

16 files without partitions, or 80 files in ten partitions: eight neighbouring files are a month. Ids are dealt to the
files in turn and customers are drawn at random, so that no file can be pruned by its statistics: every side has to look
everywhere. All of it comes from fixed seeds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

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
PARTITION = "month"
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
    """The benchmark's input at one scale, made once under `folder` and only linked to afterwards.

    `partitions`: how many months the files are dealt to, 0 for a table without partitions. `merged_from`: the numbers
    of the files that hold the known half of what is merged, None for all; new rows go to the partitions of these.
    """

    folder: Path
    scale: float
    files: int = FILES
    partitions: int = 0
    merged_from: range | None = None

    @property
    def rows_per_file(self) -> int:
        return max(int(ROWS_PER_FILE * self.scale), CUSTOMERS)

    @property
    def merged_rows(self) -> int:
        return max(int(MERGED_ROWS * self.scale), 200)

    @property
    def source(self) -> Path:
        """A Parquet file of rows to merge: half of the ids are in the table, spread over every file."""
        kind = "all" if self.merged_from is None else f"{self.merged_from.start}-{self.merged_from.stop}"
        return self.folder / f"source-{kind}" / "part-0.parquet"

    @property
    def table(self) -> Path:
        """A Delta table holding the data files; nobody writes to it."""
        return self.folder / "table"

    def make(self) -> None:
        """Write data files, source and log, those that are not there yet."""
        if not (self.folder / "finished").exists():
            self._make_table()
        if not self.source.exists():
            self.source.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(self._source_rows(), self.source, store_schema=False)

    def _make_table(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.table.mkdir(parents=True)
        for index in range(self.files):
            ids = np.arange(self.rows_per_file, dtype=np.int64) * self.files + index
            path = self.table / self.path_of(index)
            path.parent.mkdir(exist_ok=True)
            pq.write_table(make_events(ids, index), path, store_schema=False)
        commit_files(self.table, SCHEMA, self._partition_fields, {})
        # The same files, where rows are masked instead of copied away; its log alone is used.
        self._link_files(self.masking)
        commit_files(self.masking, SCHEMA, self._partition_fields, {"delta.enableDeletionVectors": "true"})
        (self.folder / "finished").touch()

    @property
    def masking(self) -> Path:
        """The table with deletion vectors switched on."""
        return self.folder / "masking"

    @property
    def _partition_fields(self) -> list[pa.Field]:
        return [pa.field(PARTITION, pa.int32())] if self.partitions else []

    def path_of(self, index: int) -> str:
        """Where a file is, relative to the table."""
        name = f"part-{index:05d}.parquet"
        return f"{PARTITION}={self.month_of(index)}/{name}" if self.partitions else name

    def month_of(self, index: int) -> int:
        return index * self.partitions // self.files

    def part(self, month: int) -> Events:
        """One month alone, as a table of its own with the same source."""
        folder = self.folder / f"month-{month}"
        return _Month(folder=folder, scale=self.scale, partitions=self.partitions, whole=self, month=month)

    def _source_rows(self) -> pa.Table:
        rng = np.random.default_rng(self.files)
        of_files = np.array(range(self.files) if self.merged_from is None else self.merged_from)
        total = self.rows_per_file * len(of_files)
        chosen = rng.choice(total, self.merged_rows // 2, replace=False)
        known = chosen // len(of_files) * self.files + of_files[chosen % len(of_files)]
        first_new = self.rows_per_file * self.files
        new = first_new + np.arange(self.merged_rows - len(known)) * self.files
        new += of_files[rng.integers(0, len(of_files), len(new))]
        ids = rng.permutation(np.concatenate([known, new])).astype(np.int64)
        rows = make_events(ids, self.files + 1)
        months = pa.array(ids % self.files * self.partitions // self.files, pa.int32())
        return rows.append_column(PARTITION, months) if self.partitions else rows

    def link_table(self, to: Path, *, masking: bool = False) -> None:
        """A table of its own at `to`: the data files as hard links (nobody changes a data file), the log as a copy.

        `masking`: with deletion vectors switched on.
        """
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        shutil.copytree((self.masking if masking else self.table) / "_delta_log", to / "_delta_log")
        self._link_files(to)

    def _link_files(self, to: Path) -> None:
        for path in self.table.rglob("part-*.parquet"):
            target = to / path.relative_to(self.table)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)

    @property
    def compared(self) -> list[str]:
        """The columns by which results are compared: of a large table, the id and a value."""
        is_large = self.partitions or self.files > FILES
        return ["event_id", "customer_id", "amount"] if is_large else SCHEMA.names

    def in_order(self, rows: pa.Table) -> pa.Table:
        """Those columns of the rows, by id."""
        return rows.select(self.compared).sort_by("event_id").combine_chunks()

    @cached_property
    def rows(self) -> pa.Table:
        paths = [str(path) for path in sorted(self.table.rglob("part-*.parquet"))]
        tables = [pq.read_table(path, columns=self.compared, partitioning=None) for path in paths]
        return self.in_order(pa.concat_tables(tables).cast(pa.schema([SCHEMA.field(name) for name in self.compared])))

    @cached_property
    def rows_after_delete(self) -> pa.Table:
        return self.rows.filter(pc.not_equal(self.rows["customer_id"], FORGOTTEN_CUSTOMER))

    @cached_property
    def rows_after_merge(self) -> pa.Table:
        source = pq.read_table(self.source, schema=SCHEMA).select(self.compared)
        kept = self.rows.filter(pc.invert(pc.is_in(self.rows["event_id"], value_set=source["event_id"])))
        return self.in_order(pa.concat_tables([kept, source]))

    @cached_property
    def rows_after_update(self) -> pa.Table:
        chosen = pc.equal(self.rows["customer_id"], FORGOTTEN_CUSTOMER)
        rows = self.rows
        for name, value in (("device", pa.scalar("erased")), ("amount", pc.add(rows["amount"], 1.0))):
            index = rows.schema.get_field_index(name)
            if index >= 0:
                rows = rows.set_column(index, SCHEMA.field(name), pc.if_else(chosen, value, rows[name]))
        return rows.combine_chunks()


def commit_files(
    table: Path, schema: pa.Schema, partition_fields: Sequence[pa.Field], properties: dict[str, str]
) -> None:
    """Make the Parquet files of a folder a table, whose `schema` is that of the files."""
    from airflow_txlog.datafiles.parquet.statistics import file_statistics
    from airflow_txlog.engine import Table

    names = [each.name for each in partition_fields]
    whole = pa.schema([*schema, *partition_fields])
    # The files are there already: they become the table.
    transaction = Table.create(str(table), whole, names, properties, allow_non_empty=True).begin()
    for path in sorted(table.rglob("*.parquet")):
        info = path.stat()
        transaction.add(
            path=str(path.relative_to(table)),
            partition_values=dict(part.split("=") for part in path.relative_to(table).parts[:-1]),
            size=info.st_size,
            modification_time=info.st_mtime_ns // 1_000_000,
            stats=file_statistics(pq.read_table(path, partitioning=None).cast(schema)),
        )
    transaction.commit("WRITE", {"mode": "Append"})


@dataclass(frozen=True)
class _Month(Events):
    """The files of one month of another table, linked, and that table's source."""

    whole: Events | None = None
    month: int = 0

    @property
    def source(self) -> Path:
        assert self.whole is not None
        return self.whole.source

    def make(self) -> None:
        assert self.whole is not None
        if (self.folder / "finished").exists():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        name = f"{PARTITION}={self.month}"
        shutil.copytree(self.whole.table / name, self.table / name, copy_function=os.link)
        commit_files(self.table, SCHEMA, self._partition_fields, {})
        (self.folder / "finished").touch()


def in_order(rows: pa.Table) -> pa.Table:
    """The rows by id, in the one schema and in one chunk a column: two equal results are equal tables."""
    return rows.select(SCHEMA.names).cast(SCHEMA).sort_by("event_id").combine_chunks()


def read_parquet_files(paths: list[str], names: list[str] | None = None) -> pa.Table:
    """Rows of plain Parquet files, whoever wrote them; Spark's INT96 timestamps are read as microseconds."""
    columns = SCHEMA.names if names is None else names
    options: dict[str, Any] = {"columns": columns, "coerce_int96_timestamp_unit": "us", "partitioning": None}
    tables = [pq.read_table(path, **options) for path in paths]
    if "event_time" not in columns:
        return pa.concat_tables(tables)
    times = SCHEMA.get_field_index("event_time")
    for number, table in enumerate(tables):
        column = table["event_time"].cast(SCHEMA.field("event_time").type)
        tables[number] = table.set_column(times, SCHEMA.field("event_time"), column)
    return pa.concat_tables([table.cast(SCHEMA) for table in tables])
