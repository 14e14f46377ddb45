"""The log alone, no rows: opening a table of 300,000 files, and committing one small version after another."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from airflow_txlog.engine import Table

OPEN_FILES = 300_000
FILES_PER_COMMIT = 1000
COMMITS = 200

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("day", pa.date32())])
# Both sides write a checkpoint as often as the other.
CHECKPOINT_INTERVAL = "10"


def make_large_log(table: Path, files: int) -> None:
    """A table of `files` adds in JSON commits of a thousand, with statistics and a partition value each; no checkpoint.

    Written as text, not through either engine: reading it is what is measured. A finished one is kept.
    """
    finished = table.parent / f"{table.name}.finished"
    if finished.exists():
        return
    shutil.rmtree(table, ignore_errors=True)
    Table.create(str(table), SCHEMA, ["day"])
    for version, start in enumerate(range(0, files, FILES_PER_COMMIT), 1):
        lines = [json.dumps({"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "WRITE"}})]
        lines += [large_log_add(number) for number in range(start, min(start + FILES_PER_COMMIT, files))]
        (table / "_delta_log" / f"{version:020d}.json").write_text("\n".join(lines) + "\n")
    finished.touch()


def large_log_add(number: int) -> str:
    day = f"2025-{number % 12 + 1:02d}-{number // 12 % 28 + 1:02d}"
    statistics = {
        "numRecords": 1000,
        "minValues": {"id": number * 1000, "name": f"name {number:08d} a"},
        "maxValues": {"id": number * 1000 + 999, "name": f"name {number:08d} z"},
        "nullCount": {"id": 0, "name": number % 7},
    }
    add = {
        "path": f"day={day}/part-{number:08d}-c000.snappy.parquet",
        "partitionValues": {"day": day},
        "size": 100_000 + number,
        "modificationTime": 1_700_000_000_000 + number,
        "dataChange": True,
        "stats": json.dumps(statistics),
    }
    return json.dumps({"add": add})


@dataclass
class OurOpen:
    """Opens the table and lists its live files."""

    table: Path
    name = "ours"

    def prepare(self) -> None:
        self.paths: list[str] = []

    def run(self) -> None:
        self.paths = Table.open(str(self.table)).snapshot().files()["path"].to_pylist()

    def result(self) -> set[str]:
        return set(self.paths)


@dataclass
class DeltaLakeOpen:
    """The same with deltalake, whose paths are absolute."""

    table: Path
    name = "deltalake"

    def prepare(self) -> None:
        self.paths: list[str] = []

    def run(self) -> None:
        from deltalake import DeltaTable

        self.paths = DeltaTable(str(self.table)).file_uris()

    def result(self) -> set[str]:
        root = str(self.table) + "/"
        return {path.removeprefix("file://").removeprefix(root) for path in self.paths}


@dataclass
class OurCommits:
    """`count` blind appends of one file each, one after the other, by one table object."""

    folder: Path
    count: int
    name = "ours"

    def prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        properties = {"delta.checkpointInterval": CHECKPOINT_INTERVAL}
        self.table = Table.create(str(self.folder), SCHEMA, properties=properties)

    def run(self) -> None:
        for number in range(self.count):
            transaction = self.table.begin()
            transaction.add(
                path=f"part-{number}.parquet",
                partition_values={},
                size=1000,
                modification_time=1_700_000_000_000,
                stats='{"numRecords":10}',
            )
            transaction.commit("WRITE", {"mode": "Append"})

    def result(self) -> tuple[int, int]:
        """(version, files) as another implementation reads them."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self.folder))
        return table.version(), len(table.file_uris())


@dataclass
class DeltaLakeCommits:
    """The same with deltalake's own transaction, which is given the written files as we are."""

    folder: Path
    count: int
    name = "deltalake"

    def prepare(self) -> None:
        from deltalake import DeltaTable

        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        configuration = {"delta.checkpointInterval": CHECKPOINT_INTERVAL}
        self.table = DeltaTable.create(str(self.folder), SCHEMA, configuration=configuration)

    def run(self) -> None:
        from deltalake.transaction import AddAction

        for number in range(self.count):
            add = AddAction(
                path=f"part-{number}.parquet",
                size=1000,
                partition_values={},
                modification_time=1_700_000_000_000,
                data_change=True,
                stats='{"numRecords":10}',
            )
            self.table.create_write_transaction([add], "append", SCHEMA)

    def result(self) -> tuple[int, int]:
        """(version, files) as we read them."""
        snapshot = Table.open(str(self.folder)).snapshot()
        return snapshot.version, snapshot.num_files
