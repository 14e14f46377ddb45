"""Matches in the rows of a plan's files: which source row each row met, and which clause acts on it.

Rows that a clause acts on without a source row are bitmaps, however many they are; pairs are a row of a table each.
The invariant: these are *all* raw matches, also those on which no clause acts, because they decide what is ambiguous
and what is inserted; whatever an operation counts or stages is derived from them. Source: soundness, section 0, A1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, pack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN
from airflow_txlog.jobs.resume.memory import CLAUSE, PAIRS, POSITION, SOURCE_ROW, FileMatches
from airflow_txlog.jobs.rows.find import FoundRows, united

# As a Spark job yields pairs: the row's address in the plan, the source row or null, the acting clause or null.
ADDRESSED = pa.schema([(ADDRESS_COLUMN, pa.int64()), (ROW_ID_COLUMN, pa.int64()), (CLAUSE_COLUMN, pa.int32())])

_BITS = pa.scalar(POSITION_BITS, pa.int64())
_ALL_POSITION_BITS = pa.scalar((1 << POSITION_BITS) - 1, pa.int64())


@dataclass(frozen=True, kw_only=True)
class Matches:
    """What was matched in all files of one plan, by its row numbers.

    `rows`: for each file and clause, the rows on which it acts without a source row. `pairs`: a table ADDRESSED of the
    rows that met one.
    """

    rows: Mapping[int, Mapping[int, RowPositions]] = field(default_factory=dict)
    pairs: pa.Table = field(default_factory=ADDRESSED.empty_table)

    @classmethod
    def of_clause(cls, number: int, rows: Mapping[int, RowPositions]) -> Matches:
        """One clause acts on all of these rows (by file), and there is no source."""
        return cls(rows={file: {number: found} for file, found in rows.items()})

    @classmethod
    def of_packed(cls, found: pa.Table) -> Matches:
        """What a collected table PAIRS_SCHEMA holds."""
        is_pair = found.column(ADDRESS_COLUMN).is_valid()
        packed = found.filter(pc.invert(is_pair))
        rows: dict[int, dict[int, RowPositions]] = {}
        for number in pc.unique(packed.column(CLAUSE_COLUMN)).to_pylist():
            of_clause = united(packed.filter(pc.equal(packed.column(CLAUSE_COLUMN), number)))
            for file, bitmap in of_clause.items():
                rows.setdefault(file, {})[number] = bitmap
        return cls(rows=rows, pairs=found.filter(is_pair).select(ADDRESSED.names).cast(ADDRESSED))

    @classmethod
    def of_files(cls, files: Mapping[int, FileMatches]) -> Matches:
        """The matches of files one by one, put together."""
        parts = []
        for index, found in files.items():
            if found.pairs.num_rows:
                base = pa.scalar(index << POSITION_BITS, pa.int64())
                pairs = found.pairs
                columns = [pc.add(pairs.column(POSITION), base), pairs.column(SOURCE_ROW), pairs.column(CLAUSE)]
                parts.append(pa.table(columns, schema=ADDRESSED))
        rows = {index: found.rows for index, found in files.items() if found.rows}
        return cls(rows=rows, pairs=pa.concat_tables(parts) if parts else ADDRESSED.empty_table())

    def by_file(self) -> dict[int, FileMatches]:
        """The matches of each file in which there are any."""
        pairs = {
            index: pa.table([table.column(name) for name in ADDRESSED.names], schema=PAIRS)
            for index, table in _by_file(self.pairs).items()
        }
        empty = PAIRS.empty_table()
        return {
            index: FileMatches(rows=self.rows.get(index, {}), pairs=pairs.get(index, empty))
            for index in {**self.rows, **pairs}
        }

    def acted(self, numbers: Collection[int] | None = None) -> FoundRows:
        """The rows on which one of these clauses acts (None: any), by file."""
        positions: dict[int, RowPositions] = {}
        clauses: dict[int, int] = {}
        pairs = _by_file(self._acting_pairs(numbers))
        for index, chosen in self._acting_rows(numbers).items():
            if index not in pairs and len(chosen) == 1:
                [(clauses[index], positions[index])] = chosen.items()
            else:
                alone = [_alone(number, rows) for number, rows in chosen.items()]
                pairs[index] = pa.concat_tables([*alone, *([pairs[index]] if index in pairs else [])]).sort_by(
                    ADDRESS_COLUMN
                )
        positions |= {index: _bitmap(table.column(ADDRESS_COLUMN)) for index, table in pairs.items()}
        return FoundRows(positions=positions, clauses=clauses, pairs=pairs)

    def count(self, numbers: Collection[int]) -> int:
        """How many rows there are on which one of these clauses acts."""
        rows = self._acting_rows(numbers).values()
        alone = sum(bitmap.num_rows for of_file in rows for bitmap in of_file.values())
        return alone + int(self._acting_pairs(numbers).num_rows)

    def matched_files(self) -> list[int]:
        """The plan's row numbers of the files in which any row matched."""
        with_pairs = pc.unique(pc.shift_right(self.pairs.column(ADDRESS_COLUMN), _BITS)).to_pylist()
        return sorted({*self.rows, *with_pairs})

    def matched_source_rows(self) -> pa.Array:
        """The source rows that matched some target row, once each, ascending."""
        found = pc.unique(self.pairs.column(ROW_ID_COLUMN).drop_null())
        return found.sort() if len(found) else pa.array([], pa.int64())

    def _acting_rows(self, numbers: Collection[int] | None) -> dict[int, dict[int, RowPositions]]:
        chosen = {
            index: {number: rows for number, rows in of_file.items() if numbers is None or number in numbers}
            for index, of_file in self.rows.items()
        }
        return {index: of_file for index, of_file in chosen.items() if of_file}

    def _acting_pairs(self, numbers: Collection[int] | None) -> pa.Table:
        """The pairs on which one of the clauses acts, one for each row of a file."""
        clauses = self.pairs.column(CLAUSE_COLUMN)
        chosen = clauses.is_valid() if numbers is None else pc.is_in(clauses, pa.array(list(numbers), pa.int32()))
        rows = self.pairs.filter(chosen)
        if len(pc.unique(rows.column(ADDRESS_COLUMN))) < rows.num_rows:
            # Only a merge that tolerates many matches gets here: any of them says the same.
            one = rows.group_by(ADDRESS_COLUMN).aggregate([(ROW_ID_COLUMN, "min"), (CLAUSE_COLUMN, "min")])
            rows = one.rename_columns([ADDRESS_COLUMN, ROW_ID_COLUMN, CLAUSE_COLUMN])
        return rows


def _by_file(rows: pa.Table) -> dict[int, pa.Table]:
    """A table ADDRESSED by file and sorted, with positions in the place of addresses."""
    if rows.num_rows == 0:
        return {}
    ordered = rows.combine_chunks().sort_by(ADDRESS_COLUMN)
    addresses = ordered.column(ADDRESS_COLUMN)
    at = ordered.schema.get_field_index(ADDRESS_COLUMN)
    placed = ordered.set_column(at, ADDRESS_COLUMN, pc.bit_wise_and(addresses, _ALL_POSITION_BITS))
    found = {}
    start = 0
    # Sorted addresses have their files in ascending runs.
    runs = pc.value_counts(pc.shift_right(addresses, _BITS)).to_pylist()
    for run in sorted(runs, key=lambda run: run["values"]):
        found[run["values"]] = placed.slice(start, run["counts"])
        start += run["counts"]
    return found


def _bitmap(positions: pa.ChunkedArray) -> RowPositions:
    return RowPositions(pack(pa.concat_arrays(positions.chunks)), "of found rows")


def _alone(number: int, rows: RowPositions) -> pa.Table:
    """Rows without a source row, spelled out."""
    count = rows.num_rows
    return pa.table(
        [rows.positions(), pa.nulls(count, pa.int64()), pa.repeat(pa.scalar(number, pa.int32()), count)],
        schema=ADDRESSED,
    )
