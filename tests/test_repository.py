"""The repository around the package: pinned versions, the commands, the demo's front end."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from tests.helpers import s3
from tests.helpers.depth import by_hand
from tests.helpers.paths import ROOT
from tests.helpers.submitting import eventually


def tool(name: str) -> ModuleType:
    """A script of `tools/`, imported."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def constraint_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def pinned() -> dict[str, str]:
    return dict(line.split("==") for line in constraint_lines())


def installed() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError

    try:
        versions: dict[str, str] = tool("lock").needed_versions()
    except PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed in this environment; `make venv` installs it")
    return versions


def test_constraints_are_exact_sorted_normalised_and_name_no_place() -> None:
    lines = constraint_lines()
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][A-Za-z0-9.+]*", line) for line in lines)
    assert lines == sorted(lines, key=lambda line: line.split("==")[0])


def test_pyspark_and_its_client_are_one_version() -> None:
    assert pinned()["pyspark"] == pinned()["pyspark-client"]


def test_installed_versions_are_the_pinned_ones() -> None:
    """Everything that this distribution needs here is installed as pinned; on the lock's own Python, nothing more."""
    versions = installed()
    assert {name: version for name, version in versions.items() if pinned().get(name, version) != version} == {}
    made_with = (ROOT / "constraints.txt").read_text().splitlines()[0]
    if f"Python {sys.version_info.major}.{sys.version_info.minor}." in made_with:
        assert set(versions) == set(pinned())


def test_make_alone_lists_every_command() -> None:
    shown = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  make ([\w-]+) +\S", shown, re.MULTILINE)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed == targets
    assert {"demo", "test", "test-long", "mutants", "lint", "bench", "lock", "clean"} <= set(listed)


SCRIPTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tools").glob("*.sh"))


@pytest.mark.parametrize("script", [*SCRIPTS, ".ci/run"])
def test_scripts_are_executable_and_parse(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    assert "set -euo pipefail" in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_an_installation_is_checked_by_the_readmes_own_commands() -> None:
    """`make check-install` runs them as they stand, over the network."""
    block = re.search(r"From a clone:\n\n```\n(.*?)```\n", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    written = [line.partition("#")[0].rstrip() for line in block[1].splitlines()]
    script = [str(ROOT / "tools" / "check_install.sh"), "--commands"]
    run = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    assert run == written
    assert [command.split()[:2] for command in written] == [["pip", "install"], ["airflow", "providers"]]


def test_an_installation_is_checked_by_the_commands_of_start_here() -> None:
    page = (ROOT / "docs" / "start-here.md").read_text()
    commands = "".join(re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    script = [str(ROOT / "tools" / "check_install.sh"), "--start-here"]
    assert subprocess.run(script, capture_output=True, text=True, check=True).stdout == commands
    assert re.findall(r"^airflow (\w+ \w+)", commands, re.MULTILINE) == ["db migrate", "dags test", "txlog history"]


def test_a_command_runs_without_a_server_that_cannot_be_had_and_with_one_that_is_given(tmp_path: Path) -> None:
    """A copy of the script with nothing beside it, and no apt-get to fetch a server by."""
    script = tmp_path / "tools" / "with_stores.sh"
    for folder in ("tools", ".venv/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "with_stores.sh", script)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    for name in ("bash", "cat", "dirname", "mktemp", "rm"):
        (tmp_path / "path" / name).symlink_to(str(shutil.which(name)))

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        # By the interpreter's own start: a virtual environment is found beside its link.
        home = {"PATH": str(tmp_path / "path"), "PYTHONHOME": sys.base_prefix}
        command = [str(script), "--only", "s3", "bash", "-c", "echo ran on $TXLOG_TEST_S3"]
        return subprocess.run(command, env=home | environment, capture_output=True, text=True, check=False)

    without = run()
    assert (without.returncode, without.stdout) == (0, "ran on\n")
    assert re.fullmatch(r"No server for s3 could be started: .* Set TXLOG_TEST_S3 to .*\n", without.stderr)
    given = run(TXLOG_TEST_S3="http://s3 key secret")
    assert (given.returncode, given.stdout, given.stderr) == (0, "ran on http://s3 key secret\n", "")


# --- the demo's front end -------------------------------------------------------------------------------------------

REPORT = {
    "task_id": "merge_corrections",
    "tasks": 7,
    "operation": "merge",
    "status": "committed",
    "read_version": 2,
    "version": 3,
    "files": {"considered": 365, "pruned": 0, "rewritten": 12, "added": 13, "removed": 12},
    "rows": 812,
    "seconds": 1.94,
}


def shortened(line: str) -> str:
    return re.sub(r" {2,}", "   ", line)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "[2/7] merge_corrections   v2 -> v3   12 of 365 files rewritten   812 rows   1.9 s"),
        (
            {"task_id": "load", "read_version": None, "version": 0, "files": {"added": 364}, "rows": 336000},
            "[2/7] load   v0   364 files added   336,000 rows   1.9 s",
        ),
        (
            {"status": "nothing_to_do", "files": {"considered": 3}, "rows": 0, "version": 2},
            "[2/7] merge_corrections   no change   0 rows   1.9 s",
        ),
        ({"status": "already_done", "files": {}, "rows": None}, "[2/7] merge_corrections   already done   1.9 s"),
        (
            {"status": "done", "operation": "fetch", "version": None, "read_version": None, "files": {}},
            "[2/7] merge_corrections   812 rows   1.9 s",
        ),
    ],
)
def test_the_demo_shows_a_task_in_one_line(changes: dict[str, object], line: str) -> None:
    assert shortened(tool("demo").task_line(2, REPORT | changes)) == line


def test_the_demo_shows_a_line_once_and_only_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = tool("demo")
    monkeypatch.setattr(demo, "PROGRESS", tmp_path / "progress.jsonl")
    reports = demo.ProgressReports()
    assert list(reports.new_lines()) == []
    line = json.dumps(REPORT) + "\n"
    demo.PROGRESS.write_text(line + line[:20])
    assert len(list(reports.new_lines())) == 1
    assert list(reports.new_lines()) == []
    demo.PROGRESS.write_text(line + line)
    assert [shown[:5] for shown in reports.new_lines()] == ["[2/7]"]


def test_the_demo_wipes_only_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = tool("demo")
    folder = tmp_path / "demo"
    for name, value in {"FOLDER": folder, "MARKER": folder / ".mine", "LOG": folder / "airflow.log"}.items():
        monkeypatch.setattr(demo, name, value)
    folder.mkdir()
    (folder / "precious").write_text("keep")
    with pytest.raises(demo.DemoFailed, match="was not made by the demo"):
        demo.prepare_folder()
    assert (folder / "precious").read_text() == "keep"
    (folder / ".mine").touch()
    demo.prepare_folder()
    assert sorted(path.name for path in folder.iterdir()) == [".mine", "airflow.log"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "no S3 server: run `make demo STORE=s3`"),
        ("http:nowhere key secret", r"the S3 server at http:nowhere makes no bucket \(ValueError\)"),
    ],
)
def test_a_demo_without_its_s3_server_fails_in_one_line(
    given: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo = tool("demo")
    for name, path in {"FOLDER": "demo", "MARKER": "demo/.mine", "LOG": "demo/airflow.log"}.items():
        monkeypatch.setattr(demo, name, tmp_path / path)
    monkeypatch.setattr(demo.signal, "signal", lambda number, handler: None)
    monkeypatch.delenv("TXLOG_TEST_S3", raising=False)
    if given is not None:
        monkeypatch.setenv("TXLOG_TEST_S3", given)
    assert demo.main(["--store", "s3"]) == 1
    assert re.fullmatch(f"demo: FAILED {reason}.*\n", capsys.readouterr().out)


@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.long("the whole demo, with a Spark or a store of its own")
@by_hand("minutes; the tests of the runners and of the stores run what it is made of")
@pytest.mark.parametrize(
    ("runner", "store"), [("warm", "file"), ("cluster", "file"), ("in_process", "s3"), ("cluster", "s3")]
)
def test_the_demo_runs_on_each_runner_and_store(runner: str, store: str, tmp_path: Path) -> None:
    if store == "s3":
        s3.options()  # skips without a server
    for folder in ("tools", "example_dags"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    command = [sys.executable, "-m", "tools.demo", "--store", store, "--runner", runner]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^Read by deltalake: +version 5, 336,\d{3} rows, 0 of N725MQ$", ended.stdout, re.MULTILINE)
    table = r"s3://" if store == "s3" else r"build/demo/lake/flights"
    assert re.search(rf"^The table is at {table}.+\ndemo: OK version=5 rows=336\d{{3}}$", ended.stdout, re.MULTILINE)
    assert (tmp_path / "build" / "demo" / "lake" / "flights").exists() == (store == "file")
    assert not (tmp_path / "build" / "demo" / "warm").exists(), "a Spark is left"
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or ())
    ]
    assert left == []


def test_a_demo_that_fails_leaves_no_process_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = tool("demo")
    monkeypatch.setattr(demo, "LOG", tmp_path / "airflow.log")
    monkeypatch.setattr(demo, "PROGRESS", tmp_path / "progress.jsonl")
    with pytest.raises(demo.DemoFailed, match="exit code 3"):
        list(demo.progress_of(["-c", "import sys; print('told'); sys.exit(3)"]))
    assert (tmp_path / "airflow.log").read_text() == "told\n"
    # A grandchild in the same group, as Spark's JVM is one, must go when its parent does.
    seconds = f"4711{os.getpid()}"  # that no other test run's is taken for ours
    script = f"import subprocess, sys; subprocess.Popen(['sleep', '{seconds}']); sys.exit(3)"
    with pytest.raises(demo.DemoFailed):
        list(demo.progress_of(["-c", script]))
    eventually(lambda: not running(f"sleep {seconds}"), "the grandchild has ended")


def running(command: str) -> bool:
    """Whether a process with this command line is alive; a zombie that nobody reaps has an empty one."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:
            continue
    return command in lines


def test_airflow_finds_the_provider_once_it_is_installed() -> None:
    from importlib.metadata import entry_points

    installed()
    found = {entry.value for entry in entry_points(group="apache_airflow_provider")}
    assert "airflow_txlog.get_provider_info:get_provider_info" in found
