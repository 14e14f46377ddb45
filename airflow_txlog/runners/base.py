"""What an operator asks of a runner.

Invariant: `run` returns a result that is not "failed", or raises; a failed job is always its own typed error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from airflow_txlog.contract import JobResult, JobSpec

Log = Callable[[str], None]


@runtime_checkable
class Runner(Protocol):
    """Runs one job at a time. `kill` may be called from a signal handler while `run` waits in the same thread."""

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """The result of the job, whose status is never "failed".

        `log` receives human lines while the job runs. Raises the job's own TxlogError when it failed, and
        MissingResult when it ended without saying how and the table's log does not show its transaction.
        """

    def kill(self) -> None:
        """Stop the running job, if there is one. What it has committed stays; what it has staged is never named."""


def result_or_error(result: JobResult) -> JobResult:
    """The result itself, unless it is "failed": then its typed error is raised."""
    error = result.typed_error()
    if error is not None:
        raise error
    return result
