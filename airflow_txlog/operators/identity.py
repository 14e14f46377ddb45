"""The identity under which a task changes its table at most once: an application transaction.

Source: soundness A10. The app id names the task instance; its number is chosen once, on the first try, and kept with
the task's `max_tries` in Airflow's task state store before anything is submitted. A retry and a second copy use the
kept number; a cleared task, which has another `max_tries`, takes the next one. A run that was deleted and made again,
and a second deployment, find no kept number and take the next one too.

Invariant: the table is read before the state store. A copy that finds the store empty has then read the table before
the other copy could commit under the number that it keeps first, so both hold the same number and one of them wins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import conf

from airflow_txlog.contract import ApplicationTransaction
from airflow_txlog.engine.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.errors import InvalidJobSpec

STATE_KEY = "txlog.transaction"
FIRST_VERSION = 1

# Airflow tells "never" by this very object; the constant is its own where it exists.
try:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE
except ImportError:
    NEVER_EXPIRE = timedelta.max


def application_transaction(
    context: Mapping[str, Any],
    recorded_version: Callable[[str], int | None],
    idempotency_key: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ApplicationTransaction:
    """The transaction that this try of this task carries.

    `recorded_version` reads the table: what number does this app id have there? It is asked at most once, and not at
    all for an author's key, whose number is always 1 and whose work is told by the spec's digest.

    Without a state store (Airflow before 3.3) the number is `max_tries`, which a clear raises, and a transaction that
    the table recorded before this run began is not taken for ours.

    Any failure of the state store is raised: without its answer nobody can tell a retry from new work.
    """
    if idempotency_key is not None:
        if not idempotency_key.strip():
            raise InvalidJobSpec("idempotency_key must not be empty: it names the work.", argument="idempotency_key")
        return ApplicationTransaction(app_id=idempotency_key, version=FIRST_VERSION, check_digest=True)
    ti = context["ti"]
    app_id = app_id_of(ti)
    max_tries = int(ti.max_tries)
    if "task_state_store" not in context:
        started = context["dag_run"].start_date
        not_before_ms = None if started is None else int(started.timestamp() * 1000)
        # When a later try's first one was is not kept anywhere; it was not before the run began.
        return ApplicationTransaction(
            app_id=app_id,
            version=max_tries,
            not_before_ms=not_before_ms,
            first_tried_ms=not_before_ms if ti.try_number > 1 else clock.now_ms(),
        )
    recorded = recorded_version(app_id)
    store = context["task_state_store"]
    kept = store.get(STATE_KEY)
    if isinstance(kept, dict) and kept.get("max_tries") == max_tries:
        # The id is kept with the number, so that a deployment renamed between two tries does not make new work.
        return ApplicationTransaction(
            app_id=str(kept["app_id"]), version=int(kept["version"]), first_tried_ms=kept.get("first_tried_ms")
        )
    version = FIRST_VERSION if recorded is None else recorded + 1
    chosen = ApplicationTransaction(app_id=app_id, version=version, first_tried_ms=clock.now_ms())
    keep = {
        "app_id": app_id,
        "version": version,
        "max_tries": max_tries,
        "first_tried_ms": chosen.first_tried_ms,
    }
    store.set(STATE_KEY, keep, retention=NEVER_EXPIRE)
    return chosen


def app_id_of(ti: Any) -> str:
    """`airflow_txlog/<deployment>/<dag>/<task>/<run>/<map index>` of a task instance; -1 where it is not mapped."""
    return f"airflow_txlog/{deployment_id()}/{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}"


def deployment_id() -> str:
    """What tells this Airflow from another that writes the same tables: a setting, else a hash of its API's URL."""
    configured = conf.get("txlog", "deployment_id", fallback="")
    if configured:
        return str(configured)
    base_url = conf.get("api", "base_url", fallback="") or ""
    return hashlib.sha256(base_url.encode()).hexdigest()[:12]


def annotations_of(context: Mapping[str, Any]) -> dict[str, Any]:
    """Who did it, for the people who read the table's history: it decides nothing."""
    ti = context["ti"]
    return {
        "dag_id": ti.dag_id,
        "task_id": ti.task_id,
        "run_id": ti.run_id,
        "map_index": ti.map_index,
        "try_number": ti.try_number,
    }
