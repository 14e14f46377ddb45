"""Alone in showing that text which UTF-8 cannot hold, and a place with NUL, is refused by class before a job begins.

A lone surrogate is half of a character: `json.loads` makes one of a cut escape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import InvalidCommit, InvalidJobSpec, InvalidPredicate, SchemaMismatch, UnsupportedStore
from tests.helpers.jobs import committed, error_of, files_on_disk, run
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

HALF, NUL = "a\ud83db", "a\x00b"
FILES = {"format": "parquet", "path": "/s"}
TEXTS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    # The place that the error names, the operation, its arguments, and other fields of the job.
    ("arguments.predicate", "delete", {"predicate": f"p = '{HALF}'"}, {}),
    ("arguments.partition_predicate", "delete", {"predicate": "a = 1", "partition_predicate": f"p = '{HALF}'"}, {}),
    ("arguments.parameters.x", "delete", {"predicate": "p = :x", "parameters": {"x": HALF}}, {}),
    ("arguments.parameters.x", "delete", {"predicate": "p IN (:x)", "parameters": {"x": ["a", HALF]}}, {}),
    ("arguments.parameters", "delete", {"predicate": "p = 1", "parameters": {HALF: 1}}, {}),
    ("arguments.keys.values", "delete", {"predicate": None, "keys": {"column": "p", "values": ["a", HALF]}}, {}),
    ("arguments.keys.column", "delete", {"predicate": None, "keys": {"column": HALF, "values": ["a"]}}, {}),
    ("arguments.set.p", "update", {"set": {"p": f"'{HALF}'"}}, {}),
    ("arguments.set", "update", {"set": {HALF: "1"}}, {}),
    ("arguments.source.sql", "write", {"source": {"sql": f"SELECT '{HALF}'"}}, {}),
    ("arguments.source.options.sep", "write", {"source": {**FILES, "format": "csv", "options": {"sep": HALF}}}, {}),
    ("arguments.partition_by[0]", "write", {"source": FILES, "partition_by": [HALF]}, {}),
    ("arguments.properties.a", "write", {"source": FILES, "properties": {"a": HALF}}, {}),
    ("arguments.zorder_by[0]", "optimize", {"zorder_by": [HALF]}, {}),
    ("time_zone", "truncate", {}, {"time_zone": HALF}),
    ("annotations.dag_id", "truncate", {}, {"annotations": {"dag_id": HALF}}),
    ("annotations", "truncate", {}, {"annotations": {HALF: "d"}}),
    ("spark_conf.spark.app.name", "truncate", {}, {"spark_conf": {"spark.app.name": HALF}}),
    ("storage_options", "truncate", {}, {"storage_options": {"region": HALF}}),
    # Places: a folder's name may be bytes that are not UTF-8, and no name has NUL.
    *(("table_uri", "truncate", {}, {"table_uri": f"/t/{bad}"}) for bad in (HALF, NUL)),
    *(("arguments.source.path", "write", {"source": {**FILES, "path": f"/s/{bad}"}}, {}) for bad in (HALF, NUL)),
    *(("arguments.source.table", "write", {"source": {"table": f"/s/{bad}"}}, {}) for bad in (HALF, NUL)),
]


@pytest.mark.parametrize(("place", "operation", "arguments", "fields"), TEXTS)
def test_a_job_with_half_of_a_character_is_refused_by_the_place_of_it(
    place: str, operation: str, arguments: dict[str, Any], fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        job_spec(operation=operation, arguments=arguments, **({"table_uri": "/t"} | fields))
    assert caught.value.facts["argument"] == place
    # A log and a terminal can show it, and it shows no value.
    caught.value.message.encode()
    assert "\\ud83d" not in caught.value.message


def test_the_name_of_a_work_is_refused_too() -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        ApplicationTransaction(app_id=HALF, version=1)
    assert caught.value.facts["argument"] == "application.app_id"


def test_whole_characters_and_nul_in_a_value_are_values(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": [1, 2, 3], "p": ["😀", NUL, "\U0010ffff\uffff"]}))
    for value, left in (("😀", 2), (NUL, 1), ("\U0010ffff\uffff", 0)):
        committed(run(None, "delete", table, predicate="p = :x", parameters={"x": value}))
        assert table.to_arrow().num_rows == left


def test_a_predicate_with_half_of_a_character_is_refused_by_the_engine() -> None:
    schema = StructType((StructField("p", Primitive.STRING, True, {}),))
    with pytest.raises(InvalidPredicate, match="half of a character"):
        read_predicate(f"p = '{HALF}'", schema)
    with pytest.raises(InvalidPredicate, match="half of a character"):
        read_predicate("p = :x", schema, parameters={"x": HALF})


@pytest.mark.parametrize("bad", [HALF, NUL])
def test_no_table_has_a_place_that_can_name_no_file(bad: str, tmp_path: Path) -> None:
    for uri in (f"{tmp_path}/{bad}", f"memory://{bad}"):
        with pytest.raises(UnsupportedStore, match="names no table"):
            Table.create(uri, pa.schema([("id", pa.int64())]))
        with pytest.raises(UnsupportedStore, match="names no table"):
            Table.open(uri)


def test_a_folder_whose_name_is_not_utf_8_holds_a_table(tmp_path: Path) -> None:
    table = make_table(tmp_path / "b\udcff", pa.table({"id": [1, 2]}))
    work = ApplicationTransaction(app_id="w", version=1)
    committed(run(None, "delete", table, predicate="id = 1", application=work))
    assert table.to_arrow().num_rows == 1


def test_half_of_a_character_in_a_commit_is_refused_before_it_is_put(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    for properties in ({"a": HALF}, {HALF: "a"}):
        with pytest.raises(InvalidCommit, match="half of a character"):
            Table.create(str(tmp_path / "t"), schema, properties=properties)
    assert not list((tmp_path / "t").rglob("*.json"))


# --- rows -------------------------------------------------------------------------------------------------------------


def not_utf8(*values: bytes) -> pa.Array:
    """A column of texts as Spark may write one: `CAST(X'FF' AS STRING)`."""
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("write", {}),
        ("write", {"mode": "overwrite_partitions"}),
        ("upsert", {"keys": ["id"]}),
        ("upsert", {"keys": ["id", "p"]}),
    ],
)
def test_a_text_that_is_not_utf_8_is_no_partition_value_and_any_other_value(
    operation: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    source = {"format": "parquet", "path": str(tmp_path / "s.parquet")}
    pq.write_table(pa.table({"id": [1, 2], "p": not_utf8(b"secret\xff", b"b")}), tmp_path / "s.parquet")
    table = make_table(tmp_path / "t", pa.table({"id": [1], "p": ["a"]}), partition_by=["p"])
    before = files_on_disk(table)
    error = error_of(run(None, operation, table, source=source, **arguments))
    assert error["type"] == "SchemaMismatch", error
    assert "not UTF-8" in error["message"]
    assert "secret" not in str(error)
    assert (table.latest_version(), files_on_disk(table)) == (1, before)
    plain = make_table(tmp_path / "plain", pa.table({"id": [1], "p": ["a"]}))
    if arguments.get("mode") is None:
        committed(run(None, operation, plain, source=source, **arguments))
        held = plain.to_arrow().column("p").combine_chunks().cast(pa.binary()).to_pylist()
        assert b"secret\xff" in held


def test_the_engine_refuses_such_a_partition_value(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="not UTF-8"):
        make_table(tmp_path / "t", pa.table({"id": [1], "p": not_utf8(b"\xff")}), partition_by=["p"])


def test_a_key_that_is_not_utf_8_deletes_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"p": not_utf8(b"x\xff", b"c")}), tmp_path / "keys.parquet")
    table = make_table(tmp_path / "t", pa.table({"id": [1, 2, 3], "p": not_utf8(b"x\xff", b"x\xfe", b"c")}))
    keys = {"column": "p", "source": {"format": "parquet", "path": str(tmp_path / "keys.parquet")}}
    committed(run(None, "delete", table, predicate=None, keys=keys))
    assert table.to_arrow().column("id").to_pylist() == [2]
