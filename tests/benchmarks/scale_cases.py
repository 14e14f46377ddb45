"""Tables of very many files: listing, pruning, refreshing, committing and checkpointing, each from cold or warm.

The peer of a case is the shortest public way in deltalake to the same answer, and the docstring of its side names it.
What each side finds is compared file by file, not only counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_txlog.engine import Table
from airflow_txlog.storage import Access
from tests.benchmarks.large_tables import (
    ADDS_PER_COMMIT,
    CHECKPOINT_VERSION,
    COMMITS_AFTER,
    cut_log,
    write_commit,
)

# Commits are written, and refreshed over, so often in one round: one alone takes milliseconds.
REPEATS = 20
WARM = 5


@dataclass
class OurListing:
    """Opens the table and lists the live files that may hold a row satisfying the predicate (None: all).

    As jobs and `TxlogHook.snapshot` do: one listing, as in deltalake. `Table.open(…).snapshot()` is two, because
    each call looks for newer commits.
    """

    table: Path | str
    predicate: str | None = None
    storage_options: dict[str, Any] | None = None
    name = "ours"
    paths: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        self.paths = []

    def run(self) -> None:
        access = Access(storage_options=self.storage_options or {})
        snapshot = Table.at(str(self.table), access).snapshot()
        self.paths = snapshot.files(self.predicate, columns=["path"])["path"].to_pylist()

    def result(self) -> set[str]:
        return set(self.paths)


@dataclass
class DeltaLakeListing:
    """The same with deltalake: `DeltaTable.file_uris`, which takes the same predicate; its paths are absolute."""

    table: Path | str
    predicate: str | None = None
    storage_options: dict[str, str] | None = None
    name = "deltalake"
    paths: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        self.paths = []

    def run(self) -> None:
        from deltalake import DeltaTable

        table = DeltaTable(str(self.table), storage_options=self.storage_options)
        self.paths = table.file_uris(file_pruning_predicate=self.predicate)

    def result(self) -> set[str]:
        root = str(self.table) + "/"
        return {path.removeprefix("file://").removeprefix(root) for path in self.paths}


@dataclass
class OurPruning:
    """Asks an open table for the files that a condition on a data column leaves.

    Each round opens the table anew, unmeasured, and asks it `asked_before`, where there is such a condition: what
    that question parsed is kept. deltalake parses statistics when it opens a table, which is not measured either.
    """

    table: Path
    predicate: str
    asked_before: str | None
    name: str = "ours"
    paths: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        self.paths = []
        self.snapshot = Table.open(str(self.table)).snapshot()
        if self.asked_before is not None:
            assert self.snapshot.files(self.asked_before).num_rows == 0

    def run(self) -> None:
        self.paths = self.snapshot.files(self.predicate, columns=["path"])["path"].to_pylist()

    def result(self) -> set[str]:
        del self.snapshot
        return set(self.paths)


@dataclass
class DeltaLakePruning:
    """The same with `DeltaTable.file_uris`. deltalake has parsed the statistics when it opened the table, unmeasured;
    the case `list-pruned` measures opening and pruning together."""

    table: Path
    predicate: str
    name = "deltalake"
    paths: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        from deltalake import DeltaTable

        self.paths = []
        self.opened = DeltaTable(str(self.table))

    def run(self) -> None:
        self.paths = self.opened.file_uris(file_pruning_predicate=self.predicate)

    def result(self) -> set[str]:
        del self.opened
        root = str(self.table) + "/"
        return {path.removeprefix("file://").removeprefix(root) for path in self.paths}


@dataclass
class Refreshing:
    """An open table takes in one new commit of 100 files, 20 times a round; what the refreshed one holds is counted.

    What is measured is a process that polls: it has refreshed a few times before. (Our first refreshes of a million
    files look through them, the third makes an index; all of them together cost less than opening.)
    """

    name: str
    table: Path
    files: int
    open: Callable[[str], Any]
    refresh: Callable[[Any], Any]
    count: Callable[[Any], int]
    repeats = REPEATS

    def prepare(self) -> None:
        cut_log(self.table, CHECKPOINT_VERSION + COMMITS_AFTER)
        self.opened = self.open(str(self.table))
        first = CHECKPOINT_VERSION + COMMITS_AFTER + 1
        # A commit far ahead costs nothing to write later: all are made here, and moved into place one by one.
        self.staged = []
        for number in range(WARM + REPEATS):
            start = self.files + (COMMITS_AFTER + number) * ADDS_PER_COMMIT
            write_commit(self.table, first + number, range(start, start + ADDS_PER_COMMIT))
            landed = self.table / "_delta_log" / f"{first + number:020d}.json"
            self.staged.append((landed.rename(self.table / f"staged-{number}"), landed))
        self._refresh(self.staged[:WARM])

    def run(self) -> None:
        self._refresh(self.staged[WARM:])

    def _refresh(self, commits: list[tuple[Path, Path]]) -> None:
        for staged, landed in commits:
            staged.rename(landed)
            self.opened = self.refresh(self.opened)

    def result(self) -> int:
        """Files beyond those that the table began with."""
        found = self.count(self.opened) - self.files
        del self.opened
        cut_log(self.table, CHECKPOINT_VERSION + COMMITS_AFTER)
        return found


def our_refresh(name: str, table: Path, files: int) -> Refreshing:
    """`Snapshot.refresh`."""
    return Refreshing(
        name,
        table,
        files,
        lambda uri: Table.open(uri).snapshot(),
        lambda snapshot: snapshot.refresh(),
        lambda snapshot: int(snapshot.num_files),
    )


def deltalake_refresh(table: Path, files: int) -> Refreshing:
    """`DeltaTable.update_incremental`."""
    from deltalake import DeltaTable

    def refresh(opened: DeltaTable) -> DeltaTable:
        opened.update_incremental()
        return opened

    return Refreshing("deltalake", table, files, DeltaTable, refresh, lambda opened: len(opened.file_uris()))


@dataclass
class FreshOpen:
    """Opens the table with our engine: what a refresh saves."""

    table: Path
    files: int
    name = "fresh open"

    def prepare(self) -> None:
        self.found = 0

    def run(self) -> None:
        self.found = Table.open(str(self.table)).snapshot().num_files

    def result(self) -> int:
        # As if it had been refreshed as often as the others.
        return self.found - self.files + (WARM + REPEATS) * ADDS_PER_COMMIT


@dataclass
class Committing:
    """A table object in use makes 20 blind appends of one file each; no checkpoint falls due."""

    name: str
    table: Path
    files: int
    repeats = REPEATS

    def prepare(self) -> None:
        cut_log(self.table, CHECKPOINT_VERSION + COMMITS_AFTER)
        self.opened = Table.open(str(self.table))
        for number in range(WARM):
            self._append(f"warm-{number}")

    def run(self) -> None:
        for number in range(REPEATS):
            self._append(str(number))

    def _append(self, number: str) -> None:
        transaction = self.opened.begin()
        transaction.add(
            path=f"day=2025-01-01/part-new-{number}.parquet",
            partition_values={"day": "2025-01-01"},
            size=1000,
            modification_time=1_700_000_000_000,
            stats='{"numRecords":10}',
        )
        transaction.commit("WRITE", {"mode": "Append"})

    def result(self) -> int:
        """Files beyond those that the table began with, as another implementation counts them."""
        from deltalake import DeltaTable

        found = len(DeltaTable(str(self.table)).file_uris()) - self.files
        del self.opened
        cut_log(self.table, CHECKPOINT_VERSION + COMMITS_AFTER)
        return found


@dataclass
class Checkpointing:
    """An open table writes the checkpoint of its latest version; opened anew each round, unmeasured.

    Ours: `Table.checkpoint`. deltalake's: `DeltaTable.create_checkpoint`. Both count the adds that they wrote.
    """

    name: str
    table: Path
    open: Callable[[str], Any]
    checkpoint: Callable[[Any], Any]

    def prepare(self) -> None:
        shutil.copy(self.table / "_delta_log" / "_last_checkpoint", self.table / "hint")
        self.opened = self.open(str(self.table))

    def run(self) -> None:
        self.checkpoint(self.opened)

    def result(self) -> set[str]:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        del self.opened
        log = self.table / "_delta_log"
        written = sorted(log.glob(f"{CHECKPOINT_VERSION + COMMITS_AFTER:020d}.checkpoint*.parquet"))
        assert written, f"{self.name} wrote no checkpoint"
        adds = pq.ParquetFile(written[0]).read(columns=["add.path"])["add"]
        paths = pc.struct_field(adds, "path").drop_null()
        for file in written:
            file.unlink()
        # What a later round starts from is what this one started from.
        (self.table / "hint").replace(log / "_last_checkpoint")
        return set(paths.to_pylist())


def checkpoint_sides(table: Path) -> list[Checkpointing]:
    from deltalake import DeltaTable

    return [
        Checkpointing("ours", table, Table.open, lambda opened: opened.checkpoint()),
        Checkpointing("deltalake", table, DeltaTable, lambda opened: opened.create_checkpoint()),
    ]
