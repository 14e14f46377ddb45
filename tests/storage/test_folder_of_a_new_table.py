"""On every store: no table is made beside files of others, and what a killed try left is no obstacle."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import FolderNotEmpty
from airflow_txlog.storage import Store

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.mark.parametrize("path", ["README.txt", "day=1/events.parquet"])
def test_a_file_of_others_is_named_and_no_table_is_made(store: Store, path: str) -> None:
    store.put(path, b"somebody's")
    with pytest.raises(FolderNotEmpty) as error:
        Table.create(store, SCHEMA)
    assert error.value.examples == [path]  # type: ignore[attr-defined]
    assert [info.path for info in store.walk()] == [path]
    assert Table.create(store, SCHEMA, allow_non_empty=True).snapshot().version == 0


def test_what_a_killed_try_left_is_no_obstacle(store: Store) -> None:
    store.put(f"day=1/part-0123456789abcdef-{uuid.uuid4()}.c000.zstd.parquet", b"staged")
    store.put("txlog-inputs-0123/source.parquet", b"rows")
    store.put("_SUCCESS", b"")
    assert Table.create(store, SCHEMA).snapshot().properties.get("txlog.sharedFolder") is None
