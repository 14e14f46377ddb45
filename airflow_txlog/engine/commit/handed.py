"""Commits that a writer hands on to the next writers of its machine, so that they need not request them.

They are in the file of the turn (`commit.writers`), below a folder that only this user can open: the last ones, at most
`_MOST_COMMITS` and `_MOST_BYTES`. A writer that ends while no other waits deletes them.

A writer commits behind such a commit without having seen it in the log, so what it trusts must be what the store holds:

* Only a commit whose put the store has answered with "created" is handed on. The word of its writer is proof enough: it
  is a process of this user, and no commit is ever rewritten. A put without an answer, or one that had to be read back,
  is not handed on. So a writer that was killed between its put and its word leaves no trace here, and the next put
  finds the name taken.
* `after` is the digest of the commit before it. A reader follows only from the file that its own listing has shown,
  link by link. Another table at the same place, or another history of it, has other commits, for each has an id of
  its own. `mark` differs between servers, and between callers, who may see different buckets of one name.
* A reader follows only what was not here yet before it sent its listing. Everything else must be in that listing: else
  the table has been dropped, or a commit taken out of it, and the file is what a dead writer has left.
* The digest of the bytes shows a file that was cut off, or read while it was written.

At worst a put finds its name taken: put-if-absent alone decides, and the log is listed, as without this module. The
next listing compares each commit that was followed with its file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_txlog.engine.log.tail import digest_of

_MOST_COMMITS = 32
_MOST_BYTES = 1024 * 1024
# mark, version, digests of the commit before it and of its own bytes, their number
_HEAD = struct.Struct(">32sQ32s32sI")


@dataclass(frozen=True, slots=True)
class HandedOn:
    """A commit as its writer put it."""

    version: int
    after: str
    """What `digest_of` returns for the commit before it; on S3 that is the etag of its file, unless KMS encrypts it."""
    digest: str
    data: bytes


def handed_on(version: int, after: str | None, data: bytes) -> HandedOn | None:
    """Return the commit to hand on, None for a large one, or one after a file without such a digest."""
    if after is None or len(after) != 32 or not after.isascii() or len(data) > _MOST_BYTES // 4:
        return None
    return HandedOn(version, after, digest_of(data), data)


def read_handed(file: int, start: int, mark: bytes) -> list[HandedOn]:
    """Return the commits of this mark in the file from `start` on, up to the first one that is damaged."""
    held, found, at = os.pread(file, 2 * _MOST_BYTES, start), [], 0
    while at + _HEAD.size <= len(held):
        whose, version, after, digest, size = _HEAD.unpack_from(held, at)
        at += _HEAD.size + size
        data = held[at - size : at]
        if digest_of(data).encode() != digest:
            break
        if whose == mark:
            found.append(HandedOn(version, after.decode(errors="replace"), digest.decode(), data))
    return found


def write_handed(file: int, start: int, mark: bytes, commits: Iterable[HandedOn]) -> None:
    """Replace the commits in the file."""
    written = bytearray()
    for each in commits:
        written += _HEAD.pack(mark, each.version, each.after.encode(), each.digest.encode(), len(each.data))
        written += each.data
    os.ftruncate(file, start)
    os.pwrite(file, written, start)


def kept_before(commit: HandedOn, earlier: Sequence[HandedOn]) -> list[HandedOn]:
    """Return the commit behind those of the earlier ones that lead up to it, as many as may be kept."""
    kept, size = [commit], len(commit.data)
    for each in reversed(earlier):
        size += len(each.data)
        is_next = (each.version + 1, each.digest) == (kept[-1].version, kept[-1].after)
        if not is_next or size > _MOST_BYTES or len(kept) == _MOST_COMMITS:
            break
        kept.append(each)
    return kept[::-1]
