"""Alone in showing that plain CHECK constraints are kept without Spark, on every way by which a new row enters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.tasks import in_place
from airflow_txlog.engine import Table
from tests.helpers.depth import in_long
from tests.helpers.jobs import committed, error_of, files_on_disk, run
from tests.helpers.rows import bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("n", pa.int32())])
POSITIVE = {"delta.constraints.positive": "n > 0 -- never less"}
UPDATED, INSERTED = {"when": "matched", "then": "update", "set": "*"}, {"when": "not_matched", "then": "insert"}


def rows_of(*found: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], SCHEMA)


OLD = rows_of((1, "a", 1), (2, "b", 2), (3, "b", 3))


def source_of(folder: Path, *found: tuple[Any, ...]) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    pq.write_table(rows_of(*found), folder / "a.parquet")
    return {"format": "parquet", "path": str(folder)}


# Each job, by the number that its new row gets; the row has the key 2, or 4 if it is inserted.
JOBS: dict[str, Any] = {
    "append": lambda source, n: ("write", {"source": source(4, n)}),
    "overwrite": lambda source, n: ("write", {"source": source(4, n), "mode": "overwrite"}),
    "update": lambda source, n: ("update", {"set": {"n": str(n)}, "predicate": "k = 2"}),
    "update of all": lambda source, n: ("update", {"set": {"n": f"CASE WHEN k = 2 THEN {n} ELSE n END"}}),
    "upsert, old": lambda source, n: ("upsert", {"source": source(2, n), "keys": ["k"]}),
    "upsert, new": lambda source, n: ("upsert", {"source": source(4, n), "keys": ["k"]}),
    "merge": lambda source, n: (
        "merge",
        {
            "source": source(2, 5),
            "on": "t.k = s.k",
            "clauses": [{"when": "matched", "then": "update", "set": {"n": str(n)}}],
        },
    ),
    "snapshot": lambda source, n: (
        "apply_snapshot",
        {"source": source(2, n), "keys": ["k"], "max_deleted_fraction": 1.0},
    ),
}
TABLES: dict[str, dict[str, Any]] = {
    "copies": {"properties": POSITIVE},
    "partitions, change feed": {
        "properties": POSITIVE | {"delta.enableChangeDataFeed": "true"},
        "partition_by": ["p"],
    },
    "deletion vectors": {"properties": POSITIVE | {"delta.enableDeletionVectors": "true"}},
    "mapped columns": {"properties": POSITIVE | {"delta.columnMapping.mode": "name"}},
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kind", TABLES)
def test_a_row_that_breaks_a_plain_constraint_is_refused_without_spark(tmp_path: Path, kind: str, job: str) -> None:
    table = make_table(tmp_path / "t", OLD, **TABLES[kind])

    def source(key: int, n: int) -> dict[str, Any]:
        return source_of(tmp_path / "in", (key, "b", n))

    before, old = files_on_disk(table), bag(table)
    operation, arguments = JOBS[job](source, -7)
    error = error_of(run(None, operation, table, **arguments))
    assert (error["type"], error["facts"]["constraint"]) == ("ConstraintViolation", "positive")
    assert error["message"].startswith(
        "A row breaks the CHECK constraint 'positive' (n > 0 -- never less) (it reads n). Nothing was committed."
    )
    assert "-7" not in str(error)
    assert (table.latest_version(), files_on_disk(table), bag(table)) == (1, before, old)
    operation, arguments = JOBS[job](source, 7)
    committed(run(None, operation, table, **arguments))
    assert 7 in table.to_arrow()["n"].to_pylist()


def test_null_is_not_true_and_a_column_that_the_rows_lack_is_null(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", OLD, properties=POSITIVE)
    error = error_of(run(None, "write", table, source=source_of(tmp_path / "in", (4, "b", None))))
    assert error["type"] == "ConstraintViolation"
    pq.write_table(OLD.drop_columns(["n"]), tmp_path / "in" / "a.parquet")
    error = error_of(run(None, "write", table, source={"format": "parquet", "path": str(tmp_path / "in")}))
    assert error["message"].startswith("3 rows or more break the CHECK constraint 'positive'")


def test_rows_that_are_in_the_table_are_not_judged_again(tmp_path: Path) -> None:
    broken = {"properties": {"delta.constraints.large": "n > 100"}, "partition_by": ["p"]}
    table = make_table(tmp_path / "t", OLD, rows_of((4, "b", 4), (5, "b", 500)), **broken)
    committed(run(None, "delete", table, predicate="k = 3"))
    committed(run(None, "update", table, set={"n": "n + 1"}, predicate="k = 5"))
    committed(run(None, "optimize", table))
    committed(run(None, "optimize", table, zorder_by=["k"]))
    assert bag(table) == bag(rows_of((1, "a", 1), (2, "b", 2), (4, "b", 4), (5, "b", 501)))
    assert error_of(run(None, "update", table, set={"p": "'c'"}, predicate="k = 4"))["type"] == "ConstraintViolation"


@pytest.mark.parametrize("rule", ["n > 0 AND k < 100", "n > 0 OR p = 'z'", "p = 'z' OR (k + n) > 0", "k <> 5"])
@pytest.mark.parametrize("partition_by", [[], ["p"]])
def test_new_values_in_place_are_judged_with_the_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, partition_by: list[str]
) -> None:
    written: list[None] = []
    write = in_place._Copy.write
    monkeypatch.setattr(in_place._Copy, "write", lambda *given: (written.append(None), write(*given))[1])
    old = rows_of(*((n, "b", n + 1) for n in range(10)))
    table = make_table(tmp_path / "t", old, partition_by=partition_by, properties={"delta.constraints.c": rule})
    before = files_on_disk(table)
    error = error_of(run(None, "update", table, set={"n": "-k - 1"}, predicate="k = 5 OR k = 7"))
    assert (error["type"], error["facts"]["constraint"]) == ("ConstraintViolation", "c")
    assert (files_on_disk(table), len(written)) == (before, 1)
    result = run(None, "update", table, set={"n": "n + 1"}, predicate="k IN (3, 7)")
    assert len(written) == 2
    committed(result)
    expected = [(n, "b", n + 1 + (n in (3, 7))) for n in range(10)]
    assert bag(table) == bag(rows_of(*expected))


def test_a_row_that_an_expectation_drops_breaks_no_constraint(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", OLD, properties=POSITIVE)
    source = source_of(tmp_path / "in", (4, "b", -4), (5, "b", 5))
    committed(run(None, "write", table, source=source, expect_or_drop={"positive": "n > 0"}))
    assert sorted(table.to_arrow()["k"].to_pylist()) == [1, 2, 3, 5]


def test_every_constraint_is_kept_and_one_that_is_not_plain_needs_spark(tmp_path: Path) -> None:
    properties = POSITIVE | {"delta.constraints.letter": "p IN ('a', 'b') AND length(p) = 1"}
    table = make_table(tmp_path / "t", OLD, properties=properties)
    error = error_of(run(None, "write", table, source=source_of(tmp_path / "in", (4, "c", 4))))
    assert error["facts"]["constraint"] == "letter"
    other = make_table(tmp_path / "other", OLD, properties=POSITIVE | {"delta.constraints.same": "reverse(p) = p"})
    assert error_of(run(None, "write", other, source=source_of(tmp_path / "in", (4, "a", 4))))["facts"]["needs_spark"]


@pytest.mark.spark
@pytest.mark.parametrize(
    "text",
    [
        "CASE WHEN p = 'a' THEN n > 0 ELSE TRUE END",
        *in_long(
            "more texts",
            "n > 0 OR p = 'z'",
            "n > 0",
            "NOT (n <= 0) -- never",
            "coalesce(n, 1) > 0 AND p IS NOT NULL",
            "n BETWEEN 1 AND 10",
            "upper(p) IN ('A', 'B')",
            "k % 2 = 0",
            "N < k * 10 AND `P` <= 'b'",
            "p LIKE 'a%'",
        ),
    ],
)
def test_the_tasks_judge_as_spark_does(tmp_path: Path, spark: SparkSession, text: str) -> None:
    rows = [(4, "a", 5), (3, "b", -1), (8, None, 3), (2, "a", None), (6, "ab", 11), (-2, "", 0)]
    for number, row in enumerate(rows):
        source, found = source_of(tmp_path / f"in{number}", row), []
        for way in ("tasks", "Spark"):
            table = Table.create(str(tmp_path / way / str(number)), SCHEMA, properties={"delta.constraints.c": text})
            given = source if way == "tasks" else {"sql": "SELECT * FROM v", "views": {"v": source}}
            result = run(None if way == "tasks" else spark, "write", table, source=given)
            error = result.error or {}
            found.append((result.status, error.get("type"), error.get("message"), error.get("facts")))
        assert found[0] == found[1], row
