"""A database for scenarios, one for each module: making and dropping one for each test takes longer than the test."""

import psycopg
import pytest

from tests.conftest import DatabaseMaker, Sandbox


@pytest.fixture(scope="module")
def module_database(make_database: DatabaseMaker) -> str:
    """The database of this module, as the last test left it. Most tests want `database`."""
    return make_database()


@pytest.fixture
async def database(module_database: str, sandbox: Sandbox) -> str:
    """The module's database with no effects on record, as the freshly reset sandbox has none either.

    The ledger's keys name business effects, so what an earlier test did to the same order would be met again.
    """
    await forget_effects(module_database)
    return module_database


async def forget_effects(database_url: str) -> None:
    """Empty the ledger, if there is one yet."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        cursor = await connection.execute("SELECT to_regclass('agentic_loop.intents') IS NOT NULL")
        row = await cursor.fetchone()
        if row is not None and row[0]:
            await connection.execute("DELETE FROM agentic_loop.intents")
