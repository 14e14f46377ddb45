"""A fault of the store stays what it is wherever a file is read: damaged is a file by its bytes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.bitmaps import encode_bitmap
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.engine.log.checkpoints import read_checkpoint
from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.engine.log.vector_files import new_vector_file, write_vector_files
from airflow_txlog.engine.log.vectors import read_vectors
from airflow_txlog.engine.upkeep import inventory
from airflow_txlog.storage import PLAIN, LocalStore
from tests.helpers.faults import FAULTS, FailingStore
from tests.helpers.jobs import rows
from tests.helpers.rows import make_table

pytestmark = [
    pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS),
    pytest.mark.parametrize("reads", [None, 0, 1], ids=["as it is opened", "first read", "second read"]),
]


def raises(fault: Exception) -> pytest.RaisesExc[Exception]:
    """The fault itself, or one of its class with its text, as Arrow hands it on."""
    return pytest.raises(type(fault), check=lambda error: str(error) == str(fault))


def test_reading_a_data_file(tmp_path: Path, fault: Exception, reads: int | None) -> None:
    pq.write_table(pa.table({"k": [1]}), tmp_path / "f.parquet")
    file = DataFile(store=FailingStore(tmp_path, fault, reads), path="f.parquet")
    with raises(fault), open_data_file(file):
        pass


def test_reading_deletion_vectors(tmp_path: Path, fault: Exception, reads: int | None) -> None:
    file = new_vector_file([RowPositions(encode_bitmap(pa.array([1], pa.int64())), "ours")])
    write_vector_files(LocalStore(str(tmp_path)), [file])
    (vector,) = file.vectors()
    reads = reads and 0  # a small file is read at once
    with raises(fault):
        read_vectors(FailingStore(tmp_path, fault, reads), [(vector, 10)])


def test_reading_a_checkpoint(tmp_path: Path, fault: Exception, reads: int | None) -> None:
    table = make_table(tmp_path, rows(2))
    table.checkpoint()
    segment = list_segment(table.store)
    assert segment.checkpoint is not None
    with raises(fault):
        read_checkpoint(FailingStore(tmp_path, fault, reads), segment.checkpoint)


def test_reading_an_inventory(
    tmp_path: Path, fault: Exception, reads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "inventory.parquet"
    pq.write_table(pa.table({"path": ["a"]}), path)
    store = FailingStore(tmp_path, fault, reads)
    monkeypatch.setattr(inventory, "open_named_file", lambda path, access: store.open_input("inventory.parquet"))
    with raises(fault):
        inventory.read_inventory(str(path), f"file://{tmp_path}", PLAIN)
