"""Parameters before the Gregorian calendar: `java.sql`, through which PySpark binds them, would move them by days."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.jobs.tables import committed, ids, make_table, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("day", pa.date32())])
MOMENTS = [dt.datetime(year, 1, 1, microsecond=1, tzinfo=dt.UTC) for year in (1, 1500, 1900, 9999)]


@pytest.mark.parametrize(
    ("predicate", "left"),
    [("ts = :ts", [0, 2, 3]), ("day = :day", [1, 2, 3]), ("ts <= :ts OR day <= :day", [2, 3]), ("ts > :ts", [0, 1])],
)
def test_a8_an_old_parameter_means_its_own_day(
    tmp_path: Path, spark: SparkSession, predicate: str, left: list[int]
) -> None:
    rows = pa.table([range(4), MOMENTS, [moment.date() for moment in MOMENTS]], schema=SCHEMA)
    table = make_table(tmp_path / "t", rows)
    parameters = {"ts": MOMENTS[1], "day": dt.date(1, 1, 1)}
    used = {name: value for name, value in parameters.items() if f":{name}" in predicate}
    committed(run(spark, "delete", table, predicate=predicate, parameters=used))
    assert ids(table) == left
