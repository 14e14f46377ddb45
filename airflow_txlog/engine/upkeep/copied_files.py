"""Copies of a table's files for a deep clone: their names, which of them exist, and the copying.

A copy is named after the file that it copies (its table's id, path, size and time), so a later clone of a newer version
finds in the log which files it has, and copies the others alone. The other part of the name is the work's: a task that
was killed finds the copies of its earlier tries, and no other process can place a file for it to find. The invariants:
a copy appears whole under its name, and a file that is named by a commit is never written again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice

import msgspec

from airflow_txlog.datafiles.partitioning import encode_add_path
from airflow_txlog.datafiles.staged_files import UUID
from airflow_txlog.engine.commit.content.deletion_vectors import place_of_uuid
from airflow_txlog.engine.log.actions import Add, DeletionVector
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.many_files import look_up
from airflow_txlog.engine.upkeep.clone import Cloneable, as_new
from airflow_txlog.engine.upkeep.restore import files_missing
from airflow_txlog.locations import is_inside
from airflow_txlog.storage.base import FileInfo, Store, is_about_name

_AT_ONCE = 8
_LOOKED_UP_AT_ONCE = 16

_COPY = re.compile(rf"part-[0-9a-f]{{16}}-({UUID})\.c000\.parquet")

Sign = Callable[[str], str]
"""Returns hexadecimal digits, at least 16, that only the tries of one work can compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A file to copy: its canonical path in the source, its path in the clone, and its size, None if unknown."""

    source_path: str
    path: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The files of a deep clone, and the copies that they need; a file of vectors is copied once."""

    adds: list[Add]
    needed: list[Copy]


def plan_copies(source: Cloneable, live: Sequence[Add], root: str, sign: Sign) -> Copies:
    """Return the files of a deep clone at `root`, which has the files `live`; those that are copies are not needed."""
    paths = {found[1]: path for path in _paths(live, root) if (found := _COPY.fullmatch(path.rpartition("/")[2]))}
    places = dict(_vector_places(live))
    needed: dict[str, Copy] = {}

    def of_file(add: Add) -> str:
        canonical = canonical_path(add.path, source.uri)
        digest = _digest(source, canonical, add.size, add.modification_time)
        identity = _as_uuid(digest)
        if identity not in paths:
            # Folders of partition values are for people; a file from elsewhere has none.
            folder = canonical.rpartition("/")[0] if is_inside(canonical) else ""
            paths[identity] = f"{folder}/" * bool(folder) + f"part-{sign(digest)[:16]}-{identity}.c000.parquet"
            path = paths[identity]
            needed[path] = Copy(source_path=canonical, path=path, size_bytes=add.size)
        return paths[identity]

    def of_vector(vector: DeletionVector) -> DeletionVector:
        canonical = vector_file(vector.storage_type, vector.path_or_inline_dv, source.uri)
        if canonical is None:
            return vector
        digest = _digest(source, canonical)
        identity = digest[:16]
        if identity not in places:
            places[identity] = place_of_uuid(_as_uuid(identity + sign(digest)[:16]))
            path = vector_file("u", places[identity], root)
            assert path is not None
            needed[path] = Copy(source_path=canonical, path=path, size_bytes=None)
        return msgspec.structs.replace(vector, storage_type="u", path_or_inline_dv=places[identity])

    adds = [
        msgspec.structs.replace(
            as_new(add),
            path=encode_add_path(of_file(add)),
            deletion_vector=None if add.deletion_vector is None else of_vector(add.deletion_vector),
        )
        for add in table_to_adds(source.files, data_change=True)
    ]
    return Copies(adds=adds, needed=list(needed.values()))


def _paths(live: Sequence[Add], root: str) -> Iterator[str]:
    return filter(is_inside, (canonical_path(add.path, root) for add in live))


def _vector_places(live: Sequence[Add]) -> Iterator[tuple[str, str]]:
    """Yield the identity in the name of each live file of vectors, and how descriptors name the file."""
    for add in live:
        vector = add.deletion_vector
        if vector is not None and vector.storage_type == "u":
            name = vector_file("u", vector.path_or_inline_dv, "") or ""
            yield re.sub(r".*deletion_vector_|-|\.bin", "", name)[:16], vector.path_or_inline_dv


def _digest(source: Cloneable, *facts: object) -> str:
    text = "\0".join(map(str, (source.metadata.id, *facts)))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _as_uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


def copy_files(
    source: Store,
    target: Store,
    copies: Sequence[Copy],
    version: int,
    *,
    found_since_ms: int = 0,
    on_made: Callable[[FileInfo], object] = lambda info: None,
) -> list[FileInfo]:
    """Copy the files, several at a time, and return the copies. Those that are there already are not copied again.

    `version` of the source is for errors. `found_since_ms`: a copy that is older, by the target's clock, is made anew.
    `on_made` is called in this thread for each copy. Raises FilesMissing if files of the source are gone or have
    another size.
    """
    there = look_up(target, [copy.path for copy in copies], _LOOKED_UP_AT_ONCE)
    made = [info for copy, info in zip(copies, there, strict=True) if _is_made(copy, info, found_since_ms) and info]
    for found in made:
        on_made(found)
    missing = (copy for copy, info in zip(copies, there, strict=True) if not _is_made(copy, info, found_since_ms))
    pending: dict[Future[FileInfo | None], Copy] = {}
    gone: list[str] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="txlog-copy") as pool:
        try:
            while not gone:
                # Two for each thread: none waits for this one, and little is under way when something ends it.
                for copy in islice(missing, 2 * _AT_ONCE - len(pending)):
                    pending[pool.submit(_copied, source, target, copy)] = copy
                if not pending:
                    return made
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    copy, info = pending.pop(future), future.result()
                    if info is None:
                        gone.append(copy.source_path)
                    else:
                        made.append(info)
                        on_made(info)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    raise files_missing(source.root, version, sorted(gone), "cloned")


def _is_made(copy: Copy, found: FileInfo | None, since_ms: int) -> bool:
    return found is not None and _has_size(copy, found) and found.modified_ms >= since_ms


def _has_size(copy: Copy, found: FileInfo) -> bool:
    return copy.size_bytes in (None, found.size_bytes)


def _copied(source: Store, target: Store, copy: Copy) -> FileInfo | None:
    """Copy one file and return the copy; None if the source has no such file, or one of another size."""
    try:
        target.copy_in(source, copy.source_path, copy.path)
    except (OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError) and not is_about_name(error):
            raise
        return None
    found = target.stat(copy.path)
    if found is None or not _has_size(copy, found):
        target.delete(copy.path)
        return None
    return found
