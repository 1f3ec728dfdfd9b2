"""Migrations run once, all or nothing, however many processes start."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

import psycopg
import pytest

from agentic_loop.graph.errors import Defect, Misuse
from agentic_loop.graph.store import migrate as migration_runner
from agentic_loop.graph.store.database import Pool, open_pool
from agentic_loop.graph.store.migrate import Migration, migrate, migrations

_START_UP = """
import asyncio, sys
from agentic_loop.graph.store.stores import open_stores

async def start() -> None:
    async with open_stores(sys.argv[1]) as stores:
        await stores.lease.acquire(sys.argv[2])

asyncio.run(start())
"""


async def _applied(pool: Pool) -> list[int]:
    async with pool.connection() as link:
        rows = await (await link.execute("SELECT version FROM agentic_loop.schema_version ORDER BY 1")).fetchall()
    return [row["version"] for row in rows]


async def test_eight_at_once_apply_every_migration_once(make_database: Callable[[], str]) -> None:
    url = make_database()
    async with AsyncExitStack() as stack:
        pools = [await stack.enter_async_context(await open_pool(url, max_size=2)) for _ in range(8)]
        versions = await asyncio.gather(*(migrate(pool) for pool in pools))
        assert set(versions) == {len(migrations())}
        assert await _applied(pools[0]) == [migration.number for migration in migrations()]


def test_processes_that_start_at_once_all_come_up(make_database: Callable[[], str]) -> None:
    url = make_database()
    starting = [
        subprocess.Popen([sys.executable, "-c", _START_UP, url, f"task-{number}"], stderr=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    failures = [process.communicate(timeout=60)[1] for process in starting if process.wait(timeout=60)]
    for process in starting:
        assert process.stderr is not None
        process.stderr.close()
    assert failures == []
    with psycopg.connect(url) as link:
        assert link.execute("SELECT count(*) FROM agentic_loop.leases").fetchone() == (3,)


async def test_migrating_again_changes_nothing(pool: Pool) -> None:
    before = await _applied(pool)
    assert await migrate(pool) == len(migrations())
    assert await _applied(pool) == before


async def test_pending_migrations_are_applied_together_or_not_at_all(
    make_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Migration(len(migrations()) + 1, "good", "CREATE TABLE agentic_loop.good (); SELECT 1 % 1")
    bad = Migration(good.number + 1, "bad", "CREATE TABLE agentic_loop.good ()")
    known = migrations()
    async with await open_pool(make_database()) as pool:
        await migrate(pool)
        monkeypatch.setattr(migration_runner, "migrations", lambda: [*known, good, bad])
        with pytest.raises(Defect, match="already exists"):
            await migrate(pool)
        assert await _applied(pool) == [migration.number for migration in known]
        monkeypatch.setattr(migration_runner, "migrations", lambda: [*known, good])
        assert await migrate(pool) == good.number
        assert await _applied(pool) == [migration.number for migration in [*known, good]]


async def test_a_newer_schema_is_refused_in_clear_words(make_database: Callable[[], str]) -> None:
    async with await open_pool(make_database()) as pool:
        await migrate(pool)
        async with pool.connection() as link:
            await link.execute("INSERT INTO agentic_loop.schema_version (version, name) VALUES (99, 'future')")
        with pytest.raises(Misuse, match=r"schema version 99.*Install the newer agentic-loop"):
            await migrate(pool)
