"""Conditions that Spark certainly accepts and evaluates without an error, so that it need not be consulted.

They compare columns of text, whole numbers and dates with constants of the same kind, or with texts as Spark writes
these. The invariant: Spark neither refuses a plain text nor fails on a value. Source: Spark 4.2, SqlBaseParser.g4;
tests/engine/table/predicate/test_differential.py.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_txlog.engine.table.predicate.coercion import is_plain_pattern
from airflow_txlog.engine.table.predicate.constants import is_canonical
from airflow_txlog.engine.table.schema.schema import INTEGERS
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.sql.evaluation import Known, known_as
from airflow_txlog.sql.expression import Call, Cast, Expression, Literal, Name, Parameter, described
from airflow_txlog.sql.sql_text import sql_text

_NUMBER = re.compile("-?[0-9]{1,18}", re.ASCII)
# As many digits as a double holds exactly, or as all engines round alike.
EXACT_NUMBER = re.compile(r"[0-9]{1,15}|(?=[0-9.]{3,16}$)[0-9]+\.[0-9]+", re.ASCII)
_WITH_TWO_SIDES = ("=", "!=", "<", "<=", ">", ">=", "<=>")
# A list of 25,000 values.
_MOST_TOKENS = 50_000


class NotPlain(Exception):
    """`args[0]` names the part that is not plain."""


def why_not_plain(sql: str, schema: StructType, parameters: Mapping[str, object]) -> str | None:
    """Return the part of the text that is not plain, in words; None if all is. `schema`: the columns it may name."""
    try:
        check_plain(tree_of(sql), schema, parameters)
    except NotPlain as found:
        return str(found.args[0])
    return None


def tree_of(sql: str) -> Expression:
    """Return the tree of a text that all parsers read alike. Raises NotPlain."""
    if sql.endswith("\\"):
        raise NotPlain("a backslash at its end")  # in a comment, it would swallow what a job appends to the text
    text = sql_text(sql)
    if text.problem is not None:
        raise NotPlain("a literal that two parsers may read differently")
    if len(text.tokens) > _MOST_TOKENS:
        raise NotPlain("a very long text")
    if any(token.doubt is not None for token in text.tokens):
        raise NotPlain("a text that two parsers may read differently")
    if text.expression is None:
        raise NotPlain("another expression")
    return text.expression


def check_plain(condition: Expression, schema: StructType, parameters: Mapping[str, object]) -> None:
    """Raise NotPlain unless the tree of a condition is plain."""
    _Condition(schema, parameters).check(condition)


@dataclass(frozen=True, slots=True)
class _Condition:
    schema: StructType
    parameters: Mapping[str, object]

    def check(self, node: Expression) -> None:
        """Raise NotPlain unless the condition is plain."""
        match node:
            case Call("and" | "or" | "not", operands):
                for operand in operands:
                    self.check(operand)
            case Call(operator, (Literal() | Parameter() | Cast() as first, Name() | Call() as second)) if (
                operator in _WITH_TWO_SIDES
            ):
                self.check(Call(operator, (second, first)))
            case Call(_, (operand, *constants)) if (known := known_as(node)) is not None and known.result == "boolean":
                field = self._operand(operand, known)
                for constant in constants:
                    self._check_constant(constant, field)
                if node.operator == "like":
                    self._check_pattern(node.operands[1])
            case Literal("boolean"):
                pass
            case Name() if plain_column(node, self.schema).type is Primitive.BOOLEAN:
                pass
            case _:
                raise NotPlain(described(node))

    def _operand(self, node: Expression, known: Known) -> StructField:
        """Return the operand, a column or a function of columns, as a column."""
        function = known_as(node)
        if function is not None and isinstance(node, Call) and node.is_function:
            for operand in node.operands:
                self._operand(operand, function)
            field = StructField(node.operator, Primitive(function.result))
        else:
            field = plain_column(node, self.schema)
        if str(field.type) not in known.types or field.is_collated or field.is_char:
            raise NotPlain(f"the column {field.name}, of the type {field.type}")
        return field

    def _check_constant(self, node: Expression, field: StructField) -> None:
        match node:
            case Literal("boolean"):
                fits = field.type is Primitive.BOOLEAN
            case Literal("number", text) if field.type is Primitive.DOUBLE:
                fits = EXACT_NUMBER.fullmatch(text.removeprefix("-")) is not None
            case Literal("number", text):
                fits = field.type in INTEGERS and _NUMBER.fullmatch(text) is not None
            case Literal("string", text):
                fits = fits_plainly(text, field)
            case Cast(Literal("string", text), "date"):
                fits = field.type is Primitive.DATE and fits_plainly(text, field)
            case Parameter(name):
                fits = fits_plainly(self.parameters.get(name), field)
            case Call():
                raise NotPlain(described(node))
            case _:
                fits = False
        if not fits:
            raise NotPlain(f"a constant that is not of the type of the column {field.name}")

    def _check_pattern(self, node: Expression) -> None:
        value = self.parameters.get(node.name) if isinstance(node, Parameter) else getattr(node, "text", None)
        if not isinstance(value, str) or not is_plain_pattern(value):
            raise NotPlain("a LIKE pattern with another wildcard than %")


def plain_column(node: Expression, schema: StructType) -> StructField:
    """Return the column that the node names. Raises NotPlain if it may be anything else."""
    if not isinstance(node, Name):
        raise NotPlain(described(node))
    field = schema.find(str(node)) if node.is_certain and len(node.parts) == 1 else None
    if field is None:
        raise NotPlain(f"the name {node}")
    return field


def fits_plainly(value: object, field: StructField) -> bool:
    """Return whether a text or a parameter's value fits the column without a cast that may fail."""
    if field.type is Primitive.STRING:
        return isinstance(value, str)
    if field.type is Primitive.BOOLEAN:
        return isinstance(value, bool)
    if field.type is Primitive.TIMESTAMP:
        return isinstance(value, dt.datetime) and value.tzinfo is not None
    if field.type is Primitive.DOUBLE and isinstance(value, float):
        return True
    if isinstance(value, str):
        # Jinja renders numbers and dates so. Casting the text or, without ANSI mode, the column is the same.
        return is_canonical(field.type, value)
    if field.type is Primitive.DATE:
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    most = 10**15 if field.type is Primitive.DOUBLE else 10**18
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < most
