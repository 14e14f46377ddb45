"""A store that Spark cannot read: folders of the local disk, under a scheme that Hadoop has no file system for.

Here, because Spark's Python workers find this folder.
"""

from __future__ import annotations

from airflow_txlog import storage
from airflow_txlog.storage import Access, LocalStore, StoreReference
from airflow_txlog.storage.local_files import open_linked

SCHEME = "shelf"


class ShelfStore(LocalStore):
    """The folder `/a/b` as `shelf:///a/b`."""

    def __init__(self, uri: str, access: Access) -> None:
        super().__init__(uri.removeprefix(f"{SCHEME}://"), access)
        self.root = f"{SCHEME}://{self._directory}"

    def _opened(self, path: str) -> int:
        if path.startswith(f"{SCHEME}://") and self.access.allow_absolute_paths:
            return open_linked(path.removeprefix(f"{SCHEME}://"))
        return super()._opened(path)


def register() -> None:
    """Let this process open such stores."""
    storage.STORES[SCHEME] = ShelfStore


def shelf_reference(root: str, access: Access) -> StoreReference:
    """What a reference becomes when it is unpickled, in a task too."""
    register()
    return StoreReference(root=root, access=access)
