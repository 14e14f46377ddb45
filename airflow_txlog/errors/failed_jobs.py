"""Errors outside our rules: of the machine, of Spark, and of the cluster that a job runs on."""

from __future__ import annotations

from typing import ClassVar

from airflow_txlog.errors.base import TxlogError


class JobError(TxlogError):
    """A job failed for a reason outside this package: Spark, Java, memory, the machine, permissions."""

    fact_names: ClassVar[tuple[str, ...]] = ("cause_type", "log_tail")


class CredentialsUnavailable(JobError, PermissionError):
    """A store's connection (`storage_conn_id`) gives no credentials: the request was not sent. Never holds a secret."""

    fact_names: ClassVar[tuple[str, ...]] = ("connection",)
    errno = 13  # EACCES


class JobLost(JobError):
    """The job ended without an answer: its process, its JVM or a Python worker died. Its commit was not found.

    Retryable exactly when the work carries an application transaction: a repeated run then finds what has landed.
    """

    fact_names: ClassVar[tuple[str, ...]] = ("cause_type", "log_tail", "exit_code", "has_application_transaction")


class OutOfMemory(JobError):
    """Memory ran out in a process of Spark, which lived to report it. Nothing was changed."""


class SparkUnavailable(JobError):
    """The Spark that the job was to run on does not answer, or refuses it. This try has begun nothing."""

    retryable = True
    fact_names: ClassVar[tuple[str, ...]] = ("cause_type", "log_tail", "master")


class NoExecutors(JobError):
    """The cluster gave the job no executor in time: others hold its machines, or the job asks for larger ones.

    Nothing was done.
    """

    retryable = True
    fact_names: ClassVar[tuple[str, ...]] = ("cause_type", "log_tail", "master", "waited_s")


class UnfitExecutor(JobError):
    """An executor cannot run the job's tasks: Python or a package is missing there, or is of the wrong version."""

    fact_names: ClassVar[tuple[str, ...]] = ("cause_type", "log_tail", "host", "missing")


class ClusterLost(JobLost):
    """The cluster ended the application while it ran, or the driver lost the cluster. Its commit was not found."""


class ExecutorsLost(JobLost):
    """Executors died more often than Spark allows, such as for want of memory. The job's commit was not found."""
