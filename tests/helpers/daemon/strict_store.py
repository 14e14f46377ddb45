"""References to stores that no process opens without the options of `tests/jobs/operations/test_storage_options.py`.

Here, because Spark's Python workers find this folder.
"""

from __future__ import annotations

from airflow_txlog.storage import Access, Store, StoreReference

OPTIONS = {"profile": "lake"}


def check(access: Access) -> None:
    """Raises PermissionError for an access without the options."""
    if access.storage_options != OPTIONS:
        raise PermissionError("a store was opened without its options")


class StrictReference(StoreReference):
    """A reference as a task gets it."""

    def open(self) -> Store:
        check(self.access)
        return StoreReference.open(self)


def strict_reference(root: str, access: Access) -> StrictReference:
    """What a reference becomes when it is unpickled."""
    return StrictReference(root=root, access=access)
