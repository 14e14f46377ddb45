"""What a name costs a local task: resolved for the first time in a fresh process that has imported the package.

`cpu_ms` counts the import of the catalog's client and the resolution, of the CPU; `again_ms` a second name in the same
process. `requests`: those that the catalog got for one name. Each catalog answers from another process at once.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.helpers.paths import ROOT
from tests.helpers.unity import FakeUnity

CATALOGS = ("glue", "unity")

# As a local task has it by then: the operators, the hook and the engine.
_TASK = """
import json, sys, time
from airflow_txlog.operators import DeltaWriteOperator
import airflow_txlog.hooks.followed_table
kind, url = sys.argv[1:]

def resolved():
    began, cpu = time.perf_counter(), time.process_time()
    if kind == "glue":
        from airflow_txlog.catalogs.glue import GlueCatalog
        catalog = GlueCatalog("c", region="eu-west-1", credentials=lambda: ("a", "b", None), endpoint_url=url)
        name = "sales.orders"
    else:
        from airflow_txlog.catalogs.unity import UnityCatalog
        from airflow_txlog.storage.credentials import Credentials, offer
        offer("c", lambda: Credentials(kind="unity", values={"token": ""}))
        catalog, name = UnityCatalog("c", url), "main.sales.orders"
    assert catalog.find(name).uri == "s3://lake/orders"
    return 1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - began)

print(json.dumps([resolved(), resolved()]))
"""


def measure_names(*, rounds: int) -> list[dict[str, Any]]:
    """A line for each catalog; the first round, which compiles the modules, does not count."""
    lines = []
    for kind in CATALOGS:
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
                    "cpu_ms": round(statistics.median(first[0] for first, _ in found), 1),
                    "wall_ms": round(statistics.median(first[1] for first, _ in found), 1),
                    "again_ms": round(statistics.median(again[1] for _, again in found), 1),
                    "requests": len(requests) / 2,
                    "rounds": rounds,
                }
            )
    return lines


@contextmanager
def _serving(kind: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a catalog with one table, and the list of the requests that it gets."""
    if kind == "unity":
        with FakeUnity() as unity:
            unity.add("main.sales.orders", "s3://lake/orders")
            yield unity.url, unity.requests
        return
    requests: list[str] = []
    storage = {"Location": "s3://lake/orders"}
    table = {"DatabaseName": "sales", "Name": "orders", "Parameters": {"table_type": "delta"}}
    answer = json.dumps({"Table": {**table, "StorageDescriptor": storage}}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            requests.append(self.headers["X-Amz-Target"])
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
