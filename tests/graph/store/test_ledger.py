"""The ledger: one effect per key, one approval per effect, one worker per task."""

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from pydantic import JsonValue

from agentic_loop.graph.errors import Defect
from agentic_loop.graph.records import (
    AlreadyBegun,
    ApprovalRefused,
    ApprovalRow,
    BeginAnswer,
    Begun,
    FenceLost,
    Intent,
    KeyConflict,
)
from agentic_loop.graph.state import CallFault
from agentic_loop.graph.store.database import Pool
from agentic_loop.graph.store.lease import PostgresLease
from agentic_loop.graph.store.stores import Stores

from .samples import HASH, LATER, NOON, OTHER_HASH, approval, by_the_lead, fresh

REFUSED = CallFault(category="rejected", message="the order is closed")


@dataclass(frozen=True)
class Worker:
    """One task under one fence, and short ways to use the ledger for it."""

    stores: Stores
    task_id: str
    fence: int
    tenant: str
    key: str

    async def begin(
        self,
        *,
        key: str | None = None,
        action_hash: str = HASH,
        approval_id: str | None = None,
        at: datetime = NOON,
        tenant: str | None = None,
    ) -> BeginAnswer:
        return await self.stores.ledger.begin(
            tenant=tenant or self.tenant,
            key=key or self.key,
            action_hash=action_hash,
            tool="issue_refund",
            args={"payment_id": "pay_5a2", "amount_inr": 2000},
            task_id=self.task_id,
            fence=self.fence,
            approval_id=approval_id,
            request_id=fresh("req"),
            at=at,
        )

    async def reopen(
        self,
        *,
        action_hash: str = HASH,
        approval_id: str | None = None,
        dispatches: int = 1,
        max_dispatches: int = 2,
        at: datetime = LATER,
        task_id: str | None = None,
    ) -> BeginAnswer:
        return await self.stores.ledger.reopen(
            tenant=self.tenant,
            key=self.key,
            action_hash=action_hash,
            fence=self.fence,
            approval_id=approval_id,
            request_id="req-again",
            dispatches=dispatches,
            max_dispatches=max_dispatches,
            at=at,
            task_id=task_id,
        )

    async def finish(self, result: JsonValue, ref: str = "rf_1", at: datetime = LATER) -> Intent:
        return await self.stores.ledger.finish(
            tenant=self.tenant, key=self.key, result=result, ref=ref, request_id="req-last", at=at
        )

    async def fail(self) -> None:
        await self.stores.ledger.fail(tenant=self.tenant, key=self.key, fault=REFUSED, at=LATER)

    async def mark_unknown(self) -> None:
        await self.stores.ledger.mark_unknown(tenant=self.tenant, key=self.key, at=LATER)

    async def intent(self) -> Intent:
        found = await self.stores.ledger.find(tenant=self.tenant, key=self.key)
        assert found is not None
        return found

    async def approved(self, row: ApprovalRow | None = None) -> str:
        """The id of an approval for this task that the lead has given."""
        asked = await self.stores.approvals.request(row or approval(self.task_id, tenant=self.tenant))
        await self.stores.approvals.decide(asked.id, **by_the_lead())
        return asked.id


async def new_worker(stores: Stores, tenant: str | None = None, key: str | None = None) -> Worker:
    task_id = fresh("task")
    fence = await stores.lease.acquire(task_id)
    return Worker(stores, task_id, fence, tenant or fresh("tenant"), key or "refund:order-8472:pay_5a2:v1")


# --- the intent -------------------------------------------------------------------------------------------------


async def test_an_effect_is_begun_once_and_its_result_stays(stores: Stores) -> None:
    worker = await new_worker(stores)
    begun = await worker.begin()
    assert isinstance(begun, Begun)
    assert (begun.intent.status, begun.intent.dispatches, begun.intent.intended_at) == ("intended", 1, NOON)
    assert begun.intent.args == {"payment_id": "pay_5a2", "amount_inr": 2000}
    assert await worker.begin() == AlreadyBegun(begun.intent)
    executed = await worker.finish({"refund_id": "rf_1", "text": "NUL \x00", "rate": 1.0})
    assert executed == replace(
        begun.intent,
        status="executed",
        result={"refund_id": "rf_1", "text": "NUL \x00", "rate": 1.0},
        ref="rf_1",
        request_id="req-last",
        finished_at=LATER,
    )
    assert await worker.finish({"refund_id": "rf_other"}, "rf_other") == executed
    await worker.fail()
    await worker.mark_unknown()
    assert await worker.begin() == AlreadyBegun(executed)
    assert await worker.intent() == executed


async def test_another_action_under_the_key_is_a_conflict_that_shows_what_is_there(stores: Stores) -> None:
    worker = await new_worker(stores)
    begun = await worker.begin()
    assert isinstance(begun, Begun)
    assert await worker.begin(action_hash=OTHER_HASH) == KeyConflict(begun.intent)
    executed = await worker.finish(None)
    assert await worker.begin(action_hash=OTHER_HASH) == KeyConflict(executed)


async def test_another_task_meets_the_same_effect(stores: Stores) -> None:
    first = await new_worker(stores)
    await first.begin()
    done = await first.finish({"refund_id": "rf_1"})
    second = await new_worker(stores, first.tenant, first.key)
    assert await second.begin() == AlreadyBegun(done)


async def test_keys_belong_to_a_tenant(stores: Stores) -> None:
    worker = await new_worker(stores)
    assert isinstance(await worker.begin(), Begun)
    assert isinstance(await worker.begin(tenant=fresh("tenant")), Begun)


async def test_of_many_begins_at_once_one_may_send(stores: Stores) -> None:
    workers = [await new_worker(stores, tenant="crowd", key=fresh("key"))]
    workers += [await new_worker(stores, "crowd", workers[0].key) for _ in range(4)]
    answers = await asyncio.gather(*(worker.begin() for worker in workers for _ in range(4)))
    assert sum(isinstance(answer, Begun) for answer in answers) == 1
    assert sum(isinstance(answer, AlreadyBegun) for answer in answers) == 19


async def test_a_confirmed_failure_may_be_begun_anew_by_any_action(stores: Stores, pool: Pool) -> None:
    worker = await new_worker(stores)
    await worker.begin()
    await worker.fail()
    assert (await worker.intent()).status == "failed"
    await worker.stores.ledger.flag(tenant=worker.tenant, key=worker.key, detail="odd", at=NOON)
    other = await new_worker(stores, worker.tenant, worker.key)
    anew = await other.begin(action_hash=OTHER_HASH)
    assert isinstance(anew, Begun)
    assert (anew.intent.task_id, anew.intent.action_hash) == (other.task_id, OTHER_HASH)
    assert (anew.intent.status, anew.intent.dispatches, anew.intent.flagged) == ("intended", 1, False)
    assert isinstance(await worker.begin(), KeyConflict)
    # What was overwritten is still on record.
    async with pool.connection() as link:
        cursor = await link.execute(
            "SELECT intent ->> 'status' AS status FROM agentic_loop.intent_history "
            "WHERE tenant = %s AND key = %s ORDER BY sequence",
            [worker.tenant, worker.key],
        )
        assert [row["status"] for row in await cursor.fetchall()] == ["intended", "failed", "failed", "intended"]


async def test_a_late_answer_counts_after_unknown_and_after_failed(stores: Stores) -> None:
    worker = await new_worker(stores)
    await worker.begin()
    await worker.mark_unknown()
    assert (await worker.intent()).status == "unknown"
    assert isinstance(await worker.begin(), AlreadyBegun)
    assert (await worker.finish("late")).status == "executed"
    other = await new_worker(stores)
    await other.begin()
    await other.fail()
    await other.mark_unknown()
    assert (await other.intent()).status == "failed"
    assert (await other.finish("late")).result == "late"


async def test_what_was_never_begun_is_a_defect(stores: Stores) -> None:
    worker = await new_worker(stores)
    for attempt in (
        worker.finish(None),
        worker.fail(),
        worker.mark_unknown(),
        worker.reopen(),
        stores.ledger.flag(tenant=worker.tenant, key=worker.key, detail="", at=NOON),
    ):
        with pytest.raises(Defect, match="Nothing was begun"):
            await attempt
    assert await stores.ledger.find(tenant=worker.tenant, key=worker.key) is None


async def test_operators_find_what_is_flagged_and_what_a_task_began(stores: Stores) -> None:
    worker = await new_worker(stores)
    for key in ("k1", "k2", "key with NUL \x00"):
        await worker.begin(key=key)
    await stores.ledger.flag(tenant=worker.tenant, key="k2", detail="nobody can tell", at=NOON)
    assert [intent.key for intent in await stores.ledger.of_task(worker.task_id)] == ["k1", "k2", "key with NUL \x00"]
    assert [(intent.key, intent.flagged) for intent in await stores.ledger.flagged(worker.tenant)] == [("k2", True)]
    assert "k2" in [intent.key for intent in await stores.ledger.flagged(limit=1000)]


# --- the fence --------------------------------------------------------------------------------------------------


async def test_only_the_newest_fence_may_begin_or_reopen(stores: Stores, store_url: str) -> None:
    worker = await new_worker(stores)
    await worker.begin()
    await stores.lease.release(worker.task_id)
    async with PostgresLease(store_url) as other:
        fence = await other.acquire(worker.task_id)
        assert fence == worker.fence + 1
        assert await worker.begin(key="another") == FenceLost()
        assert await worker.reopen() == FenceLost()
        assert isinstance(await replace(worker, fence=fence).reopen(), Begun)
        assert isinstance(await replace(worker, fence=fence).begin(key="another"), Begun)


async def test_without_a_lease_nothing_is_begun(stores: Stores) -> None:
    worker = Worker(stores, fresh("task"), 1, fresh("tenant"), "key")
    assert await worker.begin() == FenceLost()
    assert await stores.ledger.find(tenant=worker.tenant, key=worker.key) is None


async def test_a_takeover_waits_for_an_effect_that_is_being_begun(stores: Stores, pool: Pool, store_url: str) -> None:
    worker = await new_worker(stores)
    await stores.lease.release(worker.task_id)
    approval_id = await worker.approved()
    async with PostgresLease(store_url) as other:
        async with pool.connection() as link, link.transaction():
            # Stops the effect half-way: after its fence was checked, before it is committed.
            await link.execute("SELECT 1 FROM agentic_loop.approvals WHERE id = %s FOR UPDATE", [approval_id])
            effect = asyncio.create_task(worker.begin(approval_id=approval_id))
            await asyncio.wait([effect], timeout=0.1)
            takeover = asyncio.create_task(other.acquire(worker.task_id))
            await asyncio.wait([takeover], timeout=0.1)
            assert not effect.done()
            assert not takeover.done()
        assert isinstance(await effect, Begun)
        assert await takeover == worker.fence + 1
        assert await worker.begin(key="another") == FenceLost()


# --- the approval -----------------------------------------------------------------------------------------------


async def test_an_approval_is_used_up_with_the_intent(stores: Stores) -> None:
    worker = await new_worker(stores)
    approval_id = await worker.approved()
    assert isinstance(await worker.begin(approval_id=approval_id), Begun)
    row = await stores.approvals.find(approval_id)
    assert row is not None
    assert row.consumed_by == worker.key
    again = await worker.begin(approval_id=approval_id, key="another")
    assert isinstance(again, ApprovalRefused)
    assert "was used already, for refund:order-8472" in again.detail
    assert await stores.ledger.find(tenant=worker.tenant, key="another") is None


async def test_an_edited_approval_covers_its_action(stores: Stores) -> None:
    worker = await new_worker(stores)
    asked = await stores.approvals.request(approval(worker.task_id, tenant=worker.tenant))
    await stores.approvals.decide(asked.id, **by_the_lead("edited"))
    assert isinstance(await worker.begin(approval_id=asked.id), Begun)


async def test_what_does_not_cover_the_action_is_refused_and_leaves_nothing(stores: Stores) -> None:
    worker = await new_worker(stores)
    tenant, task_id = worker.tenant, worker.task_id
    undecided = await stores.approvals.request(approval(task_id, tenant=tenant, round_number=7))
    rejected = await stores.approvals.request(approval(task_id, tenant=tenant, round_number=8))
    await stores.approvals.decide(rejected.id, **by_the_lead("rejected"))
    cases = {
        "does not exist": "no-such-approval",
        "has not been decided": undecided.id,
        "was rejected": rejected.id,
        "expired at": await worker.approved(approval(task_id, tenant=tenant, expires_at=NOON)),
        "another task": await worker.approved(approval(fresh("task"), tenant=tenant)),
        "belongs to another": await worker.approved(approval(task_id, tenant="other", round_number=9)),
        "another action": await worker.approved(approval(task_id, tenant=tenant, action_hash=OTHER_HASH)),
    }
    for words, approval_id in cases.items():
        answer = await worker.begin(approval_id=approval_id)
        assert isinstance(answer, ApprovalRefused), words
        assert words in answer.detail
        assert await stores.ledger.find(tenant=tenant, key=worker.key) is None
        row = await stores.approvals.find(approval_id)
        assert row is None or row.consumed_by is None


async def test_an_approval_counts_until_the_moment_it_expires(stores: Stores) -> None:
    worker = await new_worker(stores)
    approval_id = await worker.approved(approval(worker.task_id, tenant=worker.tenant, expires_at=LATER))
    assert isinstance(await worker.begin(approval_id=approval_id, at=LATER), ApprovalRefused)
    assert isinstance(await worker.begin(approval_id=approval_id, at=LATER - timedelta(microseconds=1)), Begun)


async def test_what_is_on_record_is_told_before_the_approval_is_looked_at(stores: Stores) -> None:
    worker = await new_worker(stores)
    approval_id = await worker.approved()
    await worker.begin(approval_id=approval_id)
    done = await worker.finish("done")
    assert await worker.begin(approval_id=approval_id) == AlreadyBegun(done)
    assert await worker.begin(approval_id="no-such-approval") == AlreadyBegun(done)


async def test_twenty_begins_at_once_use_an_approval_once(stores: Stores) -> None:
    worker = await new_worker(stores)
    approval_id = await worker.approved()
    begins = [worker.begin(key=f"key-{number}", approval_id=approval_id) for number in range(20)]
    answers = await asyncio.gather(*begins)
    assert sum(isinstance(answer, Begun) for answer in answers) == 1
    assert sum(isinstance(answer, ApprovalRefused) for answer in answers) == 19
    assert len(await stores.ledger.of_task(worker.task_id)) == 1


async def test_a_failure_does_not_give_the_approval_back(stores: Stores) -> None:
    worker = await new_worker(stores)
    approval_id = await worker.approved()
    await worker.begin(approval_id=approval_id)
    await worker.fail()
    assert isinstance(await worker.begin(approval_id=approval_id), ApprovalRefused)
    assert (await worker.intent()).status == "failed"
    second = await worker.approved(approval(worker.task_id, tenant=worker.tenant, round_number=2))
    assert isinstance(await worker.begin(approval_id=second), Begun)


# --- reopening --------------------------------------------------------------------------------------------------


async def test_one_more_dispatch_after_a_confirmed_absence_within_the_bound(stores: Stores) -> None:
    worker = await new_worker(stores)
    await worker.begin()
    await worker.mark_unknown()
    reopened = await worker.reopen()
    assert isinstance(reopened, Begun)
    assert (reopened.intent.status, reopened.intent.dispatches) == ("intended", 2)
    assert reopened.intent.request_id == "req-again"
    assert await worker.reopen(dispatches=2) == AlreadyBegun(reopened.intent)
    assert isinstance(await worker.reopen(dispatches=2, max_dispatches=3), Begun)


async def test_what_was_confirmed_before_a_later_dispatch_permits_nothing(stores: Stores) -> None:
    worker = await new_worker(stores)
    await worker.begin()
    answers = await asyncio.gather(*(worker.reopen(max_dispatches=9) for _ in range(8)))
    assert sum(isinstance(answer, Begun) for answer in answers) == 1
    assert (await worker.intent()).dispatches == 2


async def test_only_an_open_intent_of_the_same_action_is_reopened(stores: Stores) -> None:
    worker = await new_worker(stores)
    begun = await worker.begin()
    assert isinstance(begun, Begun)
    assert await worker.reopen(action_hash=OTHER_HASH) == KeyConflict(begun.intent)
    await worker.fail()
    assert await worker.reopen() == AlreadyBegun(await worker.intent())
    await worker.begin()
    done = await worker.finish("done")
    assert await worker.reopen() == AlreadyBegun(done)


async def test_the_consumed_approval_carries_a_second_dispatch_until_it_expires(stores: Stores) -> None:
    worker = await new_worker(stores)
    approval_id = await worker.approved(approval(worker.task_id, tenant=worker.tenant, expires_at=LATER))
    await worker.begin(approval_id=approval_id)
    for offered in (approval_id, None):
        late = await worker.reopen(approval_id=offered, at=LATER)
        assert isinstance(late, ApprovalRefused)
        assert "expired at" in late.detail
    assert isinstance(await worker.reopen(approval_id=approval_id, at=NOON), Begun)


async def test_a_new_approval_may_carry_a_second_dispatch_once(stores: Stores) -> None:
    worker = await new_worker(stores)
    first = await worker.approved(approval(worker.task_id, tenant=worker.tenant, expires_at=LATER))
    await worker.begin(approval_id=first)
    second = await worker.approved(approval(worker.task_id, tenant=worker.tenant, round_number=2))
    used = await worker.approved(approval(worker.task_id, tenant=worker.tenant, round_number=3))
    await worker.begin(key="another", approval_id=used)
    assert isinstance(await worker.reopen(approval_id=used), ApprovalRefused)
    assert isinstance(await worker.reopen(approval_id=second), Begun)
    row = await stores.approvals.find(second)
    assert row is not None
    assert row.consumed_by == worker.key
    assert isinstance(await worker.reopen(approval_id=second, dispatches=2, max_dispatches=3), Begun)


async def test_another_task_that_reopens_takes_the_intent_over(stores: Stores) -> None:
    first = await new_worker(stores)
    await first.begin()
    second = replace(await new_worker(stores, first.tenant, first.key), fence=1)
    reopened = await second.reopen(task_id=second.task_id)
    assert isinstance(reopened, Begun)
    assert reopened.intent.task_id == second.task_id
    assert await replace(first, fence=5).reopen(task_id=first.task_id) == FenceLost()
