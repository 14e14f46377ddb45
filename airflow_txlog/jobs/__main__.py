"""A job in a separate process: `python -m airflow_txlog.jobs [--session KIND] SPEC_FILE`.

The description is read from a file and the result written to `result_uri`; the command line contains neither.
`--session` names the Spark, which is used only if the job needs it: this process starts `local` (the default),
`connect` is a server's, and `spark-submit` started `submitted` together with this process (`submitted_main`). With
`none`, a job that needs Spark does nothing and fails with the fact `needs_spark`. `--spark-here`: the job's Spark reads
this machine's disk, as a local one does. Standard output has only the job's lines; other output, such as that of
Spark's JVM, goes to standard error. The process ends with its standard input, so that it dies with its parent, and on
SIGTERM. Exit codes: 0 done, 75 failed and worth a retry (EX_TEMPFAIL), 1 failed; the result has the details.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from airflow_txlog.contract.job import JobResult, JobSpec, read_spec, write_document
from airflow_txlog.contract.wording import summary_lines
from airflow_txlog.errors import TxlogError
from airflow_txlog.jobs.spark.installation import not_started
from airflow_txlog.jobs.spark.launch import QUICK, log_start, starts_for_little
from airflow_txlog.process.arrow_memory import spare_memory
from airflow_txlog.process.private_folder import remove_temporary_folder
from airflow_txlog.process.progress import report_in_lines

EXIT_DONE, EXIT_FAILED, EXIT_RETRY = 0, 1, 75
EXIT_TERMINATED = 128 + signal.SIGTERM
STOP_TIMEOUT_S = 3.0
# The function that returns each kind of session. By name and not imported: they need PySpark, which may be broken.
NO_SESSION, LOCAL_SESSION = "none", "local"
SESSIONS = {
    LOCAL_SESSION: "airflow_txlog.jobs.spark.session:local_session",
    "connect": "airflow_txlog.jobs.spark.connect:connect_session",
    "submitted": "airflow_txlog.jobs.spark.submitted:submitted_session",
}


def main(arguments: list[str], opened: Callable[[str], str] = str) -> int:
    """Run the job that a spec file describes; return the exit code.

    `opened` returns the path under which this process finds a file that the submitter has named.
    """
    say = begin()
    parser = argparse.ArgumentParser(prog="python -m airflow_txlog.jobs")
    parser.add_argument("--session", default=_usual_session(), choices=sorted([*SESSIONS, NO_SESSION]))
    parser.add_argument("--spark-here", action="store_true")
    parser.add_argument("spec_file", metavar="SPEC_FILE")
    given = parser.parse_args(arguments)
    try:
        spec = read_spec(opened(given.spec_file))
    except TxlogError as error:
        say(f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    if spec.result_uri is not None:
        spec = spec.replace(result_uri=opened(spec.result_uri))
    is_spark_here = given.spark_here or given.session == LOCAL_SESSION
    return exit_code(run_in_session(spec, given.session, say, is_spark_here=is_spark_here))


def begin() -> Callable[[str], None]:
    """Return a function that logs the job's lines. The process now ends with its standard input or by SIGTERM."""
    say = _own_output()
    report_in_lines(say)
    # Its parent holds standard input open while it lives.
    threading.Thread(target=leave_at_end_of, args=(0,), name="stdin", daemon=True).start()
    signal.signal(signal.SIGTERM, _on_terminate)
    return say


def run_in_session(
    spec: JobSpec,
    session: str,
    say: Callable[[str], None],
    begun: Callable[[Any], None] = lambda spark: None,
    *,
    is_spark_here: bool = False,
) -> JobResult:
    """Return the result of the job. It is put at `spec.result_uri`, for a task that then logs it, or else logged here.

    `begun` gets the session first. `is_spark_here`: the job's Spark reads this machine's disk.
    """
    result = _run_in_session(spec, session, say, begun, is_spark_here=is_spark_here)
    if spec.result_uri is None:
        for line in summary_lines(result, result.seconds):
            say(line)
    return result


def _run_in_session(
    spec: JobSpec, session: str, say: Callable[[str], None], begun: Callable[[Any], None], *, is_spark_here: bool
) -> JobResult:
    started: list[Any] = []

    def start() -> Any:
        conf = spec.spark_conf
        if session == LOCAL_SESSION:
            log_start(conf, say)
            # This process ends with its only job.
            conf = {QUICK: str(starts_for_little.get()).lower(), **conf}
        module, _, name = SESSIONS[session].partition(":")
        started.append(getattr(importlib.import_module(module), name)(conf))
        begun(started[-1])
        return started[-1]

    # The collector need not examine the objects of the libraries, which live as long as this process. It would take a
    # tenth of a short job.
    gc.disable()
    try:
        # PySpark's own client of Spark Connect imports it.
        if session != "connect" or spec.operation.may_spare_spark or not spec.operation.needs_spark:
            spare_memory()
        # Imported here, so that a missing or broken package is an error of the job.
        from airflow_txlog.jobs.run import run_job  # noqa: PLC0415

        gc.freeze()
    except Exception as error:
        result = JobResult(
            status="failed",
            operation=spec.operation.name,
            table_uri=spec.table_uri,
            error=not_started(error).to_dict(),
        )
        if spec.result_uri is not None:
            write_document(spec.result_uri, result.to_json())
        return result
    finally:
        gc.enable()
    result = run_job(
        spec,
        None,
        log=say,
        start=None if session == NO_SESSION else start,
        is_spark_here=is_spark_here,
        # A cluster counts an application that never requests executors as failed.
        always_starts=session == "submitted",
    )
    for each in started:
        with contextlib.suppress(Exception):  # its JVM may be dead, and the result is already written
            if session == LOCAL_SESSION:
                from airflow_txlog.jobs.spark.session import end_session  # noqa: PLC0415

                end_session(each, spec.spark_conf)
            else:
                each.stop()
    return result


def exit_code(result: JobResult) -> int:
    if result.error is None:
        return EXIT_DONE
    return EXIT_RETRY if result.error["retryable"] else EXIT_FAILED


def _usual_session() -> str:
    """Return `submitted` under spark-submit: a local Spark would ignore the requested cluster."""
    return "submitted" if "PYSPARK_GATEWAY_PORT" in os.environ else "local"


def _own_output() -> Callable[[str], None]:
    """Return a writer of lines to standard output, to which no library and no child process can write from here on."""
    # A duplicate is not inherited.
    own = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)

    lock = threading.Lock()

    def say(line: str) -> None:
        # Threads report progress.
        with lock:
            print(line, file=own, flush=True)

    # Records of the engine and of the stores contain no value, like the lines of the job.
    log = logging.getLogger("airflow_txlog")
    log.addHandler(_Lines(say))
    log.setLevel(logging.INFO)
    log.propagate = False
    return say


class _Lines(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        head = "" if record.levelno <= logging.INFO else f"{record.levelname}: "
        # The task may be gone, and the code that logs may be in the middle of a commit.
        with contextlib.suppress(OSError):
            self._say(head + " ".join(record.getMessage().split("\n")))


def leave_at_end_of(descriptor: int) -> None:
    """Wait for the end of an input that another process holds open while it lives, and end this one."""
    # Not through sys.stdin: this thread would hold its lock during the interpreter's shutdown.
    while os.read(descriptor, 4096):
        pass
    _leave()


def _on_terminate(signum: int, frame: FrameType | None) -> None:
    # Not in this thread: the signal may interrupt a call to the JVM, whose connection this thread holds.
    threading.Thread(target=_leave, name="terminate", daemon=True).start()


def _leave() -> None:
    """End at once. What is committed stays; no commit names what is staged, and VACUUM sweeps it."""
    stopper = threading.Thread(target=_cancel_jobs, daemon=True)
    stopper.start()
    stopper.join(STOP_TIMEOUT_S)
    remove_temporary_folder()
    os._exit(EXIT_TERMINATED)


def _cancel_jobs() -> None:
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext  # noqa: PLC0415 - only if there is something to cancel

    from airflow_txlog.jobs.spark.connect import end_sessions  # noqa: PLC0415

    running = SparkContext._active_spark_context
    if running is not None:
        running.cancelAllJobs()
    end_sessions()


def _end(code: int) -> None:
    """End the process after the cleanup that is left. The interpreter is taken apart only if it has a JVM or threads.

    That takes a tenth of a short job, and a fifth of a second with gRPC, whose thread may wait for a server that is
    gone.
    """
    is_on_server = "pyspark.sql.connect" in sys.modules
    works = any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
    if not is_on_server and (works or "pyspark" in sys.modules):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # Its reader may be gone.
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
