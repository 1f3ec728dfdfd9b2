"""The lease: one worker per task at a time, and a fence that shows who came last.

The lock is an advisory lock of one session per process: Postgres gives it back the moment the process dies, so that
recovery never waits for a time-out. The fence is a number in a table that grows with every new holder; the ledger
compares it, so that a worker that lost its lease without noticing cannot begin an effect.

Source: DESIGN §7 (durability and workers).
"""

import asyncio
import hashlib
import os
import socket
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from ..errors import Defect, LeaseRefused
from .database import CONNECT_TIMEOUT_S, Connection, translated
from .text import original, storable

run_token: ContextVar[str | None] = ContextVar("agentic_loop_run_token", default=None)
"""Names the run that the present code belongs to; the runtime sets it. Without one, the task id stands for it."""

_NOTICE_LOSS_SOON: Final = """
    SET TIME ZONE 'UTC';
    SET statement_timeout = '10s';
    SET tcp_keepalives_idle = 10;
    SET tcp_keepalives_interval = 5;
    SET tcp_keepalives_count = 3
"""
"""Run once: bound every statement, and let the server drop the session of a vanished host within half a minute."""

_TRY_LOCK: Final = "SELECT pg_try_advisory_lock(%s, %s) AS locked"
"""Take the task's lock if it is free. Two-part keys never meet the one-part keys that other libraries use."""

_UNLOCK: Final = "SELECT pg_advisory_unlock(%s, %s)"
"""Give the task's lock back."""

_NEXT_FENCE: Final = """
    INSERT INTO agentic_loop.leases AS lease (task_id, fence, holder, acquired_at)
    VALUES (%s, 1, %s, clock_timestamp())
    ON CONFLICT (task_id) DO UPDATE SET
        fence = lease.fence + 1, holder = excluded.holder, acquired_at = excluded.acquired_at
    RETURNING fence
"""
"""Enter the new holder; waits for effects that are just being begun under the old fence."""

_PRESENT_LEASE: Final = "SELECT fence, holder, acquired_at FROM agentic_loop.leases WHERE task_id = %s"
"""Who took the task last."""


@dataclass(frozen=True)
class _Held:
    token: str
    fence: int


def this_process() -> str:
    """A name for this process that a person can find: host name and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


class PostgresLease:
    """The leases that this process holds, all on one connection; implements the port ``Lease``.

    Runs within one process are told apart by :data:`run_token`. When the connection is lost, so are all leases on it;
    that is noticed at the next use, and a task that is acquired again gets a new fence.

    Args:
        url: the database; the connection is opened at the first use and opened again after a loss.
        holder: what a refused worker is told about who holds the task; by default host and process id.
    """

    def __init__(self, url: str, holder: str | None = None) -> None:
        self._url = url
        self._holder = holder or this_process()
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._held: dict[str, _Held] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def acquire(self, task_id: str) -> int:
        """Take the task and return a new fence, or the present one where this run holds it already.

        Raises:
            LeaseRefused: another worker, or another run of this process, holds it.
            Outage: the database is away.
        """
        token = run_token.get() or task_id
        async with self._turn:
            if await self._still_held(task_id):
                held = self._held[task_id]
                if held.token != token:
                    raise LeaseRefused(
                        f"Task {task_id} is being run by another run of this process. Let it end first."
                    )
                return held.fence
            return await self._acquired(task_id, token)

    async def release(self, task_id: str) -> None:
        """Give the task back; giving back what this run does not hold does nothing.

        A connection that is lost has given it back already.
        """
        token = run_token.get() or task_id
        async with self._turn:
            held = self._held.get(task_id)
            if held is None or held.token != token or self._connection is None:
                return
            del self._held[task_id]
            # Shielded: a lock that this object has forgotten must not outlive a cancelled release.
            await asyncio.shield(self._unlock(self._connection, _lock_key(task_id)))

    async def check(self, task_id: str) -> bool:
        """Whether this process still holds the task, on a connection that is alive, under the newest fence."""
        async with self._turn:
            return await self._still_held(task_id)

    async def current(self, task_id: str) -> int:
        """The fence of the newest lease of this task, whoever holds it; 0 where nobody ever took it.

        Raises:
            Outage: the database is away.
        """
        async with self._turn:
            try:
                row = await (await (await self._open()).execute(_PRESENT_LEASE, [storable(task_id)])).fetchone()
            except psycopg.Error as error:
                if self._is_lost():
                    await self._drop()
                raise translated(error) from error
        return int(row["fence"]) if row else 0

    async def close(self) -> None:
        """Give everything back and close the connection."""
        async with self._turn:
            await self._drop()

    async def _acquired(self, task_id: str, token: str) -> int:
        """Take the task, with one more attempt where the connection turns out to have been lost."""
        try:
            return await self._take(await self._open(), task_id, token)
        except psycopg.Error as error:
            if not self._is_lost():
                raise translated(error) from error
        try:
            return await self._take(await self._open(), task_id, token)
        except psycopg.Error as error:
            raise translated(error) from error

    async def _take(self, link: Connection, task_id: str, token: str) -> int:
        """Lock the task and enter the new holder; on any failure the lock is not kept."""
        lock_key = _lock_key(task_id)
        try:
            row = await (await link.execute(_TRY_LOCK, lock_key)).fetchone()
            if row is None or not row["locked"]:
                raise LeaseRefused(await self._who_holds(link, task_id))
            row = await (await link.execute(_NEXT_FENCE, [storable(task_id), storable(self._holder)])).fetchone()
            if row is None:
                raise Defect(f"The lease of task {task_id} could not be entered.")
        except LeaseRefused:
            raise
        except BaseException:
            # Also on cancellation, when nobody can tell whether the lock was taken: a lock that this object does not
            # know of would keep every other worker out for as long as the process lives.
            await asyncio.shield(self._unlock(link, lock_key))
            raise
        fence = int(row["fence"])
        self._held[task_id] = _Held(token, fence)
        return fence

    async def _still_held(self, task_id: str) -> bool:
        """Whether the lease is known, its connection alive and its fence the newest; else it is forgotten."""
        held = self._held.get(task_id)
        if held is None or self._connection is None:
            return False
        try:
            row = await (await self._connection.execute(_PRESENT_LEASE, [storable(task_id)])).fetchone()
            if row is not None and row["fence"] == held.fence:
                return True
            del self._held[task_id]
            await self._connection.execute(_UNLOCK, _lock_key(task_id))
        except psycopg.Error:
            await self._drop()
        return False

    async def _who_holds(self, link: Connection, task_id: str) -> str:
        row = await (await link.execute(_PRESENT_LEASE, [storable(task_id)])).fetchone()
        if row is None:
            return f"Task {task_id} is just being taken by another worker. Let it end first."
        holder, since = original(row["holder"]), row["acquired_at"].isoformat(timespec="seconds")
        return f"Task {task_id} is being run by {holder} since {since}. Let it end, or stop that worker."

    async def _open(self) -> Connection:
        """The connection, opened anew after a loss: then nothing is held any more."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        await self._drop()
        try:
            link = await AsyncConnection.connect(
                self._url,
                autocommit=True,
                prepare_threshold=0,
                row_factory=dict_row,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="agentic-loop lease",
                keepalives=1,
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
            )
            await link.execute(_NOTICE_LOSS_SOON, prepare=False)
        except psycopg.Error as error:
            raise translated(error) from error
        self._connection = link
        return link

    async def _drop(self) -> None:
        self._held.clear()
        link, self._connection = self._connection, None
        if link is not None:
            await link.close()

    async def _unlock(self, link: Connection, lock_key: list[int]) -> None:
        try:
            await link.execute(_UNLOCK, lock_key)
        except psycopg.Error:
            # The session is gone or unusable; closing it gives every lock back in any case.
            await self._drop()

    def _is_lost(self) -> bool:
        return self._connection is None or self._connection.closed or self._connection.broken


def _lock_key(task_id: str) -> list[int]:
    """The two 32-bit numbers that stand for a task among the advisory locks."""
    digest = hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).digest()
    return [int.from_bytes(digest[:4], signed=True), int.from_bytes(digest[4:8], signed=True)]
