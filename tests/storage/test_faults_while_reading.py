"""A fault of the store stays what it is wherever a file is read: damaged is a file by its bytes, and nothing else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import encode_bitmap
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.tasks.plans import Bins, planned_files
from airflow_txlog.datafiles.tasks.rows_without_log import LinesScan, OrcScan, ParquetScan
from airflow_txlog.datafiles.text_lines import TextFormat
from airflow_txlog.engine.commit.content.deletion_vectors import new_vector_file, write_vector_files
from airflow_txlog.engine.log.checkpoints.reading import read_checkpoint
from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.engine.log.vectors import read_vectors
from airflow_txlog.engine.upkeep import inventory
from airflow_txlog.storage import PLAIN, LocalStore, StoreReference
from tests.helpers.faults import FAULTS, FailingStore
from tests.helpers.files import plan_of_files
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


@pytest.mark.parametrize("kind", ["Parquet", "ORC", "CSV", "gz"])
def test_reading_a_source(tmp_path: Path, fault: Exception, reads: int | None, kind: str) -> None:
    """No table is damaged, nor the source: what failed is the store."""
    path = tmp_path / ("f.gz" if kind == "gz" else "f")
    rows = pa.table({"k": [1]})
    if kind == "Parquet":
        pq.write_table(rows, path)
    elif kind == "ORC":
        orc.write_table(rows, path)
    else:
        path.write_bytes(gzip.compress(b"1\n") if kind == "gz" else b"1\n")
    reads = reads and (0 if kind == "ORC" else 1)  # a small file is read at once
    bins = Bins(store=StoreReference(root="", access=PLAIN))
    table = plan_of_files({"path": path.name})
    (planned,) = planned_files(table, FailingStore(tmp_path, fault, reads))
    with raises(fault):
        if kind in ("Parquet", "ORC"):
            task = ParquetScan if kind == "Parquet" else OrcScan
            list(task(bins=bins, schema=rows.schema).rows_of(planned))
        else:
            list(LinesScan(bins=bins, text=TextFormat(), kind="CSV").rows_of(planned))


def test_reading_an_inventory(
    tmp_path: Path, fault: Exception, reads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "inventory.parquet"
    pq.write_table(pa.table({"path": ["a"]}), path)
    store = FailingStore(tmp_path, fault, reads)
    monkeypatch.setattr(inventory, "open_named_file", lambda path, access: store.open_input("inventory.parquet"))
    with raises(fault):
        inventory.read_inventory(str(path), f"file://{tmp_path}", PLAIN)
