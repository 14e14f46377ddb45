"""Alone in showing that a file's digest is that of what its writer gave, and that any other file fails it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet.output import DigestingOutput, has_digest
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.storage import LocalStore
from tests.helpers.files import place_of, store_of

ROWS = pa.record_batch({"id": pa.array(range(1000), pa.int64())})


@pytest.mark.parametrize("with_digests", [True, False])
def test_a_staged_file_comes_with_the_digest_of_its_bytes_where_its_layout_asks_for_it(
    tmp_path: Path, with_digests: bool
) -> None:
    layout = Layout(
        store=store_of(tmp_path), schema=ROWS.schema, partition_columns=(), job_id="j", with_digests=with_digests
    )
    writer = PartitionedWriter(layout)
    writer.write(ROWS)
    (staged,) = writer.finish()
    data = place_of(layout, staged).read_bytes()
    assert staged.digest == (hashlib.sha256(data).hexdigest() if with_digests else None)
    assert (staged.size_bytes, pq.read_table(place_of(layout, staged)).num_rows) == (len(data), 1000)


def test_the_digest_is_of_what_was_written_and_not_of_what_lies_there_afterwards(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    with store.open_new("f") as new:
        output = DigestingOutput(new.sink)
        output.write(b"ours")
    (tmp_path / "f").write_bytes(b"hers")
    assert output.digest() == hashlib.sha256(b"ours").hexdigest()
    assert not has_digest(store, "f", 4, output.digest())


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 10_000])
def test_exactly_the_bytes_have_the_digest(tmp_path: Path, data: bytes) -> None:
    store, file = LocalStore(str(tmp_path)), tmp_path / "f"
    file.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    assert has_digest(store, "f", len(data), digest, 999)
    assert not has_digest(store, "f", len(data) + 1, digest)
    assert not has_digest(store, "f", len(data), "")
    assert not has_digest(store, "gone", len(data), digest)
    file.write_bytes(data[:-1] + b"y")
    assert not has_digest(store, "f", len(data), digest, 999)
    file.write_bytes(data + b"x")
    assert not has_digest(store, "f", len(data), digest, 999)
