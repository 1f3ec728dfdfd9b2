"""An approval is asked for once per action and round, and decided once."""

import asyncio
from dataclasses import replace

import pytest

from agentic_loop.graph.errors import Defect, Misuse
from agentic_loop.graph.store.stores import Stores

from .samples import LATER, NOON, OTHER_HASH, approval, by_the_lead, fresh


async def test_a_request_reads_back_as_it_was(stores: Stores) -> None:
    row = approval(fresh("task"), args={"note": "NUL \x00 ₹", "amount_inr": 2000})
    assert await stores.approvals.request(row) == row
    assert await stores.approvals.find(row.id) == row
    assert await stores.approvals.find("no-such-approval") is None


async def test_the_same_action_in_the_same_round_is_asked_for_once(stores: Stores) -> None:
    task_id = fresh("task")
    asked = await asyncio.gather(*(stores.approvals.request(approval(task_id)) for _ in range(10)))
    assert len({row.id for row in asked}) == 1
    await stores.approvals.decide(asked[0].id, **by_the_lead())
    assert (await stores.approvals.request(approval(task_id))).decision == "approved"
    again = await stores.approvals.request(approval(task_id, round_number=2))
    other = await stores.approvals.request(approval(task_id, action_hash=OTHER_HASH))
    assert [row.id for row in await stores.approvals.of_task(task_id)] == [asked[0].id, again.id, other.id]


async def test_a_request_is_undecided_and_its_id_is_its_own(stores: Stores) -> None:
    row = approval(fresh("task"))
    with pytest.raises(Defect, match="as decided"):
        await stores.approvals.request(replace(row, decision="approved"))
    with pytest.raises(Defect, match="as decided"):
        await stores.approvals.request(replace(row, consumed_by="key"))
    await stores.approvals.request(row)
    with pytest.raises(Defect, match="belongs to another request"):
        await stores.approvals.request(replace(row, task_id=fresh("task")))


async def test_the_first_decision_stays(stores: Stores) -> None:
    row = await stores.approvals.request(approval(fresh("task")))
    decided = await stores.approvals.decide(
        row.id, **by_the_lead("edited"), message="less, please", edited_args={"amount_inr": 1500}
    )
    assert decided == replace(
        row,
        decision="edited",
        decided_by="lead-1",
        decided_role="support_lead",
        decided_at=NOON,
        message="less, please",
        edited_args={"amount_inr": 1500},
    )
    assert await stores.approvals.decide(row.id, **by_the_lead("rejected", LATER)) == decided
    with pytest.raises(Misuse, match="inbox"):
        await stores.approvals.decide("no-such-approval", **by_the_lead())


async def test_of_two_decisions_at_once_one_counts_and_both_learn_which(stores: Stores) -> None:
    row = await stores.approvals.request(approval(fresh("task")))
    decisions = [by_the_lead("approved"), by_the_lead("rejected")] * 5
    answers = await asyncio.gather(*(stores.approvals.decide(row.id, **decision) for decision in decisions))
    assert len({answer.decision for answer in answers}) == 1


async def test_the_inbox_shows_what_waits_by_tenant_and_role(stores: Stores) -> None:
    tenant = fresh("tenant")
    lead = await stores.approvals.request(approval(fresh("task"), tenant=tenant))
    manager = await stores.approvals.request(approval(fresh("task"), tenant=tenant, role="manager"))
    decided = await stores.approvals.request(approval(fresh("task"), tenant=tenant))
    await stores.approvals.decide(decided.id, **by_the_lead())
    assert await stores.approvals.pending(tenant) == [lead, manager]
    assert await stores.approvals.pending(tenant, "manager") == [manager]
    assert await stores.approvals.pending(tenant, None, 1) == [lead]
    assert {row.id for row in await stores.approvals.pending(None, None, 1000)} >= {lead.id, manager.id}
