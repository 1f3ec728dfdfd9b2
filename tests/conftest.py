"""What tests share: a database of their own, and a sandbox in a process of its own."""

import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from hypothesis import HealthCheck, settings

from agentic_loop.graph.store.embedded import create_database, drop_database
from agentic_loop.graph.store.embedded import database_url as server_url
from agentic_loop.sandbox.server import SandboxProcess, start_sandbox_process

CLIENT_TIMEOUT_S = 20.0

# A busy machine is no fault of the code: how long an example takes is measured nowhere in the tests.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("project")


@dataclass(frozen=True)
class Sandbox:
    """A running sandbox and a client for its admin routes (paths are relative to the sandbox's URL)."""

    process: SandboxProcess
    admin: httpx2.AsyncClient

    @property
    def url(self) -> str:
        return self.process.url

    async def reset(self) -> None:
        """Put the world back as on its first day."""
        (await self.admin.post("/_admin/reset")).raise_for_status()


def _postgres() -> str:
    """The Postgres server for tests: DATABASE_URL, else an embedded one apart from the user's own."""
    return server_url(Path(tempfile.gettempdir()) / f"agentic-loop-tests-{os.getuid()}")


@pytest.fixture(scope="session")
def make_database() -> Iterator["DatabaseMaker"]:
    """Creates fresh databases, and drops them when the session ends."""
    maker = DatabaseMaker(_postgres())
    yield maker
    maker.drop_all()


class DatabaseMaker:
    """`make_database()` returns the URL of a new, empty database."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._names: list[str] = []

    def __call__(self) -> str:
        name = f"test_{uuid.uuid4().hex[:12]}"
        self._names.append(name)
        return create_database(self._server, name)

    def drop_all(self) -> None:
        for name in self._names:
            drop_database(self._server, name)


@pytest.fixture(scope="session")
def database_url(make_database: DatabaseMaker) -> str:
    """An empty database for this session (each xdist worker has its own)."""
    return make_database()


@pytest.fixture(scope="session")
def sandbox_process(make_database: DatabaseMaker) -> Iterator[SandboxProcess]:
    """The sandbox of this session; its world is as the last test left it. Most tests want `sandbox`."""
    with start_sandbox_process(make_database()) as process:
        yield process


@pytest.fixture(scope="session")
async def _sandbox(sandbox_process: SandboxProcess) -> AsyncIterator[Sandbox]:
    async with httpx2.AsyncClient(base_url=sandbox_process.url, timeout=CLIENT_TIMEOUT_S) as admin:
        yield Sandbox(sandbox_process, admin)


@pytest.fixture
async def sandbox(_sandbox: Sandbox) -> Sandbox:
    """The sandbox, freshly reset."""
    await _sandbox.reset()
    return _sandbox
