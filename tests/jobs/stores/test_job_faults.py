"""Jobs that need Spark, with each harm done to each kind of request that they make, on a real S3 server.

The driver's requests and those of Spark's workers go through one proxy. What must come of it:
`tests.helpers.job_faults`.
No text here may be one that needs no Spark: those jobs are in `test_job_faults_without_spark`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import REPORTED
from tests.helpers import s3
from tests.helpers.depth import by_hand
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.job_faults import BEFORE, LATE_S, VECTORS, Harness, Job
from tests.helpers.jobs import insert, update

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long("every kind of request of five jobs, nine faults")]

SOURCE = {"sql": "SELECT id, DATE'2024-01-01' AS day, 'm' AS name, 0D AS amount FROM range(6, 10)"}
MERGED = {**BEFORE, 6: "m", 7: "m", 8: "m", 9: "m"}
SOME = "pmod(id, 4) = 1"
JOBS = {
    "replace where": Job(
        "write",
        {"source": {"sql": "SELECT 9L AS id, 'w' AS name"}, "mode": "overwrite", "replace_where": "id >= 4"},
        {0: "n0", 1: "n1", 2: "n2", 3: "n3", 9: "w"},
    ),
    "delete": Job("delete", {"predicate": SOME}, {n: name for n, name in BEFORE.items() if n % 4 != 1}),
    "update with vectors": Job(
        "update",
        {"set": {"name": "reverse('U')"}, "predicate": SOME},
        {**BEFORE, 1: "U", 5: "U"},
        properties=VECTORS,
    ),
    "merge": Job(
        "merge",
        {
            "source": SOURCE,
            "on": "t.id = s.id",
            "clauses": [update({"name": "s.name"}), insert({"id": "s.id", "name": "s.name"})],
        },
        MERGED,
    ),
    "upsert": Job("upsert", {"source": SOURCE, "keys": ["id"]}, MERGED, properties=VECTORS),
}

LIKE_OTHERS = ("replace where", "upsert", "update with vectors", "delete")


@pytest.fixture(scope="module")
def harness(spark: SparkSession) -> Iterator[Harness]:
    with FaultProxy(s3.options()["endpoint_url"], late_s=LATE_S) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment().items():
            patch.setenv(name, value)
        yield Harness(JOBS, proxy, spark)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=by_hand("it makes the requests of the others") if name in LIKE_OTHERS else ())
        for name in JOBS
    ],
)
def test_no_fault_of_the_store_hurts_the_table_of_a_job(
    name: str, harness: Harness, record_property: Callable[[str, object], None]
) -> None:
    harness.check(name, lambda line: record_property(REPORTED, line))
