"""Reads a predicate: from Spark SQL text to a `Predicate` of the closed grammar.

The tree of the text (`sql`) is read leaf by leaf (`leaves`); what is outside the grammar is unknown. The invariant: SQL
is never made from a tree; Spark always gets the author's text. It holds for Spark with ANSI mode on or off, and with
the defaults of what else changes the meaning of a text (`spark.sql.timestampType`, `spark.sql.caseSensitive`, legacy
flags). Source: soundness A3, A4, B6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_txlog.engine.table.predicate import coercion, constants
from airflow_txlog.engine.table.predicate.constants import Constant, OutsideGrammar
from airflow_txlog.engine.table.predicate.names import Names, is_special, unknown_column
from airflow_txlog.engine.table.predicate.tree import Operand, Operator, Predicate, null_test
from airflow_txlog.engine.table.schema.types import Primitive, StructType
from airflow_txlog.errors import InvalidPredicate
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
from airflow_txlog.sql.sql_text import quoted_hint, sql_text

_OPERATORS = {operator.value: operator for operator in Operator}
# Types of constants by their names in SQL.
_CAST_TARGETS = {
    "date": Primitive.DATE,
    "timestamp": Primitive.TIMESTAMP,
    "timestamp_ltz": Primitive.TIMESTAMP,
    "timestamp_ntz": Primitive.TIMESTAMP_NTZ,
    "double": Primitive.DOUBLE,
    "float": Primitive.FLOAT,
    "real": Primitive.FLOAT,
    "tinyint": Primitive.BYTE,
    "byte": Primitive.BYTE,
    "smallint": Primitive.SHORT,
    "short": Primitive.SHORT,
    "int": Primitive.INTEGER,
    "integer": Primitive.INTEGER,
    "bigint": Primitive.LONG,
    "long": Primitive.LONG,
}


@dataclass(frozen=True, slots=True)
class LeafReader:
    """Reads leaves of one predicate. `parameters` are the bound values by name; `sql` is for messages."""

    names: Names
    parameters: Mapping[str, object]
    time_zone: str
    sql: str

    def read(self, node: Expression, negated: bool) -> Expression:
        """The leaf, or the small tree that a BETWEEN or a `<=>` makes. Raises OutsideGrammar."""
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
            case Call("between", (operand, low, high)):
                return self._between(operand, low, high, negated)
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
        """The column, the constant, and whether the constant came first."""
        if _is_known(left):
            return self._column(left), self._constant(right), False
        if _is_known(right):
            return self._column(right), self._constant(left), True
        raise OutsideGrammar(described(left))

    def _between(self, operand: Expression, low: Expression, high: Expression, negated: bool) -> Expression:
        column = self._column(operand)
        bounds = (self._constant(low), self._constant(high))
        operators = (Operator.LT, Operator.GT) if negated else (Operator.GE, Operator.LE)
        sides = [
            coercion.comparison(column, operator, constant, self.time_zone)
            for operator, constant in zip(operators, bounds, strict=True)
        ]
        return any_of(sides) if negated else all_of(sides)

    def _column(self, node: Expression) -> Operand:
        """The column, or what a function makes of some."""
        if isinstance(node, Name):
            return self.names.column(node)
        known = known_as(node)
        if known is None or not isinstance(node, Call) or not node.is_function:
            raise OutsideGrammar(described(node))
        operands = [self._column(each) for each in node.operands]
        if not {str(operand.type) for operand in operands} <= known.types:
            raise OutsideGrammar(described(node))
        bound = Call(node.operator, tuple(operand.expression for operand in operands))
        return Operand(bound, Primitive(known.result))

    def _constant(self, node: Expression) -> Constant:
        match node:
            case Literal("null"):
                return constants.NULL
            case Literal("boolean", text):
                return Constant(Primitive.BOOLEAN, text == "true")
            case Literal("number", text):
                return constants.number(text.removeprefix("-"), text.startswith("-"))
            case Literal("string", text):
                if node.doubt is not None:
                    raise OutsideGrammar(node.doubt)
                return Constant(Primitive.STRING, text)
            case Parameter(name):
                if name not in self.parameters:
                    raise OutsideGrammar("a parameter that is not bound")
                return constants.bound(name, self.parameters[name], self.sql)
            case Cast(operand, target):
                if target not in _CAST_TARGETS:
                    raise OutsideGrammar("a cast")
                return constants.cast(self._constant(operand), _CAST_TARGETS[target], self.time_zone)
            case Name() if not is_special(node):
                raise OutsideGrammar("a column where a constant should stand")
        raise OutsideGrammar(described(node))


def _is_known(node: Expression) -> bool:
    """Whether a leaf may ask about it: a column, or a function that is computed here."""
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
    """The predicate that `sql` (one boolean expression of Spark SQL) states about rows of a table.

    `parameters` are the values of `:name`; texts among them convert to the column's type by Spark's rules, in
    `time_zone` where a zone is needed. `alias` may qualify columns. Whatever is outside the closed grammar of soundness
    A4 becomes an unknown leaf, which prunes nothing. With `unknown_columns_are_opaque` that includes columns that the
    schema does not have. `lenient` is for text that Spark's own parser has accepted: what cannot be parsed here is then
    unknown as a whole.

    Raises InvalidPredicate when the text is not one boolean expression, or a parameter is missing or unused;
    UnknownColumn, naming the nearest column; UnsupportedPredicate for a subquery, a non-deterministic, aggregate,
    window or generator function, or a call of Java code.
    """
    bound = dict(parameters or {})
    _check_whole(sql, bound)
    text = sql_text(sql)
    if text.problem is not None:
        return _unreadable(sql, text.problem, lenient)
    confinement.check_tokens(text)
    parsed = text.expression
    if parsed is None:
        # What looks like a parameter may be something else here (`v:path`); Spark has seen that none is missing.
        predicate = _unreadable(sql, confinement.guess_what_failed(text), lenient)
        _check_none_spare(sql, text.parameters, bound)
        return predicate
    _check_none_missing(sql, parsed, bound)
    _check_none_spare(sql, text.parameters, bound)
    names = Names(schema, text, alias)
    missing = names.unknown(parsed)
    if missing is not None and not unknown_columns_are_opaque:
        raise unknown_column(sql, missing, schema)
    outside: list[str] = []
    tree = _read(parsed, LeafReader(names, bound, time_zone, sql), outside)
    # Where every leaf was read, the parser's columns are the columns; else whatever in the text looks like one.
    columns = names.columns_named() if outside else names.columns_in(parsed)
    return Predicate(sql, tree, columns)


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
    """What a MERGE's ON condition says of target rows alone: where it is false, no source row matches.

    Conditions on the source are unknown. A name without an alias is the target's only if `source_columns`
    (every column of the source) shows that it is not the source's. `columns` are the target's that the text names.
    Parameters may be unused, as the merge's clauses share them. Raises as `read_predicate` does.
    """
    bound = dict(parameters or {})
    _check_whole(on_sql, bound)
    text = sql_text(on_sql)
    if text.problem is not None:
        return _unreadable(on_sql, text.problem, lenient)
    confinement.check_tokens(text)
    parsed = text.expression
    if parsed is None:
        return _unreadable(on_sql, confinement.guess_what_failed(text), lenient)
    _check_none_missing(on_sql, parsed, bound)
    others = None if source_columns is None else frozenset(name.lower() for name in source_columns)
    # An alias of one name with the other's, or with a column of the source, would make every name ambiguous.
    clear = target_alias.lower() != source_alias.lower() and target_alias.lower() not in (others or ())
    names = Names(schema, text, target_alias if clear else None, only_qualified=True, other_columns=others)
    missing = names.unknown(parsed)
    if missing is not None:
        raise unknown_column(on_sql, missing, schema)
    tree = _read(parsed, LeafReader(names, bound, time_zone, on_sql), [])
    return Predicate(on_sql, tree, names.columns_named())


def _unreadable(sql: str, what: str, lenient: bool) -> Predicate:
    if not lenient:
        raise confinement.invalid(sql, what)
    return Predicate(sql, Opaque(what), None)


def _check_none_missing(sql: str, parsed: Expression, bound: Mapping[str, object]) -> None:
    for part in parts_of(parsed):
        if isinstance(part, Parameter) and part.name not in bound:
            raise InvalidPredicate(
                f"The predicate {sql!r} needs a value for its parameter :{part.name}, and none was given. "
                f"Given: {', '.join(sorted(bound)) or 'none'}. Nothing was read.",
                predicate=sql,
            )


def _check_whole(sql: str, bound: Mapping[str, object]) -> None:
    for name, value in bound.items():
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and has_half_of_a_character(text) for text in texts):
            raise InvalidPredicate(
                f"The parameter :{name} of the predicate {sql!r} has half of a character in it, a lone surrogate, "
                "so no row can hold it. Nothing was read.",
                predicate=sql,
            )


def _check_none_spare(sql: str, used: Iterable[str], bound: Mapping[str, object]) -> None:
    spare = sorted(set(bound) - set(used))
    if spare:
        raise InvalidPredicate(
            f"The predicate {sql!r} has no parameter :{spare[0]}, for which a value was given."
            f"{quoted_hint([sql], spare[0])} "
            "A misspelt parameter is refused rather than ignored. Nothing was read.",
            predicate=sql,
        )


def _read(node: Expression, reader: LeafReader, outside: list[str], negated: bool = False) -> Expression:
    """The node with NOT pushed down to its leaves; three-valued logic is exact there.

    What is outside the grammar is noted in `outside`: a tree may lose unknown leaves (`FALSE AND …`), its text not.
    """
    operator = node.operator if isinstance(node, Call) else ""
    if isinstance(node, Call) and operator == "not":
        return _read(node.operands[0], reader, outside, not negated)
    if isinstance(node, Call) and operator in ("and", "or"):
        children = [_read(child, reader, outside, negated) for child in node.operands]
        return all_of(children) if (operator == "and") != negated else any_of(children)
    try:
        return reader.read(node, negated)
    except OutsideGrammar as found:
        outside.append(str(found))
        return Opaque(str(found))
