"""A lost race costs what the winner did, not once more what this transaction adds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.commit import transaction
from airflow_txlog.engine.commit.content import attempt
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.storage import MemoryStore

SCHEMA = pa.schema([("id", pa.int64())])


def test_the_paths_of_added_files_are_read_once_however_many_commits_land_first(
    memory_uri: str, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: str, root: str) -> str:
        read.append(path)
        return canonical_path(path, root)

    for module in (transaction, attempt):
        monkeypatch.setattr(module, "canonical_path", counted)

    def reads_after(winners: int) -> int:
        table = Table.create(MemoryStore(f"{memory_uri}-{winners}"), SCHEMA, clock=clock)
        tx = table.begin()
        for number in range(5):
            tx.add(path=f"ours{number}", size=1)
        for number in range(winners):
            other = table.begin()
            other.add(path=f"theirs{number}", size=1)
            other.commit("WRITE")
        read.clear()
        assert tx.commit("WRITE") == winners + 1
        return sum(path.startswith("ours") for path in read)

    assert reads_after(4) == reads_after(0)
