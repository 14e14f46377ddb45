"""Alone in showing that one job erases a subject from a table, whatever its key, and continues after a kill."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import signal
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import FileView, KeySource, QuerySource
from airflow_txlog.contract.parameters import encode_parameter
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidInput, InvalidJobSpec
from airflow_txlog.jobs.source.given_keys import key_source_column
from airflow_txlog.storage import LocalStore
from tests.engine.erasure.test_removal import FEED, OTHERS, SUBJECT, VECTORS, folder_of, is_gone, rows
from tests.helpers.depth import depth
from tests.helpers.jobs import application, committed, error_of, run, tried_without_spark
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def erase(table: Table, *values: Any, column: str = "email", **more: Any) -> JobResult:
    keys = {"column": column, "values": encode_parameter(list(values or (SUBJECT,)), "keys")}
    return run(None, "erase", table, **{"subjects": keys, "writer_hours": 0, **more})


def test_one_job_deletes_purges_removes_and_cuts_and_shows_no_value(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS), rows(SUBJECT, *OTHERS), properties=VECTORS | FEED)
    lines: list[str] = []
    result = committed(erase(table, log=lines.append))
    assert is_gone(table)
    assert table.to_arrow().num_rows == 6
    assert result.metrics == {
        "numSubjects": 1,
        "numDeletedRows": 2,
        "numRemovedFiles": 2,
        "numDeletedFiles": 2,
        "numDeletedLogFiles": result.metrics["numDeletedLogFiles"],
    }
    done = result.details.erasure
    assert done is not None
    assert [step["name"] for step in done["steps"]] == ["delete", "purge", "remove"]
    assert done["cut"] == result.version == table.snapshot().version
    assert (done["waits"], done["until_ms"]) == ([], None)
    assert any("versions can be read from 0 on" in line for line in lines)
    assert SUBJECT not in repr((result, lines))
    again = erase(table)
    assert again.status == "nothing_to_do"
    assert again.version == result.version


def test_subjects_of_a_file_and_of_a_member_of_a_struct(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("customer", pa.struct([("mail", pa.string()), ("n", pa.int32())]))])
    data = [{"id": each, "customer": {"mail": mail, "n": each}} for each, mail in enumerate([SUBJECT, *OTHERS])]
    table = make_table(tmp_path / "t", pa.Table.from_pylist(data, schema), properties=VECTORS)
    (tmp_path / "requests").mkdir()
    pq.write_table(pa.table({"who": [SUBJECT], "when": ["monday"]}), tmp_path / "requests" / "1.parquet")
    source = {"format": "parquet", "path": str(tmp_path / "requests")}
    keys = {"column": "customer.mail", "source": source, "source_column": "who"}
    committed(erase(table, subjects=keys))
    assert is_gone(table, column="customer.mail")
    assert table.to_arrow().column("id").to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("key", [SUBJECT, "4711", "1990-02-03", str(uuid.UUID(int=7))])
@pytest.mark.parametrize("source_column", [None, "email"])
def test_the_first_subject_of_a_file_without_a_header_is_not_lost_as_the_name_of_the_column(
    tmp_path: Path, key: str, source_column: str | None
) -> None:
    table = make_table(tmp_path / "t", rows(key, *OTHERS))
    # As a CSV file is read whose first row is taken for a header.
    pq.write_table(pa.table({key: OTHERS[:1]}), tmp_path / "requests.parquet")
    source = {"format": "parquet", "path": str(tmp_path / "requests.parquet")}
    lines: list[str] = []
    keys = {"column": "email", "source": source, "source_column": source_column}
    error = error_of(run(None, "erase", table, subjects=keys, writer_hours=0, log=lines.append))
    assert error["type"] == "InvalidJobSpec"
    assert key not in repr((error, lines))
    assert table.to_arrow().num_rows == 4


@pytest.mark.parametrize("first", ["C-1001", "DE02120300000000202051", "alice"])
def test_the_first_row_of_a_csv_file_is_the_name_of_a_column_only_if_it_names_the_key(first: str) -> None:
    view = FileView(format="csv", path="/in", options={"Header": "True"})
    query = QuerySource(sql="SELECT * FROM v", views={"v": view})
    sources: tuple[FileView | QuerySource, ...] = (view, query)
    for source in sources:
        for names in ([first], [first, "2026-01-01"]):
            with pytest.raises(InvalidJobSpec, match=r"source_column.*header.*schema") as caught:
                key_source_column(KeySource(column="email", source=source), names)
            assert first not in str(caught.value)
        assert key_source_column(KeySource(column="email", source=source), ["EMAIL"]) == "EMAIL"
        named = KeySource(column="email", source=source, source_column="who")
        assert key_source_column(named, ["Who"]) == "Who"
    checked = FileView(format="csv", path="/in", options={"header": "true"}, schema="who STRING")
    assert key_source_column(KeySource(column="email", source=checked), ["who"]) == "who"


@pytest.mark.parametrize(
    ("kind", "key", "given"),
    [
        (pa.float32(), 16_777_216.0, 16_777_217.0),
        (pa.decimal128(10, 2), Decimal("7.12"), 7.125),
        (pa.date32(), dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)),
        (pa.int64(), 1, True),
        (pa.string(), "7", 7),
        (pa.int64(), 7, "007"),
        (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.date(2020, 1, 1)),
    ],
    ids=str,
)
def test_a_subject_is_not_rounded_to_another_one(tmp_path: Path, kind: pa.DataType, key: Any, given: Any) -> None:
    table = make_table(tmp_path / "t", pa.table({"key": pa.array([key], kind)}))
    assert error_of(erase(table, given, column="key"))["type"] == "InvalidInput"
    assert table.to_arrow().num_rows == 1
    assert list(table.find_traces("key", [key]))
    with pytest.raises(InvalidInput):
        list(table.find_traces("key", [given]))


@pytest.mark.long("ten tables")
@pytest.mark.parametrize(
    ("kind", "key", "other"),
    [
        (pa.int32(), 731_955_201, 7),
        (pa.decimal128(20, 2), Decimal("731955201.50"), Decimal("1.00")),
        (pa.date32(), dt.date(1931, 5, 7), dt.date(2000, 1, 1)),
        (pa.binary(), uuid.uuid4().bytes, uuid.uuid4().bytes),
        (pa.string(), "O'Brien \\ ü@example.org", "x"),
    ],
    ids=["integer", "decimal", "date", "bytes", "text with quotes"],
)
def test_keys_of_every_type_are_erased_also_where_they_name_partitions(
    tmp_path: Path, kind: pa.DataType, key: Any, other: Any
) -> None:
    schema = pa.schema([("key", kind), ("n", pa.int64())])
    data = pa.table({"key": pa.array([key, other, None], kind), "n": [1, 2, 3]}, schema=schema)
    for name, partition_by in (("flat", ()), ("folders", ("key",))):
        if partition_by and pa.types.is_binary(kind):
            continue
        table = make_table(tmp_path / name, data, data, partition_by=partition_by, properties=VECTORS)
        committed(erase(table, key, column="key"))
        assert [each for each in table.find_traces("key", [key]) if not each.passes] == []
        assert sorted(table.to_arrow().column("n").to_pylist()) == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("kind", "key", "properties"),
    [
        (pa.int64(), 1, {"delta.columnMapping.mode": "name"}),
        (pa.decimal128(10, 0), Decimal(10), {}),
        (pa.string(), "true", {}),
    ],
    ids=["id of a column", "precision of the type", "word of the schema"],
)
def test_what_the_schema_says_of_the_key_is_no_value_of_it(
    tmp_path: Path, kind: pa.DataType, key: Any, properties: dict[str, str]
) -> None:
    """Otherwise no checkpoint is free of it, and the erasure is never complete."""
    data = pa.table({"key": pa.array([key, None], kind)})
    table = make_table(tmp_path / "t", data, properties=VECTORS | properties)
    committed(erase(table, key, column="key"))
    assert [each for each in table.find_traces("key", [key]) if not each.passes] == []


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize("is_alone", [False, True])
def test_the_key_of_another_person_that_holds_the_value_stays_and_ends_no_erasure(
    tmp_path: Path, kind: pa.DataType, *, is_alone: bool
) -> None:
    keys = pa.array(["alice", "malice"], kind)
    data = pa.table({"key": keys, "n": [1, 2]})
    parts = [data.slice(0, 1), data.slice(1)] if is_alone else [data]
    properties = VECTORS | {"delta.checkpoint.writeStatsAsStruct": "true"}
    table = make_table(tmp_path / "t", *parts, properties=properties)
    committed(erase(table, keys[0].as_py(), column="key"))
    assert table.to_arrow().column("n").to_pylist() == [2]
    assert [each for each in table.find_traces("key", keys[:1].to_pylist()) if not each.passes] == []
    assert [each for each in table.find_traces("key", keys[1:].to_pylist()) if not each.passes]


@pytest.mark.spark
@pytest.mark.parametrize("value", [1.5, 0.0, -0.0])
def test_a_step_that_goes_on_in_spark_finds_its_keys_again(tmp_path: Path, spark: SparkSession, value: float) -> None:
    data = pa.table({"key": pa.array([0.0, -0.0, 1.5, 2.0, None]), "n": [0, 1, 2, 3, 4]})
    table = make_table(tmp_path / "t", data, properties=VECTORS)
    keys = {"column": "key", "values": encode_parameter([value], "keys")}
    with tried_without_spark():
        committed(run(spark, "erase", table, subjects=keys, writer_hours=0))
    assert table.to_arrow().column("key").to_pylist() == ([0.0, 0.0, 2.0, None] if value else [1.5, 2.0, None])
    assert not list(folder_of(table).glob("txlog-inputs-*"))


@pytest.mark.spark
def test_a_step_of_an_erasure_that_fails_in_spark_leaves_no_keys(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", pa.table({"key": [1.5, 2.0], "n": [1, 2]}), properties=VECTORS)
    (data,) = folder_of(table).glob("*.parquet")
    data.write_bytes(b"PAR1")
    keys = {"column": "key", "values": encode_parameter([1.5], "keys")}
    with tried_without_spark():
        error_of(run(spark, "erase", table, subjects=keys, writer_hours=0))
    assert not list(folder_of(table).glob("txlog-inputs-*"))


def test_saved_work_and_staged_changes_of_others_wait_and_are_named(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(*OTHERS))
    new = tmp_path / "new.parquet"
    pq.write_table(rows(SUBJECT), new)
    source = {"format": "parquet", "path": str(new)}
    upsert = {"source": source, "keys": ["email"]}
    assert run(None, "upsert", table, application=application(), publish=False, **upsert).status == "staged"
    result = erase(table, writer_hours=24)
    done = result.details.erasure
    assert done is not None
    assert done["num_waits"] >= 2
    assert done["until_ms"] > (time.time() + 3 * 86_400) * 1000
    assert SUBJECT not in repr(result)
    assert not is_gone(table)
    # Once the change has expired, the same job deletes all of it.
    for path in folder_of(table).rglob("*"):
        os.utime(path, (time.time() - 8 * 86_400,) * 2)
    later = erase(table, writer_hours=24).details.erasure
    assert later is not None
    assert later["num_waits"] == 0
    assert is_gone(table)


def test_subjects_that_the_column_cannot_hold_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    assert error_of(erase(table, "x", column="none"))["type"] == "UnknownColumn"
    assert error_of(erase(table, "no number", column="number"))["type"] == "InvalidInput"
    assert error_of(run(None, "erase", table, subjects={"column": "email", "values": []}))["type"] == "InvalidInput"
    assert table.snapshot().version == 1


# --- kills ----------------------------------------------------------------------------------------------------------

_CHANGING = ("put_if_absent", "put", "open_new", "put_new", "open_output", "delete", "delete_empty_directory")


def _killed_at(number: int, job: Callable[[], object]) -> bool:
    """Run a job in a process that is killed before the n-th change of a file; return whether it came so far."""
    child = os.fork()
    if child == 0:
        made = 0

        def counting(call: Any) -> Any:
            def counted(*given: Any, **more: Any) -> Any:
                nonlocal made
                made += 1
                if made == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*given, **more)

            return counted

        for name in _CHANGING:
            setattr(LocalStore, name, counting(getattr(LocalStore, name)))
        try:
            job()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.long("forks and kills a process a dozen times")
def test_a_job_that_is_killed_at_any_change_of_a_file_is_completed_by_the_next(tmp_path: Path) -> None:
    properties = {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"} | VECTORS | FEED
    number, step = 1, depth(5, 5, 1)
    while True:
        table = make_table(
            tmp_path / str(number), rows(SUBJECT, *OTHERS), rows(SUBJECT, *OTHERS), properties=properties
        )
        if not _killed_at(number, lambda table=table: erase(table, log=lambda line: None)):
            break
        fresh = Table.open(table.uri)
        assert fresh.to_arrow("email IS NULL").num_rows == 2
        assert erase(fresh).error is None
        assert is_gone(fresh), number
        assert fresh.to_arrow().num_rows == 6
        number += step
    assert number > 20


def _deleted_rows(result: JobResult) -> int | None:
    """Return the rows that all runs have deleted; None if a run did not note them."""
    done = result.details.erasure
    assert done is not None
    steps = [step for run in done["runs"] for step in run["steps"] if step["name"] == "delete"]
    return None if any(step["at"] is None for step in steps) else sum(step["num_rows"] for step in steps)


def _listed_as_deleted(folder: Path, result: JobResult) -> list[str]:
    done = result.details.erasure
    assert done is not None
    parts = done["deleted"].get("r-1", ())
    lines = [line for each in parts for line in gzip.decompress((folder / each["name"]).read_bytes()).split(b"\n")]
    assert sum(each["num_objects"] for each in parts) == len(lines)
    return [json.loads(line)["path"] for line in lines]


@pytest.mark.long("forks and kills a process a dozen times")
def test_an_object_that_a_killed_try_deleted_is_listed_by_the_next_and_once(tmp_path: Path) -> None:
    number, step, last = 1, depth(3, 2, 1), 0
    while True:
        table = make_table(tmp_path / str(number), rows(SUBJECT, *OTHERS), rows(SUBJECT, *OTHERS), properties=VECTORS)
        reports = tmp_path / f"reports-{number}"
        more = {"report_uri": str(reports), "request_id": "r-1", "log": lambda line: None, "records_key": "ab" * 32}
        before = {str(path.relative_to(folder_of(table))) for path in folder_of(table).rglob("*.parquet")}
        if not _killed_at(number, lambda table=table, more=more: erase(table, **more)):
            break
        result = erase(Table.open(table.uri), **more)
        listed = _listed_as_deleted(reports, result)
        assert _deleted_rows(result) in (2, None), number
        assert before <= set(listed), number
        assert len(listed) == len(set(listed)), number
        assert not [each for each in listed if (folder_of(table) / each).exists()], number
        assert is_gone(table)
        last, number = number, number + step
    assert last > 20


def test_an_object_that_was_about_to_go_and_stays_is_not_listed_as_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(SUBJECT, *OTHERS))
    more = {"report_uri": str(tmp_path / "reports"), "request_id": "r-1"}
    with monkeypatch.context() as patch:
        delete = LocalStore.delete

        def failing(self: LocalStore, path: str) -> None:
            if path.startswith("part-"):
                raise OSError(5, "the disk fails")
            delete(self, path)

        patch.setattr(LocalStore, "delete", failing)
        assert erase(table, **more).error is not None
    assert list((tmp_path / "reports").glob("planned-*"))
    assert not list((tmp_path / "reports").glob("deleted-*"))
    assert (
        "zo" not in b"".join(gzip.decompress(each.read_bytes()) for each in (tmp_path / "reports").iterdir()).decode()
    )
    listed = _listed_as_deleted(tmp_path / "reports", erase(table, **more))
    assert any(each.endswith(".parquet") for each in listed)
    assert not [each for each in listed if (folder_of(table) / each).exists()]
