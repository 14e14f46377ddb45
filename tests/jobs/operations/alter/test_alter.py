"""ALTER as a job by the log alone: properties, features, columns and clustering, in one commit and exactly once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.features import reader_features, writer_features
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import CommitConflict
from airflow_txlog.jobs.run import run_job
from tests.helpers.jobs import SCHEMA, application, committed, error_of, ids, rows, run
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append, bag, make_table
from tests.helpers.specs import job_spec

NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("items", pa.list_(pa.struct([("price", pa.int32())]))),
        ("m", pa.map_(pa.string(), pa.int32())),
    ]
)
NESTED_ROW = {"id": 1, "s": {"x": 1, "y": "a"}, "items": [{"price": 5}], "m": [("k", 7)]}


def alter(table: Table | Path, *, log: Any = None, application: Any = None, **arguments: Any) -> JobResult:
    uri = table.uri if isinstance(table, Table) else str(table)
    spec = job_spec(operation="alter", table_uri=uri, arguments=arguments, application=application)
    assert not spec.operation.needs_spark
    return run_job(spec, None, log=log)


def altered(table: Table, **arguments: Any) -> JobResult:
    return committed(alter(table, **arguments))


def features(table: Table) -> set[str]:
    protocol = table.snapshot().protocol
    return set(reader_features(protocol) | writer_features(protocol))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "t", rows(4), rows(4, start=10))


@pytest.fixture
def nested(tmp_path: Path) -> Table:
    return make_table(tmp_path / "t", pa.Table.from_pylist([NESTED_ROW], NESTED))


# --- properties -----------------------------------------------------------------------------------------------------


def test_properties_are_set_and_removed_under_their_proper_names(table: Table) -> None:
    altered(table, set_properties={"DELTA.appendonly": "true", "team": "a", "comment": "the orders"})
    altered(table, unset_properties=["Delta.AppendOnly", "team", "never.there"])
    assert table.snapshot(2 + 1).metadata.description == table.snapshot().metadata.description == "the orders"
    assert table.snapshot(3).properties["delta.appendOnly"] == "true"
    assert table.snapshot().properties.keys() == {"delta.setTransactionRetentionDuration"}
    assert [entry["operation"] for entry in table.history(2)] == ["UNSET TBLPROPERTIES", "SET TBLPROPERTIES"]


def test_a_property_that_another_engine_has_set_can_be_removed(table: Table) -> None:
    metadata = table.snapshot().metadata
    theirs = {"delta.lastCommitTimestamp": "5"}
    tx = table.begin()
    tx.set_metadata(msgspec.structs.replace(metadata, configuration={**metadata.configuration, **theirs}))
    tx.commit("SET TBLPROPERTIES")
    for asked in ({"unset_properties": ["delta.lastcommittimestamp"]}, {"set_properties": theirs}):
        assert "is not known" in error_of(alter(table, **asked))["message"]
    altered(table, unset_properties=["delta.lastCommitTimestamp"])
    assert table.snapshot().properties == metadata.configuration


def test_what_is_so_already_makes_no_commit(table: Table) -> None:
    asked: dict[str, Any] = {"set_properties": {"delta.appendOnly": "true"}, "drop_not_null": ["id"]}
    altered(table, **asked)
    assert (alter(table, **asked).status, table.snapshot().version) == ("nothing_to_do", 3)


REFUSED_PROPERTIES: list[dict[str, Any]] = [
    {"set_properties": {"delta.appendOnlly": "true"}},
    {"set_properties": {"delta.appendOnly": "yes"}},
    {"set_properties": {"delta.columnMapping.maxColumnId": "7"}},
    {"set_properties": {"delta.rowTracking.materializedRowIdColumnName": "x"}},
    {"set_properties": {"delta.constraints.a": "id > 0"}},
    {"set_properties": {"delta.feature.appendOnly": "dropped"}},
    {"set_properties": {"delta.columnMapping.mode": "id"}},
    {"set_properties": {"delta.logRetentionDuration": "interval 1 days"}},
    {"set_properties": {"location": "/x"}},
    {"set_properties": {"a": "1"}, "unset_properties": ["a"]},
    {"set_properties": {"delta.enableDeletionVectors": "false"}, "add_features": ["deletionVectors"]},
    {"set_properties": {"Delta.columnMapping.mode": "None"}, "rename_columns": {"name": "label"}},
    {"unset_properties": ["delta.columnMapping.MODE"], "drop_columns": ["name"]},
    {"set_properties": {"delta.dataSkippingStatsColumns": "`id"}},
    {"unset_properties": ["delta.inCommitTimestampEnablementVersion"]},
    {"drop_constraints": ["none"]},
]


@pytest.mark.parametrize("asked", REFUSED_PROPERTIES, ids=str)
def test_a_wrong_property_is_refused_and_nothing_changes(table: Table, asked: dict[str, Any]) -> None:
    assert error_of(alter(table, allow_reader_upgrade=True, **asked))["type"] == "InvalidProperty"
    assert table.snapshot().version == 2


# --- features -------------------------------------------------------------------------------------------------------

SWITCHED = {
    "appendOnly": "delta.appendOnly",
    "changeDataFeed": "delta.enableChangeDataFeed",
    "deletionVectors": "delta.enableDeletionVectors",
    "inCommitTimestamp": "delta.enableInCommitTimestamps",
    "rowTracking": "delta.enableRowTracking",
    "typeWidening": "delta.enableTypeWidening",
    "v2Checkpoint": "delta.checkpointPolicy",
    "columnMapping": "delta.columnMapping.mode",
}


@pytest.mark.parametrize("feature", SWITCHED)
def test_an_added_feature_is_listed_and_switched_on_and_the_table_goes_on(table: Table, feature: str) -> None:
    before = bag(table)
    altered(table, add_features=[feature.upper()], allow_reader_upgrade=True)
    assert feature in features(table)
    assert table.snapshot().properties[SWITCHED[feature]] in ("true", "v2", "name")
    assert bag(table) == before
    append(table, rows(1, start=90))
    assert ids(table) == [*range(4), *range(10, 14), 90]
    table.checkpoint()
    assert ids(Table.open(table.uri)) == [*range(4), *range(10, 14), 90]


def test_a_feature_by_its_property_is_only_listed(table: Table) -> None:
    altered(table, set_properties={"delta.feature.rowTracking": "supported"})
    assert {"rowTracking", "domainMetadata"} <= features(table)
    assert not any(name.startswith(("delta.feature", "delta.enable")) for name in table.snapshot().properties)


def test_row_tracking_numbers_the_rows_of_every_file_in_the_same_commit(table: Table) -> None:
    altered(table, add_features=["rowTracking"])
    files = table.snapshot().files().sort_by("base_row_id")
    assert files.column("base_row_id").to_pylist() == [0, 4]
    assert set(files.column("default_row_commit_version").to_pylist()) == {3}
    append(table, rows(2, start=50))
    assert sorted(table.snapshot().files().column("base_row_id").to_pylist()) == [0, 4, 8]


def test_rows_of_a_file_without_a_count_are_not_numbered(table: Table) -> None:
    tx = table.begin()
    tx.add(path="x.parquet", size=1)
    tx.commit("WRITE")
    error = error_of(alter(table, add_features=["rowTracking"]))
    assert (error["type"], table.snapshot().version) == ("RowCountMissing", 3)


def test_a_z_order_counts_the_rows_of_files_without_a_count(tmp_path: Path, table: Table) -> None:
    written = next((tmp_path / "t").glob("*.parquet"))
    shutil.copy(written, tmp_path / "t" / "x.parquet")
    tx = table.begin()
    tx.add(path="x.parquet", size=written.stat().st_size)
    tx.commit("WRITE")
    assert "zorder_by" in error_of(alter(table, add_features=["rowTracking"]))["message"]
    committed(run_job(job_spec(operation="optimize", table_uri=table.uri, arguments={"zorder_by": ["id"]}), None))
    altered(table, add_features=["rowTracking"])
    assert table.snapshot().files().column("base_row_id").to_pylist() == [0]


def test_in_commit_timestamps_say_since_when(table: Table) -> None:
    altered(table, add_features=["inCommitTimestamp"])
    properties = table.snapshot().properties
    assert properties["delta.inCommitTimestampEnablementVersion"] == "3"
    assert properties["delta.inCommitTimestampEnablementTimestamp"] == str(table.snapshot().timestamp_ms)


@pytest.mark.parametrize(
    "asked",
    [
        {"add_features": ["deletionVectors"]},
        {"set_properties": {"delta.checkpointPolicy": "v2"}},
        {"rename_columns": {"name": "label"}},
        {"add_columns": {"at": "TIMESTAMP_NTZ"}},
    ],
    ids=str,
)
def test_a_change_that_shuts_readers_out_must_be_allowed(table: Table, asked: dict[str, Any]) -> None:
    error = error_of(alter(table, **asked))
    assert (error["type"], error["facts"]["argument"]) == ("InvalidJobSpec", "arguments.allow_reader_upgrade")
    assert "Delta Lake" in error["message"]
    lines: list[str] = []
    altered(table, log=lines.append, allow_reader_upgrade=True, **asked)
    assert any("is read by Delta Lake" in line for line in lines)


@pytest.mark.parametrize(
    ("before", "feature", "left"),
    [
        ({"set_properties": {"delta.enableInCommitTimestamps": "true"}}, "inCommitTimestamp", 2),
        ({"set_properties": {"delta.feature.domainMetadata": "supported"}}, "domainMetadata", 2),
        ({"set_properties": {"delta.feature.checkConstraints": "supported"}}, "checkConstraints", 2),
        ({"add_features": ["rowTracking"]}, "rowTracking", 7),
    ],
)
def test_a_dropped_feature_leaves_no_trace(table: Table, before: dict[str, Any], feature: str, left: int) -> None:
    had, properties = bag(table), table.snapshot().properties
    altered(table, **before)
    altered(table, drop_features=[feature.lower()])
    snapshot = table.snapshot()
    assert (snapshot.protocol.min_writer_version, snapshot.properties) == (left, properties)
    assert feature not in features(table)
    assert snapshot.files().column("base_row_id").null_count == snapshot.num_files
    assert bag(table) == had
    append(table, rows(1, start=99))


def test_row_ids_begin_anew_where_the_feature_is_dropped_and_added_again(table: Table) -> None:
    altered(table, add_features=["rowTracking"])
    altered(table, drop_features=["rowTracking", "domainMetadata"])
    altered(table, add_features=["rowTracking"])
    assert sorted(table.snapshot().files().column("base_row_id").to_pylist()) == [0, 4]


FOR_READERS = ["columnMapping", "deletionVectors", "v2Checkpoint", "typeWidening", "vacuumProtocolCheck"]


def without_v2_checkpoints(table: Table) -> None:
    """Of two checkpoints of one version delta-spark reads the V2 one."""
    if "v2Checkpoint" in features(table):
        assert "set delta.checkpointPolicy" in refused_drop(table, "v2Checkpoint")
        altered(table, set_properties={"delta.checkpointPolicy": "classic"})


@pytest.mark.parametrize("feature", FOR_READERS)
def test_a_feature_for_readers_is_dropped_behind_a_checkpoint_that_every_reader_knows(
    table: Table, feature: str
) -> None:
    had, properties = bag(table), dict(table.snapshot().properties)
    altered(table, add_features=[feature], allow_reader_upgrade=True)
    table.checkpoint()
    without_v2_checkpoints(table)
    result = altered(table, drop_features=[feature])
    snapshot = table.snapshot()
    assert (snapshot.protocol.min_reader_version, snapshot.protocol.min_writer_version) == (1, 7)
    assert features(table) == {"appendOnly", "invariants", "checkpointProtection"}
    left = {name: value for name, value in snapshot.properties.items() if name != "delta.columnMapping.maxColumnId"}
    assert left == {**properties, "delta.requireCheckpointProtectionBeforeVersion": str(result.version)}
    assert not any("columnMapping" in key for field in snapshot.delta_schema for key in field.metadata)
    log = Path(table.uri.removeprefix("file://")) / "_delta_log"
    assert (log / f"{snapshot.version - 1:020}.checkpoint.parquet").exists()
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == snapshot.version - 1
    append(table, rows(1, start=99))
    assert len(bag(Table.open(table.uri))) == len(had) + 1
    altered(table, add_features=[feature], allow_reader_upgrade=True)
    assert len(bag(Table.open(table.uri))) == len(had) + 1


@pytest.mark.parametrize("feature", FOR_READERS)
def test_a_feature_for_readers_is_dropped_as_the_very_next_version(table: Table, feature: str) -> None:
    altered(table, add_features=[feature], allow_reader_upgrade=True)
    without_v2_checkpoints(table)
    expected = table.latest_version() + 2
    with before_commit(lambda _: append(table, rows(1, start=50))):
        result = altered(table, drop_features=[feature])
    assert (result.version, result.attempts) == (expected, 2)
    assert table.snapshot().properties["delta.requireCheckpointProtectionBeforeVersion"] == str(expected)
    assert len(ids(table)) == 9


def refused_drop(table: Table, feature: str) -> str:
    error = error_of(alter(table, drop_features=[feature]))
    assert (error["type"], error["facts"]["feature"]) == ("UnsupportedFeature", feature)
    return str(error["message"])


@pytest.mark.parametrize("feature", ["appendOnly", "checkpointProtection"])
def test_a_feature_that_cannot_be_dropped_soundly_is_refused_by_name(table: Table, feature: str) -> None:
    altered(table, add_features=[feature])
    assert "cannot be dropped here" in refused_drop(table, feature)


def test_deletion_vectors_are_dropped_after_they_were_purged(table: Table) -> None:
    altered(table, add_features=["deletionVectors"], allow_reader_upgrade=True)
    committed(run(None, "delete", table, predicate="id = 2"))
    assert "1 of 2 files have a deletion vector" in refused_drop(table, "deletionVectors")
    committed(run(None, "optimize", table, purge=True))
    altered(table, drop_features=["deletionVectors"])
    assert ids(table) == [0, 1, 3, 10, 11, 12, 13]


def test_deletion_vectors_stay_while_a_live_file_was_removed_with_one(table: Table) -> None:
    """A reader that does not know vectors tells files by their path alone."""
    altered(table, add_features=["deletionVectors"], allow_reader_upgrade=True)
    committed(run(None, "delete", table, predicate="id = 2"))
    committed(run(None, "restore", table, version=3))
    assert "was removed with a deletion vector" in refused_drop(table, "deletionVectors")


def test_column_mapping_stays_while_a_file_has_another_name_or_a_dropped_column(table: Table, tmp_path: Path) -> None:
    other = make_table(tmp_path / "u", rows(4))
    altered(table, rename_columns={"name": "label"}, allow_reader_upgrade=True)
    assert "['label'] have other names" in refused_drop(table, "columnMapping")
    altered(other, drop_columns=["name"], allow_reader_upgrade=True)
    assert "columns that were dropped" in refused_drop(other, "columnMapping")


@pytest.mark.parametrize(
    "change",
    [{"rename_columns": {"name": "label"}}, {"drop_columns": ["name"]}, {"add_columns": {"note": "INT"}}],
    ids=str,
)
def test_column_mapping_stays_where_the_same_alteration_needs_it(table: Table, change: dict[str, Any]) -> None:
    altered(table, add_features=["columnMapping"], allow_reader_upgrade=True)
    error = error_of(alter(table, drop_features=["columnMapping"], **change))
    assert error["type"] in ("UnsupportedFeature", "InvalidProperty")
    assert bag(Table.open(table.uri)) == bag(table)


@pytest.mark.parametrize(
    ("column", "held", "wider"),
    [
        ("x", pa.int32(), "BIGINT"),
        ("x", pa.int16(), "DOUBLE"),
        ("x", pa.float32(), "DOUBLE"),
        ("x", pa.int8(), "DECIMAL(12, 2)"),
        ("x", pa.decimal128(5, 2), "DECIMAL(7, 2)"),
        ("x", pa.date32(), "TIMESTAMP_NTZ"),
        ("s.x", pa.int32(), "BIGINT"),
        ("items.element", pa.int32(), "BIGINT"),
        ("m.value", pa.int32(), "BIGINT"),
    ],
)
def test_type_widening_is_dropped_when_no_file_holds_a_former_type(
    tmp_path: Path, column: str, held: pa.DataType, wider: str
) -> None:
    whole = {"s": pa.struct([("x", held)]), "items": pa.list_(held), "m": pa.map_(pa.string(), held)}
    kind = whole.get(column.partition(".")[0], held)
    name = column.partition(".")[0]
    schema = pa.schema([("id", pa.int64()), (name, kind)])
    # Many files: most footers are read by the form of another one.
    empty = pa.table({"id": [1], name: pa.nulls(1, kind)}, schema=schema)
    table = make_table(tmp_path / "t", *[empty] * 3)
    altered(table, change_types={column: wider}, allow_reader_upgrade=True)
    assert "3 of 3 files hold former types" in refused_drop(table, "typeWidening")
    had = table.to_arrow()
    committed(run(None, "optimize", table, zorder_by=["id"]))
    altered(table, drop_features=["typeWidening"])
    assert table.to_arrow() == had
    assert "typeChanges" not in str(table.snapshot().metadata.schema_string)


def test_type_widening_that_an_older_file_of_many_needs_stays(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int32()), ("name", pa.string())])
    table = make_table(tmp_path / "t", pa.table({"id": [0], "name": ["a"]}, schema=schema))
    altered(table, change_types={"id": "BIGINT"}, allow_reader_upgrade=True)
    wide = pa.schema([("id", pa.int64()), ("name", pa.string())])
    for number in range(40):
        append(table, pa.table({"id": [number], "name": ["b"]}, schema=wide))
    assert "1 of 41 files hold former types" in refused_drop(table, "typeWidening")


@pytest.mark.parametrize(
    "asked",
    [
        {"add_features": ["icebergCompatV1"]},
        {"add_features": ["catalogManaged"]},
        {"drop_features": ["deletionVectors"]},
        {"set_properties": {"delta.enableIcebergCompatV2": "true"}},
    ],
    ids=str,
)
def test_a_feature_that_is_not_known_or_not_there_is_refused_by_name(table: Table, asked: dict[str, Any]) -> None:
    assert error_of(alter(table, **asked))["type"] == "UnsupportedFeature"
    assert table.snapshot().version == 2


# --- columns --------------------------------------------------------------------------------------------------------


def test_columns_are_added_at_every_depth_and_are_null_in_old_rows(nested: Table) -> None:
    altered(
        nested,
        add_columns={
            "note": {"type": "STRING", "comment": "a note", "default": "'none'"},
            "s.z": "DECIMAL(5, 2)",
            "items.element.count": "INT",
        },
    )
    note = nested.snapshot().delta_schema.find("note")
    assert note is not None
    assert note.metadata == {"comment": "a note", "CURRENT_DEFAULT": "'none'"}
    assert "allowColumnDefaults" in features(nested)
    expected = {**NESTED_ROW, "s": {"x": 1, "y": "a", "z": None}, "items": [{"price": 5, "count": None}], "note": None}
    assert nested.to_arrow().to_pylist() == [expected]


def test_columns_are_renamed_and_dropped_without_touching_a_file(nested: Table) -> None:
    files = nested.snapshot().files().column("path").to_pylist()
    altered(
        nested, rename_columns={"id": "key", "s.x": "n", "items.element.price": "cost"}, drop_columns=["m"],
        allow_reader_upgrade=True,
    )  # fmt: skip
    assert nested.to_arrow().to_pylist() == [{"key": 1, "s": {"n": 1, "y": "a"}, "items": [{"cost": 5}]}]
    assert nested.snapshot().files().column("path").to_pylist() == files
    altered(nested, add_columns={"m": "INT"})
    assert nested.to_arrow().column("m").to_pylist() == [None], "the values of the dropped column are gone"
    append(nested, [{"key": 2, "s": {"n": 3, "y": None}, "items": [], "m": 9}])
    assert nested.to_arrow().column("m").to_pylist() == [None, 9] or nested.to_arrow().column("m").to_pylist() == [
        9,
        None,
    ]


def test_names_may_be_swapped(table: Table) -> None:
    altered(table, rename_columns={"id": "amount", "amount": "id"}, allow_reader_upgrade=True)
    found = table.to_arrow().to_pylist()
    assert all(row["id"] == row["amount"] / 2 for row in found)


def test_a_partition_column_is_renamed_with_its_values(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"])
    altered(table, rename_columns={"day": "date"}, allow_reader_upgrade=True)
    append(table, rows(1, start=9).rename_columns(["id", "date", "name", "amount"]))
    snapshot = table.snapshot()
    assert snapshot.partition_columns == ["date"]
    assert len(set(table.to_arrow().column("date").to_pylist())) == 1


def test_types_become_wider_at_every_depth(nested: Table) -> None:
    altered(
        nested,
        change_types={"s.x": "BIGINT", "items.element.price": "DOUBLE", "m.value": "DECIMAL(12, 2)"},
        allow_reader_upgrade=True,
    )
    schema = nested.snapshot().delta_schema
    assert str(schema) == (
        "struct<id:long,s:struct<x:long,y:string>,items:array<struct<price:double>>,m:map<string,decimal(12,2)>>"
    )
    m = schema.find("m")
    assert m is not None
    assert m.metadata["delta.typeChanges"] == [{"fromType": "integer", "toType": "decimal(12,2)", "fieldPath": "value"}]
    assert nested.to_arrow().column("s").to_pylist() == [{"x": 1, "y": "a"}]
    append(nested, [{**NESTED_ROW, "s": {"x": 2**40, "y": None}}])
    assert {row["x"] for row in nested.to_arrow().column("s").to_pylist()} == {1, 2**40}


@pytest.mark.parametrize(
    "asked",
    [
        {"change_types": {"s.x": "BIGINT"}, "set_properties": {"delta.enableTypeWidening": "false"}},
        {"change_types": {"s.x": "BIGINT"}, "unset_properties": ["delta.enableTypeWidening"]},
        {"drop_features": ["rowTracking"], "set_properties": {"delta.enableRowTracking": "TRUE"}},
    ],
    ids=str,
)
def test_a_property_that_contradicts_another_argument_is_refused(nested: Table, asked: dict[str, Any]) -> None:
    altered(nested, set_properties={"delta.feature.rowTracking": "supported"})
    error = error_of(alter(nested, allow_reader_upgrade=True, **asked))
    assert (error["type"], nested.snapshot().version) == ("InvalidProperty", 2)
    assert next(iter(asked)) in error["message"]


def test_comments_come_and_go(nested: Table) -> None:
    altered(nested, set_comments={"id": "the key", "s.x": "the x"})
    assert nested.snapshot().delta_schema.fields[0].metadata == {"comment": "the key"}
    altered(nested, set_comments={"ID": None})
    assert nested.snapshot().delta_schema.fields[0].metadata == {}


def test_statistics_follow_a_renamed_column_and_forget_a_dropped_one(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3), properties={"delta.dataSkippingStatsColumns": "id,name,amount"})
    altered(table, rename_columns={"id": "key"}, drop_columns=["name"], allow_reader_upgrade=True)
    assert table.snapshot().properties["delta.dataSkippingStatsColumns"] == "key,amount"


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ({"rename_columns": {"id": "the.key"}}, "`the.key`,s.x,s.y"),
        ({"rename_columns": {"id": "a,b"}}, "`a,b`,s.x,s.y"),
        ({"rename_columns": {"S": "t", "s.x": "n.m"}}, "id,t.`n.m`,t.y"),
        ({"drop_columns": ["s"]}, "id"),
    ],
    ids=str,
)
def test_statistics_follow_members_of_structs_and_names_with_dots(
    tmp_path: Path, asked: dict[str, Any], listed: str
) -> None:
    table = two_rows(tmp_path, {"delta.dataSkippingStatsColumns": "id,s.x,s.y"})
    altered(table, allow_reader_upgrade=True, **asked)
    assert table.snapshot().properties["delta.dataSkippingStatsColumns"] == listed
    expected = {"id": 0} if "drop_columns" in asked else {"id": 0, "s": {"x": 0, "y": 0}}
    assert null_counts_of_a_new_file(table) == expected, "by physical names, which stay"


def test_statistics_may_be_of_a_column_that_the_same_alteration_adds(tmp_path: Path) -> None:
    table = two_rows(tmp_path)
    altered(table, set_properties={"delta.dataSkippingStatsColumns": "S.X,`new`"}, add_columns={"new": "INT"})
    assert null_counts_of_a_new_file(table) == {"s": {"x": 0}, "new": 2}


def two_rows(tmp_path: Path, properties: dict[str, str] | None = None) -> Table:
    rows = [{**NESTED_ROW, "n": number} for number in range(2)]
    schema = pa.schema([*NESTED, ("n", pa.int32())])
    return make_table(tmp_path / "t", pa.Table.from_pylist(rows, schema), properties=properties)


def null_counts_of_a_new_file(table: Table) -> dict[str, Any]:
    arguments = {"predicate": "n = 0", "set": {"n": "5"}}
    committed(run_job(job_spec(operation="update", table_uri=table.uri, arguments=arguments), None))
    (text,) = table.snapshot().files().column("stats").to_pylist()
    return dict(json.loads(text)["nullCount"])


REFUSED_COLUMNS: dict[str, dict[str, Any]] = {
    "exists": {"add_columns": {"ID": "INT"}},
    "exists in a struct": {"add_columns": {"s.X": "INT"}},
    "no struct": {"add_columns": {"id.x": "INT"}},
    "no parent": {"add_columns": {"none.x": "INT"}},
    "no type": {"add_columns": {"x": "NUMBER"}},
    "name with a space": {"add_columns": {"a b": "INT"}},
    "no name": {"add_columns": {"a..b": "INT"}},
    "default of another type": {"add_columns": {"x": {"type": "INT", "default": "'a'"}}},
    "default too large": {"add_columns": {"x": {"type": "TINYINT", "default": "128"}}},
    "default inside": {"add_columns": {"s.w": {"type": "INT", "default": "1"}}},
    "unknown": {"drop_columns": ["nope"]},
    "inside another": {"drop_columns": ["s", "s.x"]},
    "all": {"drop_columns": ["id", "s", "items", "m"]},
    "all of a struct": {"drop_columns": ["s.x", "s.y"]},
    "element": {"drop_columns": ["items.element"]},
    "renamed to another": {"rename_columns": {"id": "M"}},
    "narrower": {"change_types": {"id": "INT"}},
    "another kind": {"change_types": {"id": "STRING"}},
    "a struct": {"change_types": {"s": "INT"}},
    "change feed": {
        "add_columns": {"_change_type": "STRING"},
        "set_properties": {"delta.enableChangeDataFeed": "true"},
    },
    "statistics of no column": {"set_properties": {"delta.dataSkippingStatsColumns": "id,s.nope"}},
    "cluster by a struct": {"cluster_by": ["s"]},
    "cluster by a list": {"cluster_by": ["items.element.price"]},
    "cluster twice": {"cluster_by": ["s.x", "`s`.`x`"]},
}


@pytest.mark.parametrize("why", REFUSED_COLUMNS)
def test_a_change_of_columns_that_contradicts_the_table_is_refused(nested: Table, why: str) -> None:
    error = error_of(alter(nested, allow_reader_upgrade=True, **REFUSED_COLUMNS[why]))
    assert (error["type"], nested.snapshot().version) == ("SchemaMismatch", 1)


@pytest.mark.parametrize(
    "asked", [{"drop_columns": ["id"]}, {"rename_columns": {"id": "k"}}, {"change_types": {"small": "INT"}}]
)
def test_a_column_that_a_constraint_reads_stays(tmp_path: Path, asked: dict[str, Any]) -> None:
    schema = pa.schema([*SCHEMA, ("small", pa.int16())])
    table = make_table(tmp_path / "t", schema=schema, properties={"delta.constraints.a": "id > small"})
    error = error_of(alter(table, allow_reader_upgrade=True, **asked))
    assert error["type"] == "SchemaMismatch"
    assert "'a'" in error["message"]
    altered(table, allow_reader_upgrade=True, drop_constraints=["A"], **asked)


@pytest.mark.parametrize("member", ["s.x", "s.inner.z"])
@pytest.mark.parametrize("rule", ["s IS NOT NULL", "to_json(s) <> ''", "s.inner.z > 0 AND s.x > 0", "(s).y > 0"])
def test_a_member_of_a_struct_that_a_constraint_reads_as_a_whole_stays(tmp_path: Path, member: str, rule: str) -> None:
    table = struct_table(tmp_path, rule)
    for asked in ({"drop_columns": [member]}, {"rename_columns": {member: "n"}}, {"change_types": {member: "BIGINT"}}):
        error = error_of(alter(table, allow_reader_upgrade=True, **asked))
        assert (error["type"], "'a'" in error["message"]) == ("SchemaMismatch", True)


@pytest.mark.parametrize("rule", ["s.y > x", "s . `inner`.w > 0", "s.inner.w > x AND z > 0"])
def test_a_member_beside_those_that_a_constraint_reads_is_renamed(tmp_path: Path, rule: str) -> None:
    altered(struct_table(tmp_path, rule), rename_columns={"s.inner.z": "n", "s.x": "m"}, allow_reader_upgrade=True)


def test_an_element_of_a_list_that_a_constraint_reads_stays(tmp_path: Path) -> None:
    schema = pa.schema([("items", pa.list_(pa.struct([("price", pa.int32()), ("n", pa.int32())])))])
    table = make_table(tmp_path / "t", schema=schema, properties={"delta.constraints.a": "items.price[0] > 0"})
    error = error_of(alter(table, rename_columns={"items.element.price": "cost"}, allow_reader_upgrade=True))
    assert error["type"] == "SchemaMismatch"


def struct_table(tmp_path: Path, rule: str) -> Table:
    number = pa.int32()
    inner = pa.struct([("z", number), ("w", number)])
    kind = pa.struct([("x", number), ("y", number), ("inner", inner)])
    schema = pa.schema([("id", pa.int64()), ("x", number), ("z", number), ("s", kind)])
    return make_table(tmp_path / "t", schema=schema, properties={"delta.constraints.a": rule})


@pytest.mark.parametrize(
    "asked", [{"drop_columns": ["id"]}, {"rename_columns": {"id": "k"}}, {"change_types": {"id": "INT"}}]
)
def test_a_column_that_a_generated_column_reads_stays(tmp_path: Path, asked: dict[str, Any]) -> None:
    doubled = StructField("doubled", Primitive.LONG, metadata={"delta.generationExpression": "id * 2"})
    table = Table.create(str(tmp_path / "t"), StructType((StructField("id", Primitive.SHORT), doubled)))
    error = error_of(alter(table, allow_reader_upgrade=True, **asked))
    assert error["type"] == "SchemaMismatch"
    assert "the generated column 'doubled' reads it" in error["message"]
    refused = alter(table, allow_reader_upgrade=True, change_types={"doubled": "DECIMAL(20, 0)"})
    assert error_of(refused)["type"] == "SchemaMismatch"


@pytest.mark.parametrize(
    "asked", [{"drop_columns": ["id"]}, {"rename_columns": {"id": "k"}}, {"rename_columns": {"limit": "most"}}]
)
def test_a_column_that_an_invariant_reads_stays_and_takes_its_own_along(tmp_path: Path, asked: dict[str, Any]) -> None:
    rule = {"delta.invariants": '{"expression":{"expression":"limit > id"}}'}
    limit = StructField("limit", Primitive.LONG, metadata=rule)
    other = StructField("other", Primitive.LONG)
    table = Table.create(str(tmp_path / "t"), StructType((StructField("id", Primitive.LONG), limit, other)))
    error = error_of(alter(table, allow_reader_upgrade=True, **asked))
    assert error["type"] == "SchemaMismatch"
    assert "the invariant of column 'limit' reads it" in error["message"]
    altered(table, drop_columns=["limit"], allow_reader_upgrade=True)
    altered(table, rename_columns={"id": "k"})
    append(table, pa.table({"k": [1], "other": [2]}))


@pytest.mark.parametrize("asked", [{"drop_columns": ["day"]}, {"change_types": {"day": "TIMESTAMP_NTZ"}}])
def test_a_partition_column_is_neither_dropped_nor_widened(tmp_path: Path, asked: dict[str, Any]) -> None:
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"])
    assert error_of(alter(table, allow_reader_upgrade=True, **asked))["type"] == "SchemaMismatch"


# --- clustering -----------------------------------------------------------------------------------------------------


def test_a_table_is_clustered_by_other_columns_and_by_none(nested: Table) -> None:
    altered(nested, cluster_by=["s.x", "id"])
    domain = nested.snapshot().state.domains["delta.clustering"]
    assert domain.configuration == '{"clusteringColumns":[["s","x"],["id"]],"domainName":"delta.clustering"}'
    assert {"clustering", "domainMetadata"} <= features(nested)
    assert error_of(alter(nested, drop_columns=["s"], allow_reader_upgrade=True))["type"] == "SchemaMismatch"
    append(nested, [NESTED_ROW])
    altered(nested, cluster_by=[])
    assert '"clusteringColumns":[]' in nested.snapshot().state.domains["delta.clustering"].configuration
    assert alter(nested, cluster_by=[]).status == "nothing_to_do"


def test_a_partitioned_table_is_not_clustered(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"])
    assert error_of(alter(table, cluster_by=["id"]))["type"] == "PartitionMismatch"


def test_statistics_of_a_clustering_column_are_not_switched_off(table: Table) -> None:
    altered(table, cluster_by=["name"])
    error = error_of(alter(table, set_properties={"delta.dataSkippingNumIndexedCols": "1"}))
    assert (error["type"], table.snapshot().version) == ("UnsupportedFeature", 3)


# --- one commit, exactly once ---------------------------------------------------------------------------------------


def everything() -> dict[str, Any]:
    return {
        "set_properties": {"delta.enableChangeDataFeed": "true"},
        "add_features": ["rowTracking", "inCommitTimestamp", "deletionVectors"],
        "rename_columns": {"name": "label"},
        "add_columns": {"note": "STRING", "amount": "DOUBLE"},
        "drop_columns": ["amount"],
        "set_comments": {"label": "what it is called"},
        "cluster_by": ["label"],
        "allow_reader_upgrade": True,
    }


def test_all_arguments_apply_in_one_commit_each_after_the_ones_before(table: Table) -> None:
    result = altered(table, **everything())
    assert (result.version, table.snapshot().version) == (3, 3)
    assert table.snapshot().schema.names == ["id", "day", "label", "note", "amount"]
    assert table.history(1)[0]["operation"] == "ALTER TABLE"
    assert set(table.to_arrow().column("amount").to_pylist()) == {None}


def test_an_alteration_that_was_killed_is_done_once(table: Table) -> None:
    identity = application()
    with killed_before_commit():
        alter(table, application=identity, **everything())
    assert table.snapshot().version == 2
    assert committed(alter(table, application=identity, **everything())).version == 3
    again = alter(table, application=identity, **everything())
    assert (again.status, again.version, table.snapshot().version) == ("already_done", 3, 3)


def test_two_copies_of_one_alteration_make_one_commit(table: Table) -> None:
    identity, copies = application(), list[JobResult]()

    def second(_: object) -> None:
        copies.append(committed(alter(table, application=identity, **everything())))

    with before_commit(second):
        first = alter(table, application=identity, **everything())
    assert (first.status, copies[0].version, table.snapshot().version) == ("already_done", 3, 3)


RACES: dict[str, Callable[[Table], object]] = {
    "append": lambda table: append(table, rows(2, start=70)),
    "alteration": lambda table: altered(table, set_properties={"raced": "yes"}),
}


@pytest.mark.parametrize("winner", RACES)
def test_what_lands_first_stays_and_the_alteration_is_planned_again(table: Table, winner: str) -> None:
    with before_commit(lambda _: RACES[winner](table)):
        result = altered(table, **everything())
    assert result.version == 4
    snapshot = table.snapshot()
    assert snapshot.files().column("base_row_id").null_count == 0
    assert (winner == "append") == (70 in ids(table))
    assert snapshot.properties.get("raced") == ("yes" if winner == "alteration" else None)


def test_an_append_that_loses_to_an_alteration_must_look_again(table: Table) -> None:
    tx = table.begin()
    tx.add(path="x.parquet", size=1, stats='{"numRecords": 1}')
    altered(table, add_features=["rowTracking"])
    with pytest.raises(CommitConflict):
        tx.commit("WRITE")


def test_a_restore_undoes_renamed_and_dropped_columns(table: Table) -> None:
    before = bag(table)
    altered(table, rename_columns={"name": "label"}, drop_columns=["amount"], allow_reader_upgrade=True)
    altered(table, add_columns={"amount": "INT", "name": "DATE"})
    append(table, [{"id": 99, "day": None, "label": "x", "amount": 1, "name": None}])
    committed(run_job(job_spec(operation="restore", table_uri=table.uri, arguments={"version": 2}), None))
    assert (bag(table), table.snapshot().schema.names) == (before, ["id", "day", "name", "amount"])
    append(table, rows(1, start=50))
    assert bag(table)[next(iter(bag(rows(1, start=50))))] == 1
