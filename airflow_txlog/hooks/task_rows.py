"""Rows that a task's Python code holds, written into tables exactly once: `TxlogHook().append(table, rows)`.

The rows become the source of an operator's job, which runs in the task's own process, without Spark unless the table
has rules in SQL. Invariant: each call of a task is separate work, which its retries find again by its position among
the calls of one method on one table (`identity.HookCall`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Sized
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook, get_current_context

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import operation_named, read_operation
from airflow_txlog.contract.parameters import encode_parameter, encode_parameters
from airflow_txlog.contract.wording import plural, summary_lines
from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.hooks.identity import HookCall, annotations_of, application_transaction, keep_success
from airflow_txlog.hooks.named_tables import named, with_places
from airflow_txlog.hooks.running_progress import progress_shown
from airflow_txlog.runners import Runner, run_unless_done

if TYPE_CHECKING:
    from airflow_txlog.contract.job import ApplicationTransaction
    from airflow_txlog.hooks.followed_table import FollowedTable

_GIVEN = {"rows": "in_process"}
# With these, the rows that are written are fewer than those given.
_LEAVE_ROWS_OUT = ("deduplicate_by", "dry_run", "expect_or_drop", "expect_or_quarantine")
_OPERATIONS = {"append": "write", "overwrite": "write"}


class RowWritingHook(BaseHook):
    """The methods of `TxlogHook` that write rows.

    `rows` are an Arrow table, record batch or reader, a pandas or polars DataFrame, or any object with
    `__arrow_c_stream__`, such as a relation of DuckDB. A stream is written while it is read. Columns match by name and
    are converted to the table's types if no value changes. Otherwise the call raises SchemaMismatch, like the
    operators.

    In a task each call is done exactly once. A retry identifies the calls of an earlier try by their order among the
    calls of one method on one table, so a task must make them in the same order each time. A cleared task is new work.
    Outside of a task, or if the order may change, pass an `idempotency_key`, as for `run`.

    All methods return the result of the job, and raise its typed error, or the error of the stream itself.
    `partition_predicate`, `parameters` (in UTC), `conflict_deadline_s`, the limits and the expectations have the same
    meaning as in the operators.
    """

    if TYPE_CHECKING:
        txlog_conn_id: str | None

        def table_uri(self, table: str) -> str: ...
        def is_name(self, text: str) -> bool: ...
        def place_of(self, name: str, given_uri: str | None = None, *, may_create: bool = False) -> str: ...
        def kept_place(self, name: str | None, uri: str) -> str | None: ...
        def keep_in_catalog(self, result: JobResult) -> str | None: ...
        def place_in_source(self, text: str) -> str: ...
        def followed(self, table: str) -> FollowedTable: ...
        def with_settings(self, spec: JobSpec, runner: str | Runner) -> JobSpec: ...

    def append(
        self,
        table: str,
        rows: object,
        *,
        create: bool = True,
        partition_by: str | Sequence[str] | None = None,
        cluster_by: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        schema_evolution: bool = False,
        **others: Any,
    ) -> JobResult:
        """Append rows, as `DeltaWriteOperator` does. `others`: as for `overwrite`."""
        arguments = {
            "create": create,
            "partition_by": _names(partition_by),
            "cluster_by": _names(cluster_by),
            "properties": dict(properties or {}),
            "schema_evolution": schema_evolution,
        }
        return self._write("append", table, {"mode": "append", "source": _GIVEN, **arguments}, rows, **others)

    def overwrite(
        self,
        table: str,
        rows: object,
        *,
        mode: str = "overwrite",
        replace_where: str | None = None,
        replace_using: str | Sequence[str] | None = None,
        on_conflict: str = "replan",
        create: bool = True,
        partition_by: str | Sequence[str] | None = None,
        cluster_by: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        schema_evolution: bool = False,
        **others: Any,
    ) -> JobResult:
        """Replace the table's rows or some of them, as `DeltaWriteOperator` does.

        `others`: partition_predicate, parameters, idempotency_key, conflict_deadline_s, and the checks of the operator
        (`expect`, `expect_or_fail`, `max_deleted_rows`, …).
        """
        arguments = {
            "mode": mode,
            "replace_where": replace_where,
            "replace_using": _names(replace_using),
            "on_conflict": on_conflict,
            "create": create,
            "partition_by": _names(partition_by),
            "cluster_by": _names(cluster_by),
            "properties": dict(properties or {}),
            "schema_evolution": schema_evolution,
        }
        return self._write("overwrite", table, {"source": _GIVEN, **arguments}, rows, **others)

    def upsert(
        self,
        table: str,
        rows: object,
        *,
        keys: str | Sequence[str],
        columns: str | Sequence[str] | None = None,
        schema_evolution: bool = False,
        **others: Any,
    ) -> JobResult:
        """Update the rows with equal `keys` and insert the others, as `DeltaUpsertOperator` does.

        `others`: as for `overwrite`.
        """
        arguments = {"keys": _names(keys), "columns": _names(columns), "schema_evolution": schema_evolution}
        return self._write("upsert", table, {"source": _GIVEN, **arguments}, rows, **others)

    def delete(
        self,
        table: str,
        predicate: str | None = None,
        *,
        keys: object = None,
        key_column: str | None = None,
        source_column: str | None = None,
        require_match: bool = False,
        **others: Any,
    ) -> JobResult:
        """Delete the rows for which `predicate` is true, or that have one of the `keys`, as `DeltaDeleteOperator` does.

        `keys`: a list of values, or rows whose `source_column` holds them (None: their only column, or the one named as
        `key_column`). `others`: as for `overwrite`.
        """
        by_keys = key_column is not None
        if by_keys == (predicate is not None) or by_keys != (keys is not None):
            raise InvalidJobSpec(
                "A delete takes either predicate, or keys together with key_column. Nothing was read.",
                argument="predicate",
            )
        arguments: dict[str, Any] = {"predicate": predicate, "require_match": require_match}
        if isinstance(keys, list | tuple):
            arguments["keys"] = {"column": key_column, "values": encode_parameter(list(keys), "keys")}
            keys = None
        elif by_keys:
            arguments["keys"] = {"column": key_column, "source": _GIVEN, "source_column": source_column}
        return self._write("delete", table, arguments, keys, **others)

    def _write(
        self,
        method: str,
        table: str,
        arguments: Mapping[str, Any],
        rows: object,
        *,
        partition_predicate: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        conflict_deadline_s: int = 3600,
        **others: Any,
    ) -> JobResult:
        # Here: it loads the jobs, which a hook that only reads does not need.
        from airflow_txlog.runners.in_process import InProcessRunner

        context = task_context()
        # Counted first: a call that fails must not shift the numbers of those after it.
        spelled = f"{self.txlog_conn_id or ''} {table}"
        call = None if context is None else HookCall.next_in(context, spelled, method, idempotency_key)
        is_name = self.is_name(table)
        table_uri = self.place_of(table, may_create=bool(arguments.get("create"))) if is_name else self.table_uri(table)
        if rows is None and "source" in arguments:
            raise InvalidJobSpec(f"{method} needs rows; found None. Nothing was read.", argument="rows")
        bound = {"parameters": encode_parameters(parameters)} if parameters else {}
        given = {**arguments, "partition_predicate": partition_predicate, **bound, **others}
        spec = JobSpec(
            operation=read_operation(
                operation_named(_OPERATIONS.get(method, method)), with_places(given, self.place_in_source)
            ),
            table_uri=table_uri,
            conflict_deadline_s=conflict_deadline_s,
            annotations={} if context is None else annotations_of(context),
        )
        runner = InProcessRunner(rows)
        is_done_each_time = others.get("dry_run") and not others.get("samples_to")
        spec = self.with_settings(spec, "in_process").replace(
            application=None
            if is_done_each_time
            else self._application(
                table_uri, context, call, idempotency_key, self.kept_place(table if is_name else None, table_uri)
            )
        )
        started_s = time.perf_counter()
        try:
            with progress_shown(context, self.log.info) as log:
                result = named(run_unless_done(runner, spec, log=log), spec)
        except TxlogError:
            if runner.reading_error is not None:
                raise runner.reading_error from None
            raise
        for line in summary_lines(result, time.perf_counter() - started_s):
            self.log.info("%s", line)
        if idempotency_key is not None and (reused := _other_rows(result, rows, others)) is not None:
            self.log.warning("%s", reused)
        self.keep_in_catalog(result)
        return result

    def _application(
        self,
        table_uri: str,
        context: Mapping[str, Any] | None,
        call: HookCall | None,
        key: str | None,
        place: str | None,
    ) -> ApplicationTransaction:
        if context is None and key is None:
            raise InvalidJobSpec(
                "No task of Airflow runs in this process (a virtual environment and another Python count as none), so "
                "that nothing identifies this work over its retries. Give it an idempotency_key. Nothing was read.",
                argument="idempotency_key",
            )
        followed = self.followed(table_uri)
        found = application_transaction(
            context or {},
            followed.recorded_version,
            key,
            recorded_work=followed.recorded_work,
            call=call,
            place=place,
        )
        if key is None and context is not None and call is not None:
            # As the operators do in their constructors: Airflow calls it once its database has the success.
            task = context["task"]
            task.on_success_callback = [*task.on_success_callback, partial(keep_success, slot=call.slot)]
        self.log.info("application transaction %s, version %s", found.app_id, found.version)
        return found


def _other_rows(result: JobResult, rows: object, others: Mapping[str, Any]) -> str | None:
    """Return the warning that work with this key was done with another number of rows; None unless that is certain."""
    name = {"write": "numOutputRows", "upsert": "numSourceRows"}.get(result.operation)
    if result.status != "already_done" or name not in result.metrics or any(map(others.get, _LEAVE_ROWS_OUT)):
        return None
    # Only what has its length without being read: a frame of pandas or polars, a table or batch of Arrow.
    if type(rows).__name__ == "DataFrame" and isinstance(rows, Sized):
        given: Any = len(rows)
    else:
        given = getattr(rows, "num_rows", None)
    done = result.metrics[name]
    if not isinstance(given, int) or given == done:
        return None
    return (
        f"the work of this idempotency_key is already done, at version {result.version}, with {plural(done, 'row')}. "
        f"This call, with {plural(given, 'row')}, wrote nothing. If it is other work, give it another key, such as one "
        "that contains {{ ds }}"
    )


def task_context() -> Mapping[str, Any] | None:
    """Return the context of the task that runs in this process; None without one."""
    try:
        context: Mapping[str, Any] = get_current_context()
    except RuntimeError:
        return None
    return context


def _names(given: str | Sequence[str] | None) -> list[str] | None:
    return [given] if isinstance(given, str) else None if given is None else list(given)
