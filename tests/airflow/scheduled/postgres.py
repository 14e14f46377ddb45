"""A PostgreSQL of the tests' own: Debian's programs, a folder and a socket of its own, gone with the tests."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT

READY_S = 300
# Where `tools/ensure_postgres.sh` puts it on a machine that has none.
FETCHED = Path(os.environ.get("TXLOG_POSTGRES", ROOT / ".venv" / "postgres"))


def programs() -> Path | None:
    """The folder of PostgreSQL's programs: what was fetched, the newest of Debian's, the one on PATH; None without."""
    for top in (FETCHED, Path("/")):
        found = [path.parent for path in top.glob("usr/lib/postgresql/*/bin/postgres")]
        if found:
            return max(found, key=lambda folder: int(folder.parent.name))
    path = shutil.which("postgres")
    return Path(path).resolve().parent if path else None


def why_not() -> str | None:
    """Why there can be no database here; None where there can."""
    if programs() is None:
        return "no PostgreSQL: tools/ensure_postgres.sh, or apt-get install postgresql"
    if importlib.util.find_spec("psycopg") is None:
        return "no driver of PostgreSQL: pip install 'psycopg[binary]'"
    return None


def ends_with_parent() -> None:
    """For `preexec_fn`: the process gets a SIGTERM when the tests end, however they end."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Postgres:
    """A server in a folder that its user alone can read. It listens on a socket there, and on no port."""

    def __init__(self) -> None:
        found = programs()
        assert found is not None
        self._programs = found
        # Not below pytest's folder, which other users cannot enter: PostgreSQL refuses to be run by root.
        self.folder = Path(tempfile.mkdtemp(prefix="txlog-postgres-"))
        self._as: dict[str, Any] = {"env": dict(os.environ)}
        if os.geteuid() == 0:
            user = next(user for user in pwd.getpwall() if user.pw_name in ("postgres", "nobody"))
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        if found.is_relative_to(FETCHED):
            # That user may not enter the folder of this checkout.
            shutil.copytree(FETCHED / "usr", self.folder / "usr", symlinks=True)
            self._programs = self.folder / found.relative_to(FETCHED)
            libraries = {str(path.parent) for path in (self.folder / "usr" / "lib").rglob("*.so.*")}
            self._as["env"]["LD_LIBRARY_PATH"] = ":".join(sorted(libraries))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg://airflow@/postgres?host={self.folder}"

    def start(self) -> None:
        data, log = self.folder / "data", self.folder / "log"
        initdb = ["initdb", "-D", str(data), "-U", "airflow", "-A", "trust", "-E", "UTF8", "--no-sync"]
        self._run(*initdb, "--locale=C.UTF-8")
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "max_connections": 200,
        }
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(data), *options]
        with log.open("wb") as out:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                cwd="/",
                preexec_fn=ends_with_parent,
                start_new_session=True,
                **self._as,
            )
        self._process = process
        deadline = time.monotonic() + READY_S
        while subprocess.run([self._programs / "pg_isready", "-q", "-h", self.folder], cwd="/", **self._as).returncode:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    def dump(self) -> str:
        """Everything that is in the database, as SQL."""
        return self._run("pg_dump", "-h", str(self.folder), "-U", "airflow", "postgres", "--inserts")

    def stop(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            # Without waiting for the sessions that are open.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)
                process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._programs / program), *arguments]
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, capture_output=True, text=True, cwd="/", **self._as
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
