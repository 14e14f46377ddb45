"""`airflow txlog` for people on a terminal, and for programs that use it wrongly."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.helpers.rows import append

pytestmark = pytest.mark.airflow

RUN = "scheduled__2026-11-21T00:00:00+00:00"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Commits of an ordinary task, of a mapped one, and of no task."""
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    append(table, [{"id": 1}])
    for index, metrics in ((-1, {"numDeletedRows": 12, "numCopiedRows": 4_000_000, "scanTimeMs": 1234}), (7, {})):
        tags = {
            "airflow.dag_id": "forget_people_everywhere",
            "airflow.task_id": "forget_orders",
            "airflow.run_id": RUN,
            "airflow.map_index": str(index),
            "airflow.try_number": "1",
        }
        tx = table.begin()
        parameters = {"predicate": json.dumps(["customer_id IN (10000 keys) AND order_date >= :first_day"])}
        tx.commit("DELETE", parameters, metrics, tags=tags, record_empty=True)
    return tmp_path / "t"


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


def test_history_fits_a_terminal_and_shows_dag_task_and_run(
    airflow_home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert run("history", folder) == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 120
    # A commit takes a few lines at most, and a version number, a time and an operation are never folded.
    assert len(lines) <= 2 + 4 * 5
    assert [line.split()[0] for line in lines if line.strip()[:1].isdigit()] == ["3", "2", "1", "0"]
    assert sum("DELETE" in line for line in lines) == 2


def test_history_names_the_task_the_run_and_the_rows_of_a_commit(
    airflow_home: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("history", folder) == 0
    mapped, task, other = capsys.readouterr().out.splitlines()[2:5]
    assert "forget_people_everywhere.forget_orders[7]" in mapped
    assert "forget_people_everywhere.forget_orders " in task
    assert RUN in task
    assert "12 deleted" in task
    assert "customer_id IN (10000 keys)" in task
    assert "airflow_txlog/" in other, "a commit of no task shows the engine that made it"


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
