"""Partition columns inside data files, beside delta-spark: both writers put them there, and each reads the other's.

Skipped where delta-spark's jars are not there.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.jobs import committed, live_files, run

pytestmark = [pytest.mark.spark, pytest.mark.slow("delta-spark in a JVM of its own")]


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_both_write_the_partition_columns_into_files_of_one_table(delta: DeltaSpark, tmp_path: Path) -> None:
    uri, name = str(tmp_path / "t"), f"delta.`{tmp_path / 't'}`"
    delta.run(
        f"CREATE TABLE {name} (p STRING, id BIGINT) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.feature.materializePartitionColumns' = 'supported')",
        f"INSERT INTO {name} VALUES ('a', 1), ('a', 2), ('', 3)",
    )
    pq.write_table(pa.table({"p": ["a", "", None], "id": [4, 5, 6]}), tmp_path / "in.parquet")
    committed(run(None, "write", uri, source={"format": "parquet", "path": str(tmp_path / "in.parquet")}))
    committed(run(None, "update", uri, predicate="id = 1", set={"id": "id + 10"}))
    delta.run(f"UPDATE {name} SET id = 14 WHERE id = 4", f"INSERT INTO {name} VALUES ('b', 7)")
    found = {row["id"]: row["p"] for row in delta.sql(f"SELECT * FROM {name}")}
    assert found == {11: "a", 2: "a", 3: None, 14: "a", 5: None, 6: None, 7: "b"}
    table = Table.open(uri)
    assert {row["id"]: row["p"] for row in table.to_arrow().to_pylist()} == found
    for path in live_files(table):
        data = pq.ParquetFile(tmp_path / "t" / path).read()
        assert data.column_names == ["id", "p"]
        # delta-spark leaves an empty text in the file, which is null for readers of the table.
        assert {row["p"] or None for row in data.to_pylist()} == {found[row["id"]] for row in data.to_pylist()}
