"""A relay between a client and an S3 server: it adds a delay to each request, and counts the requests by their kind.

It runs in a process of its own, so that it takes no time of the sides. A client signs the relay's own address, which is
passed on as it is. `python -m tests.benchmarks.relay ENDPOINT SECONDS` prints the port. `GET /taken` answers with the
counts since the last such request.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import subprocess
import sys
from collections import Counter
from types import TracebackType
from urllib.parse import urlsplit

from tests.benchmarks.timing import NOT_COUNTED
from tests.helpers.fault_proxy import kind_of

_MOST_HEAD_BYTES = 1024 * 1024
_AT_ONCE = 256 * 1024
_TAKEN = "/taken"


class Relay:
    """The relay in a process that ends with the block; `delay_s` is added to each request."""

    def __init__(self, endpoint: str, delay_s: float) -> None:
        self.delay_s = delay_s
        self._command = [sys.executable, "-m", "tests.benchmarks.relay", endpoint, str(delay_s)]

    def __enter__(self) -> Relay:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        NOT_COUNTED.add(self._process.pid)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        self.endpoint = f"http://127.0.0.1:{self._port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        NOT_COUNTED.discard(self._process.pid)
        self._process.terminate()
        self._process.communicate()

    def take(self) -> Counter[str]:
        """Return how many requests of each kind there were since the last call."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", _TAKEN)
            return Counter(json.loads(connection.getresponse().read()))
        finally:
            connection.close()


class _Server:
    def __init__(self, endpoint: str, delay_s: float) -> None:
        target = urlsplit(endpoint)
        self._host, self._port, self._delay_s = target.hostname, target.port or 80, delay_s
        self._seen: Counter[str] = Counter()

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=_MOST_HEAD_BYTES)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _connected(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """Pass on the requests of one connection, one after the other, and all answers as they come."""
        upstream, requests = await asyncio.open_connection(self._host, self._port, limit=_MOST_HEAD_BYTES)
        back = asyncio.create_task(_passed(upstream, answers))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await client.readuntil(b"\r\n\r\n")
                method, path, *_ = head.split(b" ", 2)
                if path == _TAKEN.encode():
                    taken, self._seen = json.dumps(self._seen).encode(), Counter()
                    answers.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(taken) + taken)
                    await answers.drain()
                    break
                self._seen[kind_of(method.decode(), path.decode())] += 1
                await asyncio.sleep(self._delay_s)
                requests.write(head)
                left = _length(head)
                while left:
                    data = await client.read(min(left, _AT_ONCE))
                    if not data:
                        raise asyncio.IncompleteReadError(b"", left)
                    left -= len(data)
                    requests.write(data)
                    await requests.drain()
        back.cancel()
        for each in (requests, answers):
            each.close()


async def _passed(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_AT_ONCE):
            sink.write(data)
            await sink.drain()
        # The server has ended the connection, so it answers no further request.
        sink.close()


def _length(head: bytes) -> int:
    """Return the length of the body of a request with this head."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
        assert name.strip().lower() != b"transfer-encoding", "the relay does not read chunked bodies"
    return 0


if __name__ == "__main__":
    asyncio.run(_Server(sys.argv[1], float(sys.argv[2])).serve())
