"""What the processes do, as data: drawn from a seed, written into a journal, run, and replayed by the checker.

A table has the columns `id` (unique), `n` and `bucket`, its partition. A piece of work is known by the name of its
process and a number, which stand in its commit as the application transaction. The journal of a process is a file of
JSON lines: `{"piece", "kind", …}` before the work begins, `{"done": piece, "status", "version"}` after it was
acknowledged, with the words of `JobResult`: a commit has its version, nothing to do the version at which that is so.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK

# So many that a job of some seconds meets some of the writers, and not each of them.
BUCKETS = 40
BUCKETS_OF_AN_OPTIMIZE = 10
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("bucket", pa.int32())])
PROPERTIES = {"delta.isolationLevel": "Serializable", "delta.checkpointInterval": "20"}
# The table of every other seed: rows are deleted in place, and two changes of one file may both commit.
WITH_VECTORS = {"delta.enableDeletionVectors": "true"}
# The last digits of the ids of an append: by them a row of a bucket has one row of a merge's source, or none.
ROWS_OF_AN_APPEND, IDS_OF_A_PIECE = 5, 1000
# Rows that a process appends have ids of its own: this many for each.
IDS_OF_A_PROCESS = 1_000_000_000

Piece = dict[str, Any]
Rows = dict[int, tuple[int, int]]
"""`n` and `bucket` by `id`."""

ENGINE = (("append", 50), ("delete", 10), ("update", 25), ("checkpoint", 5), ("clean", 4), ("vacuum", 6))
JOBS = (("write", 15), ("delete rows", 20), ("update rows", 25), ("merge", 30), ("optimize", 10), ("alter", 5))
# An ALTER sets this property to the number of its piece.
PROPERTY = "chaos.piece"
WITHOUT_TRANSACTION = ("checkpoint", "clean", "vacuum", "optimize")


def draw(rng: random.Random, kinds: tuple[tuple[str, int], ...], process: int, number: int) -> Piece:
    """Piece `number` of a process."""
    kind = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    first = process * IDS_OF_A_PROCESS + number * IDS_OF_A_PIECE
    return {
        "piece": number,
        "kind": kind,
        "bucket": rng.randrange(BUCKETS),
        "ids": [first + each for each in range(ROWS_OF_AN_APPEND)],
        "by": rng.choice([3, 5, 7]),
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
        given = {each % IDS_OF_A_PIECE: each for each in piece["ids"]}
        matched = {each: n for each, (n, its) in rows.items() if its == bucket and each % IDS_OF_A_PIECE in given}
        rows.update({each: (n + 10_000, bucket) for each, n in matched.items()})
        new = given.keys() - {each % IDS_OF_A_PIECE for each in matched}
        rows.update({given[end]: (7, bucket) for end in new})


class Journal:
    """The journal of one process; a line is written at once, so that a kill leaves it whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.pieces = {line["piece"]: line for line in lines if "piece" in line}
        self.done = {line["done"]: line for line in lines if "done" in line}
        self.conflicts = sum(1 for line in lines if "conflict" in line)
        self.resumed = sum(1 for line in lines if str(line.get("log")).startswith("resuming an earlier try"))

    def next_piece(self, seed: int, kinds: tuple[tuple[str, int], ...], process: int) -> Piece:
        """The piece that was begun and not acknowledged, so that it is tried again, or a new one."""
        number = len(self.pieces) - 1
        if number >= 0 and number not in self.done:
            return self.pieces[number]
        piece = draw(random.Random(f"{seed} {process} {number + 1}"), kinds, process, number + 1)
        self.pieces[number + 1] = piece
        self._write(piece)
        return piece

    def acknowledge(self, piece: Piece, status: str, version: int | None) -> None:
        line = {"done": piece["piece"], "status": status, "version": version}
        self.done[piece["piece"]] = line
        self._write(line)

    def lost(self, error: str) -> None:
        """Another process's commit came first."""
        self._write({"conflict": error})

    def log(self, line: str) -> None:
        """A line that a job has for people."""
        self._write({"conflict": line} if line.startswith("attempt ") else {"log": line})

    def _write(self, line: dict[str, Any]) -> None:
        line |= {"at": round(SYSTEM_CLOCK.now_ms() / 1000, 2)}
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)
