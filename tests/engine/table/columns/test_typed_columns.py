"""Statistics and partition values as structs: what the log's text says, exactly, or nothing."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.parquet.statistics import file_statistics
from airflow_txlog.engine import checkpointing
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.checkpoints.reading import read_checkpoint
from airflow_txlog.engine.log.checkpoints.rows import statistics_json
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.table.columns.statistics import bounds
from airflow_txlog.engine.table.columns.typed_columns import TypedColumns
from airflow_txlog.engine.table.schema.schema import from_arrow
from airflow_txlog.engine.table.schema.types import StructField, StructType
from airflow_txlog.engine.table.snapshot.snapshot import load_snapshot
from airflow_txlog.engine.table_api import Table
from airflow_txlog.storage import MemoryStore
from tests.helpers.checkpoints import list_checkpoints
from tests.helpers.depth import depth

UTC = datetime.UTC


def files(*stats: str | None, partition_values: dict[str, str | None] | None = None) -> pa.RecordBatch:
    adds = [
        Add(
            path=f"f{i}", partition_values=partition_values or {}, size=1, modification_time=1, data_change=True,
            stats=text,
        )
        for i, text in enumerate(stats)
    ]  # fmt: skip
    return adds_to_table(adds).combine_chunks().to_batches()[0]


def typed(schema: pa.Schema, *stats: str | None) -> list[Any]:
    (parsed,) = TypedColumns(from_arrow(schema), []).values(files(*stats))
    values: list[Any] = parsed.to_pylist()
    return values


CASES: list[tuple[pa.DataType, str, Any]] = [
    (pa.int8(), "-128", -128),
    (pa.int8(), "128", None),
    (pa.int64(), "9223372036854775807", 2**63 - 1),
    (pa.int64(), "9223372036854775808", None),
    (pa.int64(), "1.0", None),
    (pa.int64(), "1e3", None),
    (pa.int64(), '"1"', None),
    (pa.int64(), "null", None),
    (pa.float64(), "1.5", 1.5),
    (pa.float64(), "1e400", None),
    (pa.float64(), '"NaN"', None),
    (pa.float32(), "0.1", pa.scalar(0.1, pa.float32()).as_py()),
    (pa.decimal128(5, 2), "1.25", decimal.Decimal("1.25")),
    (pa.decimal128(5, 2), "1.0", decimal.Decimal("1.00")),
    (pa.decimal128(5, 2), "1", None),  # old delta-rs wrote 0.01 so, which a struct would not show
    (pa.decimal128(5, 0), "1", decimal.Decimal("1")),
    (pa.decimal128(5, 2), "1.255", None),
    (pa.decimal128(5, 2), "1000.00", None),
    (pa.decimal128(38, 0), "9" * 38, decimal.Decimal("9" * 38)),
    (pa.decimal128(38, 0), "9" * 39, None),
    (pa.string(), '"a\\u00e9\\n"', "aé\n"),
    (pa.string(), "1", None),
    (pa.date32(), '"2024-02-29"', datetime.date(2024, 2, 29)),
    (pa.date32(), '"2023-02-29"', None),
    (pa.timestamp("us", "UTC"), '"2024-01-02T03:04:05.678Z"', datetime.datetime(2024, 1, 2, 3, 4, 5, 678000, UTC)),
    (pa.timestamp("us", "UTC"), '"2024-01-02T03:04:05+02:00"', datetime.datetime(2024, 1, 2, 1, 4, 5, 0, UTC)),
    (pa.timestamp("us", "UTC"), '"2024-01-02T03:04:05"', None),
    (pa.timestamp("us"), '"2024-01-02T03:04:05"', datetime.datetime(2024, 1, 2, 3, 4, 5)),
    (pa.timestamp("us"), '"2024-01-02T03:04:05Z"', None),
]


@pytest.mark.parametrize(("kind", "text", "expected"), CASES, ids=lambda value: str(value)[:30])
def test_a_text_is_its_value_or_nothing(kind: pa.DataType, text: str, expected: Any) -> None:
    (row,) = typed(pa.schema([("x", kind)]), f'{{"numRecords":3,"minValues":{{"x":{text}}},"nullCount":{{"x":1}}}}')
    assert row == {
        "numRecords": 3,
        "minValues": {"x": expected},
        "maxValues": {"x": None},
        "nullCount": {"x": 1},
        "tightBounds": None,
    }


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null", '{"minValues":[]}'])
def test_statistics_that_make_no_sense_are_none_and_spoil_no_other_file(text: str | None) -> None:
    schema = pa.schema([("x", pa.int64())])
    bad, good = typed(schema, text, '{"numRecords":1,"tightBounds":false,"minValues":{"x":2}}')
    assert bad is None
    assert (good["numRecords"], good["tightBounds"], good["minValues"]) == (1, False, {"x": 2})


def test_members_of_structs_are_found_and_types_without_bounds_are_counted() -> None:
    inner = pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])
    schema = pa.schema([("s", inner), ("flag", pa.bool_()), ("many", pa.list_(pa.int32())), ("raw", pa.binary())])
    stats = {
        "minValues": {"s": {"a": 1, "b": {"c": "x"}}, "flag": True},
        "maxValues": {"s": {"a": 2, "b": 5}},
        "nullCount": {"s": {"a": 0, "b": {"c": 1}}, "flag": 2, "many": 3, "raw": 4},
    }
    (row,) = typed(schema, json.dumps(stats, separators=(",", ":")))
    assert row["minValues"] == {"s": {"a": 1, "b": {"c": "x"}}}
    assert row["maxValues"] == {"s": {"a": 2, "b": {"c": None}}}
    assert row["nullCount"] == {"s": {"a": 0, "b": {"c": 1}}, "flag": 2, "many": 3, "raw": 4}


def test_a21_strings_of_pythons_json_are_no_bounds_in_a_struct_which_does_not_show_by_whom_they_are() -> None:
    schema = pa.schema([("s", pa.string()), ("i", pa.int64())])
    stats = {"numRecords": 2, "minValues": {"s": "a", "i": 1}, "maxValues": {"s": "b", "i": 2}}
    rows = typed(schema, json.dumps(stats), json.dumps(stats, separators=(",", ":")))
    assert [row["minValues"] for row in rows] == [{"s": None, "i": 1}, {"s": "a", "i": 1}]
    assert [row["maxValues"] for row in rows] == [{"s": None, "i": 2}, {"s": "b", "i": 2}]


DOUBTFUL = [
    (pa.decimal128(10, 2), "1", "125"),
    (pa.decimal128(10, 2), "125", "1000.00"),
    (pa.decimal128(10, 2), "1.25", '"1.50"'),
    (pa.decimal128(25, 3), "0.5", "125"),
    (pa.float64(), "1.5", '"NaN"'),
    (pa.float32(), "1.5", "1e39"),
    (pa.int32(), "1", "2.5"),
    (pa.date32(), '"2020-01-01"', "18300"),
    (pa.timestamp("us", "UTC"), '"2020-01-01T00:00:00Z"', '"2020-01-02T00:00:00"'),
    (pa.timestamp("us"), '"2020-01-01T00:00:00"', '"2020-01-02T00:00:00Z"'),
    (pa.string(), '"a"', "5"),
]


@pytest.mark.parametrize(("kind", "lower", "upper"), DOUBTFUL, ids=lambda value: str(value)[:30])
def test_a21_what_the_log_shows_to_be_no_bound_is_none_in_a_struct_either(
    kind: pa.DataType, lower: str, upper: str
) -> None:
    schema = pa.schema([("x", kind)])
    stats = f'{{"numRecords":3,"minValues":{{"x":{lower}}},"maxValues":{{"x":{upper}}},"nullCount":{{"x":0}}}}'
    (parsed,) = TypedColumns(from_arrow(schema), []).values(files(stats))
    for text in (stats, statistics_json(parsed)[0].as_py()):
        found = bounds(pa.Table.from_batches([files(text)]), from_arrow(schema), [("x",)])["x",]
        assert (found.lower[0].as_py(), found.upper[0].as_py()) == (None, None)


def test_members_bear_physical_names() -> None:
    def mapped(name: str, physical: str, kind: pa.DataType) -> StructField:
        (field,) = from_arrow(pa.schema([(name, kind)]))
        return StructField(name, field.type, metadata={"delta.columnMapping.physicalName": physical})

    schema = StructType((mapped("day", "col-1", pa.date32()), mapped("x", "col-2", pa.int64())))
    columns = TypedColumns(schema, ["day"])
    rows = files('{"minValues":{"col-2":5}}', partition_values={"col-1": "2024-01-02"})
    stats, partitions = columns.values(rows)
    assert [field.name for field in columns.fields] == ["stats_parsed", "partitionValues_parsed"]
    assert [field.type for field in columns.fields] == [stats.type, partitions.type]
    assert stats.to_pylist()[0]["minValues"] == {"col-2": 5}
    assert partitions.to_pylist() == [{"col-1": datetime.date(2024, 1, 2)}]


def test_only_indexed_columns_get_members() -> None:
    schema = from_arrow(pa.schema([("p", pa.int32()), *((name, pa.int32()) for name in "abc")]))
    by_number = TypedColumns(schema, ["p"], num_indexed_columns=2)
    assert [field.name for field in by_number.fields[0].type.field("nullCount").type] == ["a", "b"]
    by_name = TypedColumns(schema, ["p"], indexed_columns=[("C",)], num_indexed_columns=0)
    assert [field.name for field in by_name.fields[0].type.field("nullCount").type] == ["c"]
    none = TypedColumns(schema, ["p"], num_indexed_columns=0)
    assert [field.name for field in none.fields[0].type] == ["numRecords", "tightBounds"]


SCHEMA = pa.schema(
    [
        ("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("d", pa.decimal128(12, 3)), ("day", pa.date32()),
        ("t", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us")),
    ]
)  # fmt: skip
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | st.floats(),
            "s": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
            "d": st.none() | st.decimals(-(10**8), 10**8, places=3),
            "day": st.none() | st.dates(),
            "t": st.none() | st.datetimes(timezones=st.just(UTC), min_value=datetime.datetime(1900, 1, 1)),
            "n": st.none() | st.datetimes(),
        }
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.seeded
@settings(deadline=None, max_examples=depth(30, 150))
@given(ROWS)
def test_bounds_of_written_rows_hold_as_structs_too(rows: list[dict[str, Any]]) -> None:
    """Timestamps are cut to milliseconds in the text, towards the past; a maximum in a struct is the same text's."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    (row,) = typed(SCHEMA, file_statistics(table))
    assert row["numRecords"] == len(rows)
    for name in SCHEMA.names:
        values = [each for each in table.column(name).to_pylist() if each is not None]
        values = [each for each in values if not (isinstance(each, float) and math.isnan(each))]
        lower, upper = row["minValues"][name], row["maxValues"][name]
        assert row["nullCount"][name] == table.column(name).null_count
        slack = datetime.timedelta(milliseconds=1) if name in ("t", "n") else None
        for value in values:
            assert lower is None or lower <= value
            assert upper is None or value <= upper or (slack is not None and value - upper < slack)


# --- in a checkpoint ------------------------------------------------------------------------------------------------

STRUCTS = {"delta.checkpoint.writeStatsAsStruct": "true"}
NO_JSON = {"delta.checkpoint.writeStatsAsJson": "false"}


def checkpoint_columns(properties: dict[str, str], value: str = "2024-01-02T03:04:05Z") -> tuple[set[str], Any]:
    """The members of `add` in the checkpoint of a table with these properties, and the add as it is read back."""
    store = MemoryStore(f"memory://typed-{uuid.uuid4().hex}")
    schema = pa.schema([("x", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    table = Table.create(store, schema, ["at"], properties)
    tx = table.begin()
    stats = '{"numRecords":3,"minValues":{"x":1},"maxValues":{"x":9},"nullCount":{"x":0}}'
    tx.add(path="a", partition_values={"at": value}, size=1, modification_time=1, stats=stats)
    tx.commit("WRITE", {})
    checkpointing.checkpoint(store, load_snapshot(store), SYSTEM_CLOCK)
    (checkpoint,) = list_checkpoints(store)
    names = {field.name for field in pq.read_schema(store.open_input(checkpoint.path)).field("add").type}
    (add,) = read_checkpoint(store, checkpoint).adds.to_pylist()
    return names & {"stats", "stats_parsed", "partitionValues_parsed"}, add


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, {"stats"}),
        (STRUCTS, {"stats", "stats_parsed", "partitionValues_parsed"}),
        (STRUCTS | NO_JSON, {"stats_parsed", "partitionValues_parsed"}),
        (NO_JSON, {"stats_parsed", "partitionValues_parsed"}),
        (NO_JSON | {"delta.checkpoint.writeStatsAsStruct": "false"}, set()),
    ],
    ids=["unset", "structs too", "structs alone", "no JSON", "neither"],
)
def test_a_checkpoint_holds_statistics_as_the_properties_say(properties: dict[str, str], expected: set[str]) -> None:
    names, add = checkpoint_columns(properties)
    assert names == expected
    assert dict(add["partition_values"]) == {"at": "2024-01-02T03:04:05Z"}
    if expected:
        assert json.loads(add["stats"])["maxValues"] == {"x": 9}
    else:
        assert add["stats"] is None


def test_a_partition_value_without_a_typed_form_keeps_the_logs_own_form_for_all() -> None:
    """A timestamp without a zone: a typed null in its place would be another value, and readers prune by it."""
    names, add = checkpoint_columns(STRUCTS | NO_JSON, value="2024-01-02 03:04:05")
    assert names == {"stats"}
    assert json.loads(add["stats"])["numRecords"] == 3


@pytest.mark.parametrize("name", ['a"b', "a\\b"])
def test_a_checkpoint_has_the_statistics_of_a_column_whatever_its_name(name: str, tmp_path: Path) -> None:
    rows = pa.table({name: [1, 2], "d": pa.array([1, 2], pa.decimal128(5, 2))})
    properties = {"delta.checkpoint.writeStatsAsStruct": "true"}
    table = Table.create(str(tmp_path), rows.schema, properties=properties)
    pq.write_table(rows, tmp_path / "x.parquet")
    transaction = table.begin()
    size = (tmp_path / "x.parquet").stat().st_size
    transaction.add(path="x.parquet", size=size, stats=file_statistics(rows))
    transaction.commit("WRITE", {})
    table.checkpoint()
    again = Table.open(str(tmp_path))
    assert again.to_arrow(f"`{name}` = 2 AND d = 2").num_rows == 1
    assert again.snapshot().files(f"`{name}` = 3 AND d = 3").num_rows == 0
