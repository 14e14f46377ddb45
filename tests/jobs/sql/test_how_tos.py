"""What docs/how-to.md says of time zones, and of a parameter that may be null, in one query."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from airflow_txlog.engine import Table
from tests.helpers.jobs import committed, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TEN = dt.datetime(2024, 3, 31, 10)
PARAMETERS = {
    "text": "2024-03-31 10:00",
    "offset": "2024-03-31T10:00:00+02:00",
    # How Airflow renders `data_interval_start`.
    "rendered": "2024-03-31 08:00:00+00:00",
    "zoned": TEN.replace(tzinfo=ZoneInfo("Europe/Berlin")),
    "wall": TEN,
    "until": None,
}
QUERY = """
SELECT at = '2024-03-31 10:00' AS literal, at = :text AS text, at = :offset AS offset, at = :rendered AS rendered,
  at = :zoned AS zoned, at = :wall AS wall, typeof(:zoned) AS zoned_type, typeof(:wall) AS wall_type,
  (:until IS NULL OR at < :until) AS not_bounded
FROM VALUES (TIMESTAMP'2024-03-31 08:00:00Z') AS rows(at)
"""


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_time_without_a_zone_is_of_the_jobs_zone_and_one_with_a_zone_the_same_in_each(
    tmp_path: Path, spark: SparkSession, zone: str
) -> None:
    committed(run(spark, "write", tmp_path / "t", source={"sql": QUERY}, parameters=PARAMETERS, time_zone=zone))
    (row,) = Table.open(str(tmp_path / "t")).to_arrow().to_pylist()
    in_berlin = zone == "Europe/Berlin"
    assert row == {
        "literal": in_berlin,
        "text": in_berlin,
        "offset": True,
        "rendered": True,
        "zoned": True,
        "wall": in_berlin,
        "zoned_type": "timestamp",
        "wall_type": "timestamp_ntz",
        "not_bounded": True,
    }
