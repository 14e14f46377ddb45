"""What an `Access` means to a store: its options, checked, and the credentials that its connection gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_txlog.errors import InvalidInput
from airflow_txlog.locations import Access
from airflow_txlog.storage.credentials import KeptCredentials, has_own_identity, kept


def credentials_of(access: Access, kind: str) -> KeptCredentials | None:
    """Return what a store of this kind is opened with; None where each process has an identity of its own."""
    is_own = access.storage_conn_id is None or has_own_identity()
    return None if is_own else kept(str(access.storage_conn_id), kind)


def read_options(kind: str, given: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """The options as they are given. Raises InvalidInput for one that `types` has not, or of another type."""
    for name, value in given.items():
        if name not in types:
            raise InvalidInput(
                f"storage_options: {kind} has no option {name!r}. It has {', '.join(types)}. Nothing was read."
            )
        # True is an int to Python.
        if not isinstance(value, types[name]) or (isinstance(value, bool) and types[name] is not bool):
            raise InvalidInput(
                f"storage_options: {name} must be of type {types[name].__name__}, not {type(value).__name__}. Nothing "
                "was read."
            )
    if "endpoint_url" in given and not given["endpoint_url"].startswith(("http://", "https://")):
        raise InvalidInput("storage_options: endpoint_url must begin with http:// or https://. Nothing was read.")
    return dict(given)
