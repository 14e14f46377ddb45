"""TableVersionTrigger: wait for versions of a table in the triggerer, for one task or for an asset.

All triggers of one table share a stream of looks. A look is one listing by a thread of a small pool, which also
computes the answers for all waiting triggers; the event loop only passes them on. Invariant: a watching trigger keeps
the position of its events only after Airflow has stored the event, so a triggerer that dies loses none; one that dies
within that moment repeats the event. A serialized trigger holds no secret: connections are named.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import TriggerEvent

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import InvalidInput, TxlogError
from airflow_txlog.hooks.waiting import WaitAnswer, condition_of
from airflow_txlog.locations import shown
from airflow_txlog.policies.rings import Ring, ring_of

if TYPE_CHECKING:
    from airflow_txlog.hooks.txlog import TxlogHook

# Since Airflow 3.3, which confirms to a stream the events that are in its database.
try:
    from airflow.triggers import shared_stream
except ImportError:
    shared_stream = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

# The number of tables checked at the same time; the others wait for a thread.
_THREADS = 8
_SHORTEST_WAIT_S, _TICK_S = 0.1, 1.0


@dataclass(eq=False, slots=True)
class _Wait:
    """One trigger that waits for its answer."""

    condition: dict[str, Any] | None
    """None until the table's position at the start of watching is known."""
    checked: dict[str, Any] | None
    interval_s: float


@dataclass(slots=True)
class _Look:
    """One look at a table, for all that waited at that time."""

    answers: dict[_Wait, WaitAnswer | Exception]
    is_confirmed: bool
    """Whether `when_stored` is called; without it an event counts as stored when the next one is requested."""
    when_stored: list[Callable[[], Awaitable[None]]] = field(default_factory=list)


# By stream: the triggers of this process that wait for the same table.
_WAITS: dict[Hashable, list[_Wait]] = {}


class TableVersionTrigger(BaseEventTrigger):
    """Fire when a Delta table has new versions: one event for all versions since the last poll.

    For an asset: `AssetWatcher(name="orders_log", trigger=TableVersionTrigger("/lake/orders"))`. The first event is for
    the first version after the start of watching. From then on the asset's state store keeps the position of the
    events, across restarts of the triggerer (Airflow 3.3; in earlier versions, watching starts again with each
    restart).

    :param table_uri: the table: a path, a URI, a name under the connection's base, or with `catalog_conn_id` its name
        in the catalog, such as "sales.orders".
    :param newer_than: start watching after this version; -1 is before the first version. Default: the table's latest
        version.
    :param operation: only versions by this operation, or by one of these.
    :param committed_by_dag: only versions that a task of this DAG committed through this package.
    :param committed_by_task: only versions that a task of this id committed through this package.
    :param partition: only versions that added rows to this partition.
    :param data_changes_only: only versions that added or removed rows. Default: yes, unless `operation` is given.
    :param poke_interval: the seconds between two polls. Triggers of one table share the polls of the shortest interval.
    :param txlog_conn_id: a connection of type `txlog`, or None.
    :param storage_conn_id: the connection whose credentials open the table's store.
    :param catalog_conn_id: the connection of a catalog. The trigger asks it once, and again after an error.
    :param version: with `once` only: this version or a later one.
    :param since: with `once` only: a version committed at or after this time.
    :param once: fire one event and end, as `TableVersionSensor` needs it.
    :param checked: with `once` only: the position up to which the sensor has checked the same condition.

    An event is `{"table_uri", "from_version", "version", "commit_mark", "matched_version", "operation", "timestamp_ms",
    "recreated"}`: the versions later than `from_version`, up to `version`, are new.
    """

    def __init__(
        self,
        table_uri: str,
        *,
        version: int | None = None,
        newer_than: int | Mapping[str, Any] | None = None,
        since: Any = None,
        operation: str | Sequence[str] | None = None,
        committed_by_dag: str | None = None,
        committed_by_task: str | None = None,
        partition: Mapping[str, Any] | None = None,
        data_changes_only: bool | None = None,
        poke_interval: float = 60.0,
        txlog_conn_id: str | None = None,
        storage_conn_id: str | None = None,
        catalog_conn_id: str | None = None,
        once: bool = False,
        checked: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table_uri = table_uri
        self.poke_interval = poke_interval
        self.txlog_conn_id = txlog_conn_id
        self.storage_conn_id = storage_conn_id
        self.catalog_conn_id = catalog_conn_id
        self.once = once
        self.checked = None if checked is None else dict(checked)
        who = f"TableVersionTrigger (table_uri: {shown(str(table_uri))})"
        if not once and (version is not None or since is not None or checked is not None):
            raise InvalidInput(
                f"{who}: version, since and checked are for a trigger that fires once; watch with newer_than."
            )
        # The triggerer determines the version at which watching begins.
        self._begins_where_it_stands = not once and newer_than is None
        try:
            self.condition = condition_of(
                version=version,
                newer_than=-1 if self._begins_where_it_stands else newer_than,
                since=since,
                operation=operation,
                committed_by_dag=committed_by_dag,
                committed_by_task=committed_by_task,
                partition=partition,
                data_changes_only=data_changes_only,
            )
        except InvalidInput as error:
            raise InvalidInput(f"{who}: {error.message}") from None
        if self._begins_where_it_stands:
            del self.condition["newer_than"]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, as Airflow's database keeps them."""
        given = {
            "txlog_conn_id": self.txlog_conn_id,
            "storage_conn_id": self.storage_conn_id,
            "catalog_conn_id": self.catalog_conn_id,
            "once": self.once or None,
            "checked": self.checked,
        }
        arguments = {name: value for name, value in given.items() if value is not None}
        kwargs = {"table_uri": self.table_uri, **self.condition, "poke_interval": self.poke_interval, **arguments}
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    # --- the shared stream ------------------------------------------------------------------------------------------

    def shared_stream_key(self) -> Hashable:
        """Return the key that the triggers of one table share."""
        return _key(self.serialize()[1])

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        """Yield the looks at the table, for an Airflow with shared streams that does not confirm what it stored."""
        async for look in _looks(kwargs, lambda: _WAITS.get(_key(kwargs), []), is_confirmed=False):
            yield look

    if shared_stream is not None:

        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
            """Return the looks at the table with confirmation."""
            return _producer(kwargs)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield this trigger's events of the shared looks."""
        wait, key = await self._begin(), self.shared_stream_key()
        waits = _WAITS.setdefault(key, [])
        waits.append(wait)
        try:
            async for event in self._events(wait, shared_stream):
                yield event
        finally:
            waits.remove(wait)
            if not waits:
                _WAITS.pop(key, None)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the events of this trigger's private checks: without shared streams, and in `dag.test()`."""
        wait = await self._begin()
        async for event in self._events(wait, _looks(self.serialize()[1], lambda: [wait], is_confirmed=False)):
            yield event

    async def _events(self, wait: _Wait, looks: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for look in looks:
            answer = look.answers.get(wait)
            if answer is None:
                continue
            if isinstance(answer, Exception):
                if self._is_final(answer):
                    yield _event({"error": answer.to_dict()})
                    return
            elif wait.condition is None:
                # Watching begins here. Nothing is reported, so it can be kept at once.
                wait.condition = {**self.condition, "newer_than": answer.checked}
                await self._keep(answer.checked)
            elif answer.reached and self.once:
                yield _event(answer.report)
                return
            elif answer.reached:
                report = {**answer.report, "from_version": wait.condition["newer_than"]["version"]}
                wait.condition = {**wait.condition, "newer_than": answer.checked}
                keep = partial(self._keep, answer.checked)
                if look.is_confirmed:
                    look.when_stored.append(keep)
                yield _event(report)
                if not look.is_confirmed:
                    await keep()

    def _is_final(self, error: Exception) -> TypeGuard[TxlogError]:
        """Return whether the waiting task must fail, because another look would find the same. A watching trigger
        always continues.
        """
        if self.once and ring_of(error) is Ring.NONE:
            return True
        self.log.warning("table %s: %s: %s; looking again", self.table_uri, type(error).__name__, error)
        return False

    # --- how far the events of a watching trigger went --------------------------------------------------------------

    async def _begin(self) -> _Wait:
        if self.once:
            return _Wait(self.condition, self.checked, self.poke_interval)
        kept = None
        for store in self._stores():
            kept = await store.aget(self._state_key(), None)
            if kept is not None:
                break
        if kept is not None:
            self.log.info("watching table %s after version %s", self.table_uri, kept["version"])
            return _Wait({**self.condition, "newer_than": kept}, None, self.poke_interval)
        return _Wait(None if self._begins_where_it_stands else self.condition, None, self.poke_interval)

    async def _keep(self, position: dict[str, Any]) -> None:
        for store in self._stores():
            await store.aset(self._state_key(), position)

    def _stores(self) -> list[Any]:
        """Return the state stores of the watched assets, one each (apache/airflow #71460); none before Airflow 3.3."""
        accessors = getattr(self, "asset_state_store", None)
        if accessors is None:
            return []
        each = [*getattr(accessors, "_by_name", {}).values(), *getattr(accessors, "_by_uri", {}).values()]
        return each or [accessors]

    def _state_key(self) -> str:
        """Return the key of this condition, without its interval. Several triggers may watch one asset."""
        kwargs = {name: value for name, value in self.serialize()[1].items() if name != "poke_interval"}
        digest = hashlib.sha256(json.dumps(kwargs, sort_keys=True).encode()).hexdigest()
        return f"txlog_version_{digest[:16]}"


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def _key(kwargs: Mapping[str, Any]) -> Hashable:
    return ("txlog", kwargs["table_uri"], *(kwargs.get(f"{name}_conn_id") for name in ("txlog", "storage", "catalog")))


async def _looks(
    kwargs: Mapping[str, Any], waiting: Callable[[], list[_Wait]], *, is_confirmed: bool
) -> AsyncIterator[_Look]:
    """Yield looks at the table for ever, at the shortest interval of all that wait."""
    looker = _Looker(kwargs)
    loop = asyncio.get_running_loop()
    while True:
        while not waiting():
            await asyncio.sleep(_SHORTEST_WAIT_S)
        waits = list(waiting())
        began_s = SYSTEM_CLOCK.monotonic_s()
        questions = [(wait.condition, wait.checked) for wait in waits]
        found = await loop.run_in_executor(_threads(), looker.ask, questions)
        for wait, answer in zip(waits, found, strict=True):
            # The first answer holds the version at which watching begins; the trigger has yet to read it.
            if wait.condition is not None and not isinstance(answer, Exception):
                wait.checked = answer.checked
        yield _Look(dict(zip(waits, found, strict=True)), is_confirmed)
        while True:
            shortest_s = min((wait.interval_s for wait in waiting()), default=_TICK_S)
            left_s = began_s + max(shortest_s, _SHORTEST_WAIT_S) - SYSTEM_CLOCK.monotonic_s()
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, _TICK_S))


class _Looker:
    """Checks one table, in a thread: slow work belongs here, including the import of the engine."""

    def __init__(self, kwargs: Mapping[str, Any]) -> None:
        self._kwargs = kwargs
        self._hook: TxlogHook | None = None

    def ask(self, questions: Sequence[Any]) -> list[WaitAnswer | Exception]:
        from airflow_txlog.hooks.txlog import TxlogHook

        try:
            if self._hook is None:
                names = ("txlog_conn_id", "storage_conn_id", "catalog_conn_id")
                self._hook = TxlogHook(**{name: self._kwargs.get(name) for name in names})
            return self._hook.followed(self._kwargs["table_uri"]).ask(questions)
        except Exception as error:
            # Read the connection again next time: it may have been corrected.
            self._hook = None
            return [error for _ in questions]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="txlog-watch")


def _producer(kwargs: dict[str, Any]) -> Any:
    class Producer(shared_stream.SharedStreamProducer):
        """The looks at one table, with Airflow's confirmation of their events."""

        async def open_stream(self) -> AsyncIterator[tuple[_Look, _Look]]:
            async for look in _looks(kwargs, lambda: _WAITS.get(_key(kwargs), []), is_confirmed=True):
                yield look, look

        async def advance(self, batch: Sequence[Any]) -> None:
            """Keep the position of the events that Airflow has stored."""
            for item in batch:
                for keep in () if item.outcome.failed else item.broker_payload.when_stored:
                    try:
                        await keep()
                    except Exception as error:
                        # The next event keeps more; until then a restart would repeat this one.
                        log.warning("how far events went could not be kept: %s: %s", type(error).__name__, error)

    return Producer()
