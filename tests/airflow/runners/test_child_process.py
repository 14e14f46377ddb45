"""The child process runner, with children that misbehave: real processes, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.contract.operations import Truncate
from airflow_txlog.engine import Table
from airflow_txlog.errors import ConcurrentAppend, InvalidJobSpec, JobLost
from airflow_txlog.runners import make_runner
from airflow_txlog.runners.child_process import ChildProcessRunner
from airflow_txlog.runners.job_output import readable, shown
from tests.helpers.specs import job_spec

# What every child here starts with: its spec, read from the one argument.
PROLOGUE = """
import json, os, signal, sys, time
from airflow_txlog.contract.job import *
spec = read_spec(sys.argv[1])
def leave(**fields):
    result = JobResult(operation=spec.operation.name, table_uri=spec.table_uri, **fields)
    write_document(spec.result_uri, result.to_json())
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))


@pytest.fixture
def spec(table: Table) -> JobSpec:
    return job_spec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": "name = 'Ada Lovelace'"},
        application=ApplicationTransaction(app_id="a", version=1),
    )


def runner(tmp_path: Path, code: str, **more: float) -> ChildProcessRunner:
    script = tmp_path / "child.py"
    script.write_text(PROLOGUE + code)
    return ChildProcessRunner(command=(sys.executable, str(script)), **more)  # type: ignore[arg-type]


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ended(pid: int, deadline_s: float = 120.0) -> None:
    end = time.monotonic() + deadline_s
    while is_running(pid):
        assert time.monotonic() < end, f"process {pid} is still running"
        time.sleep(0.05)


def test_the_result_comes_by_file_and_the_exit_code_decides_nothing(tmp_path: Path, spec: JobSpec) -> None:
    lines: list[str] = []
    code = "print('found 3 rows'); leave(status='committed', version=7); sys.exit(3)"
    result = runner(tmp_path, code).run(spec, log=lines.append)
    assert (result.status, result.version) == ("committed", 7)
    assert lines == ["found 3 rows"]


def test_a_failed_result_raises_its_own_error(tmp_path: Path, spec: JobSpec) -> None:
    code = (
        "from airflow_txlog.errors import ConcurrentAppend\n"
        "leave(status='failed', error=ConcurrentAppend('lost', winning_version=4).to_dict())"
    )
    with pytest.raises(ConcurrentAppend) as caught:
        runner(tmp_path, code).run(spec, log=print)
    assert caught.value.winning_version == 4


def test_a_missing_result_tells_the_exit_code_and_the_last_lines(tmp_path: Path, spec: JobSpec) -> None:
    with pytest.raises(JobLost) as caught:
        runner(tmp_path, "print('java.lang.OutOfMemoryError'); os._exit(137)").run(spec, log=print)
    assert caught.value.exit_code == 137  # type: ignore[attr-defined]
    assert "OutOfMemoryError" in str(caught.value)


COMMITS = """
from airflow_txlog.engine import Table
from airflow_txlog.errors import JobLost
tx = Table.open(spec.table_uri).begin()
tx.add(path="a.parquet", partition_values={}, size=1, modification_time=1, stats=None)
tx.set_application(spec.application.app_id, spec.application.version)
tx.commit("DELETE", {}, {}, tags=spec.commit_tags())
"""
ENDINGS = {
    "it dies": "os.kill(os.getpid(), signal.SIGKILL)",
    "it is stopped": "print('made', flush=True); time.sleep(60)",
    # The child lives, and its error must not hide what the log shows.
    "its JVM dies": "leave(status='failed', error=JobLost('gone', has_application_transaction=True).to_dict())",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_job_that_is_lost_after_its_commit_is_done(tmp_path: Path, spec: JobSpec, ending: str) -> None:
    """Before a job is called lost, the log is asked for the application transaction."""
    child = runner(tmp_path, COMMITS + ENDINGS[ending])

    def stop(line: str) -> None:
        if line == "made":
            child.kill()

    result = child.run(spec, log=stop)
    assert (result.status, result.version) == ("already_done", 1)


@pytest.mark.parametrize("is_recognisable", [True, False])
def test_a_child_that_is_killed_is_lost_and_retryable_exactly_with_a_transaction(
    tmp_path: Path, spec: JobSpec, is_recognisable: bool
) -> None:
    spec = spec if is_recognisable else spec.replace(application=None)
    with pytest.raises(JobLost, match="SIGKILL") as caught:
        runner(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)").run(spec, log=print)
    assert (caught.value.exit_code, caught.value.retryable) == (-9, is_recognisable)  # type: ignore[attr-defined]


def test_a_lost_job_stays_lost_where_the_log_does_not_answer(
    tmp_path: Path, spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_txlog.exactly_once import transactions

    def no_answer(spec: JobSpec) -> None:
        raise OSError("the store does not answer")

    monkeypatch.setattr(transactions, "find_done", no_answer)
    with pytest.raises(JobLost) as caught:
        runner(tmp_path, "os._exit(1)").run(spec, log=print)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_result_of_which_a_part_was_written_is_none(tmp_path: Path, spec: JobSpec) -> None:
    code = "leave(status='committed', version=7); os.truncate(spec.result_uri, 20)"
    with pytest.raises(JobLost):
        runner(tmp_path, code).run(spec, log=print)


@pytest.mark.parametrize("runner", ["child", "warm"])
def test_a_cluster_is_refused_by_name_where_spark_is_of_the_tasks_machine(spec: JobSpec, runner: str) -> None:
    there = spec.replace(spark_conf={"spark.master": "spark://m:7077"}, unrestricted=("spark_conf",))
    with pytest.raises(InvalidJobSpec, match="master=spark://m:7077, and this job's Spark is") as caught:
        make_runner(runner).run(there, log=print)
    assert caught.value.argument == "spark_conf.spark.master"
    # What never starts Spark asks no cluster.
    assert make_runner(runner).run(there.replace(operation=Truncate()), log=print).status == "nothing_to_do"


def test_nothing_of_the_spec_stands_in_the_command_line(tmp_path: Path, spec: JobSpec) -> None:
    code = """
leave(status='nothing_to_do', metrics={'is_there': int('Lovelace' in open('/proc/self/cmdline').read())})
"""
    assert runner(tmp_path, code).run(spec, log=print).metrics == {"is_there": 0}


def test_the_files_of_a_job_have_no_name_and_are_for_their_owner(tmp_path: Path, spec: JobSpec) -> None:
    """What has no name is gone with the processes, whatever kills them."""
    code = """
found = [os.stat(path) for path in (sys.argv[1], spec.result_uri)]
names = ('spec', 'result')
leave(status='nothing_to_do', metrics={name: stat.st_mode & 0o777 for name, stat in zip(names, found)},
      files={name: stat.st_nlink for name, stat in zip(names, found)})
"""
    result = runner(tmp_path, code).run(spec, log=print)
    assert (result.metrics, result.files) == ({"spec": 0o600, "result": 0o600}, {"spec": 0, "result": 0})


def test_the_child_is_in_the_process_group_of_the_task(tmp_path: Path, spec: JobSpec) -> None:
    code = "leave(status='nothing_to_do', metrics={'group': os.getpgrp()})"
    assert runner(tmp_path, code).run(spec, log=print).metrics["group"] == os.getpgrp()


@pytest.mark.parametrize(
    ("code", "grace_s", "ended_by"),
    [
        ("print(os.getpid(), flush=True); time.sleep(600)", 300.0, signal.SIGTERM),
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True)\nwhile True: time.sleep(60)",
            1.0,
            signal.SIGKILL,
        ),
    ],
    ids=["ends on SIGTERM", "ignores SIGTERM"],
)
def test_kill_stops_the_child_and_leaves_no_commit(
    tmp_path: Path,
    spec: JobSpec,
    table: Table,
    code: str,
    grace_s: float,
    ended_by: signal.Signals,
) -> None:
    child = runner(tmp_path, code, grace_s=grace_s)
    pids: list[int] = []

    def kill_when_it_runs(line: str) -> None:
        pids.append(int(line))
        threading.Thread(target=child.kill).start()

    with pytest.raises(JobLost, match="was stopped") as caught:
        child.run(spec, log=kill_when_it_runs)
    wait_until_ended(pids[0])
    assert caught.value.exit_code == -ended_by  # type: ignore[attr-defined]
    assert table.snapshot().version == 0


def test_kill_works_from_a_signal_handler_above_the_wait(tmp_path: Path, spec: JobSpec) -> None:
    """Airflow calls on_kill in the handler of SIGTERM, in the thread that waits for the child."""
    child = runner(tmp_path, "print('ready', flush=True); time.sleep(60)")
    previous = signal.signal(signal.SIGUSR1, lambda *_: child.kill())
    inside_the_read = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with pytest.raises(JobLost, match="was stopped"):
            child.run(spec, log=lambda _: inside_the_read.start())
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_a_timeout_of_the_task_stops_the_child(tmp_path: Path, spec: JobSpec) -> None:
    class TaskTimedOut(BaseException):
        pass

    pids: list[int] = []

    def time_out(line: str) -> None:
        pids.append(int(line))
        raise TaskTimedOut

    with pytest.raises(TaskTimedOut):
        runner(tmp_path, "print(os.getpid(), flush=True); time.sleep(60)").run(spec, log=time_out)
    wait_until_ended(pids[0])


def test_a_child_whose_task_was_killed_sees_the_end_of_its_input(tmp_path: Path, spec: JobSpec) -> None:
    """SIGKILL of the task leaves no chance to stop the child; the child's standard input ends, and it follows."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    child = temporary / "child.py"
    child.write_text("import os, sys\nprint(os.getpid(), flush=True)\nsys.stdin.buffer.read()\n")
    task = (
        "import sys\n"
        "from airflow_txlog.contract.job import JobSpec\n"
        "from airflow_txlog.contract.operations import Checkpoint\n"
        "from airflow_txlog.runners.child_process import ChildProcessRunner\n"
        f"runner = ChildProcessRunner(command=(sys.executable, {str(child)!r}))\n"
        f"runner.run(JobSpec(operation=Checkpoint(), table_uri={spec.table_uri!r}),\n"
        "           log=lambda line: print(line, flush=True))\n"
    )
    environment = os.environ | {"TMPDIR": str(temporary)}
    process = subprocess.Popen([sys.executable, "-c", task], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until_ended(pid)
    assert not [path for path in temporary.iterdir() if path.name != child.name]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", None),
        ("[Stage 3:=====>      (2 + 2) / 8]", None),
        ("found 3 rows in 2 of 10 files  ", "found 3 rows in 2 of 10 files"),
        ("Traceback of ValueError", "Traceback of ValueError"),
    ],
)
def test_a_line_of_the_job_reaches_the_log_unless_it_is_noise(line: str, told: str | None) -> None:
    assert readable(line) == told


@pytest.mark.parametrize(
    "line", ["NOTE: Picked up JDK_JAVA_OPTIONS: -XX:MetaspaceSize=1m", "Picked up _JAVA_OPTIONS: -Xlog:disable"]
)
def test_the_options_that_a_jvm_picks_up_are_no_cause_of_anything(line: str) -> None:
    """Each JVM names them when it starts. They may hold the words that failures are known by: Metaspace."""
    assert shown(line) is None


def test_a_progress_bar_never_swallows_a_line(tmp_path: Path, spec: JobSpec) -> None:
    lines: list[str] = []
    code = (
        "sys.stdout.write('[Stage 0:>(0 + 2) / 4]\\r[Stage 0:==>(2 + 2) / 4]\\r      \\rcommitted version 3\\n')\n"
        "leave(status='committed', version=3)"
    )
    runner(tmp_path, code).run(spec, log=lines.append)
    assert lines == ["committed version 3"]


def test_what_the_engine_logs_reaches_the_tasks_log(table: Table) -> None:
    """A child's logging goes to standard error by default, of which only known words are shown."""
    lines: list[str] = []
    spec = job_spec(operation="vacuum", table_uri=table.uri, arguments={"dry_run": True})
    ChildProcessRunner().run(spec, log=lines.append)
    assert f"vacuum of {table.uri} (full): 0 files to delete, 0.0 MiB" in lines


def test_a_line_that_cannot_be_said_any_more_does_not_stop_what_logs_it(tmp_path: Path) -> None:
    """The task may be gone: a commit goes on, as it would without the line."""
    code = """
import logging, sys
from airflow_txlog.jobs.__main__ import _own_output
_own_output()
input()
logging.getLogger("airflow_txlog.engine").warning("a line")
open(sys.argv[1], "w").write("went on")
"""
    after = tmp_path / "after"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(after)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    process.communicate("go\n", timeout=120)
    assert after.read_text() == "went on"
