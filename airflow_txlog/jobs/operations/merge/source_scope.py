"""A MERGE scoped by itself: the partitions that its materialized source can meet, where ON compares a partition column.

Where a conjunct of ON is `t.p = expr(s)` or `t.p <=> expr(s)`, a target row in another partition than the source's
values name can match nothing, so it need not be read, and what happens there is no conflict. The scope bounds what is
read; it forbids nothing: an insert or an update may land outside of it. The invariant: a row that ON matches lies in
the scope, whatever the types, nulls and precedences; where that is not certain, or where `expr(s)` fails on a source
row that the rest of ON excludes, there is no scope. Source: soundness A14.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.partitioning import partition_string
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.predicate import Predicate, partitions_of
from airflow_txlog.engine.table.predicate.tree import (
    FALSE,
    Column,
    Comparison,
    Node,
    NullTest,
    Operator,
    PartitionSet,
    Value,
    all_of,
    any_of,
    describe,
    leaves,
)
from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.engine.table.schema.schema import arrow_type
from airflow_txlog.errors import InvalidPredicate, TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.source import MaterializedSource
from airflow_txlog.jobs.operations.merge.clauses import Sides
from airflow_txlog.jobs.spark.causes import condition_of
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.gate import SqlGate, quoted
from airflow_txlog.jobs.sql.schemas import is_same_type
from airflow_txlog.lexing import Lexed, Token, Unreadable, lex
from airflow_txlog.wording import plural

# Above so many combinations of values, each column's least and greatest do.
MOST_VALUES = 10_000
# So much of the materialized source is read on the driver rather than by a Spark job.
MOST_BYTES_READ = 64 * 1024 * 1024

_INTEGERS = (delta.Primitive.BYTE, delta.Primitive.SHORT, delta.Primitive.INTEGER, delta.Primitive.LONG)
_SCOPING = (*_INTEGERS, delta.Primitive.DATE, delta.Primitive.STRING, delta.Primitive.BOOLEAN)
_SPARK_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})

_EQUALITIES = {"=": False, "==": False, "<=>": True}
_COMPARISONS = frozenset({*_EQUALITIES, "<>", "!=", "<", "<=", ">", ">=", "!", "->", "=>"})
# Words that bind as loosely as a comparison, or more: beside one of these, what stands next to `=` is not its operand.
_LOOSE_WORDS = frozenset({"and", "or", "not", "is", "in", "between", "like", "ilike", "rlike", "regexp", "exists"})
# Words that open and close as parentheses do; a bare column of one of these names cannot be distinguished from them.
_CASES = {"case": 1, "end": -1}
LITERAL_WORDS = frozenset({"true", "false", "null"})
_OPENING, _CLOSING = frozenset("(["), frozenset(")]")
_OPEN, _CLOSE, _DOT = Token("symbol", "("), Token("symbol", ")"), Token("symbol", ".")

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Equality:
    """`column = sql` or, null-safe, `column <=> sql`: a partition column of the target, and SQL of the source's."""

    column: str
    sql: str
    null_safe: bool


# Equalities that scope, each with the column that it compares.
Chosen = Sequence[tuple[Equality, delta.StructField]]


def scoping_equalities(
    on: str,
    *,
    target_alias: str,
    partition_columns: Collection[str],
    target_columns: Collection[str],
    source_columns: Collection[str],
) -> list[Equality]:
    """The conjuncts of a condition that compare a bare partition column for equality; what with is for Spark to judge.

    Empty where the text or a name in it may mean something else.
    """
    found = conjuncts_as_equalities(
        on,
        target_alias=target_alias,
        partition_columns=partition_columns,
        target_columns=target_columns,
        source_columns=source_columns,
    )
    return [equality for equality in found if equality is not None]


def conjuncts_as_equalities(
    on: str,
    *,
    target_alias: str,
    partition_columns: Collection[str],
    target_columns: Collection[str],
    source_columns: Collection[str],
) -> list[Equality | None]:
    """All conjuncts of a condition, None for one that is no such equality.

    Empty where the text or a name in it may mean something else.
    """
    others = {name.lower() for name in source_columns}
    every = others | {name.lower() for name in target_columns}
    try:
        lexed = lex(on)
    except Unreadable:
        return []
    if target_alias.lower() in every or not _is_nested_plainly(lexed, every):
        return []
    named = {name.lower(): name for name in partition_columns}

    def partition_column(span: Span) -> str | None:
        tokens = lexed.tokens[slice(*span)]
        if any(token.kind not in ("word", "name") for token in tokens[::2]):
            return None
        if len(tokens) == 3 and tokens[1] == _DOT and tokens[0].text.lower() == target_alias.lower():
            return named.get(tokens[2].text.lower())
        if len(tokens) == 1 and tokens[0].text.lower() not in others | LITERAL_WORDS:
            return named.get(tokens[0].text.lower())
        return None

    return [_equality(lexed, conjunct, partition_column, on) for conjunct in _conjuncts(lexed, (0, len(lexed.tokens)))]


@dataclass(kw_only=True)
class AutoScope:
    """Finds the scope of one merge job, in each of its attempts; the source's values are looked up once."""

    context: JobContext
    gate: SqlGate
    _found: tuple[MaterializedSource, object, Predicate | None] | None = None

    def of(self, snapshot: Snapshot, sides: Sides, source: MaterializedSource, on: str) -> Predicate | None:
        """Where in the table a row can be that the accepted condition `on` matches with some row of the source.

        A predicate over partition columns, or None where nothing bounds it.
        """
        chosen = self._chosen(snapshot, sides, source, on)
        if not chosen:
            return None
        key = [(equality, field.name, field.type) for equality, field in chosen]
        if self._found is None or self._found[0] is not source or self._found[1] != key:
            self._found = (source, key, self._look(chosen, sides, source))
        return self._found[2]

    def _chosen(self, snapshot: Snapshot, sides: Sides, source: MaterializedSource, on: str) -> Chosen:
        fields = [snapshot.delta_schema.find(name) for name in snapshot.partition_columns]
        able = {field.name: field for field in fields if field is not None and _can_scope(field)}
        equalities = scoping_equalities(
            on,
            target_alias=sides.target_alias,
            partition_columns=list(able),
            target_columns=snapshot.delta_schema.names,
            source_columns=source.schema.names,
        )
        chosen: dict[str, tuple[Equality, delta.StructField]] = {}
        for equality in equalities:
            if equality.column not in chosen and self._compares_plainly(equality, sides):
                chosen[equality.column] = (equality, able[equality.column])
        return list(chosen.values())

    def _compares_plainly(self, equality: Equality, sides: Sides) -> bool:
        """Whether the other side names columns of the source alone, and no cast changes a value to compare it."""
        try:
            found = self.gate.value(equality.sql, sides.source_alone)
        except InvalidPredicate:
            return False
        wanted = sides.target[equality.column].dataType
        both_whole = {found.simpleString(), wanted.simpleString()} <= _SPARK_INTEGERS
        return both_whole or is_same_type(found, wanted)

    def _look(self, chosen: Chosen, sides: Sides, source: MaterializedSource) -> Predicate | None:
        read = _read_values(chosen, sides, source)
        if read is not None and read.num_rows <= MOST_VALUES:
            return values_of(chosen, read)
        try:
            return self._evaluated(chosen, sides, source)
        except TxlogError as error:
            # An expression is evaluated here on every source row, also on those that the rest of ON keeps from it.
            # The join reads the same rows: what is wrong with them fails there. Spark's message may show a value.
            cause = None if error.__cause__ is None else condition_of(error.__cause__)
            names = ", ".join(field.name for _, field in chosen)
            self.context.log(
                f"the source's values for {names} cannot be computed alone ({cause or type(error).__name__}), so they "
                "do not bound what is read"
            )
            return None

    def _evaluated(self, chosen: Chosen, sides: Sides, source: MaterializedSource) -> Predicate:
        """The same by Spark jobs over the source's rows. Raises as `collect` does."""
        view = self.context.view_name()
        source.frame.createOrReplaceTempView(view)
        relation = f"{quoted(view)} AS {quoted(sides.source_alias)}"
        columns = ", ".join(f"(\n{equality.sql}\n) AS c{number}" for number, (equality, _) in enumerate(chosen))
        what = "find the partitions that the source names"
        query = f"SELECT DISTINCT {columns} FROM {relation} LIMIT {MOST_VALUES + 1}"
        values = collect(self.gate.run(query), what)
        if values.num_rows <= MOST_VALUES:
            return values_of(chosen, values)
        ends = ", ".join(f"min(c{n}), max(c{n}), max(c{n} IS NULL)" for n in range(len(chosen)))
        return ranges_of(chosen, collect(self.gate.run(f"SELECT {ends} FROM (SELECT {columns} FROM {relation})"), what))


def values_of(chosen: Chosen, values: pa.Table) -> Predicate:
    """The partitions that distinct values (a column for each equality, in order) name.

    A null names the null partition by `<=>`, and nothing by `=`; so does a text of no length nothing, which tables
    keep as null; nor does a number that the column cannot hold.
    """
    texts = []
    keep = pa.array([True] * values.num_rows, pa.bool_())
    for (equality, field), column in zip(chosen, values.columns, strict=True):
        array, can_equal = _in_column_type(column.combine_chunks(), field)
        keep = pc.and_(keep, can_equal if equality.null_safe else pc.and_(can_equal, pc.is_valid(array)))
        texts.append(partition_string(array))
    names = [field.name for _, field in chosen]
    rows = zip(zip(*texts, strict=True), keep.to_pylist(), strict=True)
    found = partitions_of([dict(zip(names, row, strict=True)) for row, kept in rows if kept])
    return Predicate(found.sql, found.tree, frozenset(names))


def ranges_of(chosen: Chosen, ends: pa.Table) -> Predicate:
    """The partitions between two ends; `ends` is one row of the least, the greatest and "is one null" of each."""
    children: list[Node] = []
    for number, (equality, field) in enumerate(chosen):
        column = Column(field.name, field.type)
        low, high = (_plain(ends.column(3 * number + end), field) for end in (0, 1))
        inside: Node = FALSE
        if low is not None and high is not None:
            inside = all_of([Comparison(column, Operator.GE, low), Comparison(column, Operator.LE, high)])
        if equality.null_safe and ends.column(3 * number + 2)[0].as_py():
            inside = any_of([inside, NullTest(column, is_null=True)])
        children.append(inside)
    tree = all_of(children)
    names = [field.name for _, field in chosen]
    return Predicate(describe(tree), tree, frozenset(names))


def described(scope: Predicate) -> str:
    """What the source names, in words for people."""
    names = ", ".join(sorted(scope.columns or ()))
    sets = [leaf for leaf in leaves(scope.tree) if isinstance(leaf, PartitionSet)]
    if sets or scope.tree == FALSE:
        return f"{plural(sum(len(leaf.rows) for leaf in sets), 'value')} of {names}"
    return f"a range of {names}"


def _read_values(chosen: Chosen, sides: Sides, source: MaterializedSource) -> pa.Table | None:
    """The distinct values, a column for each equality, read out of the materialized files without a Spark job.

    None where some equality is with more than a bare column of the source, or where there is much to read.
    """
    found = [_source_column(equality.sql, sides) for equality, _ in chosen]
    names = [name for name in found if name is not None]
    if len(names) < len(found) or source.num_rows == 0 or source.bytes_of(names) > MOST_BYTES_READ:
        return None
    distinct = list(dict.fromkeys(names))
    parts = []
    for file in source.files:
        with source.store.open_input(file.store_path) as stream:
            parts.append(pq.ParquetFile(stream).read(columns=distinct))
    values = pa.concat_tables(parts).group_by(distinct).aggregate([])
    return pa.table([values.column(name) for name in names], names=[f"c{number}" for number in range(len(names))])


def _source_column(sql: str, sides: Sides) -> str | None:
    """The source's column that the text is, and nothing but it."""
    columns = {name.lower(): name for name in sides.source.names}
    alias = sides.source_alias.lower()
    tokens = lex(sql).tokens
    if len(tokens) == 3 and tokens[1] == _DOT and tokens[0].text.lower() == alias and alias not in columns:
        tokens = tokens[2:]
    if len(tokens) != 1 or tokens[0].kind not in ("word", "name") or tokens[0].text.lower() in LITERAL_WORDS:
        return None
    name = columns.get(tokens[0].text.lower())
    # With a dot, Arrow would take the name for a path.
    return None if name is None or "." in name else name


def _can_scope(field: delta.StructField) -> bool:
    """Whether two values of the column are equal to everybody exactly where the log's texts say the same value."""
    if field.is_collated or "__CHAR_VARCHAR_TYPE_STRING" in field.metadata:
        return False
    return isinstance(field.type, delta.DecimalType) or field.type in _SCOPING


def _in_column_type(array: pa.Array, field: delta.StructField) -> tuple[pa.Array, pa.BooleanArray]:
    """The values in the column's type, and which of them some row of the column may equal; null is one of them."""
    if field.type in _INTEGERS:
        low, high = _bounds(field)
        fits = pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))
        array = pc.if_else(pc.fill_null(fits, False), array, None).cast(arrow_type(field.type))
    elif field.type is delta.Primitive.STRING:
        fits = pc.not_equal(array, "")
    else:
        fits = pa.repeat(pa.scalar(True), len(array))
    return array, pc.fill_null(fits, True)


def _bounds(field: delta.StructField) -> tuple[int, int]:
    bits = arrow_type(field.type).bit_width
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _plain(end: pa.ChunkedArray, field: delta.StructField) -> Value | None:
    """One end of a range as a predicate holds it: days for a date, a whole number moved into the column's own."""
    scalar = end[0]
    if not scalar.is_valid:
        return None
    if field.type is delta.Primitive.DATE:
        scalar = scalar.cast(pa.int32())
    value: Value = scalar.as_py()
    if field.type in _INTEGERS and isinstance(value, int):
        low, high = _bounds(field)
        # Beyond the last value, the nearest one keeps a partition too many at most.
        value = min(max(value, low), high)
    return value


# --- the text --------------------------------------------------------------------------------------------------------


def _conjuncts(lexed: Lexed, span: Span) -> Iterator[Span]:
    """The conjuncts of a condition, those within parentheses too; what an OR stands in is one."""
    parts, has_or = _split(lexed, span)
    if has_or:
        yield span
        return
    for part in parts:
        inner = _within_parentheses(lexed, part)
        if inner is None:
            yield part
        else:
            yield from _conjuncts(lexed, inner)


def _split(lexed: Lexed, span: Span) -> tuple[list[Span], bool]:
    """The text cut at each AND that joins conditions, and whether an OR does."""
    parts = []
    start, betweens = span[0], 0
    for index, word in _loose_words(lexed, span):
        if word == "or":
            return [], True
        if word == "between":
            betweens += 1
        elif word == "and" and betweens:
            betweens -= 1
        elif word == "and":
            parts.append((start, index))
            start = index + 1
    return [*parts, (start, span[1])], False


def _is_nested_plainly(lexed: Lexed, columns: Collection[str]) -> bool:
    """Every parenthesis and every CASE closes, and no column has the name of either end of a CASE."""
    depth = 0
    for index in range(len(lexed.tokens)):
        depth += _nesting(lexed, index)
        if depth < 0:
            return False
    return depth == 0 and not set(_CASES) & set(columns)


def _nesting(lexed: Lexed, index: int) -> int:
    """1 for a token that opens, -1 for one that closes, else 0."""
    token = lexed.tokens[index]
    if token.kind == "symbol":
        return (token.text in _OPENING) - (token.text in _CLOSING)
    return _CASES.get(token.text.lower(), 0) if token.kind == "word" and not _is_member(lexed, index) else 0


def _is_member(lexed: Lexed, index: int) -> bool:
    """After a dot, a word is a name and nothing else."""
    return index > 0 and lexed.tokens[index - 1] == _DOT


def _loose_words(lexed: Lexed, span: Span) -> Iterator[tuple[int, str]]:
    """The words of `_LOOSE_WORDS` and the comparisons outside of every parenthesis and CASE, with their places."""
    depth = 0
    for index in range(*span):
        token = lexed.tokens[index]
        depth += _nesting(lexed, index)
        if depth == 0 and token.kind == "symbol" and token.text in _COMPARISONS:
            yield index, token.text
        elif depth == 0 and token.kind == "word" and not _is_member(lexed, index):
            word = token.text.lower()
            if word in _LOOSE_WORDS:
                yield index, word


def _within_parentheses(lexed: Lexed, span: Span) -> Span | None:
    """What one pair of parentheses around the whole text holds, or None."""
    first, end = span
    if end - first < 3 or lexed.tokens[first] != _OPEN:
        return None
    depth = 0
    for index in range(first, end):
        token = lexed.tokens[index]
        depth += (token == _OPEN) - (token == _CLOSE)
        if depth == 0:
            return (first + 1, end - 1) if index == end - 1 else None
    return None


def _equality(lexed: Lexed, span: Span, column_of: Callable[[Span], str | None], on: str) -> Equality | None:
    loose = list(_loose_words(lexed, span))
    if len(loose) != 1 or loose[0][1] not in _EQUALITIES:
        return None
    ((at, operator),) = loose
    sides = ((span[0], at), (at + 1, span[1]))
    for one, other in (sides, sides[::-1]):
        column = column_of(one)
        if column is not None and other[0] < other[1]:
            sql = on[lexed.spans[other[0]][0] : lexed.spans[other[1] - 1][1]]
            return Equality(column=column, sql=sql, null_safe=_EQUALITIES[operator])
    return None
