"""Children with a Spark of their own: typed errors and quiet lines out of a real JVM, and no process left of a kill."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidPredicate, JobLost
from airflow_txlog.jobs.spark.progress import WAITING
from airflow_txlog.process.starting import STARTS, start_turn
from airflow_txlog.runners.child_process import ChildProcessRunner
from tests.airflow.racing import PLANNED
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec
from tests.helpers.submitting import eventually, runs

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow("each child starts a Spark of its own")]


@pytest.fixture
def users(tmp_path: Path) -> Table:
    """A hundred users in one file, made without Spark, at version 1."""
    return make_table(tmp_path / "users", pa.table({"user_id": pa.array(range(100), pa.int64())}))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where children put what is temporary."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    # As Python of this process had it at its start.
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def left_of_spark(temporary: Path) -> list[Path]:
    kept = ("airflow-txlog-turns", "airflow-txlog-starts")
    return [path for path in temporary.rglob("*") if not path.relative_to(temporary).parts[0].startswith(kept)]


@pytest.mark.long("a second child with a Spark of its own; test_child_process has the errors of children without one")
def test_a_child_of_spark_raises_its_typed_error(users: Table) -> None:
    spec = job_spec(operation="delete", table_uri=users.uri, arguments={"predicate": "user_id = 1)"})
    with pytest.raises(InvalidPredicate):
        ChildProcessRunner().run(spec, log=print)


def test_a_child_that_is_killed_printed_no_noise_and_leaves_no_commit_no_process_and_no_file(
    users: Table, temporary: Path
) -> None:
    runner = ChildProcessRunner()
    spec = job_spec(operation="delete", table_uri=users.uri, arguments={"predicate": "sqrt(user_id * user_id) = 42"})
    others = set(psutil.Process().children(recursive=True))
    started: dict[psutil.Process, str] = {}
    lines: list[str] = []

    def kill_when_it_has_planned(line: str) -> None:
        lines.append(line)
        if PLANNED in line:
            assert [path for path in left_of_spark(temporary) if path.name.startswith("blockmgr")]
            started.update({p: p.name() for p in psutil.Process().children(recursive=True) if p not in others})
            threading.Thread(target=runner.kill).start()

    with pytest.raises(JobLost, match="was stopped"):
        runner.run(spec, log=kill_when_it_has_planned)
    assert "java" in started.values()
    assert "starting Spark: local[*], 2g of heap" in lines
    noise = ("WARN", "log4j", "incubator", "\tat ", "Exception")
    assert not [line for line in lines if any(each in line for each in noise)]
    eventually(lambda: not any(map(runs, started)), f"all of {sorted(started.values())} have ended")
    assert left_of_spark(temporary) == []
    assert users.snapshot().version == 1
    assert users.to_arrow().num_rows == 100


@pytest.mark.long("it starts a Spark of its own")
def test_a_child_waits_for_its_turn_to_start_spark_and_one_that_needs_none_waits_for_nothing(
    users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STARTS, "1")
    lines: dict[str, list[str]] = {"sqrt(user_id * user_id) = 42": [], "user_id = 7": []}
    results: dict[str, JobResult] = {}

    def run(predicate: str) -> None:
        spec = job_spec(operation="delete", table_uri=users.uri, arguments={"predicate": predicate})
        results[predicate] = ChildProcessRunner().run(spec, log=lines[predicate].append)

    by_spark, small = (threading.Thread(target=run, args=(predicate,), daemon=True) for predicate in lines)
    with start_turn() as turn:
        assert turn.num_ahead == 0
        by_spark.start()
        waits = f"waiting to start Spark, behind 1 on this machine: 1 at a time ({STARTS})"
        eventually(lambda: waits in lines["sqrt(user_id * user_id) = 42"], "the child waits")
        small.start()
        small.join(120)
        assert results["user_id = 7"].metrics["numDeletedRows"] == 1
        assert not [line for line in lines["sqrt(user_id * user_id) = 42"] if line.startswith("starting Spark")]
    by_spark.join(240)
    assert results["sqrt(user_id * user_id) = 42"].metrics["numDeletedRows"] == 1
    assert WAITING in [step["name"] for step in results["sqrt(user_id * user_id) = 42"].steps]


@pytest.mark.long("a child with a Spark of its own; test_child_process reports the same loss from a child without one")
@pytest.mark.parametrize("killed", ["java", "python"])
def test_a_job_of_which_a_process_dies_is_lost_and_leaves_no_file(users: Table, temporary: Path, killed: str) -> None:
    """As out of memory does it. Where its JVM dies the child itself reports that, and deletes what that had spilled;
    where the child dies, which is the one Python below this process, the runner does.
    """
    spec = job_spec(
        operation="delete",
        table_uri=users.uri,
        # Rows that only Spark can find.
        arguments={"predicate": "sqrt(user_id * user_id) = 42"},
        application=ApplicationTransaction(app_id="a", version=1),
    )
    others = set(psutil.Process().children(recursive=True))

    def kill(line: str) -> None:
        if PLANNED in line:
            assert left_of_spark(temporary)
            for process in psutil.Process().children(recursive=killed == "java"):
                if process not in others and process.name().startswith(killed):
                    process.kill()

    how = "JVM is gone" if killed == "java" else "was killed"
    with pytest.raises(JobLost, match=how) as caught:
        ChildProcessRunner().run(spec, log=kill)
    assert caught.value.retryable
    assert users.snapshot().version == 1
    assert left_of_spark(temporary) == []


@pytest.mark.long("a child with a Spark of its own, whose memory is filled")
def test_a_job_that_runs_out_of_memory_is_lost_and_does_not_hang(tmp_path: Path) -> None:
    """A rule of the table that takes two gigabytes: the thread that is to answer Python ends."""
    rule = {"delta.constraints.c": "length(repeat('a', 2000000000)) > 0"}
    table = make_table(tmp_path / "t", pa.table({"id": pa.array(range(3), pa.int64())}), properties=rule)
    spec = job_spec(
        operation="update",
        table_uri=table.uri,
        arguments={"predicate": "id = 1", "set": {"id": "7L"}},
        application=ApplicationTransaction(app_id="a", version=1),
        spark_conf={"spark.driver.memory": "1g"},
    )
    with pytest.raises(JobLost, match=r"OutOfMemoryError|JVM is gone"):
        ChildProcessRunner().run(spec, log=print)
    assert table.to_arrow().column("id").to_pylist() == [0, 1, 2]
