"""Writes under an idempotency key: the key and the effect commit together, and a repeat gets the stored
reply.

| request | reply |
|---|---|
| no key | 400 `idempotency_key_missing` |
| key of a request that is being worked on | 409 `in_flight`, with Retry-After |
| key of another payload | 422 `key_reused` |
| key that was used for this payload | the stored status and body, with `Idempotent-Replay: true` |
| new key, or one older than the retention | the effect |

A refused request uses no key up. Keys belong to a tenant and a service. *In flight* is a lock that ends
with the transaction, so that a crash leaves no key locked.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, class_row
from pydantic import BaseModel
from starlette.responses import Response

from agentic_loop.sandbox.errors import ServiceError
from agentic_loop.sandbox.service import Caller
from agentic_loop.sandbox.settings import Service, ServiceSettings, load_settings
from agentic_loop.sandbox.world import World

REPLAY_HEADER = "Idempotent-Replay"
MAX_KEY_LENGTH = 255
_RETRY_AFTER_S = 1

# The schema of the service that is asked, for the names in the statements below.
_SCHEMAS = {Service.REFUNDS: "sandbox_refunds", Service.NOTIFICATIONS: "sandbox_notifications"}

_LOCK_KEY = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0)) AS free"

_FIND_KEY = sql.SQL("SELECT * FROM {}.idempotency_keys WHERE tenant = %s AND key = %s")

_KEEP_KEY = sql.SQL("""
INSERT INTO {}.idempotency_keys (tenant, key, request_hash, resource_id, status_code, body, created_at)
VALUES (%(tenant)s, %(key)s, %(request_hash)s, %(resource_id)s, %(status_code)s, %(body)s, %(created_at)s)
ON CONFLICT (tenant, key) DO NOTHING
""")

_FORGET_KEYS = sql.SQL("DELETE FROM {}.idempotency_keys WHERE created_at <= %s")


@dataclass(frozen=True)
class Created:
    """What a write made: the id of the thing and the thing as the service shows it."""

    resource_id: str
    resource: BaseModel


class KeptKey(BaseModel):
    """A key on record with the reply that belongs to it."""

    tenant: str
    key: str
    request_hash: str
    resource_id: str
    status_code: int
    body: str
    created_at: datetime


Effect = Callable[[AsyncConnection[DictRow]], Awaitable[Created]]


async def once(world: World, service: Service, caller: Caller, payload: BaseModel, effect: Effect) -> Response:
    """Do `effect` unless the caller's key says that it was done, and reply as the table above says.

    Raises:
        ServiceError: the refusals of the table, and whatever `effect` refuses; then nothing is committed.
    """
    async with world.pool.connection() as connection:
        settings = await load_settings(connection, service)
        if not settings.honour_keys:
            return await _without_keys(connection, world, settings, caller, payload, effect)
        key = _valid_key(caller)
        await _lock(connection, f"{service}|{caller.tenant}|{key}")
        await _forget_expired(connection, world, settings)
        kept = await find_key(connection, service, caller.tenant, key)
        if kept is not None:
            if kept.request_hash != _hash(payload):
                raise ServiceError(
                    422, "key_reused", f"Key {key!r} was used with another payload; another effect needs another key."
                )
            return _json(kept.status_code, kept.body, replayed=True)
        if caller.slow_s:
            await world.pause(caller.slow_s)
        created = await effect(connection)
        await _keep(connection, world, service, caller.tenant, key, payload, created)
        body = created.resource.model_dump_json()
    return _json(201, body)


async def find_key(connection: AsyncConnection[DictRow], service: Service, tenant: str, key: str) -> KeptKey | None:
    """What is on record for a key, or None. Call `look_up` to respect the settings."""
    async with connection.cursor(row_factory=class_row(KeptKey)) as cursor:
        await cursor.execute(_FIND_KEY.format(sql.Identifier(_SCHEMAS[service])), [tenant, key])
        return await cursor.fetchone()


async def look_up(
    connection: AsyncConnection[DictRow], world: World, service: Service, tenant: str, key: str
) -> KeptKey:
    """What a key did, strongly consistent.

    Raises:
        ServiceError: 404 no_such_key (never used, refused, or older than the retention); 501
        lookup_not_offered.
    """
    settings = await load_settings(connection, service)
    if not settings.lookup_by_key:
        raise ServiceError(501, "lookup_not_offered", f"{service} does not offer a lookup by key.")
    kept = await find_key(connection, service, tenant, key)
    if kept is None or kept.created_at <= _horizon(world, settings):
        raise ServiceError(
            404,
            "no_such_key",
            f"No request with key {key!r} took effect in the last {settings.idempotency_key_retention_s} s.",
        )
    return kept


async def _without_keys(
    connection: AsyncConnection[DictRow],
    world: World,
    settings: ServiceSettings,
    caller: Caller,
    payload: BaseModel,
    effect: Effect,
) -> Response:
    """A service that ignores keys: every request takes effect. The first of a key can still be looked up."""
    if caller.slow_s:
        await world.pause(caller.slow_s)
    created = await effect(connection)
    if settings.lookup_by_key and caller.idempotency_key:
        await _forget_expired(connection, world, settings)
        key = _valid_key(caller)
        await _keep(connection, world, settings.service, caller.tenant, key, payload, created)
    return _json(201, created.resource.model_dump_json())


def _valid_key(caller: Caller) -> str:
    key = (caller.idempotency_key or "").strip()
    if not key:
        raise ServiceError(
            400,
            "idempotency_key_missing",
            "Send an Idempotency-Key header that names the effect, the same at each try.",
        )
    if len(key) > MAX_KEY_LENGTH:
        raise ServiceError(400, "idempotency_key_too_long", f"Send a key of at most {MAX_KEY_LENGTH} characters.")
    return key


async def _lock(connection: AsyncConnection[DictRow], name: str) -> None:
    row = await (await connection.execute(_LOCK_KEY, [name])).fetchone()
    if row is None or not row["free"]:
        raise ServiceError(
            409,
            "in_flight",
            "A request with this key is being worked on; ask again with the same key, or look the key up.",
            headers={"Retry-After": str(_RETRY_AFTER_S)},
        )


async def _keep(
    connection: AsyncConnection[DictRow],
    world: World,
    service: Service,
    tenant: str,
    key: str,
    payload: BaseModel,
    created: Created,
) -> None:
    kept = KeptKey(
        tenant=tenant,
        key=key,
        request_hash=_hash(payload),
        resource_id=created.resource_id,
        status_code=201,
        body=created.resource.model_dump_json(),
        created_at=world.clock.now(),
    )
    await connection.execute(_KEEP_KEY.format(sql.Identifier(_SCHEMAS[service])), kept.model_dump())


async def _forget_expired(connection: AsyncConnection[DictRow], world: World, settings: ServiceSettings) -> None:
    statement = _FORGET_KEYS.format(sql.Identifier(_SCHEMAS[settings.service]))
    await connection.execute(statement, [_horizon(world, settings)])


def _horizon(world: World, settings: ServiceSettings) -> datetime:
    """Keys of that moment or before are forgotten."""
    return world.clock.now() - timedelta(seconds=settings.idempotency_key_retention_s)


def _hash(payload: BaseModel) -> str:
    canonical = json.dumps(payload.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _json(status_code: int, body: str, *, replayed: bool = False) -> Response:
    headers = {REPLAY_HEADER: "true"} if replayed else None
    return Response(body, status_code, headers=headers, media_type="application/json")
