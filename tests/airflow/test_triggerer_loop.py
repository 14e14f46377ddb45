"""Nothing of ours blocks a triggerer's event loop: it imports little there, and asks tables and clusters in threads.

Each test looks at what is done in the loop's thread, not at how long it takes, which depends on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.airflow

# Airflow imports the module of a trigger in its loop. These are its own, and small.
IMPORTED = """
import json, sys
import airflow.jobs.triggerer_job_runner
from airflow.triggers import shared_stream
before = set(sys.modules)
import airflow_txlog.triggers.submitted_job, airflow_txlog.triggers.table_version
print(json.dumps(sorted(set(sys.modules) - before)))
"""
OURS = {
    "clock",
    "errors",
    "errors.base",
    "hooks",
    "hooks.waiting",
    "locations",
    "policies",
    "policies.rings",
    "triggers",
    "triggers.submitted_job",
    "triggers.table_version",
}

# Runs triggers from their first look on, and lists what our code does in the loop's thread that may take time: Python
# reports each of these to an audit hook.
RUN = """
import asyncio, json, sys, threading
from airflow.jobs.triggerer_job_runner import TriggerRunner

BLOCKING = {
    "glob.glob", "import", "open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.scandir", "socket.connect",
    "socket.getaddrinfo", "subprocess.Popen", "time.sleep",
}
table, counts = sys.argv[1], {"in the loop": 0, "in threads": 0}
found = []

def ours(frame):
    while frame is not None:
        if "/airflow_txlog/" in frame.f_code.co_filename:
            return f"{frame.f_globals['__name__']}:{frame.f_lineno}"
        frame = frame.f_back
    return None

def heard(event, arguments):
    if event in BLOCKING and (place := ours(sys._getframe())) is not None:
        is_loop = threading.current_thread() is threading.main_thread()
        counts["in the loop" if is_loop else "in threads"] += 1
        if is_loop:
            found.append(f"{event} {arguments[:1]} at {place}")

def grow():
    from airflow_txlog.engine import Table
    from airflow_txlog.storage import PLAIN

    tx = Table.at(table, PLAIN).begin()
    tx.add(path="more", partition_values={}, size=1)
    tx.commit("WRITE")

async def main():
    runner = TriggerRunner()
    watch = "airflow_txlog.triggers.table_version.TableVersionTrigger"
    wanted = [
        (watch, {"table_uri": table, "newer_than": 0, "poke_interval": 0.1, "once": True}),
        (watch, {"table_uri": table, "newer_than": 0, "poke_interval": 0.1}),
        (
            "airflow_txlog.triggers.submitted_job.SubmittedJobTrigger",
            {"spark_conn_id": "no_cluster", "name": "x", "poll_s": 0.001},
        ),
    ]
    triggers = [runner.get_trigger_by_classpath(path)(**arguments) for path, arguments in wanted]
    sys.addaudithook(heard)
    for number, trigger in enumerate(triggers):
        trigger.trigger_id = number
        runner.triggers[number] = {"name": str(number), "events": 0}
    tasks = [asyncio.create_task(runner.run_trigger(n, trigger)) for n, trigger in enumerate(triggers)]
    async with asyncio.timeout(240):
        while not counts["in threads"]:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(grow)
        fired = set()
        while fired != {0, 1, 2}:
            await asyncio.sleep(0.01)
            fired |= {event[0] for event in runner.events}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

asyncio.run(main())
print(json.dumps([counts["in threads"] > 0, found]))
"""


def output_of(code: str, *arguments: str) -> Any:
    """What the last line of a process of its own says."""
    environment = {**os.environ, "AIRFLOW_CONN_NO_CLUSTER": json.dumps({"conn_type": "spark", "host": "local[1]"})}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_module_of_a_trigger_imports_little() -> None:
    """Neither the engine nor the records of operations, and of other packages what Airflow has anyway."""
    imported = output_of(IMPORTED)
    ours = {name.partition(".")[2] for name in imported if name.startswith("airflow_txlog.")}
    assert ours == OURS
    assert {name.partition(".")[0] for name in imported} <= {"airflow", "airflow_txlog", "asgiref"}


def test_triggers_open_and_import_and_ask_in_threads_alone(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    has_worked, in_the_loop = output_of(RUN, table.uri)
    assert has_worked
    assert in_the_loop == []
