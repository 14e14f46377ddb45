"""`sync_identity` moves the mark of an identity column past the values of all rows, and never back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.identities import identity_column
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.storage.limits import SMALL_JOB
from tests.helpers.jobs import application, committed, error_of, run
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "delta.identity.highWaterMark"
LEAST, GREATEST = -(2**63), 2**63 - 1


def table_with(folder: Path, values: list[int | None], mark: int | None = None, **facts: Any) -> Table:
    """A table whose rows brought these values along, each row in a file of its own."""
    properties = facts.pop("properties", None)
    column = identity_column("id", takes_values=True, **facts)
    if mark is not None:
        column = StructField("id", column.type, metadata={**column.metadata, MARK: mark})
    table = Table.create(str(folder), StructType((column, StructField("n", Primitive.LONG))), properties=properties)
    for value in values:
        bring(table, value)
    return table


def bring(table: Table, *values: int | None, n: int = 0) -> None:
    """Append rows with values of their own, which move no mark."""
    name = "id" if "id" in table.snapshot().schema.names else "number"
    rows = {name: pa.array(values, pa.int64()), "n": pa.array([n] * len(values), pa.int64())}
    append(table, pa.table(rows))


def sync(table: Table, *names: str, **arguments: Any) -> JobResult:
    return run(None, "alter", table, sync_identity=list(names or ("id",)), **arguments)


def mark(table: Table) -> int | None:
    column = table.snapshot().delta_schema.fields[0]
    return column.metadata.get(MARK)


# Start, step, the mark before, the values in the table, and the mark after.
CASES: dict[str, tuple[int, int, int | None, list[int | None], int | None]] = {
    "no mark yet": (1, 1, None, [7, 3], 7),
    "a value past the mark": (1, 1, 5, [9, None], 9),
    "values before the mark": (1, 1, 5, [4, 5], 5),
    "falling values": (0, -2, -4, [-10, 6], -10),
    "between two values": (1, 10, 11, [12], 21),
    "between two falling values": (0, -10, None, [-1], -10),
    "before the start": (10, 3, None, [9, -5], None),
    "the start itself": (10, 3, None, [10], 10),
    "a mark before the start": (10, 3, 4, [7], 4),
    "a mark before the start, and a value past it": (10, 3, 4, [11], 13),
    "null only": (1, 1, 2, [None], 2),
    "no row": (1, 1, None, [], None),
    "the greatest BIGINT": (1, 1, None, [GREATEST], GREATEST),
    "no value of the column is left": (0, 10, None, [GREATEST], GREATEST - GREATEST % 10),
    "the least BIGINT": (LEAST, 1, None, [LEAST], LEAST),
    "all the way down": (GREATEST, -1, None, [LEAST], LEAST),
}


@pytest.mark.parametrize("case", CASES)
def test_the_mark_moves_to_the_furthest_value_and_never_back(tmp_path: Path, case: str) -> None:
    start, step, before, values, after = CASES[case]
    table = table_with(tmp_path / "t", values, before, start=start, step=step)
    version, result = table.snapshot().version, sync(table)
    assert mark(table) == after
    if before == after:
        assert (result.status, table.snapshot().version) == ("nothing_to_do", version)
        return
    assert committed(result).version == version + 1
    info = table.history()[0]
    assert (info["operation"], info["tags"]) == ("CHANGE COLUMN", {"delta.identity.schemaUpdate": "true"})
    assert sync(table).status == "nothing_to_do"


def test_rows_that_are_written_later_are_numbered_beyond_all_others(tmp_path: Path) -> None:
    table = table_with(tmp_path / "t", [100], 1)
    committed(sync(table))
    append_numbered(table, tmp_path, 1)
    assert sorted(table.to_arrow().column("id").to_pylist()) == [100, 101]


def append_numbered(table: Table, folder: Path, *numbers: int) -> None:
    import pyarrow.parquet as pq

    path = folder / f"source-{numbers[0]}.parquet"
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)
    committed(run(None, "write", table, source={"format": "parquet", "path": str(path)}))


def test_deleted_rows_move_no_mark_and_statistics_spare_the_reading(tmp_path: Path) -> None:
    table = table_with(tmp_path / "t", [3, 4], 4, properties={"delta.enableDeletionVectors": "true"})
    bring(table, 9, 7)
    committed(run(None, "delete", table, predicate="id = 9"))
    lines: list[str] = []
    committed(sync(table, log=lines.append))
    assert mark(table) == 7
    assert "1 file of 3 to look for values of identity columns" in lines
    bring(table, 5)
    assert sync(table, log=lines.append).status == "nothing_to_do"
    assert "1 file of 4 to look for values of identity columns" in lines, "statistics ignore the deletion vector"


def test_other_changes_come_along_and_the_column_has_its_new_name(tmp_path: Path) -> None:
    table = table_with(tmp_path / "t", [8])
    committed(
        sync(table, "number", rename_columns={"id": "number"}, set_not_null=["number"], allow_reader_upgrade=True)
    )
    assert (mark(table), table.snapshot().delta_schema.fields[0].name) == (8, "number")
    assert table.history()[0]["operation"] == "ALTER TABLE"


@pytest.mark.parametrize(("name", "found"), [("n", "['id']"), ("nothing", "there is no column"), ("id.x", "id")])
def test_another_column_is_refused(tmp_path: Path, name: str, found: str) -> None:
    table = table_with(tmp_path / "t", [8])
    error = error_of(sync(table, name))
    assert (error["type"], table.snapshot().version) == ("SchemaMismatch", 1)
    assert found in error["message"]


def test_a_value_that_lands_first_is_passed_too_and_files_are_read_once(tmp_path: Path) -> None:
    table = table_with(tmp_path / "t", [8], properties={"delta.dataSkippingNumIndexedCols": "0"})
    lines: list[str] = []
    with before_commit(lambda tx: bring(table, 50)):
        result = committed(sync(table, log=lines.append))
    assert (result.attempts, mark(table)) == (2, 50)
    looked = [line for line in lines if "to look for" in line]
    assert looked == [f"1 file of {count} to look for values of identity columns" for count in (1, 2)]


def test_rows_that_are_numbered_first_keep_their_values_and_the_mark_passes_them(tmp_path: Path) -> None:
    table = table_with(tmp_path / "t", [8])
    with before_commit(lambda tx: append_numbered(table, tmp_path, 1, 2)):
        assert committed(sync(table)).attempts == 2
    assert mark(table) == 8
    # A job whose values were taken by a synchronization numbers its rows again.
    bring(table, 20)
    with before_commit(lambda tx: committed(sync(table))):
        append_numbered(table, tmp_path, 3)
    assert sorted(table.to_arrow().column("id").to_pylist()) == [1, 2, 8, 20, 21]


@pytest.mark.spark
@pytest.mark.long("the rows of a table that is too large for the job's own process")
def test_workers_of_spark_find_the_furthest_values(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SMALL_JOB.setting, "1")
    table = table_with(tmp_path / "t", [8, 99, 3], 1)
    committed(run(spark, "alter", table, sync_identity=["id"]))
    assert mark(table) == 99


def test_a_killed_synchronization_is_done_once(tmp_path: Path) -> None:
    table, task = table_with(tmp_path / "t", [8]), application()
    with killed_before_commit():
        sync(table, application=task)
    assert mark(table) is None
    bring(table, 9)
    committed(sync(table, application=task))
    assert (mark(table), sync(table, application=task).status) == (9, "already_done")


def test_a_schema_without_a_mark_that_is_no_number_is_refused(tmp_path: Path) -> None:
    table = table_with(tmp_path / "t", [8])
    path = Path(table.uri.removeprefix("file://")) / "_delta_log" / f"{0:020d}.json"
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            schema["fields"][0]["metadata"][MARK] = "8"
            line["metaData"]["schemaString"] = json.dumps(schema)
    path.write_text("\n".join(map(json.dumps, lines)))
    assert error_of(sync(Table.open(table.uri)))["type"] == "CorruptTable"
