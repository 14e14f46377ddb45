"""Another user of the machine, who tries every protocol on every port that the processes of a job listen on.

`attacked` is called by a test that runs as root. The rest is the attack, which runs as that user with no part of this
package: a client of Spark's transport, and of the others as far as their first answer.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import grpc

# In every /etc/passwd: daemon, and nobody.
USERS = (1, 65534)
CANARY = b"canary-of-a-neighbour"
_ANSWER_S = 5.0
# The kind, flags and stream of a first frame of HTTP/2.
_SETTINGS = b"\x04" + bytes(5)
# Spark's kinds of messages.
_CHUNK, _CHUNK_FOUND, _RPC, _RPC_ANSWER = 0, 1, 3, 4


def attacked(ports: Iterable[int], *, user: int, application: str) -> list[tuple[int, str, bool]]:
    """Return each attempt of this user on each port, by its name, and whether anything was served.

    `application` is the id of Spark's application.
    """
    import pytest

    if os.geteuid():
        pytest.skip("only root becomes another user")
    # It becomes that user when it is loaded, who may not even enter the folder of this Python.
    command = [sys.executable, __file__, str(user), json.dumps([sorted(ports), application])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(port, name, is_served) for port, name, is_served in json.loads(done.stdout)]


def listening(processes: Iterable[int]) -> dict[int, int]:
    """Return the ports that these processes and those below them listen on, each with its process."""
    import psutil

    roots = [psutil.Process(process) for process in processes]
    each = [*roots, *(child for root in roots for child in root.children(recursive=True))]
    return {
        found.laddr.port: process.pid
        for process in each
        for found in process.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
    }


# --- as the other user ----------------------------------------------------------------------------------------------


def _exchanged(port: int, *requests: bytes | Callable[[bytes], bytes | None], is_framed: bool = False) -> bytes:
    """The answer to the last request; each may depend on the answer before. Empty where there is none."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), _ANSWER_S) as connection:
        connection.settimeout(_ANSWER_S)
        for request in requests:
            made = request if isinstance(request, bytes) else request(answer)
            if made is None:
                break
            connection.sendall(made)
            answer = _frame_from(connection) if is_framed else connection.recv(65_536)
    return answer


def _frame_from(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < 8 or len(data) < struct.unpack(">q", data[:8])[0]:
        more = connection.recv(65_536)
        if not more or (len(data) >= 8 and struct.unpack(">q", data[:8])[0] > 1 << 20):
            return b""
        data += more
    return data[8:]


def _frame(kind: int, head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">qb", 9 + len(head) + len(body), kind) + head + body


def _rpc(body: bytes) -> bytes:
    return _frame(_RPC, struct.pack(">qi", 7, len(body)), body)


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def _java_text() -> bytes:
    """A text as Java serializes it."""
    return b"\xac\xed\x00\x05t" + struct.pack(">H", len(CANARY)) + CANARY


def _block(port: int, application: str, number: int) -> bool:
    """Whether the block manager gives a part of a broadcast variable."""

    def chunk(answer: bytes) -> bytes | None:
        return _frame(_CHUNK, answer[14:22] + bytes(4)) if answer[:1] == bytes([_RPC_ANSWER]) else None

    named = struct.pack(">i", 1) + _text(f"broadcast_{number}_piece0")
    opened = _rpc(b"\x00" + _text(application) + _text("driver") + named)
    return _exchanged(port, opened, chunk, is_framed=True)[:1] == bytes([_CHUNK_FOUND])


def _object_in_a_block(port: int, application: str) -> bool:
    """Whether the block manager deserializes the object that should describe a block."""
    described = struct.pack(">i", len(_java_text())) + _java_text()
    block = _text(application) + _text("driver") + _text("broadcast_99_piece0") + described + bytes(4)
    return b"ClassCastException" in _exchanged(port, _rpc(b"\x01" + block), is_framed=True)


def _object_in_a_message(port: int) -> bool:
    """Whether an endpoint of the driver deserializes what it is sent, and answers with it."""
    receiver = b"\x01\x00\x09127.0.0.1" + struct.pack(">i", port) + b"\x00\x11endpoint-verifier"
    return CANARY in _exchanged(port, _rpc(b"\x00" + receiver + _java_text()), is_framed=True)


def _connect(port: int, *metadata: tuple[str, str]) -> bool:
    """Whether Spark Connect looks at a request with this."""
    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary("/spark.connect.SparkConnectService/AnalyzePlan")(
                b"", timeout=_ANSWER_S, metadata=metadata
            )
        except grpc.RpcError as error:
            return error.code() not in refusals  # type: ignore[attr-defined,no-any-return]
    return True


def _attempts(port: int, application: str) -> list[tuple[str, Callable[[], bool]]]:
    """The attempts, each with its name. No answer takes each five seconds, so none waits for another."""
    named: dict[str, Callable[[], bool]] = {
        "broadcast": lambda: _block(port, application, 0),
        "object in a block": lambda: _object_in_a_block(port, application),
        "object in a message": lambda: _object_in_a_message(port),
        "page": lambda: b" 200 " in _exchanged(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        "gateway": lambda: _exchanged(port, b"r\nu\njava\nrj\ne\n").startswith(b"!y"),
        "gateway, guessed": lambda: _exchanged(port, b"A\nguessed\ne\n").startswith(b"!y"),
        "secret, guessed": lambda: _exchanged(port, _text("guessed")).endswith(b"ok"),
        # "err", or the number of a worker, is no data; nor are the settings that HTTP/2 begins with.
        "no secret": lambda: len(found := _exchanged(port, b"")) > 8 and found[3:9] != _SETTINGS,
        "connect": lambda: _connect(port),
    }
    parts = [functools.partial(_block, port, application, number) for number in (1, 2, 3)]
    guessed = functools.partial(_connect, port, ("authorization", "Bearer guessed"))
    return [*named.items(), *(("broadcast", part) for part in parts), ("connect", guessed)]


def _tried(attempt: Callable[[], bool]) -> bool:
    try:
        return attempt()
    except OSError:
        # Closed, reset, or no answer.
        return False


def _main() -> None:
    user, (ports, application) = int(sys.argv[1]), json.loads(sys.argv[2])
    # Nothing listens there. What is loaded at a first call must be loaded by now.
    _tried(lambda: _connect(1))
    _tried(lambda: bool(_exchanged(1, b"")))
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    cases = [(port, *case) for port in ports for case in _attempts(port, application)]
    with ThreadPoolExecutor(len(cases)) as pool:
        served = pool.map(lambda case: _tried(case[2]), cases)
        print(json.dumps([(port, name, is_served) for (port, name, _), is_served in zip(cases, served, strict=True)]))


if __name__ == "__main__":
    _main()
