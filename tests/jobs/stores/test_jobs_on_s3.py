"""Every operation as a job on a real S3 server leaves the rows that it leaves on a disk, and is done once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from tests.helpers import s3
from tests.helpers.depth import by_hand
from tests.helpers.jobs import SCHEMA, application, by_id, committed, error_of, insert, rows, run, update
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append, bag, stage
from tests.jobs.resume import test_never_start_over as never

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow("every operation on two tables, on a server and on a disk")]

VECTORS = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
counts = never.counts


def values(*rows: str) -> dict[str, Any]:
    """A source of literal rows."""
    return {"sql": f"SELECT * FROM VALUES {', '.join(rows)} AS rows(id, day, name, amount)"}


# One after the other on the same table: ids 0 to 19 in two files of one day each.
JOBS: list[tuple[str, dict[str, Any]]] = [
    ("write", {"source": values("(20L, DATE'2024-01-03', 'new', 1D)", "(21L, NULL, 'null', 2D)")}),
    ("delete", {"predicate": "pmod(id, 5) = 3"}),
    ("delete", {"predicate": None, "keys": {"column": "id", "values": ["1", "21"]}}),
    (
        "update",
        {"set": {"name": "concat(name, reverse('!'))", "amount": "amount + 1"}, "predicate": "id < 12"},
    ),
    (
        "merge",
        {
            "source": values("(2L, DATE'2024-01-09', 'merged', 3D)", "(30L, DATE'2024-01-09', 'inserted', 4D)"),
            "on": "t.id = s.id",
            "clauses": [update(), insert()],
        },
    ),
    ("upsert", {"source": values("(30L, NULL, 'again', 5D)", "(31L, NULL, 'upserted', 6D)"), "keys": ["id"]}),
    ("optimize", {}),
    (
        "write",
        {"mode": "overwrite", "replace_where": "id >= 30", "source": values("(40L, NULL, 'replaced', 7D)")},
    ),
    ("checkpoint", {}),
    ("write", {"mode": "overwrite", "source": values("(50L, DATE'2024-01-01', 'alone', 8D)")}),
    ("restore", {"version": 4}),
    ("vacuum", {"retention_hours": 0, "check_retention": False}),
    ("truncate", {}),
]
WITHOUT_IDENTITY = ("optimize", "checkpoint", "vacuum")


def rows_by_deltalake(uri: str) -> pa.Table:
    """All rows as delta-rs reads them from the server; with keys, or it asks the machine's metadata address."""
    given = s3.options()
    options = {
        "AWS_ENDPOINT_URL": given["endpoint_url"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": given["region"],
        "AWS_ACCESS_KEY_ID": given["key"],
        "AWS_SECRET_ACCESS_KEY": given["secret"],
    }
    table = DeltaTable(uri, storage_options=options)
    return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def made(uri: str, properties: dict[str, str]) -> Table:
    """Two files of ten rows."""
    options = s3.options() if uri.startswith("s3:") else {}
    table = Table.create(uri, SCHEMA, ["day"], properties, storage_options=options)
    append(table, rows(10))
    append(table, rows(10, start=10, day=None))
    return table


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, id="plain", marks=[pytest.mark.long("thirteen jobs"), by_hand("the jobs of the other case")]),
        pytest.param(VECTORS, id="vectors and change feed", marks=pytest.mark.long("the thirteen jobs once more")),
    ],
)
def test_each_job_leaves_on_s3_what_it_leaves_on_a_disk_and_is_done_once(
    properties: dict[str, str], tmp_path: Path, spark: SparkSession
) -> None:
    remote, local = made(s3.new_folder(), properties), made(str(tmp_path / "t"), properties)
    for operation, arguments in JOBS:
        identity = None if operation in WITHOUT_IDENTITY else application()
        there: dict[str, Any] = {"application": identity, "storage_options": s3.plain_options(), **arguments}
        result = run(spark, operation, remote, **there)
        expected = run(spark, operation, local, application=identity, **arguments)
        assert (result.error, expected.error) == (None, None), operation
        assert (result.status, result.version) == (expected.status, expected.version), operation
        left = bag(local)
        assert bag(remote) == left, operation
        if not any(remote.snapshot().files(columns=["deletion_vector"])["deletion_vector"].to_pylist()):
            assert bag(rows_by_deltalake(remote.uri).cast(SCHEMA)) == left, operation
        if identity is not None:
            again = run(spark, operation, remote, **there)
            assert (again.status, again.version) == ("already_done", result.version), operation
    assert remote.latest_version() == local.latest_version()


@pytest.mark.long("on S3 what test_expectations shows on a disk")
def test_rows_are_checked_and_sent_to_quarantine_on_s3(tmp_path: Path) -> None:
    table, place = made(s3.new_folder(), {"delta.enableDeletionVectors": "true"}), f"{s3.new_folder()}/bad"
    pq.write_table(rows(10, start=15, day=None), tmp_path / "rows.parquet")
    there: dict[str, Any] = {
        "application": application(),
        "storage_options": s3.plain_options(),
        "source": {"format": "parquet", "path": str(tmp_path / "rows.parquet")},
        "keys": ["id"],
        "expect_or_quarantine": {"few": "id < 22"},
        "quarantine_uri": place,
        "unique": ["id"],
    }
    before = sorted(info.path for info in table.store.walk())
    tried = run(None, "upsert", table, **there | {"application": None, "dry_run": True, "unique": None})
    assert sum(each["rows_added"] for each in tried.details.partitions) == 7
    failed = run(None, "upsert", table, max_updated_rows=4, **there)
    assert error_of(failed)["type"] == "ExpectationFailed"
    assert sorted(info.path for info in table.store.walk()) == before
    with killed_before_commit(2):
        run(None, "upsert", table, **there)
    result = committed(run(None, "upsert", table, **there))
    assert result.metrics["expectation.few.failed"] == 3
    left = Table.open(place, storage_options=s3.options())
    assert (left.latest_version(), sorted(left.to_arrow().column("id").to_pylist())) == (0, [22, 23, 24])


@pytest.mark.long("on S3 what test_never_start_over shows on a disk")
def test_a_merge_that_loses_a_race_on_s3_looks_at_what_the_winner_brought_alone(
    spark: SparkSession, counts: never.Counts
) -> None:
    table = Table.create(s3.new_folder(), SCHEMA, storage_options=s3.options())
    tx = table.begin()
    for number in range(4):
        tx.add(stage(table, never.file_rows(number * never.ROWS)))
    tx.commit("WRITE")
    winner = never.Winner(table)
    before: dict[int, str] = {}

    def land(_: Any) -> None:
        winner.land()
        before.update(by_id(table))
        counts.next_attempt()

    with before_commit(land):
        result = committed(run_job(never.spec("merge", table, storage_options=s3.plain_options()), spark))
    assert result.attempts == 2
    assert [len(looked) for looked in counts.looked] == [4, 2]
    assert set(counts.looked[1]).isdisjoint(counts.looked[0])
    assert by_id(table) == never.after("merge", before)


@pytest.mark.long("a server of S3 and many requests")
def test_a_table_is_clustered_on_s3(tmp_path: Path) -> None:
    folder = s3.new_folder()
    properties = {"delta.enableDeletionVectors": "true", "delta.targetFileSize": "10kb"}
    table = Table.create(folder, SCHEMA, (), properties, cluster_by=["id", "day"], storage_options=s3.options())
    for start in range(0, 3000, 1000):
        append(table, rows(1000, start=start))
    before, there = bag(table), {"storage_options": s3.plain_options()}
    committed(run(None, "optimize", table, **there))
    files = table.snapshot().files()
    assert files.num_rows > 1
    assert set(files.column("clustering_provider").to_pylist()) == {"liquid"}
    assert bag(table) == before
    assert run(None, "optimize", table, **there).status == "nothing_to_do"
    committed(run(None, "delete", table, predicate="id = 7", **there))
    assert run(None, "upkeep", table, vacuum=None, **there).details.upkeep == []
    assert rows_by_deltalake(folder).num_rows == 2999
