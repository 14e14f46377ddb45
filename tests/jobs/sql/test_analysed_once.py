"""Alone in showing how often a job has Spark analyse the author's texts and ask about partitions."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.jobs.sql import scope
from airflow_txlog.jobs.sql.gate import SqlGate
from tests.helpers.jobs import DAY, by_id, committed, rows, run
from tests.helpers.racing import winning
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TUESDAY = dt.date(2024, 1, 2)


def test_a_partition_predicate_is_analysed_once_and_asked_once_about_a_partition(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(3), rows(3, start=100, day=TUESDAY), partition_by=["day"])
    parsed: Counter[str] = Counter()
    asked: list[int] = []
    parse, collect = SqlGate._parse, scope.collect

    def counted_parse(gate: SqlGate, text: str) -> None:
        parsed[text] += 1
        parse(gate, text)

    def counted_collect(frame: Any, what: str) -> Any:
        asked.append(1)
        return collect(frame, what)

    monkeypatch.setattr(SqlGate, "_parse", counted_parse)
    monkeypatch.setattr(scope, "collect", counted_collect)
    log = winning("to update", lambda: append(table, rows(2, start=10)))
    result = run(
        spark,
        "update",
        table,
        set={"name": "'new'"},
        predicate="sign(id) >= 1",
        partition_predicate="array_max(array(day, day)) = :day",
        parameters={"day": DAY},
        log=log,
    )
    assert committed(result).attempts == 2
    assert [key for key, name in by_id(table).items() if name == "new"] == [1, 2, 10, 11]
    assert parsed["array_max(array(day, day)) = :day"] == parsed["sign(id) >= 1"] == 1
    # Once in each of the two attempts; the staged files lie in partitions that are known by then.
    assert len(asked) == 2
