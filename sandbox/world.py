"""What every request shares: the database, the clock, and the news that the world was reset."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated

from fastapi import Depends, Request
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool

from agentic_loop.sandbox.clock import SandboxClock
from agentic_loop.sandbox.errors import ServiceError
from agentic_loop.sandbox.seed import seed_world

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]

_SCHEMAS = (
    "sandbox_payments",
    "sandbox_refunds",
    "sandbox_policy_store",
    "sandbox_notifications",
    "sandbox_admin",
)
# Any number, as long as no other program uses it for its own advisory locks on the same database.
_PREPARE_LOCK = 8_472_001

_EMPTY_EVERYTHING = """
DELETE FROM sandbox_payments.orders;
DELETE FROM sandbox_refunds.refunds;
DELETE FROM sandbox_refunds.idempotency_keys;
DELETE FROM sandbox_policy_store.passages;
DELETE FROM sandbox_notifications.notifications;
DELETE FROM sandbox_notifications.idempotency_keys;
DELETE FROM sandbox_admin.settings;
DELETE FROM sandbox_admin.faults;
DELETE FROM sandbox_admin.requests;
UPDATE sandbox_admin.world SET offset_s = 0;
ALTER SEQUENCE sandbox_refunds.refund_numbers RESTART;
ALTER SEQUENCE sandbox_notifications.notification_numbers RESTART;
"""


@dataclass
class World:
    """The sandbox behind one app. One process serves a database at a time: the clock lives in the process."""

    pool: Pool
    clock: SandboxClock
    _reset_happened: asyncio.Event = field(default_factory=asyncio.Event)

    async def prepare(self) -> None:
        """Create and seed the tables if they are not there, or were made by another version of this code."""
        schema = files("agentic_loop.sandbox").joinpath("schema.sql").read_text(encoding="utf-8")
        digest = hashlib.sha256(schema.encode()).hexdigest()
        async with self.pool.connection() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_PREPARE_LOCK])
            if await _digest(connection) != digest:
                for name in _SCHEMAS:
                    drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
                    await connection.execute(drop)
                await connection.execute(schema.encode())
                await connection.execute("INSERT INTO sandbox_admin.world (schema_digest) VALUES (%s)", [digest])
                await seed_world(connection)
            cursor = await connection.execute("SELECT offset_s FROM sandbox_admin.world")
            row = await cursor.fetchone()
        self.clock.shift_to(row["offset_s"] if row else 0)

    async def reset(self) -> None:
        """Put everything back as on the first day: rows, faults, settings, log, clock and counters."""
        # Requests that wait in the old world must not act in the new one.
        self._reset_happened.set()
        self._reset_happened = asyncio.Event()
        async with self.pool.connection() as connection:
            await connection.execute(_EMPTY_EVERYTHING)
            await seed_world(connection)
        self.clock.shift_to(0)

    async def move_clock(self, offset_s: float) -> None:
        """Set how far the sandbox's time is ahead, durably."""
        async with self.pool.connection() as connection:
            await connection.execute("UPDATE sandbox_admin.world SET offset_s = %s", [offset_s])
        self.clock.shift_to(offset_s)

    async def pause(self, delay_s: float) -> None:
        """Wait that long.

        Raises:
            ServiceError: 503 world_was_reset, if that happened meanwhile; the caller must not act any more.
        """
        try:
            await asyncio.wait_for(self._reset_happened.wait(), delay_s)
        except TimeoutError:
            return
        raise ServiceError(503, "world_was_reset", "The sandbox was reset while this request waited; send it again.")


async def _digest(connection: AsyncConnection[DictRow]) -> str | None:
    cursor = await connection.execute("SELECT to_regclass('sandbox_admin.world') IS NOT NULL AS there")
    row = await cursor.fetchone()
    if row is None or not row["there"]:
        return None
    cursor = await connection.execute("SELECT schema_digest FROM sandbox_admin.world")
    row = await cursor.fetchone()
    return str(row["schema_digest"]) if row else None


def world_of(request: Request) -> World:
    """The world of the app that serves this request."""
    world = request.app.state.world
    if not isinstance(world, World):
        raise TypeError("the app was not made by create_app, or its lifespan has not started")
    return world


InWorld = Annotated[World, Depends(world_of)]
