"""Folders named `column=value`: the values of partition columns in a file's path, and the folder in which they start.

The invariant: files count as parts of one table only if Spark reads their folders so.
Source: Spark, PartitioningUtils.parsePartitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from airflow_txlog.datafiles.partitioning import NULL_DIRECTORY
from airflow_txlog.errors import InvalidJobSpec

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")

Values = tuple[tuple[str, str | None], ...]
"""Names and values of the partition columns of one folder, from the top down."""


@lru_cache(1_024)
def values_in(folder: str) -> Values:
    """Return the partition values in a folder's path below the base: those of the last run of `name=value` folders."""
    found: list[tuple[str, str | None]] = []
    for part in reversed(folder.split("/")):
        name, equals, value = part.partition("=")
        if equals and name and value:
            found.append((_unescaped(name), None if value == NULL_DIRECTORY else _unescaped(value)))
        elif found:
            break
    return tuple(reversed(found))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


@lru_cache(1_024)
def above_values(folder: str, count: int) -> str:
    """Return the part of a folder's path above its `count` values; the folder itself if there are none."""
    parts = folder.split("/")
    end = len(parts)
    while count and not all(parts[end - 1].partition("=")):
        end -= 1
    return "/".join(parts[: end - count] if count else parts)


def check_in_one_place(places: Mapping[str, str], argument: str) -> None:
    """Raise InvalidJobSpec (`argument`) for partition folders in different folders, as Spark does.

    `places`: the folder above the partition folders of each file, by the file's path.
    """
    first: dict[str, str] = {}
    for path, place in places.items():
        first.setdefault(place.lower(), path)
    if len(first) > 1:
        one, other = sorted(first.values())[:2]
        raise InvalidJobSpec(
            f"{argument}: the files {one} and {other} have their partition folders in different folders, which Spark "
            "does not read together: one may hold copies of the other's rows. Name one of the folders, or set the "
            "option recursiveFileLookup, which reads no columns from folders. Nothing was read.",
            argument=argument,
        )
