"""What all operators share: a spec from the arguments, a runner, an identity, and an answer that people can read.

A subclass names its operation and gives the job's arguments from its own rendered fields. Invariant: constructing an
operator reads no connection, no configuration and no file, so that a DAG parses anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import Asset, BaseOperator, conf

from airflow_txlog.contract import JobResult, JobSpec
from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.operators.given import column_list, has_template, null_refusal, parameter_map, path_text, text_map
from airflow_txlog.operators.progress import report_result
from airflow_txlog.policies.retry import HAS_RETRY_POLICY, TxlogRetryPolicy, raise_for_airflow
from airflow_txlog.records import Operation, read_operation
from airflow_txlog.runners import Runner, check_runner, make_runner
from airflow_txlog.wording import event_extra, task_lines, xcom_of

if TYPE_CHECKING:
    import jinja2
    from airflow.providers.common.compat.sdk import Context

    from airflow_txlog.contract import ApplicationTransaction
    from airflow_txlog.hooks.txlog import TxlogHook


class TxlogOperator(BaseOperator):
    """Base of the operators: one job on one table.

    :param table_uri: the table: an absolute path, a URI, or with a connection that has a base folder a name under it.
        (templated)
    :param txlog_conn_id: a connection of type `txlog`, or None: no connection is needed.
    :param storage_conn_id: a connection of type `aws`, `google_cloud_platform`, `wasb` or `adls`, whose credentials
        open the table's store; None takes the one that the extra of `txlog_conn_id` names, else each process uses its
        own identity. It is read when the task runs (docs/credentials.md).
    :param runner: "child" (a child process of the task), "in_process" (a Spark session that the process shares), or a
        `Runner`; None takes the connection's, else `[txlog] runner` of the configuration, else "child".
    :param spark_conf: Spark settings of this job, over those of the connection. No secrets: they are shown in the UI.
        They may tune by numbers, sizes, times and true or false; any other needs `unrestricted`. (templated)
    :param unrestricted: what is yours entirely, with no template that puts another person's text into it, and may
        therefore load code: "spark_conf"; "query", the SQL of a source, which may then also run programs and read any
        file or catalog; "options", those of file sources.
    :param time_zone: the time zone in which SQL texts are understood.
    :param conflict_deadline_s: how long, in seconds, the job itself goes on after losing to another commit, before
        the conflict is given to Airflow's retries. What was found and staged, and what still holds, is not done again.

    A template that renders to None or to an undefined name fails the task in every argument. What needs no rendering is
    checked when the DAG is parsed. A task that finds nothing to do succeeds and emits no asset event.
    A task that fails is retried by `TxlogRetryPolicy` only for what running again can win (set `retries`); give
    `retry_policy=` to replace it.
    """

    operation: ClassVar[type[Operation]]
    nullable_parameters: Collection[str] = ()
    template_fields: Sequence[str] = ("table_uri", "spark_conf")
    ui_color = "#e4f2f7"

    def __init__(
        self,
        *,
        table_uri: str,
        txlog_conn_id: str | None = None,
        storage_conn_id: str | None = None,
        runner: str | Runner | None = None,
        spark_conf: Mapping[str, Any] | None = None,
        unrestricted: str | Collection[str] = (),
        time_zone: str = "UTC",
        conflict_deadline_s: int = 3600,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table_uri = path_text(table_uri)
        self.txlog_conn_id = txlog_conn_id
        self.storage_conn_id = storage_conn_id
        self.runner = runner
        self.spark_conf = spark_conf
        self.unrestricted = (unrestricted,) if isinstance(unrestricted, str) else tuple(unrestricted)
        self.time_zone = time_zone
        self.conflict_deadline_s = conflict_deadline_s
        self._running: Runner | None = None
        self._spec_of_work: JobSpec | None = None
        # After super().__init__, which has applied the author's argument or default_args.
        if HAS_RETRY_POLICY and self.retry_policy is None:
            self.retry_policy = TxlogRetryPolicy()

    @property
    def hook(self) -> TxlogHook:
        """The hook of this operator's connection."""
        from airflow_txlog.hooks.txlog import TxlogHook

        return TxlogHook(self.txlog_conn_id, self.storage_conn_id)

    def job_arguments(self) -> dict[str, Any]:
        """The fields of the operation's record, from the rendered fields of this operator."""
        return {}

    def check_literals(self) -> None:
        """Raise InvalidJobSpec for what is wrong in any rendering. The last line of each operator's constructor.

        What a template or another task decides is checked when the task runs. Reads no connection.
        """
        if isinstance(self.runner, str):
            check_runner(self.runner)
        # With a connection, a name is joined to its base, which is known only when the task runs.
        uri = self.table_uri if self.txlog_conn_id is None or not isinstance(self.table_uri, str) else "/"
        try:
            self._spec(uri)
        except InvalidJobSpec as error:
            argument = str(error.facts.get("argument")).removeprefix("arguments.").split(".")[0].split("[")[0]
            fields = [name for name in self.fields_of(argument) if name in self.template_fields]
            if not any(has_template(getattr(self, name)) for name in fields):
                raise

    def fields_of(self, argument: str) -> Collection[str]:
        """The arguments of this operator that make an argument of the job."""
        return (argument,)

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """What Airflow renders, but for a template with an expression that is None or undefined.

        That is null for a parameter that may be null, and InvalidJobSpec anywhere else: as a text it would be a value
        that no row has, a table of that name, or a key that all work shares.
        """
        if not isinstance(content, str):
            value = super().render_template(content, context, jinja_env, seen_oids)
            if value is None and hasattr(content, "resolve"):
                return self._null_of(content, "is another task's output, which is None", is_all_null=True)
            return value
        is_null = False
        env = jinja_env or self.get_template_env()

        def look(value: Any) -> Any:
            nonlocal is_null
            is_undefined = isinstance(value, env.undefined)
            is_null = is_null or value is None or is_undefined
            # An undefined name raises when it becomes a text, without a word on the argument.
            return "" if is_undefined else value

        rendered = super().render_template(content, context, env.overlay(finalize=look), seen_oids)
        if not is_null:
            return rendered
        found = f"has the template {content!r}, which renders to None"
        return self._null_of(content, found, is_all_null=str(rendered) in ("None", ""))

    def _null_of(self, content: Any, found: str, *, is_all_null: bool) -> None:
        """None where all places of the content are parameters that may be null; else raises InvalidJobSpec."""
        places = [place for name in self.template_fields for place in _places(name, getattr(self, name), content)]
        may_be_null = {f"parameters.{name}" for name in self.nullable_parameters}
        if is_all_null and places and may_be_null.issuperset(places):
            return
        place = next((place for place in places if place not in may_be_null), "an argument")
        raise_for_airflow(InvalidJobSpec(null_refusal(place, found), argument=place))

    def application(self, context: Mapping[str, Any], table_uri: str) -> ApplicationTransaction | None:
        """The application transaction of this try; None for operations that carry none (soundness B5)."""
        return None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job and return its small XCom: version, read_version, operation, status, metrics, files, seconds."""
        try:
            spec = self._spec_of_work = self.job_spec(context)
            self._running = self._make_runner()
            started_s = time.perf_counter()
            result = self._running.run(spec, log=self.log.info)
        except TxlogError as error:
            raise_for_airflow(error)
        finally:
            self._running = None
        seconds = time.perf_counter() - started_s
        for line in task_lines(result):
            self.log.info("%s", line)
        if result.status == "nothing_to_do":
            # Airflow makes an event of every asset that a task names as an outlet when it succeeds.
            self.outlets = []
        self._fill_asset_events(context, result)
        report_result(context, result, seconds)
        return xcom_of(result, seconds)

    def job_spec(self, context: Mapping[str, Any]) -> JobSpec:
        """The validated description of the job. Reads the connection, and for a data-changing job the table."""
        from airflow_txlog.hooks.work_key import saved_work_key
        from airflow_txlog.operators.identity import annotations_of

        hook = self.hook
        table_uri = hook.table_uri(self.table_uri)
        # Validated once without the transaction: a wrong argument must not cost a number, nor wait for the table.
        spec = hook.with_settings(self._spec(table_uri)).replace(
            annotations=annotations_of(context),
            strict_writers=hook.strict_writers,
            storage_options=hook.storage_options,
            storage_conn_id=hook.storage_conn_id,
            allow_absolute_paths=hook.allow_absolute_paths,
            single_writer=hook.single_writer,
        )
        application = self.application(context, table_uri)
        if application is not None:
            self.log.info("application transaction %s, version %s", application.app_id, application.version)
        key = None if application is None else saved_work_key(application)
        return spec.replace(application=application, saved_work_key=key)

    def _spec(self, table_uri: str) -> JobSpec:
        return JobSpec(
            operation=read_operation(self.operation, self.job_arguments()),
            table_uri=table_uri,
            spark_conf=text_map("spark_conf", self.spark_conf),
            unrestricted=tuple(self.unrestricted),
            time_zone=self.time_zone,
            conflict_deadline_s=self.conflict_deadline_s,
        )

    def on_kill(self) -> None:
        """Stop the job. What it committed stays; what it staged is never named, and vacuum sweeps it."""
        running = self._running
        if running is not None:
            self.log.info("stopping the %s job on %s", self.operation.name, self.table_uri)
            running.kill()

    def _make_runner(self) -> Runner:
        if self.runner is not None and not isinstance(self.runner, str):
            return self.runner
        name = self.runner or self.hook.runner_name or conf.get("txlog", "runner", fallback="") or "child"
        return make_runner(name)

    def _fill_asset_events(self, context: Mapping[str, Any], result: JobResult) -> None:
        """Put the version into the asset events of this task, for the DAGs that they schedule."""
        for outlet in self.outlets or ():
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(event_extra(result))


class ExactlyOnceOperator(TxlogOperator):
    """Base of the operators whose commit changes rows, exactly once per task instance.

    :param idempotency_key: a name for this piece of work, instead of the task instance's own identity: a task that
        runs it again under the same key finds it done. It must differ from one piece of work to the next, for example
        by `{{ run_id }}`; the same key with other arguments fails. Clearing the task does not repeat it. (templated)
    """

    template_fields: Sequence[str] = (*TxlogOperator.template_fields, "idempotency_key")

    def __init__(self, *, idempotency_key: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.idempotency_key = idempotency_key
        # Airflow runs these callbacks once its database has the success, and survives one that fails.
        self.on_success_callback = [*self.on_success_callback, _keep_success]
        # Not run where the task is to be retried: then what it saved is needed.
        self.on_failure_callback = [*self.on_failure_callback, _forget_saved_work]

    def application(self, context: Mapping[str, Any], table_uri: str) -> ApplicationTransaction | None:
        from airflow_txlog.application import recorded_version, recorded_work
        from airflow_txlog.operators.identity import application_transaction

        table = self.hook.table(table_uri)
        return application_transaction(
            context,
            lambda app_id: recorded_version(table, app_id),
            self.idempotency_key,
            recorded_work=lambda app_id_end: recorded_work(table, app_id_end),
        )


def _forget_saved_work(context: Any) -> None:
    """Delete the rows and keys that a task which has failed for good had kept for its retries."""
    task = context["task"]
    spec = getattr(task, "_spec_of_work", None)
    if spec is None:
        return  # it did not come to work, or was killed: then VACUUM deletes what an earlier try has saved
    from airflow_txlog.application import forget_saved_work

    try:
        forget_saved_work(spec)
    except Exception as error:
        task.log.warning(
            "what this task saved for its retries could not be deleted (%s); a VACUUM of %s deletes it",
            type(error).__name__,
            spec.table_uri,
        )


def _keep_success(context: Any) -> None:
    from airflow_txlog.operators.identity import keep_success

    keep_success(context)


class DataChangingOperator(ExactlyOnceOperator):
    """Base of the operators that change rows by SQL texts.

    :param partition_predicate: what the operation may read and write, as SQL over partition columns with `:name` for
        values; a row outside it is an error, and work in other partitions never conflicts. (templated)
    :param parameters: the values of `:name` in every SQL text of the operation, bound and never pasted: texts,
        numbers, dates, datetimes, Decimals, bytes, or lists of them. (templated)
    :param nullable_parameters: the names of parameters that may be null. Any other that is None, or whose template
        renders to None, fails the task: a comparison with null is true of no row.
    """

    template_fields: Sequence[str] = (*ExactlyOnceOperator.template_fields, "partition_predicate", "parameters")

    def __init__(
        self,
        *,
        partition_predicate: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        nullable_parameters: str | Collection[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.partition_predicate = partition_predicate
        self.parameters = parameters
        self.nullable_parameters = column_list("nullable_parameters", nullable_parameters) or ()

    def job_arguments(self) -> dict[str, Any]:
        return {
            "partition_predicate": self.partition_predicate,
            "parameters": parameter_map(self.parameters, self.nullable_parameters),
        }


def _places(name: str, value: Any, content: Any) -> Iterator[str]:
    """Where a text, or another task's output, stands in an argument: `parameters.day`, `keys[2]`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _places(f"{name}.{key}", item, content)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _places(f"{name}[{index}]", item, content)
    elif value is content or (isinstance(value, str) and isinstance(content, str) and value == content):
        yield name
