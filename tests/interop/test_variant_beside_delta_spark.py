"""Variant columns beside delta-spark: each reads and continues what the other wrote, shredded ones too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.jobs import committed, insert, live_files, merge, run, update
from tests.interop.reference.plain import plain_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow("delta-spark in a JVM of its own")]

ROWS = """SELECT id, parse_json(concat('{"a": [', id, ', null, "x"], "b": {"c": ', id / 2, '}}')) AS v,
    array(parse_json('1'), parse_json('null')) AS l, named_struct('v', parse_json('"t"')) AS s FROM range(4)"""


# Each mode is six statements of delta-spark.
LONG = pytest.mark.long("delta-spark takes seconds for each of its own statements")


@LONG
@pytest.mark.parametrize("mode", ["name", "none", "id"])
def test_variants_at_any_depth_are_read_as_delta_spark_wrote_them(delta: DeltaSpark, tmp_path: Path, mode: str) -> None:
    name = f"delta.`{tmp_path / 't'}`"
    delta.run(
        f"CREATE TABLE {name} (id BIGINT, v VARIANT, l ARRAY<VARIANT>, s STRUCT<v: VARIANT>) USING delta TBLPROPERTIES "
        f"('delta.columnMapping.mode' = '{mode}', 'delta.enableDeletionVectors' = 'true')",
        f"INSERT INTO {name} {ROWS}",
        f"INSERT INTO {name} (id) VALUES (9)",
        f"DELETE FROM {name} WHERE id = 2",
    )
    table = Table.open(str(tmp_path / "t"))
    # PySpark cannot hand over a variant that is null, so those are looked at here alone.
    assert plain_rows(table.to_arrow(predicate="id < 9")) == delta.sql(f"SELECT * FROM {name} WHERE id < 9")
    assert table.to_arrow(predicate="id = 9").to_pylist() == [{"id": 9, "v": None, "l": None, "s": None}]
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("TRUNCATE")
    assert delta.sql(f"SELECT count(*) AS n FROM {name}") == [{"n": 0}]
    table.restore(version=3)
    assert delta.sql(f"SELECT id FROM {name} ORDER BY id") == [{"id": 0}, {"id": 1}, {"id": 3}, {"id": 9}]


SHREDDED = {
    "o": """CASE id % 5
        WHEN 0 THEN parse_json(concat('{"a": ', id, ', "b": {"c": "text ', id, '", "d": [', id, ', 2.5]}, "e": true}'))
        WHEN 1 THEN parse_json(concat('{"a": "other", "b": {"c": ', id, ', "z": null}}'))
        WHEN 2 THEN parse_json(concat('{"a": 123456789012, "x', id, '": "', repeat('long ', 50), '"}'))
        WHEN 3 THEN parse_json('{"a": null}')
        ELSE parse_json('{}') END""",
    "n": "parse_json(CAST(id * id * id * id AS STRING))",
    "l": """parse_json(concat('[{"k": ', id, '}, {"k": "x", "l": [', id, ']}, 7, null]'))""",
    "t": """to_variant_object(named_struct('t', TIMESTAMP'2024-01-01 12:34:56.789Z' + make_interval(0, 0, 0, id), 'u',
        DATE'1969-12-31', 'v', CAST(id AS DECIMAL(20, 3)), 'w', X'00FF', 'n', TIMESTAMP_NTZ'2024-01-01 12:34:56.789',
        'f', CAST(id AS FLOAT), 'b', id % 2 = 0, 'y', CAST(id AS TINYINT)))""",
}


@LONG
@pytest.mark.parametrize("mode", ["none", "name"])
def test_shredded_variants_are_read_and_rewritten(delta: DeltaSpark, tmp_path: Path, mode: str) -> None:
    name = f"delta.`{tmp_path / 't'}`"
    columns = ", ".join(f"{column} VARIANT" for column in SHREDDED)
    values = ", ".join(f"{text} AS {column}" for column, text in SHREDDED.items())
    delta.run(
        f"CREATE TABLE {name} (id BIGINT, {columns}) USING delta TBLPROPERTIES "
        f"('delta.enableVariantShredding' = 'true', 'delta.columnMapping.mode' = '{mode}')",
        f"INSERT INTO {name} SELECT id, {values} FROM range(70)",
    )
    table = Table.open(str(tmp_path / "t"))
    for path in live_files(table):
        variants = [field.type for field in pq.read_schema(tmp_path / "t" / path) if pa.types.is_struct(field.type)]
        assert len(variants) == len(SHREDDED)
        assert all("typed_value" in kind.names for kind in variants), "delta-spark has shredded them"
    texts = f"SELECT id, {', '.join(f'to_json({column}) AS {column}' for column in SHREDDED)} FROM {name} ORDER BY id"
    theirs = delta.sql(texts)
    committed(run(None, "update", table, set={"id": "id + 100"}, predicate="id < 35"))
    committed(run(None, "optimize", table, zorder_by=["id"]))
    for path in live_files(table):
        assert not any("typed_value" in str(field.type) for field in pq.read_schema(tmp_path / "t" / path))
    moved = {row["id"] % 100: row for row in delta.sql(texts)}
    assert [{**moved[row["id"]], "id": row["id"]} for row in theirs] == theirs


@pytest.mark.long("delta-spark runs beside it")
@pytest.mark.parametrize("mode", ["none", pytest.param("name", marks=pytest.mark.long("mapped columns"))])
def test_delta_spark_reads_and_continues_our_variants(
    delta: DeltaSpark, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    uri, name = str(tmp_path / "t"), f"delta.`{tmp_path / 't'}`"
    delta.run(
        f"CREATE TABLE {name} (id BIGINT, v VARIANT, l ARRAY<VARIANT>, s STRUCT<v: VARIANT>) USING delta "
        f"TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')",
        f"INSERT INTO {name} {ROWS}",
    )
    ours = """SELECT id, parse_json(concat('{"a": [', id, ']}')) AS v, array(parse_json('2')) AS l,
        named_struct('v', parse_json('{"k": null}')) AS s FROM range(3, 7)"""
    committed(run(spark, "write", uri, source={"sql": ours.replace("range(3, 7)", "range(10, 12)")}))
    committed(merge(spark, Table.open(uri), ours, update(), insert()))
    changed = {"v": "parse_json(concat('[', CAST(variant_get(v, '$.a[0]', 'int') + 100 AS STRING), ']'))"}
    committed(run(spark, "update", uri, set=changed, predicate="variant_get(v, '$.a[0]', 'int') >= 10"))
    committed(run(None, "delete", uri, predicate="id = 0"))
    committed(run(None, "optimize", uri))
    found = delta.sql(f"SELECT id, to_json(v) AS v, to_json(l) AS l, to_json(s) AS s FROM {name} ORDER BY id")
    theirs = [
        (n, f'{{"a":[{n},null,"x"],"b":{{"c":{half}}}}}', "[1,null]", '{"v":"t"}') for n, half in ((1, "0.5"), (2, "1"))
    ]
    merged = [(n, f'{{"a":[{n}]}}', "[2]", '{"v":{"k":null}}') for n in range(3, 7)]
    updated = [(n, f"[{n + 100}]", "[2]", '{"v":{"k":null}}') for n in (10, 11)]
    assert sorted(tuple(row.values()) for row in found) == theirs + merged + updated
    delta.run(f"UPDATE {name} SET v = parse_json('7') WHERE id = 10")
    assert delta.sql(f"SELECT to_json(v) AS v FROM {name} WHERE id = 10") == [{"v": "7"}]
    assert Table.open(uri).to_arrow(predicate="id = 10", columns=["v"]).to_pylist()[0]["v"]["value"] == b"\x0c\x07"
