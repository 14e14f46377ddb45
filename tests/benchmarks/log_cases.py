"""The log alone, no rows: committing one small version after another."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from airflow_txlog.engine import Table

COMMITS = 200

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("day", pa.date32())])
# Both sides write a checkpoint as often as the other.
CHECKPOINT_INTERVAL = "10"


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
