"""Real processes on a real disk, killed at any moment and started again: every row is accounted for."""

from __future__ import annotations

import random
import time
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from tests.engine.processes.writer import ROWS, work
from tests.helpers.forks import FORKS

WRITERS = ["w0", "w1", "w2", "w3"]
PIECES = 24
KILLS = 6
PATIENCE_S = 400

SCHEMA = pa.schema([("writer", pa.string()), ("piece", pa.int64()), ("n", pa.int64())])


@pytest.mark.slow("four processes, killed and started again")
def test_writers_that_are_killed_and_started_again_do_each_piece_once(tmp_path: Path) -> None:
    """An application transaction a piece: what was committed before the kill is not repeated, what was not is done."""
    table = Table.create(tmp_path / "t", SCHEMA, ["writer"], {"delta.checkpointInterval": "7"})
    chance = random.Random(7)
    until = time.monotonic() + PATIENCE_S
    running = {name: start(table, name) for name in WRITERS}
    kills = 0
    try:
        while running:
            assert time.monotonic() < until, f"{sorted(running)} do not end"
            time.sleep(0.05 + chance.random() * 0.4)
            for name, process in list(running.items()):
                if process.exitcode is not None:
                    assert process.exitcode == 0
                    del running[name]
            # Only one that has begun to write: another has nothing to lose.
            begun = [name for name in running if table.snapshot().application_version(name)]
            if begun and kills < KILLS:
                name = chance.choice(begun)
                running[name].kill()
                running[name].join()
                running[name] = start(table, name)
                kills += 1
    finally:
        for process in running.values():
            process.kill()
            process.join()
    # How many depends on how soon a busy machine lets this process look.
    assert kills
    check_log(table)
    check_rows(table)


def start(table: Table, name: str) -> ForkServerProcess:
    process = FORKS.Process(target=work, args=(table.uri, name, PIECES))
    process.start()
    return process


def check_log(table: Table) -> None:
    """One commit a piece, in each writer's own order, and no version missing."""
    done: dict[str, list[int]] = {name: [] for name in WRITERS}
    for version in range(1, table.snapshot().version + 1):
        path = commit_name(version)
        (transaction,) = decode_commit(version, table.store.read(path), path).transactions
        done[transaction.app_id].append(transaction.version)
    assert done == {name: list(range(1, PIECES + 1)) for name in WRITERS}


def check_rows(table: Table) -> None:
    rows = Counter((row["writer"], row["piece"]) for row in table.to_arrow().to_pylist())
    # Pieces 0, 4, 8 … were appended and deleted by the next one; 2, 6, 10 … were appended and stayed.
    assert rows == {(name, piece): ROWS for name in WRITERS for piece in range(2, PIECES, 4)}
