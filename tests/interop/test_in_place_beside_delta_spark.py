"""Files of delta-spark and deltalake with columns changed in place: each engine reads the rows, and finds them.

Skipped where delta-spark's jars are not there.
"""

from __future__ import annotations

from typing import Any

import deltalake
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage.limits import Limits
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.depth import by_hand
from tests.helpers.jobs import committed
from tests.helpers.specs import job_spec
from tests.interop.reference.plain import plain_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow("delta-spark in a JVM of its own")]

# One file: several tiny ones would be joined, which rewrites them.
ROWS = """SELECT id, CAST(id % 7 AS SMALLINT) AS small, concat('text ', id % 50) AS text, id / 3.0D AS number,
  CAST(id AS DECIMAL(12, 2)) AS price, DATE'2020-01-01' + CAST(id AS INT) AS day, id % 2 = 0 AS flag,
  timestamp_micros(id * 1000003) AS at, array(id, NULL) AS list, map('k', id) AS map,
  struct(id AS a, IF(id % 3 = 0, NULL, 'b') AS b) AS pair, CAST(string(id) AS BINARY) AS bytes
  FROM range(0, 3000, 1, 1)"""
ASSIGNED = [
    {"text": "upper(text)"},
    {"number": "number + 1.5D", "flag": "NOT flag"},
    {"price": "price * 2", "day": "day"},
    # The first column: Java's readers find a row group by its place.
    {"id": "id + 0"},
]


def updated(uri: str, assigned: dict[str, str], predicate: str) -> dict[str, Any]:
    spec = job_spec(operation="update", table_uri=uri, arguments={"predicate": predicate, "set": assigned})
    return dict(committed(run_job(spec, None, limits=Limits(changed_in_place_bytes=0))).files)


@pytest.mark.long("delta-spark runs beside it")
@pytest.mark.parametrize("mapping", ["none", pytest.param("name", marks=by_hand("mapped columns"))])
def test_delta_spark_reads_what_we_changed_and_changes_it_again(uri: str, delta: DeltaSpark, mapping: str) -> None:
    delta.run(
        f"CREATE TABLE delta.`{uri}` USING delta TBLPROPERTIES ('delta.columnMapping.mode' = '{mapping}') AS {ROWS}"
    )
    names = [each.name for each in Table.open(uri).to_arrow().schema]
    for turn, assigned in enumerate(ASSIGNED):
        condition = f"id % {turn + 2} = 1"
        assert updated(uri, assigned, condition)["rewritten"] == 1
        new = [f"IF({condition}, {assigned[name]}, {name}) AS {name}" if name in assigned else name for name in names]
        expected = delta.sql(f"SELECT {', '.join(new)} FROM delta.`{uri}` VERSION AS OF {turn} ORDER BY id")
        found = delta.sql(f"SELECT * FROM delta.`{uri}` ORDER BY id")
        assert found == expected == plain_rows(Table.open(uri).to_arrow().sort_by("id"))
    chosen = ("text = 'TEXT 49'", "number > 900", "price = 4", "pair.b IS NULL", "id = 2999")
    skipping = [f"SELECT {n} AS q, count(*) AS n FROM delta.`{uri}` WHERE {where}" for n, where in enumerate(chosen)]
    (scanned,) = delta.sql(
        f"SELECT {', '.join(f'count_if({where}) AS q{n}' for n, where in enumerate(chosen))} FROM delta.`{uri}`"
    )
    assert {f"q{row['q']}": row["n"] for row in delta.sql(" UNION ALL ".join(skipping))} == scanned
    delta.run(f"UPDATE delta.`{uri}` SET text = 'theirs' WHERE id < 10", f"OPTIMIZE delta.`{uri}`")
    assert Table.open(uri).to_arrow().num_rows == 3000


@pytest.mark.long("delta-spark makes the rows")
def test_deltalake_reads_what_we_changed_in_its_files(uri: str, delta: DeltaSpark) -> None:
    delta.run(f"CREATE TABLE delta.`{uri}-1` USING delta AS {ROWS}")
    rows = Table.open(f"{uri}-1").to_arrow().drop_columns(["map"])
    deltalake.write_deltalake(uri, rows)
    for assigned in ASSIGNED:
        assert updated(uri, assigned, "id % 3 = 1")["rewritten"] == 1
        theirs = deltalake.DeltaTable(uri).to_pyarrow_table().sort_by("id")
        assert plain_rows(theirs) == plain_rows(Table.open(uri).to_arrow().sort_by("id"))
