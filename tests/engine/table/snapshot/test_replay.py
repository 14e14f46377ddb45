"""Replay, case by case; that any history equals a naive model is in tests/engine/properties/test_replay_model.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Add, Commit, DeletionVector, Metadata, Protocol, Remove, SetTransaction
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.files import action_keys, file_key, file_keys
from airflow_txlog.engine.table.snapshot.replay import ReplayBase, TableState, replay_newest_first
from tests.helpers.rows import append, sorted_rows

ROOT = "memory://t"
PROTOCOL = Protocol(min_reader_version=1, min_writer_version=2)
METADATA = Metadata(id="t", schema_string='{"type":"struct","fields":[]}', partition_columns=[])


def add(path: str, vector: str | None = None, size: int = 1) -> Add:
    return Add(
        path=path,
        partition_values={},
        size=size,
        modification_time=1,
        data_change=True,
        deletion_vector=_vector(vector),
    )


def remove(path: str, vector: str | None = None) -> Remove:
    return Remove(path=path, data_change=True, deletion_timestamp=1, deletion_vector=_vector(vector))


def _vector(name: str | None) -> DeletionVector | None:
    if name is None:
        return None
    return DeletionVector(storage_type="u", path_or_inline_dv=name, offset=1, size_in_bytes=1, cardinality=1)


def commit(version: int, *actions: Any, info: dict[str, Any] | None = None) -> Commit:
    def of(kind: type) -> list[Any]:
        return [action for action in actions if isinstance(action, kind)]

    return Commit(
        version=version,
        adds=of(Add),
        removes=of(Remove),
        cdc=[],
        metadata=next(iter(of(Metadata)), None),
        protocol=next(iter(of(Protocol)), None),
        transactions=of(SetTransaction),
        domains=[],
        info=info,
    )


def state_of(*commits: Commit, base: ReplayBase | None = None) -> TableState:
    return replay_newest_first(base or ReplayBase(), reversed(commits), root=ROOT, version=commits[-1].version)


def live(state: TableState) -> set[str]:
    return set(file_keys(state.live, ROOT).to_pylist())


def tombstones(state: TableState) -> set[str]:
    return set(file_keys(state.tombstones, ROOT).to_pylist())


def test_a_remove_wins_over_an_older_add_and_an_add_over_an_older_remove() -> None:
    state = state_of(
        commit(0, PROTOCOL, METADATA, add("a"), add("b")), commit(1, remove("a")), commit(2, add("a"), remove("b"))
    )
    assert live(state) == {"a"}
    assert tombstones(state) == {"b"}


def test_a1_one_path_with_two_deletion_vectors_is_two_files() -> None:
    state = state_of(commit(0, PROTOCOL, METADATA, add("a")), commit(1, remove("a"), add("a", "dv1")))
    assert live(state) == {file_key("a", _vector("dv1"), ROOT)}
    assert tombstones(state) == {"a"}
    state = state_of(commit(2, remove("a", "dv1"), add("a", "dv2")), base=state)
    assert live(state) == {file_key("a", _vector("dv2"), ROOT)}


@pytest.mark.parametrize("spelling", ["a%20b", f"{ROOT}/a%20b"])
def test_one_file_in_two_spellings_is_one_file(spelling: str) -> None:
    state = state_of(commit(0, PROTOCOL, METADATA, add("a b")), commit(1, remove(spelling)))
    assert live(state) == set()


@pytest.mark.parametrize(
    "spelling", ["a.parquet", "./a.parquet", "x/../a.parquet", "x//..//a.parquet", "x/./../a.parquet"]
)
def test_a_path_has_one_key_whichever_way_it_is_asked(spelling: str) -> None:
    """`file_key` of one action and `file_keys` of a column agree, also on segments that go up and nowhere."""
    assert file_key(spelling, None, ROOT) == "a.parquet"
    assert file_keys(adds_to_table([add(spelling)]), ROOT).to_pylist() == ["a.parquet"]
    assert live(state_of(commit(0, PROTOCOL, METADATA, add(spelling)), commit(1, remove("a.parquet")))) == set()


def test_adding_a_live_file_again_replaces_what_is_known_of_it() -> None:
    state = state_of(commit(0, PROTOCOL, METADATA, add("a", size=1)), commit(1, add("a", size=2)))
    assert state.live.column("size").to_pylist() == [2]


@pytest.mark.parametrize(("missing", "actions"), [("protocol", [METADATA]), ("metaData", [PROTOCOL])])
def test_a_log_without_protocol_or_metadata_is_refused(missing: str, actions: list[Any]) -> None:
    with pytest.raises(errors.CorruptTable, match=missing):
        state_of(commit(0, *actions, add("a")))


def test_refresh_equals_open_and_reads_only_what_is_new(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, pa.schema([("id", pa.int64())]), clock=clock)
    old = table.snapshot()
    assert old.refresh() is old
    for number in range(3):
        append(table, [{"id": number}])
    fresh, refreshed = Table.open(table.store).snapshot(), old.refresh()
    assert refreshed.version == fresh.version == 3
    assert sorted_rows(refreshed.files()) == sorted_rows(fresh.files())
    assert old.version == 0
    assert old.num_files == 0


def test_the_automatic_checkpoint_carries_the_state_alone(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, pa.schema([("id", pa.int64())]), clock=clock)
    for number in range(20):
        append(table, [{"id": number}])
    before = sorted_rows(table.to_arrow())
    for version in range(20):
        table.store.delete(commit_name(version))
    table = Table.open(table.store)
    assert table.snapshot().version == 20
    assert sorted_rows(table.to_arrow()) == before


def test_a_log_that_is_cleaned_while_it_is_read_is_listed_again(memory_uri: str, clock: Any) -> None:
    from airflow_txlog.storage import MemoryStore

    class CleanedStore(MemoryStore):
        """Loses versions 0 to 9 to log cleanup right after the first listing."""

        is_cleaned = True

        def read(self, path: str) -> bytes:
            if not self.is_cleaned:
                self.is_cleaned = True
                for version in range(10):
                    self.delete(commit_name(version))
            return super().read(path)

    store = CleanedStore(memory_uri)
    table = Table.create(
        store, pa.schema([("id", pa.int64())]), properties={"delta.checkpointInterval": "99"}, clock=clock
    )
    for number in range(12):
        append(table, [{"id": number}])
    table.checkpoint(10)
    store.delete("_delta_log/_last_checkpoint")
    # Only a reader of an old version meets the commits that cleanup takes.
    assert table.snapshot(9).version == 9
    store.is_cleaned = False
    with pytest.raises(errors.TxlogError):
        table.snapshot(9)
    assert Table.open(store).snapshot().version == 12


_NASTY = [
    "a",
    "b/c",
    "",
    "/",
    "/a",
    "./a",
    "../a",
    ".a",
    "a/./b",
    "a//b",
    "a/",
    "a%20b",
    "s3://x/y",
    "a:b",
    "a\nb",
    "é",
    "..",
]


@given(st.lists(st.tuples(st.sampled_from(_NASTY), st.sampled_from([None, "x"])), max_size=4))
def test_keys_of_many_actions_are_the_keys_of_each(files: list[tuple[str, str | None]]) -> None:
    actions = [add(path, vector) for path, vector in files]
    assert action_keys(actions, ROOT) == [file_key(each.path, each.deletion_vector, ROOT) for each in actions]


@pytest.mark.parametrize("path", _NASTY)
def test_the_key_of_one_action_alone_is_its_own(path: str) -> None:
    assert action_keys([add(path)], ROOT) == [file_key(path, None, ROOT)]


SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("q", pa.int32())])


def remove_all(folder: Path, **changed: Any) -> Table:
    """A table whose one file, of the partition p=null and q=1, was removed at version 2 by another writer."""
    table = Table.create(str(folder), SCHEMA, ["p", "q"], {"delta.enableChangeDataFeed": "true"})
    append(table, [{"id": 1, "p": None, "q": 1}])
    [add] = table.snapshot().files().select(["path", "size"]).to_pylist()
    remove = {
        "path": add["path"],
        "deletionTimestamp": 1,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {"q": "1"},
        "size": add["size"],
    }
    lines = [{"commitInfo": {"operation": "DELETE"}}, {"remove": {**remove, **changed}}]
    commit = folder / "_delta_log" / f"{2:020d}.json"
    commit.write_text("\n".join(map(json.dumps, lines)))
    return table


def test_a_partition_value_that_a_remove_leaves_out_is_null(tmp_path: Path) -> None:
    found = remove_all(tmp_path / "t").changes(2)
    assert found.select(["id", "p", "q", "_change_type"]).to_pylist() == [
        {"id": 1, "p": None, "q": 1, "_change_type": "delete"}
    ]


@pytest.mark.parametrize("values", [None, {"q": "1", "other": "x"}], ids=["none at all", "of another partitioning"])
def test_a_remove_without_its_partition_values_is_refused(tmp_path: Path, values: dict[str, str] | None) -> None:
    table = remove_all(tmp_path / "t", partitionValues=values)
    with pytest.raises(errors.CorruptTable, match="partition values"):
        table.changes(2)
