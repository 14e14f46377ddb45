"""The base of all operators: arguments become a spec, a runner runs it, and people can read the answer.

A subclass names its operation and has an argument for each field of the operation's record. Invariant: constructing an
operator reads no connection and no file, so a DAG parses anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.contract.operations import Operation
from airflow_txlog.contract.operations.reading import kinds_of
from airflow_txlog.contract.restrictions import unrestricted_names
from airflow_txlog.contract.wording import summary_lines, xcom_of
from airflow_txlog.errors import ExpectationFailed, InvalidJobSpec, TxlogError
from airflow_txlog.hooks.asset_events import fill_asset_events
from airflow_txlog.hooks.identity import (
    annotations_of,
    application_transaction,
    check_key,
    job_identity,
    keep_success,
)
from airflow_txlog.hooks.named_tables import may_be_name, named
from airflow_txlog.hooks.run_versions import at_run_versions
from airflow_txlog.hooks.running_progress import progress_shown
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.hooks.work_key import saved_work_key
from airflow_txlog.links.pages import links_of
from airflow_txlog.locations import is_absolute
from airflow_txlog.operators.arguments.given import (
    as_record_reads,
    column_list,
    has_template,
    parameter_map,
    text_map,
)
from airflow_txlog.operators.arguments.texts import check_texts, check_time_zone
from airflow_txlog.operators.named_table import NamedTableOperator
from airflow_txlog.operators.progress import report_result
from airflow_txlog.policies.retry import HAS_RETRY_POLICY, TxlogRetryPolicy, raise_for_airflow
from airflow_txlog.runners import (
    DurableRunner,
    Runner,
    check_cluster_named,
    check_runner,
    forget_saved_work,
    not_deferrable,
    run_unless_done,
)

try:
    from airflow.sdk.exceptions import TaskDeferralTimeout
except ImportError:
    # As earlier releases of Airflow have it.
    from airflow.exceptions import TaskDeferralTimeout  # type: ignore[no-redef]

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context
    from airflow.providers.openlineage.extractors import OperatorLineage


class TxlogOperator(NamedTableOperator):
    """Base of the operators: one job on one table.

    :param table_uri: the table: an absolute path, a URI, or a name under the base folder of the connection. With
        `table`, the place of a table that the operator creates. (templated)
    :param table: the table's name in a catalog, such as "sales.orders", instead of `table_uri`
        (docs/tables-by-name.md). (templated)
    :param catalog_conn_id: the connection of the catalog: of type `aws` (Glue), `hive_metastore` or `txlog_unity`. With
        None, the connection in the extra of `txlog_conn_id` is used. Sources may then name tables, too.
    :param txlog_conn_id: a connection of type `txlog`, or None: no connection is needed.
    :param storage_conn_id: a connection of type `aws`, `google_cloud_platform`, `wasb` or `adls` whose credentials open
        the table's store. With None, the connection in the extra of `txlog_conn_id` is used, or each process uses its
        own identity. The connection is read when the task runs (docs/credentials.md).
    :param spark_conn_id: the connection of the cluster, for a runner that uses a cluster. With None, the connection in
        the extra of `txlog_conn_id` is used.
    :param runner: "child" (a child process of the task), "in_process" (a Spark session that the process shares), "warm"
        (a Spark that the tasks of this machine share), "connect" (a Spark Connect server; needs a `spark_conn_id` of
        type `spark_connect`), "submit" (a cluster through `spark-submit`; needs a `spark_conn_id` of type `spark`;
        docs/runners.md), or a `Runner`. With None, the runner of the connection is used, or `[txlog] runner` in the
        configuration, or "child".
    :param spark_conf: Spark settings of this job, which override the connection's settings. Do not put secrets here,
        because the UI shows them. Settings that tune with numbers, sizes, times, true or false are allowed. Any other
        setting needs `unrestricted`. (templated)
    :param unrestricted: arguments whose text is entirely your own, without a template that inserts another person's
        text. They may load code: "spark_conf"; "query" (the SQL of a source, which may then also run programs and read
        any file or catalog); "options" (the options of file sources).
    :param time_zone: the time zone of the SQL texts.
    :param deferrable: wait for the job in the triggerer, without occupying a worker slot. Only for a cluster that runs
        the job's driver (`submit` in cluster mode). Otherwise refused.
    :param conflict_deadline_s: the number of seconds that each try of the task keeps trying after its first conflict
        with another commit, before it leaves the conflict to Airflow's retries. A new try counts anew. The job reuses
        staged work that is still valid.
    :param emit_without_change: emit the asset events of `outlets` even if no row changed (docs/waiting.md).
    :param emit_partitions: emit one asset event for each changed partition, for DAGs that are scheduled by partitions
        (Airflow 3.3). These events do not start a DAG that is scheduled by the asset as a whole.

    If a template in any argument renders to None or to an undefined name, the task fails. Literals are checked when the
    DAG is parsed. A task that changes no row succeeds and emits no asset event. `TxlogRetryPolicy` retries a failed
    task only if another try can succeed (set `retries`). Pass `retry_policy=` to replace it.
    """

    operation: ClassVar[type[Operation]]
    publish = True
    template_fields: Sequence[str] = ("table_uri", "table", "spark_conf")
    ui_color = "#e4f2f7"

    def __init__(
        self,
        *,
        table_uri: str | None = None,
        table: str | None = None,
        catalog_conn_id: str | None = None,
        txlog_conn_id: str | None = None,
        storage_conn_id: str | None = None,
        spark_conn_id: str | None = None,
        runner: str | Runner | None = None,
        spark_conf: Mapping[str, Any] | None = None,
        unrestricted: str | Collection[str] = (),
        time_zone: str = "UTC",
        conflict_deadline_s: int = 3600,
        deferrable: bool = False,
        emit_without_change: bool = False,
        emit_partitions: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.catalog_conn_id = catalog_conn_id
        self.txlog_conn_id = txlog_conn_id
        self.storage_conn_id = storage_conn_id
        self.spark_conn_id = spark_conn_id
        self.set_table(table, table_uri)
        self.runner = runner
        self.spark_conf = spark_conf
        self.unrestricted = unrestricted_names(unrestricted)
        self.time_zone = time_zone
        self.conflict_deadline_s = conflict_deadline_s
        self.deferrable = deferrable
        self.emit_without_change = emit_without_change
        self.emit_partitions = emit_partitions
        self._running: Runner | None = None
        # The result of this try, for the links and the lineage that Airflow requests at its end.
        self.last_result: JobResult | None = None
        self.has_begun = False
        self._failed_expectations: Mapping[str, Mapping[str, int]] | None = None
        self._spec_of_work: JobSpec | None = None
        self._durable_runner: DurableRunner | None = None
        # After super().__init__, which has applied the author's argument or default_args.
        if HAS_RETRY_POLICY and self.retry_policy is None:
            self.retry_policy = TxlogRetryPolicy()

    @property
    def operator_extra_links(self) -> Collection[BaseOperatorLink]:  # type: ignore[override]
        """The links to the pages of the commit and of the table, if such pages are configured."""
        return links_of(self)

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields of the operation's record, each from the rendered argument of its name."""
        return {
            name: parameter_map(self.given(name), self.nullable_parameters)
            if name == "parameters"
            else as_record_reads(kind.annotation, name, self.given(name))
            for name, kind in kinds_of(self.operation).items()
        }

    def check_literals(self) -> None:
        """Raise InvalidJobSpec for errors that no rendering can fix. Each operator's constructor ends with this call.

        Templates and the output of other tasks are checked when the task runs. Reads no connection.
        """
        if self.runner is not None:
            check_runner(self.runner)
        if isinstance(self.runner, str):
            if self.deferrable and self.runner != "submit":
                raise not_deferrable(self.runner)
            if self.spark_conn_id is None and self.txlog_conn_id is None:
                check_cluster_named(self.runner)
        check_time_zone(self.time_zone)
        # With a connection, a name is joined to its base, which is known only when the task runs.
        is_known = self.table is None and self.txlog_conn_id is None and not has_template(self.table_uri)
        is_name = self.catalog_conn_id is not None and may_be_name(self.table_uri)
        uri = str(self.table_uri) if is_known and not is_name else "/"
        try:
            self._spec(uri)
        except InvalidJobSpec as error:
            argument = str(error.facts.get("argument")).removeprefix("arguments.").split(".")[0].split("[")[0]
            fields = [name for name in self.fields_of(argument) if name in self.template_fields]
            if not any(has_template(getattr(self, name)) for name in fields):
                raise

    def fields_of(self, argument: str) -> Collection[str]:
        """Return the arguments of this operator that make an argument of the job."""
        return (argument,)

    def application(self, context: Mapping[str, Any], table_uri: str) -> ApplicationTransaction | None:
        """Return the application transaction of this try; None for operations that carry none (soundness B5)."""
        return None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job and return its small XCom: version, read_version, operation, status, metrics, files, seconds."""
        return self._execute(context, run_unless_done)

    def resume(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue after the triggerer has seen the end of the job, or has lost sight of it."""
        self.log.info("%s", event["text"])
        return self._execute(context, lambda runner, spec, *, log: runner.resume(spec, log=log))

    def _execute(self, context: Context, run: Callable[..., JobResult]) -> dict[str, Any]:
        self.begin_try()
        try:
            spec = self._spec_of_work = self.job_spec(context)
            self._running = self._make_runner()
            started_s = time.perf_counter()
            if isinstance(self._running, DurableRunner):
                spec = self._spec_of_work = self._durable(self._running, spec, context)
            elif self.deferrable:
                raise not_deferrable(type(self._running).__name__)
            with progress_shown(context, self.log.info) as log:
                result = run(self._running, spec, log=log)
        except TxlogError as error:
            if isinstance(error, ExpectationFailed):
                self._failed_expectations = error.facts.get("expectations")
            raise_for_airflow(error)
        finally:
            self._running = None
        self.last_result = result = named(result, spec)
        seconds = time.perf_counter() - started_s
        for line in summary_lines(result, seconds):
            self.log.info("%s", line)
        fill_asset_events(
            self,
            context,
            [result],
            without_change=self.emit_without_change and not result.details.dry_run,
            by_partition=self.emit_partitions,
        )
        report_result(context, result, seconds)
        xcom = xcom_of(result, seconds)
        if (kept := self.hook.keep_in_catalog(result)) is not None:
            xcom["catalog"] = kept
        if result.details.staged is not None:
            by = {"task_id": self.task_id, "sensitive": self.sensitive, "table": result.table_name}
            xcom["staged"] = {**result.details.staged, **by}
        return xcom

    def _durable(self, runner: DurableRunner, spec: JobSpec, context: Mapping[str, Any]) -> JobSpec:
        """Return the spec of a job that may outlive this process, with the key that finds it in every try."""
        application = spec.application
        if application is None and "ti" not in context:
            raise InvalidJobSpec(
                f"execute() was called without a task instance, by which the job of a {type(runner).__name__} is found "
                "again. Take another runner, or run the DAG by dag.test(). Nothing was started.",
                argument="runner",
            )
        if application is None:
            spec = spec.replace(saved_work_key=saved_work_key(job_identity(context)))
        elif not application.check_digest and application.version > 1:
            # The task was cleared. An earlier job must not run at the same time.
            before = dataclasses.replace(application, version=application.version - 1)
            runner.cancel(spec.replace(application=before, saved_work_key=saved_work_key(before)), log=self.log.info)
        self._durable_runner = runner
        if self.deferrable:
            runner.instead_of_waiting = self._wait_in_triggerer
        return spec

    def _wait_in_triggerer(self, name: str) -> NoReturn:
        from airflow_txlog.triggers.submitted_job import SubmittedJobTrigger

        conn_id = self.hook.spark_conn_id_for("submit")
        assert conn_id is not None, "its runner has opened it"
        self.log.info("waiting for %s in the triggerer", name)
        trigger = SubmittedJobTrigger(spark_conn_id=conn_id, name=name)
        self.defer(trigger=trigger, method_name="resume", timeout=self.execution_timeout)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task. If the wait in the triggerer took too long, cancel the job before the task fails."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            spec, runner = self.job_spec(context), self._make_runner()
            if isinstance(runner, DurableRunner):
                runner.cancel(self._durable(runner, spec, context), log=self.log.info)
            raise

    def job_spec(self, context: Mapping[str, Any]) -> JobSpec:
        """Return the validated description of the job. Reads the connection, and for a data-changing job the table.

        Without a task instance (`execute({})` in an author's test) the work has no identity except an author's key.
        """
        if "ti" not in context:
            self.check_rendered()
        hook = self.hook
        table_uri = self.place(hook)
        # Validate first without the transaction: a wrong argument must not use up a number, nor wait for the table.
        spec = hook.with_settings(self._spec(table_uri, hook), hook.runner_or(self.runner))
        of_task = annotations_of(context, is_sensitive=self.sensitive)
        spec = spec.replace(annotations={**spec.annotations, **of_task})
        spec = at_run_versions(spec, hook, context)
        application = self.application(context, table_uri)
        if application is not None:
            self.log.info("application transaction %s, version %s", application.app_id, application.version)
        key = None if application is None else saved_work_key(application)
        return spec.replace(application=application, saved_work_key=key)

    def _spec(self, table_uri: str, hook: TxlogHook | None = None) -> JobSpec:
        operation = self.record_of(self.operation, self.job_arguments(), hook)
        check_texts(operation)
        return JobSpec(
            operation=operation,
            table_uri=table_uri,
            spark_conf=text_map("spark_conf", self.spark_conf),
            unrestricted=self.unrestricted,
            time_zone=self.time_zone,
            conflict_deadline_s=self.conflict_deadline_s,
            publish=self.publish,
        )

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the datasets for OpenLineage's listener. Reads no connection, so a name under one is left out."""
        return self._lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the datasets with the versions, rows and columns that the result has."""
        return self._lineage(self.last_result)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the datasets, without the facts that only a result has."""
        return self._lineage(None)

    def _lineage(self, result: JobResult | None) -> OperatorLineage[Any, Any]:
        # Here: only a process in which the listener runs is certain to have its provider.
        from airflow_txlog.lineage.facets import lineage_of

        spec = self._spec_of_work
        if spec is not None:
            return lineage_of(spec.operation, spec.table_uri, result, self._failed_expectations, self._names.symlinks)
        operation = None
        with contextlib.suppress(TxlogError):
            operation = self.record_of(self.operation, self.job_arguments(), None)
        is_whole = isinstance(self.table_uri, str) and is_absolute(self.table_uri)
        return lineage_of(operation, self.table_uri if is_whole else None, result)

    def on_kill(self) -> None:
        """Stop the job. Its commit stays; a vacuum removes staged files."""
        if (running := self._running) is not None:
            self.log.info("stopping the %s job on %s", self.operation.name, self.table or self.table_uri)
            running.kill()

    def _make_runner(self) -> Runner:
        chosen = self.hook.runner_or(self.runner)
        return self.hook.make_runner(chosen) if isinstance(chosen, str) else chosen


class ExactlyOnceOperator(TxlogOperator):
    """Base of the operators whose commit changes rows, exactly once per task instance.

    :param idempotency_key: a name for this piece of work, instead of the task instance's own identity. A task that runs
        with the same key again finds its work done. Use a different key for each piece of work, for example with
        `{{ run_id }}`. The same key with different arguments fails. Clearing the task does not repeat the work.
        (templated)
    """

    template_fields: Sequence[str] = (*TxlogOperator.template_fields, "idempotency_key")

    def __init__(self, *, idempotency_key: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.idempotency_key = idempotency_key
        if isinstance(idempotency_key, str):
            check_key(idempotency_key)
        # Airflow runs these callbacks once its database has the success, and survives one that fails.
        self.on_success_callback = [*self.on_success_callback, keep_success]
        # Airflow does not call this one before a retry, which needs the saved work.
        self.on_failure_callback = [*self.on_failure_callback, _forget_saved_work]

    def application(self, context: Mapping[str, Any], table_uri: str) -> ApplicationTransaction | None:
        if "ti" not in context and self.idempotency_key is None:
            self.log.warning(
                "execute() was called without a task instance, which identifies the work: it is done each time"
            )
            return None
        hook = self.hook
        table, place = hook.followed(table_uri), hook.kept_place(self.table, table_uri)
        return application_transaction(
            context, table.recorded_version, self.idempotency_key, recorded_work=table.recorded_work, place=place
        )


def _forget_saved_work(context: Any) -> None:
    """Delete the rows and keys that a task kept for its retries, after it has failed for good."""
    task = context["task"]
    spec = getattr(task, "_spec_of_work", None)
    if spec is None:
        return  # no work begun, or killed: a VACUUM deletes the saved work of earlier tries
    try:
        if task._durable_runner is not None:
            # The task has failed but its job may still run, and no later try would wait for it.
            task._durable_runner.cancel(spec, log=task.log.info)
        forget_saved_work(spec)
    except Exception as error:
        task.log.warning(
            "what this task saved for its retries could not be deleted (%s); a VACUUM of %s deletes it",
            type(error).__name__,
            spec.table_uri,
        )


class DataChangingOperator(ExactlyOnceOperator):
    """Base of the operators that change rows by SQL texts.

    :param partition_predicate: a SQL condition on partition columns, with `:name` for values, that limits the rows
        which the operation reads and writes. Any other row is an error, and work in other partitions never conflicts.
        (templated)
    :param parameters: the values of `:name` in every SQL text of the operation, bound and never pasted: texts, numbers,
        dates, datetimes, Decimals, bytes, or lists of them. (templated)
    :param nullable_parameters: the names of parameters that may be null. If any other parameter is None, or its
        template renders to None, the task fails, because a comparison with null is true for no row.
    :param publish: False stages the change and commits nothing. The XCom contains a handle (`staged`) with which a
        `DeltaPublishOperator` publishes the change or a `DeltaDiscardOperator` deletes it (docs/staged-changes.md).
    :param sensitive: whether the values of `parameters` are personal data. If so, Airflow's Rendered Templates and its
        database contain asterisks. So does the task's log for the strings among them (the first hundred, if they have
        at least five characters). Every try renders the values again. Airflow still keeps literals of a DAG file and
        XComs of other tasks.
    """

    template_fields: Sequence[str] = (*ExactlyOnceOperator.template_fields, "partition_predicate", "parameters")

    def __init__(
        self,
        *,
        partition_predicate: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        nullable_parameters: str | Collection[str] = (),
        publish: bool = True,
        sensitive: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.publish = publish
        self.sensitive = sensitive
        self.partition_predicate = partition_predicate
        self.parameters = parameters
        self.nullable_parameters = column_list("nullable_parameters", nullable_parameters) or ()
