"""How often a job without Spark asks an S3 server."""

from __future__ import annotations

import pyarrow as pa
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
