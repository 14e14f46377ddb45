"""Lines in the task log while a long Spark job runs: how many of its tasks are done.

A thread beside the job asks Spark every few seconds. The invariant: watching never fails a job, and ends with what is
watched. Nothing is logged over Spark Connect, where the tracker of tasks is not in reach.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession

from airflow_txlog.jobs.spark.session import is_classic
from airflow_txlog.wording import tasks_done

EVERY_S = 10.0


@contextlib.contextmanager
def watched(spark: SparkSession, name: str, log: Callable[[str], None], every_s: float = EVERY_S) -> Iterator[None]:
    """Says `<name>: 12 of 40 tasks done` every `every_s` seconds while what is inside runs."""
    if not is_classic(spark):
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            # The session may be on its way out, and a missing line does no harm.
            with contextlib.suppress(Exception):
                total, done, failed = _counts(spark)
                if total:
                    log(tasks_done(name, total, done, failed))

    thread = threading.Thread(target=watch, name="txlog-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=every_s)


def _counts(spark: SparkSession) -> tuple[int, int, int]:
    """Tasks of the stages that run: all, done, failed."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    running = [stage for stage in stages if stage is not None]
    return (
        sum(stage.numTasks for stage in running),
        sum(stage.numCompletedTasks for stage in running),
        sum(stage.numFailedTasks for stage in running),
    )
