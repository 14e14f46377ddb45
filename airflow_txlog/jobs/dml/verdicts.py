"""Verdicts on the rows of a plan's files: which source row each row met, and which clause acts on it.

The invariant: these are *all* raw matches, also those on which no clause acts, because they decide what is ambiguous
and what is inserted; whatever an operation counts or stages is derived from them. Source: soundness, section 0, A1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.positions import POSITION_BITS
from airflow_txlog.datafiles.tasks import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN
from airflow_txlog.jobs.dml.memory import CLAUSE, POSITION, SOURCE_ROW, VERDICTS
from airflow_txlog.jobs.find import FoundRows, by_file

# As a Spark job yields them: the row's address in the plan, the source row or null, the acting clause or null.
ADDRESSED = pa.schema([(ADDRESS_COLUMN, pa.int64()), (ROW_ID_COLUMN, pa.int64()), (CLAUSE_COLUMN, pa.int32())])

_BITS = pa.scalar(POSITION_BITS, pa.int64())
_POSITION_MASK = pa.scalar((1 << POSITION_BITS) - 1, pa.int64())


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """The verdicts on all files of one plan, a table `ADDRESSED`."""

    rows: pa.Table

    def acted(self, numbers: Collection[int] | None = None) -> FoundRows:
        """The rows on which one of these clauses acts (None: any), by file."""
        clauses = self.rows.column(CLAUSE_COLUMN)
        chosen = clauses.is_valid() if numbers is None else pc.is_in(clauses, pa.array(list(numbers), pa.int32()))
        rows = self.rows.filter(chosen)
        if len(pc.unique(rows.column(ADDRESS_COLUMN))) < rows.num_rows:
            # Only a merge that tolerates many matches gets here: any of them says the same.
            one = rows.group_by(ADDRESS_COLUMN).aggregate([(ROW_ID_COLUMN, "min"), (CLAUSE_COLUMN, "min")])
            rows = one.rename_columns([ADDRESS_COLUMN, ROW_ID_COLUMN, CLAUSE_COLUMN])
        return by_file(rows)

    def matched_files(self) -> list[int]:
        """The plan's row numbers of the files about whose rows there is any verdict."""
        files: list[int] = pc.unique(pc.shift_right(self.rows.column(ADDRESS_COLUMN), _BITS)).to_pylist()
        return files

    def matched_source_rows(self) -> pa.Array:
        """The source rows that matched some target row, once each, ascending."""
        found = pc.unique(self.rows.column(ROW_ID_COLUMN).drop_null())
        return found.sort() if len(found) else pa.array([], pa.int64())


def by_scanned_file(rows: pa.Table, scanned: Iterable[int]) -> dict[int, pa.Table]:
    """A table `ADDRESSED` as a table `VERDICTS` for each scanned file (by the plan's row number), empty ones too."""
    found = dict.fromkeys(scanned, VERDICTS.empty_table())
    if rows.num_rows == 0:
        return found
    ordered = rows.combine_chunks().sort_by(ADDRESS_COLUMN)
    addresses = ordered.column(ADDRESS_COLUMN)
    verdicts = pa.table(
        [
            pc.bit_wise_and(addresses, _POSITION_MASK),
            ordered.column(ROW_ID_COLUMN),
            ordered.column(CLAUSE_COLUMN),
        ],
        schema=VERDICTS,
    )
    start = 0
    # Sorted addresses have their files in ascending runs.
    runs = pc.value_counts(pc.shift_right(addresses, _BITS)).to_pylist()
    for run in sorted(runs, key=lambda run: run["values"]):
        found[run["values"]] = verdicts.slice(start, run["counts"])
        start += run["counts"]
    return found


def addressed(verdicts: Mapping[int, pa.Table]) -> pa.Table:
    """The other way round: tables `VERDICTS` by the plan's row number as one table `ADDRESSED`."""
    parts = []
    for index, rows in verdicts.items():
        if rows.num_rows:
            base = pa.scalar(index << POSITION_BITS, pa.int64())
            columns = [pc.add(rows.column(POSITION), base), rows.column(SOURCE_ROW), rows.column(CLAUSE)]
            parts.append(pa.table(columns, schema=ADDRESSED))
    return pa.concat_tables(parts) if parts else ADDRESSED.empty_table()
