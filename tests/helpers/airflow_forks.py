"""Run each `airflow` command as a fork of one process that has loaded Airflow and made its API.

Starting Airflow and building the API of its tasks takes most of the ten seconds of `airflow dags test`. `command` puts
a program of that name into a folder for PATH. The first command starts that process, with the environment it
has; later commands must have the same AIRFLOW_HOME. Tasks in a fork cannot read connections from the database: tests
that need them start Airflow itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

# Of the messages between a start and the process: as many bytes as its environment may have.
_MOST = 1 << 20
_IDLE_S = 600.0


@contextlib.contextmanager
def command(folder: Path) -> Iterator[Path]:
    """A folder in this one with the command `airflow`; its process ends with the block."""
    programs, address = folder / "programs", folder / "airflow.socket"
    programs.mkdir()
    program = programs / "airflow"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SP "{__file__}" "{address}" "$@"\n')
    program.chmod(0o755)
    try:
        yield programs
    finally:
        with contextlib.suppress(FileNotFoundError), _connected(str(address)) as end:
            end.sendall(b"end")


@contextlib.contextmanager
def _connected(address: str) -> Iterator[socket.socket]:
    """Raises FileNotFoundError where there is no process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        yield connection


def _ask(address: str, arguments: list[str]) -> int:
    """Run the command in a fork; its exit code."""
    if not os.path.exists(address):
        with open(f"{address}.log", "wb") as log:
            serve = [sys.executable, "-P", __file__, "--serve", address]
            server = subprocess.Popen(serve, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        while not os.path.exists(address):
            if server.poll() is not None:
                raise SystemExit(f"Airflow was not loaded: {Path(f'{address}.log').read_text()[-3000:]}")
            time.sleep(0.05)
    request = json.dumps({"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    with _connected(address) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        socket.send_fds(connection, [request], [0, 1, 2])
        return int(connection.recv(16) or b"1")


def _load() -> None:
    """What a start of Airflow imports and what its tasks' API is made of."""
    import airflow.__main__
    import airflow.cli.cli_parser
    import airflow.cli.commands.dag_command  # noqa: F401
    import alembic.context  # noqa: F401
    import httpx
    import pyarrow.dataset  # noqa: F401
    import sqlalchemy.orm
    from airflow.sdk.execution_time import supervisor, task_runner  # noqa: F401

    import airflow_txlog.jobs.run
    import airflow_txlog.operators  # noqa: F401

    async def ask_for_nothing() -> int:
        # Airflow keeps the app for the process.
        transport = httpx.ASGITransport(supervisor.in_process_api_server().app)
        async with httpx.AsyncClient(transport=transport, base_url="http://nothing") as client:
            return (await client.get("/")).status_code

    # With the first request, the app makes the routes of each version of the API: three seconds.
    assert asyncio.run(ask_for_nothing()) == 404
    sqlalchemy.orm.configure_mappers()


def _serve(address: str) -> None:
    gc.disable()
    _load()
    # A fork would look for garbage in all that is loaded.
    gc.freeze()
    gc.enable()
    home = os.environ["AIRFLOW_HOME"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"{address}.new")
        listening.listen()
        # Where a test was killed, nobody ends it.
        listening.settimeout(_IDLE_S)
        os.rename(f"{address}.new", address)
        while True:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                return
            with connection:
                message, descriptors, _, _ = socket.recv_fds(connection, _MOST, 3)
                if message == b"end":
                    return
                request = json.loads(message)
                assert request["environment"]["AIRFLOW_HOME"] == home
                child = os.fork()
                if not child:
                    listening.close()
                    _run(request, descriptors)
                for each in descriptors:
                    os.close(each)
                _, status = os.waitpid(child, 0)
                connection.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())


def _run(request: dict[str, object], descriptors: list[int]) -> None:
    """Be the command, in the fork."""
    code = 1
    try:
        for number, each in enumerate(descriptors):
            os.dup2(each, number)
        os.chdir(str(request["folder"]))
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]
        sys.argv = ["airflow", *request["arguments"]]  # type: ignore[misc]
        import airflow.__main__

        airflow.__main__.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(sys.argv[2])
    else:
        sys.exit(_ask(sys.argv[1], sys.argv[2:]))
