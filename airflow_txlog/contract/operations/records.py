"""The operations, one record each. A new operation is described here and nowhere else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from airflow_txlog.contract.operations.base import (
    REPLACED,
    CheckedOperation,
    LimitedOperation,
    Operation,
    ScopedOperation,
    SourceOperation,
    register,
)
from airflow_txlog.contract.operations.fields import (
    AnyKeys,
    AnySource,
    Assignments,
    Bytes,
    Clauses,
    ColumnNames,
    DeleteClause,
    FileView,
    Hours,
    InsertClause,
    KeySource,
    Location,
    Minutes,
    Moment,
    PairText,
    RowsInProcess,
    Share,
    SomeColumnNames,
    TableText,
    TableView,
    Text,
    TextMap,
    UpdateClause,
    Version,
)
from airflow_txlog.contract.operations.reading import want
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.locations import LOCAL, scheme_of
from airflow_txlog.sql.certain_mistakes import compared_with_itself
from airflow_txlog.sql.expression import Call, Expression, Opaque, parts_of
from airflow_txlog.sql.sql_text import sql_text

_JOBS = "airflow_txlog.jobs.operations"

COMPUTED = frozenset(
    (
        *("and", "or", "not", "=", "!=", "<", "<=", ">", ">=", "<=>", "in", "between", "is null", "like", "case", "+"),
        *("-", "*", "/", "%", "||", "negate", "abs()", "btrim()", "char_length()", "coalesce()", "concat()"),
        *("date_add()", "date_format()", "date_sub()", "date_trunc()", "datediff()", "day()", "dayofmonth()", "hour()"),
        *("if()", "ifnull()", "lcase()", "left()", "length()", "lower()", "ltrim()", "minute()", "month()"),
        *("named_struct()", "nullif()", "nvl()", "right()", "round()", "rtrim()", "second()", "substr()"),
        *("substring()", "to_date()", "trim()", "ucase()", "upper()", "year()", "mod()", "floor()", "ceil()"),
        *("ceiling()", "greatest()", "least()", "contains()", "startswith()", "endswith()", "replace()"),
        "add_months()",
    )
)
"""The operators and functions of the table in `sql.evaluation`, which this module must not import."""


# The next functions guess whether a job can do without Spark; the types of the columns are not known here. The job
# decides (`jobs/sql`). A wrong guess starts a process, or a Spark, that was not needed; it changes no result.


def looks_plain(text: str | None) -> bool:
    """Return whether a text, if there is one, has only names, constants and operations that are computed here."""
    if text is None:
        return True
    expression = sql_text(text).expression
    return expression is not None and all(map(_looks_plain, parts_of(expression)))


def _looks_plain(part: Expression) -> bool:
    return part.operator in COMPUTED if isinstance(part, Call) else not isinstance(part, Opaque)


def may_be_read_here(source: AnySource) -> bool:
    """Return whether Arrow may read the source: Parquet files, one of our tables, or rows in this process."""
    return isinstance(source, TableView | RowsInProcess) or (isinstance(source, FileView) and source.may_be_plain)


def is_in_reach(source: AnySource, *, is_spark_here: bool) -> bool:
    """Return whether this process finds the source's files: a path names another disk where Spark is elsewhere."""
    is_on_disk = isinstance(source, FileView) and any(scheme_of(path) == LOCAL for path in source.paths)
    return is_spark_here or not is_on_disk


@register
class Write(SourceOperation, frozen=True, kw_only=True, tag="write"):
    """Append the source's rows, or overwrite the table or a part of it with them.

    `mode` "overwrite_partitions" replaces the partitions that occur in the source. An overwrite replaces the rows that
    satisfy `replace_where`, and every new row must satisfy it; with `replace_using`, the rows whose values in these
    columns occur in the source. `on_conflict` "fail": the overwrite fails if rows landed since its first try began.
    `create`: create a missing table by the fields below, with `allow_non_empty` also in a folder with other files.
    """

    job = f"{_JOBS}.write.job:write"
    needs_spark = True
    changes_rows = True
    rows = {"numOutputRows": "written", "numDeletedRows": REPLACED}

    mode: Literal["append", "overwrite", "overwrite_partitions"] = "append"
    replace_where: TableText | None = None
    replace_using: SomeColumnNames | None = None
    on_conflict: Literal["replan", "fail"] = "replan"
    partition_by: ColumnNames | None = None
    cluster_by: ColumnNames | None = None
    create: bool = True
    allow_non_empty: bool = False
    properties: TextMap = msgspec.field(default_factory=dict)

    def check(self) -> None:
        possible = self.replace_where is None or self.mode == "overwrite"
        want(
            "arguments.replace_where", possible, f'None in mode "{self.mode}": add mode="overwrite"', self.replace_where
        )
        possible = self.replace_using is None or (self.mode == "overwrite" and self.replace_where is None)
        needs = "None with replace_where" if self.mode == "overwrite" else 'None without mode="overwrite"'
        want("arguments.replace_using", possible, needs)
        distinct = len({column.lower() for column in self.replace_using or ()}) == len(self.replace_using or ())
        want("arguments.replace_using", distinct, "a list of different column names", self.replace_using)
        possible = not (self.partition_by and self.cluster_by)
        want("arguments.cluster_by", possible, "None with partition_by: no table has both", self.cluster_by)
        possible = self.on_conflict != "fail" or self.mode != "append"
        want("arguments.on_conflict", possible, '"replan" in mode "append", which reads nothing', self.on_conflict)

    @property
    def counts_from_first_try(self) -> bool:
        return self.on_conflict == "fail"

    @property
    def may_spare_spark(self) -> bool:
        if self.replace_using is not None:
            # A merge does the work, and Spark has to evolve the schema of one.
            return may_be_read_here(self.source) and not self.schema_evolution
        is_file = isinstance(self.source, FileView) and self.source.may_be_plain
        return is_file or isinstance(self.source, RowsInProcess)

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        is_plain = all(map(looks_plain, [self.replace_where, *self.expectations.values()]))
        return self.may_spare_spark and is_plain and is_in_reach(self.source, is_spark_here=is_spark_here)


class WithKeys:
    """The answers of an operation whose `keys` may be read from a source. They replace those of `Operation`."""

    __slots__ = ()
    keys: Any

    @property
    def holds_rows(self) -> bool:
        return isinstance(self.keys, KeySource) and isinstance(self.keys.source, RowsInProcess)

    @property
    def may_spare_spark(self) -> bool:
        return not isinstance(self.keys, KeySource) or may_be_read_here(self.keys.source)

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        if isinstance(self.keys, KeySource) and not is_in_reach(self.keys.source, is_spark_here=is_spark_here):
            return False
        return self.may_spare_spark


@register
class Delete(WithKeys, LimitedOperation, frozen=True, kw_only=True, tag="delete"):
    """Delete the rows for which `predicate` is true (null: every row), or that have one of the keys.

    `require_match`: fail if the predicate is true for no row, or if a key is in no row.
    """

    job = f"{_JOBS}.delete.job:delete"
    needs_spark = True
    changes_rows = True
    rows = {"numDeletedRows": "deleted"}

    predicate: TableText | None
    keys: AnyKeys | None = None
    require_match: bool = False

    def check(self) -> None:
        possible = self.keys is None or self.predicate is None
        want("arguments.predicate", possible, "None where keys are given", self.predicate)

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return super().likely_spares_spark(is_spark_here=is_spark_here) and looks_plain(self.predicate)


@register
class Update(CheckedOperation, frozen=True, kw_only=True, tag="update"):
    """Assign new values to the rows for which `predicate` is true (null: every row).

    `require_match`: fail if the predicate is true for no row.
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
        return True

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return all(map(looks_plain, [self.predicate, *self.set.values(), *self.expectations.values()]))


@register
class Merge(SourceOperation, frozen=True, kw_only=True, tag="merge"):
    """Match the source's rows with the table's, and apply to each row the first clause whose condition holds.

    `require_match`: fail if a source row matches no row. No clause may insert then.
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
        mistake = compared_with_itself(self.on, (self.target_alias, self.source_alias))
        if mistake is not None:
            raise InvalidJobSpec(f"on {mistake} Nothing was read.", argument="arguments.on")

    @property
    def may_spare_spark(self) -> bool:
        return may_be_read_here(self.source) and not self.schema_evolution

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        is_plain = all(map(looks_plain, [self.on, *self.clause_texts, *self.expectations.values()]))
        return self.may_spare_spark and is_plain and is_in_reach(self.source, is_spark_here=is_spark_here)

    @property
    def clause_texts(self) -> list[str]:
        """The SQL texts of the clauses: conditions, and assigned values; `*` has none."""
        found = [clause.condition for clause in self.clauses if clause.condition is not None]
        for clause in self.clauses:
            if not isinstance(clause, DeleteClause):
                given = clause.set if isinstance(clause, UpdateClause) else clause.values
                found += [] if isinstance(given, str) else given.values()
        return found


@register
class Truncate(Operation, frozen=True, kw_only=True, tag="truncate"):
    """Remove every row, by the log alone."""

    job = f"{_JOBS}.truncate:truncate"
    changes_rows = True
    may_wait = True
    rows = {"numDeletedRows": "deleted"}


@register
class Restore(Operation, frozen=True, kw_only=True, tag="restore"):
    """Make an earlier version the latest again. `timestamp` is ISO-8601, in UTC if it names no zone."""

    job = f"{_JOBS}.restore:restore"
    changes_rows = True
    uses_ledger = True

    version: Version | None = None
    timestamp: Moment | None = None
    ignore_missing: bool = False

    def check(self) -> None:
        is_given = self.version is not None or self.timestamp is not None
        want("arguments.version", is_given, "given, or timestamp: one of them")
        possible = self.version is None or self.timestamp is None
        want("arguments.version", possible, "left out where timestamp is given: both were")

    @property
    def counts_from_first_try(self) -> bool:
        return True


@register
class Convert(Operation, frozen=True, kw_only=True, tag="convert"):
    """Make a folder of Parquet files a table in one commit, without moving data.

    `partition_schema`: the columns that folders name, with their types, as DDL: `day DATE, shop STRING`.
    """

    job = f"{_JOBS}.convert.job:convert"
    changes_rows = True
    uses_ledger = True
    rows = {"numOutputRows": "added"}

    partition_schema: Text | None = None
    properties: TextMap = msgspec.field(default_factory=dict)
    collect_statistics: bool = True
    dry_run: bool = False


@register
class Clone(Operation, frozen=True, kw_only=True, tag="clone"):
    """Make the table a clone of the source, at a version or a moment: shallow, or with copies of its files.

    `replace`: also a table that exists, whose rows become the source's; a deep clone copies what it lacks.
    `properties`: instead of the source's of these names.
    """

    job = f"{_JOBS}.clone:clone"
    changes_rows = True
    uses_ledger = True

    source: TableView
    timestamp: Moment | None = None
    shallow: bool = False
    replace: bool = False
    properties: TextMap = msgspec.field(default_factory=dict)

    def check(self) -> None:
        one = self.timestamp is None or not self.source.names_version
        want("arguments.timestamp", one, "None with a version or a staged change", self.timestamp, is_shown=True)


@register
class Optimize(ScopedOperation, frozen=True, kw_only=True, tag="optimize"):
    """Compact small files, or sort all by `zorder_by`, or (`purge`) rewrite those with a deletion vector.

    A clustered table is clustered in place of compacted; with `full` also its files that are clustered in another way,
    and its small cubes become one. `target_bytes` null: the table's `delta.targetFileSize`, else 256 MiB.
    `batch_bytes`: how much one commit rewrites; null: everything.
    """

    job = f"{_JOBS}.optimize.job:optimize"
    needs_spark = True

    zorder_by: ColumnNames | None = None
    purge: bool = False
    full: bool = False
    target_bytes: Bytes | None = None
    batch_bytes: Bytes | None = 32 * 1024**3

    def check(self) -> None:
        if self.zorder_by and self.purge:
            raise InvalidJobSpec(
                "zorder_by and purge exclude each other: a purge rewrites the files that have deleted "
                "rows and no others, a Z-order all of them (and purges them by the way). Nothing was read.",
                argument="arguments.purge",
            )
        possible = not self.full or not (self.zorder_by or self.purge or self.partition_predicate)
        want("arguments.full", possible, "false with zorder_by, purge and partition_predicate", self.full)

    @property
    def may_spare_spark(self) -> bool:
        return True

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return looks_plain(self.partition_predicate)


@register
class Upkeep(Operation, frozen=True, kw_only=True, tag="upkeep"):
    """Do what is due: purge, compact, write a checkpoint, clean the log, vacuum.

    `purge_above`: the share of deleted rows above which all files with a deletion vector are rewritten; null: never.
    `vacuum` "lite" becomes full if the log does not reach back to the last one; null: none. `max_bytes`: the most
    bytes to rewrite. `max_minutes`: when no further step or commit begins. `dry_run`: report the steps that are due.
    """

    job = f"{_JOBS}.upkeep:upkeep"
    needs_spark = True

    compact: bool = True
    purge_above: Share | None = 0.05
    checkpoint: bool = True
    vacuum: Literal["lite", "full"] | None = "lite"
    retention_hours: Hours | None = None
    target_bytes: Bytes | None = None
    max_bytes: Bytes | None = None
    max_minutes: Minutes | None = None
    dry_run: bool = False

    @property
    def may_spare_spark(self) -> bool:
        return True

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return True


@register
class Checkpoint(Operation, frozen=True, kw_only=True, tag="checkpoint"):
    """Write a checkpoint of the latest version."""

    job = f"{_JOBS}.maintenance:checkpoint"


@register
class Vacuum(Operation, frozen=True, kw_only=True, tag="vacuum"):
    """Delete the files that no kept version needs.

    `retention_hours` null: the table's. `inventory`: a Parquet or CSV file that replaces the listing.
    `include_foreign`: also delete the foreign files of a table that was created in a folder with such files.
    """

    job = f"{_JOBS}.maintenance:vacuum"

    retention_hours: Hours | None = None
    dry_run: bool = False
    check_retention: bool = True
    mode: Literal["full", "lite"] = "full"
    inventory: Location | None = None
    include_foreign: bool = False
    parallelism: Annotated[int, Meta(ge=1, le=256, description="a whole number from 1 to 256")] = 8
