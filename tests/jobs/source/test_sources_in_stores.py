"""Jobs on a store that Spark cannot read: sources, materialized rows and tables never pass Spark's own readers."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage.limits import Limits
from tests.helpers.depth import in_long
from tests.helpers.jobs import SCHEMA, application, by_id, committed, error_of, ids, insert, rows, run, update
from tests.helpers.racing import killed_before_commit
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MERGE: dict[str, Any] = {"on": "t.id = s.id", "clauses": [update({"name": "s.name"}), insert()]}
DDL = "id BIGINT, day DATE, name STRING, amount DOUBLE"


@pytest.fixture
def lake(tmp_path: Path, shelf: str) -> str:
    """A table `t` with ids 0 to 3, another Delta table `other` with 7, and files that update 3 and bring 4 and 5."""
    make_table(tmp_path / "t", rows(2), rows(2, start=2), schema=SCHEMA)
    make_table(tmp_path / "other", rows(1, start=7), schema=SCHEMA)
    (tmp_path / "in" / "csv").mkdir(parents=True)
    pq.write_table(rows(2, start=3), tmp_path / "in" / "f.parquet")
    (tmp_path / "in" / "csv" / "f.csv").write_text("id,day,name,amount\n5,2024-01-01,five,2.5\n3,,three,\n")
    return f"{shelf}{tmp_path}"


def files(path: str, format: str = "parquet", **options: str) -> dict[str, Any]:
    return {"format": format, "path": path, "options": options}


def test_a_merge_reads_files_tables_and_its_own_rows_without_spark_s_readers(lake: str, spark: SparkSession) -> None:
    table = Table.at(f"{lake}/t", Table.open(lake.partition("://")[2] + "/t").store.access)
    views = {
        "lines": {**files(f"{lake}/in/csv", "csv", header="true"), "schema": DDL},
        "columns": files(f"{lake}/in/*.parquet"),
        "tables": {"table": f"{lake}/other"},
    }
    sql = (
        "SELECT * FROM lines UNION ALL SELECT * FROM columns WHERE id NOT IN (SELECT id FROM lines) "
        "UNION ALL SELECT * FROM tables"
    )
    given: dict[str, Any] = {"source": {"sql": sql, "views": views}, "limits": Limits(inline_plan_bytes=0), **MERGE}
    work = application()
    with killed_before_commit():
        run(spark, "merge", table, application=work, **given)
    # The retry reads the rows that the killed try has written down.
    log: list[str] = []
    committed(run(spark, "merge", table, application=work, log=log.append, **given))
    assert any("resuming" in line for line in log)
    assert by_id(table) == {0: "n0", 1: "n1", 2: "n2", 3: "three", 4: "n4", 5: "five", 7: "n7"}


def test_writes_and_deletes_by_keys_read_files_in_a_store(lake: str, tmp_path: Path, spark: SparkSession) -> None:
    committed(run(spark, "write", f"{lake}/t", source=files(f"{lake}/in")))
    assert ids(Table.open(str(tmp_path / "t"))) == [0, 1, 2, 3, 3, 4]
    keys = {"column": "id", "source": files(f"{lake}/in/f.parquet"), "source_column": "id"}
    committed(run(spark, "delete", f"{lake}/t", predicate=None, keys=keys))
    assert ids(Table.open(str(tmp_path / "t"))) == [0, 1, 2]


def test_what_is_no_source_is_refused_with_what_to_do(lake: str, tmp_path: Path, spark: SparkSession) -> None:
    asks_for_file = {"sql": "SELECT *, input_file_name() AS f FROM v", "views": {"v": files(f"{lake}/in")}}
    cases: dict[str, tuple[dict[str, Any], str, str]] = {
        "nothing there": (files(f"{lake}/nothing"), "SourceNotFound", "nothing at"),
        "nothing that matches": (files(f"{lake}/in/*.json", "json"), "SourceNotFound", "nothing at"),
        "only hidden files": (files(f"{lake}/in/csv/_f", "csv"), "SourceNotFound", "nothing at"),
        "the table's own files": (files(f"{lake}/t"), "InvalidJobSpec", f'table("{lake}/t")'),
        "another table's": (files(f"{lake}/other/*.parquet"), "InvalidJobSpec", f'table("{lake}/other")'),
        "a file of another table": (
            files(f"{lake}/other/{next((tmp_path / 'other').glob('*.parquet')).name}"),
            "InvalidJobSpec",
            f'table("{lake}/other")',
        ),
        "tables below": (files(lake, recursiveFileLookup="true"), "InvalidJobSpec", 'table("'),
        "the folder above": ({**files(lake, "csv"), "schema": DDL}, "InvalidJobSpec", f'table("{lake}/t")'),
        "the file of a row": (asks_for_file, "InvalidJobSpec", "input_file_name()"),
        "two kinds of stores": (files([f"{lake}/in", str(tmp_path / "in")]), "InvalidJobSpec", "different kinds"),  # type: ignore[arg-type]
        "memory": (files("memory://in"), "UnsupportedStore", "memory"),
        "a whole bucket": (files("s3://bucket/*.parquet"), "InvalidJobSpec", "a whole bucket"),
        "the top of a bucket": (files("s3a://bucket"), "InvalidJobSpec", "a whole bucket"),
        "an option": (files(f"{lake}/in", mergeSchema="true"), "InvalidJobSpec", "mergeschema=true"),
    }
    for name, (source, kind, words) in cases.items():
        error = error_of(run(spark, "write", f"{lake}/t", source=source))
        assert error["type"] == kind, (name, error["message"])
        assert words in error["message"], (name, error["message"])
    assert ids(Table.open(str(tmp_path / "t"))) == [0, 1, 2, 3]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_bytes_that_spark_was_to_infer_a_schema_from_are_the_data_s_fault(
    tmp_path: Path, shelf: str, spark: SparkSession, format: str
) -> None:
    (tmp_path / "a").write_bytes(b'{"a": "\xe9"}\n')
    source = files(f"{shelf}{tmp_path}/a", format)
    spec = job_spec(operation="write", table_uri=f"{shelf}{tmp_path}/t", arguments={"source": source})
    error = error_of(run_job(spec, spark))
    assert error["type"] == "InvalidInput"
    assert error["message"].startswith(f"The source's file {shelf}{tmp_path}/a cannot be read as {format.upper()} in")


@pytest.mark.parametrize("is_in_store", [False, True])
@pytest.mark.parametrize(
    ("text", "options", "advice"),
    [
        ('{"a": 0}\n{"a": 1}{"a": 2}\n', {}, "in one line, and Spark would read only the first"),
        *in_long(
            "each reads by Spark",
            ('{"a": 1}\n{"a": 2}\n', {"multiLine": "true"}, 'leave out the option "multiLine"'),
        ),
    ],
    ids=["one line", "multiLine"],
)
def test_objects_of_json_that_spark_would_ignore_are_an_error(
    tmp_path: Path, shelf: str, spark: SparkSession, text: str, options: dict[str, str], advice: str, is_in_store: bool
) -> None:
    place = f"{shelf if is_in_store else ''}{tmp_path}"
    (tmp_path / "in").mkdir()
    for name, data in (("a.json", b'{"a": "}{\xe2\x80\xa8"}\n'), ("b.json.gz", gzip.compress(text.encode()))):
        (tmp_path / "in" / name).write_bytes(data)

    def written(**more: str) -> JobResult:
        source = {**files(f"{place}/in", "json", **options, **more), "schema": "a STRING"}
        return run_job(job_spec(operation="write", table_uri=f"{place}/t", arguments={"source": source}), spark)

    error = error_of(written())
    assert error["type"] == "InvalidInput"
    assert error["message"].startswith(f"The source's file {place}/in/b.json.gz has several JSON objects")
    assert advice in error["message"]
    committed(written(mode="PERMISSIVE"))
