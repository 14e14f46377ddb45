"""Mistakes of a job that its texts, the table's log and the paths of its sources show without Spark.

Finding a misspelt column or a missing file takes milliseconds here; later it takes the start of Spark, or the wait for
a cluster. The invariant: Spark or the job would also refuse everything that is refused here; an uncertain case passes
and is judged later. Nothing is staged or written.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import (
    Alter,
    AnySource,
    ApplyChanges,
    ByKeys,
    CheckedOperation,
    Delete,
    DeleteClause,
    FileView,
    InsertClause,
    KeyedOperation,
    KeySource,
    Merge,
    Optimize,
    QuerySource,
    ScopedOperation,
    Sees,
    SourceOperation,
    TableView,
    Update,
    UpdateClause,
    Write,
)
from airflow_txlog.engine import DeltaTable, Snapshot
from airflow_txlog.engine.commit.content.clustering import chosen_columns
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import InvalidJobSpec, InvalidPredicate, TableNotFound, UnknownColumn
from airflow_txlog.errors.names import did_you_mean
from airflow_txlog.exactly_once.transactions import done_in
from airflow_txlog.jobs.context import FixedTexts, JobContext
from airflow_txlog.jobs.executor.local import LocalExecutor
from airflow_txlog.jobs.operations.delete.job import key_field
from airflow_txlog.jobs.operations.merge.by_keys import check_key_columns, check_source_columns
from airflow_txlog.jobs.operations.merge.job import check_aliases
from airflow_txlog.jobs.operations.optimize.order import order_of
from airflow_txlog.jobs.operations.write.job import check_has_partitions
from airflow_txlog.jobs.operations.write.target_columns import check_layout, spelled
from airflow_txlog.jobs.resume.attempts import check_may_remove_rows
from airflow_txlog.jobs.source.columns import found_with_columns
from airflow_txlog.jobs.source.given_keys import key_source_column
from airflow_txlog.jobs.source.listing import check_is_there
from airflow_txlog.jobs.source.tables import check_table_is_there, snapshot_of_view
from airflow_txlog.jobs.sql.columns import (
    NamedRows,
    aliases_of,
    assigned_column,
    check_has_columns,
    check_names,
    unassignable,
)
from airflow_txlog.jobs.sql.current_time import CurrentTime
from airflow_txlog.jobs.sql.functions import check_listed
from airflow_txlog.jobs.sql.gate import ROWS_ALIAS, check_none_spare, missing_value, no_expression, refuse_star
from airflow_txlog.jobs.sql.scope import beyond_partitions
from airflow_txlog.sql import confinement
from airflow_txlog.sql.certain_mistakes import parameters_of, why_no_expression, why_not_cut
from airflow_txlog.sql.expression import Call, Cast, Expression, Literal, Name, parts_of
from airflow_txlog.sql.lexer import KEYWORDS
from airflow_txlog.sql.sql_text import sql_text

# Words that introduce names of a query's own, or a FROM that begins no list of relations.
_WITH_OTHER_NAMES = frozenset(("with", "distinct", "extract", "trim", "substr", "substring", "overlay", "lateral"))
_COMPARING = frozenset(("=", "!=", "<", "<=", ">", ">=", "<=>", "between", "in"))
# A clause begins after none of these.
_IN_LISTS = frozenset((".", ",", "+", "-", "/", "%", "||", "=", "<", ">"))
# Spark's names for the columns of functions that return rows.
_NAMES_OF_SPARK = frozenset(("col", "key", "pos", "value"))


def check_mistakes(spec: JobSpec, table: DeltaTable, *, is_spark_here: bool, has_own_session: bool) -> None:
    """Raise the error with which the job would end on Spark, if that is certain without Spark; done work passes.

    `is_spark_here`: as in `run_job`. `has_own_session`: the job's session has no views of others. Raises TableNotFound,
    InvalidPredicate and its kinds, InvalidJobSpec, SourceNotFound, SchemaMismatch, PartitionMismatch,
    AppendOnlyViolation, and the errors of reading the log.
    """
    nothing_logged: Callable[[str], None] = lambda line: None  # noqa: E731 - the job itself logs what it finds
    context = JobContext(
        spec=spec,
        executor=LocalExecutor(spec),
        table=table,
        log=nothing_logged,
        current_time=CurrentTime(dict),
        # The author's own texts: this check reads no clock.
        texts=FixedTexts(operation=spec.operation.acting, parameters=spec.operation.bound_parameters),
        is_spark_here=is_spark_here,
    )
    snapshot = _snapshot(context)
    if snapshot is not None and done_in(table.store, snapshot, spec) is not None:
        return
    _check_texts(context)
    _Checks(context=context, snapshot=snapshot, has_own_session=has_own_session).run()


def _snapshot(context: JobContext) -> Snapshot | None:
    """Return the latest snapshot of the job's table; None if the job makes the table. Raises TableNotFound."""
    try:
        return context.table.snapshot()
    except TableNotFound:
        operation = context.operation
        if isinstance(operation, Write) and operation.create:
            return None
        raise


def _check_texts(context: JobContext) -> None:
    operation, parameters = context.operation, context.parameters
    used: set[str] = set()
    is_certain = True
    for _, text, sees in operation.texts():
        is_query = sees is Sees.VIEWS
        why = why_not_cut(text) if is_query else why_no_expression(text)
        if why is not None and is_query:
            raise InvalidJobSpec(
                f"The source's SQL is not a query that Spark can run: {why}. Nothing was read.", argument="source"
            )
        if why is not None:
            raise no_expression(text, why)
        if not is_query:
            refuse_star(text)
        cut = sql_text(text)
        is_certain &= cut.problem is None
        used |= set(cut.parameters)
        for name in parameters_of(cut.tokens):
            if name not in parameters:
                raise missing_value(text, name, parameters)
    if is_certain and isinstance(operation, ScopedOperation):
        check_none_spare(operation, used)


@dataclass(kw_only=True)
class _Checks:
    """The checks of one job on one version of its table (None: the job makes it)."""

    context: JobContext
    snapshot: Snapshot | None
    has_own_session: bool

    @property
    def _columns(self) -> StructType | None:
        return None if self.snapshot is None else self.snapshot.delta_schema

    def run(self) -> None:
        operation = self.context.operation
        if isinstance(operation, ScopedOperation):
            self._check_scope(operation)
        if isinstance(operation, CheckedOperation):
            self._check_expectations(operation)
        match operation:
            case Delete():
                self._check_delete(operation)
            case Update():
                self._check_update(operation)
            case Write():
                self._check_write(operation)
            case Merge():
                self._check_merge(operation)
            case KeyedOperation() | ApplyChanges():
                self._check_keyed(operation)
            case Alter() if not (operation.add_columns or operation.rename_columns):
                for text in operation.add_constraints.values():
                    self._check_condition(text, [NamedRows(alias=ROWS_ALIAS, columns=self._columns)])
            case Optimize() if self.snapshot is not None:
                order_of(self.snapshot, operation)
            case _:
                pass

    def _check_scope(self, operation: ScopedOperation) -> None:
        text, columns = operation.partition_predicate, self._columns
        if text is None:
            return
        if self.snapshot is not None:
            names: Iterable[str] = self.snapshot.partition_columns
        else:
            names = (operation.partition_by or ()) if isinstance(operation, Write) else ()
        found = [(name, None if columns is None else columns.find(name)) for name in names]
        fields = [StructField(name, Primitive.STRING) if field is None else field for name, field in found]
        # No name has an alias here, and none of these columns has members: their types do not matter.
        try:
            self._check_condition(text, [NamedRows(alias=ROWS_ALIAS, columns=StructType(tuple(fields)))])
        except UnknownColumn as error:
            columns_of_partitions = [field.name for field in fields]
            raise beyond_partitions(operation, text, error.facts.get("column"), columns_of_partitions) from error

    def _check_expectations(self, operation: CheckedOperation) -> None:
        may_evolve = isinstance(operation, SourceOperation) and operation.schema_evolution
        columns = None if may_evolve else self._columns
        for name, text in operation.expectations.items():
            seen = columns
            if name in operation.dropping and isinstance(operation, SourceOperation):
                is_new_row = isinstance(operation, Write) and not (operation.replace_using or operation.deduplicate_by)
                seen = columns if is_new_row else self._columns_of(operation.source, "source")
            self._check_condition(text, [NamedRows(alias=ROWS_ALIAS, columns=seen)])

    def _check_delete(self, operation: Delete) -> None:
        assert self.snapshot is not None
        check_may_remove_rows(self.snapshot, "DELETE")
        if operation.predicate is not None:
            self._check_condition(operation.predicate, [NamedRows(alias=ROWS_ALIAS, columns=self._columns)])
        keys = operation.keys
        if keys is None:
            return
        key_field(keys, self.snapshot, self.context.root)
        if isinstance(keys, KeySource):
            columns = self._columns_of(keys.source, "keys.source")
            if columns is not None:
                key_source_column(keys, columns.names, called="keys")

    def _check_update(self, operation: Update) -> None:
        assert self.snapshot is not None
        check_may_remove_rows(self.snapshot, "UPDATE")
        rows = [NamedRows(alias=operation.target_alias, columns=self._columns)]
        if operation.predicate is not None:
            self._check_condition(operation.predicate, rows)
        self._check_assigned(operation.set, operation.target_alias, self._columns, rows)

    def _check_write(self, operation: Write) -> None:
        if self.snapshot is not None:
            check_layout(self.context, self.snapshot)
            if operation.mode != "append":
                check_may_remove_rows(self.snapshot, "an overwrite")
            if operation.mode == "overwrite_partitions":
                check_has_partitions(self.context, self.snapshot.partition_columns)
            names = self.snapshot.delta_schema.names
            check_has_columns("replace_using", operation.replace_using or (), names, self.context.root)
            if operation.replace_where is not None:
                self._check_condition(operation.replace_where, [NamedRows(alias=ROWS_ALIAS, columns=self._columns)])
        if self.snapshot is not None or not (operation.partition_by or operation.cluster_by):
            self._look_for(operation.source, "source")
            return
        columns = self._columns_of(operation.source, "source")
        if columns is not None:
            spelled(operation.partition_by or (), columns)
            chosen_columns(operation.cluster_by or (), columns, (), self.context.root)

    def _check_merge(self, operation: Merge) -> None:
        assert self.snapshot is not None
        check_aliases(operation)
        if any(clause.when != "not_matched" for clause in operation.clauses):
            check_may_remove_rows(self.snapshot, "a MERGE with WHEN MATCHED clauses")
        given = self._columns_of(operation.source, "source")
        columns = _evolved(self._columns, given) if operation.schema_evolution else self._columns
        target = NamedRows(alias=operation.target_alias, columns=columns)
        lacks = cache(partial(_has_no_struct, operation.source))
        source = NamedRows(alias=operation.source_alias, columns=given, whose="the source", lacks=lacks)
        self._check_condition(operation.on, [target, source])
        seen = {"matched": [target, source], "not_matched": [source], "not_matched_by_source": [target]}
        for clause in operation.clauses:
            rows = seen[clause.when]
            if clause.condition is not None:
                self._check_condition(clause.condition, rows)
            if isinstance(clause, DeleteClause):
                continue
            assert isinstance(clause, UpdateClause | InsertClause)
            assigned = clause.set if isinstance(clause, UpdateClause) else clause.values
            if not isinstance(assigned, str):
                self._check_assigned(assigned, operation.target_alias, columns, rows)

    def _check_keyed(self, operation: ByKeys) -> None:
        assert self.snapshot is not None
        check_may_remove_rows(self.snapshot, "a MERGE with WHEN MATCHED clauses")
        check_key_columns(operation, self.snapshot, self.context.root)
        columns = self._columns_of(operation.source, "source")
        if columns is not None:
            check_source_columns(operation, columns.names)
        if isinstance(operation, ApplyChanges) and operation.apply_as_deletes is not None:
            self._check_condition(operation.apply_as_deletes, [NamedRows(alias=ROWS_ALIAS, columns=columns)])

    def _check_condition(self, text: str, rows: list[NamedRows]) -> None:
        if sql_text(text).problem is None:
            confinement.check_tokens(sql_text(text))
        check_listed(text)
        check_names(text, rows, aliases_of(self.context.operation))
        _check_dates(text, rows)

    def _check_assigned(
        self, assigned: dict[str, str], alias: str, columns: StructType | None, rows: list[NamedRows]
    ) -> None:
        for name, text in assigned.items():
            if columns is not None and assigned_column(name, columns.by_name, alias) is None:
                raise unassignable(name, columns.names, self.context.root)
            if text.strip().upper() != "DEFAULT":
                check_listed(text)
                check_names(text, rows, f"{aliases_of(self.context.operation)}{_in_quotes(text)}")

    def _columns_of(self, source: AnySource, argument: str) -> StructType | None:
        """Return the columns of a source; None if only Spark knows them. Raises as `_look_for`."""
        if not self._look_for(source, argument):
            return None
        if isinstance(source, TableView):
            return snapshot_of_view(self.context, source, self.snapshot)[0].delta_schema
        if not isinstance(source, FileView) or source.format != "parquet" or not source.may_be_plain:
            return None
        known = found_with_columns(self.context, source, argument)
        return None if known is None else known[1].inferred

    def _look_for(self, source: AnySource, argument: str) -> bool:
        """Look for the files and tables of a source; return False if an earlier try may have materialized its rows.

        Raises SourceNotFound, and InvalidJobSpec for a query that reads more than its views.
        """
        if self._is_tried_again():
            return False
        if isinstance(source, QuerySource) and self.has_own_session and "query" not in self.context.spec.unrestricted:
            _check_views(source, argument)
        views = source.views.items() if isinstance(source, QuerySource) else [("", source)]
        for name, view in views:
            if isinstance(view, TableView):
                check_table_is_there(self.context, view, self.snapshot)
            elif isinstance(view, FileView):
                check_is_there(self.context, view, f"{argument}.views.{name}" if name else argument)
        return True

    def _is_tried_again(self) -> bool:
        context = self.context
        if context.work_folder is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            return next(iter(context.store.list(context.work_folder)), None) is not None
        return False


def _check_views(source: QuerySource, argument: str) -> None:
    """Raise InvalidJobSpec (`argument`) if a restricted query certainly reads a name that is none of its views."""
    tokens = sql_text(source.sql).tokens
    words = [token.text.lower() if token.kind == "word" else "" for token in tokens]
    if _WITH_OTHER_NAMES & set(words):
        return
    known = {name.lower() for name in source.views}
    for at, (word, token) in enumerate(itertools.pairwise([*zip(words, tokens, strict=True)])):
        name, following = token[1], tokens[at + 2 : at + 3]
        if at and (words[at - 1] == "select" or (tokens[at - 1].kind == "symbol" and tokens[at - 1].text in _IN_LISTS)):
            continue  # a column of that name: `m.from sender`
        is_more = bool(following) and following[0].kind == "symbol" and following[0].text in ("(", ".")
        is_free = name.kind == "name" or (name.kind == "word" and token[0] not in KEYWORDS)
        if word[0] in ("from", "join") and is_free and not is_more and name.text.lower() not in known:
            views = ", ".join(source.views) or "none"
            raise InvalidJobSpec(
                f"The source's SQL reads {name.text!r}, and the source has no view of that name."
                f"{did_you_mean(name.text, source.views)} Its views are: {views}. Give each file and table that is "
                'read a name: query("SELECT … FROM rows", rows=files(…)). Nothing was read.',
                argument=argument,
            )


def _check_dates(text: str, rows: Sequence[NamedRows]) -> None:
    """Raise InvalidPredicate for `day = 2024-01-31`, which compares a date with 1992. Spark refuses that too."""
    expression = sql_text(text).expression
    for part in () if expression is None else parts_of(expression):
        if not isinstance(part, Call) or part.operator not in _COMPARING or not _is_date(part.operands[0], rows):
            continue
        dates = [_subtracted_date(operand) for operand in part.operands[1:]]
        found = next((date for date in dates if date is not None), None)
        # In a list with a text Spark may compare texts.
        is_plain = part.operator != "in" or all(
            date is not None or (isinstance(operand, Cast) and operand.target == "date")
            for date, operand in zip(dates, part.operands[1:], strict=True)
        )
        if found is not None and is_plain:
            raise InvalidPredicate(
                f"The text {text!r} compares the column {part.operands[0]}, a DATE, with {found}, which is a "
                f"subtraction: write DATE '{found}', or a parameter. Nothing was read.",
                predicate=text,
            )


def _subtracted_date(operand: Expression) -> str | None:
    """Return `2024-01-31` for a subtraction of whole numbers that is written so; None for anything else."""
    match operand:
        case Call(
            "-",
            (Call("-", (Literal("number", year), Literal("number", month))), Literal("number", day)),
        ) if (year + month + day).isdecimal() and len(year) == 4:
            return f"{year}-{month}-{day}"
    return None


def _is_date(operand: Expression, rows: Sequence[NamedRows]) -> bool:
    if not isinstance(operand, Name):
        return False
    *aliases, column = (token.text.lower() for token in operand.parts)
    named = [side for side in rows if not aliases or [str(side.alias).lower()] == aliases]
    found = [None if side.columns is None else side.columns.find(column) for side in named]
    # With an alias the name may also be the member of a struct.
    is_struct = any(side.columns is None or side.columns.find(aliases[0]) is not None for side in rows if aliases)
    return not is_struct and len(found) == 1 and found[0] is not None and found[0].type is Primitive.DATE


# Words that name columns which the text does not: members of structs, and col1.
_NAMING = frozenset(("inline", "inline_outer", "values"))


def _has_no_struct(source: AnySource, name: str) -> bool:
    """Return whether no column of the source can be a struct of this name, whatever its files hold."""
    if isinstance(source, FileView):
        return source.format == "csv"
    if not isinstance(source, QuerySource) or name.lower() in _NAMES_OF_SPARK:
        return False
    # A column of the name is one that the text names, in a type's text too, or that a star, TABLE or FROM first adds.
    cut = sql_text(source.sql)
    words = {token.text.lower() for token in cut.tokens}
    in_texts = any(name.lower() in token.text.lower() for token in cut.tokens if token.kind == "string")
    if cut.problem is not None or name.lower() in words or in_texts or "table" in words or "select" not in words:
        return False
    if cut.tokens[0].word == "from" or not words.isdisjoint(_NAMING):
        return False
    has_star = any(token.text == "*" for token in cut.tokens)
    views = source.views.values()
    return not has_star or (bool(views) and all(isinstance(view, FileView) and view.format == "csv" for view in views))


def _in_quotes(text: str) -> str:
    """Return the advice to put a new value of one bare word into quotes, for the end of a message; else nothing."""
    return f""" If it is a text, put it into quotes: "'{text.strip()}'".""" if text.strip().isidentifier() else ""


def _evolved(table: StructType | None, source: StructType | None) -> StructType | None:
    if table is None or source is None:
        return None
    return StructType((*table, *(field for field in source if table.find(field.name) is None)))
