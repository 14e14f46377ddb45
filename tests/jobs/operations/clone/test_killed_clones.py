"""Clones that are killed, at any request or by a signal: the table is a clone once, and no file is copied twice."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.storage import LocalStore, Store
from airflow_txlog.storage.base import Output
from tests.helpers.jobs import KEY, SCHEMA, application, by_id, committed, files_on_disk, ids, live_files, rows, run
from tests.helpers.paths import ROOT
from tests.helpers.racing import Killed, killed_before_commit
from tests.helpers.rows import append
from tests.helpers.specs import job_spec
from tests.jobs.operations.alter.test_every_alteration import requests

VECTORS = {"delta.enableDeletionVectors": "true"}


@pytest.fixture
def source(tmp_path: Path) -> Table:
    """Three files of four rows, one with a deletion vector: ids 1 to 11."""
    table = Table.create(tmp_path / "s", SCHEMA, properties=VECTORS)
    for start in (0, 4, 8):
        append(table, rows(4, start=start))
    committed(run(None, "delete", table, predicate="id = 0"))
    return table


@contextmanager
def copied() -> Iterator[Counter[str]]:
    """Count the copies to stores of this disk, by the source's path."""
    counts, copy_in = Counter[str](), Store.copy_in

    def counted(store: Store, source: Store, from_path: str, path: str) -> None:
        copy_in(store, source, from_path, path)
        counts[from_path] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "copy_in", counted)
        yield counts


@pytest.mark.parametrize("shallow", [True, False], ids=["shallow", "deep"])
@pytest.mark.parametrize(
    "replace", [False, pytest.param(True, marks=pytest.mark.long("a clone again"))], ids=["new", "again"]
)
def test_a_clone_that_is_killed_at_any_request_is_made_once(
    source: Table, tmp_path: Path, shallow: bool, replace: bool
) -> None:
    expected = by_id(source)
    for is_done in (False, True):
        number, is_killed = 1, True
        while is_killed:
            place, identity = tmp_path / f"{number}-{is_done}", application()
            given: dict[str, Any] = {"source": {"table": source.uri}, "shallow": shallow, "replace": replace}
            if replace:
                committed(run(None, "clone", place, source={"table": source.uri, "version": 2}, shallow=shallow))
            with copied() as counts:
                try:
                    with requests(number, is_done=is_done):
                        run(None, "clone", place, application=identity, **given)
                    is_killed = False
                except Killed:
                    number += 1
                again = run(None, "clone", place, application=identity, **given)
            assert again.status in ("committed", "already_done"), again.error
            table = Table.open(place, allow_absolute_paths=True)
            assert (table.latest_version(), by_id(table)) == (int(replace), expected), f"{number}, done: {is_done}"
            assert set(counts.values()) <= {1}, f"copied twice: request {number}, done: {is_done}"
        assert number > 4, "it reads and it commits"


def test_the_copies_of_a_killed_clone_are_committed_by_the_next_try(source: Table, tmp_path: Path) -> None:
    identity, given = application(), {"source": {"table": source.uri}}
    with killed_before_commit():
        run(None, "clone", tmp_path / "t", application=identity, **given)
    left = files_on_disk(tmp_path / "t")
    assert len(left) == 4
    with copied() as counts:
        committed(run(None, "clone", tmp_path / "t", application=identity, **given))
    assert not counts
    assert files_on_disk(tmp_path / "t") == left
    assert live_files(Table.open(tmp_path / "t")) <= left


def test_a_copy_of_another_size_is_made_again_and_those_of_other_work_are_not_taken(
    source: Table, tmp_path: Path
) -> None:
    identity, given = application(), {"source": {"table": source.uri}}
    with killed_before_commit():
        run(None, "clone", tmp_path / "t", application=identity, **given)
    first, *_ = sorted((tmp_path / "t").glob("part-*.parquet"))
    first.write_bytes(b"cut")
    with copied() as counts:
        committed(run(None, "clone", tmp_path / "t", application=identity, **given))
    assert sum(counts.values()) == 1
    assert by_id(Table.open(tmp_path / "t")) == by_id(source)
    with killed_before_commit():
        run(None, "clone", tmp_path / "u", application=application(), **given)
    with copied() as counts:
        committed(run(None, "clone", tmp_path / "u", application=application(), **given))
    assert sum(counts.values()) == 4, "whoever left them is not known"


def test_old_copies_in_a_table_that_exists_are_made_again(source: Table, tmp_path: Path) -> None:
    """A VACUUM of the table could be about to take them."""
    committed(run(None, "clone", tmp_path / "t", source={"table": source.uri}))
    append(source, rows(1, start=50))
    identity, given = application(), {"source": {"table": source.uri}, "replace": True}
    with killed_before_commit():
        run(None, "clone", tmp_path / "t", application=identity, **given)
    (path,) = (
        files_on_disk(tmp_path / "t")
        - live_files(Table.open(tmp_path / "t"))
        - {path for path in files_on_disk(tmp_path / "t") if path.endswith(".bin")}
    )
    old = (tmp_path / "t" / path).stat().st_mtime - dt.timedelta(hours=7).total_seconds()
    os.utime(tmp_path / "t" / path, (old, old))
    with copied() as counts:
        committed(run(None, "clone", tmp_path / "t", application=identity, **given))
    assert sum(counts.values()) == 1
    assert ids(Table.open(tmp_path / "t")) == [*range(1, 12), 50]


CHILD = """
import os, signal, sys
from airflow_txlog.contract.job import read_spec
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage.base import Output

write, left = Output.write, [int(sys.argv[2])]

def dies(output, data):
    write(output, data[: len(data) // 2])
    output.sink.flush()
    left[0] -= 1
    if left[0] < 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(output, data[len(data) // 2 :])

Output.write = dies
run_job(read_spec(sys.argv[1]), None)
"""


@pytest.mark.parametrize("writes", [1, 3])
def test_a_signal_in_the_middle_of_a_copy_leaves_nothing_that_is_taken_for_one(
    source: Table, tmp_path: Path, writes: int
) -> None:
    identity = application()
    spec = job_spec(
        operation="clone",
        table_uri=str(tmp_path / "t"),
        arguments={"source": {"table": source.uri}},
        application=identity,
        saved_work_key=KEY,
    )
    (tmp_path / "spec.json").write_text(spec.to_json(with_key=True))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "spec.json"), str(writes)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = files_on_disk(tmp_path / "t")
    assert any(path.endswith(".tmp") for path in left)
    whole = {path for path in left if not path.endswith(".tmp")}
    with copied() as counts:
        committed(run(None, "clone", tmp_path / "t", application=identity, source={"table": source.uri}))
    assert sum(counts.values()) == 4 - len(whole)
    table = Table.open(tmp_path / "t")
    assert by_id(table) == by_id(source)
    for path in left:
        os.utime(tmp_path / "t" / path, (0, 0))
    table.vacuum(0, check_retention=False)
    assert not any(path.endswith(".tmp") for path in files_on_disk(tmp_path / "t"))
    assert by_id(Table.open(tmp_path / "t")) == by_id(source)


def test_a_large_file_is_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write: Callable[[Output, bytes], int] = Output.write

    def counted(output: Output, data: bytes) -> int:
        sizes.append(len(data))
        return write(output, data)

    monkeypatch.setattr(Output, "write", counted)
    one, other = (LocalStore(str(tmp_path / name)) for name in ("a", "b"))
    one.put("x", os.urandom(20 * 2**20))
    sizes.clear()
    other.copy_in(one, "x", "y")
    assert sizes == [8 * 2**20, 8 * 2**20, 4 * 2**20]
    assert (tmp_path / "b" / "y").read_bytes() == (tmp_path / "a" / "x").read_bytes()
