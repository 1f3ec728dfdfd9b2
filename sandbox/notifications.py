"""notifications-service: messages to customers and to roles. Nothing leaves the sandbox; *sent* means kept."""

from datetime import timedelta
from typing import Annotated, Literal

from fastapi import Query
from psycopg import AsyncConnection
from psycopg.rows import DictRow, class_row
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from agentic_loop.sandbox.errors import ServiceError, forbidden_tenant
from agentic_loop.sandbox.idempotency import Created, look_up, once
from agentic_loop.sandbox.request_log import WireTime
from agentic_loop.sandbox.service import Caller, FromCaller, service_router
from agentic_loop.sandbox.settings import Service, load_settings
from agentic_loop.sandbox.world import InWorld

router = service_router(Service.NOTIFICATIONS)


class NotificationRequest(BaseModel):
    """A message to send. `reference` is what the sender wants to find it by, such as an order or approval id."""

    model_config = ConfigDict(extra="forbid")

    recipient: str = Field(min_length=1, max_length=200)
    channel: Literal["email", "inbox"]
    template: str | None = Field(default=None, max_length=200)
    subject: str = Field(min_length=1, max_length=500)
    body: str = Field(min_length=1, max_length=20_000)
    reference: str | None = Field(default=None, max_length=200)


class Notification(NotificationRequest):
    """A message as the service shows it."""

    model_config = ConfigDict(extra="ignore")

    notification_id: str
    status: Literal["sent"]
    created_at: WireTime


class NotificationsOfRecipient(BaseModel):
    """The newest messages of a recipient, oldest of them first."""

    recipient: str
    notifications: list[Notification]


class NotificationOfKey(BaseModel):
    """What a key did: the status that was replied, and the message."""

    status_code: int
    notification: Notification


class _TenantNotification(Notification):
    tenant: str


_FIND_NOTIFICATION = "SELECT * FROM sandbox_notifications.notifications WHERE notification_id = %s"

_NOTIFICATIONS_OF_RECIPIENT = """
SELECT * FROM (
    SELECT * FROM sandbox_notifications.notifications
    WHERE recipient = %s AND tenant = %s AND written_at <= %s
    ORDER BY created_at DESC, notification_id DESC LIMIT 1000
) newest
ORDER BY created_at, notification_id
"""

_CREATE_NOTIFICATION = """
INSERT INTO sandbox_notifications.notifications
    (notification_id, tenant, recipient, channel, template, subject, body, reference, status, created_at,
    written_at)
VALUES ('ntf_' || nextval('sandbox_notifications.notification_numbers'), %(tenant)s, %(recipient)s,
%(channel)s,
        %(template)s, %(subject)s, %(body)s, %(reference)s, 'sent', %(now)s, %(now)s)
RETURNING *
"""


@router.get("/notifications")
async def list_notifications(
    recipient: Annotated[str, Query(min_length=1)], world: InWorld, caller: FromCaller
) -> NotificationsOfRecipient:
    """The messages to a recipient, subject to the service's replication lag."""
    async with world.pool.connection() as connection:
        settings = await load_settings(connection, Service.NOTIFICATIONS)
        replicated_until = world.clock.now() - timedelta(seconds=settings.replication_lag_s)
        async with connection.cursor(row_factory=class_row(Notification)) as cursor:
            await cursor.execute(_NOTIFICATIONS_OF_RECIPIENT, [recipient, caller.tenant, replicated_until])
            return NotificationsOfRecipient(recipient=recipient, notifications=await cursor.fetchall())


@router.get("/notifications/by-key")
async def get_notification_by_key(
    key: Annotated[str, Query(min_length=1)], world: InWorld, caller: FromCaller
) -> NotificationOfKey:
    """The message that a key sent, while the key is retained."""
    async with world.pool.connection() as connection:
        kept = await look_up(connection, world, Service.NOTIFICATIONS, caller.tenant, key)
        notification = await _find(connection, kept.resource_id, caller)
    return NotificationOfKey(status_code=kept.status_code, notification=notification)


@router.get("/notifications/{notification_id}")
async def get_notification(notification_id: str, world: InWorld, caller: FromCaller) -> Notification:
    """The message."""
    async with world.pool.connection() as connection:
        return await _find(connection, notification_id, caller)


@router.post("/notifications", status_code=201)
async def create_notification(wanted: NotificationRequest, world: InWorld, caller: FromCaller) -> Response:
    """Send a message, once for a key."""

    async def effect(connection: AsyncConnection[DictRow]) -> Created:
        values = {**wanted.model_dump(), "tenant": caller.tenant, "now": world.clock.now()}
        async with connection.cursor(row_factory=class_row(Notification)) as cursor:
            await cursor.execute(_CREATE_NOTIFICATION, values)
            sent = await cursor.fetchone()
        if sent is None:
            raise RuntimeError("INSERT … RETURNING returned no row")
        return Created(sent.notification_id, sent)

    return await once(world, Service.NOTIFICATIONS, caller, wanted, effect)


async def _find(connection: AsyncConnection[DictRow], notification_id: str, caller: Caller) -> Notification:
    async with connection.cursor(row_factory=class_row(_TenantNotification)) as cursor:
        await cursor.execute(_FIND_NOTIFICATION, [notification_id])
        found = await cursor.fetchone()
    if found is None:
        raise ServiceError(404, "notification_not_found", f"There is no notification {notification_id!r}.")
    if found.tenant != caller.tenant:
        raise forbidden_tenant(f"Notification {notification_id}")
    return Notification.model_validate(found.model_dump(exclude={"tenant"}))
