"""What a reader may wait for, and whether the log shows it: the one answer for sensors, triggers and any other caller.

A condition is asked of the versions in a range: those later than where it begins, and later than what was looked at
before. The invariant: what cannot be known counts as reached. Where the log no longer holds a commit of the range, or
the table was dropped and created again, the reader is woken rather than left to wait for what may be there already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_txlog.engine.table.changes.following import CommitFacts, LogFollower, Position
from airflow_txlog.engine.table.predicate.partition_sets import partitions_of
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What is waited for; a version has to satisfy all that is given. At most one of the first three is given.

    - `version`: this one or a later one. Alone it is a number and nothing else: what its commit did is not asked.
    - `newer_than`: later than this one. Of a table that was created again since, every version is later.
    - `since_ms`: committed at or after this moment, milliseconds since the epoch.
    - `operations`: by one of these operations, as commitInfo names them; case does not count.
    - `tags`: whose commitInfo has these tags.
    - `partition`: which added rows to the partition, given by column as texts of the log. Without one of the first
      three, `operations` and `tags`: which has rows of the partition.
    - `data_changes_only`: which added or removed rows. None: so it is, unless `operations` are named.
    """

    version: int | None = None
    newer_than: Position | None = None
    since_ms: int | None = None
    operations: frozenset[str] = frozenset()
    tags: Mapping[str, str] = field(default_factory=dict)
    partition: Mapping[str, str | None] = field(default_factory=dict)
    data_changes_only: bool | None = None

    def __post_init__(self) -> None:
        ranges = [each for each in (self.version, self.newer_than, self.since_ms) if each is not None]
        if len(ranges) > 1:
            raise InvalidInput("A condition has at most one of version, newer_than and since.")
        if not ranges and not (self.operations or self.tags or self.partition):
            raise InvalidInput("A condition needs one of version, newer_than, since, operation, tags and partition.")

    @property
    def needs_data_change(self) -> bool:
        """Whether a version has to add or remove rows."""
        return not self.operations if self.data_changes_only is None else self.data_changes_only

    @property
    def _is_a_number(self) -> bool:
        asks_more = self.operations or self.tags or self.partition or self.data_changes_only
        return self.version is not None and not asks_more

    @property
    def _is_of_a_state(self) -> bool:
        ranges = (self.version, self.newer_than, self.since_ms)
        return bool(self.partition) and not (self.operations or self.tags or any(each is not None for each in ranges))

    def accepts(self, facts: CommitFacts, follower: LogFollower) -> bool:
        """Whether a commit of the range satisfies the rest. Raises InvalidInput, as `LogFollower.any_is`."""
        if self.needs_data_change and not facts.data_change:
            return False
        if self.operations and (facts.operation or "").upper() not in {each.upper() for each in self.operations}:
            return False
        if any(facts.tags.get(name) != text for name, text in self.tags.items()):
            return False
        return not self.partition or follower.any_is(self.partition, facts.filled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionAnswer:
    """Whether a condition is reached by the latest version, at `position`."""

    reached: bool
    position: Position
    """The latest version: give it as `checked` to ask for what comes after. -1 where there is no table."""
    after: int
    """The versions later than this one were asked."""
    match: CommitFacts | None
    """The newest commit that satisfies the condition; None where it is reached by a number, by rows that were there
    already, or by commits that the log no longer holds."""
    is_another_log: bool
    """Whether the table was dropped and created again since `checked`, or since the condition's `newer_than`."""


def ask(
    condition: Condition, follower: LogFollower, snapshot: Callable[[], Snapshot], checked: Position | None = None
) -> ConditionAnswer:
    """The answer by the follower's last look.

    `checked`: how far the same condition was asked before, and not reached; None where it was not. A partition that may
    have rows already is looked for in `snapshot`, only then. Raises InvalidInput, and what reading the log raises.
    """
    position, began = follower.position, condition.newer_than
    is_another_log = any(each is not None and follower.is_another_log(each) for each in (checked, began))
    if checked is not None and follower.is_another_log(checked):
        checked = None
    after = _begin(condition, follower)
    if checked is not None:
        after = max(after, checked.version)

    def answer(reached: bool, match: CommitFacts | None = None) -> ConditionAnswer:
        return ConditionAnswer(
            reached=reached, position=position, after=after, match=match, is_another_log=is_another_log
        )

    if position.version < 0:
        return answer(False)
    if condition._is_a_number:
        assert condition.version is not None
        return answer(position.version >= condition.version)
    if condition._is_of_a_state and checked is None:
        return answer(_has_rows(snapshot(), condition.partition, follower))
    for facts in follower.newest_first(after):
        if facts is None:
            return answer(True)
        if condition.since_ms is not None and facts.timestamp_ms < condition.since_ms:
            return answer(False)
        if condition.accepts(facts, follower):
            return answer(True, facts)
    return answer(False)


def _begin(condition: Condition, follower: LogFollower) -> int:
    """The version after which the condition's range begins; where it names none, with the first that the log holds."""
    if condition.version is not None:
        return condition.version - 1
    if condition.newer_than is not None:
        return -1 if follower.is_another_log(condition.newer_than) else condition.newer_than.version
    return -1 if condition.since_ms is not None else follower.earliest - 1


def _has_rows(snapshot: Snapshot, partition: Mapping[str, str | None], follower: LogFollower) -> bool:
    """Whether a live file lies in the partition. Raises InvalidInput, as `LogFollower.any_is`."""
    follower.any_is(partition, frozenset())
    # What may lie in it; the last word is `any_is`, the same as for a commit.
    files = snapshot.files(partitions_of([partition]), columns=["partition_values"])
    batches = files.to_batches(max_chunksize=1000)
    found = (batch.column(0).to_pylist() for batch in batches)
    return any(follower.any_is(partition, frozenset(tuple(sorted(each)) for each in chunk)) for chunk in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersions:
    """The versions that a reader who stood at `after` has not seen, up to `position`."""

    after: Position
    position: Position
    commits: tuple[CommitFacts, ...]
    """Those that added or removed rows, ascending."""
    is_complete: bool
    """False where they do not say what happened since `after`: the log no longer holds a commit in between, or the
    table was dropped and created again. Read the table as of `position` instead."""


def new_versions(follower: LogFollower, after: Position, up_to: Position | None = None) -> NewVersions:
    """What the follower's last look shows after `after`, up to the latest version or to `up_to`.

    Raises what reading the log raises.
    """
    is_complete = not follower.is_another_log(after)
    if up_to is None or follower.is_another_log(up_to):
        up_to = follower.position
    start = after.version if is_complete else follower.earliest - 1
    commits: list[CommitFacts] = []
    for facts in follower.newest_first(start):
        if facts is None:
            is_complete = False
        elif facts.version <= up_to.version and facts.data_change:
            commits.append(facts)
    return NewVersions(after=after, position=up_to, commits=tuple(reversed(commits)), is_complete=is_complete)
