"""Removes as delta-spark writes them: a partition value that is null is left out of `partitionValues`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from tests.helpers.rows import append

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("q", pa.int32())])


def remove_all(folder: Path, **changed: Any) -> Table:
    """A table whose one file, of the partition p=null and q=1, was removed at version 2 by another writer."""
    table = Table.create(str(folder), SCHEMA, ["p", "q"], {"delta.enableChangeDataFeed": "true"})
    append(table, [{"id": 1, "p": None, "q": 1}])
    [add] = table.snapshot().files().select(["path", "size"]).to_pylist()
    remove = {
        "path": add["path"],
        "deletionTimestamp": 1,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {"q": "1"},
        "size": add["size"],
    }
    lines = [{"commitInfo": {"operation": "DELETE"}}, {"remove": {**remove, **changed}}]
    commit = folder / "_delta_log" / f"{2:020d}.json"
    commit.write_text("\n".join(map(json.dumps, lines)))
    return table


def test_a_partition_value_that_a_remove_leaves_out_is_null(tmp_path: Path) -> None:
    found = remove_all(tmp_path / "t").changes(2)
    assert found.select(["id", "p", "q", "_change_type"]).to_pylist() == [
        {"id": 1, "p": None, "q": 1, "_change_type": "delete"}
    ]


@pytest.mark.parametrize("values", [None, {"q": "1", "other": "x"}], ids=["none at all", "of another partitioning"])
def test_a_remove_without_its_partition_values_is_refused(tmp_path: Path, values: dict[str, str] | None) -> None:
    table = remove_all(tmp_path / "t", partitionValues=values)
    with pytest.raises(errors.CorruptTable, match="partition values"):
        table.changes(2)
