"""Deleting rows by vectors: add the file again with a larger vector, and write vectors to files of bitmaps.

The invariants: a file that is added again keeps everything but its vector (size, tags, row ids, statistics verbatim),
and its statistics state wide bounds. A file of vectors is written whole under a name that no other writer uses, and a
descriptor names exactly one bitmap of it, to the byte. Several vectors share a file, so that readers open few of them.
No vector is inline: every reader of the table parses the log, but only readers of rows need vectors.
Source: protocol, "Deletion Vectors" (writer requirements), "Deletion Vector Files", "Deletion Vector Descriptor
Schema", "Per-file Statistics" (tightBounds).
"""

from __future__ import annotations

import base64
import contextlib
import struct
import uuid
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.engine.log.actions import Add, DeletionVector, Metadata, Protocol
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.vectors import B85_TO_Z85, FILE_VERSION, vector_file
from airflow_txlog.engine.table.schema.features import reader_features
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.storage.base import Store

_FEATURE = "deletionVectors"


def deletes_by_vectors(protocol: Protocol, metadata: Metadata, table: str) -> bool:
    """Return whether new deletes become vectors: the feature is listed and switched on. Existing ones stay anyway."""
    return _FEATURE in reader_features(protocol) and TableProperties(metadata.configuration, table).deletion_vectors


def adds_with_vectors(files: pa.Table, vectors: Sequence[DeletionVector], num_records: Sequence[int]) -> list[Add]:
    """Return the files (rows of FILES) with these vectors, in order; `num_records` counts deleted rows too."""
    adds = table_to_adds(files, data_change=True)
    return [
        msgspec.structs.replace(add, deletion_vector=vector, stats=wide_statistics(add.stats, count))
        for add, vector, count in zip(adds, vectors, num_records, strict=True)
    ]


def wide_statistics(stats: str | None, num_records: int) -> str:
    """Return statistics of a file with deleted rows: with `numRecords`, and `tightBounds` false.

    Other values stay as written: a long decimal must not pass through a double. Malformed statistics are dropped.
    """
    try:
        found = msgspec.json.decode(stats or "{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        found = {}
    found["numRecords"] = msgspec.Raw(str(num_records).encode())
    found["tightBounds"] = msgspec.Raw(b"false")
    return msgspec.json.encode(found).decode()


# As the reference implementation packs them: few files to open, and yet a vector that is replaced does not keep many
# others' bytes from being vacuumed.
FILE_BYTES = 2 * 1024 * 1024
_FILES_AT_ONCE = 16
_STEM = "deletion_vector_"


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFile:
    """A file of vectors. `place` is its name in descriptors: the directory's prefix and the encoded uuid."""

    place: str
    bitmaps: tuple[RowPositions, ...]

    @classmethod
    def at(cls, path: str, bitmaps: Sequence[RowPositions]) -> VectorFile:
        """Return the file of these bitmaps that was written to `path`. Raises ValueError for another file's path."""
        prefix, _, name = path.rpartition("/")
        return cls(place=prefix + _encoded(name.removeprefix(_STEM).removesuffix(".bin")), bitmaps=tuple(bitmaps))

    @property
    def path(self) -> str:
        """Relative to the table, as the store calls it."""
        path = vector_file("u", self.place, "")
        assert path is not None
        return path

    @property
    def content(self) -> bytes:
        """The version, and each bitmap between its size and its checksum."""
        parts = [struct.pack(">I", len(m.data)) + m.data + struct.pack(">I", zlib.crc32(m.data)) for m in self.bitmaps]
        return bytes([FILE_VERSION]) + b"".join(parts)

    def vectors(self) -> Iterator[DeletionVector]:
        """Yield the descriptor of each bitmap, in order."""
        offset = 1
        for deleted in self.bitmaps:
            yield DeletionVector(
                storage_type="u",
                path_or_inline_dv=self.place,
                offset=offset,
                size_in_bytes=len(deleted.data),
                cardinality=deleted.num_rows,
            )
            offset += 4 + len(deleted.data) + 4


def place_of_uuid(unique_id: str) -> str:
    """Return how descriptors name the file of vectors with this UUID, in the table's own folder."""
    return _encoded(unique_id)


def pack_vectors(bitmaps: Sequence[RowPositions], file_bytes: int = FILE_BYTES) -> list[tuple[RowPositions, ...]]:
    """Return the bitmaps cut into the contents of files, in order; a file is full once it has `file_bytes`."""
    files: list[list[RowPositions]] = []
    size_bytes = file_bytes
    for deleted in bitmaps:
        if size_bytes >= file_bytes:
            files.append([])
            size_bytes = 0
        files[-1].append(deleted)
        size_bytes += len(deleted.data)
    return [tuple(file) for file in files]


def new_vector_file(
    bitmaps: Sequence[RowPositions], *, prefix_chars: int = 0, clock: Clock = SYSTEM_CLOCK
) -> VectorFile:
    """Return a file of these bitmaps under a fresh name; `prefix_chars`: the length of its random folder, or 0."""
    # Letters and digits of another UUID: the folder's name must not reveal the file's.
    prefix = clock.unique_id().replace("-", "")[:prefix_chars] if prefix_chars else ""
    return VectorFile(place=prefix + _encoded(clock.unique_id()), bitmaps=tuple(bitmaps))


def _encoded(unique_id: str) -> str:
    return base64.b85encode(uuid.UUID(unique_id).bytes).translate(B85_TO_Z85).decode()


def write_vector_files(store: Store, files: Sequence[VectorFile]) -> None:
    """Write the files, several at a time. On an error the written ones are deleted: no commit names them."""
    if not files:
        return
    try:
        with ThreadPoolExecutor(min(len(files), _FILES_AT_ONCE)) as pool:
            list(pool.map(lambda file: _write(store, file), files))
    except BaseException:
        for file in files:
            # VACUUM deletes the remaining files as orphans. A failed delete must not hide the error.
            with contextlib.suppress(Exception):
                store.delete(file.path)
        raise


def _write(store: Store, file: VectorFile) -> None:
    with store.open_output(file.path) as sink:
        sink.write(file.content)
