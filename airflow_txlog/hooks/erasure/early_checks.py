"""The checks that an erasure makes before its first delete: nothing that is used at its end may fail only then.

The invariant: no table is changed. The folder of the report gets one empty file, which is deleted again. If a try is
killed before that, one of an hour later deletes it. A folder in which nothing may be deleted keeps one of each try.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.erasure.attribution import Requests
from airflow_txlog.engine.erasure.values.key_columns import char_lengths, key_path
from airflow_txlog.engine.table.schema.types import CHAR_VARCHAR_KEY
from airflow_txlog.errors import InvalidJobSpec, TableError, UnsupportedFeature

if TYPE_CHECKING:
    from airflow_txlog.hooks.txlog import TxlogHook

_PROBE, _PROBE_MS = "txlog-write-check-", 3_600_000


def check_subjects(
    hook: TxlogHook,
    tables: Mapping[str, str],
    subjects: Mapping[str, Sequence[Any]],
    statements: Sequence[str],
    *,
    is_part: bool,
) -> list[list[str]]:
    """Check that each table has its column, and that it can hold the subjects that are listed, by their request.

    `statements`: texts that may name none of them. `is_part`: other requests have sources of subjects. Return the
    tables by the name and type of such a column, in order: those with one read a source of subjects in the same way. A
    table that cannot be opened is passed over: it is reported as not verified, and stops no other. Raises
    UnknownColumn, InvalidInput, UnsupportedFeature.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for table, column in tables.items():
        snapshot = None
        with suppress(TableError, UnsupportedFeature):
            snapshot = hook.table(table).snapshot()
        if snapshot is not None:
            path = key_path(snapshot, column)
            char_lengths(snapshot.uri, column, path)
            kind = f"{path[-1].type} {path[-1].metadata.get(CHAR_VARCHAR_KEY, '')}"
            of_kind = alike.setdefault((column, kind), [])
            of_kind.append(table)
            requests = Requests.of(snapshot, column, subjects, is_part=is_part) if subjects else None
            if requests is not None and of_kind == [table]:
                requests.check_shown(statements)
    return list(alike.values())


def check_sources(hook: TxlogHook, places: Collection[str], subjects: Mapping[str, Any]) -> None:
    """Check that no source of a request's subjects reads one of the tables at these places. Raises InvalidJobSpec."""
    for request_id, given in subjects.items():
        for name in _tables_in(given):
            if isinstance(name, str) and hook.table(name).place in places:
                raise InvalidJobSpec(
                    f"The subjects of request {request_id} are read from {name}, which is one of the tables. Its rows "
                    "would be gone before the last job reads them. Nothing was read. Read the subjects from another "
                    "table, and delete the requests after the report.",
                    argument="subjects",
                )


def _tables_in(source: Any) -> Iterator[Any]:
    """Yield the names of the tables that a source reads, also as a view of a query."""
    if isinstance(source, Mapping):
        if "table" in source:
            yield source["table"]
        views = source.get("views")
        for view in views.values() if isinstance(views, Mapping) else ():
            yield from _tables_in(view)


def check_folder(hook: TxlogHook, report_uri: str, places: Collection[str]) -> None:
    """Check that the folder of the report can be written, and is outside of the tables at these places.

    Raises InvalidJobSpec, and the errors of the store.
    """
    try:
        store = hook.table(report_uri).store
    except InvalidJobSpec as error:
        # The hook takes it for a table.
        what = error.message.removeprefix("Table ")
        raise InvalidJobSpec(f"report_uri must be a folder's place: {what}", argument="report_uri") from None
    inside = next((each for each in places if f"{DeltaTable(store).place}/".startswith(f"{each}/")), None)
    if inside is not None:
        raise InvalidJobSpec(
            f"report_uri, {store.root}, is inside of the table {inside}, and would change what is verified. Nothing "
            "was read. Name a folder outside of every table.",
            argument="report_uri",
        )
    # A new name each time: some stores let only those who may delete replace an object.
    probe = f"{_PROBE}{SYSTEM_CLOCK.unique_id()}"
    store.put(probe, b"")
    # A folder may allow writing alone, or forbid to list it.
    with suppress(OSError):
        store.delete(probe)
        # Another task may be writing a younger one now.
        before_ms = store.now_ms() - _PROBE_MS
        for left in list(store.walk(lambda folder: None, prefix=_PROBE)):
            if left.modified_ms < before_ms:
                store.delete(left.path)
