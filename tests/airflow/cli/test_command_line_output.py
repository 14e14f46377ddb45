"""`airflow txlog` for people on a terminal, and for programs that use it wrongly."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.airflow

DAG = "forget_people_who_asked_for_it_in_every_table"
MAPPED = "forget_those_who_asked_too_late_for_that[batch 0]"
BY_DELTA_SPARK = ROOT / "tests/interop/reference/vectors_by_merge/table"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table without rows."""
    Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    return tmp_path / "t"


@pytest.fixture(scope="module")
def written(
    airflow_home: Path, dag_of: Callable[[str, str], Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A table that tasks with long names and then delta-rs have written, and the tasks' run."""
    folder = tmp_path_factory.mktemp("history") / "t"
    folder.with_suffix(".in").mkdir()
    people = pa.table({"id": pa.array(range(100_000), pa.int64())})
    pq.write_table(people, folder.with_suffix(".in") / "people.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TXLOG_TEST_TABLE", str(folder))
        dag_run = dag_of("history", DAG).test()
    assert dag_run.state == "success"
    deltalake.write_deltalake(folder, people.slice(0, 5), mode="append")
    deltalake.DeltaTable(folder).delete("id < 5")
    return folder, dag_run.run_id


def run(*words: object) -> int:
    """The exit code of `airflow txlog …`, through Airflow's own parser."""
    from airflow.cli.cli_parser import get_parser

    args = get_parser().parse_args(["txlog", *map(str, words)])
    try:
        args.func(args)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch, *words: object) -> list[str]:
    """The lines that a command prints on a terminal of this width, each of which fits."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert run(*words) == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert max(sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in line) for line in lines) <= width
    return lines


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


@pytest.mark.long("a DAG makes the commits")
def test_history_has_a_line_for_each_commit_on_a_terminal_of_120_columns(
    written: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run_id = written
    header, _, *lines = on_a_terminal(120, monkeypatch, "history", folder)
    assert cells(header) == ["version", "time", "operation", "rows", "DAG or engine", "task", "run", "try"]
    deleted, appended, mapped, retried, loaded = map(cells, lines)
    assert [deleted[2:], appended[2:]] == [
        ["DELETE", "-7", f"delta-rs:py-{deltalake.__version__}"],
        ["WRITE", "+5", f"delta-rs:py-{deltalake.__version__}"],
    ]
    # Of what is too long, the end is shown: the table's name, the map index, the time of the run.
    for commit, task, others in (
        (mapped, MAPPED, ["2", "DELETE", "-2", "1"]),
        (retried, "forget_those_who_asked_today", ["1", "DELETE", "-1", "2"]),
        (loaded, "load_people", ["0", "WRITE", "+100000", "1"]),
    ):
        version, time, operation, rows, shown_dag, shown_task, shown_run, attempt = commit
        assert [version, operation, rows, attempt] == others
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", time)
        for shown, whole, least in ((shown_dag, DAG, 13), (shown_task, task, 9), (shown_run, run_id, 26)):
            assert whole.endswith(shown.removeprefix("…")), "the end is kept"
            assert shown == whole or len(shown) >= least


@pytest.mark.long("a DAG makes the commits")
def test_history_uses_what_room_a_terminal_has(written: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, run_id = written
    assert len(on_a_terminal(80, monkeypatch, "history", folder)) == 2 + 5
    header, _, _, _, mapped, *_ = on_a_terminal(260, monkeypatch, "history", folder)
    assert header.split()[-1] == "parameters"
    assert {DAG, MAPPED, run_id} < set(cells(mapped))


def test_history_is_printed_in_full_where_there_is_no_terminal(
    written: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run_id = written
    assert run("history", folder) == 0
    _, _, deleted, _, mapped, *_ = capsys.readouterr().out.splitlines()
    assert cells(deleted)[-1] == "predicate=id < 5"
    assert cells(mapped)[2:8] == ["DELETE", "-2", DAG, MAPPED, run_id, "1"]
    assert "2 keys" in cells(mapped)[8]


def test_history_shortens_long_parameters_unless_it_is_wide(
    airflow_home: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predicate = f"id IN ({', '.join(map(str, range(100)))})"
    Table.open(str(folder)).begin().commit("DELETE", {"predicate": predicate}, record_empty=True)
    assert run("history", folder) == 0
    shown = cells(capsys.readouterr().out.splitlines()[2])[-1]
    assert (len(shown), shown[-1]) == (60, "…")
    assert run("history", folder, "--wide") == 0
    assert cells(capsys.readouterr().out.splitlines()[2])[-1] == f"predicate={predicate}"


def test_a_command_whose_reader_stops_ends_quietly() -> None:
    printing = "from airflow_txlog.cli import printing as p\n"
    for code in ("p.print_json({'rows': ['x' * 100] * 10_000})", "p.fail(OSError('y'), as_json=True)"):
        text = f"{printing}with p.closed_pipe_ends_quietly():\n    {code}\n"
        ours, its = os.pipe()
        os.close(ours)
        done = subprocess.run([sys.executable, "-c", text], stdout=its, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        os.close(its)
        assert done.returncode == 128 + signal.SIGPIPE
        assert "Traceback" not in done.stderr
        assert "BrokenPipe" not in done.stderr


def test_history_names_delta_spark_and_counts_its_rows(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, *lines = on_a_terminal(120, monkeypatch, "history", BY_DELTA_SPARK)
    by = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"
    assert [[cell for cell in cells(line) if not cell.endswith("Z")] for line in lines] == [
        ["3", "DELETE", "-3", by],
        ["2", "MERGE", "+4 ~3 -2", by],
        ["1", "WRITE", "+12", by],
        ["0", "CREATE TABLE", by],
    ]


def test_history_prints_one_line_whatever_a_log_holds(
    airflow_home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = Table.open(str(folder)).begin()
    tags = {"airflow.dag_id": "a\nb\x1b[2J", "airflow.task_id": "[red]", "airflow.run_id": "顧客の注文を削除" * 9}
    tx.commit("x\u202e" * 5000, tags=tags, record_empty=True)
    _, _, strange, _ = on_a_terminal(120, monkeypatch, "history", folder)
    assert r"a\nb\x1b[2J" in strange
    assert "[red]" in strange
    assert "…文を削除顧客の注文を削除 " in strange


@pytest.mark.parametrize(
    "words",
    [
        ["restore", "t"],
        ["restore", "t", "--version", "1", "--timestamp", "2026-01-01"],
        ["files", "t", "--param", "nothing", "--where", "id = :nothing"],
    ],
)
def test_a_command_used_wrongly_prints_json_too(
    airflow_home: Path, folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(str(folder) if word == "t" else word for word in words), "--json") == 2
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert (error["type"], error["message"]) == ("UsageError", printed.err.strip())


def test_a_relative_table_counts_from_the_directory_of_the_shell(
    airflow_home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    assert run("history", "./t", "--json") == 0
    assert json.loads(capsys.readouterr().out)["table"] == f"file://{folder}"
