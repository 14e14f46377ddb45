"""Alone in showing CONVERT as a job: which folders become tables, by the log alone and once, and which are refused."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.wording import summary_lines
from airflow_txlog.engine import Table
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.jobs.operations.convert import job
from airflow_txlog.jobs.operations.convert.file_facts import FileReader
from airflow_txlog.storage.base import temporary_path
from tests.helpers.jobs import application, committed, error_of, ids, run
from tests.helpers.racing import Killed
from tests.helpers.readers import rows_by_delta_rs
from tests.jobs.operations.alter.test_every_alteration import requests

DAY = {"partition_schema": "day DATE"}


def put(path: Path, rows: pa.Table | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", None]}) if rows is None else rows, path, **options)
    return path


def convert(folder: Path, **arguments: Any) -> JobResult:
    return run(None, "convert", folder, **arguments)


def by_days(folder: Path) -> Path:
    for number in range(3):
        put(folder / f"day=2024-01-0{number + 1}" / "a.parquet", pa.table({"id": [2 * number, 2 * number + 1]}))
    return folder


def stats_of(folder: Path, **arguments: Any) -> dict[str, Any]:
    """The statistics of the only file of a folder that becomes a table."""
    committed(convert(folder, **arguments))
    (text,) = Table.open(folder).snapshot().files().column("stats").to_pylist()
    return dict(json.loads(text))


def test_a_folder_of_partitions_becomes_a_table_and_no_file_moves(tmp_path: Path) -> None:
    folder = by_days(tmp_path / "t")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    result = committed(convert(folder, **DAY))
    assert (result.version, result.files["added"], result.metrics["numOutputRows"]) == (0, 3, 6)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")} == before
    table = Table.open(folder)
    assert table.snapshot().partition_columns == ["day"]
    rows = table.to_arrow().sort_by("id")
    assert rows.schema.field("day").type == pa.date32()
    assert rows.column("day").to_pylist() == [dt.date(2024, 1, number // 2 + 1) for number in range(6)]
    assert rows.column("id").to_pylist() == list(range(6))
    assert rows_by_delta_rs(folder).sort_by("id").to_pylist() == rows.to_pylist()
    (entry,) = table.history()
    assert entry["operation"] == "CONVERT"
    expected = {"numFiles": "3", "partitionedBy": '["day"]', "collectStats": "true", "sourceFormat": "parquet"}
    assert entry["operationParameters"] == expected
    assert entry["operationMetrics"]["numConvertedFiles"] == "3"
    assert "6 rows added" in summary_lines(result, 0.0)[0]


def test_a_dry_run_reports_and_commits_nothing(tmp_path: Path) -> None:
    folder = by_days(tmp_path / "t")
    (folder / "notes.txt").write_text("no data")
    lines: list[str] = []
    result = convert(folder, dry_run=True, log=lines.append, **DAY)
    assert (result.status, result.version, result.metrics["numConvertedFiles"]) == ("nothing_to_do", None, 3)
    assert (result.details.dry_run, result.details.files) == (True, ["notes.txt"])
    assert not Table.exists(folder)
    assert any("notes.txt" in line for line in lines)
    assert "dry run, nothing was committed" in summary_lines(result, 0.0)[0]


def test_a_convert_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    folder, identity = by_days(tmp_path / "t"), application()
    committed(convert(folder, application=identity, **DAY))
    again = convert(folder, application=identity, **DAY)
    assert (again.status, again.version) == ("already_done", 0)
    assert Table.open(folder).latest_version() == 0


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_folder_that_is_a_table_is_refused_for_good(tmp_path: Path, dry_run: bool) -> None:
    folder = by_days(tmp_path / "t")
    committed(convert(folder, **DAY))
    error = error_of(convert(folder, dry_run=dry_run, **DAY))
    assert (error["type"], error["retryable"]) == ("TableAlreadyExists", False)


def test_a_folder_inside_or_around_a_table_is_refused(tmp_path: Path) -> None:
    folder = by_days(tmp_path / "t")
    committed(convert(folder, **DAY))
    assert error_of(convert(folder / "day=2024-01-01"))["type"] == "TableAlreadyExists"
    put(tmp_path / "b.parquet")
    error = error_of(convert(tmp_path))
    assert (error["type"], error["facts"]["table"].endswith("/t")) == ("TableAlreadyExists", True)
    assert not Table.exists(tmp_path)


# --- which files ----------------------------------------------------------------------------------------------------


def test_other_files_are_left_out_and_a_vacuum_keeps_them(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    put(folder / "a.parquet")
    put(folder / "000000_0")
    put(folder / ".hidden.parquet")
    put(folder / "_temporary" / "0" / "x.parquet")
    put(folder / "sub" / "x.parquet")
    put(folder / "_common_metadata")
    (folder / "_SUCCESS").touch()
    (folder / "empty.parquet").touch()
    (folder / "data.csv").write_text("1,2\n")
    result = committed(convert(folder))
    assert result.files["added"] == 2
    hidden = [".hidden.parquet", "_SUCCESS", "_common_metadata", "_temporary/0/x.parquet"]
    assert result.details.files == [*hidden, "data.csv", "empty.parquet", "sub/x.parquet"]
    assert result.metrics["numSkippedFiles"] == 7
    assert Table.open(folder).snapshot().properties["txlog.sharedFolder"] == "true"
    assert error_of(run(None, "vacuum", folder))["type"] == "FolderNotEmpty"


def test_a_folder_of_nothing_else_is_vacuumed_as_any_table(tmp_path: Path) -> None:
    put(tmp_path / "t" / "a.parquet")
    (tmp_path / "t" / "_SUCCESS").touch()
    committed(convert(tmp_path / "t"))
    assert "txlog.sharedFolder" not in Table.open(tmp_path / "t").snapshot().properties
    assert committed(run(None, "vacuum", tmp_path / "t")).metrics["numDeletedFiles"] == 0


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_without_parquet_files_may_get_some(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    assert error_of(convert(tmp_path / name))["type"] == "SourceNotFound"


def damaged(path: Path) -> None:
    put(path)
    data = bytearray(path.read_bytes())
    data[-40:-8] = b"\xff" * 32
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    put(path)
    os.truncate(path, path.stat().st_size - 5)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a damaged footer": (damaged, "CorruptDataFile"),
    "a cut file": (cut, "CorruptDataFile"),
    "a text with the name of a Parquet file": (lambda path: path.write_text("no data here"), "CorruptDataFile"),
    "nanoseconds": (
        lambda path: put(path, pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns"))})),
        "SchemaMismatch",
    ),
    "a type that no table has": (
        lambda path: put(path, pa.table({"id": [1], "at": pa.array([1], pa.time64("us"))})),
        "SchemaMismatch",
    ),
    "another type": (lambda path: put(path, pa.table({"id": ["x"]})), "SchemaMismatch"),
    "a wider type": (lambda path: put(path, pa.table({"id": pa.array([1], pa.int32())})), "SchemaMismatch"),
    "nothing but null": (lambda path: put(path, pa.table({"name": pa.nulls(1)})), "SchemaMismatch"),
    "another case": (lambda path: put(path, pa.table({"ID": [1]})), "SchemaMismatch"),
    "a folder with a column": (lambda path: put(path.parent / "day=1" / "bad.parquet"), "PartitionMismatch"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_file_that_cannot_be_in_the_table_is_named(tmp_path: Path, bad: str) -> None:
    put(tmp_path / "t" / "a.parquet")
    make, expected = BAD[bad]
    make(tmp_path / "t" / "bad.parquet")
    error = error_of(convert(tmp_path / "t"))
    assert error["type"] == expected, error
    assert "bad.parquet" in error["message"]
    assert not Table.exists(tmp_path / "t")


@pytest.mark.parametrize("link", ["linked.parquet", "day=2024-01-09", "day=2024-01-01/linked.parquet"])
def test_a_link_that_spark_would_follow_is_refused_by_name(tmp_path: Path, link: str) -> None:
    folder = by_days(tmp_path / "t")
    target = put(tmp_path / "elsewhere" / "a.parquet")
    (folder / link).symlink_to(target if link.endswith(".parquet") else target.parent)
    error = error_of(convert(folder, **DAY))
    assert (error["type"], error["facts"]["path"]) == ("OutsideTable", link)
    assert not Table.exists(folder)
    (folder / link).rename(folder / "_linked")
    committed(convert(folder, **DAY))
    assert ids(Table.open(folder)) == list(range(6))


def test_a_file_whose_name_is_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path / "t" / "a.parquet")
    shutil.copy(tmp_path / "t" / "a.parquet", tmp_path / "t" / os.fsdecode(b"p\xff.parquet"))
    error = error_of(convert(tmp_path / "t"))
    assert (error["type"], r"p\udcff.parquet" in error["message"]) == ("SchemaMismatch", True)
    assert not Table.exists(tmp_path / "t")


def test_a_file_that_is_left_out_may_have_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    put(tmp_path / "t" / "a.parquet")
    (tmp_path / "t" / os.fsdecode(b"p\xff.txt")).write_text("x")
    result = convert(tmp_path / "t")
    assert committed(result).details.files == [r"p\udcff.txt"]
    assert msgspec.json.encode(result)


def test_the_temporary_commit_of_a_killed_convert_makes_no_table(tmp_path: Path) -> None:
    folder = by_days(tmp_path / "t")
    commit = temporary_path("_delta_log/00000000000000000000.json")
    (folder / "_delta_log").mkdir()
    (folder / commit).write_text("{")
    committed(convert(folder, **DAY))


def test_a_file_with_a_variant_is_refused_by_name(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "t").mkdir()
    duckdb.sql(f"COPY (SELECT 1 AS id, {{'a': 1}}::VARIANT AS v) TO '{tmp_path}/t/a.parquet' (FORMAT parquet)")
    error = error_of(convert(tmp_path / "t"))
    assert error["type"] == "SchemaMismatch"
    assert "the file a.parquet has a group of the type Variant(1), which" in error["message"]


def test_an_encrypted_file_without_a_parquet_name_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path / "t" / "a.parquet")
    (tmp_path / "t" / "part-1").write_bytes(b"PARE" + bytes(20) + b"PARE")
    error = error_of(convert(tmp_path / "t"))
    assert (error["type"], "part-1" in error["message"]) == ("UnsupportedFeature", True)


# --- partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "schema", "value"),
    [
        ("s=a%3Ab %25+ü", "s STRING", "a:b %+ü"),
        ("s=__HIVE_DEFAULT_PARTITION__", "s STRING", None),
        ("s=__HIVE_DEFAULT_PARTITION__", "s DATE", None),
        ("n=007", "n INT", 7),
        ("n=-1.50", "n DECIMAL(10,2)", Decimal("-1.50")),
        ("b=true", "b BOOLEAN", True),
        ("at=2024-01-01 10%3A00%3A00", "at TIMESTAMP", dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC)),
        ("DAY=2024-02-29", "day DATE", dt.date(2024, 2, 29)),
    ],
)
def test_the_values_of_folders_are_typed(tmp_path: Path, folder: str, schema: str, value: object) -> None:
    put(tmp_path / "t" / folder / "f%20g.parquet", pa.table({"id": [1]}))
    committed(convert(tmp_path / "t", partition_schema=schema))
    rows = Table.open(tmp_path / "t").to_arrow()
    assert rows.column(schema.split()[0]).to_pylist() == [value]
    assert rows_by_delta_rs(tmp_path / "t").num_rows == 1


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, "PartitionMismatch"),
        ("shop STRING", "PartitionMismatch"),
        ("day DATE, shop STRING", "PartitionMismatch"),
        ("day INT", "PartitionMismatch"),
        ("day", "InvalidJobSpec"),
        ("day ARRAY<INT>", "InvalidJobSpec"),
        ("day DATE, DAY DATE", "InvalidJobSpec"),
    ],
)
def test_partition_columns_that_the_folders_lack_are_refused(tmp_path: Path, schema: str | None, expected: str) -> None:
    error = error_of(convert(by_days(tmp_path / "t"), partition_schema=schema))
    assert error["type"] == expected
    assert "2024" not in error["message"].replace("day=2024-01-01/a.parquet", ""), "it shows a value"
    assert not Table.exists(tmp_path / "t")


@pytest.mark.parametrize("copy", ["old/day=2024-01-01", "old/new/day=2024-01-01", "x=/day=2024-01-01"])
def test_partitions_in_different_folders_are_refused_as_by_spark(tmp_path: Path, copy: str) -> None:
    folder = by_days(tmp_path / "t")
    put(folder / copy / "b.parquet", pa.table({"id": [9]}))
    error = error_of(convert(folder, **DAY))
    assert error["type"] == "PartitionMismatch"
    assert f"{copy}/b.parquet" in error["message"]
    assert not Table.exists(folder)


def test_partition_columns_in_another_order_are_refused_as_by_spark(tmp_path: Path) -> None:
    put(tmp_path / "t" / "a=1" / "b=2" / "x.parquet")
    put(tmp_path / "t" / "b=2" / "a=1" / "x.parquet")
    assert error_of(convert(tmp_path / "t", partition_schema="a INT, b INT"))["type"] == "PartitionMismatch"


def test_partitions_may_lie_deeper_and_hold_other_folders(tmp_path: Path) -> None:
    put(tmp_path / "t" / "all" / "day=2024-01-01" / "part=" / "a=b.parquet")
    put(tmp_path / "t" / "all" / "day=2024-01-02" / "b.parquet")
    committed(convert(tmp_path / "t", **DAY))
    assert Table.open(tmp_path / "t").snapshot().num_files == 2


def test_a_column_of_folders_that_files_hold_too_has_the_folders_values(tmp_path: Path) -> None:
    put(tmp_path / "t" / "n=5" / "a.parquet", pa.table({"n": ["x"], "id": [1]}))
    committed(convert(tmp_path / "t", partition_schema="n INT"))
    rows = Table.open(tmp_path / "t").to_arrow()
    assert (rows.schema.names, rows.to_pylist()) == (["n", "id"], [{"n": 5, "id": 1}])


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_hold_for_every_value(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "i": pa.array([3, None, -2], pa.int32()),
            "f": [0.0, float("nan"), 2.5],
            "s": ["b" * 40, "a", None],
            "d": [dt.date(2024, 1, 2), None, dt.date(1999, 1, 1)],
            "at": pa.array([1_000_001, 5, None], pa.timestamp("us", tz="UTC")),
            "ms": pa.array([1_001, 5, None], pa.timestamp("ms")),
            "m": pa.array([Decimal("1.50"), Decimal("-7.25"), None], pa.decimal128(30, 2)),
            "n": [{"x": 1, "y": None}, None, {"x": 4, "y": "q"}],
            "l": [[1], None, []],
            "b": [True, None, False],
        }
    )
    put(tmp_path / "t" / "a.parquet", rows, row_group_size=2)
    assert stats_of(tmp_path / "t") == {
        "numRecords": 3,
        "minValues": {
            "i": -2,
            "f": 0.0,
            "s": "a",
            "d": "1999-01-01",
            "at": "1970-01-01T00:00:00.000Z",
            "ms": "1970-01-01T00:00:00.005",
            "m": -7.25,
            "n": {"x": 1, "y": "q"},
        },
        "maxValues": {
            "i": 3,
            "s": "b" * 32 + "\x7f",
            "d": "2024-01-02",
            "at": "1970-01-01T00:00:01.001Z",
            "ms": "1970-01-01T00:00:01.001",
            "m": 1.50,
            "n": {"x": 4, "y": "q"},
        },
        "nullCount": {"i": 1, "f": 0, "s": 1, "d": 1, "at": 1, "ms": 1, "m": 1, "n": {"x": 1, "y": 2}, "b": 1},
    }


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"write_statistics": False}, pa.table({"a": [1, 2]})),
        ({"use_deprecated_int96_timestamps": True}, pa.table({"a": pa.array([1, 2], pa.timestamp("us"))})),
    ],
)
def test_what_a_footer_does_not_prove_is_left_out(tmp_path: Path, options: dict[str, Any], rows: pa.Table) -> None:
    put(tmp_path / "t" / "a.parquet", rows, **options)
    found = stats_of(tmp_path / "t")
    assert (found["numRecords"], found["minValues"], found["maxValues"]) == (2, {}, {})


@pytest.mark.parametrize(("version", "has_bounds"), [("1.8.1", False), ("1.9.0", False), ("1.10.0", True)])
def test_decimals_of_writers_that_compared_their_bytes_get_no_bounds(
    tmp_path: Path, version: str, has_bounds: bool
) -> None:
    rows = pa.table({"m": pa.array([Decimal("1.50"), Decimal("-7.25")], pa.decimal128(30, 2))})
    path = put(tmp_path / "t" / "a.parquet", rows)
    ours = pq.read_metadata(path).created_by.encode()
    path.write_bytes(path.read_bytes().replace(ours, f"parquet-mr version {version}".encode().ljust(len(ours))))
    assert ("m" in stats_of(tmp_path / "t")["minValues"]) == has_bounds


@pytest.mark.parametrize("store_schema", [True, False])
def test_a_column_that_a_file_lacks_is_null_there(tmp_path: Path, store_schema: bool) -> None:
    put(tmp_path / "t" / "a.parquet", pa.table({"a": [1, 2]}), store_schema=store_schema)
    put(tmp_path / "t" / "b.parquet", pa.table({"b": ["x"], "a": [3]}), store_schema=store_schema)
    committed(convert(tmp_path / "t"))
    rows = Table.open(tmp_path / "t").to_arrow().sort_by("a")
    assert rows.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": "x"}]


def test_dates_of_the_old_calendar_get_no_bounds_beside_files_of_the_same_columns(tmp_path: Path) -> None:
    rows = pa.table({"d": [dt.date(2024, 1, 1)]})
    old = rows.replace_schema_metadata({"org.apache.spark.version": "2.4.8"})
    put(tmp_path / "t" / "a.parquet", rows)
    put(tmp_path / "t" / "b.parquet", old)
    committed(convert(tmp_path / "t"))
    files = Table.open(tmp_path / "t").snapshot().files()
    found = zip(files.column("path").to_pylist(), map(json.loads, files.column("stats").to_pylist()), strict=True)
    assert {path: stats["minValues"] for path, stats in found} == {"a.parquet": {"d": "2024-01-01"}, "b.parquet": {}}


def test_statistics_are_taken_as_the_properties_and_the_author_say(tmp_path: Path) -> None:
    rows = pa.table({"a": [1], "b": [2]})
    for name in "xyz":
        put(tmp_path / name / "a.parquet", rows)
    assert stats_of(tmp_path / "x", properties={"delta.dataSkippingNumIndexedCols": "1"})["minValues"] == {"a": 1}
    assert stats_of(tmp_path / "y", properties={"delta.dataSkippingStatsColumns": "b"})["minValues"] == {"b": 2}
    assert stats_of(tmp_path / "z", collect_statistics=False) == {"numRecords": 1}


def test_a_file_without_rows_is_a_file_of_the_table(tmp_path: Path) -> None:
    put(tmp_path / "t" / "a.parquet", pa.table({"a": pa.array([], pa.int64())}))
    assert stats_of(tmp_path / "t")["numRecords"] == 0
    assert Table.open(tmp_path / "t").to_arrow().num_rows == 0


@pytest.mark.parametrize("name", ["delta.columnmapping.mode", "delta.constraints.positive", "delta.appendOnlly"])
def test_properties_that_the_files_do_not_keep_and_unknown_ones_are_refused_before_a_file_is_read(
    tmp_path: Path, name: str
) -> None:
    put(tmp_path / "t" / "a.parquet")
    (tmp_path / "t" / "b.parquet").write_bytes(b"no Parquet")
    assert error_of(convert(tmp_path / "t", properties={name: "name"}))["type"] == "InvalidProperty"


def test_row_ids_are_given_to_converted_files(tmp_path: Path) -> None:
    by_days(tmp_path / "t")
    committed(convert(tmp_path / "t", properties={"delta.enableRowTracking": "true"}, **DAY))
    assert sorted(Table.open(tmp_path / "t").snapshot().files().column("base_row_id").to_pylist()) == [0, 2, 4]


def test_a_log_above_that_a_killed_creation_left_empty_makes_no_table(tmp_path: Path) -> None:
    folder = by_days(tmp_path / "lake" / "t")
    (tmp_path / "lake" / "_delta_log").mkdir()
    (tmp_path / "lake" / "_delta_log" / ".00000000000000000000.json.abc.tmp").write_text("{}")
    (tmp_path / "lake" / "_delta_log" / "_last_checkpoint").write_text("{}")
    committed(convert(folder, **DAY))


# --- others in the folder -------------------------------------------------------------------------------------------


def append_file(folder: Path) -> None:
    put(folder / "day=2024-01-01" / "new.parquet", pa.table({"id": [9]}))


def vanish(folder: Path) -> None:
    (folder / "day=2024-01-02" / "a.parquet").unlink()


def change(folder: Path) -> None:
    put(folder / "day=2024-01-02" / "a.parquet", pa.table({"id": list(range(100))}))


def touch(folder: Path) -> None:
    os.utime(folder / "day=2024-01-02" / "a.parquet", (1, 1))


@pytest.mark.parametrize(
    ("kind", "step"),
    [(FileReader, "read_all"), (job._Convert, "_partition_values"), (job._Convert, "_schema")],
    ids=["read", "partitions", "schema"],
)
@pytest.mark.parametrize("harm", [append_file, vanish, change, touch])
def test_a_change_of_the_folder_is_noticed_before_the_commit(
    tmp_path: Path, harm: Callable[[Path], None], kind: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, whole = by_days(tmp_path / "t"), getattr(kind, step)

    def harmed(*arguments: Any) -> Any:
        harm(folder)
        return whole(*arguments)

    monkeypatch.setattr(kind, step, harmed)
    error = error_of(convert(folder, **DAY))
    assert (error["type"], error["retryable"]) == ("FolderChanged", True)
    assert not Table.exists(folder)
    monkeypatch.undo()
    committed(convert(folder, **DAY))


def test_of_two_converts_one_makes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, begin = by_days(tmp_path / "t"), DeltaTable.begin_create
    won: list[JobResult] = []

    def late(*arguments: Any, **options: Any) -> Any:
        tx = begin(*arguments, **options)
        monkeypatch.undo()
        return tx

    class Late(job._Convert):
        def plan(self, tx: Any) -> Any:
            if not won:
                won.append(committed(convert(folder, application=application(), **DAY)))
            return super().plan(tx)

    monkeypatch.setattr(DeltaTable, "begin_create", late)
    monkeypatch.setattr(job, "_Convert", Late)
    error = error_of(convert(folder, application=application(), **DAY))
    assert (error["type"], len(won), Table.open(folder).latest_version()) == ("TableAlreadyExists", 1, 0)


def test_a_convert_that_is_killed_at_any_request_is_done_once(tmp_path: Path) -> None:
    for is_done in (False, True):
        number, is_killed = 1, True
        while is_killed:
            folder, identity = by_days(tmp_path / f"{number}-{is_done}"), application()
            (folder / "notes").write_text("no data")
            try:
                with requests(number, is_done=is_done):
                    convert(folder, application=identity, **DAY)
                is_killed = False
            except Killed:
                number += 1
            again = convert(folder, application=identity, **DAY)
            assert again.status in ("committed", "already_done"), again.error
            table = Table.open(folder)
            assert (table.latest_version(), ids(table)) == (0, list(range(6))), f"request {number}, done: {is_done}"
        assert number > 8, "it lists, reads three footers and commits"
