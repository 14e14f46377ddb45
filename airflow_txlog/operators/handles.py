"""The base of the operators on staged changes, which run one job for each handle that they are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import read_operation
from airflow_txlog.contract.wording import handles_of, summary_lines, xcom_of
from airflow_txlog.errors import InvalidJobSpec, JobError, TxlogError
from airflow_txlog.hooks.asset_events import fill_asset_events
from airflow_txlog.hooks.identity import annotations_of
from airflow_txlog.operators.arguments.given import text_map
from airflow_txlog.operators.arguments.texts import check_texts
from airflow_txlog.operators.base import TxlogOperator
from airflow_txlog.operators.progress import report_result
from airflow_txlog.policies.retry import raise_for_airflow
from airflow_txlog.runners import run_unless_done

if TYPE_CHECKING:
    import jinja2
    from airflow.providers.common.compat.sdk import Context
    from airflow.providers.openlineage.extractors import OperatorLineage


class StagedChangesOperator(TxlogOperator):
    """Base of the operators on staged changes: one job for each, in order.

    :param staged: the changes: the outputs of the tasks that staged them, such as `[load.output, fix.output]`, or one
        of them. A task that had nothing to change counts too. (templated)
    """

    template_fields: Sequence[str] = ("staged", "spark_conf")

    def __init__(self, *, staged: Any, **kwargs: Any) -> None:
        # The handles name the tables.
        super().__init__(table_uri="/", **kwargs)
        self.staged = staged
        self._is_stopped = False
        self._published: list[tuple[JobSpec, JobResult]] = []
        if self.deferrable:
            raise InvalidJobSpec("Staged changes take several jobs, which are not deferrable.", argument="deferrable")
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
        """Airflow's method. The task is sensitive if one that staged a change is; its changes are rendered first."""
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
        self.has_begun = True
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
                changes.append(xcom_of(result, result.seconds))
        except TxlogError as error:
            raise_for_airflow(error)
        # After the last: a DAG that an event starts finds all of them.
        fill_asset_events(
            self, context, results, without_change=self.emit_without_change, by_partition=self.emit_partitions
        )
        return {"changes": changes}

    def on_kill(self) -> None:
        """Stop the job that runs, and begin no other."""
        self._is_stopped = True
        super().on_kill()

    def _run(self, context: Mapping[str, Any], handle: Mapping[str, Any]) -> JobResult:
        spec = self._spec_of(context, handle)
        self._running = self._make_runner()
        try:
            if self._is_stopped:
                raise JobError("The task was stopped. Run it again: what is done is not done twice.", retryable=True)
            result = self.last_result = run_unless_done(self._running, spec, log=self.log.info)
        finally:
            self._running = None
        if spec.operation.changes_rows:
            self._published.append((spec, result))
        return result

    def _spec_of(self, context: Mapping[str, Any], handle: Mapping[str, Any]) -> JobSpec:
        operation = read_operation(self.operation, self.arguments_for(handle))
        check_texts(operation)
        spec = JobSpec(
            operation=operation,
            table_uri=self.hook.table_uri(handle["table_uri"]),
            spark_conf=text_map("spark_conf", self.spark_conf),
            unrestricted=self.unrestricted,
            time_zone=self.time_zone,
            conflict_deadline_s=self.conflict_deadline_s,
        )
        return self.hook.with_settings(spec, self.hook.runner_or(self.runner)).replace(
            annotations=annotations_of(context, is_sensitive=self.sensitive)
        )

    def _lineage(self, result: JobResult | None) -> OperatorLineage[Any, Any]:
        # Here: only a process in which the listener runs is certain to have its provider.
        from airflow.providers.openlineage.extractors import OperatorLineage

        # The task that staged a change knows where its rows come from.
        outputs = []
        for spec, done in self._published:
            self._spec_of_work = spec
            outputs += super()._lineage(done).outputs
        return OperatorLineage(outputs=outputs)


def _is_sensitive(handle: Mapping[str, Any]) -> bool:
    return handle.get("sensitive") is True
