"""The cubes of a clustered table: files that one clustering has written together, and those that the next one rewrites.

The rows of a cube are sorted along one curve, so that its files have narrow bounds; the bounds of two cubes overlap.
Tags of the add actions name the cube and its columns. A clustering writes the files that are in no cube as a new one,
with the cubes that are not much larger: so a table of many appends has few cubes, and each row is rewritten only a few
times. The invariants: a file is in one bin at most, and clustering again at once finds nothing to do.
Source: delta-spark, ClusteringStrategy, ZCube and ZCubeInfo, for the tags and for the size from which a cube stays as
it is; P. O'Neil et al., "The Log-Structured Merge-Tree", 1996, for the growth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.tasks.zorder import ColumnPath
from airflow_txlog.engine.table.schema.types import path_text
from airflow_txlog.jobs.operations.optimize.bins import Bin, DescribedFile, bin_of, described, worn

# delta-spark never rewrites a cube of this size (spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize).
WHOLE_CUBE_BYTES = 100 * 1024**3
# Nothing larger is sorted at once.
MOST_BYTES = 150 * 1024**3
# A cube is rewritten with new rows unless it is at least this many times their size.
GROWTH = 4
_PROVIDER = "liquid"
_ID, _COLUMNS, _CURVE = "ZCUBE_ID", "ZCUBE_ZORDER_BY", "ZCUBE_ZORDER_CURVE"


def cube_fields(columns: Sequence[ColumnPath], cube_id: str) -> dict[str, Any]:
    """Return the fields of an add action that name its cube, with the columns' names as delta-spark writes them."""
    names = json.dumps([path_text(path) for path in columns], ensure_ascii=False)
    return {"clustering_provider": _PROVIDER, "tags": {_ID: cube_id, _COLUMNS: names, _CURVE: "zorder"}}


def kept_fields(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that keep a rewritten file in the cube of its source, a row of a table `FILES`."""
    if file["clustering_provider"] is None:
        return {}
    tags = {name: text for name, text in file["tags"] or () if name in (_ID, _COLUMNS, _CURVE)}
    return {"clustering_provider": file["clustering_provider"], "tags": tags or None}


def cluster_bins(
    files: pa.Table, columns: Sequence[ColumnPath], *, full: bool = False, most_bytes: int | None = None
) -> list[Bin]:
    """Return the bins of which each becomes a cube: files that are in none or worn, and the cubes that grow by them.

    Files that are clustered by other columns, or by another provider, stay as they are. With `full` they are clustered
    too, and all cubes below WHOLE_CUBE_BYTES become one. A bin holds `most_bytes` at most, or one file.
    """
    most_bytes = MOST_BYTES if most_bytes is None else min(MOST_BYTES, most_bytes)
    is_worn = worn(files)
    ids, is_foreign = _cube_ids(files, columns)
    ids = pc.if_else(is_worn, None, ids)
    is_loose = pc.or_(is_worn, pc.and_(pc.is_null(ids), pc.or_(full, pc.invert(is_foreign))))
    sizes = (
        pa.table({"id": ids, "size": files.column("size")})
        .filter(pc.is_valid(ids))
        .group_by("id")
        .aggregate([("size", "sum")])
    )
    sizes = sizes.filter(pc.less(sizes.column("size_sum"), WHOLE_CUBE_BYTES)).sort_by("size_sum")
    is_taken = pc.or_(is_loose, pc.is_in(ids, value_set=sizes.column("id").combine_chunks()))
    files, taken_ids = files.filter(is_taken), ids.filter(is_taken).to_pylist()
    loose: list[DescribedFile] = []
    cubes: dict[str, list[DescribedFile]] = {name: [] for name in sizes.column("id").to_pylist()}
    for file in described(files):
        cube = taken_ids[file.row]
        (loose if cube is None else cubes[cube]).append(file)
    return [bin_of(files, group) for group in _groups(loose, list(cubes.values()), most_bytes, joins_all=full)]


def _cube_ids(files: pa.Table, columns: Sequence[ColumnPath]) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return for each file its cube of these columns, null for none; and whether it is clustered in another way."""
    tags, providers = files.column("tags"), files.column("clustering_provider")
    ids, names = (pc.map_lookup(tags, pa.scalar(name), "first") for name in (_ID, _COLUMNS))
    wanted = [path_text(path) for path in columns]
    same = [text for text in pc.unique(names).to_pylist() if text is not None and _is_list(text, wanted)]
    is_cube = pc.and_(pc.is_valid(ids), pc.is_valid(names))
    is_same = pc.is_in(names, value_set=pa.array(same, pa.string()))
    is_other = pc.and_(pc.is_valid(providers), pc.not_equal(providers, _PROVIDER))
    is_foreign = pc.or_(pc.fill_null(is_other, False), pc.and_(is_cube, pc.invert(is_same)))
    return pc.if_else(pc.and_(is_cube, pc.invert(is_foreign)), ids, None), is_foreign


def _is_list(text: str, wanted: Sequence[str]) -> bool:
    try:
        return bool(json.loads(text) == wanted)
    except (ValueError, RecursionError):
        return False


def _groups(
    loose: Sequence[DescribedFile], cubes: Sequence[list[DescribedFile]], most_bytes: int, *, joins_all: bool
) -> list[list[DescribedFile]]:
    """Return the files of each bin: the loose ones, then the cubes, from the smallest on. One cube alone stays.

    Without new files cubes stay as they are, whatever their sizes: a cube may be larger than the files that it is made
    of, and the next run would find that it can grow again.
    """
    if not loose and not joins_all:
        return []
    parts = [*([file] for file in loose), *cubes]
    groups: list[list[int]] = [[]]
    total = 0
    for number, part in enumerate(parts):
        size, may_stay = sum(file.size_bytes for file in part), number >= len(loose) and not joins_all
        is_full = total + size > most_bytes
        if groups[-1] and may_stay and (is_full or size >= GROWTH * total):
            break
        if groups[-1] and is_full:
            groups.append([])
            total = 0
        groups[-1].append(number)
        total += size
    changed = (group for group in groups if len(group) > 1 or (group and group[0] < len(loose)))
    return [[file for number in group for file in parts[number]] for group in changed]
