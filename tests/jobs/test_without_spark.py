"""Alone in showing which jobs start no Spark, that these import none of it, and that the others do nothing before
they start it.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.jobs.executor.local import threads_for
from airflow_txlog.jobs.run import run_job
from airflow_txlog.runners.child_process import job_environment
from airflow_txlog.storage.kept_files import KEPT_BYTES
from airflow_txlog.storage.limits import LOCAL_FILE_BYTES, REMOTE_FILE_BYTES, SMALL_JOB, USUAL, Limits, weight_of
from tests.helpers.depth import in_long
from tests.helpers.jobs import application, committed, error_of, files_on_disk, ids, live_files, rows, run
from tests.helpers.rows import append, bag, make_table, stage
from tests.helpers.specs import job_spec

# Runs the job of a description as its process does, and says on standard error what of this was imported.
_PROCESS = """
import atexit, sys
atexit.register(lambda: print(sorted({"pyspark", "py4j", "pandas"} & set(sys.modules)), file=sys.stderr))
from airflow_txlog.jobs.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

AT = pa.timestamp("us", tz="UTC")


def by_keys(*keys: Any, **more: Any) -> dict[str, Any]:
    return {"predicate": None, "keys": {"column": "id", "values": list(keys)}, **more}


def spec_of(table: Table, operation: str = "delete", **more: Any) -> JobSpec:
    return job_spec(operation=operation, table_uri=table.uri, **more)


def needs(spec: JobSpec, limits: Limits = USUAL) -> str:
    """Why a job that is tried without Spark needs it; nothing was staged then."""
    error = error_of(run_job(spec, None, limits=limits))
    assert error["facts"].get("needs_spark"), error
    return str(error["message"])


@pytest.mark.parametrize(
    ("operation", "more"), [("upsert", {"columns": ["name"]}), ("apply_changes", {"sequence_by": "id"})]
)
def test_an_empty_source_names_no_partition(tmp_path: Path, operation: str, more: dict[str, Any]) -> None:
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"])
    pq.write_table(rows(0), tmp_path / "source.parquet")
    source = {"format": "parquet", "path": str(tmp_path / "source.parquet")}
    result = run(None, operation, table, keys=["day"], source=source, **more)
    assert (result.status, ids(table)) == ("nothing_to_do", [0, 1, 2]), result.error


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        *in_long(
            "a process for each job; those below import more",
            ("checkpoint", {}),
            ("truncate", {}),
            ("alter", {"add_features": ["rowTracking"]}),
            ("vacuum", {}),
            ("optimize", {"partition_predicate": "day >= '2024-01-01'"}),
        ),
        ("delete", by_keys(3)),
        ("alter", {"add_constraints": {"positive": "id >= 0"}, "set_not_null": ["id"]}),
        ("optimize", {"zorder_by": ["name", "id"]}),
        ("write", {"source": {"format": "parquet", "path": "{folder}/in"}, "schema_evolution": True}),
        ("upsert", {"source": {"format": "parquet", "path": "{folder}/in"}, "keys": ["id"]}),
    ],
)
def test_a_small_job_imports_neither_pyspark_nor_pandas(
    tmp_path: Path, operation: str, arguments: dict[str, Any]
) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100), partition_by=["day"])
    (tmp_path / "in").mkdir()
    pq.write_table(rows(2), tmp_path / "in" / "a.parquet")
    named = json.loads(json.dumps(arguments).replace("{folder}", str(tmp_path)))
    # A Spark of its own, which it would start if it needed one.
    result, imported = in_process(spec_of(table, operation, arguments=named), "local", tmp_path)
    assert result["status"] == "committed", result
    assert imported == "[]"


def test_a_job_that_spark_submit_started_does_not_leave_its_cluster_unasked(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    result, _ = in_process(spec_of(table, arguments=by_keys(3)), "submitted", tmp_path)
    assert result["status"] == "failed", "there is no spark-submit here"
    assert table.latest_version() == 1


def in_process(spec: JobSpec, session: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Run a job in a new process. Return its result, and the modules of `_PROCESS` that the process imported."""
    described, result = folder / "spec.json", folder / "result.json"
    described.write_text(spec.replace(result_uri=str(result)).to_json(with_key=True))
    # The process ends with its input.
    read, write = os.pipe()
    command = [sys.executable, "-c", _PROCESS, "--session", session, str(described)]
    ran = subprocess.run(command, stdin=read, capture_output=True, text=True, env=job_environment(), check=False)
    os.close(read)
    os.close(write)
    return json.loads(result.read_text()), ran.stderr.strip()


def test_a_delete_by_keys_says_that_it_needed_no_spark(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    lines: list[str] = []
    result = committed(run_job(spec_of(table, arguments=by_keys(3, 104, 104, 77)), None, log=lines.append))
    assert ids(table) == [k for k in (*range(10), *range(100, 110)) if k not in (3, 104)]
    assert [result.metrics[name] for name in ("numKeysGiven", "numKeys", "numKeysMatched")] == [4, 3, 2]
    assert [line for line in lines if line.startswith("without Spark: ")]
    assert not [path for path in files_on_disk(table) if "txlog" in path], "the keys are gone with the job"


def test_a_delete_of_whole_partitions_needs_no_spark(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100, day=None), partition_by=["day"])
    scope = {"partition_predicate": "day <= :d AND NOT day IN (DATE '1999-01-01')", "parameters": {"d": "2024-01-01"}}
    committed(run_job(spec_of(table, arguments=by_keys(3, 104, **scope)), None))
    assert ids(table) == [0, 1, 2, *range(4, 10), *range(100, 110)]
    committed(run_job(spec_of(table, arguments={"predicate": None, **scope}), None))
    assert ids(table) == [*range(100, 110)]
    committed(run_job(spec_of(table, arguments={"predicate": "`day` IS NULL"}), None))
    assert ids(table) == []


def test_the_rows_of_a_table_count_with_the_memory_that_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    # A million equal keys take a few kilobytes in a file, and eight megabytes in memory.
    asked = make_table(tmp_path / "gone", pa.table({"n": pa.repeat(pa.scalar(3), 10**6)}))
    assert asked.snapshot().files().column("size").to_pylist()[0] < 100_000
    keys = {"column": "id", "source": {"table": asked.uri}, "source_column": "n"}
    spec = spec_of(table, arguments={"predicate": None, "keys": keys})
    monkeypatch.setenv(SMALL_JOB.setting, "1000000")
    assert "1 file of 2000000 bytes" in needs(spec)
    monkeypatch.setenv(SMALL_JOB.setting, "2000000")
    committed(run_job(spec, None))
    assert 3 not in ids(table)


def test_the_keys_of_a_table_need_no_spark_and_those_of_a_query_do(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    asked = make_table(
        tmp_path / "asked", pa.table({"n": [3, 4, 4, 77], "day": ["a", "a", "b", "b"]}), partition_by=["day"]
    )
    source = {"column": "id", "source": {"table": asked.uri}, "source_column": "N"}
    result = committed(run_job(spec_of(table, arguments={"predicate": None, "keys": source}), None))
    assert [result.metrics[name] for name in ("numKeysGiven", "numKeys", "numKeysMatched")] == [4, 3, 2]
    assert ids(table) == [0, 1, 2, 5, 6, 7, 8, 9]
    source["source"] = {"sql": "SELECT 1"}
    assert "evaluates SQL" in needs(spec_of(table, arguments={"predicate": None, "keys": source}))


@pytest.mark.parametrize(
    ("predicate", "why"),
    [
        ("day = '2024-1-1'", "a text beside the type date, and it is no date written as YYYY-MM-DD"),
        ("dayofweek(day) = 2", "the function dayofweek()"),
        # A day too far for Spark, which the engine does not look at beside TRUE.
        ("TRUE OR day < DATE '+5881580-07-12'", "a cast"),
    ],
)
def test_a_text_that_only_spark_can_judge_needs_it(tmp_path: Path, predicate: str, why: str) -> None:
    table = make_table(tmp_path / "t", rows(10), partition_by=["day"])
    before = files_on_disk(table)
    assert why in needs(spec_of(table, arguments={"predicate": predicate}))
    assert why in needs(spec_of(table, arguments=by_keys(3, partition_predicate=predicate)))
    assert files_on_disk(table) == before


@pytest.mark.parametrize(
    ("name", "mark", "predicate", "why"),
    [
        ("current_path", None, "current_path <> 'a'", "the name current_path"),
        ("s", None, "s = 'a' -- \\", "a backslash at its end"),
        ("s", "char(5)", "s = 'a'", "the column s"),
    ],
)
def test_a_plain_text_of_a_column_that_the_engine_does_not_read_needs_spark(
    tmp_path: Path, name: str, mark: str | None, predicate: str, why: str
) -> None:
    field = pa.field(name, pa.string(), metadata=mark and {"__CHAR_VARCHAR_TYPE_STRING": mark})
    data = pa.table([["a", "b"], [1, 2]], schema=pa.schema([field, ("id", pa.int64())]))
    table = make_table(tmp_path / "t", data, partition_by=[name])
    assert why in needs(spec_of(table, arguments={"predicate": predicate}))
    assert why in needs(spec_of(table, arguments=by_keys(1, partition_predicate=predicate)))
    assert table.latest_version() == 1


def test_a_whole_file_without_a_count_is_counted_without_spark(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", partition_by=["day"], schema=rows(1).schema)
    adds = stage(table, rows(10))
    tx = table.begin()
    tx.add([replace(add, stats=None) for add in adds])
    tx.commit("WRITE")
    scope = {"predicate": None, "partition_predicate": "day = '2024-01-01'", "require_match": True}
    result, imported = in_process(spec_of(table, arguments=scope), "none", tmp_path)
    assert result["metrics"]["numDeletedRows"] == 10
    assert imported == "[]"


@pytest.mark.parametrize("predicate", ["current_date() > day", "day < current_date"])
def test_the_current_day_of_a_named_time_zone_needs_spark(tmp_path: Path, predicate: str) -> None:
    table = make_table(tmp_path / "t", rows(10), partition_by=["day"])
    assert "the current time" in needs(spec_of(table, arguments={"predicate": predicate}, time_zone="Europe/Berlin"))


def test_a_delete_by_a_plain_predicate_needs_no_spark(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    lines: list[str] = []
    # A number as Jinja renders it.
    text = "id = :id OR name IN ('n4', 'n104') OR (id > 107 AND day < current_date)"
    arguments = {"predicate": text, "parameters": {"id": "3"}}
    result = committed(run_job(spec_of(table, arguments=arguments), None, log=lines.append))
    assert ids(table) == [0, 1, 2, 5, 6, 7, 8, 9, 100, 101, 102, 103, 105, 106, 107]
    assert result.metrics["numDeletedRows"] == 5
    assert [line for line in lines if line.startswith("without Spark: ")]
    committed(run_job(spec_of(table, arguments={"predicate": "name LIKE '%1%' AND NOT amount < 0.1"}), None))
    assert not [name for name in table.to_arrow()["name"].to_pylist() if "1" in name]
    many = {"predicate": f"id IN ({', '.join(map(str, range(4, 5_004)))})"}
    committed(run_job(spec_of(table, arguments=many), None))
    assert ids(table) == [0, 2]
    committed(run_job(spec_of(table, arguments={"predicate": "id >= 0"}), None))
    assert ids(table) == []


@pytest.mark.parametrize(
    ("column", "predicate"),
    [
        ("seen", "seen < current_timestamp() - INTERVAL 30 DAYS"),
        ("seen", "seen < current_date - INTERVAL '1' MONTH"),
        ("seen", "now() - INTERVAL 720 HOURS > seen"),
        ("day", "day < current_date() - INTERVAL 30 DAYS"),
        ("day", "day < CAST(now() - INTERVAL '30 days' AS DATE)"),
        ("day", "day < add_months(to_date(now()), -1)"),
    ],
)
def test_a_delete_of_old_rows_needs_no_spark_and_reads_no_file_of_young_ones(
    tmp_path: Path, column: str, predicate: str
) -> None:
    now = dt.datetime.now(dt.UTC)
    ages = [[50, 45], [40, 10], [5, 0]]
    times = [pa.array([now - dt.timedelta(days=age) for age in each], AT) for each in ages]
    columns = [each.cast(pa.date32()) if column == "day" else each for each in times]
    data = [pa.table({column: values, "id": age}) for values, age in zip(columns, ages, strict=True)]
    table = make_table(tmp_path / "t", *data[:2])
    old = live_files(table)
    append(table, data[2])
    (young,) = (tmp_path / "t" / path for path in live_files(table) - old)
    content = young.read_bytes()
    young.write_bytes(b"")
    result = committed(run_job(spec_of(table, arguments={"predicate": predicate}), None))
    young.write_bytes(content)
    assert sorted(ids(table)) == [0, 5, 10]
    assert [result.metrics[name] for name in ("numDeletedRows", "numRemovedFiles", "numAddedFiles")] == [3, 2, 1]


@pytest.mark.parametrize(
    "properties", [{}, {"delta.enableChangeDataFeed": "true"}, {"delta.enableDeletionVectors": "true"}]
)
def test_an_update_by_plain_texts_needs_no_spark(tmp_path: Path, properties: dict[str, str]) -> None:
    table = make_table(tmp_path / "t", rows(4), rows(4, start=100), partition_by=["day"], properties=properties)
    changes = {"amount": "amount * 2 ", "name": "'new'", "day": "DATE '2024-01-02'"}
    arguments = {"predicate": "id IN (1, 2, 103)", "set": changes}
    result = committed(run_job(spec_of(table, "update", arguments=arguments), None))
    assert result.metrics["numUpdatedRows"] == 3
    new = {"name": "new", "day": dt.date(2024, 1, 2)}
    before = [*rows(4).to_pylist(), *rows(4, start=100).to_pylist()]
    expected = [row | ({"amount": row["id"] * 1.0} | new if row["id"] in (1, 2, 103) else {}) for row in before]
    assert bag(table) == bag(pa.Table.from_pylist(expected, rows(1).schema))
    if "delta.enableChangeDataFeed" in properties:
        changed = table.changes(result.version)["_change_type"].to_pylist()
        assert sorted(changed) == ["update_postimage"] * 3 + ["update_preimage"] * 3
    committed(run_job(spec_of(table, "update", arguments={"set": {"name": "NULL"}}), None))
    assert table.to_arrow()["name"].null_count == 8


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"set": {"name": "reverse(name)"}}, "more than plain ones: they have the function reverse()"),
        (
            {"set": {"name": "'x'"}, "predicate": "sqrt(id) = 3"},
            "it has the function sqrt()",
        ),
        ({"set": {"name": "'x'"}, "predicate": "name LIKE 'n\ufffd'"}, "a LIKE pattern with"),
        ({"set": {"name": "'x'"}, "predicate": "TRUE OR id < DATE 5"}, "another expression"),
    ],
)
def test_an_update_that_only_spark_can_judge_needs_it(tmp_path: Path, arguments: dict[str, Any], why: str) -> None:
    table = make_table(tmp_path / "t", rows(10))
    before = files_on_disk(table)
    assert why in needs(spec_of(table, "update", arguments=arguments))
    assert files_on_disk(table) == before


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"partition_predicate": "dayofweek(at) = 2"}, "the function dayofweek()"),
        # The second of two batches has a time that only Spark's zones place.
        ({"batch_bytes": 1}, "times without a zone are to be read as those of Europe/Berlin"),
        ({"batch_bytes": 1, "zorder_by": ["id"]}, "rows are to be sorted in several commits"),
    ],
)
def test_an_optimize_that_needs_spark_has_committed_no_batch_before(
    tmp_path: Path, arguments: dict[str, Any], why: str
) -> None:
    table = make_table(tmp_path / "t", schema=pa.schema([("id", pa.int64()), ("at", AT)]), partition_by=["at"])
    moments = ["2024-01-01T00:00:00.000000Z", "2024-10-27 02:30:00"]
    for number, moment in enumerate(2 * moments):
        row = pa.table({"id": [number], "at": pa.array([number % 2], AT)})
        tx = table.begin()
        tx.add([replace(add, partition_values={"at": moment}) for add in stage(table, row)])
        tx.commit("WRITE")
    before = files_on_disk(table)
    assert why in needs(spec_of(table, "optimize", arguments=arguments, time_zone="Europe/Berlin"))
    assert (table.latest_version(), files_on_disk(table)) == (4, before)
    committed(run_job(spec_of(table, "optimize"), None))
    assert table.snapshot().num_files == 2


def test_a_batch_too_many_needs_spark_before_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path / "t", *(rows(2, start=10 * n, day=dt.date(2024, 1, n // 2 + 1)) for n in range(4)),
                       partition_by=["day"])  # fmt: skip
    monkeypatch.setenv(SMALL_JOB.setting, str(4 * LOCAL_FILE_BYTES - 1))
    assert "4 files of" in needs(spec_of(table, "optimize", arguments={"batch_bytes": 1}))
    assert table.latest_version() == 4
    monkeypatch.setenv(SMALL_JOB.setting, str(4 * LOCAL_FILE_BYTES))
    committed(run_job(spec_of(table, "optimize", arguments={"batch_bytes": 1}), None))
    assert (table.latest_version(), table.snapshot().num_files) == (6, 2)


def test_more_rows_than_memory_should_hold_are_not_sorted_here(tmp_path: Path) -> None:
    rows_of = {"id": range(2000), "s": [f"{n * n:032x}" for n in range(2000)]}
    table = make_table(tmp_path / "t", pa.table(rows_of), pa.table(rows_of))
    before, files = bag(table), files_on_disk(table)
    spec = spec_of(table, "optimize", arguments={"zorder_by": ["s", "id"]})
    assert "rows of more than 100000 bytes are to be sorted" in needs(spec, limits=Limits(sorted_bytes=100_000))
    assert (table.latest_version(), files_on_disk(table)) == (2, files)
    committed(run_job(spec, None))
    assert (bag(table), table.snapshot().num_files) == (before, 1)


_HOURS = pa.table({"id": range(48), "seen": pa.array([n * 3_600_000_000 for n in range(48)], AT)})


@pytest.mark.parametrize(
    ("zone", "predicate", "left"),
    [
        ("UTC", "seen >= TIMESTAMP '1970-01-01 05:00:00'", 5),
        ("UTC", "seen BETWEEN '1970-01-01T05:00:00Z' AND '1970-01-02 06:00:00'", 22),
        ("UTC", "seen > DATE '1970-01-02'", 25),
        ("Europe/Berlin", "seen >= '1970-01-01 05:00:00+00:00'", 5),
        ("UTC", "CAST(seen AS DATE) = '1970-01-01' AND hour(seen) < 23", 25),
        ("UTC", "date_trunc('DAY', seen) = TIMESTAMP '1970-01-02 00:00:00' OR to_date(seen) < '1970-01-01'", 24),
        ("UTC", "year(seen) = 1970 AND day(seen) = 1", 24),
        ("UTC", "date_format(seen, 'yyyy-MM-dd HH') < '1970-01-02 03'", 21),
        ("UTC", "date_format(to_date(seen), 'HH.dd') = date_format(TIMESTAMP '1970-01-02 00:00:00', 'HH.dd')", 24),
    ],
)
def test_times_are_compared_and_cut_without_spark(tmp_path: Path, zone: str, predicate: str, left: int) -> None:
    table = make_table(tmp_path / "t", _HOURS)
    committed(run_job(spec_of(table, arguments={"predicate": predicate}, time_zone=zone), None))
    assert len(ids(table)) == left


@pytest.mark.parametrize(
    ("zone", "predicate"),
    [
        ("Europe/Berlin", "seen >= TIMESTAMP '1970-01-01 05:00:00'"),
        ("Europe/Berlin", "hour(seen) = 3"),
        ("Europe/Berlin", "date_format(seen, 'yyyy') = '1970'"),
        ("Europe/Berlin", "date_format(DATE '1970-01-01', 'yyyy') = '1970' AND id = 1"),
        ("UTC", "date_format(seen, 'MMM') = 'Jan'"),
        ("Europe/Berlin", "CAST(seen AS DATE) = '1970-01-01'"),
        ("UTC", "seen IN ('1970-01-01 05:00:00')"),
        ("UTC", "seen > 'yesterday'"),
        ("UTC", "seen = TIMESTAMP 'epoch'"),
        ("UTC", "date_trunc('decade', seen) IS NULL"),
    ],
)
def test_times_of_a_named_zone_and_other_spellings_need_spark(tmp_path: Path, zone: str, predicate: str) -> None:
    table = make_table(tmp_path / "t", _HOURS)
    assert needs(spec_of(table, arguments={"predicate": predicate}, time_zone=zone))


def test_an_update_takes_parts_of_times(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", _HOURS)
    values = {"seen": "date_trunc('DAY', seen)", "id": "hour(seen)"}
    committed(run_job(spec_of(table, "update", arguments={"set": values, "predicate": "id = 30"}), None))
    changed = table.to_arrow().filter(pc.equal(table.to_arrow()["seen"].cast(pa.int64()), 86_400_000_000))
    assert sorted(changed["id"].to_pylist()) == [6, 24]


def test_an_update_of_a_table_with_rules_needs_spark(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10), properties={"delta.constraints.small": "sqrt(amount) < 1000"})
    assert "they have rules of the table" in needs(spec_of(table, "update", arguments={"set": {"name": "'x'"}}))


def test_a_table_with_a_column_of_a_name_of_the_job_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": [1], "_txlog_address": [2]}))
    error = error_of(run_job(spec_of(table, arguments={"predicate": "id = 1"}), None))
    assert (error["type"], error["facts"]["columns"]) == ("SchemaMismatch", ["_txlog_address"])


_TASKS = [
    ("file:///t", 2, KEPT_BYTES + 1, 2),
    ("/t", 64, 0, 4),
    ("s3://lake/t", 1, KEPT_BYTES, 2),
    ("s3://lake/t", 2, KEPT_BYTES, 2),
    ("s3://lake/t", 2, KEPT_BYTES + 1, 3),
    ("s3://lake/t", 64, 0, 4),
]


@pytest.mark.parametrize(("root", "cores", "size_bytes", "tasks"), _TASKS)
def test_a_core_has_one_task_and_one_more_works_in_a_store_that_does_not_keep_the_files(
    monkeypatch: pytest.MonkeyPatch, root: str, cores: int, size_bytes: int, tasks: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert threads_for(root, size_bytes) == tasks


def test_more_than_the_limit_needs_spark_and_nothing_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    before = files_on_disk(table)
    monkeypatch.setenv(SMALL_JOB.setting, str(2 * LOCAL_FILE_BYTES - 1))
    # Each file counts as its opening: two of them are too much, one is not.
    why = needs(spec_of(table, arguments=by_keys(3, 104)))
    assert "2 files of" in why
    assert SMALL_JOB.setting in why
    assert (table.latest_version(), files_on_disk(table)) == (2, before)
    committed(run_job(spec_of(table, arguments=by_keys(3)), None))


@pytest.mark.parametrize(("is_remote", "least"), [(False, LOCAL_FILE_BYTES), (True, REMOTE_FILE_BYTES)])
def test_a_tiny_file_counts_as_its_opening(is_remote: bool, least: int) -> None:
    assert weight_of([1, None, least + 1], is_remote=is_remote) == 3 * least + 1


def test_hundreds_of_tiny_files_need_no_spark(tmp_path: Path) -> None:
    """A file of some hundred bytes once counted as a megabyte, so that 256 of them were too many."""
    count, source = 300, tmp_path / "in"
    source.mkdir()
    table = make_table(tmp_path / "t", schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    tx = table.begin()
    for number in range(count):
        of_file = pa.table({"id": [2 * number, 2 * number + 1], "name": ["a", "b"]})
        tx.add(stage(table, of_file))
        pq.write_table(pa.table({"id": [1000 + number], "name": ["c"]}), source / f"{number}.parquet")
    tx.commit("WRITE")
    written = {"source": {"format": "parquet", "path": str(source)}}
    for operation, arguments in (
        ("update", {"predicate": "name = 'b'", "set": {"name": "'B'"}}),
        ("delete", {"predicate": "id < 10"}),
        ("write", written),
        ("optimize", {}),
    ):
        committed(run_job(spec_of(table, operation, arguments=arguments), None))
    expected = [{"id": n, "name": "B" if n % 2 else "a"} for n in range(10, 2 * count)]
    expected += [{"id": 1000 + n, "name": "c"} for n in range(count)]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == expected
    assert table.snapshot().num_files == 1


def test_a_key_of_a_type_that_spark_compares_in_its_own_way_needs_spark(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"real": [0.0, 1.5]}))
    keys = {"predicate": None, "keys": {"column": "real", "values": [1.5]}}
    assert "of the type double" in needs(spec_of(table, arguments=keys))


@pytest.mark.parametrize("name", ["Not/AZone", "posix/Europe/Berlin", "Factory", "localtime"])
def test_a_time_zone_that_spark_may_not_know_needs_spark(tmp_path: Path, name: str) -> None:
    table = make_table(tmp_path / "t", rows(10))
    assert "time zone" in needs(spec_of(table, arguments=by_keys(3), time_zone=name))


def test_what_only_spark_can_answer_starts_it_once_and_says_why(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"real": [0.0, 1.5]}))
    keys = {"predicate": None, "keys": {"column": "real", "values": [1.5]}}
    lines: list[str] = []
    started: list[int] = []

    def start() -> Any:
        started.append(1)
        raise OSError("no Java here")

    failed = error_of(run_job(spec_of(table, arguments=keys), None, log=lines.append, start=start))
    assert "Spark could not be started" in failed["message"]
    assert started == [1]
    assert [line for line in lines if line.startswith("Spark is needed: the keys are of the type double")]


def test_a_try_that_ended_without_spark_is_resumed_with_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    spec = spec_of(table, arguments=by_keys(3), application=application(), saved_work_key="5ec2e7" + 58 * "0")
    with monkeypatch.context() as patched:
        patched.setattr("airflow_txlog.jobs.resume.attempts.commit_change", _dies)
        with pytest.raises(KeyboardInterrupt):
            run_job(spec, None)
    lines: list[str] = []
    committed(run_job(spec, None, log=lines.append))
    assert any(line.startswith("resuming an earlier try: 1 file looked at, 1 file (") for line in lines)
    assert ids(table) == [k for k in range(10) if k != 3]


def _dies(*_: Any) -> bool:
    raise KeyboardInterrupt


def test_rows_of_a_file_whose_footer_notes_views_are_deleted_and_updated(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": pa.array([0], pa.int64()), "name": ["n"]}))
    views = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": pa.array(["a", "b", None]).cast(pa.string_view())})
    pq.write_table(views, tmp_path / "t" / "f.parquet")
    transaction = table.begin()
    size = (tmp_path / "t" / "f.parquet").stat().st_size
    transaction.add(path="f.parquet", size=size, modification_time=0, stats='{"numRecords":3}')
    transaction.commit("WRITE", {})
    committed(run_job(spec_of(table, arguments={"predicate": "name = 'b'"}), None))
    committed(run_job(spec_of(table, "update", arguments={"predicate": "id = 3", "set": {"name": "'c'"}}), None))
    assert table.to_arrow().sort_by("id").to_pydict() == {"id": [0, 1, 3], "name": ["n", "a", "c"]}


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("delete", {"predicate": "id > " + " + ".join(["0"] * 400)}),
        ("update", {"set": {"id": " + ".join(["id"] * 400)}, "predicate": "id = 1"}),
        ("update", {"set": {"id": "0"}, "predicate": "id = 1", "expect": {"long": "id < " + " - ".join(["0"] * 400)}}),
    ],
)
def test_a_very_long_chain_of_operators_is_left_to_spark(
    tmp_path: Path, operation: str, arguments: dict[str, Any]
) -> None:
    table = make_table(tmp_path / "t", _HOURS)
    assert needs(spec_of(table, operation, arguments=arguments))
