"""Parquet files in layouts that Arrow does not write, by the writer of parquet-java that comes with Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def write_layout(spark: SparkSession, path: Path, columns: str, rows: list[Row], **metadata: str) -> None:
    """A file of these columns, in the words of a Parquet schema, and rows; `metadata` goes into its footer.

    A row has a value by column, or a list of them where the column is repeated; a group is a row of its own. Whole
    numbers of 64 bits are such that do not fit in 32: by their size the bridge to Java chooses.
    """
    jvm: Any = spark._jvm
    kind = jvm.org.apache.parquet.schema.MessageTypeParser.parseMessageType(f"message m {{ {columns} }}")
    path.parent.mkdir(parents=True, exist_ok=True)
    target = jvm.org.apache.hadoop.fs.Path(str(path))
    builder = jvm.org.apache.parquet.hadoop.example.ExampleParquetWriter.builder(target).withType(kind)
    if metadata:
        builder = builder.withExtraMetaData({name.replace("__", "."): value for name, value in metadata.items()})
    writer = builder.build()
    for row in rows:
        group = jvm.org.apache.parquet.example.data.simple.SimpleGroup(kind)
        _fill(jvm, group, row)
        writer.write(group)
    writer.close()


def _fill(jvm: Any, group: Any, row: Row) -> None:
    for name, value in row.items():
        for each in value if isinstance(value, list) else [value]:
            if each is None:
                continue
            if isinstance(each, dict):
                _fill(jvm, group.addGroup(name), each)
            elif isinstance(each, bytes):
                group.add(name, jvm.org.apache.parquet.io.api.Binary.fromConstantByteArray(each))
            else:
                group.add(name, each)


DAY = (2_459_588).to_bytes(4, "little")
ALIKE: dict[str, tuple[str, list[Row]]] = {
    "lists": (
        """optional group two (LIST) { repeated int32 array; }
        optional group structs (LIST) { repeated group array { optional int32 a; } }
        optional group t (LIST) { repeated group t_tuple { optional int32 a; } }
        optional group bag (LIST) { repeated group bag { optional int32 array_element; } }
        repeated int32 bare; repeated group structs_bare { optional int32 a; repeated binary b (UTF8); }""",
        [
            {
                "two": {"array": [1, 2]},
                "structs": {"array": [{"a": 1}, {}]},
                "t": {"t_tuple": [{"a": 1}, {}]},
                "bag": {"bag": [{"array_element": 1}, {}]},
                "bare": [1, 2],
                "structs_bare": [{"a": 1, "b": ["x", "y"]}, {}],
            },
            {"two": {}, "structs": {}, "t": {}, "bag": {}},
            {},
        ],
    ),
    "maps": (
        """optional group m (MAP_KEY_VALUE) { repeated group map { required binary key (UTF8); optional int32 value; } }
        optional group n (MAP) { repeated group e { required int32 k;
        optional group v (LIST) { repeated int32 array; } } }""",
        [
            {"m": {"map": [{"key": "a", "value": 1}]}, "n": {"e": [{"k": 1, "v": {"array": [1]}}, {"k": 2}]}},
            {"m": {}},
            {},
        ],
    ),
    "numbers": (
        """optional int32 a (DECIMAL(5,2)); optional int64 b (DECIMAL(18,4)); optional binary c (DECIMAL(20,4));
        optional fixed_len_byte_array(5) d (DECIMAL(9,2)); optional fixed_len_byte_array(16) e (DECIMAL(5,2));
        optional int32 u (UINT_32); optional int64 v (UINT_64); optional int32 i (INT_16); optional boolean t;
        optional double f;""",
        [
            {"a": -12345, "b": 2**40, "c": b"\xff", "d": b"\xff" * 5, "e": b"\x00" * 15 + b"\x07", "u": -1}
            | {"v": -(2**40), "i": -32768, "t": True, "f": -0.0},
            {},
        ],
    ),
    "times and bytes": (
        """optional int64 a (TIMESTAMP(MILLIS,true)); optional int64 b (TIMESTAMP(MILLIS,false));
        optional int64 c (TIMESTAMP_MICROS); optional int96 d; optional int32 e (DATE); optional binary f;
        optional binary g (UTF8); optional fixed_len_byte_array(2) h;""",
        [
            {"a": -(2**40), "b": 2**40, "c": -(2**50), "d": (1999).to_bytes(8, "little") + DAY, "e": -700_000}
            | {"f": b"\xff", "g": "é", "h": b"ab"},
            {},
        ],
    ),
}
"""What Arrow reads as Spark does."""

VARIANT = "(VARIANT(1)) { required binary metadata; required binary value; }"
SPARK_ALONE: dict[str, str] = {
    "a list of lists by its member": "optional group c (LIST) { repeated group list { repeated int32 x; } }",
    "a list of maps without a group": "optional group c (LIST) { repeated group element (MAP) "
    "{ repeated group key_value { required int32 key; optional int32 value; } } }",
    "a map of keys alone": "optional group c (MAP) { repeated group key_value { required int32 key; } }",
    "a map of repeated values": "optional group c (MAP) "
    "{ repeated group key_value { required int32 key; repeated int32 value; } }",
    "a variant": f"optional group c {VARIANT}",
    "a variant inside": f"optional group c (LIST) {{ repeated group list {{ optional group element {VARIANT} }} }}",
    "geography": "optional binary c (GEOGRAPHY(OGC:CRS84,SPHERICAL));",
    "a small decimal in bytes": "optional binary c (DECIMAL(18,4));",
    "a decimal in many bytes": "optional fixed_len_byte_array(20) c (DECIMAL(38,2));",
    "INT96 beside its namesake": "optional int64 c (TIMESTAMP(MICROS,false)); optional int96 c.b;",
    "an enumeration": "optional binary c (ENUM);",
}
"""What Spark reads in another way than Arrow, or refuses."""
