"""A store in memory that counts its requests: what a remote store would be asked, and would bill."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from airflow_txlog.storage import PLAIN, Access, FileInfo, MemoryStore


class CountingStore(MemoryStore):
    """Every request by its kind and path, in order, since the last `take`."""

    def __init__(self, uri: str, access: Access = PLAIN, **options: Any) -> None:
        super().__init__(uri, access, **options)
        self.requests: list[tuple[str, str]] = []

    def take(self) -> builtins.list[str]:
        """The requests since the last call, as `"list _delta_log/00000000000000000007"`, and forget them."""
        taken, self.requests = self.requests, []
        return [f"{kind} {path}" for kind, path in taken]

    def read(self, path: str) -> bytes:
        self.requests.append(("read", path))
        return super().read(path)

    def list(self, directory: str, *, start_from: str | None = None) -> builtins.list[FileInfo]:
        self.requests.append(("list", directory if start_from is None else f"{directory}/{start_from}"))
        return super().list(directory, start_from=start_from)

    def walk(
        self, on_unreadable: Callable[[str], object] | None = None, *, prefix: str = "", lazily: bool = False
    ) -> Iterator[FileInfo]:
        self.requests.append(("walk", prefix))
        return super().walk(prefix=prefix, lazily=lazily)

    def stat(self, path: str) -> FileInfo | None:
        self.requests.append(("stat", path))
        return super().stat(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.requests.append(("put_if_absent", path))
        return super().put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        self.requests.append(("put", path))
        super().put(path, data)

    def open_output(self, path: str) -> Any:
        self.requests.append(("open_output", path))
        return super().open_output(path)

    def open_input(self, path: str) -> Any:
        self.requests.append(("open_input", path))
        # The base class would read through this store and be counted twice.
        return pa.BufferReader(MemoryStore.read(self, path))

    def delete(self, path: str) -> None:
        self.requests.append(("delete", path))
        super().delete(path)
