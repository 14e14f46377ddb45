"""Alone in showing that a write of plain Parquet files starts no Spark, leaves the table that Spark leaves, and asks
for Spark wherever the two might differ.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage import credentials
from airflow_txlog.storage.limits import LOCAL_FILE_BYTES, SMALL_JOB, Limits
from tests.helpers import azure, gcs, layouts, s3
from tests.helpers.jobs import KEY, application, by_id, committed, error_of, files_on_disk, ids, random_rows, rows
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append, bag, make_table
from tests.helpers.specs import job_spec
from tests.jobs.source.test_stores import ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = pa.table({"id": [1, 2], "name": ["a", None]})
TABLE = pa.schema([("id", pa.int64()), ("name", pa.string())])


def put(path: Path, data: pa.Table, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, path, **options)


def spec_of(table: Path | str, source: Path | str, more: dict[str, Any] | None = None, **arguments: Any) -> JobSpec:
    view = {"format": "parquet", "path": str(source), **arguments.pop("view", {})}
    arguments = {"source": view, **arguments}
    return job_spec(operation="write", table_uri=str(table), arguments=arguments, **(more or {}))


def alone(table: Path | str, source: Path | str, more: dict[str, Any] | None = None, **arguments: Any) -> JobResult:
    """The write without Spark, which must commit."""
    return committed(run_job(spec_of(table, source, more, **arguments), None))


def needs(spec: JobSpec, **how: Any) -> str:
    """Why a job that is tried without Spark needs it."""
    error = error_of(run_job(spec, None, **how))
    assert error["facts"].get("needs_spark"), error
    return str(error["message"])


# --- as Spark does it -----------------------------------------------------------------------------------------------


def left(table: Path) -> tuple[Any, ...]:
    """What a write leaves: rows, columns, and of each live file what the log says of its rows."""
    found = Table.open(str(table))
    snapshot = found.snapshot()
    entries = snapshot.files().select(["partition_values", "stats"]).to_pylist()
    names = {key for entry in entries for key, _ in entry["partition_values"] or []}
    files = Counter(repr((entry["partition_values"], json.loads(entry["stats"]))) for entry in entries)
    return bag(found), str(snapshot.delta_schema), names, files


def many_types(folder: Path) -> None:
    put(folder / "a.parquet", ROWS, row_group_size=1)


def worst_values(folder: Path) -> None:
    put(folder / "é %25 +=.parquet", random_rows(random.Random(7), 300), row_group_size=100)


def int96(folder: Path) -> None:
    old = ROWS.select(["ntz", "day", "text"]).rename_columns(["int96", "day", "text"])
    put(folder / "a.parquet", old, use_deprecated_int96_timestamps=True, version="1.0")


def legacy_lists(folder: Path) -> None:
    put(folder / "a.parquet", ROWS.select(["list", "struct"]), use_compliant_nested_type=False)


def columns_in_another_order(folder: Path) -> None:
    put(folder / "a.parquet", TEXTS)
    put(folder / "b.parquet", pa.table({"more": [1.5], "NAME": ["c"], "id": [3]}))
    (folder / "_hidden.parquet").write_bytes(b"nothing of it")


@pytest.mark.spark
@pytest.mark.parametrize("make", [many_types, worst_values, int96, legacy_lists, columns_in_another_order])
def test_it_leaves_the_table_that_spark_leaves(
    spark: SparkSession, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "in")
    alone(tmp_path / "ours", tmp_path / "in")
    alone(tmp_path / "ours", tmp_path / "in")
    for _ in range(2):
        committed(run_job(spec_of(tmp_path / "theirs", tmp_path / "in"), spark))
    assert left(tmp_path / "ours") == left(tmp_path / "theirs")


@pytest.mark.spark
@pytest.mark.parametrize("name", layouts.ALIKE)
def test_it_leaves_the_table_that_spark_leaves_of_layouts_of_other_writers(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    layouts.write_layout(spark, tmp_path / "in" / "a.parquet", *layouts.ALIKE[name])
    alone(tmp_path / "ours", tmp_path / "in")
    committed(run_job(spec_of(tmp_path / "theirs", tmp_path / "in"), spark))
    assert left(tmp_path / "ours") == left(tmp_path / "theirs")


@pytest.mark.spark
def test_it_leaves_the_partitions_names_and_row_ids_that_spark_leaves(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.parquet", random_rows(random.Random(3), 60))
    put(tmp_path / "more" / "a.parquet", pa.table({"i": pa.array([7], pa.int32()), "new": [1.5]}))
    properties = {"delta.columnMapping.mode": "name", "delta.enableRowTracking": "true"}
    for name, session in (("ours", None), ("theirs", spark)):
        table, more = tmp_path / name, {"application": application()}
        first = spec_of(table, tmp_path / "in", partition_by=["d", "s"], properties=properties)
        committed(run_job(first, session))
        committed(run_job(spec_of(table, tmp_path / "more", more, schema_evolution=True), session))
        assert run_job(spec_of(table, tmp_path / "more", more, schema_evolution=True), session).status != "committed"
    ours, theirs = (Table.open(str(tmp_path / name)) for name in ("ours", "theirs"))
    assert bag(ours) == bag(theirs)
    assert str(ours.snapshot().delta_schema) == str(theirs.snapshot().delta_schema)
    by_names = [
        [
            sorted(str(value) for _, value in each)
            for each in table.snapshot().files().column("partition_values").to_pylist()
        ]
        for table in (ours, theirs)
    ]
    distinct = {tuple(each) for each in by_names[0]}
    assert distinct == {tuple(each) for each in by_names[1]}
    assert len(by_names[0]) == len(distinct) + 1, "one file for each partition of each write"
    assert None not in ours.snapshot().files().column("base_row_id").to_pylist()


# --- without Spark --------------------------------------------------------------------------------------------------


def test_each_mode_replaces_what_it_names_and_says_that_it_needed_no_spark(tmp_path: Path) -> None:
    table = tmp_path / "t"
    put(tmp_path / "in" / "a.parquet", rows(3))
    put(tmp_path / "other" / "a.parquet", rows(2, start=10, day=dt.date(2024, 1, 2)))
    alone(table, tmp_path / "in", partition_by=["day"])
    alone(table, tmp_path / "other")
    assert ids(Table.open(str(table))) == [0, 1, 2, 10, 11]
    result = alone(table, tmp_path / "in", mode="overwrite_partitions")
    assert ids(Table.open(str(table))) == [0, 1, 2, 10, 11]
    assert result.metrics["numRemovedFiles"] == 1
    scope = {"partition_predicate": "day = DATE '2024-01-02'"}
    assert error_of(run_job(spec_of(table, tmp_path / "in", mode="overwrite", **scope), None))["type"] == (
        "PartitionMismatch"
    )
    alone(table, tmp_path / "other", mode="overwrite", **scope)
    assert ids(Table.open(str(table))) == [0, 1, 2, 10, 11]
    lines: list[str] = []
    committed(run_job(spec_of(table, tmp_path / "other", mode="overwrite"), None, log=lines.append))
    assert ids(Table.open(str(table))) == [10, 11]
    assert [line for line in lines if line.startswith("without Spark: ")]
    assert not [path for path in files_on_disk(table) if "txlog" in path]


def test_the_schema_evolves_with_the_files(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", TEXTS)
    put(tmp_path / "in" / "a.parquet", pa.table({"ID": [3], "more": [1.5]}))
    assert "not those of the table" in needs(spec_of(tmp_path / "t", tmp_path / "in"))
    alone(tmp_path / "t", tmp_path / "in", schema_evolution=True)
    found = table.to_arrow().sort_by("id").to_pylist()
    assert found[2] == {"id": 3, "name": None, "more": 1.5}


def test_a_void_column_takes_the_type_of_the_files(tmp_path: Path) -> None:
    void = StructType((StructField("id", Primitive.LONG), StructField("name", Primitive.VOID)))
    table = Table.create(str(tmp_path / "t"), void)
    append(table, [{"id": 0}])
    put(tmp_path / "in" / "a.parquet", TEXTS)
    assert "not those of the table" in needs(spec_of(tmp_path / "t", tmp_path / "in"))
    alone(tmp_path / "t", tmp_path / "in", schema_evolution=True)
    assert table.to_arrow().sort_by("id").to_pylist() == [{"id": 0, "name": None}, *TEXTS.to_pylist()]
    assert str(table.snapshot().delta_schema) == "struct<id:long,name:string>"


def test_a_second_try_goes_on_with_what_the_first_has_staged(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.parquet", TEXTS.append_column("more", pa.array([1, 2])))
    table = make_table(tmp_path / "t", TEXTS)
    more = {"application": application(), "saved_work_key": KEY}
    spec = spec_of(tmp_path / "t", tmp_path / "in", more, schema_evolution=True)
    with killed_before_commit():
        run_job(spec, None)
    (tmp_path / "in" / "a.parquet").unlink()
    lines: list[str] = []
    committed(run_job(spec, None, log=lines.append))
    assert [line for line in lines if line.startswith("reused what was staged before: 1 file (")]
    assert table.to_arrow().num_rows == 4
    assert run_job(spec, None).status == "already_done"
    assert table.to_arrow().num_rows == 4


@pytest.mark.spark
def test_a_try_with_spark_goes_on_with_what_one_without_has_staged(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.parquet", TEXTS.append_column("more", pa.array([1, 2])))
    table = make_table(tmp_path / "t", TEXTS)
    more = {"application": application(), "saved_work_key": KEY}
    spec = spec_of(tmp_path / "t", tmp_path / "in", more, schema_evolution=True)
    with killed_before_commit():
        run_job(spec, None)
    (tmp_path / "in" / "a.parquet").unlink()
    committed(run_job(spec, spark))
    assert sorted(row["more"] or 0 for row in table.to_arrow().to_pylist()) == [0, 0, 1, 2]


def test_a_file_without_a_byte_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path / "in" / "b.parquet", TEXTS)
    (tmp_path / "in" / "a.parquet").touch()
    alone(tmp_path / "t", tmp_path / "in")
    assert ids(Table.open(str(tmp_path / "t"))) == [1, 2]


def test_files_are_staged_once_however_often_the_commit_is_lost(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.parquet", rows(3))
    table = make_table(tmp_path / "t", rows(2, start=10))
    with before_commit(lambda tx: append(table, rows(1, start=20))):
        alone(tmp_path / "t", tmp_path / "in")
    assert ids(table) == [0, 1, 2, 10, 11, 20]


@pytest.mark.parametrize("where", ["id = 2", "id IN (2, :other) AND id IS NOT NULL", "id BETWEEN 2 AND 2"])
def test_rows_replace_the_partitions_of_a_plain_condition(tmp_path: Path, where: str) -> None:
    old = pa.table({"id": [1, 2, 2, 3], "name": ["a", "b", "c", "d"]})
    table = make_table(tmp_path / "t", old, partition_by=["id"])
    before = files_on_disk(table)
    how: dict[str, Any] = {"mode": "overwrite", "replace_where": where}
    if ":other" in where:
        how["parameters"] = {"other": 7}
    put(tmp_path / "in" / "a.parquet", pa.table({"id": [2, 3], "name": ["x", "y"]}))
    error = error_of(run_job(spec_of(table.uri, tmp_path / "in", **how), None))
    assert error["type"] == "PartitionMismatch"
    assert (table.latest_version(), files_on_disk(table)) == (1, before)
    put(tmp_path / "in" / "a.parquet", pa.table({"id": [2], "name": ["x"]}))
    result = alone(table.uri, tmp_path / "in", **how)
    assert sorted(table.to_arrow().to_pylist(), key=repr) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "x"},
        {"id": 3, "name": "d"},
    ]
    assert (result.metrics["numRemovedFiles"], result.metrics["numDeletedRows"]) == (1, 2)
    assert table.history(1)[0]["operationParameters"]["predicate"] == where


def test_a_new_table_takes_only_rows_that_a_plain_replace_where_accepts(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.parquet", TEXTS)
    how = {"mode": "overwrite", "partition_by": ["id"]}
    error = error_of(run_job(spec_of(tmp_path / "t", tmp_path / "in", replace_where="id = 1", **how), None))
    assert error["type"] == "PartitionMismatch"
    alone(tmp_path / "t", tmp_path / "in", replace_where="id < 100", **how)


@pytest.mark.parametrize("where", ["name = 'a'", "id = 1 AND name > 'a'", "abs(id) = array_size(array(1))"])
@pytest.mark.parametrize("is_new", [False, True], ids=["old", "new"])
def test_another_replace_where_needs_spark_before_a_file_is_written(tmp_path: Path, where: str, is_new: bool) -> None:
    put(tmp_path / "in" / "a.parquet", TEXTS)
    if not is_new:
        make_table(tmp_path / "t", TEXTS, partition_by=["id"])
    before = files_on_disk(tmp_path / "t")
    how: dict[str, Any] = {"mode": "overwrite", "partition_by": ["id"], "replace_where": where}
    assert needs(spec_of(tmp_path / "t", tmp_path / "in", **how))
    assert files_on_disk(tmp_path / "t") == before


def test_keys_of_parquet_files_need_no_spark(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    put(tmp_path / "keys" / "a.parquet", pa.table({"n": [3, 4], "other": ["x", "y"]}))
    put(tmp_path / "keys" / "b.parquet", pa.table({"n": [4, 77], "other": ["x", "y"]}))
    source = {"format": "parquet", "path": str(tmp_path / "keys")}
    keys = {"predicate": None, "keys": {"column": "id", "source": source, "source_column": "N"}}
    result = committed(run_job(job_spec(operation="delete", table_uri=table.uri, arguments=keys), None))
    assert [result.metrics[name] for name in ("numKeysGiven", "numKeys", "numKeysMatched")] == [4, 3, 2]
    assert ids(table) == [0, 1, 2, 5, 6, 7, 8, 9]


def test_a_null_where_the_table_forbids_it_and_a_broken_file_leave_nothing(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64()), pa.field("name", pa.string(), False)]))
    put(tmp_path / "in" / "a.parquet", TEXTS)
    assert error_of(run_job(spec_of(tmp_path / "t", tmp_path / "in"), None))["type"] == "ConstraintViolation"
    put(tmp_path / "in" / "a.parquet", pa.table({"id": list(range(9)), "name": ["x"] * 9}), compression="none")
    data = bytearray((tmp_path / "in" / "a.parquet").read_bytes())
    # The head of the first page, not the footer.
    data[4:16] = bytes([0xFF] * 12)
    (tmp_path / "in" / "a.parquet").write_bytes(data)
    # Another reader may read it.
    assert "cannot be read as Parquet" in needs(spec_of(tmp_path / "t", tmp_path / "in"))
    assert (table.latest_version(), files_on_disk(table)) == (0, set())


def test_what_is_not_there_and_the_files_of_a_table_are_refused(tmp_path: Path) -> None:
    other = make_table(tmp_path / "other", TEXTS)
    (tmp_path / "link").symlink_to(tmp_path / "other")
    (tmp_path / "none").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.parquet").touch()
    for path in ("none", "nothing", "empty"):
        assert error_of(run_job(spec_of(tmp_path / "t", tmp_path / path), None))["type"] == "SourceNotFound"
    for path in ("other", "link", "other/*.parquet"):
        error = error_of(run_job(spec_of(tmp_path / "t", tmp_path / path), None))
        assert "raw files in the folder of the Delta table" in error["message"]
    error = error_of(run_job(spec_of(tmp_path / "other", tmp_path / "other"), None))
    assert "raw files in the folder of the Delta table" in error["message"]
    assert other.latest_version() == 1


def test_the_first_file_is_the_one_that_java_sorts_first(tmp_path: Path) -> None:
    """The others are read by its columns. Java compares texts by their UTF-16 units, Python by characters."""
    beyond, wide = "\U0001f600.parquet", "\uff5e.parquet"
    assert wide < beyond
    put(tmp_path / "in" / beyond, TEXTS)
    put(tmp_path / "in" / wide, TEXTS.append_column("more", pa.array([1] * TEXTS.num_rows)))
    committed(run_job(spec_of(tmp_path / "t", tmp_path / "in"), None))
    assert Table.open(str(tmp_path / "t")).to_arrow().column_names == TEXTS.column_names


def test_a_source_in_a_store_of_ours_needs_no_spark_wherever_that_would_run(tmp_path: Path, shelf: str) -> None:
    put(tmp_path / "in" / "a.parquet", TEXTS)
    spec = spec_of(tmp_path / "t", f"{shelf}{tmp_path}/in/*.parquet")
    assert spec.operation.likely_spares_spark(is_spark_here=False)
    committed(run_job(spec, None, is_spark_here=False))
    assert Table.open(str(tmp_path / "t")).to_arrow().num_rows == 2


def on_s3(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return {"storage_options": s3.plain_options()}


def on_gcs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"storage_options": gcs.options()}


def on_azure(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    held = credentials.Credentials(kind=credentials.AZURE, values=azure.options())
    monkeypatch.setitem(credentials._sources, "lake", lambda: held)
    return {"storage_conn_id": "lake"}


@pytest.mark.slow("an append and a delete on a real server of each object store")
@pytest.mark.parametrize(("server", "reached"), [(s3, on_s3), (gcs, on_gcs), (azure, on_azure)])
def test_an_append_and_a_delete_by_keys_on_an_object_store_need_no_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Any, reached: Callable[[pytest.MonkeyPatch], Any]
) -> None:
    """What of a job's description reaches the store is `reached`: it holds no secret."""
    table = Table.create(server.new_folder(), TABLE, storage_options=server.options())
    source = Table.at(server.new_folder(), table.store.access).store
    put(tmp_path / "a.parquet", TEXTS)
    source.put("a.parquet", (tmp_path / "a.parquet").read_bytes())
    access = reached(monkeypatch)
    for _ in range(2):
        alone(table.uri, source.root, access)
    keys = {"predicate": None, "keys": {"column": "id", "values": [2]}}
    committed(run_job(job_spec(operation="delete", table_uri=table.uri, arguments=keys, **access), None))
    assert ids(table) == [1, 1]
    # The columns are those of the summary, which has one that the file lacks and the table too.
    put(tmp_path / "_metadata", TEXTS.append_column("late", pa.array([1.5, 2.5])))
    source.put("_metadata", (tmp_path / "_metadata").read_bytes())
    assert "not those of the table" in needs(spec_of(table.uri, source.root, access))


# --- where Spark is needed ------------------------------------------------------------------------------------------


def text_of(**metadata: str) -> pa.Schema:
    return pa.schema([("id", pa.int64()), pa.field("name", pa.string(), metadata=metadata)])


TABLES: dict[str, tuple[pa.Schema, dict[str, str], str]] = {
    "a constraint": (TABLE, {"delta.constraints.positive": "sqrt(id) > 0"}, "constraints"),
    "a length": (text_of(__CHAR_VARCHAR_TYPE_STRING="varchar(5)"), {}, "lengths of text"),
    "a generated column": (text_of(**{"delta.generationExpression": "'a'"}), {}, "generated"),
    "a default": (text_of(CURRENT_DEFAULT="'a'"), {"delta.feature.allowColumnDefaults": "supported"}, "defaults"),
    "another type": (pa.schema([("id", pa.int32()), ("name", pa.string())]), {}, "in the same types"),
    "a missing column": (pa.schema([("id", pa.int64())]), {}, "not those of the table"),
    "a column that the files lack": (TABLE.append(pa.field("more", pa.int64(), nullable=False)), {}, "not those"),
}


@pytest.mark.parametrize("name", TABLES)
def test_what_a_table_asks_of_rows_is_spark_s_to_say(tmp_path: Path, name: str) -> None:
    schema, properties, why = TABLES[name]
    put(tmp_path / "in" / "a.parquet", TEXTS)
    table = Table.create(str(tmp_path / "t"), schema, properties=properties)
    before = files_on_disk(table)
    assert why in needs(spec_of(tmp_path / "t", tmp_path / "in"))
    assert (table.latest_version(), files_on_disk(table)) == (0, before)


def _linked(folder: Path) -> None:
    put(folder.parent / "elsewhere.parquet", TEXTS)
    put(folder / "a.parquet", TEXTS)
    (folder / "b.parquet").symlink_to(folder.parent / "elsewhere.parquet")


def _summary(folder: Path) -> None:
    put(folder / "a.parquet", TEXTS)
    put(folder / "_common_metadata", TEXTS)


def _of_old(folder: Path) -> None:
    put(folder / "a.parquet", ROWS.select(["day"]).replace_schema_metadata({"org.apache.spark.version": "2.4.8"}))


def _plain(folder: Path) -> None:
    put(folder / "a.parquet", TEXTS)


def _of_a_stream(folder: Path) -> None:
    _plain(folder)
    (folder / "_spark_metadata").mkdir()


def _of_no_text(folder: Path) -> None:
    _plain(folder)
    os.link(folder / "a.parquet", os.fsencode(folder) + b"/caf\xe9.parquet")


SOURCES: dict[str, tuple[Callable[[Path], None], dict[str, Any], str]] = {
    "a link": (_linked, {}, "links"),
    "a summary": (_summary, {}, "summaries"),
    "an old calendar": (_of_old, {}, "not certain"),
    "no Parquet": (lambda folder: (folder / "a.parquet").write_bytes(b"no Parquet") and None, {}, "not certain"),
    "a folder's column": (lambda folder: put(folder / "k=1" / "a.parquet", TEXTS), {}, "folders name"),
    "an option": (_plain, {"options": {"mergeSchema": "true"}}, "option"),
    "a filter of names": (_plain, {"options": {"pathGlobFilter": "{a,b}.parquet"}}, "a filter"),
    "what a stream has written": (_of_a_stream, {}, "a stream's log"),
    "a name that is no text": (_of_no_text, {}, "names that are no text"),
    "a schema": (_plain, {"schema": "id INT"}, "evaluates SQL"),
    "another format": (_plain, {"format": "orc"}, "evaluates SQL"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_files_that_spark_may_read_in_another_way_are_left_to_it(tmp_path: Path, name: str) -> None:
    make, view, why = SOURCES[name]
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    assert why in needs(spec_of(tmp_path / "t", tmp_path / "in", view=view))
    assert not (tmp_path / "t").exists()


def test_a_disk_or_settings_that_are_spark_s_own_are_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plain(tmp_path / "in")
    spec = spec_of(tmp_path / "t", tmp_path / "in")
    assert not spec.operation.likely_spares_spark(is_spark_here=False)
    assert "the disk of the machine that Spark runs on" in needs(spec, is_spark_here=False)
    with monkeypatch.context() as patched:
        patched.setenv("HADOOP_CONF_DIR", str(tmp_path))
        assert "Hadoop" in needs(spec)
        assert "Hadoop" not in str(run_job(spec_of(tmp_path / "u", f"file://{tmp_path}/in"), None).error)
    (tmp_path / "spark-defaults.conf").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert "settings of its own" in needs(spec)


OLD_TIMES = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.legacy.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96TimestampConversion": "true",
    "spark.sql.parquet.int96AsTimestamp": "false",
}


@pytest.mark.parametrize(("name", "value"), OLD_TIMES.items())
def test_a_setting_that_changes_old_times_is_left_to_spark(tmp_path: Path, name: str, value: str) -> None:
    _plain(tmp_path / "in")
    assert "option" in needs(spec_of(tmp_path / "t", tmp_path / "in", {"spark_conf": {name: value}}))


def test_a_folder_of_very_many_names_is_not_walked(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "in" / f"{number}.parquet", TEXTS)
    limits = Limits(names_in_folder=2)
    assert "very many names" in needs(spec_of(tmp_path / "t", tmp_path / "in" / "0*"), limits=limits)


def test_more_than_the_limit_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plain(tmp_path / "in")
    monkeypatch.setenv(SMALL_JOB.setting, "1")
    assert SMALL_JOB.setting in needs(spec_of(tmp_path / "t", tmp_path / "in"))
    monkeypatch.setenv(SMALL_JOB.setting, str(LOCAL_FILE_BYTES))
    alone(tmp_path / "t", tmp_path / "in")
    put(tmp_path / "in" / "b.parquet", TEXTS)
    assert "2 files of" in needs(spec_of(tmp_path / "t", tmp_path / "in"))
    assert by_id(Table.open(str(tmp_path / "t"))) == {1: "a", 2: None}


def test_a_small_file_of_much_text_is_left_to_spark(tmp_path: Path) -> None:
    """A hundred kilobytes of a file held gigabytes of rows, and were read as a small job."""
    count, text = 15_000, "x" * 100_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([text]))
    put(tmp_path / "in" / "a.parquet", pa.table({"id": range(count), "name": texts}), store_schema=False)
    assert (tmp_path / "in" / "a.parquet").stat().st_size < 200_000
    assert "1 file of 37" in needs(spec_of(tmp_path / "t", tmp_path / "in"))
    assert not (tmp_path / "t").exists()
