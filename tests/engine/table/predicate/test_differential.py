"""The engine's reader against Spark: it may say unknown, never something else (soundness A3, A4).

Thousands of generated predicates are put to real Spark over a table with a column of every type, and to the engine over
the same rows, over files of one and of two rows with exact statistics, and over files whose rows are partitions.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from airflow_txlog.engine.table.predicate import Predicate, may_hold_match, plain_condition, rows_matching
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.predicate.tree import describe
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import InvalidInput, InvalidPredicate
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.sql.expression import columns_of
from tests.engine.table.predicate.examples import NAMES, ROWS, SCHEMA, files_of_partitions, files_with_statistics
from tests.engine.table.predicate.generator import COMPARISONS, TIME_COLUMNS, Case, Generator, foreign_cases
from tests.engine.table.predicate.spark_oracle import answers, make_view, parsed
from tests.engine.table.predicate.tables import is_decided
from tests.helpers.depth import depth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.seeded]

_ROWS = range(ROWS.num_rows)
_GROUPS = [*((row,) for row in _ROWS), *(tuple(random.Random(f"pair {row}").sample(_ROWS, 2)) for row in _ROWS)]
_FILES = files_with_statistics(_GROUPS)
# Bytes are no text, and most cannot be partition values.
_PARTITION_COLUMNS = [name for name in NAMES if name != "bin"]
_PARTITIONS = files_of_partitions(_PARTITION_COLUMNS)
# An empty string is null as a partition value: the protocol cannot say it.
_REAL_PARTITIONS = [row for row in _ROWS if ROWS["str"][row].as_py() != ""]


@pytest.fixture
def view(spark: SparkSession) -> Iterator[SparkSession]:
    # As a job binds them.
    as_values = "spark.sql.legacy.parameterSubstitution.constantsOnly"
    settings = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", as_values)
    before = {name: spark.conf.get(name) for name in settings}
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set(as_values, "true")
    make_view(spark)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def _passed(sql: str, parameters: Mapping[str, object], time_zone: str) -> list[bool] | None:
    """Return of which rows a condition is true; None if it is not plain, or a value is left to Spark."""
    bound = plain_condition(sql, SCHEMA, parameters, time_zone=time_zone)
    if isinstance(bound, str):
        return None
    try:
        passed: list[bool] = passing(bound, ROWS).to_pylist()
    except InvalidInput as error:
        if error.facts.get("left_to_spark") is None:
            raise
        return None
    return passed


class Tally:
    """Compares the engine with Spark, and counts what was decided, so that silence is not taken for agreement."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.silent: list[str] = []

    def compare(self, case: Case, spark_says: list[bool | None] | None, time_zone: str) -> None:
        passed = _passed(case.sql, case.parameters, time_zone)
        self.counts["plain"] += passed is not None
        if spark_says is None:
            assert passed is None, f"Spark refuses {case.sql!r} {case.parameters}"
            self.counts["refused by Spark"] += 1
            return
        selected = [answer is True for answer in spark_says]
        self.counts["evaluated"] += 1
        predicate = read_predicate(case.sql, SCHEMA, parameters=case.parameters, time_zone=time_zone)
        where = f"{case.sql!r} {case.parameters} in {time_zone}, read as {predicate.tree}"
        # The rules of a named zone are Spark's alone.
        expected = case.expected and "a time of a named zone" not in describe(predicate.tree)
        assert passed is None or passed == selected, where
        if is_decided(predicate):
            self.counts["decided"] += 1
            assert rows_matching(predicate, ROWS).to_pylist() == selected, where
        elif expected:
            self.silent.append(where)
        self.counts["in grammar"] += expected
        self.counts["in grammar, decided"] += expected and is_decided(predicate)
        self._files(predicate, selected, where)
        self._partitions(predicate, selected, where)

    def _files(self, predicate: Predicate, selected: list[bool], where: str) -> None:
        kept = may_hold_match(predicate, _FILES, SCHEMA, []).to_pylist()
        held = [any(selected[row] for row in group) for group in _GROUPS]
        lost = [group for group, is_held, is_kept in zip(_GROUPS, held, kept, strict=True) if is_held and not is_kept]
        assert not lost, where
        self.counts["files without a match"] += sum(not each for each in held)
        self.counts["files pruned"] += sum(not each for each in kept)

    def _partitions(self, predicate: Predicate, selected: list[bool], where: str) -> None:
        kept = may_hold_match(predicate, _PARTITIONS, SCHEMA, _PARTITION_COLUMNS, trust_statistics=False).to_pylist()
        assert not [row for row in _REAL_PARTITIONS if selected[row] and not kept[row]], where
        self.counts["partitions without a match"] += sum(not selected[row] for row in _REAL_PARTITIONS)
        self.counts["partitions pruned"] += sum(not kept[row] for row in _REAL_PARTITIONS)

    def run(self, spark: SparkSession, cases: list[Case], time_zone: str = "UTC", batch: int = 250) -> None:
        spark.conf.set("spark.sql.session.timeZone", time_zone)
        for case, spark_says in zip(cases, answers(spark, cases, batch), strict=True):
            self.compare(case, spark_says, time_zone)


def test_the_engine_never_contradicts_spark(view: SparkSession) -> None:
    tally = Tally()
    generator = Generator(20240310)
    tally.run(view, [generator.case() for _ in range(depth(120, 450, 4200))])
    for zone in ("America/New_York", "Asia/Kolkata", "Europe/Berlin", "-03:30", "Australia/Lord_Howe"):
        tally.run(view, [generator.case(TIME_COLUMNS) for _ in range(depth(16, 75, 300))], zone)
    print(dict(tally.counts))
    assert tally.counts["evaluated"] >= depth(160, 525, 5000)
    assert tally.counts["decided"] > 0.6 * tally.counts["evaluated"]
    # What the generator knows to lie within the grammar is answered, but for a few.
    assert tally.counts["in grammar, decided"] > 0.97 * tally.counts["in grammar"], tally.silent[:20]
    assert tally.counts["files pruned"] > 0.5 * tally.counts["files without a match"]
    assert tally.counts["partitions pruned"] > 0.7 * tally.counts["partitions without a match"]


@pytest.mark.long("the generator again, in the other mode")
def test_the_engine_never_contradicts_spark_without_ansi_mode(view: SparkSession) -> None:
    tally = Tally()
    view.conf.set("spark.sql.ansi.enabled", "false")
    generator = Generator(4)
    tally.run(view, [generator.case() for _ in range(depth(50, 300, 600))])
    tally.run(view, [generator.case(TIME_COLUMNS) for _ in range(depth(20, 100, 200))], "America/New_York")
    tally.run(view, foreign_cases(9, depth(20, 150, 300)), batch=50)
    print(dict(tally.counts))
    assert tally.counts["evaluated"] >= depth(70, 400, 800)


def test_a4_a_column_beside_any_constant_never_contradicts_spark(view: SparkSession) -> None:
    tally = Tally()
    tally.run(view, foreign_cases(3, depth(16, 75, 150)), batch=4)
    print(dict(tally.counts))
    assert tally.counts["evaluated"] >= depth(4, 25, 50)


def _beside_interval(draw: random.Random, number: int) -> Case:
    # The cases of one statement share its parameters.
    of_day, of_at = f"day{number}", f"at{number}"
    day, at = dt.date(2024, 3, draw.randrange(8, 31)), dt.datetime(2024, 3, 10, draw.randrange(24), 30, tzinfo=dt.UTC)
    literals = [f"DATE '{day}'", "TIMESTAMP '2024-03-10 06:59:59.999999'", "DATE '9999-12-31'"]
    constant = draw.choice([f":{of_day}", f":{of_at}", *literals])
    unit = draw.choice(["MONTHS", "DAYS", "DAYS", "HOURS", "SECONDS", "YEAR", "WEEK"])
    moved = f"{constant} {draw.choice('+-')} INTERVAL {draw.randrange(40)} {unit}"
    moved = draw.choice([moved, moved, moved, f"CAST({moved} AS DATE)", f"to_date({moved})"])
    text = f"{draw.choice(TIME_COLUMNS)} {draw.choice(COMPARISONS)} {moved}"
    if draw.random() < 0.2:
        text = f"{draw.choice(TIME_COLUMNS)} NOT BETWEEN {moved} AND {constant}"
    given = {name: value for name, value in ((of_day, day), (of_at, at)) if f":{name}" in text}
    return Case(text, given, expected=False)


def test_a_constant_that_an_interval_moves_never_contradicts_spark(view: SparkSession) -> None:
    tally, draw = Tally(), random.Random("intervals")
    for zone in ("UTC", "America/New_York", "-03:30"):
        tally.run(view, [_beside_interval(draw, number) for number in range(depth(60, 150, 1500))], zone)
    print(dict(tally.counts))
    assert tally.counts["decided"] > 0.2 * tally.counts["evaluated"]
    assert tally.counts["files pruned"] > 0.2 * tally.counts["files without a match"]


def test_precedence_and_structure_are_read_as_spark_reads_them(view: SparkSession) -> None:
    """Cases whose tokens were dropped, doubled or swapped, where Spark still takes them for an expression."""
    tally = Tally()
    draw = random.Random(77)
    generator = Generator(77)
    columns = ["boo", "int", "str", "dbl"]
    mutated = [_mutated(generator.case(columns), draw) for _ in range(depth(120, 375, 750))]
    cases = [case for case in mutated if _readable(case) and parsed(view, case.sql) is not None][: depth(24, 75, 150)]
    tally.run(view, cases, batch=16)
    print(dict(tally.counts))
    assert tally.counts["decided"] >= depth(6, 25, 50)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_what_is_plain_spark_accepts_whatever_its_tokens(view: SparkSession, ansi: str) -> None:
    """Tokens in any order: of those texts that are taken for plain, Spark refuses none."""
    view.conf.set("spark.sql.ansi.enabled", ansi)
    draw = random.Random(f"11 {ansi}")
    pieces = "int lng str dat `int` date = <> <= <=> AND OR NOT IN BETWEEN IS NULL ( ) , - TRUE 1 'a' :d :s"
    cases = []
    for _ in range(depth(10_000, 50_000)):
        column, constant = draw.choice(_PLAIN_SIDES)
        words = draw.choices(pieces.split(), k=draw.randint(0, 4))
        for _ in range(draw.randint(1, 2)):
            at = draw.randint(0, len(words))
            words[at:at] = [column, draw.choice(["=", "<", "IN (", "BETWEEN 1 AND", "NOT IN ("]), constant]
        sql = " ".join(words)
        parameters = {name: value for name, value in _PLAIN_VALUES.items() if f":{name}" in sql}
        if not isinstance(plain_condition(sql, SCHEMA, parameters), str):
            cases.append(Case(sql, parameters, expected=False))
    tally = Tally()
    tally.run(view, cases[: depth(120, 375, 750)])
    # Of a few, a value is left to Spark.
    assert tally.counts["plain"] > 0.9 * tally.counts["evaluated"]
    assert tally.counts["evaluated"] >= depth(100, 250, 500)


_PLAIN_SIDES = [
    ("int", "1"),
    ("int", "'-7'"),
    ("byt", "'127'"),
    ("lng", ":n"),
    ("str", "'a'"),
    ("str", ":s"),
    ("dat", "DATE '2024-02-29'"),
]
_PLAIN_VALUES = {"d": "2024-02-29", "s": "a", "n": "999999999999999999"}


def _mutated(case: Case, draw: random.Random) -> Case:
    tokens = re.findall(r"'[^']*'|\w+|<=>|[<>!=]=|<>|\s+|.", case.sql)
    for _ in range(draw.choice([1, 1, 2, 3])):
        at, other = draw.randrange(len(tokens)), draw.randrange(len(tokens))
        match draw.choice(["drop", "double", "swap", "insert"]):
            case "drop":
                tokens[at] = " "
            case "double":
                tokens.insert(at, f"{tokens[at]} ")
            case "swap":
                tokens[at], tokens[other] = f" {tokens[other]} ", f" {tokens[at]} "
            case "insert":
                tokens.insert(
                    at, draw.choice([" NOT ", " AND boo OR ", "(", ")", " IS NULL ", " = ", " - ", "!", "--", " boo "])
                )
    sql = "".join(tokens)
    return Case(sql, {name: value for name, value in case.parameters.items() if f":{name}" in sql}, expected=False)


def _readable(case: Case) -> bool:
    try:
        read_predicate(case.sql, SCHEMA, parameters=case.parameters)
    except InvalidPredicate:
        return False
    return True


# Conditions that are true of a column with the value 'b'.
_OF_A_NAME = [
    "{} = 'b'",
    "{} IS NOT NULL",
    "'a' < {} AND {} LIKE 'b%'",
    "NOT ({} IN ('a', 'c'))",
    "concat({}, 'c') = 'bc'",
    "({}) || coalesce('c', {}) = 'bc'",
    "CASE WHEN {} = 'b' THEN {} END = {}",
    "{} BETWEEN {} AND {}",
]


@pytest.mark.long("Spark analyses a text for each of its keywords")
def test_a_name_in_a_plain_text_is_a_column_to_spark_whatever_word_it_is(view: SparkSession) -> None:
    keywords = {row[0].lower() for row in view.sql("SELECT keyword FROM sql_keywords()").collect()}
    schema = StructType(
        tuple(StructField(name=word, type=Primitive.STRING, nullable=True) for word in sorted(keywords))
    )
    texts = [form.replace("{}", word) for word in schema.names for form in _OF_A_NAME]
    bound = {text: plain_condition(text, schema, {}) for text in texts}
    # NULL is no name.
    plain = [text for text, found in bound.items() if not isinstance(found, str) and columns_of(found)]
    assert len(plain) > len(texts) / 2
    columns = ", ".join(f"'b' AS `{word}`" for word in schema.names)
    (answer,) = view.sql(f"SELECT array({', '.join(f'({text})' for text in plain)}) FROM (SELECT {columns})").collect()
    assert not [text for text, is_true in zip(plain, answer[0], strict=True) if is_true is not True]
