"""The operation on the commits of a DAG run, one record."""

from __future__ import annotations

from airflow_txlog.contract.operations.base import Operation, register
from airflow_txlog.contract.operations.fields import Text, Version


@register
class Rollback(Operation, frozen=True, kw_only=True, tag="rollback"):
    """Undo what the tasks of the run have committed to the table, unless later commits are in the way.

    It carries no separate transaction, because commits that are already undone are not undone again. `since`: the run
    has committed nothing before this version. `commit`: undo this commit instead, which is an earlier rollback.
    """

    job = "airflow_txlog.jobs.operations.rollback:rollback"
    changes_rows = True
    rows = {"numDeletedRows": "deleted"}

    run_id: Text
    of_dag_id: Text
    since: Version = 0
    commit: Version | None = None
