"""Trouble on demand: what can go wrong between a client and a service, before or after the commit.

A fault is armed for one service and operation, lets the first `after` matching requests pass, then hits
`times` of them. Faults for the same operation act one after another, in the order in which they were armed.
"""

import asyncio
from contextlib import suppress
from enum import StrEnum

from psycopg import AsyncConnection
from psycopg.rows import DictRow, class_row
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentic_loop.sandbox.errors import ServiceError
from agentic_loop.sandbox.settings import Service
from agentic_loop.sandbox.world import World

#: The ASGI extension under which the server offers a function that aborts the connection; see `server.py`.
CONNECTION_EXTENSION = "agentic_loop.sandbox.connection"

MAX_DELAY_S = 60.0
ANY_OPERATION = "*"


class FaultKind(StrEnum):
    """What goes wrong. *Before* and *after* are relative to the commit of the effect."""

    TIMEOUT_BEFORE_COMMIT = "timeout_before_commit"
    TIMEOUT_AFTER_COMMIT = "timeout_after_commit"
    DROP_BEFORE_COMMIT = "drop_before_commit"
    DROP_AFTER_COMMIT = "drop_after_commit"
    ERROR_BEFORE_COMMIT = "error_before_commit"
    ERROR_AFTER_COMMIT = "error_after_commit"
    SLOW = "slow"
    GARBAGE = "garbage"


class Fault(BaseModel):
    """An armed fault.

    `operation` is a method and route template (`POST /refunds`), a route name (`create_refund`) or `*`.
    `delay_s` is how long a time-out hangs (if the client does not leave first), or how long `slow` takes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    service: Service
    operation: str = ANY_OPERATION
    kind: FaultKind
    times: int = Field(default=1, ge=1, le=1_000_000)
    after: int = Field(default=0, ge=0, le=1_000_000)
    delay_s: float = Field(default=10.0, gt=0, le=MAX_DELAY_S)


class ArmedFault(Fault):
    """A fault on record, with how many requests it let pass and how many it hit."""

    fault_id: int
    skipped: int
    fired: int


_ARM = """
INSERT INTO sandbox_admin.faults (service, operation, kind, times, after, delay_s)
VALUES (%(service)s, %(operation)s, %(kind)s, %(times)s, %(after)s, %(delay_s)s)
RETURNING *
"""

_LIST = "SELECT * FROM sandbox_admin.faults ORDER BY fault_id"

_DISARM = "DELETE FROM sandbox_admin.faults"

_NEXT_FOR_OPERATION = """
SELECT * FROM sandbox_admin.faults
WHERE service = %s AND operation = ANY(%s) AND fired < times
ORDER BY fault_id
LIMIT 1
FOR UPDATE
"""

_COUNT = "UPDATE sandbox_admin.faults SET skipped = %s, fired = %s WHERE fault_id = %s"


async def arm(connection: AsyncConnection[DictRow], fault: Fault) -> ArmedFault:
    """Arm a fault."""
    async with connection.cursor(row_factory=class_row(ArmedFault)) as cursor:
        await cursor.execute(_ARM, fault.model_dump())
        armed = await cursor.fetchone()
    if armed is None:
        raise RuntimeError("INSERT … RETURNING returned no row")
    return armed


async def armed_faults(connection: AsyncConnection[DictRow]) -> list[ArmedFault]:
    """All faults on record, spent ones too."""
    async with connection.cursor(row_factory=class_row(ArmedFault)) as cursor:
        await cursor.execute(_LIST)
        return await cursor.fetchall()


async def disarm_all(connection: AsyncConnection[DictRow]) -> None:
    """Forget every fault."""
    await connection.execute(_DISARM)


async def fault_for(
    connection: AsyncConnection[DictRow], service: Service, operation: str, route_name: str
) -> ArmedFault | None:
    """The fault that hits this request, if one does; counts the request either way."""
    async with connection.cursor(row_factory=class_row(ArmedFault)) as cursor:
        await cursor.execute(_NEXT_FOR_OPERATION, [service, [operation, route_name, ANY_OPERATION]])
        fault = await cursor.fetchone()
        if fault is None:
            return None
        hits = fault.skipped >= fault.after
        counts = (fault.skipped, fault.fired + 1) if hits else (fault.skipped + 1, fault.fired)
        await cursor.execute(_COUNT, [*counts, fault.fault_id])
    return fault if hits else None


class Drop(Response):
    """No response: the TCP connection is closed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Close the connection and wait until the server has noticed."""
        abort = scope.get("extensions", {}).get(CONNECTION_EXTENSION)
        if not callable(abort):
            raise RuntimeError("only the sandbox's own server can drop a connection: start it by sandbox.server")
        abort()
        await _client_left(receive)


class Hang(Drop):
    """No response for up to `delay_s`, then a dropped connection; ends early when the client leaves."""

    def __init__(self, world: World, delay_s: float) -> None:
        super().__init__()
        self._world = world
        self._delay_s = delay_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hang, whatever the client sends."""
        leaving = asyncio.ensure_future(_client_left(receive))
        waiting = asyncio.ensure_future(self._world.pause(self._delay_s))
        try:
            await asyncio.wait({leaving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = leaving.done()
            for task in (leaving, waiting):
                task.cancel()
                with suppress(asyncio.CancelledError, ServiceError):
                    await task
        if not left:
            await super().__call__(scope, receive, send)


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def cut_short(response: Response) -> Response:
    """A reply whose body is the first half of the real one, under a status and type that promise JSON."""
    whole = bytes(response.body)
    return Response(whole[: len(whole) // 2], 200, media_type="application/json")
