"""A dot in a Parquet path leads to a member, or belongs to a name: what is asked of a path holds for both."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet.reading import open_data_file, read_batches
from airflow_txlog.datafiles.parquet.statistics import file_statistics
from airflow_txlog.datafiles.tasks.zorder import values_at
from airflow_txlog.errors import UnsupportedFeature
from tests.helpers.files import data_file


def test_a8_a_legacy_timestamp_is_refused_in_a_column_whose_name_holds_a_dot(tmp_path: Path) -> None:
    old = pa.array([dt.datetime(1500, 1, 1)], pa.timestamp("us"))
    footer = {b"org.apache.spark.version": b"3.5.0", b"org.apache.spark.legacyINT96": b""}
    rows = pa.table({"ts.at": old}).replace_schema_metadata(footer)
    location = str(tmp_path / "f.parquet")
    pq.write_table(rows, location, use_deprecated_int96_timestamps=True)
    file = data_file(location)
    with open_data_file(file) as parquet, pytest.raises(UnsupportedFeature, match=r"ts\.at"):
        list(read_batches(file, parquet))


@pytest.mark.parametrize("name", [".a", ".", "..", "../a", "[0]", "a.b"])
def test_a_member_whose_name_looks_like_a_path_is_read_as_that_member(name: str) -> None:
    rows = pa.table({"s": [{"a": 1, name: 7}, None]})
    statistics = json.loads(file_statistics(rows))
    assert statistics["minValues"] == {"s": {"a": 1, name: 7}}
    assert statistics["nullCount"] == {"s": {"a": 1, name: 1}}
    assert values_at(rows, ("s", name)).to_pylist() == [7, None]
