"""Jobs on a table with a variant column, without Spark: variants are moved and inserted as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet.physical import VARIANT
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Protocol, encode_commit
from airflow_txlog.engine.log.names import commit_name
from tests.engine.table.schema.test_variant import NULL, OBJECT, column, make
from tests.helpers.jobs import by_id, committed, files_on_disk, ids, insert, live_files, run, set_property, update
from tests.helpers.variants import column_of, decoded, group_of, metadata_of, shredded

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


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_every_operation_writes_variants_as_they_are(tmp_path: Path, table: Table, vectors: str) -> None:
    set_property(table, "delta.enableDeletionVectors", vectors)
    given = make(
        tmp_path / "given", pa.table({"id": [3, 4], "v": column(OBJECT, NULL)}), {"id": "long", "v": "variant"}
    )
    committed(run(None, "update", table, predicate="id = 1", set={"id": "id + 10"}))
    committed(run(None, "delete", table, predicate="id = 2"))
    source = {"table": given.uri}
    committed(run(None, "merge", table, source=source, on="t.id = s.id", clauses=[update(), insert()]))
    assert by_id(table, "v") == {3: OBJECT, 4: NULL, 11: OBJECT}
    committed(run(None, "write", table, source=file_of(tmp_path, pa.table({"id": [9]}))))
    committed(run(None, "optimize", table))
    assert by_id(table, "v") == {3: OBJECT, 4: NULL, 9: None, 11: OBJECT}


OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "update": ("update", {"set": {"id": "7"}, "predicate": "id = 1"}),
    "optimize": ("optimize", {"zorder_by": ["id"]}),
    "delete": ("delete", {"predicate": "id = 1"}),
    "merge": ("merge", {"on": "t.id = s.id", "clauses": [update({"id": "s.id + 6"})]}),
}
LEFT = {"optimize": [1, 2, 3], "delete": [2, 3]}


@pytest.mark.parametrize("name", OPERATIONS)
def test_shredded_variants_keep_their_values_in_copies(tmp_path: Path, name: str) -> None:
    kind = pa.struct([("a", group_of(pa.int64()))])
    values: list[Any] = [{"a": 5, "b": ["x"]}, {"a": "text"}, None]
    parts = [{"metadata": metadata_of("a", "b"), **shredded(value, kind, ["a", "b"])} for value in values]
    rows = pa.table({"id": [1, 2, 3], "v": pa.array(parts, column_of(kind))})
    table = make(tmp_path / "t", rows, {"id": "long", "v": "variant"})
    operation, arguments = OPERATIONS[name]
    if operation == "merge":
        arguments = {**arguments, "source": file_of(tmp_path, pa.table({"id": [1]}))}
    committed(run(None, operation, table, **arguments))
    found = {number: decoded(value) for number, value in by_id(table, "v").items()}
    assert found == dict(zip(LEFT.get(name, [7, 2, 3]), values[-len(LEFT.get(name, values)) :], strict=True))
    [path] = live_files(table)
    names = pq.read_schema(Path(table.uri.removeprefix("file://")) / path).field("v").type.names
    assert names == VARIANT.names


def file_of(folder: Path, rows: pa.Table) -> dict[str, str]:
    pq.write_table(rows, folder / "in.parquet")
    return {"format": "parquet", "path": str(folder / "in.parquet")}
