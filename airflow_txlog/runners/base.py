"""What an operator asks of a runner.

Invariant: `run` returns a result that is not "failed", or raises; a failed job is always its own typed error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from airflow_txlog.contract import JobResult, JobSpec
from airflow_txlog.errors import JobLost, TxlogError

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
    # Here: a DAG file that names a runner is parsed without the engine.
    from airflow_txlog.application import find_done, forget_saved_work

    try:
        done = find_done(spec)
    except TxlogError:
        raise
    except Exception as unanswered:
        raise error from unanswered
    if done is None:
        raise error
    with contextlib.suppress(Exception):
        # The job itself did not come to it. What cannot be deleted is left to a VACUUM.
        forget_saved_work(spec)
    return done
