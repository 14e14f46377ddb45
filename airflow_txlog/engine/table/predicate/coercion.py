"""What a comparison of a column with constants means in the column's own type.

Spark brings both sides to a common type. The invariant: a leaf is made only where that common type orders the column's
values exactly as the column's own type does, with ANSI mode on or off, so that the constant alone can be moved (rounded
with its operator, where it lies between two values of the column). Where the column itself would change its order or
its equality, as a string beside a number or a date beside a timestamp, there is no leaf (`OutsideGrammar`).
Source: soundness A4; Spark 4.2, AnsiTypeCoercion, TypeCoercion, DecimalPrecisionTypeCoercion.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction

from airflow_txlog.datafiles.codecs import DAY_S, SECOND_US, date_text
from airflow_txlog.engine.table.predicate.constants import (
    INTEGER_TEXT,
    Constant,
    OutsideGrammar,
    as_date,
    as_double,
    as_timestamp,
    as_timestamp_ntz,
    at_clock,
    midnight,
)
from airflow_txlog.engine.table.predicate.tree import Operand, Operator, Value, compared, member_of, null_test, prefixed
from airflow_txlog.engine.table.schema.schema import INTEGERS
from airflow_txlog.engine.table.schema.types import MAX_DECIMAL_PRECISION, DataType, DecimalType, Primitive
from airflow_txlog.sql.expression import FALSE, Expression, Opaque, all_of, any_of

# Digits that Spark gives a whole number when it stands beside a decimal.
_INTEGER_DIGITS = {Primitive.BYTE: 3, Primitive.SHORT: 5, Primitive.INTEGER: 10, Primitive.LONG: 20}
_FLOATS = (Primitive.FLOAT, Primitive.DOUBLE)
_LOCAL_TIME = "a time of a named zone, which only Spark converts: write it with its offset from UTC"
_LONG = INTEGERS[Primitive.LONG]
_WIDE = Context(prec=2 * MAX_DECIMAL_PRECISION)


def comparison(column: Operand, operator: Operator, constant: Constant, time_zone: str) -> Expression:
    """`column operator constant`, where it is true. Raises OutsideGrammar."""
    found = _moved(column, operator, constant, time_zone)
    return compared(column, *found) if isinstance(found, tuple) else found


def _moved(
    column: Operand, operator: Operator, constant: Constant, time_zone: str
) -> tuple[Operator, Value] | Expression:
    """The comparison with a value of the column's own type, or what it is instead. Raises OutsideGrammar."""
    if constant.type is Primitive.VOID:
        return FALSE
    value = _in_domain(column.type, constant, time_zone)
    if isinstance(value, Constant):
        return _within_a_day(column, operator, [value])
    if isinstance(value, Fraction):
        return _on_grid(column, operator, value)
    if isinstance(value, float):
        return _float_comparison(column, operator, value)
    return operator, value


def null_safe(column: Operand, constant: Constant, time_zone: str, negated: bool) -> Expression:
    """`column <=> constant`, never null itself; or its negation. Raises OutsideGrammar."""
    if constant.type is Primitive.VOID:
        return null_test(column, is_null=not negated)
    if not negated:
        return comparison(column, Operator.EQ, constant, time_zone)
    return any_of([comparison(column, Operator.NE, constant, time_zone), null_test(column, is_null=True)])


def membership(column: Operand, constants: list[Constant], time_zone: str, negated: bool) -> Expression:
    """`column IN (constants)` or `column NOT IN (constants)`. Raises OutsideGrammar.

    Spark brings the column and the whole list to one type, so a list is decided only where its members are of one kind.
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
    # Each member alone first: it drops what the column cannot hold, and puts the rest into the column's type.
    members = [_moved(column, operator, constant, time_zone) for constant in given]
    exact = [member[1] for member in members if isinstance(member, tuple)]
    if any(isinstance(value, float) and (value == 0 or math.isnan(value)) for value in exact):
        # Spark's hash set of many members distinguishes -0.0 from 0.0, and its comparison of few does not.
        raise OutsideGrammar("zero or NaN in a list of floats")
    values: dict[Value, None] = dict.fromkeys(exact)
    if not values:
        return null_test(column, is_null=False) if negated and given else FALSE
    return member_of(column, tuple(values), negated)


def like(column: Operand, constant: Constant, negated: bool) -> Expression:
    """`column LIKE 'prefix%'`, a text without wildcards, or the negation. Raises OutsideGrammar for other patterns."""
    if constant.type is Primitive.VOID:
        return FALSE
    if column.type is not Primitive.STRING or not isinstance(constant.value, str):
        raise OutsideGrammar(f"LIKE on the {column.type} column {column.name}")
    pattern = constant.value
    prefix = pattern.removesuffix("%")
    if "%" in prefix or "_" in prefix or "\\" in prefix:
        raise OutsideGrammar("a LIKE pattern other than 'prefix%'")
    if pattern == "%":
        return FALSE if negated else null_test(column, is_null=False)
    if prefix == pattern:
        return compared(column, Operator.NE if negated else Operator.EQ, pattern)
    return prefixed(column, prefix, negated)


def _in_domain(data_type: DataType, constant: Constant, time_zone: str) -> Value | Fraction | Constant:
    """The constant where the column's values are: a fraction beside exact numbers, else a value of the type itself.

    A time of a named zone stays a constant, because it is not known as an instant.
    """
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
    value = constant.value
    match constant.type:
        case Primitive.BYTE | Primitive.SHORT | Primitive.INTEGER | Primitive.LONG if isinstance(value, int):
            return Fraction(value)
        case DecimalType(precision, scale) if isinstance(value, Decimal):
            _check_width(max(_INTEGER_DIGITS[data_type], precision - scale) + scale)
            # Spark's analysis makes `i < 1e20BD` plain TRUE, and so selects null as well.
            if _LONG.least <= value <= _LONG.greatest:
                return Fraction(value)
        # A bigint loses digits as a double, and an int as a float.
        case Primitive.DOUBLE if isinstance(value, float) and data_type is not Primitive.LONG:
            return value if math.isnan(value) or math.isinf(value) else Fraction(value)
        case Primitive.FLOAT if isinstance(value, float) and data_type in (Primitive.BYTE, Primitive.SHORT):
            return value if math.isnan(value) or math.isinf(value) else Fraction(value)
        case Primitive.STRING if isinstance(value, str) and INTEGER_TEXT.fullmatch(value):
            # Without ANSI the text becomes the column's type, or null where it does not fit; with it, a bigint.
            if INTEGERS[data_type].held(int(value)) is not None:
                return Fraction(int(value))
    raise _unlike(data_type, constant)


def _beside_decimal(data_type: DecimalType, constant: Constant) -> Fraction:
    value = constant.value
    if constant.type in _INTEGER_DIGITS and isinstance(value, int) and isinstance(constant.type, Primitive):
        whole, scale = _INTEGER_DIGITS[constant.type], 0
    elif isinstance(constant.type, DecimalType) and isinstance(value, Decimal):
        whole, scale = constant.type.precision - constant.type.scale, constant.type.scale
    else:
        # Beside a float or a text the column becomes a double and loses digits.
        raise _unlike(data_type, constant)
    _check_width(max(data_type.precision - data_type.scale, whole) + max(data_type.scale, scale))
    return Fraction(value)


def _check_width(digits: int) -> None:
    if digits > MAX_DECIMAL_PRECISION:
        raise OutsideGrammar(f"a comparison that needs decimals of more than {MAX_DECIMAL_PRECISION} digits")


def _beside_float(data_type: Primitive, constant: Constant) -> float:
    """Both sides as doubles, as Spark compares them: beside 0.1 a float column is widened, and 0.1 is not rounded."""
    value = constant.value
    match constant.type:
        case Primitive.FLOAT | Primitive.DOUBLE | DecimalType() if isinstance(value, float | Decimal):
            return float(value)
        case Primitive.BYTE | Primitive.SHORT | Primitive.INTEGER | Primitive.LONG if isinstance(value, int):
            number = float(value)
        case Primitive.STRING if isinstance(value, str):
            number = as_double(value)
        case _:
            raise _unlike(data_type, constant)
    # Some modes make the constant a float first: it stays the same only where a float holds it exactly.
    if data_type is Primitive.FLOAT and not _is_single(number):
        raise OutsideGrammar(f"{value!r} beside the float column, where it may be rounded")
    return number


def _is_single(number: float) -> bool:
    try:
        rounded = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return False
    return rounded == number or math.isnan(number)


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
    # A date beside a timestamp, or one kind of timestamp beside the other: Spark casts the column by its zone.
    raise _unlike(data_type, constant)


def _within_a_day(column: Operand, operator: Operator, moments: Sequence[object]) -> Expression:
    """A comparison with times of a named zone (for more than one, with whether the column is one of them).

    No zone's clock is more than 18 hours off UTC, so the instants lie within a day of what the clocks show. That
    bounds the rows for which it is true, and decides none of them.
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


# --- operators on a grid of values -----------------------------------------------------------------------------------


def _on_grid(column: Operand, operator: Operator, value: Fraction) -> tuple[Operator, Value] | Expression:
    """The comparison with the column's own values, which are the multiples of a step between two bounds.

    `i > 5.5` becomes `i > 5`, `i = 5.5` never holds, and a byte is always less than 1000 unless it is null.
    """
    scale, low, high = _grid(column.type)
    units = value * 10**scale
    floor = math.floor(units)
    if floor != units:
        match operator:
            case Operator.EQ:
                return FALSE
            case Operator.NE:
                return null_test(column, is_null=False)
            case Operator.LT:
                operator = Operator.LE
            case Operator.GE:
                operator = Operator.GT
    outcome = _outside(operator, floor, low, high)
    if outcome is not None:
        return null_test(column, is_null=False) if outcome else FALSE
    if isinstance(column.type, DecimalType):
        return operator, Decimal(floor).scaleb(-scale, _WIDE)
    return operator, floor


def _grid(data_type: DataType) -> tuple[int, int, int]:
    """Digits after the point, and the least and the greatest value as multiples of the step."""
    if isinstance(data_type, DecimalType):
        greatest = 10**data_type.precision - 1
        return data_type.scale, -greatest, greatest
    whole = INTEGERS[data_type]
    return 0, whole.least, whole.greatest


def _outside(operator: Operator, value: int, low: int, high: int) -> bool | None:
    """What the comparison is for every value from low to high, or None where it depends or `value` is one of them."""
    if low <= value <= high:
        return None
    if operator in (Operator.EQ, Operator.NE):
        return operator is Operator.NE
    return (operator in (Operator.LT, Operator.LE)) == (value > high)


def _float_comparison(column: Operand, operator: Operator, value: float) -> tuple[Operator, Value] | Expression:
    """A float beside a float column as it is; NaN and the infinities beside an integer column decide by themselves."""
    if column.type in _FLOATS:
        return operator, value
    greater = math.isnan(value) or value > 0
    holds = operator is Operator.NE or (operator in (Operator.LT, Operator.LE)) == greater
    return null_test(column, is_null=False) if holds and operator is not Operator.EQ else FALSE


def _check_one_kind(column: Operand, constants: list[Constant]) -> None:
    """The list and the column have a common type in which each member means what it means alone."""
    kinds = {DecimalType if isinstance(constant.type, DecimalType) else constant.type for constant in constants}
    numbers = kinds <= {*INTEGERS, *_FLOATS, DecimalType}
    if Primitive.STRING in kinds and column.type is not Primitive.STRING:
        # With ANSI the texts become the column's type, without it the column becomes a text: '5' is 5 both ways, '05'
        # is not.
        if kinds != {Primitive.STRING} or not all(_is_canonical(column.type, str(each.value)) for each in constants):
            raise OutsideGrammar(f"a list of strings for the {column.type} column {column.name}")
    elif numbers and column.type in _FLOATS:
        # A floating column makes every number a double, or leaves floats what they are.
        return
    elif numbers and kinds <= {*INTEGERS, DecimalType}:
        types = [column.type, *(constant.type for constant in constants)]
        widths = [_width(each) for each in types if isinstance(each, Primitive | DecimalType)]
        if DecimalType in kinds or isinstance(column.type, DecimalType):
            _check_width(max(whole for whole, _ in widths) + max(scale for _, scale in widths))
    elif len(kinds) > 1:
        raise OutsideGrammar("a list that mixes types")


def _is_canonical(data_type: DataType, text: str) -> bool:
    """The text is exactly what Spark writes for the value that it reads from it."""
    if data_type is Primitive.DATE:
        return date_text(as_date(text)) == text
    return data_type in INTEGERS and INTEGER_TEXT.fullmatch(text) is not None and str(int(text)) == text


def _width(data_type: Primitive | DecimalType) -> tuple[int, int]:
    """Digits before and after the point."""
    if isinstance(data_type, DecimalType):
        return data_type.precision - data_type.scale, data_type.scale
    return _INTEGER_DIGITS.get(data_type, 0), 0
