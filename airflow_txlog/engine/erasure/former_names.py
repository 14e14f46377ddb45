"""The names that a key column had before it was renamed, and the columns that had its name before they were dropped.

A commit names columns as they were called then: a condition on a number counts as the key only if its old name is
known. The files still hold a column that was dropped, and versions before that show it. The
invariant: a commit that cannot be read adds no name, because the search itself does not pass it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.erasure.values.key_columns import dotted, struct_paths
from airflow_txlog.engine.log.actions import UNREADABLE, Metadata, decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.segment import look
from airflow_txlog.engine.table.schema.column_mapping import table_schema
from airflow_txlog.engine.table.schema.features import reader_features
from airflow_txlog.errors import TxlogError

_METADATA = b'"metaData"'


def with_former_names(table: DeltaTable, forms: Forms) -> Forms:
    """Return the forms of a column with the paths that it, and other columns of its name, had in the versions of the
    log.

    Not of a column that the table still has under another name: its values are no keys now.
    """
    logical, physical = tuple(forms.paths)[:2]
    # A column that was renamed may have its first name again, which is its physical one.
    if not forms.need_names or "columnMapping" not in reader_features(table.snapshot().protocol):
        return forms
    found: set[str] = set()
    # Those of the last metadata are the table's now.
    versions = [[*_names_of(metadata, table.uri)] for metadata in _in_log(table)]
    others = {path for name, path in versions[-1] if name.lower() != logical.lower()} if versions else set()
    for own in itertools.chain(*versions):
        if own[1] == physical or (own[0].lower() == logical.lower() and own[1] not in others):
            found.update(own)
    return replace(forms, paths=(*forms.paths, *sorted(found - set(forms.paths))))


def _names_of(metadata: Metadata, uri: str) -> Iterator[tuple[str, str]]:
    """Yield the logical and the physical path of each column and member of a struct, with dots."""
    with suppress(TxlogError):
        for path in struct_paths(table_schema(metadata, uri)):
            yield dotted(path)


def _in_log(table: DeltaTable) -> Iterator[Metadata]:
    log = look(table.store, 0)
    # The commit that set the oldest metadata may be gone; a checkpoint has it.
    with suppress(TxlogError):
        yield table.snapshot(log.earliest).metadata
    for version in sorted(log.commits):
        with suppress(FileNotFoundError, TxlogError, *UNREADABLE):
            data = table.store.read(commit_name(version))
            if _METADATA in data:
                metadata = decode_commit(version, data, commit_name(version)).metadata
                if metadata is not None:
                    yield metadata
