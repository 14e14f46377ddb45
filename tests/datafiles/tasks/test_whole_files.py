"""Tasks that write whole files: the next one is written while one is published, and a failed one leaves nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import pack
from airflow_txlog.datafiles.failures import TaskFailed
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.copies import CopyTask, ImageTask
from airflow_txlog.datafiles.tasks.row_values import NewImages, RowValues
from airflow_txlog.datafiles.tasks.scan_and_write import report_of
from airflow_txlog.datafiles.tasks.whole_files import Written, in_advance
from airflow_txlog.sql.expression import Values
from airflow_txlog.storage import LocalStore, StoreReference
from airflow_txlog.storage.base import Output
from airflow_txlog.storage.limits import USUAL
from tests.helpers.files import bins_of, plan_of_files

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


@pytest.mark.parametrize("is_remote", [True, False])
def test_the_next_file_is_written_while_one_is_published_in_a_remote_store(tmp_path: Path, is_remote: bool) -> None:
    store, second_is_written, log = LocalStore(str(tmp_path)), threading.Event(), []
    store.is_remote = is_remote

    def publish(number: int) -> StagedFile | None:
        if is_remote and number == 1:
            assert second_is_written.wait(30)
        log.append(f"published {number}")
        return None

    def written() -> Generator[Written]:
        for number in (1, 2):
            log.append(f"written {number}")
            if number == 2:
                second_is_written.set()
            yield Written(close=partial(publish, number))

    with in_advance(written(), store) as files:
        for each in files:
            each.publish()
    in_turn = ["written 1", "published 1", "written 2", "published 2"]
    if is_remote:
        # The second is published beside the first.
        assert (log[:2], sorted(log[2:])) == (["written 1", "written 2"], ["published 1", "published 2"])
    else:
        assert log == in_turn


def test_files_of_a_remote_store_are_published_at_once_and_come_in_their_order(tmp_path: Path) -> None:
    store, meeting = LocalStore(str(tmp_path)), threading.Barrier(4)
    store.is_remote = True

    def publish(number: int) -> StagedFile | None:
        meeting.wait(30)
        raise PermissionError(number)

    files = (Written(close=partial(publish, number)) for number in range(8))
    found = []
    with in_advance(files, store) as published:
        for each in published:
            with pytest.raises(PermissionError) as caught:
                each.publish()
            found.append(caught.value.args[0])
    assert found == list(range(8))


def test_files_that_are_published_beside_one_that_cannot_be_are_deleted(tmp_path: Path) -> None:
    store, log = LocalStore(str(tmp_path)), []
    store.is_remote = True
    others_are_published = threading.Semaphore(0)

    def publish(number: int) -> StagedFile | None:
        if number:
            log.append(f"published {number}")
            others_are_published.release()
            return None
        assert all(others_are_published.acquire(timeout=30) for _ in range(3))
        raise PermissionError("no access")

    files = (
        Written(close=partial(publish, number), abandon=partial(log.append, f"deleted {number}")) for number in range(6)
    )

    def publish_all() -> None:
        with in_advance(files, store) as published:
            for each in published:
                each.publish()

    with pytest.raises(PermissionError):
        publish_all()
    done = {each.removeprefix("published ") for each in log if each.startswith("published")}
    assert {"1", "2", "3"} <= done
    assert {each.removeprefix("deleted ") for each in log if each.startswith("deleted")} >= {"0"} | done


def test_a_file_that_cannot_be_published_is_abandoned(tmp_path: Path) -> None:
    abandoned: list[bool] = []

    def close() -> StagedFile | None:
        raise PermissionError("no access")

    with pytest.raises(PermissionError):
        Written(close=close, abandon=lambda: abandoned.append(True)).publish()
    assert abandoned == [True]


def test_a_file_that_is_being_published_when_the_task_is_interrupted_is_dropped(tmp_path: Path) -> None:
    store, log = LocalStore(str(tmp_path)), []
    store.is_remote = True
    before = signal.getsignal(signal.SIGUSR1)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def written() -> Generator[Written]:
        yield Written(close=lambda: None, abandon=lambda: log.append("abandoned"))
        # While the next one is written.
        signal.raise_signal(signal.SIGUSR1)
        yield Written(close=lambda: None)

    def publish() -> None:
        with in_advance(written(), store) as files:
            for each in files:
                each.publish()

    signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            publish()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert log == ["abandoned"]


class SecondFails(LocalStore):
    """A remote store that does not publish the second new file, once the third is begun."""

    is_remote = True

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened = 0
        self._third_is_opened = threading.Event()

    def open_new(self, path: str) -> Output:
        self.opened += 1
        output = super().open_new(path)
        if self.opened == 3:
            self._third_is_opened.set()
        if self.opened == 2:

            def fail() -> int | None:
                assert self._third_is_opened.wait(30)
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

            output._publish = fail
        return output


@pytest.mark.parametrize("kind", ["copy", "in place"])
def test_a_file_written_in_advance_is_dropped_if_an_earlier_one_cannot_be_published(kind: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path in files:
        pq.write_table(pa.table({"id": [1, 2], "n": [1, 2]}), path)
    store = SecondFails(str(tmp_path))
    store.limits = replace(USUAL, changed_in_place_bytes=0)
    layout = Layout(store=StoreReference.of(store), schema=SCHEMA, partition_columns=(), job_id="job")
    bins = bins_of(
        tmp_path, plan_of_files(*({"path": path.name, "positions": pack([0]), "is_copied": True} for path in files))
    )
    values = NewImages(clauses={0: RowValues(values={"n": Values(pa.array([5]))})})
    task = CopyTask(bins=bins, layout=layout)
    if kind == "in place":
        task = ImageTask(bins=bins, layout=layout, values=values)
    told = []
    with pytest.raises(TaskFailed, match="Permission denied"):
        told += task(iter([pa.record_batch({"id": pa.array([0], pa.int64())})]))
    (first,) = (report_of(text) for batch in told for text in batch.column(0).to_pylist())
    assert isinstance(first, StagedFile)
    assert pq.read_table(tmp_path / first.path)["n"].to_pylist() == ([2] if kind == "copy" else [5, 2])
    assert {path.name for path in tmp_path.iterdir()} == {*(path.name for path in files), first.path}


class CopyWaits(LocalStore):
    """A remote store that publishes a copy, or refuses it, once the small file of the images is there."""

    is_remote = True

    def __init__(self, root: str, *, refuses: bool) -> None:
        super().__init__(root)
        self._refuses, self._images_are_there = refuses, threading.Event()

    def put_new(self, path: str, data: pa.Buffer) -> int | None:
        made_ms = super().put_new(path, data)
        self._images_are_there.set()
        return made_ms

    def open_new(self, path: str) -> Output:
        output = super().open_new(path)
        publish = output._publish

        def in_turn() -> int | None:
            assert self._images_are_there.wait(30)
            if self._refuses:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return publish()

        output._publish = in_turn
        return output


@pytest.mark.parametrize("refuses", [False, True])
def test_images_are_published_while_the_last_copy_is_and_deleted_if_it_cannot_be(tmp_path: Path, refuses: bool) -> None:
    pq.write_table(pa.table({"id": [1, 2], "n": [1, 2]}), tmp_path / "0.parquet")
    store = CopyWaits(str(tmp_path), refuses=refuses)
    layout = Layout(store=StoreReference.of(store), schema=SCHEMA, partition_columns=(), job_id="job")
    plan = plan_of_files({"path": "0.parquet", "positions": pack([0]), "is_copied": True, "clause": 0})
    # Two clauses are never changed in place.
    values = NewImages(clauses=dict.fromkeys((0, 1), RowValues(values={"n": Values(pa.array([5]))})))
    task = ImageTask(bins=bins_of(tmp_path, plan), layout=layout, values=values)
    told = []
    with pytest.raises(TaskFailed, match="Permission denied") if refuses else contextlib.nullcontext():
        told += task(iter([pa.record_batch({"id": pa.array([0], pa.int64())})]))
    staged = [report_of(text) for batch in told for text in batch.column(0).to_pylist()]
    places = [tmp_path / each.path for each in staged if isinstance(each, StagedFile)]
    rows = [pq.read_table(place).to_pylist() for place in places]
    assert rows == ([] if refuses else [[{"id": 2, "n": 2}], [{"id": 1, "n": 5}]])
    assert {*tmp_path.iterdir()} == {tmp_path / "0.parquet", *places}
