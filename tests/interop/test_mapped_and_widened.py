"""Rows of ours in tables that delta-spark renamed and widened: read by deltalake, under physical names and ids.

The tables are those of `reference/`, whose every version and predicate is in test_reference.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.readers import rows_by_delta_rs
from tests.helpers.rows import append, bag
from tests.interop.test_reference import REFERENCE

MAPPED = ["mapping_by_name", "mapping_by_id", "mapping_by_name_later"]


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as JSON, in an order of their own."""
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


def read(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_arrow().to_pylist(maps_as_pydicts="strict")
    return rows


def copied(name: str, tmp_path: Path) -> Table:
    return Table.open(shutil.copytree(REFERENCE / name / "table", tmp_path / name))


@pytest.mark.parametrize("name", MAPPED)
def test_rows_that_we_append_are_read_by_deltalake(name: str, tmp_path: Path) -> None:
    table = copied(name, tmp_path)
    again, before = table.to_arrow(), read(table)
    append(table, again)
    theirs = rows_by_delta_rs(str(tmp_path / name))
    assert theirs is not None
    assert bag(theirs.select(again.column_names)) == bag(pa.concat_tables([again, again]))
    assert plain(read(table)) == plain(2 * before)


def test_files_that_we_append_hold_physical_names_and_field_ids_at_every_depth(tmp_path: Path) -> None:
    table = copied("mapping_by_id", tmp_path)
    known = set(table.snapshot().state.live.column("path").to_pylist())
    append(table, table.to_arrow("id = 3"))
    [new] = [row for row in table.snapshot().state.live.to_pylist() if row["path"] not in known]
    theirs = next(
        row for row in table.snapshot().state.live.to_pylist() if row["path"] in known and "col-" in row["stats"]
    )
    prefix, _, name = new["path"].partition("/")
    assert len(prefix) == 2
    assert "=" not in name
    assert dict(new["partition_values"]).keys() == dict(theirs["partition_values"]).keys()
    ours = _ids(pq.read_schema(tmp_path / "mapping_by_id" / new["path"]))
    schema = json.loads(table.snapshot().metadata.schema_string or "")
    wanted = {
        field["metadata"]["delta.columnMapping.physicalName"]: field["metadata"]["delta.columnMapping.id"]
        for field in _fields(schema)
        if field["name"] != "the part"
    }
    assert ours == wanted
    assert "renamed" not in new["stats"]
    assert json.loads(new["stats"])["nullCount"].keys() <= wanted.keys()


def _fields(kind: Any) -> list[dict[str, Any]]:
    if not isinstance(kind, dict):
        return []
    own = kind.get("fields", [])
    inner = [field["type"] for field in own] + [kind.get(key) for key in ("elementType", "keyType", "valueType")]
    return own + [field for each in inner for field in _fields(each)]


def _ids(fields: Any) -> dict[str, int]:
    found = {}
    for field in fields:
        if field.metadata and b"PARQUET:field_id" in field.metadata:
            found[field.name] = int(field.metadata[b"PARQUET:field_id"])
        found |= _ids([field.type.field(index) for index in range(field.type.num_fields)])
    return found


def test_a_file_without_field_ids_in_a_table_that_finds_columns_by_id_is_refused(tmp_path: Path) -> None:
    table = copied("mapping_by_id", tmp_path)
    path = tmp_path / "mapping_by_id" / table.snapshot().state.live.column("path")[0].as_py()
    rows = pq.read_table(path, partitioning=None)
    bare = pa.table(dict(zip(rows.column_names, rows.columns, strict=True)), schema=_without_ids(rows.schema))
    pq.write_table(bare, path, store_schema=False)
    _forget_sizes(tmp_path / "mapping_by_id", path)
    with pytest.raises(errors.CorruptDataFile, match="has no ids"):
        Table.open(tmp_path / "mapping_by_id").to_arrow()


def _without_ids(schema: pa.Schema) -> pa.Schema:
    def bare(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(field.name, bare(field.type)) for field in kind])
        if pa.types.is_map(kind):
            return pa.map_(bare(kind.key_type), bare(kind.item_type))
        return pa.list_(bare(kind.value_type)) if pa.types.is_list(kind) else kind

    return pa.schema([pa.field(field.name, bare(field.type)) for field in schema])


def _forget_sizes(folder: Path, path: Path) -> None:
    """The add action of the file says the size that it has now; the log is read without its checkpoint."""
    for checkpoint in (folder / "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()
    for commit in (folder / "_delta_log").glob("*.json"):
        lines = []
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action and str(path).endswith(action["add"]["path"]):
                action["add"]["size"] = path.stat().st_size
            lines.append(json.dumps(action))
        commit.write_text("\n".join(lines) + "\n")


def test_rows_appended_to_a_widened_table_are_of_the_current_types(tmp_path: Path) -> None:
    table = copied("widened", tmp_path)
    before = read(table)
    append(table, table.to_arrow())
    assert plain(read(table)) == plain(2 * before)
    assert "delta.typeChanges" in (table.snapshot().metadata.schema_string or "")


@pytest.mark.parametrize("name", ["mapping_by_name", "mapping_by_id", "mapping_with_vectors", "identity_columns"])
def test_every_version_of_a_table_of_delta_spark_is_restored(name: str, tmp_path: Path) -> None:
    table = copied(name, tmp_path)
    last = table.latest_version()
    protocol, marks = table.snapshot().protocol, identity_marks(table)
    assert last > 0
    for version in range(last):
        before = plain(table.to_arrow(version=version).to_pylist(maps_as_pydicts="strict"))
        table.restore(version=version)
        assert plain(read(table)) == before
        assert table.snapshot().protocol == protocol
        assert identity_marks(table).items() <= marks.items(), "a mark that a column has is the furthest"


def identity_marks(table: Table) -> dict[str, int]:
    fields = json.loads(table.snapshot().metadata.schema_string or "")["fields"]
    key = "delta.identity.highWaterMark"
    return {field["name"]: field["metadata"][key] for field in fields if key in field["metadata"]}


@pytest.mark.spark
@pytest.mark.slow("delta-spark in a JVM of its own")
@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_delta_spark_hands_out_no_id_again_after_our_restore(delta: DeltaSpark, tmp_path: Path) -> None:
    name = f"delta.`{tmp_path / 't'}`"
    delta.run(
        f"CREATE TABLE {name} (id BIGINT GENERATED ALWAYS AS IDENTITY, v STRING) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        f"INSERT INTO {name} (v) VALUES ('a')",
        f"INSERT INTO {name} (v) VALUES ('b'), ('c')",
    )
    handed_out = {row["id"] for row in delta.sql(f"SELECT id FROM {name}")}
    Table.open(str(tmp_path / "t")).restore(version=1)
    assert len(delta.sql(f"SELECT id FROM {name}")) == 1
    delta.run(f"INSERT INTO {name} (v) VALUES ('d')")
    [new] = delta.sql(f"SELECT id FROM {name} WHERE v = 'd'")
    assert new["id"] not in handed_out
