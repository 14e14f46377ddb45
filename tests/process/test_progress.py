"""Alone in showing how the progress of a job travels: measured by its threads, in records or lines, to a listener."""

from __future__ import annotations

import json
import threading
import time

import pytest

from airflow_txlog.process import progress
from airflow_txlog.process.progress import PREFIX, JobProgress, in_line, listening, measured


def wait_for(heard: list[JobProgress], number: int = 1) -> JobProgress:
    deadline_s = time.monotonic() + 10
    while len(heard) < number and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return heard[number - 1]


def test_a_line_reads_back_as_the_record_and_is_one_line() -> None:
    found = JobProgress(step="rewrite", done=3, total=9, bytes_done=5, bytes_total=15, bytes_per_s=7, remaining_s=2)
    assert in_line(found.line()) == found
    assert "\n" not in found.line()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"done": 1}',
        '{"step": 5}',
        '{"step": "find", "done": "1"}',
        '{"step": "find", "done": true}',
        '{"step": "find", "total": null}',
        json.dumps({"step": "x" * 101}),
        json.dumps({"step": "find", "more": "x" * 5000}),
        "[" * 1900,
    ],
)
def test_a_line_of_another_form_holds_no_record(text: str) -> None:
    assert in_line(PREFIX + text) is None


def test_a_field_of_a_newer_release_is_left_out() -> None:
    assert in_line(f'{PREFIX}{{"step":"find","mood":"good"}}') == JobProgress(step="find")


def test_without_a_listener_nothing_is_measured_and_no_thread_starts() -> None:
    before = threading.active_count()
    with measured(), progress.step("find"):
        progress.planned(3, 30)
        progress.done(1, 10)
        assert threading.active_count() == before


def test_what_is_planned_and_done_in_a_step_is_reported_with_its_speed_and_the_time_that_is_left() -> None:
    heard: list[JobProgress] = []
    with listening(heard.append, 0.6), measured():
        progress.attempt(3)
        with progress.step("rewrite"):
            progress.planned(4, 400)
            progress.done(1, 100)
            found = wait_for(heard)
    assert (found.step, found.done, found.total, found.unit) == ("rewrite", 1, 4, "files")
    assert (found.bytes_done, found.bytes_total, found.attempt, found.conflicts) == (100, 400, 3, 2)
    assert found.bytes_per_s is not None
    assert 0 < found.bytes_per_s <= 200
    assert found.remaining_s is not None
    assert found.remaining_s >= 2


def test_a_step_inside_another_counts_for_itself_and_the_outer_one_goes_on_after_it() -> None:
    heard: list[JobProgress] = []
    with listening(heard.append, 0.01), measured(), progress.step("outer"):
        progress.planned(10, 0)
        progress.done(7, 0)
        with progress.step("inner"):
            number = len(heard) + 2
            assert wait_for(heard, number).step == "inner"
            assert heard[number - 1].total == 0
        found = wait_for(heard, len(heard) + 2)
    assert (found.step, found.done, found.total) == ("outer", 7, 10)


def test_the_share_of_sparks_tasks_gives_the_share_of_the_files() -> None:
    heard: list[JobProgress] = []
    with listening(heard.append, 0.01), measured(), progress.step("rewrite"):
        progress.tasks_done(1, 4)
        assert (wait_for(heard).done, heard[0].total, heard[0].unit) == (1, 4, "tasks")
        progress.planned(1000, 8000)
        found = wait_for(heard, len(heard) + 2)
    assert (found.done, found.total, found.unit, found.bytes_done) == (250, 1000, "files", 2000)


def test_many_threads_count_every_file() -> None:
    heard: list[JobProgress] = []
    with listening(heard.append, 0.01), measured(), progress.step("find"):
        threads = [threading.Thread(target=lambda: [progress.done(1, 2) for _ in range(500)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = wait_for(heard, len(heard) + 2)
    assert (found.done, found.bytes_done) == (4000, 8000)


def test_a_listener_that_raises_fails_nothing_and_the_next_report_comes() -> None:
    calls: list[JobProgress] = []

    def fails(found: JobProgress) -> None:
        calls.append(found)
        raise RuntimeError("the terminal is gone")

    with listening(fails, 0.01), measured(), progress.step("find"):
        wait_for(calls, 2)


def test_a_job_inside_another_reports_as_part_of_it() -> None:
    heard: list[JobProgress] = []
    with listening(heard.append, 0.01), measured(), progress.step("erase"):
        before = threading.active_count()
        with measured(), progress.step("delete"):
            assert threading.active_count() == before
            wait_for(heard, len(heard) + 2)
        assert heard[-1].step == "delete"


def test_a_listener_hears_no_more_after_its_block() -> None:
    heard: list[JobProgress] = []
    with listening(heard.append, 0.005), measured(), progress.step("find"):
        wait_for(heard)
    number = len(heard)
    with measured(), progress.step("find"):
        time.sleep(0.05)
    assert len(heard) == number
