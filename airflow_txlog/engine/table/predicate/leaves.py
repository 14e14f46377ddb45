"""One leaf of a parsed predicate: from sqlglot's node over stand-ins to a question about a column.

The invariant: only the node types and arguments listed here are read; an argument that this code does not know (as
`negate` on LIKE, or `symmetric` on BETWEEN) makes the leaf unknown. So a newer sqlglot may make more unknown, but not
something else. Source: soundness A4; the table of sqlglot against Spark in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from airflow_txlog.engine.table.predicate import coercion, constants
from airflow_txlog.engine.table.predicate.constants import Constant, OutsideGrammar
from airflow_txlog.engine.table.predicate.names import Names
from airflow_txlog.engine.table.predicate.tree import (
    FALSE,
    TRUE,
    Column,
    Node,
    NullTest,
    Operator,
    all_of,
    any_of,
)
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive
from airflow_txlog.sql.lexer import SqlText

_OPERATORS: dict[type[exp.Expr], Operator] = {
    exp.EQ: Operator.EQ,
    exp.NEQ: Operator.NE,
    exp.LT: Operator.LT,
    exp.LTE: Operator.LE,
    exp.GT: Operator.GT,
    exp.GTE: Operator.GE,
}
_CAST_TARGETS: dict[exp.DType, Primitive] = {
    exp.DType.DATE: Primitive.DATE,
    exp.DType.TIMESTAMPTZ: Primitive.TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: Primitive.TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: Primitive.TIMESTAMP_NTZ,
    exp.DType.DOUBLE: Primitive.DOUBLE,
    exp.DType.FLOAT: Primitive.FLOAT,
    exp.DType.TINYINT: Primitive.BYTE,
    exp.DType.SMALLINT: Primitive.SHORT,
    exp.DType.INT: Primitive.INTEGER,
    exp.DType.BIGINT: Primitive.LONG,
}


# Words before a parenthesis that call nothing.
_NOT_CALLED = ("and", "or", "not", "in", "between", "like", "is", "as", "when", "then", "else", "case")


@dataclass(frozen=True, slots=True)
class LeafReader:
    """Reads leaves of one predicate. `parameters` are the bound values by name; `sql` is for messages."""

    lexed: SqlText
    names: Names
    parameters: Mapping[str, object]
    time_zone: str
    sql: str

    def read(self, node: exp.Expr, negated: bool) -> Node:
        """The leaf, or the small tree that a BETWEEN or a `<=>` makes. Raises OutsideGrammar."""
        kind = type(node)
        if kind in _OPERATORS:
            return self._comparison(node, _OPERATORS[kind], negated)
        match node:
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                column, constant, _ = self._sides(node)
                different = negated != isinstance(node, exp.NullSafeNEQ)
                return coercion.null_safe(column, constant, self.time_zone, different)
            case exp.In():
                arguments = _arguments(node, "this", "expressions")
                values = [self._constant(each) for each in arguments["expressions"]]
                return coercion.membership(self._column(node.this), values, self.time_zone, negated)
            case exp.Between():
                return self._between(node, negated)
            case exp.Like():
                _arguments(node, "this", "expression", "negate")
                opposite = negated != bool(node.args.get("negate"))
                return coercion.like(self._column(node.this), self._constant(node.expression), opposite)
            case exp.Is():
                return self._is(node, negated)
            case exp.Boolean():
                return TRUE if bool(node.this) != negated else FALSE
            case exp.Null():
                return FALSE
            case exp.Column():
                return self._bare(self._column(node), negated)
            case exp.Placeholder():
                return self._constant_alone(self._constant(node), negated)
        raise OutsideGrammar(_described(node, self.lexed))

    def _comparison(self, node: exp.Expr, operator: Operator, negated: bool) -> Node:
        column, constant, exchanged = self._sides(node)
        operator = operator.mirrored if exchanged else operator
        return coercion.comparison(column, operator.negated if negated else operator, constant, self.time_zone)

    def _sides(self, node: exp.Expr) -> tuple[Column, Constant, bool]:
        """The column, the constant, and whether the constant came first."""
        _arguments(node, "this", "expression")
        left, right = _bare(node.this), _bare(node.expression)
        if isinstance(left, exp.Column):
            return self._column(left), self._constant(right), False
        if isinstance(right, exp.Column):
            return self._column(right), self._constant(left), True
        raise OutsideGrammar(_described(left, self.lexed))

    def _between(self, node: exp.Between, negated: bool) -> Node:
        _arguments(node, "this", "low", "high")
        column = self._column(node.this)
        low, high = self._constant(node.args["low"]), self._constant(node.args["high"])
        operators = (Operator.LT, Operator.GT) if negated else (Operator.GE, Operator.LE)
        sides = [
            coercion.comparison(column, operator, constant, self.time_zone)
            for operator, constant in zip(operators, (low, high), strict=True)
        ]
        return any_of(sides) if negated else all_of(sides)

    def _is(self, node: exp.Is, negated: bool) -> Node:
        _arguments(node, "this", "expression")
        column, what = self._column(node.this), node.expression
        if isinstance(what, exp.Null):
            return NullTest(column, is_null=not negated)
        if isinstance(what, exp.Boolean):
            constant = Constant(Primitive.BOOLEAN, bool(what.this))
            return coercion.null_safe(column, constant, self.time_zone, negated)
        raise OutsideGrammar(_described(what, self.lexed))

    def _bare(self, column: Column, negated: bool) -> Node:
        truth = Constant(Primitive.BOOLEAN, True)
        return coercion.comparison(column, Operator.NE if negated else Operator.EQ, truth, self.time_zone)

    def _constant_alone(self, constant: Constant, negated: bool) -> Node:
        if constant.type is Primitive.BOOLEAN:
            return TRUE if bool(constant.value) != negated else FALSE
        if constant.type is Primitive.VOID:
            return FALSE
        raise OutsideGrammar(f"a {constant.type} where a condition should stand")

    def _column(self, node: exp.Expr) -> Column:
        node = _bare(node)
        if not isinstance(node, exp.Column):
            raise OutsideGrammar(_described(node, self.lexed))
        return self.names.column(node)

    def _constant(self, node: exp.Expr) -> Constant:
        node = _bare(node)
        match node:
            case exp.Null():
                return constants.NULL
            case exp.Boolean():
                return Constant(Primitive.BOOLEAN, bool(node.this))
            case exp.Literal():
                return self._literal(node, negative=False)
            case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
                return self._literal(node.this, negative=True)
            case exp.Placeholder():
                return self._parameter(node)
            case exp.Cast() | exp.TryCast():
                return self._cast(node)
        raise OutsideGrammar(_described(node, self.lexed))

    def _literal(self, node: exp.Literal, negative: bool) -> Constant:
        stand_in = str(node.this)
        if not node.is_string:
            digits = self.lexed.number(stand_in)
            if digits is None:
                raise OutsideGrammar("a number")
            return constants.number(digits, negative)
        text = self.lexed.string(stand_in)
        if text is None:
            raise OutsideGrammar("a string")
        if text.doubt is not None:
            raise OutsideGrammar(text.doubt)
        return Constant(Primitive.STRING, text.value)

    def _parameter(self, node: exp.Placeholder) -> Constant:
        name = parameter_name(node, self.lexed)
        if name is None or name not in self.parameters:
            raise OutsideGrammar("a parameter that is not bound")
        return constants.bound(name, self.parameters[name], self.sql)

    def _cast(self, node: exp.Cast) -> Constant:
        _arguments(node, "this", "to", "safe")
        to = node.args["to"]
        # `double` and `float` may carry parameters in other dialects, and decimals do here: neither is read.
        plain = isinstance(to, exp.DataType) and not to.expressions and not to.args.get("nested")
        target: Primitive | DecimalType | None = _CAST_TARGETS.get(to.this) if plain else None
        if target is None:
            raise OutsideGrammar("a cast")
        return constants.cast(self._constant(node.this), target, self.time_zone)


def parameter_name(node: exp.Expr, lexed: SqlText) -> str | None:
    """The name that a placeholder stands for, or None where it is no stand-in of ours."""
    return lexed.parameter(str(node.this)) if isinstance(node, exp.Placeholder) else None


def _bare(node: exp.Expr) -> exp.Expr:
    """Without the parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _arguments(node: exp.Expr, *known: str) -> dict[str, list[exp.Expr]]:
    """The node's arguments. Raises OutsideGrammar when one is set that this reader does not know."""
    strange = [name for name, value in node.args.items() if value and name not in known]
    if strange:
        raise OutsideGrammar(f"{type(node).__name__.upper()} with {', '.join(strange)}")
    return {name: node.args.get(name) or [] for name in known}


def _described(node: exp.Expr, lexed: SqlText) -> str:
    """The construct in words, for messages."""
    match node:
        case exp.Anonymous():
            return f"the function {_function_name(node, lexed)}()"
        case exp.Concat() | exp.DPipe() if "concat" not in lexed.calls():
            return "a string in several pieces"
        case exp.Func() if not isinstance(node, exp.Connector | exp.Cast):
            return _called(node, lexed)
        case exp.Column():
            return "a column where a constant should stand"
        case exp.Binary() | exp.Unary():
            return f"the expression {type(node).__name__.lower()}"
    return type(node).__name__.lower()


def _called(node: exp.Func, lexed: SqlText) -> str:
    """The function by the author's name for it: the parser renames many."""
    calls = [name for name in lexed.calls() if name not in _NOT_CALLED]
    name = node.sql_name().lower()
    if name not in calls and len(calls) == 1:
        name = calls[0]
    return f"the function {name}()" if name in calls or not calls else "a function"


def _function_name(node: exp.Anonymous, lexed: SqlText) -> str:
    name = node.this
    if isinstance(name, exp.Identifier):
        return lexed.name(str(name.this)) or str(name.this)
    return str(name)
