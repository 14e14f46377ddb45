"""Runs a job in a child process of the task: `python -m airflow_txlog.jobs SPEC_FILE`.

As with a remote submit, the spec and the result are files, and the exit code decides nothing. Invariants: the child
never outlives the call (it stays in the task's process group, ends with its standard input, and is stopped in a
`finally`). The command line holds nothing of the spec, and neither file has a name, so both disappear with the two
processes, however they end. The child gets the credentials of a store from this process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import airflow_txlog
from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import OPEN_FILES, JobResult, JobSpec, read_result, write_document
from airflow_txlog.datafiles.failures import text_of
from airflow_txlog.errors import JobError, JobLost, TxlogError
from airflow_txlog.jobs.spark.installation import temporary_disk_is_full
from airflow_txlog.process import progress
from airflow_txlog.process.private_folder import remove_folder_of
from airflow_txlog.runners.base import Log, check_stays_here, result_of_lost, result_or_error
from airflow_txlog.runners.job_output import TAIL_LINES, lines_of, readable, shown

# The command that runs a job, with any Spark.
JOB = (sys.executable, "-m", "airflow_txlog.jobs")
WITHOUT_SPARK = (*JOB, "--session", "none")
SPARK_HERE = "--spark-here"
TERMINATION_GRACE_S = 5.0
STOP_POLL_S = 0.05
# Larger than nearly every result.
RESULT_BYTES = 65_536
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class ChildProcessRunner:
    """One child process per job. The default: a crash of Spark does not affect Airflow's processes."""

    def __init__(
        self,
        command: Sequence[str] = JOB,
        environment: Mapping[str, str] | None = None,
        files: Sequence[int] = (),
        *,
        named_files: bool = False,
        grace_s: float = TERMINATION_GRACE_S,
    ) -> None:
        """`command` runs the file of a spec, its last argument; `environment` is added to this process's own.

        The child inherits the open `files`. `named_files`: the spec and the result are files with a name, for a job
        that cannot open those of its parent. `grace_s`: from SIGTERM to SIGKILL.
        """
        self._command = tuple(command)
        self._files = tuple(files)
        self._named_files = named_files
        self._grace_s = grace_s
        self._added = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._answer: JobResult | None = None

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Run the job and wait; see `Runner.run`. The result goes to the spec's `result_uri`, if it has one."""
        self._answer = None
        if self._command == JOB:
            check_stays_here(spec)
        with contextlib.ExitStack() as files:
            try:
                spec_file, result_file = (
                    files.enter_context(temporary_file(named=self._named_files)) for _ in range(2)
                )
                result_uri = spec.result_uri or _path_of(result_file)
                spec_file.write(spec.replace(result_uri=result_uri).to_json(with_key=True).encode())
                # The child may share this open file and its position.
                spec_file.seek(0)
                _take_room(result_file)
            except OSError as error:
                raise job_not_started(spec, error) from error
            credentials: dict[str, str] = {}
            if spec.access.connections:
                from airflow_txlog.runners.credentials_endpoint import credentials_environment

                credentials = files.enter_context(credentials_environment(spec.access.connections))
            exit_code, tail = self._run_child(spec_file, result_file, log, credentials)
            self._answer = result = read_result(result_uri)
        if result is not None:
            return result_or_error(spec, result)
        lost = _lost(spec, "was stopped" if self._killed else _how_it_ended(exit_code), exit_code, tail)
        # Also for a stopped job: its commit may have been in progress.
        return result_of_lost(spec, lost)

    @property
    def was_killed(self) -> bool:
        """Whether the last job was stopped by `kill`."""
        return self._killed

    @property
    def answer(self) -> JobResult | None:
        """The result that the last job itself left, if any; not one that `run` found in the table's log."""
        return self._answer

    def kill(self) -> None:
        """End the child by SIGTERM, after five seconds by SIGKILL. Its JVM and Python workers end with it."""
        self._killed = True
        process = self._process
        if process is not None:
            stop(process, self._grace_s)

    def _run_child(
        self, spec_file: IO[bytes], result_file: IO[bytes], log: Log, credentials: Mapping[str, str]
    ) -> tuple[int, str]:
        # No start_new_session: Airflow kills a task by its process group, and the child must be in it.
        process = subprocess.Popen(
            [*self._command, _path_of(spec_file)],
            pass_fds=(spec_file.fileno(), result_file.fileno(), *self._files),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**job_environment(), **self._added, **credentials, **progress.environment()},
        )
        self._process, self._killed = process, False
        try:
            tail, hidden = follow_output(process, log)
            exit_code = process.wait()
            if exit_code and hidden:
                log(f"spark: {hidden} more lines of its output are not shown: what Spark prints may quote rows")
            return exit_code, tail
        finally:
            # Also runs after a normal end, with nothing left to stop. A timeout of the task raises anywhere above, in
            # the middle of a read.
            stop(process, self._grace_s)
            _wait_for_end(process)
            with contextlib.suppress(OSError):
                remove_folder_of(process.pid)
            # Not closed by `kill`: a reader below the signal handler still uses it, and will reach its end.
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            self._process = None


class RunsChildren:
    """Base of the runners whose Spark is not the child's own: one child process after another, one at a time."""

    def __init__(self) -> None:
        self._child: ChildProcessRunner | None = None
        self._is_killed = False

    def kill(self) -> None:
        """End the child as `ChildProcessRunner.kill` does. No other one begins."""
        self._is_killed = True
        child = self._child
        if child is not None:
            child.kill()

    def _in_child(self, child: ChildProcessRunner, spec: JobSpec, log: Log) -> JobResult:
        self._child = child
        try:
            self._check_not_killed(spec)
            return child.run(spec, log=log)
        finally:
            self._child = None

    def _check_not_killed(self, spec: JobSpec) -> None:
        if self._is_killed:
            raise JobLost(
                f"The {spec.operation.name} job on {spec.table_uri} was stopped before it started.",
                has_application_transaction=spec.application is not None,
            )

    def _without_spark(
        self,
        spec: JobSpec,
        log: Callable[[], Log],
        say: Log,
        *,
        is_spark_here: bool = False,
        always: bool = False,
    ) -> JobResult | None:
        """Return the result of a job that a child does without Spark; None if it needs Spark, and nothing was done.

        `log` returns the log of a child that begins; `say` logs why the job needs Spark. `is_spark_here`: the runner's
        Spark reads this machine's disk. `always`: try also a job that is likely to need Spark.
        """
        if not spec.operation.needs_spark:
            return self._in_child(ChildProcessRunner(), spec, log())
        if not (always or spec.operation.likely_spares_spark(is_spark_here=is_spark_here)):
            return None
        command = (*WITHOUT_SPARK, SPARK_HERE) if is_spark_here else WITHOUT_SPARK
        try:
            # A separate file for the result: the final one must stay empty if a later job dies.
            result = self._in_child(ChildProcessRunner(command), spec.replace(result_uri=None), log())
        except TxlogError as error:
            if not error.facts.get("needs_spark"):
                raise
            say(error.message)
            return None
        if spec.result_uri is not None:
            write_document(spec.result_uri, result.to_json())
        return result


def follow_output(process: subprocess.Popen[bytes], log: Log, *, has_own_lines: bool = True) -> tuple[str, int]:
    """Log the displayable lines of a process's output until its end; return their tail and the number of hidden ones.

    `has_own_lines`: its standard output is the job's own lines, which hold no value.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    hidden = 0
    for is_output, line in lines_of(process.stdout, process.stderr):
        is_own = is_output and has_own_lines
        if is_own and line.startswith(progress.PREFIX):
            progress.hear_line(line)
            continue
        text = readable(line) if is_own else shown(line)
        if text is not None:
            tail.append(text)
            log(text)
        elif not is_own:
            hidden += 1
    return "\n".join(tail), hidden


def _path_of(file: IO[bytes]) -> str:
    """Return the path under which this process, and a child that inherits the file, can open it."""
    return file.name if isinstance(file.name, str) else f"{OPEN_FILES}{file.fileno()}"


@contextlib.contextmanager
def temporary_file(*, named: bool) -> Iterator[IO[bytes]]:
    """Open a file that only this user can read, with or without a name. It is deleted at the end."""
    file = tempfile.NamedTemporaryFile(prefix="txlog-") if named else tempfile.TemporaryFile()  # noqa: SIM115 - below
    try:
        yield file
    finally:
        # Closing flushes, and a full disk raises again.
        with contextlib.suppress(OSError):
            file.close()


def _take_room(result_file: IO[bytes]) -> None:
    """Reserve room on the disk for a result, so that a full disk loses none after the commit. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(result_file.fileno(), 0, RESULT_BYTES)
        except OSError as error:
            # Some file systems cannot reserve space.
            if error.errno in _NO_SPACE:
                raise


def job_not_started(spec: JobSpec, error: OSError) -> JobError:
    """Return the error of a job for which there is no room on the disk, or no folder for temporary files."""
    # If no folder is writable, Python's error names neither the folders nor the reason.
    is_nowhere = isinstance(error, FileNotFoundError) and error.filename is None
    cause = "no folder for temporary files (TMPDIR) can be written" if is_nowhere else text_of(error)
    advice = f" {temporary_disk_is_full()}" if error.errno in _NO_SPACE else ""
    return JobError(
        f"Cannot run the {spec.operation.name} job: {cause}.{advice} Nothing was started.",
        cause_type=type(error).__name__,
    )


def _how_it_ended(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "was killed (SIGKILL), as happens to a process when memory runs out,"
    return f"ended with exit code {exit_code}"


def _lost(spec: JobSpec, how: str, exit_code: int, tail: str) -> JobLost:
    return JobLost(
        f"The {spec.operation.name} job on {spec.table_uri} {how} and left no result"
        + (", and the table's log does not show its transaction" if spec.application else "")
        + (f". Its last lines:\n{tail}" if tail else "."),
        exit_code=exit_code,
        log_tail=tail,
        has_application_transaction=spec.application is not None,
    )


def stop(process: subprocess.Popen[bytes], grace_s: float = TERMINATION_GRACE_S) -> None:
    """End the process if it still runs: close its standard input, SIGTERM, at last SIGKILL."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        process.terminate()
        deadline_s = SYSTEM_CLOCK.monotonic_s() + grace_s
        # Polled rather than waited for: this may run in a signal handler above a blocking wait of the same thread.
        while process.poll() is None and SYSTEM_CLOCK.monotonic_s() < deadline_s:
            SYSTEM_CLOCK.sleep(STOP_POLL_S)
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Wait until no process writes to its output any more: a driver below `spark-submit` ends after it."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + TERMINATION_GRACE_S
    with selectors.DefaultSelector() as selector:
        for stream in filter(None, (process.stdout, process.stderr)):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and SYSTEM_CLOCK.monotonic_s() < deadline_s:
            for key, _ in selector.select(STOP_POLL_S):
                if not os.read(key.fd, RESULT_BYTES):
                    selector.unregister(key.fileobj)


def job_environment() -> dict[str, str]:
    """Return the task's environment for a child that finds this package and imports nothing from its folder."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    package_parent = str(Path(airflow_txlog.__file__).resolve().parents[1])
    installed = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    # A checkout on sys.path is not on the child's. An installed package is found anyway, and putting site-packages
    # first would let it shadow the standard library.
    if package_parent not in installed:
        paths = [package_parent, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
