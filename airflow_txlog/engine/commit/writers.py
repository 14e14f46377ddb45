"""Other engines that write the table, and whether their commits could replace ours (soundness A15).

The invariant: the decision is a pure function of the kind of store and of the engine names in the commits. It is made
once per table, before its first write, and only on a store that allows such commits.
Source: docs/writers.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import OverwritingWriter
from airflow_txlog.locations import store_kind
from airflow_txlog.storage.base import Store

log = logging.getLogger(__name__)

# How many of the newest commits are checked for their writer.
COMMITS_ASKED = 5


def overwriting_engine(kind: str, engines: Iterable[str | None]) -> str | None:
    """Return the first of these engines whose commits replace others on this kind of store, or None.

    On S3 that is Delta Lake for Spark, with its default log store or the one over DynamoDB.
    """
    if kind != "s3":
        return None
    return next((each for each in engines if each and each.startswith("Apache-Spark/") and "Delta-Lake/" in each), None)


def check_writers(store: Store, version: int, *, strict: bool) -> None:
    """Warn if one of the last commits up to `version` is of an engine that would replace ours on this store.

    Raises OverwritingWriter instead if `strict`; CorruptCommit.
    """
    kind = store_kind(store.root)
    if kind != "s3":
        return
    engine = overwriting_engine(kind, last_engines(store, version))
    if engine is None:
        return
    message = (
        f"{store.root} was lately written by {engine}, whose commits on this store replace those of others without "
        "notice: a commit of ours may vanish after it was acknowledged. See docs/writers.md. "
    )
    if strict:
        raise OverwritingWriter(
            f"{message}Nothing was written. Let one engine write this table, or leave strict_writers off to be warned.",
            table=store.root,
            engine_info=engine,
        )
    log.warning("%sLet one engine write this table; strict_writers=True refuses instead.", message)


def last_engines(store: Store, version: int) -> list[str | None]:
    """Return the engines of the last commits up to `version` that the log still holds, newest first."""
    engines: list[str | None] = []
    for number in range(version, max(-1, version - COMMITS_ASKED), -1):
        try:
            data = store.read(commit_name(number))
        except FileNotFoundError:
            break
        engine = (decode_commit(number, data, commit_name(number)).info or {}).get("engineInfo")
        engines.append(engine if isinstance(engine, str) else None)
    return engines
