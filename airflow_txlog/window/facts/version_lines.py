"""One line per version: its author, its changes to rows and files, and the commits that it met.

A line comes from one commit file, which never changes, so lines are kept. A commit that is too large is described by
its commitInfo alone. The invariant: no line contains a value of a row or a statistic of a column.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX
from airflow_txlog.contract.wording import commit_rows, expectation_counts
from airflow_txlog.engine.commit.content.met import NONE_MET, Meetings, meetings_of
from airflow_txlog.engine.log.actions import Add, Commit, Metadata, Remove, decode_commit, decode_commit_info
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.commit_times import ListedCommit, in_commit_ms
from airflow_txlog.engine.table.snapshot.files import known_sum, live_rows, record_count
from airflow_txlog.engine.upkeep.checks import TINY_FILE_BYTES
from airflow_txlog.errors import TxlogError
from airflow_txlog.storage.base import Store

MOST_DECODED_BYTES = 8 * 2**20
"""A larger commit file is not decoded whole: it may have a million actions."""
_FIRST_BYTES = 64 * 2**10
_KEPT_LINES = 20_000
# Parameters that name columns, modes and versions. Others, such as predicates, may contain values of rows.
_PLAIN = re.compile(
    r"mode|partitionBy|clusterBy|zOrderBy|version|timestamp|targetSize|isManaged|properties|columns?|auto|catalogTable|"
    r"(min|max)FileSize|retentionCheckEnabled|defaultRetentionMillis|statusCode|statsOnLoad|canOverwriteSchema|"
    r"canMergeSchema|epochId|outputMode|queryId|description|oldColumnPath|newColumnPath|numFiles|partitionedBy"
)
HIDDEN_VALUE = "(not shown: it may contain values of rows)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The maker of a commit: a task of Airflow, or another program."""

    engine: str | None = None
    dag_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    map_index: str | None = None
    try_number: str | None = None
    is_hidden: bool = False
    """Whether the names were left out, because the user may not see the DAG."""

    @property
    def is_task(self) -> bool:
        return self.dag_id is not None

    @property
    def task(self) -> str:
        """The task's name with its index, if it is mapped."""
        mapped = self.map_index not in (None, "-1")
        return f"{self.task_id}[{self.map_index}]" if mapped else str(self.task_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """The files that a commit added and removed. A count that the log does not show is None."""

    added: int
    removed: int
    added_bytes: int
    removed_bytes: int | None
    added_small: int
    removed_small: int | None
    added_rows: int | None
    vectors: int
    """Files that the commit gave a deletion vector."""
    changes_data: bool
    """False if the commit only moved rows to other files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine:
    """One version of a table."""

    version: int
    moment_ms: int
    operation: str
    by: Author = Author()
    rows: str = ""
    """Such as `+2 ~30 -1`: rows added, updated and removed; empty if the commit does not count them."""
    files: FileChange | None = None
    duration_ms: int | None = None
    read_version: int | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Values that may be those of rows are left out."""
    expectations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    met: Meetings = NONE_MET
    isolation: str | None = None
    is_blind_append: bool | None = None
    changes_metadata: bool = False
    changes_protocol: bool = False
    problem: str | None = None
    """Why the commit cannot be described in full."""

    @property
    def failed_checks(self) -> int:
        """The expectations that at least one row failed."""
        return sum(1 for counts in self.expectations.values() if counts["failed"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCommit:
    """A line, and the metadata that the commit wrote."""

    line: VersionLine
    metadata: Metadata | None = None


class KeptLines:
    """Lines that were read before, by commit file. Any number of threads may use one."""

    def __init__(self, most: int = _KEPT_LINES) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, ListedCommit, bool], ReadCommit] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, store: Store, commits: Sequence[ListedCommit], properties: TableProperties) -> list[ReadCommit]:
        """Return the content of these commits, in order, without those that a log cleanup has just removed."""
        timed = properties.in_commit_timestamps
        keys = {each: (store.root, each, timed) for each in commits}
        with self._lock:
            found = {each: self._kept[key] for each, key in keys.items() if key in self._kept}
        missing = [each for each in commits if each not in found]
        for listed, data in _contents(store, missing):
            found[listed] = _read(listed, data, properties)
        with self._lock:
            for each in commits:
                if each in found:
                    self._kept[keys[each]] = found[each]
                    self._kept.move_to_end(keys[each])
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return [found[each] for each in commits if each in found]


def _contents(store: Store, commits: Sequence[ListedCommit]) -> Iterable[tuple[ListedCommit, bytes | None]]:
    """Yield the bytes of each commit; None for one that is too large; nothing for one that is gone."""
    small = [each for each in commits if each.info.size_bytes <= MOST_DECODED_BYTES]
    try:
        yield from zip(small, list(store.read_all([each.info.path for each in small])), strict=True)
    except FileNotFoundError:
        for each in small:
            with suppress(FileNotFoundError):
                yield each, store.read(each.info.path)
    for each in commits:
        if each.info.size_bytes > MOST_DECODED_BYTES:
            with suppress(FileNotFoundError):
                yield each, _first_lines(store, each)


def _first_lines(store: Store, listed: ListedCommit) -> bytes | None:
    """Return the first line of a large commit file, which has the commitInfo in most logs; None if it is too long."""
    with store.open_input(listed.info.path) as stream:
        first = stream.read(_FIRST_BYTES)
    line, end, _ = first.partition(b"\n")
    return line if end else None


def _read(listed: ListedCommit, data: bytes | None, properties: TableProperties) -> ReadCommit:
    path, is_large = listed.info.path, listed.info.size_bytes > MOST_DECODED_BYTES
    try:
        if is_large:
            info = decode_commit_info(data or b"", path)
            large = f"The commit file has {listed.info.size_bytes / 2**20:,.0f} MiB; its files are not counted here."
            return ReadCommit(line=_line(listed, info, None, properties, large))
        commit = decode_commit(listed.version, data or b"", path)
    except TxlogError as error:
        broken = VersionLine(
            version=listed.version, moment_ms=listed.file_time_ms, operation="unreadable", problem=str(error)
        )
        return ReadCommit(line=broken)
    line = _line(listed, commit.info or {}, commit, properties, None)
    return ReadCommit(line=line, metadata=commit.metadata)


def _line(
    listed: ListedCommit,
    info: Mapping[str, Any],
    commit: Commit | None,
    properties: TableProperties,
    problem: str | None,
) -> VersionLine:
    metrics, tags = _texts(info.get("operationMetrics")), _texts(info.get("tags"))
    own_ms = in_commit_ms(properties, listed.version, info)
    blind, isolation = info.get("isBlindAppend"), info.get("isolationLevel")
    return VersionLine(
        version=listed.version,
        moment_ms=listed.file_time_ms if own_ms is None else own_ms,
        operation=str(info.get("operation") or "no operation named"),
        by=_author(info, tags),
        rows=commit_rows(info.get("operation"), metrics),
        files=None if commit is None else _file_change(commit),
        duration_ms=_count(metrics.get("executionTimeMs") or metrics.get("execution_time_ms")),
        read_version=_count(info.get("readVersion")),
        metrics={name: text for name, text in metrics.items() if _count(text) is not None},
        parameters={name: _parameter(name, text) for name, text in _texts(info.get("operationParameters")).items()},
        expectations=_expectations(metrics),
        met=meetings_of(info),
        isolation=isolation if isinstance(isolation, str) else None,
        is_blind_append=blind if isinstance(blind, bool) else None,
        changes_metadata=commit is not None and commit.metadata is not None,
        changes_protocol=commit is not None and commit.protocol is not None,
        problem=problem,
    )


def _author(info: Mapping[str, Any], tags: Mapping[str, str]) -> Author:
    engine = info.get("engineInfo") or info.get("clientVersion")
    of_task: dict[str, Any] = {
        name: tags.get(f"{ANNOTATION_TAG_PREFIX}{name}") for name in ("dag_id", "task_id", "run_id", "try_number")
    }
    index = tags.get(f"{ANNOTATION_TAG_PREFIX}map_label") or tags.get(f"{ANNOTATION_TAG_PREFIX}map_index")
    return Author(engine=None if engine is None else str(engine), map_index=index, **of_task)


def _file_change(commit: Commit) -> FileChange:
    sizes = [each.size for each in commit.removes]
    return FileChange(
        added=len(commit.adds),
        removed=len(commit.removes),
        added_bytes=sum(each.size for each in commit.adds),
        removed_bytes=known_sum(sizes),
        added_small=sum(1 for each in commit.adds if each.size < TINY_FILE_BYTES),
        removed_small=None
        if None in sizes
        else sum(1 for size in sizes if size is not None and size < TINY_FILE_BYTES),
        added_rows=known_sum([_rows_of(each) for each in commit.adds]),
        vectors=sum(1 for each in commit.adds if each.deletion_vector is not None),
        changes_data=any(each.data_change for each in _changes(commit)),
    )


def _changes(commit: Commit) -> list[Add | Remove]:
    return [*commit.adds, *commit.removes]


def _rows_of(add: Add) -> int | None:
    return live_rows(record_count(add.stats, add.deletion_vector), add.deletion_vector)


def _texts(values: object) -> dict[str, str]:
    """Return a mapping of any writer as texts by name; empty if it is not one."""
    if not isinstance(values, Mapping):
        return {}
    return {
        str(name): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in values.items()
        if value is not None
    }


def _expectations(metrics: Mapping[str, str]) -> dict[str, dict[str, int]]:
    return expectation_counts({name: count for name, text in metrics.items() if (count := _count(text)) is not None})


def _parameter(name: str, text: str) -> str:
    if text in ("", "[]", "{}", "null"):
        return text
    return text[:300] if _PLAIN.fullmatch(name) else HIDDEN_VALUE


def _count(value: object) -> int | None:
    """Return a number that any writer may have written as a text; None if it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = value if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
