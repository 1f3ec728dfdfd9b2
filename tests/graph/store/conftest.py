"""A database with all tables, shared by the tests of the stores; each test uses task ids and tenants of its own."""

from collections.abc import AsyncIterator, Callable

import pytest

from agentic_loop.graph.store.database import Pool
from agentic_loop.graph.store.stores import Stores, open_stores


@pytest.fixture(scope="session")
def store_url(make_database: Callable[[], str]) -> str:
    """The database that the tests of the stores share."""
    return make_database()


@pytest.fixture(scope="session")
async def stores(store_url: str) -> AsyncIterator[Stores]:
    """All stores on that database."""
    async with open_stores(store_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def pool(stores: Stores) -> Pool:
    """The pool of those stores."""
    return stores.pool
