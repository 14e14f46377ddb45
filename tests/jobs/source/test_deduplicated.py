"""Alone in showing that a write, an upsert and a merge use one row of the source for each key."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.identities import identity_column
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import application, committed, error_of, files_on_disk, insert, run, update
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("n", pa.int32()), ("v", pa.string())])
Row = tuple[Any, ...]
BY = {"deduplicate_by": ["K", "p"], "deduplicate_order_by": ["n desc", "v"]}


def table_of(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in SCHEMA]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def source_in(folder: Path, rows: list[Row], files: int = 3) -> dict[str, Any]:
    folder.mkdir()
    for number in range(files):
        pq.write_table(table_of(rows[number::files]), folder / f"{number}.parquet")
    return {"format": "parquet", "path": str(folder)}


def random_rows(seed: int, count: int = 120) -> list[Row]:
    """Rows of which many share a key, some lack one, and no two of a key are equal in the order."""
    rng = random.Random(seed)
    rows: dict[Row, Row] = {}
    for _ in range(count):
        row = (
            rng.choice([None, *range(12)]),
            rng.choice([None, "a", "b"]),
            rng.choice([None, 1, 2, 3]),
            f"v{rng.randrange(10**6)}",
        )
        rows[row[0], row[1], row[3]] = row
    return list(rows.values())


def first_of_each_key(rows: list[Row]) -> list[Row]:
    kept: dict[Row, Row] = {}
    for row in sorted(rows, key=lambda row: (row[2] is None, -(row[2] or 0), row[3])):
        kept.setdefault(row[:2] if None not in row[:2] else row, row)
    return list(kept.values())


def with_keys(rows: list[Row]) -> list[Row]:
    return [row for row in rows if None not in row[:2]]


def written(spark: SparkSession | None, table: Table, source: dict[str, Any], **more: Any) -> JobResult:
    return committed(run(spark, "write", table, source=source, **BY, **more))


def check_write(spark: SparkSession | None, folder: Path, **more: Any) -> None:
    rows = random_rows(1)
    kept = first_of_each_key(rows)
    source = source_in(folder / "in", rows)
    result = written(spark, folder / "new", source, partition_by=["p"], **more)  # type: ignore[arg-type]
    table = Table.open(folder / "new")
    assert bag(table.to_arrow()) == bag(table_of(kept))
    assert result.metrics["numOutputRows"] == len(kept)
    assert result.metrics["numDuplicateSourceRows"] == len(rows) - len(kept) > 0
    written(spark, table, source, mode="overwrite", replace_using=["k"], **more)
    assert bag(table.to_arrow()) == bag(table_of([*kept, *(row for row in kept if row[0] is None)]))


def check_upsert(spark: SparkSession | None, folder: Path, **more: Any) -> None:
    rows = with_keys(random_rows(2))
    table = make_table(folder / "t", table_of([(1, "a", 0, "old"), (77, "a", 0, "old")]))
    source = source_in(folder / "in", rows)
    result = committed(run(spark, "upsert", table, source=source, keys=["k", "p"], **BY, **more))
    kept = first_of_each_key(rows)
    assert any(row[:2] == (1, "a") for row in kept)
    assert bag(table.to_arrow()) == bag(table_of([(77, "a", 0, "old"), *kept]))
    assert result.metrics["numSourceRows"] == len(kept)
    assert result.metrics["numDuplicateSourceRows"] == len(rows) - len(kept)


def check_merge(spark: SparkSession | None, folder: Path, **more: Any) -> None:
    rows = random_rows(3)
    table = make_table(folder / "t", table_of([(1, "a", 0, "old")]))
    source, clauses = source_in(folder / "in", rows), [update("*"), insert()]
    committed(run(spark, "merge", table, source=source, on="t.k = s.k AND t.p = s.p", clauses=clauses, **BY, **more))
    assert bag(table.to_arrow()) == bag(table_of(first_of_each_key(rows)))


CHECKS = (check_write, check_upsert, check_merge)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_first_row_of_each_key_is_used(tmp_path: Path, check: Callable[..., None]) -> None:
    check(None, tmp_path)


@pytest.mark.spark
@pytest.mark.parametrize(
    "check",
    [check_merge, *(pytest.param(each, marks=pytest.mark.long("further operations")) for each in CHECKS[:2])],
    ids=lambda check: check.__name__,
)
def test_with_spark_and_in_several_parts_it_is_the_same_row(
    tmp_path: Path, spark: SparkSession, check: Callable[..., None]
) -> None:
    check(spark, tmp_path, limits=Limits(held_source_bytes=500))


def test_without_an_order_one_row_of_each_key_is_used(tmp_path: Path) -> None:
    source = source_in(tmp_path / "in", [(1, "a", 1, "x"), (1, "a", 1, "x"), (1, "b", 2, "y"), (None, "a", 3, "z")], 1)
    table = make_table(tmp_path / "t", table_of([]))
    committed(run(None, "write", table, source=source, deduplicate_by=["k"]))
    values = table.to_arrow().column("k").to_pylist()
    assert sorted(values, key=str) == [1, None]


@pytest.mark.parametrize(
    ("more", "type_", "said"),
    [
        ({"deduplicate_by": ["gone"]}, "UnknownColumn", "no column 'gone', which deduplicate_by names"),
        ({"deduplicate_by": ["k"], "deduplicate_order_by": ["n up"]}, "InvalidJobSpec", "ASC or DESC; found 'n up'"),
        ({"deduplicate_by": ["f"]}, "UnsupportedFeature", "deduplicate_by names the column 'f'"),
        ({"deduplicate_by": ["k"], "deduplicate_order_by": ["F DESC"]}, "UnsupportedFeature", "deduplicate_order_by"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("operation", ["write", "upsert"])
def test_columns_that_cannot_order_rows_are_refused(
    tmp_path: Path, more: dict[str, Any], type_: str, said: str, operation: str
) -> None:
    rows = pa.table({"k": pa.array([1], pa.int64()), "n": pa.array([1], pa.int32()), "f": [0.5]})
    table = make_table(tmp_path / "t", rows)
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in/a.parquet")
    before = files_on_disk(table)
    source = {"format": "parquet", "path": str(tmp_path / "in")}
    keys = {"keys": ["k"]} if operation == "upsert" else {}
    error = error_of(run(None, operation, table, source=source, **keys, **more))
    assert (error["type"], said in error["message"]) == (type_, True), error["message"]
    assert files_on_disk(table) == before


def test_an_order_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobSpec, match="None without deduplicate_by"):
        run(None, "write", tmp_path, source={"table": "/x"}, deduplicate_order_by=["n"])


def test_a_row_that_an_expectation_drops_is_not_the_one_that_is_kept(tmp_path: Path) -> None:
    source = source_in(tmp_path / "in", [(1, "a", 9, "bad"), (1, "a", 1, "good")], 1)
    for operation, more in {"write": {}, "upsert": {"keys": ["k", "p"]}}.items():
        table = make_table(tmp_path / operation, table_of([]))
        result = committed(run(None, operation, table, source=source, expect_or_drop={"no 9": "n < 9"}, **BY, **more))
        assert table.to_arrow().column("v").to_pylist() == ["good"]
        assert result.metrics["expectation.no 9.failed"] == 1
        assert result.metrics["numDuplicateSourceRows"] == 0


@pytest.mark.parametrize("operation", ["write", "upsert"])
def test_a_try_that_is_killed_is_continued_with_the_same_rows(tmp_path: Path, operation: str) -> None:
    # No order: another choice would be as good, but the files of the first try are kept.
    rows = [(k % 4, "a", 1, f"v{k}") for k in range(40)]
    source = source_in(tmp_path / "in", rows)
    table = make_table(tmp_path / "t", table_of([]))
    more: dict[str, Any] = {"source": source, "deduplicate_by": ["k"], "application": application()}
    more |= {"keys": ["k"]} if operation == "upsert" else {}
    with killed_before_commit():
        run(None, operation, table, **more)
    lines: list[str] = []
    result = committed(run(None, operation, table, log=lines.append, **more))
    assert sorted(table.to_arrow().column("k").to_pylist()) == [0, 1, 2, 3]
    assert result.metrics["numDuplicateSourceRows"] == 36
    assert any(line.startswith("resuming an earlier try") for line in lines)
    assert run(None, operation, table, **more).status == "already_done"


def test_a_lost_race_deduplicates_once(tmp_path: Path) -> None:
    source = source_in(tmp_path / "in", [(1, "a", n, "new") for n in range(20)])
    table = make_table(tmp_path / "t", table_of([(1, "a", 0, "old")]))
    lines: list[str] = []
    with before_commit(lambda _: append(table, table_of([(1, "a", 0, "meanwhile"), (2, "a", 0, "kept")]))):
        committed(run(None, "upsert", table, source=source, keys=["k", "p"], log=lines.append, **BY))
    assert bag(table.to_arrow()) == bag(table_of([(1, "a", 19, "new"), (1, "a", 19, "new"), (2, "a", 0, "kept")]))
    assert sum("left out" in line for line in lines) == 1


def test_rows_of_a_table_that_numbers_them_are_numbered_after_it(tmp_path: Path) -> None:
    schema = StructType(
        (
            identity_column("id"),
            StructField(name="k", type=Primitive.LONG),
            StructField(name="v", type=Primitive.STRING),
        )
    )
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"k": [1, 1, 2, 2, 3], "v": list("abcde")}), folder / "a.parquet")
    source = {"format": "parquet", "path": str(folder)}
    table = Table.create(str(tmp_path / "t"), schema)
    committed(run(None, "write", table, source=source, deduplicate_by=["k"], deduplicate_order_by=["v DESC"]))
    found = {(row["k"], row["v"]): row["id"] for row in table.to_arrow().to_pylist()}
    assert found.keys() == {(1, "b"), (2, "d"), (3, "e")}
    assert sorted(found.values()) == [1, 2, 3]
    assert json.loads(table.history(1)[0]["operationMetrics"]["numOutputRows"]) == 3
