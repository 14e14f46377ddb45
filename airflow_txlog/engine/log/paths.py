"""The paths in add and remove actions: from the wire to the key that identifies a file; and which files are visible.

On the wire a path is a URI reference: relative to the table and percent-encoded, or absolute. Two actions mean the same
file if they share the *canonical path*, which is also the store's name for it. It is decoded exactly once; a second
decoding would turn the file `50%25.parquet` into another one.

    part-0.parquet            -> part-0.parquet
    day=2024%20a/f.parquet    -> day=2024 a/f.parquet
    t=10%253A00/f.parquet     -> t=10%3A00/f.parquet      decoded once; what is left is Hive's own escape
    /lake/t/f, file:/lake/t/f, file:///lake/t/f           all `f` in a table at file:///lake/t
    /other/f, file:/other/f, file:///other/f              all file:///other/f

`+` is a plus sign: this is not form encoding. Only text is processed: no symlink is followed.
Source: protocol, "Add File and Remove File"; soundness C7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.partitioning import decode_add_path, encode_add_path, hive_directory
from airflow_txlog.locations import LOCAL, is_inside, split, store_kind

# A wire path without a match is its own canonical form. RE2 and Python read the pattern alike.
_NEEDS_WORK = r"%|:|//|^/|/$|^$|(^|/)\.{1,2}(/|$)"
_needs_work = re.compile(_NEEDS_WORK)
# Each begins with one byte, for which Python looks fastest, and needs no copy of the bytes.
_ODD_BYTES = tuple(map(re.compile, (b"%", b":", b"/[/.]")))
# So many paths take less time one by one than Arrow takes for its calls.
_FEW = 4


def canonical_path(wire_path: str, root: str) -> str:
    """Return the key of a file: decoded once; relative if inside `root`, a decoded URI without a slash at its end."""
    if _needs_work.search(wire_path) is None:
        return wire_path
    scheme, authority, path = _split(wire_path)
    path = unquote(path)
    if scheme is None and not path.startswith("/"):
        inside = _normalise(path)
        if inside != ".." and not inside.startswith("../"):
            return inside
        # The path leaves the table (a shallow clone next to its source), so treat it like one with a scheme.
        root_scheme, root_authority, root_path = _split(root)
        return _relative_to(_join(root_scheme, root_authority, _normalise(f"{root_path}/{path}")), root)
    # Without a scheme, an absolute path is a local one: `/x/y` is `file:/x/y` is `file:///x/y`.
    absolute = _join(scheme or "file", authority, _normalise(path))
    return _relative_to(absolute, root)


def canonical_paths(wire_paths: pa.Array | pa.ChunkedArray, root: str) -> pa.Array:
    """Return `canonical_path` of every element as one string array; null stays null. Fast if few need work."""
    if not isinstance(wire_paths, pa.ChunkedArray):
        return _canonical_chunk(wire_paths, root)
    if wire_paths.num_chunks == 1:
        return _canonical_chunk(wire_paths.chunk(0), root)
    return pa.chunked_array([_canonical_chunk(each, root) for each in wire_paths.chunks], pa.string()).combine_chunks()


def _canonical_chunk(paths: pa.StringArray, root: str) -> pa.Array:
    if len(paths) <= _FEW:
        found = [None if path is None else canonical_path(path, root) for path in paths.to_pylist()]
        return pa.array(found, pa.string())
    if _all_plain(paths):
        return paths
    work = pc.fill_null(pc.match_substring_regex(paths, _NEEDS_WORK), False)
    if not work.true_count:
        return paths
    changed = [canonical_path(path, root) for path in paths.filter(work).to_pylist()]
    return pc.replace_with_mask(paths, work, pa.array(changed, pa.string()))


def _all_plain(paths: pa.StringArray) -> bool:
    """Return whether certainly none needs work, by the bytes of all paths together: ten times as fast."""
    text = paths.buffers()[2]
    if text is None or not len(paths):
        return False
    # The bytes around a slice are included: they can only make this more careful.
    if any(each.search(text) for each in _ODD_BYTES):
        return False
    ends = (pc.starts_with(paths, "/"), pc.starts_with(paths, "."), pc.ends_with(paths, "/"))
    if any(found.true_count for found in ends):
        return False
    return not pc.equal(pc.binary_length(paths), 0).true_count


def absolute_path(canonical: str, root: str) -> str:
    """Return the wire path of a file of the table at `root` for other tables: an absolute URI, encoded once.

    day=2024 a/f.parquet of s3a://lake/t  -> s3a://lake/t/day=2024%20a/f.parquet
    f.parquet of /lake/t                  -> file:/lake/t/f.parquet, as Hadoop spells it
    """
    scheme, authority, path = _split(canonical) if not is_inside(canonical) else split(f"{root}/{canonical}")
    encoded = encode_add_path(path)
    return f"{LOCAL}:{encoded}" if scheme in (None, LOCAL) else f"{scheme}://{authority}{encoded}"


def misspelled(wire_paths: pa.ChunkedArray) -> pa.BooleanArray:
    """Return which relative paths `encode_add_path` spells otherwise: delta-spark's VACUUM would delete their files."""
    found = [
        path is not None and "%" in path and is_inside(path) and encode_add_path(decode_add_path(path)) != path
        for path in wire_paths.to_pylist()
    ]
    return pa.array(found, pa.bool_())


def _split(uri: str) -> tuple[str | None, str, str]:
    """Return scheme, authority and path; the path of an absolute URI begins with "/"."""
    scheme, authority, path = split(uri)
    if scheme is None:
        return None, "", path
    if scheme == LOCAL:
        authority = ""  # RFC 8089: an empty authority and "localhost" are this machine; Delta knows no other.
    return store_kind(uri), authority, path or "/"


def _join(scheme: str | None, authority: str, path: str) -> str:
    return f"{scheme}://{authority}/{path.removeprefix('/')}"


def _normalise(path: str) -> str:
    """Drop empty and "." segments; ".." removes the segment before it, and stays without one."""
    is_absolute = path.startswith("/")
    parts: list[str] = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts and parts[-1] != "..":
            parts.pop()
        elif not is_absolute:
            parts.append(part)
    return ("/" if is_absolute else "") + "/".join(parts)


def _relative_to(absolute: str, root: str) -> str:
    root_scheme, root_authority, root_path = _split(root)
    prefix = _join(root_scheme, root_authority, _normalise(root_path))
    return absolute.removeprefix(prefix if prefix.endswith("/") else prefix + "/")


class Visibility:
    """Which paths under the root belong to the table; hidden are files that other tools keep there, and the log.

    Visible are `_change_data`, `_delta_index`, and a directory of a partition column whose name begins with "_".
    """

    def __init__(self, partition_columns: Iterable[str], *, has_iceberg: bool = False) -> None:
        """`has_iceberg`: other engines keep Iceberg's metadata of the table in the folder `metadata`."""
        # The directory of a partition has the column's name as it is, or as Hive escapes it.
        columns = list(partition_columns)
        escaped = (hive_directory([column], ["x"]).removesuffix("x") for column in columns)
        self._has_iceberg = has_iceberg
        self._shown = ("_change_data", "_delta_index", *(f"{column}=" for column in columns), *escaped)

    def is_visible(self, path: str) -> bool:
        if self._has_iceberg and path.partition("/")[0] == "metadata":
            return False
        # Nearly every path, and there may be millions.
        if "/_" not in path and "/." not in path and not path.startswith(("_", ".")):
            return True
        return not any(part.startswith(("_", ".")) and not part.startswith(self._shown) for part in path.split("/"))
