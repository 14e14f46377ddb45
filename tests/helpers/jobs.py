"""Tables for the tests of jobs: made without Spark, through our own writer, and read back as bags of rows."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.contract.parameters import encode_parameters
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.jobs import planner
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.executor.local import LocalExecutor
from airflow_txlog.jobs.executor.spark import SparkExecutor
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.sql.schemas import spark_schema
from airflow_txlog.storage.limits import USUAL, Limits
from tests.helpers.readers import rows_by_delta_rs
from tests.helpers.rows import bag
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string()), ("amount", pa.float64())])
DAY = dt.date(2024, 1, 1)

KEY = "5ec2e7" + 58 * "0"
"""What the works of the tests sign their saved work with."""


def begin_job(
    spec: JobSpec,
    spark: SparkSession | None,
    table: Table,
    log: Callable[[str], None] = print,
    tried: JobContext | None = None,
) -> JobContext:
    """Return the context of a job that begins on this session, or on none."""
    executor = LocalExecutor(spec) if spark is None else SparkExecutor(spark)
    return planner.begin_job(spec, executor, table, log, tried)


RANDOM_SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("ntz", pa.timestamp("us")),
        ("dec", pa.decimal128(10, 2)),
        ("b", pa.bool_()),
        ("n", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("a", pa.list_(pa.int32())),
    ]
)


def random_rows(rng: random.Random, count: int) -> pa.Table:
    """Rows of many types with their worst values, a fifth of them null."""

    def maybe(values: list[Any]) -> Any:
        return None if rng.random() < 0.2 else rng.choice(values)

    far = [
        dt.datetime(1, 1, 1),
        dt.datetime(1582, 10, 4),
        dt.datetime(2024, 6, 1, 12),
        dt.datetime(9999, 12, 31, 23, 59, 59),
    ]
    data = [
        {
            "i": maybe([0, 1, 2, 3, 4]),
            "l": maybe([-(2**63), 0, 2**63 - 1]),
            "f": maybe([0.0, -0.0, 1.5, float("nan"), float("inf"), -1.0]),
            "s": maybe(["", "a", "ab", "O'Brien", "OBrien", "é"]),
            "d": maybe([dt.date(1, 1, 1), dt.date(1999, 12, 31), dt.date(2024, 1, 1)]),
            "ts": maybe([value.replace(tzinfo=dt.UTC) for value in far]),
            "ntz": maybe(far),
            "dec": maybe([decimal.Decimal("0.50"), decimal.Decimal("0.51"), decimal.Decimal("-99999999.99")]),
            "b": maybe([True, False]),
            "n": maybe([{"x": 1, "y": "q"}, {"x": None, "y": None}]),
            "a": maybe([[], [1], [None, 9], [0, 1, 2]]),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(data, RANDOM_SCHEMA)


def rows(count: int, *, start: int = 0, day: dt.date | None = DAY) -> pa.Table:
    """Rows with ids from `start` on."""
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": pa.array([day] * count, pa.date32()),
            "name": [f"n{k}" for k in ids],
            "amount": [k / 2 for k in ids],
        },
        schema=SCHEMA,
    )


def run(
    spark: SparkSession | None,
    operation: str,
    table: Table | Path | str,
    *,
    log: Callable[[str], None] | None = None,
    application: ApplicationTransaction | None = None,
    time_zone: str = "UTC",
    conflict_deadline_s: int = 3600,
    spark_conf: dict[str, str] | None = None,
    storage_options: dict[str, Any] | None = None,
    key: str | None = KEY,
    records_key: str | None = None,
    unrestricted: tuple[str, ...] = (),
    limits: Limits = USUAL,
    allow_absolute_paths: bool = False,
    publish: bool = True,
    **arguments: Any,
) -> JobResult:
    """Run a job in this session; its result, failed or not. `key` is that of the work, for its saved work.

    Inside `tried_without_spark` the session is for jobs that need it alone.
    """
    if "parameters" in arguments:
        arguments["parameters"] = encode_parameters(arguments["parameters"])
    spec = job_spec(
        operation=operation,
        table_uri=table.uri if isinstance(table, Table) else str(table),
        arguments=arguments,
        application=application,
        time_zone=time_zone,
        conflict_deadline_s=conflict_deadline_s,
        spark_conf=spark_conf or {},
        storage_options=storage_options or {},
        allow_absolute_paths=allow_absolute_paths,
        saved_work_key=key if application is not None else None,
        records_key=records_key,
        unrestricted=unrestricted,
        publish=publish,
    )
    if _tried_without:
        return run_job(spec, None, log=log, start=lambda: spark, limits=limits)
    return run_job(spec, spark, log=log, limits=limits)


_tried_without: list[bool] = []


@contextlib.contextmanager
def tried_without_spark() -> Iterator[None]:
    """Inside, `run` gives a job the session only where it needs one, as the runners do."""
    _tried_without.append(True)
    try:
        yield
    finally:
        _tried_without.pop()


def committed(result: JobResult) -> JobResult:
    """The result, which must be a commit."""
    assert result.status == "committed", result.error
    return result


def error_of(result: JobResult) -> dict[str, Any]:
    """The error of a result that must be a failure."""
    assert result.status == "failed", result
    assert result.error is not None
    return result.error


def spark_view(spark: SparkSession, name: str, rows: pa.Table) -> None:
    """Rows as a view, with TIMESTAMP_NTZ where Arrow has no zone."""
    spark.createDataFrame(rows, spark_schema(rows.schema)).createOrReplaceTempView(name)


def spark_bag(frame: Any) -> Counter[str]:
    """The rows of a Spark frame as a bag like `bag`'s."""
    return bag(frame.toArrow())


def ids(table: Table) -> list[Any]:
    """The column `id`, sorted."""
    return sorted(table.to_arrow(columns=["id"]).column("id").to_pylist(), key=lambda value: (value is None, value))


def by_id(table: Table, column: str = "name") -> dict[Any, Any]:
    """One column of each row by the row's id, in the order of ids; no id twice."""
    rows = table.to_arrow(columns=["id", column]).to_pylist()
    found = dict(sorted((row["id"], row[column]) for row in rows))
    assert len(found) == len(rows), "an id twice"
    return found


def files_on_disk(table: Table | Path) -> set[str]:
    """Every file under the table, the log left out, by its path."""
    root = Path(table.uri.removeprefix("file://")) if isinstance(table, Table) else table
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and "_delta_log" not in path.relative_to(root).parts
    }


def live_files(table: Table) -> set[str]:
    """The paths of the live files, as the log has them; only for tables whose paths need no encoding."""
    return set(table.snapshot().files().column("path").to_pylist())


def ever_live(table: Table) -> set[str]:
    """The paths of the files of all versions, whatever holds them: rows, change rows."""
    commits = list(changes_since(table.snapshot(), -1))
    return {file.path for commit in commits for file in (*commit.adds, *commit.cdc)}


def read_alike(table: Table) -> None:
    """Another engine, delta-rs, finds the same rows as ours in the newest version."""
    ours, theirs = table.to_arrow(), rows_by_delta_rs(table.uri.removeprefix("file://"))
    assert theirs is not None, "delta-rs cannot read the table"
    assert bag(theirs.select(ours.column_names).cast(ours.schema)) == bag(ours)


def set_property(table: Table, name: str, value: str) -> int:
    """ALTER TABLE SET TBLPROPERTIES, by another writer; the version."""
    tx = table.begin()
    assert tx.metadata is not None
    changed = msgspec.structs.replace(tx.metadata, configuration={**tx.metadata.configuration, name: value})
    tx.set_metadata(changed, is_checked=True)
    return tx.commit("SET TBLPROPERTIES")


def application(version: int = 1, **more: Any) -> ApplicationTransaction:
    """An identity that nobody else uses."""
    return ApplicationTransaction(app_id=f"test/{uuid.uuid4()}", version=version, **more)


# --- merges ---------------------------------------------------------------------------------------------------------


def merge(
    spark: SparkSession, table: Table, sql: str, *clauses: dict[str, Any], on: str = "t.id = s.id", **more: Any
) -> JobResult:
    """Run a merge of the rows that a query gives."""
    return run(spark, "merge", table, source={"sql": sql}, on=on, clauses=list(clauses), **more)


def update(assigned: dict[str, str] | str = "*", condition: str | None = None, when: str = "matched") -> dict[str, Any]:
    """The clause that updates rows."""
    return {"when": when, "then": "update", "set": assigned} | ({"condition": condition} if condition else {})


def delete(condition: str | None = None, when: str = "matched") -> dict[str, Any]:
    """The clause that deletes rows."""
    return {"when": when, "then": "delete"} | ({"condition": condition} if condition else {})


def insert(values: dict[str, str] | str = "*", condition: str | None = None) -> dict[str, Any]:
    """The clause that inserts source rows."""
    return {"when": "not_matched", "then": "insert", "values": values} | ({"condition": condition} if condition else {})


BY_SOURCE = "not_matched_by_source"
