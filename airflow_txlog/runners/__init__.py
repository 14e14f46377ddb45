"""Where a job runs: a child process of the task, or the task's own process; with a Spark of its own, or a cluster's.

A runner takes a JobSpec and gives the JobResult, or raises the job's typed error. It knows nothing of Airflow.
"""

from airflow_txlog.runners.base import DurableRunner, Runner, forget_saved_work, run_unless_done
from airflow_txlog.runners.choice import (
    CONNECTION_TYPES,
    check_cluster_named,
    check_runner,
    make_runner,
    not_deferrable,
)

__all__ = [
    "CONNECTION_TYPES",
    "DurableRunner",
    "Runner",
    "check_cluster_named",
    "check_runner",
    "forget_saved_work",
    "make_runner",
    "not_deferrable",
    "run_unless_done",
]
