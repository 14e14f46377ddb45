"""Identity columns on a real S3 server: values over races and imports, synchronized marks, and clones that count on."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.identities import identity_column
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from tests.helpers import s3
from tests.helpers.jobs import application, committed, run
from tests.helpers.racing import before_commit
from tests.helpers.rows import append

pytestmark = pytest.mark.long("a table in a bucket")


def job(operation: str, table: Table, **arguments: Any) -> JobResult:
    return run(None, operation, table.uri, storage_options=s3.plain_options(), **arguments)


def source(*numbers: int) -> dict[str, str]:
    path, file = f"{s3.new_folder()}/a.parquet", io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), file)
    s3.client().put_object(Bucket=s3.BUCKET, Key=path.removeprefix(f"s3://{s3.BUCKET}/"), Body=file.getvalue())
    return {"format": "parquet", "path": path}


def by_n(table: Table) -> dict[int, int]:
    return {row["n"]: row["id"] for row in Table.open(table.uri, storage_options=s3.options()).to_arrow().to_pylist()}


def test_rows_are_numbered_over_races_imports_and_clones() -> None:
    columns = (identity_column("id", takes_values=True), StructField("n", Primitive.LONG))
    table = Table.create(s3.new_folder(), StructType(columns), storage_options=s3.options())
    committed(job("write", table, source=source(1, 2)))
    with before_commit(lambda tx: committed(job("write", table, source=source(3)))):
        raced = committed(job("upsert", table, source=source(4, 5), keys=["n"]))
    assert (raced.attempts, by_n(table)) == (2, {1: 1, 2: 2, 3: 3, 4: 4, 5: 5})
    append(table, pa.table({"id": pa.array([40], pa.int64()), "n": pa.array([6], pa.int64())}))
    task = application()
    with before_commit(lambda tx: append(table, pa.table({"id": [70], "n": [7]}))):
        assert committed(job("alter", table, sync_identity=["id"], application=task)).attempts == 2
    assert job("alter", table, sync_identity=["id"], application=task).status == "already_done"
    clone = Table.at(s3.new_folder(), table.store.access)
    committed(job("clone", clone, source={"table": table.uri}))
    for each in (table, clone):
        committed(job("write", each, source=source(8)))
        assert by_n(each)[8] == 71
