"""Fixtures of the attacks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.canary import Canary
from tests.helpers.hostile import SECRET, VARIABLE, Watched
from tests.helpers.jobs import rows


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A folder, a variable of the environment and a port of this machine that no job may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    pq.write_table(pa.table({"id": pa.array([666], pa.int64())}), folder / "rows.parquet")
    (folder / "secret.txt").write_text(f"{SECRET}\n")
    (tmp_path / "in.csv").write_text("id\n5\n")
    monkeypatch.setenv(VARIABLE, SECRET)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0)
        yield Watched(folder, server)


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Canary]:
    """Files outside of the table, watched to the end of the test."""
    found = Canary(tmp_path / "outside", rows(1).schema)
    yield found
    found.check()
