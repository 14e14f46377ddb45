"""Alone in showing an UPSERT: the merge that it is, and what it demands of keys beyond that merge."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_txlog.contract.operations import Merge, QuerySource, Upsert
from airflow_txlog.engine import Table
from airflow_txlog.jobs.operations.upsert import as_merge
from tests.helpers.jobs import application, by_id, committed, error_of, ids, rows, run
from tests.helpers.racing import winning
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TWO_DAYS = """
    SELECT * FROM VALUES
    (2L, DATE'2024-01-01', 'two', 20D), (4L, DATE'2024-01-02', 'four', 40D) AS rows(id, day, name, amount)
"""


def upsert(spark: SparkSession, table: Table, sql: str, *keys: str, **more: Any) -> Any:
    return run(spark, "upsert", table, source={"sql": sql}, keys=list(keys), **more)


def test_an_upsert_is_a_merge_by_its_keys() -> None:
    source = QuerySource(sql="SELECT 1")
    upsert = Upsert(source=source, keys=["id", "a`b"], columns=["v.w"], schema_evolution=True)  # type: ignore[arg-type]
    assert as_merge(upsert) == Merge(
        source=source,
        on="_txlog_t.`id` = _txlog_s.`id` AND _txlog_t.`a``b` = _txlog_s.`a``b`",
        target_alias="_txlog_t",
        source_alias="_txlog_s",
        clauses=[  # type: ignore[arg-type]
            {"when": "matched", "then": "update", "set": {"`v.w`": "_txlog_s.`v.w`"}},
            {"when": "not_matched", "then": "insert", "values": "*"},
        ],
        schema_evolution=True,
    )


@pytest.mark.spark
def test_rows_with_the_keys_are_updated_and_the_others_inserted_once(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(4), partition_by=["day"])
    append(table, rows(1, start=9, day=dt.date(2024, 1, 9)))
    work = application()
    said: list[str] = []
    first = committed(upsert(spark, table, TWO_DAYS, "ID", "day", application=work, log=said.append))
    assert (first.operation, first.metrics["numTargetRowsUpdated"], first.metrics["numTargetRowsInserted"]) == (
        "upsert",
        1,
        1,
    )
    assert by_id(table) == {0: "n0", 1: "n1", 2: "two", 3: "n3", 4: "four", 9: "n9"}
    assert upsert(spark, table, TWO_DAYS, "ID", "day", application=work).status == "already_done"
    # Other engines see a merge. A partition column among the keys bounds what it reads.
    assert table.history(1)[0]["operation"] == "MERGE"
    assert any("what ON can match is bounded by the source" in line for line in said)

    # Only `amount` is updated; every column is inserted, and a column that the table lacks is added to it.
    more = "SELECT id, DATE'2024-01-01' AS day, 'x' AS name, 7D AS amount, true AS seen FROM range(3, 6)"
    scope = {"partition_predicate": "day < :end", "parameters": {"end": "2024-01-09"}}
    committed(upsert(spark, table, more, "id", columns=["Amount"], schema_evolution=True, **scope))
    assert by_id(table) == {0: "n0", 1: "n1", 2: "two", 3: "n3", 4: "four", 5: "x", 9: "n9"}
    assert {key: value for key, value in by_id(table, "amount").items() if key in (3, 4, 5)} == {3: 7.0, 4: 7.0, 5: 7.0}
    assert by_id(table, "seen")[5] is True
    assert by_id(table, "seen")[3] is None


@pytest.mark.spark
def test_a_key_that_another_commit_inserts_meanwhile_is_updated(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3))
    log = winning("staged", lambda: append(table, rows(1, start=4)))
    result = committed(upsert(spark, table, TWO_DAYS, "id", log=log))
    assert (result.attempts, by_id(table)) == (2, {0: "n0", 1: "n1", 2: "two", 4: "four"})
    assert [step["name"] for step in result.steps].count("check keys") == 1


@pytest.mark.spark
def test_keys_that_identify_no_single_row_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3))

    def source(key: str, count: int = 2) -> str:
        return f"SELECT {key} AS id, DATE'2024-01-01' AS day, 'x' AS name, 1D AS amount FROM range({count})"

    for sql, keys, error_type, says in [
        (source("7L"), ["id"], "AmbiguousMerge", "1 key (id) of the source stand in more than one of its rows"),
        # Of another type than the column's: Spark counts.
        (source("7"), ["id"], "AmbiguousMerge", "1 key (id) of the source stand in more than one of its rows"),
        (source("NULL"), ["id"], "SchemaMismatch", "2 of 2 source rows have NULL"),
        (source("CAST(NULL AS BIGINT)", 3), ["id"], "SchemaMismatch", "3 of 3 source rows have NULL in a key column"),
        (source("if(id = 0, NULL, id)"), ["day", "id"], "SchemaMismatch", "1 of 2 source rows have NULL"),
        (source("id").replace("'x'", "id"), ["name"], "SchemaMismatch", "'name' is text in the table and bigint in"),
        (source("id"), ["uid"], "UnknownColumn", "no column 'uid', which keys names"),
        ("SELECT id FROM range(2)", ["name"], "UnknownColumn", "The source has no column 'name'"),
    ]:
        error = error_of(upsert(spark, table, sql, *keys))
        assert (error["type"], error["retryable"]) == (error_type, False), error
        assert says in error["message"]
    error = error_of(upsert(spark, table, source("id"), "id", columns=["nmae"]))
    assert "no column 'nmae', which columns names" in error["message"]
    assert upsert(spark, table, source("id", 0), "id").status == "nothing_to_do"
    assert table.snapshot().version == 1
    assert ids(table) == [0, 1, 2]

    # Counted by Spark, as the one key is of another type.
    parted = make_table(tmp_path / "parted", rows(3), partition_by=["name"])
    error = error_of(upsert(spark, parted, source("CAST(id AS INT)").replace("'x'", "''"), "id", "name"))
    assert "2 of 2 source rows have NULL in a key column (id, name), or an empty text" in error["message"]

    tx = table.begin()
    assert tx.metadata is not None
    schema = json.loads(tx.metadata.schema_string)
    schema["fields"][2]["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
    tx.set_metadata(msgspec.structs.replace(tx.metadata, schema_string=json.dumps(schema)), is_checked=True)
    tx.commit("CHANGE COLUMN")
    error = error_of(upsert(spark, table, source("id"), "id", "name"))
    assert error["type"] == "UnsupportedFeature"
    assert "'name' cannot be a key of this operation" in error["message"]
