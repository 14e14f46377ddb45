"""Alone in showing that every operation on any table leaves what plain Spark SQL leaves, or ends in the same refusal.

Hypothesis draws schemas of seventeen types with their worst values, nulls, duplicate keys, partitions, deletion vectors
and column mapping on and off, and two statements, each checked before the next one runs; deltalake reads the table too.
The examples are the same in every run. A failure prints its case; TXLOG_EQUALITY_EXAMPLE=number replays it alone,
TXLOG_EQUALITY_SHRINK=1 makes it smaller, TXLOG_EQUALITY_RANDOM=1 draws others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from airflow_txlog.engine import Table
from airflow_txlog.storage.limits import SMALL_JOB
from tests.helpers.depth import LONG, depth
from tests.helpers.jobs import run
from tests.helpers.readers import rows_by_delta_rs
from tests.helpers.rows import bag, make_table
from tests.jobs.equality.cases import Case, Statement, cases
from tests.jobs.equality.oracle import Oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("two random statements an example, each a Spark job and its oracle"),
    pytest.mark.seeded,
]

ONE = os.environ.get("TXLOG_EQUALITY_EXAMPLE")
PROPERTY = settings(
    # The first one is the simplest there is.
    max_examples=depth(1, 6, 10),
    derandomize="TXLOG_EQUALITY_RANDOM" not in os.environ,
    deadline=None,
    database=None,
    # Shrinking runs Spark hundreds of times more: ask for it.
    phases=(Phase.generate, Phase.shrink) if "TXLOG_EQUALITY_SHRINK" in os.environ else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
_numbers: Counter[str] = Counter()


@given(case=cases("delete"))
@PROPERTY
def test_a_delete_leaves_what_spark_sql_leaves(tmp_path_factory: Any, spark: SparkSession, case: Case) -> None:
    check(spark, tmp_path_factory, "delete", case)


@given(case=cases("merge"))
@PROPERTY
def test_a_merge_leaves_what_spark_sql_leaves(tmp_path_factory: Any, spark: SparkSession, case: Case) -> None:
    check(spark, tmp_path_factory, "merge", case)


@given(case=cases("optimize", 3))
@PROPERTY
def test_an_optimize_leaves_every_row(tmp_path_factory: Any, spark: SparkSession, case: Case) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for small_bytes in (1, SMALL_JOB.default):  # by Spark, and in this process
            patched.setenv(SMALL_JOB.setting, str(small_bytes))
            check(spark, tmp_path_factory, "optimize", case)


@given(case=cases("update"))
@PROPERTY
def test_an_update_leaves_what_spark_sql_leaves(tmp_path_factory: Any, spark: SparkSession, case: Case) -> None:
    check(spark, tmp_path_factory, "update", case)


@given(case=cases("write"))
@PROPERTY
def test_a_write_leaves_what_spark_sql_leaves(tmp_path_factory: Any, spark: SparkSession, case: Case) -> None:
    check(spark, tmp_path_factory, "write", case)


def check(spark: SparkSession, folders: Any, name: str, case: Case) -> None:
    """Run one example of this test; a failure says how to run it alone."""
    _numbers[name] += 1
    number = _numbers[name]
    if ONE and number != int(ONE):
        return
    try:
        check_case(spark, folders.getbasetemp() / f"{name}-{number}", case)
    except BaseException as error:
        replay = f"TXLOG_TEST_LONG={int(LONG)} TXLOG_EQUALITY_EXAMPLE={number} pytest {__file__} -k {name}_leaves"
        error.add_note(f"{replay}\n{case}")
        raise


def check_case(spark: SparkSession, folder: Path, case: Case) -> None:
    """Run the case's statements, here and in the oracle, and compare the rows after each."""
    files = [case.rows(rows) for rows in case.files]
    table = make_table(folder, *files, schema=case.schema, partition_by=case.partition_by, properties=case.properties)
    with session_zone(spark, case.time_zone):
        oracle = Oracle(spark, case)
        assert_same(table, oracle.rows, "as written")
        for number, statement in enumerate(case.statements):
            expected = oracle.run(statement)
            result = run(
                spark,
                statement.operation,
                table,
                time_zone=case.time_zone,
                **_arguments(case, statement, folder.with_name(f"{folder.name}-source-{number}.parquet")),
            )
            if isinstance(expected, str):
                assert result.status == "failed", f"{statement}: {result.status}, and must end in {expected}"
                assert result.error is not None
                assert result.error["type"] == expected, result.error
            else:
                assert result.status in ("committed", "nothing_to_do"), f"{statement}: {result.error}"
                if result.status == "committed" and "delta.enableChangeDataFeed" in case.properties:
                    assert_told(table, oracle.rows, expected, str(statement))
                oracle.rows = expected
            assert_same(table, oracle.rows, str(statement))


def assert_same(table: Table, expected: pa.Table, what: str) -> None:
    """The table's rows as we read them and as deltalake reads them, each the expected bag."""
    assert bag(table.to_arrow()) == bag(expected), what
    read = rows_by_delta_rs(table.uri.removeprefix("file://"))
    if read is not None:
        assert bag(read.select(expected.column_names).cast(expected.schema)) == bag(expected), f"deltalake: {what}"


def assert_told(table: Table, before: pa.Table, after: pa.Table, what: str) -> None:
    """The change feed of the newest version is the difference between the two bags, and nothing else."""
    changes = table.changes(table.snapshot().version)
    kinds = changes.column("_change_type").to_pylist()
    rows = changes.select(before.column_names)
    came, went = (
        bag(rows.filter(pa.array([kind in wanted for kind in kinds], pa.bool_())))
        for wanted in (("insert", "update_postimage"), ("delete", "update_preimage"))
    )
    # A row that an update leaves as it was has both images.
    assert came - went == bag(after) - bag(before), what
    assert went - came == bag(before) - bag(after), what
    assert kinds.count("update_preimage") == kinds.count("update_postimage"), what


def _arguments(case: Case, statement: Statement, path: Path) -> dict[str, Any]:
    if statement.source is None:
        return statement.arguments
    pq.write_table(case.rows(statement.source), path)
    return {**statement.arguments, "source": {"format": "parquet", "path": str(path)}}


@contextmanager
def session_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    """The zone that the oracle's texts are read in; the job has its own setting."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
