"""Runners: a job in a child process of the task, or in the task's own process, with its own Spark or a cluster's.

A runner takes a JobSpec and returns the JobResult, or raises the job's typed error. It does not know Airflow.
"""

from airflow_txlog.runners.base import (
    CONNECTION_TYPES,
    DurableRunner,
    Runner,
    check_cluster_named,
    check_runner,
    forget_saved_work,
    make_runner,
    not_deferrable,
    run_unless_done,
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
