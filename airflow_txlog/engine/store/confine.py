"""The rule that a path stays under the root of its store."""

from __future__ import annotations


def inner_parts(path: str) -> list[str]:
    """The segments of a path relative to the root.

    Raises ValueError for a path that is empty, absolute, or holds a segment that a file system would not read as a
    plain name: such a path may leave the root, or name another file than it seems to.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"{path!r} is no path inside the table: it is refused, nothing was touched")
    return parts
