"""The files through which tasks and keepers of warm servers coordinate: permissions, locks and content.

    BASE/                 mode 0700, this user's alone
      FINGERPRINT         a link to the folder of the server that new tasks use
      FINGERPRINT.lock    held while that link is decided on: a server starts, or is given up
      FINGERPRINT-ID/     one server: all of it is deleted when it ends
        server.json       written when its port is known
        token, settings, log, tmp/, local/, credentials/
        sessions/0 …      one lease each (flock), and the state of the session

Locks are flocks: the kernel releases them when their last holder has died. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import JobError, SparkUnavailable
from airflow_txlog.process.private_folder import make_own_folder

FOLDER = "TXLOG_WARM_FOLDER"
_POLL_S = 0.05


def base_path() -> Path:
    """Return the path of the folder of this user's servers on this machine, which may not exist yet."""
    return Path(os.environ.get(FOLDER) or f"{tempfile.gettempdir()}/airflow-txlog-{os.geteuid()}")


def base_folder() -> Path:
    """Return the folder of this user's servers, made if missing. Raises JobError unless it is this user's alone."""
    base = base_path()
    try:
        fault = make_own_folder(base)
    except OSError as error:
        raise unavailable(f"the folder {base} cannot be made ({os.strerror(error.errno or 0)})") from error
    if fault is not None:
        raise JobError(
            f"The folder of warm Spark servers, {base}, must be a folder of this user's with mode 0700: what lies in "
            f"it lets run any Python as this user. {fault} Remove it, or name another one in {FOLDER}. Nothing was "
            "started.",
            cause_type="PermissionError",
        )
    return base


# --- processes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """A process by its id and the time of its start, because ids are reused."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has this id now."""
        return cls(pid, _stat(pid)[1])

    @property
    def is_running(self) -> bool:
        """Whether it runs. A process that has ended and was not waited for does not."""
        state, started = _stat(self.pid)
        return started == self.started and state not in ("Z", "X", "")

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def ended_within(self, seconds: float) -> bool:
        """Wait until it has ended, for at most `seconds`. Return whether it has ended."""
        deadline_s = SYSTEM_CLOCK.monotonic_s() + seconds
        while self.is_running:
            if SYSTEM_CLOCK.monotonic_s() > deadline_s:
                return False
            SYSTEM_CLOCK.sleep(_POLL_S)
        return True


def _stat(pid: int) -> tuple[str, str]:
    """Return the state of a process and the time of its start; two empty texts if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


# --- one server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: its folder, its processes, its port."""

    folder: str
    keeper: Process
    java: Process
    port: int

    @property
    def is_running(self) -> bool:
        """Whether both of its processes run. Without its keeper a server would never end."""
        return self.java.is_running and self.keeper.is_running

    @property
    def token(self) -> str:
        """The token that the server demands of its clients."""
        return Path(self.folder, "token").read_text()

    def write(self) -> None:
        """Record in its folder that it is up; whole or not at all."""
        new = Path(self.folder, "server.json.new")
        new.write_text(json.dumps(asdict(self)))
        new.rename(Path(self.folder, "server.json"))

    @classmethod
    def in_folder(cls, folder: Path) -> Server | None:
        """Return the server of this folder; None if none is up yet, or any more."""
        try:
            found = json.loads(Path(folder, "server.json").read_text())
        except OSError:
            return None
        return cls(
            folder=found["folder"],
            keeper=Process(**found["keeper"]),
            java=Process(**found["java"]),
            port=found["port"],
        )


class Place:
    """The paths at which the tasks of one fingerprint find their server."""

    def __init__(self, base: Path, fingerprint: str) -> None:
        self.base = base
        self.fingerprint = fingerprint
        self._link = base / fingerprint

    @property
    def lock_path(self) -> Path:
        """The lock that guards the choice of the current server."""
        return self.base / f"{self.fingerprint}.lock"

    def folders(self) -> list[Path]:
        """Return the folders of its servers: the current one's, and those that end after their last job."""
        return [path for path in sorted(self.base.glob(f"{self.fingerprint}-*")) if not path.is_symlink()]

    def current(self) -> Server | None:
        """Return the server that new tasks use, if it runs."""
        try:
            folder = os.readlink(self._link)
        except OSError:
            return None
        found = Server.in_folder(Path(folder))
        return found if found is not None and found.is_running else None

    def is_current(self, folder: str) -> bool:
        """Return whether new tasks use the server of this folder."""
        try:
            return os.readlink(self._link) == folder
        except OSError:
            return False

    def announce(self, folder: str) -> None:
        """Let new tasks use the server of this folder. The lock is held."""
        new = f"{self._link}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        os.symlink(folder, new)
        os.rename(new, self._link)

    def withdraw(self, folder: str) -> None:
        """Let no new task use the server of this folder. The lock is held."""
        if self.is_current(folder):
            self._link.unlink()

    def tidy(self) -> None:
        """Delete the lock and the base if no server is left. The lock is held."""
        if not os.path.lexists(self._link):
            self.lock_path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.base.rmdir()


# --- locks ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: Path, check: Callable[[], None] | None = None) -> Iterator[int]:
    """Wait for a lock file, hold it, and yield its descriptor. `check` is called while it waits, and may raise."""
    while True:
        held = try_lock(path, is_waiting=check is None)
        if held is not None:
            break
        if check is not None:
            check()
            SYSTEM_CLOCK.sleep(_POLL_S)
    try:
        yield held
    finally:
        os.close(held)


def try_lock(path: Path, *, is_waiting: bool = False) -> int | None:
    """Return the descriptor of the lock file; None if it is held. Raises FileNotFoundError if its folder is gone."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if is_waiting else fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its last holder may have deleted the file before the lock: then this name belongs to another file.
        now, mine = os.stat(path), os.fstat(file)
        if (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


# --- sessions -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Slot:
    """One session of the pool and the content of its file, while its lock is held."""

    file: int
    session_id: str = ""
    num_jobs: int = 0
    num_sessions: int = 0
    is_busy: bool = False
    """Whether a job has it, or had it and ended badly."""

    @classmethod
    def of(cls, file: int) -> Slot:
        """Return the content of a slot's file. An empty file belongs to a session that was never used."""
        try:
            known: dict[str, Any] = json.loads(os.pread(file, 4096, 0) or b"{}")
        except ValueError:
            known = {}
        return cls(file=file, **known)

    def write(self) -> None:
        """Write the content in one write."""
        known = asdict(self)
        del known["file"]
        os.pwrite(self.file, json.dumps(known).ljust(200).encode(), 0)


def slot_paths(folder: str) -> list[Path]:
    """Return the files of the slots that were used."""
    try:
        return sorted(Path(folder, "sessions").iterdir())
    except FileNotFoundError:
        return []


def slots_of(server: Server) -> list[Slot]:
    """Return the content of all slots of a server, also of those in use."""
    found = []
    for path in slot_paths(server.folder):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            found.append(Slot.of(file.fileno()))
    return found


def unavailable(why: str, *, place: str | None = None) -> SparkUnavailable:
    """Return the error of a server that could not be had. `place`: the server that was tried, if another one may do."""
    end = "" if why.endswith(("?", ".")) else "."
    message = f"The warm Spark of this machine could not be had: {why}{end} Nothing was started."
    return SparkUnavailable(message, **({} if place is None else {"place": place}))
