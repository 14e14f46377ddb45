"""Deletion vectors for tests: bitmaps written by the format's own rules, vectors of each kind, tables that have them.

What is read in these tests comes from here or from delta-spark's tables, so that our writer is not its own judge;
`mask_by_us` is that writer.
Source: protocol, "Deletion Vector Format"; RoaringFormatSpec.
"""

from __future__ import annotations

import base64
import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

import pyarrow as pa
from msgspec.structs import replace

from airflow_txlog.datafiles.deletion_vectors.positions import encode_bitmap, union
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions, corrupt_vector
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.deletion_vectors import adds_with_vectors, new_vector_file, write_vector_files
from airflow_txlog.engine.log.actions import DeletionVector, Protocol
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.vectors import read_vectors
from airflow_txlog.engine.table.snapshot.files import record_counts
from airflow_txlog.storage import Store

MAGIC = 1681511377
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

Kind = Literal["plain", "runs"]


def decode_vector(data: bytes, *, cardinality: int | None = None, num_records: int | None = None) -> pa.Int64Array:
    """The positions in a serialized bitmap, checked as a table's are. Raises CorruptDeletionVector."""
    rows = RowPositions(data, "in memory", num_records)
    if cardinality is not None and rows.num_rows != cardinality:
        raise corrupt_vector("in memory", f"it has {rows.num_rows} rows, and {cardinality} were expected")
    rows.check(num_records)
    return rows.positions()


def read_vector(store: Store, vector: DeletionVector, num_records: int | None = None) -> pa.Int64Array:
    """The positions that one vector deletes."""
    return read_vectors(store, [(vector, num_records)])[0].positions()


def bitmap(positions: Iterable[int], kind: Kind = "plain") -> bytes:
    """The serialized bitmap, magic number included; `plain`: arrays and bitmaps, `runs`: nothing but runs."""
    found = sorted(set(positions))
    parts = [(key, [value & 0xFFFFFFFF for value in values]) for key, values in groupby(found, lambda v: v >> 32)]
    body = b"".join(struct.pack("<I", key) + bitmap32(values, kind) for key, values in parts)
    return struct.pack("<iQ", MAGIC, len(parts)) + body


def bitmap32(positions: Sequence[int], kind: Kind = "plain") -> bytes:
    """A 32-bit bitmap in the portable format; positions ascend."""
    containers = [(key, [value & 0xFFFF for value in values]) for key, values in groupby(positions, lambda v: v >> 16)]
    count = len(containers)
    if kind == "runs" and count:
        header = struct.pack("<I", 12347 | (count - 1) << 16) + bytes([0xFF]) * ((count + 7) // 8)
    else:
        header = struct.pack("<II", 12346, count)
    header += b"".join(struct.pack("<HH", key, len(values) - 1) for key, values in containers)
    bodies = [_runs(values) if kind == "runs" else _plain(values) for _, values in containers]
    if kind == "plain" or count >= 4:
        at = len(header) + 4 * count
        for body in bodies:
            header += struct.pack("<I", at)
            at += len(body)
    return header + b"".join(bodies)


def _plain(values: Sequence[int]) -> bytes:
    if len(values) <= 4096:
        return struct.pack(f"<{len(values)}H", *values)
    bits = bytearray(8192)
    for value in values:
        bits[value // 8] |= 1 << value % 8
    return bytes(bits)


def _runs(values: Sequence[int]) -> bytes:
    runs: list[list[int]] = []
    for value in values:
        if runs and value == sum(runs[-1]) + 1:
            runs[-1][1] += 1
        else:
            runs.append([value, 0])
    return struct.pack("<H", len(runs)) + b"".join(struct.pack("<HH", *run) for run in runs)


def z85(data: bytes) -> str:
    """Five characters for each four bytes, the last ones padded with zeros."""
    padded = data + bytes(-len(data) % 4)
    return base64.b85encode(padded).decode().translate(str.maketrans(_B85, _Z85))


def file_of(*bitmaps: bytes) -> tuple[bytes, list[int]]:
    """A file that holds these bitmaps, and the offset of each."""
    data, offsets = b"\x01", []
    for each in bitmaps:
        offsets.append(len(data))
        data += struct.pack(">I", len(each)) + each + struct.pack(">I", zlib.crc32(each))
    return data, offsets


def inline(positions: Iterable[int], kind: Kind = "plain") -> DeletionVector:
    found = sorted(set(positions))
    data = bitmap(found, kind)
    return DeletionVector(
        storage_type="i", path_or_inline_dv=z85(data), size_in_bytes=len(data), cardinality=len(found)
    )


def stored(
    folder: Path, many: Sequence[Iterable[int]], *, prefix: str = "", kind: Kind = "plain"
) -> list[DeletionVector]:
    """Vectors that share one file under the table's folder, named by a new uuid."""
    found = [sorted(set(positions)) for positions in many]
    bitmaps = [bitmap(positions, kind) for positions in found]
    data, offsets = file_of(*bitmaps)
    name = uuid.uuid4()
    path = folder / prefix / f"deletion_vector_{name}.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return [
        DeletionVector(
            storage_type="u",
            path_or_inline_dv=prefix + z85(name.bytes),
            offset=offset,
            size_in_bytes=len(each),
            cardinality=len(positions),
        )
        for positions, each, offset in zip(found, bitmaps, offsets, strict=True)
    ]


def allow_vectors(table: Table) -> None:
    """The table feature, in a commit of its own."""
    tx = table.begin()
    features = ["deletionVectors"]
    tx.set_protocol(
        Protocol(min_reader_version=3, min_writer_version=7, reader_features=features, writer_features=features)
    )
    tx.commit("UPGRADE PROTOCOL")


def mask(table: Table, masked: Mapping[int, Iterable[int]]) -> int:
    """Another engine's DELETE: rows of live files, by the file's number in the order of paths and the row's position,
    get masked besides those that are. Returns the version."""
    snapshot = table.snapshot()
    files = snapshot.files().sort_by("path")
    before = snapshot.deleted_rows(files)
    adds = table_to_adds(files, data_change=True)
    positions = [
        set(masked[number]) | set([] if before[number] is None else before[number].positions().to_pylist())  # type: ignore[union-attr]
        for number in sorted(masked)
    ]
    vectors = stored(Path(table.uri.removeprefix("file://")), positions)
    tx = table.begin()
    tx.read_files(files.take(sorted(masked)))
    for number, vector in zip(sorted(masked), vectors, strict=True):
        stats = json.loads(adds[number].stats or "{}") | {"tightBounds": False}
        tx.remove(files.slice(number, 1))
        tx.add(replace(adds[number], deletion_vector=vector, stats=json.dumps(stats)))
    return tx.commit("DELETE", {"predicate": "[]"})


def _united(rows: RowPositions, before: RowPositions | None) -> RowPositions:
    return rows if before is None else RowPositions(union([rows, before]), "ours")


def mask_by_us(table: Table, masked: Mapping[int, Iterable[int]]) -> int:
    """The same with bitmaps and files of our own writing, on a table that allows vectors. Returns the version."""
    snapshot = table.snapshot()
    numbers = sorted(masked)
    files = snapshot.files().sort_by("path").take(numbers)
    bitmaps = [
        _united(RowPositions(encode_bitmap(pa.array(sorted(masked[number]), pa.int64())), "ours"), before)
        for number, before in zip(numbers, snapshot.deleted_rows(files), strict=True)
    ]
    file = new_vector_file(bitmaps, prefix_chars=snapshot.table_properties.vector_prefix_chars)
    write_vector_files(table.store, [file])
    counts = [count or 0 for count in record_counts(files)]
    tx = table.begin()
    tx.read_files(files)
    tx.remove(files)
    tx.add(adds_with_vectors(files, list(file.vectors()), counts))
    return tx.commit("DELETE", {"predicate": "[]"})
