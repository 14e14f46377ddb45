"""The operations, one record each. A new one is described here, and nowhere else."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from airflow_txlog.contract.operations.base import REPLACED, Operation, ScopedOperation, SourceOperation, register
from airflow_txlog.contract.operations.clauses import Clauses, DeleteClause, InsertClause, UpdateClause
from airflow_txlog.contract.operations.fields import (
    Assignments,
    Bytes,
    ColumnNames,
    Hours,
    Location,
    PairText,
    SomeColumnNames,
    TableText,
    Text,
    TextMap,
    Version,
)
from airflow_txlog.contract.operations.plain_texts import looks_plain
from airflow_txlog.contract.operations.refusals import invalid, want
from airflow_txlog.contract.operations.sources import AnyKeys, AnySource, FileView, KeySource, KeyValues, TableView
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.locations import LOCAL, scheme_of

_JOBS = "airflow_txlog.jobs.operations"


def _may_be_read_here(operation: SourceOperation) -> bool:
    """Whether the rows of a merge may be had without Spark, from Parquet files or one of our tables."""
    source = operation.source
    is_readable = isinstance(source, TableView) or (isinstance(source, FileView) and source.may_be_plain)
    return is_readable and not operation.schema_evolution


def _is_in_reach(source: AnySource, *, is_spark_here: bool) -> bool:
    """Whether this process finds the files of a source that Spark would, which decides which disk a path names."""
    is_on_disk = isinstance(source, FileView) and any(scheme_of(path) == LOCAL for path in source.paths)
    return is_spark_here or not is_on_disk


@register
class Write(SourceOperation, frozen=True, kw_only=True, tag="write"):
    """Append the source's rows, or overwrite the table or a part of it with them.

    `mode` "overwrite_partitions" replaces the partitions that the source has rows of. `replace_where` is what an
    overwrite replaces, and what every new row must satisfy. `on_conflict` "fail": rather than replace rows that landed
    since its first try began, the overwrite fails. `create`: make the table where there is none, with `partition_by`
    and `properties`; with `allow_non_empty` also in a folder that holds files which belong to no table.
    """

    job = f"{_JOBS}.write.job:write"
    needs_spark = True
    changes_rows = True
    rows = {"numOutputRows": "written", "numDeletedRows": REPLACED}

    mode: Literal["append", "overwrite", "overwrite_partitions"] = "append"
    replace_where: TableText | None = None
    on_conflict: Literal["replan", "fail"] = "replan"
    partition_by: ColumnNames | None = None
    create: bool = True
    allow_non_empty: bool = False
    properties: TextMap = msgspec.field(default_factory=dict)

    def check(self) -> None:
        """`replace_where` says what an overwrite replaces, so it means nothing to the other modes."""
        possible = self.replace_where is None or self.mode == "overwrite"
        want("arguments.replace_where", possible, f'null in mode "{self.mode}"', self.replace_where)
        possible = self.on_conflict != "fail" or self.mode != "append"
        want("arguments.on_conflict", possible, '"replan" in mode "append", which reads nothing', self.on_conflict)

    @property
    def counts_from_first_try(self) -> bool:
        return self.on_conflict == "fail"

    @property
    def may_spare_spark(self) -> bool:
        """Of Parquet files Arrow may read what Spark would."""
        return isinstance(self.source, FileView) and self.source.may_be_plain and self.replace_where is None

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return self.may_spare_spark and _is_in_reach(self.source, is_spark_here=is_spark_here)


@register
class Delete(ScopedOperation, frozen=True, kw_only=True, tag="delete"):
    """Delete the rows for which `predicate` is true (null: every row), or those that have one of the keys.

    `require_match`: a predicate that is true of no row, or a key that is in no row, fails the job.
    """

    job = f"{_JOBS}.delete.job:delete"
    needs_spark = True
    changes_rows = True
    rows = {"numDeletedRows": "deleted"}

    predicate: TableText | None
    keys: AnyKeys | None = None
    require_match: bool = False

    def check(self) -> None:
        """Keys stand in place of a predicate."""
        possible = self.keys is None or self.predicate is None
        want("arguments.predicate", possible, "null where keys are given", self.predicate)

    @property
    def may_spare_spark(self) -> bool:
        """A predicate may be a plain one, which Spark need not judge."""
        keys = self.keys
        if keys is None or isinstance(keys, KeyValues) or isinstance(keys.source, TableView):
            return True
        return isinstance(keys.source, FileView) and keys.source.may_be_plain

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        if isinstance(self.keys, KeySource) and not _is_in_reach(self.keys.source, is_spark_here=is_spark_here):
            return False
        return self.may_spare_spark and (self.predicate is None or looks_plain(self.predicate))


@register
class Update(ScopedOperation, frozen=True, kw_only=True, tag="update"):
    """Give the rows for which `predicate` is true (null: every row) new values.

    `require_match`: a predicate that is true of no row fails the job.
    """

    job = f"{_JOBS}.update:update"
    needs_spark = True
    changes_rows = True
    rows = {"numUpdatedRows": "updated"}

    set: Assignments
    predicate: TableText | None = None
    target_alias: Text = "t"
    require_match: bool = False

    @property
    def may_spare_spark(self) -> bool:
        """Predicate and values may be plain ones, which Spark need neither judge nor compute."""
        return True

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        is_plain = self.predicate is None or looks_plain(self.predicate)
        return is_plain and all(looks_plain(text, is_value=True) for text in self.set.values())


@register
class Merge(SourceOperation, frozen=True, kw_only=True, tag="merge"):
    """Match the source's rows with the table's, and do what the first clause that holds says.

    `require_match`: a source row that matches no row fails the job, and no clause may insert.
    """

    job = f"{_JOBS}.merge.job:merge"
    needs_spark = True
    changes_rows = True
    rows = {
        "numTargetRowsUpdated": "updated",
        "numTargetRowsDeleted": "deleted",
        "numTargetRowsInserted": "inserted",
    }

    on: PairText
    clauses: Clauses
    target_alias: Text = "t"
    source_alias: Text = "s"
    require_match: bool = False

    def check(self) -> None:
        """Where every source row must match, there is none to insert. And each clause can act."""
        inserts = any(isinstance(clause, InsertClause) for clause in self.clauses)
        possible = not (self.require_match and inserts)
        want("arguments.require_match", possible, "false where a clause inserts", self.require_match)
        last: set[str] = set()
        for number, clause in enumerate(self.clauses):
            if clause.when in last:
                raise InvalidJobSpec(
                    f"clauses[{number}] can never act: an earlier WHEN {clause.when.replace('_', ' ').upper()} clause "
                    "has no condition. Only the last clause of a kind may do without.",
                    argument="arguments.clauses",
                )
            if clause.condition is None:
                last.add(clause.when)

    @property
    def may_spare_spark(self) -> bool:
        """Clauses without a condition may assign what the source's files or table hold, where ON compares columns."""
        kinds = {clause.when for clause in self.clauses if clause.condition is None}
        acts_plainly = len(kinds) == len(self.clauses) and "not_matched_by_source" not in kinds
        return acts_plainly and _may_be_read_here(self)

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        is_in_reach = _is_in_reach(self.source, is_spark_here=is_spark_here)
        return self.may_spare_spark and is_in_reach and all(map(looks_plain, [self.on, *self.assigned_texts]))

    @property
    def assigned_texts(self) -> list[str]:
        """What the clauses assign, but for `*`."""
        found: list[str] = []
        for clause in self.clauses:
            if not isinstance(clause, DeleteClause):
                given = clause.set if isinstance(clause, UpdateClause) else clause.values
                found += [] if isinstance(given, str) else given.values()
        return found


@register
class Upsert(SourceOperation, frozen=True, kw_only=True, tag="upsert"):
    """Update the rows that have a source row's `keys`, and insert the source rows whose keys no row has: a merge.

    `columns` are those that an update changes; null: all.
    """

    job = f"{_JOBS}.upsert:upsert"
    needs_spark = True
    changes_rows = True
    rows = {"numTargetRowsUpdated": "updated", "numTargetRowsInserted": "inserted"}

    keys: SomeColumnNames
    columns: SomeColumnNames | None = None

    def check(self) -> None:
        """Each column once, whatever the case of its letters."""
        for name, given in (("keys", self.keys), ("columns", self.columns or ())):
            distinct = len({column.lower() for column in given}) == len(given)
            want(f"arguments.{name}", distinct, "a list of different column names", given)

    @property
    def may_spare_spark(self) -> bool:
        """As of the merge that it is."""
        return _may_be_read_here(self)

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return self.may_spare_spark and _is_in_reach(self.source, is_spark_here=is_spark_here)


@register
class Truncate(Operation, frozen=True, kw_only=True, tag="truncate"):
    """Remove every row, by the log alone."""

    job = f"{_JOBS}.truncate:truncate"
    changes_rows = True
    rows = {"numDeletedRows": "deleted"}


@register
class Restore(Operation, frozen=True, kw_only=True, tag="restore"):
    """Make an earlier version the latest again. `timestamp` is ISO-8601, in UTC where it names no zone."""

    job = f"{_JOBS}.restore:restore"
    changes_rows = True

    version: Version | None = None
    timestamp: Text | None = None
    ignore_missing: bool = False

    def check(self) -> None:
        """One moment to go back to."""
        one = (self.version is None) != (self.timestamp is None)
        want("arguments.version", one, "given, or timestamp is: exactly one of them", self.version)
        if self.timestamp is not None:
            try:
                datetime.fromisoformat(self.timestamp.strip())
            except ValueError:
                raise invalid(
                    "arguments.timestamp", "a date or time in ISO 8601", self.timestamp, is_shown=True
                ) from None

    @property
    def counts_from_first_try(self) -> bool:
        return True


@register
class Optimize(ScopedOperation, frozen=True, kw_only=True, tag="optimize"):
    """Compact small files, or sort all by `zorder_by`, or (`purge`) rewrite those that have a deletion vector.

    `target_bytes` null: the table's `delta.targetFileSize`, else 256 MiB. `batch_bytes`: so much is rewritten in one
    commit; null: all.
    """

    job = f"{_JOBS}.optimize.job:optimize"
    needs_spark = True

    zorder_by: ColumnNames | None = None
    purge: bool = False
    target_bytes: Bytes | None = None
    batch_bytes: Bytes | None = 32 * 1024**3

    def check(self) -> None:
        """What a purge rewrites is not what a Z-order does."""
        if self.zorder_by and self.purge:
            raise InvalidJobSpec(
                "Job description: zorder_by and purge exclude each other: a purge rewrites the files that have deleted "
                "rows and no others, a Z-order all of them (and purges them by the way). Nothing was read.",
                argument="arguments.purge",
            )

    @property
    def may_spare_spark(self) -> bool:
        """Nothing in it is SQL but the partitions in scope."""
        return True

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return self.partition_predicate is None or looks_plain(self.partition_predicate)


@register
class Checkpoint(Operation, frozen=True, kw_only=True, tag="checkpoint"):
    """Write a checkpoint of the latest version."""

    job = f"{_JOBS}.maintenance:checkpoint"


@register
class Vacuum(Operation, frozen=True, kw_only=True, tag="vacuum"):
    """Delete the files that no kept version needs.

    `retention_hours` null: the table's. `inventory`: a Parquet or CSV file in place of a listing. `include_foreign`: in
    a table that was created beside files of others, those may go too.
    """

    job = f"{_JOBS}.maintenance:vacuum"

    retention_hours: Hours | None = None
    dry_run: bool = False
    check_retention: bool = True
    mode: Literal["full", "lite"] = "full"
    inventory: Location | None = None
    include_foreign: bool = False
    parallelism: Annotated[int, Meta(ge=1, le=256, description="a whole number from 1 to 256")] = 8
