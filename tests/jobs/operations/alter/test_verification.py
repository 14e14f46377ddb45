"""Rules that an ALTER adds: every row is compared before the commit, by tasks or by Spark, and no race slips one in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import MetadataChanged
from airflow_txlog.storage.limits import SMALL_JOB
from tests.helpers.jobs import application, committed, error_of, ids, rows, run
from tests.helpers.racing import before_commit, killed_before_commit, winning
from tests.helpers.rows import append, make_table
from tests.helpers.vectors import mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("s", pa.struct([("x", pa.int32())]))])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "t", rows(4), rows(4, start=10))


def named(tmp_path: Path, *found: dict[str, Any]) -> Table:
    return make_table(tmp_path / "t", pa.Table.from_pylist(list(found), NAMED))


# A rule, and how many of the rows below break it: tasks evaluate it without Spark.
PLAIN: dict[str, tuple[dict[str, Any], int]] = {
    "true of all": ({"add_constraints": {"a": "id >= 0"}}, 0),
    "false of one": ({"add_constraints": {"a": "id > 0"}}, 1),
    "null is false": ({"add_constraints": {"a": "name <> 'z'"}}, 2),
    "null is said to be right": ({"add_constraints": {"a": "name IS NULL OR name <> 'z'"}}, 0),
    "not": ({"add_constraints": {"a": "NOT name = 'z'"}}, 2),
    "never": ({"add_constraints": {"a": "FALSE"}}, 4),
    "not null": ({"set_not_null": ["id"]}, 0),
    "null in a column": ({"set_not_null": ["name"]}, 2),
    "null in a struct that is there": ({"set_not_null": ["s.x"]}, 1),
    "null struct": ({"set_not_null": ["s"]}, 1),
    "a new column": ({"add_columns": {"new": "INT"}, "set_not_null": ["new"]}, 4),
    "a new column in a constraint": ({"add_columns": {"new": "INT"}, "add_constraints": {"a": "new IS NULL"}}, 0),
    "a renamed column": ({"rename_columns": {"name": "label"}, "set_not_null": ["label"]}, 2),
}
ROWS: list[dict[str, Any]] = [
    {"id": 0, "name": "a", "s": {"x": 1}},
    {"id": 1, "name": None, "s": {"x": None}},
    {"id": 2, "name": "b", "s": None},
    {"id": 3, "name": None, "s": {"x": 4}},
]


@pytest.mark.parametrize("name", PLAIN)
def test_rows_are_compared_with_a_plain_rule_without_spark(tmp_path: Path, name: str) -> None:
    table = named(tmp_path, *ROWS)
    arguments, broken = PLAIN[name]
    result = run(None, "alter", table, allow_reader_upgrade=True, **arguments)
    if not broken:
        assert committed(result).version == 2
        return
    error = error_of(result)
    assert (error["type"], table.snapshot().version) == ("ConstraintViolation", 1)
    assert f"{broken} row" in error["message"]
    assert error["facts"]["constraint"] == ("a" if "add_constraints" in arguments else "NOT NULL")


def test_null_is_found_in_a_member_whose_name_begins_with_a_dot(tmp_path: Path) -> None:
    schema = pa.schema([("s", pa.struct([("x", pa.int32()), (".x", pa.int32())]))])
    properties = {"delta.columnMapping.mode": "name"}
    table = make_table(tmp_path / "t", pa.Table.from_pylist([{"s": {"x": 1}}], schema), properties=properties)
    error = error_of(run(None, "alter", table, set_not_null=["s.`.x`"]))
    assert (error["type"], table.snapshot().version) == ("ConstraintViolation", 1)


def test_a_deleted_row_breaks_no_rule(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(4), properties={"delta.enableDeletionVectors": "true"})
    mask(table, {0: [0]})
    committed(run(None, "alter", table, add_constraints={"positive": "id > 0"}))


def test_partition_values_are_compared_as_values(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(2), rows(2, start=5, day=None), partition_by=["day"])
    assert error_of(run(None, "alter", table, set_not_null=["day"]))["type"] == "ConstraintViolation"
    error = error_of(run(None, "alter", table, add_constraints={"a": "day >= '2024-01-01'"}))
    assert "2 rows of the table break" in error["message"]


def test_statistics_spare_the_reading_of_files_without_null(table: Table) -> None:
    lines: list[str] = []
    committed(run(None, "alter", table, log=lines.append, set_not_null=["id", "name"]))
    assert "0 files of 2 to compare with the new rules" in lines


def test_an_empty_table_needs_no_reading(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", schema=rows(1).schema)
    committed(run(None, "alter", table, add_constraints={"a": "id > 0"}, set_not_null=["id"]))


@pytest.mark.parametrize(
    "text", ["id", "id + 1", "none > 1", "id > (SELECT 1)", "sum(id) > 1", "rand() > 0.5", "id > 1 -- x", "id > "]
)
def test_a_text_that_is_no_rule_for_a_row_is_refused(spark: SparkSession, table: Table, text: str) -> None:
    error = error_of(run(spark, "alter", table, add_constraints={"a": text}))
    assert (error["type"] in ("InvalidPredicate", "UnknownColumn", "UnsupportedPredicate", "InvalidJobSpec")) or (
        text == "id > 1 -- x" and error["type"] == "ConstraintViolation"
    )
    assert table.snapshot().version == 2


OPAQUE = {
    "true of all": ("length(name) < 10 AND id % 2 >= 0", 0),
    "false of some": ("length(name) > 2 OR name IS NULL", 4),
    "null is false": ("nullif(id, 0) > 0", 1),
    "two rules": ("reverse(reverse(upper(name))) LIKE 'N%' AND id < 1000", 0),
}


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
@pytest.mark.parametrize("name", OPAQUE)
def test_spark_compares_what_tasks_cannot(spark: SparkSession, table: Table, name: str) -> None:
    text, broken = OPAQUE[name]
    result = run(spark, "alter", table, add_constraints={"a": text, "plain": "id >= 0"})
    if not broken:
        committed(result)
        assert table.snapshot().properties["delta.constraints.a"] == text
        append_by_spark = run(spark, "update", table, set={"name": "'X'"}, predicate="id = 1")
        assert (append_by_spark.status == "failed") == ("LIKE" in text)
        return
    error = error_of(result)
    assert (error["type"], table.snapshot().version) == ("ConstraintViolation", 2)
    assert f"{broken} row" in error["message"]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["false of one", "null in a struct that is there", "a renamed column"])
def test_workers_of_spark_compare_the_rows_of_a_large_table(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(SMALL_JOB.setting, "1")
    table = named(tmp_path, *ROWS)
    append(table, ROWS)
    arguments, broken = PLAIN[name]
    error = error_of(run(spark, "alter", table, allow_reader_upgrade=True, **arguments))
    assert f"{2 * broken} rows of the table break" in error["message"]


@pytest.mark.spark
def test_a_default_that_is_more_than_a_constant_is_judged_by_spark(spark: SparkSession, table: Table) -> None:
    committed(run(spark, "alter", table, add_columns={"at": {"type": "DATE", "default": "current_date()"}}))
    bad = {"type": "INT", "default": "id + 1"}
    assert error_of(run(spark, "alter", table, add_columns={"x": bad}))["type"] == "UnsupportedFeature"


# --- races ----------------------------------------------------------------------------------------------------------

RULES: dict[str, dict[str, Any]] = {
    "constraint": {"add_constraints": {"positive": "id >= 0"}},
    "not null": {"set_not_null": ["name"]},
}


@pytest.mark.parametrize("isolation", ["Serializable", "WriteSerializable"])
@pytest.mark.parametrize("rule", RULES)
def test_a_row_that_breaks_the_rule_and_lands_first_is_found(tmp_path: Path, rule: str, isolation: str) -> None:
    table = make_table(tmp_path / "t", rows(4), properties={"delta.isolationLevel": isolation})

    def land(_: object) -> None:
        append(table, [{"id": -1, "day": None, "name": None, "amount": None}])

    with before_commit(land):
        result = run(None, "alter", table, **RULES[rule])
    assert (error_of(result)["type"], table.snapshot().version) == ("ConstraintViolation", 2)
    assert table.snapshot().metadata == table.snapshot(0).metadata


def test_of_rows_that_land_first_only_the_new_files_are_compared(table: Table) -> None:
    log = winning("2 files of 2 to compare", lambda: append(table, rows(2, start=50)))
    result = committed(run(None, "alter", table, log=log, add_constraints={"positive": "id >= 0"}))
    assert (result.attempts, result.version) == (2, 4)
    assert "1 file of 3 to compare with the new rules" in log.lines


def test_a_file_is_compared_again_where_the_rules_read_other_columns(table: Table) -> None:
    def swap(_: object) -> None:
        committed(run(None, "alter", table, rename_columns={"id": "amount", "amount": "id"}, allow_reader_upgrade=True))

    with before_commit(swap):
        error = error_of(run(None, "alter", table, add_constraints={"whole": "id >= 1 OR id = 0"}))
    assert error["type"] == "ConstraintViolation", "amounts of 0.5 are no longer the column's"


def test_an_append_that_lands_later_must_keep_the_rule(table: Table) -> None:
    tx = table.begin()
    tx.add(path="x.parquet", size=1, stats='{"numRecords": 1}')
    committed(run(None, "alter", table, **RULES["constraint"]))
    with pytest.raises(MetadataChanged):
        tx.commit("WRITE")


@pytest.mark.parametrize("rule", RULES)
def test_a_verified_alteration_that_was_killed_is_done_once(table: Table, rule: str) -> None:
    identity = application()
    with killed_before_commit():
        run(None, "alter", table, application=identity, **RULES[rule])
    assert table.snapshot().version == 2
    assert committed(run(None, "alter", table, application=identity, **RULES[rule])).version == 3
    append(table, rows(1, start=60))
    again = run(None, "alter", table, application=identity, **RULES[rule])
    assert (again.status, again.version, ids(table)[-1]) == ("already_done", 3, 60)


STEPS: list[Callable[[str], bool]] = [
    lambda line: line.startswith("alter "),
    lambda line: "to compare" in line,
]


@pytest.mark.parametrize("step", STEPS)
def test_an_alteration_that_dies_at_a_step_leaves_no_file(table: Table, step: Callable[[str], bool]) -> None:
    folder = Path(table.uri.removeprefix("file://"))
    before = sorted(path for path in folder.rglob("*") if path.is_file())

    def log(line: str) -> None:
        if step(line):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(None, "alter", table, log=log, **RULES["constraint"])
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == before
