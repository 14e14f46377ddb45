"""A whole Airflow: PostgreSQL, scheduler with a LocalExecutor, dag processor and API server, as processes of their own.

Tests speak with it as a user does, by its REST API.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.airflow.scheduled.postgres import Postgres, ends_with_parent
from tests.helpers.depth import WHOLE
from tests.helpers.java import JAVA_OPTIONS
from tests.helpers.paths import ROOT

HERE = Path(__file__).resolve().parent
COMPONENTS = {
    "api-server": ["api-server", "--workers", "1"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
}
# Started by the tests that need it, beside these.
TRIGGERER = ["triggerer", "--skip-serve-logs"]
# What is waited for takes seconds. A machine may be busy: this is when a test gives up.
GIVE_UP_S = 3000
AT_ONCE = 8
ENDED = ("success", "failed")
HISTORY_URL = "https://lake.example.com/history?table={table}&version={version}"


class Deployment:
    """`start`, use, `stop`. Its folder holds all that it writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postgres = Postgres()
        # Read by DAGs, and no part of what the deployment writes.
        self.person = self.postgres.folder / "outside" / "person"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        for name in ("dags", "tmp", "lake", "components"):
            (folder / name).mkdir(parents=True)
        (folder / "dags" / "tests").symlink_to(HERE / "dags")
        (folder / "dags" / "increments.py").symlink_to(ROOT / "example_dags" / "increments.py")

    def environment(self) -> dict[str, str]:
        """Of all processes: nothing of another Airflow, and the pauses."""
        other = ("AIRFLOW_", "TXLOG_", "PYTHON")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(other)}
        paths = [str(HERE / "pauses"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        settings = {
            "CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": str(AT_ONCE),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.address}/execution/",
            "CORE__FERNET_KEY": "A" * 43 + "=",
            "DATABASE__SQL_ALCHEMY_CONN": self.postgres.uri,
            "DATABASE__SQL_ALCHEMY_CONN_ASYNC": self.postgres.uri,
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self._port),
            "API__BASE_URL": self.address,
            "API__MAXIMUM_PAGE_LIMIT": "1000",
            "API__SECRET_KEY": "of the tests",
            "API_AUTH__JWT_SECRET": "of the tests, and long enough for its algorithm: 0123456789 0123456789 0123456789",
            # Each parses every file anew, seconds of a core. Only tests by hand edit DAGs.
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5" if WHOLE else "60",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            # On a busy machine nothing is given up by the clock but what a test makes hang, which is by hand.
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "120" if WHOLE else "600",
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "600",
            "CORE__DAGBAG_IMPORT_TIMEOUT": "600",
            "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "600",
            "WORKERS__EXECUTION_API_TIMEOUT": "60",
            "TXLOG__HISTORY_URL": HISTORY_URL,
        }
        return {
            **inherited,
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            "AIRFLOW_HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONWARNINGS": "ignore",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
            "TMPDIR": str(self.folder / "tmp"),
            # Of the drivers of `submit` and of executors, whose JVMs heed no TMPDIR.
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
            "TXLOG_WARM_FOLDER": str(self.folder / "tmp" / "warm"),
            "TXLOG_TEST_PERSON": str(self.person),
            "TXLOG_TEST_SETTINGS": str(self.folder / "settings.json"),
            "TXLOG_DEMO_FOLDER": str(self.folder / "lake"),
        }

    # --- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._write({"retries": 2})
        self.postgres.start()
        self.person.parent.mkdir()
        self.person.write_text("")
        migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
        done = subprocess.run(migrate, env=self.environment(), cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-5000:]
        for name, arguments in COMPONENTS.items():
            self._run(name, arguments)
        self.until(self._is_ready, "Airflow is up")

    def _run(self, name: str, arguments: list[str]) -> None:
        with (self.folder / "components" / f"{name}.log").open("wb") as out:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "airflow", *arguments],
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=ends_with_parent,
            )

    def start_triggerer(self) -> None:
        """Start one, with a log of its own."""
        self._run("triggerer", TRIGGERER)

    def end_triggerer(self, how: signal.Signals) -> None:
        """Send the signal to all its processes, if there is one, and wait until they have ended."""
        process = self._processes.pop("triggerer", None)
        if process is not None:
            os.killpg(process.pid, how)
            process.wait(60)

    def cpu_of_triggerer_s(self) -> float:
        """Seconds of CPU that all its processes have used."""
        session = str(self._processes["triggerer"].pid)
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12]) if fields[3] == session else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def _is_ready(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name}: {self.log_of(name)[-5000:]}"
        try:
            if not self._token:
                self._token = self._send("GET", "/auth/token")["access_token"]
            health = self.api("GET", "monitor/health")
            return health["scheduler"]["status"] == "healthy" and bool(self.api("GET", "dags/works"))
        except OSError:
            return False

    def log_of(self, component: str) -> str:
        return (self.folder / "components" / f"{component}.log").read_text(errors="replace")

    def stop(self) -> None:
        """End every process, whatever state it is in, and however the wait for them ends."""
        try:
            for process in self._processes.values():
                process.terminate()
            deadline = time.monotonic() + 20
            while any(process.poll() is None for process in self._processes.values()) and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            # What is left of them and of their tasks, the warm server's too: each has the folder in its environment.
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.postgres.stop()
        for process in self._processes.values():
            process.wait(10)

    def processes(self) -> list[int]:
        """The living processes of the deployment, PostgreSQL's not among them."""
        home = f"AIRFLOW_HOME={self.folder}\0".encode()
        tmp = f"TMPDIR={self.folder}/tmp".encode()
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                content = environ.read_bytes() + b"\0"
                if home in content or tmp in content:
                    found.append(int(environ.parent.name))
        return found

    def until(self, reached: Callable[[], Any], what: str) -> Any:
        """What `reached` returns once that is true."""
        deadline = time.monotonic() + GIVE_UP_S
        while not (found := reached()):
            assert time.monotonic() < deadline, f"not within {GIVE_UP_S} s: {what}"
            time.sleep(0.5)
        return found

    # --- its REST API -----------------------------------------------------------------------------------------------

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=600) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of `/api/v2/…`. Raises urllib's HTTPError with the body in its text."""
        try:
            return self._send(method, f"/api/v2/{path}", body)
        except urllib.error.HTTPError as error:
            logged = self.log_of("api-server")[-5000:] if error.code >= 500 else ""
            error.msg = f"{error.msg}: {error.read().decode(errors='replace')[:2000]} {logged}"
            raise

    def edit_dags(self, *, retries: int) -> None:
        """Change the `retries` that the DAG files read, and wait until Airflow knows the DAGs as edited."""
        self._write({"retries": retries})
        task = "dags/warm_works/tasks/append"
        self.until(lambda: self.api("GET", task)["retries"] == retries, "the edited DAGs are known")

    def _write(self, settings: dict[str, Any]) -> None:
        making = self.folder / "settings.new"
        making.write_text(json.dumps(settings))
        making.rename(self.folder / "settings.json")

    def trigger(self, dag_id: str, run_id: str, **conf: Any) -> None:
        self.api("POST", f"dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": conf})

    def runs(self, dag_id: str) -> dict[str, str]:
        """The states of a DAG's runs."""
        found = self.api("GET", f"dags/{dag_id}/dagRuns?limit=1000")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def tasks(self, dag_id: str, run_id: str = "~") -> list[dict[str, Any]]:
        path = f"dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}/taskInstances?limit=1000"
        found: list[dict[str, Any]] = self.api("GET", path)["task_instances"]
        return found

    def task(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """The one task of the run."""
        (found,) = self.tasks(dag_id, run_id)
        return found

    def wait(self, dag_id: str, run_ids: Iterable[str]) -> dict[str, str]:
        """The states of these runs once all have ended."""
        wanted = list(run_ids)

        def ended() -> dict[str, str] | None:
            states = self.runs(dag_id)
            chosen = {run_id: states[run_id] for run_id in wanted if run_id in states}
            return chosen if len(chosen) == len(wanted) and all(s in ENDED for s in chosen.values()) else None

        try:
            found: dict[str, str] = self.until(ended, f"{dag_id}: {wanted} have ended")
        except AssertionError as late:
            raise AssertionError(f"{late}; {[(t['dag_run_id'], t['state']) for t in self.tasks(dag_id)]}") from None
        return found

    def clear(self, dag_id: str, run_id: str, task_id: str, map_index: int | None = None) -> None:
        """Clear the task, or one of its mapped tasks."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id if map_index is None else [task_id, map_index]],
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.api("POST", f"dags/{dag_id}/clearTaskInstances", body)

    def task_log(self, dag_id: str, run_id: str, try_number: int, task_id: str | None = None) -> str:
        """The log of one try, as it lies on the disk."""
        return "\n".join(path.read_text(errors="replace") for path in self._logs(dag_id, run_id, try_number, task_id))

    def _logs(self, dag_id: str, run_id: str, try_number: int, task_id: str | None) -> list[Path]:
        run = self.folder / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}"
        return sorted(run.glob(f"task_id={task_id or '*'}/**/attempt={try_number}.log"))

    def status(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
        """What the task's last try reported in its XCom."""
        run = urllib.parse.quote(run_id)
        path = f"dags/{dag_id}/dagRuns/{run}/taskInstances/{task_id}/xcomEntries/return_value"
        return str(self.api("GET", f"{path}?deserialize=true&map_index={map_index}")["value"]["status"])

    def test_dag(self, dag_id: str, logical_date: str, **conf: Any) -> None:
        """`airflow dags test`, which runs the DAG's tasks by itself, beside the scheduler."""
        command = [sys.executable, "-m", "airflow", "dags", "test", dag_id, logical_date, "--conf", json.dumps(conf)]
        done = subprocess.run(command, env=self.environment(), cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
