"""All stores of one process, opened and closed together.

Source: DESIGN §7 (one database).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from .approvals import PostgresApprovals
from .database import CLOSE_TIMEOUT_S, Pool, open_pool
from .evidence import PostgresEvidence
from .journal import PostgresJournal
from .lease import PostgresLease
from .ledger import PostgresLedger
from .migrate import migrate
from .saver import open_saver
from .tasks import PostgresTasks


@dataclass(frozen=True)
class Stores:
    """Everything that a runtime keeps in its one database."""

    pool: Pool
    evidence: PostgresEvidence
    journal: PostgresJournal
    tasks: PostgresTasks
    ledger: PostgresLedger
    approvals: PostgresApprovals
    lease: PostgresLease
    saver: AsyncPostgresSaver


@asynccontextmanager
async def open_stores(url: str, *, max_connections: int = 10) -> AsyncIterator[Stores]:
    """Connect, bring the tables up to date, and give all stores; close them at the end of the block.

    Leases are given back first, then the pool is closed, within five seconds. One more connection than
    ``max_connections`` is used: the one that holds the leases.

    Raises:
        Outage: the database is away.
        Misuse: the URL is wrong, or the database was migrated by a newer version.
    """
    pool = await open_pool(url, max_size=max_connections)
    try:
        await migrate(pool)
        async with PostgresLease(url) as lease:
            yield Stores(
                pool=pool,
                evidence=PostgresEvidence(pool),
                journal=PostgresJournal(pool),
                tasks=PostgresTasks(pool),
                ledger=PostgresLedger(pool),
                approvals=PostgresApprovals(pool),
                lease=lease,
                saver=await open_saver(pool),
            )
    finally:
        await pool.close(timeout=CLOSE_TIMEOUT_S)
