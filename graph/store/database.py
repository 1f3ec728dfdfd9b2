"""The connection pool that all stores share, and what becomes of the database's errors.

Every wait is bounded: for a connection, for a lock, for a statement. A database that is away is an
:class:`~agentic_loop.graph.errors.Outage` in plain words, never a driver's exception.

Source: DESIGN §7 (one database), §10 (the three kinds of exception).
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeAlias

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from ..errors import Defect, Misuse, Outage

Connection: TypeAlias = AsyncConnection[DictRow]
"""One connection whose rows are dictionaries."""

Pool: TypeAlias = AsyncConnectionPool[Connection]
"""The pool that stores take their connections from."""

CONNECT_TIMEOUT_S: Final = 10
POOL_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 5.0
MAX_WAITING: Final = 1_000

_BOUND_EVERY_WAIT: Final = """
    SET TIME ZONE 'UTC';
    SET statement_timeout = '30s';
    SET lock_timeout = '10s';
    SET idle_in_transaction_session_timeout = '60s'
"""
"""Run once per connection; a value in the URL's options would be lost behind some connection poolers."""


async def open_pool(url: str, *, max_size: int = 10) -> Pool:
    """A pool that is open and has reached the database.

    Connections are in autocommit mode and give rows as dictionaries, as LangGraph's saver also expects. Waiting for
    a connection is bounded to ten seconds.

    Args:
        url: a Postgres URL or connection string.
        max_size: the most connections that this process opens through the pool.

    Raises:
        Outage: the database cannot be reached or refuses connections now.
        Misuse: the URL, the database name or the credentials are wrong.

    Source: DESIGN §7.
    """
    await _probe(url)
    pool: Pool = AsyncConnectionPool(
        url,
        min_size=1,
        max_size=max_size,
        max_waiting=MAX_WAITING,
        timeout=POOL_TIMEOUT_S,
        kwargs={
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": dict_row,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "agentic-loop",
        },
        configure=_configure,
        # Costs one round trip and spares a task the error when the database was restarted meanwhile.
        check=AsyncConnectionPool.check_connection,
        open=False,
    )
    try:
        with database_errors():
            await pool.open(wait=True, timeout=POOL_TIMEOUT_S)
    except BaseException:
        await pool.close(timeout=CLOSE_TIMEOUT_S)
        raise
    return pool


@asynccontextmanager
async def connection(pool: Pool) -> AsyncIterator[Connection]:
    """One connection from the pool, with the database's errors translated.

    Raises:
        Outage: the database is away, or a wait took too long.
        Defect: a statement of ours is wrong.
    """
    with database_errors():
        async with pool.connection() as open_connection:
            yield open_connection


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncIterator[Connection]:
    """One connection inside a transaction that commits at the end of the block and rolls back on any exception.

    Raises:
        Outage: the database is away, or a wait took too long. Whether the commit took place is then not known.
        Defect: a statement of ours is wrong.
    """
    async with connection(pool) as open_connection, open_connection.transaction():
        yield open_connection


@contextmanager
def database_errors() -> Iterator[None]:
    """Translate everything that the driver raises inside the block.

    Raises:
        Outage: the database is away or busy; the same call may succeed later.
        Misuse: the database is not the one that this code needs.
        Defect: the statement or its values are wrong, which is our own fault.
    """
    try:
        yield
    except psycopg.Error as error:
        raise translated(error) from error


def translated(error: psycopg.Error) -> Outage | Misuse | Defect:
    """The exception of ours that stands for an error of the driver."""
    words = " ".join(str(error).split()) or type(error).__name__
    match error:
        case PoolTimeout() | TooManyRequests():
            return Outage(f"No database connection became free in time: {words}. Try again, or raise the pool size.")
        case PoolClosed():
            return Outage("The stores are closed. Open them again before using them.")
        case psycopg.errors.UndefinedTable() | psycopg.errors.UndefinedColumn() | psycopg.errors.InvalidSchemaName():
            return Misuse(f"The database lacks what this version needs: {words}. Migrate it first.")
        case psycopg.errors.InsufficientPrivilege():
            return Misuse(f"The database user may not do this: {words}. Grant it the schema agentic_loop.")
        case psycopg.errors.AdminShutdown() | psycopg.errors.CrashShutdown() | psycopg.errors.CannotConnectNow():
            return Outage(f"The database is shutting down or starting: {words}. Try again when it is up.")
        case psycopg.errors.LockNotAvailable() | psycopg.errors.QueryCanceled() | psycopg.errors.DeadlockDetected():
            return Outage(f"The database was too busy: {words}. Try again.")
        case psycopg.errors.ReadOnlySqlTransaction():
            return Outage(f"The database takes no writes now: {words}. Try again when the primary is back.")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return Outage(f"The database cannot be reached: {words}. Check that it runs; then try again.")
        case _:
            return Defect(f"The database refused a statement of ours ({type(error).__name__}): {words}")


async def _configure(new_connection: Connection) -> None:
    await new_connection.execute(_BOUND_EVERY_WAIT, prepare=False)


async def _probe(url: str) -> None:
    """Connect once outside the pool: the pool would hide the reason behind its time-out."""
    try:
        probe = await AsyncConnection.connect(url, connect_timeout=CONNECT_TIMEOUT_S, autocommit=True)
    except psycopg.ProgrammingError as error:
        raise Misuse(f"This is no Postgres URL: {error}. Use postgresql://user@host:port/database.") from error
    except psycopg.OperationalError as error:
        raise _refusal(url, error) from error
    await probe.close()


def _refusal(url: str, error: psycopg.OperationalError) -> Outage | Misuse:
    settings = conninfo_to_dict(url)
    words = " ".join(str(error).split())
    match error:
        case psycopg.errors.InvalidPassword() | psycopg.errors.InvalidAuthorizationSpecification():
            return Misuse(f"The database refused the credentials in the URL: {words}")
        case psycopg.errors.InvalidCatalogName():
            return Misuse(f"There is no database called {settings.get('dbname')!r}: {words}. Create it first.")
        case _:
            # A refused connection carries no SQLSTATE, so what libpq says about a wrong name is only in its words.
            if "does not exist" in words or "password authentication failed" in words:
                return Misuse(f"The database URL names something that is not there or not allowed: {words}")
            where = f"{settings.get('host', 'localhost')}:{settings.get('port', 5432)}"
            return Outage(f"The database at {where} cannot be reached: {words}. Check that it runs; then try again.")
