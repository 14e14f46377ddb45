"""Alone in showing that expectations count exactly the new rows that SQL counts, and that limits stop a change."""

from __future__ import annotations

import datetime as dt
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.wording import expectation_counts, summary_lines, xcom_of
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.errors import InvalidJobSpec
from tests.helpers.depth import depth, in_long
from tests.helpers.jobs import application, committed, error_of, files_on_disk, run, update
from tests.helpers.jobs import insert as insert_clause
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import bag, make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("n", pa.int32()), ("s", pa.string())])

# Spark and SQLite read them alike.
PLAIN = (
    "n > 3",
    "n IS NOT NULL AND s <> 'b'",
    "NOT (n = 2 OR s = 'a')",
    "n BETWEEN 1 AND 5",
    "s IN ('a', 'c')",
    "id < 40",
)
BY_SPARK = ("array_max(array(n, 4)) > 4", "reverse(s) = 'a'", "n % 3 = 1 OR reverse(s) > 'b'")


FEATURES = (
    {"delta.enableDeletionVectors": "true"},
    {"delta.enableChangeDataFeed": "true"},
    {"delta.enableRowTracking": "true", "delta.enableDeletionVectors": "true"},
    {"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"},
)


def random_rows(rng: random.Random, ids: range) -> pa.Table:
    rows = [
        {"id": k, "p": rng.choice("xy"), "n": rng.choice([None, *range(8)]), "s": rng.choice([None, "a", "b", "c"])}
        for k in ids
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def file_of(folder: Path, rows: pa.Table) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    path = folder / f"rows-{len(list(folder.iterdir()))}.parquet"
    pq.write_table(rows, path)
    return {"format": "parquet", "path": str(path)}


# Each operation with its arguments, and the query of the rows that it adds or changes: of `t` and the source `s`.
OPERATIONS: dict[str, tuple[str, Callable[[dict[str, str]], dict[str, Any]], str]] = {
    "append": ("write", lambda source: {"source": source}, "SELECT * FROM s"),
    "overwrite": ("write", lambda source: {"source": source, "mode": "overwrite"}, "SELECT * FROM s"),
    "partitions": ("write", lambda source: {"source": source, "mode": "overwrite_partitions"}, "SELECT * FROM s"),
    "using": (
        "write",
        lambda source: {"source": source, "mode": "overwrite", "replace_using": ["n"]},
        "SELECT * FROM s",
    ),
    "update": (
        "update",
        lambda _: {"set": {"n": "n + 1", "s": "'b'"}, "predicate": "id < 30 AND p = 'x'"},
        "SELECT id, p, n + 1 AS n, 'b' AS s FROM t WHERE id < 30 AND p = 'x'",
    ),
    "merge": (
        "merge",
        lambda source: {
            "source": source,
            "source_alias": "o",
            "on": "t.id = o.id",
            "clauses": [
                {"when": "matched", "then": "delete", "condition": "o.n = 1"},
                update({"n": "o.n", "s": "t.s"}),
                insert_clause(),
            ],
        },
        "SELECT t.id, t.p, s.n, t.s FROM t JOIN s ON t.id = s.id WHERE s.n IS NOT 1 "
        "UNION ALL SELECT * FROM s WHERE id NOT IN (SELECT id FROM t)",
    ),
    "upsert": ("upsert", lambda source: {"source": source, "keys": ["id"]}, "SELECT * FROM s"),
    "increment": (
        "incremental",
        lambda source: {"source": {"table": table_of(source)}, "consumer": "c", "mode": "upsert", "keys": ["id"]},
        "SELECT * FROM s",
    ),
    "snapshot": (
        "apply_snapshot",
        lambda source: {"source": source, "keys": ["id"], "max_deleted_fraction": 1},
        "SELECT * FROM s EXCEPT SELECT * FROM t",
    ),
    "changes": (
        "apply_changes",
        lambda source: {"source": source, "keys": ["id"], "sequence_by": "n", "apply_as_deletes": "s = 'c'"},
        "SELECT s.* FROM s LEFT JOIN t ON s.id = t.id WHERE s.s IS NOT 'c' AND (t.id IS NULL OR s.n > t.n)",
    ),
}
# On a table with the columns of a history: the new versions of rows, and the earlier ones that end.
HISTORIES: dict[str, tuple[str, Callable[[dict[str, str]], dict[str, Any]], str]] = {
    "history of snapshots": (
        "apply_snapshot",
        lambda source: {"source": source, "keys": ["id"], "max_deleted_fraction": 1, "stored_as_scd_type": 2},
        "SELECT * FROM (SELECT * FROM s EXCEPT SELECT * FROM t) UNION ALL "
        "SELECT * FROM (SELECT * FROM t EXCEPT SELECT * FROM s)",
    ),
}
# Spark reads the rows that leave.
BY_SPARK_ALONE: dict[str, tuple[str, Callable[[dict[str, str]], dict[str, Any]], str]] = {
    "where": (
        "write",
        lambda source: {"source": source, "mode": "overwrite", "replace_where": "id >= 20"},
        "SELECT * FROM s",
    ),
}


def table_of(source: dict[str, str]) -> str:
    """Make a table of the rows of a file."""
    path = Path(source["path"])
    return make_table(path.with_suffix(""), pq.read_table(path)).uri


def fitting(rows: pa.Table, name: str, *, is_target: bool) -> pa.Table:
    """The rows with the columns that an operation needs: a sequence in every row, or the times of a history."""
    if name == "changes":
        return rows.set_column(2, SCHEMA.field("n"), pc.fill_null(rows.column("n"), 0))
    if name in HISTORIES and is_target:
        start = pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * len(rows), pa.timestamp("us", "UTC"))
        return rows.append_column("__START_AT", start).append_column("__END_AT", pa.nulls(len(rows), start.type))
    return rows


def expected_counts(query: str, conditions: dict[str, str], t: pa.Table, s: pa.Table) -> dict[str, dict[str, int]]:
    connection = sqlite3.connect(":memory:")
    # Here an array is its greatest value, because no text asks for another one.
    connection.create_function("array", 2, lambda *given: max(each for each in given if each is not None))
    connection.create_function("array_max", 1, lambda greatest: greatest)
    connection.create_function("reverse", 1, lambda text: None if text is None else text[::-1])
    for name, rows in (("t", t.select(SCHEMA.names)), ("s", s)):
        connection.execute(f"CREATE TABLE {name} (id, p, n, s)")
        connection.executemany(
            f"INSERT INTO {name} VALUES (?, ?, ?, ?)", map(tuple, map(dict.values, rows.to_pylist()))
        )
    columns = ", ".join(f"count(*) FILTER (WHERE ({text}))" for text in conditions.values())
    total, *passed = connection.execute(f"SELECT count(*), {columns} FROM ({query}) AS t").fetchone()
    return {name: {"passed": count, "failed": total - count} for name, count in zip(conditions, passed, strict=True)}


def check_counts(spark: SparkSession | None, folder: Path, name: str, seed: int, texts: tuple[str, ...]) -> None:
    rng = random.Random(seed)
    properties = dict(rng.choice(FEATURES)) | (
        {} if spark is None else {"delta.constraints.some": "n IS NULL OR n < 99"}
    )
    files = [fitting(random_rows(rng, range(start, start + 12)), name, is_target=True) for start in (0, 12, 24)]
    table = make_table(folder / name, *files, partition_by=rng.choice([(), ("p",)]), properties=properties)
    before, given = table.to_arrow(), fitting(random_rows(rng, range(20, 50)), name, is_target=False)
    operation, arguments, query = (OPERATIONS | HISTORIES | BY_SPARK_ALONE)[name]
    if name == "partitions" and not table.snapshot().partition_columns:
        return
    conditions = {f"rule {number}": text for number, text in enumerate(texts)}
    result = committed(run(spark, operation, table, expect=conditions, **arguments(file_of(folder / "source", given))))
    assert expectation_counts(result.metrics) == expected_counts(query, conditions, before, given), (name, seed)


@pytest.mark.seeded
@pytest.mark.parametrize("name", [*OPERATIONS, *HISTORIES])
def test_the_counts_of_plain_conditions_are_those_of_sql(tmp_path: Path, name: str) -> None:
    for seed in range(depth(1, 4)):
        check_counts(None, tmp_path / str(seed), name, seed, PLAIN)


LATE = [
    pytest.param(name, marks=pytest.mark.long("Spark runs a job for each operation"))
    for name in (
        *("overwrite", "partitions", "using", "upsert", "increment", "snapshot", "changes"),
        *(*HISTORIES, *BY_SPARK_ALONE),
    )
]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["append", "update", "merge", *LATE])
def test_the_counts_of_any_conditions_are_those_of_sql(tmp_path: Path, spark: SparkSession, name: str) -> None:
    check_counts(spark, tmp_path, name, 7, (*PLAIN[:2], *BY_SPARK, PLAIN[2]))


def simple(folder: Path, **properties: str) -> Table:
    """100 rows in four files: half of them in each partition."""
    files = [
        pa.table(
            {"id": ids, "p": ["xy"[k % 2] for k in ids], "n": [k % 10 for k in ids], "s": ["a"] * 25}, schema=SCHEMA
        )
        for ids in (range(start, start + 25) for start in (0, 25, 50, 75))
    ]
    return make_table(folder, *files, properties=properties)


def source(folder: Path, ids: range, n: int | None = 1) -> dict[str, str]:
    rows = {"id": ids, "p": ["x"] * len(ids), "n": [n] * len(ids), "s": ["new"] * len(ids)}
    return file_of(folder, pa.table(rows, schema=SCHEMA))


@pytest.mark.parametrize("properties", [{}, {"delta.enableDeletionVectors": "true"}])
@pytest.mark.parametrize("operation", ["write", "update", "upsert"])
def test_a_row_that_fails_or_is_null_ends_the_job_without_a_commit_or_a_file(
    tmp_path: Path, operation: str, properties: dict[str, str]
) -> None:
    table = simple(tmp_path / "t", **properties)
    before, version = files_on_disk(table), table.snapshot().version
    arguments: dict[str, Any] = {"source": source(tmp_path / "s", range(95, 105), None)}
    if operation == "update":
        arguments = {"set": {"n": "CASE WHEN id < 3 THEN NULL ELSE 1 END"}, "predicate": "id < 10"}
    arguments |= {"keys": ["id"]} if operation == "upsert" else {}
    checks = {"expect": {"counted": "id > 0"}, "expect_or_fail": {"known": "n > 0", "right": "id >= 0"}}
    error = error_of(run(None, operation, table, application=application(), **checks, **arguments))
    assert (error["type"], error["retryable"]) == ("ExpectationFailed", False)
    failed, total = (3, 10) if operation == "update" else (10, 10)
    assert error["facts"]["expectations"] == {"known": {"passed": total - failed, "failed": failed}}
    assert f"'known' by {failed} of 10 rows" in error["message"]
    assert (files_on_disk(table), table.snapshot().version) == (before, version)


KEYS = {"column": "id", "values": [1, 2, 3]}
CHANGED = {"predicate": "id < 30", "set": {"n": "1"}}
LIMITS: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ("delete", {"predicate": "id < 51"}, {"max_deleted_fraction": 0.5}, ("51 of the 100 rows", "51 %", "allows 50 %")),
    ("delete", {"predicate": "id < 51"}, {"max_deleted_rows": 50}, ("delete 51 rows", "allows 50")),
    ("delete", {"predicate": "TRUE"}, {"max_deleted_rows": 99}, ("delete 100 rows", "allows 99")),
    ("delete", {"keys": KEYS, "predicate": None}, {"max_deleted_rows": 2}, ("delete 3 rows", "allows 2")),
    ("delete", {"predicate": "id IN (1, 30)"}, {"max_files_rewritten": 1}, ("replace 2 files", "allows 1")),
    ("update", CHANGED, {"max_updated_fraction": 0.29}, ("30 of the 100 rows", "allows 29 %")),
    ("update", CHANGED, {"max_updated_rows": 29}, ("update 30 rows", "allows 29")),
    ("write", {}, {"max_inserted_rows": 9}, ("insert 10 rows", "allows 9")),
    ("write", {}, {"min_inserted_rows": 11}, ("insert 10 rows", "demands 11")),
    ("write", {"mode": "overwrite"}, {"max_deleted_rows": 99}, ("delete 100 rows", "allows 99")),
    ("write", {"mode": "overwrite"}, {"max_files_rewritten": 3}, ("replace 4 files", "allows 3")),
    ("upsert", {"keys": ["id"]}, {"max_updated_rows": 4}, ("update 5 rows", "allows 4")),
    ("upsert", {"keys": ["id"]}, {"max_inserted_rows": 4}, ("insert 5 rows", "allows 4")),
    ("upsert", {"keys": ["id"]}, {"min_inserted_rows": 6}, ("insert 5 rows", "demands 6")),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "arguments", "limit", "words"), LIMITS)
def test_a_limit_ends_the_job_with_both_numbers_and_without_a_file(
    tmp_path: Path, operation: str, arguments: dict[str, Any], limit: dict[str, Any], words: tuple[str, ...]
) -> None:
    table = simple(tmp_path / "t")
    before, version = files_on_disk(table), table.snapshot().version
    if operation in ("write", "upsert"):
        arguments = {"source": source(tmp_path / "s", range(95, 105)), **arguments}
    error = error_of(run(None, operation, table, application=application(), **arguments, **limit))
    assert (error["type"], error["retryable"]) == ("ExpectationFailed", False)
    assert error["facts"]["name"] == next(iter(limit))
    assert all(each in error["message"] for each in words), error["message"]
    assert (files_on_disk(table), table.snapshot().version) == (before, version)
    ((name, number),) = limit.items()
    less = {"max": 0.01 if isinstance(number, float) else 1, "min": -1}[name[:3]]
    committed(run(None, operation, table, **arguments, **{name: number + less}))


def test_a_fraction_is_one_of_the_partitions_of_the_scope(tmp_path: Path) -> None:
    files = [pa.table({"id": [0], "p": [p], "n": [n], "s": ["a"]}, schema=SCHEMA) for p in "xy" for n in range(10)]
    table = make_table(tmp_path / "t", *files, partition_by=["p"])
    limits = {"max_deleted_fraction": 0.2}
    error = error_of(run(None, "delete", table, predicate="n < 3", partition_predicate="p = 'x'", **limits))
    assert "3 of the 10 rows" in error["message"]
    committed(run(None, "delete", table, predicate="n < 2", partition_predicate="p = 'x'", **limits))
    # In floating point, 29 rows are more than 0.29 of 100.
    exact = simple(tmp_path / "exact")
    committed(run(None, "update", exact, predicate="id < 29", set={"n": "1"}, max_updated_fraction=0.29))
    assert "4 of the 18 rows" in error_of(run(None, "delete", table, predicate="n > 7", **limits))["message"]


def test_the_results_are_in_the_commit_and_the_xcom_and_the_log(tmp_path: Path) -> None:
    table, work = simple(tmp_path / "t"), application()
    arguments = {
        "source": source(tmp_path / "s", range(100, 110)),
        "expect": {"a.b passed": "id < :most", "n": "n = 1"},
    }
    arguments["parameters"] = {"most": 104}
    result = committed(run(None, "write", table, application=work, **arguments))
    counts = {"a.b passed": {"passed": 4, "failed": 6}, "n": {"passed": 10, "failed": 0}}
    assert xcom_of(result, 1.0)["expectations"] == counts
    assert not any(name.startswith("expectation") for name in xcom_of(result, 1.0)["metrics"])
    assert "expectations: a.b passed: 4 passed, 6 failed; n: 10 passed, 0 failed" in summary_lines(result, 1.0)
    metrics = table.history(limit=1)[0]["operationMetrics"]
    assert metrics["expectation.a.b passed.failed"] == "6"
    again = run(None, "write", table, application=work, **arguments)
    assert (again.status, xcom_of(again, 1.0)["expectations"]) == ("already_done", counts)


def test_a_condition_that_is_wrong_ends_the_job_before_anything_is_staged(tmp_path: Path) -> None:
    table = simple(tmp_path / "t")
    before, rows = files_on_disk(table), source(tmp_path / "s", range(3))
    for text, kind in (("nn > 1", "UnknownColumn"), ("n >", "InvalidPredicate"), ("n > :most", "InvalidPredicate")):
        for operation in ({"source": rows}, {"source": rows, "mode": "overwrite"}):
            assert error_of(run(None, "write", table, expect={"x": text}, **operation))["type"] == kind
    spare = run(None, "write", table, source=rows, expect={"x": "n > 1"}, parameters={"most": 1})
    assert error_of(spare)["type"] == "InvalidPredicate"
    twice = pytest.raises(Exception, match=r"expect_or_fail must be a mapping of names that no other expectation has")
    with twice:
        run(None, "write", table, source=rows, expect={"x": "n > 1"}, expect_or_fail={"x": "n > 2"})
    with pytest.raises(InvalidJobSpec, match="has the name of no expectation"):
        run(None, "write", table, source=rows, expect={"unique(ID)": "n > 1"}, unique=["id"])
    assert files_on_disk(table) == before


def test_counts_are_kept_over_a_lost_race_and_a_killed_try(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "source": source(tmp_path / "s", range(95, 105), 3),
        "keys": ["id"],
        "expect": {"few": "id < 97", "three": "n = 3"},
    }
    counts = {"few": {"passed": 2, "failed": 8}, "three": {"passed": 10, "failed": 0}}
    table, log = simple(tmp_path / "raced"), list[str]()

    with before_commit(lambda tx: committed(run(None, "delete", table, predicate="id = 96"))):
        result = committed(run(None, "upsert", table, log=log.append, **arguments))
    assert result.attempts == 2
    assert expectation_counts(result.metrics) == counts

    table, work = simple(tmp_path / "killed"), application()
    with killed_before_commit():
        run(None, "upsert", table, application=work, **arguments)
    result = committed(run(None, "upsert", table, application=work, log=log.append, **arguments))
    assert any("reused what was staged before" in line for line in log)
    assert expectation_counts(result.metrics) == counts
    assert table.to_arrow().num_rows == 105


# Of each operation that has a source, the query of the rows that it adds or changes once the source has dropped rows.
DROPPING = ["append", "overwrite", "partitions", "using", "merge", "upsert"]


def check_dropped(spark: SparkSession | None, folder: Path, name: str, seed: int, texts: tuple[str, ...]) -> None:
    rng = random.Random(seed)
    properties = dict(rng.choice(FEATURES)) | (
        {} if spark is None else {"delta.constraints.some": "n IS NULL OR n < 99"}
    )
    files = [random_rows(rng, range(start, start + 12)) for start in (0, 12, 24)]
    table = make_table(folder / name, *files, partition_by=("p",), properties=properties)
    plain = make_table(folder / f"{name}-2", *files, partition_by=("p",), properties=properties)
    before, given = table.to_arrow(), random_rows(rng, range(20, 50))
    operation, arguments, query = OPERATIONS[name]
    conditions = {f"rule {number}": text for number, text in enumerate(texts)}
    left = only_passing(given, texts)
    rows = file_of(folder / "source", given)
    result = committed(
        run(spark, operation, table, expect_or_drop=conditions, expect={"n": "n > 4"}, **arguments(rows))
    )
    counts = expected_counts("SELECT * FROM s", conditions, before, given)
    of_new_rows = given if operation == "write" and name != "using" else left
    counts |= expected_counts(query, {"n": "n > 4"}, before, of_new_rows)
    assert expectation_counts(result.metrics) == counts, (name, seed)
    # The table is as if the source had not had the rows.
    committed(run(spark, operation, plain, **arguments(file_of(folder / "source", left))))
    assert bag(table) == bag(plain)
    if properties.get("delta.enableChangeDataFeed"):
        assert changed_rows(table) == changed_rows(plain)


def only_passing(rows: pa.Table, texts: tuple[str, ...]) -> pa.Table:
    passing = [
        row
        for row in rows.to_pylist()
        if all(
            expected_counts("SELECT * FROM s", {"it": text}, rows, pa.Table.from_pylist([row], SCHEMA))["it"]["passed"]
            for text in texts
        )
    ]
    return pa.Table.from_pylist(passing, SCHEMA)


def changed_rows(table: Table) -> Counter[str]:
    version = table.snapshot().version
    return bag(table.changes(version, version), *SCHEMA.names, "_change_type")


@pytest.mark.seeded
@pytest.mark.parametrize("name", DROPPING)
def test_dropped_rows_of_a_source_are_counted_and_never_meet_the_table(tmp_path: Path, name: str) -> None:
    for seed in range(depth(1, 3)):
        check_dropped(None, tmp_path / str(seed), name, seed, ("n < 6", "s <> 'b' OR id < 25"))


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
@pytest.mark.parametrize("name", DROPPING)
def test_spark_drops_the_same_rows(tmp_path: Path, spark: SparkSession, name: str) -> None:
    check_dropped(spark, tmp_path, name, 5, ("reverse(s) <> 'b' OR id < 25", "n < 6"))


def test_a_row_that_a_constraint_or_a_key_forbids_may_be_dropped_first(tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA.field(0).with_nullable(False), *list(SCHEMA)[1:]])
    table = Table.create(str(tmp_path / "t"), schema)
    rows = file_of(
        tmp_path / "s", pa.table({"id": [1, None], "p": ["x"] * 2, "n": [1] * 2, "s": ["a"] * 2}, schema=SCHEMA)
    )
    known = {"known": "id IS NOT NULL"}
    assert error_of(run(None, "write", table, source=rows))["type"] == "ConstraintViolation"
    assert committed(run(None, "write", table, source=rows, expect_or_drop=known)).metrics["numOutputRows"] == 1
    result = committed(run(None, "upsert", table, source=rows, keys=["id"], expect_or_drop=known))
    assert expectation_counts(result.metrics) == {"known": {"passed": 1, "failed": 1}}
    nothing = run(None, "write", table, source=rows, expect_or_drop={"none": "id > 9"})
    assert (nothing.status, xcom_of(nothing, 1.0)["expectations"]) == (
        "nothing_to_do",
        {"none": {"passed": 0, "failed": 2}},
    )
    few = error_of(run(None, "write", table, source=rows, expect_or_drop=known, min_inserted_rows=2))
    assert "insert 1 row, and min_inserted_rows demands 2" in few["message"]


def test_counts_of_dropped_rows_are_kept_by_a_killed_try(tmp_path: Path) -> None:
    for operation, more in (("upsert", {"keys": ["id"]}), ("write", {})):
        table, work = simple(tmp_path / operation), application()
        arguments = {"source": source(tmp_path / "s", range(95, 105)), "expect_or_drop": {"few": "id < 97"}, **more}
        with killed_before_commit():
            run(None, operation, table, application=work, **arguments)
        result = committed(run(None, operation, table, application=work, **arguments))
        assert expectation_counts(result.metrics) == {"few": {"passed": 2, "failed": 8}}, operation


def one(folder: Path, number: int, p: str = "x", n: int | None = 1) -> dict[str, str]:
    return file_of(folder, pa.table({"id": [number], "p": [p], "n": [n], "s": ["new"]}, schema=SCHEMA))


# After a hundred rows whose ids are 0 to 99: an operation, and how many rows share their id then, of how many.
NOT_UNIQUE: list[tuple[str, dict[str, Any], int, int]] = [
    ("write", {"number": 7}, 2, 101),
    ("write", {"number": 100}, 0, 101),
    ("write", {"number": 7, "mode": "overwrite"}, 0, 1),
    ("update", {"set": {"id": "7"}, "predicate": "id IN (1, 2)"}, 3, 100),
    ("update", {"set": {"id": "id + 100"}}, 0, 100),
    ("update", {"set": {"id": "NULL"}, "predicate": "id < 3"}, 0, 100),
    ("upsert", {"number": 7, "keys": ["id"]}, 0, 100),
    ("upsert", {"number": 7, "keys": ["n"]}, 2, 101),
]


@pytest.mark.parametrize("properties", [{}, {"delta.enableDeletionVectors": "true"}])
@pytest.mark.parametrize(("operation", "arguments", "failed", "total"), NOT_UNIQUE)
def test_rows_that_share_values_after_the_operation_end_the_job(
    tmp_path: Path, operation: str, arguments: dict[str, Any], failed: int, total: int, properties: dict[str, str]
) -> None:
    check_unique_rows(None, tmp_path, operation, arguments, failed, total, properties)


def check_unique_rows(
    spark: SparkSession | None,
    folder: Path,
    operation: str,
    arguments: dict[str, Any],
    failed: int,
    total: int,
    properties: dict[str, str],
) -> None:
    table = simple(folder / "t", **properties)
    arguments = dict(arguments)
    if "number" in arguments:
        arguments["source"] = one(folder / "s", arguments.pop("number"), n=77)
    before = files_on_disk(table)
    result = run(spark, operation, table, application=application(), unique=["ID"], **arguments)
    if failed:
        error = error_of(result)
        assert error["facts"]["expectations"] == {"unique(id)": {"passed": total - failed, "failed": failed}}
        assert files_on_disk(table) == before
    else:
        counts = {"unique(id)": {"passed": total, "failed": 0}}
        assert expectation_counts(committed(result).metrics) == counts


@pytest.mark.spark
def test_spark_counts_the_same_rows_that_share_values(tmp_path: Path, spark: SparkSession) -> None:
    check_unique_rows(spark, tmp_path / "1", *NOT_UNIQUE[3], {"delta.enableDeletionVectors": "true"})
    check_unique_rows(spark, tmp_path / "2", *NOT_UNIQUE[5], {})
    check_unique_rows(spark, tmp_path / "3", *NOT_UNIQUE[0], {})


def test_unique_looks_at_the_scope_alone_and_at_all_columns_together(tmp_path: Path) -> None:
    files = [pa.table({"id": [1, 2], "p": [p] * 2, "n": [1, 2], "s": [None, "a"]}, schema=SCHEMA) for p in "xy"]
    table = make_table(tmp_path / "t", *files, partition_by=["p"])
    folder = tmp_path / "s"
    scope = {"partition_predicate": "p = 'x'"}
    committed(run(None, "write", table, source=one(folder, 3), unique=["id"], **scope))
    assert "6 rows of 6" in error_of(run(None, "write", table, source=one(folder, 3, "y"), unique=["id"]))["message"]
    assert (
        "2 rows of 4" in error_of(run(None, "write", table, source=one(folder, 3), unique=["id"], **scope))["message"]
    )
    # Rows with a null in one of the columns equal no row.
    committed(run(None, "write", table, source=one(folder, 3, n=None), unique=["id", "n"], **scope))
    committed(run(None, "write", table, source=one(folder, 3, n=None), unique=["id", "n"], **scope))
    unknown = error_of(run(None, "write", table, source=one(folder, 3), unique=["idd"]))
    assert (unknown["type"], "'id'" in unknown["message"]) == ("UnknownColumn", True)
    new = run(None, "write", tmp_path / "new", source=one(folder, 3), unique=["id"])
    assert expectation_counts(committed(new).metrics) == {"unique(id)": {"passed": 1, "failed": 0}}


def test_of_two_racing_appends_of_one_id_only_one_is_unique(tmp_path: Path) -> None:
    table = simple(tmp_path / "t")
    rows = [one(tmp_path / "s", 500) for _ in range(2)]
    with before_commit(lambda tx: committed(run(None, "write", table, source=rows[0], unique=["id"]))):
        error = error_of(run(None, "write", table, source=rows[1], unique=["id"]))
    assert error["facts"]["expectations"] == {"unique(id)": {"passed": 100, "failed": 2}}
    assert table.to_arrow().num_rows == 101


QUARANTINING: list[tuple[str, dict[str, Any]]] = [
    ("write", {}),
    ("write", {"mode": "overwrite", "replace_using": ["n"]}),
    ("upsert", {"keys": ["id"]}),
]
TWO = {"few": "id < 100", "odd, or not": "id % 2 = :odd"}


@pytest.mark.parametrize(("operation", "more"), QUARANTINING)
def test_rows_in_quarantine_are_there_once_however_often_the_job_is_killed(
    tmp_path: Path, operation: str, more: dict[str, Any]
) -> None:
    check_quarantine(None, tmp_path, operation, more, TWO)


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
def test_spark_sends_the_same_rows_to_quarantine(tmp_path: Path, spark: SparkSession) -> None:
    for number, (operation, more) in enumerate(QUARANTINING):
        by_spark = {"few": "array_max(array(id, 0)) < 100", "odd, or not": "id % 2 = :odd"}
        check_quarantine(spark, tmp_path / str(number), operation, more, by_spark)


def check_quarantine(
    spark: SparkSession | None, folder: Path, operation: str, more: dict[str, Any], conditions: dict[str, str]
) -> None:
    folder.mkdir(exist_ok=True)
    table, place, work, log = simple(folder / "t"), folder / "q", application(), list[str]()
    before = table.snapshot().version
    arguments: dict[str, Any] = {
        "source": source(folder / "s", range(95, 105), 77),
        "expect_or_quarantine": conditions,
        "expect_or_drop": {"least": "id > 95"},
        "quarantine_uri": str(place),
        "parameters": {"odd": 1},
        **more,
    }
    # The first try dies before its rows are in quarantine, the second one with them there.
    with killed_before_commit():
        run(spark, operation, table, application=work, **arguments)
    assert not (place / "_delta_log").exists()
    with killed_before_commit(2):
        run(spark, operation, table, application=work, **arguments)
    assert (Table.open(str(place)).snapshot().version, table.snapshot().version) == (0, before)
    result = committed(run(spark, operation, table, application=work, log=log.append, **arguments))
    counts = {"few": {"passed": 5, "failed": 5}, "odd, or not": {"passed": 5, "failed": 5}}
    assert expectation_counts(result.metrics) == {"least": {"passed": 9, "failed": 1}, **counts}
    left = Table.open(str(place))
    rows = {row["id"]: row["failed_expectations"] for row in left.to_arrow().to_pylist()}
    both, odd = "few, odd, or not", "odd, or not"
    assert rows == {96: odd, 98: odd, 100: both, 101: "few", 102: both, 103: "few", 104: both}
    assert left.snapshot().version == 0
    assert run(spark, operation, table, application=work, **arguments).status == "already_done"
    # Other work appends; the same columns of another type are refused before the commit.
    committed(run(spark, operation, table, application=application(), **arguments))
    assert left.to_arrow().num_rows == 14
    version = table.snapshot().version
    texts = Table.create(str(folder / "texts"), pa.schema([("id", pa.string())]))
    refused = run(spark, operation, table, application=application(), **arguments | {"quarantine_uri": texts.uri})
    assert (error_of(refused)["type"], table.snapshot().version) == ("SchemaMismatch", version)


def test_a_check_that_fails_sends_nothing_to_quarantine(tmp_path: Path) -> None:
    table, place = simple(tmp_path / "t"), tmp_path / "q"
    arguments: dict[str, Any] = {
        "source": source(tmp_path / "s", range(95, 105)),
        "expect_or_quarantine": {"few": "id < 97"},
        "quarantine_uri": str(place),
    }
    error = error_of(run(None, "write", table, min_inserted_rows=3, application=application(), **arguments))
    assert (error["type"], place.exists()) == ("ExpectationFailed", False)
    own = run(None, "write", table, **arguments | {"quarantine_uri": table.uri})
    assert error_of(own)["facts"]["argument"] == "quarantine_uri"
    with pytest.raises(InvalidJobSpec, match="quarantine_uri must be given exactly if expect_or_quarantine is"):
        run(None, "write", table, **{name: arguments[name] for name in ("source", "quarantine_uri")})


@pytest.mark.seeded
@pytest.mark.parametrize("name", [*list(OPERATIONS)[::2], *in_long("more operations", *list(OPERATIONS)[1::2])])
def test_a_dry_run_counts_the_change_by_partition_and_writes_nothing(tmp_path: Path, name: str) -> None:
    for seed in range(depth(1, 2)):
        check_dry_run(None, tmp_path / str(seed), name, seed)


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
def test_a_dry_run_by_spark_counts_the_same(tmp_path: Path, spark: SparkSession) -> None:
    for name in ("append", "update", "merge"):
        check_dry_run(spark, tmp_path / name, name, 3)


def check_dry_run(spark: SparkSession | None, folder: Path, name: str, seed: int) -> None:
    rng = random.Random(seed)
    files = [fitting(random_rows(rng, range(start, start + 12)), name, is_target=True) for start in (0, 12, 24)]
    table = make_table(folder / "t", *files, partition_by=["p"], properties=dict(rng.choice(FEATURES)))
    operation, arguments, _ = OPERATIONS[name]
    more = {
        "expect": {"a": "n > 3" if spark is None else "array_max(array(n, 0)) > 3"},
        **arguments(file_of(folder / "s", fitting(random_rows(rng, range(20, 50)), name, is_target=False))),
    }
    before, on_disk, version = rows_by_partition(table), files_on_disk(table), table.snapshot().version
    tried = run(spark, operation, table, dry_run=True, **more)
    assert (tried.status, tried.version, tried.details.dry_run) == ("nothing_to_do", None, True), tried.error
    assert (files_on_disk(table), table.snapshot().version) == (on_disk, version)
    done = committed(run(spark, operation, table, **more))
    assert expectation_counts(tried.metrics) == expectation_counts(done.metrics)
    report = {each["partition"]["p"]: each for each in tried.details.partitions}
    for place, each in report.items():
        assert each["rows_before"] == before[place]
        assert each["rows_after"] == each["rows_before"] - each["rows_removed"] + each["rows_added"]
        assert each["rows_after"] == rows_by_partition(table)[place], (name, seed)
        assert (each["bytes_added"] > 0) == (each["files_added"] > 0)
    assert {place for place, each in report.items() if each["is_locked"]} == (set() if name == "append" else {*report})
    assert xcom_of(tried, 1.0)["partitions"] == tried.details.partitions


def rows_by_partition(table: Table) -> Counter[str]:
    return Counter(table.to_arrow(columns=["p"]).column("p").to_pylist())


def test_a_dry_run_locks_the_partitions_of_its_scope_and_keeps_the_limits(tmp_path: Path) -> None:
    files = [pa.table({"id": [0, 1], "p": [p] * 2, "n": [1, 2], "s": ["a"] * 2}, schema=SCHEMA) for p in "xyz"]
    table = make_table(tmp_path / "t", *files, partition_by=["p"])
    report = run(None, "delete", table, dry_run=True, predicate="n = 1", partition_predicate="p IN ('x', 'z')")
    found = [(each["partition"], each["rows_removed"], each["is_locked"]) for each in report.details.partitions]
    assert found == [({"p": "x"}, 1, True), ({"p": "z"}, 1, True)]
    error = error_of(run(None, "delete", table, dry_run=True, predicate="n = 1", max_deleted_rows=2))
    assert "delete 3 rows" in error["message"]
    rows, place = source(tmp_path / "s", range(3)), tmp_path / "q"
    new = run(
        None,
        "write",
        tmp_path / "new",
        dry_run=True,
        source=rows,
        expect_or_quarantine={"a": "id > 0"},
        quarantine_uri=str(place),
    )
    ((each,), counts) = new.details.partitions, expectation_counts(new.metrics)
    assert (each["rows_before"], each["rows_added"], counts) == (0, 2, {"a": {"passed": 2, "failed": 1}})
    assert [(tmp_path / "new").exists(), place.exists()] == [False, False]
    with pytest.raises(InvalidJobSpec, match="unique must be None in a dry run"):
        run(None, "write", table, dry_run=True, source=rows, unique=["id"])


@pytest.mark.parametrize("given", [{"dry_run": True}, {"expect_or_quarantine": {"a": "n > 1"}, "quarantine_uri": "/q"}])
def test_a_change_that_waits_is_neither_a_dry_run_nor_in_quarantine(given: dict[str, Any]) -> None:
    arguments = {"source": {"format": "parquet", "path": "/in"}, **given}
    with pytest.raises(InvalidJobSpec, match="publish must be true with dry_run, and with expect_or_quarantine"):
        job_spec(operation="write", table_uri="/t", arguments=arguments, publish=False)


def test_a_job_that_loses_a_race_has_its_rows_in_quarantine_once(tmp_path: Path) -> None:
    table, place, calls = simple(tmp_path / "t"), tmp_path / "q", list[str]()

    def other(tx: Transaction) -> None:
        calls.append("commit")
        # The first commit is that of the quarantine.
        if len(calls) == 2:
            committed(run(None, "delete", table, predicate="id = 95"))

    with before_commit(other, times=2):
        result = committed(
            run(
                None,
                "upsert",
                table,
                source=source(tmp_path / "s", range(95, 105)),
                keys=["id"],
                expect_or_quarantine={"few": "id < 97"},
                quarantine_uri=str(place),
            )
        )
    assert (result.attempts, result.metrics["numTargetRowsInserted"]) == (2, 1)
    left = Table.open(str(place))
    assert (left.snapshot().version, left.to_arrow().num_rows) == (0, 8)


def test_counts_of_files_that_a_lost_race_changes_are_counted_again_and_those_of_others_kept(tmp_path: Path) -> None:
    files = [
        pa.table({"id": [k, k + 1], "p": [p] * 2, "n": [k] * 2, "s": ["a"] * 2}, schema=SCHEMA)
        for k, p in enumerate("xyz")
    ]
    table = make_table(tmp_path / "t", *files, partition_by=["p"])
    with before_commit(lambda tx: committed(run(None, "delete", table, predicate="id = 1 AND p = 'y'"))):
        result = committed(run(None, "update", table, set={"n": "id"}, expect={"small": "n < 2", "x": "p = 'x'"}))
    assert result.attempts == 2
    counts = {"small": {"passed": 2, "failed": 3}, "x": {"passed": 2, "failed": 3}}
    assert expectation_counts(result.metrics) == counts


def test_a_quarantine_that_is_the_table_itself_by_another_name_is_refused(tmp_path: Path) -> None:
    table, other = simple(tmp_path / "t"), tmp_path / "other name"
    other.symlink_to(tmp_path / "t")
    arguments = {"source": source(tmp_path / "s", range(95, 105)), "expect_or_quarantine": {"few": "id < 97"}}
    before = files_on_disk(table)
    for operation, more in (("write", {}), ("upsert", {"keys": ["id"]})):
        refused = run(None, operation, table, application=application(), quarantine_uri=str(other), **arguments, **more)
        assert error_of(refused)["facts"]["argument"] == "quarantine_uri"
    assert (files_on_disk(table), table.to_arrow().num_rows) == (before, 100)


@pytest.mark.parametrize(
    ("column", "type"),
    [
        (pa.field("must", pa.int64(), nullable=False), "UnsupportedFeature"),
        (pa.field("n", pa.string()), "SchemaMismatch"),
    ],
)
def test_a_table_that_cannot_be_the_quarantine_is_named(tmp_path: Path, column: pa.Field, type: str) -> None:
    table = simple(tmp_path / "t")
    place = Table.create(str(tmp_path / "q"), pa.schema([("s", pa.string()), column]))
    before, arguments = files_on_disk(table), {"expect_or_quarantine": {"few": "id < 97"}, "quarantine_uri": place.uri}
    error = error_of(run(None, "write", table, source=source(tmp_path / "s", range(95, 105)), **arguments))
    assert (error["type"], "uarantine" in error["message"]) == (type, True), error
    assert (files_on_disk(table), place.snapshot().version) == (before, 0)


def test_a_task_that_is_cleared_between_its_two_commits_sends_its_rows_to_quarantine_again(tmp_path: Path) -> None:
    table, now = simple(tmp_path / "t"), SYSTEM_CLOCK.now_ms()
    arguments: dict[str, Any] = {"expect_or_quarantine": {"few": "id < 97"}, "quarantine_uri": str(tmp_path / "q")}
    work = application(first_tried_ms=now - 1000)
    with killed_before_commit(2):
        run(None, "write", table, application=work, source=source(tmp_path / "s", range(95, 105)), **arguments)
    # No commit of it is in the table, so the cleared task has the same number.
    cleared = replace(work, first_tried_ms=now)
    committed(run(None, "write", table, application=cleared, source=source(tmp_path / "s", range(95, 99)), **arguments))
    assert Table.open(str(tmp_path / "q")).to_arrow().num_rows == 8 + 2
    # Nor is the same work on another table done by that.
    other = simple(tmp_path / "other")
    committed(run(None, "write", other, application=cleared, source=source(tmp_path / "s", range(95, 99)), **arguments))
    assert Table.open(str(tmp_path / "q")).to_arrow().num_rows == 8 + 2 + 2


@pytest.mark.parametrize("ids", [range(95, 98), range(3)])
def test_a_retry_whose_source_has_changed_since_its_rows_went_to_quarantine_commits_nothing(
    tmp_path: Path, ids: range
) -> None:
    table, work = simple(tmp_path / "t"), application()
    arguments: dict[str, Any] = {"expect_or_quarantine": {"few": "id < 97"}, "quarantine_uri": str(tmp_path / "q")}
    with killed_before_commit(2):
        run(
            None,
            "write",
            table,
            application=work,
            key=None,
            source=source(tmp_path / "s", range(95, 105)),
            **arguments,
        )
    changed = run(None, "write", table, application=work, key=None, source=source(tmp_path / "s", ids), **arguments)
    assert "has put 8 rows into quarantine" in error_of(changed)["message"]
    assert table.to_arrow().num_rows == 100
