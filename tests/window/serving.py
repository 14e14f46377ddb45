"""A window without Airflow on a port of this machine, for a browser."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from airflow_txlog.window.app import Window

_GIVE_UP_S = 30.0


@contextmanager
def alone(window: Window, port: int = 0) -> Iterator[int]:
    """Yield the port of a window. `port`: that one, if it is given."""
    if not port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    config = uvicorn.Config(window, host="127.0.0.1", port=port, log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + _GIVE_UP_S
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    try:
        yield port
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)
