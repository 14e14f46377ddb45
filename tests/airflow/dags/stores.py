"""A DAG whose tasks write into a table in a store of objects and delete from it, with the connection that
TXLOG_TEST_STORAGE names, by the runner of TXLOG_TEST_RUNNER: a Spark for each task, or a warm one.

What a task hands to its job, what the job prints, and the command lines of its processes are kept in WATCHED.
"""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import psutil
from airflow.sdk import DAG

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.operators.sources import query
from airflow_txlog.operators.write import DeltaWriteOperator
from airflow_txlog.runners.base import Log
from airflow_txlog.runners.child_process import ChildProcessRunner
from airflow_txlog.runners.warm.runner import WarmRunner
from airflow_txlog.storage import StoreReference

WATCHED: list[str] = []


RUNNER: type[ChildProcessRunner | WarmRunner] = (
    WarmRunner if os.environ.get("TXLOG_TEST_RUNNER") == "warm" else ChildProcessRunner
)


class Watched(RUNNER):  # type: ignore[misc, valid-type]
    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        store = Table.at(spec.table_uri, spec.access).store
        WATCHED.extend((spec.to_json(with_key=True), repr(spec), repr(pickle.dumps(StoreReference.of(store)))))
        ended = threading.Event()
        # Not the Spark of other tests, which was given keys of its own.
        others = {process.pid for process in psutil.Process().children(recursive=True)}
        watcher = threading.Thread(target=_watch, args=(ended, others))
        watcher.start()

        def keep(line: str) -> None:
            WATCHED.append(line)
            log(line)

        try:
            result = super().run(spec, log=keep)
            WATCHED.append(result.to_json())
            return result
        finally:
            ended.set()
            watcher.join()


def _watch(ended: threading.Event, others: set[int]) -> None:
    seen: set[str] = set()
    while not ended.wait(0.5):
        for process in psutil.Process().children(recursive=True):
            if process.pid in others:
                continue
            try:
                seen.add(Path(f"/proc/{process.pid}/cmdline").read_text(errors="replace").replace("\0", " "))
            except OSError:
                continue  # it has ended
    WATCHED.extend(seen)


# Then TXLOG_TEST_TABLE is a name in it.
CATALOG = os.environ.get("TXLOG_TEST_CATALOG")
GIVEN: dict[str, Any] = {
    "table_uri": None if CATALOG else os.environ.get("TXLOG_TEST_TABLE", "/nowhere"),
    "table": os.environ.get("TXLOG_TEST_TABLE") if CATALOG else None,
    "catalog_conn_id": CATALOG,
    "txlog_conn_id": os.environ.get("TXLOG_TEST_CONNECTION"),
    "storage_conn_id": os.environ.get("TXLOG_TEST_STORAGE"),
    "spark_conf": {"spark.eventLog.enabled": "true", "spark.eventLog.dir": os.environ.get("TXLOG_TEST_EVENTS", "")},
    "unrestricted": "spark_conf",
    "runner": Watched(),
}

with DAG("on_an_object_store", schedule=None):
    join = DeltaWriteOperator(task_id="join", source=query("SELECT id AS user_id FROM range(100, 110)"), **GIVEN)
    # A predicate that Spark must evaluate, so that its workers read and write files of the store.
    join >> DeltaDeleteOperator(task_id="forget", predicate="pmod(user_id, 1000) = 42", **GIVEN)
