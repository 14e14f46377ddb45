"""Jobs on a table with a variant column, without Spark: what writes no data file is done, all else is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Protocol, encode_commit
from airflow_txlog.engine.log.names import commit_name
from tests.engine.table.schema.test_variant import NULL, OBJECT, column, make
from tests.helpers.jobs import committed, error_of, files_on_disk, ids, run

FEATURES = ["deletionVectors", "variantType"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Ids 1 to 3 with a variant each, in one file; rows are deleted by vectors."""
    rows = pa.table({"id": [1, 2, 3], "v": column(OBJECT, None, NULL)})
    made = make(tmp_path / "t", rows, {"id": "long", "v": "variant"})
    metadata = made.snapshot().metadata
    metadata.configuration["delta.enableDeletionVectors"] = "true"
    protocol = Protocol(min_reader_version=3, min_writer_version=7, reader_features=FEATURES, writer_features=FEATURES)
    assert made.store.put_if_absent(commit_name(1), encode_commit({"operation": "x"}, [protocol, metadata]))
    return Table.open(made.uri)


def test_rows_are_deleted_by_vectors_and_a_restore_brings_them_back(table: Table) -> None:
    before = files_on_disk(table)
    committed(run(None, "delete", table, predicate="id = 2"))
    assert table.to_arrow().to_pylist() == [{"id": 1, "v": OBJECT}, {"id": 3, "v": NULL}]
    assert {path for path in files_on_disk(table) if path.endswith(".parquet")} == {
        path for path in before if path.endswith(".parquet")
    }
    committed(run(None, "truncate", table))
    assert table.to_arrow().num_rows == 0
    committed(run(None, "restore", table, version=2))
    assert ids(table) == [1, 3]
    committed(run(None, "vacuum", table))
    assert ids(table) == [1, 3]


@pytest.mark.parametrize("operation", ["write", "update", "optimize", "delete"])
def test_what_would_write_a_variant_is_refused_before_anything_is_staged(
    tmp_path: Path, table: Table, operation: str
) -> None:
    pq.write_table(pa.table({"id": [9]}), tmp_path / "in.parquet")
    arguments = {
        "write": {"source": {"format": "parquet", "path": str(tmp_path / "in.parquet")}},
        "update": {"set": {"id": "7"}, "predicate": "id = 1"},
        "optimize": {"purge": True},
        "delete": {"predicate": "id = 3"},
    }[operation]
    committed(run(None, "delete", table, predicate="id = 2"))
    if operation == "delete":
        # Without vectors the file would be copied.
        metadata = table.snapshot().metadata
        metadata.configuration["delta.enableDeletionVectors"] = "false"
        assert table.store.put_if_absent(commit_name(3), encode_commit({"operation": "x"}, [metadata]))
    before, version = files_on_disk(table), table.snapshot().version
    error = error_of(run(None, operation, table, **arguments))
    assert (error["type"], error["facts"].get("feature")) == ("UnsupportedFeature", "variantType"), error["message"]
    assert (files_on_disk(table), table.snapshot().version) == (before, version)
