"""What becomes of a write whose answer is lost: one effect, found by its key, and nobody is asked twice.

The time-outs of the loop's tools are short here, so that a service that hangs is a real time-out at the client.
"""

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from agentic_loop.graph.definition import LoopDefinition
from agentic_loop.graph.records import Intent
from agentic_loop.graph.run import TaskState
from agentic_loop.graph.store.ledger import PostgresLedger
from agentic_loop.testing.clock import FakeClock
from agentic_loop.tools.registry import ToolRegistry
from agentic_loop.tools.tool import Absent, Arguments, ReconcileAnswer, ToolContext
from tests.conftest import Sandbox

from .packets import ended_with_packet
from .world import ASHA, INVESTIGATION, LOOKUP, RAVI, REFUND, STATUS, World, open_world

KEY = "refund:order-8472:pay_5a2:v1"
TIME_OUT_S = 0.6
HANG_S = 3.0
REFUNDS, NOTIFICATIONS = "refunds-service", "notifications-service"
POST_REFUND, POST_NOTICE, REFUND_BY_KEY = "POST /refunds", "POST /notifications", "GET /refunds/by-key"

AFTER_THE_COMMIT = ["timeout_after_commit", "drop_after_commit", "error_after_commit", "garbage"]
BEFORE_THE_COMMIT = ["timeout_before_commit", "drop_before_commit", "error_before_commit"]


def impatient(loop: LoopDefinition) -> LoopDefinition:
    """The loop with writes that are given up soon."""
    tools = [
        dataclasses.replace(spec, timeout_s=TIME_OUT_S) if spec.effect == "write" else spec for spec in loop.tools
    ]
    return dataclasses.replace(loop, tools=ToolRegistry(tools))


def visible_after_ten_seconds(loop: LoopDefinition) -> LoopDefinition:
    """The loop of services that say so: what was sent may be invisible to a lookup for ten seconds."""
    tools = []
    for spec in impatient(loop).tools:
        reconcile = spec.reconcile and dataclasses.replace(spec.reconcile, visible_after_s=10.0)
        tools.append(dataclasses.replace(spec, reconcile=reconcile))
    return dataclasses.replace(loop, tools=ToolRegistry(tools))


def late_to_commit(loop: LoopDefinition) -> LoopDefinition:
    """The loop of a service whose first lookup does not see yet what it is about to commit."""
    [spec] = loop.tools.require(["issue_refund"])
    assert spec.reconcile is not None
    asked: list[bool] = []
    really_ask = spec.reconcile.ask

    async def ask(args: Arguments, context: ToolContext) -> ReconcileAnswer:
        asked.append(True)
        return Absent() if len(asked) == 1 else await really_ask(args, context)

    changed = dataclasses.replace(spec, reconcile=dataclasses.replace(spec.reconcile, ask=ask))
    others = [other for other in loop.tools if other.name != spec.name]
    return dataclasses.replace(loop, tools=ToolRegistry([*others, changed]))


@asynccontextmanager
async def world_of_8472(
    sandbox: Sandbox,
    database: str,
    *more: Any,
    clock: FakeClock | None = None,
    adapt: Callable[[LoopDefinition], LoopDefinition] = impatient,
) -> AsyncIterator[World]:
    """A world whose model investigates, proposes the refund, and says ``more`` if it is ever asked again."""
    script = [*INVESTIGATION, REFUND, *more]
    async with open_world(sandbox, database, script, adapt=adapt, clock=clock) as world:
        yield world


async def waiting_for_approval(world: World) -> tuple[TaskState, str]:
    task = await world.start()
    assert task.status == "AWAITING_APPROVAL"
    assert task.approval is not None
    return task, task.approval.id


async def approved(world: World) -> TaskState:
    _, approval_id = await waiting_for_approval(world)
    return await world.runtime.decide(approval_id, "approve", approver=ASHA)


async def arm(world: World, kind: str, operation: str = POST_REFUND, **more: Any) -> None:
    service = NOTIFICATIONS if "notifications" in operation else REFUNDS
    await world.fault(service, operation, kind, **{"delay_s": HANG_S, **more})


async def disarm(world: World) -> None:
    (await world.sandbox.admin.delete("/_admin/faults")).raise_for_status()


async def settings(world: World, service: str, **changes: Any) -> None:
    body = {"service": service, **changes}
    (await world.sandbox.admin.post("/_admin/settings", json=body)).raise_for_status()


async def keys_sent(world: World, path: str = "/refunds") -> list[str]:
    return [row["idempotency_key"] for row in await world.requests("POST", path)]


async def intent(world: World, key: str = KEY) -> Intent:
    found = await world.runtime.stores.ledger.find(tenant="acme", key=key)
    assert found is not None
    return found


async def refund_at_the_counter(world: World) -> None:
    """Another channel refunds the same payment, under a key of its own."""
    headers = {"X-Tenant": "acme", "X-Request-Id": "shop", "Idempotency-Key": "shop-counter-7"}
    made = await world.sandbox.admin.post("/refunds", json=REFUND[1], headers=headers)
    assert made.status_code == 201


async def check_one_refund(world: World) -> None:
    assert [(row["payment_id"], row["amount_inr"]) for row in await world.refunds()] == [("pay_5a2", 2000)]


async def check_settled_once(world: World, task_id: str, status: str) -> None:
    """One refund, one message to the customer, one question to the role, and no more asked of the model."""
    assert status == "SUCCEEDED"
    await check_one_refund(world)
    assert len(await world.customer_notices()) == 1
    assert len(await world.role_notices()) == 1
    assert world.model is not None
    assert len(world.model.prompts) == 4
    calls = [entry for entry in await world.runtime.trace(task_id) if entry.kind == "tool"]
    refunds = [entry for entry in calls if entry.tool == "issue_refund"]
    assert [(entry.outcome, entry.idempotency_key) for entry in refunds] == [("ok", KEY)]


# --- the refund -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", AFTER_THE_COMMIT)
async def test_refund_lost_after_the_commit_is_found_by_its_key_and_succeeds(
    sandbox: Sandbox, database: str, kind: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, kind)
        ended = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_settled_once(world, ended.task_id, ended.status)
        assert await keys_sent(world) == [KEY]
        assert len(await world.requests("GET", "/refunds/by-key")) == 1
        assert (await intent(world)).dispatches == 1


@pytest.mark.parametrize("kind", BEFORE_THE_COMMIT)
async def test_refund_lost_before_the_commit_is_sent_once_more_with_the_same_key_and_succeeds(
    sandbox: Sandbox, database: str, kind: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, kind)
        ended = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_settled_once(world, ended.task_id, ended.status)
        assert await keys_sent(world) == [KEY, KEY]
        assert (await intent(world)).dispatches == 2


async def test_refund_lost_under_an_approver_in_another_process_is_sent_once_more_and_succeeds(
    sandbox: Sandbox, database: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        task, approval_id = await waiting_for_approval(world)
        await arm(world, "drop_before_commit")
        ended = await world.answer_elsewhere("approve", approval_id, "--as", "asha", expect=[0])
        await check_settled_once(world, task.task_id, ended["status"])
        assert await keys_sent(world) == [KEY, KEY]


async def test_refund_lost_twice_before_the_commit_is_sent_no_third_time_and_fails_as_unknown(
    sandbox: Sandbox, database: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, "drop_before_commit", times=5)
        ended = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await ended_with_packet(world, ended, "FAILED", "unknown_effect")
        assert await keys_sent(world) == [KEY, KEY]
        assert await world.refunds() == []


async def test_reads_around_a_refund_that_fail_once_are_tried_again_and_it_succeeds(
    sandbox: Sandbox, database: str
) -> None:
    """The precondition and the lookup change nothing, so a single fault of them is no reason to give up."""
    async with world_of_8472(sandbox, database) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, "error_before_commit", "GET /refunds/by-payment/{payment_id}")
        await arm(world, "drop_after_commit")
        await arm(world, "garbage", REFUND_BY_KEY)
        ended = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_settled_once(world, ended.task_id, ended.status)
        assert await keys_sent(world) == [KEY]
        assert len(await world.requests("GET", "/refunds/by-key")) == 2


async def test_our_own_refund_that_appears_before_the_second_dispatch_is_taken_for_ours_and_succeeds(
    sandbox: Sandbox, database: str
) -> None:
    """The lookup comes too early, and then the payment has a refund: ours, not another channel's."""
    async with world_of_8472(sandbox, database, adapt=lambda loop: late_to_commit(impatient(loop))) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, "drop_after_commit")
        ended = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_settled_once(world, ended.task_id, ended.status)
        assert await keys_sent(world) == [KEY]


async def test_another_channels_refund_that_appears_before_the_second_dispatch_stops_it(
    sandbox: Sandbox, database: str
) -> None:
    blocked = ("blocked", {"reason": "somebody else has refunded the payment"})
    async with world_of_8472(sandbox, database, blocked) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, "drop_before_commit")
        await arm(world, "error_before_commit", REFUND_BY_KEY, times=100)
        lost = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_flagged(world, lost)
        await disarm(world)
        await refund_at_the_counter(world)
        resumed = await world.runtime.resume(lost.task_id, actor=RAVI)
        await ended_with_packet(world, resumed, "FAILED", "no_action")
        assert await keys_sent(world) == [KEY, "shop-counter-7"]
        await check_one_refund(world)
        assert (await intent(world)).status == "failed"


# --- nobody can tell --------------------------------------------------------------------------------------------


async def check_flagged(world: World, ended: TaskState) -> None:
    """The ledger and the packet say that a person must look before anything else."""
    assert (await intent(world)).flagged
    assert (await intent(world)).status == "unknown"
    packet = await ended_with_packet(world, ended, "FAILED", "unknown_effect")
    first = packet["effects"]["rows"][0]
    assert (first["key"], first["needs_review"], first["status"]) == (KEY, True, "unknown")
    options = packet["options"]
    assert options[0]["option"] == "check"
    assert KEY in options[0]["when"]
    assert all(option["when"].startswith("After the check") for option in options[1:])
    assert KEY in packet["detail"]


async def test_refund_of_which_nobody_can_tell_because_the_lookup_is_down_fails_as_unknown(
    sandbox: Sandbox, database: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        task, approval_id = await waiting_for_approval(world)
        # The time-outs over there are those that ship, so the service lets go of the hanging call before they pass.
        await arm(world, "timeout_after_commit", delay_s=0.3)
        await arm(world, "error_before_commit", REFUND_BY_KEY, times=100)
        ended = await world.answer_elsewhere("approve", approval_id, "--as", "asha", expect=[8])
        assert (ended["status"], ended["reason"]) == ("FAILED", "unknown_effect")
        await check_flagged(world, await world.runtime.state(task.task_id))
        assert await keys_sent(world) == [KEY]
        assert await world.customer_notices() == []

        # A person asks for it while nothing has changed: the same ending, and nothing is sent.
        again = await world.runtime.resume(task.task_id, actor=RAVI)
        await check_flagged(world, again)
        assert await keys_sent(world) == [KEY]

        await disarm(world)
        resumed = await world.answer_elsewhere("resume", task.task_id, "--as", "ravi", expect=[0])
        await check_settled_once(world, task.task_id, resumed["status"])
        assert await keys_sent(world) == [KEY]


async def test_refund_of_which_nobody_can_tell_because_there_is_no_lookup_fails_as_unknown(
    sandbox: Sandbox, database: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        _, approval_id = await waiting_for_approval(world)
        await settings(world, REFUNDS, lookup_by_key=False)
        await arm(world, "drop_after_commit")
        ended = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_flagged(world, ended)
        assert await keys_sent(world) == [KEY]
        await check_one_refund(world)


async def test_refund_whose_key_the_service_has_forgotten_stays_unknown_and_is_not_sent_again(
    sandbox: Sandbox, database: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, "drop_after_commit")
        await arm(world, "drop_before_commit", REFUND_BY_KEY, times=100)
        lost = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_flagged(world, lost)

        await disarm(world)
        later = world.clock.now() + timedelta(hours=25)
        world.clock.set(later)
        (await world.sandbox.admin.post("/_admin/clock", json={"now": later.isoformat()})).raise_for_status()
        resumed = await world.runtime.resume(lost.task_id, actor=RAVI)
        answered = await world.requests("GET", "/refunds/by-key")
        assert answered[-1]["status"] == 404
        await check_flagged(world, resumed)
        assert await keys_sent(world) == [KEY]
        await check_one_refund(world)


async def test_refund_that_was_not_made_is_sent_after_a_resume_under_the_approval_it_had_and_succeeds(
    sandbox: Sandbox, database: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, "drop_before_commit")
        await arm(world, "error_before_commit", REFUND_BY_KEY, times=100)
        lost = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_flagged(world, lost)
        assert await world.refunds() == []

        await disarm(world)
        resumed = await world.runtime.resume(lost.task_id, actor=RAVI)
        await check_settled_once(world, lost.task_id, resumed.status)
        assert await keys_sent(world) == [KEY, KEY]


async def test_refund_that_was_not_made_needs_a_new_approval_once_the_old_one_has_expired(
    sandbox: Sandbox, database: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, "drop_before_commit")
        await arm(world, "error_before_commit", REFUND_BY_KEY, times=100)
        lost = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_flagged(world, lost)

        await disarm(world)
        world.clock.advance(3 * 3_600)
        resumed = await world.runtime.resume(lost.task_id, actor=RAVI)
        assert resumed.status == "AWAITING_APPROVAL"
        assert resumed.approval is not None
        assert resumed.approval.id != approval_id
        assert await keys_sent(world) == [KEY]
        ended = await world.runtime.decide(resumed.approval.id, "approve", approver=ASHA)
        assert ended.status == "SUCCEEDED"
        await check_one_refund(world)
        assert await keys_sent(world) == [KEY, KEY]
        assert len(await world.customer_notices()) == 1


# --- answers that come late, workers that die ---------------------------------------------------------------------


class PatientClock(FakeClock):
    """A clock on which waiting lasts until the service has made the refund, as it would on a real one."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self._sandbox = sandbox

    async def sleep(self, delay_s: float) -> None:
        await super().sleep(delay_s)
        for _ in range(1_000):
            tables = (await self._sandbox.admin.get("/_admin/tables")).json()
            if any(row["order_id"] == "8472" for row in tables["refunds"]):
                return
        raise TimeoutError("the refund never came")


async def test_f14_an_answer_after_the_time_out_is_accepted_by_its_key_and_succeeds(
    sandbox: Sandbox, database: str
) -> None:
    """The service commits after the client gave up; it declares how long a request may be invisible to the lookup."""
    clock = PatientClock(sandbox)
    async with world_of_8472(sandbox, database, clock=clock, adapt=visible_after_ten_seconds) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, "slow", delay_s=TIME_OUT_S + 1.0)
        ended = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_settled_once(world, ended.task_id, ended.status)
        assert await keys_sent(world) == [KEY]


async def test_f03_a_run_that_dies_after_the_commit_is_run_on_with_the_same_key_and_succeeds(
    sandbox: Sandbox, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_of_8472(sandbox, database) as world:
        task, approval_id = await waiting_for_approval(world)

        async def dies(*_args: object, **_more: object) -> None:
            raise ConnectionAbortedError("the worker died")

        with monkeypatch.context() as patched:
            patched.setattr(PostgresLedger, "finish", dies)
            with pytest.raises(ConnectionAbortedError):
                await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_one_refund(world)
        ended = await world.runtime.proceed(task.task_id)
        await check_settled_once(world, task.task_id, ended.status)
        assert await keys_sent(world) == [KEY]


class ProviderDown(Exception):
    """What a provider's SDK raises for a status that is no success."""

    status_code = 500


async def test_f04_a_model_that_fails_after_a_tool_has_answered_does_not_let_the_tool_be_called_again(
    sandbox: Sandbox, database: str
) -> None:
    down: Sequence[Any] = [ProviderDown("the provider answers 500")] * 4
    script = [LOOKUP, *down, STATUS, INVESTIGATION[2], REFUND]
    async with open_world(sandbox, database, script) as world:
        failed = await world.start()
        await ended_with_packet(world, failed, "FAILED", "model_unavailable")
        resumed = await world.runtime.resume(failed.task_id, actor=RAVI)
        assert resumed.status == "AWAITING_APPROVAL"
        assert [row["path"] for row in await world.requests("GET", "/orders")] == ["/orders/8472"]


# --- the list that lags, other tasks, other channels ----------------------------------------------------------------


async def test_a_refund_that_the_list_does_not_show_yet_is_verified_by_its_id_and_succeeds(
    sandbox: Sandbox, database: str
) -> None:
    async with world_of_8472(sandbox, database) as world:
        await settings(world, REFUNDS, replication_lag_s=3_600)
        ended = await approved(world)
        assert ended.status == "SUCCEEDED"
        listed = await world.sandbox.admin.get("/refunds", params={"order_id": "8472"}, headers={"X-Tenant": "acme"})
        assert listed.json()["refunds"] == []
        [refund] = await world.refunds()
        reads = [row["path"] for row in await world.requests("GET", "/refunds/rf_")]
        assert reads == [f"/refunds/{refund['refund_id']}"]


async def test_the_same_refund_proposed_by_another_task_returns_the_recorded_result_and_succeeds(
    sandbox: Sandbox, database: str
) -> None:
    """Even when the list does not show the refund yet, nobody is asked and nothing is sent."""
    async with world_of_8472(sandbox, database, *INVESTIGATION, REFUND) as world:
        await settings(world, REFUNDS, replication_lag_s=3_600)
        first = await approved(world)
        second = await world.start()
        assert (first.status, second.status) == ("SUCCEEDED", "SUCCEEDED")
        assert first.task_id != second.task_id
        await check_one_refund(world)
        assert await keys_sent(world) == [KEY]
        assert len(await world.customer_notices()) == 1
        assert len(await world.role_notices()) == 1


async def test_the_same_payment_with_another_amount_is_a_conflict_that_the_model_is_told(
    sandbox: Sandbox, database: str
) -> None:
    less = ("issue_refund", {**REFUND[1], "amount_inr": 1500})
    blocked = ("blocked", {"reason": "another refund of this payment is on record"})
    async with world_of_8472(sandbox, database, *INVESTIGATION, less, blocked) as world:
        await settings(world, REFUNDS, replication_lag_s=3_600)
        await approved(world)
        second = await world.start()
        await ended_with_packet(world, second, "FAILED", "no_action")
        await check_one_refund(world)
        assert await keys_sent(world) == [KEY]
        assert len(await world.role_notices()) == 1
        assert world.model is not None
        told = str(world.model.prompts[-1][-1].content)
        assert '"error":"conflict"' in told
        assert KEY in told
        assert "2000" in told


async def test_a_refund_that_appeared_between_approval_and_execution_stops_ours_before_it_is_sent(
    sandbox: Sandbox, database: str
) -> None:
    finish = ("finish", {"message": "The refund exists already."})
    async with world_of_8472(sandbox, database, STATUS, finish) as world:
        await settings(world, REFUNDS, replication_lag_s=0)
        task, approval_id = await waiting_for_approval(world)
        await refund_at_the_counter(world)
        ended = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        assert await keys_sent(world) == ["shop-counter-7"]
        await check_one_refund(world)
        assert await world.runtime.stores.ledger.find(tenant="acme", key=KEY) is None
        refused = [entry for entry in await world.runtime.trace(task.task_id) if entry.tool == "issue_refund"]
        assert [entry.fault.category for entry in refused if entry.fault] == ["precondition_failed"]
        assert world.model is not None
        assert '"error":"precondition_failed"' in str(world.model.prompts[4][-1].content)
        # The refund of the other channel is the one that was wanted: it is read by its id, and the customer told.
        assert ended.status == "SUCCEEDED"
        assert len(await world.customer_notices()) == 1


# --- the notification -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "sent"), [*((kind, 1) for kind in AFTER_THE_COMMIT), ("drop_before_commit", 2)])
async def test_a_notification_that_is_lost_reaches_the_customer_once_and_succeeds(
    sandbox: Sandbox, database: str, kind: str, sent: int
) -> None:
    async with world_of_8472(sandbox, database) as world:
        _, approval_id = await waiting_for_approval(world)
        await arm(world, kind, POST_NOTICE)
        ended = await world.runtime.decide(approval_id, "approve", approver=ASHA)
        await check_settled_once(world, ended.task_id, ended.status)
        [refund] = await world.refunds()
        keys = [key for key in await keys_sent(world, "/notifications") if key.startswith("notify:")]
        assert keys == [f"notify:refund:{refund['refund_id']}:pending:v1"] * sent
