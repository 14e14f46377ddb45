"""Clustered tables: every added file has the bounds of the clustering columns.

The domain `delta.clustering` lists the columns by physical name. We append to clustered tables and rewrite their files,
but cluster none: our files name no clusteringProvider, and the engine that clusters picks them up. The invariant: a
table whose properties leave out statistics of a clustering column is refused before anything is staged, and a winner
that changes the columns is a conflict if our files lack their bounds.
Source: protocol, "Clustered Table".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.log.actions import Add, DomainMetadata
from airflow_txlog.engine.table.schema.column_paths import Path, is_below
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CorruptTable, InvalidCommit, UnsupportedFeature

CLUSTERING_DOMAIN = "delta.clustering"


class _Clustering(msgspec.Struct, rename="camel"):
    clustering_columns: list[list[str]]


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int
    null_count: dict[str, object] = {}


def clustering_columns(domains: Iterable[DomainMetadata], table: str) -> tuple[Path, ...]:
    """Return the clustering columns as paths of physical names; none without clustering. Raises CorruptTable."""
    for domain in domains:
        if domain.domain == CLUSTERING_DOMAIN:
            if domain.removed:
                return ()
            try:
                found = msgspec.json.decode(domain.configuration, type=_Clustering).clustering_columns
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise CorruptTable(
                    f"{table}: the domain {CLUSTERING_DOMAIN} does not name the clustering columns: {error}.",
                    table=table,
                ) from error
            return tuple(tuple(path) for path in found)
    return ()


def check_clustering(snapshot: Snapshot) -> None:
    """Raise UnsupportedFeature if the table's own properties would leave out a statistic that clustering needs."""
    wanted = clustering_columns(snapshot.state.domains.values(), snapshot.uri)
    check_statistics(wanted, snapshot.delta_schema, snapshot.table_properties)


def check_statistics(wanted: Iterable[Path], schema: StructType, properties: TableProperties) -> None:
    """Raise UnsupportedFeature if the properties would leave out statistics of these clustering columns."""
    missing = [".".join(path) for path in without_statistics(schema, properties, wanted)]
    if missing:
        raise UnsupportedFeature(
            f"{properties.table} is clustered by {missing}, and its properties keep statistics of that column from "
            "being written: files of ours would break the table's rule. Nothing was staged. Name the column in "
            "delta.dataSkippingStatsColumns, or raise delta.dataSkippingNumIndexedCols.",
            table=properties.table,
            feature="clustering",
            needed_to="write",
        )


def without_statistics(schema: StructType, properties: TableProperties, columns: Iterable[Path]) -> list[Path]:
    """Return those of the paths (physical names, in any case) whose bounds the table's properties leave out."""
    wanted_paths = list(columns)
    if not wanted_paths:
        return []
    leaves = list(_leaves(schema, (), ()))
    named = properties.stats_columns
    if named is not None:
        indexed = {_lower(physical) for logical, physical in leaves if any(is_below(logical, path) for path in named)}
    else:
        count = properties.num_indexed_columns
        indexed = {_lower(physical) for _, physical in (leaves if count < 0 else leaves[:count])}
    return [path for path in wanted_paths if _lower(path) not in indexed]


def _lower(path: Path) -> Path:
    return tuple(name.lower() for name in path)


def check_clustered_files(attempt: Attempt, columns: Iterable[Path]) -> None:
    """Raise InvalidCommit for an added file without statistics of a clustering column."""
    for add, path in without_bounds(attempt, columns):
        raise InvalidCommit(
            f"{attempt.table} is clustered by {'.'.join(path)}, so the statistics of {add.path} must hold "
            "numRecords and have that column's nulls and bounds. Nothing was committed.",
            table=attempt.table,
        )


def without_bounds(attempt: Attempt, columns: Iterable[Path]) -> Iterator[tuple[Add, Path]]:
    """Yield new files whose statistics lack a clustering column, with it; files that are added again keep theirs."""
    wanted = list(columns)
    if not wanted:
        return
    removed = {attempt.canonical(remove) for remove in attempt.removes}
    for add in attempt.adds:
        if attempt.canonical(add) in removed:
            continue
        counts = _null_counts(add)
        yield from ((add, path) for path in wanted if counts is None or not _holds(counts, path))


def _null_counts(add: Add) -> Mapping[str, object] | None:
    if not add.stats:
        return None
    try:
        return msgspec.json.decode(add.stats, type=_Stats).null_count
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _holds(tree: Mapping[str, object], path: Path) -> bool:
    node: object = tree
    for name in _lower(path):
        if not isinstance(node, dict):
            return False
        node = next((member for key, member in node.items() if key.lower() == name), None)
    return isinstance(node, int)


def _leaves(struct: StructType, logical: Path, physical: Path) -> Iterator[tuple[Path, Path]]:
    for field in struct.fields:
        names = (*logical, field.name), (*physical, field.physical_name)
        if isinstance(field.type, StructType):
            yield from _leaves(field.type, *names)
        else:
            yield names
