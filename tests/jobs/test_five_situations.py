"""The five situations of the literature on concurrent table writes, each over two real Spark jobs.

The first job of each pair has found its rows when the second runs from start to end; then the first goes on to its
commit. `conflict_deadline_s=0` shows what the conflict check says; with rounds left, the loser plans again and wins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_txlog.contract import JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from tests.engine.rows import append, sorted_rows, stage

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("value", pa.int64())])


def update(table: Table, ids: list[int], value: int, **arguments: Any) -> JobSpec:
    """UPDATE as a MERGE: these ids get this value."""
    rows = ", ".join(f"({one}L)" for one in ids)
    spec = {
        "source": {"sql": f"SELECT * FROM VALUES {rows} AS s(id)"},
        "on": arguments.pop("on", "t.id = s.id"),
        "clauses": [{"when": "matched", "then": "update", "set": {"value": str(value)}}],
        **arguments,
    }
    return JobSpec(operation="merge", table_uri=table.uri, arguments=spec, conflict_deadline_s=0)


def run_beside(first: JobSpec, second: JobSpec, spark: SparkSession) -> tuple[JobResult, JobResult]:
    """Run `second` from start to end once `first` has found its rows; then let `first` go on."""
    results: list[JobResult] = []

    def between() -> None:
        results.append(run_job(second, spark.newSession()))

    return run_job(first, spark, log=once_found(between)), results[0]


def once_found(action: Callable[[], None]) -> Callable[[str], None]:
    """A log that runs the action, once, when the job says what it has found or staged."""
    waiting = [action]

    def log(line: str) -> None:
        if waiting and ("matches;" in line or "to delete in" in line or "new file" in line):
            waiting.pop()()

    return log


def make_table(path: Path, partition_by: list[str], *batches: list[dict[str, Any]]) -> Table:
    table = Table.create(path / "t", SCHEMA, partition_by)
    for rows in batches:
        append(table, rows)
    return table


def values(table: Table) -> dict[int, int]:
    return {row["id"]: row["value"] for row in table.to_arrow().to_pylist()}


def test_two_updates_of_the_same_rows_one_loses_and_says_which_file(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path, [], [{"id": number, "day": "a", "value": 0} for number in range(10)])
    (path,) = table.snapshot().files().column("path").to_pylist()
    loser, winner = run_beside(update(table, [3], 1), update(table, [3], 2), spark)
    assert winner.status == "committed"
    assert loser.error is not None
    assert loser.error["type"] in ("ConcurrentAppend", "ConcurrentDeleteRead")
    assert loser.error["retryable"] is True
    assert loser.error["facts"]["winning_version"] == winner.version
    named = loser.error["facts"]["path"]
    assert named == path or named in table.snapshot().files().column("path").to_pylist()
    assert values(table)[3] == 2


def test_two_updates_in_different_files_whose_statistics_overlap_conflict(spark: SparkSession, tmp_path: Path) -> None:
    odd = [{"id": number, "day": "a", "value": 0} for number in range(1, 100, 2)]
    even = [{"id": number, "day": "a", "value": 0} for number in range(0, 100, 2)]
    table = make_table(tmp_path, [], odd, even)
    loser, winner = run_beside(update(table, [3], 1), update(table, [4], 2), spark)
    assert winner.status == "committed"
    assert loser.error is not None
    assert loser.error["type"] == "ConcurrentAppend"
    assert values(table) == {number: 2 if number == 4 else 0 for number in range(100)}


def test_disjoint_partitions_with_a_predicate_that_names_them_both_commit(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path, ["day"], [{"id": 1, "day": "a", "value": 0}, {"id": 2, "day": "b", "value": 0}])
    by_day = {"partition_predicate": "day = :day"}
    first, second = run_beside(
        update(table, [1, 2], 1, **by_day, parameters={"day": "a"}),
        update(table, [1, 2], 2, **by_day, parameters={"day": "b"}),
        spark,
    )
    assert (first.status, second.status) == ("committed", "committed")
    assert (second.version, first.version) == (2, 3)
    assert first.rounds == 1
    assert values(table) == {1: 1, 2: 2}


def test_disjoint_partitions_named_in_the_merge_condition_both_commit(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path, ["day"], [{"id": 1, "day": "a", "value": 0}, {"id": 2, "day": "b", "value": 0}])
    first, second = run_beside(
        update(table, [1, 2], 1, on="t.id = s.id AND t.day = 'a'"),
        update(table, [1, 2], 2, on="t.id = s.id AND t.day = 'b'"),
        spark,
    )
    assert (first.status, second.status) == ("committed", "committed")
    assert values(table) == {1: 1, 2: 2}


def test_disjoint_partitions_that_nobody_names_conflict_and_the_message_tells_what_to_add(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path, ["day"], [{"id": 1, "day": "a", "value": 0}, {"id": 2, "day": "b", "value": 0}])
    loser, winner = run_beside(update(table, [1], 1), update(table, [2], 2), spark)
    assert winner.status == "committed"
    assert loser.error is not None
    assert loser.error["type"] == "ConcurrentAppend"
    assert loser.error["facts"]["partition"] == {"day": "b"}
    assert 'partition_predicate="day = :day"' in loser.error["message"]
    assert values(table) == {1: 0, 2: 2}


def test_two_blind_appends_both_commit_and_the_second_touches_no_data_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path, [], [{"id": 0, "day": "a", "value": 0}])

    def insert(number: int) -> JobSpec:
        source = {"sql": f"SELECT {number}L AS id, 'a' AS day, 0L AS value"}
        arguments = {"source": source, "mode": "append"}
        return JobSpec(operation="write", table_uri=table.uri, arguments=arguments, conflict_deadline_s=0)

    staged_before: list[set[str]] = []

    def files_on_disk() -> set[str]:
        return {
            info.path for info in table.store.walk() if info.path.endswith(".parquet") and "_delta_log" not in info.path
        }

    results: list[JobResult] = []

    def between() -> None:
        results.append(run_job(insert(2), spark.newSession()))
        staged_before.append(files_on_disk())

    first = run_job(insert(1), spark, log=once_found(between))
    assert first.status == results[0].status == "committed"
    assert (results[0].version, first.version) == (2, 3)
    assert first.rounds == 1
    # What the first job had staged before the race is what it committed: not a file was written after it.
    assert files_on_disk() == staged_before[0]
    assert sorted(values(table)) == [0, 1, 2]
    assert table.history(1)[0]["isBlindAppend"] is True


def test_with_rounds_left_the_loser_plans_again_and_both_updates_stand(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path, [], [{"id": number, "day": "a", "value": 0} for number in range(10)])
    first, second = run_beside(update(table, [3], 1).replace(conflict_deadline_s=60), update(table, [4], 2), spark)
    assert (first.status, second.status) == ("committed", "committed")
    assert first.rounds == 2
    assert values(table) == {number: {3: 1, 4: 2}.get(number, 0) for number in range(10)}
    assert len(sorted_rows(table.to_arrow())) == 10


def compact(table: Table, holding: int) -> None:
    """Another engine's OPTIMIZE: moves the rows of the file that holds this id, and changes none."""
    tx = table.begin()
    files = tx.read("id = :id", parameters={"id": holding})
    assert files.num_rows == 1
    (path,) = files.column("path").to_pylist()
    tx.remove(files, data_change=False)
    rows = pq.read_table(Path(table.uri.removeprefix("file://"), path))
    moved = [msgspec.structs.replace(add, data_change=False) for add in stage(table, rows, tx=tx)]
    tx.add(moved)
    tx.commit("OPTIMIZE")


@pytest.mark.parametrize("operation", ["delete", "merge"])
def test_a12_a_compaction_of_files_in_which_nothing_was_found_passes_without_another_round(
    spark: SparkSession, tmp_path: Path, operation: str
) -> None:
    """Both files may hold id 3 by their statistics, and only one does; it is the other that is compacted."""
    table = make_table(
        tmp_path,
        [],
        [{"id": number, "day": "a", "value": 0} for number in (1, 3, 9)],
        [{"id": number, "day": "a", "value": 0} for number in (0, 10)],
    )
    spec = update(table, [3], 1)
    if operation == "delete":
        arguments = {"predicate": "id = :id", "parameters": {"id": 3}}
        spec = JobSpec(operation="delete", table_uri=table.uri, arguments=arguments, conflict_deadline_s=0)
    result = run_job(spec, spark, log=once_found(lambda: compact(table, 10)))
    assert result.status == "committed", result.error
    assert (result.version, result.rounds) == (4, 1)
    assert values(table) == {0: 0, 1: 0, 9: 0, 10: 0} | ({3: 1} if operation == "merge" else {})


def test_a12_a_compaction_of_a_file_in_which_something_was_found_makes_another_round(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path, [], [{"id": number, "day": "a", "value": 0} for number in (1, 3, 9)])
    spec = update(table, [3], 1).replace(conflict_deadline_s=60)
    result = run_job(spec, spark, log=once_found(lambda: compact(table, 3)))
    assert result.status == "committed", result.error
    assert result.rounds == 2
    assert values(table) == {1: 0, 3: 1, 9: 0}
