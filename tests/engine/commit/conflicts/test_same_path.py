"""A path is live once: no commit adds a file where another one is, before it or by a commit that lands first."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit import transaction
from airflow_txlog.engine.commit.content import attempt
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.storage import MemoryStore
from tests.helpers.vectors import inline

SCHEMA = pa.schema([("id", pa.int64())])


def new(path: str, **fields: Any) -> Add:
    return Add(
        path=path,
        partition_values={},
        size=1,
        modification_time=1,
        data_change=True,
        stats='{"numRecords":10}',
        **fields,
    )


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    properties = {"delta.enableDeletionVectors": "true"}
    made = Table.create(MemoryStore(memory_uri), SCHEMA, properties=properties, clock=clock)
    tx = made.begin()
    tx.add([new("a"), new("b")])
    tx.commit("WRITE")
    return made


def paths(table: Table) -> list[str]:
    return sorted(table.snapshot().files().column("path").to_pylist())


@pytest.mark.parametrize("path", ["a", "%61", "./a"])
def test_a_path_that_is_live_is_not_added_again(table: Table, path: str) -> None:
    tx = table.begin()
    tx.add(new(path))
    with pytest.raises(errors.DuplicateActions, match="a is live at version 1") as caught:
        tx.commit("WRITE")
    assert (caught.value.retryable, caught.value.path, caught.value.winning_version) == (False, "a", None)
    assert (table.snapshot().version, paths(table)) == (1, ["a", "b"])


def test_two_commits_that_add_the_same_path_do_not_both_land(table: Table) -> None:
    first, second = table.begin(), table.begin()
    first.add(new("c"))
    second.add([new("d"), new("c")])
    assert first.commit("WRITE") == 2
    with pytest.raises(errors.DuplicateActions, match="c was added by version 2") as caught:
        second.commit("WRITE")
    assert (caught.value.retryable, caught.value.winning_version) == (False, 2)
    assert (table.snapshot().version, paths(table)) == (2, ["a", "b", "c"])


def test_a_conflict_on_the_same_file_is_still_a_conflict(table: Table) -> None:
    """Both delete rows of one file by a vector: read again, the loser may delete its own."""
    masking = []
    for row in (1, 2):
        tx = table.begin()
        (add,) = table_to_adds(tx.read(None).filter(pa.array([True, False])), True)
        tx.remove(add)
        tx.add(msgspec.structs.replace(add, deletion_vector=inline([row])))
        masking.append(tx)
    masking[0].commit("DELETE")
    with pytest.raises(errors.CommitConflict):
        masking[1].commit("DELETE")


def test_a_file_that_leaves_and_comes_in_one_commit_may_have_its_path(table: Table) -> None:
    tx = table.begin()
    (add,) = [each for each in table_to_adds(table.snapshot().files(), True) if each.path == "a"]
    tx.remove(add)
    tx.add(msgspec.structs.replace(add, deletion_vector=inline([1])))
    assert tx.commit("DELETE") == 2
    assert paths(table) == ["a", "b"]


def test_a_path_that_was_removed_before_may_come_again(table: Table) -> None:
    tx = table.begin()
    tx.remove("a")
    tx.commit("DELETE")
    tx = table.begin()
    tx.add(new("a"))
    assert tx.commit("WRITE") == 3
    for path in ("a", "b"):
        table.store.put(path, b"1")
    assert table.restore(2) == 4
    assert table.restore(3) == 5
    assert paths(table) == ["a", "b"]


def test_a_live_file_may_come_again_with_other_statistics(table: Table) -> None:
    tx = table.begin()
    tx.add(msgspec.structs.replace(new("a"), stats='{"numRecords":10,"nullCount":{"id":0}}', data_change=False))
    assert tx.commit("COMPUTE STATS") == 2
    assert paths(table) == ["a", "b"]
    tx = table.begin()
    tx.add(msgspec.structs.replace(new("a"), data_change=False, deletion_vector=inline([1])))
    with pytest.raises(errors.DuplicateActions):
        tx.commit("WRITE")


# --- many winners ---------------------------------------------------------------------------------------------------


def test_the_paths_of_added_files_are_read_once_however_many_commits_land_first(
    memory_uri: str, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: str, root: str) -> str:
        read.append(path)
        return canonical_path(path, root)

    for module in (transaction, attempt):
        monkeypatch.setattr(module, "canonical_path", counted)

    def reads_after(winners: int) -> int:
        table = Table.create(MemoryStore(f"{memory_uri}-{winners}"), SCHEMA, clock=clock)
        tx = table.begin()
        for number in range(5):
            tx.add(path=f"ours{number}", size=1)
        for number in range(winners):
            other = table.begin()
            other.add(path=f"theirs{number}", size=1)
            other.commit("WRITE")
        read.clear()
        assert tx.commit("WRITE") == winners + 1
        return sum(path.startswith("ours") for path in read)

    assert reads_after(4) == reads_after(0)
