"""One line per version: its author, its changes to rows and files, and the commits that it met.

A line comes from one commit file, which never changes, so lines are kept. A commit that is too large is described by
its commitInfo alone. The invariants: no line contains a value of a row or a statistic of a column, and each text and
each list of a line is bounded, because any writer of the table chooses them.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
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
MOST_DECODED_AT_ONCE = 24 * 2**20
"""Commit files of more bytes in all are not decoded for one page. The next request decodes the following ones."""
_FIRST_BYTES = 64 * 2**10
_BATCH_BYTES = 4 * 2**20
_KEPT_LINES = 20_000
_KEPT_CHARS = 64 * 2**20
_OBJECT_CHARS = 2_000
"""About what a line without texts takes."""
_MOST_NAME, _MOST_ID, _MOST_TEXT = 100, 250, 500
_MOST_PARAMETERS, _MOST_METRICS, _MOST_EXPECTATIONS = 40, 80, 100
_MOST_COUNTS = 1_000
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
    is_final: bool = True
    """False if the commit was not decoded because others on the page are large."""

    @property
    def chars(self) -> int:
        """About the memory that it takes."""
        written = 0
        if self.metadata is not None:
            written = len(self.metadata.schema_string or "") + chars_in(self.metadata.configuration)
        return chars_of(self.line) + written


def chars_of(line: VersionLine) -> int:
    """Return about the memory that a line takes."""
    return _OBJECT_CHARS + chars_in(line.parameters) + chars_in(line.metrics) + 100 * len(line.expectations)


def chars_in(texts: Mapping[str, str]) -> int:
    return sum(100 + len(name) + len(text) for name, text in texts.items())


def clipped(text: str, most: int) -> str:
    """Return a text of another program, cut to a bounded length."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


class KeptLines:
    """Lines that were read before, by commit file. Any number of threads may use one."""

    def __init__(self, most: int = _KEPT_LINES, most_chars: int = _KEPT_CHARS) -> None:
        self._most, self._most_chars = most, most_chars
        self._kept: OrderedDict[tuple[str, ListedCommit, bool], ReadCommit] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def read(self, store: Store, commits: Sequence[ListedCommit], properties: TableProperties) -> list[ReadCommit]:
        """Return the content of these commits, in order, without those that a log cleanup has just removed.

        The first of them are decoded, up to MOST_DECODED_AT_ONCE; the others are described by their commitInfo.
        """
        timed = properties.in_commit_timestamps
        keys = {each: (store.root, each, timed) for each in commits}
        with self._lock:
            found = {each: self._kept[key] for each, key in keys.items() if key in self._kept}
        whole, large = _divided([each for each in commits if each not in found])
        for listed, data in _contents(store, whole):
            found[listed] = _read(listed, data, properties)
        for each in large:
            with suppress(FileNotFoundError):
                found[each] = _read_first(each, _first_line(store, each), properties)
        with self._lock:
            for each in commits:
                if each in found and found[each].is_final:
                    self._keep(keys[each], found[each])
            while self._kept and (len(self._kept) > self._most or self._chars > self._most_chars):
                self._chars -= self._kept.popitem(last=False)[1].chars
        return [found[each] for each in commits if each in found]

    def _keep(self, key: tuple[str, ListedCommit, bool], read: ReadCommit) -> None:
        before = self._kept.pop(key, None)
        self._chars += read.chars - (0 if before is None else before.chars)
        self._kept[key] = read


def _divided(commits: Sequence[ListedCommit]) -> tuple[list[ListedCommit], list[ListedCommit]]:
    """Return the commits to decode, and those that are too large, each or together."""
    whole, large, left = list[ListedCommit](), list[ListedCommit](), MOST_DECODED_AT_ONCE
    for each in commits:
        size = each.info.size_bytes
        fits = size <= MOST_DECODED_BYTES and size <= left
        (whole if fits else large).append(each)
        left -= size if fits else 0
    return whole, large


def _contents(store: Store, commits: Sequence[ListedCommit]) -> Iterable[tuple[ListedCommit, bytes]]:
    """Yield the bytes of each commit, a few at a time in memory; nothing for one that is gone."""
    batch, size = list[ListedCommit](), 0
    for each in [*commits, None]:
        if batch and (each is None or size + each.info.size_bytes > _BATCH_BYTES):
            yield from _batch(store, batch)
            batch, size = [], 0
        if each is not None:
            batch.append(each)
            size += each.info.size_bytes


def _batch(store: Store, commits: Sequence[ListedCommit]) -> Iterable[tuple[ListedCommit, bytes]]:
    try:
        yield from zip(commits, list(store.read_all([each.info.path for each in commits])), strict=True)
    except FileNotFoundError:
        for each in commits:
            with suppress(FileNotFoundError):
                yield each, store.read(each.info.path)


def _first_line(store: Store, listed: ListedCommit) -> bytes | None:
    """Return the first line of a large commit file, which has the commitInfo in most logs; None if it is too long."""
    with store.open_input(listed.info.path) as stream:
        first = stream.read(_FIRST_BYTES)
    line, end, _ = first.partition(b"\n")
    return line if end else None


def _read(listed: ListedCommit, data: bytes, properties: TableProperties) -> ReadCommit:
    try:
        commit = decode_commit(listed.version, data, listed.info.path)
    except TxlogError as error:
        return _unreadable(listed, error)
    line = _line(listed, commit.info or {}, commit, properties, None)
    return ReadCommit(line=line, metadata=commit.metadata)


def _read_first(listed: ListedCommit, first: bytes | None, properties: TableProperties) -> ReadCommit:
    """Return what the first line of a large commit shows."""
    is_final = listed.info.size_bytes > MOST_DECODED_BYTES
    size = f"The commit file has {listed.info.size_bytes / 2**20:,.1f} MiB"
    problem = f"{size}; its files are not counted here."
    if not is_final:
        problem = f"{size}, and others on this page are large, too. Reload the page to count its files."
    try:
        info = decode_commit_info(first or b"", listed.info.path)
    except TxlogError as error:
        return _unreadable(listed, error)
    return ReadCommit(line=_line(listed, info, None, properties, problem), is_final=is_final)


def _unreadable(listed: ListedCommit, error: TxlogError) -> ReadCommit:
    problem = clipped(str(error), _MOST_TEXT)
    return ReadCommit(
        line=VersionLine(version=listed.version, moment_ms=listed.file_time_ms, operation="unreadable", problem=problem)
    )


def _line(
    listed: ListedCommit,
    info: Mapping[str, Any],
    commit: Commit | None,
    properties: TableProperties,
    problem: str | None,
) -> VersionLine:
    metrics, tags = _counts(info.get("operationMetrics")), info.get("tags")
    own_ms = in_commit_ms(properties, listed.version, info)
    engine = _text(info.get("engineInfo") or info.get("clientVersion"), _MOST_NAME)
    blind, isolation = info.get("isBlindAppend"), info.get("isolationLevel")
    return VersionLine(
        version=listed.version,
        moment_ms=listed.file_time_ms if own_ms is None else own_ms,
        operation=_text(info.get("operation"), _MOST_NAME) or "no operation named",
        by=author_of(tags if isinstance(tags, Mapping) else {}, engine or None),
        rows=commit_rows(info.get("operation"), metrics),
        files=None if commit is None else _file_change(commit),
        duration_ms=_count(metrics.get("executionTimeMs") or metrics.get("execution_time_ms")),
        read_version=_count(info.get("readVersion")),
        metrics=dict(islice(metrics.items(), _MOST_METRICS)),
        parameters=_parameters(info.get("operationParameters")),
        expectations=_expectations(metrics),
        met=meetings_of(info),
        isolation=clipped(isolation, _MOST_NAME) if isinstance(isolation, str) else None,
        is_blind_append=blind if isinstance(blind, bool) else None,
        changes_metadata=commit is not None and commit.metadata is not None,
        changes_protocol=commit is not None and commit.protocol is not None,
        problem=problem,
    )


def author_of(tags: Mapping[str, Any], engine: str | None = None) -> Author:
    """Return the task that the tags of a commit or of a staged change name."""

    def tag(name: str) -> str | None:
        return _text(tags.get(f"{ANNOTATION_TAG_PREFIX}{name}"), _MOST_ID) or None

    return Author(
        engine=engine,
        dag_id=tag("dag_id"),
        task_id=tag("task_id"),
        run_id=tag("run_id"),
        map_index=tag("map_label") or tag("map_index"),
        try_number=tag("try_number"),
    )


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


def _text(value: object, most: int) -> str:
    """Return a value of any writer as a bounded text; empty for None."""
    if value is None or isinstance(value, str):
        return clipped(value or "", most)
    return clipped(json.dumps(value, ensure_ascii=False, default=str), most)


def _counts(values: object) -> dict[str, str]:
    """Return the whole numbers of a mapping of any writer, as texts by bounded name."""
    if not isinstance(values, Mapping):
        return {}
    given = islice(values.items(), 10 * _MOST_METRICS + 2 * _MOST_EXPECTATIONS)
    return {
        clipped(str(name), 2 * _MOST_NAME): str(count) for name, value in given if (count := _count(value)) is not None
    }


def _parameters(values: object) -> dict[str, str]:
    if not isinstance(values, Mapping):
        return {}
    given = islice(values.items(), _MOST_PARAMETERS)
    return {clipped(str(name), _MOST_NAME): _parameter(str(name), value) for name, value in given if value is not None}


def _parameter(name: str, value: object) -> str:
    text = _text(value, _MOST_TEXT)
    if text in ("", "[]", "{}", "null"):
        return text
    return text if _PLAIN.fullmatch(name) else HIDDEN_VALUE


def _expectations(metrics: Mapping[str, str]) -> dict[str, dict[str, int]]:
    found = expectation_counts({name: int(text) for name, text in metrics.items()})
    return dict(islice(found.items(), _MOST_EXPECTATIONS))


def _count(value: object) -> int | None:
    """Return a number that any writer may have written as a text; None if it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 10**18 else None
    text = value if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
