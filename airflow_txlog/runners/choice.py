"""Runners by name, each imported when it is asked for: the in-process one brings Spark."""

from __future__ import annotations

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.runners.base import Runner

RUNNERS = ("child", "in_process")


def make_runner(name: str) -> Runner:
    """A fresh runner: "child" (a child process) or "in_process" (a Spark session shared by this process)."""
    check_runner(name)
    if name == "child":
        from airflow_txlog.runners.child_process import ChildProcessRunner

        return ChildProcessRunner()
    from airflow_txlog.runners.in_process import InProcessRunner

    return InProcessRunner()


def check_runner(name: str) -> None:
    """Raise InvalidJobSpec for a name that no runner has."""
    if name not in RUNNERS:
        raise InvalidJobSpec(f"runner must be one of {RUNNERS} or a Runner; found {name!r}.", argument="runner")
