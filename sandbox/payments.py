"""payments-service: orders and the payments that were taken for them. It only reads."""

from typing import Literal

from psycopg import AsyncConnection
from psycopg.rows import DictRow, class_row
from pydantic import BaseModel, ConfigDict, Field

from agentic_loop.sandbox.errors import ServiceError, forbidden_tenant
from agentic_loop.sandbox.request_log import WireTime
from agentic_loop.sandbox.service import FromCaller, service_router
from agentic_loop.sandbox.settings import Service
from agentic_loop.sandbox.world import InWorld

router = service_router(Service.PAYMENTS)

PaymentStatus = Literal["captured", "authorised", "voided"]
Chargeback = Literal["none", "open"]


class Payment(BaseModel):
    """One payment of an order, in whole rupees."""

    model_config = ConfigDict(extra="forbid")

    payment_id: str = Field(min_length=1, max_length=100)
    amount_inr: int = Field(gt=0)
    status: PaymentStatus
    at: WireTime


class Order(BaseModel):
    """An order as the service shows it, payments by time. `note` is free text by anybody; often absent."""

    order_id: str
    customer_id: str
    tenant: str
    currency: str
    total_inr: int
    payments: list[Payment]
    chargeback: Chargeback
    note: str | None = None


class CustomerOrders(BaseModel):
    """The ids of a customer's orders."""

    customer_id: str
    order_ids: list[str]


class _OrderRow(BaseModel):
    order_id: str
    customer_id: str
    tenant: str
    currency: str
    total_inr: int
    chargeback: Chargeback
    note: str | None


class OrderedPayment(Payment):
    """A payment with the order and tenant that it belongs to."""

    order_id: str
    tenant: str


_FIND_ORDER = """
SELECT order_id, customer_id, tenant, currency, total_inr, chargeback, note
FROM sandbox_payments.orders WHERE order_id = %s
"""

_PAYMENTS_OF_ORDER = """
SELECT payment_id, amount_inr, status, at
FROM sandbox_payments.payments WHERE order_id = %s ORDER BY at, payment_id
"""

_FIND_PAYMENT = """
SELECT payment_id, amount_inr, status, at, order_id, tenant
FROM sandbox_payments.payments JOIN sandbox_payments.orders USING (order_id)
WHERE payment_id = %s
"""

_TENANT_OF_ORDER = "SELECT tenant FROM sandbox_payments.orders WHERE order_id = %s"

_ORDERS_OF_CUSTOMER = """
SELECT order_id FROM sandbox_payments.orders
WHERE customer_id = %s AND tenant = %s ORDER BY order_id LIMIT 1000
"""


@router.get("/orders/{order_id}", response_model_exclude_none=True)
async def get_order(order_id: str, world: InWorld, caller: FromCaller) -> Order:
    """The order with its payments."""
    async with world.pool.connection() as connection:
        order = await find_order(connection, order_id)
    if order is None:
        raise order_not_found(order_id)
    if order.tenant != caller.tenant:
        raise forbidden_tenant(f"Order {order_id}")
    return order


@router.get("/customers/{customer_id}/orders")
async def list_customer_orders(customer_id: str, world: InWorld, caller: FromCaller) -> CustomerOrders:
    """The ids of the customer's orders with the caller's tenant; none for a customer nobody knows."""
    async with world.pool.connection() as connection:
        rows = await (await connection.execute(_ORDERS_OF_CUSTOMER, [customer_id, caller.tenant])).fetchall()
    return CustomerOrders(customer_id=customer_id, order_ids=[row["order_id"] for row in rows])


def order_not_found(order_id: str) -> ServiceError:
    """The refusal for an order that does not exist."""
    return ServiceError(
        404, "order_not_found", f"There is no order {order_id!r}; check the number with the customer."
    )


def payment_not_found(payment_id: str) -> ServiceError:
    """The refusal for a payment that does not exist, or not on that order."""
    return ServiceError(404, "payment_not_found", f"There is no such payment {payment_id!r}; read the order again.")


async def find_order(connection: AsyncConnection[DictRow], order_id: str) -> Order | None:
    """The order of any tenant, or None."""
    async with connection.cursor(row_factory=class_row(_OrderRow)) as cursor:
        await cursor.execute(_FIND_ORDER, [order_id])
        row = await cursor.fetchone()
    if row is None:
        return None
    async with connection.cursor(row_factory=class_row(Payment)) as payments:
        await payments.execute(_PAYMENTS_OF_ORDER, [order_id])
        return Order(**row.model_dump(), payments=await payments.fetchall())


async def find_payment(connection: AsyncConnection[DictRow], payment_id: str) -> OrderedPayment | None:
    """The payment of any tenant, or None."""
    async with connection.cursor(row_factory=class_row(OrderedPayment)) as cursor:
        await cursor.execute(_FIND_PAYMENT, [payment_id])
        return await cursor.fetchone()


async def tenant_of_order(connection: AsyncConnection[DictRow], order_id: str) -> str | None:
    """The tenant whose order it is, or None if there is no such order."""
    row = await (await connection.execute(_TENANT_OF_ORDER, [order_id])).fetchone()
    return str(row["tenant"]) if row else None
