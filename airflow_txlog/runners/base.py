"""The runners by name, the interface that an operator uses, and the clusters that some of them use.

Each runner is imported on first use, because the in-process one imports Spark. `hooks.spark_connection` reads the
connection that `spark_conn_id` names and returns its `Cluster`. Invariants: `run` returns a result that is not
"failed", or raises the job's own typed error; no secret is in a `repr`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, runtime_checkable

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.errors import InvalidJobSpec, JobLost, TxlogError
from airflow_txlog.jobs.spark.launch import check_stays_closed

Log = Callable[[str], None]


@runtime_checkable
class Runner(Protocol):
    """Runs one job at a time. `kill` may be called from a signal handler while `run` waits in the same thread."""

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Run the job and return its result, whose status is never "failed".

        `log` receives lines for people while the job runs. Raises the TxlogError of a failed job, and JobLost if the
        job ended without a result and the table's log does not show its transaction.
        """

    def kill(self) -> None:
        """Stop the running job, if there is one. Its commit stays; staged files are never referenced."""


@runtime_checkable
class DurableRunner(Runner, Protocol):
    """A runner whose job outlives the process that submits it. Every later try of the work finds it again."""

    instead_of_waiting: Callable[[str], NoReturn] | None
    """Called with the name of the running job if another process is to wait for it. It raises."""

    def resume(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Return the result of a job that this try has submitted and waited for elsewhere. Submits nothing."""

    def cancel(self, spec: JobSpec, *, log: Log) -> None:
        """Cancel the job of this work that an earlier process has submitted, and log the outcome."""


# --- clusters -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConnectServer:
    """A Spark Connect server. `url` is `sc://host:port/;…` and may hold its token."""

    url: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ApplicationState:
    """The state of an application. `text`: the cluster's own words; `ui`: the address of its page for people."""

    is_alive: bool
    text: str
    ui: str | None = None


class Applications(Protocol):
    """The applications of a cluster that runs their drivers, by the names that they were submitted under.

    The name is chosen before the application is submitted, so that it is found however the submission ended. Methods
    that call the cluster raise its interface's errors, and never quote a secret.
    """

    def settings(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        """Return the settings that give an application this name, to be added to the given ones."""

    def look(self, name: str) -> ApplicationState:
        """Return whether the application waits or runs."""

    def cancel(self, name: str) -> None:
        """Request the end of the application, if it runs."""


@dataclass(frozen=True, kw_only=True)
class SparkSubmit:
    """A cluster that accepts applications through `spark-submit`.

    `command`: the program and its options as Airflow's own hook builds them, without an application. `applications`:
    those of a cluster in cluster mode; None in client mode, whose driver runs next to `spark-submit`.
    """

    master: str
    command: tuple[str, ...]
    applications: Applications | None = field(default=None, repr=False)


Cluster = ConnectServer | SparkSubmit


# --- runners by name ------------------------------------------------------------------------------------------------

CONNECTION_TYPES = {"child": None, "in_process": None, "warm": None, "connect": "spark_connect", "submit": "spark"}
"""The runners, each with the type of the connection (spark_conn_id) that names its cluster; None: no cluster."""

_MADE_BY = {
    "child": "child_process:ChildProcessRunner",
    "in_process": "in_process:InProcessRunner",
    "warm": "warm.runner:WarmRunner",
    "connect": "connect:ConnectRunner",
    "submit": "submit:SubmitRunner",
    "submit, in cluster mode": "cluster_mode:ClusterModeRunner",
}


def make_runner(name: str, cluster: Cluster | None = None) -> Runner:
    """Return a new runner of this name, for `cluster` if it takes one. Raises InvalidJobSpec."""
    check_runner(name)
    if cluster is None:
        check_cluster_named(name)
    is_in_cluster_mode = isinstance(cluster, SparkSubmit) and cluster.applications is not None
    module, _, runner = _MADE_BY["submit, in cluster mode" if is_in_cluster_mode else name].partition(":")
    made_by = getattr(importlib.import_module(f"airflow_txlog.runners.{module}"), runner)
    made: Runner = made_by(*() if cluster is None else (cluster,))
    return made


def check_runner(runner: str | Runner) -> None:
    """Raise InvalidJobSpec for a name that no runner has, and for an object that is no runner."""
    if runner not in CONNECTION_TYPES if isinstance(runner, str) else not callable(getattr(runner, "run", None)):
        # An object may hold the options of a cluster.
        found = repr(runner) if isinstance(runner, str) else type(runner).__name__
        raise InvalidJobSpec(
            f"runner must be one of {tuple(CONNECTION_TYPES)} or a Runner; found {found}.", argument="runner"
        )


def check_cluster_named(name: str) -> None:
    """Raise InvalidJobSpec for a runner that needs the connection of a cluster, which is not named."""
    if CONNECTION_TYPES[name] is not None:
        raise InvalidJobSpec(
            f"runner={name!r} needs the address of its cluster: give spark_conn_id, the name of a connection of type "
            f"{CONNECTION_TYPES[name]!r}.",
            argument="spark_conn_id",
        )


def not_deferrable(runner: str) -> InvalidJobSpec:
    """Return the error for deferrable=True with a runner whose job no other process could wait for."""
    return InvalidJobSpec(
        'deferrable=True waits in the triggerer for a job whose driver a cluster runs: runner="submit" with a '
        f'connection (spark_conn_id) in cluster mode, {{"deploy-mode": "cluster"}}. The runner is {runner}, whose job '
        "ends with its task. Nothing was started.",
        argument="deferrable",
    )


def check_stays_here(spec: JobSpec) -> None:
    """Raise InvalidJobSpec for settings that a Spark of this machine refuses, also if the job may need none."""
    if spec.operation.needs_spark:
        check_stays_closed(spec.spark_conf)


# --- results --------------------------------------------------------------------------------------------------------


def run_unless_done(runner: Runner, spec: JobSpec, *, log: Log) -> JobResult:
    """Return the result of `runner.run`, or of an earlier try that has done the work according to the table's log.

    The lookup needs no Spark, and the first try of a task skips it. If the log does not answer, the job finds out.
    """
    if spec.operation.needs_spark and spec.annotations.get("try_number") != 1:
        with contextlib.suppress(Exception):
            done = result_of_done(spec)
            if done is not None:
                return done
    return runner.run(spec, log=log)


def result_or_error(spec: JobSpec, result: JobResult) -> JobResult:
    """Return the result. If it is "failed", raise its typed error, or return `result_of_lost` for a lost job."""
    error = result.typed_error()
    if isinstance(error, JobLost):
        return result_of_lost(spec, error)
    if error is not None:
        raise error
    return result


def result_of_lost(spec: JobSpec, error: JobLost) -> JobResult:
    """Return the result of a lost job whose commit the table's log shows, as "already_done".

    Raises the error itself if the log does not show it or does not answer, and the TxlogError of the lookup.
    """
    try:
        done = result_of_done(spec)
    except TxlogError:
        raise
    except Exception as unanswered:
        raise error from unanswered
    if done is None:
        raise error
    return done


def result_of_done(spec: JobSpec) -> JobResult | None:
    """Return the result, "already_done", of work that the table's log shows, else None. Raises a TxlogError."""
    # Imported here: a DAG file that names a runner is parsed without the engine.
    from airflow_txlog.exactly_once.transactions import find_done

    done = find_done(spec)
    if done is not None:
        with contextlib.suppress(Exception):
            # The job itself did not get this far. A VACUUM deletes the rest.
            forget_saved_work(spec)
    return done


def forget_saved_work(spec: JobSpec) -> None:
    """Delete the work that the tries of this job have saved for each other. Raises the store's errors."""
    from airflow_txlog.exactly_once import exchange

    exchange.forget_saved_work(spec)
