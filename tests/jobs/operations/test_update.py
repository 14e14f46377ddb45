"""Alone in showing UPDATE's own clauses and errors, and that a row may move to another partition.

Random tables, against an oracle, are in `equality`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.jobs.files import frames, scan
from airflow_txlog.jobs.files.frames import FrameImages, FrameRows, held_frame
from airflow_txlog.jobs.files.stage import WRITING
from airflow_txlog.jobs.operations.merge import by_spark
from airflow_txlog.storage.limits import USUAL, Limits
from tests.helpers.depth import in_long
from tests.helpers.jobs import by_id, committed, error_of, files_on_disk, ids, live_files, rows, run
from tests.helpers.racing import winning
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [("i", pa.int32()), ("s", pa.string()), ("n", pa.struct([("x", pa.int32())])), ("a", pa.list_(pa.int32()))]
)


def test_every_value_of_an_update_is_of_the_row_as_it_was(tmp_path: Path, spark: SparkSession) -> None:
    files = [
        [{"i": 1, "s": "a", "n": {"x": 5}, "a": [1, 2]}, {"i": 2, "s": None, "n": None, "a": []}],
        [{"i": None, "s": "O'Brien", "n": {"x": None}, "a": None}] * 2,
    ]
    table = make_table(tmp_path / "t", *(pa.Table.from_pylist(file, SCHEMA) for file in files))
    nothing = run(spark, "update", table, predicate="i > NULL", set={"i": "0"})
    assert (nothing.status, nothing.metrics["numUpdatedRows"]) == ("nothing_to_do", 0)
    # A predicate that is null takes no row, and the values are not those that the update itself assigns.
    assigned = {"i": "CAST(size(a) + n.x AS INT)", "n": "named_struct('x', i)", "a": "array(i, 7)", "s": "NULL"}
    result = committed(run(spark, "update", table, predicate="s = 'a' OR i > 2", set=assigned))
    assert (result.metrics["numUpdatedRows"], result.metrics["numCopiedRows"]) == (1, 1)
    changed = [{"i": 7, "s": None, "n": {"x": 1}, "a": [1, 7]}, files[0][1], *files[1]]
    assert bag(table) == bag(pa.Table.from_pylist(changed, SCHEMA))
    assert committed(run(spark, "update", table, set={"i": "i + 1"})).metrics["numUpdatedRows"] == 4
    assert sorted(row["i"] or 0 for row in table.to_arrow().to_pylist()) == [0, 0, 3, 8]


def test_an_update_touches_only_the_files_it_must_and_may_move_rows(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100), partition_by=["day"])
    before = live_files(table)
    result = committed(
        run(spark, "update", table, predicate="t.id = :id", set={"day": "date'2024-05-05'"}, parameters={"id": 105})
    )
    assert result.files == {"considered": 2, "pruned": 1, "rewritten": 1, "added": 2, "removed": 1}
    assert len(live_files(table) & before) == 1
    moved = table.to_arrow(predicate="day = '2024-05-05'").to_pylist()
    assert [row["id"] for row in moved] == [105]
    assert table.history(limit=1)[0]["operation"] == "UPDATE"


def test_only_columns_that_an_expression_or_a_rule_reads_go_through_spark(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns: list[list[str]] = []

    def held(context: Any, scan: Any, *more: Any) -> Any:
        columns.append(scan.schema.names)
        return held_frame(context, scan, *more)

    monkeypatch.setattr(frames, "held_frame", held)
    data = rows(6, start=1).append_column("wide", pa.array(["x" * 1000] * 6))
    plain = make_table(tmp_path / "plain", data, partition_by=["day"])
    checked = make_table(tmp_path / "checked", data, properties={"delta.constraints.small": "amount < 1000"})
    for table in (plain, checked):
        committed(run(spark, "update", table, predicate="id > 3", set={"wide": "reverse('wen')"}))
        committed(run(spark, "update", table, predicate="id > 3", set={"amount": "array_max(array(id, id)) * 2"}))
        expected = [
            row | ({"wide": "new", "amount": 2.0 * row["id"]} if row["id"] > 3 else {}) for row in data.to_pylist()
        ]
        assert bag(table) == bag(pa.Table.from_pylist(expected, data.schema))
    assert columns == [[], ["id"], ["amount"], ["id"]]


@pytest.mark.parametrize(
    "assigned", [{"amount": "array_max(array(id, id)) * 2"}, {"name": "concat(name, reverse('!'))"}]
)
def test_computed_values_of_more_rows_than_the_driver_takes_are_written_by_spark(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, assigned: dict[str, str]
) -> None:
    here: list[str] = []
    run_here = frames.run_here

    def recorded(work: Any, schema: Any, what: str, *more: Any) -> pa.Table:
        here.append(what)
        return run_here(work, schema, what, *more)

    monkeypatch.setattr(frames, "run_here", recorded)
    for count, expected in ((3, ["read the rows that change", WRITING]), (4, [])):
        here.clear()
        table = make_table(tmp_path / str(count), rows(2), rows(4, start=2))
        limits = Limits(computed_rows=3)
        committed(run(spark, "update", table, predicate=f"id < {count}", set=assigned, limits=limits))
        changed = [
            row | ({"amount": 2.0 * row["id"]} if "amount" in assigned else {"name": f"{row['name']}!"})
            if row["id"] < count
            else row
            for row in rows(6).to_pylist()
        ]
        assert bag(table) == bag(pa.Table.from_pylist(changed, rows(6).schema))
        assert here == expected


def test_computed_values_are_not_taken_for_numbers_of_tasks(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(scan.progress, "done", lambda files, num_bytes: done.append((files, num_bytes)))
    table = make_table(tmp_path / "t", rows(2), rows(1, start=2))
    for value in ("array_max(array(-9 - id, -99))", "array_max(array(-id, 0))"):
        sizes = table.snapshot().files().column("size").to_pylist()
        done.clear()
        committed(run(spark, "update", table, set={"id": value}))
        # Found, and written.
        assert done[:2] == [(len(sizes), sum(sizes))] * 2
    assert ids(table) == [9, 10, 11]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s", "reverse({})"),
        ("m", "map('a', {})"),
        *in_long("each runs two jobs of Spark", ("a", "array({})"), ("n", "named_struct('x', {})")),
    ],
)
def test_wide_computed_values_are_written_by_spark(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    here: list[str] = []
    run_here = frames.run_here
    monkeypatch.setattr(frames, "run_here", lambda *given: here.append(given[2]) or run_here(*given))
    text, of_key = pa.string(), [("k", pa.int64())]
    columns = [("s", text), ("a", pa.list_(text)), ("m", pa.map_(text, text)), ("n", pa.struct([("x", text)]))]
    table = make_table(tmp_path / "t", pa.Table.from_pylist([{"k": 1}, {"k": 2}], pa.schema([*of_key, *columns])))
    for length, expected in ((4_000, 1), (6_000, 0)):
        here.clear()
        assigned = value.format(f"repeat('x', IF(k = 2, {length}, 1))")
        committed(run(spark, "update", table, set={name: assigned}, limits=Limits(computed_bytes=10_000)))
        lengths = [str(row[name]).count("x" * length) for row in table.to_arrow().sort_by("k").to_pylist()]
        assert (here.count(WRITING), lengths) == (expected, [0, 1])


BAD: list[tuple[str, dict[str, Any]]] = [
    ("UnknownColumn", {"set": {"nosuch": "1"}}),
    ("SchemaMismatch", {"set": {"id": "'x'"}}),
    ("UnsupportedPredicate", {"set": {"id": "1"}, "predicate": "rand() < 1"}),
    ("UnsupportedPredicate", {"set": {"id": "1"}, "predicate": "id IN (SELECT 1)"}),
    ("UnsupportedPredicate", {"set": {"id": "max(id)"}}),
    ("InvalidJobSpec", {"set": {"id": "1", "ID": "2"}}),
    ("InvalidPredicate", {"set": {"id": "id"}, "predicate": "id = 1; DROP TABLE x"}),
    ("InvalidPredicate", {"set": {"id": "id"}, "parameters": {"spare": 1}}),
    ("PartitionMismatch", {"set": {"day": "date'2030-01-01'"}, "partition_predicate": "day < '2025-01-01'"}),
    ("InvalidInput", {"set": {"amount": "1 / (id - id)"}}),
]


def test_a_bad_update_is_a_clear_error_and_leaves_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"])
    before = files_on_disk(table)
    for kind, arguments in BAD:
        error = error_of(run(spark, "update", table, **arguments))
        assert (error["type"], error["retryable"]) == (kind, False), (arguments, error)
    left = files_on_disk(table) - before
    # Where Spark itself failed in the middle of the writing, other tasks may have staged files that no commit names.
    assert all("part-" in path for path in left)
    assert table.snapshot().version == 1


def test_a_file_that_landed_is_updated_and_the_others_are_neither_read_nor_staged_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100), rows(10, start=200))
    log = winning("staged", lambda: append(table, rows(1, start=305)))
    result = committed(run(spark, "update", table, predicate="pmod(id, 10) = 5", set={"name": "'seen'"}, log=log))
    assert (result.attempts, result.metrics["numUpdatedRows"]) == (2, 4)
    assert [number for number, name in by_id(table).items() if name == "seen"] == [5, 105, 205, 305]
    assert "3 files remembered, 1 to look at" in log.lines


@pytest.mark.parametrize("images", ["of an update", "of a merge", "of a merge, as whole rows"])
def test_an_updated_row_without_a_new_image_is_never_committed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, images: str
) -> None:
    """Its old one would leave all the same, and the row be lost."""
    table = make_table(tmp_path / "t", rows(4), rows(4, start=100))
    operation, limits = "merge", USUAL
    clauses = [{"when": "matched", "then": "update", "set": {"name": "reverse('X')"}}]
    arguments: dict[str, Any] = {"source": {"sql": "SELECT 1L AS id UNION ALL SELECT 101L"}, "clauses": clauses}
    arguments["on"] = "t.id = s.id"
    owner: type[by_spark.JudgedUpdate | by_spark.JudgedMerge] = by_spark.JudgedMerge
    if images == "of an update":
        operation, owner = "update", by_spark.JudgedUpdate
        arguments = {"predicate": "id < 102", "set": {"name": "reverse('X')"}}
    if images == "of a merge, as whole rows":
        limits, whole = Limits(broadcast_bytes=0), by_spark.JudgedMerge.images

        def without_one(*given: Any) -> FrameRows:
            found = whole(*given)
            assert isinstance(found, FrameRows)
            return FrameRows(found.rows.where("id <> 1"))

        monkeypatch.setattr(owner, "images", without_one)
    else:
        made = owner.computed_images

        def one_too_few(*given: Any) -> FrameImages:
            found = made(*given)
            return replace(found, computed=lambda rows: found.computed(rows).limit(found.num_rows - 1))

        monkeypatch.setattr(owner, "computed_images", one_too_few)
    before, version = files_on_disk(table), table.latest_version()
    error = error_of(run(spark, operation, table, limits=limits, **arguments))
    assert (error["type"], table.latest_version()) == ("JobError", version)
    assert files_on_disk(table) == before
