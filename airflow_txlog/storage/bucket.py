"""What a store of objects asks of a cloud: requests to one bucket, and what came of each.

A module for each cloud has a `Bucket`. It decides what an answer means, by its HTTP status, and never lets an exception
of its client out: those differ between versions, and many are no OSError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class NameTaken(Exception):
    """The condition of a put is not met: something bears the name, which may be what an earlier try has put."""


class NotAnswered(OSError):
    """The store was not reached, did not answer, or was busy: the same request may be answered later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """What a store says of an object. `etag` changes with the content; times have whole seconds."""

    key: str
    size_bytes: int
    modified_ms: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A part of an object, and of the whole object its size and its etag."""

    data: bytes
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One page of a listing: objects, and the prefixes below which there are more, each ending in "/"."""

    objects: Sequence[FoundObject]
    prefixes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """A file that was begun in parts and not finished. `upload` is what `Bucket.abort` takes."""

    upload: Any
    started_ms: int


class Bucket(Protocol):
    """Requests to one bucket, one a call, from any thread, also after a fork.

    Every method raises PermissionError, UnsupportedStore where there is no such bucket, NotAnswered, and OSError with
    an errno for any other answer; never an exception of the client's own.
    """

    uri: str
    """`s3://bucket`."""
    part_bytes: int
    """How large the parts of a large file are."""
    deletes_at_once: int
    """How many objects one request can delete."""

    def get(
        self, key: str, start: int = 0, end: int | None = None, *, check: Callable[[int], None] | None = None
    ) -> Content:
        """Bytes `start` to `end`; `check` is called with the object's size first. Raises FileNotFoundError."""

    def get_tail(self, key: str, length: int) -> Content:
        """The last bytes, all where the object has fewer. Raises FileNotFoundError."""

    def head(self, key: str) -> FoundObject | None:
        """None where there is no such object."""

    def list_page(self, prefix: str, *, start_from: str | None, token: Any, is_deep: bool) -> tuple[Listed, Any]:
        """One page of the objects whose key begins with `prefix`, by key, and the next page's token, None at the end.

        `start_from`: a key; those before it may be left out. Not `is_deep`: what has another "/" after the prefix is
        one of the page's prefixes.
        """

    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        """One request. Raises NameTaken where `if_absent` and the name is taken."""

    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        """Delete up to `deletes_at_once` objects; those that are gone count as deleted. The failures by key."""

    def start_upload(self, key: str) -> Any:
        """Begin a file of several parts, which no reader sees before it is completed."""

    def put_part(self, upload: Any, number: int, data: bytes) -> Any:
        """Part `number`, from 1 on. What comes back is handed to `complete`."""

    def complete(self, upload: Any, parts: Sequence[Any], *, if_absent: bool) -> None:
        """Make the object of its parts. Raises NameTaken as far as the store knows the condition here."""

    def abort(self, upload: Any) -> None:
        """Drop the parts. One that is completed or dropped already is no error."""

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """The uploads under a prefix that have not ended; none where the store ends them by itself."""

    def now_ms(self, prefix: str) -> int:
        """The server's clock, in whole seconds, as the times of its objects."""

    def check_conditions(self, folder: str) -> None:
        """Raises UnsupportedStore where the server is not known to keep the condition of a put, and does not.

        It may put and delete an object in `folder`, a prefix that ends in "/". Nothing happens from the second call on.
        """
