"""Lines in the task log while a long Spark job runs: how many of its tasks are done.

A thread polls Spark every few seconds during the job; a Spark Connect server reports with its answers. The invariant:
watching never fails a job, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.wording import size_text, tasks_done
from airflow_txlog.datafiles.moved_rows import CountedTask, counts_kept, rows_moved
from airflow_txlog.jobs.spark.session import is_classic, is_local
from airflow_txlog.process.private_folder import temporary_folder
from airflow_txlog.process.progress import tasks_done as tasks_finished

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.datafiles.tasks.scan_and_write import Step

EVERY_S = 10.0
_LAST_QUERIES = 8
# Spark also counts a task's work and the files that it reports as rows, but they are few.
_FEWEST_ROWS = 10_000
STARTING = "start Spark"
"""The step in which a job gets its Spark."""
WAITING = "wait to start Spark"
"""The step in which a job waits for other starts on this machine."""


@contextlib.contextmanager
def logged_while_starting(log: Callable[[str], None], every_s: float = EVERY_S) -> Iterator[None]:
    """Log `Spark is starting, 40 s` every `every_s` seconds while the block runs."""
    began_s = SYSTEM_CLOCK.monotonic_s()
    with _said_every(every_s, lambda: log(f"Spark is starting, {SYSTEM_CLOCK.monotonic_s() - began_s:.0f} s")):
        yield


@contextlib.contextmanager
def _said_every(every_s: float, say: Callable[[], None]) -> Iterator[None]:
    """Call `say` every `every_s` seconds, in a thread, while the block runs."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            # The block may be ending, and a missing line is harmless.
            with contextlib.suppress(Exception):
                say()

    thread = threading.Thread(target=watch, name="txlog-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=every_s)


@contextlib.contextmanager
def watched(spark: SparkSession, name: str, log: Callable[[str], None], every_s: float = EVERY_S) -> Iterator[None]:
    """Log `<name>: 12 of 40 tasks done, 3,000 rows read so far` every `every_s` seconds while the block runs."""

    def say() -> None:
        total, done, failed = task_counts(spark)
        if total:
            tasks_finished(done, total)
            log(tasks_done(name, total, done, failed, [*_moved_by_tasks(), *_moved_in_spark(spark)]))

    watching = _said_every(every_s, say) if is_classic(spark) else _watched_by_server(spark, name, log, every_s)
    folder = _counts_folder()
    with contextlib.nullcontext() if folder is None else counts_kept(folder), watching:
        yield


def counted(spark: SparkSession, task: Step) -> Step:
    """Return the task so that it counts its rows for a watched step, if Spark is on this machine."""
    folder = _counts_folder() if is_local(spark) or not is_classic(spark) else None
    return task if folder is None else CountedTask(task=task, folder=folder)


def _counts_folder() -> str | None:
    """Return the folder of the counts, or None if it cannot be made: a line of the log fails no step."""
    try:
        return os.path.join(temporary_folder(), "counts")
    except OSError:
        return None


def _moved_by_tasks() -> list[str]:
    folder = _counts_folder()
    amounts = zip((0, 0) if folder is None else rows_moved(folder), ("read", "written"), strict=True)
    return [f"{count:,} rows {verb}" for count, verb in amounts if count]


@contextlib.contextmanager
def _watched_by_server(spark: SparkSession, name: str, log: Callable[[str], None], every_s: float) -> Iterator[None]:
    said_s = SYSTEM_CLOCK.monotonic_s()

    def hear(stages: Iterable[Any] | None, *more: Any, **named: Any) -> None:
        nonlocal said_s
        running = [stage for stage in stages or () if not stage.done]
        if running and SYSTEM_CLOCK.monotonic_s() - said_s >= every_s:
            said_s = SYSTEM_CLOCK.monotonic_s()
            finished = sum(stage.num_completed_tasks for stage in running)
            planned = sum(stage.num_tasks for stage in running)
            tasks_finished(finished, planned)
            num_bytes = sum(stage.num_bytes_read for stage in running)
            moved = _moved_by_tasks() + ([f"{size_text(num_bytes)} read by Spark"] if num_bytes else [])
            log(tasks_done(name, planned, finished, 0, moved))

    handler: Any = hear
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


def task_counts(spark: SparkSession) -> tuple[int, int, int]:
    """Return the numbers of tasks of the running stages: all, done, failed."""
    tracker = spark.sparkContext.statusTracker()
    running = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    return (
        sum(stage.numTasks for stage in running),
        sum(stage.numCompletedTasks for stage in running),
        sum(stage.numFailedTasks for stage in running),
    )


def _moved_in_spark(spark: SparkSession) -> list[str]:
    """Return the rows and bytes that Spark itself, not our tasks, has read or made for the running tasks, as texts."""
    session: Any = spark
    stages = session.sparkContext._jsc.sc().statusStore().activeStages()
    num_bytes = sum(int(stages.apply(index).inputBytes()) for index in range(stages.size()))
    num_rows = _rows_made(session._jsparkSession.sharedState().statusStore())
    parts = [f"{size_text(num_bytes)} read by Spark"] if num_bytes else []
    return [*parts, f"{num_rows:,} rows in Spark"] if num_rows >= _FEWEST_ROWS else parts


def _rows_made(store: Any) -> int:
    """Return the rows of the busiest step of the running queries."""
    found = [0]
    executions = store.executionsList()
    for number in range(max(0, executions.size() - _LAST_QUERIES), executions.size()):
        execution = executions.apply(number)
        if execution.completionTime().isDefined():
            continue
        values, metrics = store.executionMetrics(execution.executionId()), execution.metrics()
        for index in range(metrics.size()):
            metric = metrics.apply(index)
            value = values.get(metric.accumulatorId())
            if metric.name() == "number of output rows" and value.isDefined():
                found.append(int(str(value.get()).replace(",", "")))
    return max(found)
