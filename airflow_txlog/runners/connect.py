"""Runs a job on a Spark Connect server; its driver side is a child process of the task.

Invariant: no work runs twice. A server continues the work of a client that died, and only a client of the same session
can cancel it. So a session's id follows from the work and the try, and each try first ends the sessions of earlier
tries.
"""

from __future__ import annotations

import json
import uuid

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.jobs.spark.connect import ConnectTarget, with_parameter
from airflow_txlog.runners.base import ConnectServer, Log
from airflow_txlog.runners.child_process import JOB, ChildProcessRunner

_NAMESPACE = uuid.UUID("5a1d62d4-6d5c-4a0b-9c43-8a2f6f1e7a55")
# The server ends a session after an hour without requests.
_TRIES_BEFORE = 5


class ConnectRunner(ChildProcessRunner):
    """One session of the server per job."""

    def __init__(self, server: ConnectServer) -> None:
        super().__init__((*JOB, "--session", "connect"))
        self._server = server

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Run the job and wait; see `Runner.run`."""
        if spec.operation.needs_spark:
            session_id, abandoned = sessions_of(spec)
            url = self._server.url
            if "user_id=" not in url:
                # A session is another one for another user, and a retry may run as another.
                url = with_parameter(url, "user_id", "airflow_txlog")
            target = ConnectTarget(url=url, session_id=session_id, abandoned=abandoned)
            self._added = target.environment()
        return super().run(spec, log=log)


def sessions_of(spec: JobSpec) -> tuple[str, tuple[str, ...]]:
    """Return the id of this try's session, and those of the tries before; a new one, and none, outside a task."""
    number = spec.annotations.get("try_number")
    if not isinstance(number, int):
        return SYSTEM_CLOCK.unique_id(), ()
    task = [spec.annotations.get(name) for name in ("dag_id", "task_id", "run_id", "map_index")]
    application = spec.application and [spec.application.app_id, spec.application.version]

    def session(of_try: int) -> str:
        return str(uuid.uuid5(_NAMESPACE, json.dumps([spec.table_uri, task, application, of_try])))

    return session(number), tuple(session(each) for each in range(max(0, number - _TRIES_BEFORE), number))
