"""The sandbox as a process of its own, and how a CLI or a test starts one.

The child prints one line of JSON, `{"url": …}`, when it answers. It leaves when its standard input closes,
which the system does for a parent that dies, however it dies.
"""

import argparse
import asyncio
import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Self

import psycopg
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentic_loop.sandbox.app import create_app
from agentic_loop.sandbox.faults import CONNECTION_EXTENSION

HOST = "127.0.0.1"
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_GRACEFUL_SHUTDOWN_S = 1
_MAX_READY_LINE_BYTES = 4096
_CONNECT_TIMEOUT_S = 10


class SandboxStartError(RuntimeError):
    """The sandbox process did not come up; its own complaint is on standard error."""


class SandboxProcess:
    """A running sandbox. Use it as a context manager, or call `stop`; it is stopped at exit in any case."""

    def __init__(self, url: str, child: "subprocess.Popen[bytes]") -> None:
        self._url = url
        self._child = child
        atexit.register(self.stop)

    @property
    def url(self) -> str:
        """Where it answers, such as `http://127.0.0.1:40123`."""
        return self._url

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._child.poll() is None

    def stop(self) -> None:
        """End the process and wait until it is gone; does nothing the second time."""
        atexit.unregister(self.stop)
        _end(self._child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def start_sandbox_process(
    database_url: str, port: int = 0, *, ready_timeout_s: float = READY_TIMEOUT_S
) -> SandboxProcess:
    """Start a sandbox on this machine and wait until it answers. Blocks; typically one to two seconds.

    Args:
        database_url: where it keeps its tables, see `create_app`.
        port: the port on 127.0.0.1, or 0 for any free one.
        ready_timeout_s: how long to wait for it.

    Raises:
        SandboxStartError: it ended or did not answer in time; it does not run on.
    """
    command = [sys.executable, "-m", "agentic_loop.sandbox", "--port", str(port), "--exit-with-parent"]
    # The URL may hold a password, which would show in the list of processes as an argument.
    environment = {**os.environ, "AGENTIC_LOOP_SANDBOX_DATABASE_URL": database_url}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        url = _await_url(child, ready_timeout_s)
    except BaseException as error:  # an interrupt too must leave nothing running
        child.kill()
        _end(child)
        if isinstance(error, TimeoutError | ValueError):
            message = f"The sandbox did not start: {error}. Its complaint is on standard error."
            raise SandboxStartError(message) from error
        raise
    return SandboxProcess(url, child)


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m agentic_loop.sandbox`: serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m agentic_loop.sandbox", description="Run the sandbox services on 127.0.0.1."
    )
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes any free port")
    parser.add_argument(
        "--database-url",
        default=os.environ.get("AGENTIC_LOOP_SANDBOX_DATABASE_URL"),
        help="a Postgres database; default: $AGENTIC_LOOP_SANDBOX_DATABASE_URL",
    )
    parser.add_argument("--exit-with-parent", action="store_true", help="leave when standard input closes")
    chosen = parser.parse_args(arguments)
    if not chosen.database_url:
        parser.error("give --database-url, or set AGENTIC_LOOP_SANDBOX_DATABASE_URL")
    _serve(str(chosen.database_url), int(chosen.port), exit_with_parent=bool(chosen.exit_with_parent))


class DroppableProtocol(H11Protocol):
    """Uvicorn's HTTP protocol, which also hands the connection to the app, so that a fault can drop it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows it
        """Remember the connection and put it into the scope of its requests."""
        super().connection_made(transport)
        self.app = _with_connection(self.app, transport)


def _with_connection(app: ASGIApp, transport: asyncio.Transport) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[CONNECTION_EXTENSION] = transport.abort
        await app(scope, receive, send)

    return call


class _AnnouncedServer(uvicorn.Server):
    """A server that prints its URL when it answers."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(json.dumps({"url": self._url}) + "\n")
            sys.stdout.flush()


def _serve(database_url: str, port: int, *, exit_with_parent: bool) -> None:
    try:
        # The pool would try again and again; this says at once what is wrong.
        psycopg.connect(database_url, connect_timeout=_CONNECT_TIMEOUT_S).close()
    except psycopg.Error as error:
        sys.exit(f"Cannot reach the database of the sandbox; check --database-url: {error}")
    listener = socket.create_server((HOST, port))
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        create_app(database_url),
        http=DroppableProtocol,
        ws="none",
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=_GRACEFUL_SHUTDOWN_S,
    )
    server = _AnnouncedServer(config, url)
    if exit_with_parent:
        threading.Thread(target=_leave_with_parent, args=(server,), daemon=True).start()
    server.run(sockets=[listener])
    if not server.started:
        sys.exit(1)


def _leave_with_parent(server: uvicorn.Server) -> None:
    # Not sys.stdin.read: a thread that holds its lock makes the interpreter abort at exit.
    while os.read(0, 4096):
        pass
    server.should_exit = True


def _await_url(child: "subprocess.Popen[bytes]", timeout_s: float) -> str:
    if child.stdout is None:
        raise TypeError("the child was started without a pipe for its output")
    deadline = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0 or not select.select([child.stdout], [], [], remaining_s)[0]:
            raise TimeoutError("no answer in time")
        chunk = os.read(child.stdout.fileno(), _MAX_READY_LINE_BYTES)
        line += chunk
        if not chunk or len(line) > _MAX_READY_LINE_BYTES:
            raise ValueError("it ended, or printed something else than its URL")
    return str(json.loads(line)["url"])


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.stdin is not None:
        child.stdin.close()
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()
