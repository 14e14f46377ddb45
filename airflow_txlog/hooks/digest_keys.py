"""The keys of digests of erased subjects, from the connection that holds them.

The newest key is the password of the connection. `previous_secrets` of its extra lists older ones, the oldest first:
the ledger has digests by them. Invariant: only jobs and signatures get a key, and no message contains one.
"""

from __future__ import annotations

import json

from airflow_txlog.errors import InvalidInput
from airflow_txlog.hooks.connections import connection_of

PREVIOUS = "previous_secrets"


def digest_keys(conn_id: str) -> tuple[str, ...]:
    """Return the keys of a connection, the newest last.

    Raises InvalidInput if it has no password, or a list of older keys that is none; Airflow's own error if it does not
    exist.
    """
    connection = connection_of("erasure_key_conn_id", conn_id)
    given = connection.extra_dejson.get(PREVIOUS) or []
    try:
        older = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        older = None
    if not isinstance(older, list) or not all(isinstance(each, str) for each in older):
        raise InvalidInput(
            f"{PREVIOUS} in the extra of the connection {conn_id!r} must be a list of keys, the oldest first. Nothing "
            "was read."
        )
    if not connection.password:
        raise InvalidInput(
            f"the connection {conn_id!r} has no password, which is the key for digests of erased subjects. Nothing was "
            "read. Make a key with `openssl rand -hex 32`, and never change it without `previous_secrets`."
        )
    return (*older, connection.password)
