"""Rows that a task's Python code writes: exactly once for each call, as they come, without Spark.

A context of small classes holds the facts of a task instance that Airflow keeps, as in `test_identity`. The last test
has a real Airflow.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.datafiles.parquet.physical import VARIANT
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.identities import identity_column
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import (
    AmbiguousMerge,
    ConstraintViolation,
    InvalidJobSpec,
    JobError,
    KeysNotFound,
    PartitionMismatch,
    SchemaMismatch,
)
from airflow_txlog.hooks import identity
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.source import held_rows
from tests.helpers.paths import ROOT
from tests.helpers.specs import job_spec

pytestmark = pytest.mark.airflow

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "day": ["a", "a", "b"], "amount": [0.5, None, 2.5]})


class FileStore:
    """The task state store of one task instance, which outlives a killed process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, key: str, default: Any = None) -> Any:
        return self._values().get(key, default)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.path.write_text(json.dumps({**self._values(), key: value}))

    def _values(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return found


def context_of(store: FileStore, try_number: int = 1, **others: Any) -> dict[str, Any]:
    ti = {
        "id": f"uuid-{try_number}",
        "dag_id": "load",
        "task_id": "rows",
        "run_id": "r1",
        "map_index": -1,
        "try_number": try_number,
        "max_tries": 2,
    }
    return {
        "ti": SimpleNamespace(**ti | others),
        "task": SimpleNamespace(retries=2, on_success_callback=[]),
        "task_state_store": store,
    }


class Task:
    """A task instance whose tries run one after another in this process."""

    def __init__(self, store: FileStore) -> None:
        self.store = store
        self.tries = self.runs = 0

    def run(self, work: Callable[[TxlogHook], Any], **others: Any) -> Any:
        """Do the work as the only try of a new run."""
        self.tries, self.runs = 0, self.runs + 1
        return self.retry(work, **others)

    def retry(self, work: Callable[[TxlogHook], Any], **others: Any) -> Any:
        """Do the work as the next try of the same run; `others` are facts of the task instance."""
        from airflow.sdk.execution_time.context import set_current_context

        self.tries += 1
        store = FileStore(self.store.path.with_name(f"store-{self.runs}.json"))
        self.context = context_of(store, self.tries, **{"run_id": f"r{self.runs}"} | others)
        with set_current_context(self.context):
            return work(TxlogHook())


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(FileStore(tmp_path / "store-1.json"))


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def rows_of(table: str) -> list[dict[str, Any]]:
    return sorted(Table.open(table).to_arrow().to_pylist(), key=lambda row: str(row))


# --- what a task gives ----------------------------------------------------------------------------------------------


def reader(table: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1))


class OtherLibrary:
    """Rows of any library that has Arrow's C stream."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def of_polars(table: pa.Table) -> Any:
    return pl.from_arrow(table)


def of_duckdb(table: pa.Table) -> Any:
    return duckdb.from_arrow(table)


GIVEN = {
    "a table": lambda table: table,
    "a record batch": lambda table: table.combine_chunks().to_batches()[0],
    "a reader": reader,
    "a stream of another library": OtherLibrary,
    "large and viewed texts": lambda table: table.set_column(1, "day", table["day"].cast(pa.large_string())),
    "a dictionary": lambda table: table.set_column(1, "day", table["day"].dictionary_encode()),
    "pandas": lambda table: table.to_pandas(),
    "pandas with a named index": lambda table: table.to_pandas().set_index("day"),
    "pandas after a filter": lambda table: pd.concat([table.to_pandas(), table.to_pandas()]).iloc[3:],
    "polars": of_polars,
    "duckdb": of_duckdb,
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_rows_of_any_library_are_appended_as_they_are(task: Task, table: str, given: Callable[[pa.Table], Any]) -> None:
    result = task.run(lambda hook: hook.append(table, given(ROWS)))
    assert (result.status, result.version, result.metrics["numOutputRows"]) == ("committed", 0, 3)
    assert rows_of(table) == ROWS.to_pylist()


def test_a_table_is_created_partitioned_and_with_properties_by_the_first_append(task: Task, table: str) -> None:
    properties = {"delta.enableDeletionVectors": "true"}
    task.run(lambda hook: hook.append(table, ROWS, partition_by="day", properties=properties))
    snapshot = Table.open(table).snapshot()
    assert list(snapshot.partition_columns) == ["day"]
    assert snapshot.metadata.configuration["delta.enableDeletionVectors"] == "true"
    assert rows_of(table) == ROWS.to_pylist()


@pytest.mark.parametrize("method", ["append", "overwrite"])
def test_a_table_is_created_clustered_by_the_first_call(task: Task, table: str, method: str) -> None:
    task.run(lambda hook: getattr(hook, method)(table, ROWS, cluster_by=["day", "id"]))
    domain = Table.open(table).snapshot().state.domains["delta.clustering"]
    assert '"clusteringColumns":[["day"],["id"]]' in domain.configuration
    assert rows_of(table) == ROWS.to_pylist()


def test_an_overwrite_of_partitions_replaces_those_of_the_rows_alone(task: Task, table: str) -> None:
    task.run(lambda hook: hook.append(table, ROWS, partition_by="day"))
    new = pd.DataFrame({"id": [9], "day": ["a"], "amount": [1.0]})
    task.run(lambda hook: hook.overwrite(table, new, mode="overwrite_partitions"))
    assert rows_of(table) == [ROWS.to_pylist()[2], {"id": 9, "day": "a", "amount": 1.0}]


def test_an_upsert_updates_and_inserts_and_a_delete_takes_the_keys_of_a_frame(task: Task, table: str) -> None:
    def work(hook: TxlogHook) -> tuple[JobResult, JobResult]:
        hook.append(table, ROWS)
        upserted = hook.upsert(table, pd.DataFrame({"id": [3, 4], "day": ["b", "c"], "amount": [7, 8]}), keys="id")
        return upserted, hook.delete(table, keys=reader(pa.table({"person": [1, 2, 77]})), key_column="id")

    upserted, deleted = task.run(work)
    assert (upserted.metrics["numTargetRowsUpdated"], upserted.metrics["numTargetRowsInserted"]) == (1, 1)
    assert (deleted.metrics["numDeletedRows"], deleted.metrics["numKeys"]) == (2, 3)
    assert rows_of(table) == [{"id": 3, "day": "b", "amount": 7.0}, {"id": 4, "day": "c", "amount": 8.0}]


def test_rows_are_numbered_by_a_table_with_an_identity_column(task: Task, table: str) -> None:
    columns = StructType(
        (identity_column("key"), StructField("id", Primitive.LONG), StructField("day", Primitive.STRING))
    )
    Table.create(table, columns)

    def work(hook: TxlogHook) -> None:
        hook.append(table, reader(pa.table({"id": [1, 2], "day": ["a", "a"]})))
        hook.upsert(table, pd.DataFrame({"id": [2, 3], "day": ["b", "b"]}), keys="id")
        hook.overwrite(table, pa.table({"id": [3, 4], "day": ["c", "c"]}), replace_using="id")

    task.run(work)
    found = sorted((row["id"], row["key"], row["day"]) for row in rows_of(table))
    assert found == [(1, 1, "a"), (2, 2, "b"), (3, 4, "c"), (4, 5, "c")]


def test_variants_go_on_as_a_table_has_given_them(task: Task, table: str) -> None:
    rows = pa.table({"id": [1, 2], "v": pa.array([{"value": b"\x0c\x07", "metadata": b"\x01\x00\x00"}, None], VARIANT)})

    def work(hook: TxlogHook) -> None:
        hook.append(table, rows)
        hook.upsert(table, Table.open(table).to_arrow(predicate="id = 1"), keys="id")

    task.run(work)
    assert str(Table.open(table).snapshot().delta_schema) == "struct<id:long,v:variant>"
    assert rows_of(table) == rows.to_pylist()


def test_a_delete_takes_a_predicate_or_a_list_too(task: Task, table: str) -> None:
    def work(hook: TxlogHook) -> None:
        hook.append(table, ROWS)
        hook.delete(table, "day = :day", parameters={"day": "b"})
        hook.delete(table, keys=[1], key_column="id")

    task.run(work)
    assert rows_of(table) == [ROWS.to_pylist()[1]]


@pytest.mark.parametrize("arguments", [{}, {"predicate": "id = 1", "keys": [1]}, {"keys": [1]}, {"key_column": "id"}])
def test_a_delete_without_exactly_one_of_its_two_ways_is_refused(
    task: Task, table: str, arguments: dict[str, Any]
) -> None:
    task.run(lambda hook: hook.append(table, ROWS))
    with pytest.raises(InvalidJobSpec):
        task.run(lambda hook: hook.delete(table, **arguments))
    assert Table.open(table).latest_version() == 0


# --- types ----------------------------------------------------------------------------------------------------------

UTC_TIME = pa.timestamp("us", tz="UTC")
FITS = [
    (pa.int64(), pa.int32(), [1, None]),
    (pa.uint8(), pa.int64(), [255]),
    (pa.int64(), pa.float64(), [1, 2**53]),
    (pa.int32(), pa.decimal128(12, 2), [7]),
    (pa.int64(), pa.decimal128(10, 2), [7, -99999999, None]),
    (pa.int8(), pa.decimal128(38, 37), [9]),
    (pa.decimal128(6, 1), pa.decimal128(8, 3), [None]),
    (pa.uint64(), pa.int64(), [2**63 - 1, None]),
    (pa.uint64(), pa.decimal128(20, 0), [2**64 - 1]),
    (pa.decimal128(38, 0), pa.int32(), [7, None]),
    (pa.float32(), pa.float64(), [0.5]),
    (pa.null(), pa.string(), [None]),
    (pa.timestamp("ns"), UTC_TIME, [pd.Timestamp("2024-01-01 10:00:00.000001")]),
    (pa.timestamp("s", tz="Europe/Berlin"), pa.timestamp("us"), [0]),
    (pa.date32(), pa.timestamp("us"), [0]),
    (pa.list_(pa.int64()), pa.list_(pa.int16()), [[1], None]),
    (pa.list_view(pa.int64()), pa.list_(pa.int16()), [[1, 2], None, [], [3]]),
    (pa.large_list_view(pa.int64()), pa.list_(pa.int64()), [None, [1]]),
    (pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int32()), ("y", pa.string())]), [{"x": 1}]),
    (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32()), [[("k", 1)]]),
]
REFUSED = [
    (pa.float64(), pa.int64(), [1.0]),
    (pa.string(), pa.int64(), ["1"]),
    (pa.int64(), pa.string(), [1]),
    (pa.decimal128(6, 3), pa.decimal128(8, 2), [None]),
    (pa.decimal128(6, 1), pa.int64(), [None]),
    (UTC_TIME, pa.date32(), [0]),
    (pa.struct([("x", pa.int32()), ("z", pa.int32())]), pa.struct([("x", pa.int32())]), [{"x": 1, "z": 2}]),
    # Of a type that fits, one value does not.
    (pa.int64(), pa.int32(), [2**40]),
    (pa.uint64(), pa.int64(), [2**63]),
    (pa.decimal128(38, 0), pa.int64(), [10**30]),
    (pa.int64(), pa.float64(), [2**53 + 1]),
    (pa.int64(), pa.decimal128(10, 2), [10**8]),
    (pa.timestamp("ns"), UTC_TIME, [1]),
]


@pytest.mark.parametrize(("given", "wanted", "values"), FITS, ids=lambda value: str(value)[:40])
def test_a_column_takes_the_type_of_the_table_if_no_value_changes(
    task: Task, table: str, given: pa.DataType, wanted: pa.DataType, values: list[Any]
) -> None:
    Table.create(table, pa.schema([("id", pa.int64()), ("c", wanted)]))
    rows = pa.table({"id": range(len(values)), "C": pa.array(values, given)})
    task.run(lambda hook: hook.append(table, rows))
    read = Table.open(table).to_arrow()
    assert read.schema.field("c").type == wanted
    assert read["c"].null_count == rows["C"].null_count
    if not (pa.types.is_nested(wanted) or pa.types.is_null(given)):
        assert pc.all(pc.equal(read["c"].cast(given), rows["C"])).as_py() is not False
    if not pa.types.is_struct(wanted):  # an update would lose the values of the member that the rows lack
        # An upsert stores the same: its rows are written down first.
        task.run(lambda hook: hook.upsert(table, rows, keys="id"))
        assert Table.open(table).to_arrow()["c"].null_count == rows["C"].null_count


def test_lists_and_repeated_values_are_stored_in_whatever_form_they_come(task: Task, table: str) -> None:
    values, lengths = pa.array([7, 8, 9], pa.int64()), pa.array([2, 1, 0], pa.int32())
    views = pa.ListViewArray.from_arrays(pa.array([1, 0, 0], pa.int32()), lengths, values)
    repeated = pc.run_end_encode(pa.array(["x", "x", None]))
    rows = pa.table({"views": views, "repeated": repeated})
    task.run(lambda hook: hook.append(table, rows))
    read = Table.open(table).to_arrow().to_pydict()
    assert read == {"views": [[8, 9], [7], []], "repeated": ["x", "x", None]}


@pytest.mark.parametrize(("given", "wanted", "values"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_column_that_would_lose_a_value_is_a_schema_mismatch_and_nothing_is_left(
    task: Task, tmp_path: Path, table: str, given: pa.DataType, wanted: pa.DataType, values: list[Any]
) -> None:
    Table.create(table, pa.schema([("id", pa.int64()), ("c", wanted)]))
    rows = pa.table({"id": range(len(values)), "c": pa.array(values, given)})
    for work in (lambda hook: hook.append(table, rows), lambda hook: hook.upsert(table, rows, keys="id")):
        with pytest.raises(SchemaMismatch) as caught:
            task.run(work)
        assert caught.value.columns in (["c"], ["c.x"])
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_that_lack_a_not_null_column_or_hold_a_null_there_break_the_constraint(task: Task, table: str) -> None:
    Table.create(table, pa.schema([pa.field("id", pa.int64(), nullable=False), ("c", pa.string())]))
    for rows in (pa.table({"c": ["x"]}), pa.table({"id": pa.array([None], pa.int64())})):
        with pytest.raises(ConstraintViolation):
            task.run(lambda hook, rows=rows: hook.append(table, rows))
    assert rows_of(table) == []


def test_an_index_of_pandas_with_the_name_of_a_column_is_a_schema_mismatch(task: Task, table: str) -> None:
    frame = ROWS.to_pandas().set_index("id", drop=False)
    with pytest.raises(SchemaMismatch, match=r"same name: \['id'\].*reset_index") as caught:
        task.run(lambda hook: hook.append(table, frame))
    assert caught.value.columns == ["id"]


SECRET = 71_717_171_717
UNFIT_VALUES = {
    "two types in pandas": pd.DataFrame({"id": [1, f"secret-{SECRET}"], "day": ["a", "b"]}),
    "too large a number": pa.table({"id": [1, SECRET], "day": ["a", "b"]}),
    "a time beyond microseconds": pa.table({"at": pa.array([SECRET], pa.timestamp("ns")), "id": [1]}),
    "a partition that is no text": pa.table({"id": [1], "day": pa.array([b"\xff71717171717"], pa.binary())}),
}


@pytest.mark.parametrize("name", UNFIT_VALUES)
def test_neither_a_message_nor_its_causes_quote_a_value(task: Task, table: str, name: str) -> None:
    """A traceback shows the causes, too, and the texts of Arrow's quote values."""
    columns = {"id": pa.int32(), "day": pa.binary() if "no text" in name else pa.string(), "at": pa.timestamp("us")}
    Table.create(table, pa.schema(columns), partition_by=["day"])
    with pytest.raises(SchemaMismatch) as caught:
        task.run(lambda hook: hook.append(table, UNFIT_VALUES[name]))
    assert "71717171717" not in "".join(traceback.format_exception(caught.value))


def test_a_row_outside_of_the_partitions_is_refused_without_its_value(task: Task, table: str) -> None:
    task.run(lambda hook: hook.append(table, ROWS, partition_by=["day"]))
    with pytest.raises(PartitionMismatch, match=r"a partition of day that .* does not accept") as caught:
        task.run(lambda hook: hook.overwrite(table, ROWS, partition_predicate="day = 'a'"))
    assert caught.value.partition == {"day": "b"}
    assert "'b'" not in str(caught.value)


def test_new_columns_need_schema_evolution(task: Task, table: str) -> None:
    task.run(lambda hook: hook.append(table, ROWS))
    wider = ROWS.append_column("note", pa.array(["x", "y", "z"]))
    with pytest.raises(SchemaMismatch, match=r"note: the table has no such column\. schema_evolution=True") as caught:
        task.run(lambda hook: hook.append(table, wider))
    assert re.search(r"^  id +bigint +bigint$", str(caught.value), re.MULTILINE), "as an operator spells the types"
    task.run(lambda hook: hook.append(table, wider, schema_evolution=True))
    assert sorted(row["note"] or "" for row in rows_of(table)) == ["", "", "", "x", "y", "z"]


UNFIT = {
    "nothing": None,
    "a list": [{"id": 1}],
    "a dict": {"id": [1]},
    "a text": "/in/rows.parquet",
    "no columns": pd.DataFrame(),
    "two names that differ in case": pa.table({"id": [1], "ID": [2]}),
    "a time of the day": pa.table({"id": pa.array([1], pa.time64("us"))}),
    "values of two types": pd.DataFrame({"id": [1, "x"]}),
    "a reserved name": pa.table({"_txlog_row": [1]}),
    "an array": pa.array([1]),
}


@pytest.mark.parametrize("rows", UNFIT.values(), ids=UNFIT)
def test_what_no_table_can_hold_is_refused_before_the_folder_exists(task: Task, table: str, rows: Any) -> None:
    with pytest.raises((InvalidJobSpec, SchemaMismatch)) as caught:
        task.run(lambda hook: hook.append(table, rows))
    assert "'x'" not in str(caught.value), "no value of a row"
    assert "operator" not in str(caught.value)
    assert getattr(caught.value, "argument", "rows") == "rows"
    assert not Path(table).exists()


def test_the_rules_of_an_upsert_and_of_a_delete_hold(task: Task, table: str) -> None:
    task.run(lambda hook: hook.append(table, ROWS))
    with pytest.raises(AmbiguousMerge):
        task.run(lambda hook: hook.upsert(table, pa.concat_tables([ROWS, ROWS]), keys=["id"]))
    with pytest.raises(SchemaMismatch, match="day: the source has no such column"):
        task.run(lambda hook: hook.upsert(table, ROWS.drop_columns("day"), keys=["id"]))
    with pytest.raises(KeysNotFound):
        task.run(lambda hook: hook.delete(table, keys=pa.table({"id": [9]}), key_column="id", require_match=True))
    assert rows_of(table) == ROWS.to_pylist()


# --- exactly once ---------------------------------------------------------------------------------------------------


def test_a_retry_does_none_of_the_calls_again_that_the_first_try_has_committed(
    task: Task, tmp_path: Path, table: str
) -> None:
    other = str(tmp_path / "other")

    def work(hook: TxlogHook, *, until: int) -> list[str]:
        done = []
        for number, (where, first) in enumerate([(table, 0), (other, 10), (table, 20), (table, 30)]):
            if number == until:
                raise ConnectionError
            ids = pa.table({"id": [first]})
            done.append(hook.append(where, ids).status)
        return done

    with pytest.raises(ConnectionError):
        task.run(lambda hook: work(hook, until=3))
    assert task.retry(lambda hook: work(hook, until=9)) == ["already_done"] * 3 + ["committed"]
    assert [row["id"] for row in rows_of(table)] == [0, 20, 30]
    assert [row["id"] for row in rows_of(other)] == [10]


def test_spellings_of_one_table_are_pieces_of_work_of_their_own(task: Task, tmp_path: Path, table: str) -> None:
    (tmp_path / "link").symlink_to(table)

    def work(hook: TxlogHook) -> None:
        hook.append(table, ROWS)
        hook.append(f"file://{table}", ROWS)
        hook.append(str(tmp_path / "link"), ROWS)

    task.run(work)
    task.retry(work)
    assert len(rows_of(table)) == 9


def test_a_task_that_is_resumed_after_a_deferral_goes_on_with_other_calls(task: Task, table: str) -> None:
    """Airflow resumes the same try in a new process, in the method that the task has named."""
    resumed = {"_ti_context_from_server": SimpleNamespace(next_method="resume")}

    def resume() -> Any:
        identity._calls.clear()
        task.tries -= 1
        return task.retry(lambda hook: hook.append(table, ROWS), **resumed).status

    assert task.run(lambda hook: hook.append(table, ROWS)).status == "committed"
    assert resume() == "committed"
    assert task.retry(lambda hook: hook.append(table, ROWS)).status == "already_done"
    assert resume() == "already_done"
    assert len(rows_of(table)) == 6


def test_a_call_that_fails_before_the_table_is_found_counts_too(
    task: Task, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(hook: TxlogHook) -> list[str]:
        return [append_page(hook, page) for page in ("a", "b")]

    def append_page(hook: TxlogHook, page: str) -> str:
        try:
            return hook.append(table, pa.table({"page": [page]})).status
        except ConnectionError:
            return "failed"

    answers: Iterator[str | None] = iter([None])

    def table_uri(hook: TxlogHook, table: str) -> str:
        if next(answers, table) is None:
            raise ConnectionError("Airflow does not answer")
        return table

    monkeypatch.setattr(TxlogHook, "table_uri", table_uri)
    assert task.run(work) == ["failed", "committed"]
    assert task.retry(work) == ["committed", "already_done"]
    assert [row["page"] for row in rows_of(table)] == ["a", "b"]


def test_tasks_runs_and_mapped_instances_are_different_work(task: Task, table: str) -> None:
    facts: list[dict[str, Any]] = [{}, {"map_index": 1}, {"run_id": "other"}, {"task_id": "other"}]
    for fact in facts:
        task.run(lambda hook: hook.append(table, ROWS), **{"run_id": "r"} | fact)
    assert len(rows_of(table)) == 12


@pytest.mark.parametrize("how", ["airflow raises max_tries", "the success was kept"])
def test_a_cleared_task_is_new_work(task: Task, table: str, how: str) -> None:
    task.run(lambda hook: hook.append(table, ROWS))
    if how == "the success was kept":
        for callback in task.context["task"].on_success_callback:
            callback(task.context)
    max_tries = 3 if how == "airflow raises max_tries" else 2
    assert task.retry(lambda hook: hook.append(table, ROWS), max_tries=max_tries).status == "committed"
    assert len(rows_of(table)) == 6


def test_a_key_of_the_author_is_done_once_and_needs_no_task(task: Task, table: str) -> None:
    hook = TxlogHook()
    assert hook.append(table, ROWS, idempotency_key="a").status == "committed"
    assert hook.append(table, ROWS, idempotency_key="a").status == "already_done"
    assert task.run(lambda hook: hook.append(table, ROWS, idempotency_key="a")).status == "already_done"
    with pytest.raises(InvalidJobSpec, match="idempotency_key"):
        hook.append(table, ROWS)
    assert len(rows_of(table)) == 3


@pytest.mark.parametrize("method", ["append", "overwrite", "upsert"])
def test_a_key_that_was_used_for_another_number_of_rows_is_warned_of(
    table: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(given: Any) -> tuple[str, list[str]]:
        capsys.readouterr()
        others = {"keys": "id"} if method == "upsert" else {}
        result = getattr(TxlogHook(), method)(table, given, idempotency_key="load", **others)
        lines = capsys.readouterr().out.splitlines()
        return result.status, [line for line in lines if "warning" in line and "idempotency_key" in line]

    TxlogHook().append(table, ROWS, idempotency_key="first")
    assert work(ROWS) == ("committed", [])
    assert work(ROWS) == work(reader(ROWS[:1])) == ("already_done", [])
    for fewer in (ROWS[:1], ROWS[:1].to_pandas(), of_polars(ROWS[:1])):
        status, (line,) = work(fewer)
        assert status == "already_done"
        assert "at version 1, with 3 rows. This call, with 1 row, wrote nothing." in line
    for status in ("committed", "already_done"):
        # Fewer rows than were given are written then.
        doubled = pa.concat_tables([ROWS, ROWS])
        assert TxlogHook().append(table, doubled, idempotency_key="2", deduplicate_by=["id"]).status == status
    assert "wrote nothing" not in capsys.readouterr().out
    # As PySpark's: to count its rows is to read them.
    stream = {"__arrow_c_stream__": lambda self, schema=None: ROWS[:1].__arrow_c_stream__(schema)}
    assert work(type("DataFrame", (), stream)()) == ("already_done", [])


def test_calls_with_a_key_may_change_in_number_and_order_between_two_tries(task: Task, table: str) -> None:
    def work(hook: TxlogHook, pages: str) -> list[str]:
        done = [hook.append(table, pa.table({"page": [page]}), idempotency_key=f"r/{page}") for page in pages]
        return [each.status for each in [*done, hook.append(table, pa.table({"page": ["sum"]}))]]

    assert task.run(lambda hook: work(hook, "ab")) == ["committed"] * 3
    assert task.retry(lambda hook: work(hook, "cba")) == ["committed", "already_done", "already_done", "already_done"]
    assert sorted(row["page"] for row in rows_of(table)) == ["a", "b", "c", "sum"]


@pytest.mark.parametrize("when", ["while it reads", "after its commit"])
def test_a_task_that_is_killed_and_retried_has_each_row_once(task: Task, table: str, when: str) -> None:
    """The first try runs in a new process, and SIGKILL ends it in its second call."""
    code = f"""
        import os, signal
        import pyarrow as pa
        from pathlib import Path
        from airflow.sdk.execution_time.context import set_current_context
        from airflow_txlog.hooks import task_rows
        from airflow_txlog.hooks.txlog import TxlogHook
        from tests.airflow.test_task_rows import FileStore, context_of

        def kill(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        def batches():
            yield pa.record_batch({{"id": [2]}})
            if {when!r} == "while it reads":
                kill()

        with set_current_context(context_of(FileStore(Path({str(task.store.path)!r})), run_id="r1")):
            hook = TxlogHook()
            hook.append({table!r}, pa.table({{"id": [1]}}))
            if {when!r} == "after its commit":
                task_rows.summary_lines = kill
            hook.append({table!r}, pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches()))
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    killed_after_commit = when == "after its commit"
    assert len(rows_of(table)) == (2 if killed_after_commit else 1)
    task.runs = task.tries = 1

    def work(hook: TxlogHook) -> list[str]:
        return [hook.append(table, pa.table({"id": [number]})).status for number in (1, 2)]

    assert task.retry(work) == ["already_done", "already_done" if killed_after_commit else "committed"]
    assert [row["id"] for row in rows_of(table)] == [1, 2]


def test_an_error_of_the_tasks_own_stream_is_raised_as_it_is_and_nothing_is_left(task: Task, table: str) -> None:
    class TooManyRequests(Exception):
        pass

    def pages() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise TooManyRequests("page 2")

    stream = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), pages())
    with pytest.raises(TooManyRequests, match="page 2"):
        task.run(lambda hook: hook.append(table, stream))
    assert not list(Path(table).rglob("*.parquet"))
    assert task.run(lambda hook: hook.append(table, pa.table({"id": [1]}))).status == "committed"


def test_an_error_of_the_stream_leaves_no_file_of_any_of_several_writers(
    task: Task, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_rows, "_FEW_BYTES", 1)

    def pages() -> Iterator[pa.RecordBatch]:
        for number in range(50):
            time.sleep(0.002)
            yield pa.record_batch({"id": [number]})
        raise ConnectionError("page 50")

    stream = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), pages())
    with pytest.raises(ConnectionError, match="page 50"):
        task.run(lambda hook: hook.append(table, stream))
    assert not list(Path(table).rglob("*.parquet"))


def test_rules_that_change_while_a_stream_is_written_end_the_try_and_its_retry_follows_them(
    task: Task, table: str
) -> None:
    task.run(lambda hook: hook.append(table, ROWS))
    wider = ROWS.append_column("note", pa.array(["x", "y", "z"]))

    def batches() -> Iterator[pa.RecordBatch]:
        TxlogHook().append(table, wider, schema_evolution=True, idempotency_key="another writer")
        yield pa.record_batch({"id": [4]})

    stream = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
    with pytest.raises(JobError, match="were read already") as caught:
        task.run(lambda hook: hook.append(table, stream))
    assert caught.value.retryable
    assert task.retry(lambda hook: hook.append(table, pa.table({"id": [4]}))).status == "committed"
    assert len(rows_of(table)) == 7


def test_a_writer_that_appends_meanwhile_does_not_have_the_stream_read_again(task: Task, table: str) -> None:
    task.run(lambda hook: hook.append(table, ROWS))

    def batches() -> Iterator[pa.RecordBatch]:
        TxlogHook().append(table, ROWS, idempotency_key="another writer")
        yield pa.record_batch({"id": [3], "day": ["c"], "amount": [1.0]})

    stream = pa.RecordBatchReader.from_batches(ROWS.schema, batches())
    assert task.run(lambda hook: hook.overwrite(table, stream)).version == 2
    assert [row["day"] for row in rows_of(table)] == ["c"], "an overwrite replaces what landed before its commit"


@pytest.mark.long("it starts a Spark of its own")
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_table_with_rules_in_sql_has_them_checked_by_the_spark_of_the_process(task: Task, table: str) -> None:
    properties = {"delta.constraints.positive": "amount > 0"}
    task.run(lambda hook: hook.append(table, ROWS.slice(2), properties=properties))
    for work in (
        lambda hook: hook.append(table, pa.table({"id": [4], "day": ["c"], "amount": [-1]})),
        lambda hook: hook.upsert(table, pa.table({"id": [4], "day": ["c"], "amount": [-1]}), keys="id"),
    ):
        with pytest.raises(ConstraintViolation):
            task.run(work)
    task.run(lambda hook: hook.upsert(table, reader(ROWS.slice(0, 1)), keys="id"))
    task.run(lambda hook: hook.overwrite(table, ROWS.slice(2), replace_where="id > 1"))
    assert rows_of(table) == [ROWS.to_pylist()[0], ROWS.to_pylist()[2]]


def test_no_operator_takes_rows_of_a_process(tmp_path: Path) -> None:
    result = run_job(
        job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": {"rows": "in_process"}}), None
    )
    assert isinstance(result.typed_error(), InvalidJobSpec)


# --- large streams --------------------------------------------------------------------------------------------------


@pytest.mark.long("1.5 GB of rows")
def test_a_stream_is_written_as_it_comes_and_in_files_of_good_size(task: Task, table: str) -> None:
    """1.5 GB of rows that do not compress, through a process that may not grow by half of it."""
    code = f"""
        import os, resource
        import numpy as np
        import pyarrow as pa
        from airflow_txlog.hooks.txlog import TxlogHook

        schema = pa.schema([("id", pa.int64()), ("text", pa.binary(64))])
        rng = np.random.default_rng(7)

        def batches():
            for number in range(300):
                ids = pa.array(np.arange(number * 70_000, (number + 1) * 70_000))
                buffers = [None, pa.py_buffer(rng.bytes(70_000 * 64))]
                texts = pa.FixedSizeBinaryArray.from_buffers(pa.binary(64), 70_000, buffers)
                yield pa.record_batch([ids, texts], schema)

        hook, stream = TxlogHook(), pa.RecordBatchReader.from_batches(schema, batches())
        hook.append({table!r}, pa.table({{"id": [-1], "text": [b"x"]}}), idempotency_key="warm")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = hook.append({table!r}, stream, idempotency_key="k")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print("GROWN", grown // 1024, result.metrics["numOutputRows"], result.files["added"])
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("GROWN")]
    _, mib, rows, files = line.split()
    assert (int(rows), int(files) <= 12) == (21_000_000, True)
    assert int(mib) < 750, "1.5 GB came through"
