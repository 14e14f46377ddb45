"""TableVersionSensor: wait until a table has a version, a newer one, or one of a certain time.

The question is put to the log through the engine: no Spark, no Java. Invariant: a table that does not exist yet is
waited for; a table that cannot be read is an error.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseSensorOperator, PokeReturnValue

from airflow_txlog.errors import InvalidInput, TableNotFound
from airflow_txlog.operators.given import has_template
from airflow_txlog.policies.retry import HAS_RETRY_POLICY, TxlogRetryPolicy

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_txlog.hooks.txlog import TxlogHook


class TableVersionSensor(BaseSensorOperator):
    """Wait for a version of a Delta table. Exactly one of `version`, `newer_than` and `since` is given.

    :param table_uri: the table: a path, a URI, or a name under the connection's base. (templated)
    :param version: wait until the table's latest version is this one or later. (templated)
    :param newer_than: wait until the table's latest version is later than this one, such as the one that an earlier
        task or run has seen; None in a template (`"None"`) means none was seen, and any version will do. (templated)
    :param since: wait until the table was last changed at or after this time: a datetime, or an ISO 8601 text; without
        a zone it is UTC. (templated)
    :param txlog_conn_id: a connection of type `txlog`, or None: no connection is needed.
    :param storage_conn_id: the connection whose credentials open the table's store, as of the operators.

    Returns `{"table_uri", "version", "timestamp_ms"}` of the latest version as it was found; `timestamp_ms` is null
    unless `since` was asked. Poke and reschedule modes are Airflow's own; in poke mode every look after the first is
    one small request.
    """

    template_fields: Sequence[str] = ("table_uri", "version", "newer_than", "since")
    ui_color = "#e4f2f7"
    # What a hook knows of a table is shared by copies of the task: it holds a lock, and cannot be copied.
    shallow_copy_attrs: Sequence[str] = ("_hook",)

    def __init__(
        self,
        *,
        table_uri: str,
        version: int | str | None = None,
        newer_than: int | str | None = None,
        since: dt.datetime | str | None = None,
        txlog_conn_id: str | None = None,
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table_uri = table_uri
        self.version = version
        self.newer_than = newer_than
        self.since = since
        self.txlog_conn_id = txlog_conn_id
        self.storage_conn_id = storage_conn_id
        self._hook: TxlogHook | None = None
        # What needs no rendering is refused when the DAG is parsed.
        self._check_one_condition()
        for name in ("version", "newer_than"):
            value = getattr(self, name)
            if value not in (None, "None") and not has_template(value):
                _version(name, value)
        if self.since is not None and not has_template(self.since):
            _timestamp_ms(self.since)
        # A log that is corrupt, or a condition that means nothing, is not worth another try.
        if HAS_RETRY_POLICY and self.retry_policy is None:
            self.retry_policy = TxlogRetryPolicy(otherwise="default")

    @property
    def hook(self) -> TxlogHook:
        """The hook of this sensor's connection. It keeps what it knows of the table from one poke to the next."""
        from airflow_txlog.hooks.txlog import TxlogHook

        if self._hook is None:
            self._hook = TxlogHook(self.txlog_conn_id, self.storage_conn_id)
        return self._hook

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once.

        Raises InvalidInput for a condition that cannot be understood, CorruptTable, UnsupportedFeature.
        """
        hook = self.hook
        self._check_one_condition()
        try:
            latest, timestamp_ms = self._latest(hook)
        except TableNotFound:
            self.log.info("table %s does not exist yet", self.table_uri)
            return PokeReturnValue(is_done=False)
        done = self._is_reached(latest, timestamp_ms)
        self.log.info("table %s is at version %s: %s", self.table_uri, latest, "reached" if done else "waiting")
        found = {"table_uri": hook.table_uri(self.table_uri), "version": latest, "timestamp_ms": timestamp_ms}
        return PokeReturnValue(is_done=done, xcom_value=found if done else None)

    def _check_one_condition(self) -> None:
        asked = [name for name in ("version", "newer_than", "since") if getattr(self, name) is not None]
        if len(asked) != 1:
            raise InvalidInput(
                f"Sensor {self.task_id} needs exactly one of version, newer_than and since; it has {asked or 'none'}."
            )

    def _latest(self, hook: TxlogHook) -> tuple[int, int | None]:
        """The latest version, and when it was committed where that is asked.

        The number alone needs no replay of the log: one listing shows it.
        """
        if self.since is None:
            return hook.latest_version(self.table_uri), None
        snapshot = hook.snapshot(self.table_uri)
        return snapshot.version, snapshot.timestamp_ms

    def _is_reached(self, latest: int, timestamp_ms: int | None) -> bool:
        if self.version is not None:
            return latest >= _version("version", self.version)
        if self.newer_than is not None:
            return self.newer_than == "None" or latest > _version("newer_than", self.newer_than)
        assert timestamp_ms is not None
        return timestamp_ms >= _timestamp_ms(self.since)


def _version(name: str, value: int | str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as e:
        raise InvalidInput(f"{name} must be a version number; found {value!r}.") from e


def _timestamp_ms(value: dt.datetime | str | None) -> int:
    try:
        moment = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    except ValueError as e:
        raise InvalidInput(f"since must be a time in ISO 8601; found {value!r}.") from e
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int(moment.timestamp() * 1000)
