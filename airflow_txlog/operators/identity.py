"""The identity under which a task changes its table at most once: an application transaction.

Its number is chosen once, on the first try, and kept with its app id in Airflow's task state store before anything is
submitted. A retry and a second copy use what is kept. A cleared task takes the next number: Airflow has changed its
`max_tries`, or it had succeeded, which `keep_success` records once Airflow's own database has. A later try that finds
nothing kept asks the table's log for commits of this task: their tags name the run, the task, the try and `max_tries`.

An app id names the task instance, and before it the deployment: `[txlog] deployment_id` where that is set, else what no
two deployments share, which is the id that Airflow gave to the task's first try. Source: soundness A10.

Invariant: the table is read before the state store is read for the last time. A copy that then finds the store as it
was has read the table before the other copy could commit under the number that it keeps first, so both hold the same
number and one of them wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow.providers.common.compat.sdk import conf

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX, ApplicationTransaction
from airflow_txlog.errors import IdempotencyKeyReused
from airflow_txlog.operators.arguments.texts import check_key

if TYPE_CHECKING:
    from airflow_txlog.exactly_once.transactions import RecordedWork

STATE_KEY = "txlog.transaction"
KEY_STATE_KEY = "txlog.idempotency_key"
FIRST_VERSION = 1

# Airflow says "never" by this very object; the constant is its own where it exists.
try:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE
except ImportError:
    NEVER_EXPIRE = timedelta.max


def application_transaction(
    context: Mapping[str, Any],
    recorded_version: Callable[[str], int | None],
    idempotency_key: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    recorded_work: Callable[[str], Iterable[RecordedWork]] = lambda suffix: (),
) -> ApplicationTransaction:
    """The transaction that this try of this task carries.

    Two functions read the table: `recorded_version` returns the number that it holds for an app id, `recorded_work` the
    commits whose app id has a given end. Neither is called for an author's key, whose number is always 1 and whose work
    is recognised by the spec's digest.

    Without a state store (Airflow before 3.3) the number is `max_tries`, which a clear raises, and a transaction that
    the table recorded before this run began is not taken for this task's.

    Raises what the state store raises: without its answer a retry cannot be distinguished from new work.
    """
    if idempotency_key is not None:
        check_key(idempotency_key)
        return _keyed_transaction(context, idempotency_key, clock)
    ti = context["ti"]
    max_tries = int(ti.max_tries)
    if "task_state_store" not in context:
        earlier = _earlier_work(context, recorded_work)
        if earlier is not None:
            return earlier
        not_before_ms = _epoch_ms(_run_started(context))
        # When a later try's first one was is not kept anywhere; it was not before the run began.
        return ApplicationTransaction(
            # Every try must compute the same app id, so it names the deployment by the moment that its run began.
            app_id=app_id_of(ti, deployment_id() or _iso(_run_started(context)) or "none"),
            version=max_tries,
            not_before_ms=not_before_ms,
            first_tried_ms=not_before_ms if ti.try_number > 1 else clock.now_ms(),
            is_first_try=_is_first_try(context),
        )
    store = context["task_state_store"]
    kept = _kept(store)
    is_first_try = False
    while not _is_of_this_work(kept, max_tries):
        # The id is kept with the number, so that a deployment that is renamed between two tries makes no new work.
        app_id = str(kept["app_id"]) if kept else app_id_of(ti, deployment_id() or str(ti.id))
        recorded = recorded_version(app_id)
        before, kept = kept, _kept(store)
        if kept == before:
            chosen = None
            if kept is None or (kept.get("refused") and kept.get("max_tries") == max_tries):
                try:
                    chosen = _earlier_work(context, recorded_work)
                except IdempotencyKeyReused:
                    # By this a clear, which changes `max_tries`, is known as one: it is new work, whatever is recorded.
                    refused = {"app_id": app_id, "max_tries": max_tries, "refused": True}
                    store.set(STATE_KEY, refused, retention=NEVER_EXPIRE)
                    raise
            if chosen is None:
                # The number is kept before anything is submitted: no try of this work has met the table.
                is_first_try = True
                version = FIRST_VERSION if recorded is None else recorded + 1
                chosen = ApplicationTransaction(app_id=app_id, version=version, first_tried_ms=clock.now_ms())
            kept = {
                "app_id": chosen.app_id,
                "version": chosen.version,
                "max_tries": max_tries,
                "first_tried_ms": chosen.first_tried_ms,
            }
            store.set(STATE_KEY, kept, retention=NEVER_EXPIRE)
    return ApplicationTransaction(
        app_id=str(kept["app_id"]),
        version=int(kept["version"]),
        first_tried_ms=kept.get("first_tried_ms"),
        is_first_try=is_first_try,
    )


def keep_success(context: Mapping[str, Any]) -> None:
    """Record that the task's number belongs to a task that succeeded: whatever runs it again is a clear.

    To be called once Airflow has recorded the success. Earlier, a worker that dies in between would be retried, and its
    retry taken for a clear. Later or never is safe: `max_tries` shows most clears, and where both are missing the
    cleared task reports its work as done already.
    """
    store = context.get("task_state_store")
    kept = None if store is None else _kept(store)
    if store is not None and kept is not None:
        store.set(STATE_KEY, {**kept, "succeeded": True}, retention=NEVER_EXPIRE)


def _keyed_transaction(context: Mapping[str, Any], key: str, clock: Clock) -> ApplicationTransaction:
    """Return the transaction of an author's key.

    Its `first_tried_ms` is when this task first tried that work, or an earlier moment where that is not kept. It stays
    the same over a clear, which does not repeat such work.
    """
    first_tried_ms, is_first_try = _key_first_tried(context, key, clock)
    return ApplicationTransaction(
        app_id=key, version=FIRST_VERSION, check_digest=True, first_tried_ms=first_tried_ms, is_first_try=is_first_try
    )


def _key_first_tried(context: Mapping[str, Any], key: str, clock: Clock) -> tuple[int, bool]:
    store = context.get("task_state_store")
    kept = None if store is None else store.get(KEY_STATE_KEY)
    if isinstance(kept, dict) and kept.get("key") == key:
        return int(kept["first_tried_ms"]), False
    is_retry = "ti" in context and context["ti"].try_number > 1
    started_ms = _epoch_ms(_run_started(context)) if is_retry else None
    first_tried_ms = clock.now_ms() if started_ms is None else started_ms
    if store is not None:
        store.set(KEY_STATE_KEY, {"key": key, "first_tried_ms": first_tried_ms}, retention=NEVER_EXPIRE)
    # Another key is other work, which this task has not tried.
    return first_tried_ms, isinstance(kept, dict) or _is_first_try(context)


def _is_first_try(context: Mapping[str, Any]) -> bool:
    """Return whether no try can have come before this one since the task was made, or was cleared.

    A clear sets `max_tries` to the tries so far and `retries` again.
    """
    if "ti" not in context:
        return False
    ti, retries = context["ti"], getattr(context.get("task"), "retries", None)
    is_first_after_clear = isinstance(retries, int) and ti.try_number == ti.max_tries - retries + 1
    return ti.try_number <= 1 or is_first_after_clear


def _kept(store: Any) -> dict[str, Any] | None:
    kept = store.get(STATE_KEY)
    return kept if isinstance(kept, dict) else None


def _is_of_this_work(kept: dict[str, Any] | None, max_tries: int) -> TypeGuard[dict[str, Any]]:
    """Whether what is kept belongs to a try that this one retries, and not to one before a clear."""
    if kept is None or kept.get("max_tries") != max_tries:
        return False
    return not kept.get("succeeded") and not kept.get("refused")


def _earlier_work(
    context: Mapping[str, Any], recorded_work: Callable[[str], Iterable[RecordedWork]]
) -> ApplicationTransaction | None:
    """What an earlier try of this task committed, by the table's log, where nothing is kept about that try.

    Its number was lost, or it ran under an Airflow without a state store, or under a release of this package with other
    app ids. A commit of other `max_tries` is from before a clear, and no commit of this work.

    Raises IdempotencyKeyReused where it cannot be known whether a commit is this task's: it is older than the run, as
    an earlier run of the same name left it, or as this task did before the run was set back to the queue.
    """
    ti = context["ti"]
    if ti.try_number <= 1:
        return None
    configured, started = deployment_id(), _run_started(context)
    started_ms = _epoch_ms(started)
    has_store = "task_state_store" in context
    for work in recorded_work(app_id_of(ti, "")):
        tagged = work.tags.get(ANNOTATION_TAG_PREFIX + "run_started")
        is_of_this_run = tagged is not None and tagged == _iso(started)
        if configured and work.app_id != app_id_of(ti, configured) and not is_of_this_run:
            continue
        # Without a state store the number is the `max_tries` of its try, also where the commit's tags are lost.
        its_max_tries = _number(work, "max_tries", ti.max_tries if has_store else work.version)
        if _number(work, "try_number", 0) >= ti.try_number or its_max_tries != ti.max_tries:
            continue
        if not is_of_this_run and started_ms is not None and (work.recorded_ms or 0) < started_ms:
            raise IdempotencyKeyReused(
                f"The application transaction {work.app_id!r} was recorded before this run began. It may be an earlier "
                f"try of this task, an earlier run of the same name, or another Airflow: nothing kept by this Airflow "
                "shows which. Nothing was done now. Look into the table's history; where the work is missing, clear "
                "the task to have it done. Set [txlog] deployment_id where several deployments write the table.",
                app_id=work.app_id,
                version=work.version,
            )
        if is_of_this_run or configured or tagged is None:
            return ApplicationTransaction(
                app_id=work.app_id, version=work.version, first_tried_ms=work.recorded_ms or started_ms
            )
    return None


def _number(work: RecordedWork, name: str, default: int) -> int:
    text = work.tags.get(ANNOTATION_TAG_PREFIX + name, "")
    return int(text) if text.isdigit() else default


def app_id_of(ti: Any, deployment: str) -> str:
    """`airflow_txlog/<deployment>/<dag>/<task>/<run>/<map index>` of a task instance; -1 where it is not mapped.

    For no deployment only the part that all deployments share: from the slash before the DAG on.
    """
    prefix = f"airflow_txlog/{deployment}" if deployment else ""
    return f"{prefix}/{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}"


def job_identity(context: Mapping[str, Any]) -> ApplicationTransaction:
    """What names the job of a task that carries no transaction, the same for every try until the task is cleared."""
    ti = context["ti"]
    deployment = deployment_id() or _iso(_run_started(context)) or "none"
    return ApplicationTransaction(app_id=app_id_of(ti, deployment), version=int(ti.max_tries))


def deployment_id() -> str:
    """The name that the configuration gives to this Airflow deployment; empty where it gives none."""
    return str(conf.get("txlog", "deployment_id", fallback="") or "")


def _run_started(context: Mapping[str, Any]) -> datetime | None:
    dag_run = context.get("dag_run")
    return None if dag_run is None else dag_run.start_date


def _epoch_ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _iso(moment: datetime | None) -> str | None:
    """A moment in UTC to the microsecond, in one spelling whatever class and time zone Airflow gives it in."""
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def annotations_of(context: Mapping[str, Any], *, is_sensitive: bool = False) -> dict[str, Any]:
    """The task instance and its try, for the commit's tags: people read them, and a try whose number was lost.

    Nothing without a task instance. The label of a mapped task may hold a value, so a sensitive one gives none.
    """
    if "ti" not in context:
        return {}
    ti = context["ti"]
    return {
        "dag_id": ti.dag_id,
        "task_id": ti.task_id,
        "run_id": ti.run_id,
        "map_index": ti.map_index,
        "map_label": None if is_sensitive else getattr(ti, "rendered_map_index", None),
        "try_number": ti.try_number,
        "max_tries": ti.max_tries,
        "run_started": _iso(_run_started(context)),
    }
