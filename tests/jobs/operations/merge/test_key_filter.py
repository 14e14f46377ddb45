"""Alone in showing which target rows the keys of a merge's source let through, for conditions of every kind."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN
from airflow_txlog.engine.table.schema.schema import from_arrow, schema_to_json
from airflow_txlog.jobs.operations.merge.keys import PairColumns, key_filter
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.storage import LocalStore
from tests.helpers.limits import limited

TARGET = pa.table(
    {
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "small": pa.array([1, 2, 3, None], pa.int32()),
        "name": ["a", "b", "c", None],
        "day": pa.array([dt.date(2024, 1, day) for day in (1, 2, 3)] + [None]),
        "x": [1.0, 2.0, 3.0, None],
    }
)
SOURCE = pa.table(
    {
        "id": pa.array([2, 2, None], pa.int64()),
        "key": pa.array([3, 7, 7], pa.int64()),
        "name": ["b", "z", None],
        "day": pa.array([dt.date(2024, 1, 3)] * 3),
        "x": [2.0, 2.0, 2.0],
        ROW_ID_COLUMN: pa.array([0, 1, 2], pa.int64()),
    }
)
ALL = None
CASES = [
    ("t.id = s.id", [1]),
    ("s.key = t.id", [2]),
    ("t.id = key", [2]),
    ("t.`id` == s.`id` AND t.x > 100", [1]),
    ("(t.id = s.id) AND t.name = s.name", [1]),
    ("t.id = s.key AND t.name = s.name", []),
    ("t.day = s.day", [2]),
    ("t.id <=> s.id", [1, 3]),
    # Another type, a value computed, a type with more than one equality, an OR: nothing is certain.
    ("t.small = s.id", ALL),
    ("t.id = s.id + 1", ALL),
    ("t.x = s.x", ALL),
    ("t.id = s.id OR t.name = s.name", ALL),
    ("NOT t.id = s.id", ALL),
    ("t.id = 2", ALL),
    ("t.id > s.id", ALL),
]


def materialized(path: Path, **limits: int) -> MaterializedSource:
    pq.write_table(SOURCE, path)
    file = StagedFile(
        path=path.name,
        partition_values={},
        size_bytes=path.stat().st_size,
        modification_time_ms=0,
        num_records=SOURCE.num_rows,
        stats="{}",
    )
    stored = SOURCE.drop_columns([ROW_ID_COLUMN]).schema
    described = json.loads(schema_to_json(from_arrow(stored)))
    store = limited(LocalStore(str(path.parent)), **limits)
    return MaterializedSource(files=(file,), store=store, described=described, stored=stored)


def test_the_keys_of_a_source_filter_the_target(tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    columns = materialized(path).columns
    pair = PairColumns(target=from_arrow(TARGET.schema), source=columns, target_alias="t", source_alias="s")

    def passed(on: str, **limits: int) -> list[int] | None:
        row_filter = key_filter(on, TARGET.schema, pair, materialized(path, **limits))
        return (
            None
            if row_filter is None
            else [i for i, keep in enumerate(passing(row_filter, TARGET).to_pylist()) if keep]
        )

    assert {on: passed(on) for on, _ in CASES} == dict(CASES)
    # Of more keys than a worker looks up, the ends.
    assert (passed("t.id = s.key", filter_keys=1), passed("t.name = s.name", filter_keys=1)) == ([2], [1, 2])
    assert passed("t.id = s.id", filter_key_bytes=1) is None
