"""What a name costs a local task: resolved for the first time in a fresh process that has imported the package.

`cpu_ms` counts the import of the catalog's client and the resolution, of the CPU; `again_ms` a second name in the same
process. `requests`: those that the catalog got for one name. Glue and Unity answer from another process at once; the
metastore is a real one, which answers more slowly. Without Java there is no line for it.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.helpers.catalogs import HiveBackend, Record
from tests.helpers.http_answers import Answering, serving
from tests.helpers.metastore import running
from tests.helpers.paths import ROOT
from tests.helpers.unity import FakeUnity

CATALOGS = ("glue", "hive", "unity")

# As a local task has it by then: the operators, the hook and the engine.
_TASK = """
import json, sys, time
from airflow_txlog.operators import DeltaWriteOperator
import airflow_txlog.hooks.followed_table
kind, url = sys.argv[1:]
connections = []
sys.addaudithook(lambda event, given: connections.append(event) if event == "socket.connect" else None)

def resolved():
    began, cpu = time.perf_counter(), time.process_time()
    name = "sales.orders"
    if kind == "glue":
        from airflow_txlog.catalogs.glue import GlueCatalog
        catalog = GlueCatalog("c", region="eu-west-1", credentials=lambda: ("a", "b", None), endpoint_url=url)
    elif kind == "hive":
        from airflow_txlog.catalogs.hive import HiveCatalog
        host, _, port = url.rpartition(":")
        catalog = HiveCatalog("c", [(host, int(port))])
    else:
        from airflow_txlog.catalogs.unity import UnityCatalog
        from airflow_txlog.storage.credentials import Credentials, offer
        offer("c", lambda: Credentials(kind="unity", values={"token": ""}))
        catalog, name = UnityCatalog("c", url), "main.sales.orders"
    assert catalog.find(name).uri == "s3://lake/orders"
    return 1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - began)

print(json.dumps([resolved(), resolved(), len(connections)]))
"""


def measure_names(*, rounds: int) -> list[dict[str, Any]]:
    """A line for each catalog; the first round, which compiles the modules, does not count."""
    lines = []
    for kind in CATALOGS:
        if kind == "hive" and shutil.which("java") is None:
            continue
        with _serving(kind) as (url, requests):
            found = []
            for number in range(rounds + 1):
                requests.clear()
                command = [sys.executable, "-c", _TASK, kind, url]
                done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
                if number:
                    found.append(json.loads(done.stdout.splitlines()[-1]))
            lines.append(
                {
                    "case": "names",
                    "catalog": kind,
                    "cpu_ms": round(statistics.median(first[0] for first, _, _ in found), 1),
                    "wall_ms": round(statistics.median(first[1] for first, _, _ in found), 1),
                    "again_ms": round(statistics.median(again[1] for _, again, _ in found), 1),
                    # A metastore is asked by a new connection each time.
                    "requests": (found[-1][2] if kind == "hive" else len(requests)) / 2,
                    "rounds": rounds,
                }
            )
    return lines


@contextmanager
def _serving(kind: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a catalog with one table, and the list of the requests that it gets (of HTTP)."""
    requests: list[str] = []
    if kind == "unity":
        with FakeUnity() as unity:
            unity.add("main.sales.orders", "s3://lake/orders")
            yield unity.url, unity.requests
        return
    if kind == "hive":
        with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as metastore:
            backend = HiveBackend(metastore, folder)
            backend.create_database("sales")
            # As Spark writes it: this metastore has no client of S3, and would look at the location.
            place = {"path": "s3a://lake/orders"}
            backend.put(Record(name="sales.orders", parameters={"table_type": "delta"}, serde_parameters=place))
            yield f"{metastore.host}:{metastore.port}", requests
        return
    table = {"DatabaseName": "sales", "Name": "orders", "Parameters": {"table_type": "delta"}}
    answer = json.dumps({"Table": {**table, "StorageDescriptor": {"Location": "s3://lake/orders"}}}).encode()

    class Handler(Answering):
        def do_POST(self) -> None:
            self.body()
            requests.append(self.headers["X-Amz-Target"])
            self.answer(200, answer)

    with serving(Handler) as url:
        yield url, requests
