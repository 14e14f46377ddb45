"""Pairs of a merge: every target row and source row that ON matches, and the clause that acts on them.

One Spark job joins the rows of the candidate files with the pinned source and yields numbers only: where the target row
lives, which source row it met, which clause acts. The invariant: these are *all* pairs that ON matches, also those on
which no clause acts, because they decide what is ambiguous and what is inserted. Source: delta-spark,
MergeIntoCommand; soundness A1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.positions import POSITION_BITS
from airflow_txlog.datafiles.tasks import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN
from airflow_txlog.engine.table.schema import StructType, parse_schema
from airflow_txlog.errors import AmbiguousMerge
from airflow_txlog.jobs.clauses import Clauses, Sides, deciding_sql
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.find import FoundRows, by_file, scan_columns
from airflow_txlog.jobs.inputs import PinnedSource
from airflow_txlog.jobs.running import collect
from airflow_txlog.jobs.scan import FilePlan
from airflow_txlog.jobs.schemas import without_metadata
from airflow_txlog.jobs.sql import SqlGate, columns_named, quoted

# Below this the source's columns are sent to every task; above it both sides are shuffled. Spark cannot choose: it does
# not know how many rows a scan of ours yields.
BROADCAST_BYTES = 64 * 1024 * 1024

_SCHEMA = pa.schema([(ADDRESS_COLUMN, pa.int64()), (ROW_ID_COLUMN, pa.int64()), (CLAUSE_COLUMN, pa.int32())])


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The pairs, collected: an address, a source row and the acting clause (or null) each."""

    rows: pa.Table

    def acted(self, numbers: Iterable[int]) -> FoundRows:
        """The target rows on which these clauses act, by file."""
        acting = pc.is_in(self.rows.column(CLAUSE_COLUMN), value_set=pa.array(list(numbers), pa.int32()))
        rows = self.rows.filter(acting)
        if len(pc.unique(rows.column(ADDRESS_COLUMN))) < rows.num_rows:
            # Only a merge that tolerates many matches gets here: any of them says the same.
            one = rows.group_by(ADDRESS_COLUMN).aggregate([(ROW_ID_COLUMN, "min"), (CLAUSE_COLUMN, "min")])
            rows = one.rename_columns([ADDRESS_COLUMN, ROW_ID_COLUMN, CLAUSE_COLUMN])
        return by_file(rows)

    def matched_files(self) -> list[int]:
        """The plan's row numbers of the files in which ON matches some row, acted upon or not."""
        addresses = pc.unique(self.rows.column(ADDRESS_COLUMN))
        files: list[int] = pc.unique(pc.shift_right(addresses, pa.scalar(POSITION_BITS, pa.int64()))).to_pylist()
        return files

    def matched_source_rows(self) -> pa.Array:
        """The source rows that matched some target row, once each."""
        return pc.unique(self.rows.column(ROW_ID_COLUMN))


def find_pairs(
    context: JobContext,
    gate: SqlGate,
    plan: FilePlan,
    schema: StructType,
    sides: Sides,
    clauses: Clauses,
    source: PinnedSource,
) -> Pairs:
    """Every pair of a row of the planned files (of a table with this schema) and a source row that ON matches.

    Raises AmbiguousMerge where two source rows match a target row that a clause may act on.
    """
    if plan.num_files == 0 or source.num_rows == 0:
        return Pairs(rows=_SCHEMA.empty_table())
    on = context.arguments["on"]
    texts = [on, *clauses.texts_on_pairs()]
    target_view, source_view = context.view_name(), context.view_name()
    scan_columns(context, plan, _named(texts, schema)).createOrReplaceTempView(target_view)
    source.frame.createOrReplaceTempView(source_view)
    named = _named(texts, parse_schema(without_metadata(source.schema).json()))
    size_bytes = source.bytes_of([ROW_ID_COLUMN, *(source.schema.names if named is None else named)])
    s, t = quoted(sides.source_alias), quoted(sides.target_alias)
    query = (
        f"SELECT /*+ {join_hint(size_bytes, s)} */ {t}.{ADDRESS_COLUMN}, {s}.{ROW_ID_COLUMN}, "
        f"{deciding_sql(clauses.matched)} AS {CLAUSE_COLUMN} "
        f"FROM {quoted(target_view)} AS {t} JOIN {quoted(source_view)} AS {s} ON (\n{on}\n)"
    )
    pairs = Pairs(rows=collect(gate.run(query), "match source and target").cast(_SCHEMA))
    _check_unambiguous(context, pairs, plan, clauses)
    return pairs


def join_hint(size_bytes: int, alias: str) -> str:
    """How to join with the side `alias` (quoted), whose columns take so many bytes."""
    return f"BROADCAST({alias})" if size_bytes < BROADCAST_BYTES else f"SHUFFLE_HASH({alias})"


def _check_unambiguous(context: JobContext, pairs: Pairs, plan: FilePlan, clauses: Clauses) -> None:
    addresses = pairs.rows.column(ADDRESS_COLUMN)
    # Without a WHEN MATCHED clause it does not matter how often a row matches.
    if not clauses.matched or clauses.tolerates_many_matches or len(pc.unique(addresses)) == len(addresses):
        return
    counts = pc.value_counts(addresses).to_pylist()
    first = min(entry["values"] for entry in counts if entry["counts"] > 1)
    many = sum(entry["counts"] > 1 for entry in counts)
    file, row = first >> POSITION_BITS, first & ((1 << POSITION_BITS) - 1)
    path = plan.table.column("location")[file].as_py()
    raise AmbiguousMerge(
        f"{context.root}: {many} target rows are matched by more than one source row, the first of them row {row} of "
        f"{path}. Which one shall act cannot be told: make the source unique in the columns of ON. "
        "Nothing was changed.",
        table=context.root,
        path=path,
        row=row,
    )


def _named(texts: Iterable[str], schema: StructType) -> frozenset[str] | None:
    """The schema's columns that some of the texts may mean; None for any."""
    named: frozenset[str] = frozenset()
    for text in texts:
        found = columns_named(text, schema)
        if found is None:
            return None
        named |= found
    return named
