"""Columns whose names hold dots and spaces: every job reads and writes them, whatever Spark takes a dot for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Table
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.storage import LocalStore
from airflow_txlog.storage.limits import SMALL_JOB
from tests.helpers.jobs import committed, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Beside `a.b` stands a struct `a` with a member `b`: without quotes, both are a.b.
QUERY = """
    SELECT CAST(id AS BIGINT) AS `the.id`, CAST(id % 2 AS STRING) AS `day.of`, concat('n', id) AS `{name}`,
           CAST(id AS DOUBLE) AS `a.b`, named_struct('b', id * 10, 'c.d', concat('s', id)) AS a
    FROM VALUES (1), (2), (3), (4) AS s(id)
"""
SOURCE = """
    SELECT CAST(id AS BIGINT) AS `the.id`, CAST(id % 2 AS STRING) AS `day.of`, CAST(-id AS DOUBLE) AS `a.b`
    FROM VALUES (2), (3), (7) AS s(id)
"""
NEW = "SELECT 8L AS `the.id`, '0' AS `day.of`, 800D AS `a.b`, named_struct('b', 80, 'c.d', 's8') AS a"


def test_a_column_with_a_dot_in_its_name_has_its_bytes_counted(tmp_path: Path) -> None:
    location = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a.b": list(range(1000)), "a": [{"b": 1}] * 1000}), location)
    file = StagedFile(
        path="f.parquet",
        partition_values={},
        size_bytes=location.stat().st_size,
        modification_time_ms=0,
        num_records=1000,
        stats="{}",
    )
    source = MaterializedSource(files=(file,), store=LocalStore(str(tmp_path)), described={}, stored=pa.schema([]))
    assert source.bytes_of(["A.B"]) > 1000


def by_spark(text: str) -> str:
    """SQL of the same text that only Spark computes."""
    return f"reverse(reverse({text}))"


def by_tasks(text: str) -> str:
    return text


def clauses(name: str, of: Callable[[str], str]) -> list[dict[str, Any]]:
    values = {column: f"s.{column}" for column in ("`the.id`", "`day.of`", "`a.b`")}
    joined = "concat('s', s.`the.id`)"
    struct = f"named_struct('b', s.`the.id` * 10, 'c.d', {of(joined)})"
    changed = {"`a.b`": "s.`a.b`", name: of("concat(t.a.`c.d`, t.`the.id`)")}
    return [
        {"when": "matched", "then": "update", "set": changed},
        {"when": "not_matched", "then": "insert", "values": {**values, "a": struct}},
    ]


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
# Without column mapping, a name may hold no space.
@pytest.mark.parametrize(
    ("name", "mapping", "of"),
    [
        ("first-name", "none", by_spark),
        pytest.param(
            "first name",
            "name",
            by_tasks,
            marks=pytest.mark.long("twelve jobs more, on files without dots in their names"),
        ),
    ],
)
def test_every_job_takes_columns_whose_names_hold_dots_and_spaces(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mapping: str,
    of: Callable[[str], str],
) -> None:
    def row(key: int, text: str | None = "", value: float | None = None) -> dict[str, Any]:
        return {
            "the.id": key,
            "day.of": str(key % 2),
            name: f"n{key}" if text == "" else text,
            "a.b": float(key) if value is None else value,
            "a": {"b": key * 10, "c.d": f"s{key}"},
        }

    def rows() -> list[dict[str, Any]]:
        return sorted(table.to_arrow().to_pylist(), key=lambda found: found["the.id"])

    properties = {
        "delta.columnMapping.mode": mapping,
        "delta.enableChangeDataFeed": "true",
        "delta.constraints.bounded": f"`a.b` > -8 AND {of('a.`c.d`')} != ''",
    }
    source = {"sql": QUERY.format(name=name)}
    committed(run(spark, "write", tmp_path / "t", source=source, partition_by=["day.of"], properties=properties))
    table = Table.open(str(tmp_path / "t"))
    assert rows() == [row(key) for key in (1, 2, 3, 4)]

    on = f"t.`the.id` = s.`the.id` AND {of('t.`day.of`')} = s.`day.of`"
    merged = committed(run(spark, "merge", table, source={"sql": SOURCE}, on=on, clauses=clauses(f"`{name}`", of)))
    assert (merged.metrics["numTargetRowsUpdated"], merged.metrics["numTargetRowsInserted"]) == (2, 1)
    assert rows() == [row(1), row(2, "s22", -2.0), row(3, "s33", -3.0), row(4), row(7, None, -7.0)]

    assigned = {"`a.b`": "`a.b` + 100", f"`{name}`": of(f"concat(`{name}`, '!')")}
    committed(run(spark, "update", table, predicate=f"`a.b` > 3.5 AND {of('a.`c.d`')} = 's4'", set=assigned))
    assert rows()[3] == row(4, "n4!", 104.0)

    # A second small file beside each, so that there is something to compact.
    committed(run(spark, "write", table, source={"sql": NEW}))
    committed(run(spark, "optimize", table))
    for small_bytes in ("1", "1000000000"):  # sorted by Spark, and by this process
        monkeypatch.setenv(SMALL_JOB.setting, small_bytes)
        committed(run(spark, "optimize", table, zorder_by=["a.b", "the.id", name]))
    assert len(rows()) == 6

    committed(run(spark, "delete", table, predicate=f"{of(f'`{name}`')} = 's22' OR a.b = 10"))
    committed(run(spark, "delete", table, predicate=None, keys={"column": "the.id", "values": [7]}))
    assert rows() == [row(3, "s33", -3.0), row(4, "n4!", 104.0), row(8, None, 800.0)]

    inside = {"mode": "overwrite", "replace_where": "`a.b` > 100", "partition_predicate": "`day.of` = '0'"}
    committed(run(spark, "write", table, source={"sql": NEW}, **inside))
    assert rows() == [row(3, "s33", -3.0), row(8, None, 800.0)]

    more = "SELECT 9L AS `the.id`, '1' AS `day.of`, 9D AS `a.b`, named_struct('b', 90, 'c.d', 's9') AS a, 1 AS `n.e w`"
    evolved = run(spark, "write", table, source={"sql": more.replace("n.e w", f"of.{name}")}, schema_evolution=True)
    assert committed(evolved).metrics["numOutputRows"] == 1
    assert [found[f"of.{name}"] for found in rows()] == [None, None, 1]
