"""Runners for tests that put something between the steps of a real job, and after it.

They use what every runner has, its log: a job says a line when it has planned and before it commits.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.runners.base import Log
from airflow_txlog.runners.in_process import InProcessRunner
from tests.helpers.specs import job_spec

# In what a delete or a merge says when it knows which files it will read, and has not committed. Were it said no more,
# nobody would be overtaken, and the tests would fail.
PLANNED = " to scan"


class OvertakenRunner(InProcessRunner):
    """Runs the job, and lets `compete` commit once the job has planned and before it commits itself."""

    def __init__(self, compete: Callable[[JobSpec], None]) -> None:
        super().__init__()
        self._compete = compete

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        overtaken = False

        def log_and_compete(line: str) -> None:
            nonlocal overtaken
            log(line)
            if PLANNED in line and not overtaken:
                overtaken = True
                self._compete(spec)

        return super().run(spec, log=log_and_compete)


class WorkerDied(Exception):
    """Stands for the end of a worker: no error of ours, and nothing that a job could have told."""


class DiesAfterTheCommit(InProcessRunner):
    """Runs the job to its end and then dies, as often as the file named by TXLOG_TEST_DEATHS does not exist."""

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        result = super().run(spec, log=log)
        try:
            os.close(os.open(os.environ["TXLOG_TEST_DEATHS"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return result
        raise WorkerDied(f"after version {result.version}")


def delete_user(user: int) -> Callable[[JobSpec], None]:
    """A competitor that deletes one user of the same table by a job of its own."""

    def compete(spec: JobSpec) -> None:
        rival = job_spec(
            operation="delete",
            table_uri=spec.table_uri,
            arguments={"predicate": "user_id = :user", "parameters": {"user": user}},
        )
        InProcessRunner().run(rival, log=lambda line: None)

    return compete
