"""Alone in showing where the progress of a running job can be read, and that showing it never harms the task."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.hooks import running_progress
from airflow_txlog.hooks.running_progress import STATE_KEY, progress_shown, progress_text
from airflow_txlog.process import progress
from airflow_txlog.process.progress import JobProgress
from airflow_txlog.runners.child_process import ChildProcessRunner
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec

RECORD = JobProgress(step="rewrite", done=12, total=40, bytes_per_s=5 * 2**20, remaining_s=20)


class Store:
    """A state store in memory, which remembers all that happened to it."""

    def __init__(self, fails: bool = False, waits_s: float = 0.0) -> None:
        self.values: dict[str, Any] = {}
        self.written: list[Any] = []
        self.tried = threading.Event()
        self._fails, self._waits_s = fails, waits_s

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.tried.set()
        time.sleep(self._waits_s)
        if self._fails:
            raise ConnectionError("the server is gone")
        self.values[key] = value
        self.written.append(value)

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


def hear(found: JobProgress) -> None:
    progress.hear_line(found.line())


def test_the_latest_record_is_in_the_state_store_while_the_job_runs_and_gone_after_it() -> None:
    store = Store()
    with progress_shown({"task_state_store": store}, print, 0.01):
        hear(JobProgress(step="find"))
        hear(RECORD)
        deadline_s = time.monotonic() + 10
        while store.values.get(STATE_KEY, {}).get("progress") != RECORD.to_dict():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        number = len(store.written)
        time.sleep(0.05)
        assert len(store.written) == number, "a record that has not changed is not written again"
    assert store.values == {}


def test_records_are_written_no_more_often_than_the_limit() -> None:
    store = Store()
    with progress_shown({"task_state_store": store}, print, 60.0):
        for number in range(1000):
            hear(JobProgress(step="find", done=number))
        assert store.tried.wait(10)
    assert len(store.written) == 1


def test_a_server_that_is_gone_is_asked_once_and_fails_no_task() -> None:
    store = Store(fails=True)
    with progress_shown({"task_state_store": store}, print, 0.005):
        hear(RECORD)
        assert store.tried.wait(10)
        store.tried.clear()
        hear(JobProgress(step="commit"))
        time.sleep(0.1)
        assert not store.tried.is_set()


def test_a_server_that_hangs_delays_no_report_and_the_end_by_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_progress, "_LONGEST_END_S", 0.2)
    store = Store(waits_s=2.0)
    began_s = time.monotonic()
    with progress_shown({"task_state_store": store}, print, 0.005):
        hear(RECORD)
        assert store.tried.wait(10)
        hear(RECORD)
    assert time.monotonic() - began_s < 1.5


def test_without_a_state_store_the_task_runs_as_ever() -> None:
    with progress_shown({}, print), progress_shown(None, print):
        hear(RECORD)


def test_an_error_of_the_job_passes_and_the_record_is_deleted() -> None:
    store = Store()

    def job() -> None:
        with progress_shown({"task_state_store": store}, print, 0.01):
            hear(RECORD)
            assert store.tried.wait(10)
            raise RuntimeError("the job")

    with pytest.raises(RuntimeError):
        job()
    assert store.values == {}


def test_the_text_names_the_step_the_files_the_speed_and_the_time_that_is_left() -> None:
    assert progress_text(RECORD) == "rewrite: 12 of 40 files, 5.0 MiB/s, 20 s left"
    assert progress_text(JobProgress(step="commit", seconds=3.2, attempt=2, conflicts=1)) == "commit: 3 s, attempt 2"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_bar_that_no_line_of_the_log_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_shown(None, lambda line: terminal.write(f"{line}\n")) as log:
        hear(RECORD)
        log("staged 3 files")
        hear(RECORD)
    shown = terminal.getvalue().split("\r\x1b[2K")
    assert shown[0] == ""
    assert shown[1].startswith("[#########.....................] rewrite: 12 of 40 files")
    assert shown[2] == "staged 3 files\n"
    assert (shown[3], shown[-1]) == (shown[1], "")


def test_a_task_log_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_shown(None, print) as log:
        hear(RECORD)
        log("staged 3 files")
    assert tuple(capsys.readouterr()) == ("staged 3 files\n", "")


# --- real jobs --------------------------------------------------------------------------------------------------------

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def rows(start: int, count: int) -> pa.Table:
    return pa.table([list(range(start, start + count)), ["x" * 200] * count], schema=SCHEMA)


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    """A delete that reads and rewrites six files."""
    table = make_table(tmp_path / "t", schema=SCHEMA)
    for number in range(6):
        append(table, rows(number * 2000, 2000))
    return job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "id % 10 = 3"})


Run = Callable[[JobSpec], JobResult]


def test_a_child_reports_the_files_of_each_step_and_its_log_holds_no_such_line(spec: JobSpec) -> None:
    heard: list[JobProgress] = []
    lines: list[str] = []
    with progress.listening(heard.append, 0.001):
        result = ChildProcessRunner().run(spec, log=lines.append)
    assert result.status == "committed"
    assert {each.step for each in heard} & {"find", "rewrite"}
    counted = [each for each in heard if each.total]
    assert counted
    assert all(0 <= each.done <= each.total == 6 for each in counted)
    assert all(each.bytes_total > 6000 for each in counted)
    assert not [line for line in lines if "txlog-progress" in line]
    assert [line for line in lines if "staged 6 files" in line]


def test_a_child_of_which_nothing_wants_progress_writes_no_such_line(spec: JobSpec) -> None:
    lines: list[str] = []
    assert ChildProcessRunner().run(spec, log=lines.append).status == "committed"
    assert not [line for line in lines if "txlog-progress" in line]
