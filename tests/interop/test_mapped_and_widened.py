"""Tables of delta-spark 4.4.0 whose columns were renamed, dropped, added again and widened, read to its own rows.

Each folder of `mapped/` is a table, and `<folder>.rows.json` what delta-spark selected from it. They hold: nested
columns renamed in structs, arrays and maps; a column dropped and added again under its name; partition columns renamed
and exchanged; a table mapped after its first rows, whose columns then exchanged their names; every widening.
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
from tests.engine.rows import append
from tests.interop.oracles import rows_by_delta_rs
from tests.interop.tables import bag

TABLES = Path(__file__).parent / "mapped"
MAPPED = ["mapped-by-name", "mapped-by-id", "mapped-later"]


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as JSON, in an order of their own."""
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


def read(table: Table, predicate: str | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_arrow(predicate).to_pylist(maps_as_pydicts="strict")
    return rows


def expected(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((TABLES / f"{name}.rows.json").read_text())
    return rows


def copied(name: str, tmp_path: Path) -> Table:
    return Table.open(shutil.copytree(TABLES / name, tmp_path / name))


@pytest.mark.parametrize("name", [*MAPPED, "widened"])
def test_every_row_is_what_delta_spark_selects(name: str) -> None:
    assert plain(read(Table.open(TABLES / name))) == plain(expected(name))


@pytest.mark.parametrize("name", MAPPED)
def test_every_row_is_what_deltalake_selects(name: str) -> None:
    theirs = rows_by_delta_rs(str(TABLES / name))
    assert theirs is not None
    ours = Table.open(TABLES / name).to_arrow()
    assert bag(ours) == bag(theirs.select(ours.column_names))


@pytest.mark.parametrize("name", ["mapped-by-name", "mapped-by-id"])
def test_a18_a_column_added_again_under_its_name_does_not_show_the_old_values(name: str) -> None:
    # The first file holds 100 and 200 for the `gone` that was dropped.
    rows = {row["id"]: row["gone"] for row in read(Table.open(TABLES / name))}
    assert rows == {1: None, 2: None, 3: 300}


@pytest.mark.parametrize(
    ("name", "predicate", "files", "found"),
    [
        # By partition values and by statistics, both under physical names.
        ("mapped-by-name", "part = 'x'", 1, 1),
        ("mapped-by-name", "part IS NULL", 1, 1),
        ("mapped-by-id", "part = 'y/z'", 1, 1),
        ("mapped-by-name", "id >= 3", 1, 1),
        ("mapped-by-id", "renamed = 'first'", 1, 1),
        ("mapped-by-name", "gone = 100", 2, 0),
        # The names a and b, p and q were exchanged: a prune by the old name would look at the other column.
        ("mapped-later", "a = 2", 1, 1),
        ("mapped-later", "b = 1", 1, 1),
        ("mapped-later", "p IS NULL", 1, 1),
        ("mapped-later", "p = 'q2'", 1, 1),
        ("mapped-later", "q = 'p2'", 1, 1),
        ("widened", "pd = 7", 1, 1),
        ("widened", "i_dec = 5", 0, 0),
        ("widened", "i_dec = 6", 1, 1),
        ("widened", "dt = timestamp_ntz'2024-02-29 00:00:00'", 1, 1),
    ],
)
def test_pruning_finds_the_files_of_a_renamed_or_widened_column(
    name: str, predicate: str, files: int, found: int
) -> None:
    table = Table.open(TABLES / name)
    assert table.snapshot().files(predicate).num_rows == files
    assert len(read(table, predicate)) == found


def test_a5_a_float_that_became_a_double_is_not_pruned_by_its_shorter_text() -> None:
    table = Table.open(TABLES / "widened")
    # As a double the 32-bit 0.1 of the first file is 0.100000001490116…; its statistics say 0.1.
    assert [row["id"] for row in read(table, "f > 0.1D AND f < 0.11D")] == [1]


@pytest.mark.parametrize("name", MAPPED)
def test_a_checkpoint_changes_nothing_that_is_read(name: str, tmp_path: Path) -> None:
    table = copied(name, tmp_path)
    version = table.checkpoint()
    for commit in (tmp_path / name / "_delta_log").glob("*.json"):
        if int(commit.name[:20]) < version:
            commit.unlink()
    assert plain(read(Table.open(tmp_path / name))) == plain(expected(name))


@pytest.mark.parametrize("name", MAPPED)
def test_rows_that_we_append_are_read_by_deltalake(name: str, tmp_path: Path) -> None:
    table = copied(name, tmp_path)
    again = table.to_arrow()
    append(table, again)
    theirs = rows_by_delta_rs(str(tmp_path / name))
    assert theirs is not None
    assert bag(theirs.select(again.column_names)) == bag(pa.concat_tables([again, again]))
    assert plain(read(table)) == plain(2 * expected(name))


def test_files_that_we_append_hold_physical_names_and_field_ids_at_every_depth(tmp_path: Path) -> None:
    table = copied("mapped-by-id", tmp_path)
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
    ours = _ids(pq.read_schema(tmp_path / "mapped-by-id" / new["path"]))
    schema = json.loads(table.snapshot().metadata.schema_string or "")
    wanted = {
        field["metadata"]["delta.columnMapping.physicalName"]: field["metadata"]["delta.columnMapping.id"]
        for field in _fields(schema)
        if field["name"] != "part"
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
    table = copied("mapped-by-id", tmp_path)
    path = tmp_path / "mapped-by-id" / table.snapshot().state.live.column("path")[0].as_py()
    rows = pq.read_table(path, partitioning=None)
    bare = pa.table(dict(zip(rows.column_names, rows.columns, strict=True)), schema=_without_ids(rows.schema))
    pq.write_table(bare, path, store_schema=False)
    _forget_sizes(tmp_path / "mapped-by-id", path)
    with pytest.raises(errors.CorruptDataFile, match="has no ids"):
        Table.open(tmp_path / "mapped-by-id").to_arrow()


def _without_ids(schema: pa.Schema) -> pa.Schema:
    def bare(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(field.name, bare(field.type)) for field in kind])
        if pa.types.is_map(kind):
            return pa.map_(bare(kind.key_type), bare(kind.item_type))
        return pa.list_(bare(kind.value_type)) if pa.types.is_list(kind) else kind

    return pa.schema([pa.field(field.name, bare(field.type)) for field in schema])


def _forget_sizes(folder: Path, path: Path) -> None:
    """The add action of the file says the size that it has now."""
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
    append(table, table.to_arrow())
    assert plain(read(table)) == plain(2 * expected("widened"))
    assert "delta.typeChanges" in (table.snapshot().metadata.schema_string or "")
