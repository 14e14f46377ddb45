"""`replace_using`: the rows that share the values of some columns with the source leave, and its rows come."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import (
    AppendOnlyViolation,
    ConcurrentAppend,
    ConstraintViolation,
    InvalidJobSpec,
    PartitionMismatch,
    SchemaMismatch,
    UnknownColumn,
)
from airflow_txlog.storage.limits import Limits
from tests.helpers.depth import depth, in_long
from tests.helpers.jobs import application, committed, run, set_property, tried_without_spark
from tests.helpers.racing import before_commit, killed_before_commit, winning
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("shop", pa.int32()), ("v", pa.float64())])
Row = tuple[int, str | None, int | None, float]
LAYOUTS: dict[str, dict[str, Any]] = {
    "unpartitioned": {},
    "by day": {"partition_by": ["day"]},
    "by day and shop": {"partition_by": ["day", "shop"]},
    "with deletion vectors": {"properties": {"delta.enableDeletionVectors": "true"}},
    "mapped, with change rows": {
        "partition_by": ["day"],
        "properties": {"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"},
    },
}


def table_of(given: list[Row]) -> pa.Table:
    columns = zip(*given, strict=True) if given else [[], [], [], []]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def make(folder: Path, given: list[Row], **layout: Any) -> Table:
    return make_table(folder / "t", table_of(given), **layout)


class Source:
    """Rows as a source of Parquet, each in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def __call__(self, given: list[Row] | pa.Table) -> dict[str, Any]:
        self.count += 1
        path = self.folder / f"source-{self.count}.parquet"
        pq.write_table(given if isinstance(given, pa.Table) else table_of(given), path)
        return {"format": "parquet", "path": str(path)}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def rows_of(table: Table) -> Counter[Row]:
    return Counter(tuple(row.values()) for row in Table.open(table.uri).to_arrow().select(SCHEMA.names).to_pylist())


def replace(table: Table, source: dict[str, Any], using: list[str], **more: Any) -> Any:
    """Run the job without Spark."""
    return run(None, "write", table, source=source, mode="overwrite", replace_using=using, **more)


def error_of(result: Any) -> Exception:
    error: Exception | None = result.typed_error()
    assert error is not None, result
    return error


def model(before: Counter[Row], given: list[Row], using: list[str]) -> Counter[Row]:
    """The rows after `replace_using`: null equals nothing."""
    at = [SCHEMA.names.index(name) for name in using]
    keys = {tuple(row[i] for i in at) for row in given}
    kept = {row: n for row, n in before.items() if None in (key := tuple(row[i] for i in at)) or key not in keys}
    return Counter(kept) + Counter(given)


A: list[Row] = [(1, "mon", 1, 1.0), (2, "mon", 2, 2.0), (3, "tue", 1, 3.0), (4, None, 1, 4.0), (5, "tue", None, 5.0)]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("using", [["day"], ["shop"], ["day", "shop"], ["SHOP", "Day"], ["id"]], ids="+".join)
def test_rows_with_values_of_the_source_leave_and_running_again_changes_no_row(
    tmp_path: Path, source: Source, layout: dict[str, Any], using: list[str]
) -> None:
    table = make(tmp_path, A, **layout)
    given: list[Row] = [(10, "mon", 1, 0.0), (11, "mon", 1, 0.5), (3, "wed", 9, 0.0)]
    expected = model(Counter(A), given, [name.lower() for name in using])
    committed(replace(table, source(given), using))
    assert rows_of(table) == expected
    result = committed(replace(table, source(given), using))
    assert rows_of(table) == expected
    assert result.metrics["numDeletedRows"] == result.metrics["numOutputRows"] == 3
    commit = table.history(1)[0]
    assert (commit["operation"], commit["operationParameters"]["mode"]) == ("WRITE", "Overwrite")


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_null_in_the_columns_replaces_no_row_and_is_added_each_time(
    tmp_path: Path, source: Source, layout: dict[str, Any]
) -> None:
    table = make(tmp_path, A, **layout)
    given: list[Row] = [(9, None, 1, 9.0)]
    for times in (1, 2):
        committed(replace(table, source(given), ["day"]))
        assert rows_of(table) == Counter(A) + Counter({given[0]: times})


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_source_without_rows_replaces_none(tmp_path: Path, source: Source, layout: dict[str, Any]) -> None:
    table = make(tmp_path, A, **layout)
    other = make_table(tmp_path / "other", table_of([(1, "mon", 1, 9.0)]))
    committed(run(None, "delete", other, predicate="id = 1"))
    # Files without a row are no source, and a table without one is.
    result = replace(table, {"table": other.uri}, ["day"])
    assert result.error is None
    assert rows_of(table) == Counter(A)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_source_may_be_a_table_also_the_one_that_is_written(
    tmp_path: Path, source: Source, layout: dict[str, Any]
) -> None:
    table, other = make(tmp_path, A, **layout), make_table(tmp_path / "other", table_of([(1, "mon", 1, 9.0)]))
    committed(replace(table, {"table": other.uri}, ["day"]))
    expected = model(Counter(A), [(1, "mon", 1, 9.0)], ["day"])
    assert rows_of(table) == expected
    committed(replace(table, {"table": table.uri}, ["id"]))
    assert rows_of(table) == expected


def test_partition_columns_let_whole_partitions_leave_unread(tmp_path: Path, source: Source) -> None:
    table = make(tmp_path, A, partition_by=["day", "shop"])
    for path in (tmp_path / "t").rglob("*.parquet"):
        if "day=mon" in str(path):
            path.unlink()  # a job that reads one fails
    result = committed(replace(table, source([(7, "mon", 3, 0.0)]), ["day"]))
    assert (result.files["removed"], result.files["added"]) == (2, 1)
    assert sorted(row[0] for row in rows_of(table)) == [3, 4, 5, 7]


def test_a_missing_table_is_created_and_a_partition_predicate_bounds_what_leaves(
    tmp_path: Path, source: Source
) -> None:
    new = str(tmp_path / "new")
    arguments: dict[str, Any] = {"mode": "overwrite", "replace_using": ["day"], "partition_by": ["day", "shop"]}
    committed(run(None, "write", new, source=source(A), **arguments))
    table = Table.open(new)
    assert rows_of(table) == Counter(A)
    scope = {"partition_predicate": "shop = 1"}
    committed(replace(table, source([(8, "mon", 1, 0.0)]), ["day"], **scope))
    assert sorted(row[0] for row in rows_of(table)) == [2, 3, 4, 5, 8]
    outside = replace(table, source([(8, "mon", 2, 0.0)]), ["day"], **scope)
    assert isinstance(error_of(outside), PartitionMismatch)


def test_a_column_may_have_a_name_that_begins_with_a_dot(tmp_path: Path, source: Source) -> None:
    table = make_table(tmp_path / "t", pa.table({".k": [1, 2], "v": ["old"] * 2}))
    committed(replace(table, source(pa.table({".k": [2], "v": ["new"]})), [".k"]))
    assert sorted(table.to_arrow().column("v").to_pylist()) == ["new", "old"]


def test_a_column_that_the_source_lacks_is_null(tmp_path: Path, source: Source) -> None:
    table = make(tmp_path, A)
    committed(replace(table, source(pa.table({"shop": pa.array([1], pa.int32()), "id": [9]})), ["shop"]))
    assert rows_of(table) == Counter({A[1]: 1, A[4]: 1, (9, None, 1, None): 1})  # type: ignore[dict-item]


def test_values_that_no_task_holds_are_looked_up_by_spark(tmp_path: Path, source: Source) -> None:
    table = make(tmp_path, A)
    result = replace(table, source(A), ["id"], limits=Limits(merge_key_bytes=1))
    assert result.error["facts"]["needs_spark"]
    assert rows_of(table) == Counter(A)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "an append": ({"mode": "append", "replace_using": ["day"]}, InvalidJobSpec),
    "partitions": ({"mode": "overwrite_partitions", "replace_using": ["day"]}, InvalidJobSpec),
    "a condition too": ({"mode": "overwrite", "replace_using": ["day"], "replace_where": "id = 1"}, InvalidJobSpec),
    "no column": ({"mode": "overwrite", "replace_using": []}, InvalidJobSpec),
    "a column twice": ({"mode": "overwrite", "replace_using": ["day", "DAY"]}, InvalidJobSpec),
    "an unknown column": ({"mode": "overwrite", "replace_using": ["dya"]}, UnknownColumn),
}


@pytest.mark.parametrize(("arguments", "error"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_refused_before_anything_is_staged(
    tmp_path: Path, source: Source, arguments: dict[str, Any], error: type[Exception]
) -> None:
    table = make(tmp_path, A)
    before = sorted((tmp_path / "t").rglob("*"))
    with pytest.raises(error):
        raise error_of(run(None, "write", table, source=source(A), **arguments))
    assert sorted((tmp_path / "t").rglob("*")) == before


@pytest.mark.parametrize("using", [["day"], ["shop"]], ids="+".join)
def test_columns_that_do_not_fit_are_the_errors_of_every_write(
    tmp_path: Path, source: Source, using: list[str]
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(SCHEMA)[1:]])
    table = Table.create(str(tmp_path / "t"), schema, partition_by=["day"])
    full = table_of(A)
    cases: list[tuple[pa.Table, type[Exception]]] = [
        (full.drop_columns(using), UnknownColumn),
        (full.drop_columns("id"), ConstraintViolation),
        (full.append_column("more", full["id"]), SchemaMismatch),
    ]
    for given, error in cases:
        found = replace(table, source(given), using)
        if using == ["day"] and error is not UnknownColumn:
            assert found.error["facts"]["needs_spark"], "an overwrite of partitions has the errors of any write"
            continue
        assert isinstance(error_of(found), error), given.column_names
    set_property(table, "delta.appendOnly", "true")
    assert isinstance(error_of(replace(table, source(A), using)), AppendOnlyViolation)


# --- other writers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("using", [["day"], ["day", "shop"], ["day", "id"]], ids="+".join)
@pytest.mark.parametrize(("where", "attempts"), [("wed", 1), ("mon", 2)])
def test_a_writer_of_another_partition_does_not_conflict_and_one_of_the_same_is_replaced_too(
    tmp_path: Path, source: Source, using: list[str], where: str, attempts: int
) -> None:
    table = make(tmp_path, A, partition_by=["day"])
    given: list[Row] = [(1, "mon", 1, 0.0)]
    late: Row = (1, where, 1, 99.0)
    with before_commit(lambda tx: append(Table.open(table.uri), table_of([late]))):
        result = committed(replace(table, source(given), using))
    assert result.attempts == attempts
    assert rows_of(table) == model(Counter([*A, late]), given, using)


@pytest.mark.parametrize("using", [["day"], ["shop"]], ids="+".join)
def test_on_conflict_fail_replaces_no_row_that_landed_meanwhile(
    tmp_path: Path, source: Source, using: list[str]
) -> None:
    table = make(tmp_path, A, partition_by=["day"])
    late: Row = (7, "mon", 1, 99.0)
    with before_commit(lambda tx: append(Table.open(table.uri), table_of([late]))):
        result = replace(table, source([(1, "mon", 1, 0.0)]), using, on_conflict="fail")
    assert isinstance(error_of(result), ConcurrentAppend)
    assert rows_of(table) == Counter([*A, late])


@pytest.mark.parametrize("using", [["day"], ["shop"]], ids="+".join)
def test_a_killed_try_and_its_retry_replace_once(tmp_path: Path, source: Source, using: list[str]) -> None:
    table, work = make(tmp_path, A, partition_by=["day"]), application()
    given: list[Row] = [(1, "mon", 1, 0.0)]
    described = source(given)
    with killed_before_commit():
        replace(table, described, using, application=work)
    committed(replace(table, described, using, application=work))
    assert replace(table, described, using, application=work).status == "already_done"
    assert rows_of(table) == model(Counter(A), given, using)


def a_row(rng: random.Random) -> Row:
    return (
        rng.randrange(6),
        rng.choice(["mon", "tue", "wed", None]),
        rng.choice([1, 2, 3, None]),
        float(rng.randrange(1000)),
    )


@pytest.mark.seeded
@pytest.mark.parametrize("seed", range(depth(3, 40, 400)))
def test_random_histories_with_racing_writers_give_the_rows_of_a_model(
    tmp_path: Path, source: Source, seed: int
) -> None:
    rng = random.Random(seed)
    start = [a_row(rng) for _ in range(rng.randrange(1, 12))]
    table = make(tmp_path, start, **rng.choice(list(LAYOUTS.values())))
    expected = Counter(start)

    def step(*, may_race: bool) -> Callable[[Counter[Row]], Counter[Row]]:
        given = [a_row(rng) for _ in range(rng.randrange(1, 6))]
        kind = rng.choice(["append", "replace", "replace", "replace", "delete"])
        if kind == "append":
            append(Table.open(table.uri), table_of(given))
            return lambda before: before + Counter(given)
        if kind == "delete":
            run(None, "delete", table, predicate=f"id = {given[0][0]}")
            return lambda before: Counter({row: n for row, n in before.items() if row[0] != given[0][0]})
        using = rng.sample(["day", "shop", "id"], rng.randrange(1, 4))
        earlier: list[Callable[[Counter[Row]], Counter[Row]]] = []
        if may_race and rng.random() < 0.6:
            # One writer: a delete of nothing makes no commit, so that two that race each other have no order.
            with before_commit(lambda tx: earlier.append(step(may_race=False))):
                committed(replace(table, source(given), using))
        else:
            committed(replace(table, source(given), using))

        def after(before: Counter[Row]) -> Counter[Row]:
            for one in earlier:
                before = one(before)
            return model(before, given, using)

        return after

    for _ in range(8):
        expected = step(may_race=True)(expected)
        assert rows_of(table) == expected, f"seed {seed}"


# --- by Spark -------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("using", [["day"], ["v"], *in_long("more keys", ["shop"], ["day", "v"])], ids="+".join)
def test_spark_gives_the_same_rows_for_a_query_and_for_keys_that_only_it_compares(
    tmp_path: Path, spark: SparkSession, using: list[str]
) -> None:
    table = make(tmp_path, A, partition_by=["day"])
    given: list[Row] = [(10, "mon", 1, 3.0), (11, None, 2, 0.5)]
    sql = "SELECT * FROM VALUES (10L, 'mon', 1, 3D), (11L, NULL, 2, 0.5D) AS t(id, day, shop, v)"
    with tried_without_spark():
        for _ in range(2):
            committed(run(spark, "write", table, source={"sql": sql}, mode="overwrite", replace_using=using, log=print))
            expected = model(Counter(A), given, using)
            assert rows_of(table).keys() == expected.keys()


@pytest.mark.spark
def test_rules_of_the_table_are_checked_by_spark_and_new_columns_come_with_schema_evolution(
    tmp_path: Path, spark: SparkSession, source: Source
) -> None:
    table = make(tmp_path, A, properties={"delta.constraints.positive": "v >= 0"})
    arguments: dict[str, Any] = {"mode": "overwrite", "replace_using": ["shop"]}
    with tried_without_spark():
        bad = run(spark, "write", table, source=source([(1, "mon", 1, -1.0)]), **arguments)
        assert isinstance(error_of(bad), ConstraintViolation)
        committed(run(spark, "write", table, source=source([(9, "mon", 1, 1.0)]), **arguments))
        wider = table_of([(8, "mon", 2, 1.0)]).append_column("note", pa.array(["x"]))
        lines = winning("nothing", lambda: None)
        committed(run(spark, "write", table, source=source(wider), schema_evolution=True, log=lines, **arguments))
    read = {row["id"]: row["note"] for row in Table.open(table.uri).to_arrow().to_pylist()}
    assert read == {9: None, 8: "x", 5: None}
