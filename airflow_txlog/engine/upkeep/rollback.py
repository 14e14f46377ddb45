"""The rollback of some commits of a table: what undoes them, and which other commits forbid it.

If no other commit has landed since the first of them, the version before it is restored. If they only appended, and
later commits have neither touched their files nor read their rows, the files are removed. Anything else is in the way:
a later commit may have built on the rows.

A commit that undoes others lists their versions in a tag, so that they are not undone again, and sets their application
transactions back: work that was undone counts as not done. Any writer of the table can write such a tag, so it counts
only if the table shows that the rows are gone (`Undoings`). The invariants: the plan belongs to one version, and its
commit never rebases, so that nothing lands unseen between the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.commit.conflicts import harmful_changes
from airflow_txlog.engine.commit.content.attempt import ROW_TRACKING_DOMAIN
from airflow_txlog.engine.commit.content.watermarks import TOMBSTONES, WATERMARKS, rewound
from airflow_txlog.engine.commit.transaction import Transaction
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.log.actions import (
    Add,
    Commit,
    DomainMetadata,
    Metadata,
    Remove,
    decode_commit,
    decode_commit_info,
)
from airflow_txlog.engine.log.columns import FILES
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.log.tail import LogTail, list_tail, read_files
from airflow_txlog.engine.table.snapshot.files import action_keys, file_keys, known_sum, live_row_counts
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.engine.upkeep.consumers import restored_version
from airflow_txlog.engine.upkeep.restore import fill_restore, is_restored, is_restored_without_rows
from airflow_txlog.errors import LogGap, VersionNotFound

UNDOES_TAG = "txlog.undoes"
"""The tag of a commit that undoes others: a JSON list of their versions."""
NOT_DONE = -1
"""The number of an application transaction whose work was undone."""

# A run is rolled back within days. The bound keeps a lookup from reading a log of a million commits.
MOST_COMMITS_READ = 10_000

# Each row decides its own fate in these, so that they do not depend on the rows of other files.
_ROW_BY_ROW = frozenset({"DELETE", "UPDATE"})

IsMeant = Callable[[int, Mapping[str, Any]], bool]
"""Whether a commit is to be undone, by its version and its commitInfo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InTheWay:
    """A commit that forbids the rollback."""

    version: int
    operation: str | None
    tags: Mapping[str, Any]
    engine: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The rollback of commits, as the version `head` of the table allows it. Nothing is to be done without `versions`.

    `restores`: the version to restore; None: `removed` are the files to remove. `transactions`: the application ids
    of the undone commits. `rewinds`: the watermarks that go back with the rows, and `metadata` (None: as it is) without
    the notes of consumers that have none then. `undone`: commits that were meant and are undone already.
    """

    head: int
    versions: tuple[int, ...] = ()
    restores: int | None = None
    removed: pa.Table = field(default_factory=FILES.empty_table)
    transactions: tuple[str, ...] = ()
    rewinds: tuple[DomainMetadata, ...] = ()
    metadata: Metadata | None = None
    in_the_way: tuple[InTheWay, ...] = ()
    undone: tuple[int, ...] = ()


def of_run(tags: Mapping[str, str], owner: Mapping[str, str | None] | None = None) -> IsMeant:
    """Return whether a commit has these tags, names no commits that it undoes, and has no other owner.

    A commit has another owner if it has a tag of `owner` with another value. None stands for any value.
    """

    def is_meant(version: int, info: Mapping[str, Any]) -> bool:
        found = tags_of(info)
        is_owned = all(value is None or found.get(name, value) == value for name, value in (owner or {}).items())
        return is_owned and not _named(info) and tags.items() <= found.items()

    return is_meant


class Undoings:
    """The commits that each commit of a table has undone: those that its tag names, if the table shows it."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table
        self._found: dict[int, frozenset[int]] = {}

    def of(self, version: int, info: Mapping[str, Any] | None) -> frozenset[int]:
        """Return the versions that the commit with this commitInfo has undone."""
        if version not in self._found:
            named = _named(info)
            is_true = bool(named) and 0 <= min(named) <= max(named) < version and self._is_true(version, info, named)
            self._found[version] = named if is_true else frozenset()
        return self._found[version]

    def _is_true(self, version: int, info: Mapping[str, Any] | None, named: frozenset[int]) -> bool:
        table, first = self._table, min(named)
        try:
            after = table.snapshot(version)
            if (info or {}).get("operation") == "RESTORE":
                before = None if first == 0 else table.snapshot(first - 1)
                return before is not None and (
                    is_restored(after, before) or is_restored_without_rows(after, table.snapshot(version - 1), before)
                )
            if first == 0 and not after.num_files:
                return True
            commits = [decode_commit(each, table.store.read(commit_name(each)), commit_name(each)) for each in named]
            if not all(_only_appends(each, table) for each in commits):
                return False
            paths = {canonical_path(add.path, table.uri) for each in commits for add in each.adds}
            files, files_before = (each.state.files for each in (after, table.snapshot(version - 1)))
            if files.at_paths(paths).num_rows or files_before.at_paths(paths).num_rows < len(paths):
                return False
            # New files might hold the rows that these held.
            return not decode_commit(version, table.store.read(commit_name(version)), commit_name(version)).adds
        except (VersionNotFound, LogGap, FileNotFoundError):
            return False


def plan_rollback(table: DeltaTable, snapshot: Snapshot, is_meant: IsMeant, since: int = 0) -> RollbackPlan:
    """Return what undoes the commits that are meant, from version `since` up to the snapshot's, by the log alone.

    Raises CorruptCommit, LogGap; VersionNotFound if the log does not hold the commits before the first of them.
    """
    tail = list_tail(table.store, max(0, since - 1), complete_after=snapshot.version)
    undoings = Undoings(table)
    meant, undone = _meant(table, tail, range(since, snapshot.version + 1), is_meant, undoings)
    done = tuple(sorted(undone & meant))
    ours = meant - undone
    while ours:
        first = min(ours)
        commits = list(_commits(table, tail, first, snapshot.version))
        changing = {each.version for each in commits if each.version in ours and _changes_something(each)}
        if changing == ours:
            break
        # A commit that only moves rows, or records something, needs no undoing.
        ours = changing
    if not ours:
        return RollbackPlan(head=snapshot.version, undone=done)
    _check_held(table, tail, first, snapshot.version)
    others = _without_undone([each for each in commits if each.version not in meant - undone], undoings)
    own = [each for each in commits if each.version in ours]
    found = RollbackPlan(
        head=snapshot.version,
        versions=tuple(sorted(ours)),
        transactions=tuple(sorted({each.app_id for commit in own for each in commit.transactions})),
        undone=done,
    )
    found = replace(found, **_rewinding(table, snapshot, own))
    if not others and first > 0:
        return replace(found, restores=first - 1)
    removed = snapshot.files() if not others else _untouched(table, snapshot, own)
    blocking = _blocking(table, own, others, undoings, is_append=removed is not None)
    found = replace(found, in_the_way=tuple(map(_in_the_way, blocking)))
    return found if removed is None else replace(found, removed=removed)


def fill_rollback(tx: Transaction, table: DeltaTable, plan: RollbackPlan) -> tuple[str, dict[str, Any], dict[str, int]]:
    """Give what undoes the commits to the transaction, which is on the version `plan.head`.

    Return the operation, its parameters and its metrics, as the commit has them. Raises the errors of `fill_restore`.
    """
    assert tx.read_version == plan.head
    first = plan.versions[0]
    before = None if first == 0 else table.snapshot(first - 1)
    for app_id in plan.transactions:
        # An id that other runs have moved before, such as that of the table's tombstones, has the number of that time.
        number = None if before is None else before.application_version(app_id)
        tx.set_application(app_id, NOT_DONE if number is None else number)
    if plan.restores is not None:
        assert before is not None
        assert before.version == plan.restores
        metrics = fill_restore(tx, before, table.store)
        return "RESTORE", {"version": before.version, "timestamp": None}, metrics
    tx.remove(plan.removed)
    if plan.metadata is not None:
        tx.set_metadata(plan.metadata, is_checked=True)
    for domain in plan.rewinds:
        tx.set_domain(domain.domain, domain.configuration, removed=domain.removed)
    sizes = plan.removed.column("size").to_pylist()
    metrics = {"numRemovedFiles": plan.removed.num_rows, "numRemovedBytes": sum(sizes)}
    deleted = known_sum(live_row_counts(plan.removed))
    if deleted is not None:
        metrics["numDeletedRows"] = deleted
    return "ROLLBACK", {"versions": list(plan.versions)}, metrics


def undoes_tag(plan: RollbackPlan) -> dict[str, str]:
    """Return the tag of the commit."""
    return {UNDOES_TAG: json.dumps(list(plan.versions))}


def check_rollback(table: DeltaTable, plan: RollbackPlan) -> None:
    """Raise the error with which the rollback would be refused now: a missing file, a rule of the table."""
    tx = table.begin(plan.head)
    operation, _, _ = fill_rollback(tx, table, plan)
    tx.check(operation, (), FILES.empty_table())


# --- which commits? -------------------------------------------------------------------------------------------------


def _meant(
    table: DeltaTable, tail: LogTail, among: range, is_meant: IsMeant, undoings: Undoings
) -> tuple[set[int], set[int]]:
    """Return the versions that are meant, and those that a later commit has undone."""
    meant, undone, restored = set[int](), set[int](), among.stop
    versions = [each for each in sorted(tail.commits, reverse=True) if each in among][:MOST_COMMITS_READ]
    files = [tail.commits[each] for each in versions]
    contents = zip(versions, files, read_files(table.store, files), strict=True)
    # The oldest commits may be cleaned from the log at this moment.
    with suppress(FileNotFoundError):
        for version, file, data in contents:
            info = decode_commit_info(data, file.path)
            # Newest first: an undoing that was itself undone does not count, nor one after the version of a RESTORE.
            if version not in undone and version <= restored:
                undoes = undoings.of(version, info)
                undone |= undoes
                if not undoes and (info or {}).get("operation") == "RESTORE":
                    # One to a moment may have restored any version.
                    named = restored_version(info or {})
                    restored = -1 if named is None else named
            if is_meant(version, info):
                meant.add(version)
    return meant, undone


def _named(info: Mapping[str, Any] | None) -> frozenset[int]:
    """Return the versions that a commitInfo names as undone."""
    text = tags_of(info).get(UNDOES_TAG)
    try:
        found = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        found = []
    return frozenset(each for each in found if type(each) is int) if isinstance(found, list) else frozenset()


def tags_of(info: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the tags of a commitInfo; none if it has none, or something else in their place."""
    tags = (info or {}).get("tags")
    return tags if isinstance(tags, Mapping) else {}


def _commits(table: DeltaTable, tail: LogTail, start: int, end: int) -> Iterator[Commit]:
    files = tail.after(start - 1)[: end + 1 - start]
    for version, file, data in zip(range(start, end + 1), files, read_files(table.store, files), strict=True):
        yield decode_commit(version, data, file.path)


def _check_held(table: DeltaTable, tail: LogTail, first: int, head: int) -> None:
    """Raise VersionNotFound if the log has lost the commit before the first one: it may have been meant too."""
    if first > 0 and first - 1 not in tail.commits:
        raise VersionNotFound(
            f"{table.uri}: version {first} is to be undone, and the log does not hold the commits before it, which may "
            "be of the same run. Nothing was changed.",
            table=table.uri,
            version=first - 1,
            earliest=first,
            latest=head,
        )


def _files(commit: Commit) -> list[Add | Remove]:
    return [*commit.adds, *commit.removes]


def _changes_something(commit: Commit) -> bool:
    """Return whether the commit changes rows, tombstones, metadata or a domain.

    Moving rows and recording that work is done do not.
    """
    moves_rows = [each for each in _files(commit) if each.data_change]
    domains = [each for each in commit.domains if each.domain != ROW_TRACKING_DOMAIN]
    tombstones = [each for each in commit.transactions if each.app_id.startswith(TOMBSTONES)]
    return bool(moves_rows or tombstones or commit.cdc or commit.metadata or commit.protocol or domains)


def _without_undone(commits: Sequence[Commit], undoings: Undoings) -> list[Commit]:
    """Return the commits without those that record nothing, and without pairs of which one undoes the other."""
    versions = {each.version for each in commits}
    gone = set[int]()
    for commit in reversed(commits):
        undoes = undoings.of(commit.version, commit.info)
        if undoes and undoes <= versions and commit.version not in gone:
            gone |= undoes | {commit.version}
    records = (each for each in commits if _changes_something(each) or each.adds or each.removes)
    return [each for each in records if each.version not in gone]


# --- may they be undone? --------------------------------------------------------------------------------------------


def _untouched(table: DeltaTable, snapshot: Snapshot, own: Sequence[Commit]) -> pa.Table | None:
    """Return the live files that the commits have added; None if they did more, or a file is not live as it was."""
    if not all(_only_appends(commit, table) for commit in own):
        return None
    adds = [add for commit in own for add in commit.adds]
    live = snapshot.state.files.at_paths({canonical_path(add.path, table.uri) for add in adds})
    wanted = pa.array(action_keys(adds, table.uri), pa.string())
    live = live.filter(pc.is_in(file_keys(live, table.uri), value_set=wanted)) if live.num_rows else live
    return live if live.num_rows == len(adds) else None


def _only_appends(commit: Commit, table: DeltaTable) -> bool:
    """Return whether the commit has added rows, and changed no others. A feature that it has added may stay."""
    if commit.removes or commit.cdc or not all(add.data_change for add in commit.adds):
        return False
    if commit.version == 0:
        return True
    domains = [each for each in commit.domains if each.domain != ROW_TRACKING_DOMAIN and not _is_mark(each)]
    if commit.metadata is None:
        return not domains
    # An append may move the marks of identity columns, and note a consumer.
    before, after = map(_without_notes, (table.snapshot(commit.version - 1).metadata, commit.metadata))
    return not (domains or harmful_changes(before, after))


def _rewinding(table: DeltaTable, snapshot: Snapshot, own: Sequence[Commit]) -> dict[str, Any]:
    """Return the watermarks of consumers as they were before these commits, and the metadata if it must change too."""
    consumers = {each.domain.removeprefix(WATERMARKS) for commit in own for each in commit.domains if _is_mark(each)}
    if not consumers:
        return {}
    before = None if own[0].version == 0 else table.snapshot(own[0].version - 1)
    domains = rewound(snapshot.state.domains, {} if before is None else before.state.domains, consumers)
    # A consumer that is noted and has no watermark would miss it.
    noted = {} if before is None else before.metadata.configuration
    gone = {each.domain for each in domains if each.removed} - noted.keys()
    kept = {name: value for name, value in snapshot.metadata.configuration.items() if name not in gone}
    changed = msgspec.structs.replace(snapshot.metadata, configuration=kept)
    return {"rewinds": tuple(domains), "metadata": None if changed == snapshot.metadata else changed}


def _is_mark(domain: DomainMetadata) -> bool:
    return domain.domain.startswith(WATERMARKS)


def _without_notes(metadata: Metadata) -> Metadata:
    kept = {name: value for name, value in metadata.configuration.items() if not name.startswith(WATERMARKS)}
    return msgspec.structs.replace(metadata, configuration=kept)


def _blocking(
    table: DeltaTable, own: Sequence[Commit], others: Sequence[Commit], undoings: Undoings, *, is_append: bool
) -> list[Commit]:
    """Return the other commits that forbid the removal of our files: all of them if ours did more than append."""
    first, files = own[0].version, {canonical_path(add.path, table.uri) for commit in own for add in commit.adds}
    marks = {each.domain for commit in own for each in commit.domains if _is_mark(each)}
    app_ids = {each.app_id for commit in own for each in commit.transactions}
    found = [
        each
        for each in others
        if _may_build_on(each, first, undoings)
        or marks & {domain.domain for domain in each.domains}
        # Its number would go back with ours.
        or app_ids & {transaction.app_id for transaction in each.transactions}
        or any(canonical_path(action.path, table.uri) in files for action in _files(each))
    ]
    return found if is_append or (all(_only_appends(commit, table) for commit in own) and found) else list(others)


def _may_build_on(commit: Commit, first: int, undoings: Undoings) -> bool:
    """Return whether a later commit may depend on rows of files that it left as they are."""
    info = commit.info or {}
    changes_rows = any(each.data_change for each in _files(commit))
    if not changes_rows or undoings.of(commit.version, info) or info.get("operation") in _ROW_BY_ROW:
        return False
    # delta-rs does not write whether an append is blind; its appends get their rows from the caller.
    is_blind = info.get("isBlindAppend", info.get("operation") == "WRITE") is True
    is_append = is_blind and not commit.removes
    read = info.get("readVersion")
    return not (is_append or (type(read) is int and read < first))


def _in_the_way(commit: Commit) -> InTheWay:
    info = commit.info or {}
    operation, engine = info.get("operation"), info.get("engineInfo")
    return InTheWay(
        version=commit.version,
        operation=operation if isinstance(operation, str) else None,
        tags=tags_of(info),
        engine=engine if isinstance(engine, str) else None,
    )
