"""A job in a process of its own: `python -m airflow_txlog.jobs SPEC_FILE`.

The description comes from a file and the result goes to `result_uri`; nothing of either stands in the command line.
Standard output has lines of the job alone. What any other prints, as Spark's JVM does, goes to standard error.
The process ends when its standard input does, so that it dies with its parent, and on SIGTERM. Exit codes: 0 done, 75
failed and worth a retry (EX_TEMPFAIL), 1 failed; the result says the same in full.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from airflow_txlog.contract import JobResult, read_spec, write_document
from airflow_txlog.errors import TxlogError
from airflow_txlog.jobs.spark.installation import not_started

EXIT_DONE, EXIT_FAILED, EXIT_RETRY = 0, 1, 75
EXIT_TERMINATED = 128 + signal.SIGTERM
STOP_TIMEOUT_S = 3.0


def main(arguments: list[str]) -> int:
    """Run the job that a spec file describes; the exit code."""
    say = _own_output()
    if len(arguments) != 1:
        print("usage: python -m airflow_txlog.jobs SPEC_FILE", file=sys.stderr)
        return EXIT_FAILED
    threading.Thread(target=_die_with_parent, name="stdin", daemon=True).start()
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        spec = read_spec(arguments[0])
    except TxlogError as error:
        say(f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    spark: Any = None
    try:
        # Here, so that a PySpark that is missing or broken is an error of the job.
        from airflow_txlog.jobs.run import needs_spark, run_job  # noqa: PLC0415
        from airflow_txlog.jobs.spark.session import local_session  # noqa: PLC0415

        spark = local_session(spec.spark_conf) if needs_spark(spec) else None
    except Exception as error:
        result = JobResult(
            status="failed",
            operation=spec.operation.name,
            table_uri=spec.table_uri,
            error=not_started(error).to_dict(),
        )
        assert result.error is not None
        say(f"{spec.operation.name} failed: {result.error['type']}: {result.error['message']}")
        if spec.result_uri is not None:
            write_document(spec.result_uri, result.to_json())
        return EXIT_FAILED
    result = run_job(spec, spark, log=say)
    if spark is not None:
        with contextlib.suppress(Exception):  # its JVM may be dead, and the result is where it belongs
            spark.stop()
    if result.error is None:
        return EXIT_DONE
    return EXIT_RETRY if result.error["retryable"] else EXIT_FAILED


def _own_output() -> Callable[[str], None]:
    """Writes a line to standard output, which from here on no library and no process below this one can write to."""
    # A duplicate is not inherited.
    own = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)

    def say(line: str) -> None:
        print(line, file=own, flush=True)

    return say


def _die_with_parent() -> None:
    """Wait for the end of standard input, which the parent holds open while it lives."""
    # Not through sys.stdin: this thread would hold its lock when the interpreter shuts down.
    while os.read(0, 4096):
        pass
    _leave()


def _on_terminate(signum: int, frame: FrameType | None) -> None:
    # Not here: the signal may have come in the middle of a call to the JVM, whose connection this thread holds.
    threading.Thread(target=_leave, name="terminate", daemon=True).start()


def _leave() -> None:
    """End at once. What is committed stays; what is staged is named by no commit, and VACUUM sweeps it."""
    stopper = threading.Thread(target=_cancel_jobs, daemon=True)
    stopper.start()
    stopper.join(STOP_TIMEOUT_S)
    os._exit(EXIT_TERMINATED)


def _cancel_jobs() -> None:
    from pyspark import SparkContext  # noqa: PLC0415 - only where there is something to cancel

    running = SparkContext._active_spark_context
    if running is not None:
        running.cancelAllJobs()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
