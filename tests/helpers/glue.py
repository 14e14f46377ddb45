"""AWS Glue as moto plays it, on loopback, in a process and an environment of its own (`tools/ensure_moto.sh`).

Of the service it leaves out: small letters of names, the check of `VersionId`, permissions.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from airflow_txlog.catalogs.glue import GlueCatalog
from tests.helpers.paths import ROOT

REGION = "eu-central-1"
KEYS = ("AKIAtest", "secret-of-glue", None)

_PYTHON = ROOT / ".venv" / "moto" / "bin" / "python"
# It ends when its input does, and so with the tests.
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Yield the endpoint of a server. Skips the test where moto was not installed."""
    if not list(_PYTHON.parents[1].glob(".complete-*")):
        pytest.skip("moto is not installed: run tools/ensure_moto.sh")
    # Its standard error has a line for each request.
    command = [str(_PYTHON), "-c", _SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()


def catalog(endpoint: str) -> GlueCatalog:
    """A catalog of the server."""
    return GlueCatalog("glue_test", region=REGION, endpoint_url=endpoint, credentials=lambda: KEYS)
