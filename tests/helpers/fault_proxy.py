"""A proxy between a client and an S3 server that does one harm to one request, and counts what passes.

The client signs the proxy's own address, which is passed on as it is, so the server's answers are real. What the harm
is done to is chosen by the kind of request: its method and what its key is (`kind_of`).
"""

from __future__ import annotations

import http.client
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

_WHAT = (
    (re.compile(r"_delta_log/\d{20}\.json$"), "commit"),
    (re.compile(r"_delta_log/_last_checkpoint$"), "hint"),
    (re.compile(r"_delta_log/.*\.checkpoint"), "checkpoint"),
    (re.compile(r"_delta_log/\.txlog-probe"), "probe"),
    (re.compile(r"_delta_log/"), "log"),
    (re.compile(r"/txlog-inputs-"), "kept"),
    (re.compile(r"\.bin$"), "vector"),
    (re.compile(r"_change_data/"), "change"),
    (re.compile(r"\.parquet$"), "data"),
)

FAULTS = {
    "dropped before it was done": "the connection ends, and the server has seen nothing",
    "dropped after it was done": "the server has done it, and its answer is lost",
    "done, then 500": "the server has done it, and a gateway says that it failed",
    "busy": "503 SlowDown, and nothing was done",
    "conflict": "409 ConditionalRequestConflict, and nothing was done",
    "half an answer": "the connection ends in the middle of the answer's body",
    "done twice": "the server gets it twice, and the second answer comes back",
    "late": "the server has done it, and the answer comes after the client's patience",
    "denied": "403, and nothing was done",
}
# Not a fault of every store and request: only a body can arrive changed.
CHANGED_BODY = "changed body"
"""The server gets a body with a bit changed."""

_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>busy</Message></Error>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_FAILED = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


def kind_of(method: str, path: str) -> str:
    """`"PUT commit"`, `"GET data"`, `"LIST"`, `"POST delete"`, …"""
    parts = urlsplit(path)
    query = parse_qs(parts.query, keep_blank_values=True)
    if method == "GET" and "list-type" in query:
        return "LIST"
    for name in ("uploads", "uploadId", "delete"):
        if name in query:
            return f"{method} {name}"
    what = next((what for pattern, what in _WHAT if pattern.search(parts.path)), "other")
    return f"{method} {what}"


class FaultProxy:
    """A server on loopback in front of `endpoint`; a context manager."""

    def __init__(self, endpoint: str, *, late_s: float = 1.5) -> None:
        """`late_s`: how long an answer is held back that is late."""
        self._target = urlsplit(endpoint).netloc
        self.late_s = late_s
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._harm: tuple[str, str] | None = None
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._server.serve_forever, name="fault-proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def harm(self, kind: str, fault: str) -> None:
        """Do this harm to the next request of this kind, once."""
        assert fault in FAULTS or fault == CHANGED_BODY
        with self._lock:
            self._harm = (kind, fault)

    @property
    def is_done(self) -> bool:
        """Whether the harm was done."""
        return self._harm is None

    def heal(self) -> None:
        """Harm nothing any more."""
        with self._lock:
            self._harm = None

    def take(self) -> Counter[str]:
        """How many requests of each kind there were since the last call."""
        with self._lock:
            seen, self.seen = self.seen, Counter()
        return seen

    def fault_for(self, kind: str) -> str | None:
        with self._lock:
            self.seen[kind] += 1
            if self._harm is None or self._harm[0] != kind:
                return None
            _, fault = self._harm
            self._harm = None
        return fault

    def forward(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self._target, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    proxy: ClassVar[FaultProxy]
    protocol_version = "HTTP/1.1"
    # Each answer is one write, and not held back for the next.
    wbufsize = -1
    disable_nagle_algorithm = True

    def handle_expect_100(self) -> bool:
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def log_message(self, *args: Any) -> None:
        """Nothing: the proxy's counts are what a test looks at."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.fault_for(kind_of(self.command, self.path))
        refusals = {"busy": (503, _BUSY), "conflict": (409, _CONFLICT), "denied": (403, _DENIED)}
        if fault == "dropped before it was done":
            self._drop()
        elif fault in refusals:
            self._answer(refusals[fault][0], [], refusals[fault][1])
        else:
            if fault == CHANGED_BODY:
                body = bytes([body[0] ^ 1]) + body[1:]
            done = self.proxy.forward(self.command, self.path, self.headers, body)
            if fault == "done twice":
                done = self.proxy.forward(self.command, self.path, self.headers, body)
            if fault == "dropped after it was done":
                self._drop()
            elif fault == "done, then 500":
                self._answer(500, [], _FAILED)
            elif fault == "half an answer":
                self._answer(*done, cut=True)
            else:
                if fault == "late":
                    threading.Event().wait(self.proxy.late_s)
                self._answer(*done)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _drop(self) -> None:
        self.close_connection = True

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False) -> None:
        given = {name.lower(): value for name, value in headers}
        length = given.get("content-length", "0") if self.command == "HEAD" else str(len(body))
        try:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            self.wfile.flush()
        except OSError:  # the client has gone
            cut = True
        if cut:
            self._drop()
