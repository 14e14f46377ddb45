"""Pruning never loses a row: the files that it leaves out hold none that the predicate selects.

The rows are judged twice, by the engine's own row evaluator and by a naive one with SQL's three-valued logic.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.datafiles.parquet.statistics import file_statistics
from airflow_txlog.datafiles.partitioning import partition_string
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.columns import FILES, adds_to_table
from airflow_txlog.engine.table.predicate import FileQuestion, may_hold_match, rows_matching
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.schema.schema import from_arrow
from airflow_txlog.engine.table.snapshot.file_index import FileIndex
from airflow_txlog.errors import UnsupportedPredicate
from tests.engine.properties.histories import REPEATABLE
from tests.engine.properties.naive_sql import Both, Compare, Either, In, IsNull, Not, StartsWith, sql, truth
from tests.helpers.depth import depth


def _single(value: float) -> float:
    """The nearest 32-bit float, as a double."""
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


LONG_TEXT = "a" * 31
# Few values a type, so that constants meet data, and the ones at the edges of what statistics can say.
POOLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [-(2**31), -1, 0, 1, 5, 2**31 - 1]),
    "l": (pa.int64(), [-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]),
    "d": (pa.float64(), [math.nan, math.inf, -math.inf, -0.0, 0.0, 0.1, 5.0, 1e300, 5e-324]),
    "f": (pa.float32(), [math.nan, math.inf, -0.0, 0.0, _single(0.1), 5.0, _single(1e30)]),
    "n": (pa.decimal128(10, 2), [Decimal("-1.00"), Decimal("0.00"), Decimal("0.01"), Decimal("99999999.99")]),
    "m": (
        pa.decimal128(38, 18),
        [Decimal("12345678901234567.890000000000000000"), Decimal("12345678901234567.890000000000000001"), Decimal(0)],
    ),
    "s": (
        pa.string(),
        [
            "",
            "a",
            "ab",
            "b",
            "é",
            LONG_TEXT,
            LONG_TEXT + "b",
            LONG_TEXT + "bc",
            LONG_TEXT + "\U0010ffff",
            "\U0001f600",
            "\uffff",
        ],
    ),
    "t": (
        pa.timestamp("us", "UTC"),
        [
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
            dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
            dt.datetime(2024, 1, 1, 0, 0, 0, 123_999, dt.UTC),
            dt.datetime(2024, 1, 1, 0, 0, 0, 124_000, dt.UTC),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, dt.UTC),
        ],
    ),
    "w": (
        pa.timestamp("us"),
        [dt.datetime(1, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 123_999), dt.datetime(2024, 1, 1)],
    ),
    "y": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]),
    "b": (pa.bool_(), [True, False]),
}
STRUCT = pa.struct([("i", pa.int64()), ("s", pa.string())])
# Two of the columns partition the table; their values are the files' and not their rows'.
PARTITIONS = {"ps": (pa.string(), ["a", "A b", "é", "x=1/y", None]), "pi": (pa.int64(), [-1, 0, 7, 10**18, None])}
SCHEMA = pa.schema(
    [(name, kind) for name, (kind, _) in POOLS.items()]
    + [("st", STRUCT)]
    + [(name, kind) for name, (kind, _) in PARTITIONS.items()]
)
DELTA = from_arrow(SCHEMA)
STORED = pa.schema([field for field in SCHEMA if field.name not in PARTITIONS])

_rows = st.fixed_dictionaries({name: st.sampled_from([None, *pool]) for name, (_, pool) in POOLS.items()})
_files = st.tuples(
    st.sampled_from(PARTITIONS["ps"][1]), st.sampled_from(PARTITIONS["pi"][1]), st.lists(_rows, min_size=1, max_size=4)
)


@st.composite
def _leaves(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from([*POOLS, "s", "d", *PARTITIONS]))
    pool = [value for value in (POOLS | PARTITIONS)[name][1] if value is not None]
    shape = draw(st.sampled_from(["compare", "compare", "compare", "in", "null", "prefix"]))
    if name == "b" and shape in ("in", "prefix"):
        shape = "compare"
    if shape == "null":
        return IsNull(name, draw(st.booleans()))
    if shape == "in":
        values = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
        return In(name, (*values, *([None] if draw(st.booleans()) and name != "d" else [])), draw(st.booleans()))
    if shape == "prefix" and name in ("s", "ps"):
        return StartsWith(
            name, draw(st.sampled_from(["", "a", "ab", "é", LONG_TEXT, LONG_TEXT + "b"])), draw(st.booleans())
        )
    operator = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]))
    return Compare(name, operator, draw(st.sampled_from(pool)))


PREDICATES = st.recursive(
    _leaves(),
    lambda inner: st.one_of(st.builds(Not, inner), st.builds(Both, inner, inner), st.builds(Either, inner, inner)),
    max_leaves=4,
)


def _add(ps: str | None, pi: int | None, rows: list[dict[str, Any]]) -> tuple[Add, pa.Table]:
    nested = [{**row, "st": {"i": row["l"], "s": row["s"]} if row["i"] else None} for row in rows]
    stored = pa.Table.from_pylist(nested, schema=STORED)
    values = {
        "ps": partition_string(pa.array([ps], pa.string()))[0],
        "pi": partition_string(pa.array([pi], pa.int64()))[0],
    }
    add = Add(
        path="f", partition_values=values, size=1, modification_time=0, data_change=True, stats=file_statistics(stored)
    )
    whole = pa.Table.from_pylist([{**row, "ps": ps, "pi": pi} for row in nested], schema=SCHEMA)
    return add, whole


@pytest.mark.seeded
@settings(REPEATABLE, max_examples=depth(100, 600))
@given(st.lists(_files, min_size=1, max_size=3), PREDICATES)
def test_pruning_never_loses_a_row(files: list[Any], node: Any) -> None:
    """`may_hold_match` keeps every file with a row that satisfies."""
    parameters: dict[str, Any] = {}
    text = sql(node, parameters)
    predicate = read_predicate(text, DELTA, parameters=parameters)
    made = [_add(*file) for file in files]
    table = adds_to_table([add for add, _ in made])
    may = may_hold_match(predicate, table, DELTA, list(PARTITIONS)).to_pylist()
    blind = may_hold_match(predicate, table, DELTA, list(PARTITIONS), trust_statistics=False).to_pylist()
    for (_, rows), kept, kept_blindly in zip(made, may, blind, strict=True):
        expected = [truth(node, row) is True for row in rows.to_pylist()]
        assert kept or not any(expected), f"{text} {parameters} lost a row"
        assert kept_blindly or not any(expected)
        assert kept_blindly or not kept, "statistics kept what partitions had ruled out"
        # The grammar is closed: what lies outside chooses no rows.
        with suppress(UnsupportedPredicate):
            assert rows_matching(predicate, rows).to_pylist() == expected, f"{text} {parameters}"


@pytest.mark.seeded
@settings(REPEATABLE, max_examples=depth(50, 300))
@given(st.lists(_files, min_size=1, max_size=3), st.lists(PREDICATES, min_size=1, max_size=3))
def test_an_open_table_that_keeps_statistics_answers_as_one_that_reads_them(files: list[Any], nodes: list[Any]) -> None:
    """One question after another, of files in two batches, gives what each gives alone."""
    table = adds_to_table([add for add, _ in (_add(*file) for file in files)])
    position = FILES.get_field_index("size")
    table = table.set_column(position, FILES.field(position), pa.array(range(len(files)), pa.int64()))
    index = FileIndex.of(pa.concat_tables([table.slice(0, 1), table.slice(1)]), "memory://t")
    for node in [*nodes, *nodes]:
        parameters: dict[str, Any] = {}
        text = sql(node, parameters)
        predicate = read_predicate(text, DELTA, parameters=parameters)
        may = may_hold_match(predicate, table, DELTA, list(PARTITIONS)).to_pylist()
        found = index.where(FileQuestion(predicate, DELTA, list(PARTITIONS)), ["size"]).column("size").to_pylist()
        assert found == [number for number, kept in enumerate(may) if kept], f"{text} {parameters}"


@pytest.mark.seeded
def test_the_predicates_drawn_are_mostly_decided_and_prune_something() -> None:
    """An engine that answers unknown to all would pass: most of what is drawn must be decided, and much pruned."""
    seen = {"decided": 0, "pruned": 0, "all": 0}

    @settings(REPEATABLE, max_examples=depth(60, 200))
    @given(st.lists(_files, min_size=1, max_size=3), PREDICATES)
    def count(files: list[Any], node: Any) -> None:
        parameters: dict[str, Any] = {}
        predicate = read_predicate(sql(node, parameters), DELTA, parameters=parameters)
        made = [_add(*file) for file in files]
        may = may_hold_match(predicate, adds_to_table([add for add, _ in made]), DELTA, list(PARTITIONS))
        seen["all"] += 1
        seen["pruned"] += False in may.to_pylist()
        try:
            rows_matching(predicate, made[0][1])
            seen["decided"] += 1
        except UnsupportedPredicate:
            pass

    count()
    assert seen["decided"] > 0.8 * seen["all"], seen
    assert seen["pruned"] > 0.25 * seen["all"], seen
