"""Generated predicates over the table of `examples`: literals of every spelling, operators, lists, connectives."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from airflow_txlog.datafiles.codecs import date_text, timestamp_text
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive
from tests.engine.table.predicate.examples import COLUMNS, NAMES

COMPARISONS = ["=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"]
INTEGERS = (Primitive.BYTE, Primitive.SHORT, Primitive.INTEGER, Primitive.LONG)
TIME_COLUMNS = ["dat", "tim", "ntz"]


@dataclass(frozen=True)
class Case:
    """A predicate. `expected` says that the grammar covers it: an engine that answers unknown to all is no engine."""

    sql: str
    parameters: dict[str, Any] = field(default_factory=dict)
    expected: bool = True


@dataclass(frozen=True)
class Spelling:
    """A constant as it may stand in SQL; `parameter` is the value where the text is a `:name`."""

    text: str
    decided: bool = True
    parameter: Any = None
    has_parameter: bool = False


class Generator:
    """Draws cases; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def case(self, columns: list[str] | None = None) -> Case:
        """One to three leaves, joined and negated."""
        leaves = [self.leaf(self.random.choice(columns or NAMES)) for _ in range(self.random.choice([1, 1, 1, 2, 3]))]
        sql, parameters, expected = leaves[0].sql, dict(leaves[0].parameters), leaves[0].expected
        for leaf in leaves[1:]:
            sql = f"{sql} {self.random.choice(['AND', 'OR', 'and', 'or'])} {leaf.sql}"
            parameters |= leaf.parameters
            expected = expected and leaf.expected
        if self.random.random() < 0.2:
            sql = f"{self.random.choice(['NOT ', 'not', '!', 'NOT NOT '])}({sql})"
        return Case(self._decorated(sql), parameters, expected)

    def leaf(self, name: str) -> Case:
        """One question about a column."""
        shape = self.random.random()
        column = self.random.choice([name, name, name, name.upper(), f"`{name}`", f"({name})"])
        negation = self.random.choice(["", "", "NOT "])
        if shape < 0.06:
            return Case(f"{negation}{column} IS {self.random.choice(['NULL', 'NOT NULL'])}")
        if shape < 0.10 and name == "boo":
            return Case(f"{negation}{column}{self.random.choice(['', ' IS TRUE', ' IS NOT FALSE', ' IS NOT TRUE'])}")
        if shape < 0.2:
            low, high = self.constant(name), self.constant(name)
            text = f"{column} {self.random.choice(['', 'NOT '])}BETWEEN {low.text} AND {high.text}"
            return self._made(text, low, high)
        if shape < 0.34:
            values = self._list(name)
            text = f"{column} {self.random.choice(['', 'NOT '])}IN ({', '.join(value.text for value in values)})"
            return self._made(text, *values, decided=name not in ("flt", "dbl", "dat", "tim", "ntz"))
        if shape < 0.45 and name == "str":
            pattern = self.random.choice(["a%", "ab%", "%", "abc", "", "é%", "a_b%", "%a", "O''B%", "a%b", "😀%", "5%"])
            decided = "_" not in pattern and "''" not in pattern
            return Case(f"{column} {self.random.choice(['', 'NOT '])}LIKE '{pattern}'", expected=decided)
        constant = self.constant(name)
        operator = self.random.choice(COMPARISONS)
        sides = [column, constant.text]
        if self.random.random() < 0.25:
            sides.reverse()
        return self._made(f"{negation}{sides[0]} {operator} {sides[1]}", constant)

    def constant(self, name: str) -> Spelling:
        """A constant that Spark compares with the column without an error."""
        draw = self.random.random()
        if draw < 0.03:
            return Spelling(
                self.random.choice(["NULL", "CAST(NULL AS INT)"] if name in ("int", "dec", "dbl") else ["NULL"])
            )
        value = self.random.choice(COLUMNS[name][1])
        if draw < 0.15 and (bound := self._parameter(name, value)) is not None:
            return bound
        kind = COLUMNS[name][0]
        if isinstance(kind, DecimalType):
            return self._beside_decimal(value, kind)
        return _SPELLINGS[kind](self, value)

    def _parameter(self, name: str, value: Any) -> Spelling | None:
        self.count += 1
        given: Any = value
        decided = True
        match COLUMNS[name][0]:
            case Primitive.DATE:
                given = self.random.choice([_date(value), date_text(value)])
            case Primitive.TIMESTAMP:
                if not 0 <= value < 4_000_000_000_000_000:
                    return None
                aware = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value)
                given = self.random.choice([aware, timestamp_text(value) + "Z", _date(value // 86_400_000_000)])
            case Primitive.TIMESTAMP_NTZ:
                given = timestamp_text(value, " ")
            case Primitive.FLOAT:
                decided = False
        return Spelling(f":p{self.count}", decided, given, True)

    def _list(self, name: str) -> list[Spelling]:
        """A list whose members Spark can bring to one type: spelt alike, sometimes with a null, sometimes long."""
        first = self.constant(name)
        size = self.random.choice([1, 2, 3, 4, 20])
        pool = [spelling for spelling in (self.constant(name) for _ in range(size)) if _alike(spelling, first)]
        return [first, *pool]

    def _made(self, text: str, *constants: Spelling, decided: bool = True) -> Case:
        parameters = {each.text[1:]: each.parameter for each in constants if each.has_parameter}
        return Case(text, parameters, decided and all(each.decided for each in constants))

    def _decorated(self, sql: str) -> str:
        draw = self.random.random()
        if draw < 0.04:
            return f"{sql} -- {self.random.choice(['c', 'a quote: ', '/*', 'AND 1 = 0'])}\n"
        return f"/* it's */ ({sql})" if draw < 0.06 else f"\t{sql}\n" if draw < 0.08 else sql

    # --- spellings of one value ---------------------------------------------------------------------------------------

    def _boolean(self, value: bool) -> Spelling:
        return Spelling(self.random.choice([str(value), str(value).upper(), str(value).lower()]))

    def _beside_integer(self, value: int, kind: Primitive) -> Spelling:
        near = value + self.random.choice([0, 0, 0, 1, -1])
        # Beside a literal of one's own width overflow is no question, since Spark widens the column.
        wide = kind is Primitive.LONG
        spellings = [
            Spelling(str(near), decided=-(2**63) <= near < 2**63),
            Spelling(f"{value}"),
            Spelling(f"{value}.0"),
            Spelling(f"{near}.5", decided=abs(near) < 2**63 - 1),
            Spelling(f"{near}.25BD", decided=abs(near) < 2**63 - 1),
            Spelling(f"{near}D", decided=not wide),
            Spelling(f"{near}.5D", decided=not wide),
            Spelling(f"{near}F", decided=kind in (Primitive.BYTE, Primitive.SHORT)),
            Spelling("double('NaN')", decided=not wide),
            Spelling("double('-Infinity')", decided=not wide),
            Spelling("-1e10", decided=not wide),
            Spelling("99999"),
            Spelling("-99999.5"),
            Spelling(f"CAST('{value}' AS BIGINT)"),
            Spelling(f"'{value}'"),
            Spelling(f"+{value}" if value >= 0 else f"- {-value}"),
            Spelling(f"{value * 10**12}", decided=abs(value) * 10**12 < 2**63),
        ]
        if -(2**63) <= near < 2**63:
            spellings.append(Spelling(f"{near}L"))
        return self.random.choice(spellings)

    def _beside_decimal(self, value: Decimal, kind: DecimalType) -> Spelling:
        text = format(value, "f")
        narrow = kind.precision < 20
        spellings = [
            Spelling(text),
            Spelling(text + "BD"),
            Spelling("5"),
            Spelling("-7L"),
            Spelling("0.1", decided=kind.scale > 0),
            Spelling("123.456", decided=kind.scale > 0),
            Spelling(f"{text}D", decided=False),
            Spelling("100000000000000000000", decided=narrow or kind.scale == 0),
        ]
        return self.random.choice(spellings)

    def _beside_float(self, value: float, kind: Primitive) -> Spelling:
        single = kind is Primitive.FLOAT
        special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value))
        if special is not None:
            text = self.random.choice([f"double('{special}')", f"CAST('{special}' AS DOUBLE)", f"float('{special}')"])
            return Spelling(self.random.choice([text, f"'{special}'"]))
        text = repr(value)
        whole = str(int(value)) if abs(value) < 1e15 else "3"
        spellings = [Spelling(f"{text}D"), Spelling(whole), Spelling(f"{whole}.5"), Spelling(f"double('{text}')")]
        if abs(value) < 3.4e38 and (abs(value) > 1e-44 or value == 0):
            spellings += [Spelling(f"{text}F"), Spelling(f"float('{text}')")]
        if "e" not in text:
            spellings.append(Spelling(text))
        spellings.append(Spelling(f"'{text}'", decided=not single))
        return self.random.choice(spellings)

    def _string(self, value: str) -> Spelling:
        if "'" not in value and "\\" not in value and self.random.random() < 0.7:
            return Spelling(f"'{value}'")
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        doubled = value.replace("\\", "\\\\").replace("'", "''")
        spellings = [f"'{escaped}'", f"'{doubled}'"]
        spellings.append('"' + value.replace("\\", "\\\\").replace('"', '""') + '"')
        if "'" not in value:
            spellings.append(f"R'{value}'")
        half = len(value) // 2
        if "'" not in value and "\\" not in value:
            spellings.append(f"'{value[:half]}' '{value[half:]}'")
        text = self.random.choice(spellings)
        return Spelling(text, decided=text == f"'{value}'" and "'" not in value)

    def _binary(self, value: bytes) -> Spelling:
        return Spelling(f"X'{value.hex()}'", decided=False)

    def _date(self, value: int) -> Spelling:
        text = date_text(value)
        year, month, day = text.split("-")
        spellings = [
            Spelling(f"DATE '{text}'"),
            Spelling(f"date'{text}'"),
            Spelling(f"CAST('{text}' AS DATE)"),
            Spelling(f"'{text}'"),
            Spelling(f"'{text}'"),
            Spelling(f"'{int(year):04d}-{int(month)}-{int(day)}'"),
            Spelling(f"'{text} 05:00:00'"),
            Spelling(f"'{text}T05'"),
            Spelling(f"'{year}'"),
            Spelling(f"'{year}-{month}'"),
        ]
        return self.random.choice(spellings)

    def _timestamp(self, value: int) -> Spelling:
        # Before 1970 the databases of time zones differ.
        modern = value >= 0
        text = timestamp_text(value, " ", fraction_digits=self.random.choice([6, 3, 0, None]))
        spellings = [
            Spelling(f"TIMESTAMP '{text}Z'"),
            Spelling(f"'{text}+05:30'"),
            Spelling(f"'{text}'", decided=modern),
            Spelling(f"TIMESTAMP '{text}'", decided=modern),
            Spelling(f"CAST('{text}' AS TIMESTAMP)", decided=modern),
            Spelling(f"'{text[:10]}'", decided=modern),
            Spelling(f"DATE '{text[:10]}'", decided=modern),
        ]
        return self.random.choice(spellings)

    def _timestamp_ntz(self, value: int) -> Spelling:
        text = timestamp_text(
            value, self.random.choice([" ", "T"]), fraction_digits=self.random.choice([6, 3, 0, None])
        )
        spellings = [
            Spelling(f"TIMESTAMP_NTZ '{text}'"),
            Spelling(f"'{text}'"),
            Spelling(f"CAST('{text}' AS TIMESTAMP_NTZ)"),
            Spelling(f"DATE '{text[:10]}'"),
            Spelling(f"'{text[:10]}'"),
            Spelling(f"'{text}Z'", decided=False),
        ]
        return self.random.choice(spellings)


_SPELLINGS: dict[Primitive, Callable[[Generator, Any], Spelling]] = {
    Primitive.BOOLEAN: Generator._boolean,
    **{kind: (lambda self, value, kind=kind: self._beside_integer(value, kind)) for kind in INTEGERS},
    Primitive.FLOAT: lambda self, value: self._beside_float(value, Primitive.FLOAT),
    Primitive.DOUBLE: lambda self, value: self._beside_float(value, Primitive.DOUBLE),
    Primitive.STRING: Generator._string,
    Primitive.BINARY: Generator._binary,
    Primitive.DATE: Generator._date,
    Primitive.TIMESTAMP: Generator._timestamp,
    Primitive.TIMESTAMP_NTZ: Generator._timestamp_ntz,
}


def foreign_cases(seed: int, count: int) -> list[Case]:
    """A column beside a constant of any other type: Spark often refuses, or casts the column."""
    generator = Generator(seed)
    cases = []
    for _ in range(count):
        column, other = generator.random.choice(NAMES), generator.random.choice(NAMES)
        constant = generator.constant(other)
        sql = f"{column} {generator.random.choice(COMPARISONS)} {constant.text}"
        parameters = {constant.text[1:]: constant.parameter} if constant.has_parameter else {}
        cases.append(Case(sql, parameters, expected=False))
    return cases


def _alike(one: Spelling, other: Spelling) -> bool:
    def family(spelling: Spelling) -> str:
        if spelling.has_parameter:
            return type(spelling.parameter).__name__
        text = spelling.text.lstrip("+-").lstrip()
        return "string" if text[0] in "'\"rR" else text[:4].lower() if text[0].isalpha() else "number"

    return one.text == "NULL" or other.text == "NULL" or family(one) == family(other)


def _date(value: int) -> dt.date:
    return dt.date(1970, 1, 1) + dt.timedelta(days=value)
