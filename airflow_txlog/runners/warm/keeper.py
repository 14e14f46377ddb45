"""The keeper of one warm server: starts it, announces it, and ends it when it is idle, worn or dead.

`python -m airflow_txlog.runners.warm.keeper FOLDER LOCK`, where LOCK is a file descriptor that holds the lock of its
fingerprint. Invariants: the server never outlives its keeper (the kernel signals it), nor its folder them both; only
SIGTERM to the keeper ends a server with a job on it. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from importlib import util
from pathlib import Path
from types import FrameType

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.runners.warm.folders import Place, Process, Server, locked, slot_paths, slots_of, try_lock

IDLE_S, MAX_JOBS, MAX_MB = "TXLOG_WARM_IDLE_S", "TXLOG_WARM_JOBS", "TXLOG_WARM_MB"
_IDLE_S, _JOBS, _MB = 600.0, 500, 4096
# A session that was given up keeps its daemon of Python workers, 46 MB, for as long as the server runs.
_MAX_SESSIONS = 20
# A busy machine takes minutes to start a JVM.
_START_S, _STOP_S, _LOOK_S = 240.0, 5.0, 1.0
_MAIN = Path(__file__).parents[2] / "jobs" / "server_main.py"
_PORT = re.compile(r"Spark Connect server started at: \S+:(\d+)\s*$")
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Keep a server until its end."""
    folder, lock = Path(arguments[0]), int(arguments[1])
    place = Place(folder.parent, folder.name.partition("-")[0])
    signal.signal(signal.SIGTERM, _leave)
    java: subprocess.Popen[str] | None = None
    is_announced = False
    try:
        java = _start(folder)
        port = _port_of(java)
        if port is None:
            return 1
        server = Server(folder=str(folder), keeper=Process.of(os.getpid()), java=Process.of(java.pid), port=port)
        server.write()
        (folder / "settings").unlink()
        is_announced = True
        place.announce(server.folder)
        os.close(lock)
        _keep(place, server, java)
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if java is not None:
            _end(java)
        shutil.rmtree(folder, ignore_errors=True)
        if is_announced:
            with contextlib.suppress(OSError):
                # Close it here too: the signal may have arrived in between.
                os.close(lock)
            with contextlib.suppress(OSError), locked(place.lock_path):
                place.withdraw(str(folder))
                place.tidy()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


# --- the server's process -------------------------------------------------------------------------------------------


def _start(folder: Path) -> subprocess.Popen[str]:
    home = os.environ.get("SPARK_HOME") or _home_of_pyspark()
    token = (folder / "token").read_text()
    # spark-submit ends in `exec`: the process is the JVM.
    return subprocess.Popen(
        [f"{home}/bin/spark-submit", "--properties-file", f"{folder}/settings", str(_MAIN)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "SPARK_HOME": home, "SPARK_CONNECT_AUTHENTICATE_TOKEN": token},
        preexec_fn=_dies_with_parent,
    )


def _home_of_pyspark() -> str:
    found = util.find_spec("pyspark")
    return next(iter(found.submodule_search_locations or ())) if found is not None else ""


def _dies_with_parent() -> None:
    """Let the kernel end this process with its parent, if it can (Linux)."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _port_of(java: subprocess.Popen[str]) -> int | None:
    """Return the port from the server's output; None if it ends first, after printing why."""
    # A process that hangs is ended, which closes its output.
    hung = threading.Timer(_START_S, java.kill)
    hung.daemon = True
    hung.start()
    assert java.stdout is not None
    try:
        for line in java.stdout:
            found = _PORT.search(line)
            if found is not None:
                # Keep reading, or the process would block, and discard: output of a Python worker may quote rows.
                threading.Thread(target=_drain, args=(java,), daemon=True).start()
                return int(found[1])
            print(line, end="", flush=True)
    finally:
        hung.cancel()
    return None


def _drain(java: subprocess.Popen[str]) -> None:
    assert java.stdout is not None
    with contextlib.suppress(OSError, ValueError):
        while java.stdout.read(65_536):
            pass


def _end(java: subprocess.Popen[str]) -> None:
    java.terminate()
    try:
        java.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


# --- keeping --------------------------------------------------------------------------------------------------------


def _keep(place: Place, server: Server, java: subprocess.Popen[str]) -> None:
    """Return when the server is to end, or has ended. No job has a session then, and none gets one."""
    folder = server.folder
    while java.poll() is None and os.path.isdir(folder):
        if place.is_current(folder):
            if _is_worn(server):
                # New tasks start another one; those that run here are waited for.
                _withdraw(place, folder)
            elif _is_idle(folder) and _are_free(folder):
                _withdraw(place, folder)
        # Withdrawn first: a task that has a session by now is waited for, and any other finds that it came too late.
        elif _are_free(folder):
            return
        SYSTEM_CLOCK.sleep(_LOOK_S)


def _withdraw(place: Place, folder: str) -> None:
    with locked(place.lock_path):
        place.withdraw(folder)


def _is_idle(folder: str) -> bool:
    """Return whether no session was leased or returned for a long time."""
    used_ms = [path.stat().st_mtime_ns // 1_000_000 for path in (Path(folder, "server.json"), *slot_paths(folder))]
    return SYSTEM_CLOCK.now_ms() - max(used_ms) > 1000 * _number(IDLE_S, _IDLE_S)


def _is_worn(server: Server) -> bool:
    """Return whether it has done so much, or grown so large, that another server should take over."""
    slots = slots_of(server)
    return (
        sum(slot.num_jobs for slot in slots) >= _number(MAX_JOBS, _JOBS)
        or sum(slot.num_sessions for slot in slots) > _MAX_SESSIONS
        or _resident_mb(server.java.pid) > _number(MAX_MB, _MB)
    )


def _resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1_000_000


def _number(name: str, otherwise: float) -> float:
    return float(os.environ.get(name) or otherwise)


def _are_free(folder: str) -> bool:
    """Return whether no job has a session."""
    for path in slot_paths(folder):
        file = try_lock(path)
        if file is None:
            return False
        os.close(file)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
