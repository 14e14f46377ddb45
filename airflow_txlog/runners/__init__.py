"""Where a job runs: a child process of the task, or the task's own process.

A runner takes a JobSpec and gives the JobResult, or raises the job's typed error. It knows nothing of Airflow.
"""

from airflow_txlog.runners.base import Runner
from airflow_txlog.runners.choice import check_runner, make_runner

__all__ = ["Runner", "check_runner", "make_runner"]
