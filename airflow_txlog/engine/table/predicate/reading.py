"""From Spark SQL text to a `Predicate` of the closed grammar.

The parser's tree (`sql`) is read leaf by leaf; only the operations listed in `_LeafReader` are read, and the rest is
`Opaque`. The invariant: SQL is never made from a tree; Spark always gets the author's text. The reading holds with ANSI
mode on and off and with the defaults of `spark.sql.timestampType`, `spark.sql.caseSensitive` and the legacy flags.
Source: soundness A3, A4, B6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from airflow_txlog.engine.table.predicate import coercion, constants
from airflow_txlog.engine.table.predicate.binding import NotPlain, folded
from airflow_txlog.engine.table.predicate.constants import Constant, OutsideGrammar
from airflow_txlog.engine.table.predicate.names import Names, columns_in_text, is_special
from airflow_txlog.engine.table.predicate.tree import Operand, Operator, Predicate, null_test, type_of_call
from airflow_txlog.engine.table.schema.types import Primitive, StructType
from airflow_txlog.errors import InvalidPredicate, UnknownColumn
from airflow_txlog.errors.names import did_you_mean, shown_names
from airflow_txlog.sql import confinement
from airflow_txlog.sql.evaluation import known_as
from airflow_txlog.sql.expression import (
    FALSE,
    TRUE,
    Call,
    Cast,
    Expression,
    Literal,
    Name,
    Opaque,
    Parameter,
    all_of,
    any_of,
    described,
    parts_of,
)
from airflow_txlog.sql.lexer import has_half_of_a_character
from airflow_txlog.sql.sql_text import SqlText, quoted_hint, sql_text

_OPERATORS = {operator.value: operator for operator in Operator}


@dataclass(frozen=True, slots=True)
class _LeafReader:
    """Reads the leaves of one predicate. `sql` is for messages."""

    names: Names
    parameters: Mapping[str, object]
    time_zone: str
    sql: str

    def read(self, node: Expression, negated: bool) -> Expression:
        """Return the leaf, or the small tree of a `<=>`. Raises OutsideGrammar."""
        match node:
            case Call(operator, (left, right)) if operator in _OPERATORS:
                column, constant, exchanged = self._sides(left, right)
                asked = _OPERATORS[operator].mirrored if exchanged else _OPERATORS[operator]
                return coercion.comparison(column, asked.negated if negated else asked, constant, self.time_zone)
            case Call("<=>", (left, right)):
                column, constant, _ = self._sides(left, right)
                return coercion.null_safe(column, constant, self.time_zone, negated)
            case Call("in", (operand, *members)):
                values = [self._constant(each) for each in members]
                return coercion.membership(self._column(operand), values, self.time_zone, negated)
            case Call("like" | "like()", (operand, pattern)):
                return coercion.like(self._column(operand), self._constant(pattern), negated)
            case Call("is null" | "is unknown", (operand,)):
                return null_test(self._column(operand), is_null=not negated)
            case Call("is true" | "is false", (operand,)):
                truth = Constant(Primitive.BOOLEAN, node.operator == "is true")
                return coercion.null_safe(self._column(operand), truth, self.time_zone, negated)
            case Name():
                asked = Operator.NE if negated else Operator.EQ
                return coercion.comparison(self._column(node), asked, Constant(Primitive.BOOLEAN, True), self.time_zone)
            case Literal("boolean" | "null") | Parameter():
                return _constant_alone(self._constant(node), negated)
        raise OutsideGrammar(described(node))

    def _sides(self, left: Expression, right: Expression) -> tuple[Operand, Constant, bool]:
        """Return the column, the constant, and whether the constant came first."""
        if _is_known(left):
            return self._column(left), self._constant(right), False
        if _is_known(right):
            return self._column(right), self._constant(left), True
        raise OutsideGrammar(described(left))

    def _column(self, node: Expression) -> Operand:
        if isinstance(node, Name):
            return self.names.column(node)
        known = known_as(node)
        if known is None or not isinstance(node, Call) or not (node.is_function and all(map(_is_known, node.operands))):
            raise OutsideGrammar(described(node))
        operands = [self._column(each) for each in node.operands]
        result = type_of_call(known, [operand.type for operand in operands])
        if result is None:
            raise OutsideGrammar(described(node))
        return Operand(Call(node.operator, tuple(operand.expression for operand in operands)), result)

    def _constant(self, node: Expression) -> Constant:
        match node:
            case Literal():
                return constants.literal(node)
            case Parameter(name):
                if name not in self.parameters:
                    raise OutsideGrammar("a parameter that is not bound")
                return constants.bound(name, self.parameters[name], self.sql)
            case Cast(operand, target):
                if target not in constants.CAST_TARGETS:
                    raise OutsideGrammar(described(node))
                return constants.cast(self._constant(operand), constants.CAST_TARGETS[target], self.time_zone)
            case Name() if not is_special(node):
                raise OutsideGrammar("a column where a constant should stand")
            case Call() if known_as(node) is not None:
                try:
                    return folded(node, self.parameters, self.time_zone)
                except NotPlain:
                    raise OutsideGrammar(described(node)) from None
        raise OutsideGrammar(described(node))


def _is_known(node: Expression) -> bool:
    """Return whether the node is a column or a function that the engine computes."""
    return isinstance(node, Name) or (isinstance(node, Call) and node.is_function and known_as(node) is not None)


def _constant_alone(constant: Constant, negated: bool) -> Expression:
    if constant.type is Primitive.BOOLEAN:
        return TRUE if bool(constant.value) != negated else FALSE
    if constant.type is Primitive.VOID:
        return FALSE
    raise OutsideGrammar(f"a {constant.type} where a condition should stand")


def read_predicate(
    sql: str,
    schema: StructType,
    *,
    parameters: Mapping[str, object] | None = None,
    time_zone: str = "UTC",
    alias: str | None = None,
    unknown_columns_are_opaque: bool = False,
    lenient: bool = False,
) -> Predicate:
    """Read one boolean expression of Spark SQL about rows of a table.

    `parameters` are the values of `:name`; texts among them convert to the column's type by Spark's rules, in
    `time_zone` if a zone is needed. `alias` may qualify columns. Parts outside the closed grammar of soundness A4
    become unknown leaves, which prune nothing; with `unknown_columns_are_opaque`, so do columns that the schema lacks.
    `lenient` is for text that Spark's parser has accepted: if it cannot be parsed here, all of it is unknown.

    Raises InvalidPredicate if the text is not one boolean expression or a parameter is missing or unused;
    UnknownColumn, with the nearest column; UnsupportedPredicate for a subquery, a non-deterministic, aggregate, window
    or generator function, or a call of Java code.
    """
    names = Names(schema, alias)
    return _read_text(sql, names, parameters, time_zone, lenient, unknown_columns_are_opaque=unknown_columns_are_opaque)


def target_conjuncts(
    on_sql: str,
    schema: StructType,
    *,
    target_alias: str,
    source_alias: str,
    parameters: Mapping[str, object] | None = None,
    time_zone: str = "UTC",
    source_columns: Iterable[str] | None = None,
    lenient: bool = False,
) -> Predicate:
    """Read the part of a MERGE's ON condition about target rows alone: if it is false, no source row matches.

    Conditions on the source are unknown. A name without an alias is the target's only if `source_columns`, all columns
    of the source, shows that it is not the source's. Parameters may be unused, because the merge's clauses share them.
    Raises as `read_predicate` does.
    """
    others = None if source_columns is None else frozenset(name.lower() for name in source_columns)
    # If the alias is also the source's, or one of its columns, every name is ambiguous.
    clear = target_alias.lower() != source_alias.lower() and target_alias.lower() not in (others or ())
    names = Names(schema, target_alias if clear else None, only_qualified=True, other_columns=others)
    return _read_text(on_sql, names, parameters, time_zone, lenient, may_be_spare=True)


def _read_text(
    sql: str,
    names: Names,
    parameters: Mapping[str, object] | None,
    time_zone: str,
    lenient: bool,
    *,
    may_be_spare: bool = False,
    unknown_columns_are_opaque: bool = False,
) -> Predicate:
    bound = dict(parameters or {})
    _check_characters(sql, bound)
    text = sql_text(sql)
    if text.problem is not None:
        if not lenient:
            raise confinement.invalid(sql, text.problem)
        return Predicate(sql, Opaque(text.problem), None)
    confinement.check_tokens(text)
    parsed = text.expression
    if parsed is None and not lenient:
        raise confinement.invalid(sql, confinement.guess_what_failed(text))
    for name in sorted((_certain_parameters(parsed, text) if parsed is not None else set()) - bound.keys()):
        raise InvalidPredicate(
            f"The predicate {sql!r} needs a value for its parameter :{name}, and none was given. "
            f"Given: {', '.join(sorted(bound)) or 'none'}. Nothing was read.",
            predicate=sql,
        )
    for name in () if may_be_spare else sorted(bound.keys() - set(text.parameters)):
        raise InvalidPredicate(
            f"The predicate {sql!r} has no parameter :{name}, for which a value was given.{quoted_hint([sql], name)} "
            "A misspelt parameter is refused rather than ignored. Nothing was read.",
            predicate=sql,
        )
    if parsed is None:
        return Predicate(sql, Opaque(confinement.guess_what_failed(text)), None)
    missing = names.unknown(parsed)
    if missing is not None and not unknown_columns_are_opaque:
        columns = names.schema.names
        raise UnknownColumn(
            f"The predicate {sql!r} names the column {missing!r}, which the table does not have."
            f"{did_you_mean(missing, columns)} Its columns are: {shown_names(columns)}. Nothing was read.",
            predicate=sql,
            column=missing,
            columns=columns,
        )
    outside: list[str] = []
    tree = _read(parsed, _LeafReader(names, bound, time_zone, sql), outside)
    # If every leaf was read, the columns in the tree are all. Otherwise any word of the text may be one.
    return Predicate(sql, tree, columns_in_text(names.schema, text) if outside else names.columns_in(parsed))


def _certain_parameters(parsed: Expression, text: SqlText) -> set[str]:
    """Return the names of parameters, also in parts that were not parsed, where `v:path` is no parameter."""
    found = {part.name for part in parts_of(parsed) if isinstance(part, Parameter)}
    pairs = pairwise(text.tokens)
    after_symbol = (token for before, token in pairs if before.kind == "symbol" and before.text not in (")", "]"))
    return found | {token.text for token in after_symbol if token.kind == "parameter"}


def _check_characters(sql: str, bound: Mapping[str, object]) -> None:
    for name, value in bound.items():
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and has_half_of_a_character(text) for text in texts):
            raise InvalidPredicate(
                f"The parameter :{name} of the predicate {sql!r} has half of a character in it, a lone surrogate, "
                "so no row can hold it. Nothing was read.",
                predicate=sql,
            )


def _read(node: Expression, reader: _LeafReader, outside: list[str], negated: bool = False) -> Expression:
    """Return the bound node, NOT pushed to its leaves; note in `outside` the parts that are not in the grammar."""
    match node:
        case Call("not", (operand,)):
            return _read(operand, reader, outside, not negated)
        case Call("between", (operand, low, high)):
            both = Call("and", (Call(">=", (operand, low)), Call("<=", (operand, high))))
            return _read(both, reader, outside, negated)
        case Call("and" | "or" as operator, operands):
            children = [_read(child, reader, outside, negated) for child in operands]
            return all_of(children) if (operator == "and") != negated else any_of(children)
    try:
        return reader.read(node, negated)
    except OutsideGrammar as found:
        outside.append(str(found))
        return Opaque(str(found))
