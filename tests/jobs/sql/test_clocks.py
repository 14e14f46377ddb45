"""Alone in showing that now() and its like are one instant in a job, its attempts and its retries (A2)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.jobs.sql.current_time import replace_clocks, special_date
from tests.helpers.jobs import application, committed, error_of, ids, merge, run, update
from tests.helpers.racing import killed_before_commit, winning
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPLACED = [
    ("ts < current_timestamp()", "ts < :_txlog_now", ()),
    ("ts < CURRENT_TIMESTAMP - INTERVAL 1 DAY", "ts < :_txlog_now - INTERVAL 1 DAY", ("current_timestamp",)),
    ("now ( ) > ts -- now()", ":_txlog_now > ts -- now()", ()),
    ("day=current_date", "day=:_txlog_today", ("current_date",)),
    ("day = `curdate`()", "day = :_txlog_today", ()),
    ("n = localtimestamp()", "n = CAST(:_txlog_wall AS TIMESTAMP_NTZ)", ()),
    ("unix_timestamp() > 5 /* now() */", "unix_timestamp(:_txlog_now) > 5 /* now() */", ()),
    (
        "date_sub(current_date, 7) <= day AND day < curdate()",
        "date_sub(:_txlog_today, 7) <= day AND day < :_txlog_today",
        ("current_date",),
    ),
]
KEPT = [
    "s = 'now()'",
    's = "current_date"',
    "`current_date` = day",
    "t.current_date = day",
    "t.now() = 1",
    "current_date.member = 1",
    "named_struct('a', 1) AS current_date",
    "unix_timestamp(s) = 5",
    "current_timestamp(3) > ts",
    "now = 3",
    "localtimestamp = n",
    "x -> current_dates",
    "v:now = 1",
    "'unclosed now()",
]


@pytest.mark.parametrize(("text", "pinned", "bare"), REPLACED)
def test_a2_the_tokens_that_read_a_clock_are_replaced_and_nothing_else(
    text: str, pinned: str, bare: tuple[str, ...]
) -> None:
    assert replace_clocks(text) == (pinned, frozenset(bare))


@pytest.mark.parametrize("text", KEPT)
def test_a2_what_is_no_clock_is_left_alone(text: str) -> None:
    assert replace_clocks(text) == (text, frozenset())


def test_special_dates_are_seen_in_literals_and_in_parameters() -> None:
    assert special_date("day = DATE 'Today'", {}) is True
    assert special_date("ts > TIMESTAMP\n'yesterday UTC'", {}) is True
    assert special_date("day = ' tomorrow '", {}) is None
    assert special_date("day = :d", {"d": "now"}) is None
    assert special_date("day = :d", {"d": "epoch", "other": "now"}) is False
    assert special_date("day = 'nowhere' OR ts = TIMESTAMP 'epoch'", {}) is False


@pytest.mark.spark
def test_a2_a_job_has_one_now_for_all_its_rounds(tmp_path: Path, spark: SparkSession) -> None:
    start = dt.datetime.now(dt.UTC)
    schema = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])

    def row(key: int, at: dt.datetime) -> pa.Table:
        return pa.table({"id": [key], "ts": pa.array([at], schema.field("ts").type)}, schema=schema)

    table = make_table(tmp_path / "t", row(1, start - dt.timedelta(days=1)), row(2, start + dt.timedelta(days=1)))
    young = iter([20, 21])

    def land() -> None:
        # A row of before the job, and one of this very moment: too young for the job's own now.
        append(table, row(10, start - dt.timedelta(hours=1)))
        append(table, row(next(young), dt.datetime.now(dt.UTC)))

    log = winning("to delete in", land, times=2)
    result = committed(run(spark, "delete", table, predicate="ts < current_timestamp()", log=log))
    assert result.attempts == 3
    assert ids(table) == [2, 20, 21]
    assert result.metrics["numDeletedRows"] == 3


@pytest.mark.spark
def test_b1_a_retry_that_resumes_has_the_now_of_the_first_try(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])

    def row(key: int) -> pa.Table:
        return pa.Table.from_pylist([{"id": key, "ts": dt.datetime.now(dt.UTC)}], schema)

    table = make_table(tmp_path / "t", row(1))
    work: dict[str, Any] = {"predicate": "ts < now()", "application": application()}
    with killed_before_commit():
        run(spark, "delete", table, **work)
    append(table, row(2))
    committed(run(spark, "delete", table, **work))
    assert ids(table) == [2]


@pytest.mark.spark
def test_a2_the_three_clocks_of_a_job_agree_in_its_time_zone(tmp_path: Path, spark: SparkSession) -> None:
    zone = "Pacific/Kiritimati"  # fourteen hours ahead: another day than UTC's for most of it
    texts = {
        "now": "CAST(current_timestamp() AS STRING)",
        "today": "CAST(current_date AS STRING)",
        "wall": "CAST(localtimestamp() AS STRING)",
    }
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in texts)])
    table = make_table(tmp_path / "t", pa.table({"id": [1], **{name: ["x"] for name in texts}}, schema=schema))
    committed(merge(spark, table, "SELECT 1L AS id", update(texts), time_zone=zone))
    (found,) = table.to_arrow().to_pylist()
    assert found["now"] == found["wall"]
    assert found["now"][:10] == found["today"]


@pytest.mark.spark
def test_a2_a_pinned_day_prunes_files_as_any_constant_does(tmp_path: Path, spark: SparkSession) -> None:
    today = dt.datetime.now(dt.UTC).date()
    days = [today - dt.timedelta(days=back) for back in (400, 300, 1)]
    table = make_table(
        tmp_path / "t",
        *(pa.table({"id": [n], "day": pa.array([day], pa.date32())}) for n, day in enumerate(days)),
        partition_by=["day"],
    )
    nothing = run(spark, "delete", table, predicate="day >= current_date AND id > 0")
    assert (nothing.status, nothing.files["pruned"]) == ("nothing_to_do", 3)
    whole = committed(run(spark, "delete", table, predicate="day < date_sub(current_date(), 2)"))
    assert whole.files["removed"] == 2
    assert ids(table) == [2]


@pytest.mark.spark
def test_a2_what_cannot_be_pinned_is_refused_by_name(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string()), ("current_date", pa.date32())])
    table = make_table(tmp_path / "t", schema.empty_table(), schema=schema)

    def refusal(predicate: str, **parameters: Any) -> tuple[str, str]:
        error = error_of(run(spark, "delete", table, predicate=predicate, parameters=parameters or None))
        assert error["type"] == "UnsupportedPredicate", error
        return error["facts"]["construct"], error["message"]

    assert refusal("day = 'today'")[0] == "a special date such as 'today'"
    assert refusal("day = DATE 'yesterday'")[0] == "a special date such as 'today'"
    assert refusal("day = CAST(' Now ' AS DATE)")[0] == "a special date such as 'today'"
    for computed in ("CAST(concat('to', 'day') AS DATE)", "'to' || lower('DAY')", "CAST(:a || 'day' AS DATE)"):
        given = {"a": "to"} if ":a" in computed else {}
        assert refusal(f"day = {computed}", **given)[0] == "a special date such as 'today'"
    assert refusal("day < :d", d="tomorrow")[0] == "a special date such as 'today'"
    assert refusal("day <\u00a0current_date()")[0] == "the clock current_date()"
    assert refusal("day = current_date")[1].count("write `current_date` for the column, current_date() for now") == 1
    for accepted in ("name = 'today'", "`current_date` = day", "day < current_date()"):
        assert run(spark, "delete", table, predicate=accepted).status == "nothing_to_do"
    error = error_of(run(spark, "delete", table, predicate="id = :_txlog_now", parameters={"_txlog_now": 1}))
    assert error["facts"]["argument"] == "parameters._txlog_now"
