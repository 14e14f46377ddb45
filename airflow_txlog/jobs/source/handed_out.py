"""Values of identity columns for the rows of a materialized source.

Each row that becomes a row of the table gets the number that it has among them, in the order of buckets and files,
and its values follow from that number. So tasks that run at once, or again, need not agree on anything. The commit of
the rows moves the marks. A job that has lost its values to another writer reserves the next ones by a commit of their
own, before it writes the rows again: writing takes longer than a commit, and writers of few rows would win every time.
A job whose change is to wait reserves at once.

The invariant: files with values are used again only while these values are reserved, or are the ones that this attempt
would hand out, and no commit has such rows with a mark before them. Source: protocol, "Identity Columns".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.tasks.rows_without_log import IdentityValues, MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import RESERVED_PREFIX
from airflow_txlog.engine.table.schema.identities import IdentityColumn, read_identities
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import CommitConflict
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import bins_by_segment, sent_bins
from airflow_txlog.jobs.source.materialized import MaterializedSource, unmatched_plan

NOT_NUMBERED, RESERVED = "", "reserved "
"""The first values of rows to which the table gives none; and what precedes reserved ones."""
# A commit of marks alone that loses is tried again at once, so many times.
_RESERVING_TRIES = 10


def beside_source(name: str) -> str:
    """Return the name of the column that adds an identity column's values to a source."""
    return f"{RESERVED_PREFIX}identity_{name}"


@dataclass(frozen=True, kw_only=True)
class HandedOut:
    """The values of identity columns for `num_rows` rows. A table may have no such column.

    `files` and `buckets`: the number of the first row of each file of the source, and of each bucket. `are_reserved`:
    the table's marks are past the values already.
    """

    identities: tuple[IdentityColumn, ...]
    files: tuple[int, ...]
    buckets: tuple[int, ...]
    num_rows: int
    are_reserved: bool = False

    @property
    def marks(self) -> dict[str, int]:
        """The marks that the commit of the rows must set."""
        if self.are_reserved or not self.num_rows:
            return {}
        return {each.name: each.value(self.num_rows - 1) for each in self.identities}

    def first_values(self, bucket: int = 0) -> str:
        """Return a text of the first values of a bucket's rows: JSON by column, after RESERVED if they are reserved;
        NOT_NUMBERED if the table gives none.
        """
        if not self.identities:
            return NOT_NUMBERED
        values = json.dumps({each.name: each.value(self.buckets[bucket]) for each in self.identities})
        return RESERVED + values if self.are_reserved else values

    def values(self, named: Callable[[str], str] = str) -> IdentityValues:
        """Return the values as a scan of the source adds them. `named` gives the name of each column there."""
        columns = tuple((named(each.name), each.value(0), each.step) for each in self.identities)
        return IdentityValues(columns=columns, starts=self.files)


class Numbering:
    """The values of identity columns that one job hands out, over its attempts. Used by one thread."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._seen: tuple[IdentityColumn, ...] = ()
        self._reserved: HandedOut | None = None

    def hand_out(
        self,
        identities: Sequence[IdentityColumn],
        source: MaterializedSource,
        matched: Mapping[int, RowPositions] | None = None,
    ) -> HandedOut:
        """Return values for all rows of the source, or for those that are not among `matched`, by part of the source.

        `identities` are those of this attempt's version. Raises ConstraintViolation if one has too few values left, and
        the conflict of a reservation that lost too often.
        """
        handed = _handed_out(self._context, identities, source, matched or {})
        seen, self._seen = self._seen, handed.identities
        has_lost = bool(seen) and seen != self._seen
        if has_lost and self._reserved is not None and not _is_past(self._reserved, self._seen):
            # Another table has taken the place of the one whose values were reserved, or the column is another.
            self._reserved = None
        if self._reserved is None or self._reserved.num_rows < handed.num_rows:
            # Other writers number rows while a change waits.
            must_reserve = has_lost or self._reserved is not None or not self._context.spec.publish
            if not identities or not handed.num_rows or not must_reserve:
                return handed
            self._reserved = _reserved(self._context, handed)
        return replace(handed, identities=self._reserved.identities, are_reserved=True)


def _is_past(reserved: HandedOut, now: Sequence[IdentityColumn]) -> bool:
    """Return whether the columns, as they are now, hand out no reserved value."""
    then = {(each.name, each.start, each.step): each.value(reserved.num_rows - 1) for each in reserved.identities}
    last = [then.get((each.name, each.start, each.step)) for each in now]
    return all(
        value is not None and (each.value(0) - value) // each.step > 0 for each, value in zip(now, last, strict=True)
    )


def _reserved(context: JobContext, handed: HandedOut) -> HandedOut:
    """Reserve the next values for all rows, by a commit that moves only the marks; return these values."""
    tries = 0
    while True:
        tx = context.table.begin()
        assert tx.snapshot is not None
        newest = read_identities(tx.snapshot.delta_schema, context.root)
        identities = tuple(newest.get(each.name, each) for each in handed.identities)
        for each in identities:
            each.check_has(handed.num_rows, context.root)
        tx.move_marks({each.name: each.value(handed.num_rows - 1) for each in identities})
        try:
            tx.commit(
                "RESERVE IDENTITY", {"columns": [each.name for each in identities]}, tags=context.spec.commit_tags()
            )
        except CommitConflict:
            tries += 1
            if tries == _RESERVING_TRIES:
                raise
            continue
        context.log(f"reserved values of identity columns for {plural(handed.num_rows, 'row')}")
        return replace(handed, identities=identities, are_reserved=True)


def _handed_out(
    context: JobContext,
    identities: Sequence[IdentityColumn],
    source: MaterializedSource,
    matched: Mapping[int, RowPositions],
) -> HandedOut:
    among = source.among(matched)
    buckets, files, number = [], [0] * len(source.files), 0
    for bucket in range(source.num_buckets):
        buckets.append(number)
        for index, file in enumerate(source.files):
            if source.bucket_of(index) == bucket:
                files[index] = number
                skipped = among[index]
                number += file.num_records - (
                    0 if skipped is None else RowPositions(skipped, "of matched rows").num_rows
                )
    for each in identities:
        each.check_has(number, context.root)
    return HandedOut(identities=tuple(identities), files=tuple(files), buckets=tuple(buckets), num_rows=number)


def still_handed_out(first_values: str, identities: Mapping[str, IdentityColumn]) -> bool:
    """Return whether rows with these first values (`HandedOut.first_values`) may have their values now."""
    firsts = _by_column(first_values)
    return all(name in identities and identities[name].value(0) == value for name, value in firsts.items())


def marks_after(first_values: str, num_rows: int, identities: Mapping[str, IdentityColumn]) -> dict[str, int]:
    """Return the marks that a commit of `num_rows` rows must set if the first row has these values."""
    return {name: identities[name].value(num_rows - 1) for name in _by_column(first_values)} if num_rows else {}


def _by_column(first_values: str) -> dict[str, int]:
    is_owed = first_values != NOT_NUMBERED and not first_values.startswith(RESERVED)
    return dict(json.loads(first_values)) if is_owed else {}


def with_identities(columns: StructType, identities: Iterable[IdentityColumn]) -> StructType:
    """Return the columns of a source and the identity columns."""
    return StructType((*columns, *(StructField(name=each.name, type=Primitive.LONG) for each in identities)))


def numbered_scan(
    context: JobContext, source: MaterializedSource, handed: HandedOut, *, in_one: bool = False
) -> MaterializedScan:
    """Return the scan of all rows of the source with values of the identity columns; for one task if `in_one`."""
    plan = unmatched_plan(context, source, source.names, {}, range(source.num_buckets))
    bins = sent_bins(context, plan, [range(plan.num_files)]) if in_one else bins_by_segment(context, plan)[0]
    return MaterializedScan(bins=bins, schema=plan.schema, identities=handed.values())
