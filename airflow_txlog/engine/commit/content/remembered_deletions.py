"""The files in which a table remembers deletions, and events, of the changes that were applied to it.

They are Parquet files in a hidden folder of the table, with a folder for each kind of keys. A manifest lists those that
count, and an application transaction of the table names the manifest by its number. The invariant: a manifest lists
files that exist, and a commit that takes the place of the latest one names a manifest of another number.
Source: docs/decisions/tombstones.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from airflow_txlog.clock import Clock
from airflow_txlog.datafiles.tasks.change_rows import KEY_PREFIX, key_column

FOLDER = "_txlog_tombstones"
VALUE_PREFIX = "_txlog_value_"
"""The start of the names of the other values of an event, which end with the physical name of the column."""
# The number of a manifest is the time at which it was made, and so many random bits.
NUMBER_BITS = 20
_NAMES = b"txlog.keys"
_FILE = re.compile(r"[\w.-]+\.parquet", re.ASCII)
_FORMAT = 1


class TombstoneFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of tombstones: its name in the folder, and when they were recorded at the latest."""

    name: str
    size_bytes: int
    num_records: int
    recorded_ms: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one folder that count.

    `horizon`: the text of the greatest sequence in files that no longer count; None if there were none.
    """

    files: tuple[TombstoneFile, ...]
    # As bytes, it is no text in the file that could be taken for a subject's.
    horizon: bytes | None = None
    format: int = _FORMAT

    @property
    def is_known(self) -> bool:
        """Whether this release knows the form of the manifest and of its names."""
        return self.format == _FORMAT and all(_FILE.fullmatch(file.name) for file in self.files)


def decoded(data: bytes) -> Manifest:
    """Return the manifest. Raises msgspec.MsgspecError for other content."""
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (UnicodeError, RecursionError) as error:
        raise msgspec.DecodeError(type(error).__name__) from error


def encoded(manifest: Manifest) -> bytes:
    """Return the text of the manifest."""
    return msgspec.json.encode(manifest)


def new_number(clock: Clock) -> int:
    """Return the number of a new manifest."""
    return (clock.now_ms() << NUMBER_BITS) + int(clock.unique_id().replace("-", "")[:5], 16)


def manifest_path(folder: str, number: int) -> str:
    """Return the path of a manifest."""
    return f"{folder}/{number:020d}.json"


def names_of_keys(names: Sequence[str]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the entry of a file's footer with the physical names of its keys, in order."""
    return ((_NAMES, json.dumps(list(names)).encode()),)


def paths_of(columns: Sequence[str], key_values: Mapping[bytes, bytes], paths: Collection[str]) -> Iterator[str]:
    """Yield the paths in a file of tombstones of the column that has these paths in data files.

    `columns` and `key_values` are the file's. Each key of a file without their names, by an earlier release, counts.
    """
    names = _keys_named_in(key_values)
    own = {path.lower() for path in paths}
    if names is None:
        yield from (name for name in columns if name.startswith(KEY_PREFIX))
    else:
        yield from (key_column(number) for number, name in enumerate(names) if name.lower() in own)
    # A member of a struct has its logical name there.
    tops = {path.partition(".")[0] for path in paths}
    members = {path.partition(".")[2] for path in paths}
    yield from (f"{VALUE_PREFIX}{top}{'.' if member else ''}{member}" for top in tops for member in members)


def _keys_named_in(key_values: Mapping[bytes, bytes]) -> list[str] | None:
    try:
        names = json.loads(key_values[_NAMES])
    except (KeyError, ValueError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
