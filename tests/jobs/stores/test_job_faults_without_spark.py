"""Jobs that need no Spark, with each harm done to each kind of request that they make, on a real S3 server.

What must come of it: `tests.helpers.job_faults`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.conftest import REPORTED
from tests.helpers import s3
from tests.helpers.depth import by_hand
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.job_faults import BEFORE, LATE_S, NEXT_DAY, VECTORS, Harness, Job
from tests.helpers.jobs import SCHEMA, insert, rows, update
from tests.helpers.rows import append

pytestmark = pytest.mark.long("every kind of request of seventeen jobs, nine faults")

FIRST_DAY = {number: name for number, name in BEFORE.items() if number < 4}
SECOND_DAY = {number: name for number, name in BEFORE.items() if number >= 4}


def write(**arguments: Any) -> dict[str, Any]:
    return {"source": {"format": "parquet", "path": "(made by the fixture)"}, **arguments}


# The source's ids: for a write one that the table has not, for a merge one that it has, and one that it has not.
WRITTEN, MERGED = 9, 7


JOBS = {
    "append": Job("write", write(), {**BEFORE, 9: "n9"}),
    "create": Job("write", write(partition_by=["day"]), {9: "n9"}, version=0, makes_table=True),
    "overwrite": Job("write", write(mode="overwrite"), {9: "n9"}),
    "partitions": Job("write", write(mode="overwrite_partitions"), {**FIRST_DAY, 9: "n9"}, partition_by=("day",)),
    "delete a partition": Job("delete", {"predicate": "day = DATE'2024-01-01'"}, SECOND_DAY, partition_by=("day",)),
    "delete by keys with vectors": Job(
        "delete",
        {"predicate": None, "keys": {"column": "id", "values": [1, 5]}},
        {number: name for number, name in BEFORE.items() if number not in (1, 5)},
        properties=VECTORS,
    ),
    "merge": Job(
        "merge",
        write(on="t.id = s.id", clauses=[update({"name": "'m'", "amount": "s.amount"}), insert("*")]),
        {**BEFORE, 7: "m", 8: "n8"},
    ),
    "upsert with vectors": Job("upsert", write(keys=["id"]), {**BEFORE, 7: "n7", 8: "n8"}, properties=VECTORS),
    "optimize": Job("optimize", {}),
    "z-order": Job("optimize", {"zorder_by": ["id", "name"]}, version=None),
    "truncate": Job("truncate", {}, {}),
    "restore": Job("restore", {"version": 1}, FIRST_DAY),
    "alter": Job("alter", {"add_features": ["rowTracking"], "add_columns": {"note": "STRING"}, "cluster_by": ["id"]}),
    "alter and verify": Job("alter", {"add_constraints": {"positive": "id >= 0"}, "set_not_null": ["id"]}),
    "convert": Job(
        "convert",
        {"partition_schema": "day DATE"},
        FIRST_DAY,
        version=0,
        makes_table=True,
        converts_files=True,
    ),
    "clone": Job("clone", {"source": {"table": "(made by the fixture)"}}, version=0, makes_table=True),
    "checkpoint": Job("checkpoint", {}, version=2),
    "vacuum": Job("vacuum", {"retention_hours": 0, "check_retention": False}, version=None, removes=True),
}

LIKE_OTHERS = ("upsert with vectors",)


def put(source: pa.Table) -> str:
    """The path of a new file in a bucket that has these rows."""
    path, file = f"{s3.new_folder()}/a.parquet", io.BytesIO()
    pq.write_table(source, file)
    s3.client().put_object(Bucket=s3.BUCKET, Key=path.removeprefix(f"s3://{s3.BUCKET}/"), Body=file.getvalue())
    return path


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with FaultProxy(s3.options()["endpoint_url"], late_s=LATE_S) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment().items():
            patch.setenv(name, value)
        written, merged = put(rows(1, start=WRITTEN, day=NEXT_DAY)), put(rows(2, start=MERGED, day=NEXT_DAY))
        original = Table.create(s3.new_folder(), SCHEMA, storage_options=s3.options())
        append(original, rows(8))
        JOBS["clone"].arguments["source"] = {"table": original.uri}
        for job in JOBS.values():
            if "source" in job.arguments and job.operation != "clone":
                path = written if job.operation == "write" else merged
                job.arguments["source"] = {"format": "parquet", "path": path}
        yield Harness(JOBS, proxy, None)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=by_hand("it makes the requests of the others") if name in LIKE_OTHERS else ())
        for name in JOBS
    ],
)
def test_no_fault_of_the_store_hurts_the_table_of_a_job_without_spark(
    name: str, harness: Harness, record_property: Callable[[str, object], None]
) -> None:
    harness.check(name, lambda line: record_property(REPORTED, line))
