"""Rows of sources, keys and saved work are readable by their user alone, and gone when the task has failed for good."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.errors import JobError
from airflow_txlog.exactly_once.exchange import forget_saved_work
from airflow_txlog.jobs.executor.spark import SparkExecutor
from airflow_txlog.jobs.resume import attempts
from airflow_txlog.locations import PRIVATE_PREFIX
from airflow_txlog.storage import LocalStore
from tests.helpers.depth import in_long
from tests.helpers.jobs import KEY, application, committed, error_of, rows, run
from tests.helpers.racing import killed_before_commit
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.engine import Table


PERSON = "mary.canary@home.example"


@pytest.fixture(autouse=True)
def permissive_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")} | {stat.S_IMODE(folder.stat().st_mode)}


def test_only_what_a_job_keeps_beside_the_data_is_private(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "t"))
    with store.open_new(f"{PRIVATE_PREFIX}0/keys.parquet") as file:
        file.write(b"keys")
    store.put_new(f"{PRIVATE_PREFIX}0/rows.parquet", pa.py_buffer(b"rows"))
    assert modes(tmp_path / "t" / f"{PRIVATE_PREFIX}0") == {0o700, 0o600}
    with store.open_new("day=1/part.parquet") as file:
        file.write(b"rows")
    assert modes(tmp_path / "t" / "day=1") == {0o777, 0o666}


def test_a_private_file_is_written_through_no_link(tmp_path: Path) -> None:
    folder = tmp_path / f"{PRIVATE_PREFIX}0"
    folder.mkdir()
    (folder / "keys.parquet").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        LocalStore(str(tmp_path)).open_new(f"{PRIVATE_PREFIX}0/keys.parquet")
    assert not (tmp_path / "elsewhere").exists()


def test_what_a_restore_notes_for_its_retries_is_private_too(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    assert store.put_if_absent(f"{PRIVATE_PREFIX}0/first-version", b"{}")
    assert modes(tmp_path / f"{PRIVATE_PREFIX}0") == {0o700, 0o600}


MERGE: dict[str, Any] = {
    "source": {"sql": "SELECT 1L AS id, 'x' AS name"},
    "on": "t.id = s.id",
    "clauses": [{"when": "matched", "then": "update", "set": {"name": "s.name"}}],
}
DELETE: dict[str, Any] = {"keys": {"column": "id", "source": {"sql": "SELECT 2L AS id"}}, "predicate": None}


def failed_at_its_commit(spark: SparkSession, table: Table, who: ApplicationTransaction, **job: Any) -> Path:
    """The folder of saved work of a job whose commit fails in a way that a retry may pass."""

    def refuse(*arguments: Any) -> bool:
        raise JobError("the store does not answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "commit_change", refuse)
        assert "the store does not answer" in error_of(run(spark, table=table, application=who, **job))["message"]
    (folder,) = Path(table.uri.removeprefix("file://")).glob(f"{PRIVATE_PREFIX}*")
    return folder


@pytest.mark.spark
@pytest.mark.parametrize(("operation", "arguments"), [("merge", MERGE), ("delete", DELETE)], ids=["merge", "delete"])
def test_what_a_job_saves_is_for_its_user_alone_and_goes_when_the_task_has_failed_for_good(
    tmp_path: Path, spark: SparkSession, operation: str, arguments: dict[str, Any]
) -> None:
    table, who = make_table(tmp_path / "t", rows(5)), application()
    folder = failed_at_its_commit(spark, table, who, operation=operation, **arguments)
    assert len(list(folder.iterdir())) >= 2
    assert modes(folder) == {0o700, 0o600}
    # What the operator's callback does where no retry comes; see tests/airflow/test_forgotten_work.py.
    spec = job_spec(operation=operation, table_uri=table.uri, arguments=arguments, application=who, saved_work_key=KEY)
    forget_saved_work(spec)
    assert not folder.exists()
    # A task that was cleared begins anew.
    committed(run(spark, operation, table, application=who, **arguments))


# Ends itself where everything is staged and nothing is committed.
_KILLED = """
import os, signal, sys
from airflow_txlog.contract.job import JobSpec
from airflow_txlog.jobs.run import run_job
from tests.helpers.racing import before_commit
with before_commit(lambda tx: os.kill(os.getpid(), signal.SIGKILL)):
    run_job(JobSpec.from_json(sys.stdin.read()), None)
"""


@pytest.mark.parametrize(
    ("source", "key"),
    [("values", KEY), ("files", None), *in_long("a process for each", ("values", None), ("files", KEY))],
    ids=["values-with saved work", "files-without", "values-without", "files-with saved work"],
)
def test_a_killed_delete_leaves_no_key_in_the_clear(tmp_path: Path, source: str, key: str | None) -> None:
    """No callback deletes what it has saved: the dag processor's copy of the task does not know the job."""
    table = make_table(tmp_path / "t", pa.table({"email": ["a", PERSON, "z"]}))
    pq.write_table(pa.table({"email": [PERSON]}), tmp_path / "in.parquet")
    files = {"source": {"format": "parquet", "path": str(tmp_path / "in.parquet")}, "source_column": None}
    keys = {"column": "email", **({"values": [PERSON]} if source == "values" else files)}
    spec = job_spec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": None, "keys": keys},
        application=None if key is None else application(),
        saved_work_key=key,
    )
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED], input=spec.to_json(with_key=True), text=True, capture_output=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = left_in(tmp_path / "t")
    assert [path.name for path in left if path.name.startswith("part-")], "the keys were written down"
    assert [path.name for path in left if PERSON.encode() in path.read_bytes()] == []


@pytest.mark.spark
@pytest.mark.parametrize("most_keys", [0, 10_000], ids=["joined by Spark", "sent along"])
def test_a_retry_reads_the_keys_that_a_killed_try_has_encrypted(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most_keys: int
) -> None:
    monkeypatch.setattr(SparkExecutor, "most_sent_rows", most_keys)
    table, who = make_table(tmp_path / "t", pa.table({"email": ["a", PERSON, "z"]})), application()
    given = {"keys": {"column": "email", "source": {"sql": f"SELECT '{PERSON}' AS email"}}, "predicate": None}
    with killed_before_commit():
        run(spark, "delete", table, application=who, **given)
    left = left_in(tmp_path / "t")
    assert [path.name for path in left if PERSON.encode() in path.read_bytes()] == []
    # What has come since is looked at with the keys that were saved.
    append(table, pa.table({"email": [PERSON]}))
    lines: list[str] = []
    result = committed(run(spark, "delete", table, application=who, **given, log=lines.append))
    assert any("resuming an earlier try" in line for line in lines)
    assert result.metrics["numDeletedRows"] == 2


def left_in(root: Path) -> list[Path]:
    """The files that jobs have left beside the table's data."""
    return [path for folder in root.glob(f"{PRIVATE_PREFIX}*") for path in folder.iterdir()]
