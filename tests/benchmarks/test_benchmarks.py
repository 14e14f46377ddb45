"""The benchmarks run and check their rows: tiny, one round, no figure looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.contract.operations.records import looks_plain
from tests.benchmarks.command import LOG_CASES
from tests.benchmarks.heavy_cases import EVERY_ROW
from tests.benchmarks.places import NO_SERVER, has_server
from tests.benchmarks.statement_cases import equal_sides
from tests.benchmarks.statements import LINEITEM, STATEMENTS, generator
from tests.benchmarks.task_cases import by_spark
from tests.helpers.delta_spark import jars
from tests.helpers.depth import by_hand
from tests.helpers.paths import ROOT


def run_benchmarks(folder: Path, *cases: str, rounds: int = 1) -> list[dict[str, object]]:
    output = folder / "bench.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--scale", "0.001", "--rounds", str(rounds)]
    command += ["--cases", *cases, "--folder", str(folder / "work"), "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == output.read_text()
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.long("eight benchmarks")
def test_log_benchmarks_print_one_line_a_peer_and_find_the_same_files_on_every_side(tmp_path: Path) -> None:
    lines = run_benchmarks(tmp_path, *LOG_CASES)
    assert [(line["case"], line["peer"]) for line in lines] == [
        ("open", "deltalake"),
        ("commit", "deltalake"),
        ("convert", "deltalake"),
        ("list-partition", "deltalake"),
        ("list-pruned", "deltalake"),
        ("prune", "our first question"),
        ("prune", "deltalake"),
        ("refresh", "ours on 10 files"),
        ("refresh", "fresh open"),
        ("refresh", "deltalake"),
        ("commit-large", "ours on 10 files"),
        ("checkpoint", "deltalake"),
    ]
    assert all(line["ours_s"] and line["peer_s"] and line["ratio"] for line in lines[:2])


@pytest.mark.long("three servers, a job four times")
def test_the_benchmark_of_the_window_prints_a_line_a_case(tmp_path: Path) -> None:
    lines = {str(line["case"]): line for line in run_benchmarks(tmp_path, "window")}
    assert list(lines) == ["window-cached", "window-commits", "window-files", "window-progress"]
    assert lines["window-cached"]["requests_per_s"]
    assert lines["window-files"]["files"] == 1_000


@pytest.mark.long("a table, and two jobs twice")
def test_applied_changes_leave_the_rows_of_an_upsert(tmp_path: Path) -> None:
    lines = run_benchmarks(tmp_path, "apply-changes")
    assert [(line["case"], line["peer"]) for line in lines] == [
        ("apply-changes", "upsert"),
        ("apply-changes-history", "upsert"),
    ]


@pytest.mark.spark
@pytest.mark.long("twenty statements, some of which Spark evaluates")
def test_statements_leave_the_same_rows_in_every_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # delta-spark would take minutes; make bench checks its rows.
    monkeypatch.setenv("TXLOG_DELTA_JARS", str(tmp_path / "none"))
    cases = [case for case, statement in STATEMENTS.items() if statement.shape is not LINEITEM or generator()]
    lines = run_benchmarks(tmp_path, *cases, rounds=0)
    assert [(line["case"], line["peer"]) for line in lines] == [(case, "deltalake") for case in cases]


@pytest.mark.parametrize("condition", [EVERY_ROW, by_spark("id")])
def test_conditions_of_cases_that_measure_spark_are_not_plain(condition: str) -> None:
    assert not looks_plain(condition)


def test_a_side_that_leaves_other_rows_ends_the_run(tmp_path: Path) -> None:
    check = equal_sides(tmp_path / "first")
    ids, values = ("id", pa.array([1, 2])), ("v", pa.array(["a", "b"]))
    check("ours", [ids, values])
    check("deltalake", [ids, values])
    with pytest.raises(AssertionError, match="delta-spark left other values in v"):
        check("delta-spark", [ids, ("v", pa.array(["a", "c"]))])
    with pytest.raises(AssertionError, match="1 rows, another side 2"):
        check("delta-spark", [("id", pa.array([1]))])


@pytest.mark.long("three cases in processes of their own")
def test_memory_is_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    lines = run_benchmarks(tmp_path, "memory", "ten-million")
    assert [line["case"] for line in lines] == ["memory-open", "memory-list-partition", "ten-million"]
    assert all(0 < float(str(line["ours_mb"])) < 4000 for line in lines)


@pytest.mark.spark
@pytest.mark.long("two processes with a Spark each")
def test_the_memory_of_planning_is_measured_over_every_file(tmp_path: Path) -> None:
    lines = run_benchmarks(tmp_path, "plan")
    assert [(line["case"], line["files"]) for line in lines] == [("plan", 1100), ("plan", 2000)]
    # Interpreter and imports are half of it.
    assert all(0 < float(str(line["driver_mb"])) < 300 for line in lines)


@pytest.mark.long("four benchmarks, two with sixteen processes")
def test_writers_at_once_lose_no_commit_and_tables_on_s3_are_listed_alike(tmp_path: Path) -> None:
    if not has_server():
        pytest.skip(NO_SERVER)
    cases = ["writers", "s3-writers", "s3-open", "s3-list"]
    lines = run_benchmarks(tmp_path, *cases)
    assert [(line["case"], line["peer"]) for line in lines] == [(case, "deltalake") for case in cases]
    assert [line["ours_conflicts"] for line in lines[:2]] == [0, 0]


@pytest.mark.long("a process of its own")
def test_without_a_server_cases_on_s3_say_why_they_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TXLOG_TEST_S3", raising=False)
    assert run_benchmarks(tmp_path, "s3-writers", "s3-merge") == [
        {"case": case, "skipped": NO_SERVER} for case in ("s3-writers", "s3-merge")
    ]


@pytest.mark.spark
@pytest.mark.long("three cases, each with up to four engines in processes of their own")
@by_hand("minutes; make bench checks the rows of each case that it times")
def test_row_benchmarks_leave_the_same_rows_on_every_side(tmp_path: Path) -> None:
    peers = {
        "merge": ["pyspark", "pyspark-antijoin", "deltalake", "delta-spark"],
        "append": ["pyspark", "deltalake", "delta-spark"],
        "append-partitioned": ["pyspark", "delta-spark"],
        "merge-partition": ["ours on the partition alone", "delta-spark"],
    }
    if has_server():
        # The other cases on S3 are made as this one is, of the same sides.
        peers |= {"s3-merge": ["deltalake"]}
    lines = run_benchmarks(tmp_path, *peers, rounds=0)
    assert [(line["case"], line["peer"]) for line in lines] == [
        (case, peer) for case, names in peers.items() for peer in names if jars() or "delta-spark" not in peer
    ]
    assert all(set(line["ours_peak_mb"]) >= {"driver", "jvm"} for line in lines if line["case"] == "merge")


@pytest.mark.spark
@pytest.mark.long("two million rows, in a Spark of its own")
def test_a_delete_of_two_million_rows_leaves_the_driver_small(tmp_path: Path) -> None:
    from tests.benchmarks.heavy_cases import measure_child

    run = measure_child("heavy-delete-all", "ours", tmp_path, 0.1)
    assert run["sums"] == [0, 0, 0, 0]
    # Python, pyarrow and pyspark are 150 MB of it; spelled out, the rows would take four times as much again.
    assert run["peak_mb"]["driver"] < 300
