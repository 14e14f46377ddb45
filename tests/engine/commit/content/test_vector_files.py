"""Files of deletion vectors that we write: byte for byte what their descriptors say, and what another engine reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import encode_bitmap
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.engine.commit.content.deletion_vectors import (
    VectorFile,
    new_vector_file,
    pack_vectors,
    write_vector_files,
)
from airflow_txlog.engine.log.vectors import read_vectors, vector_file
from airflow_txlog.storage import LocalStore
from tests.helpers.vectors import bitmap, file_of


def masked(*positions: int) -> RowPositions:
    return RowPositions(encode_bitmap(pa.array(sorted(positions), pa.int64())), "ours")


class FailingStore(LocalStore):
    """Writes one file and no other."""

    def open_output(self, path: str) -> pa.NativeFile:
        if self.list(""):
            raise OSError("no more")
        return super().open_output(path)


@pytest.mark.parametrize("prefix_chars", [0, 2, 5])
def test_what_is_written_is_read_back_by_its_descriptors(tmp_path: Path, prefix_chars: int) -> None:
    store = LocalStore(str(tmp_path))
    many = [masked(1), masked(*range(100_000)), masked(*range(0, 300_000, 3))]
    file = new_vector_file(many, prefix_chars=prefix_chars)
    write_vector_files(store, [file])
    vectors = list(file.vectors())
    found = read_vectors(store, [(vector, 300_000) for vector in vectors])
    assert [each.positions().to_pylist() for each in found] == [each.positions().to_pylist() for each in many]
    path = vector_file("u", vectors[0].path_or_inline_dv, store.root)
    assert path == file.path
    assert (tmp_path / file.path).exists()
    folder, _, name = file.path.rpartition("/")
    assert (len(folder), name[:16], name[-4:]) == (prefix_chars, "deletion_vector_", ".bin")


def test_a_file_is_laid_out_as_the_protocol_says() -> None:
    many = [masked(3, 4), masked(70_000)]
    file = new_vector_file(many)
    content, offsets = file_of(bitmap([3, 4], "plain"), bitmap([70_000], "plain"))
    assert file.content == content
    assert [vector.offset for vector in file.vectors()] == offsets
    assert [vector.cardinality for vector in file.vectors()] == [2, 1]
    assert {vector.storage_type for vector in file.vectors()} == {"u"}


def test_no_two_files_have_one_name() -> None:
    files = [new_vector_file([masked(1)]) for _ in range(50)]
    assert len({file.path for file in files}) == 50
    assert len({vector.unique_id for file in files for vector in file.vectors()}) == 50


def test_vectors_share_files_up_to_their_size() -> None:
    small = [masked(number) for number in range(100)]
    assert [len(file) for file in pack_vectors(small)] == [100]
    assert pack_vectors([]) == []
    large = masked(*range(0, 600, 3))
    assert len(large.data) > 300 > 2 * len(small[0].data)
    assert [len(file) for file in pack_vectors([small[0], large, large, small[1]], 300)] == [2, 1, 1]


def test_an_error_leaves_no_file_behind(tmp_path: Path) -> None:
    store = FailingStore(str(tmp_path))
    with pytest.raises(OSError, match="no more"):
        write_vector_files(store, [new_vector_file([masked(number)]) for number in range(5)])
    assert list(tmp_path.rglob("*.bin")) == []


def test_a_known_path_gives_the_same_descriptors_again() -> None:
    many = [masked(1, 2), masked(5)]
    file = new_vector_file(many, prefix_chars=2)
    again = VectorFile.at(file.path, many)
    assert (again.path, list(again.vectors())) == (file.path, list(file.vectors()))
