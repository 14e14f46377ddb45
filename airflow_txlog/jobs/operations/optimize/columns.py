"""The columns of a Z-order, as the table has them."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_txlog.datafiles.tasks.zorder import ColumnPath
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.clustering import without_statistics
from airflow_txlog.engine.table.schema.types import ArrayType, MapType, StructField, StructType
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.sql.column_names import missing_column

# More would leave each column two bits of the order, which sorts by none of them.
MOST_COLUMNS = 8


def ordering_columns(snapshot: Snapshot, names: Iterable[str]) -> tuple[ColumnPath, ...]:
    """The columns of these names (`a`, or `a.b` for a member of a struct) as paths by the schema's spelling.

    Raises UnknownColumn, and InvalidJobSpec for a column that has no order, that partitions the table, of which no
    statistics are kept (no reader could skip a file by it), or that is named twice.
    """
    found: list[ColumnPath] = []
    for name in names:
        members = _find(snapshot, name)
        path, kind = tuple(member.name for member in members), members[-1].type
        if isinstance(kind, (StructType, ArrayType, MapType)):
            raise _refusal(f"column {name!r} is {kind}, and only single values have an order")
        if path[0].lower() in {column.lower() for column in snapshot.partition_columns}:
            raise _refusal(f"column {name!r} partitions the table: within a partition it has one value")
        if without_statistics(snapshot, [tuple(member.physical_name for member in members)]):
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
    """The fields from the top-level column down; one whose own name holds dots comes first."""
    schema = snapshot.delta_schema
    found = schema.find_path((name,)) or schema.find_path(tuple(name.split(".")))
    if found is None:
        raise missing_column(
            f"zorder_by names {name!r}, which {snapshot.uri} does not have", name, schema.names, "Nothing was staged."
        )
    return found


def _refusal(reason: str) -> InvalidJobSpec:
    return InvalidJobSpec(f"zorder_by: {reason}. Nothing was staged.", argument="arguments.zorder_by")
