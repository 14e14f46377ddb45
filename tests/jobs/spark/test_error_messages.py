"""The message of a failed job has the cause in the first line, the place of the fault, and never a value."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import CorruptCommit, TableNotFound
from airflow_txlog.jobs.spark.errors import translate
from airflow_txlog.storage.clouds import answer_error, no_credentials
from tests.helpers.jobs import committed, error_of, rows, run
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "secret-key"


@pytest.mark.spark
def test_a_cast_that_fails_names_the_parameter_and_the_column_and_no_value(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3))
    day = make_table(tmp_path / "p", rows(3), partition_by=["day"])
    source = {"sql": "SELECT id FROM range(5) WHERE id = :id"}
    delete = [{"when": "matched", "then": "delete"}]
    said: list[str] = []
    for target, operation, arguments, shown in [
        (table, "delete", {"predicate": "id = :id"}, "cannot be cast to BIGINT in 'id = :id'. Give :id in parameters"),
        (table, "delete", {"predicate": "name = 'x' OR amount > :id AND id > 0"}, "DOUBLE in 'amount > :id'. Give :id"),
        (table, "delete", {"predicate": "id IN (1, :id)"}, "to BIGINT in 'id IN (1, :id)'. Give :id"),
        (table, "delete", {"predicate": "day = CAST(:id AS DATE)"}, "to DATE in 'CAST(:id AS DATE)'. Give :id"),
        (day, "delete", {"predicate": "TRUE", "partition_predicate": "day = :id"}, "to DATE in 'day = :id'. Give :id"),
        (table, "merge", {"source": source, "on": "t.id = s.id", "clauses": delete}, "BIGINT in 'id = :id'. Give :id"),
        (table, "delete", {"predicate": f"id = '{SECRET}' AND :id <> ''"}, "to BIGINT in \"id = '…'\". The value"),
    ]:  # fmt: skip
        error = error_of(run(spark, operation, target, **arguments, parameters={"id": SECRET}, log=said.append))
        assert error["type"] == "InvalidInput"
        assert shown in error["message"]
        assert SECRET not in error["message"]
    of_a_row = error_of(run(spark, "delete", table, predicate="CAST(name AS INT) = 1", log=said.append))
    assert "a value of type STRING cannot be cast to INT in 'CAST(name AS INT)'" in of_a_row["message"]
    assert not any(SECRET in line or "n0" in line for line in said)


@pytest.mark.spark
def test_a_text_that_spark_does_not_accept_is_refused_without_the_values_bound_to_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(3))
    source = {"sql": "SELECT id FROM range(5) WHERE id IN (:ids)"}
    clauses = [{"when": "matched", "then": "delete"}]
    for operation, arguments, value in [
        ("delete", {"predicate": "name IN (:ids)"}, [SECRET, "b"]),
        ("delete", {"predicate": "map(name, 1) = :ids"}, SECRET),
        ("update", {"set": {"amount": "abs(array(:ids))"}, "predicate": None}, SECRET),
        ("merge", {"source": source, "on": "t.id = s.id", "clauses": clauses}, [SECRET]),
    ]:
        error = error_of(run(spark, operation, table, **arguments, parameters={"ids": value}))
        assert error["type"] in ("InvalidPredicate", "InvalidJobSpec"), error
        assert "DATATYPE_MISMATCH" in error["message"]
        assert "Expressions are not shown" in error["message"]
        assert SECRET not in json.dumps(error)


@pytest.mark.spark
def test_the_first_line_names_the_cause_of_a_failure_of_spark(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3))
    (tmp_path / "folder").write_text("a file")

    def first_line(target: Any, source: dict[str, Any]) -> str:
        return str(error_of(run(spark, "write", target, source=source))["message"]).splitlines()[0]

    there = {"sql": "SELECT 1 AS id"}
    # Where a worker may not write: /proc takes no folder, of whichever user.
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/proc/t'" in first_line("/proc/t", there)
    assert "NotADirectoryError: [Errno 20] Not a directory: " in first_line(tmp_path / "folder" / "t", there)
    no_connector = first_line(table, {"format": "parquet", "path": "nowhere://bucket/in"})
    assert 'No FileSystem for scheme "nowhere"' in no_connector
    assert "spark.jars.packages" in no_connector
    assert "there is nothing at /nowhere/in" in first_line(table, {"format": "parquet", "path": "/nowhere/in"})
    assert "score: the table has no such column" in first_line(table, {"sql": "SELECT 1L AS id, 2 AS score"})


def test_a_mistake_in_the_author_s_own_text_is_shown_at_its_place_in_it(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3))
    (tmp_path / "a.csv").write_text("1,a\n")

    def message(source: dict[str, Any], **more: Any) -> str:
        return str(error_of(run(spark, "write", table, source=source, **more))["message"])

    for sql, words in {
        "SELECT 1 AS id\nFORM x": "Syntax error at or near 'FORM' (line 2, pos 0). Nothing",
        "SELECT 1 AS id FROM": "Syntax error at or near end of input (line 1, pos 19). Nothing",
        "SELECT 1 AS id;": "it ends with ;: leave that out. Nothing",
        "DROP TABLE t": "it is a statement, and a source needs a SELECT. Nothing",
    }.items():
        assert words in message({"sql": sql})
        assert "PARSE" not in message({"sql": sql})
    assert "(line 1, pos " in message({"sql": "SELECT 1 AS id WHERE 1 = :x FORM y"}, parameters={"x": 1})
    found = message({"format": "csv", "path": str(tmp_path / "a.csv"), "schema": "id, name", "options": {}})
    assert "source.schema 'id, name' is not a list of columns: " in found
    assert "Syntax error at or near" in found


def test_a_failure_of_the_system_is_not_blamed_on_spark_and_says_what_to_do() -> None:
    for number, words in {
        errno.ENOTDIR: "Not a directory: '/lake/t'. A file lies where the table's folder",
        errno.EROFS: "Read-only file system: '/lake/t'. The disk is mounted read-only",
        errno.EACCES: "Permission denied: '/lake/t'. The user that runs the job has no right",
        errno.ENOSPC: "No space left on device: '/lake/t'. The disk is full",
    }.items():
        import os

        error = translate(OSError(number, os.strerror(number), "/lake/t"), "write the data files")
        assert error.message.splitlines()[0].startswith("Cannot write the data files: ")
        assert words in error.message
        assert "Spark" not in error.message
    denied = translate(answer_error(403, "AccessDenied", "put_object", "s3://lake/t"), "write the data files")
    assert denied.message.startswith("Cannot write the data files: ")
    assert "Permission denied: 's3://lake/t'. The credentials of the process that asked do not" in denied.message
    without = translate(no_credentials("S3", "put_object", "s3://lake/t"), "write the data files")
    assert "no credentials for S3, or malformed ones. Name a connection (storage_conn_id;" in without.message
    assert "The credentials of the process" not in without.message


def test_no_message_begins_with_the_name_of_its_class() -> None:
    """Whoever shows an error puts the class before it."""
    error = TableNotFound("TableNotFound: /t has no log")
    assert (str(error), error.message) == ("/t has no log", "/t has no log")
    assert json.loads(json.dumps(error.to_dict()))["message"] == "/t has no log"
    assert str(CorruptCommit("the file is empty")) == "the file is empty"


@pytest.mark.spark
def test_an_encoding_that_spark_does_not_know_is_named(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3))
    (tmp_path / "a.csv").write_bytes("name\n€\n".encode("cp1252"))

    def load(encoding: str, **more: Any) -> Any:
        options = {"header": "true", "encoding": encoding}
        source = {"format": "csv", "path": str(tmp_path / "a.csv"), "schema": "name STRING", "options": options}
        return run(spark, "write", table, source=source, **more)

    advices = {
        "latin1": 'Did you mean "encoding": "ISO-8859-1"?',
        "utf-8-sig": 'Did you mean "encoding": "UTF-8"?',
        "cp1252": "javaCharsets=true",
    }
    for name, advice in advices.items():
        error = error_of(load(name))
        assert error["type"] == "InvalidInput"
        assert f"Spark does not know the encoding '{name}' of the source. It knows US-ASCII" in error["message"]
        assert advice in error["message"]
    spark.conf.set("spark.sql.legacy.javaCharsets", "true")
    try:
        committed(load("cp1252"))
    finally:
        spark.conf.unset("spark.sql.legacy.javaCharsets")
    assert "€" in Table.open(str(tmp_path / "t")).to_arrow().column("name").to_pylist()
    sql = "SELECT string(encode(c, c)) AS name FROM VALUES ('secret-key') AS v(c)"
    error = error_of(run(spark, "write", table, source={"sql": sql}))
    assert SECRET not in str(error)
    assert "The source's encoding" not in error["message"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELECT nope FROM range(3)", "line 1 pos 7. Nothing"),
        ("SELECT id,\n  nope FROM range(3)", "line 2 pos 2. Nothing"),
    ],
)
def test_a_mistake_in_a_query_has_its_place_in_the_authors_text(
    tmp_path: Path, spark: SparkSession, sql: str, place: str
) -> None:
    table = make_table(tmp_path / "t", rows(3))
    message = error_of(run(spark, "write", table, source={"sql": sql}))["message"]
    assert "`nope`" in message
    assert place in message
    assert ";." not in message


@pytest.mark.spark
def test_a_wrong_alias_in_a_merge_of_a_query_names_the_aliases_and_each_sides_columns(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A name that the text of the query does not have is no struct of it; its columns only Spark knows."""
    table = make_table(tmp_path / "t", rows(3))
    delete = [{"when": "matched", "then": "delete"}]

    def said(on: str) -> str:
        source = {"sql": "SELECT id, 'x' AS city FROM range(3)"}
        return str(error_of(run(spark, "merge", table, source=source, on=on, clauses=delete))["message"])

    called = (
        "In a MERGE the table is called t and the source s: write t.name or s.name (target_alias and source_alias set "
        "these names). The columns of the table are: id, day, name, amount"
    )
    assert said("target.id = source.id") == (
        "The text 'target.id = source.id' names 'target.id', and no column and no rows that it sees are called "
        "'target'. "
        f"{called}. Nothing was read."
    )
    assert said("t.id = s.idd") == (
        f"The text 't.id = s.idd' names s.idd, which is not there. Did you mean 'id'? {called}; "
        "those of the source are: id, city. Nothing was read."
    )
