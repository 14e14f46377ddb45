"""The operators on staged changes: audit, publish, discard. Each runs one job for each handle that it is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import TaskGroup, XComArg

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.contract.operations import Audit, Discard, Operation, Publish, read_operation
from airflow_txlog.contract.wording import handles_of, summary_lines, xcom_of
from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.hooks.asset_events import fill_asset_events
from airflow_txlog.hooks.work_key import saved_work_key
from airflow_txlog.operators.arguments.given import parameter_map
from airflow_txlog.operators.arguments.texts import check_texts
from airflow_txlog.operators.many_jobs import ManyJobsOperator
from airflow_txlog.operators.progress import report_result
from airflow_txlog.policies.retry import raise_for_airflow

if TYPE_CHECKING:
    import jinja2
    from airflow.providers.common.compat.sdk import Context


class StagedChangesOperator(ManyJobsOperator):
    """Base of the operators on staged changes: one job for each, in order.

    :param staged: the changes: the outputs of the tasks that staged them, such as `[load.output, fix.output]`, or one
        of them. A task that had nothing to change counts too. (templated)
    """

    template_fields: Sequence[str] = ("staged", "spark_conf")

    def __init__(self, *, staged: Any, **kwargs: Any) -> None:
        # The handles name the tables.
        super().__init__(**kwargs)
        self.staged = staged
        self.check_literals()

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields of the record for the first change."""
        handles = self.handles()
        if not handles:
            raise InvalidJobSpec(
                "staged names no change: give the output of a task with publish=False.", argument="staged"
            )
        return self.arguments_for(handles[0])

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a template as Airflow does. Mark the task as sensitive if a task that staged one of its changes is."""
        rendered = super().render_template(content, context, jinja_env, seen_oids)
        if content is self.staged:
            # Handles that are none are refused when the task runs.
            with suppress(InvalidJobSpec):
                self.sensitive = self.sensitive or any(map(_is_sensitive, handles_of("staged", rendered)))
        return rendered

    def handles(self) -> list[dict[str, Any]]:
        """Return the handles of the changes. Raises InvalidJobSpec."""
        return handles_of("staged", self.staged)

    def arguments_for(self, handle: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the record for a change."""
        return {name: handle[name] for name in ("id", "digest")}

    def execute(self, context: Context) -> dict[str, Any]:
        """Run a job for each change; return `{"changes": [...]}`, for each change what its own task would return."""
        self.begin_try()
        results: list[JobResult] = []
        changes: list[dict[str, Any]] = []
        try:
            for handle in self.handles():
                # Values of a sensitive task may be those of its partitions, which asset events have.
                self.sensitive = self.sensitive or _is_sensitive(handle)
                result = dataclasses.replace(self._run(context, handle), operation=handle["operation"])
                for line in summary_lines(result, result.seconds):
                    self.log.info("%s", line)
                report_result(context, result, result.seconds)
                results.append(result)
                kept = self.hook.keep_in_catalog(result)
                changes.append(xcom_of(result, result.seconds) | ({} if kept is None else {"catalog": kept}))
        except TxlogError as error:
            raise_for_airflow(error)
        # After the last: a DAG that an event starts finds all of them.
        fill_asset_events(
            self, context, results, without_change=self.emit_without_change, by_partition=self.emit_partitions
        )
        return {"changes": changes}

    def _run(self, context: Mapping[str, Any], handle: Mapping[str, Any]) -> JobResult:
        result = self.last_result = self.run_job(context, self._spec_of(context, handle))
        return result

    def _spec_of(self, context: Mapping[str, Any], handle: Mapping[str, Any]) -> JobSpec:
        operation = read_operation(self.operation, self.arguments_for(handle))
        check_texts(operation)
        hook, name = self.hook, handle.get("table")
        place = hook.table_uri(handle["table_uri"])
        if name is not None and hook.catalog_conn_id is not None:
            # A table that the catalog has lost since is registered again.
            place = hook.place_of(name, place, may_create=True)
        return self.spec_for(context, operation, place)


def _work_of(handle: Mapping[str, Any]) -> ApplicationTransaction:
    """Return the application transaction of the work that staged a change."""
    return ApplicationTransaction(
        app_id=handle["app_id"], version=handle["app_version"], first_tried_ms=handle["staged_ms"]
    )


def _audits_by_write(writes: Sequence[Any], audits: Sequence[DeltaAuditOperator]) -> dict[str, list[str]]:
    """Return the ids of the audits that check the output of each task, by the task's id.

    An audit may check any of them if its `staged` is a template or the output of another task. It counts for all then.
    """
    staged_by = {write.task_id for write in writes}
    checked: dict[str, set[str]] = {}
    for audit in audits:
        named = {task.task_id for task, _ in XComArg.iter_xcom_references(audit.staged)}
        checked[audit.task_id] = named if named and named <= staged_by else staged_by
    return {write.task_id: [audit for audit, tasks in checked.items() if write.task_id in tasks] for write in writes}


def _is_sensitive(handle: Mapping[str, Any]) -> bool:
    return handle.get("sensitive") is True


class DeltaPublishOperator(StagedChangesOperator):
    """Publish staged changes, each in one commit, in the order given.

    A publication commits the files that were staged and reads no row. Commits that landed in the meantime and do not
    conflict, such as appends and compactions, stay as they are. Two publishers of one change make one commit, and a
    retry publishes what is left.

    :param on_change: if another commit has changed what the staged change had read or changed: "fail" (for good, with
        that commit's version in the message), or "reaudit": make the change again on the newest version, run again each
        `DeltaAuditOperator` that has checked it, and publish what passes. No other check is repeated.
    :param audited_by: with "reaudit", the ids of the `DeltaAuditOperator`s of each change, by the id of the task that
        staged it: `{"load": ["audit"]}`. If the table's folder has lost the record of one of these audits, the change
        is not made again. A change by a task that is not in it needs all of them. `write_audit_publish` sets it.

    With several tables, readers can see the first one published and the next one not yet. Asset events are emitted
    after the last; a task that fails emits none, not even for the tables that it has published. The XCom lists all
    versions: `{"changes": [{"table_uri", "operation", "status", "version", …}]}`.

    Example: `DeltaPublishOperator(task_id="publish", staged=[load.output])`. Other arguments: `StagedChangesOperator`
    and `TxlogOperator`, except `table_uri`.
    """

    operation: ClassVar[type[Operation]] = Publish

    def __init__(
        self,
        *,
        staged: Any,
        on_change: str = "fail",
        audited_by: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.on_change = on_change
        self.audited_by = audited_by
        super().__init__(staged=staged, **kwargs)

    def arguments_for(self, handle: Mapping[str, Any]) -> dict[str, Any]:
        of_tasks = _mapping("audited_by", self.audited_by)
        every = {each for audits in of_tasks.values() for each in audits}
        audited_by = sorted(of_tasks.get(str(handle.get("task_id")), every))
        return {**super().arguments_for(handle), "on_change": self.on_change, "audited_by": audited_by or None}

    def _spec_of(self, context: Mapping[str, Any], handle: Mapping[str, Any]) -> JobSpec:
        # Any publisher publishes the change as the work that staged it.
        work = _work_of(handle)
        return super()._spec_of(context, handle).replace(application=work, saved_work_key=saved_work_key(work))


class DeltaAuditOperator(StagedChangesOperator):
    """Check staged changes, and fail if one does not pass. Spark evaluates the SQL; nothing is committed.

    :param checks: named conditions that must be true, as in Airflow's `SQLTableCheckOperator`:
        `{"not_empty": {"check_statement": "COUNT(*) > 0"}, "known": {"check_statement": "status IS NOT NULL"}}`. A
        condition on aggregates is evaluated once, any other for every row; null is not true. (templated)
    :param no_rows: named queries that must return no row: `{"twice": "SELECT id FROM staged GROUP BY id HAVING
        COUNT(*) > 1"}`. The view `staged` is the table as the change would leave it, `before` the version that it was
        made on. (templated)
    :param parameters: the values of `:name` in the SQL, bound and never pasted. Airflow's Rendered Templates show
        asterisks for them if a task that staged a change is `sensitive`. (templated)

    The task fails with AuditFailed, which no retry repeats. The message has the names and the numbers of rows, and no
    value. Example: `DeltaAuditOperator(task_id="audit", staged=[load.output], checks={"not_empty": {"check_statement":
    "COUNT(*) > 0"}})`. Other arguments: `StagedChangesOperator` and `TxlogOperator`, except `table_uri`.
    """

    operation: ClassVar[type[Operation]] = Audit
    template_fields: Sequence[str] = (*StagedChangesOperator.template_fields, "checks", "no_rows", "parameters")

    def __init__(
        self,
        *,
        staged: Any,
        checks: Mapping[str, Any] | None = None,
        no_rows: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.checks = checks
        self.no_rows = no_rows
        self.parameters = parameters
        super().__init__(staged=staged, **kwargs)

    def arguments_for(self, handle: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **super().arguments_for(handle),
            **{name: handle[name] for name in ("base_version", "app_id", "app_version")},
            "checks": {name: _statement(name, given) for name, given in _mapping("checks", self.checks).items()},
            "no_rows": _mapping("no_rows", self.no_rows),
            "parameters": parameter_map(self.parameters),
        }

    def _spec_of(self, context: Mapping[str, Any], handle: Mapping[str, Any]) -> JobSpec:
        # Only tasks with the key of the work that staged the change read the audit that the job records.
        return super()._spec_of(context, handle).replace(saved_work_key=saved_work_key(_work_of(handle)))


def _mapping(name: str, given: Any) -> dict[str, Any]:
    if not (given is None or isinstance(given, Mapping)):
        raise InvalidJobSpec(f"{name} must be a mapping; found {type(given).__name__}.", argument=name)
    return dict(given or {})


def _statement(name: str, given: Any) -> Any:
    """Return the condition of a check, which Airflow's operator has in a mapping."""
    if isinstance(given, Mapping) and given.keys() == {"check_statement"}:
        return given["check_statement"]
    found = f"one with {sorted(given)}" if isinstance(given, Mapping) else type(given).__name__
    raise InvalidJobSpec(
        f'checks.{name} must be a mapping {{"check_statement": "…"}}; found {found}.', argument=f"checks.{name}"
    )


class DeltaDiscardOperator(StagedChangesOperator):
    """Delete staged changes with their files, without a trace in the table. A published change stays as it is.

    Use it as a teardown, so that it always runs after the previous tasks. If a publication has started and its outcome
    is unknown, the files stay until the change expires, and then a VACUUM deletes them.

    Example: `DeltaDiscardOperator(task_id="discard", staged=[load.output]).as_teardown(setups=load)`. Other arguments:
    `StagedChangesOperator` and `TxlogOperator`, except `table_uri`.
    """

    operation: ClassVar[type[Operation]] = Discard

    def handles(self) -> list[dict[str, Any]]:
        # A task that has failed has no output, and the changes of the others are to go all the same.
        given = self.staged if isinstance(self.staged, list | tuple) else [self.staged]
        return handles_of("staged", [each for each in given if each is not None])

    def may_be_null(self, place: str) -> bool:
        return place.partition("[")[0] == "staged" or super().may_be_null(place)


def write_audit_publish(
    write: Any,
    audits: Any,
    approve: Any = None,
    *,
    group_id: str = "publish_staged",
    **publish: Any,
) -> TaskGroup:
    """Return a group of tasks that publishes the changes of `write` if the audits pass and `approve` succeeds.

    `write` is a task with `publish=False`, or a list of them. `audits` are tasks that fail if something is wrong: a
    `DeltaAuditOperator`, a call of a `@task`, an operator of another provider; one or a list. `approve` is a task that
    fails or is skipped if a person refuses, such as Airflow's `ApprovalOperator`. The function sets the order of all
    tasks. The group's last task is a teardown that always runs and deletes the changes that are not published.
    `publish` are arguments of `DeltaPublishOperator`, such as `outlets`; its connections are those of the first of
    `write` unless given. With `on_change="reaudit"` all audits must be `DeltaAuditOperator`s, because no other one can
    run again.
    """
    writes: list[Any] = list(write) if isinstance(write, list | tuple) else [write]
    checks: list[Any] = list(audits) if isinstance(audits, list | tuple) else [audits]
    for task in writes:
        if task.publish is not False:
            raise InvalidJobSpec(
                f"{task.task_id} publishes its change at once: give it publish=False.", argument="publish"
            )
    audits_again = publish.get("on_change", "fail") == "reaudit"
    if audits_again and not (checks and all(isinstance(check, DeltaAuditOperator) for check in checks)):
        raise InvalidJobSpec(
            'on_change="reaudit" runs the audits again, which only a DeltaAuditOperator can do: let audits be some of '
            'those and nothing else, or publish with on_change="fail".',
            argument="on_change",
        )
    if audits_again:
        publish = {"audited_by": _audits_by_write(writes, checks), **publish}
    names = ("txlog_conn_id", "storage_conn_id", "spark_conn_id", "catalog_conn_id", "runner")
    connections = {name: getattr(writes[0], name) for name in names}
    staged = [task.output for task in writes]
    with TaskGroup(group_id) as group:
        published = DeltaPublishOperator(task_id="publish", staged=staged, **{**connections, **publish})
        discarded = DeltaDiscardOperator(task_id="discard", staged=staged, **connections)
    before = published if approve is None else approve
    if checks:
        for check in checks:
            check.set_upstream(writes)
        before.set_upstream(checks)
    else:
        before.set_upstream(writes)
    if approve is not None:
        published.set_upstream(approve)
    discarded.set_upstream(published)
    # A teardown runs although tasks before it were skipped or failed, and does not hide that the run has failed.
    discarded.as_teardown(setups=writes)
    return group
