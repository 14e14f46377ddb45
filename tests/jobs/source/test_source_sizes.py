"""What a job says of the sizes of its source's views, for lineage: without a read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_txlog.engine import Table
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append, make_table

pytestmark = pytest.mark.spark


def test_the_views_of_a_query_have_the_sizes_of_what_they_read(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(10), pa.int64())})
    orders = make_table(tmp_path / "orders", rows)
    append(orders, [{"id": 10}])
    committed(run(spark, "delete", orders, predicate="id % 5 = 0"))
    pq.write_table(rows, tmp_path / "lines.parquet")
    (tmp_path / "csv").mkdir()
    for number in range(2):
        pyarrow.csv.write_csv(rows, tmp_path / "csv" / f"{number}.csv")
    target = Table.create(str(tmp_path / "t"), rows.schema)
    views: dict[str, Any] = {
        "orders": {"table": orders.uri},
        "old": {"table": orders.uri, "version": 1},
        "lines": {"format": "parquet", "path": str(tmp_path / "lines.parquet")},
        "texts": {"format": "csv", "path": f"{tmp_path}/csv/*.csv", "schema": "id BIGINT"},
    }
    sql = "SELECT orders.id FROM orders, old, lines, texts LIMIT 1"
    result = committed(run(spark, "write", target, source={"sql": sql, "views": views}, unrestricted=("query",)))
    assert result.details.lineage is not None
    sizes = result.details.lineage.sizes
    live = orders.snapshot().files()
    assert sizes["orders"] == {"rows": 8, "bytes": sum(live["size"].to_pylist()), "files": live.num_rows}
    assert sizes["old"]["rows"] == 10
    assert sizes["lines"] == {"bytes": (tmp_path / "lines.parquet").stat().st_size, "files": 1}
    assert sizes["texts"] == {"bytes": 2 * (tmp_path / "csv" / "0.csv").stat().st_size, "files": 2}
