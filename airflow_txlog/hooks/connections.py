"""Reading a connection of Airflow that a parameter names, and the settings in the extra of one of type `txlog`.

Invariant: the error for a missing or wrong connection names the parameter or the setting to correct, and shows no value
of any connection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.errors.names import did_you_mean

# The parameters that may also stand in the extra of a connection.
_PLACES = {
    **dict.fromkeys(
        ("catalog_conn_id", "spark_conn_id", "storage_conn_id"), " in the task or in the extra of its txlog_conn_id"
    ),
    "erasure_key_conn_id": " in the extra of the task's txlog_conn_id",
}


def connection_of(argument: str, conn_id: str) -> Any:
    """Return the connection that the parameter `argument` names.

    Raises Airflow's AirflowNotFoundException if it does not exist, with the name of the parameter.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        where = _PLACES.get(argument, "")
        raise AirflowNotFoundException(
            f"{argument}: Airflow has no connection {conn_id!r}. Nothing was read. Correct {argument}{where}, or make "
            f"the connection (Admin, Connections in the UI; `airflow connections add {conn_id}`; "
            f"AIRFLOW_CONN_{conn_id.upper()} in the environment)."
        ) from error


CONN_TYPE = "txlog"
SETTINGS = (
    *("runner", "spark_conn_id", "spark_conf", "storage_conn_id", "storage_options", "catalog_conn_id", "history_url"),
    *("table_url", "erasure_ledger", "erasure_key_conn_id", "erasure_on_return", "strict_writers", "single_writer"),
    "allow_absolute_paths",
)
"""The settings that the extra of a connection of type `txlog` may have."""

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,32}")


def check_is_txlog(connection: Any, storage_types: frozenset[str]) -> None:
    """Raise InvalidJobSpec for a connection of another type, or one whose extra has anything but our settings.

    `storage_types`: those of a `storage_conn_id`.
    """
    conn_id, kind = connection.conn_id, connection.conn_type
    if kind != CONN_TYPE:
        # The credentials of another type would not be used: its tables would be opened with the process's identity.
        instead = (
            f"Make it again with the type {CONN_TYPE!r}, by `airflow connections add {conn_id} --conn-json "
            f'\'{{"conn_type": "{CONN_TYPE}", "host": "/lake"}}\'`, or leave txlog_conn_id out and name full URIs.'
        )
        if kind in storage_types:
            instead = (
                f"That type is one for storage_conn_id. Name it there, or in the extra of a connection of type "
                f'{CONN_TYPE!r}: {{"storage_conn_id": "{conn_id}"}}.'
            )
        raise InvalidJobSpec(
            f"txlog_conn_id: the connection {conn_id!r} is of type {kind!r}. {instead} Nothing was read.",
            argument="txlog_conn_id",
        )
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        # Airflow would read it as empty.
        raise InvalidJobSpec(
            f"txlog_conn_id: the extra of the connection {conn_id!r} is no JSON object. Nothing was read. Write one "
            'such as {"storage_conn_id": "lake_keys"}.',
            argument="txlog_conn_id",
        )
    for name in extra:
        if name not in SETTINGS:
            unknown = _unknown(name, extra)
            settings = "" if "Did you mean" in unknown else f" Its settings are {', '.join(SETTINGS)};"
            raise InvalidJobSpec(
                f"txlog_conn_id: the extra of the connection {conn_id!r} has {unknown} Nothing was read.{settings} "
                "Spark's settings go into spark_conf, and those of the store into storage_options.",
                argument="txlog_conn_id",
            )


def _unknown(name: str, extra: Mapping[str, Any]) -> str:
    """Return the words for a name that is no setting. One that may be the end of a secret is not shown."""
    near = did_you_mean(name, SETTINGS)
    # What Airflow splits off is an empty text, beside the text that it was a part of.
    texts = ((each, value) for each, value in extra.items() if each != name and isinstance(value, str))
    may_be_split = any(not (each in SETTINGS and _PLAIN.fullmatch(value)) for each, value in texts)
    if near or (_PLAIN.fullmatch(name) and not (may_be_split and extra[name] in ("", None))):
        return f"{name!r}, which is no setting of it.{near}"
    # Airflow splits the extra in a URI at each `&`, also within a secret.
    return "a name that is no setting. In a connection's URI, write %26 for an & within a value."
