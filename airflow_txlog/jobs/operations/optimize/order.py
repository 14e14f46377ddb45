"""The order in which OPTIMIZE writes rows: by the columns of a Z-order, or by those that cluster the table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_txlog.contract.operations import Optimize
from airflow_txlog.datafiles.tasks.zorder import ColumnPath
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.clustering import clustered_by, without_statistics
from airflow_txlog.engine.table.schema.types import ArrayType, MapType, StructField, StructType, path_text
from airflow_txlog.errors import InvalidJobSpec, UnsupportedFeature
from airflow_txlog.jobs.sql.columns import missing_column

# With more columns, each would have two bits of the order, which sorts by none of them.
MOST_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """The sort columns of rewritten rows, as paths of logical names; none: files are joined as they are.

    `is_clustering`: the columns cluster the table, so files that are clustered already may stay as they are.
    """

    columns: tuple[ColumnPath, ...] = ()
    is_clustering: bool = False

    def parameters(self) -> dict[str, str]:
        """Return the columns as delta-spark writes them into `operationParameters`."""
        names = ("clusterBy", "zOrderBy") if self.is_clustering else ("zOrderBy", "clusterBy")
        # delta-spark quotes the names of clustering columns alone.
        text = path_text if self.is_clustering else ".".join
        return {names[0]: json.dumps([text(path) for path in self.columns], ensure_ascii=False), names[1]: "[]"}


def order_of(snapshot: Snapshot, optimize: Optimize) -> RowOrder:
    """Return the order for this table. Raises UnsupportedFeature, InvalidJobSpec, and as `ordering_columns`."""
    wanted = ordering_columns(snapshot, optimize.zorder_by or ())
    # The protocol forbids clustering columns in a partitioned table.
    clustering = () if snapshot.partition_columns else clustered_by(snapshot)
    if wanted and clustering:
        raise UnsupportedFeature(
            f"{snapshot.uri} is a clustered table, whose files are sorted by the columns that the table names; a "
            "Z-order by others would undo it. Nothing more was staged. Leave zorder_by out: OPTIMIZE clusters the "
            "table.",
            table=snapshot.uri,
            feature="clustering",
            needed_to="write",
        )
    if optimize.full and not clustering:
        raise InvalidJobSpec(
            f"full is for clustered tables, and {snapshot.uri} has no clustering columns. Nothing was staged. Leave "
            "full out, or set clustering columns with DeltaAlterTableOperator(cluster_by=[…]).",
            argument="arguments.full",
        )
    if optimize.purge:
        return RowOrder()
    return RowOrder(columns=wanted or clustering, is_clustering=bool(clustering))


def ordering_columns(snapshot: Snapshot, names: Iterable[str]) -> tuple[ColumnPath, ...]:
    """Return the columns of these names (`a`, or `a.b` for a member of a struct) as paths by the schema's spelling.

    Raises UnknownColumn; and InvalidJobSpec for a column that has no order, that partitions the table, that has no
    statistics (no reader could skip a file by it), or that is named twice.
    """
    found: list[ColumnPath] = []
    for name in names:
        members = _find(snapshot, name)
        path, kind = tuple(member.name for member in members), members[-1].type
        if isinstance(kind, (StructType, ArrayType, MapType)):
            raise _refusal(f"column {name!r} is {kind}, and only single values have an order")
        if path[0].lower() in {column.lower() for column in snapshot.partition_columns}:
            raise _refusal(f"column {name!r} partitions the table: within a partition it has one value")
        physical = tuple(member.physical_name for member in members)
        if without_statistics(snapshot.delta_schema, snapshot.table_properties, [physical]):
            raise _refusal(
                f"the table keeps no statistics of column {name!r}, so no reader could skip a file by it; name it in "
                "delta.dataSkippingStatsColumns, or raise delta.dataSkippingNumIndexedCols"
            )
        if path in found:
            raise _refusal(f"column {name!r} is named twice")
        found.append(path)
    if len(found) > MOST_COLUMNS:
        raise _refusal(f"{len(found)} columns are too many to be near each other in; at most {MOST_COLUMNS} are taken")
    return tuple(found)


def _find(snapshot: Snapshot, name: str) -> tuple[StructField, ...]:
    """Return the fields from the top-level column down; a column whose own name has dots comes first."""
    schema = snapshot.delta_schema
    found = schema.find_path((name,)) or schema.find_path(tuple(name.split(".")))
    if found is None:
        raise missing_column(
            f"zorder_by names {name!r}, which {snapshot.uri} does not have", name, schema.names, "Nothing was staged."
        )
    return found


def _refusal(reason: str) -> InvalidJobSpec:
    return InvalidJobSpec(f"zorder_by: {reason}. Nothing was staged.", argument="arguments.zorder_by")
