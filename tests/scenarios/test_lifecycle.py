"""What happens to a task between and after its runs: waiting, resuming, revising, closing, and unwanted input."""

from datetime import timedelta
from typing import Any

import pytest

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.run import TaskState
from agentic_loop.graph.state import LoopInput, Principal, Resumption
from agentic_loop.graph.system import acting_as
from tests.conftest import DatabaseMaker, Sandbox

from .packets import ended_with_packet
from .scripted import entries, faults, scripted_world, shown, tool_requests
from .test_endings import BLOCKED
from .world import ASHA, GITA, GOAL, INVESTIGATION, LOOKUP, MEERA, NINA, RAVI, REFUND, STATUS, World, open_world

VAGUE = "I was charged twice, and my refund has not arrived."


def wait(wait_s: int) -> tuple[str, dict[str, Any]]:
    return ("wait_and_recheck", {"wait_s": wait_s, "reason": "the bank may still answer"})


async def approved(world: World, task: TaskState) -> TaskState:
    assert task.waiting, task.ending
    assert task.approval is not None
    return await world.runtime.decide(task.approval.id, "approve", approver=ASHA)


# --- waiting ----------------------------------------------------------------------------------------------------


async def test_a_wait_ends_the_run_as_running_and_the_task_goes_on_once_it_is_time(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [LOOKUP, wait(600), STATUS, REFUND]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        asleep = await world.start()
        assert (asleep.status, asleep.ended, asleep.step_count) == ("RUNNING", False, 2)
        wake_at = world.clock.now() + timedelta(seconds=600)
        assert asleep.values["wake_at"] == wake_at
        assert await world.runtime.stores.tasks.due(wake_at - timedelta(seconds=1)) == []
        assert [row.task_id for row in await world.runtime.stores.tasks.due(wake_at)] == [asleep.task_id]
        assert len(model.prompts) == 2

        world.clock.advance(599)
        early = await world.runtime.proceed(asleep.task_id)
        assert (early.status, early.version, early.values["wake_at"]) == ("RUNNING", asleep.version, wake_at)
        assert len(model.prompts) == 2
        assert await tool_requests(world) == [("GET", "/orders/8472")]

        world.clock.advance(1)
        awake = await world.runtime.proceed(asleep.task_id)
        assert awake.waiting
        assert awake.values["wake_at"] is None
        assert awake.usage.rechecks == 1
        assert awake.usage.active_ms < 1_000  # sleeping is no active time
        assert await world.runtime.stores.tasks.due(wake_at) == []
        assert (await approved(world, awake)).status == "SUCCEEDED"
        assert len(await world.refunds()) == 1


async def test_after_a_wait_the_same_look_is_no_repeat(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    script = [STATUS, STATUS, wait(60), STATUS, BLOCKED]
    async with scripted_world(sandbox, make_database(), script) as (world, _):
        task = await world.start()
        world.clock.advance(60)
        task = await world.runtime.proceed(task.task_id)
        assert len(await world.requests("GET", "/refunds")) == 3
        assert await faults(world, task) == []
        await ended_with_packet(world, task, "FAILED", "no_action")


async def test_waits_have_a_budget_of_their_own_and_one_too_many_is_refused(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [wait(60), wait(60), BLOCKED]
    async with scripted_world(sandbox, make_database(), script, limits={"max_rechecks": 1}) as (world, model):
        task = await world.start()
        world.clock.advance(60)
        task = await world.runtime.proceed(task.task_id)
        await ended_with_packet(world, task, "FAILED", "no_action")
        (refused,) = await faults(world, task)
        assert refused.category == "call_limit"
        assert "rechecks are used up" in shown(model, 2)
        assert task.usage.rechecks == 1


async def test_a_task_that_waits_for_ever_ends_budget_exhausted_by_steps(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    async with scripted_world(sandbox, make_database(), [wait(60)] * 9, limits={"max_steps": 3}) as (world, model):
        task = await world.start()
        for _ in range(3):
            assert task.status == "RUNNING"
            world.clock.advance(60)
            task = await world.runtime.proceed(task.task_id)
        await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "steps")
        assert len(model.prompts) == 3


# --- resuming ---------------------------------------------------------------------------------------------------


async def test_a_question_is_answered_by_resuming_with_the_input_and_then_ends_succeeded(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    """The customer's answer arrives in another process, as does the approval."""
    async with open_world(sandbox, make_database()) as world:
        task = await world.start(VAGUE)
        await ended_with_packet(world, task, "NEEDS_INPUT", "question")
        await world.answer_elsewhere("resume", task.task_id, "--input", "order_id=8472", "--as", "ravi", expect=[3])
        waiting = await world.runtime.state(task.task_id)
        assert waiting.approval is not None
        await world.answer_elsewhere("approve", waiting.approval.id, "--as", "asha", expect=[0])
        assert [(row["payment_id"], row["amount_inr"]) for row in await world.refunds()] == [("pay_5a2", 2_000)]
        assert len(await world.customer_notices()) == 1
        assert (await world.runtime.state(task.task_id)).status == "SUCCEEDED"


@pytest.mark.parametrize("actor", [RAVI, ASHA, MEERA], ids=lambda actor: actor.id)
async def test_whoever_started_a_task_or_may_approve_in_its_tenant_can_resume_it(
    sandbox: Sandbox, make_database: DatabaseMaker, actor: Principal
) -> None:
    async with scripted_world(sandbox, make_database(), [BLOCKED, LOOKUP, BLOCKED]) as (world, model):
        task = await world.start()
        resumption = Resumption(inputs={"order_id": "8472"})
        task = await world.runtime.resume(task.task_id, actor=actor, resumption=resumption)
        assert await tool_requests(world) == [("GET", "/orders/8472")]
        (resumed,) = await entries(world, task, "resumed")
        assert resumed.text == f"resumed by {actor.id} after FAILED"
        assert '"order_id":"8472"' in shown(model, 1)
        assert task.step_count == 3


@pytest.mark.parametrize("actor", [NINA, GITA], ids=lambda actor: actor.id)
async def test_nobody_else_can_resume_a_task_and_it_stays_as_it_was(
    sandbox: Sandbox, make_database: DatabaseMaker, actor: Principal
) -> None:
    async with scripted_world(sandbox, make_database(), [BLOCKED, LOOKUP, BLOCKED]) as (world, model):
        task = await world.start()
        with pytest.raises(Misuse, match="may not resume"):
            await world.runtime.resume(task.task_id, actor=actor, resumption=Resumption(add_steps=50))
        after = await world.runtime.state(task.task_id)
        assert (after.status, after.ending, after.version) == (task.status, task.ending, task.version)
        assert after.values["limits"] == task.values["limits"]
        assert len(model.prompts) == 1
        assert await tool_requests(world) == []
        resumed = await world.runtime.resume(task.task_id, actor=RAVI)
        assert resumed.values["limits"] == task.values["limits"]  # nothing of the refused request has stayed


async def test_a_success_is_final_and_can_not_be_resumed(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    script = [*INVESTIGATION, REFUND]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        task = await approved(world, await world.start())
        assert task.status == "SUCCEEDED"
        before = await tool_requests(world)
        for actor in (RAVI, ASHA, MEERA):
            with pytest.raises(Misuse, match="final"):
                await world.runtime.resume(task.task_id, actor=actor, resumption=Resumption(add_steps=8))
        assert (await world.runtime.state(task.task_id)).status == "SUCCEEDED"
        assert await tool_requests(world) == before
        assert len(await world.refunds()) == 1
        assert len(model.prompts) == 4


async def test_a_running_or_waiting_task_can_not_be_resumed(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    async with scripted_world(sandbox, make_database(), [*INVESTIGATION, REFUND]) as (world, _):
        task = await world.start()
        with pytest.raises(Misuse, match="has not ended"):
            await world.runtime.resume(task.task_id, actor=ASHA, resumption=Resumption(add_steps=8))
        assert (await approved(world, task)).status == "SUCCEEDED"


@pytest.mark.parametrize(
    ("limits", "resumption", "reason"),
    [
        ({"max_steps": 2}, Resumption(add_steps=2), "steps"),
        ({"max_tokens": 3_000}, Resumption(add_tokens=20_000), "tokens"),
        ({"max_cost_micro_usd": 3_000}, Resumption(add_cost_micro_usd=20_000), "cost"),
    ],
    ids=["steps", "tokens", "cost"],
)
async def test_a_task_out_of_budget_goes_on_with_more_of_it_and_ends_succeeded(
    sandbox: Sandbox, make_database: DatabaseMaker, limits: dict[str, int], resumption: Resumption, reason: str
) -> None:
    async with scripted_world(sandbox, make_database(), [LOOKUP, STATUS, REFUND], limits=limits) as (world, model):
        task = await world.start()
        await ended_with_packet(world, task, "BUDGET_EXHAUSTED", reason)
        asked = len(model.prompts)

        unchanged = await world.runtime.resume(task.task_id, actor=RAVI)
        await ended_with_packet(world, unchanged, "BUDGET_EXHAUSTED", reason)
        assert len(model.prompts) == asked  # resuming without more changes nothing

        task = await world.runtime.resume(task.task_id, actor=ASHA, resumption=resumption)
        assert (await approved(world, task)).status == "SUCCEEDED"
        assert len(await world.refunds()) == 1
        assert len(await world.requests("GET", "/orders/8472")) == 1


async def test_steps_are_added_from_the_command_line(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    async with open_world(sandbox, make_database(), limits={"max_steps": 2}) as world:
        task = await world.start()
        packet = await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "steps")
        offered = packet["options"][0]["command"]
        assert offered == f"agentic-loop resume {task.task_id} --add-steps 1 --as WHO"
        await world.answer_elsewhere("resume", task.task_id, "--add-steps", "4", "--as", "ravi", expect=[3])
        task = await approved(world, await world.runtime.state(task.task_id))
        assert (task.status, len(await world.refunds())) == ("SUCCEEDED", 1)


async def test_a_resumption_can_not_take_limits_away(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    async with scripted_world(sandbox, make_database(), [BLOCKED, BLOCKED]) as (world, _):
        task = await world.start()
        less = Resumption(add_steps=-5, add_tokens=-50_000, add_cost_micro_usd=-9, add_active_s=-999)
        resumed = await world.runtime.resume(task.task_id, actor=RAVI, resumption=less)
        assert resumed.values["limits"] == task.values["limits"]


# --- revising and closing ---------------------------------------------------------------------------------------


async def test_revising_starts_a_new_task_and_leaves_the_old_one_as_it_ended(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    async with scripted_world(sandbox, make_database(), [BLOCKED, LOOKUP, STATUS, REFUND]) as (world, model):
        old = await world.start("Order 8473 was charged twice.", channel="e-mail")
        new = await world.runtime.revise(old.task_id, actor=ASHA, goal=GOAL, inputs={"order_id": "8472"})
        assert new.task_id != old.task_id
        assert GOAL in shown(model, 1)
        assert new.values["task"].inputs == {"channel": "e-mail", "order_id": "8472"}
        assert new.values["task"].requester == ASHA
        row = await world.runtime.stores.tasks.get(new.task_id)
        assert row is not None
        assert row.parent_task_id == old.task_id
        await ended_with_packet(world, await world.runtime.state(old.task_id), "FAILED", "no_action")
        assert new.approval is not None
        # Who revises requests it now, so cannot approve it as well.
        still = await world.runtime.decide(new.approval.id, "approve", approver=ASHA)
        assert still.waiting
        assert await world.refunds() == []
        done = await world.runtime.decide(new.approval.id, "approve", approver=MEERA)
        assert (done.status, len(await world.refunds())) == ("SUCCEEDED", 1)


async def test_a_revision_starts_from_the_evidence_of_the_task_that_it_revises(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    async with scripted_world(sandbox, make_database(), [LOOKUP, STATUS, BLOCKED, REFUND]) as (world, model):
        old = await world.start()
        before = await tool_requests(world)
        new = await world.runtime.revise(old.task_id, actor=RAVI)
        assert (new.step_count, len(model.prompts)) == (1, 4)
        assert [record.id for record in await world.runtime.evidence(new.task_id)] == ["ev-1", "ev-2"]
        assert '"evidence":"ev-2"' in shown(model, 3)
        assert [path for _, path in (await tool_requests(world))[len(before) :]] == ["/notifications"]
        done = await approved(world, new)
        assert (done.status, len(await world.refunds())) == ("SUCCEEDED", 1)


async def test_only_an_ended_task_of_the_own_tenant_can_be_revised(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    async with scripted_world(sandbox, make_database(), [*INVESTIGATION, REFUND, BLOCKED]) as (world, model):
        waiting = await world.start()
        with pytest.raises(Misuse, match="only an ended task"):
            await world.runtime.revise(waiting.task_id, actor=RAVI)
        ended = await world.start("Order 8473 was charged twice.")
        with pytest.raises(Misuse, match="of this loop and tenant"):
            await world.runtime.revise(ended.task_id, actor=GITA)
        assert len(model.prompts) == 5
        assert len(await world.runtime.stores.tasks.list()) == 2


async def test_an_ended_task_is_closed_once_and_then_goes_on_no_more(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    async with scripted_world(sandbox, make_database(), [BLOCKED, BLOCKED]) as (world, model):
        task = await world.start()
        with pytest.raises(Misuse, match="another tenant"):
            await world.runtime.close(task.task_id, actor=GITA, note="not mine")
        await world.runtime.close(task.task_id, actor=ASHA, note="refunded by hand")
        with pytest.raises(Misuse, match=r"closed by asha already: refunded by hand"):
            await world.runtime.close(task.task_id, actor=RAVI, note="me too")
        with pytest.raises(Misuse, match="was closed by asha"):
            await world.runtime.resume(task.task_id, actor=RAVI)
        row = await world.runtime.stores.tasks.get(task.task_id)
        assert row is not None
        assert (row.closed_by, row.closing_note, row.status) == ("asha", "refunded by hand", "FAILED")
        assert len(model.prompts) == 1


async def test_a_task_that_has_not_ended_can_not_be_closed(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    async with scripted_world(sandbox, make_database(), [*INVESTIGATION, REFUND]) as (world, _):
        task = await world.start()
        with pytest.raises(Misuse, match="only an ended task"):
            await world.runtime.close(task.task_id, actor=ASHA, note="done")
        assert (await approved(world, task)).status == "SUCCEEDED"


# --- input that nobody asked for --------------------------------------------------------------------------------

OTHER: LoopInput = {
    "goal": "Order 8483 was charged twice; refund it.",
    "inputs": {"order_id": "8483"},
    "resumption": Resumption(add_steps=100).model_dump(mode="json"),
}


async def _invoke(world: World, task: TaskState, given: LoopInput, actor: Principal = ASHA) -> TaskState:
    """Give input to the task's thread as LangGraph lets anybody do, without the runtime."""
    with acting_as(actor):
        await world.runtime.graph("refund").ainvoke(given, {"configurable": {"thread_id": task.task_id}})
    return await world.runtime.state(task.task_id)


async def test_new_input_on_a_task_that_waits_for_an_approval_changes_nothing(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    async with scripted_world(sandbox, make_database(), [*INVESTIGATION, REFUND]) as (world, model):
        waiting = await world.start()
        after = await _invoke(world, waiting, OTHER)
        assert after.waiting
        assert after.approval == waiting.approval
        assert after.values["task"] == waiting.values["task"]
        assert after.values["limits"] == waiting.values["limits"]
        assert len(model.prompts) == 4
        assert len(await world.role_notices()) == 1
        assert (await approved(world, after)).status == "SUCCEEDED"
        assert [row["order_id"] for row in (await world.tables())["refunds"] if row["refund_id"] > "rf_9000"] == [
            "8472"
        ]


async def test_new_input_on_a_sleeping_task_changes_nothing(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    async with scripted_world(sandbox, make_database(), [LOOKUP, wait(600), BLOCKED]) as (world, model):
        asleep = await world.start()
        after = await _invoke(world, asleep, OTHER)
        assert (after.status, after.values["wake_at"]) == ("RUNNING", asleep.values["wake_at"])
        assert after.values["limits"] == asleep.values["limits"]
        assert len(model.prompts) == 2
        world.clock.advance(600)
        task = await world.runtime.proceed(asleep.task_id)
        assert "8483" not in shown(model, 2)
        await ended_with_packet(world, task, "FAILED", "no_action")


async def test_new_input_on_an_ended_task_changes_nothing(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    async with scripted_world(sandbox, make_database(), [BLOCKED, LOOKUP]) as (world, model):
        ended = await world.start()
        given: LoopInput = {"goal": OTHER["goal"], "inputs": OTHER["inputs"]}
        after = await _invoke(world, ended, given)
        assert (after.status, after.ending, after.version) == (ended.status, ended.ending, ended.version)
        assert after.values["task"] == ended.values["task"]
        assert len(model.prompts) == 1
        assert await tool_requests(world) == []


async def test_a_task_id_is_used_once(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    async with scripted_world(sandbox, make_database(), [BLOCKED, BLOCKED]) as (world, model):
        for number in range(2):
            try:
                await world.runtime.start("refund", goal=GOAL, requester=RAVI, task_id="task-8472")
            except Misuse as misuse:
                assert (number, "exists already" in str(misuse)) == (1, True)
        assert len(model.prompts) == 1
