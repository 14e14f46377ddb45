"""The base of the operators whose task runs several jobs, one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import Operation
from airflow_txlog.errors import InvalidJobSpec, JobError
from airflow_txlog.hooks.identity import annotations_of, job_identity
from airflow_txlog.hooks.named_tables import named
from airflow_txlog.hooks.running_progress import progress_shown
from airflow_txlog.hooks.work_key import saved_work_key
from airflow_txlog.operators.arguments.given import text_map
from airflow_txlog.operators.base import TxlogOperator
from airflow_txlog.runners import DurableRunner, run_unless_done

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


class ManyJobsOperator(TxlogOperator):
    """Base of the operators on tables that are known when the task runs: one job for each, in order.

    A killed task stops the job that runs, and begins no other. Lineage has the outputs of the finished jobs.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(table_uri="/", **kwargs)
        self._is_stopped = False
        self._done: list[tuple[JobSpec, JobResult]] = []
        if self.deferrable:
            raise InvalidJobSpec(
                "This operator runs several jobs, and is not deferrable. Leave deferrable out.", argument="deferrable"
            )

    def on_kill(self) -> None:
        """Stop the job that runs, and begin no other."""
        self._is_stopped = True
        super().on_kill()

    def spec_for(self, context: Mapping[str, Any], operation: Operation, table_uri: str) -> JobSpec:
        """Return the description of a job on a table."""
        spec = JobSpec(
            operation=operation,
            table_uri=table_uri,
            spark_conf=text_map("spark_conf", self.spark_conf),
            unrestricted=self.unrestricted,
            time_zone=self.time_zone,
            conflict_deadline_s=self.conflict_deadline_s,
        )
        spec = self.hook.with_settings(spec, self.hook.runner_or(self.runner))
        of_task = annotations_of(context, is_sensitive=self.sensitive)
        return spec.replace(annotations={**spec.annotations, **of_task})

    def run_job(self, context: Mapping[str, Any], spec: JobSpec, work: str | None = None) -> JobResult:
        """Run a job to its end. `work` distinguishes it from the other jobs of the task: a retry finds it by that.

        None: `spec` has its own key, or needs none. Raises JobError once the task is stopped, and the errors of
        the runner.
        """
        self._running = runner = self._make_runner()
        try:
            if self._is_stopped:
                raise JobError("The task was stopped. Run it again: finished work is not repeated.", retryable=True)
            if work is not None and isinstance(runner, DurableRunner):
                identity = job_identity(context)
                identity = dataclasses.replace(identity, app_id=f"{identity.app_id}/{work}")
                spec = spec.replace(saved_work_key=saved_work_key(identity))
            with progress_shown(context, self.log.info) as log:
                result = named(run_unless_done(runner, spec, log=log), spec)
        finally:
            self._running = None
        self._done.append((spec, result))
        return result

    def _lineage(self, result: JobResult | None) -> OperatorLineage[Any, Any]:
        # Here: only a process in which the listener runs is certain to have its provider.
        from airflow.providers.openlineage.extractors import OperatorLineage

        outputs = []
        for spec, done in self._done:
            if spec.operation.changes_rows:
                self._spec_of_work = spec
                outputs += super()._lineage(done).outputs
        return OperatorLineage(outputs=outputs)
