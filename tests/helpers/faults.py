"""A store on the local disk that fails: as a file is opened, or once it is read."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_txlog.storage import LocalStore


class ClientError(Exception):
    """What a client of a store raises that is no OSError."""


FAULTS: dict[str, Exception] = {
    "refused": PermissionError("Access Denied"),
    "timed out": TimeoutError("no answer within 15 s"),
    "connection lost": ConnectionResetError("reset by peer"),
    "a refused request": OSError(errno.EINVAL, "PreconditionFailed"),
    "an answer without a meaning": OSError(errno.EIO, "InternalError"),
    "the client's own error": ClientError("cannot connect"),
    "words of encryption": PermissionError("no permission for kms:Decrypt"),
}


class FailingFile(io.BytesIO):
    """Raises once it was read so often."""

    def __init__(self, data: bytes, fault: Exception, reads: int) -> None:
        super().__init__(data)
        self._fault, self._left = fault, reads

    def read(self, size: int | None = -1) -> bytes:
        if self._left == 0:
            raise self._fault
        self._left -= 1
        return super().read(size)


class FailingStore(LocalStore):
    """Raises `fault` as a file is opened, or, where `reads` is a number, after so many reads of it."""

    def __init__(self, directory: Path, fault: Exception, reads: int | None) -> None:
        super().__init__(str(directory))
        self._fault, self._reads = fault, reads

    def open_input(self, path: str) -> Any:
        if self._reads is None:
            raise self._fault
        return pa.PythonFile(FailingFile(self.read(path), self._fault, self._reads), mode="r")

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> Any:
        return self.open_input(path)
