"""Reading deletion vectors: their location, and the rows that they delete.

The invariants: a vector at an unknown location is an error, because vacuum must know every needed file; and a vector
that does not match its descriptor exactly is an error, because using a part of it would restore deleted rows.
Source: protocol, "Deletion Vectors", "Deletion Vector Descriptor Schema" and "Deletion Vector Format".
"""

from __future__ import annotations

import base64
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions, corrupt_vector
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.log.paths import absolute_path, canonical_path
from airflow_txlog.errors import CorruptTable
from airflow_txlog.storage.base import Store, is_about_name
from airflow_txlog.storage.limits import VECTOR

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = bytes.maketrans(_Z85, _B85)
B85_TO_Z85 = bytes.maketrans(_B85, _Z85)
_Z85_TEXT = re.compile(f"[{re.escape(_Z85.decode())}]*")
UUID_CHARACTERS = 20

FILE_VERSION = 1
# Around every bitmap in a file: its size before it, a checksum behind it.
_SIZE_BYTES = 4
_CHECKSUM_BYTES = 4
# Vectors with at most this gap between them are read in one request, gap included.
_GAP_BYTES = 1024 * 1024
# The largest such request, which bounds the memory of a read.
_SPAN_BYTES = 64 * 1024 * 1024
_FILES_AT_ONCE = 16

_Range = tuple[int, int]


def vector_file(storage_type: str, path_or_inline_dv: str, root: str) -> str | None:
    """Return the canonical path of the file that holds a vector, None for an inline one.

        u  ab^-aqEH.-t@S}K{vb[*k^   ->   ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin
        p  file:///lake/t/dv.bin    ->   dv.bin in a table at file:///lake/t

    Raises CorruptTable for an unknown storage type or a malformed name.
    """
    if storage_type == "i":
        return None
    if storage_type == "p" and path_or_inline_dv:
        return canonical_path(path_or_inline_dv, root)
    # A checkpoint may have lost fields that every descriptor needs.
    place = path_or_inline_dv or ""
    prefix, encoded = place[:-UUID_CHARACTERS], place[-UUID_CHARACTERS:]
    name = _decode_z85(encoded) if storage_type == "u" and len(encoded) == UUID_CHARACTERS else None
    if name is None:
        raise CorruptTable(
            f"CorruptTable: {root} names a deletion vector {storage_type!r} {path_or_inline_dv!r}, "
            "and the protocol knows no such place. Nothing was changed.",
            table=root,
        )
    # The prefix is a directory name, not a URI: nothing in it is encoded.
    file_name = f"deletion_vector_{uuid.UUID(bytes=name)}.bin"
    return f"{prefix}/{file_name}" if prefix else file_name


def absolute_vector(vector: DeletionVector, root: str, spelled: str) -> DeletionVector:
    """Return the vector as other tables name it: by its file's absolute URI, below `spelled`, unless it is inline."""
    path = vector_file(vector.storage_type, vector.path_or_inline_dv, root)
    if path is None:
        return vector
    return msgspec.structs.replace(vector, storage_type="p", path_or_inline_dv=absolute_path(path, spelled))


def read_vectors(store: Store, wanted: Sequence[tuple[DeletionVector, int | None]]) -> list[RowPositions]:
    """Return the deleted rows of each vector, in order. `wanted` pairs it with its data file's row count, or None.

    Sizes, checksums, the number of rows, their order and their range are checked. Raises CorruptDeletionVector (also
    for a missing file), CorruptTable for an unknown place, OutsideTable, LimitExceeded beyond `limits.VECTOR`,
    UnsupportedStore.
    """
    by_file: dict[str, set[_Range]] = {}
    for vector, _ in wanted:
        _check_descriptor(vector, store.root)
        path = vector_file(vector.storage_type, vector.path_or_inline_dv, store.root)
        if path is not None:
            by_file.setdefault(path, set()).add(_range(vector))
    bitmaps = _read_files(store, by_file)
    return [_deleted_rows(store.root, vector, num_records, bitmaps) for vector, num_records in wanted]


def _check_descriptor(vector: DeletionVector, root: str) -> None:
    required = (vector.storage_type, vector.path_or_inline_dv, vector.size_in_bytes, vector.cardinality)
    if None in required or vector.size_in_bytes < 0 or vector.cardinality < 0:
        raise corrupt_vector(f"{vector.path_or_inline_dv!r} of {root}", f"its descriptor is {vector}")
    if vector.storage_type == "i":
        # The text is already in memory; `size_in_bytes` is only a claim.
        VECTOR.check(len(vector.path_or_inline_dv), f"deletion vector {vector.path_or_inline_dv[:80]!r}", root)


def _deleted_rows(
    root: str, vector: DeletionVector, num_records: int | None, bitmaps: dict[tuple[str, _Range], bytes]
) -> RowPositions:
    path = vector_file(vector.storage_type, vector.path_or_inline_dv, root)
    if path is None:
        source = f"{vector.path_or_inline_dv!r} (inline) of {root}"
        data = _decode_inline(vector, source)
    else:
        offset, _ = _range(vector)
        source = f"{path} at byte {offset} of {root}"
        data = bitmaps[path, _range(vector)]
    deleted = RowPositions(data, source, num_records)
    if vector.cardinality is not None and deleted.num_rows != vector.cardinality:
        raise corrupt_vector(source, f"it deletes {deleted.num_rows} rows; its descriptor says {vector.cardinality}")
    deleted.check(num_records)
    return deleted


# --- inline -----------------------------------------------------------------------------------------------------------


def _decode_inline(vector: DeletionVector, source: str) -> bytes:
    data = _decode_z85(vector.path_or_inline_dv)
    if data is None:
        raise corrupt_vector(source, "it is no text of Z85")
    # Z85 encodes whole groups of four bytes; the size excludes the padding.
    if not 0 <= len(data) - vector.size_in_bytes < 4:
        raise corrupt_vector(source, f"it has {len(data)} bytes, and its descriptor says {vector.size_in_bytes}")
    return data[: vector.size_in_bytes]


def _decode_z85(text: str) -> bytes | None:
    """Return four bytes for every five characters, None if the text is not Z85. Source: ZeroMQ RFC 32."""
    if len(text) % 5 or _Z85_TEXT.fullmatch(text) is None:
        return None
    try:
        return base64.b85decode(text.encode().translate(_TO_B85))
    except ValueError:  # five characters whose value exceeds four bytes
        return None


# --- in files ---------------------------------------------------------------------------------------------------------


def _range(vector: DeletionVector) -> _Range:
    """Return offset and size of a bitmap. Without an offset it is the first of its file, after the version."""
    return (1 if vector.offset is None else vector.offset), vector.size_in_bytes


def _read_files(store: Store, by_file: dict[str, set[_Range]]) -> dict[tuple[str, _Range], bytes]:
    if not by_file:
        return {}
    with ThreadPoolExecutor(min(len(by_file), _FILES_AT_ONCE)) as pool:
        files = pool.map(lambda item: _read_file(store, *item), by_file.items())
        return {key: data for found in files for key, data in found}


def _read_file(store: Store, path: str, ranges: Iterable[_Range]) -> list[tuple[tuple[str, _Range], bytes]]:
    source = f"{path} of {store.root}"
    ordered = sorted(ranges)
    with _open(store, path, source) as file:
        size_bytes = file.size()
        for offset, length in ordered:
            if offset < 1 or length < 0 or offset + _SIZE_BYTES + length + _CHECKSUM_BYTES > size_bytes:
                raise corrupt_vector(
                    f"{path} at byte {offset} of {store.root}",
                    f"its {length} bytes do not lie in its file, which has {size_bytes}",
                )
            VECTOR.check(length, f"deletion vector {path} at byte {offset}", store.root, path)
        found = []
        # The file begins with its version, which is read together with a bitmap near it.
        for span in _spans([(0, 1), *((offset, _SIZE_BYTES + size + _CHECKSUM_BYTES) for offset, size in ordered)]):
            start, end = span
            file.seek(start)
            data = file.read(end - start)
            if len(data) != end - start:
                raise corrupt_vector(source, "its file became shorter while it was read")
            if start == 0 and data[0] != FILE_VERSION:
                raise corrupt_vector(source, f"its file is of version {data[0]}, and it should be {FILE_VERSION}")
            found += [
                ((path, each), _bitmap(data, each[0] - start, each[1], f"{path} at byte {each[0]} of {store.root}"))
                for each in ordered
                if start <= each[0] < end
            ]
        return found


def _open(store: Store, path: str, source: str) -> Any:
    try:
        return store.open_input(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "the table names its file, and it is not there"
        raise corrupt_vector(source, what, path=path, is_missing=True) from error
    except (OSError, ValueError) as error:
        # The path cannot name a file: it is a folder, too long, or outside of the table.
        if not is_about_name(error):
            raise
        raise corrupt_vector(source, f"its file cannot be opened: {error}") from error


def _spans(pieces: Iterable[_Range]) -> Iterator[_Range]:
    """Yield start and end of each read, from ascending (start, length); each piece lies in one span."""
    start, end = 0, 0
    for offset, length in pieces:
        if offset - end > _GAP_BYTES or (offset + length - start > _SPAN_BYTES and offset >= end):
            yield start, end
            start = offset
        end = max(end, offset + length)
    yield start, end


def _bitmap(data: bytes, at: int, size_bytes: int, source: str) -> bytes:
    """Return the bitmap that begins at `at`, after its size and before its checksum."""
    stated = int.from_bytes(data[at : at + _SIZE_BYTES], "big")
    if stated != size_bytes:
        raise corrupt_vector(source, f"its file says that it has {stated} bytes, and its descriptor {size_bytes}")
    start = at + _SIZE_BYTES
    bitmap = data[start : start + size_bytes]
    checksum = int.from_bytes(data[start + size_bytes : start + size_bytes + _CHECKSUM_BYTES], "big")
    if zlib.crc32(bitmap) != checksum:
        raise corrupt_vector(source, f"its checksum is {zlib.crc32(bitmap):#010x}, and its file says {checksum:#010x}")
    return bitmap
