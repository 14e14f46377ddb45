"""`python -m airflow_txlog.window --table URI`: the pages of tables on this machine's own address, without Airflow."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import uvicorn

from airflow_txlog.window.app import Window
from airflow_txlog.window.site import StandAlone


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the window until the process is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m airflow_txlog.window", description=__doc__)
    parser.add_argument("--table", action="append", required=True, metavar="URI", help="a Delta table; may be repeated")
    parser.add_argument("--port", type=int, default=8391, help="the port on 127.0.0.1 (default: 8391; 0: a free one)")
    parser.add_argument(
        "--storage-options",
        type=_options,
        default={},
        metavar="JSON",
        help="options of the tables' store (docs/stores.md)",
    )
    given = parser.parse_args(arguments)
    window = Window(StandAlone(given.table, given.storage_options))
    config = uvicorn.Config(window, host="127.0.0.1", port=given.port, log_level="warning", lifespan="off", ws="none")
    server = _Server(config)
    server.run()


class _Server(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for each in self.servers:
            port = each.sockets[0].getsockname()[1]
            print(f"The window is open at http://127.0.0.1:{port}/ (stop it with Ctrl+C)", flush=True)


def _options(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("a JSON object")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
