"""A table in memory whose files, commits and tombstones have any age one likes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_txlog.clock import SystemClock
from airflow_txlog.engine.log.actions import Add, Cdc, DeletionVector, Remove, encode_commit
from airflow_txlog.engine.log.columns import adds_to_table, removes_to_table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.schema.properties import HOUR_MS
from airflow_txlog.engine.upkeep.vacuum import VacuumResult, vacuum
from airflow_txlog.engine.upkeep.vacuum_plan import VacuumRequest, VacuumState
from airflow_txlog.storage import MemoryStore

NOW = 1_700_000_000_000
WEEK = 7 * 24  # in hours, as all ages here
VECTOR = DeletionVector(storage_type="u", path_or_inline_dv="ab^-aqEH.-t@S}K{vb[*k^", size_in_bytes=1, cardinality=1)
VECTOR_FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


class Hands(SystemClock):
    """A clock that stands still."""

    def __init__(self, now_ms: int = NOW) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


class Table:
    """A table in memory whose files, commits and tombstones have any age one likes."""

    def __init__(self) -> None:
        self.clock = Hands()
        self.store = MemoryStore(f"memory://vacuum-{uuid.uuid4().hex}/t", clock=self.clock)
        self.live: list[Add] = []
        self.tombstones: list[Remove] = []
        self.versions = 0
        self.said: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    def file(self, path: str, *, age: float) -> Table:
        """A file on disk, written so many hours ago."""
        self.clock.time_ms = NOW - int(age * HOUR_MS)
        self.store.put(path, b"1234")
        self.clock.time_ms = NOW
        return self

    def add(self, path: str, vector: DeletionVector | None = None) -> Table:
        self.live.append(
            Add(
                path=path,
                partition_values={},
                size=4,
                modification_time=0,
                data_change=True,
                deletion_vector=vector,
            )
        )
        return self

    def remove(self, path: str, *, age: float | None, vector: DeletionVector | None = None) -> Table:
        """A tombstone, stamped so many hours ago; None: not stamped at all."""
        self.tombstones.append(remove(path, age, vector))
        return self

    def commit(self, *actions: Add | Remove | Cdc, age: float) -> Table:
        """A commit in the log alone, as if a checkpoint had dropped what it says."""
        self.clock.time_ms = NOW - int(age * HOUR_MS)
        self.store.put(commit_name(self.versions), encode_commit({"operation": "x"}, actions))
        self.versions += 1
        self.clock.time_ms = NOW
        return self

    def vacuum(
        self,
        retention: float | None = None,
        *,
        table_retention: float = WEEK,
        orphan_retention: float = WEEK,
        check: bool = True,
        dry_run: bool = False,
        partition_columns: Sequence[str] = ("p",),
        clock: SystemClock | None = None,
        store: Any = None,
        **asked: Any,
    ) -> VacuumResult:
        return vacuum(
            store or self.store,
            VacuumState(
                version=self.versions - 1,
                live=adds_to_table(self.live),
                tombstones=removes_to_table(self.tombstones),
                partition_columns=partition_columns,
                retention_ms=int(table_retention * HOUR_MS),
            ),
            VacuumRequest(
                retention_ms=None if retention is None else int(retention * HOUR_MS),
                check_retention=check,
                orphan_retention_ms=int(orphan_retention * HOUR_MS),
                dry_run=dry_run,
                **asked,
            ),
            clock=clock or self.clock,
            record=self._record,
        )

    def _record(self, operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        self.said.append((operation.removeprefix("VACUUM "), dict(parameters), dict(metrics)))

    def left(self) -> list[str]:
        return sorted(info.path for info in self.store.walk() if not info.path.startswith("_delta_log/"))


def remove(path: str, age: float | None, vector: DeletionVector | None = None) -> Remove:
    stamp = None if age is None else NOW - int(age * HOUR_MS)
    return Remove(path=path, data_change=True, deletion_timestamp=stamp, deletion_vector=vector)
