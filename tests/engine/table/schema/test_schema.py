"""The schema: JSON and Arrow, there and back, and what is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.engine.table.schema.schema import from_arrow, parse_schema, schema_to_json, to_arrow
from airflow_txlog.engine.table.schema.types import ArrayType, DecimalType, MapType, Primitive, StructField, StructType
from airflow_txlog.errors import CorruptTable, SchemaMismatch, UnsupportedFeature
from tests.helpers.paths import GOLDEN


def schema_json(type_json: object, name: str = "c") -> str:
    field = {"name": name, "type": type_json, "nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [field]})


EVERY_TYPE = StructType(
    (
        *(StructField(f"c_{primitive.value}", primitive) for primitive in Primitive),
        StructField("Dec", DecimalType(38, 18), nullable=False),
        StructField("arr", ArrayType(ArrayType(Primitive.INTEGER, False), True)),
        StructField("m", MapType(Primitive.STRING, MapType(Primitive.DATE, DecimalType(5, 2), False), True)),
        StructField(
            "s",
            StructType((StructField("Ä b", Primitive.TIMESTAMP_NTZ, True, {"comment": "x"}),)),
            True,
            {
                "comment": "5",
                "delta.columnMapping.id": 5,
                "delta.generationExpression": "a+1",
                "nested": {"a": [1, 2.5]},
                "flag": False,
                "none": None,
            },
        ),
    )
)

types = st.recursive(
    st.one_of(
        st.sampled_from([primitive for primitive in Primitive if primitive is not Primitive.VOID]),
        st.integers(1, 38).flatmap(lambda p: st.builds(DecimalType, st.just(p), st.integers(0, p))),
    ),
    lambda inner: st.one_of(
        st.builds(ArrayType, inner, st.booleans()),
        st.builds(MapType, inner, inner, st.booleans()),
        st.lists(
            st.tuples(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4), inner),
            max_size=3,
            unique_by=lambda pair: pair[0].lower(),
        ).map(lambda pairs: StructType(tuple(StructField(name, inner_type) for name, inner_type in pairs))),
    ),
    max_leaves=6,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=2),
    max_leaves=4,
)


@given(types, st.booleans(), st.dictionaries(st.text("abc.", min_size=1), json_values, max_size=3))
def test_a_schema_survives_json_and_arrow(data_type, nullable, metadata):
    schema = StructType((StructField("Col", data_type, nullable, metadata),))
    assert parse_schema(schema_to_json(schema)) == schema
    assert from_arrow(to_arrow(schema)) == schema


def test_every_type_has_its_arrow_type():
    arrow = to_arrow(EVERY_TYPE)
    assert arrow.field("c_byte").type == pa.int8()
    assert arrow.field("c_short").type == pa.int16()
    assert arrow.field("c_timestamp").type == pa.timestamp("us", tz="UTC")
    assert arrow.field("c_timestamp_ntz").type == pa.timestamp("us")
    assert arrow.field("c_void").type == pa.null()
    assert arrow.field("Dec").type == pa.decimal128(38, 18)
    assert not arrow.field("Dec").nullable
    assert not arrow.field("arr").type.value_type.value_field.nullable
    assert arrow.field("s").metadata[b"comment"] == b"5"
    assert from_arrow(arrow) == EVERY_TYPE


def test_a_void_column_is_read_as_null_whatever_it_claims():
    text = schema_json("void").replace("true", "false")
    assert schema_to_json(parse_schema(text)) == text.replace(" ", "")
    assert to_arrow(parse_schema(text)) == pa.schema([("c", pa.null())])


def test_the_wire_shape_is_the_reference_implementation_s():
    for table in ["data-reader-partition-values", "type-widening", "table-with-columnmapping-mode-name"]:
        log = GOLDEN / table / "_delta_log"
        if not log.is_dir():
            pytest.skip(f"no golden tables at {GOLDEN}")
        for commit in sorted(log.glob("*.json")):
            for line in commit.read_text().splitlines():
                metadata = json.loads(line).get("metaData")
                if metadata:
                    text = metadata["schemaString"]
                    assert schema_to_json(parse_schema(text)) == text


def test_every_golden_table_s_schema_survives_arrow():
    schemas = [
        metadata["schemaString"]
        for commit in GOLDEN.glob("*/_delta_log/*.json")
        for line in commit.read_text().splitlines()
        if "schemaString" in (metadata := json.loads(line).get("metaData", {}))
    ]
    if not schemas:
        pytest.skip(f"no golden tables at {GOLDEN}")
    for text in schemas:
        schema = parse_schema(text)
        assert from_arrow(to_arrow(schema)) == schema


@pytest.mark.parametrize(
    "name", ["geometry(OGC:CRS84)", "geography", "interval year to month", "time(6)", "char(5)", "string collate X"]
)
def test_a_type_outside_the_format_is_refused_by_name(name):
    with pytest.raises(UnsupportedFeature) as caught:
        parse_schema(schema_json({"type": "array", "elementType": name, "containsNull": True}))
    assert caught.value.feature == name
    assert "'c.element'" in str(caught.value)


def test_a_user_defined_type_is_refused_by_name():
    with pytest.raises(UnsupportedFeature, match="udt"):
        parse_schema(schema_json({"type": "udt", "class": "org.example.Point", "sqlType": "string"}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"long"',
        "null",
        '{"type":"struct"}',
        '{"type":"struct","fields":[{"name":"a"}]}',
        '{"type":"struct","fields":[{"name":"","type":"long","nullable":true,"metadata":{}}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","nullable":"yes","metadata":{}}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":[]}]}',
        schema_json("decimal(39,0)"),
        schema_json("decimal(5,-1)"),
        schema_json({"type": "array", "elementType": "long"}),
        schema_json(7),
    ],
)
def test_a_broken_schema_is_a_corrupt_table(text):
    with pytest.raises(CorruptTable):
        parse_schema(text)


def test_names_that_differ_only_in_case_are_refused():
    field = '{"name":"%s","type":"long","nullable":true,"metadata":{}}'
    with pytest.raises(CorruptTable, match="'Id'"):
        parse_schema('{"type":"struct","fields":[' + field % "Id" + "," + field % "iD" + "]}")
    with pytest.raises(SchemaMismatch) as caught:
        from_arrow(pa.schema([("s", pa.struct([("a", pa.int8()), ("A", pa.int8())]))]))
    assert caught.value.columns == ["a", "A"]


def test_columns_are_found_in_any_case_and_keep_their_own():
    assert EVERY_TYPE.find("DEC") is EVERY_TYPE.fields[len(Primitive)]
    assert EVERY_TYPE.find("dec").name == "Dec"
    assert EVERY_TYPE.find("nope") is None
    assert [field.name for field in EVERY_TYPE.find_path(("S", "ä B"))] == ["s", "Ä b"]
    assert EVERY_TYPE.find_path(("arr", "element")) is None
    assert EVERY_TYPE.find_path(()) is None


def test_arrow_types_are_taken_where_nothing_is_lost():
    arrow = pa.schema(
        [
            ("u8", pa.uint8()),
            ("u16", pa.uint16()),
            ("u32", pa.uint32()),
            ("u64", pa.uint64()),
            ("ls", pa.large_string()),
            ("sv", pa.string_view()),
            ("fb", pa.binary(3)),
            ("dict", pa.dictionary(pa.int8(), pa.string())),
            ("ns", pa.timestamp("ns")),
            ("s_tz", pa.timestamp("s", tz="Europe/Berlin")),
            ("d64", pa.date64()),
            ("neg", pa.decimal128(3, -2)),
            ("d256", pa.decimal256(38, 2)),
            ("ll", pa.large_list(pa.float16())),
            ("fl", pa.list_(pa.int8(), 2)),
        ]
    )
    assert [str(field.type) for field in from_arrow(arrow)] == [
        "short",
        "integer",
        "long",
        "decimal(20,0)",
        "string",
        "string",
        "binary",
        "string",
        "timestamp_ntz",
        "timestamp",
        "date",
        "decimal(5,0)",
        "decimal(38,2)",
        "array<float>",
        "array<byte>",
    ]


@pytest.mark.parametrize(
    "arrow",
    [pa.time64("us"), pa.duration("s"), pa.month_day_nano_interval(), pa.decimal256(39, 0), pa.decimal128(38, -1)],
)
def test_an_arrow_type_that_no_column_holds_is_refused_by_column(arrow):
    with pytest.raises(SchemaMismatch) as caught:
        from_arrow(pa.schema([("s", pa.struct([("x", pa.list_(arrow))]))]))
    assert caught.value.columns == ["s.x.element"]


def test_what_parquet_and_arrow_leave_in_field_metadata_is_not_the_column_s():
    field = pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "3", "comment": "c"})
    assert dict(from_arrow(pa.schema([field])).fields[0].metadata) == {"comment": "c"}


def test_a_field_says_how_it_compares():
    assert StructField("a", Primitive.STRING, True, {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}).is_char
    assert not StructField("a", Primitive.STRING, True, {"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}).is_char
    assert StructField("a", Primitive.STRING, True, {"__COLLATIONS": {"a": "spark.UTF8_LCASE"}}).is_collated
    assert (
        StructField("a", Primitive.LONG, True, {"delta.columnMapping.physicalName": "col-1"}).physical_name == "col-1"
    )
    assert StructField("a", Primitive.LONG).physical_name == "a"
