"""Expressions that Spark certainly accepts, bound to columns and typed, so that Spark need not be consulted.

An expression is *plain* if it consists of columns, constants, and operations of the `KNOWN` table on operands of their
types. Constants have the types that Spark gives them, and Spark's implicit conversions become part of the tree. A text
that is compared with a whole number or a date counts as one if Spark writes that number or date so. The invariant:
Spark refuses no plain text; its value is Spark's for every row, or the evaluation leaves it to Spark. Source: Spark
4.2, SqlBaseParser.g4; tests/sql/test_known_against_spark.py; tests/engine/table/predicate/test_differential.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_txlog.engine.table.columns.partitions import fixed_zone
from airflow_txlog.engine.table.predicate import constants
from airflow_txlog.engine.table.predicate.coercion import NO_PATTERN, is_plain_pattern
from airflow_txlog.engine.table.predicate.constants import Constant, OutsideGrammar, is_canonical
from airflow_txlog.engine.table.schema.schema import INTEGERS, array_of, arrow_type, codec, delta_type
from airflow_txlog.engine.table.schema.types import (
    MAX_DECIMAL_PRECISION,
    DecimalType,
    Primitive,
    StructField,
    StructType,
)
from airflow_txlog.sql.computations import ForSpark
from airflow_txlog.sql.dates import interval_of
from airflow_txlog.sql.evaluation import KNOWN, LIKE_WITH_ONE, Known, known_as
from airflow_txlog.sql.expression import (
    OF_INTERVALS,
    Call,
    Cast,
    Column,
    Converted,
    Expression,
    Literal,
    Name,
    Parameter,
    Values,
    columns_of,
    described,
)
from airflow_txlog.sql.operand_types import (
    BOOL,
    DATE,
    INSTANT,
    INTEGER_DIGITS,
    TEXT,
    VOID,
    Typed,
    castable,
    holds,
    is_decimal,
)
from airflow_txlog.sql.sql_text import sql_text

# A list of 25,000 values.
_MOST_TOKENS = 50_000
_COMPARING = ("=", "!=", "<", "<=", ">", ">=", "<=>", "in", "between")

Columns: TypeAlias = Callable[[Name], Typed]
"""Returns the column that a name means. Raises NotPlain if it may be anything else."""


class NotPlain(Exception):
    """`args[0]` names the part that is not plain."""


def plain_condition(
    sql: str,
    schema: StructType,
    parameters: Mapping[str, object],
    *,
    alias: str | None = None,
    may_fail: bool = True,
    time_zone: str | None = None,
) -> Expression | str:
    """Return a condition bound to the columns of `schema`; or the part of the text that is not plain, in words.

    `alias` may qualify the columns. Unless it `may_fail`, no evaluation of it is left to Spark. `time_zone`: of
    `ColumnBinder`.
    """
    try:
        node = plain_expression(sql)
        return ColumnBinder(columns_in(schema, alias), parameters, may_fail, time_zone).condition(node)
    except NotPlain as found:
        return str(found.args[0])


def plain_expression(sql: str) -> Expression:
    """Return the tree of a text that all parsers read alike. Raises NotPlain."""
    if sql.endswith("\\"):
        raise NotPlain("a backslash at its end")  # in a comment, it would swallow what a job appends to the text
    text = sql_text(sql)
    if text.problem is not None or any(token.doubt is not None for token in text.tokens):
        raise NotPlain("a text that two parsers may read differently")
    if len(text.tokens) > _MOST_TOKENS:
        raise NotPlain("a very long text")
    if text.expression is None:
        raise NotPlain("another expression")
    return text.expression


def columns_in(schema: StructType, alias: str | None = None) -> Columns:
    """Return the meaning of names: a column of the schema, or a member of one that is a struct."""

    def column(name: Name) -> Typed:
        parts = [part.text for part in name.parts]
        if alias is not None and len(parts) > 1 and parts[0].lower() == alias.lower():
            # A column that has the alias' name may be meant.
            parts = parts[1:] if schema.find(parts[0]) is None else []
        path = schema.find_path(tuple(parts)) if name.is_certain else None
        if path is None:
            raise NotPlain(f"the name {name}")
        return column_operand(path)

    return column


def column_operand(path: Sequence[StructField], column: str | None = None) -> Typed:
    """Return the operand of a column, or of a member of it; `column` is its name in the rows. Raises NotPlain."""
    last = path[-1]
    is_single = isinstance(last.type, Primitive | DecimalType | StructType) and last.type is not Primitive.VOID
    if not is_single or any(field.is_collated or field.is_char for field in path):
        raise NotPlain(f"the column {last.name}, of the type {last.type}")
    found: Expression = Column(column or path[0].name)
    for field in path[1:]:
        found = Call(".", (found, Literal("string", field.name)))
    return Typed(found, arrow_type(last.type))


@dataclass(frozen=True, slots=True)
class ColumnBinder:
    """Binds the expressions of one text. Without a `time_zone`, no timestamp that is written as a text is plain."""

    columns: Columns
    parameters: Mapping[str, object]
    may_fail: bool = True
    time_zone: str | None = None

    def condition(self, node: Expression) -> Expression:
        """Return the bound condition. Raises NotPlain."""
        found = self.operand(node)
        if found.type not in (BOOL, VOID):
            raise NotPlain(described(node))
        return self._converted(found, BOOL)

    def operand(self, node: Expression) -> Typed:
        """Return the bound expression with its type. Raises NotPlain."""
        match node:
            case Name():
                return self.columns(node)
            case Literal() | Parameter():
                return _operand_of(self._constant(node), node)
            case Cast():
                return self._cast(node)
            case Call():
                return self._call(node)
        raise NotPlain(described(node))

    def _constant(self, node: Literal | Parameter) -> Constant:
        try:
            match node:
                case Literal():
                    return constants.literal(node)
                case Parameter(name) if name in self.parameters:
                    return constants.bound(name, self.parameters[name], f":{name}")
        except OutsideGrammar as found:
            raise NotPlain(str(found)) from None
        raise NotPlain("a parameter that is not bound")

    def _cast(self, node: Cast) -> Typed:
        if node.is_interval:
            raise NotPlain(described(node))
        target = _type_named(node.target)
        if isinstance(node.operand, Literal) and node.operand.kind == "string":
            if target is Primitive.TIMESTAMP:
                return self._instant(self.operand(node.operand))
            if target is not Primitive.DATE or not is_canonical(target, node.operand.text):
                raise NotPlain("a cast")
            return _operand_of(Constant(target, _read(node.operand.text, Primitive.DATE)), node)
        operand = self.operand(node.operand)
        kind = arrow_type(target)
        if kind == DATE and operand.type == INSTANT:
            return self._date_in_utc(operand)
        if operand.is_constant or not castable(kind, operand.type):
            raise NotPlain(f"a cast to {node.target}")
        return Typed(self.cast(operand, kind), kind)

    def cast(self, operand: Typed, kind: pa.DataType) -> Expression:
        """Return an operand that is `castable` in another type. Raises NotPlain if it does not fit or must not fail."""
        # Of the values that become texts, only dates may fail: those of a year that has not four digits.
        may_fail = not holds(kind, operand.type) and (kind != TEXT or operand.type == DATE)
        if operand.is_constant:
            try:
                return self._converted(operand, kind)
            except (pa.ArrowInvalid, OverflowError):
                raise NotPlain(f"a constant that is no {kind}") from None
        if operand.type == TEXT != kind and not columns_of(operand.expression):
            # Spark takes 'today' for a clock if it computes it from constants alone.
            raise NotPlain("a cast")
        if may_fail and not self.may_fail and operand.type != kind:
            raise NotPlain(f"a cast to {kind}")
        return operand.expression if operand.type == kind else Converted(operand.expression, kind, may_fail)

    def _call(self, node: Call) -> Typed:
        known = known_as(node)
        if known is None or (known.may_fail and not self.may_fail):
            raise NotPlain(described(node))
        is_sum = node.operator in ("+", "-")
        bind = self._summand if is_sum else self.operand
        operands = [bind(each) for each in node.operands]
        if node.operator in _COMPARING:
            if node.operator != "in" and {each.type for each in operands if not each.is_constant} == {INSTANT}:
                operands = [self._instant(each) for each in operands]
            kinds = {each.type for each in operands if each.type not in (TEXT, VOID)}
            operands = [_meant(each, kinds) for each in operands]
        if node.operator == "to_date()" and operands[0].type == TEXT and not operands[0].is_constant:
            return Typed(self.cast(operands[0], DATE), DATE)
        signature = known.typed(operands)
        if known.in_utc and any(each.type == INSTANT for each in operands):
            self._check_utc()
            signature = signature or known.typed(operands := [self._date_in_utc(each) for each in operands])
        elif known.in_utc and signature is None and any(each.type == DATE for each in operands):
            signature = known.typed(operands := [self._midnight_in_utc(each) for each in operands])
        if is_sum and operands[0].type == INSTANT:
            # Days are those of the session's zone, also the 24 hours of INTERVAL 36 HOURS.
            self._check_utc()
        operator = node.operator
        if signature is not None and operator == "like" and not is_plain_pattern(operands[1].constant):
            operator, known = LIKE_WITH_ONE, KNOWN[LIKE_WITH_ONE]
            if not self.may_fail or set(operands[1].constant) & set(NO_PATTERN):
                raise NotPlain("a LIKE pattern with a backslash or `_`")
        if signature is None:
            types = " and ".join(dict.fromkeys(str(each.type) for each in operands))
            raise NotPlain(f"{described(node)} on the types {types}")
        if node.operator == "in":
            return Typed(self._in_list(operands, signature.operands[0]), BOOL)
        pairs = zip(operands, signature.operands, strict=True)
        converted = tuple(self._converted(operand, kind) for operand, kind in pairs)
        if any(map(columns_of, converted)):
            return Typed(Call(operator, converted), signature.result)
        return _result(_folded(known, converted, signature.result), signature.result)

    def _instant(self, operand: Typed) -> Typed:
        """Return a constant text or date as the timestamp that Spark makes of it; another operand as it is."""
        if not operand.is_constant or operand.type not in (TEXT, DATE):
            return operand
        if self.time_zone is None:
            raise NotPlain("a timestamp that is written as a text or as a date")
        try:
            given = Constant(Primitive.STRING if operand.type == TEXT else Primitive.DATE, operand.constant)
            return _operand_of(constants.cast(given, Primitive.TIMESTAMP, self.time_zone), operand.expression)
        except OutsideGrammar as found:
            raise NotPlain(str(found)) from None

    def _summand(self, node: Expression) -> Typed:
        """Return an operand of a sum, which may be an interval, or the product of one and a whole number."""
        if not _is_interval(node):
            return self.operand(node)
        factor = None
        if isinstance(node, Call):
            given, node = sorted(node.operands, key=_is_interval)
            operand = self.operand(given)
            if operand.type not in INTEGER_DIGITS or not isinstance(operand.constant, int):
                raise NotPlain("INTERVAL")
            factor = operand.constant
        if not isinstance(node, Cast) or not isinstance(node.operand, Literal):
            raise NotPlain("INTERVAL")
        counts, units = map(int, node.operand.text.split()), node.target.removeprefix(OF_INTERVALS).split()
        found = interval_of(list(counts), units, factor)
        if found is None:
            raise NotPlain("INTERVAL")
        return Typed(Values(found), found.type)

    def _check_utc(self) -> None:
        if self.time_zone is None or fixed_zone(self.time_zone) != datetime.UTC:
            raise NotPlain("a day or a part of a timestamp in another time zone than UTC")

    def _date_in_utc(self, operand: Typed) -> Typed:
        """Return the date of a timestamp in a session in UTC; another operand as it is. Raises NotPlain."""
        if operand.type != INSTANT:
            return operand
        self._check_utc()
        if operand.is_constant:
            date = constants.cast(Constant(Primitive.TIMESTAMP, operand.constant), Primitive.DATE, "UTC")
            return _result(Values(array_of([date.value], Primitive.DATE)), DATE)
        return Typed(Converted(operand.expression, DATE), DATE)

    def _midnight_in_utc(self, operand: Typed) -> Typed:
        """Return the timestamp of a date in a session in UTC; another operand as it is. Raises NotPlain."""
        if operand.type != DATE:
            return operand
        self._check_utc()
        if operand.is_constant:
            return self._instant(operand)
        return Typed(Converted(operand.expression, INSTANT, may_fail=True), INSTANT)

    def _in_list(self, operands: Sequence[Typed], kind: pa.DataType) -> Expression:
        subject, members = self._converted(operands[0], kind), operands[1:]
        if not all(each.is_constant for each in members) or not columns_of(subject):
            raise NotPlain("a list of more than constants")
        values = _array_of(members, kind)
        found = Call("in", (subject, Values(values.drop_null())))
        # Beside null, no other value is certain to be outside the list.
        return Call("or", (found, Values(pa.nulls(1, BOOL)))) if values.null_count else found

    def _converted(self, operand: Typed, kind: pa.DataType) -> Expression:
        """Return the operand in the type to which Spark converts it implicitly."""
        if operand.is_constant:
            return Values(_array_of([operand], kind))
        return operand.expression if operand.type == kind else Converted(operand.expression, kind)


def _array_of(constants: Sequence[Typed], kind: pa.DataType) -> pa.Array:
    """Return constants in a type that holds them. Raises ArrowInvalid or OverflowError for one that does not fit."""
    plain = [
        each.constant if each.constant is None or each.type == kind else _value_in(kind, each.constant)
        for each in constants
    ]
    is_same = all(each.type == kind for each in constants)
    return array_of(plain, delta_type(kind, "")) if is_same else pa.array(plain, kind)


def folded(node: Expression, parameters: Mapping[str, object], time_zone: str) -> Constant:
    """Return the value of an expression without columns. Raises NotPlain."""
    found = ColumnBinder(columns_in(StructType(())), parameters, time_zone=time_zone).operand(node)
    if not isinstance(found.expression, Values):
        raise NotPlain(described(node))
    value, kind = _plain_value(found.expression), delta_type(found.type, "")
    return constants.NULL if value is None or not isinstance(kind, Primitive | DecimalType) else Constant(kind, value)


def _plain_value(values: Values) -> Any:
    array = values.array
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64())
    return array[0].as_py()


def _result(values: Values, kind: pa.DataType) -> Typed:
    """Return the result of an operation on constants. Spark compares a day or an instant as it does a literal."""
    if kind in (DATE, INSTANT):
        return Typed(values, kind, is_constant=True, constant=_plain_value(values))
    return Typed(values, kind)


def _is_interval(node: Expression) -> bool:
    if isinstance(node, Call) and node.operator == "*":
        return any(map(_is_interval, node.operands))
    return isinstance(node, Cast) and node.is_interval


def _operand_of(constant: Constant, node: Expression) -> Typed:
    if constant.is_local:
        raise NotPlain("a time of a named zone")
    return Typed(node, arrow_type(constant.type), is_constant=True, constant=constant.value)


def _value_in(kind: pa.DataType, constant: object) -> object:
    """Return a number as a value of a type that holds it."""
    if kind == TEXT:
        return str(constant)
    if isinstance(constant, float):
        return constant
    assert isinstance(constant, int | Decimal)
    if is_decimal(kind):
        return Decimal(constant)
    # Minus zero is a whole number's, or a decimal's: 0.
    return float(constant) + 0.0 if pa.types.is_floating(kind) else int(constant)


def _meant(operand: Typed, kinds: Collection[pa.DataType]) -> Typed:
    """Return a constant text as the whole number or the date that it is compared with: operands of these types.

    With ANSI mode Spark converts the text, without it the column; of a text as Spark writes it, both are the same.
    """
    if operand.type != TEXT or not operand.is_constant or len(kinds) != 1:
        return operand
    kind = delta_type(next(iter(kinds)), "")
    is_written = kind is Primitive.DATE or kind in INTEGERS
    if not is_written or not isinstance(kind, Primitive) or not is_canonical(kind, operand.constant):
        is_date = ", and it is no date written as YYYY-MM-DD" if kind is Primitive.DATE else ""
        raise NotPlain(f"a text beside the type {kind}{is_date}")
    return _operand_of(Constant(kind, _read(operand.constant, kind)), operand.expression)


def _read(text: str, kind: Primitive) -> int:
    found = codec(kind)
    value = None if found is None else found.read(text)
    assert isinstance(value, int)
    return value


def _folded(known: Known, operands: Sequence[Expression], result: pa.DataType) -> Values:
    """Return the value of an operation on constants."""
    arrays = [each.array for each in operands if isinstance(each, Values)]
    if len(arrays) < len(operands) or not arrays or pa.types.is_struct(result):
        raise NotPlain("a calculation of constants")
    try:
        return Values(known.compute(arrays[0], *(array[0] for array in arrays[1:])))
    except (ForSpark, pa.ArrowInvalid):
        raise NotPlain("a calculation of constants") from None


_DECIMAL = "decimal("


def _type_named(name: str) -> Primitive | DecimalType:
    """Return the type that a cast names. Raises NotPlain."""
    if name in constants.CAST_TARGETS:
        return constants.CAST_TARGETS[name]
    digits = name.removeprefix("numeric(").removeprefix("dec(").removeprefix(_DECIMAL).removesuffix(")").split(",")
    if name.startswith(("numeric(", "dec(", _DECIMAL)) and len(digits) == 2 and all(map(str.isdecimal, digits)):
        precision, scale = map(int, digits)
        if 1 <= precision <= MAX_DECIMAL_PRECISION and scale <= precision:
            return DecimalType(precision, scale)
    raise NotPlain(f"a cast to {name}")
