"""Deletion vectors: where they are stored, how they are read, and every way in which one can be broken."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import DeletionVector, decode_commit
from airflow_txlog.engine.log.vectors import read_vectors, vector_file
from airflow_txlog.errors import CorruptDeletionVector, CorruptTable, TxlogError
from airflow_txlog.storage import Access, LocalStore
from tests.helpers.paths import GOLDEN
from tests.helpers.vectors import bitmap, decode_vector, file_of, inline, read_vector, stored, z85

ROOT = "file:///lake/t"
# The example of the protocol, "Deletion Vector Descriptor Schema".
EXAMPLE = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"


class CountingStore(LocalStore):
    """A local store that notes every file it opens, and how often it is read from."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.opened: list[str] = []
        self.ranges: list[tuple[int, int]] = []

    def open_input(self, path: str) -> Any:
        self.opened.append(path)
        ranges = self.ranges

        class Counted:
            def __init__(self, file: Any) -> None:
                self._file = file

            def __enter__(self) -> Counted:
                return self

            def __exit__(self, *_: object) -> None:
                self._file.close()

            def size(self) -> int:
                return int(self._file.size())

            def seek(self, *where: int) -> int:
                return int(self._file.seek(*where))

            def read(self, size: int) -> bytes:
                start = self._file.tell()
                data: bytes = self._file.read(size)
                ranges.append((start, start + len(data)))
                return data

        return Counted(super().open_input(path))


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("storage_type", "place", "expected"),
    [
        # The examples of the protocol, "Deletion Vector Descriptor Schema".
        ("u", "ab^-aqEH.-t@S}K{vb[*k^", "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"),
        ("u", "^-aqEH.-t@S}K{vb[*k^", "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"),
        ("p", "file:///lake/t/a%20b.bin", "a b.bin"),
        ("p", "s3://mytable/deletion_vector_x.bin", "s3://mytable/deletion_vector_x.bin"),
        ("i", EXAMPLE, None),
    ],
)
def test_a_vector_is_found_where_the_protocol_puts_it(storage_type: str, place: str, expected: str | None) -> None:
    assert vector_file(storage_type, place, ROOT) == expected


@pytest.mark.parametrize(
    ("storage_type", "place"),
    [
        ("x", "^-aqEH.-t@S}K{vb[*k^"),
        ("u", "short"),
        ("u", ""),
        ("p", ""),
        ("u", "^-aqEH.-t@S}K{vb[*k~"),
        ("u", "#" * 20),
    ],
)
def test_a_vector_that_lies_nobody_knows_where_is_an_error(storage_type: str, place: str) -> None:
    with pytest.raises(CorruptTable):
        vector_file(storage_type, place, ROOT)


@given(st.binary(min_size=16, max_size=16), st.text("abc/", max_size=3))
def test_every_uuid_names_its_file(data: bytes, prefix: str) -> None:
    expected = f"deletion_vector_{uuid.UUID(bytes=data)}.bin"
    assert vector_file("u", prefix + z85(data), ROOT) == (f"{prefix}/{expected}" if prefix else expected)


def test_every_vector_of_the_golden_table_is_on_disk() -> None:
    table = GOLDEN / "dv-partitioned-with-checkpoint"
    if not table.exists():
        pytest.skip(f"no golden table at {table}")
    found = set()
    for path in sorted((table / "_delta_log").glob("*.json")):
        for add in decode_commit(0, path.read_bytes(), path.name).adds:
            if add.deletion_vector is not None:
                place = vector_file(add.deletion_vector.storage_type, add.deletion_vector.path_or_inline_dv, ROOT)
                assert place is not None
                found.add(place)
    assert found
    assert found <= {path.name for path in table.glob("*.bin")}


# --- rows -------------------------------------------------------------------------------------------------------------


def test_the_inline_vector_of_the_protocol_masks_the_rows_it_says(tmp_path: Path) -> None:
    vector = DeletionVector(storage_type="i", path_or_inline_dv=EXAMPLE, size_in_bytes=40, cardinality=6)
    assert read_vector(LocalStore(str(tmp_path)), vector).to_pylist() == [3, 4, 7, 11, 18, 29]


@pytest.mark.parametrize("rows", [[], [0], [5, 6], list(range(70000)), list(range(0, 9000, 2))])
def test_an_inline_vector_of_any_length_is_cut_to_its_size(tmp_path: Path, rows: list[int]) -> None:
    for vector in (inline(rows), inline(rows, "runs")):
        assert read_vector(LocalStore(str(tmp_path)), vector, 70000).to_pylist() == rows


@pytest.mark.parametrize("prefix", ["", "ab", "a%20b"])
def test_vectors_that_share_a_file_are_told_apart_by_their_offset(tmp_path: Path, prefix: str) -> None:
    many = [[1, 2], list(range(100)), [7]]
    vectors = stored(tmp_path, many, prefix=prefix)
    found = read_vectors(LocalStore(str(tmp_path)), [(vector, 100) for vector in reversed(vectors)])
    assert [masked.positions().to_pylist() for masked in found] == list(reversed(many))


def test_a_vector_without_an_offset_is_the_first_of_its_file(tmp_path: Path) -> None:
    (vector,) = stored(tmp_path, [[4, 5]])
    assert read_vector(LocalStore(str(tmp_path)), replace(vector, offset=None)).to_pylist() == [4, 5]


@pytest.mark.parametrize("spelling", ["file://{folder}/a%20b.bin", "file:{folder}/a%20b.bin", "{folder}/a%20b.bin"])
@pytest.mark.parametrize("is_inside", [True, False])
def test_an_absolute_vector_is_read_inside_the_table_and_outside(
    tmp_path: Path, spelling: str, is_inside: bool
) -> None:
    root = tmp_path / "t"
    root.mkdir()
    folder = root if is_inside else tmp_path
    data, (offset,) = file_of(bitmap([9, 11]))
    (folder / "a b.bin").write_bytes(data)
    vector = DeletionVector(
        storage_type="p",
        path_or_inline_dv=spelling.format(folder=folder),
        offset=offset,
        size_in_bytes=len(bitmap([9, 11])),
        cardinality=2,
    )
    assert read_vector(LocalStore(str(root), Access(allow_absolute_paths=True)), vector).to_pylist() == [9, 11]


def test_a_file_of_many_vectors_is_opened_once_and_read_at_once(tmp_path: Path) -> None:
    vectors = stored(tmp_path, [[number, number + 50] for number in range(50)]) + stored(tmp_path, [[3]])
    store = CountingStore(tmp_path)
    found = read_vectors(store, [(vector, None) for vector in [*vectors, *vectors]])
    assert [masked.positions().to_pylist()[0] for masked in found[:51]] == [*range(50), 3]
    assert len(store.opened) == len(set(store.opened)) == 2
    assert len(store.ranges) == 2


def test_vectors_that_lie_far_apart_are_read_without_what_is_between(tmp_path: Path) -> None:
    vectors = stored(tmp_path, [[1], [2]])
    assert vectors[1].offset is not None
    (path,) = tmp_path.glob("*.bin")
    data, gap = path.read_bytes(), 3_000_000
    path.write_bytes(data[: vectors[1].offset] + bytes(gap) + data[vectors[1].offset :])
    vectors[1] = replace(vectors[1], offset=vectors[1].offset + gap)
    store = CountingStore(tmp_path)
    found = read_vectors(store, [(vector, None) for vector in vectors])
    assert [masked.positions().to_pylist() for masked in found] == [[1], [2]]
    assert sum(end - start for start, end in store.ranges) < 1000


def test_nothing_is_opened_where_nothing_is_masked(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    assert read_vectors(store, []) == []
    assert read_vectors(store, [(inline([1]), 2)])[0].num_rows == 1
    assert store.opened == []


# --- broken -----------------------------------------------------------------------------------------------------------

Break = Callable[[Path, DeletionVector], DeletionVector]


def _file(folder: Path) -> Path:
    (path,) = folder.glob("*.bin")
    return path


def _with_byte(at: int, value: int) -> Break:
    def change(folder: Path, vector: DeletionVector) -> DeletionVector:
        data = bytearray(_file(folder).read_bytes())
        data[at] = value
        _file(folder).write_bytes(data)
        return vector

    return change


def _with(**fields: Any) -> Break:
    return lambda folder, vector: replace(vector, **fields)


def _gone(folder: Path, vector: DeletionVector) -> DeletionVector:
    _file(folder).unlink()
    return vector


def _cut(folder: Path, vector: DeletionVector) -> DeletionVector:
    _file(folder).write_bytes(_file(folder).read_bytes()[:-1])
    return vector


def _empty(folder: Path, vector: DeletionVector) -> DeletionVector:
    _file(folder).write_bytes(b"")
    return vector


def _folder(folder: Path, vector: DeletionVector) -> DeletionVector:
    path = _file(folder)
    path.unlink()
    path.mkdir()
    return vector


BROKEN: dict[str, Break] = {
    "its file is gone": _gone,
    "its file is cut": _cut,
    "its file is empty": _empty,
    "its file is a folder": _folder,
    "another version of the file": _with_byte(0, 2),
    "another size in the file": _with_byte(4, 1),
    "a flipped bit": _with_byte(20, 255),
    "another checksum": _with_byte(-1, 0),
    "another size in the descriptor": _with(size_in_bytes=1),
    "a negative size": _with(size_in_bytes=-1),
    "a size beyond every file": _with(size_in_bytes=2**31 - 1),
    "another offset": _with(offset=2),
    "the offset of the version": _with(offset=0),
    "a negative offset": _with(offset=-5),
    "an offset beyond the file": _with(offset=2**31 - 1),
    "fewer rows in the descriptor": _with(cardinality=2),
    "more rows in the descriptor": _with(cardinality=4),
    "a negative number of rows": _with(cardinality=-1),
    "no size": _with(size_in_bytes=None),
    "no cardinality": _with(cardinality=None),
    "no name": _with(path_or_inline_dv=None),
    "a folder outside the table": _with(path_or_inline_dv="../x" + z85(bytes(16))),
    "a folder of no name": _with(path_or_inline_dv="a\0b" + z85(bytes(16))),
    "a name that is too long": _with(path_or_inline_dv="a" * 5000 + z85(bytes(16))),
    "inline and no text of Z85": _with(storage_type="i", path_or_inline_dv="~~~~~"),
    "inline and half a group": _with(storage_type="i", path_or_inline_dv="0000"),
    "inline and not ASCII": _with(storage_type="i", path_or_inline_dv="äöüäö"),
    "inline and of another size": _with(storage_type="i", path_or_inline_dv=z85(bitmap([1, 2, 3]))[:-5]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_vector_is_an_error_of_its_own(tmp_path: Path, name: str) -> None:
    (vector,) = stored(tmp_path, [[1, 5, 9]])
    vector = BROKEN[name](tmp_path, vector)
    with pytest.raises(CorruptTable) as caught:
        read_vector(LocalStore(str(tmp_path)), vector, 10)
    assert not caught.value.retryable
    assert "Nothing was changed" in str(caught.value)


def test_a_vector_of_a_shorter_data_file_is_an_error(tmp_path: Path) -> None:
    (vector,) = stored(tmp_path, [[1, 5, 9]])
    with pytest.raises(CorruptDeletionVector, match="deletes row 9 of a file that has 9 rows"):
        read_vector(LocalStore(str(tmp_path)), vector, 9)


@given(st.data())
def test_mutated_bytes_are_the_same_rows_or_an_error(data: st.DataObject) -> None:
    """Whatever a single byte becomes: the rows that were written, other rows of the same number, or a typed error.

    A checksum stands before this in a file; here is what remains without one, as for an inline vector.
    """
    rows = data.draw(st.sets(st.integers(0, 200_000), min_size=1, max_size=30))
    good = bytearray(bitmap(rows, data.draw(st.sampled_from(["plain", "runs"]))))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_vector(bytes(good), cardinality=len(rows), num_records=200_001).to_pylist()
    except TxlogError:
        return
    assert len(found) == len(rows)
    assert found == sorted(set(found))
    assert found[-1] <= 200_000


def test_the_vectors_of_a_table_survive_a_move_of_the_table(tmp_path: Path) -> None:
    source = GOLDEN / "dv-partitioned-with-checkpoint"
    if not source.exists():
        pytest.skip(f"no golden table at {source}")
    moved = Table.open(str(shutil.copytree(source, tmp_path / "moved")))
    assert moved.to_arrow().num_rows == Table.open(str(source)).to_arrow().num_rows
