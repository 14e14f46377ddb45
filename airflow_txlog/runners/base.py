"""What an operator asks of a runner.

Invariant: `run` returns a result that is not "failed", or raises; a failed job is always its own typed error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NoReturn, Protocol, runtime_checkable

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.errors import JobLost, TxlogError
from airflow_txlog.jobs.spark.launch import check_stays_closed

Log = Callable[[str], None]


@runtime_checkable
class Runner(Protocol):
    """Runs one job at a time. `kill` may be called from a signal handler while `run` waits in the same thread."""

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """The result of the job, whose status is never "failed".

        `log` receives human lines while the job runs. Raises the job's own TxlogError when it failed, and JobLost when
        it ended without an answer and the table's log does not show its transaction.
        """

    def kill(self) -> None:
        """Stop the running job, if there is one. What it has committed stays; what it has staged is never named."""


@runtime_checkable
class DurableRunner(Runner, Protocol):
    """A runner whose job outlives the process that submits it, and is found again by every later try of its work."""

    instead_of_waiting: Callable[[str], NoReturn] | None
    """Called with the name of the running job, where another process is to wait for it. It raises."""

    def resume(self, spec: JobSpec, *, log: Log) -> JobResult:
        """As `run`, for a try that has submitted its job and waited elsewhere: nothing is submitted again."""

    def cancel(self, spec: JobSpec, *, log: Log) -> None:
        """Cancel the job of this work that an earlier process has submitted, and log what became of it."""


def check_stays_here(spec: JobSpec) -> None:
    """Raise InvalidJobSpec for settings that a Spark of this machine refuses (`check_stays_closed`).

    Also where the job may find that it needs no Spark: a mistake is refused each time, or not at all.
    """
    if spec.operation.needs_spark:
        check_stays_closed(spec.spark_conf)


def run_unless_done(runner: Runner, spec: JobSpec, *, log: Log) -> JobResult:
    """`runner.run`, unless the table's log shows that an earlier try has done the work: that needs no Spark to know.

    The first try of a task is not looked up. What the log does not answer, the job finds out.
    """
    if spec.operation.needs_spark and spec.annotations.get("try_number") != 1:
        with contextlib.suppress(Exception):
            done = result_of_done(spec)
            if done is not None:
                return done
    return runner.run(spec, log=log)


def result_or_error(spec: JobSpec, result: JobResult) -> JobResult:
    """The result itself, unless it is "failed": then its typed error is raised, or what `result_of_lost` gives."""
    error = result.typed_error()
    if isinstance(error, JobLost):
        return result_of_lost(spec, error)
    if error is not None:
        raise error
    return result


def result_of_lost(spec: JobSpec, error: JobLost) -> JobResult:
    """The result of a lost job whose commit the table's log shows, as "already_done".

    Raises the error itself where the log does not show it, or does not answer; and what the lookup refuses to answer.
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
    """The result of work that the table's log shows, as "already_done"; None where it does not.

    Raises what the lookup refuses to answer.
    """
    # Here: a DAG file that names a runner is parsed without the engine.
    from airflow_txlog.exactly_once.transactions import find_done

    done = find_done(spec)
    if done is not None:
        with contextlib.suppress(Exception):
            # The job itself did not come to it. What cannot be deleted is left to a VACUUM.
            forget_saved_work(spec)
    return done


def forget_saved_work(spec: JobSpec) -> None:
    """Delete what the tries of this work have saved for each other. Raises what the store raises."""
    from airflow_txlog.exactly_once import exchange

    exchange.forget_saved_work(spec)
