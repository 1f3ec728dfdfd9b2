"""The database's errors in our words, and waits that end."""

import asyncio

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from agentic_loop.graph.errors import Defect, Misuse, Outage
from agentic_loop.graph.store.database import Pool, connection, open_pool, transaction, translated


async def test_a_refused_connection_is_an_outage_that_says_where() -> None:
    with pytest.raises(Outage, match=r"127\.0\.0\.1:9 cannot be reached"):
        await open_pool("postgresql://nobody@127.0.0.1:9/nothing")


async def test_an_absent_database_is_the_callers_mistake(store_url: str) -> None:
    with pytest.raises(Misuse, match="no_such_database"):
        await open_pool(make_conninfo(store_url, dbname="no_such_database"))


@pytest.mark.parametrize("url", ["mysql://host/database", "nonsense"])
async def test_what_is_no_postgres_url_is_the_callers_mistake(url: str) -> None:
    with pytest.raises(Misuse, match="no Postgres URL"):
        await open_pool(url)


async def test_every_wait_of_a_connection_is_bounded(pool: Pool) -> None:
    async with connection(pool) as link:
        for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            row = await (await link.execute("SELECT current_setting(%s) AS bound", [setting])).fetchone()
            assert row is not None
            assert row["bound"] not in ("0", "")


async def test_waiting_for_a_connection_ends_in_an_outage(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = await open_pool(store_url, max_size=1)
    monkeypatch.setattr(pool, "timeout", 0.05)
    try:
        async with connection(pool):
            with pytest.raises(Outage, match="No database connection became free in time"):
                async with connection(pool):
                    pass
    finally:
        await pool.close()


async def test_a_connection_that_the_server_ends_is_an_outage_and_the_next_one_works(store_url: str) -> None:
    pool = await open_pool(store_url, max_size=1)
    try:
        with pytest.raises(Outage, match="shutting down or starting"):
            async with connection(pool) as link:
                await link.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        async with connection(pool) as link:
            assert await (await link.execute("SELECT 1 AS one")).fetchone() == {"one": 1}
    finally:
        await pool.close()


async def test_a_restart_between_two_uses_goes_unnoticed(store_url: str) -> None:
    pool = await open_pool(store_url, max_size=1)
    try:
        async with connection(pool) as link:
            process = link.info.backend_pid
        async with await psycopg.AsyncConnection.connect(store_url, autocommit=True) as other:
            await other.execute("SELECT pg_terminate_backend(%s, 5000)", [process])
        async with connection(pool) as link:
            assert await (await link.execute("SELECT 1 AS one")).fetchone() == {"one": 1}
    finally:
        await pool.close()


async def test_closed_stores_are_an_outage(store_url: str) -> None:
    pool = await open_pool(store_url)
    await pool.close()
    with pytest.raises(Outage, match="Open them again"):
        async with connection(pool):
            pass


async def test_a_transaction_leaves_nothing_behind_when_it_fails(pool: Pool) -> None:
    with pytest.raises(ZeroDivisionError):
        async with transaction(pool) as writer:
            await writer.execute("CREATE TABLE agentic_loop.half_done ()")
            raise ZeroDivisionError
    async with connection(pool) as link:
        row = await (await link.execute("SELECT to_regclass('agentic_loop.half_done') AS name")).fetchone()
    assert row == {"name": None}


async def test_a_cancelled_statement_gives_its_connection_back(store_url: str) -> None:
    pool = await open_pool(store_url, max_size=1)

    async def wait_long() -> None:
        async with connection(pool) as link:
            await link.execute("SELECT pg_sleep(20)")

    try:
        waiting = asyncio.create_task(wait_long())
        await asyncio.wait([waiting], timeout=0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with connection(pool) as link:
            assert await (await link.execute("SELECT 1 AS one")).fetchone() == {"one": 1}
    finally:
        await pool.close()


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (psycopg.errors.UndefinedTable('relation "tasks" does not exist'), Misuse, "Migrate it first"),
        (psycopg.errors.InsufficientPrivilege("permission denied"), Misuse, "Grant it"),
        (psycopg.errors.LockNotAvailable("lock timeout"), Outage, "too busy"),
        (psycopg.errors.ReadOnlySqlTransaction("read-only"), Outage, "primary"),
        (psycopg.errors.DiskFull("no space left"), Outage, "no space left"),
        (psycopg.InterfaceError("the connection is closed"), Outage, "cannot be reached"),
        (psycopg.errors.CheckViolation("new row violates check"), Defect, "CheckViolation"),
        (psycopg.DataError("NUL"), Defect, "DataError"),
    ],
)
def test_whose_fault_an_error_is(error: psycopg.Error, kind: type[Exception], words: str) -> None:
    ours = translated(error)
    assert type(ours) is kind
    assert words in str(ours)
