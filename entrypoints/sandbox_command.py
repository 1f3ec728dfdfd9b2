"""The sandbox in the foreground: its services on a port of this machine, until somebody stops them."""

import socket
import time

import httpx2

from agentic_loop.graph.errors import Misuse, Outage
from agentic_loop.graph.store.embedded import create_database, database_url
from agentic_loop.sandbox.server import HOST, SandboxProcess, start_sandbox_process

from .app import DEFAULT_SANDBOX_PORT, DEMO_DATABASE
from .session import Session

SANDBOX_DATABASE = "agentic_loop_sandbox"
"""Where the sandbox keeps its world between runs."""

DEMO_SANDBOX_DATABASE = "agentic_loop_demo_sandbox"
"""Where the demo's sandbox keeps its world; the demo makes it anew."""

RESET_TIMEOUT_S = 30.0
_POLL_S = 0.5


def run_sandbox(session: Session, *, port: int, reset: bool) -> int:
    """Serve until Ctrl-C, and say how to use the services; 0 when it was stopped, 8 when it ended by itself."""
    return session.guarded(lambda: _run(session, port, reset))


def _run(session: Session, port: int, reset: bool) -> int:
    require_free(port)
    in_demo = session.database == DEMO_DATABASE
    database = create_database(database_url(), DEMO_SANDBOX_DATABASE if in_demo else SANDBOX_DATABASE)
    with start_sandbox_process(database, port) as sandbox:
        if reset:
            reset_world(sandbox.url)
            session.screen.say("the world is back as on its first day")
        session.screen.say(f"the sandbox serves orders, refunds, policy and notifications at {sandbox.url}", "bold")
        if port == DEFAULT_SANDBOX_PORT:
            session.screen.say("the loops look for it there; nothing has to be set")
        session.screen.say(f"  export AGENTIC_LOOP_SANDBOX_URL={sandbox.url}", "cyan")
        session.screen.say("Ctrl-C stops it; its world is kept.")
        if not serve_until_interrupted(sandbox):
            raise Outage("the sandbox ended by itself; its complaint is above")
    session.screen.say("the sandbox has stopped")
    return 0


def require_free(port: int) -> None:
    """Look whether the sandbox can listen on this port of this machine.

    Raises:
        Misuse: something else does.
    """
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        raise Misuse(f"port {port} cannot be used ({error}); choose another, or --port 0 for any free one") from error


def reset_world(url: str) -> None:
    """Put the world of the sandbox at this URL back as on its first day.

    Raises:
        Outage: it does not answer.
    """
    try:
        httpx2.post(f"{url}/_admin/reset", timeout=RESET_TIMEOUT_S, trust_env=False).raise_for_status()
    except httpx2.HTTPError as error:
        raise Outage(f"the sandbox at {url} could not be reset: {error}; try again") from error


def serve_until_interrupted(sandbox: SandboxProcess) -> bool:
    """Wait until somebody presses Ctrl-C; False says that the sandbox ended by itself before."""
    try:
        while sandbox.running:
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return True
    return False
