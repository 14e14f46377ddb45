"""Writers of one machine that hand their commits on, as processes on a real S3 server, beside one that does not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.course import Course
from airflow_txlog.engine.commit.writers import CommitTurn
from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from tests.helpers import s3

SCHEMA = pa.schema([("id", pa.int64())])
WRITERS, COMMITS, FOREIGN = 8, 10, 12
KILLED, DIES_AT = 3, 5


def write(uri: str, options: dict[str, Any], folder: str, number: int) -> None:
    """Append files, and note each whose commit was acknowledged. One process dies between a put and its word."""
    tempfile.tempdir = folder
    follow, land = Course._follow, CommitTurn.land
    is_dying = False

    def noted(course: Course, handed: Any) -> None:
        before = course.next_version
        follow(course, handed)
        print("followed\n" * (course.next_version - before), end="", file=notes, flush=True)

    def landed(turn: CommitTurn, *commit: Any) -> None:
        if is_dying:
            os.kill(os.getpid(), signal.SIGKILL)
        land(turn, *commit)

    Course._follow, CommitTurn.land = noted, landed  # type: ignore[method-assign]
    table = Table.open(uri, storage_options=options)
    with open(f"{folder}/notes-{number}", "w") as notes:
        for each in range(COMMITS):
            is_dying = (number, each) == (KILLED, DIES_AT)
            tx = table.begin()
            tx.add(path=f"{number}-{each}", partition_values={}, size=1)
            tx.commit("WRITE", {"mode": "Append"})
            print(f"{number}-{each}", file=notes, flush=True)


def write_foreign(uri: str, options: dict[str, Any], folder: str) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction

    names = {"endpoint_url": "AWS_ENDPOINT_URL", "key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY"}
    given = {names[name]: value for name, value in options.items() if name in names}
    table = DeltaTable(uri, storage_options={**given, "AWS_REGION": s3.REGION, "AWS_ALLOW_HTTP": "true"})
    with open(f"{folder}/notes-foreign", "w") as notes:
        for each in range(FOREIGN):
            with suppress(CommitFailedError):
                table.update_incremental()
                add = AddAction(f"foreign-{each}", 1, {}, 1, True, "{}")
                table.create_write_transaction([add], "append", SCHEMA)
                print(f"foreign-{each}", file=notes, flush=True)


def test_eight_writers_of_which_one_is_killed_and_a_foreign_one_lose_and_double_no_commit(tmp_path: Path) -> None:
    uri = s3.new_folder()
    table = Table.create(uri, SCHEMA, properties={"delta.checkpointInterval": "7"}, storage_options=s3.options())
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "airflow_txlog.storage.s3", "deltalake.transaction"])
    given = uri, s3.options(), str(tmp_path)
    writers = [context.Process(target=write, args=(*given, number)) for number in range(WRITERS)]
    foreign = context.Process(target=write_foreign, args=given)
    for process in (*writers, foreign):
        process.start()
    for process in (*writers, foreign):
        process.join(120)
    ends = [-signal.SIGKILL if number == KILLED else 0 for number in range(WRITERS)]
    assert [process.exitcode for process in (*writers, foreign)] == [*ends, 0]

    notes = Counter(line for path in tmp_path.glob("notes-*") for line in path.read_text().splitlines())
    assert notes.pop("followed") > WRITERS, "the writers read what was handed on"
    head = table.snapshot()
    # Checkpoints delete no commit here.
    commits = [decode_commit(each, table.store.read(commit_name(each)), "") for each in range(1, head.version + 1)]
    landed = Counter(add.path for commit in commits for add in commit.adds)
    assert set(landed.values()) == {1}
    assert landed == notes + Counter([f"{KILLED}-{DIES_AT}"]), "it landed and was not acknowledged"
    assert sorted(head.files(columns=["path"]).column("path").to_pylist()) == sorted(landed)
    # The writers have ended: nobody can read their commits here any more.
    assert not any(b"commitInfo" in path.read_bytes() for path in tmp_path.glob("airflow-txlog-turns-*/*"))
