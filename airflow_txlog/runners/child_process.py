"""Runs a job in a child process of the task: `python -m airflow_txlog.jobs SPEC_FILE`.

The same way in and out as a remote submit: the spec goes in as a file, the result comes back as a file, and the exit
code decides nothing. Invariants: the child never outlives the call (it stays in the task's process group, ends when
its standard input does, and is stopped in a `finally`). Nothing of the spec stands in the command line, and neither
file has a name: both are gone with the two processes, however they end. Credentials of a store are in neither: the
child asks this process for them.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import airflow_txlog
from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import OPEN_FILES, JobResult, JobSpec, read_result, write_document
from airflow_txlog.datafiles.failures import text_of
from airflow_txlog.errors import JobError, JobLost, TxlogError
from airflow_txlog.jobs.spark.installation import DISK_FULL
from airflow_txlog.process.private_folder import remove_folder_of
from airflow_txlog.runners.base import Log, check_stays_here, result_of_lost, result_or_error
from airflow_txlog.runners.job_output import Tail, lines_of, readable, shown

# What runs a job, whatever Spark it is for.
JOB = (sys.executable, "-m", "airflow_txlog.jobs")
WITHOUT_SPARK = (*JOB, "--session", "none")
SPARK_HERE = "--spark-here"
TERMINATION_GRACE_S = 5.0
STOP_POLL_S = 0.05
# More than nearly every result takes.
RESULT_BYTES = 65_536
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class ChildProcessRunner:
    """One child process a job. The default: a Spark that dies takes nothing of Airflow with it."""

    def __init__(
        self,
        command: Sequence[str] = JOB,
        environment: Mapping[str, str] | None = None,
        files: Sequence[int] = (),
        *,
        named_files: bool = False,
    ) -> None:
        """`command` runs the file of a spec, its last argument; `environment` is added to this process's own.

        `files` are open ones that the child inherits. `named_files`: the spec and the result are files with a name,
        for a job that cannot open those of its parent.
        """
        self._command = tuple(command)
        self._files = tuple(files)
        self._named_files = named_files
        self._added = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._answer: JobResult | None = None

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Run the job and wait; see `Runner.run`. The spec's own `result_uri` is used where it has one."""
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
                # The child may get the same open file, and not one of its own.
                spec_file.seek(0)
                _take_room(result_file)
            except OSError as error:
                raise job_not_started(spec, error) from error
            credentials: dict[str, str] = {}
            if spec.access.storage_conn_id is not None:
                from airflow_txlog.runners.credentials_endpoint import credentials_environment

                credentials = files.enter_context(credentials_environment(spec.access.storage_conn_id))
            exit_code, tail = self._run_child(spec_file, result_file, log, credentials)
            self._answer = result = read_result(result_uri)
        if result is not None:
            return result_or_error(spec, result)
        lost = _lost(spec, "was stopped" if self._killed else _how_it_ended(exit_code), exit_code, tail)
        # A job that was stopped too: its commit may have been on its way.
        return result_of_lost(spec, lost)

    @property
    def was_killed(self) -> bool:
        """Whether the last job was stopped by `kill`."""
        return self._killed

    @property
    def answer(self) -> JobResult | None:
        """What the last job itself left as its result. None: it came to an end of another kind, whatever `run` found
        in the table's log."""
        return self._answer

    def kill(self) -> None:
        """SIGTERM, five seconds, SIGKILL. The child's JVM and Python workers end with it."""
        self._killed = True
        process = self._process
        if process is not None:
            stop(process)

    def _run_child(
        self, spec_file: IO[bytes], result_file: IO[bytes], log: Log, credentials: Mapping[str, str]
    ) -> tuple[int, str]:
        tail = Tail()
        # No start_new_session: Airflow kills a task by its process group, and the child must be in it.
        process = subprocess.Popen(
            [*self._command, _path_of(spec_file)],
            pass_fds=(spec_file.fileno(), result_file.fileno(), *self._files),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**job_environment(), **self._added, **credentials},
        )
        self._process, self._killed = process, False
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            hidden = 0
            for is_own, line in lines_of(process.stdout, process.stderr):
                text = readable(line) if is_own else shown(line)
                if text is not None:
                    tail.add(text)
                    log(text)
                elif not is_own:
                    hidden += 1
            exit_code = process.wait()
            if exit_code and hidden:
                log(f"spark: {hidden} more lines of its output are not shown: what Spark prints may quote rows")
            return exit_code, tail.text()
        finally:
            # Reached by an ordinary end too, where there is nothing left to stop. A timeout of the task raises
            # anywhere above, in the middle of a read.
            stop(process)
            _wait_for_end(process)
            with contextlib.suppress(OSError):
                remove_folder_of(process.pid)
            # Not closed by `kill`: a reader below the signal handler is still in it, and sees the end by itself.
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            self._process = None


def run_without_spark(
    spec: JobSpec,
    run: Callable[[ChildProcessRunner, JobSpec], JobResult],
    log: Log,
    *,
    is_spark_here: bool = False,
    always: bool = False,
) -> JobResult | None:
    """The result of a job that a child process does without Spark; None where the job needs it, and nothing was done.

    `run` runs a job in a child process that is not begun yet. For runners whose Spark is not the child's own;
    `is_spark_here`: it reads this machine's disk. `always`: also a job that is not likely to need none.
    """
    if not spec.operation.needs_spark:
        return run(ChildProcessRunner(), spec)
    if not (always or spec.operation.likely_spares_spark(is_spark_here=is_spark_here)):
        return None
    command = (*WITHOUT_SPARK, SPARK_HERE) if is_spark_here else WITHOUT_SPARK
    try:
        # Its own place for the result: that of a job that dies later must be empty.
        result = run(ChildProcessRunner(command), spec.replace(result_uri=None))
    except TxlogError as error:
        if not error.facts.get("needs_spark"):
            raise
        log(error.message)
        return None
    if spec.result_uri is not None:
        write_document(spec.result_uri, result.to_json())
    return result


def _path_of(file: IO[bytes]) -> str:
    """The path by which this process and a child that inherits the file open it."""
    return file.name if isinstance(file.name, str) else f"{OPEN_FILES}{file.fileno()}"


@contextlib.contextmanager
def temporary_file(*, named: bool) -> Iterator[IO[bytes]]:
    """A file of this user's alone, without a name or with one, which is gone at the end."""
    file = tempfile.NamedTemporaryFile(prefix="txlog-") if named else tempfile.TemporaryFile()  # noqa: SIM115 - below
    try:
        yield file
    finally:
        # Closing flushes, and a full disk says so again.
        with contextlib.suppress(OSError):
            file.close()


def _take_room(result_file: IO[bytes]) -> None:
    """Take room on the disk for a result, so that none is lost, after the commit, for want of it. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(result_file.fileno(), 0, RESULT_BYTES)
        except OSError as error:
            # Some file systems cannot take room in advance.
            if error.errno in _NO_SPACE:
                raise


def job_not_started(spec: JobSpec, error: OSError) -> JobError:
    """The error of a job for which there is no room on the disk, or no folder for temporary files."""
    # Where a new file can be written nowhere, Python names neither the folders nor why.
    is_nowhere = isinstance(error, FileNotFoundError) and error.filename is None
    cause = "no folder for temporary files (TMPDIR) can be written" if is_nowhere else text_of(error)
    advice = f" {DISK_FULL}" if error.errno in _NO_SPACE else ""
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


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process if it still runs: by its standard input's end and SIGTERM, at last by SIGKILL."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        process.terminate()
        deadline_s = SYSTEM_CLOCK.monotonic_s() + TERMINATION_GRACE_S
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
    """The task's environment, in which the child finds this package and writes its lines at once.

    Neither the child nor Spark's workers below it import from the directory that they happen to start in.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    package_parent = str(Path(airflow_txlog.__file__).resolve().parents[1])
    installed = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    # A checkout on sys.path is not on the child's. An installed package is found anyway, and putting site-packages
    # first would let it shadow the standard library.
    if package_parent not in installed:
        paths = [package_parent, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
