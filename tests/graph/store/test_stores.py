"""All stores open together, keep what they were given, and close within their bound."""

from collections.abc import Callable

import psycopg
import pytest

from agentic_loop.graph.errors import Misuse, Outage
from agentic_loop.graph.store.stores import open_stores

from .samples import NOON, evidence, fresh, task


async def test_what_was_stored_is_there_for_the_next_process(make_database: Callable[[], str]) -> None:
    url, task_id = make_database(), fresh("task")
    async with open_stores(url) as stores:
        await stores.tasks.register(task(task_id), "RUNNING", NOON)
        await stores.evidence.append(task_id, [evidence(1, {"amount": 2000})])
        assert await stores.lease.acquire(task_id) == 1
    with pytest.raises(Outage, match="Open them again"):
        await stores.tasks.get(task_id)
    async with open_stores(url) as again:
        assert await again.tasks.get(task_id) is not None
        assert await again.evidence.load(task_id, 1) == [evidence(1, {"amount": 2000})]
        assert await again.lease.acquire(task_id) == 2


async def test_everything_is_closed_when_the_block_fails(make_database: Callable[[], str]) -> None:
    url = make_database()
    with pytest.raises(ZeroDivisionError):
        async with open_stores(url) as stores:
            await stores.lease.acquire("task")
            raise ZeroDivisionError
    assert stores.pool.closed
    assert _sessions(url) == 0


async def test_nothing_stays_open_when_opening_fails(make_database: Callable[[], str]) -> None:
    url = make_database()
    async with open_stores(url) as stores, stores.pool.connection() as link:
        await link.execute("INSERT INTO agentic_loop.schema_version (version, name) VALUES (99, 'future')")
    with pytest.raises(Misuse, match="newer"):
        async with open_stores(url):
            raise AssertionError("opened a database of a newer version")
    assert _sessions(url) == 0


def _sessions(url: str) -> int:
    """How many sessions of ours the server has on this database, once it had time to notice that they ended."""
    open_sessions = -1
    with psycopg.connect(url, autocommit=True) as link:
        for _ in range(50):
            row = link.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchone()
            assert row is not None
            open_sessions = int(row[0])
            if open_sessions == 0:
                break
            link.execute("SELECT pg_sleep(0.02)")
    return open_sessions
