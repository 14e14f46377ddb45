"""Runs a job on a cluster by `spark-submit` in client mode: its driver is a process below the task, on this machine.

It is a child process like any other (`child_process`), started by `spark-submit`. Invariants: settings are in a file
that only this user can read, and the command line holds what the connection's hook puts there and nothing of a job; the
driver is gone when `run` returns.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import airflow_txlog
from airflow_txlog.contract.job import OPEN_FILES, JobResult, JobSpec
from airflow_txlog.contract.wording import APPLICATION, LinesOnce
from airflow_txlog.errors import InvalidJobSpec, JobLost, SparkUnavailable
from airflow_txlog.jobs.spark.launch import JVM_OPTIONS, LOCAL_DEFAULTS, closed_settings, is_one_process, properties_of
from airflow_txlog.process.private_folder import temporary_folder
from airflow_txlog.process.starting import start_turn
from airflow_txlog.runners.base import Log, SparkSubmit
from airflow_txlog.runners.child_process import ChildProcessRunner, RunsChildren, job_not_started, temporary_file

MASTER_ANSWERS_S = 10.0
_MAIN = Path(airflow_txlog.__file__).resolve().parent / "jobs" / "submitted_main.py"
# The connection's, and in its command line.
_OF_CONNECTION = ("spark.master", "spark.submit.deployMode")
_DRIVER_PYTHON = "spark.pyspark.driver.python"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# A Spark in one process would fetch them from itself, which closed ports do not allow.
_JARS = {"spark.jars", "spark.jars.packages", "--jars", "--packages"}
# Of a local Spark's defaults those that name no machine.
_SHARED = (
    "spark.driver.memory",
    "spark.ui.",
    "spark.eventLog.",
    "spark.sql.catalogImplementation",
    "spark.redaction.regex",
)
SHARED_DEFAULTS = {
    **{name: value for name, value in LOCAL_DEFAULTS.items() if name.startswith(_SHARED)},
    # With the driver's level, once they run (`jobs.spark.executors`): what Spark logs of a failed task quotes values.
    "spark.executor.syncLogLevel.enabled": "true",
}
"""The defaults of the settings of a job on a cluster."""


class SubmitRunner(RunsChildren):
    """One application on the cluster per job."""

    # Without it the driver would use `spark.pyspark.python`, which is a path on the executors.
    _defaults: ClassVar[Mapping[str, str]] = {**SHARED_DEFAULTS, _DRIVER_PYTHON: sys.executable}

    def __init__(self, cluster: SparkSubmit) -> None:
        super().__init__()
        self._cluster = cluster

    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        """Run the job and wait; see `Runner.run`.

        Raises SparkUnavailable if the cluster did not take the application.
        """
        self._is_killed = False
        check_left_to_connection(spec)
        lines = LinesOnce(log)
        done = self._without_spark(spec, lines.begin, log)
        if done is not None:
            return done
        settings = self._settings(spec)
        command = self._command(settings)
        is_started, say = False, lines.begin()

        def noted(line: str) -> None:
            nonlocal is_started
            is_started = is_started or line.startswith(APPLICATION)
            # The driver's first line: its JVM is up. An application in a cluster's queue keeps no core here busy.
            if line.startswith(f"{spec.operation.name} "):
                turn.end()
            say(line)

        with start_turn() as turn, settings_file(spec, settings) as (path, files):
            turn.wait(log, lambda: self._check_not_killed(spec))
            # The connection's other options may hold a secret.
            log(f"starting Spark: {self._cluster.command[0]} --master {self._cluster.master}")
            child = ChildProcessRunner(
                # Without `--load-spark-defaults` the file would replace spark-defaults.conf.
                (*command, "--properties-file", path, "--load-spark-defaults", str(_MAIN)),
                # Executors have the interpreter of the driver unless another is named.
                {"PYSPARK_PYTHON": sys.executable} if "PYSPARK_PYTHON" not in os.environ else {},
                files,
                named_files=not files,
            )
            try:
                return self._in_child(child, spec, noted)
            except JobLost as lost:
                # Without an exit code it is the driver that reports the loss.
                if is_started or child.was_killed or lost.facts.get("exit_code") is None:
                    raise
                raise SparkUnavailable(
                    f"spark-submit ended before the {spec.operation.name} job began (exit code "
                    f"{lost.facts['exit_code']}). Nothing was done. Its last lines:\n{lost.facts.get('log_tail')}",
                    master=self._cluster.master,
                    log_tail=lost.facts.get("log_tail"),
                    retryable=False,
                ) from lost

    def _command(self, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Return the connection's command, after checking that it can be tried."""
        program, *options = self._cluster.command
        found = shutil.which(program) or shutil.which(str(Path(sys.executable).with_name(program)))
        if found is None:
            raise SparkUnavailable(
                f"There is no {program} on the PATH of this process, nor beside {sys.executable}. Install Spark where "
                "tasks run: pip install 'airflow-provider-txlog[spark]'. Nothing was done.",
                master=self._cluster.master,
                retryable=False,
            )
        python = settings.get(_DRIVER_PYTHON)
        if python is not None and self._cluster.applications is None and shutil.which(python) is None:
            raise InvalidJobSpec(
                f"{_DRIVER_PYTHON} is {python!r}, which is no program on this machine, where the driver runs. Leave it "
                "out: then the driver has the task's own Python. Nothing was done.",
                argument=f"spark_conf.{_DRIVER_PYTHON}",
            )
        _check_answers(self._cluster.master)
        return (found, *options)

    def _settings(self, spec: JobSpec) -> dict[str, str]:
        given = {"spark.app.name": f"airflow_txlog {spec.operation.name}", **self._defaults, **spec.spark_conf}
        if spec.access.connections:
            # Executors do not reach the task that holds the connection (docs/credentials.md).
            given.setdefault("spark.executorEnv.TXLOG_CREDENTIALS", "own")
        named = {*given, *(word.partition("=")[0] for word in self._cluster.command)}
        if is_one_process(self._cluster.master) and not named & _JARS:
            given |= closed_settings(temporary_folder())
        return given | {
            _JAVA_OPTIONS: f"{JVM_OPTIONS} {given.get(_JAVA_OPTIONS, '')}".strip(),
            "spark.txlog.master": self._cluster.master,
        }


def check_left_to_connection(spec: JobSpec) -> None:
    """Raise InvalidJobSpec for a setting that the connection decides, also if the job may need no Spark."""
    for name in _OF_CONNECTION:
        if name in spec.spark_conf:
            raise InvalidJobSpec(
                f'spark_conf has {name}, which for runner="submit" the connection decides (spark_conn_id). Leave it '
                "out. Nothing was done.",
                argument=f"spark_conf.{name}",
            )


@contextlib.contextmanager
def settings_file(spec: JobSpec, settings: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the path of a file with the settings for this user alone, and the files that a child must inherit."""
    # Without a name, nothing of it remains even after SIGKILL. By inheritance: Airflow forbids others of this user to
    # open what a task has open. Other systems than Linux let an inherited file be read once, and Spark reads it twice.
    is_linux = sys.platform == "linux"
    with contextlib.ExitStack() as files:
        try:
            file = files.enter_context(temporary_file(named=not is_linux))
            file.write(properties_of(settings))
            file.flush()
        except OSError as error:
            raise job_not_started(spec, error) from error
        yield (f"{OPEN_FILES}{file.fileno()}", (file.fileno(),)) if is_linux else (str(file.name), ())


def _check_answers(master: str) -> None:
    """Raise SparkUnavailable if no master of a standalone cluster answers: Spark itself would take a minute."""
    if not master.startswith("spark://"):
        return
    failures = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            with contextlib.closing(socket.create_connection((host.strip("[]"), int(port)), MASTER_ANSWERS_S)):
                return
        except (OSError, ValueError) as error:
            failures.append(f"{place}: {type(error).__name__}")
    raise SparkUnavailable(
        f"The Spark master {master} does not answer ({'; '.join(failures)}). Is it up, and is this the address in its "
        "UI? Nothing was done.",
        master=master,
    )
