"""MERGE: rows as plain Spark SQL would give them, nulls and duplicates included; ambiguity is an error."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.jobs.tables import (
    append,
    bag,
    committed,
    error_of,
    files_on_disk,
    ids,
    live_files,
    make_table,
    rows,
    run,
    spark_bag,
    spark_view,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UPDATE_ALL = {"when": "matched", "then": "update", "set": "*"}
INSERT_ALL = {"when": "not_matched", "then": "insert", "values": "*"}
DELETE = {"when": "matched", "then": "delete"}


def values(sql: str) -> dict[str, Any]:
    return {"sql": sql}


# --- against plain Spark --------------------------------------------------------------------------------------------

TARGET = pa.schema([("k", pa.int32()), ("p", pa.string()), ("v", pa.float64()), ("x", pa.int64())])
SOURCE = pa.schema([("k", pa.int32()), ("p", pa.string()), ("v", pa.float64()), ("x", pa.int64()), ("op", pa.string())])

# name -> ON, clauses. The source's `op` is one of "d", "u", null.
MERGES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "upsert": ("t.k = s.k", [UPDATE_ALL, INSERT_ALL]),
    "null-safe": ("t.k <=> s.k", [UPDATE_ALL, INSERT_ALL]),
    "two keys": ("t.k = s.k AND t.p <=> s.p", [UPDATE_ALL, INSERT_ALL]),
    "insert only": ("t.k = s.k", [INSERT_ALL]),
    "insert if": ("t.k = s.k", [{**INSERT_ALL, "condition": "s.v > 0"}]),
    "update only": ("t.k = s.k", [{"when": "matched", "then": "update", "set": {"v": "t.v + s.v", "X": "s.x * 2"}}]),
    "delete only": ("t.k = s.k", [DELETE]),
    "delete if": ("t.k = s.k", [{**DELETE, "condition": "s.op = 'd'"}]),
    "first clause wins": (
        "t.k = s.k",
        [
            {**DELETE, "condition": "s.op = 'd' AND t.v > 0"},
            {"when": "matched", "then": "update", "condition": "s.op = 'u'", "set": {"v": "NULL", "p": "upper(t.p)"}},
            {"when": "matched", "then": "update", "condition": "t.x IS NULL", "set": {"x": "-1", "v": "s.v"}},
            {
                "when": "not_matched",
                "then": "insert",
                "condition": "s.op IS NULL",
                "values": {"k": "s.k", "p": "'new'"},
            },
            {"when": "not_matched", "then": "insert", "values": {"k": "s.k", "v": "coalesce(s.v, 0) / 2", "x": "7"}},
        ],
    ),
    "condition on the target alone": ("t.k = s.k AND t.p = 'a'", [UPDATE_ALL, INSERT_ALL]),
    "no equality": ("t.k < s.k - 6", [{"when": "matched", "then": "update", "set": {"v": "t.v"}}, INSERT_ALL]),
    "never": ("false", [UPDATE_ALL, INSERT_ALL]),
    "bare names": ("t.k = s.k AND op = 'u'", [{"when": "matched", "then": "update", "set": {"p": "op"}}]),
}


def expected_rows(
    spark: SparkSession, target: pa.Table, source: pa.Table, on: str, clauses: Sequence[Mapping[str, Any]]
) -> Counter[str] | None:
    """What plain Spark SQL makes of it: joins over numbered rows. None where a target row has two matches."""
    spark_view(spark, "t0", target.append_column("tid", pa.array(range(target.num_rows), pa.int64())))
    spark_view(spark, "s0", source.append_column("sid", pa.array(range(source.num_rows), pa.int64())))
    matched = [clause for clause in clauses if clause["when"] == "matched"]
    inserts = [clause for clause in clauses if clause["when"] == "not_matched"]

    def case(of: list[Mapping[str, Any]]) -> str:
        branches = " ".join(f"WHEN ({c.get('condition') or 'true'}) THEN {n}" for n, c in enumerate(of))
        return f"CASE {branches} ELSE -1 END" if of else "-1"

    spark.sql(
        f"SELECT t.*, s.op, s.sid, {case(matched)} AS clause, "
        + ", ".join(f"s.{name} AS s_{name}" for name in TARGET.names)
        + f" FROM t0 AS t JOIN s0 AS s ON ({on})"
    ).createOrReplaceTempView("pairs")
    many = spark.sql("SELECT tid FROM pairs GROUP BY tid HAVING count(*) > 1").count()
    tolerated = len(matched) == 1 and matched[0]["then"] == "delete" and not matched[0].get("condition")
    if matched and many and not tolerated:
        return None
    total = spark_bag(
        spark.sql(
            f"SELECT {', '.join(TARGET.names)} FROM t0 AS t "
            "WHERE tid NOT IN (SELECT tid FROM pairs AS p WHERE clause >= 0)"
        )
    )
    for number, clause in enumerate(matched):
        if clause["then"] == "update":
            chosen = clause["set"]
            assigned = (
                {n: f"s.{n}" for n in TARGET.names} if chosen == "*" else {k.lower(): v for k, v in chosen.items()}
            )
            columns = [f"CAST({assigned.get(n, f't.{n}')} AS {kind}) AS {n}" for n, kind in KINDS.items()]
            total += spark_bag(
                spark.sql(
                    f"SELECT {', '.join(columns)} FROM (SELECT tid, sid, clause FROM pairs) AS p "
                    f"JOIN t0 AS t ON p.tid = t.tid JOIN s0 AS s ON p.sid = s.sid WHERE p.clause = {number}"
                )
            )
    for number, clause in enumerate(inserts):
        chosen = clause["values"]
        assigned = {n: f"s.{n}" for n in TARGET.names} if chosen == "*" else chosen
        columns = [f"CAST({assigned.get(n, 'NULL')} AS {kind}) AS {n}" for n, kind in KINDS.items()]
        total += spark_bag(
            spark.sql(
                f"SELECT {', '.join(columns)} FROM (SELECT s.*, {case(inserts)} AS clause FROM s0 AS s) AS s "
                f"WHERE s.clause = {number} AND s.sid NOT IN (SELECT sid FROM pairs)"
            )
        )
    return total


KINDS = {"k": "int", "p": "string", "v": "double", "x": "bigint"}


def random_side(rng: random.Random, schema: pa.Schema, keys: Sequence[int | None]) -> pa.Table:
    def one(name: str, key: int | None) -> Any:
        return {
            "k": key,
            "p": rng.choice(["a", "b", None]),
            "v": rng.choice([0.5, -1.0, float("nan"), None]),
            "x": rng.choice([1, 2, None]),
            "op": rng.choice(["d", "u", None]),
        }[name]

    return pa.Table.from_pylist([{name: one(name, key) for name in schema.names} for key in keys], schema)


@pytest.mark.parametrize("partition_by", [[], ["p"]], ids=["flat", "partitioned"])
@pytest.mark.parametrize("name", MERGES)
def test_merge_gives_the_rows_of_plain_spark(
    tmp_path: Path, spark: SparkSession, name: str, partition_by: list[str]
) -> None:
    on, clauses = MERGES[name]
    rng = random.Random(name)
    parts = [
        random_side(rng, TARGET, [rng.choice([None, *range(12)]) for _ in range(12)]) for _ in range(3)
    ]  # duplicate and null keys
    source_keys = [*rng.sample(range(16), 8), None, None, 20, 20, 21]  # unique where it may match, twice where not
    source = random_side(rng, SOURCE, source_keys)
    target = pa.concat_tables(parts)
    table = make_table(tmp_path / "t", *parts, partition_by=partition_by)
    expected = expected_rows(spark, target, source, on, clauses)
    spark_view(spark, "the_source", source)
    before = table.snapshot().version
    result = run(spark, "merge", table, source=values("SELECT * FROM the_source"), on=on, clauses=clauses)
    if expected is None:
        assert error_of(result)["type"] == "AmbiguousMerge"
        assert table.snapshot().version == before
        return
    assert result.status in ("committed", "nothing_to_do"), result.error
    assert bag(table, *TARGET.names) == expected
    metrics = result.metrics
    assert metrics["numSourceRows"] == source.num_rows
    changed = metrics["numTargetRowsInserted"] - metrics["numTargetRowsDeleted"]
    assert sum(expected.values()) == target.num_rows + changed
    assert not [path for path in files_on_disk(table) if "txlog-inputs" in path]


# --- ambiguity ------------------------------------------------------------------------------------------------------


def test_two_source_rows_for_one_target_row_are_ambiguous(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    before = files_on_disk(table)
    source = values("SELECT * FROM VALUES (3L, 'a'), (3L, 'b'), (4L, 'c') AS v(id, name)")
    clause = {"when": "matched", "then": "update", "set": {"name": "s.name"}}
    error = error_of(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[clause]))
    assert (error["type"], error["retryable"], error["facts"]["row"]) == ("AmbiguousMerge", False, 3)
    assert Path(error["facts"]["path"]).name in {Path(path).name for path in live_files(table)}
    # A condition does not rescue it: the pairs that ON matches are what counts.
    rescued = {**clause, "condition": "s.name = 'a'"}
    again = error_of(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[rescued]))
    assert again["type"] == "AmbiguousMerge"
    assert files_on_disk(table) == before
    assert table.snapshot().version == 1


def test_a_single_unconditional_delete_tolerates_many_matches(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    source = values("SELECT * FROM VALUES (3L), (3L), (4L), (99L), (99L) AS v(id)")
    insert = {"when": "not_matched", "then": "insert", "values": {"id": "s.id"}}
    result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[DELETE, insert]))
    assert ids(table) == [0, 1, 2, 5, 6, 7, 8, 9, 99, 99]
    assert (result.metrics["numTargetRowsDeleted"], result.metrics["numTargetRowsInserted"]) == (2, 2)


def test_an_insert_only_merge_does_not_care_how_often_a_row_matches(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3))
    source = values(
        "SELECT id, 'x' AS name, date'2024-01-01' AS day, 0D AS amount FROM VALUES (1L), (1L), (7L) AS v(id)"
    )
    result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[INSERT_ALL]))
    assert ids(table) == [0, 1, 2, 7]
    assert (result.files["removed"], result.files["added"]) == (0, 1)


# --- what is touched ------------------------------------------------------------------------------------------------


def test_untouched_files_stay_as_they_are(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100), rows(10, start=200))
    before = live_files(table)
    source = values("SELECT 105L AS id, 'new' AS name")
    clause = {"when": "matched", "then": "update", "set": {"name": "s.name"}}
    result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[clause]))
    assert len(live_files(table) & before) == 2
    assert result.files == {"considered": 3, "pruned": 0, "rewritten": 1, "added": 2, "removed": 1}
    names = {row["id"]: row["name"] for row in table.to_arrow().to_pylist()}
    assert names[105] == "new"
    assert len(names) == 30


def test_conditions_on_the_target_alone_prune_files(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    result = committed(
        run(
            spark,
            "merge",
            table,
            source=values("SELECT 3L AS id UNION ALL SELECT 103L"),
            on="t.id = s.id AND t.id < :limit",
            clauses=[DELETE],
            parameters={"limit": 50},
        )
    )
    assert result.files["pruned"] == 1
    assert ids(table) == sorted({*range(10), *range(100, 110)} - {3})


def test_updates_may_move_a_row_to_another_partition(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(4), partition_by=["day"])
    clause = {"when": "matched", "then": "update", "set": {"day": "date_add(t.day, s.n)"}}
    committed(run(spark, "merge", table, source=values("SELECT 2L AS id, 7 AS n"), on="t.id = s.id", clauses=[clause]))
    days = {row["id"]: row["day"] for row in table.to_arrow().to_pylist()}
    assert days == {0: dt.date(2024, 1, 1), 1: dt.date(2024, 1, 1), 2: dt.date(2024, 1, 8), 3: dt.date(2024, 1, 1)}


def test_aliases_may_be_chosen_and_names_compare_without_case(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(4))
    result = run(
        spark,
        "merge",
        table,
        source=values("SELECT 2L AS ID, 'new' AS NaMe"),
        on="`target table`.Id = `source`.iD",
        target_alias="target table",
        source_alias="source",
        clauses=[{"when": "matched", "then": "update", "set": {"NAME": "source.name"}}],
    )
    committed(result)
    assert {row["name"] for row in table.to_arrow().to_pylist()} == {"n0", "n1", "new", "n3"}


def test_values_need_not_be_deterministic_and_are_evaluated_once(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(50))
    clause = {"when": "matched", "then": "update", "set": {"name": "uuid()", "amount": "rand()"}}
    source = values("SELECT id FROM range(20)")
    committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[clause]))
    names = [row["name"] for row in table.to_arrow().to_pylist()]
    assert len(set(names)) == 50
    assert sum(len(name) == 36 for name in names) == 20


# --- the source -----------------------------------------------------------------------------------------------------


def test_a2_the_source_is_evaluated_once(tmp_path: Path, spark: SparkSession) -> None:
    # Evaluated twice, a random source would match some rows in the finding and others in the writing.
    table = make_table(tmp_path / "t", rows(200))
    source = values("SELECT CAST(floor(rand() * 400) AS BIGINT) + 1000 * id AS id, uuid() AS name FROM range(50)")
    clauses = [
        {"when": "matched", "then": "update", "set": {"name": "s.name"}},
        {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": "s.name"}},
    ]
    result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses))
    found = table.to_arrow().to_pylist()
    assert sum(len(row["name"]) == 36 for row in found) == 50
    assert len({row["name"] for row in found if len(row["name"]) == 36}) == 50
    assert len(found) == 200 + result.metrics["numTargetRowsInserted"]


def test_a2_a_source_that_disappears_after_it_was_pinned_changes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    spark.sql("SELECT id, 'new' AS name FROM range(5)").write.json(str(tmp_path / "source"))

    def log(line: str) -> None:
        if line.startswith("the source has"):
            for path in (tmp_path / "source").glob("*.json"):
                path.unlink()

    view = {"format": "json", "path": str(tmp_path / "source"), "schema": "id BIGINT, name STRING"}
    clause = {"when": "matched", "then": "update", "set": {"name": "s.name"}}
    committed(run(spark, "merge", table, source=view, on="t.id = s.id", clauses=[clause], log=log))
    assert sum(row["name"] == "new" for row in table.to_arrow().to_pylist()) == 5


def test_a_source_may_join_views_of_files_and_of_our_tables(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    other = make_table(tmp_path / "o", rows(5, start=3), partition_by=["day"])
    (tmp_path / "names.csv").write_text("key,label\n3,three\n4,four\n99,none\n")
    source = {
        "sql": "SELECT o.id, c.label AS name FROM others o JOIN labels c ON o.id = c.key WHERE o.id > :low",
        "views": {
            "others": {"table": other.uri},
            "labels": {"format": "csv", "path": str(tmp_path / "names.csv"), "options": {"header": "true"}},
        },
    }
    clause = {"when": "matched", "then": "update", "set": {"name": "s.name"}}
    result = run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[clause], parameters={"low": 3})
    committed(result)
    assert {row["id"]: row["name"] for row in table.to_arrow().to_pylist()}[4] == "four"
    assert result.metrics["numTargetRowsUpdated"] == 1
    assert not spark.catalog.tableExists("others")


def test_a_source_that_reads_the_target_reads_the_whole_table(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=10))
    source = {
        "sql": "SELECT max(id) AS id, 'highest' AS name FROM me",
        "views": {"me": {"table": str(tmp_path / "elsewhere" / ".." / "t")}},
    }
    clause = {"when": "matched", "then": "update", "set": {"name": "s.name"}}
    landed: list[int] = []

    def log(line: str) -> None:
        if "to update" in line and not landed:
            landed.append(append(table, rows(1, start=500)))

    result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[clause], log=log))
    assert result.rounds == 2
    # The second round saw the winner's row: a lost update would have named row 19.
    names = {row["id"]: row["name"] for row in table.to_arrow().to_pylist()}
    assert (names[500], names[19]) == ("highest", "n19")


def test_an_empty_source_changes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    source = values("SELECT 1L AS id, 'x' AS name, date'2024-01-01' AS day, 1D AS amount WHERE false")
    result = run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[UPDATE_ALL, INSERT_ALL])
    assert (result.status, result.metrics["numSourceRows"]) == ("nothing_to_do", 0)


def test_a_merge_into_an_empty_table_inserts(tmp_path: Path, spark: SparkSession) -> None:
    table = Table.create(str(tmp_path / "t"), rows(1).schema)
    source = values("SELECT id, date'2024-01-01' AS day, 'x' AS name, NULL AS amount FROM range(3)")
    committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[UPDATE_ALL, INSERT_ALL]))
    assert ids(table) == [0, 1, 2]


# --- scope ----------------------------------------------------------------------------------------------------------


def days_table(folder: Path) -> Table:
    days = [rows(5, start=10 * k, day=dt.date(2024, 1, 1 + k)) for k in range(3)]
    return make_table(folder, *days, partition_by=["day"])


def test_a14_a_scope_bounds_what_is_read_and_matched(tmp_path: Path, spark: SparkSession) -> None:
    table = days_table(tmp_path / "t")
    result = committed(
        run(
            spark,
            "merge",
            table,
            source=values("SELECT id, 'new' AS name FROM range(30)"),
            on="t.id = s.id",
            clauses=[{"when": "matched", "then": "update", "set": {"name": "s.name"}}],
            partition_predicate="day = :day",
            parameters={"day": dt.date(2024, 1, 2)},
        )
    )
    assert result.files["pruned"] == 2
    assert sorted(row["id"] for row in table.to_arrow().to_pylist() if row["name"] == "new") == list(range(10, 15))


def test_a_row_outside_the_scope_is_an_error_and_leaves_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = days_table(tmp_path / "t")
    before = files_on_disk(table)
    error = error_of(
        run(
            spark,
            "merge",
            table,
            source=values("SELECT 77L AS id, date'2024-01-03' AS day, 'x' AS name, 1D AS amount"),
            on="t.id = s.id",
            clauses=[UPDATE_ALL, INSERT_ALL],
            partition_predicate="day = date'2024-01-02'",
        )
    )
    assert (error["type"], error["facts"]["partition"]) == ("PartitionMismatch", {"day": "2024-01-03"})
    assert files_on_disk(table) == before


# --- errors leave nothing -------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "source": values("SELECT 3L AS id, 'x' AS name"),
    "on": "t.id = s.id",
    "clauses": [{"when": "matched", "then": "update", "set": {"name": "s.name"}}],
}


def setting(**assigned: str) -> list[dict[str, Any]]:
    return [{"when": "matched", "then": "update", "set": assigned}]


BAD = [
    ("InvalidPredicate", {"on": "t.id = s.id AND"}),
    ("InvalidPredicate", {"on": "id = 3"}),  # ambiguous: both sides have it
    ("InvalidPredicate", {"on": "t.id = :x"}),
    ("InvalidPredicate", {"parameters": {"x": 1}}),
    ("UnknownColumn", {"on": "t.id = s.nope"}),
    ("UnknownColumn", {"on": "t.nope = s.id"}),
    ("UnknownColumn", {"clauses": setting(nope="s.name")}),
    ("UnknownColumn", {"clauses": setting(name="s.nope")}),
    ("UnknownColumn", {"clauses": [{**INSERT_ALL, "values": {"id": "t.id"}}]}),
    ("UnsupportedPredicate", {"on": "t.id = s.id AND rand() < 0.5"}),
    ("UnsupportedPredicate", {"on": "t.id IN (SELECT 1)"}),
    ("UnsupportedPredicate", {"on": "struct(t.*) = struct(s.*)"}),
    ("UnsupportedPredicate", {"clauses": setting(name="to_json(struct(t.*))")}),
    ("UnsupportedPredicate", {"clauses": [{**DELETE, "condition": "t.id = (SELECT 1)"}]}),
    ("InvalidPredicate", {"clauses": setting(amount="sum(s.id)")}),
    ("InvalidPredicate", {"clauses": setting(amount="row_number() OVER (ORDER BY s.id)")}),
    ("UnsupportedPredicate", {"clauses": setting(amount="(SELECT 1)")}),
    ("InvalidPredicate", {"clauses": setting(name="'a'), ('b'")}),
    ("SchemaMismatch", {"clauses": setting(id="s.name")}),
    ("SchemaMismatch", {"clauses": [UPDATE_ALL]}),
    ("InvalidJobSpec", {"clauses": [*setting(name="'x'"), DELETE]}),
    ("InvalidJobSpec", {"clauses": [{"when": "matched", "then": "update", "set": {"name": "'a'", "NAME": "'b'"}}]}),
    ("InvalidJobSpec", {"source": values("SELECT FROM WHERE")}),
    ("InvalidJobSpec", {"source": values("DROP TABLE x")}),
    ("InvalidJobSpec", {"source": values("SELECT * FROM no_such_view")}),
    ("InvalidJobSpec", {"source": {"format": "parquet", "path": "/no/such/folder"}}),
    ("TableNotFound", {"source": {"table": "/no/such/table"}}),
    ("SchemaMismatch", {"source": values("SELECT 1L AS id, 2L AS ID")}),
    ("SchemaMismatch", {"source": values("SELECT 1L AS id, 'x' AS name, 2L AS _txlog_row")}),
    ("InvalidJobSpec", {"source_alias": "T"}),
    ("InvalidInput", {"source": values("SELECT 3L AS id, CAST('x' AS INT) AS name")}),
]


@pytest.mark.parametrize(("kind", "changes"), BAD, ids=lambda value: str(value)[:70])
def test_a_bad_merge_is_a_clear_error_and_leaves_nothing(
    tmp_path: Path, spark: SparkSession, kind: str, changes: dict[str, Any]
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    before = files_on_disk(table)
    error = error_of(run(spark, "merge", table, **(GOOD | changes)))
    assert error["type"] == kind, error
    assert error["retryable"] is False
    assert files_on_disk(table) == before
    assert table.snapshot().version == 1


def test_a_value_that_spark_cannot_compute_leaves_nothing_that_a_commit_names(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    before = live_files(table)
    error = error_of(run(spark, "merge", table, **(GOOD | {"clauses": setting(amount="s.id / 0")})))
    assert (error["type"], error["retryable"]) == ("InvalidInput", False)
    # A copy may have been staged by another task of the same Spark job: an orphan for VACUUM, in no commit.
    assert live_files(table) == before
    assert table.snapshot().version == 1


def test_a_null_for_a_not_null_column_is_refused_and_leaves_nothing(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    table = make_table(tmp_path / "t", pa.table({"id": [1, 2], "name": ["a", "b"]}, schema=schema))
    before = files_on_disk(table)
    clauses = [{"when": "matched", "then": "update", "set": {"id": "s.new"}}]
    source = values("SELECT 1L AS id, CAST(NULL AS BIGINT) AS new")
    error = error_of(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses))
    assert (error["type"], error["facts"]["column"]) == ("ConstraintViolation", "id")
    insert = [{"when": "not_matched", "then": "insert", "values": {"name": "'x'"}}]
    error = error_of(run(spark, "merge", table, source=source, on="t.id = s.new", clauses=insert))
    assert error["type"] == "ConstraintViolation"
    assert files_on_disk(table) == before


def test_what_no_source_row_matches_is_updated_or_deleted_in_the_order_of_the_clauses(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(6), rows(4, start=100))
    clauses = [
        {"when": "matched", "then": "update", "set": {"name": "concat('m', s.id)"}},
        {"when": "not_matched_by_source", "then": "delete", "condition": "t.id >= 102"},
        {"when": "not_matched_by_source", "then": "update", "condition": "id < 3", "set": {"name": "'alone'"}},
        {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": "'new'"}},
    ]
    source = {"sql": "SELECT * FROM VALUES (1L), (4L), (101L), (500L) AS v(id)"}
    result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses))
    found = {row["id"]: row["name"] for row in table.to_arrow().to_pylist()}
    assert found == {
        0: "alone",
        1: "m1",
        2: "alone",
        3: "n3",
        4: "m4",
        5: "n5",
        100: "n100",
        101: "m101",
        500: "new",
    }
    metrics = result.metrics
    assert (metrics["numTargetRowsUpdated"], metrics["numTargetRowsDeleted"]) == (5, 2)
    assert metrics["numTargetRowsNotMatchedBySourceUpdated"] == 2
    assert metrics["numTargetRowsNotMatchedBySourceDeleted"] == 2
    assert (metrics["numTargetRowsMatchedUpdated"], metrics["numTargetRowsInserted"]) == (3, 1)


def test_with_an_empty_source_every_row_is_without_a_match(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(6))
    clauses = [{"when": "not_matched_by_source", "then": "delete", "condition": "id > 2"}]
    source = {"sql": "SELECT 1L AS id WHERE false"}
    committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses))
    assert ids(table) == [0, 1, 2]
