"""The operators on staged changes: audit, publish, discard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import TaskGroup

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.contract.operations import Audit, Discard, Operation, Publish
from airflow_txlog.contract.wording import handles_of
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.work_key import saved_work_key
from airflow_txlog.operators.arguments.given import parameter_map
from airflow_txlog.operators.handles import StagedChangesOperator


class DeltaPublishOperator(StagedChangesOperator):
    """Publish staged changes, each in one commit, in the order given.

    A publication commits the files that were staged and reads no row. Commits that landed in the meantime and do not
    conflict, such as appends and compactions, stay as they are. A commit that changed what the staged change had read
    or changed makes the task fail for good, with that commit's version in the message. Two publishers of one change
    make one commit, and a retry publishes what is left.

    With several tables, readers can see the first one published and the next one not yet. Asset events are emitted
    after the last; a task that fails emits none, not even for the tables that it has published. The XCom lists all
    versions: `{"changes": [{"table_uri", "operation", "status", "version", …}]}`.

    Example: `DeltaPublishOperator(task_id="publish", staged=[load.output])`. Other arguments: `StagedChangesOperator`
    and `TxlogOperator`, except `table_uri`.
    """

    operation: ClassVar[type[Operation]] = Publish

    def _spec_of(self, context: Mapping[str, Any], handle: Mapping[str, Any]) -> JobSpec:
        # Any publisher publishes the change as the work that staged it.
        work = ApplicationTransaction(
            app_id=handle["app_id"], version=handle["app_version"], first_tried_ms=handle["staged_ms"]
        )
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
            "base_version": handle["base_version"],
            "checks": {name: _statement(name, given) for name, given in _mapping("checks", self.checks).items()},
            "no_rows": _mapping("no_rows", self.no_rows),
            "parameters": parameter_map(self.parameters),
        }


def _mapping(name: str, given: Any) -> dict[str, Any]:
    if not (given is None or isinstance(given, Mapping)):
        raise InvalidJobSpec(f"{name} must map names to SQL; found {type(given).__name__}.", argument=name)
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

    Use it as a teardown, so that it runs however the tasks before it ended. If a publication has begun and its end is
    not known, the files stay until the change expires, and a VACUUM deletes them.

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
    """Return a group that publishes what `write` has staged, once the audits have passed and `approve` has let it.

    `write` is a task with `publish=False`, or a list of them. `audits` are tasks that fail if something is wrong: a
    `DeltaAuditOperator`, a call of a `@task`, an operator of another provider; one or a list. `approve` is a task that
    fails or is skipped if a person refuses, such as Airflow's `ApprovalOperator`. The function sets the order of all.
    The group's last task is a teardown that deletes what is not published, whatever happened before. `publish` are
    arguments of `DeltaPublishOperator`, such as `outlets`; its connections are those of the first of `write` unless
    given.
    """
    writes: list[Any] = list(write) if isinstance(write, list | tuple) else [write]
    checks: list[Any] = list(audits) if isinstance(audits, list | tuple) else [audits]
    for task in writes:
        if task.publish is not False:
            raise InvalidJobSpec(
                f"{task.task_id} publishes its change at once: give it publish=False.", argument="publish"
            )
    connections = {name: getattr(writes[0], name) for name in ("txlog_conn_id", "storage_conn_id", "runner")}
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
