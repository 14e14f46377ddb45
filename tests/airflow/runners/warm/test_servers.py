"""Warm servers without Spark: a script stands in for `spark-submit`, and says at once that it is up."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.engine import Table
from airflow_txlog.errors import CredentialsUnavailable, JobError, JobLost, SparkUnavailable, UnknownColumn
from airflow_txlog.runners.child_process import ChildProcessRunner
from airflow_txlog.runners.warm import server as servers
from airflow_txlog.runners.warm.folders import Process, Server, Slot, base_folder, try_lock
from airflow_txlog.runners.warm.runner import WarmRunner
from airflow_txlog.runners.warm.server import (
    Lease,
    give_up,
    is_of_session,
    lease_session,
    offering_credentials,
    stop,
    stop_all,
)
from airflow_txlog.storage import credentials
from airflow_txlog.storage.credentials import FOLDER, TOKEN, URL, Credentials, offer
from tests.airflow.appending import append_a_file
from tests.helpers.depth import in_long
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

UP = """#!/bin/sh
env > "$TMPDIR/../environment"
tr '\\0' ' ' < /proc/$$/cmdline > "$TMPDIR/../command"
cp "$TMPDIR/../settings" "$TMPDIR/../seen"
echo "Spark Connect server started at: 127.0.0.1:4711"
exec sleep 300
"""


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of servers that this test alone has; no server outlives the test."""
    monkeypatch.setenv("TXLOG_WARM_FOLDER", str(tmp_path / "warm"))
    monkeypatch.setenv("TXLOG_WARM_SESSIONS", "2")
    spark_submit(tmp_path, monkeypatch, UP)
    yield tmp_path / "warm"
    stop_all()
    assert wait_until(lambda: not (tmp_path / "warm").exists())


def test_a_small_delete_by_keys_starts_no_server(base: Path, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": [1, 2, 3]}))
    keys = {"predicate": None, "keys": {"column": "id", "values": [2]}}
    result = WarmRunner().run(job_spec(operation="delete", table_uri=table.uri, arguments=keys), log=print)
    assert (result.status, result.metrics["numDeletedRows"]) == ("committed", 1)
    assert not base.exists()


def test_a_mistake_of_the_author_starts_no_server(base: Path, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": [1, 2, 3]}))
    misspelt = job_spec(
        operation="delete", table_uri=table.uri, arguments={"predicate": "array_max(array(idd, -idd)) = 2"}
    )
    with pytest.raises(UnknownColumn, match="Did you mean 'id'"):
        WarmRunner().run(misspelt, log=print)
    assert not base.exists()


@pytest.mark.long("a server that does not answer is asked again for some seconds")
def test_a_path_that_the_servers_settings_place_elsewhere_is_not_read_from_this_disk(tmp_path: Path) -> None:
    """The setting is the server's own, which the process of the job on it does not see."""
    table = make_table(tmp_path / "t", pa.table({"id": [1]}))
    pq.write_table(pa.table({"id": [2]}), tmp_path / "in.parquet")
    source = {"format": "parquet", "path": str(tmp_path / "in.parquet")}
    elsewhere = {"spark.hadoop.fs.defaultFS": "hdfs://elsewhere"}
    spec = job_spec(
        operation="write",
        table_uri=table.uri,
        arguments={"source": source},
        spark_conf=elsewhere,
        unrestricted=("spark_conf",),
    )
    # There is no Spark behind the port of this server.
    with pytest.raises(SparkUnavailable):
        WarmRunner().run(spec, log=print)
    assert table.latest_version() == 1


def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "spark" / "bin" / "spark-submit"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))


def lease(**spark_conf: str) -> Lease:
    return lease_session(spark_conf, print)


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_two_tasks_find_one_server_and_two_sessions_and_the_third_waits() -> None:
    first, second = lease(), lease()
    assert first.server == second.server
    assert first.slot.session_id != second.slot.session_id
    waits: list[str] = []
    found: list[Lease] = []
    third = threading.Thread(target=lambda: found.append(lease_session({}, waits.append)))
    third.start()
    assert wait_until(lambda: bool(waits))
    assert "waits for one of the 2 sessions" in waits[0]
    first.end(is_well=True)
    third.join(timeout=120)
    assert found[0].slot.session_id == first.slot.session_id
    assert found[0].abandoned == ()


@pytest.mark.parametrize(
    "waits_for", ["a session", "a server that it starts", *in_long("more processes", "a server that another starts")]
)
def test_a_task_that_is_killed_while_it_waits_for_a_session_ends(
    waits_for: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if waits_for == "a session":
        taken = [lease(), lease()]
        assert len(taken) == 2
    else:
        slow = UP.replace("echo", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo")
        spark_submit(tmp_path, monkeypatch, slow)
    table = make_table(tmp_path / "t", pa.table({"a": [1]}))
    lines: list[str] = []
    errors: list[Exception] = []

    def run(runner: WarmRunner) -> None:
        spec = job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "array_max(array(a, -a)) = 1"})
        with pytest.raises(JobLost, match="was stopped before it started") as caught:
            runner.run(spec, log=lines.append)
        errors.append(caught.value)

    def are_waiting(number: int) -> bool:
        # One without a server has looked for mistakes first.
        beginning = "waits for" if waits_for == "a session" else "The job needs Spark"
        return sum(line.startswith(beginning) for line in lines) == number

    runners = [WarmRunner() for _ in range(2 if "another" in waits_for else 1)]
    tasks = [threading.Thread(target=run, args=(runner,), daemon=True) for runner in runners]
    for number, task in enumerate(tasks, 1):
        task.start()
        assert wait_until(partial(are_waiting, number))
        time.sleep(0.2)
    # The one that waits for the other first.
    for runner, task in zip(reversed(runners), reversed(tasks), strict=True):
        runner.kill()
        task.join(timeout=120)
        assert not task.is_alive()
    assert len(errors) == len(tasks)
    (tmp_path / "go").touch()


def test_tasks_that_start_at_once_start_one_server(tmp_path: Path) -> None:
    code = (
        "from airflow_txlog.runners.warm.server import lease_session\n"
        "lease = lease_session({}, lambda line: None)\n"
        "print(lease.server.java.pid, lease.slot.session_id)"
    )
    tasks = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    pids = {task.communicate(timeout=120)[0].split()[0] for task in tasks}
    assert len(pids) == 1


def test_a_session_whose_job_died_is_given_up_and_the_next_job_ends_it() -> None:
    code = (
        "import os, signal\n"
        "from airflow_txlog.runners.warm.server import lease_session\n"
        "print(lease_session({}, lambda line: None).slot.session_id, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    found = lease()
    assert found.abandoned == (died,)
    assert found.slot.session_id not in ("", died)


def test_a_session_whose_job_was_stopped_after_its_commit_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The task succeeds, as the table's log shows its work; but a job that is stopped releases its session."""
    stopped = (sys.executable, "-c", "raise SystemExit(143)")
    monkeypatch.setattr("airflow_txlog.runners.warm.runner.JOB", stopped)
    Table.create(str(tmp_path / "t"), pa.schema([("a", pa.bool_())]))
    application = ApplicationTransaction(app_id="work", version=1)
    spec = job_spec(
        operation="delete",
        table_uri=str(tmp_path / "t"),
        arguments={"predicate": "array_max(array(a, -a)) = 1"},
        application=application,
    )
    append_a_file(spec)
    # Without a server the job would be tried without Spark first.
    lease().end(is_well=True)
    assert WarmRunner().run(spec, log=print).status == "already_done"
    assert len(lease().abandoned) == 1


def test_the_last_server_may_end_after_a_job_has_its_session(base: Path) -> None:
    """The job then finds that the server does not answer, and another is started: no file is asked for again."""
    held = lease()
    token = held.server.token
    stop(held.server)
    assert wait_until(lambda: not base.exists())
    assert f"token={token};" in held.url
    assert token not in repr(held)
    give_up(held.place, held.server)
    with pytest.raises(SparkUnavailable) as caught, offering_credentials(held.server, ["lake"]):
        pass
    assert caught.value.retryable
    # By which the runner tries another one.
    assert caught.value.facts["place"] == "localhost:4711"
    held.end(is_well=False)


@pytest.mark.long("it starts a Spark of its own")
@pytest.mark.parametrize("can_connect_run_it", [True, False])
def test_a_job_whose_server_ends_while_it_connects_runs_on_another_or_on_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, can_connect_run_it: bool
) -> None:
    code = f"""
import os, sys
from airflow_txlog.contract.job import JobResult, read_spec, write_document
from airflow_txlog.errors import InvalidJobSpec, SparkUnavailable
from airflow_txlog.runners.warm.server import stop_all
spec = read_spec(sys.argv[-1])
told = {{"operation": "delete", "table_uri": spec.table_uri}}
if sys.argv[1] == "own" or os.path.exists({str(tmp_path / "again")!r}) and {can_connect_run_it}:
    result = JobResult(status="nothing_to_do", **told)
elif os.path.exists({str(tmp_path / "again")!r}):
    error = InvalidJobSpec("Not over Connect.", is_local_only=True)
    result = JobResult(status="failed", error=error.to_dict(), **told)
else:
    open({str(tmp_path / "again")!r}, "w").close()
    stop_all()
    error = SparkUnavailable("The Spark Connect server does not answer.", place="localhost:4711")
    result = JobResult(status="failed", error=error.to_dict(), **told)
write_document(spec.result_uri, result.to_json())
"""
    monkeypatch.setattr("airflow_txlog.runners.warm.runner.JOB", (sys.executable, "-c", code))
    own = partial(ChildProcessRunner, (sys.executable, "-c", code, "own"))
    monkeypatch.setattr(
        "airflow_txlog.runners.warm.runner.ChildProcessRunner",
        lambda *given, **named: ChildProcessRunner(*given, **named) if given else own(),
    )
    Table.create(str(tmp_path / "t"), pa.schema([("a", pa.bool_())]))
    spec = job_spec(
        operation="delete", table_uri=str(tmp_path / "t"), arguments={"predicate": "array_max(array(a, -a)) = 1"}
    )
    lines: list[str] = []
    assert WarmRunner().run(spec, log=lines.append).status == "nothing_to_do"
    assert [line for line in lines if "Another one is started" in line]
    assert any("gets a Spark of its own" in line for line in lines) is not can_connect_run_it


def test_a_session_is_not_free_while_the_child_of_a_dead_task_has_it() -> None:
    """The child ends a moment after its task: until then its session is its own."""
    held = lease()
    child = subprocess.Popen(["sleep", "60"], pass_fds=(held.slot.file,))
    try:
        os.close(held.slot.file)
        assert lease().slot.session_id != held.slot.session_id
    finally:
        child.kill()
        child.wait()


def test_the_server_is_in_a_session_of_its_own_and_has_no_secret_of_airflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://canary-key:canary-secret@")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "canary-fernet")
    monkeypatch.setenv("WAREHOUSE", "postgresql://jobs:canary-password@db/x")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_SUBMIT_ARGS", URL, TOKEN):
        monkeypatch.setenv(name, "canary-other")
    found = lease(**{"spark.hadoop.fs.s3a.secret.key": "canary-setting"})
    folder = Path(found.server.folder)
    environment = (folder / "environment").read_text()
    assert "canary" not in environment
    assert f"{FOLDER}={folder}/credentials" in environment
    assert "HTTPS_PROXY=http://proxy:3128" in environment
    command = (folder / "command").read_text()
    assert "canary" not in command
    assert found.server.token not in command
    # They reach Spark by a file that this user alone can read, and that is gone when it was read.
    assert "setting" in (folder / "seen").read_text()
    assert not (folder / "settings").exists()
    assert os.getsid(found.server.java.pid) == os.getsid(found.server.keeper.pid) != os.getsid(0)


def test_the_token_and_the_folders_are_for_their_owner_alone(base: Path) -> None:
    folder = Path(lease().server.folder)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (base, folder, folder / "credentials", folder / "sessions")}
    assert modes == {0o700}
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600


def test_a_folder_that_others_may_write_is_refused(base: Path) -> None:
    base.mkdir(mode=0o755)
    with pytest.raises(JobError, match=r"mode 0700.*drwxr-xr-x.*Nothing was started"):
        base_folder()
    base.rmdir()


def test_a_link_in_place_of_the_folder_is_refused(base: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    base.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JobError, match="must be a folder of this user's"):
        base_folder()
    base.unlink()


def test_a_static_setting_an_upgrade_or_another_identity_is_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    first = lease()
    assert lease(**{"spark.sql.shuffle.partitions": "7"}).server == first.server
    larger = lease(**{"spark.driver.memory": "3g"})
    monkeypatch.setenv("AWS_PROFILE", "other")
    other = lease()
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setattr(servers, "_version", lambda name: "another")
    upgraded = lease()
    assert len({each.server.java.pid for each in (first, larger, other, upgraded)}) == 4
    assert all(each.server.is_running for each in (first, larger, other, upgraded))


@pytest.mark.parametrize("name", ["spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"])
def test_what_a_session_can_set_needs_no_server_of_its_own(name: str) -> None:
    assert is_of_session(name)
    assert not is_of_session("spark.sql.extensions")
    assert not is_of_session("spark.driver.memory")


def test_a_server_that_does_not_start_is_an_error_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    spark_submit(tmp_path, monkeypatch, "#!/bin/sh\necho 'JAVA_HOME is not set'\nexit 1\n")
    with pytest.raises(SparkUnavailable, match=r"did not start: JAVA_HOME is not set") as caught:
        lease()
    assert caught.value.retryable
    assert not base.exists()
    spark_submit(tmp_path, monkeypatch, UP)
    assert lease().server.is_running


def test_of_a_java_trace_the_line_that_says_why_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "WARNING: incubator\\nException in thread main: basedir must be absolute: ?\\n\\tat a.b.C\\n\\tat d.e.F"
    spark_submit(tmp_path, monkeypatch, f"#!/bin/sh\nprintf '{said}'\nexit 1\n")
    with pytest.raises(SparkUnavailable, match=r"did not start: Exception .* absolute: \?\. Is Java 17 or newer"):
        lease()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_user_without_an_entry_in_the_list_of_users_is_named(tmp_path: Path) -> None:
    code = "from airflow_txlog.jobs.spark.installation import start_advice; print(start_advice('x'))"
    try:
        said = subprocess.run([sys.executable, "-c", code], user=54321, capture_output=True, text=True, check=True)
    except PermissionError:
        pytest.skip(f"another user of this machine may not run {sys.executable}")
    assert "The user of this process, 54321, has no entry in /etc/passwd" in said.stdout


def test_a_server_that_died_is_replaced_and_its_folder_deleted() -> None:
    first = lease()
    os.kill(first.server.java.pid, signal.SIGKILL)
    assert wait_until(lambda: not Path(first.server.folder).exists())
    assert first.server.keeper.ended_within(120)
    assert lease().server.java.pid != first.server.java.pid


def test_a_server_ends_with_its_keeper_and_is_not_used_without_it() -> None:
    first = lease()
    os.kill(first.server.keeper.pid, signal.SIGKILL)
    assert wait_until(lambda: not first.server.java.is_running)
    assert lease().server.java.pid != first.server.java.pid
    assert not Path(first.server.folder).exists()


def test_a_process_that_has_the_id_of_a_dead_server_is_neither_used_nor_killed() -> None:
    first = lease()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        reused = Server(
            folder=first.server.folder,
            keeper=first.server.keeper,
            java=Process(bystander.pid, first.server.java.started),
            port=1,
        )
        reused.write()
        assert not reused.is_running
        assert lease().server.folder != first.server.folder
        stop(reused)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        first.server.java.send(signal.SIGKILL)


@pytest.mark.long("waits for a server to be idle")
def test_an_idle_server_ends_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.setenv("TXLOG_WARM_IDLE_S", "1")
    found = lease()
    time.sleep(2.2)
    assert found.server.is_running, "a job has a session"
    found.end(is_well=True)
    assert wait_until(lambda: not base.exists())
    assert not found.server.is_running


@pytest.mark.long("it starts a Spark of its own")
def test_a_worn_server_takes_no_new_job_and_ends_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXLOG_WARM_JOBS", "2")
    first = lease()
    first.end(is_well=True)
    second = lease()
    assert second.server == first.server
    assert wait_until(lambda: not first.place.is_current(first.server.folder))
    third = lease()
    assert third.server != first.server
    assert first.server.is_running
    second.end(is_well=True)
    assert wait_until(lambda: not first.server.is_running)
    assert third.server.is_running


@pytest.mark.long("it starts a Spark of its own")
def test_a_task_that_is_killed_while_its_server_starts_leaves_one_that_the_next_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = tmp_path / "going"
    spark_submit(tmp_path, monkeypatch, UP.replace("echo", f"touch {going}; sleep 2; echo"))
    code = (
        "from airflow_txlog.runners.warm.server import lease_session\nlease_session({}, lambda line: print(1, flush=1))"
    )
    task = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert task.stdout is not None
    task.stdout.readline()
    assert wait_until(going.exists)
    task.kill()
    task.wait()
    task.stdout.close()
    lines: list[str] = []
    lease_session({}, lines.append)
    assert lines == [], "it was to find the other's server, and not to start one"


def test_a_slot_that_was_written_in_part_is_a_new_session(tmp_path: Path) -> None:
    file = try_lock(tmp_path / "slot")
    assert file is not None
    os.write(file, b'{"session_id": "x", "num')
    assert Slot.of(file).session_id == ""
    os.close(file)


def test_the_pool_gives_no_lease_of_a_server_that_is_about_to_end() -> None:
    first = lease()
    first.end(is_well=True)
    give_up(first.place, first.server)
    assert servers._leased(first.place, first.server) is None
    assert lease().server != first.server


def test_a_session_that_was_long_idle_is_not_used_again() -> None:
    """The server forgets it after an hour; and a server that others keep busy lives for longer."""
    first = lease()
    first.end(is_well=True)
    slot = Path(first.server.folder, "sessions", "0")
    os.utime(slot, (time.time() - 3600, time.time() - 3600))
    second = lease()
    assert second.slot.session_id != first.slot.session_id
    assert second.abandoned == (first.slot.session_id,)


def test_a_full_disk_is_an_error_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "as a file system says it")

    monkeypatch.setattr(servers, "_write_private", full)
    with pytest.raises(SparkUnavailable, match="No space left on device"):
        lease()


def test_workers_of_the_server_get_credentials_from_the_jobs_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lease()
    folder = Path(found.server.folder, "credentials")
    offer("lake", lambda: Credentials(kind="aws", values={"access_key": "a", "secret_key": "canary"}))
    monkeypatch.setenv(FOLDER, str(folder))
    with pytest.raises(CredentialsUnavailable, match="is not below the task that holds it"):
        credentials._asked("lake")
    with offering_credentials(found.server, ["lake"]), offering_credentials(found.server, []):
        (written,) = folder.iterdir()
        assert stat.S_IMODE(written.stat().st_mode) == 0o600
        assert "canary" not in written.read_text()
        # A job that was killed leaves its file, and nothing answers there; another is being written.
        (folder / "killed").write_text('["http://127.0.0.1:1", "token"]')
        (folder / "new").write_text("")
        assert credentials._asked("lake").values["secret_key"] == "canary"
        with pytest.raises(CredentialsUnavailable):
            credentials._asked("another")
    assert not written.exists()
