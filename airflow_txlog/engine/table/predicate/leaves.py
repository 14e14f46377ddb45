"""One leaf of an expression's tree: from the tree to a question about a column.

The invariant: only the operations and constants that are listed here are read; everything else is outside the grammar.
Source: soundness A4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_txlog.engine.table.predicate import coercion, constants
from airflow_txlog.engine.table.predicate.constants import Constant, OutsideGrammar
from airflow_txlog.engine.table.predicate.names import Names, is_special
from airflow_txlog.engine.table.predicate.tree import Operand, Operator, null_test
from airflow_txlog.engine.table.schema.types import Primitive
from airflow_txlog.sql.evaluation import known_as
from airflow_txlog.sql.expression import (
    FALSE,
    TRUE,
    Call,
    Cast,
    Expression,
    Literal,
    Name,
    Parameter,
    all_of,
    any_of,
    described,
)

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
