"""Clustered tables: the columns that they are clustered by, and files that have the bounds of these columns.

The domain `delta.clustering` lists the columns by physical name. The invariant: every added file has their bounds,
whatever the table's properties leave out, and a winner that changes the columns is a conflict if our files lack their
bounds. We choose no columns of which other writers would leave the bounds out.
Source: protocol, "Clustered Table"; delta-spark, ClusteredTableUtils.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.log.actions import Add, DomainMetadata
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.types import (
    DecimalType,
    Path,
    Primitive,
    StructType,
    is_below,
    parse_path,
    path_text,
)
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CorruptTable, InvalidCommit, PartitionMismatch, SchemaMismatch, UnsupportedFeature
from airflow_txlog.errors.names import did_you_mean, shown_names

CLUSTERING_DOMAIN = "delta.clustering"
_MOST_COLUMNS = 4
# Types without bounds in statistics.
_NOT_ORDERED = (Primitive.BOOLEAN, Primitive.BINARY, Primitive.VOID)


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
                    f"{table}: the domain {CLUSTERING_DOMAIN} does not name the clustering columns: {error}. Nothing "
                    "was staged. Have the engine that wrote it set the clustering columns again.",
                    table=table,
                ) from error
            return tuple(tuple(path) for path in found)
    return ()


def clustered_by(snapshot: Snapshot) -> tuple[Path, ...]:
    """Return the clustering columns as paths of logical names; none without clustering.

    Raises CorruptTable, and UnsupportedFeature for a column whose values have no order.
    """
    physical = clustering_columns(snapshot.state.domains.values(), snapshot.uri)
    found = _logical(physical, list(_leaves(snapshot.delta_schema, (), ())), snapshot.uri)
    for path in found:
        members = snapshot.delta_schema.find_path(path)
        if members is None or not isinstance(members[-1].type, Primitive | DecimalType):
            raise UnsupportedFeature(
                f"{snapshot.uri} is clustered by {path_text(path)}, whose values have no order. Nothing was staged. "
                "Set other clustering columns with DeltaAlterTableOperator(cluster_by=[…]).",
                table=snapshot.uri,
                feature="clustering",
                needed_to="write",
            )
    return found


def chosen_columns(
    names: Sequence[str], schema: StructType, partition_columns: Sequence[str], table: str
) -> tuple[Path, ...]:
    """Return the clustering columns that are named (`a`, or `a.b` for a member of a struct) as paths of physical names.

    Raises SchemaMismatch for a name of no such column, of one without bounds, and for too many or equal ones;
    PartitionMismatch for a partitioned table.
    """

    def refused(what: str, columns: Sequence[str]) -> SchemaMismatch:
        return SchemaMismatch(f"{table}: {what}. Nothing was changed.", table=table, columns=list(columns))

    found: list[Path] = []
    for name in names:
        try:
            members = schema.find_path(parse_path(name))
        except ValueError as error:
            raise refused(f"cluster_by: {error}. Write parts joined by dots, such as address.city", [name]) from error
        if members is None:
            hint = did_you_mean(name, schema.names)
            known = f"The columns are: {shown_names(schema.names)}"
            raise refused(f"cluster_by names {name!r}, which is no column or member of a struct.{hint} {known}", [name])
        kind = members[-1].type
        if not isinstance(kind, Primitive | DecimalType) or kind in _NOT_ORDERED:
            raise refused(f"column {name!r} cannot cluster the table: files have no bounds of the type {kind}", [name])
        found.append(tuple(member.physical_name for member in members))
    if len(set(found)) < len(found) or len(found) > _MOST_COLUMNS:
        raise refused(f"cluster_by names {list(names)}: give at most {_MOST_COLUMNS} columns, each once", names)
    if found and partition_columns:
        raise PartitionMismatch(
            f"{table}: a table is partitioned or clustered, and this one is partitioned by {list(partition_columns)}. "
            "Nothing was changed.",
            table=table,
        )
    return tuple(found)


def clustering_domain(columns: Iterable[Path]) -> DomainMetadata:
    """Return the action that clusters a table by these columns (paths of physical names); none end the clustering."""
    value = {"clusteringColumns": [list(path) for path in columns], "domainName": CLUSTERING_DOMAIN}
    return DomainMetadata(domain=CLUSTERING_DOMAIN, configuration=msgspec.json.encode(value).decode(), removed=False)


def check_statistics(wanted: Iterable[Path], schema: StructType, properties: TableProperties) -> None:
    """Raise UnsupportedFeature if the properties leave out statistics of these clustering columns.

    Our files would have them, but not those of delta-spark, which refuses such columns too.
    """
    missing = [".".join(path) for path in without_statistics(schema, properties, wanted)]
    if missing:
        raise UnsupportedFeature(
            f"{properties.table} cannot be clustered by {missing}: by its properties, other engines write files "
            "without statistics of that column. Nothing was changed. Name the column in "
            "delta.dataSkippingStatsColumns, or raise delta.dataSkippingNumIndexedCols.",
            table=properties.table,
            feature="clustering",
            needed_to="write",
        )


def indexed_columns(
    schema: StructType, properties: TableProperties, clustering: Iterable[Path]
) -> tuple[Path, ...] | None:
    """Return the columns with statistics in our files (paths of logical names), the clustering columns among them.

    None: the first ones, as the property delta.dataSkippingNumIndexedCols counts them. Raises CorruptTable for a
    clustering column that the schema lacks.
    """
    named, missing = properties.stats_columns, without_statistics(schema, properties, clustering)
    if named is None and not missing:
        return None
    leaves = list(_leaves(schema, (), ()))
    first = [logical for logical, _ in leaves[: properties.num_indexed_columns]] if named is None else named
    return (*first, *_logical(missing, leaves, properties.table))


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


def _logical(columns: Sequence[Path], leaves: Sequence[tuple[Path, Path]], table: str) -> tuple[Path, ...]:
    """Return the logical names of columns with these physical names. Raises CorruptTable."""
    logical_of = {_lower(physical): logical for logical, physical in leaves}
    unknown = [".".join(path) for path in columns if _lower(path) not in logical_of]
    if unknown:
        raise CorruptTable(
            f"{table}: the domain {CLUSTERING_DOMAIN} names {unknown}, and the table has no such column. Nothing was "
            "staged. Set other clustering columns with DeltaAlterTableOperator(cluster_by=[…]).",
            table=table,
        )
    return tuple(logical_of[_lower(path)] for path in columns)


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
