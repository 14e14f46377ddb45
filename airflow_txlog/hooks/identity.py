"""The identity under which a task changes its table at most once: an application transaction.

The first try chooses its number once and keeps it with its app id in Airflow's task state store, before anything is
submitted. A retry and a second copy use the kept number. A cleared task takes the next one: Airflow has changed its
`max_tries`, or the task had succeeded, which `keep_success` records after Airflow's own database has. A later try that
finds nothing kept searches the table's log for commits of this task, whose tags name run, task, try and `max_tries`.

A task that calls `TxlogHook` several times does several pieces of work: each call has its own number and its own app
id, which ends in its method, its table and its position among such calls (`HookCall`).

An app id names the task instance, and before it the deployment: `[txlog] deployment_id` if that is set, else the id
that Airflow gave to the task's first try, which no two deployments share. Source: soundness A10.

`next_step` decides what a try does next. Invariant: the table is read before the state store is read for the last time.
A copy that then finds the store unchanged has read the table before the other copy could commit under the number that
it keeps first. So both hold the same number, and one of them wins.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX, ApplicationTransaction
from airflow_txlog.errors import IdempotencyKeyReused, InvalidJobSpec, TableMoved
from airflow_txlog.hooks.work_key import deployment_id, deployment_mark
from airflow_txlog.locations import shown

if TYPE_CHECKING:
    from airflow_txlog.exactly_once.transactions import RecordedWork

STATE_KEY = "txlog.transaction"
KEY_STATE_KEY = "txlog.idempotency_key"
FIRST_VERSION = 1

# The object by which Airflow means "never": its own constant if there is one.
try:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE
except ImportError:
    NEVER_EXPIRE = timedelta.max


@dataclass(frozen=True, kw_only=True)
class HookCall:
    """One call of a `TxlogHook` method in a task: the `number`-th of this method on this table, counted from 1.

    A retry makes the same calls in the same order, so the number finds the work of an earlier try.
    """

    table: str
    """The table as the caller spells it, with the connection of the hook: nothing is read to count a call."""
    method: str
    number: int

    @classmethod
    def next_in(cls, context: Mapping[str, Any], table: str, method: str, key: str | None = None) -> HookCall:
        """Return the next such call of this try. Every use counts, whether the call succeeds or not.

        Calls with an author's `key` are counted separately: their number and order may change between two tries.
        """
        ti = context["ti"]
        if key is not None:
            method = f"{method}-{_short_digest(str(key))}"
        # A task that is resumed after a deferral is another process with the same try, and counts from 1 again.
        resumed = getattr(getattr(ti, "_ti_context_from_server", None), "next_method", None)
        method = f"{resumed}-{method}" if resumed else method
        this_try = (ti.dag_id, ti.task_id, ti.run_id, ti.map_index, ti.try_number, str(ti.id))
        if this_try not in _calls:
            # A process runs one task at a time; one that runs several one after another needs only the last.
            _calls.clear()
            _calls[this_try] = Counter()
        _calls[this_try][table, method] += 1
        return cls(table=table, method=method, number=_calls[this_try][table, method])

    @property
    def name(self) -> str:
        """The last part of the call's app id. It is no map index, so no task instance has this id."""
        # Two spellings of one table are counted separately, and must not share an id.
        return f"{self.method}-{_short_digest(self.table)}-{self.number}"

    @property
    def slot(self) -> str:
        """The end of the key under which the state store keeps the call's number."""
        return f".{self.name}"


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


_calls: dict[tuple[Any, ...], Counter[tuple[str, str]]] = {}


@dataclass(frozen=True, kw_only=True)
class KeptNumber:
    """The number of a task, as the state store holds it."""

    app_id: str
    max_tries: int | None = None
    """Those of the try that kept the number: a clear changes them."""
    version: int | None = None
    first_tried_ms: int | None = None
    succeeded: bool = False
    """Whether the number's task succeeded: any later run is a clear."""
    refused: bool = False
    """Whether no number was chosen, because it is unknown whether a commit is this task's."""
    place: str | None = None
    """The place of a table that the task names in a catalog."""

    @classmethod
    def in_store(cls, store: Any, slot: str = "") -> KeptNumber | None:
        """Return the number that the store holds now for the task, or for one of its calls (`HookCall.slot`)."""
        data = store.get(STATE_KEY + slot)
        if not isinstance(data, dict):
            return None
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})

    def keep(self, store: Any, slot: str = "") -> None:
        """Put the number into the store, without expiry."""
        data = {name: value for name, value in asdict(self).items() if value is not None and value is not False}
        store.set(STATE_KEY + slot, data, retention=NEVER_EXPIRE)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The table's answer: its recorded number for the app id, and the store's content at the time of the query."""

    kept: KeptNumber | None
    app_id: str
    recorded: int | None


class Step(enum.Enum):
    """The next step of a try on the way to its number."""

    USE_KEPT = "use the number that is kept"
    ASK_TABLE = "ask the table for the recorded number, and read the store again"
    FIND_EARLIER = "look in the table's log for a commit of an earlier try, else take the next number"
    TAKE_NEXT = "take the number after the recorded one"


def next_step(kept: KeptNumber | None, asked: Asked | None, max_tries: int) -> Step:
    """Return the next step of a try, from the store's content and the table's last answer.

    | the store holds | the table was queried while it held the same | step |
    |---|---|---|
    | a number of this work: with the same `max_tries`, without a success | | USE_KEPT |
    | anything else | no | ASK_TABLE |
    | nothing, or a refusal of these tries | yes | FIND_EARLIER |
    | a number of other work, or a refusal from before a clear | yes | TAKE_NEXT |
    """
    is_of_these_tries = kept is not None and kept.max_tries == max_tries
    if kept is not None and is_of_these_tries and not kept.succeeded and not kept.refused:
        return Step.USE_KEPT
    if asked is None or asked.kept != kept:
        return Step.ASK_TABLE
    if kept is None or (is_of_these_tries and kept.refused):
        return Step.FIND_EARLIER
    return Step.TAKE_NEXT


def application_transaction(
    context: Mapping[str, Any],
    recorded_version: Callable[[str], int | None],
    idempotency_key: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    recorded_work: Callable[[str], Iterable[RecordedWork]] = lambda suffix: (),
    call: HookCall | None = None,
    place: str | None = None,
) -> ApplicationTransaction:
    """Return the transaction that this try of this task carries, or this `call` of it.

    `place`: of a table that the task names in a catalog. A later try of the same work goes nowhere else.

    Two functions read the table: `recorded_version` returns the number that it holds for an app id, `recorded_work` the
    commits whose app id has a given end. Neither is called for an author's key: its number is always 1, and the spec's
    digest identifies its work.

    Raises the state store's errors: without its answer a retry cannot be distinguished from new work. TableMoved.
    """
    name, slot = ("", "") if call is None else (call.name, call.slot)
    if idempotency_key is not None:
        check_key(idempotency_key)
        return _keyed_transaction(context, idempotency_key, clock, slot, place)
    if "task_state_store" not in context:
        return _earlier_work(context, recorded_work, name) or _transaction_without_store(context, clock, name)
    ti, store = context["ti"], context["task_state_store"]
    max_tries = int(ti.max_tries)
    asked: Asked | None = None
    while True:
        # After the table: see the module's invariant.
        kept = KeptNumber.in_store(store, slot)
        step = next_step(kept, asked, max_tries)
        if step is Step.USE_KEPT:
            assert kept is not None
            _check_place(kept.place, place)
            return _transaction_of(kept)
        if step is Step.ASK_TABLE or asked is None:
            # The id is kept with the number, so that a deployment that is renamed between two tries makes no new work.
            app_id = kept.app_id if kept is not None else app_id_of(ti, deployment_id() or str(ti.id), name)
            asked = Asked(kept=kept, app_id=app_id, recorded=recorded_version(app_id))
            continue
        earlier = None
        if step is Step.FIND_EARLIER:
            try:
                earlier = _earlier_work(context, recorded_work, name)
            except IdempotencyKeyReused:
                # This detects a clear, which changes `max_tries`: it is new work, whatever is recorded.
                KeptNumber(app_id=asked.app_id, max_tries=max_tries, refused=True).keep(store, slot)
                raise
        chosen = KeptNumber(
            app_id=asked.app_id if earlier is None else earlier.app_id,
            max_tries=max_tries,
            version=_number_after(asked.recorded) if earlier is None else earlier.version,
            first_tried_ms=clock.now_ms() if earlier is None else earlier.first_tried_ms,
            place=place,
        )
        # The number is kept before anything is submitted: no try of new work has met the table.
        chosen.keep(store, slot)
        return _transaction_of(chosen, is_first_try=earlier is None)


def _check_place(kept: Any, place: str | None) -> None:
    """Raise TableMoved if the work was tried at another place than this one."""
    if place is not None and kept is not None and kept != place:
        raise TableMoved(
            f"The name of the table led to {shown(str(kept))} in an earlier try of this task, and leads to "
            f"{shown(place)} now. That try may have committed there, so this one changes nothing here. Compare the "
            "two tables. Clear the task to do its work at the new place.",
            expected=shown(str(kept)),
            found=shown(place),
        )


def _number_after(recorded: int | None) -> int:
    # A rollback leaves a negative number.
    return FIRST_VERSION if recorded is None else max(FIRST_VERSION, recorded + 1)


def _transaction_of(kept: KeptNumber, *, is_first_try: bool = False) -> ApplicationTransaction:
    assert kept.version is not None
    return ApplicationTransaction(
        app_id=kept.app_id, version=kept.version, first_tried_ms=kept.first_tried_ms, is_first_try=is_first_try
    )


def _transaction_without_store(context: Mapping[str, Any], clock: Clock, name: str) -> ApplicationTransaction:
    """Return the transaction before Airflow 3.3: the number is `max_tries`; one from before this run is not ours."""
    ti, started = context["ti"], _run_started(context)
    # The time of a later try's first one is not kept; it was not before the run began.
    not_before_ms = _epoch_ms(started)
    return ApplicationTransaction(
        # Every try must compute the same app id, so it names the deployment by the moment that its run began.
        app_id=app_id_of(ti, deployment_id() or _iso(started) or "none", name),
        version=int(ti.max_tries),
        not_before_ms=not_before_ms,
        first_tried_ms=not_before_ms if ti.try_number > 1 else clock.now_ms(),
        is_first_try=_is_first_try(context),
    )


def keep_success(context: Mapping[str, Any], slot: str = "") -> None:
    """Record that the task of the kept number succeeded: any later run is a clear. `slot`: the number of a call.

    Call it after Airflow has recorded the success. Earlier, a worker that dies in between would be retried, and its
    retry would count as a clear. Later or never is safe: `max_tries` shows most clears, and without both the cleared
    task reports its work as already done.
    """
    store = context.get("task_state_store")
    kept = None if store is None else KeptNumber.in_store(store, slot)
    if kept is not None:
        replace(kept, succeeded=True).keep(store, slot)


def _keyed_transaction(
    context: Mapping[str, Any], key: str, clock: Clock, slot: str, place: str | None
) -> ApplicationTransaction:
    """Return the transaction of an author's key, first tried when this task did or before; a clear changes nothing."""
    first_tried_ms, is_first_try = _key_first_tried(context, key, clock, slot, place)
    return ApplicationTransaction(
        app_id=key, version=FIRST_VERSION, check_digest=True, first_tried_ms=first_tried_ms, is_first_try=is_first_try
    )


def _key_first_tried(
    context: Mapping[str, Any], key: str, clock: Clock, slot: str, place: str | None
) -> tuple[int, bool]:
    store = context.get("task_state_store")
    kept = None if store is None else store.get(KEY_STATE_KEY + slot)
    where = {} if place is None or "ti" not in context else {"place": place, "max_tries": int(context["ti"].max_tries)}
    if isinstance(kept, dict) and kept.get("key") == key:
        if where and kept.get("max_tries") == where["max_tries"]:
            _check_place(kept.get("place"), place)
        elif where and store is not None:
            # The task was cleared: its work goes to the place of now.
            store.set(KEY_STATE_KEY + slot, {**kept, **where}, retention=NEVER_EXPIRE)
        return int(kept["first_tried_ms"]), False
    is_retry = "ti" in context and context["ti"].try_number > 1
    started_ms = _epoch_ms(_run_started(context)) if is_retry else None
    first_tried_ms = clock.now_ms() if started_ms is None else started_ms
    if store is not None:
        store.set(KEY_STATE_KEY + slot, {"key": key, "first_tried_ms": first_tried_ms, **where}, retention=NEVER_EXPIRE)
    # Another key is other work, which this task has not tried.
    return first_tried_ms, isinstance(kept, dict) or _is_first_try(context)


def _is_first_try(context: Mapping[str, Any]) -> bool:
    """Return whether no earlier try is possible since the task was created or cleared, by its `max_tries`."""
    if "ti" not in context:
        return False
    ti, retries = context["ti"], getattr(context.get("task"), "retries", None)
    is_first_after_clear = isinstance(retries, int) and ti.try_number == ti.max_tries - retries + 1
    return ti.try_number <= 1 or is_first_after_clear


def _earlier_work(
    context: Mapping[str, Any], recorded_work: Callable[[str], Iterable[RecordedWork]], name: str
) -> ApplicationTransaction | None:
    """Return the work that an earlier try of this task committed, from the table's log, if the store keeps nothing
    about it.

    The number was lost, or the try ran under an Airflow without a state store, or under a release of this package with
    other app ids. A commit with other `max_tries` is from before a clear and does not count.

    Raises IdempotencyKeyReused if it is unknown whether a commit is this task's: it is older than the run. An earlier
    run of the same name may have made it, or this task before the run was queued again.
    """
    ti = context["ti"]
    if ti.try_number <= 1:
        return None
    configured, started = deployment_id(), _run_started(context)
    started_ms = _epoch_ms(started)
    has_store = "task_state_store" in context
    for work in recorded_work(app_id_of(ti, "", name)):
        tagged = work.tags.get(ANNOTATION_TAG_PREFIX + "run_started")
        is_of_this_run = tagged is not None and tagged == _iso(started)
        if configured and work.app_id != app_id_of(ti, configured, name) and not is_of_this_run:
            continue
        # Without a state store the number is the `max_tries` of its try, even if the commit's tags are lost.
        its_max_tries = _number(work, "max_tries", ti.max_tries if has_store else work.version)
        if _number(work, "try_number", 0) >= ti.try_number or its_max_tries != ti.max_tries:
            continue
        if not is_of_this_run and started_ms is not None and (work.recorded_ms or 0) < started_ms:
            raise IdempotencyKeyReused(
                f"The application transaction {work.app_id!r} was recorded before this run began. It may be an earlier "
                f"try of this task, an earlier run of the same name, or another Airflow: nothing kept by this Airflow "
                "shows which. Nothing was done now. Check the table's history. If the work is missing, clear "
                "the task to repeat it. Set [txlog] deployment_id if several deployments write the table.",
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


def app_id_of(ti: Any, deployment: str, call: str = "") -> str:
    """Return `airflow_txlog/<deployment>/<dag>/<task>/<run>/<map index>` of a task instance; -1 if it is not mapped.

    A `call` of `TxlogHook` adds its own name. Without a deployment, return the part that all deployments share: from
    the slash before the DAG on.
    """
    prefix = f"airflow_txlog/{deployment}" if deployment else ""
    return f"{prefix}/{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}{f'/{call}' if call else ''}"


def job_identity(context: Mapping[str, Any]) -> ApplicationTransaction:
    """Return the name of the job of a task without a transaction. It is the same for every try until a clear."""
    ti = context["ti"]
    deployment = deployment_id() or _iso(_run_started(context)) or "none"
    return ApplicationTransaction(app_id=app_id_of(ti, deployment), version=int(ti.max_tries))


def check_key(key: str) -> None:
    """Raise InvalidJobSpec for an idempotency key that is not a text, or is empty."""
    if not isinstance(key, str):
        raise InvalidJobSpec(
            f"idempotency_key must be a text; found {type(key).__name__}. In a template, | string makes one of it. "
            "Nothing was read.",
            argument="idempotency_key",
        )
    if not key.strip():
        raise InvalidJobSpec("idempotency_key must not be empty: it names the work.", argument="idempotency_key")


def _run_started(context: Mapping[str, Any]) -> datetime | None:
    dag_run = context.get("dag_run")
    return None if dag_run is None else dag_run.start_date


def _epoch_ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _iso(moment: datetime | None) -> str | None:
    """Return a moment in UTC to the microsecond, in one spelling for all classes and time zones that Airflow uses."""
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def annotations_of(context: Mapping[str, Any], *, is_sensitive: bool = False) -> dict[str, Any]:
    """Return the task instance and its try for the commit's tags: for people, a rollback, and a try without a number.

    Empty without a task instance. The label of a mapped task may hold a value, so it is left out of a sensitive one.
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
        "deployment": deployment_mark(),
    }
