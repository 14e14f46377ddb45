"""The runner `submit` in cluster mode: its driver outlives the task, and every later try finds it.

The cluster is played by this machine, and a driver here is a process without Spark (test_cluster_mode_drivers has real
ones). YARN's and Kubernetes' own answers are in tests/airflow/runners/test_spark_connection.py.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.contract.operations import Audit, Publish
from airflow_txlog.engine import Table
from airflow_txlog.engine.upkeep.rollback import NOT_DONE
from airflow_txlog.errors import (
    ClusterLost,
    IdempotencyKeyReused,
    InvalidJobSpec,
    InvalidPredicate,
    JobError,
    JobLost,
    SparkUnavailable,
)
from airflow_txlog.exactly_once.exchange import KEY_SETTING, Exchange
from airflow_txlog.exactly_once.transactions import Seal
from airflow_txlog.hooks.spark_connection import KubernetesApplications, YarnApplications
from airflow_txlog.jobs import cluster_main
from airflow_txlog.jobs.spark.shipping import driver_zip
from airflow_txlog.runners.base import ApplicationState
from airflow_txlog.runners.cluster_mode import ClusterModeRunner
from airflow_txlog.storage import PLAIN, open_store
from tests.helpers.driver_elsewhere import DetachedCluster, PlayedCluster, mode_of
from tests.helpers.paths import PACKAGES, ROOT
from tests.helpers.plain_driver import settings_in
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec
from tests.helpers.submitting import eventually

KEY = "ab" * 32
SECRET = "canary-2c90"
PERSON = "mary.canary-7f11"


@pytest.fixture
def users(tmp_path: Path) -> Table:
    return make_table(tmp_path / "users", pa.table({"user_id": pa.array(range(9), pa.int64())}))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PlayedCluster]:
    played = PlayedCluster(tmp_path / "cluster")
    yield played
    played.end()


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[DetachedCluster]:
    played = DetachedCluster(tmp_path / "detached", has_spark=False)
    yield played
    played.end()


def spec_of(table: Table, **given: Any) -> JobSpec:
    fields: dict[str, Any] = {
        "application": ApplicationTransaction(app_id="test/elsewhere", version=1),
        "saved_work_key": KEY,
        "spark_conf": {"spark.my.password": SECRET},
        "unrestricted": ("spark_conf",),
        **given,
    }
    predicate = f"pmod(user_id, 100) = 42 OR '{PERSON}' = ''"
    return job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": predicate}, **fields)


def exchange_of(table: Table, key: str = KEY) -> Exchange:
    return Exchange(open_store(table.uri, PLAIN), key)


def documents(table: Table) -> dict[str, bytes]:
    """What lies in the table's folder for the driver and the task, by its name."""
    root = Path(table.uri.removeprefix("file://"))
    return {path.name: path.read_bytes() for path in root.glob("txlog-inputs-*/*")}


def rows_added(table: Table) -> int:
    return table.to_arrow().column("user_id").to_pylist().count(1000)


class Waiting:
    """A run of the runner in a thread of its own."""

    def __init__(self, cluster: PlayedCluster, spec: JobSpec, **more: float) -> None:
        self.lines: list[str] = []
        self.runner = cluster.runner(**more)
        self.result: JobResult | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(spec,), daemon=True)
        self._thread.start()

    def _run(self, spec: JobSpec) -> None:
        try:
            self.result = self.runner.run(spec, log=self.lines.append)
        except BaseException as error:
            self.error = error

    def until(self, line: str, seconds: float = 120.0) -> None:
        eventually(lambda: any(line in each for each in self.lines), line, seconds)

    def over(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()


def held(cluster: PlayedCluster, users: Table, **limits: float) -> Waiting:
    """A job that has not committed, which its task knows to be submitted."""
    cluster.hold("commit")
    task = Waiting(cluster, spec_of(users), **limits)
    task.until("app-1")
    return task


def test_the_result_comes_back_and_no_secret_is_seen_but_in_the_drivers_settings(
    cluster: PlayedCluster, users: Table
) -> None:
    cluster.hold("commit")
    task = Waiting(cluster, spec_of(users))
    task.until("Spark application app-1 on local[2]")
    (home,) = cluster.homes().values()
    lying = documents(users)
    assert sorted(lying) == ["driver-1", "spec-1"]
    folder = Path(users.uri.removeprefix("file://"), exchange_of(users).folder)
    assert mode_of(folder) == 0o700
    words, settings = ((home / file).read_text() for file in ("words", "settings"))
    for text in (words.encode(), *lying.values(), "\n".join(task.lines).encode()):
        assert SECRET.encode() not in text
        assert KEY.encode() not in text
    # Spark shows no setting with such a name.
    assert re.search(r"secret", KEY_SETTING)
    assert SECRET.replace("-", "\\u002d") in settings
    assert users.uri not in words
    assert words.splitlines()[-3:-1][0] == "--py-files"
    cluster.go_on()
    task.over()
    assert task.result is not None
    assert (task.result.status, task.result.version) == ("committed", 2)
    assert documents(users) == {}


WORKER = """
import sys
from pathlib import Path
from airflow_txlog.contract.job import JobSpec
from tests.helpers.driver_elsewhere import DetachedCluster

spec = JobSpec.from_json(open(sys.argv[1]).read())
eval(sys.argv[2]).runner().run(spec, log=lambda line: print(line, flush=True))
"""


def killed_worker(cluster: PlayedCluster, spec: JobSpec, tmp_path: Path, at: str, code: str | None = None) -> None:
    """Another process submits the job, and is killed when it logs a line. `code` makes the same cluster there."""
    code = code or f"DetachedCluster(Path({str(cluster.folder)!r}), has_spark=False)"
    described = tmp_path / "spec.json"
    described.write_text(spec.to_json(with_key=True))
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(described), code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert worker.stdout is not None
    for line in worker.stdout:
        if at in line:
            worker.send_signal(signal.SIGKILL)
            break
    assert worker.wait() == -signal.SIGKILL
    worker.stdout.close()


def test_the_retry_of_a_killed_worker_waits_for_the_job_that_still_runs(
    detached: DetachedCluster, users: Table, tmp_path: Path
) -> None:
    detached.hold("commit")
    killed_worker(detached, spec_of(users), tmp_path, "running")
    task = Waiting(detached, spec_of(users))
    task.until("an earlier try has submitted")
    detached.go_on()
    task.over()
    assert task.result is not None
    assert task.result.status == "committed"
    assert len(detached.homes()) == 1
    assert (users.latest_version(), rows_added(users)) == (2, 1)


def test_what_a_worker_killed_in_its_last_try_leaves_shows_no_argument_of_the_job(
    detached: DetachedCluster, users: Table, tmp_path: Path
) -> None:
    detached.hold("commit")
    killed_worker(detached, spec_of(users), tmp_path, "running")
    detached.go_on()
    assert PERSON in (tmp_path / "spec.json").read_text(), "the worker was given it"
    eventually(lambda: "result-1" in documents(users), "the job goes on, and no task reads its result")
    assert sorted(documents(users)) == ["driver-1", "result-1", "spec-1"]
    folders = (Path(users.uri.removeprefix("file://")), detached.folder)
    left = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert [path for path in left if PERSON.encode() in path.read_bytes()] == []


@pytest.mark.long("another worker that is killed")
def test_the_retry_of_a_killed_worker_reads_the_result_of_a_job_that_has_ended(
    detached: DetachedCluster, users: Table, tmp_path: Path
) -> None:
    detached.hold("commit")
    killed_worker(detached, spec_of(users), tmp_path, "running")
    detached.go_on()
    (name,) = detached.homes()
    eventually(lambda: not detached.runs(name), "the driver needs no task")
    result = detached.runner().run(spec_of(users), log=print)
    assert (result.status, result.version) == ("committed", 2)
    assert len(detached.homes()) == 1


@pytest.mark.parametrize("at", ["commit", "result"])
def test_a_driver_that_is_lost_is_looked_up_in_the_log_and_the_retry_submits_again(
    cluster: PlayedCluster, users: Table, at: str
) -> None:
    cluster.hold(at)
    task = Waiting(cluster, spec_of(users))
    eventually(lambda: at == "commit" or users.latest_version() == 2, "committed")
    task.until("app-1")
    cluster.kill(*cluster.homes())
    task.over()
    cluster.go_on()
    if at == "result":
        assert task.result is not None
        assert (task.result.status, task.result.version) == ("already_done", 2)
        return
    assert isinstance(task.error, JobLost)
    assert task.error.retryable
    assert "the table's log does not show its transaction" in str(task.error)
    result = cluster.runner().run(spec_of(users), log=task.lines.append)
    assert result.status == "committed"
    assert any("which has ended without a result" in line for line in task.lines)
    assert len(cluster.homes()) == 2
    assert rows_added(users) == 1


def test_a_job_that_is_killed_is_cancelled_where_it_runs_and_lost(cluster: PlayedCluster, users: Table) -> None:
    task = held(cluster, users)
    task.runner.kill()
    task.over()
    assert not cluster.runs(*cluster.homes())
    assert isinstance(task.error, JobLost)
    assert "was cancelled and left no result (ended), and the table's log does not show" in str(task.error)
    assert users.latest_version() == 1


def test_a_job_that_had_committed_when_it_was_killed_is_done(cluster: PlayedCluster, users: Table) -> None:
    cluster.hold("result")
    task = Waiting(cluster, spec_of(users))
    eventually(lambda: users.latest_version() == 2, "committed")
    task.runner.kill()
    task.over()
    assert task.result is not None
    assert task.result.status == "already_done"


@pytest.mark.parametrize(("at", "said"), [("commit", "does not show its transaction"), ("result", "version 2")])
def test_a_timeout_of_the_task_cancels_the_job_and_asks_the_log(
    cluster: PlayedCluster, users: Table, at: str, said: str
) -> None:
    class Timeout(BaseException):
        """As Airflow's own."""

    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if line.endswith(": running"):
            eventually(lambda: at == "commit" or users.latest_version() == 2, "committed")
            raise Timeout

    cluster.hold(at)
    with pytest.raises(Timeout):
        cluster.runner().run(spec_of(users), log=log)
    assert not cluster.runs(*cluster.homes())
    assert "was cancelled; the table's log" in lines[-1]
    assert said in lines[-1]


def test_a_job_that_no_try_waits_for_is_cancelled_and_leaves_no_description(
    cluster: PlayedCluster, users: Table
) -> None:
    task = held(cluster, users)
    assert "spec-1" in documents(users)
    lines: list[str] = []
    cluster.runner().cancel(spec_of(users), log=lines.append)
    assert "does not show its transaction" in lines[-1]
    assert documents(users) == {}, "it has the keys of the work"
    task.over()


def test_a_job_that_may_still_run_keeps_its_description(
    cluster: PlayedCluster, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = held(cluster, users)
    monkeypatch.setattr(PlayedCluster, "cancel", lambda *_: None)
    cluster.runner(cancelled_s=0.0).cancel(spec_of(users), log=print)
    assert "spec-1" in documents(users), "a later try has to find it"
    cluster.go_on()
    task.over()


def test_the_failure_of_a_job_keeps_its_class_and_its_retry_starts_afresh(cluster: PlayedCluster, users: Table) -> None:
    error = InvalidPredicate("no", predicate="x")
    failed = JobResult(status="failed", operation="delete", table_uri=users.uri, error=error.to_dict())
    (cluster.folder / "result").write_text(failed.to_json())
    with pytest.raises(InvalidPredicate) as caught:
        cluster.runner().run(spec_of(users), log=print)
    assert caught.value.facts == {"predicate": "x"}
    (cluster.folder / "result").unlink()
    assert cluster.runner().run(spec_of(users), log=print).status == "committed"
    assert len(cluster.homes()) == 2


def forged_by_name(users: Table, data: bytes) -> None:
    folder = Path(users.uri.removeprefix("file://"), exchange_of(users).folder)
    (folder / "result-1").write_bytes(data)


def unsigned(users: Table, result: str) -> None:
    forged_by_name(users, b"0" * 64 + result.encode())


def signed_with_another_key(users: Table, result: str) -> None:
    seal = Seal("cd" * 32, open_store(users.uri, PLAIN).root, ApplicationTransaction(app_id="a", version=1))
    forged_by_name(users, f"{seal.sign('result-1', result.encode())}{result}".encode())


def another_document_of_the_work(users: Table, result: str) -> None:
    forged_by_name(users, documents(users)["driver-1"])


@pytest.mark.parametrize("forge", [unsigned, signed_with_another_key, another_document_of_the_work])
def test_a_result_that_another_writer_of_the_table_has_put_there_is_not_read(
    cluster: PlayedCluster, users: Table, forge: Callable[[Table, str], None]
) -> None:
    task = held(cluster, users)
    forge(users, JobResult(status="committed", operation="delete", table_uri=users.uri, version=99).to_json())
    cluster.kill(*cluster.homes())
    task.over()
    assert isinstance(task.error, JobLost)


@pytest.mark.parametrize("with_spec", [False, True], ids=["beside a new submission", "with its spec"])
def test_a_result_from_before_the_task_was_cleared_is_not_read(
    cluster: PlayedCluster, users: Table, with_spec: bool
) -> None:
    """It was left by a worker that was killed, or another writer has kept the signed documents and put them back."""
    exchange, before = exchange_of(users), spec_of(users, annotations={"dag_id": "d", "max_tries": 0})
    if with_spec:
        exchange.add({"name": "old", "digest": before.digest(), "spec": json.loads(before.to_json())})
    result = JobResult(status="nothing_to_do", operation="delete", table_uri=users.uri)
    exchange.put("result", 1, {**json.loads(result.to_json()), "submission": "old"})
    cleared = spec_of(users, annotations={"dag_id": "d", "max_tries": 1})
    assert cluster.runner().run(cleared, log=print).status == "committed"
    assert rows_added(users) == 1
    assert documents(users) == {}


@pytest.mark.parametrize("status", ["committed", "already_done"])
def test_a_result_whose_commit_was_rolled_back_is_not_read(cluster: PlayedCluster, users: Table, status: str) -> None:
    exchange, spec = exchange_of(users), spec_of(users)
    exchange.add({"name": "old", "digest": spec.digest(), "spec": json.loads(spec.to_json())})
    tx = users.begin()
    tx.set_application("test/elsewhere", NOT_DONE)
    version = tx.commit("ROLLBACK", {}, record_empty=True)
    result = JobResult(status=status, operation="delete", table_uri=users.uri, version=version - 1)
    exchange.put("result", 1, {**json.loads(result.to_json()), "submission": "old"})
    lines: list[str] = []
    assert cluster.runner().run(spec, log=lines.append).version == version + 1
    assert any("was rolled back: it does not count" in line for line in lines)
    assert rows_added(users) == 1


def test_a_submitted_job_is_rolled_back_without_the_cluster_and_also_if_it_commits_after_a_rollback(
    cluster: PlayedCluster, users: Table
) -> None:
    spec = spec_of(users, annotations={"dag_id": "d", "run_id": "r"})
    arguments = {"of_dag_id": "d", "run_id": "r"}
    undo = job_spec(operation="rollback", table_uri=users.uri, arguments=arguments, saved_work_key="cd" * 32)

    def undone() -> str:
        return cluster.runner().run(undo, log=print).status

    cluster.hold("commit")
    waiting = Waiting(cluster, spec)
    waiting.until("app-1")
    assert undone() == "nothing_to_do"
    cluster.go_on()
    waiting.over()
    assert (undone(), rows_added(users), len(cluster.homes())) == ("committed", 0, 1)
    # The retry of the task submits its work again.
    assert cluster.runner().run(spec, log=print).status == "committed"
    assert (undone(), undone(), rows_added(users), len(cluster.homes())) == ("committed", "nothing_to_do", 0, 2)


def test_a_job_from_before_the_task_was_cleared_is_cancelled_and_its_work_done_anew(
    cluster: PlayedCluster, users: Table
) -> None:
    cluster.hold("commit")
    before = Waiting(cluster, spec_of(users, annotations={"dag_id": "d", "max_tries": 0}))
    before.until("app-1")
    (first,) = cluster.homes()
    after = Waiting(cluster, spec_of(users, annotations={"dag_id": "d", "max_tries": 1}))
    after.until("does not count")
    eventually(lambda: not cluster.runs(first), "cancelled")
    cluster.go_on()
    for task in (before, after):
        task.over()
    assert after.result is not None
    assert after.result.status == "committed"
    assert len(cluster.homes()) == 2


@pytest.mark.parametrize("name", ["publish", "audit"])
def test_a_job_on_a_staged_change_is_not_taken_for_the_one_that_staged_it(
    cluster: PlayedCluster, users: Table, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They have one key. Each finds its own job again, and ends no other."""
    monkeypatch.setattr(ClusterModeRunner, "_without_spark", lambda *_: None)
    keyed = ApplicationTransaction(app_id="test/elsewhere", version=1, check_digest=True)
    staging = spec_of(users, application=keyed, annotations={"task_id": "stage"})
    of_change: dict[str, Any] = {"id": "a" * 32, "digest": "d"}
    operation, work = (
        (Publish(**of_change, on_change="reaudit"), replace(keyed, check_digest=False))
        if name == "publish"
        else (Audit(**of_change, base_version=1, checks={"some": "COUNT(*) > 0"}), None)
    )
    later = staging.replace(operation=operation, application=work, annotations={"task_id": "later"})
    done = JobResult(status="nothing_to_do", operation=name, table_uri=users.uri, read_version=1)
    (cluster.folder / "result").write_text(done.to_json())
    cluster.hold("commit")
    given = [later, later, later.replace(annotations={"task_id": "another"}), staging]
    lines = ["app-1", "which runs: waiting for it", "app-1", "app-1"]
    tasks = []
    for spec, line in zip(given, lines, strict=True):
        tasks.append(Waiting(cluster, spec))
        tasks[-1].until(line, 20)
    assert [cluster.runs(each) for each in cluster.homes()] == [True] * 3
    cluster.go_on()
    for task in tasks:
        task.over()
    assert documents(users) == {}


def test_a_file_that_another_writer_has_put_in_a_documents_place_keeps_no_result_back(
    cluster: PlayedCluster, users: Table
) -> None:
    task = held(cluster, users)
    forged_by_name(users, b"in the way")
    cluster.go_on()
    task.over()
    assert task.result is not None
    assert task.result.status == "committed"


def test_a_driver_gets_the_whole_description_with_what_lies_nowhere(
    cluster: PlayedCluster, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key, by which it goes on from saved work and names its commit, and the settings with their secrets."""
    spec, found = spec_of(users), list[JobSpec]()

    def run_in_session(spec: JobSpec, *others: Any) -> JobResult:
        found.append(spec)
        return JobResult(status="nothing_to_do", operation="delete", table_uri=users.uri, read_version=1)

    cluster.hold("begin")
    task = Waiting(cluster, spec)
    eventually(lambda: bool(cluster.homes()), "submitted")
    (home,) = cluster.homes().values()
    monkeypatch.setattr(cluster_main, "begin", lambda: print)
    monkeypatch.setattr(cluster_main, "run_in_session", run_in_session)
    monkeypatch.setattr(cluster_main, "_setting", settings_in(home / "settings").get)
    assert cluster_main.main() == 0
    task.over()
    assert task.result is not None
    assert task.result.status == "nothing_to_do"
    assert found == [spec]
    assert found[0].saved_work_key == KEY
    assert found[0].commit_tags() == spec.commit_tags()


def test_a_driver_does_nothing_for_a_spec_that_its_task_has_not_signed_or_has_submitted_again(
    users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(cluster_main, "begin", lambda: lines.append)
    monkeypatch.setattr(cluster_main, "run_in_session", lambda *given: pytest.fail("it runs the job"))
    exchange = exchange_of(users)
    spec = {"name": "a", "spec": json.loads(spec_of(users, spark_conf={}).to_json())}
    for given in (None, exchange.handed_over(1, {}), exchange_of(users, "cd" * 32).handed_over(1, {})):
        monkeypatch.setattr(cluster_main, "_setting", lambda name, given=given: given)
        assert cluster_main.main() == 1
    number = exchange.add(spec)
    assert exchange.add(spec) == number + 1
    monkeypatch.setattr(cluster_main, "_setting", lambda name: exchange.handed_over(number, {}))
    assert cluster_main.main() == 0
    assert "A later try has submitted this work again" in lines[-1]


def test_a_job_that_the_package_of_the_drivers_image_cannot_read_fails_for_that_reason(
    cluster: PlayedCluster, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.hold("begin")
    task = Waiting(cluster, spec_of(users))
    eventually(lambda: bool(cluster.homes()), "submitted")
    (home,) = cluster.homes().values()
    monkeypatch.setattr(cluster_main, "begin", lambda: print)
    monkeypatch.setattr(cluster_main, "_setting", settings_in(home / "settings").get)
    with monkeypatch.context() as older:
        # A spec of a release with another field.
        read = JobSpec.from_json
        add = lambda text: json.dumps({**json.loads(text), "tomorrow": 1})  # noqa: E731
        older.setattr(cluster_main.JobSpec, "from_json", lambda text: read(add(text)))
        assert cluster_main.main() == 1
    task.over()
    assert isinstance(task.error, InvalidJobSpec)
    assert not task.error.retryable
    assert "Install the worker's in the image. Nothing was read. (tomorrow is unknown." in str(task.error)
    assert users.latest_version() == 1


def test_a_document_that_another_build_has_signed_in_the_clear_is_refused_by_both_sides(
    cluster: PlayedCluster, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    exchange, spec = exchange_of(users), spec_of(users)
    exchange.add({})
    (path,) = Path(users.uri.removeprefix("file://"), exchange.folder).iterdir()
    described = json.dumps({"name": "a", "digest": spec.digest(), "spec": json.loads(spec.to_json())}).encode()
    signed_as = ApplicationTransaction(app_id="airflow_txlog/exchange", version=1)
    seal = Seal(KEY, open_store(users.uri, PLAIN).root, signed_as)
    path.write_bytes(seal.sign("spec-1", described).encode() + described)
    said = f"{exchange.folder}/spec-1, which only the tries of this work and its driver read"
    with pytest.raises(JobError, match="another build of airflow_txlog has written it") as caught:
        cluster.runner().run(spec, log=print)
    assert said in str(caught.value)
    assert not caught.value.retryable
    assert cluster.homes() == {}, "the job of that build may still run"
    cluster.runner().cancel(spec, log=lines.append)
    monkeypatch.setattr(cluster_main, "begin", lambda: lines.append)
    monkeypatch.setattr(cluster_main, "run_in_session", lambda *given: pytest.fail("it runs the job"))
    monkeypatch.setattr(cluster_main, "_setting", lambda name: exchange.handed_over(1, {}))
    assert cluster_main.main() == 1
    assert [said in line for line in lines] == [True, True]
    assert PERSON not in f"{caught.value} {lines}"


# --- a cluster that does not answer -----------------------------------------------------------------------------------


def test_a_cluster_that_does_not_answer_is_waited_for_and_then_left_to_the_next_try(
    cluster: PlayedCluster, users: Table
) -> None:
    task = held(cluster, users, unanswered_s=0.5)
    cluster.is_silent = True
    task.over()
    assert isinstance(task.error, ClusterLost)
    assert task.error.retryable
    with pytest.raises(SparkUnavailable, match="does not answer whether it runs") as caught:
        cluster.runner().run(spec_of(users), log=print)
    assert caught.value.retryable
    for text in (*task.lines, str(task.error), str(caught.value)):
        assert "canary" not in text
    cluster.is_silent = False
    cluster.go_on()
    assert cluster.runner().run(spec_of(users), log=print).status == "committed"
    assert len(cluster.homes()) == 1


def test_a_result_counts_while_the_cluster_does_not_answer(cluster: PlayedCluster, users: Table) -> None:
    task = held(cluster, users)
    cluster.is_silent = True
    cluster.go_on()
    task.over()
    assert task.result is not None


@pytest.mark.parametrize("is_there", [False, True])
def test_a_spark_submit_that_fails_counts_only_where_the_cluster_has_no_such_application(
    users: Table, tmp_path: Path, is_there: bool
) -> None:
    cluster = PlayedCluster(tmp_path / "cluster", then="exit 1")
    cluster.hold("commit")
    if not is_there:
        cluster.says = ApplicationState(is_alive=False, text="none")
    task = Waiting(cluster, spec_of(users))
    try:
        if is_there:
            task.until("app-1")
            cluster.go_on()
        task.over()
    finally:
        cluster.end()
    if is_there:
        assert task.result is not None
        return
    assert isinstance(task.error, SparkUnavailable)
    assert not task.error.retryable


# --- whose work it is -------------------------------------------------------------------------------------------------


def test_a_key_of_other_work_that_still_runs_is_refused(cluster: PlayedCluster, users: Table) -> None:
    mine = ApplicationTransaction(app_id="mine", version=1, check_digest=True)
    cluster.hold("commit")
    task = Waiting(cluster, spec_of(users, application=mine))
    task.until("app-1")
    other = job_spec(
        operation="delete",
        table_uri=users.uri,
        arguments={"predicate": "pmod(user_id, 100) = 43"},
        application=mine,
        saved_work_key=KEY,
    )
    with pytest.raises(IdempotencyKeyReused, match="names other work"):
        cluster.runner().run(other, log=print)
    cluster.go_on()
    task.over()
    assert task.result is not None


def test_work_without_a_key_has_an_exchange_of_its_own(cluster: PlayedCluster, users: Table) -> None:
    results = [cluster.runner().run(spec_of(users, application=None, saved_work_key=None), log=print) for _ in "ab"]
    assert [result.version for result in results] == [2, 3]


# --- what is submitted ------------------------------------------------------------------------------------------------


class Named(PlayedCluster):
    """It hands over what a real cluster is given, and has no such application."""

    def __init__(self, folder: Path, applications: Any) -> None:
        super().__init__(folder, master="yarn", then="exit 1")
        self._given_by = applications

    def settings(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        return {**super().settings(name, given), **self._given_by.settings(name, given)}

    def runs(self, name: str) -> bool:
        return False


def handed_over(folder: Path, applications: Any, spec: JobSpec) -> tuple[list[str], dict[str, str], str]:
    """The words of the command line and the settings of a job, and its name."""
    cluster = Named(folder, applications)
    with pytest.raises(SparkUnavailable, match=r"exit code 1"):
        cluster.runner().run(spec, log=print)
    ((name, home),) = cluster.homes().items()
    return (home / "words").read_text().splitlines(), settings_in(home / "settings"), name


def test_yarn_gets_the_packages_zip_and_a_tag_and_no_program_of_the_workers(users: Table, tmp_path: Path) -> None:
    words, settings, name = handed_over(tmp_path / "cluster", YarnApplications("rm", None), spec_of(users))
    assert words[:4] == ["--master", "yarn", "--deploy-mode", "cluster"]
    assert [word for word in words[4:] if not word.startswith(("/dev/fd/", f"{tempfile.gettempdir()}/txlog-"))] == [
        "--properties-file",
        "--load-spark-defaults",
        "--py-files",
        str(Path(cluster_main.__file__)),
    ]
    assert settings["spark.yarn.tags"] == name
    assert settings["spark.txlog.master"] == "yarn"
    assert settings["spark.ui.enabled"] == "false"
    assert not {"spark.pyspark.driver.python", "spark.driver.host", "spark.master"} & settings.keys()


def test_an_image_that_has_the_package_is_sent_no_file(users: Table, tmp_path: Path) -> None:
    main = "local:///opt/lake/lib/python3.11/site-packages/airflow_txlog/jobs/cluster_main.py"
    words, settings, name = handed_over(
        tmp_path / "cluster", KubernetesApplications("lake"), spec_of(users, spark_conf={"spark.txlog.main": main})
    )
    assert words[-2:] == ["--load-spark-defaults", main]
    assert settings["spark.kubernetes.driver.pod.name"] == name
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name), "as the name of a pod must be"


@pytest.mark.long("every job is imported from a zip; test_cluster_mode_drivers runs one")
def test_the_packages_zip_is_all_that_a_driver_needs_of_the_package() -> None:
    """It is the same for the same sources, and every job can be imported from it, without Airflow."""
    name, content = driver_zip()
    assert driver_zip.__wrapped__() == (name, content)
    code = """
import os, sys
sys.path[:] = [sys.argv[1], *[path for path in sys.path if path != os.getcwd()], *sys.argv[2:]]
from airflow_txlog.contract.operations.base import OPERATIONS
import airflow_txlog.jobs.cluster_main, airflow_txlog.jobs.run, airflow_txlog.jobs.spark.submitted, importlib
for operation in OPERATIONS.values():
    importlib.import_module(operation.job.partition(":")[0])
assert {module.__file__.startswith(sys.argv[1]) for each, module in sys.modules.items()
        if each.startswith("airflow_txlog.")} == {True}
assert "airflow" not in sys.modules
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        # -S: no package in development mode is found.
        words = [sys.executable, "-S", "-c", code, str(path), str(PACKAGES)]
        done = subprocess.run(words, cwd=folder, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
