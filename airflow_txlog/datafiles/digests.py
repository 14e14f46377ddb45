"""SHA-256 of a file's bytes: taken while the file is written, and compared when another process is to rely on it.

The invariant: the digest of a written file is that of the bytes that its writer gave, and never of what lies at its
path afterwards, which may be another process's.
"""

from __future__ import annotations

import hashlib
from typing import Any

from airflow_txlog.storage import Store

_CHUNK_BYTES = 8 * 1024 * 1024


class DigestingOutput:
    """A binary file to write, as pyarrow wants one, that hashes what passes through it on its way to `sink`."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self.closed = False

    def write(self, data: Any) -> int:
        """Hash and write all of the data."""
        self._hash.update(data)
        self._sink.write(data)
        return len(data)

    def tell(self) -> int:
        """The bytes written so far."""
        return int(self._sink.tell())

    def flush(self) -> None:
        """Hand on what the sink still holds back."""
        self._sink.flush()

    def close(self) -> None:
        """Close the sink."""
        self.closed = True
        self._sink.close()

    def digest(self) -> str:
        """64 hexadecimal digits, of all that was written."""
        return self._hash.hexdigest()


def has_digest(store: Store, path: str, size_bytes: int, digest: str) -> bool:
    """Whether a file with exactly these bytes is there. Reads it whole, unless its size differs."""
    try:
        source = store.open_input(path)
    except OSError:
        return False
    found = hashlib.sha256()
    with source:
        if source.size() != size_bytes:
            return False
        left = size_bytes
        while left and (chunk := source.read(min(left, _CHUNK_BYTES))):
            found.update(chunk)
            left -= len(chunk)
    return found.hexdigest() == digest
