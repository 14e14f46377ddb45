"""Saved work that another writer of the table's folder has made, changed or replaced does nothing to a retry.

The attacker reads and writes everything in the table's folder, knows this package and the task, and has no key. The
canaries are files outside the table: none is deleted, committed or read.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine import Table
from airflow_txlog.errors import JobError
from airflow_txlog.exactly_once.transactions import Seal
from airflow_txlog.jobs.files import scan
from airflow_txlog.jobs.run import run_job
from tests.helpers.forging import OTHER_KEY, folder_of, name_of, put_newest, with_header
from tests.helpers.jobs import application, committed, error_of, files_on_disk, live_files, rows, run
from tests.helpers.limits import limited
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MERGE: dict[str, Any] = {
    "source": {"sql": "SELECT id, 'new' AS name FROM VALUES (0), (1), (2), (100) AS s(id)"},
    "on": "t.id = s.id",
    "clauses": [{"when": "matched", "then": "update", "set": {"name": "s.name"}}],
}
MERGED = {k: "new" if k < 3 else f"n{k}" for k in range(10)}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Files beside the table: two that an attacker wants deleted or committed, and rows of another table."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "report.txt").write_text("keep me")
    pq.write_table(rows(5, start=900), folder / "f.parquet")
    stolen = {"id": pa.array([0, 1], pa.int32()), "name": ["stolen", "stolen"], "_txlog_row": [0, 1]}
    pq.write_table(pa.table(stolen), folder / "source.parquet")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def names(table: Table) -> dict[int, str]:
    return {row["id"]: row["name"] for row in table.to_arrow(columns=["id", "name"]).to_pylist()}


def pointing_at(outside: Path) -> Callable[[dict[str, Any]], None]:
    """Outside files as dropped ones (to be deleted), as staged ones (to be committed), and as the source (read)."""

    def change(header: dict[str, Any]) -> None:
        staged = header["segments"][0]["files"][0]
        for name in ("report.txt", "f.parquet"):
            header["dropped"].append({**staged, "path": f"../outside/{name}"})
        staged |= {"path": "../outside/f.parquet"}
        for file in header["inputs"]["source"]["files"]:
            file |= {"path": "../../outside/source.parquet"}

    return change


def test_a_poisoned_folder_deletes_commits_and_reads_nothing_outside_the_table(
    tmp_path: Path, spark: SparkSession, outside: Path
) -> None:
    table, identity = make_table(tmp_path / "t", rows(10)), application()
    before = contents(outside)
    with killed_before_commit():
        run(spark, "merge", table, application=identity, **MERGE)
    folder = folder_of(table)
    (memory,) = folder.glob("memory-*")
    forged = with_header(memory.read_bytes(), pointing_at(outside))
    memory.unlink()
    put_newest(folder, name_of(forged, Seal(OTHER_KEY, table.uri, identity)), forged)
    put_newest(folder, memory.name, forged)
    append(table, rows(1, start=100))
    lines: list[str] = []
    result = run(spark, "merge", table, application=identity, log=lines.append, **MERGE)
    assert contents(outside) == before
    committed(result)
    assert names(table) == {**MERGED, 100: "new"}
    assert "outside" not in "".join(path.read_text() for path in (tmp_path / "t" / "_delta_log").glob("*.json"))
    assert any(line.startswith("ignored 2 files in txlog-inputs-") for line in lines)
    assert not any(line.startswith("resuming") for line in lines)


def test_source_rows_that_were_replaced_between_two_tries_are_not_merged(tmp_path: Path, spark: SparkSession) -> None:
    table, identity = make_table(tmp_path / "t", rows(10)), application()
    with killed_before_commit():
        run(spark, "merge", table, application=identity, **MERGE)
    for pinned in folder_of(table).glob("part-*"):
        stored = pq.read_table(pinned)
        bad = pa.array(["bad"] * stored.num_rows)
        pq.write_table(stored.set_column(stored.schema.get_field_index("name"), "name", bad), pinned)
    # What the first try has found and staged would be kept; this file is new, and is looked at by the source's rows.
    append(table, rows(1, start=100))
    lines: list[str] = []
    committed(run(spark, "merge", table, application=identity, log=lines.append, **MERGE))
    assert names(table) == {**MERGED, 100: "new"}
    assert any("not as it was written; starting over" in line for line in lines)


def test_a_job_without_a_key_neither_trusts_nor_touches_a_folder_that_is_there_and_leaves_nothing_for_a_retry(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The name is the one that a release without keys gave the folder: any process can compute it."""
    table, identity = make_table(tmp_path / "t", rows(10)), application()
    predictable = hashlib.sha256(f"{identity.app_id}\0{identity.version}".encode()).hexdigest()[:16]
    planted = tmp_path / "t" / f"txlog-inputs-{predictable}"
    planted.mkdir()
    (planted / "memory-0.arrow").write_bytes(b"planted")
    before = files_on_disk(table)

    def fail(tx: Any) -> None:
        raise OSError(28, "No space left on device")

    with before_commit(fail):
        assert error_of(run(spark, "merge", table, application=identity, key=None, **MERGE))["type"] == "JobError"
    assert files_on_disk(table) == before
    lines: list[str] = []
    committed(run(spark, "merge", table, application=identity, key=None, log=lines.append, **MERGE))
    assert names(table) == MERGED
    assert not any("resuming" in line or "remembered" in line for line in lines)
    assert contents(planted) == {"memory-0.arrow": b"planted"}
    assert folder_of(table) == planted, "the job's own folder is gone"


def test_a_vacuum_sweeps_the_folder_of_work_that_was_given_up(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    with killed_before_commit():
        run(spark, "merge", table, application=application(), **MERGE)
    folder, long_ago = folder_of(table), time.time() - 8 * 86_400
    for name in files_on_disk(table):
        os.utime(tmp_path / "t" / name, (long_ago, long_ago))
    for _ in range(2):  # a folder that was emptied goes next time
        assert run_job(job_spec(operation="vacuum", table_uri=table.uri), None).error is None
    assert not folder.exists()
    assert files_on_disk(table) == live_files(table)


def test_a_task_opens_no_file_of_a_plan_that_was_replaced(tmp_path: Path, outside: Path) -> None:
    """A plan names the files that a task opens as the worker. A large one lies in the table's folder for a moment."""
    table = make_table(tmp_path / "t", rows(10))
    limited(table.store, inline_plan_bytes=0)
    snapshot = table.snapshot()
    plan = scan.plan_files(snapshot, snapshot.files(), "UTC")
    context: Any = SimpleNamespace(inputs_folder="txlog-inputs-x", store=table.store, clock=SYSTEM_CLOCK)
    sent = scan.sent_bins(context, plan, [[0]])
    assert [file.file.path for file in sent.files(0, table.store)] == [plan.table.column("path")[0].as_py()]
    elsewhere = plan.table.set_column(
        plan.table.schema.get_field_index("path"), "path", pa.array([f"file://{outside}/f.parquet"])
    )
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, elsewhere.schema) as writer:
        writer.write_table(elsewhere)
    (tmp_path / "t" / sent.paths[0]).write_bytes(stream.getvalue())
    with pytest.raises(JobError, match="is not what this job has written") as caught:
        list(sent.files(0, table.store))
    assert caught.value.retryable


# --- what a RESTORE notes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"version": 3}',
        json.dumps({"table": 5, "version": 3}).encode(),
        json.dumps({"table": "t", "version": "3"}).encode(),
        json.dumps({"table": "t", "version": True}).encode(),
        json.dumps({"table": "t", "version": -1}).encode(),
        json.dumps({"table": "t" * 2000, "version": 3}).encode(),
    ],
    ids=lambda note: note[:30].decode("latin-1"),
)
def test_a_note_of_a_restore_that_cannot_be_read_forbids_it(tmp_path: Path, note: bytes) -> None:
    table, identity = make_table(tmp_path / "t", rows(2), rows(2, start=50)), application()
    spec = job_spec(operation="restore", table_uri=table.uri, arguments={"version": 1}, application=identity)
    folder = hashlib.sha256(f"{identity.app_id}\0{identity.version}".encode()).hexdigest()[:16]
    path = tmp_path / "t" / f"txlog-inputs-{folder}" / "first-version"
    path.parent.mkdir()
    path.write_bytes(note)
    error = error_of(run_job(spec, None))
    assert (error["type"], error["retryable"]) == ("ConcurrentWrite", False)
    assert "its note of the version that it met then" in error["message"]
    assert table.snapshot().version == 2
