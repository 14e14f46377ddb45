"""The naive model: a table as dicts, replayed from the bytes of its commits. It shares no code with the engine."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

Key = tuple[str, str | None]
"""A data file: its path, decoded and relative to the table, and the id of its deletion vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One version."""

    version: int = -1
    files: Mapping[Key, dict[str, Any]] = field(default_factory=dict)
    tombstones: frozenset[Key] = frozenset()
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    """commitInfo of the version."""
    adds: tuple[dict[str, Any], ...] = ()
    removes: tuple[dict[str, Any], ...] = ()
    """What the version itself did."""
    sets: tuple[str, ...] = ()
    """The kinds of action, beside file actions, that the version holds."""

    @property
    def row_id_high_water(self) -> int:
        mark = self.domains.get("delta.rowTracking")
        return -1 if mark is None else int(json.loads(mark)["rowIdHighWaterMark"])

    @property
    def properties(self) -> dict[str, str]:
        found: dict[str, str] = self.metadata["configuration"]
        return found


def key_of(action: Mapping[str, Any], root: str) -> Key:
    path = posixpath.normpath(unquote(action["path"]).removeprefix(f"{root}/"))
    vector = action.get("deletionVector")
    if vector is None:
        return path, None
    offset = vector.get("offset")
    return path, vector["storageType"] + vector["pathOrInlineDv"] + ("" if offset is None else f"@{offset}")


def after(state: State, version: int, data: bytes, root: str) -> State:
    """The version that follows `state`."""
    # Not splitlines of the text: it would also cut at U+0085 and its like inside a string.
    lines = [json.loads(line) for line in data.splitlines()]
    by_kind: dict[str, list[Any]] = {}
    for line in lines:
        ((kind, action),) = line.items()
        by_kind.setdefault(kind, []).append(action)
    adds, removes = by_kind.get("add", []), by_kind.get("remove", [])
    removed = {key_of(action, root) for action in removes}
    added = {key_of(action, root): action for action in adds}
    files = {key: add for key, add in state.files.items() if key not in removed} | added
    domains = dict(state.domains)
    for domain in by_kind.get("domainMetadata", []):
        domains.pop(domain["domain"], None)
        if not domain["removed"]:
            domains[domain["domain"]] = domain["configuration"]
    return State(
        version=version,
        files=files,
        tombstones=(state.tombstones | removed) - added.keys(),
        metadata=by_kind.get("metaData", [state.metadata])[-1],
        protocol=by_kind.get("protocol", [state.protocol])[-1],
        transactions={**state.transactions, **{each["appId"]: each["version"] for each in by_kind.get("txn", [])}},
        domains=domains,
        info=by_kind.get("commitInfo", [{}])[0],
        adds=tuple(adds),
        removes=tuple(removes),
        sets=tuple(sorted(by_kind.keys() - {"add", "remove", "commitInfo"})),
    )


def history(commits: Mapping[int, bytes], root: str) -> list[State]:
    """Every version from 0 on. Fails where one is missing."""
    assert sorted(commits) == list(range(len(commits))), f"the log has a gap: {sorted(commits)}"
    states: list[State] = []
    for version in range(len(commits)):
        states.append(after(states[-1] if states else State(), version, commits[version], root))
    return states
