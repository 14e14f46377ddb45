"""Clusters that run drivers themselves, played by this machine: `spark-submit` of theirs only hands over, and returns.

A driver has none of its submitter's files and pipes: what it has are copies of what was sent, and the settings.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import psutil
import pyspark

from airflow_txlog.runners.base import ApplicationState, SparkSubmit
from airflow_txlog.runners.cluster_mode import ClusterModeRunner
from tests.helpers.paths import ROOT
from tests.helpers.plain_driver import drive, settings_in

NAME = "spark.test.name"
_HAND_OVER = """#!/bin/sh
home=$(mktemp -d {folder}/app-XXXXXXXX)
printf '%s\\n' "$@" > $home/words
while [ $# -gt 1 ]; do
    case "$1" in
        --properties-file) cat "$2" > $home/settings ;;
        --py-files) cp "$2" $home/ ;;
    esac
    shift
done
cp "$1" $home/driver.py
cd $home
{start}
touch $home/submitted
{then}
"""
_DETACHED = (
    "env -u PYTHONPATH {environment} setsid {command} --properties-file $home/settings --py-files $home/*.zip"
    " $home/driver.py </dev/null >$home/log 2>&1 & echo $! > $home/pid"
)


class PlayedCluster:
    """One without Spark, whose drivers are threads of this process."""

    def __init__(self, folder: Path, *, master: str = "local[2]", start: str = "", then: str = "") -> None:
        """`start` starts a driver, in a shell; `then` is what `spark-submit` does last."""
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.master = master
        self.is_silent = False
        """Whether it answers no question."""
        self.says: ApplicationState | None = None
        """What it answers to every question, whatever is true."""
        self._threads: dict[str, tuple[threading.Thread, threading.Event]] = {}
        program = folder / "spark-submit"
        program.write_text(_HAND_OVER.format(folder=folder, start=start, then=then))
        program.chmod(0o755)

    def runner(self, *, poll_s: float = 0.05, **more: float) -> ClusterModeRunner:
        words = (str(self.folder / "spark-submit"), "--master", self.master, "--deploy-mode", "cluster")
        cluster = SparkSubmit(master=self.master, command=words, applications=self)
        return ClusterModeRunner(cluster, poll_s=poll_s, **more)

    def homes(self) -> dict[str, Path]:
        """The folders of the applications that were submitted, by their names, oldest first."""
        marks = sorted(self.folder.glob("*/submitted"), key=lambda path: path.stat().st_mtime_ns)
        return {settings_in(mark.with_name("settings"))[NAME]: mark.parent for mark in marks}

    def runs(self, name: str) -> bool:
        """Whether its driver runs."""
        if name not in self._threads:
            home = self.homes().get(name)
            if home is None:
                return False
            killed = threading.Event()

            def check() -> None:
                if killed.is_set():
                    raise SystemExit

            def work() -> None:
                with contextlib.suppress(SystemExit):
                    drive(home / "settings", self.folder, check)

            thread = threading.Thread(target=work, daemon=True)
            self._threads[name] = thread, killed
            thread.start()
        return self._threads[name][0].is_alive()

    def kill(self, name: str) -> None:
        """End a driver at once, as a machine that is lost."""
        if self.runs(name):
            thread, killed = self._threads[name]
            killed.set()
            thread.join()

    def end(self) -> None:
        for name in self.homes():
            self.kill(name)

    def hold(self, at: str) -> None:
        """Let drivers without Spark wait at a moment: "begin", "commit" or "result"."""
        (self.folder / f"hold-{at}").touch()

    def go_on(self) -> None:
        for path in self.folder.glob("hold-*"):
            path.unlink()

    # --- what a cluster answers -------------------------------------------------------------------------------------

    def settings(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        return {NAME: name}

    def look(self, name: str) -> ApplicationState:
        if self.is_silent:
            raise OSError("canary of a URL with a token")
        is_alive = self.runs(name)
        return self.says or ApplicationState(is_alive=is_alive, text="running" if is_alive else "ended")

    def cancel(self, name: str) -> None:
        if self.is_silent:
            raise OSError("canary of a URL with a token")
        self.kill(name)


class DetachedCluster(PlayedCluster):
    """One whose drivers are processes, which no task's end reaches: Spark's own on `master`, or ones without Spark."""

    def __init__(
        self,
        folder: Path,
        *,
        master: str = "local[2]",
        environment: Mapping[str, str] | None = None,
        has_spark: bool = True,
    ) -> None:
        own = {"SPARK_HOME": os.path.dirname(pyspark.__file__), "PYSPARK_PYTHON": sys.executable}
        command = f"{Path(sys.executable).with_name('spark-submit')} --master {master}"
        if not has_spark:
            own, command = {"PYTHONPATH": str(ROOT)}, f"{sys.executable} {Path(__file__).with_name('plain_driver.py')}"
        given = " ".join(f"'{name}={value}'" for name, value in {**own, **(environment or {})}.items())
        super().__init__(folder, master=master, start=_DETACHED.format(environment=given, command=command))

    def _process(self, name: str) -> psutil.Process | None:
        with contextlib.suppress(KeyError, FileNotFoundError, psutil.NoSuchProcess, ValueError):
            process = psutil.Process(int((self.homes()[name] / "pid").read_text()))
            if process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def runs(self, name: str) -> bool:
        return self._process(name) is not None

    def kill(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)

    def cancel(self, name: str) -> None:
        self._signal(name, signal.SIGTERM)

    def _signal(self, name: str, number: int) -> None:
        process = self._process(name)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def mode_of(path: Path) -> int:
    """The permissions of a file or a folder."""
    return stat.S_IMODE(path.stat().st_mode)
