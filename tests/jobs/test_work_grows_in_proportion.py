"""Alone in showing that no operation without Spark is quadratic in the columns, partitions, files, clauses or keys.

Work is the number of calls in every thread of the job, so neither the machine nor its load has a part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.storage.limits import SMALL_JOB
from tests.helpers.calls import counted
from tests.helpers.depth import depth
from tests.helpers.jobs import run
from tests.helpers.rows import append, make_table, stage

pytestmark = pytest.mark.seeded

FEW = depth(12, 30, 100)
MANY = 10 * FEW
# Ten times as much of one thing is at most ten times the work; a hundred times would be quadratic.
MOST = 12


def wide(columns: int, first: int = 0) -> pa.Table:
    ids = range(first, first + 20)
    return pa.table({"id": pa.array(ids, pa.int64()), **{f"c{n}": pa.array(ids, pa.int64()) for n in range(columns)}})


def scattered(partitions: int, first: int = 0) -> pa.Table:
    ids = range(first, first + partitions)
    parts = [each % partitions for each in ids]
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "c0": pa.array(ids, pa.int64()), "p": pa.array(parts, pa.int64())}
    )


def source_of(folder: Path, rows: pa.Table) -> dict[str, Any]:
    folder.mkdir(parents=True)
    pq.write_table(rows, folder / "a.parquet")
    return {"format": "parquet", "path": str(folder)}


def by_columns(folder: Path, count: int) -> tuple[Table, dict[str, Any]]:
    return make_table(folder / "t", wide(count)), source_of(folder / "s", wide(count, first=10))


def by_partitions(folder: Path, count: int) -> tuple[Table, dict[str, Any]]:
    table = make_table(folder / "t", scattered(count), partition_by=["p"])
    return table, source_of(folder / "s", scattered(count, first=count // 2))


def by_files(folder: Path, count: int) -> tuple[Table, dict[str, Any]]:
    table = make_table(folder / "t", wide(1))
    tx = table.begin()
    adds: list[Add] = []
    for first in range(count):
        adds += stage(table, wide(1, first), tx=tx)
    tx.add(adds)
    tx.commit("WRITE", {"mode": "Append"})
    return table, source_of(folder / "s", wide(1, first=10))


Given = Callable[[Table, dict[str, Any]], tuple[str, dict[str, Any]]]
TABLES = {"columns": by_columns, "partitions": by_partitions, "files": by_files}
LONG = pytest.mark.long("tables of many files for each operation")
DIMENSIONS = ["columns", pytest.param("partitions", marks=LONG), pytest.param("files", marks=LONG)]


def assigned(table: Table) -> list[str]:
    return [name for name in table.snapshot().schema.names if name.startswith("c")]


def merged(table: Table, source: dict[str, Any], updated: Any, inserted: Any) -> tuple[str, dict[str, Any]]:
    keys = ["id", *table.snapshot().partition_columns]
    clauses = [
        {"when": "matched", "then": "update", "set": updated},
        {"when": "not_matched", "then": "insert", "values": inserted},
    ]
    return "merge", {"source": source, "on": " AND ".join(f"t.{key} = s.{key}" for key in keys), "clauses": clauses}


def merge_by_names(table: Table, source: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    every = table.snapshot().schema.names
    return merged(table, source, {n: f"s.{n}" for n in assigned(table)}, {n: f"s.{n}" for n in every})


OPERATIONS: dict[str, Given] = {
    "append": lambda _, source: ("write", {"source": source}),
    "overwrite": lambda _, source: ("write", {"source": source, "mode": "overwrite"}),
    "delete": lambda *_: ("delete", {"predicate": "c0 > 3"}),
    "update": lambda table, _: ("update", {"predicate": "c0 > 3", "set": dict.fromkeys(assigned(table), "7")}),
    "upsert": lambda table, source: (
        "upsert",
        {"source": source, "keys": ["id", *table.snapshot().partition_columns]},
    ),
    "merge *": lambda table, source: merged(table, source, "*", "*"),
    "merge by names": merge_by_names,
    "optimize": lambda *_: ("optimize", {}),
    "z-order": lambda *_: ("optimize", {"zorder_by": ["id"]}),
    "truncate": lambda *_: ("truncate", {}),
    "restore": lambda *_: ("restore", {"version": 0}),
    "vacuum": lambda *_: ("vacuum", {}),
    "checkpoint": lambda *_: ("checkpoint", {}),
}


def work_of(table: Table, operation: str, arguments: dict[str, Any]) -> int:
    """Return the calls of one job."""
    with counted() as calls:
        result = run(None, operation, table, **arguments)
    assert result.status in ("committed", "done", "nothing_to_do"), result.error
    return calls[0]


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_ten_times_as_many_are_at_most_ten_times_the_work(
    dimension: str, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thousand small files are still a job without Spark.
    monkeypatch.setenv(SMALL_JOB.setting, str(4 << 30))
    work = {}
    for count in (FEW, MANY):
        table, source = TABLES[dimension](tmp_path / str(count), count)
        work[count] = work_of(table, *OPERATIONS[operation](table, source))
    assert work[MANY] < MOST * work[FEW], work


def test_ten_times_as_many_keys_are_at_most_ten_times_the_work(tmp_path: Path) -> None:
    work = {}
    for count in (FEW, MANY):
        table = make_table(tmp_path / str(count), wide(1))
        keys = {"column": "id", "values": list(range(count))}
        work[count] = work_of(table, "delete", {"predicate": None, "keys": keys})
    assert work[MANY] < MOST * work[FEW], work


def test_ten_times_as_many_clauses_are_at_most_ten_times_the_work(tmp_path: Path) -> None:
    source, work = source_of(tmp_path / "s", wide(1)), {}
    for count in (FEW, MANY):
        table = make_table(tmp_path / str(count), wide(1))
        clauses = [
            {"when": "matched", "condition": f"s.c0 = {n}", "then": "update", "set": {"c0": f"{n}"}}
            for n in range(count)
        ]
        arguments = {"source": source, "on": "t.id = s.id", "clauses": clauses}
        work[count] = work_of(table, "merge", arguments)
    assert work[MANY] < MOST * work[FEW], work


def test_an_append_to_many_files_makes_no_call_for_each_of_them(tmp_path: Path) -> None:
    work = {}
    for count in (FEW, MANY):
        table, source = by_files(tmp_path / str(count), count)
        append(table, wide(1))
        work[count] = work_of(table, "write", {"source": source})
    assert work[MANY] < 2 * work[FEW], work
