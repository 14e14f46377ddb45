"""A catalog-managed table on an S3 server, whose etags tell a published commit from a staged one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.storage import Store, open_store
from airflow_txlog.storage.committer import STAGED
from tests.helpers import s3
from tests.helpers.managed import created, ids, opened, rows
from tests.helpers.rows import append, stage
from tests.helpers.unity import FakeTable, FakeUnity, Fault


@pytest.fixture
def unity() -> Iterator[FakeUnity]:
    given = s3.options()
    with FakeUnity() as unity:
        unity.credentials = lambda location, operation: {
            "s3.access-key-id": given["key"],
            "s3.secret-access-key": given["secret"],
        }
        yield unity


@pytest.fixture
def entry(unity: FakeUnity) -> FakeTable:
    return created(unity, s3.new_folder(), options=s3.plain_options())


def files_of(entry: FakeTable) -> Store:
    """The files themselves, without the catalog."""
    return open_store(entry.location, s3.access())


def table_of(unity: FakeUnity, entry: FakeTable) -> Table:
    return opened(unity, entry, files_of(entry))


def test_unpublished_commits_are_read_and_published_by_the_next_writer(unity: FakeUnity, entry: FakeTable) -> None:
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        for number in (1, 2):
            append(table_of(unity, entry), rows(number))
    for version in (1, 2):
        files_of(entry).delete(commit_name(version))
    reader = table_of(unity, entry)
    tx = reader.begin()
    tx.add(stage(reader, rows(9), tx=tx))
    assert ids(reader) == [1, 2]
    append(table_of(unity, entry), rows(3))
    # Published by now: the same versions to those who have read them before.
    assert reader.snapshot().version == 3
    assert tx.commit("WRITE", {}) == 4
    assert ids(reader) == ids(table_of(unity, entry)) == [1, 2, 3, 9]
    assert (entry.commits, len(files_of(entry).list(STAGED))) == ({}, 4)
    # And to those who come later.
    assert all(files_of(entry).stat(commit_name(version)) is not None for version in range(5))


def test_a_lost_answer_and_a_lost_race_end_as_on_a_disk(unity: FakeUnity, entry: FakeTable) -> None:
    ours = table_of(unity, entry)
    tx = ours.begin()
    tx.add(stage(ours, rows(1), tx=tx))
    append(table_of(unity, entry), rows(2))
    with unity.harmed(Fault("unanswered", on="add-commit")):
        assert tx.commit("WRITE", {}) == 2
    assert ids(table_of(unity, entry)) == [1, 2]
    assert entry.latest == 2


def test_ten_commits_leave_a_checkpoint_that_others_read(unity: FakeUnity, entry: FakeTable) -> None:
    table = table_of(unity, entry)
    for number in range(1, 12):
        append(table, rows(number))
    names = [info.path for info in files_of(entry).list("_delta_log")]
    assert any(f"{10:020d}.checkpoint" in name for name in names)
    assert ids(table_of(unity, entry)) == list(range(1, 12))
