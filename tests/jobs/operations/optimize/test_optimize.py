"""Alone in showing OPTIMIZE: fewer files, the very same rows, and after a lost race only the bin that it touched."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.executor import local as executor_local
from airflow_txlog.jobs.executor import spark as executor_spark
from airflow_txlog.jobs.operations.optimize import job, staging
from airflow_txlog.storage.limits import SMALL_JOB, Limits
from tests.helpers.jobs import (
    committed,
    error_of,
    files_on_disk,
    ids,
    live_files,
    random_rows,
    rows,
    run,
    set_property,
    tried_without_spark,
)
from tests.helpers.racing import winning
from tests.helpers.rows import append, bag, make_table
from tests.helpers.vectors import allow_vectors, mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MONDAY, TUESDAY = dt.date(2024, 1, 1), dt.date(2024, 1, 2)


def info_of(table: Table, version: int | None = None) -> dict[str, Any]:
    version = table.snapshot().version if version is None else version
    return decode_commit(version, table.store.read(commit_name(version)), "x").info or {}


def actions_of(table: Table, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in table.store.read(commit_name(version)).decode().splitlines()]


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("the rows were rewritten in another place")


@pytest.fixture(params=["by Spark's workers", "in this process", "without a session"])
def each_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test three times: where the rows are rewritten, and nowhere else."""
    if request.param == "by Spark's workers":
        monkeypatch.setenv(SMALL_JOB.setting, "1")
        monkeypatch.setattr(staging, "_sorted_here", never)
    else:
        monkeypatch.setattr(staging, "_sorted_by_spark", never)
        monkeypatch.setattr(executor_spark, "collect", never)
        monkeypatch.setattr(executor_local, "NeedsSpark", AssertionError)
    with tried_without_spark() if request.param == "without a session" else contextlib.nullcontext():
        yield


@pytest.mark.usefixtures("each_place")
def test_small_files_of_each_partition_become_one_and_no_row_changes(tmp_path: Path, spark: SparkSession) -> None:
    rng = random.Random("optimize")
    parts = [random_rows(rng, 30) for _ in range(8)]
    table = make_table(tmp_path / "t", *parts, partition_by=["d"])
    before, count = bag(table), table.snapshot().num_files
    said: list[str] = []
    result = committed(run(spark, "optimize", table, log=said.append))
    assert bag(table) == before
    files = table.snapshot().files()
    assert files.num_rows == 4  # null and three dates
    assert result.files == {"considered": count, "pruned": 0, "rewritten": count, "added": 4, "removed": count}
    assert result.metrics["numAddedFiles"] == 4
    assert result.metrics["numRemovedFiles"] == count
    assert result.metrics["numAddedBytes"] == sum(files.column("size").to_pylist())
    assert result.metrics["minFileSize"] <= result.metrics["p50FileSize"] <= result.metrics["maxFileSize"]
    assert sum(json.loads(stats)["numRecords"] for stats in files.column("stats").to_pylist()) == 240
    # What the log says of it, as delta-spark would.
    info = info_of(table)
    assert info["operation"] == "OPTIMIZE"
    assert info["operationParameters"] == {"predicate": "[]", "auto": "false", "clusterBy": "[]", "zOrderBy": "[]"}
    assert info["isolationLevel"] == "SnapshotIsolation"
    assert info["operationMetrics"]["numRemovedFiles"] == str(count)
    changes = [body for line in actions_of(table, table.snapshot().version) for name, body in line.items()
               if name in ("add", "remove")]  # fmt: skip
    assert {body["dataChange"] for body in changes} == {False}
    assert any(f"{count} files (" in line for line in said)
    # Again: there is nothing left to do, and nothing is committed.
    again = run(spark, "optimize", table)
    assert (again.status, again.version) == ("nothing_to_do", result.version)
    assert files_on_disk(table) >= live_files(table)


@pytest.mark.usefixtures("each_place")
def test_a_clustered_table_is_sorted_into_one_cube_and_its_rows_keep_their_ids(
    tmp_path: Path, spark: SparkSession
) -> None:
    rng = random.Random("cluster")
    properties = {"delta.enableRowTracking": "true", "delta.targetFileSize": "4kb"}
    parts = [random_rows(rng, 300) for _ in range(3)]
    table = Table.create(str(tmp_path / "t"), parts[0].schema, properties=properties, cluster_by=["s", "n.x", "ts"])
    for part in parts:
        append(table, part)
    before = bag(table)
    committed(run(spark, "optimize", table))
    assert bag(table) == before
    assert info_of(table)["tags"]["delta.rowTracking.preserved"] == "true"
    files = Table.open(table.uri).snapshot().files()
    assert files.num_rows > 1
    assert set(files.column("clustering_provider").to_pylist()) == {"liquid"}
    tags = {tuple(sorted(tags)) for tags in files.column("tags").to_pylist()}
    assert len(tags) == 1
    assert dict(tags.pop())["ZCUBE_ZORDER_BY"] == '["s", "n.x", "ts"]'
    assert run(spark, "optimize", table).status == "nothing_to_do"


def test_a_partition_predicate_bounds_what_is_rewritten(tmp_path: Path, spark: SparkSession) -> None:
    parts = [rows(3, start=start, day=day) for start, day in ((0, MONDAY), (3, MONDAY), (6, TUESDAY), (9, TUESDAY))]
    table = make_table(tmp_path / "t", *parts, partition_by=["day"])
    tuesday = {path for path in live_files(table) if "2024-01-02" in path}
    scope: dict[str, Any] = {"partition_predicate": "day = :day", "parameters": {"day": MONDAY}}
    committed(run(spark, "optimize", table, **scope))
    assert len(live_files(table)) == 3
    assert live_files(table) > tuesday
    assert ids(table) == list(range(12))
    assert info_of(table)["operationParameters"]["predicate"] == '["day = :day"]'
    refused = run(spark, "optimize", table, partition_predicate="id = 1")
    assert error_of(refused)["type"] == "UnknownColumn"
    spare = run(spark, "optimize", table, parameters={"day": MONDAY})
    assert error_of(spare)["type"] == "InvalidPredicate"


def test_the_target_is_the_jobs_or_the_tables(tmp_path: Path, spark: SparkSession) -> None:
    parts = [rows(100, start=100 * number) for number in range(8)]
    table = make_table(tmp_path / "t", *parts, properties={"delta.targetFileSize": "5kb"})
    size = table.snapshot().size_bytes // 8
    assert 1200 < size < 2500
    committed(run(spark, "optimize", table))
    by_property = len(live_files(table))
    assert 8 // (5120 // size) <= by_property < 8
    assert ids(table) == list(range(800))
    table = make_table(tmp_path / "u", *parts, properties={"delta.targetFileSize": "5kb"})
    added = table.snapshot().files(columns=["modification_time", "path"]).to_pylist()
    # In the order in which they were written, so that bounds of time stay narrow. Two may have one millisecond.
    order = sorted((each["modification_time"], each["path"]) for each in added)
    expected = [number for _, path in order for number in pq.read_table(tmp_path / "u" / path)["id"].to_pylist()]
    committed(run(spark, "optimize", table, target_bytes=10**6))
    (path,) = live_files(table)
    assert pq.read_table(tmp_path / "u" / path).column("id").to_pylist() == expected
    assert sorted(expected) == list(range(800))


@pytest.mark.usefixtures("each_place")
def test_batches_are_commits_of_their_own(tmp_path: Path, spark: SparkSession) -> None:
    days = [MONDAY + dt.timedelta(days=number) for number in range(3)]
    parts = [rows(2, start=10 * number, day=day) for number, day in enumerate(days * 2)]
    table = make_table(tmp_path / "t", *parts, partition_by=["day"])
    before, version = bag(table), table.snapshot().version
    result = committed(run(spark, "optimize", table, batch_bytes=1))
    assert result.version == version + 3
    assert [info_of(table, v)["operationMetrics"]["numRemovedFiles"] for v in range(version + 1, version + 4)] == [
        "2"
    ] * 3
    assert (result.metrics["numRemovedFiles"], result.metrics["numAddedFiles"]) == (6, 3)
    assert bag(table) == before


@pytest.mark.usefixtures("each_place")
def test_a_purge_leaves_no_masked_row_in_any_file_and_touches_nothing_else(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", *(rows(10, start=10 * number) for number in range(4)))
    allow_vectors(table)
    mask(table, {1: [0, 3], 3: range(10)})
    before, untouched = bag(table), live_files(table)
    files = table.snapshot().files()
    untouched = {
        path
        for path, vector in zip(
            files.column("path").to_pylist(), files.column("deletion_vector").to_pylist(), strict=True
        )
        if vector is None
    }
    assert (len(untouched), sum(before.values())) == (2, 28)
    result = committed(run(spark, "optimize", table, purge=True))
    assert bag(table) == before
    assert live_files(table) > untouched
    assert len(live_files(table)) == 3
    assert result.metrics["numDeletionVectorsRemoved"] == 2
    assert table.snapshot().files().column("deletion_vector").null_count == 3
    assert info_of(table)["operation"] == "REORG"
    assert info_of(table)["operationParameters"] == {"predicate": "[]", "applyPurge": "true"}
    assert run(spark, "optimize", table, purge=True).status == "nothing_to_do"
    with pytest.raises(InvalidJobSpec, match="exclude each other"):
        run(spark, "optimize", table, purge=True, zorder_by=["id"])


# --- Z-order --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_place")
def test_a_z_order_narrows_the_bounds_of_every_column_it_names_in_every_partition(
    tmp_path: Path, spark: SparkSession
) -> None:
    rng = random.Random("z-order")
    member = pa.struct([("y", pa.string())])
    schema = pa.schema([("day", pa.date32()), ("x", pa.int64()), ("s", member), ("z", pa.int64())])

    def part(day: dt.date | None, count: int) -> pa.Table:
        xs = [rng.choice([None, *3 * [rng.randrange(1000)]]) for _ in range(count)]
        ys = [{"y": f"{rng.randrange(1000):04d}"} for _ in range(count)]
        return pa.table({"day": [day] * count, "x": xs, "s": ys, "z": range(count)}, schema)

    parts = [part(day, 2000) for day in (MONDAY, TUESDAY) for _ in range(4)] + [part(None, 3)]
    table = make_table(tmp_path / "t", *parts, partition_by=["day"])
    allow_vectors(table)
    mask(table, {0: range(1000)})
    before = bag(table)
    target = 12 * 1024
    result = committed(run(spark, "optimize", table, zorder_by=["X", "s.y"], target_bytes=target))
    assert bag(table) == before
    assert result.metrics["numRemovedFiles"] == 9
    assert result.metrics["numDeletionVectorsRemoved"] == 1
    assert info_of(table)["operationParameters"]["zOrderBy"] == '["x", "s.y"]'
    files = table.snapshot().files()
    monday = [
        json.loads(file["stats"])
        for file in files.select(["stats", "partition_values"]).to_pylist()
        if dict(file["partition_values"])["day"] == "2024-01-01"
    ]
    assert len(monday) >= 4
    assert max(files.column("size").to_pylist()) < 2 * target
    # A lookup by either column spares a quarter of the files; before, every file had every value.
    by_x = by_y = 0
    lookups = range(50, 1000, 100)
    for wanted in lookups:
        text = f"{wanted:04d}"
        by_x += sum(f["minValues"].get("x", 0) <= wanted <= f["maxValues"].get("x", -1) for f in monday)
        by_y += sum(f["minValues"]["s"]["y"] <= text <= f["maxValues"]["s"]["y"] for f in monday)
    assert by_x <= 0.75 * len(monday) * len(lookups)
    assert by_y <= 0.75 * len(monday) * len(lookups)
    assert result.metrics["numAddedFiles"] == files.num_rows


@pytest.mark.usefixtures("each_place")
def test_a_z_order_of_which_no_row_is_left_leaves_no_file(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(4), rows(4, start=10))
    allow_vectors(table)
    mask(table, {0: range(4), 1: range(4)})
    result = committed(run(spark, "optimize", table, zorder_by=["id"]))
    assert (result.metrics["numRemovedFiles"], result.metrics["numAddedFiles"], live_files(table)) == (2, 0, set())


def test_more_rows_than_this_process_should_hold_are_sorted_by_spark(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(400), rows(400, start=1000))
    before = bag(table)
    sorts: list[int] = []
    by_spark = staging._sorted_by_spark
    monkeypatch.setattr(staging, "_sorted_by_spark", lambda *given: sorts.append(1) or by_spark(*given))
    committed(run(spark, "optimize", table, zorder_by=["name", "id"], limits=Limits(sorted_bytes=1000)))
    assert (sorts, bag(table), len(live_files(table))) == ([1], before, 1)


def test_a_file_that_is_sorted_here_has_row_groups_of_the_usual_size(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(400), rows(400, start=1000))
    monkeypatch.setattr(staging, "BATCH_ROWS", 50)
    committed(run(spark, "optimize", table, zorder_by=["id"], limits=Limits(row_group_bytes=2500)))
    (path,) = live_files(table)
    found = pq.ParquetFile(tmp_path / "t" / path).metadata
    assert [found.row_group(n).num_rows for n in range(found.num_row_groups)] == [100] * 8


def test_what_is_left_of_a_bin_and_needs_spark_after_a_commit_is_left_for_another_time(
    tmp_path: Path, spark: SparkSession
) -> None:
    """files a1 a2 (Monday, few rows), b1 b2 (Tuesday, many rows), without a session
    W deletes a row of b2            -> committed after the plan: b2 is another file now
    ours                             -> commits Monday; what is left of Tuesday are too many rows to sort here
    """
    few = [rows(3, start=start, day=MONDAY) for start in (0, 10)]
    parts = [*few, *(rows(900, start=start, day=TUESDAY) for start in (1000, 3000))]
    table = make_table(tmp_path / "t", *parts, partition_by=["day"])
    limits = Limits(sorted_bytes=20_000)
    said: list[str] = []
    win = winning("to rewrite", lambda: committed(run(spark, "delete", table, predicate="id = 3001")))

    def log(line: str) -> None:
        said.append(line)
        win(line)

    with tried_without_spark():
        result = committed(run(spark, "optimize", table, zorder_by=["id"], log=log, limits=limits))
    assert any(line.startswith("what other commits have changed meanwhile is left for another time") for line in said)
    assert (result.metrics["numRemovedFiles"], result.metrics["numAddedFiles"]) == (2, 1)
    assert ids(table) == sorted({row["id"] for part in parts for row in part.to_pylist()} - {3001})


def test_columns_that_order_nothing_are_refused_before_anything_is_staged(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("l", pa.list_(pa.int64())), ("late", pa.int64())])
    table = make_table(
        tmp_path / "t", schema=schema, partition_by=["day"], properties={"delta.dataSkippingNumIndexedCols": "2"}
    )
    wrong = {
        "nowhere": "UnknownColumn",
        "l.element": "UnknownColumn",
        "l": "InvalidJobSpec",
        "day": "InvalidJobSpec",
        "late": "InvalidJobSpec",
    }
    for column, kind in wrong.items():
        assert error_of(run(spark, "optimize", table, zorder_by=["id", column]))["type"] == kind
    assert error_of(run(spark, "optimize", table, zorder_by=["id", "ID"]))["type"] == "InvalidJobSpec"
    assert run(spark, "optimize", table, zorder_by=["id"]).status == "nothing_to_do"
    assert files_on_disk(table) == set()


# --- other commits meanwhile ----------------------------------------------------------------------------------------


def staged_bins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bins were staged, each time that some were."""
    counts: list[int] = []
    stage = job.stage_bins

    def counting(context: Any, snapshot: Any, bins: Any, **more: Any) -> Any:
        counts.append(len(bins))
        return stage(context, snapshot, bins, **more)

    monkeypatch.setattr(job, "stage_bins", counting)
    return counts


def test_a_bin_that_lost_an_input_is_redone_and_the_others_are_committed_as_they_are(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """files a1 a2 a3 (Monday), b1 b2 b3 (Tuesday), c1 c2 (Wednesday) are staged as three
    W appends a4                     -> committed: no conflict
    W deletes a row of b2            -> committed: b2 is another file now
    ours                             -> committed without Tuesday; then b1 and b3, which are left of it
    """
    days = [MONDAY, TUESDAY, TUESDAY + dt.timedelta(days=1)]
    counts = {MONDAY: 3, TUESDAY: 3, days[2]: 2}
    parts = [rows(4, start=100 * n + 10 * k, day=day) for n, day in enumerate(days) for k in range(counts[day])]
    table = make_table(tmp_path / "t", *parts, partition_by=["day"])
    version = table.snapshot().version

    def win() -> None:
        append(table, rows(1, start=50, day=MONDAY))
        committed(run(spark, "delete", table, predicate="id = 111"))

    staged = staged_bins(monkeypatch)
    result = committed(run(spark, "optimize", table, log=winning("rewritten as", win)))
    assert staged == [3, 1]
    assert (result.attempts, result.version) == (2, version + 4)
    expected = {*(row["id"] for part in parts for row in part.to_pylist()), 50} - {111}
    assert ids(table) == sorted(expected)
    # Monday and the appended file, Tuesday of b1 and b3 and the winner's, Wednesday.
    assert sorted(path.split("/")[0] for path in live_files(table)) == [f"day={day}" for day in
        (MONDAY, MONDAY, TUESDAY, TUESDAY, days[2])]  # fmt: skip
    assert info_of(table, version + 3)["operationMetrics"]["numRemovedFiles"] == "5"
    assert info_of(table, version + 4)["operationMetrics"]["numRemovedFiles"] == "2"
    assert (result.metrics["numRemovedFiles"], result.metrics["numAddedFiles"]) == (7, 3)
    # What was staged of Tuesday first is in no commit, and gone.
    ours = {path for path in files_on_disk(table) if "-test-" not in path}
    assert ours <= live_files(table)


def test_a1_rows_that_a_vector_masked_meanwhile_do_not_come_back(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(4), rows(4, start=10), rows(4, start=20))
    allow_vectors(table)
    (number,) = [n for n, stats in enumerate(table.snapshot().files().sort_by("path").column("stats").to_pylist())
                 if json.loads(stats)["minValues"]["id"] == 10]  # fmt: skip
    staged = staged_bins(monkeypatch)
    result = committed(
        run(spark, "optimize", table, log=winning("rewritten as", lambda: mask(table, {number: [1, 2]})))
    )
    assert staged == [1, 1]
    assert ids(table) == [0, 1, 2, 3, 10, 13, 20, 21, 22, 23]
    assert len(live_files(table)) == 1
    assert result.metrics["numDeletionVectorsRemoved"] == 1


def test_a18_new_rules_drop_what_was_staged_and_a_compaction_that_won_leaves_nothing_to_do(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(4), rows(4, start=10))
    staged = staged_bins(monkeypatch)

    def append_only() -> int:
        return set_property(table, "delta.appendOnly", "true")

    committed(run(spark, "optimize", table, log=winning("rewritten as", append_only)))
    assert staged == [1, 1]
    append(table, rows(4, start=20))
    other = winning("rewritten as", lambda: committed(run(spark, "optimize", table)))
    lost = run(spark, "optimize", table, log=other)
    assert (lost.status, lost.attempts) == ("nothing_to_do", 1)
    assert staged[2:] == [1, 1]
    assert files_on_disk(table) >= live_files(table)
    assert len(live_files(table)) == 1
    assert ids(table) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]


def test_a_job_that_fails_has_done_the_batches_that_it_committed_and_leaves_no_file_behind(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [rows(2, start=10 * number, day=day) for number, day in enumerate([MONDAY, TUESDAY, MONDAY, TUESDAY])]
    table = make_table(tmp_path / "t", *parts, partition_by=["day"])
    before = bag(table)
    # A file of Tuesday is not what the log says it is.
    broken = max(path for path in live_files(table) if "2024-01-02" in path)
    whole = (tmp_path / "t" / broken).read_bytes()
    (tmp_path / "t" / broken).write_bytes(whole[:-1])
    error = error_of(run(spark, "optimize", table, batch_bytes=1))
    assert error["type"] == "CorruptDataFile"
    assert len(live_files(table)) == 3
    assert {path for path in files_on_disk(table) if "-test-" not in path} <= live_files(table)
    (tmp_path / "t" / broken).write_bytes(whole)
    result = committed(run(spark, "optimize", table, batch_bytes=1))
    assert (result.metrics["numRemovedFiles"], result.metrics["numAddedFiles"]) == (2, 1)
    assert bag(table) == before


# --- features of the table ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_place")
def test_a_zorder_does_not_mix_small_files_whose_partition_is_spelled_in_two_ways(
    tmp_path: Path, spark: SparkSession
) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    table = make_table(tmp_path / "t", schema=schema, partition_by=["p"])
    tx = table.begin()
    for number in range(60):  # enough for files to be read together
        path = tmp_path / "t" / f"{number}.parquet"
        pq.write_table(pa.table({"id": [number]}), path)
        values = {"p": "" if number % 2 else None}
        stats = json.dumps({"numRecords": 1})
        tx.add(path=path.name, size=path.stat().st_size, stats=stats, partition_values=values)
    tx.commit("WRITE")
    committed(run(spark, "optimize", table, zorder_by=["id"]))
    assert sorted(table.to_arrow().column("id").to_pylist()) == list(range(60))


def test_a_zorder_refuses_columns_with_names_of_its_own(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": [1], "_txlog_z": [2]}))
    assert error_of(run(None, "optimize", table, zorder_by=["id"]))["type"] == "SchemaMismatch"


@pytest.mark.parametrize("arguments", [{}, {"zorder_by": ["id"]}], ids=["compact", "z-order"])
def test_rows_keep_their_ids_and_versions(tmp_path: Path, spark: SparkSession, arguments: dict[str, Any]) -> None:
    table = make_table(tmp_path / "t", rows(4), rows(4, start=10), properties={"delta.enableRowTracking": "true"})
    properties = table.snapshot().properties
    names = [properties[f"delta.rowTracking.materialized{name}ColumnName"] for name in ("RowId", "RowCommitVersion")]
    before = {
        4 * n + k: (row, n + 1) for n, start in enumerate((0, 10)) for k, row in enumerate(range(start, start + 4))
    }

    def found() -> dict[int, tuple[int, int]]:
        (path,) = live_files(table)
        kept = pq.read_table(tmp_path / "t" / path).select([*names, "id"]).to_pylist()
        return {row[names[0]]: (row["id"], row[names[1]]) for row in kept}

    committed(run(spark, "optimize", table, **arguments))
    assert found() == before
    assert info_of(table)["tags"]["delta.rowTracking.preserved"] == "true"
    # Ids that stand in a file stay, beside those of a file that came later.
    append(table, rows(1, start=20))
    committed(run(spark, "optimize", table, **arguments))
    assert found().items() > before.items()
    assert len(found()) == 9
    stats = json.loads(table.snapshot().files().column("stats")[0].as_py())
    assert set(stats["nullCount"]) == {"id", "day", "name", "amount"}


@pytest.mark.usefixtures("each_place")
def test_columns_of_a_mapped_table_keep_their_physical_names(tmp_path: Path, spark: SparkSession) -> None:
    parts = [rows(4), rows(4, start=10), rows(2, start=20, day=None)]
    table = make_table(tmp_path / "t", *parts, partition_by=["day"], properties={"delta.columnMapping.mode": "name"})
    before = bag(table)
    result = committed(run(spark, "optimize", table))
    assert (result.metrics["numRemovedFiles"], bag(table)) == (2, before)
    committed(run(spark, "optimize", table, zorder_by=["name", "id"]))
    assert bag(table) == before
    assert all("day=" not in path for path in live_files(table))
