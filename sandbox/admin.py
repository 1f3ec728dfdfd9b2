"""The hand from outside: resets the world, breaks it, looks into it. Needs no tenant and is not logged."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from psycopg import AsyncConnection, errors
from psycopg.rows import DictRow, class_row
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from agentic_loop.sandbox import faults, request_log
from agentic_loop.sandbox.clock import wire_time
from agentic_loop.sandbox.errors import ServiceError
from agentic_loop.sandbox.notifications import Notification
from agentic_loop.sandbox.payments import Chargeback, Order, Payment, find_order
from agentic_loop.sandbox.refunds import Refund, RefundStatus
from agentic_loop.sandbox.seed import Ending, SeededOrder, SeededPayment, SeededRefund, insert_order
from agentic_loop.sandbox.settings import Service, ServiceSettings, keep_settings, load_settings, parse_service
from agentic_loop.sandbox.world import InWorld

router = APIRouter(prefix="/_admin", tags=["admin"])

AnyServiceName = Annotated[Service, BeforeValidator(lambda name: parse_service(str(name)))]

MAX_OFFSET_S = 10 * 366 * 86_400.0


class Done(BaseModel):
    """It was done."""

    done: Literal[True] = True


class ArmFault(faults.Fault):
    """A fault to arm; the service may be given by its short name."""

    service: AnyServiceName


class Faults(BaseModel):
    """Every fault on record."""

    faults: list[faults.ArmedFault]


class LoggedRequests(BaseModel):
    """The request log, oldest first."""

    requests: list[request_log.LoggedRequest]


class Tables(BaseModel):
    """What the services' tables hold, in the order in which it was made."""

    counts: dict[str, int]
    orders: list[Order]
    refunds: list[Refund]
    notifications: list[Notification]


class RefundToPlace(BaseModel):
    """A refund that has always been there."""

    model_config = ConfigDict(extra="forbid")

    payment_id: str
    amount_inr: int = Field(gt=0)
    status: RefundStatus
    refund_id: str | None = None
    created_at: AwareDatetime | None = None


class OrderToPlace(BaseModel):
    """An order to create, or to put in the place of the one with that id (its refunds go with it)."""

    model_config = ConfigDict(extra="forbid")

    order_id: str = Field(min_length=1, max_length=100)
    customer_id: str = Field(default="cust-1", min_length=1, max_length=100)
    tenant: str = Field(default="acme", min_length=1, max_length=100)
    currency: str = Field(default="INR", min_length=3, max_length=3)
    total_inr: int = Field(ge=0)
    payments: list[Payment] = Field(default_factory=list, max_length=100)
    refunds: list[RefundToPlace] = Field(default_factory=list, max_length=100)
    chargeback: Chargeback = "none"
    note: str | None = Field(default=None, max_length=20_000)


class NewStatus(BaseModel):
    """The status that a refund gets."""

    model_config = ConfigDict(extra="forbid")

    status: RefundStatus


class SettingsChange(BaseModel):
    """A change of a service's settings; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    service: AnyServiceName
    idempotency_key_retention_s: int | None = Field(default=None, ge=0)
    replication_lag_s: int | None = Field(default=None, ge=0)
    honour_keys: bool | None = None
    lookup_by_key: bool | None = None


class AllSettings(BaseModel):
    """The settings of every service."""

    settings: list[ServiceSettings]


class ClockChange(BaseModel):
    """Either how far the sandbox's time is ahead of real time, in seconds, or what it is from now on."""

    model_config = ConfigDict(extra="forbid")

    offset_s: float | None = Field(default=None, ge=-MAX_OFFSET_S, le=MAX_OFFSET_S)
    now: AwareDatetime | None = None


class ClockReading(BaseModel):
    """The sandbox's time and its offset from real time in seconds."""

    now: str
    offset_s: float


@router.post("/reset")
async def reset(world: InWorld) -> Done:
    """Put everything back as on the first day: rows, faults, settings, log, clock and counters."""
    await world.reset()
    return Done()


@router.post("/faults", status_code=201)
async def arm_fault(fault: ArmFault, world: InWorld, request: Request) -> faults.ArmedFault:
    """Arm a fault. An operation that no route has is refused, so that a misspelt fault is not silently harmless."""
    known: dict[Service, set[str]] = request.app.state.operations
    if fault.operation not in known[fault.service]:
        raise ServiceError(
            422,
            "unknown_operation",
            f"{fault.service} has no operation {fault.operation!r}; use one of {sorted(known[fault.service])}.",
        )
    async with world.pool.connection() as connection:
        return await faults.arm(connection, fault)


@router.get("/faults")
async def list_faults(world: InWorld) -> Faults:
    """Every fault on record, with its counts."""
    async with world.pool.connection() as connection:
        return Faults(faults=await faults.armed_faults(connection))


@router.delete("/faults")
async def disarm_faults(world: InWorld) -> Done:
    """Forget every fault."""
    async with world.pool.connection() as connection:
        await faults.disarm_all(connection)
    return Done()


@router.get("/requests")
async def list_requests(
    world: InWorld,
    service: Annotated[str | None, Query()] = None,
    method: Annotated[str | None, Query()] = None,
) -> LoggedRequests:
    """The requests that arrived, faulted ones too."""
    wanted = parse_service(service) if service else None
    async with world.pool.connection() as connection:
        logged = await request_log.logged_requests(connection, wanted, method.upper() if method else None)
    return LoggedRequests(requests=logged)


_COUNTS = """
SELECT (SELECT count(*) FROM sandbox_payments.orders) AS orders,
       (SELECT count(*) FROM sandbox_refunds.refunds) AS refunds,
       (SELECT count(*) FROM sandbox_notifications.notifications) AS notifications
"""

_ORDER_IDS = "SELECT order_id FROM sandbox_payments.orders ORDER BY order_id LIMIT 1000"

_REFUNDS = "SELECT * FROM sandbox_refunds.refunds ORDER BY written_at, created_at, refund_id LIMIT 10000"

_NOTIFICATIONS = """
SELECT * FROM sandbox_notifications.notifications ORDER BY written_at, notification_id LIMIT 10000
"""


@router.get("/tables", response_model_exclude_none=True)
async def read_tables(world: InWorld) -> Tables:
    """What the services' tables hold."""
    async with world.pool.connection() as connection:
        counts = await (await connection.execute(_COUNTS)).fetchone()
        ids = await (await connection.execute(_ORDER_IDS)).fetchall()
        orders = [await find_order(connection, row["order_id"]) for row in ids]
        async with connection.cursor(row_factory=class_row(Refund)) as cursor:
            refunds = await (await cursor.execute(_REFUNDS)).fetchall()
        async with connection.cursor(row_factory=class_row(Notification)) as messages:
            notifications = await (await messages.execute(_NOTIFICATIONS)).fetchall()
    return Tables(
        counts=counts or {},
        orders=[order for order in orders if order is not None],
        refunds=refunds,
        notifications=notifications,
    )


@router.post("/orders", status_code=201, response_model_exclude_none=True)
async def place_order(wanted: OrderToPlace, world: InWorld) -> Order:
    """Create or replace an order with its payments and refunds."""
    order = _seeded(wanted, world.clock.now())
    try:
        async with world.pool.connection() as connection:
            await _remove_order(connection, wanted.order_id)
            await insert_order(connection, order)
            placed = await find_order(connection, wanted.order_id)
    except errors.UniqueViolation as error:
        raise ServiceError(
            409, "id_in_use", "A payment or refund id of this order belongs to another order; use another."
        ) from error
    if placed is None:
        raise RuntimeError("the order that was just placed is not there")
    return placed


@router.post("/refunds/{refund_id}")
async def set_refund_status(refund_id: str, change: NewStatus, world: InWorld) -> Refund:
    """Settle a refund, or let it fail."""
    async with (
        world.pool.connection() as connection,
        connection.cursor(row_factory=class_row(Refund)) as cursor,
    ):
        await cursor.execute(
            "UPDATE sandbox_refunds.refunds SET status = %s WHERE refund_id = %s RETURNING *",
            [change.status, refund_id],
        )
        refund = await cursor.fetchone()
    if refund is None:
        raise ServiceError(404, "refund_not_found", f"There is no refund {refund_id!r}.")
    return refund


@router.get("/settings")
async def read_settings(world: InWorld) -> AllSettings:
    """The settings of every service."""
    async with world.pool.connection() as connection:
        return AllSettings(settings=[await load_settings(connection, service) for service in Service])


@router.post("/settings")
async def change_settings(change: SettingsChange, world: InWorld) -> ServiceSettings:
    """Change what a service promises, and does."""
    async with world.pool.connection() as connection:
        now = await load_settings(connection, change.service)
        changed = ServiceSettings.model_validate({**now.model_dump(), **change.model_dump(exclude_none=True)})
        await keep_settings(connection, changed)
    return changed


@router.get("/clock")
async def read_clock(world: InWorld) -> ClockReading:
    """The sandbox's time."""
    return ClockReading(now=wire_time(world.clock.now()), offset_s=world.clock.offset_s)


@router.post("/clock")
async def move_clock(change: ClockChange, world: InWorld) -> ClockReading:
    """Move the sandbox's time; it runs on from there."""
    match change:
        case ClockChange(offset_s=float() as offset_s, now=None):
            await world.move_clock(offset_s)
        case ClockChange(offset_s=None, now=datetime() as now):
            await world.move_clock(world.clock.offset_that_makes_it(now))
        case _:
            raise ServiceError(422, "invalid_request", "Send either offset_s or now.")
    return await read_clock(world)


def _seeded(wanted: OrderToPlace, now: datetime) -> SeededOrder:
    return SeededOrder(
        order_id=wanted.order_id,
        customer_id=wanted.customer_id,
        total_inr=wanted.total_inr,
        payments=tuple(
            SeededPayment(payment.payment_id, payment.amount_inr, payment.status, payment.at)
            for payment in wanted.payments
        ),
        trouble="placed by an admin",
        expected=Ending("FAILED", "no_action"),
        refunds=tuple(
            SeededRefund(
                refund.refund_id or f"rf_{wanted.order_id}_{number}",
                refund.payment_id,
                refund.amount_inr,
                refund.status,
                refund.created_at or now,
            )
            for number, refund in enumerate(wanted.refunds, start=1)
        ),
        tenant=wanted.tenant,
        currency=wanted.currency,
        chargeback=wanted.chargeback,
        note=wanted.note,
    )


async def _remove_order(connection: AsyncConnection[DictRow], order_id: str) -> None:
    await connection.execute("DELETE FROM sandbox_refunds.refunds WHERE order_id = %s", [order_id])
    await connection.execute("DELETE FROM sandbox_payments.orders WHERE order_id = %s", [order_id])
