"""A comparison of a column with constants, in the column's own type.

Spark converts both sides to a common type. The invariant: a leaf is made only if the common type orders the column's
values exactly as the column's own type does, with ANSI mode on or off. Then only the constant is converted; if it lies
between two values of the column, the operator is adjusted. If the column's own order or equality would change (a string
compared with a number, a date with a timestamp), reading raises `OutsideGrammar`.
Source: soundness A4; Spark 4.2, AnsiTypeCoercion, TypeCoercion, DecimalPrecisionTypeCoercion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction

import pyarrow as pa

from airflow_txlog.datafiles.codecs import DAY_S, SECOND_US
from airflow_txlog.engine.table.predicate.constants import (
    Constant,
    OutsideGrammar,
    as_date,
    as_float,
    as_timestamp,
    as_timestamp_ntz,
    at_clock,
    is_canonical,
    midnight,
)
from airflow_txlog.engine.table.predicate.tree import (
    Operand,
    Operator,
    Value,
    compared,
    liked,
    member_of,
    null_test,
    prefixed,
)
from airflow_txlog.engine.table.schema.schema import INTEGERS
from airflow_txlog.engine.table.schema.types import MAX_DECIMAL_PRECISION, DataType, DecimalType, Primitive
from airflow_txlog.sql.expression import FALSE, Expression, Opaque, all_of, any_of

# Digits that Spark gives a whole number when it compares it with a decimal.
_INTEGER_DIGITS: dict[DataType, int] = dict(zip(INTEGERS, (3, 5, 10, 20), strict=True))
_FLOATS = (Primitive.FLOAT, Primitive.DOUBLE)
# The integers that a float and a double hold exactly.
_HELD: dict[DataType, tuple[Primitive, ...]] = {
    Primitive.FLOAT: (Primitive.BYTE, Primitive.SHORT),
    Primitive.DOUBLE: (Primitive.BYTE, Primitive.SHORT, Primitive.INTEGER),
}
_LOCAL_TIME = "a time of a named zone, which only Spark converts: write it with its offset from UTC"
_LONG = INTEGERS[Primitive.LONG]
_WIDE = Context(prec=2 * MAX_DECIMAL_PRECISION)


def comparison(column: Operand, operator: Operator, constant: Constant, time_zone: str) -> Expression:
    """Return `column operator constant`. Raises OutsideGrammar."""
    found = _moved(column, operator, constant, time_zone)
    return compared(column, *found) if isinstance(found, tuple) else found


def _moved(
    column: Operand, operator: Operator, constant: Constant, time_zone: str
) -> tuple[Operator, Value] | Expression:
    """Return the operator and a value of the column's type, or the expression that replaces the comparison."""
    if constant.type is Primitive.VOID:
        return FALSE
    value = _in_domain(column.type, constant, time_zone)
    if isinstance(value, Constant):
        return _within_a_day(column, operator, [value])
    if isinstance(value, Fraction):
        return _on_grid(column, operator, value)
    if isinstance(value, float):
        if column.type in _FLOATS:
            return operator, value
        return _decided(column, operator, is_less=math.isnan(value) or value > 0)
    return operator, value


def null_safe(column: Operand, constant: Constant, time_zone: str, negated: bool) -> Expression:
    """Return `column <=> constant`, which is never null, or its negation. Raises OutsideGrammar."""
    if constant.type is Primitive.VOID:
        return null_test(column, is_null=not negated)
    if not negated:
        return comparison(column, Operator.EQ, constant, time_zone)
    return any_of([comparison(column, Operator.NE, constant, time_zone), null_test(column, is_null=True)])


def membership(column: Operand, constants: list[Constant], time_zone: str, negated: bool) -> Expression:
    """Return `column IN (constants)` or its negation. Raises OutsideGrammar.

    Spark converts the column and the whole list to one type, so all members must be of one kind.
    """
    given = [constant for constant in constants if constant.type is not Primitive.VOID]
    if negated and len(given) < len(constants):
        return FALSE
    _check_one_kind(column, given)
    operator = Operator.NE if negated else Operator.EQ
    if column.type is Primitive.TIMESTAMP:
        moments = [_in_domain(column.type, constant, time_zone) for constant in given]
        if any(isinstance(moment, Constant) for moment in moments):
            return _within_a_day(column, operator, moments)
    # Each member separately: values that the column cannot hold are dropped, the others converted to its type.
    members = [_moved(column, operator, constant, time_zone) for constant in given]
    exact = [member[1] for member in members if isinstance(member, tuple)]
    if any(isinstance(value, float) and (value == 0 or math.isnan(value)) for value in exact):
        # Spark uses a hash set for many members, which distinguishes -0.0 from 0.0, and comparisons for few.
        raise OutsideGrammar("zero or NaN in a list of floats")
    if not exact:
        return null_test(column, is_null=False) if negated and given else FALSE
    return member_of(column, tuple(dict.fromkeys(exact)), negated)


def like(column: Operand, constant: Constant, negated: bool) -> Expression:
    """Return `column LIKE pattern` or its negation. Raises OutsideGrammar for a pattern that is not plain."""
    if constant.type is Primitive.VOID:
        return FALSE
    pattern = constant.value
    if column.type is not Primitive.STRING or not isinstance(pattern, str):
        raise OutsideGrammar(f"LIKE on the {column.type} column {column.name}")
    if not is_plain_pattern(pattern):
        raise OutsideGrammar("a LIKE pattern with another wildcard than %")
    if pattern == "%":
        return FALSE if negated else null_test(column, is_null=False)
    if "%" not in pattern:
        return compared(column, Operator.NE if negated else Operator.EQ, pattern)
    prefix = pattern.removesuffix("%")
    return liked(column, pattern, negated) if "%" in prefix else prefixed(column, prefix, negated)


NO_PATTERN = "\\\ufffd"
"""Characters of a LIKE pattern that only Spark reads: the escape, and the one that it puts for bytes of no text."""


def is_plain_pattern(pattern: str) -> bool:
    """Return whether `%` is the pattern's only wildcard, and all else is found in a text by its bytes."""
    # Spark replaces bytes that are not Unicode by U+FFFD before it compares.
    return not set(pattern) & {"_", *NO_PATTERN}


def _in_domain(data_type: DataType, constant: Constant, time_zone: str) -> Value | Fraction | Constant:
    """Return the constant as a fraction for exact numbers, else as a value of the type; a local time as it is."""
    value = constant.value
    match data_type:
        case Primitive.BYTE | Primitive.SHORT | Primitive.INTEGER | Primitive.LONG:
            return _beside_integer(data_type, constant)
        case DecimalType():
            return _beside_decimal(data_type, constant)
        case Primitive.FLOAT | Primitive.DOUBLE:
            return _beside_float(data_type, constant)
        case Primitive.STRING | Primitive.BOOLEAN | Primitive.BINARY if (
            constant.type is data_type and value is not None
        ):
            return value
        case Primitive.DATE | Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
            return _beside_time(data_type, constant, time_zone)
    raise _unlike(data_type, constant)


def _beside_integer(data_type: Primitive, constant: Constant) -> Value | Fraction:
    value, kind = constant.value, constant.type
    if kind in INTEGERS and isinstance(value, int):
        return Fraction(value)
    if isinstance(kind, DecimalType) and isinstance(value, Decimal):
        _check_common_width([data_type, kind])
        # Spark's analysis replaces `i < 1e20BD` by TRUE, which also selects null.
        if _LONG.least <= value <= _LONG.greatest:
            return Fraction(value)
    # A bigint loses digits as a double, and an int as a float.
    if isinstance(value, float) and data_type in _HELD.get(kind, ()):
        return value if math.isnan(value) or math.isinf(value) else Fraction(value)
    if kind is Primitive.STRING and isinstance(value, str):
        # Without ANSI mode the text becomes the column's type, or null if it does not fit; with it, a bigint.
        whole = INTEGERS[data_type].read(value)
        if whole is not None:
            return Fraction(whole)
    raise _unlike(data_type, constant)


def _beside_decimal(data_type: DecimalType, constant: Constant) -> Fraction:
    is_number = constant.type in INTEGERS or isinstance(constant.type, DecimalType)
    if not is_number or not isinstance(constant.value, int | Decimal):
        # Compared with a float or a text, the column becomes a double and loses digits. Spark refuses a date.
        raise _unlike(data_type, constant)
    _check_common_width([data_type, constant.type])
    return Fraction(constant.value)


def _check_common_width(types: Sequence[DataType]) -> None:
    """Raise OutsideGrammar unless a decimal holds all values of these exact types."""
    decimals = [each for each in types if isinstance(each, DecimalType)]
    before_point = [_INTEGER_DIGITS.get(each, 0) for each in types] + [each.precision - each.scale for each in decimals]
    if max(before_point) + max(each.scale for each in decimals) > MAX_DECIMAL_PRECISION:
        raise OutsideGrammar(f"a comparison that needs decimals of more than {MAX_DECIMAL_PRECISION} digits")


def _beside_float(data_type: Primitive, constant: Constant) -> float:
    """Return the constant as a double, as Spark compares it: a float column is widened, and 0.1 is not rounded."""
    value = constant.value
    if constant.type is Primitive.STRING and isinstance(value, str):
        number = as_float(value)
    elif constant.type in INTEGERS and isinstance(value, int):
        number = float(value)
    elif isinstance(value, float | Decimal):
        return float(value)
    else:
        raise _unlike(data_type, constant)
    # Some modes make the constant a float first: it stays the same only if a float holds it exactly.
    if data_type is Primitive.FLOAT and not (math.isnan(number) or pa.scalar(number, pa.float32()).as_py() == number):
        raise OutsideGrammar(f"{value!r} beside the float column, where it may be rounded")
    return number


def _beside_time(data_type: Primitive, constant: Constant, time_zone: str) -> int | Constant:
    value = constant.value
    if constant.type is Primitive.STRING and isinstance(value, str):
        if data_type is Primitive.DATE:
            return as_date(value)
        if data_type is Primitive.TIMESTAMP_NTZ:
            return as_timestamp_ntz(value)
        constant = as_timestamp(value, time_zone)
    elif constant.type is Primitive.DATE and isinstance(value, int) and data_type is not Primitive.DATE:
        start = midnight(value)
        if data_type is Primitive.TIMESTAMP_NTZ:
            return start
        constant = at_clock(start, time_zone)
    if constant.type is data_type and isinstance(constant.value, int):
        return constant if constant.is_local else constant.value
    # Between a date and a timestamp, or the two kinds of timestamps, Spark casts the column in its zone.
    raise _unlike(data_type, constant)


def _within_a_day(column: Operand, operator: Operator, moments: Sequence[object]) -> Expression:
    """Return bounds of a comparison with times of a named zone (several: IN), which is never decided.

    No zone's clock is more than 18 hours off UTC, so each instant lies within a day of its wall time.
    """
    if operator is Operator.NE:
        raise OutsideGrammar(_LOCAL_TIME)
    known = [moment.value if isinstance(moment, Constant) else moment for moment in moments]
    values = [value for value in known if isinstance(value, int)]
    bounds: list[Expression] = [Opaque(_LOCAL_TIME)]
    if operator in (Operator.EQ, Operator.GE, Operator.GT):
        bounds.append(compared(column, Operator.GE, max(min(values) - DAY_S * SECOND_US, _LONG.least)))
    if operator in (Operator.EQ, Operator.LE, Operator.LT):
        bounds.append(compared(column, Operator.LE, min(max(values) + DAY_S * SECOND_US, _LONG.greatest)))
    return all_of(bounds)


def _unlike(data_type: DataType, constant: Constant) -> OutsideGrammar:
    return OutsideGrammar(f"a {data_type} column beside a constant of type {constant.type}")


def _on_grid(column: Operand, operator: Operator, value: Fraction) -> tuple[Operator, Value] | Expression:
    """Return the comparison with an integer or decimal column: `i > 5.5` becomes `i > 5`, and `i = 5.5` never holds."""
    if isinstance(column.type, DecimalType):
        scale, greatest = column.type.scale, 10**column.type.precision - 1
        least = -greatest
    else:
        scale, least, greatest = 0, INTEGERS[column.type].least, INTEGERS[column.type].greatest
    units = value * 10**scale
    floor = math.floor(units)
    if floor != units:
        if operator in (Operator.EQ, Operator.NE):
            return _decided(column, operator, is_less=True)
        operator = {Operator.LT: Operator.LE, Operator.GE: Operator.GT}.get(operator, operator)
    if not least <= floor <= greatest:
        return _decided(column, operator, is_less=floor > greatest)
    return operator, Decimal(floor).scaleb(-scale, _WIDE) if isinstance(column.type, DecimalType) else floor


def _decided(column: Operand, operator: Operator, *, is_less: bool) -> Expression:
    """Return the comparison with a constant that all values are less (or greater) than."""
    holds = operator is Operator.NE or (operator in (Operator.LT, Operator.LE)) == is_less
    return null_test(column, is_null=False) if holds and operator is not Operator.EQ else FALSE


def _check_one_kind(column: Operand, constants: list[Constant]) -> None:
    """Raise OutsideGrammar unless each member means the same in the list as alone."""
    kinds = {DecimalType if isinstance(constant.type, DecimalType) else constant.type for constant in constants}
    numbers = kinds <= {*INTEGERS, *_FLOATS, DecimalType}
    if Primitive.STRING in kinds and column.type is not Primitive.STRING:
        # With ANSI mode the texts become the column's type, without it the column becomes a text: '5' is 5 in both,
        # '05' is not.
        if kinds != {Primitive.STRING} or not all(is_canonical(column.type, str(each.value)) for each in constants):
            raise OutsideGrammar(f"a list of strings for the {column.type} column {column.name}")
    elif numbers and column.type in _FLOATS:
        # Every number becomes a double, or stays a float.
        return
    elif numbers and kinds <= {*INTEGERS, DecimalType}:
        if DecimalType in kinds or isinstance(column.type, DecimalType):
            _check_common_width([column.type, *(constant.type for constant in constants)])
    elif len(kinds) > 1:
        raise OutsideGrammar("a list that mixes types")
