"""How a store is opened, as a value that can be sent to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class HasAccess(Protocol):
    """What a job's description and a connection have in common."""

    @property
    def storage_options(self) -> Mapping[str, Any]: ...
    @property
    def allow_absolute_paths(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the store of a table is opened, the same in the task, in its job and on every executor.

    `storage_options` name endpoints, profiles and the like (docs/stores.md). In a job they hold no secret, as they are
    part of what is sent and shown: each process finds its own credentials. They are not in the `repr`.
    `allow_absolute_paths`: data files and deletion vectors that the log names outside of the table, in the same kind
    of store, can be read; also those behind a link inside it.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    allow_absolute_paths: bool = False

    @classmethod
    def of(cls, settings: HasAccess) -> Access:
        """The access that a job's description or a connection asks for."""
        options = dict(settings.storage_options)
        return cls(storage_options=options, allow_absolute_paths=settings.allow_absolute_paths)


PLAIN = Access()
"""Without options, and confined to the table's own folder."""
