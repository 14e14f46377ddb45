"""What the processes do, as data: drawn from a seed, written into a journal, run, and replayed by the checker.

A table has the columns `id` (unique), `n` and `bucket`, its partition. A piece of work is known by the name of its
process and a number, which stand in its commit as the application transaction. The journal of a process is a file of
JSON lines: `{"piece", "kind", …}` before the work begins, `{"done": piece, "version": v}` after it was acknowledged.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

BUCKETS = 24
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("bucket", pa.int32())])
PROPERTIES = {"delta.isolationLevel": "Serializable", "delta.checkpointInterval": "20"}
ROWS_OF_AN_APPEND = 5
# Rows that a process appends have ids of its own: this many for each.
IDS_OF_A_PROCESS = 1_000_000_000

Piece = dict[str, Any]
Rows = dict[int, tuple[int, int]]
"""`n` and `bucket` by `id`."""

ENGINE = (("append", 50), ("delete", 10), ("update", 25), ("checkpoint", 5), ("clean", 4), ("vacuum", 6))
JOBS = (("write", 25), ("delete rows", 20), ("update rows", 25), ("merge", 20), ("optimize", 10))
WITHOUT_TRANSACTION = ("checkpoint", "clean", "vacuum", "optimize")


def draw(rng: random.Random, kinds: tuple[tuple[str, int], ...], process: int, number: int) -> Piece:
    """Piece `number` of a process."""
    kind = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    first = process * IDS_OF_A_PROCESS + number * 1000
    return {
        "piece": number,
        "kind": kind,
        "bucket": rng.randrange(BUCKETS),
        "ids": [first + each for each in range(ROWS_OF_AN_APPEND)],
        "by": rng.choice([5, 7, 11]),
    }


def new_rows(piece: Piece) -> pa.Table:
    """The rows that an append or a write adds."""
    ids = piece["ids"]
    columns = [pa.array(ids, pa.int64()), pa.array([0] * len(ids), pa.int64()), pa.array([piece["bucket"]] * len(ids))]
    return pa.table([columns[0], columns[1], columns[2].cast(pa.int32())], schema=SCHEMA)


def apply(rows: Rows, piece: Piece) -> None:
    """What the piece does to the rows, all at once."""
    kind, bucket, by = piece["kind"], piece["bucket"], piece["by"]
    if kind in ("append", "write"):
        rows.update(dict.fromkeys(piece["ids"], (0, bucket)))
    elif kind == "delete":
        for each in [each for each, (_, its) in rows.items() if its == bucket]:
            del rows[each]
    elif kind == "update":
        rows.update({each: (n + 1, its) for each, (n, its) in rows.items() if its == bucket})
    elif kind == "delete rows":
        for each in [each for each, (_, its) in rows.items() if its == bucket and each % by == 0]:
            del rows[each]
    elif kind == "update rows":
        rows.update({each: (n + 100, its) for each, (n, its) in rows.items() if its == bucket and each % by == 1})
    elif kind == "merge":
        for each in piece["ids"]:
            n = rows[each][0] + 10_000 if each in rows else 7
            rows[each] = (n, rows[each][1] if each in rows else bucket)


class Journal:
    """The journal of one process; a line is written at once, so that a kill leaves it whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.pieces = {line["piece"]: line for line in lines if "piece" in line}
        self.done = {line["done"]: line["version"] for line in lines if "done" in line}
        self.counts = {name: sum(1 for line in lines if line.get("count") == name) for name in ("conflict",)}

    def next_piece(self, seed: int, kinds: tuple[tuple[str, int], ...], process: int) -> Piece:
        """The piece that was begun and not acknowledged, so that it is tried again, or a new one."""
        number = len(self.pieces) - 1
        if number >= 0 and number not in self.done:
            return self.pieces[number]
        piece = draw(random.Random(f"{seed} {process} {number + 1}"), kinds, process, number + 1)
        self.pieces[number + 1] = piece
        self._write(piece)
        return piece

    def acknowledge(self, piece: Piece, version: int | None) -> None:
        self.done[piece["piece"]] = version
        self._write({"done": piece["piece"], "version": version})

    def count(self, name: str) -> None:
        self._write({"count": name})

    def _write(self, line: dict[str, Any]) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)
