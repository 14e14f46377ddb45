"""A task of its own process: appends or deletes rows, each piece of work once, however often it is killed."""

from __future__ import annotations

import time

import pyarrow as pa

from airflow_txlog import errors
from airflow_txlog.engine import Table
from tests.helpers.rows import stage

ROWS = 3


def work(uri: str, name: str, pieces: int) -> None:
    """Pieces 0, 1, …: an even one appends three rows; an odd one deletes the file of the piece before it."""
    table = Table.open(uri)
    for piece in range(pieces):
        while True:
            try:
                _do(table, name, piece)
                break
            except (errors.CommitConflict, errors.CommitContention):
                continue
            except errors.CommitStateUnknown:
                time.sleep(0.01)


def _do(table: Table, name: str, piece: int) -> None:
    tx = table.begin()
    if (tx.read_application(name) or 0) > piece:
        return
    tx.set_application(name, piece + 1)
    if piece % 2 == 0:
        rows = [{"writer": name, "piece": piece, "n": n} for n in range(ROWS)]
        tx.add(stage(table, pa.Table.from_pylist(rows, schema=table.snapshot().schema), tx=tx))
    elif piece % 4 == 1:
        tx.remove(tx.read("writer = :w AND piece = :p", parameters={"w": name, "p": piece - 1}))
    tx.commit("WRITE" if piece % 2 == 0 else "DELETE", record_empty=True)
