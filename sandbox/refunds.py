"""refunds-service: refunds of payments.

It does not look for another refund of the same payment: a second key on a payment makes a second refund. To
prevent that is its caller's duty. The list by order is read from a replica that lags; everything else from
the primary.
"""

from datetime import timedelta
from typing import Annotated, Literal

from fastapi import Query
from psycopg import AsyncConnection
from psycopg.rows import DictRow, class_row
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from starlette.responses import Response

from agentic_loop.sandbox.errors import ServiceError, forbidden_tenant
from agentic_loop.sandbox.idempotency import Created, look_up, once
from agentic_loop.sandbox.payments import find_payment, order_not_found, payment_not_found, tenant_of_order
from agentic_loop.sandbox.request_log import WireTime
from agentic_loop.sandbox.service import Caller, FromCaller, service_router
from agentic_loop.sandbox.settings import Service, load_settings
from agentic_loop.sandbox.world import InWorld, World

router = service_router(Service.REFUNDS)

RefundStatus = Literal["pending", "settled", "failed"]


class RefundRequest(BaseModel):
    """What to refund, in whole rupees."""

    model_config = ConfigDict(extra="forbid")

    order_id: str = Field(min_length=1, max_length=100)
    payment_id: str = Field(min_length=1, max_length=100)
    amount_inr: Annotated[StrictInt, Field(gt=0, le=1_000_000_000)]


class Refund(BaseModel):
    """A refund as the service shows it."""

    refund_id: str
    order_id: str
    payment_id: str
    amount_inr: int
    status: RefundStatus
    created_at: WireTime


class RefundsOfOrder(BaseModel):
    """The refunds of an order that the replica has."""

    order_id: str
    refunds: list[Refund]


class RefundsOfPayment(BaseModel):
    """All refunds of a payment."""

    payment_id: str
    refunds: list[Refund]


class RefundOfKey(BaseModel):
    """What a key did: the status that was replied, and the refund as it is now."""

    status_code: int
    refund: Refund


class _TenantRefund(Refund):
    tenant: str


_FIND_REFUND = "SELECT * FROM sandbox_refunds.refunds WHERE refund_id = %s"

_REFUNDS_OF_ORDER = """
SELECT * FROM sandbox_refunds.refunds
WHERE order_id = %s AND tenant = %s AND written_at <= %s ORDER BY created_at, refund_id
"""

_REFUNDS_OF_PAYMENT = """
SELECT * FROM sandbox_refunds.refunds
WHERE payment_id = %s AND tenant = %s ORDER BY created_at, refund_id
"""

_CREATE_REFUND = """
INSERT INTO sandbox_refunds.refunds
    (refund_id, tenant, order_id, payment_id, amount_inr, status, created_at, written_at)
VALUES ('rf_' || nextval('sandbox_refunds.refund_numbers'), %(tenant)s, %(order_id)s, %(payment_id)s,
        %(amount_inr)s, 'pending', %(now)s, %(now)s)
RETURNING *
"""


@router.get("/refunds")
async def list_refunds(
    order_id: Annotated[str, Query(min_length=1)], world: InWorld, caller: FromCaller
) -> RefundsOfOrder:
    """The refunds of an order, as the replica has them: those of the last seconds are missing."""
    async with world.pool.connection() as connection:
        tenant = await tenant_of_order(connection, order_id)
        if tenant is not None and tenant != caller.tenant:
            raise forbidden_tenant(f"Order {order_id}")
        settings = await load_settings(connection, Service.REFUNDS)
        replicated_until = world.clock.now() - timedelta(seconds=settings.replication_lag_s)
        async with connection.cursor(row_factory=class_row(Refund)) as cursor:
            await cursor.execute(_REFUNDS_OF_ORDER, [order_id, caller.tenant, replicated_until])
            return RefundsOfOrder(order_id=order_id, refunds=await cursor.fetchall())


@router.get("/refunds/by-payment/{payment_id}")
async def list_refunds_by_payment(payment_id: str, world: InWorld, caller: FromCaller) -> RefundsOfPayment:
    """The refunds of a payment, all of them."""
    async with world.pool.connection() as connection:
        payment = await find_payment(connection, payment_id)
        if payment is None:
            raise payment_not_found(payment_id)
        if payment.tenant != caller.tenant:
            raise forbidden_tenant(f"Payment {payment_id}")
        async with connection.cursor(row_factory=class_row(Refund)) as cursor:
            await cursor.execute(_REFUNDS_OF_PAYMENT, [payment_id, caller.tenant])
            return RefundsOfPayment(payment_id=payment_id, refunds=await cursor.fetchall())


@router.get("/refunds/by-key")
async def get_refund_by_key(
    key: Annotated[str, Query(min_length=1)], world: InWorld, caller: FromCaller
) -> RefundOfKey:
    """The refund that a key made, while the key is retained."""
    async with world.pool.connection() as connection:
        kept = await look_up(connection, world, Service.REFUNDS, caller.tenant, key)
        refund = await _find(connection, kept.resource_id, caller)
    return RefundOfKey(status_code=kept.status_code, refund=refund)


@router.get("/refunds/{refund_id}")
async def get_refund(refund_id: str, world: InWorld, caller: FromCaller) -> Refund:
    """The refund, as it is now."""
    async with world.pool.connection() as connection:
        return await _find(connection, refund_id, caller)


@router.post("/refunds", status_code=201)
async def create_refund(wanted: RefundRequest, world: InWorld, caller: FromCaller) -> Response:
    """Make a refund, once for a key."""

    async def effect(connection: AsyncConnection[DictRow]) -> Created:
        refund = await _create(connection, world, caller, wanted)
        return Created(refund.refund_id, refund)

    return await once(world, Service.REFUNDS, caller, wanted, effect)


async def _find(connection: AsyncConnection[DictRow], refund_id: str, caller: Caller) -> Refund:
    async with connection.cursor(row_factory=class_row(_TenantRefund)) as cursor:
        await cursor.execute(_FIND_REFUND, [refund_id])
        refund = await cursor.fetchone()
    if refund is None:
        raise ServiceError(404, "refund_not_found", f"There is no refund {refund_id!r}; list those of the order.")
    if refund.tenant != caller.tenant:
        raise forbidden_tenant(f"Refund {refund_id}")
    return Refund.model_validate(refund.model_dump(exclude={"tenant"}))


async def _create(
    connection: AsyncConnection[DictRow], world: World, caller: Caller, wanted: RefundRequest
) -> Refund:
    tenant = await tenant_of_order(connection, wanted.order_id)
    if tenant is None:
        raise order_not_found(wanted.order_id)
    if tenant != caller.tenant:
        raise forbidden_tenant(f"Order {wanted.order_id}")
    payment = await find_payment(connection, wanted.payment_id)
    if payment is None or payment.order_id != wanted.order_id:
        raise payment_not_found(wanted.payment_id)
    if wanted.amount_inr > payment.amount_inr:
        raise ServiceError(
            422,
            "amount_exceeds_payment",
            f"Refund at most INR {payment.amount_inr}, which is what payment {payment.payment_id} took.",
        )
    values = {**wanted.model_dump(), "tenant": caller.tenant, "now": world.clock.now()}
    async with connection.cursor(row_factory=class_row(Refund)) as cursor:
        await cursor.execute(_CREATE_REFUND, values)
        created = await cursor.fetchone()
    if created is None:
        raise RuntimeError("INSERT … RETURNING returned no row")
    return created
