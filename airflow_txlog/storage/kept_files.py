"""Small data files, kept in memory from the search for rows, or from the look at their columns, until they are read.

The invariant: at most KEPT_BYTES, and only until they are read again or the job ends.
"""

from __future__ import annotations

import threading

KEPT_BYTES = 64 * 1024 * 1024
"""How many bytes of data files a store keeps for the second time that they are read."""


class KeptFiles:
    """Small data files that a job reads twice. A data file never changes under its name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, bytes] = {}
        self._size_bytes = 0

    def __reduce__(self) -> tuple[type[KeptFiles], tuple[()]]:
        # The store in another process keeps files of its own.
        return KeptFiles, ()

    def take(self, place: str) -> bytes | None:
        """Return a file and keep it no longer; None if it is not kept."""
        with self._lock:
            data = self._files.pop(place, None)
            self._size_bytes -= len(data or b"")
        return data

    def add(self, place: str, data: bytes) -> None:
        """Keep a file if there is room: the files that were read first are rewritten first."""
        with self._lock:
            if place not in self._files and self._size_bytes + len(data) <= KEPT_BYTES:
                self._files[place] = data
                self._size_bytes += len(data)

    def clear(self) -> int:
        """Keep none. Return the bytes that were kept."""
        with self._lock:
            size_bytes, self._size_bytes = self._size_bytes, 0
            self._files.clear()
        return size_bytes
