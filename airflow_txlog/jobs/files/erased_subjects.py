"""The guard of a job that may bring back rows: it compares them with the ledger of erased subjects."""

from __future__ import annotations

from collections.abc import Collection

from airflow_txlog.engine import DeltaTable
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import Ledger
from airflow_txlog.engine.erasure.returns import ReturnGuard
from airflow_txlog.errors import LedgerKeyMissing
from airflow_txlog.jobs.context import LogContext


def guard_of(
    context: LogContext, *, uris: Collection[str] = (), table_ids: Collection[str] = (), every_table: bool = False
) -> ReturnGuard | None:
    """Return the guard of the job's table; None if the job has no ledger. The arguments are those of `ReturnGuard`.

    Raises LedgerKeyMissing for a ledger without any key.
    """
    spec = context.spec
    if spec.ledger_uri is None:
        return None
    if not spec.ledger_keys:
        raise LedgerKeyMissing(
            f"{context.root}: the job has the ledger {spec.ledger_uri} of erased subjects, and no key of its digests. "
            "Nothing was read. Run the task again with the connection of the ledger's key.",
            ledger=spec.ledger_uri,
            key_ids=[],
        )
    keys = [DigestKey.of(text, "a key of the ledger") for text in spec.ledger_keys]
    table = DeltaTable.at(spec.ledger_uri, context.store.access, limits=context.limits)
    return ReturnGuard(Ledger(table, keys), context.store, uris=uris, table_ids=table_ids, every_table=every_table)
