"""Alone in showing that a merge which the tasks join and write, with Spark and without, leaves the rows that Spark's
join leaves: keys of every type, nulls, duplicates, and a source that no task holds as a whole; and that no row of a
pair reaches the driver."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.jobs.operations.merge import by_spark as by_spark_module
from airflow_txlog.jobs.operations.merge import keys
from airflow_txlog.jobs.rows.matches import Matches
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage.limits import LOCAL_FILE_BYTES, SMALL_JOB, USUAL, Limits
from tests.helpers.jobs import KEY, application, committed, error_of, files_on_disk, insert, merge, run, update
from tests.helpers.rows import append, bag, make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAN = float("nan")
# Values of which target and source draw: some of them equal to others only in some engines.
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint": (pa.int8(), [-128, -1, 0, 1, 127]),
    "int": (pa.int32(), [-(2**31), 0, 7, 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]),
    "string": (pa.string(), ["", " ", "a", "a ", "A", "é", "e\u0301", "\U0001f600"]),
    "date": (pa.date32(), [-719_162, 0, 19_000]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [-1, 0, 1, 1_700_000_000_000_000]),
    "timestamp_ntz": (pa.timestamp("us"), [-1, 0, 1, 1_700_000_000_000_000]),
    "decimal": (pa.decimal128(20, 2), ["-1.10", "0.00", "1.10", "123456789012345678.99"]),
    "double": (pa.float64(), [NAN, 0.0, -0.0, 1.5, float("inf")]),
    "boolean": (pa.bool_(), [True, False]),
    "binary": (pa.binary(), [b"", b"a", b"\x00"]),
}
BY_TASKS = {*("tinyint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz"), "decimal", "binary"}
BY_SPARK = Limits(merge_key_bytes=0, merge_source_bytes=0, filter_keys=1)
CLAUSES = [update({"v": "s.v"}), insert("*")]


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """For each look for pairs: whether Spark joined, and how many rows came to the driver."""
    seen: list[tuple[bool, int]] = []
    by_spark: list[object] = []
    collect, of_packed = by_spark_module.collect, Matches.of_packed

    def collecting(frame: Any, what: str) -> pa.Table:
        by_spark.extend([what] if what == keys.MATCHING else [])
        return collect(frame, what)

    def unpacking(found: pa.Table) -> Matches:
        seen.append((bool(by_spark), found.num_rows))
        by_spark.clear()
        return of_packed(found)

    monkeypatch.setattr(by_spark_module, "collect", collecting)
    monkeypatch.setattr(Matches, "of_packed", staticmethod(unpacking))
    return seen


def column(name: str, chosen: list[Any]) -> pa.Array:
    kind = KEYS[name][0]
    if pa.types.is_decimal(kind):
        return pa.array(chosen, pa.string()).cast(kind)
    if pa.types.is_temporal(kind):
        return pa.array(chosen, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
    return pa.array(chosen, kind)


def table_of(names: list[str], keys: list[tuple[Any, ...]], prefix: str) -> pa.Table:
    columns = {f"k{n}": column(name, [key[n] for key in keys]) for n, name in enumerate(names)}
    return pa.table({**columns, "v": [f"{prefix}{number}" for number in range(len(keys))]})


def merged(
    spark: SparkSession | None, folder: Path, target: pa.Table, source: pa.Table, limits: Limits = USUAL
) -> tuple[Table, Any]:
    """The table with the target's rows in two files, after the source was merged into it, and what the job said."""
    half = target.num_rows // 2
    table = make_table(folder / "t", target.slice(0, half))
    append(table, target.slice(half))
    pq.write_table(source, folder / "source.parquet")
    on = " AND ".join(f"t.{name} = s.{name}" for name in source.column_names if name != "v")
    described = {"format": "parquet", "path": str(folder / "source.parquet")}
    return table, run(spark, "merge", table, source=described, on=on, clauses=CLAUSES, limits=limits)


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.parametrize("names", [[name] for name in KEYS] + [["string", "int"], ["bigint", "date", "string"]])
def test_keys_of_every_type_meet_in_the_tasks_as_in_spark(
    tmp_path: Path, spark: SparkSession, names: list[str], collected: list[tuple[bool, int]]
) -> None:
    chance = random.Random(str(names))
    values = [[None, *KEYS[name][1]] for name in names]
    drawn = [tuple(chance.choice(of_key) for of_key in values) for _ in range(80)]
    every = list(dict.fromkeys(drawn))
    # Each key of the source once; but nulls, which equal nothing, more often.
    given = chance.sample(every, max(1, len(every) * 2 // 3)) + [(None,) * len(names)] * 2
    source, target = table_of(names, given, "new"), table_of(names, drawn, "old")
    found = []
    are_plain = BY_TASKS.issuperset(names)
    ways = ("alone", "tasks", "spark") if are_plain else ("tasks", "spark")
    for way in ways:
        (tmp_path / way).mkdir()
        limits = BY_SPARK if way == "spark" else USUAL
        table, result = merged(None if way == "alone" else spark, tmp_path / way, target, source, limits)
        metrics = committed(result).metrics
        found.append((bag(table.to_arrow()), metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]))
    assert all(each == found[-1] for each in found)
    assert found[0][1] > 0
    assert [by_spark for by_spark, _ in collected] == [*[not are_plain] * (len(ways) - 1), True]
    if not are_plain:
        (tmp_path / "alone").mkdir()
        assert error_of(merged(None, tmp_path / "alone", target, source)[1])["facts"]["needs_spark"]


def test_two_source_rows_of_a_key_are_the_same_error(tmp_path: Path, spark: SparkSession) -> None:
    target = pa.table({"k0": [1, 1, 2, 3, None], "v": ["old"] * 5})
    source = pa.table({"k0": [1, 1, 2, 2, 9, 9, None, None], "v": ["new"] * 8})
    messages = []
    for way in ("alone", "tasks", "spark"):
        (tmp_path / way).mkdir()
        limits = Limits(merge_key_bytes=0) if way == "spark" else USUAL
        error = error_of(merged(None if way == "alone" else spark, tmp_path / way, target, source, limits)[1])
        assert error["type"] == "AmbiguousMerge"
        messages.append(re.search(r"\d+ target rows .*, the first of them row \d+ of", error["message"]))
    alone, first, second = (found[0] for found in messages if found is not None)
    assert (
        alone == first == second == "3 target rows are matched by more than one source row, the first of them row 0 of"
    )


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.parametrize("way", ["tasks", "spark"])
@pytest.mark.parametrize("partition_by", [(), ("v",)])
def test_a_source_that_no_task_holds_is_read_in_parts(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    collected: list[tuple[bool, int]],
    way: str,
    partition_by: tuple[str, ...],
) -> None:
    """Four buckets; keys are looked up, and source rows are held, for some rows at a time. What is collected does not
    grow with the pairs."""
    limits = replace(
        BY_SPARK if way == "spark" else USUAL,
        bucket_bytes=1,
        looked_up_bytes=100_000,
        held_source_bytes=1,
        taken_source_rows=700,
    )
    numbers = list(range(20_000))
    random.Random(3).shuffle(numbers)
    old = pa.table({"k": numbers, "v": ["b"] * 20_000, "w": pa.array([0] * 20_000, pa.int32())})
    table = make_table(tmp_path / "t", old.slice(0, 9_000), partition_by=partition_by)
    append(table, old.slice(9_000))
    rows = "SELECT id AS k, 'b' AS v, CAST(id AS INT) AS w FROM range(10000, 26000, 1, 4)"
    result = committed(merge(spark, table, rows, update("*"), insert("*"), on="t.k = s.k AND t.v = s.v", limits=limits))
    new = {number: number if number >= 10_000 else 0 for number in range(26_000)}
    expected = pa.table({"k": list(new), "v": ["b"] * len(new), "w": pa.array(list(new.values()), pa.int32())})
    assert bag(table.to_arrow()) == bag(expected)
    assert result.metrics["numTargetRowsUpdated"] == 10_000
    assert result.metrics["numTargetRowsInserted"] == 6_000
    (((by_spark, collected_rows)),) = collected
    assert by_spark == (way == "spark")
    assert collected_rows <= 8


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_merge_that_needs_spark_after_all_goes_on_with_the_source_that_it_has_read(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, is_saved: bool
) -> None:
    monkeypatch.setenv(SMALL_JOB.setting, str(LOCAL_FILE_BYTES * 3 // 2))
    table = make_table(tmp_path / "t", pa.table({"k": [1, 9], "v": ["old"] * 2}), pa.table({"k": [2], "v": ["old"]}))
    before = files_on_disk(table)
    source = tmp_path / "source.parquet"

    def start() -> SparkSession:
        pq.write_table(pa.table({"k": [1, 2, 3], "v": ["later"] * 3}), source)
        return spark

    def fails() -> SparkSession:
        raise OSError("no Java here")

    pq.write_table(pa.table({"k": [2, 3], "v": ["new", "new"]}), source)
    arguments = {"source": {"format": "parquet", "path": str(source)}, "on": "t.k = s.k", "clauses": CLAUSES}
    saved = {"application": application(), "saved_work_key": KEY} if is_saved else {}
    spec = job_spec(operation="merge", table_uri=table.uri, arguments=arguments, **saved)
    assert "Spark could not be started" in error_of(run_job(spec, None, start=fails))["message"]
    assert is_saved or files_on_disk(table) == before
    result = run_job(spec, None, start=start)
    assert [step["name"] for step in committed(result).steps].count("materialize") == 1
    assert result.details.lineage is not None
    assert result.details.lineage.views == {"": ["k", "v"]}
    assert bag(table.to_arrow()) == bag(pa.table({"k": [1, 2, 3, 9], "v": ["old", "new", "new", "old"]}))
    assert not list((tmp_path / "t").glob("*inputs*"))


def test_saved_work_that_is_no_longer_whole_when_spark_is_there_is_not_gone_on_with(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The try without Spark has found it whole."""
    table = make_table(tmp_path / "t", pa.table({"k": [1], "v": ["old"]}), pa.table({"k": [2], "v": ["old"]}))
    source = tmp_path / "source.parquet"
    pq.write_table(pa.table({"k": [2, 3], "v": ["first", "first"]}), source)
    spec = job_spec(
        operation="merge",
        table_uri=table.uri,
        arguments={"source": {"format": "parquet", "path": str(source)}, "on": "t.k = s.k", "clauses": CLAUSES},
        application=application(),
        saved_work_key=KEY,
    )

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    def start() -> SparkSession:
        (written,) = (tmp_path / "t").glob("txlog-inputs-*/part-*.parquet")
        data = bytearray(written.read_bytes())
        data[len(data) // 2] ^= 1
        written.write_bytes(data)
        return spark

    with monkeypatch.context() as patched:
        patched.setattr("airflow_txlog.jobs.resume.attempts.commit_change", dies)
        with pytest.raises(KeyboardInterrupt):
            run_job(spec, None)
    append(table, pa.table({"k": [4], "v": ["old"]}))
    pq.write_table(pa.table({"k": [2, 3], "v": ["later", "later"]}), source)
    monkeypatch.setenv(SMALL_JOB.setting, str(LOCAL_FILE_BYTES - 1))
    lines: list[str] = []
    committed(run_job(spec, None, start=start, log=lines.append))
    assert [line for line in lines if line.startswith("resuming an earlier try")]
    assert [line for line in lines if line.endswith("starting over")]
    assert bag(table.to_arrow()) == bag(pa.table({"k": [1, 2, 3, 4], "v": ["old", "later", "later", "old"]}))


def test_a_delete_that_needs_spark_after_all_goes_on_with_the_keys_that_it_has_read(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were encrypted with a key that only the job knows."""
    monkeypatch.setenv(SMALL_JOB.setting, str(LOCAL_FILE_BYTES * 3 // 2))
    table = make_table(tmp_path / "t", pa.table({"k": [1, 2]}), pa.table({"k": [3, 4]}))
    source = tmp_path / "keys.parquet"
    pq.write_table(pa.table({"k": [1, 4]}), source)

    def start() -> SparkSession:
        pq.write_table(pa.table({"k": [2, 3]}), source)
        return spark

    keys = {"column": "k", "source": {"format": "parquet", "path": str(source)}}
    spec = job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": None, "keys": keys})
    result = committed(run_job(spec, None, start=start))
    assert [step["name"] for step in result.steps].count("materialize") == 1
    assert result.metrics["numKeysGiven"] == 2
    assert bag(table.to_arrow()) == bag(pa.table({"k": [2, 3]}))
    assert not list((tmp_path / "t").glob("*inputs*"))
