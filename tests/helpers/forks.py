"""Start processes as forks of one that has imported the engine and pytest. It has no thread and opens no store."""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
# multiprocessing has one such process: the list of the test that first starts a fork applies to the whole run.
FORKS.set_forkserver_preload(
    [
        "pytest",
        "airflow_txlog.engine",
        *(f"airflow_txlog.storage.{name}" for name in ("s3", "gcs", "azure")),
        "tests.helpers.contending",
    ]
)
