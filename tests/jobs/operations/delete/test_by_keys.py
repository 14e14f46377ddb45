"""Alone in showing DELETE by keys: the rows of every key that is given go, no other, and every key is accounted for."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.parameters import encode_parameter
from airflow_txlog.storage.limits import Limits
from tests.helpers.depth import LONG
from tests.helpers.jobs import application, committed, error_of, files_on_disk, ids, live_files, rows, run
from tests.helpers.racing import killed_before_commit, winning
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("each_way")]


def by_keys(column: str, *values: Any, **more: Any) -> dict[str, Any]:
    """The arguments of a delete by a list of keys."""
    return {"predicate": None, "keys": {"column": column, "values": [encode_parameter(v) for v in values]}, **more}


def by_source(column: str, source: dict[str, Any], source_column: str | None = None) -> dict[str, Any]:
    """The arguments of a delete by the keys of a source."""
    return {"predicate": None, "keys": {"column": column, "source": source, "source_column": source_column}}


def key_counts(result: Any) -> tuple[int, ...]:
    """Keys given, different ones among them, and those that matched."""
    return tuple(result.metrics[name] for name in ("numKeysGiven", "numKeys", "numKeysMatched"))


def test_only_files_that_may_hold_a_key_are_read_and_the_history_tells_no_key(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100), rows(10, start=200), rows(10, start=300))
    before = live_files(table)
    lines: list[str] = []
    result = committed(run(spark, "delete", table, **by_keys("ID", 105, 109, "105", 155), log=lines.append))
    assert result.files == {"considered": 4, "pruned": 3, "rewritten": 1, "added": 1, "removed": 1}
    assert (result.metrics["numDeletedRows"], key_counts(result)) == (2, (4, 3, 2))
    assert len(live_files(table) & before) == 3
    gone = {105, 109}
    assert ids(table) == [k for s in (0, 100, 200, 300) for k in range(s, s + 10) if k not in gone]
    (entry, *_) = table.history(1)
    assert entry["operation"] == "DELETE"
    assert entry["operationParameters"]["predicate"] == '["id IN (3 keys)"]'
    assert any("2 of 3 keys matched" in line for line in lines)
    assert not any(re.search(r"\b105\b", line.replace(table.uri, "")) for line in lines)
    # Too many to be asked one by one: the files between the least and the greatest are read.
    ranged = committed(run(spark, "delete", table, **by_keys("id", 103, 201, 500, 209), limits=Limits(delete_keys=2)))
    assert (ranged.files["pruned"], key_counts(ranged)) == (1, (4, 4, 3))
    nothing = run(spark, "delete", table, **by_keys("id", 150, 160))
    assert (nothing.status, key_counts(nothing), nothing.files["pruned"]) == ("nothing_to_do", (2, 2, 0), 4)
    empty = run(spark, "delete", table, **by_keys("id"), require_match=True)
    assert (empty.status, key_counts(empty)) == ("nothing_to_do", (0, 0, 0))


TYPED = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("exact", pa.decimal128(10, 2)),
        ("real", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("wall", pa.timestamp("us")),
        ("raw", pa.binary()),
    ]
)
AT = dt.datetime(1500, 3, 1, 12, 30, tzinfo=dt.UTC)
VALUES: dict[str, list[Any]] = {
    "text": ["O'Brien", "007", "7", "", None],
    "exact": [Decimal("1.50"), Decimal("-0.01"), Decimal("7.00"), Decimal("99999999.99"), None],
    "real": [0.0, -0.0, 1.5, float("nan"), None],
    "day": [dt.date(1, 1, 1), dt.date(1500, 3, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31), None],
    "at": [AT, dt.datetime(2024, 2, 29, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC), AT, None],
    "wall": [AT.replace(tzinfo=None), dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29), dt.datetime(2262, 5, 1), None],
    "raw": [b"", b"\x00", b"\xff\xfe", b"7", None],
}
# Keys of each column, by which rows go; a zero takes both zeros.
GOING: list[tuple[str, list[Any], set[int]]] = [
    ("exact", [7, 1.5], {0, 2}),
    ("real", [-0.0], {0, 1}),
    ("at", ["1500-03-01T13:30:00+01:00"], {0, 3}),
]
if LONG:
    # How a key becomes a value of each type is in test_key_values.
    GOING += [
        ("text", ["007", "O'Brien", "none"], {0, 1}),
        ("day", ["1500-03-01", dt.date(9999, 12, 31)], {1, 3}),
        ("wall", ["2262-05-01 00:00:00", dt.date(1, 1, 1)], {1, 3}),
        ("raw", [b"\xff\xfe", b""], {0, 2}),
    ]


@pytest.mark.seeded
def test_b7_keys_of_every_type_find_the_rows_of_equal_value(tmp_path: Path, spark: SparkSession) -> None:
    data = [{"id": i, **{name: values[i] for name, values in VALUES.items()}} for i in range(5)]
    whole = pa.Table.from_pylist(data, TYPED)
    for number, (column, keys, going) in enumerate(GOING):
        table = make_table(tmp_path / f"t{number}", whole)
        result = committed(run(spark, "delete", table, **by_keys(column, *keys)))
        assert set(ids(table)) == set(range(5)) - going, column
        assert result.metrics["numDeletedRows"] == len(going)


def test_b7_a_file_of_keys_in_which_007_became_7_forgets_nobody_and_says_so(
    tmp_path: Path, spark: SparkSession
) -> None:
    people = pa.table({"id": [1, 2, 3], "who": ["007", "7", "O'Brien"]})
    table = make_table(tmp_path / "t", people)
    csv = tmp_path / "keys.csv"
    csv.write_text("who\n007\n")
    files = {"format": "csv", "path": str(csv), "options": {"header": "true", "inferSchema": "true"}}
    error = error_of(run(spark, "delete", table, **by_source("who", files)))
    assert error["type"] == "SchemaMismatch"
    assert "Key number 1 is a int32, and the column 'who' of" in error["message"]
    assert "is string" in error["message"]
    assert files_on_disk(table) == live_files(table)
    result = committed(run(spark, "delete", table, **by_source("who", {**files, "schema": "who STRING"})))
    assert (ids(table), key_counts(result)) == ([2, 3], (1, 1, 1))
    null = {"sql": "SELECT who FROM VALUES ('7'), (NULL) AS v(who)"}
    assert "Key number" in error_of(run(spark, "delete", table, **by_source("who", null)))["message"]
    # Keys that the table itself holds: everything is read, and the query sees one version of it.
    own = {"sql": "SELECT who, id FROM v WHERE id > :least", "views": {"v": {"table": table.uri}}}
    assert committed(run(spark, "delete", table, **by_source("who", own), parameters={"least": 2})).version == 3
    assert ids(table) == [2]


def test_require_match_changes_nothing_where_a_key_is_in_no_row(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(5, start=20, day=dt.date(2024, 1, 2)), partition_by=["day"])
    before = files_on_disk(table)
    error = error_of(run(spark, "delete", table, **by_keys("name", "n3", "n99"), require_match=True))
    assert (error["type"], error["retryable"]) == ("KeysNotFound", False)
    assert {name: error["facts"][name] for name in ("column", "given", "matched")} == {
        "column": "name",
        "given": 2,
        "matched": 1,
    }
    assert "n99" not in error["message"]
    assert (files_on_disk(table), table.snapshot().version) == (before, 2)
    # Within a scope, only what lies in it can match.
    scope: dict[str, Any] = {"partition_predicate": "day = :day", "parameters": {"day": dt.date(2024, 1, 1)}}
    outside = error_of(run(spark, "delete", table, **by_keys("name", "n3", "n21"), **scope, require_match=True))
    assert (outside["type"], outside["facts"]["matched"]) == ("KeysNotFound", 1)
    result = committed(run(spark, "delete", table, **by_keys("name", "n3"), **scope, require_match=True))
    assert (result.files["pruned"], key_counts(result)) == (1, (1, 1, 1))
    assert table.history(1)[0]["operationParameters"]["predicate"] == '["(day = :day) AND name IN (1 key)"]'
    # A key that is a partition takes its file without a copy.
    day = committed(run(spark, "delete", table, **by_keys("day", "2024-01-02")))
    assert (day.files["added"], day.files["removed"], day.metrics["numDeletedRows"]) == (0, 1, 5)


def test_a2_a_keys_table_that_grows_between_rounds_changes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    subjects = [f"n{k}" for k in range(0, 30, 3)]
    keys = make_table(tmp_path / "keys", pa.table({"who": subjects}))
    table = make_table(tmp_path / "t", rows(10), rows(10, start=10), rows(10, start=20))

    def land() -> None:
        append(keys, pa.table({"who": ["n1"]}))
        append(table, rows(2, start=0))

    source = {"table": keys.uri}
    result = committed(run(spark, "delete", table, **by_source("name", source), log=winning("staged", land)))
    assert (result.attempts, key_counts(result)) == (2, (10, 10, 10))
    # The subject who came later is in no part of it: neither in what was found before, nor in the winner's file.
    assert ids(table) == sorted([*(k for k in range(30) if k % 3), 1])
    assert result.metrics["numDeletedRows"] == 11


def test_b1_a_retry_goes_on_with_the_keys_that_were_pinned(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=10))
    file = tmp_path / "keys.parquet"
    pq.write_table(pa.table({"number": [3, 4, 13, 99]}), file)
    work = by_source("id", {"format": "parquet", "path": str(file)})
    identity = application()
    with killed_before_commit():
        run(spark, "delete", table, application=identity, **work)
    staged = files_on_disk(table)
    pq.write_table(pa.table({"number": [5]}), file)
    result = committed(run(spark, "delete", table, application=identity, **work))
    assert key_counts(result) == (4, 4, 3)
    assert ids(table) == [k for k in range(20) if k not in (3, 4, 13)]
    assert live_files(table) <= staged, "nothing was staged a second time"
    again = run(spark, "delete", table, application=identity, **work)
    assert (again.status, key_counts(again)) == ("already_done", (4, 4, 3))


def test_keys_that_cannot_be_asked_for_are_clear_errors(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    table = make_table(tmp_path / "t", pa.table({"id": [1], "tags": [["a"]]}, schema=schema))
    before = bag(table)

    def refusal(**arguments: Any) -> tuple[str, str]:
        error = error_of(run(spark, "delete", table, **arguments))
        return error["type"], error["message"]

    kind, message = refusal(**by_keys("nobody", 1))
    assert kind == "UnknownColumn"
    assert "id, tags" in message
    assert refusal(**by_keys("tags", "a"))[0] == "UnsupportedFeature"
    two = {"sql": "SELECT 1 AS a, 2 AS b"}
    kind, message = refusal(**by_source("id", two))
    assert kind == "InvalidJobSpec"
    assert "The source of the keys has no column 'id'. Its columns are: a, b" in message
    assert refusal(**by_source("id", two, source_column="c"))[0] == "InvalidJobSpec"
    assert refusal(**by_source("id", {"sql": "SELEC 1"}))[0] == "InvalidJobSpec"
    assert refusal(**by_keys("id", 1), parameters={"spare": 1})[0] == "InvalidPredicate"
    assert committed(run(spark, "delete", table, **by_source("id", two, source_column="A"))).metrics["numKeys"] == 1
    assert bag(table) != before


def test_keys_mask_rows_and_tell_their_changes_where_the_table_wants_it(tmp_path: Path, spark: SparkSession) -> None:
    properties = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
    table = make_table(tmp_path / "t", rows(10), rows(3, start=100), properties=properties)
    result = committed(run(spark, "delete", table, **by_keys("id", 3, 4, 100, 101, 102)))
    assert (result.metrics["numDeletedRows"], key_counts(result)) == (5, (5, 5, 5))
    assert (result.metrics["numDeletionVectorsAdded"], result.files["added"]) == (1, 0)
    assert ids(table) == [0, 1, 2, 5, 6, 7, 8, 9]
    version = result.version
    assert version is not None
    changes = table.changes(version, version).to_pylist()
    assert sorted((row["id"], row["_change_type"]) for row in changes) == [
        (key, "delete") for key in (3, 4, 100, 101, 102)
    ]
    # Masked rows have no key any more.
    again = run(spark, "delete", table, **by_keys("id", 3, 5), require_match=True)
    assert (error_of(again)["type"], error_of(again)["facts"]["matched"]) == ("KeysNotFound", 1)
