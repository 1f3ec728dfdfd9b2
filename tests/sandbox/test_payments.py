from collections.abc import AsyncIterator

import httpx2
import pytest

from agentic_loop.sandbox.seed import HOME_TENANT, OTHER_TENANT, SEEDED_ORDERS, UNKNOWN_ORDER_ID, SeededOrder
from tests.sandbox.conftest import GLOBEX, World, refusal_of


async def test_order_8472_has_the_wire_shape_that_tools_rely_on(world: World) -> None:
    response = await world.get("/orders/8472")
    assert response.json() == {
        "order_id": "8472",
        "customer_id": "cust-3391",
        "tenant": "acme",
        "currency": "INR",
        "total_inr": 2000,
        "payments": [
            {"payment_id": "pay_5a1", "amount_inr": 2000, "status": "captured", "at": "2026-10-20T09:14:02Z"},
            {"payment_id": "pay_5a2", "amount_inr": 2000, "status": "captured", "at": "2026-10-20T09:14:41Z"},
        ],
        "chargeback": "none",
    }


@pytest.mark.parametrize("order", SEEDED_ORDERS, ids=lambda order: order.order_id)
async def test_every_seeded_order_is_served_to_its_tenant(world: World, order: SeededOrder) -> None:
    response = await world.client.get(f"/orders/{order.order_id}", headers={"X-Tenant": order.tenant})
    served = response.json()
    assert served["customer_id"] == order.customer_id
    assert served.get("note") == order.note
    assert [payment["payment_id"] for payment in served["payments"]] == [p.payment_id for p in order.payments]
    refunds = await world.client.get(
        "/refunds", params={"order_id": order.order_id}, headers={"X-Tenant": order.tenant}
    )
    assert [refund["refund_id"] for refund in refunds.json()["refunds"]] == [r.refund_id for r in order.refunds]


def test_the_seed_table_agrees_with_itself() -> None:
    ids = [order.order_id for order in SEEDED_ORDERS]
    payment_ids = [payment.payment_id for order in SEEDED_ORDERS for payment in order.payments]
    assert len(set(ids)) == len(ids) >= 23
    assert UNKNOWN_ORDER_ID not in ids
    assert len(set(payment_ids)) == len(payment_ids)
    assert {order.tenant for order in SEEDED_ORDERS} == {HOME_TENANT, OTHER_TENANT}
    for order in SEEDED_ORDERS:
        if order.expected.refund_payment_id is not None:
            captured = [payment for payment in order.payments if payment.status == "captured"]
            assert order.expected.refund_payment_id == captured[-1].payment_id
            assert not order.refunds
            amount_inr = captured[-1].amount_inr
            role = "manager" if amount_inr > 10_000 else "support_lead" if amount_inr > 1_000 else None
            assert order.expected.approver_role == role


async def test_an_unknown_order_and_one_of_another_tenant_are_refused(world: World) -> None:
    assert refusal_of(await world.get("/orders/0000")) == (404, "order_not_found")
    assert refusal_of(await world.get("/orders/8484")) == (403, "forbidden_tenant")
    assert (await world.client.get("/orders/8484", headers=GLOBEX)).status_code == 200


async def test_the_orders_of_a_customer_are_those_of_the_tenant(world: World) -> None:
    assert (await world.get("/customers/cust-3595/orders")).json()["order_ids"] == ["8493", "8494"]
    assert (await world.get("/customers/cust-7710/orders")).json()["order_ids"] == []
    assert (await world.get("/customers/cust-Zoë-अनिका-東京/orders")).json()["order_ids"] == ["8497"]


@pytest.mark.parametrize("path", ["/orders/8472", "/refunds?order_id=8472", "/notifications?recipient=x"])
async def test_a_request_without_a_tenant_is_refused_and_logged(world: World, path: str) -> None:
    assert refusal_of(await world.client.get(path)) == (400, "tenant_missing")
    assert [(entry["tenant"], entry["status"]) for entry in await world.log()] == [(None, 400)]


async def test_an_unknown_path_is_refused_in_the_same_shape(world: World) -> None:
    assert refusal_of(await world.get("/nowhere")) == (404, "no_such_operation")


@pytest.mark.parametrize("path", ["/orders/8472%00", "/refunds/%00", "/notifications?recipient=%00"])
async def test_text_that_cannot_be_stored_is_refused(world: World, path: str) -> None:
    assert refusal_of(await world.get(path))[0] in (404, 422)


async def test_a_body_that_is_too_large_or_of_unknown_length_is_refused(world: World) -> None:
    headers = {"X-Tenant": "acme", "Content-Type": "application/json"}
    big = await world.client.post("/policy/search", content=b" " * 200_000, headers=headers)
    assert refusal_of(big) == (413, "body_too_large")

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"query": "refund"}'

    chunked: httpx2.Response = await world.client.post("/policy/search", content=chunks(), headers=headers)
    assert refusal_of(chunked) == (411, "length_required")
