"""The operators on a whole DAG run: the versions that it reads, and the rollback of its commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Operation, Rollback, read_operation
from airflow_txlog.contract.wording import summary_lines
from airflow_txlog.errors import TxlogError
from airflow_txlog.hooks.asset_events import fill_asset_events
from airflow_txlog.hooks.rollback import RunToUndo, roll_back
from airflow_txlog.hooks.run_versions import pin
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.hooks.upkeep import find_tables
from airflow_txlog.operators.arguments.given import has_template, place_list
from airflow_txlog.operators.arguments.rendering import RenderedOperator
from airflow_txlog.operators.many_jobs import ManyJobsOperator
from airflow_txlog.operators.progress import report_result
from airflow_txlog.policies.retry import HAS_RETRY_POLICY, TxlogRetryPolicy, raise_for_airflow

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PinVersionsOperator(RenderedOperator):
    """Fix one version of each table for the DAG run: tasks downstream read it with `as_of="run"`.

    :param tables: tables, or folders with tables at any depth. Paths, URIs, or names under the base of the connection.
        (templated)
    :param txlog_conn_id: a connection of type `txlog`, or None: no connection is needed.
    :param storage_conn_id: the connection whose credentials open the tables' stores, as in the other operators.
    :param catalog_conn_id: the connection of a catalog, in which `tables` may have names, as in the other operators.

    The task fixes the latest version of each table with one listing of its log. It reads no row and starts no process.
    Read the fixed versions with `table(uri, as_of="run")` as a source of any operator, or with
    `TxlogHook().open(uri, as_of="run")`. Both find the versions without the name of this task, which must be upstream
    of them. Clearing this task fixes the versions again. The XCom is
    `{"tables": [{"table_uri", "version", "commit_mark"}]}`.
    """

    pins_versions = True
    template_fields: Sequence[str] = ("tables",)
    ui_color = "#e4f2f7"

    def __init__(
        self,
        *,
        tables: str | Sequence[str],
        txlog_conn_id: str | None = None,
        storage_conn_id: str | None = None,
        catalog_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not has_template(tables):
            place_list("tables", tables)
        self.tables = tables
        self.txlog_conn_id = txlog_conn_id
        self.storage_conn_id = storage_conn_id
        self.catalog_conn_id = catalog_conn_id
        # A name that is no table is not worth another try.
        if HAS_RETRY_POLICY and self.retry_policy is None:
            self.retry_policy = TxlogRetryPolicy(otherwise="default")

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the versions, for the tasks downstream."""
        hook = TxlogHook(self.txlog_conn_id, self.storage_conn_id, catalog_conn_id=self.catalog_conn_id)
        try:
            pinned = pin(hook, find_tables(hook, place_list("tables", self.tables)))
        except TxlogError as error:
            raise_for_airflow(error)
        for each in pinned:
            self.log.info("pinned version %s of %s", each["version"], each["table_uri"])
        return {"tables": pinned}


class DeltaRollbackOperator(ManyJobsOperator):
    """Undo the commits of the tasks of a DAG run, on all tables or on none, without Spark.

    :param run_id: the run. (templated)
    :param tables: tables, or folders with tables at any depth. Paths, URIs, or names under the base of the connection.
        (templated)
    :param of_dag_id: the DAG of the run; None: the DAG of this task. (templated)
    :param dry_run: report the planned actions, and change nothing.

    The commits of the run are found by their tags, in the logs of the tables. If a table has no other commit since the
    first of them, the version before it is restored. If the run only appended to a table, and later commits neither
    changed its files nor read their rows, the files are removed. Any other commit prevents the rollback: the task fails
    with CannotRollBack, which names the commit, and no table is changed. All tables are checked before the first one is
    changed. A rolled-back task that is cleared writes again. The XCom is
    `{"tables": [{"table_uri", "action", "undoes", "in_the_way", "status", "version"}], "dry_run"}`, with `table` for a
    name in a catalog, and `catalog` if its entry was updated.

    Example: `DeltaRollbackOperator(task_id="undo", run_id="{{ params.run_id }}", tables="/lake")`. Other arguments:
    `TxlogOperator`, except `table_uri`.
    """

    operation: ClassVar[type[Operation]] = Rollback
    template_fields: Sequence[str] = ("run_id", "tables", "of_dag_id", "spark_conf")

    def __init__(
        self,
        *,
        run_id: str,
        tables: str | Sequence[str],
        of_dag_id: str | None = None,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not has_template(tables):
            place_list("tables", tables)
        self.run_id = run_id
        self.tables = tables
        self.of_dag_id = of_dag_id
        self.is_dry_run = dry_run
        # What became of the catalogs' entries, by table.
        self._kept: dict[str, str | None] = {}
        self.check_literals()

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields of the record."""
        of_dag_id = self.of_dag_id
        if of_dag_id is None:
            of_dag_id = self.dag_id
        return {"run_id": self.run_id, "of_dag_id": of_dag_id}

    def execute(self, context: Context) -> dict[str, Any]:
        """Check all tables, and then run a job for each table that the run has changed."""
        self.begin_try()
        try:
            described = read_operation(Rollback, self.job_arguments())
            run = RunToUndo(dag_id=described.of_dag_id, run_id=described.run_id)
            entries = roll_back(
                self.hook,
                place_list("tables", self.tables),
                run,
                lambda table, record: self._run(context, table, record),
                self.log.info,
                self.log.warning,
                dry_run=self.is_dry_run,
            )
        except TxlogError as error:
            raise_for_airflow(error)
        # After the last: a DAG that an event starts finds all of them.
        fill_asset_events(
            self,
            context,
            [result for _, result in self._done],
            without_change=self.emit_without_change,
            by_partition=self.emit_partitions,
        )
        hook = self.hook
        for entry in entries:
            name, kept = hook.name_at(entry["table_uri"]), self._kept.get(entry["table_uri"])
            entry |= {"table": name} if name is not None else {}
            entry |= {"catalog": kept} if kept is not None else {}
        return {"tables": entries, "dry_run": self.is_dry_run}

    def _run(self, context: Mapping[str, Any], table: str, record: Rollback) -> JobResult:
        result = self.run_job(context, self.spec_for(context, record, table), f"{table}/{record.commit}")
        for line in summary_lines(result, result.seconds):
            self.log.info("%s", line)
        report_result(context, result, result.seconds)
        self._kept[table] = self.hook.keep_in_catalog(result)
        return result
