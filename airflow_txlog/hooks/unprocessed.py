"""The versions that a consumer of a table has not processed yet: from the table's log, and not from counting events.

Airflow may merge or drop asset events (apache/airflow #56050), and a task may die in between. So a consumer keeps how
far it has come, and each run takes all that the log shows after it. The invariant: a part of the log that was handed
out is handed out again, with the same bounds and the same key, until it is done; work under its key is done once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_txlog.hooks.waiting import position_json, position_of

if TYPE_CHECKING:
    from airflow_txlog.engine.table.changes.following import Position
    from airflow_txlog.hooks.txlog import TxlogHook

START = {"version": -1, "commit_mark": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprocessedVersions:
    """The versions later than `from_version`, up to `version`."""

    table_uri: str
    from_version: int
    version: int
    versions: list[int]
    """Those that added or removed rows, ascending."""
    partitions: list[dict[str, str | None]]
    """The partitions that they changed, as texts of the log by column; empty for a table without."""
    is_complete: bool
    """False where the versions do not say all that changed: the log was cleaned past `from_version`, the table was
    dropped and created again, its partition columns were changed, or another engine removed files without writing down
    their partitions. Then read the table as of `version`."""
    key: str = field(repr=False)
    """A name for this piece of work, the same whenever it is handed out: for `idempotency_key`."""


def unprocessed_versions(hook: TxlogHook, table: str, consumer: str, state: Any) -> Iterator[UnprocessedVersions]:
    """The parts of the log that the consumer has not processed, in order; see `TxlogHook.unprocessed_versions`."""
    state_key = f"txlog_consumer_{hashlib.sha256(f'{consumer}|{hook.table_uri(table)}'.encode()).hexdigest()[:16]}"
    kept = state.get(state_key) or {"done": START}
    # What was handed out before and was not done, and then what is there now: not what comes while this one runs, which
    # may be the consumer's own.
    for _ in range(2 if "doing" in kept else 1):
        found, until = _part(hook, table, consumer, kept)
        if until == kept["done"]:
            return
        if found.versions or not found.is_complete:
            # The bounds are kept before the work begins: a try that follows takes this part, and no larger one.
            kept = {"done": kept["done"], "doing": until}
            state.set(state_key, kept)
            yield found
            if state.get(state_key) != kept:
                # A run that was taken for dead, and its retry: the other one has gone on from here, or from further.
                return
        kept = {"done": until}
        state.set(state_key, kept)


def _part(
    hook: TxlogHook, table: str, consumer: str, kept: dict[str, Any]
) -> tuple[UnprocessedVersions, dict[str, Any]]:
    """What comes after what is done: the part that was handed out already, or all that there is."""
    from airflow_txlog.engine.table.changes.conditions import new_versions

    follower = hook.follower(table)
    follower.look()
    after: Position = position_of(kept["done"])
    doing = kept.get("doing")
    new = new_versions(follower, after, None if doing is None else position_of(doing))
    until, uri = position_json(new.position), hook.table_uri(table)
    partitions = follower.partitions(new.commits)
    bounds = f"{consumer}|{uri}|{after.version}|{after.commit_mark}|{new.position.version}|{new.position.commit_mark}"
    found = UnprocessedVersions(
        table_uri=uri,
        from_version=after.version,
        version=new.position.version,
        versions=[commit.version for commit in new.commits],
        partitions=partitions or [],
        is_complete=new.is_complete and partitions is not None,
        key=f"{consumer}/{after.version}-{new.position.version}/{hashlib.sha256(bounds.encode()).hexdigest()[:12]}",
    )
    return found, until
