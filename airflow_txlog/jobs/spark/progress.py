"""Lines in the task log while a long Spark job runs: how many of its tasks are done.

A thread beside the job asks Spark every few seconds; over Spark Connect the server says it beside its answers. The
invariant: watching never fails a job, and ends with what is watched.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.jobs.spark.session import is_classic
from airflow_txlog.wording import tasks_done

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_S = 10.0


@contextlib.contextmanager
def watched(spark: SparkSession, name: str, log: Callable[[str], None], every_s: float = EVERY_S) -> Iterator[None]:
    """Says `<name>: 12 of 40 tasks done` every `every_s` seconds while what is inside runs."""
    if not is_classic(spark):
        with _watched_by_server(spark, name, log, every_s):
            yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            # The session may be on its way out, and a missing line does no harm.
            with contextlib.suppress(Exception):
                total, done, failed = task_counts(spark)
                if total:
                    log(tasks_done(name, total, done, failed))

    thread = threading.Thread(target=watch, name="txlog-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=every_s)


@contextlib.contextmanager
def _watched_by_server(spark: SparkSession, name: str, log: Callable[[str], None], every_s: float) -> Iterator[None]:
    said_s = SYSTEM_CLOCK.monotonic_s()

    def hear(stages: Iterable[Any] | None, *more: Any, **named: Any) -> None:
        nonlocal said_s
        running = [stage for stage in stages or () if not stage.done]
        if running and SYSTEM_CLOCK.monotonic_s() - said_s >= every_s:
            said_s = SYSTEM_CLOCK.monotonic_s()
            finished = sum(stage.num_completed_tasks for stage in running)
            log(tasks_done(name, sum(stage.num_tasks for stage in running), finished, 0))

    handler: Any = hear
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


def task_counts(spark: SparkSession) -> tuple[int, int, int]:
    """Tasks of the stages that run: all, done, failed."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    running = [stage for stage in stages if stage is not None]
    return (
        sum(stage.numTasks for stage in running),
        sum(stage.numCompletedTasks for stage in running),
        sum(stage.numFailedTasks for stage in running),
    )
