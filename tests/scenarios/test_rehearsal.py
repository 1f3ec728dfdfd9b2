"""The rehearsal model takes every seeded order, and orders with random ids, amounts and histories, to its right end."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentic_loop.graph.run import TaskState
from agentic_loop.sandbox.seed import (
    ENDING_OF_UNKNOWN_ORDER,
    HOME_TENANT,
    SEEDED_ORDERS,
    UNKNOWN_ORDER_ID,
    Ending,
    SeededOrder,
)
from tests.conftest import DatabaseMaker, Sandbox

from .packets import ended_with_packet
from .world import ASHA, MEERA, World, open_world

APPROVERS = {"support_lead": ASHA, "manager": MEERA}
RANDOM_ORDERS = 32
SEED = 20_261_028


@pytest.fixture(scope="module")
def database(make_database: DatabaseMaker) -> Iterator[str]:
    """One database for this module: each order has ledger keys of its own."""
    yield make_database()


def _goal(order_id: str) -> str:
    return f"Order {order_id} was charged twice, and my refund has not arrived. Please investigate and resolve it."


async def _expect(world: World, task: TaskState, expected: Ending, order_id: str, before: list[dict[str, Any]]) -> None:
    """The ending, what it needed, and what the services hold afterwards."""
    new = [row for row in await world.refunds(order_id) if row not in before]
    writes = await world.requests("POST", "/refunds")
    told = await world.customer_notices()
    if expected.status != "SUCCEEDED":
        assert (new, writes, told) == ([], [], [])
        assert await world.role_notices() == []
        await ended_with_packet(world, task, expected.status, expected.reason or "")
        return
    assert (task.status, task.ending and task.ending.reason) == ("SUCCEEDED", "completed"), task.ending
    assert len(told) == 1
    assert [row["payment_id"] for row in new] == ([expected.refund_payment_id] if expected.refund_payment_id else [])
    assert len(writes) == len(new)
    about = new or before
    assert about[-1]["refund_id"] in told[0]["body"]


async def _run(world: World, order_id: str, approver_role: str | None) -> TaskState:
    """Start the task, and let the person who is asked approve; it must be the role that is expected."""
    task = await world.start(_goal(order_id))
    if approver_role is None:
        assert task.approval is None, f"approval by {task.approval.required_role} was not expected"
        return task
    assert task.waiting, task.ending
    assert task.approval is not None
    assert task.approval.required_role == approver_role
    assert await world.requests("POST", "/refunds") == []
    assert [notice["recipient"] for notice in await world.role_notices()] == [f"role:{approver_role}"]
    return await world.runtime.decide(task.approval.id, "approve", approver=APPROVERS[approver_role])


@pytest.mark.parametrize("order", SEEDED_ORDERS, ids=lambda order: f"{order.order_id}-{order.expected.status}")
async def test_a_seeded_order_ends_as_its_row_says(sandbox: Sandbox, database: str, order: SeededOrder) -> None:
    async with open_world(sandbox, database) as world:
        before = await world.refunds(order.order_id)
        task = await _run(world, order.order_id, order.expected.approver_role)
        await _expect(world, task, order.expected, order.order_id, before)


async def test_an_unknown_order_ends_as_a_question(sandbox: Sandbox, database: str) -> None:
    async with open_world(sandbox, database) as world:
        task = await _run(world, UNKNOWN_ORDER_ID, None)
        await _expect(world, task, ENDING_OF_UNKNOWN_ORDER, UNKNOWN_ORDER_ID, [])
        assert UNKNOWN_ORDER_ID in (task.ending.detail if task.ending else "")
