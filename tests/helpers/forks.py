"""Processes that begin as forks of one which has imported what most of them need, and has no thread and no client."""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
# The first module that starts a process decides for all of the run.
FORKS.set_forkserver_preload(
    [
        "pytest",
        "airflow_txlog.engine",
        *(f"airflow_txlog.storage.{name}" for name in ("s3", "gcs", "azure")),
        "tests.helpers.contending",
    ]
)
