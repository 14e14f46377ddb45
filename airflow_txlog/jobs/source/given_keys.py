"""The keys that an author lists, or names a source of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_txlog.contract.operations import KeySource, KeyValues
from airflow_txlog.contract.operations.publish import OfSubjects
from airflow_txlog.contract.parameters import decode_parameter
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.erasure.values.spellings import identifier_of
from airflow_txlog.errors import InvalidJobSpec, SourceNotFound
from airflow_txlog.errors.names import did_you_mean, shown_names
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.headers import has_unchecked_header
from airflow_txlog.jobs.sql.gate import SqlGate

if TYPE_CHECKING:
    from airflow_txlog.engine.erasure.attribution import Requests

_KEY = re.compile(r"[+-]?\d|.*@")


def given_keys(
    context: JobContext,
    gate: SqlGate,
    described: KeyValues | KeySource,
    snapshot: Snapshot,
    *,
    called: str = "subjects",
) -> tuple[pa.ChunkedArray | list[Any], bool]:
    """Return the keys as they were given, and whether they were read from the job's table.

    `called`: the author's argument that gives them. Raises InvalidJobSpec, and the errors of reading the source.
    """
    if isinstance(described, KeyValues):
        return [decode_parameter(value) for value in described.values], False
    source = context.executor.source(context, gate, described.source, f"{called}.source", snapshot)
    name = key_source_column(described, source.columns.names, called=called)
    return source.values_of(name, "read the keys"), source.reads_target


def given_requests(context: JobContext, described: OfSubjects, snapshot: Snapshot) -> Requests | None:
    """Return the subjects of each request of an erasure; None if the source of a single request has no row.

    Raises the errors of `given_keys`, of `Requests.of`, and of `Requests.check_shown`.
    """
    # A DELETE erases nothing.
    from airflow_txlog.engine.erasure.attribution import Requests  # noqa: PLC0415

    gate = SqlGate(context)
    given = {}
    for name, keys in described.by_request.items():
        try:
            given[name] = given_keys(context, gate, keys, snapshot)[0]
        except (InvalidJobSpec, SourceNotFound) as error:
            if len(described.by_request) == 1:
                raise
            raise type(error)(f"request {name}: {error.message}", **error.facts) from error
    if isinstance(described.subjects, KeySource) and not any(map(len, given.values())):
        context.log("the source of the subjects has no row: nothing is to be done")
        return None
    requests = Requests.of(snapshot, described.column, given).named(context.table)
    requests.check_shown(described.statements)
    return requests


def key_source_column(described: KeySource, names: Sequence[str], *, called: str = "subjects") -> str:
    """Return the column that holds the keys, of a source with these columns. Raises InvalidJobSpec.

    `called`: the author's argument that gives the keys.
    """
    wanted = described.column if described.source_column is None else described.source_column
    found = [name for name in names if name.lower() == wanted.lower()]
    if len(found) != 1 and has_unchecked_header(described.source):
        # The names may be the first row: they are not shown.
        raise InvalidJobSpec(
            f"The source of the {called} has {'more than one' if found else 'no'} column {wanted!r}. Nothing was "
            "changed. Name the column that holds the keys as source_column. A CSV file without a header, read with "
            'options={"header": "true"}, loses its first key to the name of the column: read it with '
            'options={"header": "false"} and a schema.',
            argument="source_column",
        )
    if described.source_column is None and len(names) == 1:
        if _is_like_a_key(names[0]):
            raise InvalidJobSpec(
                f"The only column of the source of the {called} is named like a key. If a file has no header, the "
                'option "header": "true" makes its first key the name. Nothing was changed. If the file has no header, '
                "leave the option out; otherwise name the column as source_column.",
                argument=f"{called}.source",
            )
        return names[0]
    if len(found) != 1:
        # Of a file without a header they are the first row.
        names = ["(like a key)" if _is_like_a_key(name) else name for name in names]
        raise InvalidJobSpec(
            f"The source of the {called} has {'more than one' if found else 'no'} column {wanted!r}."
            f"{'' if found else did_you_mean(wanted, names)} Its columns are: {shown_names(names)}. Name the one that "
            "holds the keys as source_column. Nothing was changed.",
            argument="source_column",
        )
    return found[0]


def _is_like_a_key(name: str) -> bool:
    """Return whether the name of a column looks like a key: a number, a date, an e-mail or a UUID."""
    return _KEY.match(name) is not None or identifier_of(name) is not None
