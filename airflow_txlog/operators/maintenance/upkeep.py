"""DeltaUpkeepOperator: one task that keeps many tables healthy, and does nothing that is not due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import Operation, Upkeep, read_operation
from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.hooks.upkeep import run_upkeep
from airflow_txlog.operators.arguments.given import has_template, place_list
from airflow_txlog.operators.many_jobs import ManyJobsOperator
from airflow_txlog.policies.retry import raise_for_airflow

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class DeltaUpkeepOperator(ManyJobsOperator):
    """Compact, purge, checkpoint, clean and vacuum the tables that need it, one after another.

    :param tables: tables, or folders with tables at any depth: paths, URIs, or names below the base folder of the
        connection. None is the base folder itself. (templated)
    :param compact: combine small files, and rewrite files with many deleted rows, if a partition has more than two of
        them.
    :param purge_above: the fraction of a table's rows that deletion vectors delete, from 0 to 1, above which all files
        with a vector are rewritten. 0 purges on every run, None never.
    :param checkpoint: write a checkpoint if more commits than `delta.checkpointInterval` follow the newest one, and
        delete log files that are past their retention.
    :param vacuum: "lite" deletes files that the log has removed, without listing the table. It becomes a full vacuum if
        the log does not reach back to the last one. "full" also finds files of killed tasks. None skips the vacuum.
    :param retention_hours: how long a vacuum keeps removed files. None uses each table's own retention, and a shorter
        one is not allowed.
    :param target_bytes: the target size of files. None uses each table's `delta.targetFileSize`, or 256 MiB.
    :param max_bytes: the number of bytes that may be rewritten in all tables together. The next run continues.
    :param max_minutes: the time after which no further step starts. A running step ends after its commit.
    :param dry_run: only report the steps that are due.

    If one table fails, the task continues with the others, then fails and names the table. A retry runs the steps that
    are still due. The XCom is the report: `{"tables": [...], "failed": [...], "left": [...]}`, also for a failed task.
    Spark starts only for a table that needs it. Other arguments: `TxlogOperator`, except `table_uri`.
    """

    operation: ClassVar[type[Operation]] = Upkeep
    template_fields: Sequence[str] = ("tables", "spark_conf")

    def __init__(
        self,
        *,
        tables: str | Sequence[str] | None = None,
        compact: bool = True,
        purge_above: float | None = 0.05,
        checkpoint: bool = True,
        vacuum: Literal["lite", "full"] | None = "lite",
        retention_hours: float | None = None,
        target_bytes: int | None = None,
        max_bytes: int | None = None,
        max_minutes: float | None = None,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        if tables is None and kwargs.get("txlog_conn_id") is None:
            raise TypeError("tables is missing: name them, or a txlog_conn_id whose base folder has them")
        super().__init__(**kwargs)
        self.tables = tables
        if not has_template(tables):
            self._places()
        self.compact = compact
        self.purge_above = purge_above
        self.checkpoint = checkpoint
        self.vacuum = vacuum
        self.retention_hours = retention_hours
        self.target_bytes = target_bytes
        self.max_bytes = max_bytes
        self.max_minutes = max_minutes
        self.is_dry_run = dry_run
        for name, limit in (("max_bytes", max_bytes), ("max_minutes", max_minutes)):
            if limit is not None and not limit > 0:
                raise InvalidJobSpec(f"{name} must be more than 0; found {limit!r}.", argument=name)
        self.check_literals()

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields of the record, without the limits of one job."""
        names = ("compact", "purge_above", "checkpoint", "vacuum", "retention_hours", "target_bytes", "dry_run")
        return {name: self.given(name) for name in names}

    def execute(self, context: Context) -> dict[str, Any]:
        """Run a job for each table; return the report, also as the XCom of a task that fails."""
        self.begin_try()
        try:
            report = run_upkeep(
                self.hook,
                # A literal empty list was refused when the DAG was parsed. A task that found no table gives one.
                [] if self.tables == [] else self._places(),
                lambda table, limits: self._spec_of(context, table, limits),
                lambda spec: self.run_job(context, spec, spec.table_uri),
                self.log.info,
                max_bytes=self.max_bytes,
                max_minutes=self.max_minutes,
                is_stopped=lambda: self._is_stopped,
            )
            try:
                report.check()
            except TxlogError:
                if "ti" in context:
                    context["ti"].xcom_push(key="return_value", value=report.to_dict())
                raise
        except TxlogError as error:
            raise_for_airflow(error)
        return report.to_dict()

    def _places(self) -> list[str]:
        return [""] if self.tables is None else place_list("tables", self.tables)

    def _spec_of(self, context: Mapping[str, Any], table: str, limits: Mapping[str, Any]) -> JobSpec:
        return self.spec_for(context, read_operation(self.operation, {**self.job_arguments(), **limits}), table)
