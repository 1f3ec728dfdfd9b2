"""Budgets: each limit ends a task before the call that would breach it, and everything spent is counted once."""

from dataclasses import dataclass
from decimal import Decimal

import pytest

from agentic_loop.graph.loops.refund import CONTRACT
from agentic_loop.graph.records import ModelUsage
from agentic_loop.graph.run import TaskState
from agentic_loop.graph.system import RandomIds
from agentic_loop.models.pricing import FixedPricing
from agentic_loop.testing.clock import FakeClock
from tests.conftest import DatabaseMaker, Sandbox

from .packets import ended_with_packet
from .scripted import faults, scripted_world, shown, tool_requests
from .test_endings import BLOCKED, lookup, refund, status
from .world import INVESTIGATION, LOOKUP, POLICY, STATUS, World

PRICE = FixedPricing(Decimal(1), Decimal(1))
CONTRACT_S = CONTRACT.limits.max_active_s


class SlowIds(RandomIds):
    """Ids with which the request of that number takes very long by the fake clock, as a slow service would."""

    def __init__(self, clock: FakeClock, slow_request: int, delay_s: float) -> None:
        super().__init__()
        self._clock, self._slow_request, self._delay_s = clock, slow_request, delay_s
        self._requests = 0

    def request_id(self, task_id: str) -> str:
        self._requests += 1
        if self._requests == self._slow_request:
            self._clock.advance(self._delay_s)
        return super().request_id(task_id)

    def fraction(self) -> float:
        return 0.9


async def check_counted(world: World, task: TaskState) -> None:
    """One counter: what the gate compares, what the report says and what the journal adds up to are the same."""
    trace = await world.runtime.trace(task.task_id)
    assert sum(entry.input_tokens + entry.output_tokens for entry in trace) == task.usage.tokens
    assert sum(entry.cost_micro_usd for entry in trace) == task.usage.cost_micro_usd
    if task.status != "SUCCEEDED":
        spent = (await world.packet(task))["spent"]
        assert spent["tokens"] == task.usage.tokens
        assert spent["billed_cost_micro_usd"] == task.usage.cost_micro_usd


# --- steps ------------------------------------------------------------------------------------------------------


async def test_steps_used_up_end_budget_exhausted_without_one_more_inference(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [*INVESTIGATION, ("blocked", {"reason": "never asked"})]
    async with scripted_world(sandbox, make_database(), script, limits={"max_steps": 3}) as (world, model):
        task = await world.start()
        assert len(model.prompts) == 3
        assert len(await tool_requests(world)) == 3
        packet = await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "steps")
        assert packet["remaining"]["steps"] == 0
        assert packet["options"][0]["command"] == f"agentic-loop resume {task.task_id} --add-steps 1 --as WHO"
        await check_counted(world, task)


async def test_a_refused_wait_at_the_last_step_ends_budget_exhausted_without_one_more_inference(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    wait = ("wait_and_recheck", {"wait_s": 60, "reason": "the bank is slow"})
    limits = {"max_steps": 2, "max_rechecks": 0}
    async with scripted_world(sandbox, make_database(), [wait] * 4, limits=limits) as (world, model):
        task = await world.start()
        assert len(model.prompts) == 2
        assert task.step_count == 2
        await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "steps")


async def test_a_question_or_giving_up_with_the_last_step_keeps_its_own_ending(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    for last, expected in [
        (BLOCKED, ("FAILED", "no_action")),
        (("ask_user", {"question": "Which order?"}), ("NEEDS_INPUT", "question")),
    ]:
        script = [LOOKUP, last]
        async with scripted_world(sandbox, make_database(), script, limits={"max_steps": 2}) as (world, _):
            await ended_with_packet(world, await world.start(), *expected)


# --- tokens and cost --------------------------------------------------------------------------------------------


async def test_tokens_that_do_not_fit_end_budget_exhausted_without_the_inference(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    usages = [ModelUsage(7_000, 100), ModelUsage(100, 10)]
    limits = {"max_tokens": 8_000}
    async with scripted_world(sandbox, make_database(), [LOOKUP, STATUS], usages=usages, limits=limits) as (
        world,
        model,
    ):
        task = await world.start()
        assert len(model.prompts) == 1
        assert await tool_requests(world) == [("GET", "/orders/8472")]
        packet = await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "tokens")
        assert packet["spent"]["tokens"] == 7_100 <= limits["max_tokens"]
        await check_counted(world, task)


async def test_the_first_inference_is_not_made_where_its_prompt_does_not_fit_and_ends_budget_exhausted(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    async with scripted_world(sandbox, make_database(), [LOOKUP], limits={"max_tokens": 500}) as (world, model):
        task = await world.start()
        assert (model.prompts, await tool_requests(world)) == ([], [])
        await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "tokens")
        assert (task.step_count, task.usage.tokens) == (0, 0)


async def test_cost_that_does_not_fit_ends_budget_exhausted_without_the_inference(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    usages = [ModelUsage(7_000, 100), ModelUsage(100, 10)]
    limits = {"max_cost_micro_usd": 8_000}
    async with scripted_world(
        sandbox, make_database(), [LOOKUP, STATUS], usages=usages, limits=limits, pricing=PRICE
    ) as (world, model):
        task = await world.start()
        assert len(model.prompts) == 1
        assert await tool_requests(world) == [("GET", "/orders/8472")]
        packet = await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "cost")
        assert packet["spent"]["billed_cost_micro_usd"] == 7_100
        await check_counted(world, task)


@dataclass(frozen=True)
class Late:
    """A usage that is only known once the inference is over, and the limit that it breaks."""

    reason: str
    limits: dict[str, int]


@pytest.mark.parametrize(
    "late",
    [Late("tokens", {"max_tokens": 12_000}), Late("cost", {"max_cost_micro_usd": 12_000, "max_tokens": 200_000})],
    ids=lambda late: late.reason,
)
async def test_f20_usage_that_is_reported_late_is_counted_and_ends_budget_exhausted(
    sandbox: Sandbox, make_database: DatabaseMaker, late: Late
) -> None:
    """The provider bills far more than was reserved: the gate and the report go by the same, true number."""
    script, usages = [LOOKUP, BLOCKED], [ModelUsage(100, 10), ModelUsage(90_000, 500)]
    async with scripted_world(sandbox, make_database(), script, usages=usages, limits=late.limits) as (world, _):
        task = await world.start()
        packet = await ended_with_packet(world, task, "BUDGET_EXHAUSTED", late.reason)
        assert task.usage.tokens == 90_610
        assert packet["remaining"]["tokens" if late.reason == "tokens" else "cost_micro_usd"] == 0
        await check_counted(world, task)


async def test_usage_that_is_not_reported_is_charged_as_reserved(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [LOOKUP, STATUS, BLOCKED]
    usages = [ModelUsage(100, 10), None, ModelUsage(200, 20)]
    async with scripted_world(sandbox, make_database(), script, usages=usages) as (world, model):
        task = await world.start()
        second = (await world.runtime.trace(task.task_id))[1]
        assert second.output_tokens == CONTRACT.limits.max_output_tokens
        assert second.input_tokens > len(shown(model, 1)) / 8  # an upper bound of the prompt, not a placeholder
        assert second.cost_micro_usd == second.input_tokens + second.output_tokens
        assert task.usage.tokens == 110 + second.input_tokens + second.output_tokens + 220
        await check_counted(world, task)
        assert task.usage.estimated_cost_micro_usd >= task.usage.cost_micro_usd


# --- time -------------------------------------------------------------------------------------------------------


async def test_time_used_up_by_the_model_ends_budget_exhausted_without_the_call_that_it_proposed(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    clock = FakeClock()

    def slowly(_messages: object) -> tuple[str, dict[str, str]]:
        clock.advance(CONTRACT_S + 1)
        return ("lookup_order", {"order_id": "8472"})

    async with scripted_world(sandbox, make_database(), [slowly, BLOCKED], clock=clock) as (world, model):
        task = await world.start()
        assert await tool_requests(world) == []
        assert len(model.prompts) == 1
        packet = await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "deadline")
        assert packet["remaining"]["active_s"] == 0
        assert packet["spent"]["active_s"] >= CONTRACT_S
        await check_counted(world, task)


async def test_time_used_up_by_a_tool_ends_budget_exhausted_without_one_more_inference(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    clock = FakeClock()
    ids = SlowIds(clock, slow_request=1, delay_s=CONTRACT_S)
    async with scripted_world(sandbox, make_database(), [LOOKUP, BLOCKED], clock=clock, ids=ids) as (world, model):
        task = await world.start()
        assert await tool_requests(world) == [("GET", "/orders/8472")]
        assert (len(model.prompts), task.step_count) == (1, 1)
        packet = await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "deadline")
        assert [row["tool"] for row in packet["completed_work"]["rows"]] == ["lookup_order"]


async def test_retries_of_a_read_stop_when_time_is_up(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    """One second is left: a second attempt goes out after 0.45 s, and the wait of 0.9 s for a third does not fit."""
    clock = FakeClock()
    ids = SlowIds(clock, slow_request=1, delay_s=CONTRACT_S - 1)
    script = [STATUS, LOOKUP, BLOCKED]
    async with scripted_world(sandbox, make_database(), script, clock=clock, ids=ids) as (world, _):
        await world.fault("payments", "GET /orders/{order_id}", "error_before_commit", times=9)
        task = await world.start()
        assert len(await world.requests("GET", "/orders/8472")) == 2
        assert clock.sleeps == [0.45]
        await ended_with_packet(world, task, "FAILED", "tool_exhausted")
        assert task.usage.active_ms < CONTRACT_S * 1_000


async def test_time_that_runs_out_after_the_refund_ends_budget_exhausted_with_the_effect_in_the_packet(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    clock = FakeClock()
    ids = SlowIds(clock, slow_request=4, delay_s=CONTRACT_S)  # two reads, the precondition, the refund
    script = [lookup("8483"), status("8483"), refund("8483", "pay_5l2", 450)]
    async with scripted_world(sandbox, make_database(), script, clock=clock, ids=ids) as (world, _):
        task = await world.start("Order 8483 was charged twice.")
        assert len(await world.refunds("8483")) == 1
        assert await world.customer_notices() == []
        packet = await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "deadline")
        effect = packet["effects"]["rows"][0]
        assert (effect["key"], effect["status"]) == ("refund:order-8483:pay_5l2:v1", "executed")
        assert packet["options"][0]["command"].startswith(f"agentic-loop resume {task.task_id} --add-active-s ")


# --- calls ------------------------------------------------------------------------------------------------------


async def test_a_tool_that_was_called_often_enough_is_not_reached_again(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    searches = [("search_policy", {"query": words}) for words in ("refund", "chargeback", "approval", "currency")]
    script = [*searches, BLOCKED]
    limits = {"max_calls_per_tool": 2}
    async with scripted_world(sandbox, make_database(), script, limits=limits) as (world, model):
        task = await world.start()
        assert len(await world.requests("POST", "/policy/search")) == 2
        assert [fault.category for fault in await faults(world, task)] == ["call_limit"] * 2
        assert "may be called 2 times" in shown(model, 3)


async def test_f19_a_batch_is_judged_before_any_call_of_it_runs(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    """Eight calls in one answer and six left: six run, in one step, two are told why not, and nothing is retried."""
    words = ["refund", "chargeback", "approval", "currency", "duplicate", "capture", "threshold", "manager"]
    script = [[("search_policy", {"query": word}) for word in words], POLICY, BLOCKED]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        task = await world.start()
        searched = await world.requests("POST", "/policy/search")
        assert len(searched) == 6
        assert len({row["request_id"] for row in searched}) == 6
        await ended_with_packet(world, task, "FAILED", "no_action")
        trace = await world.runtime.trace(task.task_id)
        assert [entry.fault.category if entry.fault else "" for entry in trace[:9]] == [""] * 6 + ["call_limit"] * 3
        assert [entry.step for entry in trace[:9]] == [1] * 8 + [2]
        assert task.usage.calls_per_tool == {"search_policy": 6}
        assert shown(model, 1).count("call_limit") == 2
