"""TxlogHook: tables by name under a connection's base, opened for reading, and jobs run with an explicit key.

A connection is optional. `host` is the base (a folder or URI) of relative table names. `extra` may hold `spark_conf`
(settings of every job), `storage_options` (how stores are opened), `storage_conn_id` (the connection whose credentials
open them, see docs/credentials.md), `runner`, `spark_conn_id` (the connection of its cluster), `history_url` and
`table_url` (the pages of a commit and of a table), `strict_writers` (see docs/writers.md), `allow_absolute_paths`, and
`erasure_ledger` with `erasure_key_conn_id` and `erasure_on_return` (the ledger of erased subjects, see
docs/erasure.md), and `catalog_conn_id` (the catalog of table names, see docs/tables-by-name.md). It holds no secret.
Invariant: neither a connection nor a table is read before a method is called. A hook keeps the tables that it opened,
so looking at one again is one small request.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException, conf

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.contract.operations import operation_named, read_operation
from airflow_txlog.contract.restrictions import only_tunes, unrestricted_names
from airflow_txlog.contract.wording import handle_of
from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.hooks.connections import CONN_TYPE, check_is_txlog, connection_of
from airflow_txlog.hooks.digest_keys import digest_keys
from airflow_txlog.hooks.identity import annotations_of
from airflow_txlog.hooks.named_tables import NamedTablesHook, TablesByName, named, with_places
from airflow_txlog.hooks.run_versions import at_run_versions, pinned_version
from airflow_txlog.hooks.running_progress import progress_shown
from airflow_txlog.hooks.spark_connection import open_spark_connection
from airflow_txlog.hooks.task_rows import RowWritingHook, task_context
from airflow_txlog.hooks.work_key import saved_work_key
from airflow_txlog.locations import Access, canonical_place, is_absolute, shown
from airflow_txlog.runners import CONNECTION_TYPES, Runner, check_runner, make_runner, run_unless_done

if TYPE_CHECKING:
    from airflow_txlog.engine import Snapshot, Table
    from airflow_txlog.hooks.followed_table import FollowedTable, UnprocessedVersions

_NAME_A_TABLE = 'an absolute path ("/lake/orders") or a URI ("file:///lake/orders")'


class TxlogHook(NamedTablesHook, RowWritingHook):
    """Delta tables of one connection, or of none.

    :param txlog_conn_id: a connection of type `txlog`. With None, every table is identified by its full URI. A missing
        connection raises an error when it is first needed.
    :param storage_conn_id: the connection of the cloud (type aws, google_cloud_platform, wasb or adls) whose
        credentials open the tables' store, instead of the one in the extra of `txlog_conn_id`. Without either, each
        process uses its own identity.
    :param spark_conn_id: the connection of the cluster, for a runner that uses a cluster (docs/runners.md), instead
        of the one in the extra of `txlog_conn_id`.
    :param catalog_conn_id: the connection of a catalog (type aws, hive_metastore or txlog_unity), instead of the one in
        the extra of `txlog_conn_id`. A table may then be given by its name there, such as "sales.orders".
    """

    conn_name_attr = "txlog_conn_id"
    default_conn_name = "txlog_default"
    conn_type = CONN_TYPE
    hook_name = "Delta tables (txlog)"

    def __init__(
        self,
        txlog_conn_id: str | None = None,
        storage_conn_id: str | None = None,
        spark_conn_id: str | None = None,
        catalog_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.txlog_conn_id = txlog_conn_id
        self._storage_conn_id = storage_conn_id
        self._spark_conn_id = spark_conn_id
        self._catalog_conn_id = catalog_conn_id
        self.names = TablesByName()
        self._tables: dict[str, FollowedTable] = {}

    @cached_property
    def _connection(self) -> Any:
        if self.txlog_conn_id is None:
            return None
        from airflow_txlog.hooks.storage_connection import CONN_TYPES

        connection = connection_of("txlog_conn_id", self.txlog_conn_id)
        check_is_txlog(connection, CONN_TYPES)
        return connection

    @cached_property
    def _extra(self) -> dict[str, Any]:
        return {} if self._connection is None else dict(self._connection.extra_dejson or {})

    @property
    def base_uri(self) -> str | None:
        """The folder or URI of relative table names; None without one."""
        host = None if self._connection is None else self._connection.host
        return host.rstrip("/") or "/" if host else None

    @property
    def spark_conf(self) -> dict[str, str]:
        """Spark settings of the connection. Raises InvalidJobSpec if they are not a JSON object."""
        conf = self._json_object("spark_conf", "a JSON object of texts")
        return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in conf.items()}

    @property
    def storage_conn_id(self) -> str | None:
        """The connection whose credentials open the tables' store; None if each process uses its own identity."""
        return self._storage_conn_id or self._extra.get("storage_conn_id") or None

    @cached_property
    def storage_options(self) -> dict[str, Any]:
        """How tables are opened: the connection's options, over those of `storage_conn_id`.

        From here on this process can use the credentials of `storage_conn_id`, and hand them to its jobs.

        Raises InvalidJobSpec if the options are not a JSON object, or set another identity than that connection's.
        """
        given = self._json_object("storage_options", "a JSON object")
        if self.storage_conn_id is None:
            return given
        from airflow_txlog.hooks.storage_connection import open_storage_connection

        for name in ("anon", "profile"):
            if given.get(name):
                raise InvalidJobSpec(
                    f"Connection {self.txlog_conn_id}: storage_options has {name}, and storage_conn_id is "
                    f"{self.storage_conn_id!r}: a store is opened with one identity. Leave one of them out.",
                    argument="storage_options",
                )
        return {**open_storage_connection(self.storage_conn_id), **given}

    def _json_object(self, name: str, expected: str) -> dict[str, Any]:
        # The connection form keeps an object; what was written by hand or by another form may be its text.
        raw = self._extra.get(name) or {}
        try:
            found = json.loads(raw) if isinstance(raw, str) else raw
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InvalidJobSpec(f"Connection {self.txlog_conn_id}: {name} must be {expected}.", argument=name)
        return found

    def with_settings(self, spec: JobSpec, runner: str | Runner) -> JobSpec:
        """Return the spec with the connection's access, and with its settings below the spec's own and above those of
        `[txlog]`.

        The connection's settings are not restricted: users who may edit connections decide what the workers run. The
        spec's own settings were checked when it was created.
        """
        settings = self.spark_conf
        if isinstance(runner, str) and runner in CONNECTION_TYPES and CONNECTION_TYPES[runner] is None:
            settings = {**_configured_size(), **settings}
        if spec.operation.uses_ledger and self.ledger_uri is not None:
            spec = spec.replace(
                ledger_uri=self.ledger_uri, ledger_keys=self.ledger_keys, leaves_out_erased=self.leaves_out_erased
            )
        spec = self.with_name(spec)
        unrestricted = spec.unrestricted if only_tunes(settings) else (*spec.unrestricted, "spark_conf")
        return spec.replace(
            spark_conf={**settings, **spec.spark_conf},
            unrestricted=unrestricted,
            strict_writers=self.strict_writers,
            access=self._access_of(spec),
        )

    def _access_of(self, spec: JobSpec) -> Access:
        """Return the access of a job, which may write to its table alone, and to none in a dry run."""
        access = self.access
        table = access.catalog_table(canonical_place(spec.table_uri))
        if table is None or getattr(spec.operation, "dry_run", False):
            return access
        tables = tuple(each.to_write() if each is table else each for each in access.catalog_tables)
        return dataclasses.replace(access, catalog_tables=tables)

    def runner_or(self, given: str | Runner | None) -> str | Runner:
        """Return the given runner, else the connection's, else that of `[txlog] runner`, else "child"."""
        return given or self._extra.get("runner") or conf.get("txlog", "runner", fallback="") or "child"

    def make_runner(self, name: str) -> Runner:
        """Return a new runner of this name, for the cluster that `spark_conn_id` names. Raises InvalidJobSpec."""
        check_runner(name)
        return make_runner(name, open_spark_connection(name, self.spark_conn_id_for(name)))

    def spark_conn_id_for(self, runner: str) -> str | None:
        """Return the connection of the cluster of a runner; None without one."""
        # The extra's connection is for all runners that have a cluster.
        of_extra = self._extra.get("spark_conn_id") if CONNECTION_TYPES[runner] else None
        return self._spark_conn_id or of_extra or None

    @property
    def history_url(self) -> str | None:
        """The page of a commit, with `{table}` and `{version}` in it: the connection's, else `[txlog] history_url`."""
        return self._extra.get("history_url") or conf.get("txlog", "history_url", fallback="") or None

    @property
    def table_url(self) -> str | None:
        """The page of a table, with `{table}` in it: the connection's, else `[txlog] table_url`."""
        return self._extra.get("table_url") or conf.get("txlog", "table_url", fallback="") or None

    @property
    def ledger_uri(self) -> str | None:
        """The ledger of erased subjects (`erasure_ledger`), with which jobs that may bring rows back are compared."""
        given = self._extra.get("erasure_ledger")
        return self.table_uri(given) if given else None

    @property
    def leaves_out_erased(self) -> bool:
        """Whether a job leaves out rows of erased subjects, if it can, instead of being refused (`erasure_on_return`).

        Raises InvalidJobSpec for another value than "refuse" and "delete".
        """
        given = self._extra.get("erasure_on_return") or "refuse"
        if given not in ("refuse", "delete"):
            raise InvalidJobSpec(
                f'Connection {self.txlog_conn_id}: erasure_on_return must be "refuse" or "delete". Nothing was read.',
                argument="erasure_on_return",
            )
        return bool(given == "delete")

    @property
    def ledger_keys(self) -> tuple[str, ...]:
        """The keys of the ledger's digests, the newest last, from the connection `erasure_key_conn_id`.

        Raises InvalidJobSpec if no connection is named; InvalidInput if it has no key.
        """
        conn_id = self._extra.get("erasure_key_conn_id")
        if not conn_id:
            raise InvalidJobSpec(
                f"Connection {self.txlog_conn_id}: erasure_ledger names a ledger, and erasure_key_conn_id names no "
                "connection with the key of its digests. Nothing was read. Name one.",
                argument="erasure_key_conn_id",
            )
        return digest_keys(conn_id)

    @property
    def strict_writers(self) -> bool:
        """Whether a table with a writer that would replace our commits is refused, instead of warned about."""
        return self._is_on("strict_writers")

    @property
    def access(self) -> Access:
        """How the stores of tables are opened. Raises as `storage_options` does."""
        return Access(
            storage_options=self.storage_options,
            storage_conn_id=self.storage_conn_id,
            allow_absolute_paths=self._is_on("allow_absolute_paths"),
            single_writer=self._is_on("single_writer"),
            catalog_tables=self.catalog_tables,
        )

    def _is_on(self, name: str) -> bool:
        return str(self._extra.get(name, "")).lower() == "true"

    def table_uri(self, table: str) -> str:
        """Return the full URI of a table: unchanged if it is absolute or a URI, else that of its name in the catalog,
        or under the connection's base.

        Raises InvalidJobSpec for any other: a relative path, or one below `~`, is another place in each process; and
        the errors of `entry`.
        """
        if not isinstance(table, str):
            raise InvalidJobSpec(
                f"table_uri must be a text: {_NAME_A_TABLE}; found {type(table).__name__}. Nothing was read.",
                argument="table_uri",
            )
        if is_absolute(table):
            return table
        if self.is_name(table):
            return self.place_of(table)
        base = self.base_uri
        if base is None or table.startswith("~") or not is_absolute(base):
            raise InvalidJobSpec(self._no_place(table, base), argument="table_uri")
        return f"{base.rstrip('/')}/{table}"

    def _no_place(self, table: str, base: str | None) -> str:
        ask, named = f"Write {_NAME_A_TABLE}", repr(shown(table))
        if table.startswith("~"):
            return f"Table {named}: ~ is the home of whichever user runs the task. {ask}."
        if base is not None:
            found = f"the base {shown(base)!r} is no absolute path and no URI"
            return f"Connection {self.txlog_conn_id}: {found}. {ask} there."
        why = "txlog_conn_id is not given" if self.txlog_conn_id is None else f"{self.txlog_conn_id} has no base folder"
        return (
            f"Table {named} is a relative path, which would count from the worker's current directory. {ask}, or a "
            f"name under the base folder of a connection ({why})."
        )

    def get_conn(self) -> Any:
        """Return the connection object itself, or None."""
        return self._connection

    def open(self, table: str, *, staged: Any = None, as_of: Literal["run"] | None = None) -> Table:
        """Return the table, opened for reading or writing through the engine: the same object every time.

        `staged`: the output of a task with `publish=False`. The returned table is read-only, and its latest version is
        the one that the staged change would create. `as_of="run"`: the table is read-only, and its latest version is
        the one that a `PinVersionsOperator` before this task has fixed for the DAG run.

        Raises TableNotFound, CorruptTable, UnsupportedFeature, StagedChangeGone; InvalidJobSpec if the run has not
        pinned the table, VersionNotFound if the pinned version can no longer be rebuilt from the log.
        """
        found = self.table(table)
        if as_of is not None:
            if as_of != "run" or staged is not None:
                raise InvalidJobSpec('as_of must be "run", without staged. Nothing was read.', argument="as_of")
            return found.at_version(pinned_version(self, self.table_uri(table), task_context()))
        handle = None if staged is None else handle_of("staged", staged)
        if handle is not None:
            return found.with_staged(handle["id"], handle["digest"])
        found.snapshot()
        return found

    def snapshot(self, table: str) -> Snapshot:
        """Return the table's latest version. Raises the errors of `open`."""
        return self.table(table).snapshot()

    def latest_version(self, table: str) -> int:
        """Return the number of the table's latest version, by one listing of its log from the second look on.

        Raises TableNotFound, CorruptTable.
        """
        return self.table(table).latest_version()

    def table(self, table: str) -> Table:
        """Return the table, unread: it may not exist. The same object every time."""
        return self.followed(table).table

    def followed(self, table: str) -> FollowedTable:
        """Return the table with its followed log: the same object every time."""
        # Here: a DAG is parsed without the engine.
        from airflow_txlog.hooks.followed_table import FollowedTable

        uri = self.table_uri(table)
        if uri not in self._tables:
            self._tables[uri] = FollowedTable(uri, self)
        return self._tables[uri]

    def unprocessed_versions(self, table: str, *, consumer: str, state: Any) -> Iterator[UnprocessedVersions]:
        """Yield the versions of the table that this consumer has not processed yet, in one part or two, oldest first.

        A part counts as processed when the loop requests the next one. If the body raises, or its process dies, the
        next run gets the same part with the same `key` again, and then the newer versions. `state` keeps the consumer's
        progress: any object with `get(key)` and `set(key, value)` for JSON, such as
        `context["asset_state_store"][ASSET]` of Airflow 3.3. `consumer` is its name there: a DAG and a task, for
        example. Only one run at a time may take the parts of a consumer (`max_active_runs=1`).

        The first run gets the whole log. Raises CorruptTable, and the errors of the store and of `state`.
        """
        yield from self.followed(table).unprocessed_versions(consumer, state)

    def run(
        self,
        operation: str,
        table: str,
        arguments: Mapping[str, Any],
        *,
        idempotency_key: str,
        runner: str | Runner = "child",
        spark_conf: Mapping[str, str] | None = None,
        unrestricted: str | Collection[str] = (),
        time_zone: str = "UTC",
    ) -> JobResult:
        """Run one job that changes rows from Python code, exactly once per key.

        `arguments` are the fields of the operation's record. The key permanently identifies this one piece of work, in
        every run and every task. Build it from the run id and a name for the write. A task that writes twice needs two
        keys, so there is no default. The same key with different arguments raises IdempotencyKeyReused.

        Raises the job's typed error. The hook does not know whether another call with the key follows, so the saved
        work of a failed job stays next to the table until a VACUUM.
        """
        application = None
        if not arguments.get("dry_run") or arguments.get("samples_to"):
            # Any other dry run does no work that a later call would find done.
            application = ApplicationTransaction(app_id=idempotency_key, version=1, check_digest=True)
        spec = JobSpec(
            operation=read_operation(operation_named(operation), with_places(arguments, self.place_in_source)),
            table_uri=self.table_uri(table),
            application=application,
            spark_conf=dict(spark_conf or {}),
            unrestricted=unrestricted_names(unrestricted),
            time_zone=time_zone,
            saved_work_key=None if application is None else saved_work_key(application),
        )
        context = task_context()
        if context is not None:
            # In the commit, by which a rollback finds the work of a run.
            spec = spec.replace(annotations=annotations_of(context))
        spec = at_run_versions(self.with_settings(spec, runner), self, context)
        chosen = self.make_runner(runner) if isinstance(runner, str) else runner
        with progress_shown(context, self.log.info) as log:
            result = named(run_unless_done(chosen, spec, log=log), spec)
        self.keep_in_catalog(result)
        return result

    def test_connection(self) -> tuple[bool, str]:
        """Return whether a task could use the connection: check its settings, its cluster, and read access to its base.

        Nothing is written, so this does not prove that a table can be written there.
        """
        try:
            runner = self.runner_or(None)
            assert isinstance(runner, str)
            self.make_runner(runner)
            settings = len(self.spark_conf | (_configured_size() if CONNECTION_TYPES[runner] is None else {}))
            found, base = self.storage_options, self.base_uri
            about = f"jobs run by the runner {runner}, with {settings} Spark settings and {len(found)} storage options"
            if base is None:
                return True, f"There is no base: tables are named by their own URIs. {about}."
            if self.table("").store.list("_delta_log"):
                return False, f"The base {base} is a table itself. Give the folder that its tables are in."
        except (TxlogError, AirflowException, OSError) as error:
            return False, f"{type(error).__name__}: {error}"
        return True, f"{base} was opened; {about}."


def _configured_size() -> dict[str, str]:
    """Return the configured cores and heap of a task's own Spark as Spark settings. Raises InvalidJobSpec."""
    cores, heap = conf.get("txlog", "cores", fallback=""), conf.get("txlog", "heap", fallback="")
    if cores and not re.fullmatch(r"[1-9]\d*|\*", cores):
        raise _misconfigured("cores", "a number of cores such as 2, or * for all", cores)
    if heap and not re.fullmatch(r"[1-9]\d*[mgMG]", heap):
        raise _misconfigured("heap", "a size such as 512m or 2g", heap)
    sizes = {"spark.master": cores and f"local[{cores}]", "spark.driver.memory": heap}
    return {name: value for name, value in sizes.items() if value}


def _misconfigured(option: str, expected: str, found: str) -> InvalidJobSpec:
    return InvalidJobSpec(
        f"[txlog] {option} of Airflow's configuration must be {expected}; found {found!r}. Nothing was read.",
        argument=f"txlog.{option}",
    )
