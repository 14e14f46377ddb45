"""Alone in showing MERGE clause by clause on small tables with their rows written out, its source, and its errors.

Random tables, against an oracle, are in `equality`; the scope that follows from the source in `test_scoped_jobs`.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.helpers.depth import LONG
from tests.helpers.jobs import (
    BY_SOURCE,
    by_id,
    committed,
    delete,
    error_of,
    files_on_disk,
    ids,
    insert,
    live_files,
    merge,
    rows,
    run,
    spark_view,
    update,
)
from tests.helpers.racing import winning
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAN = float("nan")
TARGET = pa.schema([("k", pa.int32()), ("p", pa.string()), ("v", pa.float64()), ("x", pa.int64())])
SOURCE = TARGET.append(pa.field("op", pa.string()))
# Two files; a null key, a key twice, NaN, nulls.
BEFORE = [
    [(1, "a", 1.0, 1), (2, "b", -1.0, None), (3, None, NAN, None), (4, "c", 1.0, 4)],
    [(None, "a", 2.0, 3), (5, "a", None, None), (5, "b", 3.0, 5)],
]
# Unique where it may match, twice where not, and a null key.
NEW = [
    (1, "b", 10.0, 7, "d"),
    (2, None, 0.5, 8, "u"),
    (3, None, NAN, None, None),
    (4, "c", 0.0, 0, None),
    (5, "b", 4.0, None, "u"),
    (None, "z", 0.0, 9, None),
    (7, "q", -1.0, 6, None),
    (7, "q", -1.0, 6, None),
    (8, "r", 2.0, None, "u"),
]
ALL_NEW = [row[:4] for row in NEW]
UNTOUCHED = [row for file in BEFORE for row in file]

# name -> partition by, ON, clauses, the rows afterwards.
MERGES: dict[str, tuple[list[str], str, list[dict[str, Any]], list[tuple[Any, ...]]]] = {
    "the first clause that is true acts": (
        ["p"],
        "t.k = s.k",
        [
            delete("s.op = 'd' AND t.v > 0"),
            update({"v": "NULL", "p": "upper(t.p)"}, "op = 'u'"),
            update({"X": "-1", "v": "s.v + t.v"}, "t.x IS NULL"),
            insert({"k": "s.k", "p": "'new'"}, "s.op IS NULL"),
            insert({"k": "s.k", "v": "coalesce(s.v, 0) / 2", "x": "7"}),
        ],
        [
            *[(2, "B", None, None), (3, None, NAN, -1), (4, "c", 1.0, 4), (None, "a", 2.0, 3)],
            *[(5, "A", None, None), (5, "B", None, 5), (None, "new", None, None)],
            *[(7, "new", None, None), (7, "new", None, None), (8, None, 1.0, 7)],
        ],
    ),
    "two keys, one of them null-safe": (
        [],
        "t.k <=> s.k AND t.p <=> s.p",
        [update(), insert()],
        [(1, "a", 1.0, 1), (2, "b", -1.0, None), (None, "a", 2.0, 3), (5, "a", None, None), *ALL_NEW],
    ),
    "no equality, and a bare name of the source": (
        ["p"],
        "t.k > s.k + 2 AND op = 'u'",
        [update({"v": "s.v * 2"}), insert(condition="s.k > 7")],
        [*UNTOUCHED[:5], (5, "a", 1.0, None), (5, "b", 1.0, 5), (8, "r", 2.0, None)],
    ),
    "never": ([], "false", [update(), insert()], [*UNTOUCHED, *ALL_NEW]),
}


def table_of(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long("inserts alone are shown elsewhere")) if name == "never" else name
        for name in MERGES
    ],
)
def test_a_merge_gives_these_rows(tmp_path: Path, spark: SparkSession, name: str) -> None:
    partition_by, on, clauses, expected = MERGES[name]
    table = make_table(tmp_path / "t", *(table_of(file, TARGET) for file in BEFORE), partition_by=partition_by)
    spark_view(spark, "the_source", table_of(NEW, SOURCE))
    result = committed(merge(spark, table, "SELECT * FROM the_source", *clauses, on=on))
    assert bag(table, *TARGET.names) == bag(table_of(expected, TARGET))
    metrics = result.metrics
    assert metrics["numSourceRows"] == len(NEW)
    assert metrics["numTargetRowsInserted"] - metrics["numTargetRowsDeleted"] == len(expected) - len(UNTOUCHED)
    assert not [path for path in files_on_disk(table) if "txlog-inputs" in path]


# --- ambiguity ------------------------------------------------------------------------------------------------------


def test_two_source_rows_for_one_target_row_are_ambiguous(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    before = files_on_disk(table)
    source = "SELECT * FROM VALUES (3L, 'a'), (3L, 'b'), (4L, 'c') AS v(id, name)"
    # A condition does not rescue it: the pairs that ON matches are what counts.
    error = error_of(merge(spark, table, source, update({"name": "s.name"}, "s.name = 'a'")))
    assert (error["type"], error["retryable"], error["facts"]["row"]) == ("AmbiguousMerge", False, 3)
    assert Path(error["facts"]["path"]).name in {Path(path).name for path in live_files(table)}
    assert (files_on_disk(table), table.snapshot().version) == (before, 1)


def test_a_single_unconditional_delete_tolerates_many_matches(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    source = "SELECT * FROM VALUES (3L), (3L), (4L), (99L), (99L) AS v(id)"
    result = committed(merge(spark, table, source, delete(), insert({"id": "s.id"})))
    assert ids(table) == [0, 1, 2, 5, 6, 7, 8, 9, 99, 99]
    assert (result.metrics["numTargetRowsDeleted"], result.metrics["numTargetRowsInserted"]) == (2, 2)


def test_an_insert_only_merge_does_not_care_how_often_a_row_matches(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3))
    result = committed(merge(spark, table, "SELECT * FROM VALUES (1L), (1L), (7L) AS v(id)", insert({"id": "s.id"})))
    assert ids(table) == [0, 1, 2, 7]
    assert (result.files["removed"], result.files["added"]) == (0, 1)


# --- what is touched ------------------------------------------------------------------------------------------------


def test_only_files_with_a_match_are_rewritten_and_conditions_on_the_target_alone_bound_what_is_read(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=20), rows(10, start=100))
    before = live_files(table)
    # What lands where ON cannot be true is no conflict.
    log = winning("to update", lambda: append(table, rows(1, start=500)))
    on, limit = "t.id = s.id AND t.id < :limit", {"limit": 50}
    result = committed(
        merge(spark, table, "SELECT 3L AS id UNION ALL SELECT 103L", delete(), on=on, parameters=limit, log=log)
    )
    assert (result.attempts, len(live_files(table) & before)) == (1, 2)
    assert result.files == {"considered": 3, "pruned": 2, "rewritten": 1, "added": 1, "removed": 1}
    assert ids(table) == sorted({*range(10), *range(20, 30), *range(100, 110), 500} - {3})


def test_aliases_may_be_chosen_and_names_compare_without_case(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(4))
    aliases = {"target_alias": "target table", "source_alias": "source"}
    clause = update({"NAME": "source.name"})
    source = "SELECT 2L AS ID, 'new' AS NaMe"
    committed(merge(spark, table, source, clause, on="`target table`.Id = `source`.iD", **aliases))
    assert by_id(table) == {0: "n0", 1: "n1", 2: "new", 3: "n3"}


def test_what_no_source_row_matches_is_updated_or_deleted_in_the_order_of_the_clauses(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(6), rows(4, start=100))
    clauses = [
        update({"name": "concat('m', s.id)"}),
        delete("t.id >= 102", BY_SOURCE),
        update({"name": "'alone'"}, "id < 3", BY_SOURCE),
        insert({"id": "s.id", "name": "'new'"}),
    ]
    result = committed(merge(spark, table, "SELECT * FROM VALUES (1L), (4L), (101L), (500L) AS v(id)", *clauses))
    changed = {0: "alone", 1: "m1", 2: "alone", 4: "m4", 101: "m101", 500: "new"}
    assert by_id(table) == {3: "n3", 5: "n5", 100: "n100", **changed}
    names = [
        "Updated",
        "Deleted",
        "NotMatchedBySourceUpdated",
        "NotMatchedBySourceDeleted",
        "MatchedUpdated",
        "Inserted",
    ]
    assert [result.metrics[f"numTargetRows{name}"] for name in names] == [5, 2, 2, 2, 3, 1]


# --- the source -----------------------------------------------------------------------------------------------------


def test_a2_the_source_and_the_values_are_evaluated_once_for_all_attempts(tmp_path: Path, spark: SparkSession) -> None:
    # Evaluated twice, a random source would match some rows in the finding and others in the writing.
    table = make_table(tmp_path / "t", rows(200))
    source = "SELECT CAST(floor(rand() * 400) AS BIGINT) + 1000 * id AS id, uuid() AS name FROM range(50)"
    clauses = [update({"name": "s.name", "amount": "rand()"}), insert({"id": "s.id", "name": "s.name"})]
    # A file that may have any key of the source.
    other = pa.concat_tables([rows(1, start=1), rows(1, start=60_000)])
    log = winning("staged", lambda: append(table, other))
    result = committed(merge(spark, table, source, *clauses, log=log))
    found = [row["name"] for row in table.to_arrow().to_pylist()]
    uuids = [name for name in found if len(name) == 36]
    assert len(found) == 202 + result.metrics["numTargetRowsInserted"]
    # A row that landed meanwhile may match a source row besides the one that was there.
    assert (result.attempts, len(set(uuids)), len(uuids) - len(set(uuids)) <= 1) == (2, 50, True)
    assert [step["name"] for step in result.steps].count("materialize") == 1


def test_a2_a_source_that_disappears_after_it_was_pinned_changes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    (tmp_path / "source.json").write_text('{"id": 1, "name": "new"}\n{"id": 2, "name": "new"}\n')
    log = winning("the source has", (tmp_path / "source.json").unlink)
    view = {"format": "json", "path": str(tmp_path / "source.json"), "schema": "id BIGINT, name STRING"}
    clauses = [update({"name": "s.name"})]
    committed(run(spark, "merge", table, source=view, on="t.id = s.id", clauses=clauses, log=log))
    assert [by_id(table)[n] for n in (1, 2, 3)] == ["new", "new", "n3"]


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
    clauses = [update({"name": "s.name"})]
    result = run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses, parameters={"low": 3})
    assert committed(result).metrics["numTargetRowsUpdated"] == 1
    assert by_id(table)[4] == "four"
    assert not spark.catalog.tableExists("others")


def test_a_source_that_reads_the_target_reads_the_whole_table(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=10))
    source = {
        "sql": "SELECT max(id) AS id, 'highest' AS name FROM me",
        "views": {"me": {"table": str(tmp_path / "elsewhere" / ".." / "t")}},
    }
    log = winning("to update", lambda: append(table, rows(1, start=500)))
    clauses = [update({"name": "s.name"})]
    result = committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=clauses, log=log))
    # The second attempt saw the winner's row: a lost update would have named row 19.
    assert (result.attempts, by_id(table)[500], by_id(table)[19]) == (2, "highest", "n19")


def test_without_a_source_row_or_without_a_target_row_there_is_no_match(tmp_path: Path, spark: SparkSession) -> None:
    nothing = "SELECT 1L AS id, 'x' AS name, date'2024-01-01' AS day, 1D AS amount WHERE false"
    table = make_table(tmp_path / "t", rows(6))
    result = merge(spark, table, nothing, update(), insert())
    assert (result.status, result.metrics["numSourceRows"]) == ("nothing_to_do", 0)
    committed(merge(spark, table, nothing, delete("id > 2", BY_SOURCE)))
    assert ids(table) == [0, 1, 2]
    empty = Table.create(str(tmp_path / "empty"), rows(1).schema)
    source = "SELECT id, date'2024-01-01' AS day, 'x' AS name, NULL AS amount FROM range(3)"
    committed(merge(spark, empty, source, update(), insert()))
    assert ids(empty) == [0, 1, 2]


# --- scope ----------------------------------------------------------------------------------------------------------


def test_a14_a_scope_bounds_what_is_read_and_matched_and_what_may_be_written(
    tmp_path: Path, spark: SparkSession
) -> None:
    days = [dt.date(2024, 1, 1 + k) for k in range(3)]
    table = make_table(
        tmp_path / "t", *(rows(5, start=10 * k, day=d) for k, d in enumerate(days)), partition_by=["day"]
    )
    scope: dict[str, Any] = {"partition_predicate": "day = :day", "parameters": {"day": days[1]}}
    log = winning("to update", lambda: append(table, rows(1, start=900, day=days[2])))
    result = merge(
        spark, table, "SELECT id, 'new' AS name FROM range(30)", update({"name": "s.name"}), **scope, log=log
    )
    assert (committed(result).files["pruned"], result.attempts) == (2, 1)
    assert [number for number, name in by_id(table).items() if name == "new"] == list(range(10, 15))
    before = files_on_disk(table)
    source = "SELECT 77L AS id, date'2024-01-03' AS day, 'x' AS name, 1D AS amount"
    error = error_of(merge(spark, table, source, update(), insert(), **scope))
    assert (error["type"], error["facts"]["partition"]) == ("PartitionMismatch", {"day": "2024-01-03"})
    assert files_on_disk(table) == before


# --- errors leave nothing -------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "source": {"sql": "SELECT 3L AS id, 'x' AS name"},
    "on": "t.id = s.id",
    "clauses": [update({"name": "s.name"})],
}


def setting(**assigned: str) -> dict[str, Any]:
    return {"clauses": [update(assigned)]}


BAD: list[tuple[str, dict[str, Any]]] = [
    ("InvalidPredicate", {"on": "t.id = s.id AND"}),
    ("InvalidPredicate", {"on": "id = 3"}),  # ambiguous: both sides have it
    ("UnknownColumn", setting(nope="s.name")),
    ("UnknownColumn", {"clauses": [insert({"id": "t.id"})]}),
    ("UnsupportedPredicate", {"on": "t.id = s.id AND rand() < 0.5"}),
    ("InvalidPredicate", setting(name="'a'), ('b'")),
    ("SchemaMismatch", setting(id="s.name")),
    ("SchemaMismatch", {"source": {"sql": "SELECT 1L AS id, 'x' AS name, 2L AS _txlog_row"}}),
    ("InvalidJobSpec", {"source_alias": "T"}),
    ("InvalidInput", {"source": {"sql": "SELECT 3L AS id, CAST('x' AS INT) AS name"}}),
]
if LONG:
    # The same refusals in another place of the merge, and those that other tests show.
    BAD += [
        ("InvalidPredicate", {"parameters": {"x": 1}}),
        ("UnknownColumn", {"on": "t.nope = s.id"}),
        ("UnsupportedPredicate", {"clauses": [delete("t.id = (SELECT 1)")]}),
        ("InvalidJobSpec", {"clauses": [update({"name": "'a'", "NAME": "'b'"})]}),
        ("SourceNotFound", {"source": {"table": "/no/such/table"}}),
        ("UnsupportedPredicate", setting(amount="sum(s.id)")),
        ("UnknownColumn", {"on": "t.id = s.nope"}),
        ("UnknownColumn", setting(name="s.nope")),
        ("UnsupportedPredicate", setting(name="to_json(struct(t.*))")),
        ("UnsupportedPredicate", setting(amount="(SELECT 1)")),
        ("SchemaMismatch", {"clauses": [update()]}),
    ]


@pytest.mark.seeded
def test_a_bad_merge_is_a_clear_error_and_leaves_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    before = files_on_disk(table)
    for kind, changes in BAD:
        error = error_of(run(spark, "merge", table, **(GOOD | changes)))
        assert (error["type"], error["retryable"]) == (kind, False), (changes, error)
        assert files_on_disk(table) == before, changes
    # A copy may have been staged by another task of the same Spark job: an orphan for VACUUM, in no commit.
    error = error_of(run(spark, "merge", table, **(GOOD | setting(amount="s.id / 0"))))
    assert (error["type"], error["retryable"]) == ("InvalidInput", False)
    assert table.snapshot().version == 1


def test_a_null_for_a_not_null_column_is_refused_and_leaves_nothing(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    table = make_table(tmp_path / "t", pa.table({"id": [1, 2], "name": ["a", "b"]}, schema=schema))
    before = files_on_disk(table)
    source = "SELECT 1L AS id, CAST(NULL AS BIGINT) AS new"
    error = error_of(merge(spark, table, source, update({"id": "s.new"})))
    assert (error["type"], error["facts"]["column"]) == ("ConstraintViolation", "id")
    error = error_of(merge(spark, table, source, insert({"name": "'x'"}), on="t.id = s.new"))
    assert error["type"] == "ConstraintViolation"
    assert files_on_disk(table) == before
