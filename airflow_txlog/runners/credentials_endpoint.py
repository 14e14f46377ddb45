"""An endpoint on loopback that hands the credentials of a connection to the processes of a job.

It reads the connections offered to this process (`storage.credentials.offer`) and does not know Airflow. Invariants:
only requests with the token are answered, only for a connection of a running job, and nothing is logged. URL and token
are only in the environment of those processes, which no other user can read.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socketserver
import threading
from collections.abc import Collection, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from airflow_txlog.errors import CredentialsUnavailable
from airflow_txlog.storage.credentials import TOKEN, URL, body_of, kept, path_of

_TOKEN_BYTES = 32


class CredentialsEndpoint:
    """Answers for the connections of the running jobs, until it is closed."""

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._connections: list[str] = []
        handler = type("Handler", (_Handler,), {"token": self._token, "connections": self._connections})
        self._server = _Server(("127.0.0.1", 0), handler)
        # A short poll interval, because closing waits for one.
        serve = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="txlog-credentials", daemon=True)
        serve.start()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables for the environment of a job's processes."""
        return {URL: self.url, TOKEN: self._token}

    @contextlib.contextmanager
    def answering(self, *connections: str) -> Iterator[None]:
        """Hand out the connections' credentials inside."""
        self._connections.extend(connections)
        try:
            yield
        finally:
            for connection in connections:
                self._connections.remove(connection)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def credentials_environment(connections: Collection[str]) -> Iterator[dict[str, str]]:
    """Yield the environment with which a job's process gets the connections' credentials; empty without any."""
    if not connections:
        yield {}
        return
    endpoint = CredentialsEndpoint()
    try:
        with endpoint.answering(*connections):
            yield endpoint.environment
    finally:
        endpoint.close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects: the task's log gets no traceback."""


class _Handler(BaseHTTPRequestHandler):
    token: str
    connections: list[str]
    timeout = 10

    def do_GET(self) -> None:
        shown = self.headers.get("Authorization", "")
        if not hmac.compare_digest(shown.encode(), self.token.encode()):
            self._answer(HTTPStatus.FORBIDDEN)
            return
        connection = next((each for each in list(self.connections) if path_of(each) == self.path), None)
        if connection is None:
            self._answer(HTTPStatus.NOT_FOUND)
            return
        try:
            body = body_of(kept(connection).current())
        except CredentialsUnavailable as error:
            found = {"error": error.message, "retryable": error.retryable}
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, json.dumps(found).encode())
            return
        self._answer(HTTPStatus.OK, body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        # Any other method, or an invalid request.
        self._answer(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
