"""Alone in showing that a file that a job has encrypted is read with its key, and with no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.errors import CorruptDataFile, UnsupportedFeature
from tests.helpers.files import place_of, store_of

KEY = bytes(range(32))
ROWS = pa.record_batch({"id": pa.array(range(1000), pa.int64()), "who": ["canary"] * 1000})


def read(file: DataFile) -> pa.Table:
    with open_data_file(file) as parquet:
        return parquet.read()


def test_an_encrypted_file_is_read_with_its_key_alone(tmp_path: Path) -> None:
    layout = Layout(store=store_of(tmp_path), schema=ROWS.schema, partition_columns=(), job_id="j", key=KEY)
    writer = PartitionedWriter(layout)
    writer.write(ROWS)
    (staged,) = writer.finish()
    place = place_of(layout, staged)
    data = place.read_bytes()
    assert [text for text in (b"canary", b"who", KEY) if text in data] == []
    assert KEY.hex() not in f"{layout}"
    file = DataFile(store=layout.store.open(), path=staged.store_path, size_bytes=staged.size_bytes, key=KEY)
    assert read(file).to_batches()[0].equals(ROWS)
    with pytest.raises(UnsupportedFeature):
        read(replace(file, key=None))
    with pytest.raises(CorruptDataFile):
        read(replace(file, key=KEY[::-1]))
    wrapped = data.index(b'"wrappedKEK":"') if b'"wrappedKEK":"' in data else data.index(b'"wrappedDEK":"')
    place.write_bytes(data[: wrapped + 14] + b"zz" + data[wrapped + 16 :])
    with pytest.raises(CorruptDataFile):
        read(file)
    # Another writer's file in its place, which Arrow would read.
    pq.write_table(pa.table({"id": [1], "who": ["canary"]}), place)
    with pytest.raises(CorruptDataFile, match="not encrypted"):
        read(replace(file, size_bytes=None))
