"""Tables that a catalog manages: the log as the catalog shows it, commits that it ratifies, and each harm on the way.

The catalog is a fake (`tests.helpers.unity`). Whatever is harmed, the table is readable, and the same work done again
is in it once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.catalogs.describe import describe
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.commit.loop import CommitPolicy
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.changes.following import LogFollower, mark_at
from airflow_txlog.errors import (
    CatalogRefused,
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    CorruptTable,
    TableAlreadyExists,
    TableNotInCatalog,
    UnsupportedFeature,
    VersionNotFound,
    WrongTableId,
)
from airflow_txlog.storage import Access, LocalStore, open_store
from airflow_txlog.storage.committer import STAGED, CatalogState
from airflow_txlog.storage.managed import ManagedStore
from tests.helpers.depth import in_long
from tests.helpers.managed import NAME, PROPERTIES, SCHEMA, committer_of, created, ids, new_table, opened, rows
from tests.helpers.rows import append, stage
from tests.helpers.unity import FakeTable, FakeUnity, Fault

PATIENT = CommitPolicy(unknown_deadline_s=5.0, max_backoff_s=0.05)
HASTY = CommitPolicy(unknown_deadline_s=0.0, max_backoff_s=0.01)


@pytest.fixture
def unity() -> Iterator[FakeUnity]:
    with FakeUnity() as unity:
        yield unity


@pytest.fixture
def entry(unity: FakeUnity, tmp_path: Path) -> FakeTable:
    """A managed table at version 0, without rows."""
    return created(unity, f"file://{tmp_path}")


def folder_of(entry: FakeTable) -> str:
    return entry.location.removeprefix("file://")


def staged_names(table: Table) -> list[str]:
    return [info.path.rpartition("/")[2] for info in table.store.list(STAGED)]


def published(entry: FakeTable) -> list[int]:
    names = [path.name for path in Path(folder_of(entry), "_delta_log").glob("*.json")]
    return sorted(int(name.removesuffix(".json")) for name in names)


def unpublish(entry: FakeTable, version: int) -> None:
    """As if the writer of the version had died before it published it."""
    Path(folder_of(entry), commit_name(version)).unlink()


def appending(table: Table, number: int) -> Transaction:
    """A transaction with a staged file."""
    tx = table.begin()
    tx.add(stage(table, rows(number), tx=tx))
    return tx


# --- a new table ------------------------------------------------------------------------------------------------------


def test_a_new_table_has_its_name_once_its_first_commit_is_there(unity: FakeUnity, tmp_path: Path) -> None:
    catalog, place, access = new_table(unity, f"file://{tmp_path}")
    table = Table(open_store(place, access))
    assert not table.is_there()
    tx = table.begin_create(SCHEMA, ["name"], {"delta.appendOnly": "true"}, description="of customers")
    assert not table.is_there()
    tx.commit("CREATE TABLE", {})
    fake = unity.tables[NAME]
    assert [each["name"] for each in fake.columns["fields"]] == ["id", "name"]
    assert fake.partition_columns == ["name"]
    assert fake.properties["delta.appendOnly"] == "true"
    assert "delta.setTransactionRetentionDuration" not in fake.properties
    assert append(table, rows(1)) == 1
    entry = catalog.find(NAME)
    assert (entry.uri, entry.is_managed) == (place, True)
    assert ids(opened(unity, fake)) == [1]
    catalog.register(describe(NAME, opened(unity, fake).snapshot()))


@pytest.mark.parametrize("times", [1, 99, *in_long("more attempts", 3)])
@pytest.mark.parametrize("harm", ["lost", "unanswered"])
@pytest.mark.parametrize("on", ["GET /delta", "POST /delta/v1/catalogs/main/schemas/sales/tables?"])
def test_a_table_whose_creation_is_harmed_is_created_once(
    unity: FakeUnity, tmp_path: Path, on: str, harm: str, times: int
) -> None:
    for fault in ([Fault(harm, on=on, times=times)], []):
        with unity.harmed(*fault), suppress(CommitStateUnknown, CatalogUnavailable, TableAlreadyExists):
            if NAME in unity.tables:
                break
            _, place, access = new_table(unity, f"file://{tmp_path}")
            Table.create(open_store(place, access), SCHEMA, policy=HASTY)
    table = opened(unity, unity.tables[NAME])
    append(table, rows(1))
    assert (ids(table), unity.tables[NAME].latest) == ([1], 1)


def test_of_two_writers_that_create_one_name_one_creates_it(unity: FakeUnity, tmp_path: Path) -> None:
    _, first, of_first = new_table(unity, f"file://{tmp_path}")
    table = Table(open_store(first, of_first))
    tx = table.begin_create(SCHEMA)
    created(unity, f"file://{tmp_path}")
    with pytest.raises((WrongTableId, TableNotInCatalog, CatalogRefused)):
        tx.commit("CREATE TABLE", {})
    assert unity.tables[NAME].location != f"file://{first}"


def test_a_property_that_the_catalog_refuses_creates_nothing(unity: FakeUnity, tmp_path: Path) -> None:
    _, place, access = new_table(unity, f"file://{tmp_path}")
    refused = Fault("refused", on="POST", status=400, type="InvalidParameterValueException")
    with unity.harmed(refused), pytest.raises(CatalogRefused):
        Table.create(open_store(place, access), SCHEMA)
    assert NAME not in unity.tables
    # The same place may be used again: no table was made there.
    Table.create(open_store(place, access), SCHEMA)
    assert unity.tables[NAME].latest == 0


# --- the usual course -----------------------------------------------------------------------------------------------


def test_a_commit_is_staged_ratified_published_and_reported(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry)
    unity.requests.clear()
    assert append(table, rows(1)) == 1
    assert append(table, rows(2)) == 2
    assert ids(opened(unity, entry)) == [1, 2]
    assert (entry.latest, entry.commits, published(entry)) == (2, {}, [0, 1, 2])
    assert [name[:20] for name in staged_names(table)] == [f"{version:020d}" for version in (1, 2)]
    assert entry.file_names[1] in staged_names(table)


def test_readers_take_unpublished_commits_from_the_catalog(unity: FakeUnity, entry: FakeTable) -> None:
    append(opened(unity, entry), rows(1))
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(opened(unity, entry), rows(2))
        append(opened(unity, entry), rows(3))
    assert sorted(entry.commits) == [2, 3]
    for version in (2, 3):
        unpublish(entry, version)
    assert ids(opened(unity, entry)) == [1, 2, 3]
    assert opened(unity, entry).latest_version() == 3
    assert ids_at(opened(unity, entry), 2) == [1, 2]
    # The next writer publishes what others left, in order, and says so.
    append(opened(unity, entry), rows(4))
    assert (entry.commits, published(entry)) == ({}, [0, 1, 2, 3, 4])


def ids_at(table: Table, version: int) -> list[int]:
    found: list[int] = sorted(table.at_version(version).to_arrow().column("id").to_pylist())
    return found


def test_a_published_file_beyond_the_latest_version_is_not_there(unity: FakeUnity, entry: FakeTable) -> None:
    append(opened(unity, entry), rows(1))
    log = Path(folder_of(entry), "_delta_log")
    rogue = (log / f"{1:020d}.json").read_bytes()
    (log / f"{2:020d}.json").write_bytes(rogue)
    (log / f"{2:020d}.checkpoint.parquet").write_bytes(b"x")
    table = opened(unity, entry)
    assert (table.latest_version(), ids(table)) == (1, [1])
    with pytest.raises(VersionNotFound):
        table.snapshot(2)
    # The catalog ratifies our version 2, and readers take its bytes, not those of the rogue file.
    assert append(table, rows(2)) == 2
    assert ids(opened(unity, entry)) == [1, 2]
    assert sorted(entry.commits) == [2]
    assert (log / f"{2:020d}.json").read_bytes() == rogue


def test_a_published_file_with_other_bytes_than_the_ratified_ones_is_not_read(
    unity: FakeUnity, entry: FakeTable
) -> None:
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(opened(unity, entry), rows(1))
    path = Path(folder_of(entry), commit_name(1))
    path.write_bytes(path.read_bytes() + b"{}\n")
    assert ids(opened(unity, entry)) == [1]


def test_a_version_keeps_its_identity_when_another_process_publishes_it(unity: FakeUnity, entry: FakeTable) -> None:
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(opened(unity, entry), rows(1))
    unpublish(entry, 1)
    table = opened(unity, entry)
    tx = appending(table, 3)
    before = table.snapshot()
    append(opened(unity, entry), rows(2))
    assert published(entry) == [0, 1, 2]
    # Neither the transaction nor a refresh takes the log for another one.
    assert table.snapshot().version == 2
    assert tx.commit("WRITE", {}) == 3
    assert before.refresh().version == 3


def test_a_position_in_the_log_is_the_same_to_every_process_before_and_after_the_publication(
    unity: FakeUnity, entry: FakeTable
) -> None:
    """By it a sensor, a pinned version and an incremental consumer recognise the log another time."""
    writer = opened(unity, entry)
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(writer, rows(1))
    unpublish(entry, 1)
    reader = opened(unity, entry)
    before = LogFollower(reader.store).look()
    marks = {mark_at(each.store, 1) for each in (writer, reader)}
    append(opened(unity, entry), rows(2))
    assert published(entry) == [0, 1, 2]
    later = opened(unity, entry)
    marks |= {mark_at(each.store, 1) for each in (writer, reader, later)}
    assert marks == {before.commit_mark}
    follower = LogFollower(later.store)
    follower.look()
    assert not follower.is_another_log(before)
    # A table that was made again under the name is another one.
    entry.table_id = "99999999-2222-4333-8444-555555555555"
    assert mark_at(ManagedStore(LocalStore(folder_of(entry)), committer_of(unity, entry)), 1) not in marks


def test_a_catalog_that_was_set_back_gets_the_commits_of_its_new_course_published(
    unity: FakeUnity, entry: FakeTable
) -> None:
    store = ManagedStore(LocalStore(folder_of(entry)), committer_of(unity, entry))
    append(Table(store), rows(1))
    append(Table(store), rows(2))
    # The catalog and the files come back from a backup of version 1; this process lives on.
    entry.latest = 1
    del entry.file_names[2]
    unpublish(entry, 2)
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(opened(unity, entry), rows(3))
    unpublish(entry, 2)
    append(Table(store), rows(4))
    assert published(entry) == [0, 1, 2, 3]
    assert ids(opened(unity, entry)) == [1, 3, 4]


def test_a_process_that_knew_the_old_course_of_a_catalog_reads_and_writes_the_new_one(
    unity: FakeUnity, entry: FakeTable
) -> None:
    store = ManagedStore(LocalStore(folder_of(entry)), committer_of(unity, entry))
    append(Table(store), rows(1))
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(Table(store), rows(2))
        append(Table(store), rows(9))
        # The catalog comes back from a backup of version 1. The staged files of its old course are still there.
        entry.latest = 1
        for number in (2, 3):
            del entry.file_names[number]
            entry.commits.pop(number, None)
            unpublish(entry, number)
        append(opened(unity, entry), rows(3))
    assert ids(Table(store)) == [1, 3]
    append(Table(store), rows(4))
    assert ids(Table(store)) == ids(opened(unity, entry)) == [1, 3, 4]


def test_a_file_at_the_name_of_a_commit_whose_staged_file_is_lost_is_not_read(
    unity: FakeUnity, entry: FakeTable
) -> None:
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(opened(unity, entry), rows(1))
    log = Path(folder_of(entry), "_delta_log")
    (log / f"{1:020d}.json").write_bytes((log / f"{0:020d}.json").read_bytes())
    (log / "_staged_commits" / entry.file_names[1]).unlink()
    with pytest.raises(CorruptTable) as raised:
        opened(unity, entry).snapshot()
    assert entry.file_names[1] in str(raised.value)


def test_a_commit_that_changes_the_schema_tells_the_catalog_in_the_same_request(
    unity: FakeUnity, entry: FakeTable
) -> None:
    table = opened(unity, entry)
    tx = table.begin()
    assert tx.metadata is not None
    schema = json.loads(tx.metadata.schema_string or "")
    inner = {"type": "array", "elementType": "string", "containsNull": True}
    schema["fields"].append({"name": "tags", "type": inner, "nullable": True, "metadata": {}})
    tx.set_metadata(
        tx.metadata.__class__(
            **{
                **{name: getattr(tx.metadata, name) for name in tx.metadata.__struct_fields__},
                "schema_string": json.dumps(schema),
                "configuration": {**tx.metadata.configuration, "delta.logRetentionDuration": "interval 60 days"},
            }
        )
    )
    tx.commit("ADD COLUMNS", {})
    assert entry.columns["fields"][-1]["type"] == {"type": "array", "element-type": "string", "contains-null": True}
    assert entry.properties["delta.logRetentionDuration"] == "interval 60 days"
    assert entry.last_commit_version == 1
    append(table, rows(1).append_column("tags", [[["a"]]]).cast(table.snapshot().schema))
    assert entry.last_commit_version == 1


# --- races ------------------------------------------------------------------------------------------------------------


def test_a_lost_race_is_rebased_over_the_winner(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry)
    tx = appending(table, 2)
    append(opened(unity, entry), rows(1))
    assert tx.commit("WRITE", {}) == 2
    assert tx.outcome is not None
    assert tx.outcome.rebased_over == [1]
    assert [name[:20] for name in staged_names(table)] == [f"{1:020d}", f"{2:020d}"]


def test_a_conflict_is_a_conflict_and_nothing_is_committed(unity: FakeUnity, entry: FakeTable) -> None:
    append(opened(unity, entry), rows(1))
    ours, theirs = opened(unity, entry).begin(), opened(unity, entry).begin()
    for tx in (ours, theirs):
        tx.remove(tx.read())
    theirs.commit("DELETE", {})
    with pytest.raises(CommitConflict):
        ours.commit("DELETE", {})
    assert entry.latest == 2


def test_writers_that_race_neither_lose_nor_double_rows(unity: FakeUnity, entry: FakeTable) -> None:
    failures: list[BaseException] = []

    def write(first: int) -> None:
        try:
            for number in range(first, first + 5):
                append(opened(unity, entry, policy=PATIENT), rows(number))
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(start,)) for start in (100, 200, 300)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert ids(opened(unity, entry)) == [first + each for first in (100, 200, 300) for each in range(5)]
    assert entry.latest == 15


def test_a_checkpoint_is_written_of_a_published_version_alone(unity: FakeUnity, entry: FakeTable) -> None:
    for number in range(1, 10):
        append(opened(unity, entry), rows(number))
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=99)):
        append(opened(unity, entry), rows(10))
    log = Path(folder_of(entry), "_delta_log")
    assert [path.name[:20] for path in log.glob("*.checkpoint.*")] == [f"{10:020d}"]
    unpublish(entry, 10)
    table = opened(unity, entry)
    assert table.checkpoint() == 10
    assert published(entry)[-1] == 10
    assert ids(opened(unity, entry)) == list(range(1, 11))


# --- harm -------------------------------------------------------------------------------------------------------------

HTTP_HARM = [
    Fault("lost"),
    Fault("unanswered"),
    Fault("refused", status=503),
    Fault("refused", status=500, type="CommitStateUnknownException"),
    Fault("refused", status=429, type="TooManyRequestsException"),
]
REQUESTS = ["GET", "add-commit", "set-latest-backfilled-version"]


def append_once(unity: FakeUnity, entry: FakeTable, number: int, policy: CommitPolicy) -> None:
    """The work of a task: nothing if its application transaction is in the table."""
    table = opened(unity, entry, policy=policy)
    if table.snapshot().application_version(f"task-{number}") is None:
        append(table, rows(number), application=(f"task-{number}", 1))


def check_once(unity: FakeUnity, entry: FakeTable, *numbers: int) -> None:
    assert ids(opened(unity, entry)) == sorted(numbers)
    assert len(set(entry.file_names.values())) == entry.latest == len(numbers)


@pytest.mark.parametrize(
    ("times", "policy"),
    [(4, PATIENT), (1, HASTY), *in_long("each harm and request", (1, PATIENT), (4, HASTY))],
    ids=["4-patient", "1-hasty", "1-patient", "4-hasty"],
)
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("on", REQUESTS)
@pytest.mark.parametrize("harm", HTTP_HARM, ids=lambda fault: f"{fault.kind}-{fault.status}-{fault.type}")
def test_a_harmed_request_neither_loses_nor_doubles_a_commit(
    unity: FakeUnity, entry: FakeTable, harm: Fault, on: str, after: int, times: int, policy: CommitPolicy
) -> None:
    append_once(unity, entry, 1, policy)
    fault = Fault(harm.kind, on=on, after=after, status=harm.status, type=harm.type, times=times)
    with unity.harmed(fault), suppress(CommitStateUnknown, CatalogUnavailable):
        append_once(unity, entry, 2, policy)
    append_once(unity, entry, 2, policy)
    append_once(unity, entry, 3, policy)
    check_once(unity, entry, 1, 2, 3)


class Killed(BaseException):
    """The process dies here."""


class KillingStore(LocalStore):
    """Dies before or after the request number `left` that changes a file of the log."""

    left = 10**6
    is_after = False

    def _count(self, work: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0 and not self.is_after:
            raise Killed
        done = work()
        if self.left == 0:
            raise Killed
        return done

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return bool(self._count(lambda: LocalStore.put_if_absent(self, path, data)))


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("request_number", [1, 2])
def test_a_writer_that_is_killed_at_a_file_of_the_log_commits_once(
    unity: FakeUnity, entry: FakeTable, request_number: int, is_after: bool
) -> None:
    inner = KillingStore(folder_of(entry))
    table = opened(unity, entry, inner)
    inner.left, inner.is_after = request_number, is_after
    with pytest.raises(Killed):
        append(table, rows(1), application=("task-1", 1))
    append_once(unity, entry, 1, PATIENT)
    append_once(unity, entry, 2, PATIENT)
    check_once(unity, entry, 1, 2)


@pytest.mark.parametrize("on", REQUESTS)
@pytest.mark.parametrize("is_after", [False, True])
def test_a_writer_that_is_killed_at_a_request_to_the_catalog_commits_once(
    unity: FakeUnity, entry: FakeTable, monkeypatch: pytest.MonkeyPatch, on: str, is_after: bool
) -> None:
    table = opened(unity, entry)
    method = {"GET": "load", "add-commit": "ratify", "set-latest-backfilled-version": "published"}[on]
    committer: Any = table.store._committer  # type: ignore[attr-defined]
    whole = getattr(committer, method)

    def dying(*given: Any) -> CatalogState:
        if is_after:
            whole(*given)
        raise Killed

    monkeypatch.setattr(committer, method, dying)
    with pytest.raises(Killed):
        append(table, rows(1), application=("task-1", 1))
    append_once(unity, entry, 1, PATIENT)
    append_once(unity, entry, 2, PATIENT)
    check_once(unity, entry, 1, 2)


@pytest.mark.parametrize("on", ["add-commit", "set-latest-backfilled"])
def test_a_request_that_arrives_after_its_repetition_changes_nothing(
    unity: FakeUnity, entry: FakeTable, on: str
) -> None:
    store = ManagedStore(LocalStore(folder_of(entry)), committer_of(unity, entry, timeout_s=0.3))
    table = Table(store, policy=PATIENT)
    with unity.harmed(Fault("delayed", on=on, delay_s=1.0)):
        append(table, rows(1))
        append(table, rows(2))
        # The late request is answered, and has its effect, by now.
        threading.Event().wait(1.2)
    append_once(unity, entry, 3, PATIENT)
    check_once(unity, entry, 1, 2, 3)


def test_a_repeated_request_names_the_same_staged_file(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry, policy=PATIENT)
    with unity.harmed(Fault("lost", on="add-commit", times=2)):
        append(table, rows(1))
    assert staged_names(table) == [entry.file_names[1]]


def test_a_catalog_that_forgets_our_request_loses_no_commit(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry)
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(table, rows(1))
        data = table.store.read(commit_name(1))
        # The same request again is a conflict with itself.
        ours, entry.file_names[1] = entry.file_names[1], "another"
        assert not table.store.put_if_absent(commit_name(1), data)
    unpublish(entry, 1)
    assert ours in staged_names(table)
    assert opened(unity, entry).store.read(commit_name(1)) == data


def test_an_answer_that_stays_away_is_an_unknown_commit_and_the_retry_finds_it(
    unity: FakeUnity, entry: FakeTable
) -> None:
    table = opened(unity, entry, policy=HASTY)
    tx = appending(table, 1)
    tx.set_application("task-1", 1)
    with unity.harmed(Fault("unanswered", on="add-commit"), Fault("lost", times=99)), pytest.raises(CommitStateUnknown):
        tx.commit("WRITE", {})
    assert entry.latest == 1
    assert opened(unity, entry).snapshot().application_version("task-1") == 1


# --- refusals -----------------------------------------------------------------------------------------------------


def test_a_gap_is_refused_at_once(unity: FakeUnity, entry: FakeTable) -> None:
    append(opened(unity, entry), rows(1))
    table = opened(unity, entry)
    tx = appending(table, 2)
    # The catalog lost a version, from a backup.
    entry.latest, entry.file_names = 0, {}
    with pytest.raises(CatalogRefused) as raised:
        tx.commit("WRITE", {})
    assert raised.value.facts["status"] == "InvalidParameterValueException"
    assert entry.latest == 0


def test_a_table_that_was_made_again_is_refused(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry)
    tx = appending(table, 1)
    entry.table_id = "99999999-2222-4333-8444-555555555555"
    with pytest.raises(WrongTableId):
        tx.commit("WRITE", {})
    with pytest.raises(WrongTableId):
        table.snapshot()


def test_a_log_of_another_table_id_is_refused(unity: FakeUnity, entry: FakeTable) -> None:
    made, entry.table_id = entry.table_id, "99999999-2222-4333-8444-555555555555"
    with pytest.raises(WrongTableId) as raised:
        opened(unity, entry).snapshot()
    assert (raised.value.facts["expected"], raised.value.facts["found"]) == (entry.table_id, made)


def test_too_many_unpublished_commits_are_published_here(unity: FakeUnity, entry: FakeTable) -> None:
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=99)):
        for number in (1, 2, 3):
            append(opened(unity, entry), rows(number))
    for version in (2, 3):
        unpublish(entry, version)
    unity.max_unpublished = 3
    assert append(opened(unity, entry), rows(4)) == 4
    assert (entry.commits, published(entry)) == ({}, [0, 1, 2, 3, 4])


def test_what_was_published_is_reported_in_the_request_that_commits_if_there_are_too_many(
    unity: FakeUnity, entry: FakeTable
) -> None:
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=99)):
        for number in (1, 2, 3):
            append(opened(unity, entry), rows(number))
    unity.max_unpublished = 3
    # The report alone is refused for as long as there are too many.
    too_many = Fault("refused", on='"updates": [{"action": "set-latest-backfilled', status=429, times=10**6)
    too_many.type = "ResourceExhaustedException"
    with unity.harmed(too_many):
        assert append(opened(unity, entry), rows(4)) == 4
    assert ids(opened(unity, entry)) == [1, 2, 3, 4]
    assert sorted(entry.commits) == [4]


@pytest.mark.parametrize("harm", [Fault("unanswered"), Fault("refused", status=500), Fault("lost")])
def test_a_commit_whose_request_fails_after_others_were_published_is_found_or_repeated(
    unity: FakeUnity, entry: FakeTable, harm: Fault
) -> None:
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=99)):
        for number in (1, 2, 3):
            append(opened(unity, entry), rows(number))
    unity.max_unpublished = 3
    table = opened(unity, entry, policy=HASTY)
    fault = Fault(harm.kind, on="add-commit", after=1, status=harm.status, times=9)
    with unity.harmed(fault), suppress(CommitStateUnknown):
        append(table, rows(4), application=("task-4", 1))
    append_once(unity, entry, 4, PATIENT)
    check_once(unity, entry, 1, 2, 3, 4)


def test_too_many_unpublished_commits_that_nobody_can_publish_may_be_retried(
    unity: FakeUnity, entry: FakeTable
) -> None:
    for number in (1, 2, 3, 4):
        append(opened(unity, entry), rows(number))
    unity.max_unpublished = 0
    with pytest.raises(CatalogRefused) as raised:
        append(opened(unity, entry), rows(5))
    assert raised.value.retryable
    assert ids(opened(unity, entry)) == [1, 2, 3, 4]


def test_a_catalog_that_is_away_is_said_and_may_be_retried(unity: FakeUnity, entry: FakeTable) -> None:
    with unity.harmed(Fault("lost", times=99)), pytest.raises(CatalogUnavailable) as raised:
        opened(unity, entry).snapshot()
    assert raised.value.retryable


def test_a_token_that_is_refused_ends_a_commit_at_once(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry)
    tx = appending(table, 1)
    unity.tokens = {"secret"}
    with pytest.raises(CatalogRefused, match="password"):
        tx.commit("WRITE", {})
    assert entry.latest == 0


@pytest.mark.parametrize("what", ["read", "write", "create"])
def test_a_managed_table_is_not_opened_by_its_path(entry: FakeTable, tmp_path: Path, what: str) -> None:
    work: dict[str, Callable[[], object]] = {
        "read": lambda: Table.open(entry.location),
        "write": lambda: Table.at(entry.location, Access()).begin(),
        "create": lambda: Table.create(tmp_path / "other", rows().schema, properties=PROPERTIES),
    }
    with pytest.raises(UnsupportedFeature, match="catalog_conn_id") as raised:
        work[what]()
    assert raised.value.facts["feature"] == "catalogManaged"


def test_a_table_that_the_catalog_manages_and_whose_log_does_not_say_so_is_refused(
    unity: FakeUnity, tmp_path: Path
) -> None:
    Table.create(tmp_path / "t", rows().schema)
    entry = unity.add(NAME, f"file://{tmp_path}/t")
    with pytest.raises(UnsupportedFeature, match="does not list"):
        opened(unity, entry).snapshot()


def test_maintenance_is_refused_by_name(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry)
    append(table, rows(1))
    for what, work in {
        "VACUUM": lambda: table.vacuum(dry_run=True),
        "log cleanup": table.clean_log,
        "removal of traces": lambda: table.remove_traces("id", [1]),
    }.items():
        with pytest.raises(UnsupportedFeature) as raised:
            work()
        assert raised.value.facts["needed_to"] == what
    for path in (commit_name(1), f"{STAGED}/{entry.file_names[1]}"):
        with pytest.raises(UnsupportedFeature):
            table.store.delete(path)
        with pytest.raises(UnsupportedFeature):
            table.store.delete_many([path])
    with pytest.raises(UnsupportedFeature):
        table.store.put(commit_name(2), b"")


def test_a_restore_is_a_commit_like_others(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry)
    append(table, rows(1))
    append(table, rows(2))
    table.restore(version=1)
    assert ids(opened(unity, entry)) == [1]
    assert entry.latest == 3


def test_a_name_of_a_staged_commit_that_leads_elsewhere_is_not_followed(unity: FakeUnity, entry: FakeTable) -> None:
    append(opened(unity, entry), rows(1))
    commit = {"version": 2, "timestamp": 1, "file-size": 1, "file-modification-timestamp": 1}
    entry.commits[2] = {**commit, "file-name": "../../../etc/passwd"}
    entry.latest = 2
    with pytest.raises(CatalogUnavailable):
        opened(unity, entry).snapshot()


@pytest.mark.parametrize("latest", [1, 2])
def test_an_answer_with_two_commits_of_a_version_or_one_after_the_latest_is_no_answer(
    unity: FakeUnity, entry: FakeTable, latest: int
) -> None:
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(opened(unity, entry), rows(1))
    given = entry.commits[1]
    name = f"{2 if latest == 1 else 1:020d}.{given['file-name'][21:]}"
    entry.commits[2] = {**given, "version": 3 - latest, "file-name": name}
    entry.latest = latest
    with pytest.raises(CatalogUnavailable):
        opened(unity, entry).snapshot()


def test_an_acceptance_whose_state_lacks_the_commit_is_no_commit(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry, policy=HASTY)
    before = unity.answer

    def forgetful(method: str, path: str, query: Any, body: Any) -> Any:
        found = before(method, path, query, body)
        if "add-commit" in json.dumps(body):
            entry.latest, entry.commits, entry.file_names = 0, {}, {}
            found = entry.shown()
        return found

    unity.answer = forgetful  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown):
        append(table, rows(1))
    unity.answer = before  # type: ignore[method-assign]
    append_once(unity, entry, 1, PATIENT)
    check_once(unity, entry, 1)


def test_two_stores_of_one_process_share_what_the_catalog_said(unity: FakeUnity, entry: FakeTable) -> None:
    store = ManagedStore(LocalStore(folder_of(entry)), committer_of(unity, entry))
    once = store.at_once()
    assert store.list("_delta_log") == once.list("_delta_log")
    assert once.read(commit_name(0)) == store.read(commit_name(0))


def test_commits_of_spark_are_no_danger_where_the_catalog_ratifies(
    unity: FakeUnity, entry: FakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(opened(unity, entry), rows(1))
    # As the last commits of delta-spark on S3 make a table suspect.
    monkeypatch.setattr("airflow_txlog.engine.commit.writers.store_kind", lambda root: "s3")
    monkeypatch.setattr("airflow_txlog.engine.commit.writers.last_engines", lambda *_: ["Apache-Spark/4 Delta-Lake/4"])
    assert append(opened(unity, entry, strict_writers=True), rows(2)) == 2
