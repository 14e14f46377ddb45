"""The commit loop against stores that misbehave: lost answers, silence, races, replaced tables."""

from __future__ import annotations

import errno
import uuid
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.met import How, Meeting
from airflow_txlog.engine.commit.loop import CommitPolicy
from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.storage import MemoryStore
from airflow_txlog.storage.base import NothingSent

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


class FaultyStore(MemoryStore):
    """Answers the next puts of commits as it is told: a list of callables, each given (real put, path, data)."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.script: list[Any] = []
        self.puts: list[tuple[str, bytes]] = []
        self.reads_fail = False

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.puts.append((path, data))
        real = super().put_if_absent
        return self.script.pop(0)(real, path, data) if self.script else real(path, data)

    def read(self, path: str) -> bytes:
        if self.reads_fail and path.endswith(".json"):
            raise TimeoutError("the store does not answer")
        return super().read(path)


def lands_but_answers_lost(real: Any, path: str, data: bytes) -> bool:
    assert real(path, data)
    return False


def lands_but_raises(real: Any, path: str, data: bytes) -> bool:
    assert real(path, data)
    raise ConnectionResetError("connection reset after the put")


def raises_before_landing(real: Any, path: str, data: bytes) -> bool:
    raise ConnectionResetError("connection reset before the put")


def is_refused(real: Any, path: str, data: bytes) -> bool:
    raise PermissionError(13, "Permission denied")


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(f"memory://loop-{uuid.uuid4().hex}")


@pytest.fixture
def table(store: FaultyStore, clock: Any) -> Table:
    made = Table.create(store, SCHEMA, ["day"], {"delta.checkpointInterval": "1000"}, clock=clock)
    store.puts.clear()
    return made


def append(table: Table, path: str = "a", *, app_id: str | None = None) -> int:
    tx = table.begin()
    tx.add(path=path, partition_values={"day": "1"}, size=1)
    if app_id:
        tx.set_application(app_id, 1)
    return tx.commit("WRITE", {"mode": "Append"})


def paths(table: Table) -> list[str]:
    return sorted(table.snapshot().files().column("path").to_pylist())


@pytest.mark.parametrize("fault", [lands_but_answers_lost, lands_but_raises])
def test_lost_response_is_not_committed_twice(table: Table, store: FaultyStore, fault: Any) -> None:
    store.script = [fault]
    tx = table.begin()
    tx.add(path="a", partition_values={"day": "1"}, size=1)
    assert tx.commit("WRITE", {"mode": "Append"}) == 1
    assert len(store.puts) == 1
    assert paths(table) == ["a"]
    assert table.snapshot().version == 1
    assert tx.outcome is not None
    assert tx.outcome.met.last == (Meeting(version=1, how=How.FOUND_COMMITTED, operation="WRITE"),)


def test_a_put_that_never_landed_is_repeated_with_the_same_bytes_at_the_same_version(
    table: Table, store: FaultyStore
) -> None:
    store.script = [raises_before_landing, raises_before_landing]
    assert append(table) == 1
    assert len(store.puts) == 3
    assert len(set(store.puts)) == 1


def test_a_lost_race_is_rebased_with_bytes_of_its_own(table: Table, store: FaultyStore) -> None:
    tx = table.begin()
    tx.add(path="mine", partition_values={"day": "1"}, size=1)
    append(table, "theirs")
    assert tx.commit("WRITE") == 2
    assert tx.outcome is not None
    assert tx.outcome.rebased_over == [1]
    ids = []
    for path, data in store.puts:
        info = decode_commit(0, data, path).info
        assert info is not None
        ids.append(info["txnId"])
    assert len(set(ids)) == 3
    assert paths(table) == ["mine", "theirs"]


def test_a_late_landing_put_is_recognised_as_ours(table: Table, store: FaultyStore) -> None:
    """The put raises, the version reads as absent, and then the bytes land before the put is repeated."""

    def lands_late(real: Any, path: str, data: bytes) -> bool:
        assert real(path, data)
        return real(path, data)

    store.script = [raises_before_landing, lands_late]
    assert append(table) == 1
    assert paths(table) == ["a"]


@pytest.mark.parametrize(("app_id", "retryable"), [(None, False), ("task-7", True)])
def test_silence_is_raised_as_unknown_and_retryable_only_with_an_application_transaction(
    table: Table, store: FaultyStore, clock: Any, app_id: str | None, retryable: bool
) -> None:
    tx = table.begin()
    tx.add(path="a", partition_values={"day": "1"}, size=1)
    if app_id:
        tx.set_application(app_id, 1)
    store.reads_fail = True
    store.script = [lands_but_raises, *[lands_but_answers_lost_again] * 10_000]
    before_ms = clock.now_ms()
    with pytest.raises(errors.CommitStateUnknown) as caught:
        tx.commit("WRITE")
    assert caught.value.retryable is retryable
    assert caught.value.version == 1
    assert clock.now_ms() - before_ms >= CommitPolicy().unknown_deadline_s * 1000
    store.reads_fail = False
    assert paths(table) == ["a"]


def lands_but_answers_lost_again(real: Any, path: str, data: bytes) -> bool:
    raise TimeoutError("the store does not answer")


def test_a_refusal_of_the_file_system_is_final(table: Table, store: FaultyStore, clock: Any) -> None:
    store.script = [is_refused]
    with pytest.raises(PermissionError):
        append(table)
    assert clock.slept == []
    assert table.snapshot().version == 0


def test_spent_attempts_are_contention_and_leave_nothing(store: FaultyStore, clock: Any) -> None:
    table = Table.create(store, SCHEMA, clock=clock, policy=CommitPolicy(max_attempts=5))
    other = Table(store, clock=clock)
    landed: list[int] = []

    def another_is_first(real: Any, path: str, data: bytes) -> bool:
        tx = other.begin()
        tx.add(path=f"other-{len(landed)}", size=1)
        store.script, waiting = [], store.script
        landed.append(tx.commit("WRITE"))
        store.script = waiting
        return bool(real(path, data))

    tx = table.begin()
    tx.add(path="mine", size=1)
    store.script = [another_is_first] * 5
    with pytest.raises(errors.CommitContention) as caught:
        tx.commit("WRITE")
    assert caught.value.retryable
    assert landed == [1, 2, 3, 4, 5]
    assert "mine" not in paths(table)
    # The first loss is answered at once, the later ones after a wait that does not grow.
    wait_s = CommitPolicy().race_wait_s
    assert len(clock.slept) == 4
    assert all(wait_s / 2 <= slept <= wait_s for slept in clock.slept)


def test_a20_a_table_made_again_is_not_written_into(table: Table, store: FaultyStore, clock: Any) -> None:
    tx = table.begin()
    tx.add(path="a", partition_values={"day": "1"}, size=1)
    store.delete(commit_name(0))
    clock.time_ms += 5000
    Table.create(store, SCHEMA, ["day"], {"other": "table"}, clock=clock)
    with pytest.raises(errors.TableReplaced) as caught:
        tx.commit("WRITE")
    assert not caught.value.retryable
    assert paths(table) == []


def commits_by_another(table: Table, count: int, *, checkpoint: bool = False) -> None:
    other = Table(table.store, clock=table.clock)
    for _ in range(count):
        append(other, f"other-{other.latest_version()}")
    if checkpoint:
        other.checkpoint()


def begun(table: Table, path: str = "mine") -> Any:
    tx = table.begin()
    tx.add(path=path, partition_values={"day": "1"}, size=1)
    return tx


def clean(store: FaultyStore, *versions: int) -> None:
    for version in versions:
        store.delete(commit_name(version))


def test_a20_a_log_cleaned_past_the_read_version_is_a_conflict_and_nothing_lands_beneath_the_checkpoint(
    table: Table, store: FaultyStore
) -> None:
    """Version 1 is free again: a put there would be acknowledged, and no reader would ever look at it."""
    tx = begun(table)
    commits_by_another(table, 3, checkpoint=True)
    clean(store, 0, 1, 2)
    store.puts.clear()
    with pytest.raises(errors.ConcurrentLogCleanup) as caught:
        tx.commit("WRITE")
    assert caught.value.retryable
    assert (caught.value.read_version, caught.value.winning_version) == (0, 3)
    assert store.puts == []
    # Planned afresh from the newest snapshot, it needs none of the commits that are gone.
    assert begun(table).commit("WRITE") == 4


@pytest.mark.parametrize("gone", [(1,), (2,), (0, 1, 2)])
def test_a20_winners_that_are_cleaned_while_they_are_checked_are_a_conflict(
    table: Table, store: FaultyStore, gone: tuple[int, ...]
) -> None:
    tx = begun(table)
    commits_by_another(table, 3, checkpoint=True)

    class CleanedStore(FaultyStore):
        def list(self, directory: str, *, start_from: str | None = None) -> Any:
            clean(self, *gone)
            return super().list(directory, start_from=start_from)

    tx._store = CleanedStore(store.root)
    with pytest.raises(errors.ConcurrentLogCleanup):
        tx.commit("WRITE")


def test_a20_a_winner_that_is_gone_between_listing_and_reading_is_a_conflict(table: Table, store: FaultyStore) -> None:
    tx = begun(table)
    commits_by_another(table, 2)

    class CleanedStore(FaultyStore):
        def read(self, path: str) -> bytes:
            if path == commit_name(2):
                raise FileNotFoundError(path)
            return super().read(path)

    tx._store = CleanedStore(store.root)
    with pytest.raises(errors.ConcurrentLogCleanup):
        tx.commit("WRITE")


def test_a20_a_snapshot_that_came_from_a_checkpoint_alone_knows_its_log_too(
    table: Table, store: FaultyStore, clock: Any
) -> None:
    commits_by_another(table, 3, checkpoint=True)
    clean(store, 0, 1, 2, 3)
    cold = Table.open(store, clock=clock)
    assert cold.snapshot().commit_file is None
    assert begun(cold).commit("WRITE") == 4
    tx = begun(cold, "mine too")
    assert tx.read_version == 4
    commits_by_another(cold, 1, checkpoint=True)
    clean(store, 4)
    with pytest.raises(errors.ConcurrentLogCleanup):
        tx.commit("WRITE")


def test_a20_a_table_made_again_with_more_versions_than_we_read_is_not_written_into(
    table: Table, store: FaultyStore, clock: Any
) -> None:
    """Also where the stranger lands between the look at the read version and our put."""
    append(table, "a")
    tx = begun(table)

    def replaced_before_the_put(real: Any, path: str, data: bytes) -> bool:
        clean(store, 0, 1)
        clock.time_ms += 5000
        again = Table.create(store, SCHEMA, ["day"], clock=clock)
        commits_by_another(again, 3)
        return bool(real(path, data))

    store.script = [replaced_before_the_put]
    with pytest.raises(errors.TableReplaced):
        tx.commit("WRITE")
    assert "mine" not in paths(Table(store, clock=clock))


@pytest.mark.parametrize("versions", [1, 3])
def test_a20_a_commit_that_lands_in_a_table_made_again_between_look_and_put_leaves_a_gap_or_joins_it(
    table: Table, store: FaultyStore, clock: Any, versions: int
) -> None:
    """No look can prevent it. Below the read version the new log has a gap, which every reader refuses by name; with
    exactly as many versions as were read, the commit joins the new table."""
    for path in "ab":
        append(table, path)
    tx = begun(table)

    def replaced_before_the_put(real: Any, path: str, data: bytes) -> bool:
        clean(store, 0, 1, 2)
        clock.time_ms += 5000
        commits_by_another(Table.create(store, SCHEMA, ["day"], clock=clock), versions - 1)
        return bool(real(path, data))

    store.script = [replaced_before_the_put]
    assert tx.commit("WRITE") == 3
    if versions == 3:
        assert "mine" in paths(Table(store, clock=clock))
        return
    with pytest.raises(errors.LogGap) as caught:
        Table(store, clock=clock).snapshot()
    assert caught.value.version == 1
    # Without the stray file the new table is as it was made.
    store.delete(commit_name(3))
    assert paths(Table(store, clock=clock)) == []


def test_a20_a_log_that_loses_the_version_that_we_met_is_not_written_into(table: Table, store: FaultyStore) -> None:
    tx = begun(table)

    def meets_a_commit_that_vanishes(real: Any, path: str, data: bytes) -> bool:
        assert real(path, data.replace(b"mine", b"them"))
        return False

    class VanishingStore(FaultyStore):
        def list(self, directory: str, *, start_from: str | None = None) -> Any:
            clean(self, 1)
            return super().list(directory, start_from=start_from)

    tx._store = VanishingStore(store.root)
    tx._store.script = [meets_a_commit_that_vanishes]
    with pytest.raises(errors.TableReplaced, match="was there and is gone"):
        tx.commit("WRITE")


def test_a20_a_winner_of_another_table_is_not_a_metadata_change(table: Table, store: FaultyStore, clock: Any) -> None:
    import msgspec

    from airflow_txlog.engine.log.actions import encode_commit

    tx = table.begin()
    tx.add(path="a", partition_values={"day": "1"}, size=1)
    stranger = msgspec.structs.replace(table.snapshot().metadata, id="another")
    assert store.put_if_absent(commit_name(1), encode_commit({"operation": "REPLACE TABLE"}, [stranger]))
    with pytest.raises(errors.TableReplaced):
        tx.commit("WRITE")


def test_a11_the_application_transaction_of_another_copy_is_found_at_any_version(table: Table) -> None:
    slow = table.begin()
    assert slow.read_application("task-7") is None
    slow.add(path="slow", partition_values={"day": "1"}, size=1)
    slow.set_application("task-7", 1)
    append(table, "other")
    append(table, "fast", app_id="task-7")
    with pytest.raises(errors.ConcurrentTransaction) as caught:
        slow.commit("WRITE")
    assert caught.value.app_id == "task-7"
    assert caught.value.winning_version == 2
    assert table.snapshot().application_version("task-7") == 1


def test_a_transaction_commits_once(table: Table) -> None:
    tx = table.begin()
    tx.add(path="a", partition_values={"day": "1"}, size=1)
    tx.commit("WRITE")
    with pytest.raises(errors.InvalidCommit, match="committed already"):
        tx.commit("WRITE")


def test_two_creators_of_one_table_make_one_table(store: FaultyStore, clock: Any) -> None:
    first = Table(store, clock=clock).begin_create(SCHEMA)
    Table.create(store, SCHEMA, clock=clock)
    with pytest.raises(errors.ProtocolChanged, match="created the table"):
        first.commit("CREATE TABLE")
    with pytest.raises(errors.TableAlreadyExists) as caught:
        Table.create(store, SCHEMA, clock=clock)
    assert caught.value.retryable


def test_a_version_that_was_taken_and_vanished_is_not_put_again(table: Table, store: FaultyStore) -> None:
    """The table is dropped between the answer "taken" and the read: the bytes belong to no log any more."""

    def is_taken_and_then_all_is_dropped(real: Any, path: str, data: bytes) -> bool:
        for info in store.walk():
            store.delete(info.path)
        return False

    tx = table.begin()
    tx.add(path="a", partition_values={"day": "1"}, size=1)
    store.script = [is_taken_and_then_all_is_dropped]
    with pytest.raises(errors.TableReplaced):
        tx.commit("WRITE")
    assert list(store.walk()) == []


def test_an_unanswered_put_is_not_repeated_into_another_log(table: Table, store: FaultyStore, clock: Any) -> None:
    """The table is dropped and made again between the lost put and the next: nobody knows, and nothing lands."""

    def is_lost_and_all_is_dropped(real: Any, path: str, data: bytes) -> bool:
        for info in store.walk():
            store.delete(info.path)
        clock.time_ms += 1000
        Table.create(store, SCHEMA, ["day"], clock=clock)
        raise ConnectionResetError("connection reset before the put")

    append(table, "earlier")
    tx = table.begin()
    tx.add(path="a", partition_values={"day": "1"}, size=1)
    store.script = [is_lost_and_all_is_dropped]
    with pytest.raises(errors.CommitStateUnknown):
        tx.commit("WRITE")
    assert [info.path for info in store.walk()] == [commit_name(0)]


def test_a_name_that_was_taken_is_only_read_again(
    table: Table, store: FaultyStore, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put is told that the version is taken, and reading it is not answered at first: it is not put again."""
    tx = table.begin()
    tx.add(path="a", partition_values={"day": "1"}, size=1)

    def is_taken(real: Any, path: str, data: bytes) -> bool:
        assert not real(path, data)
        store.reads_fail = True
        return False

    append(table, "earlier")
    store.puts.clear()
    store.script = [is_taken]
    monkeypatch.setattr(clock, "sleep", lambda seconds: setattr(store, "reads_fail", False))
    assert tx.commit("WRITE") == 2
    assert [path for path, _ in store.puts] == [commit_name(1), commit_name(2)]


def test_a_put_that_was_not_sent_is_refused_though_the_log_cannot_be_read(table: Table, store: FaultyStore) -> None:
    """A store is asked whether it keeps conditions before a first put; where it does not answer, nothing is unknown."""

    def is_not_sent(real: Any, path: str, data: bytes) -> bool:
        store.reads_fail = True
        raise NothingSent(errno.EAGAIN, "nothing was put", path)

    tx = table.begin()
    tx.add(path="a", partition_values={"day": "1"}, size=1)
    store.script = [is_not_sent]
    with pytest.raises(NothingSent):
        tx.commit("WRITE")


@pytest.mark.parametrize(("isolation", "is_recorded"), [("Serializable", False), ("WriteSerializable", True)])
def test_a_delete_of_nothing_is_recorded_only_where_it_marks_a_place_in_the_order(
    clock: Any, isolation: str, is_recorded: bool
) -> None:
    properties = {"delta.isolationLevel": isolation}
    table = Table.create(f"memory://empty-{uuid.uuid4().hex}", SCHEMA, ["day"], properties, clock=clock)
    tx = table.begin()
    tx.remove(tx.read("day = '1'"))
    assert tx.commit("DELETE") == int(is_recorded)
    assert tx.outcome is not None
    assert tx.outcome.committed is is_recorded
