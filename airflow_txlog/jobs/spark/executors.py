"""Executors before a job's first stage: wait for one, and check that they can run the job's tasks.

This takes one small job on a cluster, and nothing on a local Spark. The invariant: the error names an executor that
lacks Python or a package before anything is read; tasks check one that comes later (`installed.check_worker`).
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.wording import application_line
from airflow_txlog.datafiles.installed import Probe, packages_for, unfit_executor
from airflow_txlog.errors import InvalidJobSpec, NoExecutors
from airflow_txlog.jobs.spark.connect import settings_of
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.spark.launch import size_bytes
from airflow_txlog.jobs.spark.progress import task_counts
from airflow_txlog.jobs.spark.session import application_or_session, is_classic

WAIT_SETTING = "spark.txlog.executorsWaitSeconds"
WAIT_S = 600
_EVERY_S = 0.5
_SAY_EVERY_S = 15.0
_PAUSE_S = 0.2

# A task's memory outside the JVM: Python with Arrow, the buffers of its files (`Limits.buffered_bytes`), and a row
# group on its way in and out.
TASK_MEMORY_MIB = 768
# A merge's task may hold the source's keys too, if they are few enough to be sent, and rows that it inserts.
MERGE_MEMORY_MIB = 1_536

_checked: set[tuple[str, tuple[str, ...], int]] = set()


def check_executors(
    spark: SparkSession,
    parallelism: int,
    scheme: str,
    log: Callable[[str], None],
    task_memory_mib: int,
    conf: Mapping[str, str],
) -> None:
    """Log the application's address, wait for an executor, and check the executors that are there.

    `scheme`: of the store that tasks open; `task_memory_mib`: of each outside the JVM. Raises NoExecutors,
    UnfitExecutor.
    """
    master = str(spark.sparkContext.master if is_classic(spark) else spark.conf.get("spark.master", "local"))
    if master == "local" or master.startswith("local["):
        return
    packages = packages_for(scheme)
    key = (application_or_session(spark), packages, task_memory_mib)
    if key in _checked:
        return
    if is_classic(spark):
        log(application_line(spark.sparkContext.applicationId, master, spark.sparkContext.uiWebUrl))
    given = (
        dict(spark.sparkContext.getConf().getAll())
        if is_classic(spark)
        else {name: value for name, value in settings_of(spark, _MEMORY_SETTINGS).items() if value is not None}
    )
    warning = memory_warning(master, given, task_memory_mib)
    if warning is not None:
        log(warning)
    probe = F.udf(Probe(packages=packages, pause_s=_PAUSE_S), "string", useArrow=False)
    tasks = 2 * parallelism
    frame = spark.range(0, tasks, 1, tasks).select(probe("id").alias("answer"))
    # A cluster's defaults may set it for an application; a server does not know a setting of this name.
    wait = (given if is_classic(spark) else conf).get(WAIT_SETTING)
    with _waiting(spark, master, WAIT_S if wait is None else wait_of(wait), log):
        answers = [
            json.loads(text) for text in collect(frame, "ask the executors what they have").column(0).to_pylist()
        ]
    for answer in answers:
        if answer["wrong"]:
            raise unfit_executor(answer["host"], answer["python"], tuple(answer["wrong"]))
    if is_classic(spark):
        # Set now, so that it also reaches the executors. Spark's log of a failed task quotes values.
        spark.sparkContext.setLogLevel(spark.sparkContext.getConf().get("spark.log.level", "OFF"))
    _checked.add(key)


def wait_of(given: str) -> float:
    """Return the seconds of WAIT_SETTING. Raises InvalidJobSpec for anything but a number above zero."""
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidJobSpec(
            f"spark_conf has {WAIT_SETTING}={given!r}, which must be a number of seconds, above 0. Nothing was read.",
            argument=f"spark_conf.{WAIT_SETTING}",
        )
    return seconds


_MEMORY_SETTINGS = (
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.executor.memoryOverheadFactor",
    "spark.executor.pyspark.memory",
    "spark.executor.cores",
    "spark.task.cpus",
)


def memory_warning(master: str, conf: Mapping[str, str], task_memory_mib: int) -> str | None:
    """Return a warning if executors have less memory outside the JVM than tasks may take; None if standalone."""
    is_kubernetes = master.startswith("k8s://")
    if master != "yarn" and not is_kubernetes:
        return None
    given = conf.get("spark.executor.memoryOverhead")
    if given is None:
        factor = float(conf.get("spark.executor.memoryOverheadFactor", "0.4" if is_kubernetes else "0.1"))
        found = max(384, int(factor * _mib(conf, "spark.executor.memory", "1g")))
    else:
        found = _mib(conf, "spark.executor.memoryOverhead")
    found += _mib(conf, "spark.executor.pyspark.memory")
    tasks = max(1, int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1")))
    wanted = tasks * task_memory_mib
    if found >= wanted:
        return None
    return (
        f"warning: an executor has {found} MiB outside the JVM, and its {tasks} tasks at a time may take {wanted} MiB: "
        f"set spark.executor.memoryOverhead={wanted}m, or the cluster may kill it"
    )


def _mib(conf: Mapping[str, str], name: str, default: str = "0") -> int:
    return (size_bytes(conf.get(name, default)) or 0) // 1024**2


@contextlib.contextmanager
def _waiting(spark: SparkSession, master: str, wait_s: float, log: Callable[[str], None]) -> Iterator[None]:
    """Log that no executor has run a task yet; after `wait_s` cancel the work inside and raise NoExecutors."""
    over, given_up, began_s = threading.Event(), threading.Event(), SYSTEM_CLOCK.monotonic_s()

    def watch(has_run_a_task: Callable[[], bool], cancel: Callable[[], object]) -> None:
        said_s = began_s
        while not over.wait(_EVERY_S):
            with contextlib.suppress(Exception):  # a context that ends ends the job, too
                # The existence of an executor proves nothing: one that cannot live is started again and again.
                if has_run_a_task():
                    return
                now_s = SYSTEM_CLOCK.monotonic_s()
                if now_s - said_s > _SAY_EVERY_S:
                    said_s = now_s
                    log(f"waiting for executors of {master}: none has run a task after {now_s - began_s:.0f} s")
                if now_s - began_s > wait_s:
                    given_up.set()
                    cancel()

    with (_tagged if is_classic(spark) else _tagged_on_server)(spark) as (has_run_a_task, cancel):
        threading.Thread(target=watch, args=(has_run_a_task, cancel), name="txlog-executors", daemon=True).start()
        try:
            yield
        except Exception:
            if given_up.is_set():
                raise NoExecutors(
                    f"No executor of the cluster {master} ran a task of the job in {wait_s:.0f} s. Other applications "
                    "hold its cores (bound them by spark.cores.max), or no machine has what one executor asks for "
                    "(spark.executor.memory, spark.executor.cores), or executors end as soon as they start, which the "
                    f"master's UI shows. {WAIT_SETTING} sets how long to wait. Nothing was read.",
                    master=master,
                    waited_s=wait_s,
                ) from None
            raise
        finally:
            over.set()


@contextlib.contextmanager
def _tagged(spark: SparkSession) -> Iterator[tuple[Callable[[], bool], Callable[[], object]]]:
    """Yield a check whether a task of the application has run, and a call that cancels the Spark jobs inside."""
    context: Any = spark.sparkContext
    tag = f"airflow_txlog-{SYSTEM_CLOCK.unique_id()}"
    context.addJobTag(tag)
    try:
        yield lambda: task_counts(spark)[1] > 0, lambda: context.cancelJobsWithTag(tag)
    finally:
        with contextlib.suppress(Exception):
            context.removeJobTag(tag)


@contextlib.contextmanager
def _tagged_on_server(spark: Any) -> Iterator[tuple[Callable[[], bool], Callable[[], object]]]:
    """Do the same over Spark Connect, whose server reports with its answers how many tasks are done."""
    tag, ran = f"airflow_txlog-{SYSTEM_CLOCK.unique_id()}", threading.Event()

    def hear(stages: Iterable[Any] | None, *more: Any, **named: Any) -> None:
        if any(stage.num_completed_tasks for stage in stages or ()):
            ran.set()

    spark.addTag(tag)
    spark.registerProgressHandler(hear)
    try:
        yield ran.is_set, lambda: spark.interruptTag(tag)
    finally:
        spark.removeProgressHandler(hear)
        spark.removeTag(tag)
