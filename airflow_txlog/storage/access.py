"""How a store is opened, as a value that can be sent to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_txlog.errors import InvalidInput
from airflow_txlog.storage.credentials import KeptCredentials, has_own_identity, kept


class HasAccess(Protocol):
    """What a job's description and a connection have in common."""

    @property
    def storage_options(self) -> Mapping[str, Any]: ...
    @property
    def storage_conn_id(self) -> str | None: ...
    @property
    def allow_absolute_paths(self) -> bool: ...
    @property
    def single_writer(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the store of a table is opened, the same in the task, in its job and on every executor.

    `storage_options` name endpoints, profiles and the like (docs/stores.md). In a job they hold no secret, as they are
    part of what is sent and shown. They are not in the `repr`.
    `storage_conn_id`: the Airflow connection whose credentials open the store, by name alone: each process asks for
    them itself (`credentials`). None: the process's own identity.
    `allow_absolute_paths`: data files and deletion vectors that the log names outside of the table, in the same kind
    of store, can be read; also those behind a link inside it.
    `single_writer`: the caller makes sure that no two processes write the table at the same time, so it may be on a
    file system without a proven put-if-absent (docs/stores.md).
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    storage_conn_id: str | None = None
    allow_absolute_paths: bool = False
    single_writer: bool = False

    def credentials(self, kind: str) -> KeptCredentials | None:
        """What a store of this kind is opened with; None where each process has an identity of its own."""
        is_own = self.storage_conn_id is None or has_own_identity()
        return None if is_own else kept(str(self.storage_conn_id), kind)

    @classmethod
    def of(cls, settings: HasAccess) -> Access:
        """The access that a job's description or a connection asks for."""
        return cls(
            storage_options=dict(settings.storage_options),
            storage_conn_id=settings.storage_conn_id,
            allow_absolute_paths=settings.allow_absolute_paths,
            single_writer=settings.single_writer,
        )


PLAIN = Access()
"""Without options, and confined to the table's own folder."""


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
