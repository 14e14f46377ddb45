"""What the records of writing tasks hold, whatever text an error has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.tasks.scan_and_write import RECORD_SCHEMA, error_record
from airflow_txlog.errors import CorruptDataFile
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.stage import staged_of
from airflow_txlog.storage.memory import MemoryStore


@pytest.mark.parametrize("name", ["part \udcff.parquet", float("nan")], ids=["half a character", "NaN"])
def test_an_error_arrives_whose_record_only_python_reads(
    name: object, memory_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = object.__new__(JobContext)
    monkeypatch.setattr(JobContext, "store", MemoryStore(memory_uri), raising=False)
    error = CorruptDataFile("It is no Parquet file.", path=name)
    records = pa.Table.from_batches([error_record(error)], RECORD_SCHEMA)
    with pytest.raises(CorruptDataFile, match="It is no Parquet file"):
        staged_of(context, records)
