"""Commits that a writer hands on to the next writers of its machine, which then need no request to read them.

The file of the turn (`commit.writers`) holds the last ones, at most `_MOST_COMMITS` and `_MOST_BYTES`. Only this user
can open its folder. A writer that ends while no other writer waits deletes them.

The next writer rebases over such a commit before it has seen it in the log. The invariant: it uses only bytes that the
store holds.

* A writer hands a commit on only after the store has answered its put with "created". The reader trusts it, because
  both are processes of one user, and no commit is ever rewritten. A commit whose put was not answered, or was read
  back, is not handed on. If a writer is killed after its put, the next put finds the name taken.
* `after` is the digest of the previous commit. A reader starts at a file of its own listing and accepts a commit only
  if its `after` is the digest of the last one. Another table at the same URI has other digests, because each commit
  contains a unique id. `mark` keeps servers and credentials apart, which may have different buckets of one name.
* A reader accepts only commits that were handed on after it had sent its listing. The listing must show all others. If
  it does not, the table was dropped, and a dead writer has left the file.
* The digest of the bytes detects a file that was cut off, or read while it was written.

If any of this fails, the put finds its name taken, and the writer lists the log: put-if-absent alone decides. The next
listing verifies each commit that was used.
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
    """The bytes of a commit, with what links it to the previous one."""

    version: int
    after: str
    """What `digest_of` returns for the commit before it; on S3 that is the etag of its file, unless KMS encrypts it."""
    digest: str
    data: bytes


def handed_on(version: int, after: str | None, data: bytes) -> HandedOn | None:
    """Return the commit to hand on; None if it is large, or if the digest of the previous commit is unknown."""
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
    """Return the commit after the earlier ones that directly precede it, as many as the limits allow."""
    kept, size = [commit], len(commit.data)
    for each in reversed(earlier):
        size += len(each.data)
        is_next = (each.version + 1, each.digest) == (kept[-1].version, kept[-1].after)
        if not is_next or size > _MOST_BYTES or len(kept) == _MOST_COMMITS:
            break
        kept.append(each)
    return kept[::-1]
