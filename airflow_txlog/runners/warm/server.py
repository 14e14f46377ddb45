"""A warm server for a job: the one that fits, found or started, and the lease of one of its sessions.

The inputs of a server's start decide which tasks may use it. Its fingerprint covers the package, the interpreter,
PySpark, the static settings and the environment variables that name an identity or change a start. Invariants: two
tasks never start two servers of one fingerprint, and two jobs never have one session.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path

import airflow_txlog
from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.spark.installation import check_has_client, check_has_jvm_side, check_one_version, start_advice
from airflow_txlog.jobs.spark.launch import JVM_OPTIONS, LOCAL_DEFAULTS, closed_settings, log_start, properties_of
from airflow_txlog.jobs.spark.shipping import HAS, executor_zip
from airflow_txlog.process.starting import start_turn
from airflow_txlog.runners.base import Log
from airflow_txlog.runners.child_process import job_environment
from airflow_txlog.runners.credentials_endpoint import credentials_environment
from airflow_txlog.runners.warm.folders import (
    Place,
    Server,
    Slot,
    base_folder,
    base_path,
    locked,
    slots_of,
    try_lock,
    unavailable,
)
from airflow_txlog.storage.credentials import FOLDER as CREDENTIALS_FOLDER
from airflow_txlog.storage.credentials import TOKEN, URL

KEEPER = "airflow_txlog.runners.warm.keeper"
SESSIONS = "TXLOG_WARM_SESSIONS"
_START_S, _STOP_S, _POLL_S = 270.0, 10.0, 0.05
# A Connect server forgets a session after an hour without requests.
_FRESH_MS = 30 * 60_000

# Those of `spark.sql.*` that only a start can set. Any other that a server would ignore is refused by name.
_STATIC_SQL = (
    *("spark.sql.extensions", "spark.sql.warehouse.dir", "spark.sql.catalogImplementation", "spark.sql.cache."),
    *("spark.sql.globalTempDatabase", "spark.sql.queryExecutionListeners", "spark.sql.streaming.", "spark.sql.hive."),
)
# Variables that name an identity, a place or an option: with other values it is another server.
_DECIDING = re.compile(
    r"(AWS|AZURE|GOOGLE|GCLOUD|CLOUDSDK|HADOOP|SPARK|PYSPARK|PYTHON|JAVA|JDK|FSSPEC|TXLOG|SSL|CURL|REQUESTS|KRB5)\w*"
    r"|(HTTPS?|NO|ALL)_PROXY|AIRFLOW_HOME|HOME|TZ|LANG|LC_ALL|PATH|LD_LIBRARY_PATH|VIRTUAL_ENV",
    re.IGNORECASE,
)
# Variables that the server must not have: Airflow's secrets, and settings that would turn it into a client.
_NOT_FOR_IT = re.compile(
    rf"_?AIRFLOW\w*|SPARK_REMOTE|SPARK_CONNECT\w*|SPARK_LOCAL_REMOTE|SPARK_LOCAL_DIRS|TXLOG_CONNECT|PYSPARK_SUBMIT_ARGS|{URL}|{TOKEN}"
)
_URI_WITH_PASSWORD = re.compile(r"\w+://[^/\s:@]*:[^/\s@]+@")


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A session of a server, for one job. While `slot.file` is open, here or in a child, no other job has it."""

    place: Place
    server: Server
    slot: Slot
    abandoned: tuple[str, ...]
    """Sessions of jobs that ended badly. This job cancels and releases them."""
    token: str = field(repr=False)
    """Read when the session was taken: the server may end, and delete its folder, before the job connects."""

    @property
    def url(self) -> str:
        """The server, for Spark Connect. Holds its token."""
        return f"sc://localhost:{self.server.port}/;token={self.token};user_id=txlog"

    def end(self, *, is_well: bool) -> None:
        """Give the session back. After a job that ended badly it is not used again."""
        with contextlib.suppress(OSError):
            if is_well:
                self.slot.is_busy = False
                self.slot.write()
        os.close(self.slot.file)


def lease_session(spark_conf: Mapping[str, str], log: Log, check: Callable[[], None] = lambda: None) -> Lease:
    """Return a session of a server with these settings. `check` is called while it waits, and may raise."""
    check_one_version()
    check_has_jvm_side()
    check_has_client()
    if not os.path.isdir("/proc/self"):
        raise JobError('runner="warm" needs /proc, as Linux has it. Take runner="child". Nothing was started.')
    static = {name: value for name, value in spark_conf.items() if not is_of_session(name)}
    environment = _server_environment()
    fingerprint = _fingerprint(static, environment)
    waits = False
    while True:
        check()
        place = Place(base_folder(), fingerprint)
        try:
            server = place.current() or _started(place, static, environment, log, check)
            lease = _leased(place, server)
        except FileNotFoundError:
            # The last server has just ended and deleted the folder.
            SYSTEM_CLOCK.sleep(_POLL_S)
            continue
        except OSError as error:
            raise unavailable(os.strerror(error.errno or 0)) from error
        if lease is not None:
            return lease
        if place.is_current(server.folder) and server.is_running and not waits:
            waits = True
            log(f"waits for one of the {num_sessions()} sessions of the warm Spark ({SESSIONS})")
        SYSTEM_CLOCK.sleep(_POLL_S)


def is_started(spark_conf: Mapping[str, str]) -> bool:
    """Return whether a server with these static settings runs, so that a job need not wait for its start."""
    if not base_path().exists():
        return False
    static = {name: value for name, value in spark_conf.items() if not is_of_session(name)}
    try:
        return Place(base_folder(), _fingerprint(static, _server_environment())).current() is not None
    except OSError:
        return False


def is_of_session(name: str) -> bool:
    """Return whether a setting can be a session's own, and need not be known when the server starts."""
    return name.startswith("spark.sql.") and not name.startswith(_STATIC_SQL)


def num_sessions() -> int:
    """Return how many jobs one server runs at a time."""
    return int(os.environ.get(SESSIONS) or max(4, os.cpu_count() or 1))


def give_up(place: Place, server: Server) -> None:
    """Let no new task use a server that does not answer. Its keeper ends it as soon as no job has a session."""
    # If it was the last server, the base folder is gone too.
    with contextlib.suppress(FileNotFoundError), locked(place.lock_path):
        place.withdraw(server.folder)


def stop(server: Server) -> None:
    """End a server now, with the jobs that run on it, and delete its folder."""
    server.keeper.send(signal.SIGTERM)
    if not server.keeper.ended_within(_STOP_S):
        server.keeper.send(signal.SIGKILL)
    # Its keeper has done this, unless it was dead itself.
    server.java.send(signal.SIGKILL)
    server.java.ended_within(_STOP_S)
    shutil.rmtree(server.folder, ignore_errors=True)


# --- leases ---------------------------------------------------------------------------------------------------------


def _leased(place: Place, server: Server) -> Lease | None:
    """Return the first free session; None if all are taken, or the server is no longer the current one."""
    mine: Slot | None = None
    abandoned: list[str] = []
    try:
        for number in range(num_sessions()):
            file = try_lock(Path(server.folder, "sessions", str(number)))
            if file is None:
                continue
            slot = Slot.of(file)
            idle_ms = SYSTEM_CLOCK.now_ms() - os.fstat(file).st_mtime_ns // 1_000_000
            # No process holds the lock, so its job is dead. And a server forgets a session that was long idle.
            if slot.is_busy or (slot.session_id and idle_ms > _FRESH_MS):
                abandoned.append(slot.session_id)
                slot.session_id, slot.is_busy = "", False
                slot.write()
            if mine is None:
                mine = slot
            else:
                os.close(file)
        token = server.token
        is_current = place.is_current(server.folder)
    except FileNotFoundError:
        token, is_current = "", False
    if mine is None:
        return None
    if not is_current:
        # Its keeper is about to end it, or has.
        os.close(mine.file)
        return None
    if not mine.session_id:
        mine.session_id = SYSTEM_CLOCK.unique_id()
        mine.num_sessions += 1
    mine.num_jobs += 1
    mine.is_busy = True
    mine.write()
    return Lease(place=place, server=server, slot=mine, abandoned=tuple(filter(None, abandoned)), token=token)


@contextlib.contextmanager
def offering_credentials(server: Server, connections: Collection[str]) -> Iterator[None]:
    """Let the server's Python workers find an endpoint of this process with the connections' credentials, inside."""
    if not connections:
        yield
        return
    path = Path(server.folder, "credentials", SYSTEM_CLOCK.unique_id())
    with credentials_environment(connections) as endpoint:
        try:
            try:
                _write_private(path, json.dumps([endpoint[URL], endpoint[TOKEN]]).encode())
            except FileNotFoundError as error:
                raise unavailable("it has ended", place=f"localhost:{server.port}") from error
            except OSError as error:
                raise unavailable(os.strerror(error.errno or 0)) from error
            yield
        finally:
            path.unlink(missing_ok=True)


# --- starting -------------------------------------------------------------------------------------------------------

# Kept so that the parent of a keeper that ends while this process lives reaps it.
_keepers: list[subprocess.Popen[bytes]] = []


def _started(
    place: Place, static: Mapping[str, str], environment: Mapping[str, str], log: Log, check: Callable[[], None]
) -> Server:
    """Return the current server. This process starts it unless another one does so first."""
    with locked(place.lock_path, check) as lock, contextlib.ExitStack() as held:
        found = place.current()
        if found is not None:
            return found
        for left in place.folders():
            # Left by a killed keeper. A running one ends after its last job.
            known = Server.in_folder(left)
            if known is None or not known.keeper.is_running:
                _end_folder(left)
        held.enter_context(start_turn()).wait(log, check)
        log_start(static, log, ", the warm one of this machine; later tasks find it")
        folder = Path(f"{place.base}/{place.fingerprint}-{secrets.token_hex(4)}")
        try:
            _make_folder(folder, static)
            output = open(folder / "log", "w+b")  # noqa: SIM115 - closed below, and read when its folder is gone
            keeper = subprocess.Popen(
                [sys.executable, "-m", KEEPER, str(folder), str(lock)],
                # The keeper holds the lock too: it is released when the server is up, whatever becomes of us.
                pass_fds=(lock,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **environment,
                    CREDENTIALS_FOLDER: str(folder / "credentials"),
                    "TMPDIR": str(folder / "tmp"),
                },
                cwd=folder,
                # Airflow kills a task by its process group.
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            place.tidy()
            raise unavailable(os.strerror(error.errno or 0)) from error
        _keepers.append(keeper)
        with output:
            server = _when_up(place, folder, keeper, check)
            if server is None:
                keeper.terminate()
                try:
                    keeper.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    keeper.kill()
                shutil.rmtree(folder, ignore_errors=True)
                place.tidy()
                output.seek(0)
                said = _cause_in(output.read().decode(errors="replace"))
                raise unavailable(f"it did not start: {said}. {start_advice(said)}")
    return server


def _cause_in(output: str) -> str:
    """Return why a JVM did not start: the line that names an exception, else the last line outside a stack trace."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(("\tat ", "\t... "))]
    raised = [line for line in lines if re.search(r"(Exception|Error)\b", line)]
    return (raised[:1] or lines[-1:] or ["it said nothing"])[0][:500].rstrip(".")


def _when_up(place: Place, folder: Path, keeper: subprocess.Popen[bytes], check: Callable[[], None]) -> Server | None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _START_S
    while keeper.poll() is None and SYSTEM_CLOCK.monotonic_s() < deadline_s:
        if place.is_current(str(folder)):
            return Server.in_folder(folder)
        # If it raises, the server still starts, for the next task.
        check()
        SYSTEM_CLOCK.sleep(_POLL_S)
    return None


def _make_folder(folder: Path, static: Mapping[str, str]) -> None:
    folder.mkdir(mode=0o700)
    for name in ("sessions", "credentials", "tmp", "local"):
        (folder / name).mkdir(mode=0o700)
    _write_private(folder / "token", secrets.token_urlsafe(32).encode())
    _write_private(folder / "log4j2.properties", _LOGGED.encode())
    options = (
        f'{JVM_OPTIONS} "-Djava.io.tmpdir={folder}/tmp" "-Dlog4j2.configurationFile=file:{folder}/log4j2.properties"'
    )
    defaults = {
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.python.daemon.module": "airflow_txlog.runners.warm.workers",
    }
    own = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        # The token guards Connect's port alone. Through the others its executor would get artifacts of sessions.
        **closed_settings(folder),
        "spark.sql.artifact.isolation.enabled": "false",
        HAS: executor_zip()[0],
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.extraJavaOptions": f"{options} {static.get('spark.driver.extraJavaOptions', '')}".strip(),
    }
    _write_private(folder / "settings", properties_of({**LOCAL_DEFAULTS, **defaults, **static, **own}))


# Only the line with the port: Spark's log of a failed task quotes values.
_LOGGED = """
rootLogger.level = off
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
logger.server.name = org.apache.spark.sql.connect.service.SparkConnectServer
logger.server.level = info
"""


def _write_private(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "wb") as opened:
        opened.write(content)


def _server_environment() -> dict[str, str]:
    """Return this process's environment without Airflow's secrets and URIs with a password."""
    found = {
        name: value
        for name, value in job_environment().items()
        if not _NOT_FOR_IT.fullmatch(name) and (not _URI_WITH_PASSWORD.search(value) or name.lower().endswith("_proxy"))
    }
    return {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **found}


def _fingerprint(static: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return a hash of everything a server is started with, for the name of its folder."""
    package = Path(airflow_txlog.__file__).parent
    found = [
        [sys.executable, sys.version, getattr(util.find_spec("pyspark"), "origin", None)],
        [_version(name) for name in ("pyspark", "pyspark-client", "pyarrow", "pandas", "fsspec")],
        sorted(static.items()),
        sorted((name, value) for name, value in environment.items() if _DECIDING.fullmatch(name)),
        os.environ.get("AIRFLOW_HOME"),
        sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in package.rglob("*.py")),
    ]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# --- all of them ----------------------------------------------------------------------------------------------------


def stop_all() -> int:
    """End every warm server of this user on this machine, with its jobs. Return how many there were."""
    number = 0
    for place in _all_places():
        for folder in place.folders():
            # A server that ends now deletes its lock, and the last one the base folder.
            with contextlib.suppress(FileNotFoundError), locked(place.lock_path):
                place.withdraw(str(folder))
            # Without the lock, which its keeper takes when it ends.
            number += _end_folder(folder)
        with contextlib.suppress(FileNotFoundError), locked(place.lock_path):
            place.tidy()
    return number


def describe_all() -> list[str]:
    """Return a line for each warm server of this user on this machine."""
    servers = [Server.in_folder(folder) for place in _all_places() for folder in place.folders()]
    return [_line_of(server) for server in servers if server is not None]


def _line_of(server: Server) -> str:
    num_jobs = sum(slot.num_jobs for slot in slots_of(server))
    state = "running" if server.is_running else "dead"
    return f"{Path(server.folder).name}: process {server.java.pid}, {num_jobs} jobs, {state}"


def _all_places() -> list[Place]:
    base = base_folder()
    fingerprints: set[str] = set()
    # The last server may delete it at any time.
    with contextlib.suppress(FileNotFoundError):
        fingerprints = {path.name.partition("-")[0].partition(".")[0] for path in base.iterdir()}
    with contextlib.suppress(OSError):
        base.rmdir()
    return [Place(base, fingerprint) for fingerprint in sorted(fingerprints)]


def _end_folder(folder: Path) -> bool:
    """Delete the folder of a server, and end the server. Return whether there was one."""
    server = Server.in_folder(folder)
    if server is not None:
        stop(server)
    shutil.rmtree(folder, ignore_errors=True)
    return server is not None
