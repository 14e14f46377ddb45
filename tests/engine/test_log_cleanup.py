"""Log cleanup: where the log is cut, what stays, and that a cut which breaks off anywhere costs nothing promised."""

from __future__ import annotations

import json
import logging
import os
import random
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table, checkpointing
from airflow_txlog.engine.checkpointing import clean_log
from airflow_txlog.engine.log.actions import Protocol
from airflow_txlog.engine.log.checkpoints.reading import sidecars_of
from airflow_txlog.engine.log.names import LAST_CHECKPOINT, checkpoint_name, commit_name, version_prefix
from airflow_txlog.engine.log.segment import CheckpointFiles, list_segment
from airflow_txlog.engine.table.schema.properties import DAY_MS, HOUR_MS
from airflow_txlog.errors import CorruptCheckpoint, TimestampOutOfRange, TxlogError, VersionNotFound
from airflow_txlog.storage import FileInfo, MemoryStore, Store
from tests.conftest import ManualClock
from tests.engine.upkeep.faults import WITH_ITS_WORK_DONE, DyingStore, dying
from tests.helpers.depth import depth
from tests.helpers.limits import limited
from tests.helpers.rows import append, sorted_rows

SCHEMA = pa.schema([("id", pa.int64())])
SHORT = {"delta.logRetentionDuration": "interval 4 days", "delta.checkpointInterval": "3"}
NO_CLEANUP = {"delta.enableExpiredLogCleanup": "false", "delta.checkpointInterval": "5"}


class History:
    """A table in memory with a commit a day, a checkpoint every five, and what each version held."""

    def __init__(self, days: int = 40, properties: dict[str, str] | None = None) -> None:
        made = _made(days, tuple(sorted((NO_CLEANUP | (properties or {})).items())))
        self.clock = ManualClock(made.clock.time_ms)
        self.store = MemoryStore(f"memory://cleanup-{uuid.uuid4().hex}", clock=self.clock)
        self.restore(made.files)
        self.table = Table(self.store, clock=self.clock)
        self.moments, self.held = dict(made.moments), dict(made.held)

    def next_day(self) -> int:
        version = next_day(self.table, self.clock)
        self.moments[version] = self.clock.time_ms
        return version

    def clean(self, store: Any = None, **arguments: Any) -> checkpointing.LogCleanup:
        return clean_log(store or self.store, Table(self.store, clock=self.clock).snapshot(), self.clock, **arguments)

    def log(self) -> list[str]:
        return [info.path.removeprefix("_delta_log/") for info in self.store.list("_delta_log")]

    def save(self) -> list[tuple[FileInfo, bytes]]:
        return [(info, self.store.read(info.path)) for info in self.store.walk()]

    def restore(self, saved: list[tuple[FileInfo, bytes]]) -> None:
        """The files as they were, with their times."""
        now = self.clock.time_ms
        for info, content in saved:
            self.clock.time_ms = info.modified_ms
            self.store.put(info.path, content)
        self.clock.time_ms = now

    def check_from(self, first: int) -> None:
        """The versions from `first` on are what they were, and so is the latest, with the hint and without.

        Looked at are the first seven, which begin at the checkpoint of the cut and at the one after it.
        """
        table = Table(self.store, clock=self.clock)
        for version in range(first, min(max(self.held), first + 6) + 1):
            assert paths(table, version) == self.held[version]
        assert paths(table, None) == self.held[max(self.held)]
        hint = self.store.read(LAST_CHECKPOINT)
        self.store.delete(LAST_CHECKPOINT)
        assert paths(table, None) == self.held[max(self.held)]
        self.store.put(LAST_CHECKPOINT, hint)


class _Made:
    """What every history of these days starts from: its files, and what each version held."""

    def __init__(self, days: int, properties: dict[str, str]) -> None:
        self.clock = ManualClock(1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS)
        store = MemoryStore(f"memory://cleanup-{uuid.uuid4().hex}", clock=self.clock)
        table = Table.create(store, SCHEMA, properties=properties, clock=self.clock)
        self.moments = {0: self.clock.time_ms}
        for _ in range(days):
            version = next_day(table, self.clock)
            self.moments[version] = self.clock.time_ms
        self.held = {version: paths(table, version) for version in range(days + 1)}
        self.files = [(info, store.read(info.path)) for info in store.walk()]


@cache
def _made(days: int, properties: tuple[tuple[str, str], ...]) -> _Made:
    return _Made(days, dict(properties))


def next_day(table: Table, clock: ManualClock) -> int:
    """One more commit, a day later: a file comes, and every third day an earlier one goes."""
    clock.time_ms += DAY_MS
    tx = table.begin()
    version = tx.read_version + 1
    tx.add(path=f"f{version}", size=1)
    if version % 3 == 0:
        tx.remove(f"f{version - 1}")
    tx.commit("WRITE", {"mode": "Append"})
    return version


def paths(table: Table, version: int | None) -> list[str]:
    return sorted(table.snapshot(version).files().column("path").to_pylist())


def versions_of(names: Iterable[str], suffix: str) -> list[int]:
    return [int(name[:20]) for name in names if name[20:] == suffix]


def test_the_log_is_cut_at_the_newest_checkpoint_that_the_retention_has_passed() -> None:
    """Version 10 is thirty days old and was current at the cutoff; it is a checkpoint, and so its commit stays too."""
    history = History(40)
    result = history.clean()
    # 40 days of noons; the cutoff is the midnight before noon minus 30 days: version 9 was current then.
    assert result.cut == 5
    assert versions_of(history.log(), ".json") == list(range(5, 41))
    assert versions_of(history.log(), ".checkpoint.parquet") == list(range(5, 41, 5))
    assert result.deleted_files == 5
    assert result.deleted_bytes > 0
    history.check_from(5)
    with pytest.raises(VersionNotFound) as error:
        history.table.snapshot(4)
    assert (error.value.earliest, error.value.latest) == (5, 40)


def test_every_moment_within_the_retention_can_be_travelled_to_as_before() -> None:
    history = History(47)
    now = history.clock.time_ms
    moments = range(now - 30 * DAY_MS, now, 30 * HOUR_MS)
    before = {moment: history.table.snapshot(timestamp=moment).version for moment in moments}
    assert history.clean().cut == 15
    for moment, version in before.items():
        assert history.table.snapshot(timestamp=moment).version == version
    with pytest.raises(TimestampOutOfRange):
        history.table.snapshot(timestamp=history.moments[14])


def test_a_second_cleanup_finds_nothing_and_a_later_one_cuts_on() -> None:
    history = History(40)
    assert history.clean().cut == 5
    assert history.clean() == checkpointing.NOTHING
    for _ in range(5):
        version = history.next_day()
        history.held[version] = paths(history.table, version)
    assert history.clean().cut == 10
    history.check_from(10)


def test_a_cleanup_that_finds_nothing_costs_one_listing() -> None:
    """It runs after every checkpoint, and finds something once a day."""
    calls: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            if name not in ("root", "catalog_table"):
                calls.append(name)
            return getattr(history.store, name)

    history = History(40)
    history.clean()
    assert history.clean(Counting(), automatic=True) == checkpointing.NOTHING
    assert calls == ["list"]


def test_a_checkpoint_is_followed_by_a_cleanup_when_the_table_wants_one() -> None:
    history = History(40)
    history.table.checkpoint()
    assert versions_of(history.log(), ".json")[0] == 0
    tx = history.table.begin()
    tx.set_metadata(_with_properties(history, {"delta.enableExpiredLogCleanup": "true"}))
    tx.commit("SET TBLPROPERTIES")
    assert versions_of(history.log(), ".json")[0] == 0
    history.table.checkpoint(20)
    assert versions_of(history.log(), ".json")[0] == 0, "only the latest version's properties rule"
    history.table.checkpoint()
    assert versions_of(history.log(), ".json")[0] == 5


def test_a_commit_on_schedule_cleans_the_log() -> None:
    history = History(39, {"delta.enableExpiredLogCleanup": "true"})
    # Days 35 to 39 had no checkpoint to clean after; at day 35 nothing but version 0 to 4 was old, with version 5 not.
    assert versions_of(history.log(), ".json")[0] == 0
    history.next_day()
    assert versions_of(history.log(), ".json")[0] == 5


def _with_properties(history: History, properties: dict[str, str]) -> Any:
    metadata = history.table.snapshot().metadata
    return msgspec.structs.replace(metadata, configuration={**metadata.configuration, **properties})


@pytest.mark.parametrize("retention", ["interval 60 days", "interval 40 days"])
def test_a_log_younger_than_its_retention_stays_whole(retention: str) -> None:
    history = History(40, {"delta.logRetentionDuration": retention})
    before = history.log()
    assert history.clean() == checkpointing.NOTHING
    assert history.log() == before


PROTECTED = Protocol(min_reader_version=1, min_writer_version=7, writer_features=["checkpointProtection"])


def protected(history: History, before: int) -> Any:
    """The latest snapshot, whose versions before this one are protected."""
    snapshot = history.table.snapshot()
    properties = {"delta.requireCheckpointProtectionBeforeVersion": str(before)}
    configuration = {**snapshot.metadata.configuration, **properties}
    metadata = msgspec.structs.replace(snapshot.metadata, configuration=configuration)
    snapshot.state = replace(snapshot.state, protocol=PROTECTED, metadata=metadata)
    return snapshot


def test_protected_versions_stay_as_long_as_one_of_them_must() -> None:
    history = History(40)
    before = history.log()
    assert clean_log(history.store, protected(history, 35), history.clock) == checkpointing.NOTHING
    assert history.log() == before


@pytest.mark.parametrize("automatic", [True, False])
def test_protected_versions_go_at_once_however_few_files_an_automatic_cleanup_deletes(automatic: bool) -> None:
    history = History(40)
    cut = History(40).clean().cut
    assert cut is not None
    few = limited(history.store, automatic_cleanup_files=3)
    assert clean_log(few, protected(history, cut), history.clock, automatic=automatic).cut == cut
    history.check_from(cut)
    assert not any(int(name[:20]) < cut for name in history.log() if name[:20].isdecimal())


def test_an_automatic_cleanup_goes_on_behind_the_protected_versions() -> None:
    history = History(40)
    few = limited(history.store, automatic_cleanup_files=4)
    assert clean_log(few, protected(history, 3), history.clock, automatic=True).deleted_files == 4
    assert min(int(name[:20]) for name in history.log() if name[:20].isdecimal()) >= 3


# --- what is not a boundary -----------------------------------------------------------------------------------------


def test_a_checkpoint_that_cannot_be_read_is_no_boundary(caplog: pytest.LogCaptureFixture) -> None:
    history = History(47)
    path = checkpoint_name(15)
    good = history.store.read(path)
    history.store.put(path, good[: len(good) // 2])
    history.clock.time_ms += 1
    assert history.clean().cut == 10
    assert path in caplog.text
    history.store.put(path, good)
    history.check_from(10)


def test_a_whole_checkpoint_with_a_broken_one_of_the_same_version_is_no_boundary() -> None:
    history = History(47)
    name = checkpoint_name(15)
    history.store.put(name.replace(".parquet", f".{uuid.uuid4()}.parquet"), history.store.read(name)[:-100])
    assert history.clean().cut == 10
    history.check_from(10)


def test_an_incomplete_multi_part_checkpoint_is_no_boundary() -> None:
    history = History(47)
    content = history.store.read(checkpoint_name(15))
    history.store.delete(checkpoint_name(15))
    history.store.put(f"{version_prefix(15)}.checkpoint.0000000001.0000000002.parquet", content)
    assert history.clean().cut == 10
    history.check_from(10)


def test_without_a_checkpoint_nothing_goes() -> None:
    history = History(40, {"delta.checkpointInterval": "1000"})
    assert history.clean() == checkpointing.NOTHING
    assert versions_of(history.log(), ".json") == list(range(41))


def test_what_the_hint_names_stays() -> None:
    """Another reader opens the checkpoint that the hint names first; a stale hint holds the cut back."""
    history = History(47)
    history.store.put(LAST_CHECKPOINT, json.dumps({"version": 5, "size": 3}).encode())
    assert history.clean().cut == 5
    history.store.put(LAST_CHECKPOINT, b"{garbage")
    assert history.clean().cut == 15


def test_file_times_that_run_backwards_count_from_the_file_before() -> None:
    """Version 3 was stamped in the future: everything after it is as young as it is."""
    history = History(47)
    path = commit_name(3)
    content = history.store.read(path)
    now = history.clock.time_ms
    history.clock.time_ms = now - DAY_MS
    history.store.put(path, content)
    history.clock.time_ms = now
    assert history.clean() == checkpointing.NOTHING


def test_in_commit_timestamps_hold_the_cut_back_where_files_look_older() -> None:
    """A log copied with old file times is as young as its commits say."""
    history = History(47, {"delta.enableInCommitTimestamps": "true"})
    now = history.clock.time_ms
    for version in range(48):
        content = history.store.read(commit_name(version))
        history.clock.time_ms = history.moments[version] - 20 * DAY_MS
        history.store.put(commit_name(version), content)
    history.clock.time_ms = now
    before = {moment: history.table.snapshot(timestamp=moment).version for moment in history.moments.values()}
    assert history.clean().cut == 15
    for version, moment in history.moments.items():
        if version >= 15:
            assert history.table.snapshot(timestamp=moment).version == before[moment] == version


# --- everything else in the log -------------------------------------------------------------------------------------


def test_checksums_parts_and_compactions_go_with_their_versions_and_strangers_stay() -> None:
    history = History(47)
    gone = [
        f"{3:020d}.crc",
        f"{10:020d}.checkpoint.{1:010d}.{2:010d}.parquet",
        f"{2:020d}.{4:020d}.compacted.json",
        f"{15:020d}.{20:020d}.compacted.json",
        f"{14:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json",
    ]
    stay = [
        f"{15:020d}.crc",
        f"{16:020d}.{20:020d}.compacted.json",
        "_last_vacuum_info",
        ".00000000000000000003.json.0356b577-2677-49cc-8d45-0ee1c782fb1b.tmp",
        "00000000000000000004.note",
    ]
    for name in (*gone, *stay):
        history.store.put(f"_delta_log/{name}", b"x")
    assert history.clean().cut == 15
    assert set(history.log()).isdisjoint(gone)
    assert set(stay) <= set(history.log())


def v2_history() -> History:
    """A table that may have V2 checkpoints, with a V2 checkpoint at version 12 and one at 15, sharing a sidecar."""
    history = History(47)
    tx = history.table.begin()
    features = ["appendOnly", "invariants", "v2Checkpoint"]
    tx.set_protocol(
        Protocol(min_reader_version=3, min_writer_version=7, reader_features=["v2Checkpoint"], writer_features=features)
    )
    version = tx.commit("UPGRADE PROTOCOL")
    history.held[version] = paths(history.table, version)
    now = history.clock.time_ms
    history.clock.time_ms = now - 40 * DAY_MS
    for name in ("old", "shared", "orphan"):
        history.store.put(f"_delta_log/_sidecars/{name}.parquet", b"x")
    history.clock.time_ms = now
    history.store.put("_delta_log/_sidecars/young.parquet", b"x")
    for number, (at, names) in enumerate({12: ["old", "shared"], 16: ["shared"]}.items()):
        lines = [{"checkpointMetadata": {"version": at}}]
        lines += [{"sidecar": {"path": f"{name}.parquet", "sizeInBytes": 1, "modificationTime": 0}} for name in names]
        path = f"{version_prefix(at)}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a1{number}.json"
        history.store.put(path, "\n".join(map(json.dumps, lines)).encode())
    return history


def sidecars(history: History) -> list[str]:
    return [info.path.rsplit("/", 1)[-1] for info in history.store.list("_delta_log/_sidecars")]


def test_a_log_of_v2_checkpoints_is_cut_with_their_sidecars() -> None:
    """Checkpoints as we write them under delta.checkpointPolicy = v2, each with sidecars of its own."""
    history = History(11, SHORT | {"delta.checkpointPolicy": "v2"})
    assert len(sidecars(history)) == 3
    assert history.clean().cut == 6
    assert not versions_of(history.log(), ".checkpoint.parquet"), "no classic one among them"
    named = {
        path.rsplit("/", 1)[-1]
        for version in (6, 9)
        for path in sidecars_of(history.store, checkpoint_at(history, version))
    }
    assert set(sidecars(history)) == named
    assert len(named) == 2
    history.check_from(6)


def checkpoint_at(history: History, version: int) -> CheckpointFiles:
    found = list_segment(history.store, version).checkpoint
    assert found is not None
    assert found.version == version
    return found


def test_a_sidecar_goes_once_it_is_old_and_no_checkpoint_names_it() -> None:
    history = v2_history()
    assert history.clean().cut == 15
    assert sidecars(history) == ["shared.parquet", "young.parquet"]


def test_sidecars_go_after_the_feature_of_v2_checkpoints_was_dropped() -> None:
    history = v2_history()
    assert clean_log(history.store, protected(history, 0), history.clock).cut == 15
    assert sidecars(history) == ["shared.parquet", "young.parquet"]


def test_sidecars_stay_while_one_checkpoint_does_not_tell_its_own() -> None:
    history = v2_history()
    history.store.put(f"{version_prefix(17)}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a19.json", b"{torn")
    with pytest.raises(CorruptCheckpoint):
        history.clean()
    assert len(sidecars(history)) == 4
    assert versions_of(history.log(), ".json")[0] == 15


# --- any log --------------------------------------------------------------------------------------------------------


def any_log(chance: random.Random) -> tuple[MemoryStore, ManualClock]:
    """A table of some twenty commits hours or days apart, with file times that jump and checkpoints of all sorts."""
    clock = ManualClock(1_700_000_000_000)
    store = MemoryStore(f"memory://cleanup-{uuid.uuid4().hex}", clock=clock)
    properties = {
        "delta.checkpointInterval": "1000",
        "delta.logRetentionDuration": f"interval {chance.randrange(1, 12)} days",
        "delta.enableInCommitTimestamps": chance.choice(["true", "false"]),
    }
    table = Table.create(store, SCHEMA, properties=properties, clock=clock)
    for version in range(1, chance.randrange(8, 24)):
        clock.time_ms += chance.randrange(1, 3 * DAY_MS)
        tx = table.begin()
        tx.add(path=f"f{version}", size=1)
        tx.commit("WRITE")
        if chance.random() < 0.4:
            table.checkpoint(version)
    for version in range(table.snapshot().version + 1):
        now, content = clock.time_ms, store.read(commit_name(version))
        if chance.random() < 0.2:
            clock.time_ms += chance.randrange(-5 * DAY_MS, 2 * DAY_MS)
            store.put(commit_name(version), content)
            clock.time_ms = now
        path = checkpoint_name(version)
        if store.stat(path) is not None and chance.random() < 0.3:
            whole = store.read(path)
            damage = chance.choice(["cut", "empty", "part", "gone"])
            store.delete(path)
            if damage == "part":
                store.put(f"{version_prefix(version)}.checkpoint.0000000001.0000000002.parquet", whole)
            elif damage != "gone":
                store.put(path, whole[: len(whole) // 2] if damage == "cut" else b"")
    hint = chance.choice([None, b"{torn", b'{"version": 3, "size": 1}', store.read(LAST_CHECKPOINT)]) if store.stat(
        LAST_CHECKPOINT
    ) else None  # fmt: skip
    if hint is not None:
        store.put(LAST_CHECKPOINT, hint)
    return store, clock


def read_or_error(table: Table, **asked: Any) -> Any:
    try:
        snapshot = table.snapshot(**asked)
    except TxlogError as error:
        return type(error)
    return snapshot.version, sorted(snapshot.files().column("path").to_pylist())


@pytest.mark.seeded
@pytest.mark.parametrize("seed", range(depth(2, 40)))
def test_whatever_the_log_what_the_retention_promises_reads_as_before(seed: int) -> None:
    chance = random.Random(seed)
    store, clock = any_log(chance)
    head = Table(store, clock=clock).snapshot()
    since = clock.time_ms - head.table_properties.log_retention_ms
    moments = range(since, clock.time_ms, DAY_MS // 3)
    # A fresh table each time: one that is kept open remembers versions, and would not look.
    before = {moment: read_or_error(Table(store, clock=clock), timestamp=moment) for moment in moments}
    first = min((found[0] for found in before.values() if isinstance(found, tuple)), default=head.version)
    versions = {
        version: read_or_error(Table(store, clock=clock), version=version) for version in range(first, head.version + 1)
    }
    result = clean_log(store, head, clock)
    assert {version: read_or_error(Table(store, clock=clock), version=version) for version in versions} == versions
    after = {moment: read_or_error(Table(store, clock=clock), timestamp=moment) for moment in moments}
    assert {moment: found for moment, found in after.items() if isinstance(before[moment], tuple)} == {
        moment: found for moment, found in before.items() if isinstance(found, tuple)
    }
    assert read_or_error(Table(store, clock=clock))[0] == head.version
    if result.cut is not None:
        assert read_or_error(Table(store, clock=clock), version=result.cut)[0] == result.cut


@pytest.mark.seeded
def test_some_of_those_logs_are_cut() -> None:
    cuts = 0
    for seed in range(depth(5, 40)):
        store, clock = any_log(random.Random(seed))
        cuts += clean_log(store, Table(store, clock=clock).snapshot(), clock).cut is not None
    assert cuts >= depth(1, 9)


# --- broken off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", WITH_ITS_WORK_DONE)
def test_a_cleanup_that_dies_anywhere_costs_nothing_that_is_promised(after: bool) -> None:
    """Killed before or after every call of the store: each promised version opens, and the next cleanup finishes."""
    history = History(11, SHORT)
    saved = history.save()
    deaths = 0
    while True:
        history.restore(saved)
        store = DyingStore(history.store, deaths, after=after)
        with dying():
            history.clean(store)
        history.check_from(6)
        if not store.has_died:
            break
        deaths += 1
        history.clean()
        assert versions_of(history.log(), ".json")[0] == 6
        history.check_from(6)
    assert deaths == 12


def test_any_part_of_the_deletions_leaves_what_is_promised() -> None:
    """Parallel deletes land in any order, and a listing may show any part of them."""
    chance = random.Random(7)
    history = History(11, SHORT)
    saved = history.save()
    assert history.clean().cut == 6
    doomed = sorted({info.path for info, _ in saved} - {info.path for info in history.store.walk()})
    assert len(doomed) == 7
    for _ in range(5):
        history.restore(saved)
        for path in chance.sample(doomed, chance.randrange(len(doomed))):
            history.store.delete(path)
        history.check_from(6)


def test_what_cannot_be_deleted_fails_no_commit(caplog: pytest.LogCaptureFixture) -> None:
    history = History(39, {"delta.enableExpiredLogCleanup": "true"})

    class NoDelete:
        def __getattr__(self, name: str) -> Any:
            return getattr(history.store, name)

        def delete_many(self, paths: Sequence[str]) -> dict[str, Exception]:
            raise PermissionError(f"no delete of {paths}")

    store: Store = NoDelete()  # type: ignore[assignment]
    history.clock.time_ms += DAY_MS
    tx = Table(store, clock=history.clock).begin()
    tx.add(path="f40", size=1)
    with caplog.at_level(logging.WARNING):
        assert tx.commit("WRITE") == 40
    assert "the log was not cleaned" in caplog.text
    assert checkpoint_name(40) in {info.path for info in history.store.list("_delta_log")}
    assert versions_of(history.log(), ".json") == list(range(41))


def test_one_cleanup_after_a_commit_deletes_a_bounded_number_of_files() -> None:
    history = History(47)
    limited(history.store, automatic_cleanup_files=4)
    assert history.clean(automatic=True).deleted_files == 4
    assert versions_of(history.log(), ".json") == list(range(4, 48))
    history.check_from(15)
    assert history.clean().cut == 15
    history.check_from(15)


def test_deltalake_reads_a_table_whose_log_was_cleaned(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    uri = str(tmp_path / "t")
    table = Table.create(uri, SCHEMA, properties=NO_CLEANUP)
    for number in range(12):
        append(table, [{"id": number}])
    for name in os.listdir(tmp_path / "t" / "_delta_log"):
        if int(name[:20] if name[0] == "0" else 99) <= 7:
            os.utime(tmp_path / "t" / "_delta_log" / name, (1_000_000_000, 1_000_000_000))
    rows = sorted_rows(table.to_arrow())
    assert Table.open(uri).clean_log().cut == 5
    assert sorted_rows(Table.open(uri).to_arrow()) == rows
    theirs = deltalake.DeltaTable(uri)
    assert sorted_rows(pa.table(theirs.to_pyarrow_table())) == rows
    assert deltalake.DeltaTable(uri, version=6).to_pyarrow_table().num_rows == 6
