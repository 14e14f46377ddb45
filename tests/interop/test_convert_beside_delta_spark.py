"""Converted folders beside delta-spark: it reads the rows of the files, and goes on writing.

Skipped where delta-spark's jars are not there.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.jobs import committed, run
from tests.interop.reference.plain import plain_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow("delta-spark in a JVM of its own")]

ROWS = {
    "day=2024-01-01/shop=a%2Fb é/1.parquet": pa.table({"id": [1, 2], "name": ["a", None]}),
    "day=2024-01-02/shop=__HIVE_DEFAULT_PARTITION__/2 3.parquet": pa.table({"id": [3], "extra": [1.5]}),
    "day=2024-01-03/shop=x/none.parquet": pa.table({"id": pa.array([], pa.int64())}),
}


@pytest.mark.long("delta-spark runs beside it")
def test_delta_spark_reads_a_converted_folder_and_writes_to_it(delta: DeltaSpark, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for name, rows in ROWS.items():
        (folder / name).parent.mkdir(parents=True)
        pq.write_table(rows, folder / name)
    committed(run(None, "convert", folder, partition_schema="day DATE, shop STRING"))
    assert delta.read(folder)["rows"] == plain_rows(Table.open(folder).to_arrow())
    name = f"delta.`{folder}`"
    shops = delta.sql(f"SELECT id, shop FROM {name} WHERE day <= DATE'2024-01-02' ORDER BY id")
    assert [row["shop"] for row in shops] == ["a/b é", "a/b é", None]
    delta.run(f"DELETE FROM {name} WHERE id = 2", f"OPTIMIZE {name}")
    assert sorted(Table.open(folder).to_arrow(columns=["id"]).column("id").to_pylist()) == [1, 3]
