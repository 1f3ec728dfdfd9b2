"""What arrived, kept before anything acts on it, in a transaction of its own.

So a request whose reply was lost, or whose effect was rolled back, is on record all the same.
"""

from datetime import datetime
from typing import Annotated

from psycopg import AsyncConnection
from psycopg.rows import DictRow, class_row
from pydantic import BaseModel, PlainSerializer

from agentic_loop.sandbox.clock import wire_time
from agentic_loop.sandbox.settings import Service

WireTime = Annotated[datetime, PlainSerializer(wire_time, return_type=str)]

MAX_LISTED = 10_000


class Arrival(BaseModel):
    """A request as it came in. `operation` is its method and route template; `body` is the raw text."""

    service: Service
    operation: str
    method: str
    path: str
    query: str
    tenant: str | None
    request_id: str | None
    idempotency_key: str | None
    body: str
    at: WireTime


class LoggedRequest(Arrival):
    """A request on record: the `status` that was sent (None: no reply was), and the `fault` that was injected."""

    entry_id: int
    status: int | None
    fault: str | None


_APPEND = """
INSERT INTO sandbox_admin.requests
    (service, operation, method, path, query, tenant, request_id, idempotency_key, body, at)
VALUES (%(service)s, %(operation)s, %(method)s, %(path)s, %(query)s, %(tenant)s, %(request_id)s,
        %(idempotency_key)s, %(body)s, %(at)s)
RETURNING entry_id
"""

_CONCLUDE = "UPDATE sandbox_admin.requests SET status = %s, fault = %s WHERE entry_id = %s"

_LIST = """
SELECT * FROM sandbox_admin.requests
WHERE (%(service)s::text IS NULL OR service = %(service)s)
  AND (%(method)s::text IS NULL OR method = %(method)s)
ORDER BY entry_id
LIMIT %(limit)s
"""


async def append(connection: AsyncConnection[DictRow], arrival: Arrival) -> int:
    """Put an arrival on record and return the number of its entry."""
    # Python mode keeps the moment a datetime only without the wire serialiser.
    values = {**arrival.model_dump(), "at": arrival.at}
    row = await (await connection.execute(_APPEND, values)).fetchone()
    if row is None:
        raise RuntimeError("INSERT … RETURNING returned no row")
    return int(row["entry_id"])


async def conclude(
    connection: AsyncConnection[DictRow], entry_id: int, status: int | None, fault: str | None
) -> None:
    """Add what was answered. An entry that a reset removed meanwhile stays removed."""
    await connection.execute(_CONCLUDE, [status, fault, entry_id])


async def logged_requests(
    connection: AsyncConnection[DictRow], service: Service | None, method: str | None
) -> list[LoggedRequest]:
    """The requests on record, oldest first, at most `MAX_LISTED`."""
    async with connection.cursor(row_factory=class_row(LoggedRequest)) as cursor:
        await cursor.execute(_LIST, {"service": service, "method": method, "limit": MAX_LISTED})
        return await cursor.fetchall()
