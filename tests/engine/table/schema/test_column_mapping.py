"""Column mapping: ids and physical names of new tables, what they are found and written under, and illegal states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import errors
from airflow_txlog.datafiles.parquet import physical
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema import column_mapping
from airflow_txlog.engine.table.schema.schema import from_arrow, parse_schema, schema_to_json, to_arrow
from airflow_txlog.engine.table.schema.types import walk_fields
from tests.conftest import ManualClock
from tests.helpers.files import store_of
from tests.helpers.readers import rows_by_delta_rs
from tests.helpers.rows import append, bag, sorted_rows, stage

POINT = pa.struct([("x", pa.int64()), ("y z", pa.string())])
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("day, of", pa.date32()),
        ("p", POINT),
        ("points", pa.list_(POINT)),
        ("by", pa.map_(pa.string(), POINT)),
        ("value", pa.float64()),
    ]
)
ROWS: list[dict[str, Any]] = [
    {"k": 1, "day, of": None, "p": {"x": 1, "y z": "a"}, "points": [{"x": 2, "y z": None}, None], "by": [("b", None)]},
    {"k": 2, "day, of": None, "p": None, "points": None, "by": None, "value": 2.5},
]
MODES = ["name", "id"]


def create(path: Path, mode: str, **arguments: Any) -> Table:
    arguments.setdefault("partition_by", ["day, of"])
    return Table.create(path, SCHEMA, properties={"delta.columnMapping.mode": mode}, **arguments)


def fields_of(table: Table) -> dict[str, dict[str, Any]]:
    schema = parse_schema(table.snapshot().metadata.schema_string or "")
    return {field.name: dict(field.metadata) for field in walk_fields(schema)}


def changed(table: Table, **renamed: str) -> Metadata:
    """The table's metadata with top-level columns renamed, as ALTER TABLE does it: the name and nothing else."""
    metadata = table.snapshot().metadata
    schema = json.loads(metadata.schema_string or "")
    for field in schema["fields"]:
        field["name"] = renamed.get(field["name"], field["name"])
    return msgspec.structs.replace(metadata, schema_string=json.dumps(schema))


def commit(table: Table, metadata: Metadata) -> None:
    tx = table.begin()
    tx.set_metadata(metadata)
    tx.commit("RENAME COLUMN")


@pytest.mark.parametrize("mode", MODES)
def test_a_new_table_gives_every_field_an_id_and_a_name_of_its_own(tmp_path: Path, mode: str) -> None:
    table = create(tmp_path / "t", mode)
    mapped = [field.metadata for field in walk_fields(parse_schema(table.snapshot().metadata.schema_string or ""))]
    assert [found["delta.columnMapping.id"] for found in mapped] == list(range(1, 13))
    assert len({found["delta.columnMapping.physicalName"] for found in mapped}) == 12
    assert all(found["delta.columnMapping.physicalName"].startswith("col-") for found in mapped)
    properties = table.snapshot().properties
    assert properties["delta.columnMapping.maxColumnId"] == "12"
    assert properties["delta.columnMapping.mode"] == mode
    protocol = table.snapshot().protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == (2, 5)


@pytest.mark.parametrize("mode", MODES)
def test_rows_come_back_to_us_and_to_deltalake(tmp_path: Path, mode: str) -> None:
    table = create(tmp_path / "t", mode)
    append(table, ROWS)
    ours = table.to_arrow()
    expected = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    assert bag(ours) == bag(expected)
    theirs = rows_by_delta_rs(str(tmp_path / "t"))
    assert theirs is not None
    assert bag(theirs.select(SCHEMA.names)) == bag(expected)


@pytest.mark.parametrize("mode", MODES)
def test_renamed_columns_keep_their_values_and_exchanged_ones_do_not_take_each_other_s(
    tmp_path: Path, mode: str
) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("p", pa.string()), ("q", pa.string())])
    properties = {"delta.columnMapping.mode": mode}
    table = Table.create(tmp_path / "t", schema, ["p", "q"], properties)
    append(table, [{"a": 1, "b": 2, "p": "p1", "q": None}])
    commit(table, msgspec.structs.replace(changed(table, a="b", b="a", p="q", q="p"), partition_columns=["q", "p"]))
    append(table, [{"a": 20, "b": 10, "p": "q2", "q": "p2"}])
    assert sorted_rows(table.to_arrow()) == sorted_rows(
        pa.Table.from_pylist(
            [{"b": 1, "a": 2, "q": "p1", "p": None}, {"b": 10, "a": 20, "q": "p2", "p": "q2"}],
            schema=table.snapshot().schema,
        )
    )
    assert table.to_arrow("p IS NULL").column("a").to_pylist() == [2]
    assert table.snapshot().files("a = 2").num_rows == 1
    assert table.snapshot().files("a = 1").num_rows == 0


@pytest.mark.parametrize("mode", MODES)
def test_statistics_and_partition_values_stand_under_physical_names(tmp_path: Path, mode: str) -> None:
    table = create(tmp_path / "t", mode)
    append(table, ROWS)
    [add] = table.snapshot().state.live.to_pylist()
    names = {name: metadata["delta.columnMapping.physicalName"] for name, metadata in fields_of(table).items()}
    assert dict(add["partition_values"]) == {names["day, of"]: None}
    stats = json.loads(add["stats"])
    assert stats["minValues"][names["k"]] == 1
    assert names["day, of"] not in stats["nullCount"]
    assert "=" not in add["path"]
    by_members = stats["nullCount"][names["p"]]
    assert len(by_members) == 2
    file = pq.ParquetFile(tmp_path / "t" / add["path"])
    assert file.schema_arrow.names == [names[name] for name in SCHEMA.names if name != "day, of"]
    assert physical.has_field_ids(file.schema_arrow)


def test_the_columns_with_statistics_are_named_logically(tmp_path: Path) -> None:
    properties = {"delta.columnMapping.mode": "name", "delta.dataSkippingStatsColumns": "value,p.x"}
    table = Table.create(tmp_path / "t", SCHEMA, ["day, of"], properties)
    from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter

    columns = table.snapshot().table_properties.stats_columns
    layout = Layout(
        store=store_of(tmp_path / "t"),
        schema=table.snapshot().schema,
        partition_columns=("day, of",),
        job_id="test",
        indexed_columns=tuple(columns or ()),
    )
    writer = PartitionedWriter(layout)
    writer.write(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    [file] = writer.finish()
    names = fields_of(table)
    counts = json.loads(file.stats)["nullCount"]
    assert counts.keys() == {names[name]["delta.columnMapping.physicalName"] for name in ("value", "p")}
    assert list(counts[names["p"]["delta.columnMapping.physicalName"]].values()) == [1]


@pytest.mark.parametrize("name", ["a b", "a,b", "a;b", "a{b", "a(b", "a\nb", "a\tb", "a=b"])
def test_a_name_that_only_mapped_tables_may_have_is_refused_elsewhere(tmp_path: Path, name: str) -> None:
    for schema in (pa.schema([(name, pa.int64())]), pa.schema([("s", pa.struct([(name, pa.int64())]))])):
        with pytest.raises(errors.SchemaMismatch, match=r"delta\.columnMapping\.mode"):
            Table.create(tmp_path / "t", schema)


def test_a_mode_that_there_is_none_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidProperty, match="none, name, id"):
        create(tmp_path / "t", "names")


def test_features_asked_for_by_name_are_in_the_protocol_and_not_among_the_properties(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, properties=MANY)
    snapshot = table.snapshot()
    assert snapshot.protocol.reader_features == ["columnMapping", "deletionVectors", "typeWidening", "v2Checkpoint"]
    assert "domainMetadata" in (snapshot.protocol.writer_features or ())
    assert not [name for name in snapshot.properties if name.startswith("delta.feature.")]
    append(table, ROWS)
    assert bag(Table.open(table.uri).to_arrow()) == bag(pa.Table.from_pylist(ROWS, schema=SCHEMA))
    with pytest.raises(errors.UnsupportedFeature, match="catalogManaged"):
        Table.create(tmp_path / "u", SCHEMA, properties={**MANY, "delta.feature.catalogManaged": "supported"})
    with pytest.raises(errors.InvalidProperty, match="may be supported"):
        Table.create(tmp_path / "u", SCHEMA, properties={**MANY, "delta.feature.domainMetadata": "yes"})
    assert not Table.exists(tmp_path / "u")


MANY = {
    "delta.columnMapping.mode": "name",
    "delta.checkpointPolicy": "v2",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableTypeWidening": "true",
    "delta.feature.domainMetadata": "supported",
}


def test_a_new_table_takes_no_names_from_the_table_whose_schema_it_is_given(tmp_path: Path) -> None:
    first = create(tmp_path / "a", "name")
    second = create(tmp_path / "b", "name")
    third = Table.create(tmp_path / "c", first.snapshot().schema, ["k"], {"delta.columnMapping.mode": "name"})
    names = [
        {found["delta.columnMapping.physicalName"] for found in fields_of(t).values()} for t in (first, second, third)
    ]
    assert not names[0] & names[1]
    assert not names[0] & names[2]
    simple = pa.schema([first.snapshot().schema.field("k")])
    assert fields_of(Table.create(tmp_path / "d", simple))["k"] == {}


def broken(metadata: Metadata, change: Any) -> Metadata:
    schema = json.loads(metadata.schema_string or "")
    change(schema["fields"])
    return msgspec.structs.replace(metadata, schema_string=json.dumps(schema))


def _without(key: str) -> Any:
    return lambda fields: fields[2]["type"]["fields"][0]["metadata"].pop(key)


def _same(key: str) -> Any:
    def change(fields: list[dict[str, Any]]) -> None:
        fields[0]["metadata"][key] = fields[5]["metadata"][key]

    return change


ILLEGAL = [
    (_without("delta.columnMapping.physicalName"), "column 'p.x' has no physical name"),
    (_without("delta.columnMapping.id"), "column 'p.x' has no id"),
    (_same("delta.columnMapping.physicalName"), "columns 'k' and 'value' have one physical name"),
    (_same("delta.columnMapping.id"), "columns 'k' and '.*' have one id"),
]


@pytest.mark.parametrize(("change", "text"), ILLEGAL)
def test_a_mapping_with_gaps_or_doubles_makes_a_corrupt_table(tmp_path: Path, change: Any, text: str) -> None:
    table = create(tmp_path / "t", "name")
    path = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    lines = []
    for line in path.read_text().splitlines():
        action = json.loads(line)
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            change(schema["fields"])
            action["metaData"]["schemaString"] = json.dumps(schema)
        lines.append(json.dumps(action))
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(errors.CorruptTable, match=text):
        Table.open(table.uri)


@pytest.mark.parametrize(("change", "text"), ILLEGAL)
def test_a_mapping_with_gaps_or_doubles_is_not_committed(tmp_path: Path, change: Any, text: str) -> None:
    table = create(tmp_path / "t", "id")
    with pytest.raises(errors.InvalidCommit, match=text):
        commit(table, broken(table.snapshot().metadata, change))
    assert table.snapshot().version == 0


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("delta.columnMapping.mode", "id", "would change to 'id'"),
        ("delta.columnMapping.mode", "none", "would change to 'none'"),
        ("delta.columnMapping.maxColumnId", "5", "no column has gone beyond"),
        ("delta.columnMapping.maxColumnId", "many", "no column has gone beyond"),
    ],
)
def test_the_mode_and_the_highest_id_of_a_table_stay(tmp_path: Path, key: str, value: str, text: str) -> None:
    table = create(tmp_path / "t", "name")
    metadata = table.snapshot().metadata
    configuration = {**metadata.configuration, key: value}
    with pytest.raises(errors.InvalidCommit, match=text):
        commit(table, msgspec.structs.replace(metadata, configuration=configuration))


def test_a_winner_in_another_partition_does_not_conflict_by_its_physical_names(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("part", pa.string())])
    table = Table.create(tmp_path / "t", schema, ["part"], {"delta.columnMapping.mode": "name"})
    append(table, [{"k": 1, "part": "a"}, {"k": 2, "part": "b"}])
    disjoint, same = table.begin(), table.begin()
    disjoint.remove(disjoint.read("part = 'a'"))
    same.remove(same.read("part = 'b'"))
    append(table, [{"k": 3, "part": "b"}])
    assert disjoint.commit("DELETE") == 3
    with pytest.raises(errors.ConcurrentAppend, match="partition part=b") as caught:
        same.commit("DELETE")
    assert caught.value.facts["partition"] == {"part": "b"}


@pytest.mark.parametrize("what", ["renamed", "added again"])
def test_a18_rows_staged_before_a_column_changed_its_name_are_not_committed(tmp_path: Path, what: str) -> None:
    table = create(tmp_path / "t", "name")
    tx = table.begin()
    tx.add(stage(table, pa.Table.from_pylist(ROWS, schema=SCHEMA), tx=tx))
    if what == "renamed":
        commit(table, changed(table, value="renamed"))
    else:
        metadata = table.snapshot().metadata

        def again(fields: list[dict[str, Any]]) -> None:
            fields[5]["metadata"] = {"delta.columnMapping.id": 13, "delta.columnMapping.physicalName": "col-again"}

        configuration = {**metadata.configuration, "delta.columnMapping.maxColumnId": "13"}
        commit(table, msgspec.structs.replace(broken(metadata, again), configuration=configuration))
    with pytest.raises(errors.MetadataChanged, match="schema"):
        tx.commit("WRITE")
    assert table.to_arrow().num_rows == 0


def test_without_a_mode_what_is_left_of_a_mapping_means_nothing() -> None:
    schema = from_arrow(pa.schema([("a", pa.int64())]))
    mapped, last = column_mapping.assign(schema, lambda: "col-1")
    assert last == 1
    metadata = Metadata(id="t", schema_string=schema_to_json(mapped), partition_columns=[], configuration={})
    assert column_mapping.table_schema(metadata, "t").find("a").physical_name == "a"  # type: ignore[union-attr]


def test_the_marks_of_a_mapping_stay_out_of_the_log() -> None:
    schema, _ = column_mapping.assign(from_arrow(SCHEMA), ManualClock().unique_id)
    marked = column_mapping.arrow_schema(schema, "id")
    assert all(map(physical.is_mapped, marked))
    assert from_arrow(marked) == from_arrow(to_arrow(schema))
    assert "txlog" not in schema_to_json(from_arrow(marked))
