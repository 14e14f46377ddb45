"""How often a job without Spark asks an S3 server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from tests.helpers import s3
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.rows import append
from tests.helpers.specs import job_spec

ROWS = pa.table({"id": range(1000)})


@pytest.mark.parametrize(
    ("vectors", "requests"),
    [({}, {"GET data": 3, "PUT data": 3}), ({"delta.enableDeletionVectors": "true"}, {"GET data": 3, "PUT vector": 1})],
    ids=["copied", "vectors"],
)
def test_a_small_file_in_which_a_job_finds_rows_is_fetched_once(
    vectors: dict[str, str], requests: dict[str, int]
) -> None:
    uri = s3.new_folder()
    table = Table.create(uri, ROWS.schema, storage_options=s3.options(), properties=vectors)
    for _ in range(3):
        append(table, ROWS)
    with FaultProxy(s3.options()["endpoint_url"]) as proxy:
        options = {**s3.plain_options(), "endpoint_url": proxy.endpoint}
        arguments = {"predicate": "id < 500"}
        result = run_job(
            job_spec(operation="delete", table_uri=uri, arguments=arguments, storage_options=options), None
        )
        assert result.status == "committed", result.error
        seen = proxy.take()
    assert {kind: seen[kind] for kind in ("GET data", "PUT data", "PUT vector") if seen[kind]} == requests
    assert Table.open(uri, s3.options()).to_arrow().num_rows == 1500


@pytest.mark.long("some commits on a server; that the source is listed once is tested without one")
def test_an_increment_that_finds_nothing_lists_its_source_once_and_reads_nothing_of_it() -> None:
    source, target = s3.new_folder(), s3.new_folder()
    table = Table.create(source, ROWS.schema, storage_options=s3.options())
    with FaultProxy(s3.options()["endpoint_url"]) as proxy:
        options = {**s3.plain_options(), "endpoint_url": proxy.endpoint}
        arguments = {"source": {"table": source}, "consumer": "c"}
        spec = job_spec(operation="incremental", table_uri=target, arguments=arguments, storage_options=options)
        for _ in range(3):
            append(table, ROWS)
            assert run_job(spec, None).status == "committed"
        proxy.take()
        assert run_job(spec, None).status == "nothing_to_do"
        seen = proxy.take()
    # One listing is of the source, and one of the target, whose log a new process reads as always.
    assert {kind: number for kind, number in seen.items() if number} == {"LIST": 2, "GET hint": 1, "GET commit": 3}


def requests_of_upsert(uri: str, source: str) -> dict[str, int]:
    """Merge the source into the table by `id`. Return the number of requests, by kind."""
    with FaultProxy(s3.options()["endpoint_url"]) as proxy:
        options = {**s3.plain_options(), "endpoint_url": proxy.endpoint}
        arguments = {"source": {"table": source}, "keys": ["id"]}
        result = run_job(
            job_spec(operation="upsert", table_uri=uri, arguments=arguments, storage_options=options), None
        )
        assert result.status == "committed", result.error
        return proxy.take()


def test_a_merge_reads_nothing_of_the_rows_that_it_has_written_down() -> None:
    uri, source = s3.new_folder(), s3.new_folder()
    append(Table.create(uri, ROWS.schema, storage_options=s3.options()), ROWS)
    append(Table.create(source, ROWS.schema, storage_options=s3.options()), ROWS)
    seen = requests_of_upsert(uri, source)
    assert {kind: number for kind, number in seen.items() if kind.endswith("kept")} == {"PUT kept": 1, "DELETE kept": 1}
    assert s3.keys_under(f"{uri}/txlog-inputs-") == []


def test_files_that_a_merge_has_put_together_are_deleted_by_one_request() -> None:
    uri, source = s3.new_folder(), s3.new_folder()
    table = Table.create(uri, ROWS.schema, storage_options=s3.options())
    for number in range(16):
        append(table, pa.table({"id": range(100 * number, 100 * number + 100)}))
    append(Table.create(source, ROWS.schema, storage_options=s3.options()), ROWS.take(list(range(0, 1000, 50))))
    seen = requests_of_upsert(uri, source)
    assert seen["PUT data"] > 2
    assert (seen["POST delete"], seen["DELETE data"]) == (1, 0)
    live = Table.open(uri, s3.options()).snapshot().files().column("path").to_pylist()
    assert set(live) <= {path for path in s3.keys_under(uri) if path.endswith(".parquet")}
    assert sorted(Table.open(uri, s3.options()).to_arrow()["id"].to_pylist()) == list(range(1600))


def test_a_job_that_keeps_no_inputs_lists_no_folder_of_them(tmp_path: Path) -> None:
    uri = s3.new_folder()
    append(Table.create(uri, ROWS.schema, storage_options=s3.options()), ROWS)
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    with FaultProxy(s3.options()["endpoint_url"]) as proxy:
        options = {**s3.plain_options(), "endpoint_url": proxy.endpoint}
        arguments = {"source": {"format": "parquet", "path": str(tmp_path)}}
        result = run_job(job_spec(operation="write", table_uri=uri, arguments=arguments, storage_options=options), None)
        assert result.status == "committed", result.error
        # Of the log. The answer to a put has shown the clock of the server.
        assert proxy.take()["LIST"] == 1


@pytest.mark.long("writes and copies nine megabytes on a server")
def test_a_file_of_many_bytes_that_a_job_copies_is_read_with_one_request() -> None:
    uri = s3.new_folder()
    rows = pa.table({"id": range(1_200_000), "v": np.random.default_rng(1).integers(0, 2**62, 1_200_000)})
    append(Table.create(uri, rows.schema, storage_options=s3.options()), rows)
    with FaultProxy(s3.options()["endpoint_url"]) as proxy:
        options = {**s3.plain_options(), "endpoint_url": proxy.endpoint}
        spec = job_spec(
            operation="delete", table_uri=uri, arguments={"predicate": "v % 7 = 1"}, storage_options=options
        )
        result = run_job(spec, None)
        assert result.status == "committed", result.error
        # The end and one column to find rows, and the file to copy it.
        assert proxy.take()["GET data"] == 3
