"""UPDATE: the rows that change and what they become are those of Spark; the rest stays untouched."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.jobs.racing import winning
from tests.jobs.tables import (
    append,
    bag,
    committed,
    error_of,
    files_on_disk,
    live_files,
    make_table,
    rows,
    run,
    spark_bag,
    spark_view,
)
from tests.jobs.test_delete import random_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UPDATES: list[tuple[str | None, dict[str, str]]] = [
    ("i = 3", {"s": "concat(s, '!')", "f": "-f"}),
    (None, {"i": "i + 1", "b": "NOT b"}),
    ("s = 'O''Brien' OR s IS NULL", {"s": "NULL", "n": "named_struct('x', i, 'y', s)"}),
    ("NOT (i > 2)", {"d": "date_add(d, 1)", "a": "array(i, 7)", "i": "CAST(size(a) AS INT)"}),
    ("i > NULL", {"i": "0"}),
]


@pytest.mark.parametrize(("predicate", "assigned"), UPDATES)
def test_update_gives_the_rows_of_plain_spark(
    tmp_path: Path, spark: SparkSession, predicate: str | None, assigned: dict[str, str]
) -> None:
    rng = random.Random(repr(predicate))
    parts = [random_rows(rng, 40) for _ in range(3)]
    parts = [part.set_column(4, "d", pa.array([None] * 20 + [1000] * 20, pa.date32())) for part in parts]
    table = make_table(tmp_path / "t", *parts, parts[0])
    spark_view(spark, "before", pa.concat_tables([*parts, parts[0]]))
    condition = f"coalesce((\n{predicate or 'TRUE'}\n), false)"
    columns = [
        f"CASE WHEN {condition} THEN {assigned[name]} ELSE {name} END AS {name}" if name in assigned else name
        for name in parts[0].schema.names
    ]
    expected = spark_bag(spark.sql(f"SELECT {', '.join(columns)} FROM before"))
    matching = spark.sql(f"SELECT count(*) AS n FROM before WHERE {condition}").collect()[0]["n"]
    result = run(spark, "update", table, predicate=predicate, set=assigned)
    assert result.status == ("committed" if matching else "nothing_to_do"), result.error
    assert bag(table) == expected
    assert result.metrics["numUpdatedRows"] == matching
    assert result.metrics["numCopiedRows"] + result.metrics["numUpdatedRows"] <= 160


def test_an_update_touches_only_the_files_it_must_and_may_move_rows(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100), partition_by=["day"])
    before = live_files(table)
    result = committed(
        run(spark, "update", table, predicate="t.id = :id", set={"day": "date'2024-05-05'"}, parameters={"id": 105})
    )
    assert result.files == {"considered": 2, "pruned": 0, "rewritten": 1, "added": 2, "removed": 1}
    assert len(live_files(table) & before) == 1
    moved = table.to_arrow(predicate="day = '2024-05-05'").to_pylist()
    assert [row["id"] for row in moved] == [105]
    assert table.history(limit=1)[0]["operation"] == "UPDATE"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"set": {"nosuch": "1"}}, "UnknownColumn"),
    ({"set": {"id": "'x'"}}, "SchemaMismatch"),
    ({"set": {"id": "1"}, "predicate": "rand() < 1"}, "UnsupportedPredicate"),
    ({"set": {"id": "1"}, "predicate": "id IN (SELECT 1)"}, "UnsupportedPredicate"),
    ({"set": {"id": "max(id)"}}, "InvalidPredicate"),
    ({"set": {"id": "1", "ID": "2"}}, "InvalidJobSpec"),
    ({"set": {"id": "id"}, "predicate": "id = 1; DROP TABLE x"}, "InvalidPredicate"),
    ({"set": {"id": "id"}, "parameters": {"spare": 1}}, "InvalidPredicate"),
    ({"set": {"day": "date'2030-01-01'"}, "partition_predicate": "day < '2025-01-01'"}, "PartitionMismatch"),
    ({"set": {"amount": "1 / (id - id)"}}, "InvalidInput"),
]


def test_a_bad_update_is_a_clear_error_and_leaves_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"])
    before = files_on_disk(table)
    for arguments, name in BAD:
        error = error_of(run(spark, "update", table, **arguments))
        assert (error["type"], error["retryable"]) == (name, False), arguments
    left = files_on_disk(table) - before
    # Where Spark itself failed in the middle of the writing, nobody was told of what other tasks had staged.
    assert all("part-" in path for path in left)
    assert table.snapshot().version == 1


def test_an_update_and_an_append_of_a_matching_row_are_ordered(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100), rows(10, start=200))
    told: list[str] = []
    log = winning("staged", lambda: append(table, rows(1, start=105)))
    result = committed(
        run(
            spark,
            "update",
            table,
            predicate="id % 10 = 5",
            set={"name": "'seen'"},
            log=lambda line: (told.append(line), log(line))[0],
        )
    )
    assert result.rounds == 2
    seen = Table.open(table.uri).to_arrow().to_pylist()
    assert sorted(row["id"] for row in seen if row["name"] == "seen") == [5, 105, 105, 205]
    # What the winner left alone is neither looked at nor staged again.
    assert "3 files remembered, 1 to look at" in told
    assert result.metrics["numUpdatedRows"] == 4
