"""Alone in showing TRUNCATE and RESTORE as jobs: by the log alone, once for each application transaction."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, Lineage
from airflow_txlog.contract.wording import summary_lines
from airflow_txlog.engine import Table, delta_table
from airflow_txlog.jobs.run import run_job
from airflow_txlog.runners.child_process import RESULT_BYTES
from tests.engine.commit.test_writers import SPARK, S3LikeStore, table_of
from tests.helpers.jobs import application, committed, error_of, ids, live_files, rows
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec


def run(
    operation: str,
    table: Table | Path,
    *,
    log: Any = None,
    application: ApplicationTransaction | None = None,
    **arguments: Any,
) -> JobResult:
    uri = table.uri if isinstance(table, Table) else str(table)
    spec = job_spec(operation=operation, table_uri=uri, arguments=arguments, application=application)
    assert not spec.operation.needs_spark
    return run_job(spec, None, log=log)


def three_versions(folder: Path) -> Table:
    """Version 1 holds ids 0 to 9, version 2 also 50 to 59, version 3 also 90 to 94."""
    return make_table(folder, rows(10), rows(10, start=50), rows(5, start=90))


# --- truncate -------------------------------------------------------------------------------------------------------


def test_truncate_removes_every_row_and_no_file_is_read(tmp_path: Path) -> None:
    table = three_versions(tmp_path / "t")
    for path in live_files(table):
        (tmp_path / "t" / path).write_bytes(b"not a data file")
    result = committed(run("truncate", table))
    assert (result.version, result.files["removed"], result.metrics["numDeletedRows"]) == (4, 3, 25)
    assert live_files(table) == set()
    (entry, *_) = table.history(1)
    assert (entry["operation"], entry["operationMetrics"]["numRemovedFiles"]) == ("TRUNCATE", "3")
    assert "25 rows deleted" in summary_lines(result, 0.0)[0]


@pytest.mark.parametrize(("width", "named"), [(3, 3), (5000, 0)])
def test_a_result_has_the_columns_of_the_table_as_far_as_there_is_room(tmp_path: Path, width: int, named: int) -> None:
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(width)])
    table = make_table(tmp_path / "t", pa.Table.from_pylist([{"c0": 1}], schema=schema))
    result = committed(run("truncate", table))
    columns = (result.details.lineage or Lineage()).columns
    assert columns == {f"c{number}": "long" for number in range(named)}
    assert len(result.to_json()) < RESULT_BYTES


def test_truncate_of_an_empty_table_commits_nothing(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", schema=rows(1).schema)
    assert (run("truncate", table).status, table.snapshot().version) == ("nothing_to_do", 0)


def test_truncate_removes_what_landed_while_it_ran(tmp_path: Path) -> None:
    table = three_versions(tmp_path / "t")
    landed: list[int] = []

    def log(line: str) -> None:
        if "to remove" in line and not landed:
            landed.append(append(table, rows(1, start=200)))

    result = committed(run("truncate", table, log=log))
    assert (result.attempts, result.version, live_files(table)) == (2, 5, set())


def test_truncate_of_a_table_that_only_grows_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3), properties={"delta.appendOnly": "true"})
    assert error_of(run("truncate", table))["type"] == "AppendOnlyViolation"
    assert ids(table) == [0, 1, 2]


def test_a_truncate_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    table, identity = three_versions(tmp_path / "t"), application()
    committed(run("truncate", table, application=identity))
    append(table, rows(4, start=300))
    again = run("truncate", table, application=identity)
    assert (again.status, again.version, ids(table)) == ("already_done", 4, [300, 301, 302, 303])


def test_truncate_of_what_is_no_table_says_so(tmp_path: Path) -> None:
    assert error_of(run("truncate", tmp_path / "none"))["type"] == "TableNotFound"


# --- restore --------------------------------------------------------------------------------------------------------


def test_restore_makes_an_earlier_version_the_latest(tmp_path: Path) -> None:
    table = three_versions(tmp_path / "t")
    result = committed(run("restore", table, version=1))
    assert (result.version, result.read_version, ids(table)) == (4, 3, list(range(10)))
    assert (result.files["removed"], result.metrics["numOfFilesAfterRestore"]) == (2, 1)
    assert table.history(1)[0]["operation"] == "RESTORE"


def test_restore_says_that_the_table_loses_append_only(tmp_path: Path) -> None:
    table = three_versions(tmp_path / "t")
    lines: list[str] = []
    committed(run("alter", table, set_properties={"delta.appendOnly": "true"}))
    committed(run("restore", table, version=1, log=lines.append))
    assert "version 1 does not have the property delta.appendOnly: the table loses it" in lines
    assert "delta.appendOnly" not in Table.open(table.uri).snapshot().properties


def test_restore_takes_a_moment(tmp_path: Path) -> None:
    table = three_versions(tmp_path / "t")
    for version in range(4):
        log = tmp_path / "t" / "_delta_log" / f"{version:020}.json"
        os.utime(log, (1_700_000_000 + 3600 * version,) * 2)
    committed(run("restore", table, timestamp="2023-11-15T00:20:00Z"))
    assert ids(table) == [*range(10), *range(50, 60)]


def test_restore_to_where_the_table_stands_does_nothing(tmp_path: Path) -> None:
    table = three_versions(tmp_path / "t")
    result = run("restore", table, version=3)
    assert (result.status, result.version, table.snapshot().version) == ("nothing_to_do", 3, 3)


def test_a_restore_that_was_done_is_not_done_again_and_undoes_nothing(tmp_path: Path) -> None:
    table, identity = three_versions(tmp_path / "t"), application()
    committed(run("restore", table, version=1, application=identity))
    append(table, rows(1, start=300))
    again = run("restore", table, version=1, application=identity)
    assert (again.status, again.version) == ("already_done", 4)
    assert ids(table) == [*range(10), 300]


def test_b11_restore_never_rebases_nor_asks_for_a_retry(tmp_path: Path) -> None:
    table = three_versions(tmp_path / "t")

    def log(line: str) -> None:
        if line.startswith("to version"):
            append(table, rows(1, start=300))

    error = error_of(run("restore", table, version=1, log=log))
    assert (error["type"], error["retryable"], error["facts"]["winning_version"]) == ("ConcurrentWrite", False, 4)
    assert ids(table)[-1] == 300
    assert table.snapshot().version == 4


@pytest.mark.parametrize(("gone", "kind"), [("version", "VersionNotFound"), ("file", "FilesMissing")])
def test_restore_of_what_is_gone_says_what(tmp_path: Path, gone: str, kind: str) -> None:
    table = three_versions(tmp_path / "t")
    committed(run("truncate", table))
    if gone == "file":
        (path,) = table.snapshot(1).files().column("path").to_pylist()
        (tmp_path / "t" / path).unlink()
    assert error_of(run("restore", table, version=9 if gone == "version" else 3))["type"] == kind
    if gone == "file":
        committed(run("restore", table, version=3, ignore_missing=True))
        assert ids(table) == [*range(50, 60), *range(90, 95)]


# --- strict writers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["checkpoint", "vacuum"])
def test_a15_strict_writers_reaches_checkpoint_and_vacuum(
    operation: str, memory_uri: str, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3LikeStore(memory_uri, clock=clock)
    table_of(store, clock, [SPARK])
    # Only what opens the store is replaced: no store on S3 is supported yet.
    monkeypatch.setattr(delta_table, "open_store", lambda *_, **__: store)
    spec = job_spec(operation=operation, table_uri=store.root)
    assert error_of(run_job(spec.replace(strict_writers=True), None))["type"] == "OverwritingWriter"
    assert run_job(spec, None).status == "committed"
