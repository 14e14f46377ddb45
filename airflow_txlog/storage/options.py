"""`storage_options`: which there are for each kind of store.

A secret among them has its place in Python code alone, in `Access(storage_options=…)`: what describes a job is written
down and shown, and is refused with one (`contract`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_txlog.errors import InvalidInput


def read_options(kind: str, given: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """The options as they are given. Raises InvalidInput for one that `types` has not, or of another type."""
    for name, value in given.items():
        if name not in types:
            raise InvalidInput(
                f"storage_options: {kind} has no option {name!r}. It has {', '.join(types)}. Nothing was read."
            )
        if not isinstance(value, types[name]):
            raise InvalidInput(
                f"storage_options: {name} must be of type {types[name].__name__}, not {type(value).__name__}. Nothing "
                "was read."
            )
    return dict(given)
