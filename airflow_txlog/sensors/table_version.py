"""TableVersionSensor: wait until a table has a version, or one that satisfies a condition.

The engine reads the log, without Spark or Java. When deferred, `TableVersionTrigger` checks the same condition.
Invariant: the sensor waits for a table that does not exist yet; one that cannot be read is an error.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from airflow_txlog.errors import InvalidInput, TableNotFound, from_dict
from airflow_txlog.hooks.named_tables import check_name, no_catalog
from airflow_txlog.hooks.run_versions import pinned_version
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.hooks.waiting import condition_of
from airflow_txlog.locations import is_absolute, shown
from airflow_txlog.operators.arguments.given import has_template, path_text
from airflow_txlog.operators.arguments.rendering import TemplatedOperator
from airflow_txlog.policies.retry import HAS_RETRY_POLICY, TxlogRetryPolicy

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_CONDITION = (
    *("version", "newer_than", "since", "operation", "committed_by_dag", "committed_by_task", "partition"),
    "data_changes_only",
)


class TableVersionSensor(TemplatedOperator, BaseSensorOperator):
    """Wait for a version of a Delta table that satisfies all given conditions.

    Pass at most one of `version`, `newer_than` and `since`. Only versions that added or removed rows count, unless
    `data_changes_only` is False. A VACUUM or an OPTIMIZE therefore does not satisfy the sensor.

    :param table_uri: the table: a path, a URI, or a name under the connection's base. (templated)
    :param table: the table's name in a catalog, such as "sales.orders", instead of `table_uri`. (templated)
    :param version: this version or a later one. Without other arguments, any commit counts. (templated)
    :param newer_than: a version later than this one: a number, or the result of an operator or a sensor of this package
        (`newer_than=load.output`). None in a template, or from a task, means that no version has been seen yet, so any
        version counts. If the table was dropped and created again since then, every version is later. (templated)
    :param since: a version that was committed at or after this time: a datetime, or an ISO 8601 string; without a zone
        it is UTC. (templated)
    :param operation: a version by this operation, or by one operation of a list, as the table's history names them:
        "MERGE", "WRITE", "DELETE", "OPTIMIZE", … (templated)
    :param committed_by_dag: a version that a task of this DAG committed with this package. (templated)
    :param committed_by_task: a version that a task with this id committed with this package. (templated)
    :param partition: values by partition column, such as `{"day": "{{ ds }}"}`: a version that added rows to the
        partition. As the only argument, it waits until the partition has rows. (templated)
    :param data_changes_only: whether only versions that added or removed rows count. Default: True, unless `operation`
        is given.
    :param as_of: "run": only versions up to the one that a `PinVersionsOperator` before this task has fixed for the run
        count. What they show does not change, so the sensor looks once and fails, or with `soft_fail` is skipped, if
        they do not satisfy.
    :param deferrable: wait in the triggerer, without a worker slot. Default: `[operators] default_deferrable`.
    :param txlog_conn_id: a connection of type `txlog`, or None: no connection is needed.
    :param storage_conn_id: the connection whose credentials open the table's store, as in the operators.
    :param catalog_conn_id: the connection of the catalog of `table`, as in the operators. A sensor in the triggerer
        resolves the name there, too.

    Returns `{"table_uri", "version", "commit_mark", "from_version", "matched_version", "operation", "timestamp_ms",
    "recreated"}`: the latest version, and a mark that distinguishes it from the same version of another table; the
    version after which the sensor checked; the newest version that satisfied the condition, with its operation and its
    time in milliseconds since the epoch (null if the version number or existing rows satisfied the sensor); and whether
    the table was created again since then. Poke and reschedule modes work as in Airflow. A poke takes one small
    request, except the first one in poke mode and in the triggerer.
    """

    template_fields: Sequence[str] = (
        *("table_uri", "table", "version", "newer_than", "since", "operation", "committed_by_dag", "committed_by_task"),
        "partition",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"newer_than": "json", "partition": "json"}
    ui_color = "#e4f2f7"
    # Copies of the task share the hook: its state of a table holds a lock, and cannot be copied.
    shallow_copy_attrs: Sequence[str] = ("_hook",)

    def __init__(
        self,
        *,
        table_uri: str | None = None,
        table: str | None = None,
        version: int | str | None = None,
        newer_than: int | str | Mapping[str, Any] | None = None,
        since: dt.datetime | str | None = None,
        operation: str | Sequence[str] | None = None,
        committed_by_dag: str | None = None,
        committed_by_task: str | None = None,
        partition: Mapping[str, Any] | None = None,
        data_changes_only: bool | None = None,
        as_of: Literal["run"] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        txlog_conn_id: str | None = None,
        storage_conn_id: str | None = None,
        catalog_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (table is None) == (table_uri is None):
            found = "None" if table is None else "both"
            raise InvalidInput(f"Give table_uri, a place, or table, a name in a catalog; found {found}.")
        if table is not None and catalog_conn_id is None and txlog_conn_id is None:
            raise InvalidInput("table is a name in a catalog: name the catalog's connection in catalog_conn_id.")
        if table is not None and not has_template(table):
            check_name(table)
        self.table_uri = path_text(table_uri)
        self.table = table
        self.catalog_conn_id = catalog_conn_id
        self.version = version
        self.newer_than = newer_than
        self.since = since
        self.operation = operation
        self.committed_by_dag = committed_by_dag
        self.committed_by_task = committed_by_task
        self.partition = partition
        self.data_changes_only = data_changes_only
        self.as_of = as_of
        self.deferrable = deferrable
        self.txlog_conn_id = txlog_conn_id
        self.storage_conn_id = storage_conn_id
        self._hook: TxlogHook | None = None
        self._checked: dict[str, Any] | None = None
        # Invalid values without a template are refused when the DAG is parsed.
        given = {name: getattr(self, name) for name in _CONDITION}
        named = self.table_uri if isinstance(self.table_uri, str) else None
        is_known = table is None and catalog_conn_id is None and (named is None or txlog_conn_id is None)
        if is_known and not has_template(self.table_uri) and not (named and is_absolute(named)):
            raise InvalidInput(
                f"table_uri must be an absolute path or a URI, or with a txlog_conn_id a name under its base; found "
                f"{self.table_uri if named is None else shown(named)!r}."
            )
        if as_of not in (None, "run"):
            raise InvalidInput('as_of must be "run", or be left out.')
        self._given = [name for name, value in given.items() if value is not None]
        condition_of(**{name: _STANDS_FOR[name] if has_template(value) else value for name, value in given.items()})
        # A corrupt log or an invalid condition is not worth another try.
        if HAS_RETRY_POLICY and self.retry_policy is None:
            self.retry_policy = TxlogRetryPolicy(otherwise="default")

    @property
    def hook(self) -> TxlogHook:
        """The hook of this sensor's connection. It keeps the table's log from one poke to the next."""
        if self._hook is None:
            self._hook = TxlogHook(self.txlog_conn_id, self.storage_conn_id, catalog_conn_id=self.catalog_conn_id)
        return self._hook

    @property
    def place(self) -> str:
        """The text that the hook turns into a URI: the name, or the place."""
        return str(self.table_uri if self.table is None else self.table)

    def _check_name(self) -> None:
        """Raise InvalidJobSpec if `table` is no name, or there is no catalog: it is never read as a place."""
        if self.table is not None:
            check_name(self.table)
            if self.hook.catalog_conn_id is None:
                raise no_catalog()

    def condition(self) -> dict[str, Any]:
        """Return the condition of the rendered fields as JSON. Raises InvalidInput."""
        given = {name: getattr(self, name) for name in _CONDITION}
        for name in self._given:
            if given[name] is None and name == "newer_than":
                # Another task's output that is None: none was seen.
                given[name] = "None"
            elif given[name] is None:
                raise InvalidInput(
                    f"{name} is a template, or another task's output, that is None: without it more versions would "
                    "satisfy than were meant. Look at its origin; an XCom that was never pushed is None."
                )
        return condition_of(**given)

    def poke(self, context: Context) -> PokeReturnValue:
        """Check the table's log once.

        Raises InvalidInput for an invalid condition, CorruptTable, UnsupportedFeature.
        """
        self._check_name()
        up_to = None
        if self.as_of is not None:
            up_to = pinned_version(self.hook, self.hook.table_uri(self.place), context)
        (found,) = self.hook.followed(self.place).ask([(self.condition(), self._checked)], up_to)
        if isinstance(found, Exception):
            raise found
        self._checked = found.checked
        latest = found.checked["version"]
        if latest < 0:
            self.log.info("table %s does not exist yet", self.place)
        else:
            self.log.info(
                "table %s is at version %s: %s", self.place, latest, "reached" if found.reached else "waiting"
            )
        if up_to is not None and not found.reached:
            raise AirflowFailException(
                f"{self.place} does not satisfy the sensor up to version {up_to}, which the run has pinned. It "
                "is not looked at again."
            )
        return PokeReturnValue(is_done=found.reached, xcom_value=found.report if found.reached else None)

    def execute(self, context: Context) -> Any:
        """Wait: here, or after one look in the triggerer."""
        if not self.deferrable or self.as_of is not None:
            with self._naming_what_it_waited_for():
                return super().execute(context)
        self._check_name()
        try:
            found = self.poke(context)
        except Exception as error:
            if not self.silent_fail:
                self._skip_after(error)
                raise
            self.log.error("a look at %s failed (%s); the triggerer looks again", self.place, error)
            self._wait_in_the_triggerer()
        return found.xcom_value if found.is_done else self._wait_in_the_triggerer()

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task after the triggerer's event, or fail it if the wait there took too long."""
        with self._naming_what_it_waited_for():
            return super().resume_execution(next_method, next_kwargs, context)

    @contextlib.contextmanager
    def _naming_what_it_waited_for(self) -> Iterator[None]:
        """Add the table, the condition and the latest version to Airflow's error about the time, which names none."""
        try:
            yield
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            reason = str(error).rstrip(".")
            raise type(error)(f"{f'{reason}. ' if reason else ''}{self._waited_for()}") from error

    def _waited_for(self) -> str:
        table = shown(self.place)
        try:
            condition = " with " + ", ".join(map(_condition_text, self.condition().items()))
        except Exception as error:
            condition = f", but its condition is invalid ({type(error).__name__}: {error})"
        try:
            # After a wait in the triggerer, this process has not looked yet.
            latest = self.hook.latest_version(self.place) if self._checked is None else self._checked["version"]
            look = f"its last successful look found {f'version {latest}' if latest >= 0 else 'no table'}"
        except TableNotFound:
            look = "its last successful look found no table"
        except Exception as error:
            look = f"its last look failed ({type(error).__name__})"
        connection = "" if self.txlog_conn_id is None else f" --conn-id {self.txlog_conn_id}"
        if self.table is not None and self.catalog_conn_id is not None:
            connection += f" --catalog-conn-id {self.catalog_conn_id}"
        return (
            f"The sensor waited for a version of {table}{condition}; {look}. "
            f"`airflow txlog history {table}{connection}` lists the versions."
        )

    def _skip_after(self, error: Exception) -> None:
        """Raise AirflowSkipException if the sensor is to be skipped for an error, as Airflow's own poking does."""
        if self.never_fail:
            raise AirflowSkipException("Skipping due to never_fail is set to True.") from error

    def _wait_in_the_triggerer(self) -> NoReturn:
        from airflow_txlog.triggers.table_version import TableVersionTrigger

        trigger = TableVersionTrigger(
            self.place,
            **self.condition(),
            checked=self._checked,
            poke_interval=self.poke_interval,
            txlog_conn_id=self.txlog_conn_id,
            storage_conn_id=self.storage_conn_id,
            catalog_conn_id=self.catalog_conn_id,
            once=True,
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the trigger's event. Raises the error that the trigger met."""
        if "error" in event:
            error = from_dict(event["error"])
            self._skip_after(error)
            raise error
        self.log.info("table %s is at version %s: reached", self.place, event["version"])
        return event


def _condition_text(part: tuple[str, Any]) -> str:
    """Return a part of the condition for a message, which may go into mails: the values of `partition` are rows'."""
    name, value = part
    return f"partition of {', '.join(value)}" if name == "partition" else f"{name}={value!r}"


# Placeholders for values that are known only when the task runs.
_STANDS_FOR: dict[str, Any] = {
    "version": 0,
    "newer_than": 0,
    "since": "2000-01-01",
    "operation": "WRITE",
    "committed_by_dag": "dag",
    "committed_by_task": "task",
    "partition": {"column": ""},
    "data_changes_only": None,
}
