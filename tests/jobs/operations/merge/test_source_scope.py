"""Alone in showing which partitions a MERGE reads for the values of its source, and where it reads the table (A14)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.operations import Merge
from airflow_txlog.engine import Snapshot, Table
from airflow_txlog.engine.table.predicate import may_hold_match
from airflow_txlog.engine.table.predicate.pruning import num_partitions
from airflow_txlog.engine.table.schema.schema import from_arrow
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.operations.merge import source_scope
from airflow_txlog.jobs.operations.merge.by_spark import JudgedMerge, judge_merge
from airflow_txlog.jobs.operations.merge.keys import Equality, PairColumns, equalities
from airflow_txlog.jobs.operations.merge.source_scope import AutoScope, described
from airflow_txlog.jobs.source.frames import Source, frame_of, materialize
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.jobs.spark.session import job_settings
from airflow_txlog.jobs.spark.shipping import ship
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.schemas import spark_schema
from airflow_txlog.sql.expression import FALSE
from airflow_txlog.storage import PLAIN
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import begin_job
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# --- the text --------------------------------------------------------------------------------------------------------

TARGET = ["k", "p", "q", "v"]
SOURCE = ["k", "x", "y", "flag"]

FOUND: list[tuple[str, list[tuple[str, str, bool]]]] = [
    ("t.p = s.x", [("p", "s.x", False)]),
    ("s.x = t.p", [("p", "s.x", False)]),
    ("T.P == upper(s.x)", [("p", "upper(s.x)", False)]),
    ("t.p <=> s.x", [("p", "s.x", True)]),
    ("p = x", [("p", "x", False)]),
    ("t.`p` = s.x AND t.k = s.k", [("p", "s.x", False)]),
    ("((t.k = s.k) AND (t.p = s.x AND t.q <=> s.y))", [("p", "s.x", False), ("q", "s.y", True)]),
    ("t.k BETWEEN s.x AND s.y AND t.p = s.x", [("p", "s.x", False)]),
    (
        "t.p = CASE WHEN s.flag AND s.x = 1 OR s.y = 2 THEN 1 ELSE 2 END AND t.k = s.k",
        [("p", "CASE WHEN s.flag AND s.x = 1 OR s.y = 2 THEN 1 ELSE 2 END", False)],
    ),
    ("t.p = s.x | 1 AND true", [("p", "s.x | 1", False)]),
    ("t.p = (s.x OR s.y)", [("p", "(s.x OR s.y)", False)]),
    ("t.p = s.x -- AND t.q = s.y OR 1", [("p", "s.x", False)]),
    ("t.p = s.or AND s.flag", [("p", "s.or", False)]),
    ("t.p = 'OR'", [("p", "'OR'", False)]),
    ("t.p = t.q", [("p", "t.q", False)]),
]
NOT_FOUND = [
    "t.p = s.x OR t.k = s.k",
    "t.k = s.k AND (t.p = s.x OR s.flag)",
    "NOT t.p = s.x",
    "NOT (t.p = s.x)",
    "!(t.p = s.x)",
    "(t.p = s.x) IS NULL",
    "t.p = s.x IS NULL",
    "t.p = s.x = s.y",
    "(t.p = s.x) = s.flag",
    "t.p = s.x IN (true)",
    "t.p = s.x < 3",
    "t.p != s.x",
    "t.p >= s.x",
    "year(t.p) = s.x",
    "t.p + 1 = s.x",
    "coalesce(t.p = s.x, true)",
    "CASE WHEN t.p = s.x THEN true END",
    "t.v = s.x",
    "t.p.member = s.x",
    "s.p = s.x",
    "k = x",
    "t.p = s.x AND s.k = end OR s.flag",
    "t.p = s.x AND ${x}",
    "t.p LIKE s.x",
    "t.p =",
]


def scoping(
    on: str, target: Sequence[str] = TARGET, source: Sequence[str] = SOURCE, alias: str = "t"
) -> list[Equality]:
    """The equalities of ON that compare the columns p and q."""
    sides = [from_arrow(pa.schema([(name, pa.string()) for name in names])) for names in (target, source)]
    pair = PairColumns(target=sides[0], source=sides[1], target_alias=alias, source_alias="s")
    return [found for found in equalities(on, pair, ["p", "q"]) if found is not None]


@pytest.mark.parametrize(("on", "expected"), FOUND, ids=lambda case: str(case)[:40])
def test_a14_conjuncts_that_compare_a_bare_partition_column_scope(
    on: str, expected: list[tuple[str, str, bool]]
) -> None:
    assert scoping(on) == [Equality(column=column, sql=sql, null_safe=safe) for column, sql, safe in expected]


@pytest.mark.parametrize("on", NOT_FOUND)
def test_a14_whatever_else_stands_in_on_does_not_scope(on: str) -> None:
    assert not scoping(on)


@pytest.mark.parametrize(
    ("target", "source"),
    [
        ([*TARGET, "t"], SOURCE),  # `t.p` may be a member of the column t
        (TARGET, [*SOURCE, "T"]),
        (TARGET, [*SOURCE, "end"]),  # a bare `end` closes a CASE, or is a column
        ([*TARGET, "case"], SOURCE),
    ],
)
def test_a14_names_that_may_mean_two_things_do_not_scope(target: list[str], source: list[str]) -> None:
    assert not scoping("t.p = s.x", target, source)
    assert not scoping("p = s.x", source=["p", "x"])
    for alias in ("null", "true", "current_path"):
        assert not scoping(f"{alias}.p = s.x", source=["x"], alias=alias)


# --- with Spark ------------------------------------------------------------------------------------------------------

DAYS = [dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(1500, 3, 1), None]
PARTITIONED = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("n", pa.int32()),
        ("name", pa.string()),
        ("b", pa.bool_()),
        ("dec", pa.decimal128(10, 2)),
        ("f", pa.float64()),
    ]
)
PARTITION_BY = ["day", "n", "name", "b", "dec", "f"]


def target_rows() -> list[dict[str, Any]]:
    """One row a partition, each value of each column in some row, null among them."""
    names = ["a", "01", "é/=%", None]
    numbers = [1, -(2**31), 2**31 - 1, None]
    decimals = [Decimal("1.50"), Decimal("-0.01"), None, Decimal("99999999.99")]
    floats = [0.0, 1.5, float("nan"), None]
    return [
        {
            "id": index,
            "day": DAYS[index % 4],
            "n": numbers[(index // 4 + index) % 4],
            "name": names[(index // 2) % 4],
            "b": [True, False, None][index % 3],
            "dec": decimals[(index + 1) % 4],
            "f": floats[index % 4],
        }
        for index in range(24)
    ]


def source_rows() -> pa.Table:
    return pa.table(
        {
            "id": pa.array([0, 5, 99, 3], pa.int64()),
            "d": pa.array([DAYS[0], DAYS[2], dt.date(2030, 1, 1), None], pa.date32()),
            "ts": pa.array([dt.datetime(2024, 1, 2, 10, tzinfo=dt.UTC)] * 4, pa.timestamp("us", tz="UTC")),
            "i": pa.array([1, 7, None, 1], pa.int32()),
            "l": pa.array([2**31 - 1, 2**40, None, 1], pa.int64()),
            "text": ["a", "", "01", None],
            "flag": [True, True, True, None],
            "m": pa.array([Decimal("1.50"), None, Decimal("7.00"), Decimal("-0.01")], pa.decimal128(10, 2)),
            "wide": pa.array([Decimal("1.5"), None, None, None], pa.decimal128(20, 1)),
            "x": pa.array([0.0, 1.5, float("nan"), None], pa.float64()),
            "end": ["unused"] * 4,
        }
    ).drop_columns(["end"])


# ON, and how many of the partitions the scope keeps; None: the whole table is read.
SCOPES: dict[str, int | None] = {
    "t.day = s.d": 12,
    "t.day <=> s.d": 18,
    "s.d = t.day AND t.id = s.id": 12,
    "t.day = CAST(s.ts AS DATE)": 6,
    "t.day = s.ts": None,
    "t.day = date_add(s.d, 1)": 6,
    "t.day = '2024-01-01'": None,
    "t.n = s.i": 6,
    "t.n = s.l": 12,
    "t.n <=> s.l": 18,
    "t.n = s.text": None,
    "t.name = s.text": 12,
    "t.name <=> s.text": 18,
    "t.name = s.i": None,
    "t.name = lower(s.text) AND t.day = s.d": 3,
    "t.name = concat(s.text, :suffix)": 0,
    "t.b = s.flag": 8,
    "t.b <=> s.flag": 16,
    "t.b = s.flag AND s.id > 0 OR t.id = s.id": None,
    "t.b = (s.i = 1)": 16,
    "t.dec = s.m": 12,
    "t.dec = s.wide": None,
    "t.f = s.x": None,
    "t.day = s.d OR t.id = s.id": None,
    "t.day = t.day AND t.id = s.id": None,
    "t.day = NULL": None,
    "year(t.day) = year(s.d)": None,
    "t.id = s.id": None,
    "day = d AND n <=> i": 2,
}
RANGES: dict[str, int | None] = {
    "t.day = s.d": 18,
    "t.day <=> s.d": 24,
    "t.name = s.text": 12,
    "t.dec = s.m AND t.b <=> s.flag": 8,
    "t.day = date_add(s.d, 40000)": 12,
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A merge as far as it is prepared, with its source materialized."""

    context: JobContext
    gate: SqlGate
    snapshot: Snapshot
    judged: JudgedMerge
    source: MaterializedSource

    def limited(self, **limits: int) -> Bench:
        """The same with other limits."""
        table = Table.at(self.context.root, PLAIN, limits=Limits(**limits))
        return replace(self, context=replace(self.context, table=table))

    def scope(self, on: str) -> Any:
        self.gate.condition(on, self.judged.sides.pair)
        return self.scope_by(AutoScope(context=self.context), on)

    def scope_by(self, scoper: AutoScope, on: str) -> Any:
        pair = PairColumns(
            target=self.snapshot.delta_schema, source=self.source.columns, target_alias="t", source_alias="s"
        )
        return scoper.of(self.snapshot, pair, self.source, on, lambda why: self.judged)

    def kept(self, predicate: Any) -> set[int]:
        """The ids in the files that the predicate leaves; a file holds one row."""
        files = self.snapshot.files()
        answers = may_hold_match(predicate, files, self.snapshot.delta_schema, self.snapshot.partition_columns)
        stats = files.filter(answers).column("stats").to_pylist()
        return {int(text.split('"id":')[1].split(",")[0].split("}")[0]) for text in stats}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("autoscope") / "t"
    table = make_table(folder, pa.Table.from_pylist(target_rows(), PARTITIONED), partition_by=PARTITION_BY)
    snapshot = table.snapshot()
    arguments = {"source": {"sql": "SELECT 1"}, "on": "TRUE", "clauses": [{"when": "matched", "then": "delete"}]}
    spec = job_spec(operation="merge", table_uri=table.uri, arguments={**arguments, "parameters": {"suffix": "!"}})
    context = begin_job(spec, spark, table, print)
    with job_settings(spark, "UTC"):
        ship(spark)
        gate = SqlGate(context)
        rows = source_rows()
        frame = spark.createDataFrame(rows, spark_schema(rows.schema))
        source = materialize(context, Source(frame=frame, reads_target=False), gate.used)
        judged = judge_merge(context, gate, context.record(Merge), snapshot, source, keeps_members=False)
        spark.createDataFrame(table.to_arrow(), spark_schema(PARTITIONED)).createOrReplaceTempView("whole_target")
        frame_of(context, source).createOrReplaceTempView("whole_source")
        yield Bench(context=context, gate=gate, snapshot=snapshot, judged=judged, source=source)
    context.drop_views()


def matched_ids(bench: Bench, texts: Sequence[str]) -> list[set[int]]:
    """For each ON, the target rows that Spark matches over the whole table. One query."""
    flags = ", ".join(f"bool_or(coalesce((\n{on}\n), false)) AS m{n}" for n, on in enumerate(texts))
    frame = bench.gate.run(f"SELECT t.id, {flags} FROM whole_target AS t CROSS JOIN whole_source AS s GROUP BY t.id")
    rows = frame.toArrow().to_pylist()
    return [{row["id"] for row in rows if row[f"m{n}"]} for n in range(len(texts))]


def kept_counts(bench: Bench, texts: Sequence[str]) -> dict[str, int | None]:
    """How many partitions the scope of each ON keeps, none of them without a row that ON matches."""
    scopes = {on: bench.scope(on) for on in texts}
    kept = {on: bench.kept(scope) for on, scope in scopes.items() if scope is not None}
    for on, matched in zip(kept, matched_ids(bench, list(kept)), strict=True):
        assert matched <= kept[on], (on, scopes[on].sql)
    return {on: len(kept[on]) if on in kept else None for on in texts}


@pytest.mark.spark
def test_a14_no_row_that_on_matches_lies_outside_of_the_scope(bench: Bench) -> None:
    assert bench.snapshot.num_files == 24
    assert kept_counts(bench, list(SCOPES)) == SCOPES


@pytest.mark.spark
def test_a14_values_read_on_the_driver_are_those_that_spark_finds(bench: Bench) -> None:
    bare = ["t.day <=> s.d AND t.n = `L`", "t.name <=> text AND t.dec = s.m AND t.b <=> s.flag"]
    read = {on: bench.scope(on) for on in bare}
    by_spark = bench.limited(scope_bytes=0)
    for on, scope in read.items():
        assert by_spark.scope(on).tree == scope.tree, on
    for matched, scope in zip(matched_ids(bench, bare), read.values(), strict=True):
        assert bench.kept(scope) >= matched, scope.sql


@pytest.mark.spark
def test_a14_many_values_become_a_range(bench: Bench) -> None:
    bench = bench.limited(scope_values=1)
    assert kept_counts(bench, list(RANGES)) == RANGES
    scope = bench.scope("t.day = s.d")
    assert described(scope) == "a range of day"
    assert not any(map(num_partitions, source_scope.leaves(scope.tree)))


@pytest.mark.spark
def test_a14_the_source_is_looked_at_once_for_all_rounds(bench: Bench) -> None:
    scoper = AutoScope(context=bench.context)
    first = bench.scope_by(scoper, "t.day = s.d")
    again = bench.scope_by(scoper, "t.day = s.d")
    assert first is again
    assert described(first) == "3 values of day"
    empty = bench.scope_by(scoper, "t.name = s.text || :suffix")
    assert bench.kept(empty) == set()
    assert empty.tree != FALSE
