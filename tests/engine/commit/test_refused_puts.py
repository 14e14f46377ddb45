"""Puts that the file system refuses: the error comes out at once, by its own name, and proves that nothing landed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.storage import LocalStore, local

SCHEMA = pa.schema([("id", pa.int64())])


class RefusingStore(LocalStore):
    """Raises the next errors of a script before anything is put."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.script: list[Exception] = []
        self.refuses_reads = False

    def read(self, path: str) -> bytes:
        if self.refuses_reads:
            raise PermissionError(errno.EACCES, "Permission denied")
        return super().read(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if self.script:
            raise self.script.pop(0)
        return super().put_if_absent(path, data)


@pytest.fixture
def store(tmp_path: Path) -> RefusingStore:
    return RefusingStore(str(tmp_path / "t"))


@pytest.fixture
def table(store: RefusingStore, clock: Any) -> Table:
    return Table.create(store, SCHEMA, clock=clock)


def begun(table: Table) -> Any:
    tx = table.begin()
    tx.add(path="a", size=1)
    return tx


def test_a_file_system_without_hard_links_is_refused_by_name_at_once(
    table: Table, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*args: Any, **how: Any) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(local.os, "link", no_links)
    with pytest.raises(errors.UnsupportedStore, match="without hard links") as caught:
        begun(table).commit("WRITE")
    assert not caught.value.retryable
    assert clock.slept == []


@pytest.mark.parametrize(
    "number", ["EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "ENAMETOOLONG", "ENOENT", "ENOTDIR", "ELOOP", "EFBIG"]
)
def test_what_a_file_system_refuses_for_good_comes_out_at_once(
    table: Table, store: RefusingStore, clock: Any, number: str
) -> None:
    code = getattr(errno, number)
    store.script = [OSError(code, os.strerror(code))]
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        begun(table).commit("WRITE")
    assert caught.value.errno == code
    assert clock.slept == []
    assert table.snapshot().version == 0


@pytest.mark.parametrize("number", ["EIO", "ETIMEDOUT", "ESTALE", "EAGAIN"])
def test_what_may_pass_is_tried_again(table: Table, store: RefusingStore, number: str) -> None:
    store.script = [OSError(getattr(errno, number), "for now")]
    assert begun(table).commit("WRITE") == 1


def test_a_refusal_after_a_put_that_was_not_answered_proves_nothing(
    table: Table, store: RefusingStore, clock: Any
) -> None:
    """The first put may land later, so the fate of the commit is unknown whatever the next put is told."""
    store.script = [TimeoutError("no answer"), *(PermissionError(errno.EACCES, "denied") for _ in range(10_000))]
    with pytest.raises(errors.CommitStateUnknown):
        begun(table).commit("WRITE")


def test_a_refusal_that_cannot_be_borne_out_by_reading_is_unknown_and_not_waited_for(
    table: Table, store: RefusingStore, clock: Any
) -> None:
    tx, store.refuses_reads = begun(table), True
    store.script = [PermissionError(errno.EACCES, "Permission denied")]
    with pytest.raises(errors.CommitStateUnknown, match=r"failed \(PermissionError: Permission denied\)"):
        tx.commit("WRITE")
    assert clock.slept == []


def test_a_lost_answer_is_not_waited_for_where_the_store_refuses_to_say_what_is_gone(
    table: Table, store: RefusingStore, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As S3 without the right to list: it answers 403 for the commit, and for the log's last file, which is gone."""
    tx = begun(table)

    def refused(path: str) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    def lost(path: str, data: bytes) -> bool:
        store.refuses_reads = True
        monkeypatch.setattr(store, "stat", refused)
        raise TimeoutError("no answer")

    monkeypatch.setattr(store, "put_if_absent", lost)
    with pytest.raises(errors.CommitStateUnknown):
        tx.commit("WRITE")
    assert clock.slept == []


def test_a_put_that_was_not_sent_for_want_of_credentials_is_no_unknown_commit(
    table: Table, store: RefusingStore, clock: Any
) -> None:
    """Nothing can be read back either; but nothing was sent."""
    tx, store.refuses_reads = begun(table), True
    store.script = [errors.CredentialsUnavailable("no credentials", connection="lake")]
    with pytest.raises(errors.CredentialsUnavailable):
        tx.commit("WRITE")
    assert clock.slept == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_a_permission_error(table: Table, tmp_path: Path, clock: Any) -> None:
    tx, log = begun(table), tmp_path / "t" / "_delta_log"
    log.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            tx.commit("WRITE")
    finally:
        log.chmod(0o700)
    assert clock.slept == []


def test_a_log_folder_that_has_become_a_file_is_no_unknown_outcome(table: Table, tmp_path: Path, clock: Any) -> None:
    table = Table(RefusingStore(str(tmp_path / "file" / "t")), clock=clock)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        table.begin_create(SCHEMA).commit("CREATE TABLE")
    assert clock.slept == []
