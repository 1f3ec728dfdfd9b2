"""A model that is down, slow, rate-limited, cut off or incoherent: what it costs, and how the task ends."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from agentic_loop.graph.loops.refund import CONTRACT
from agentic_loop.graph.records import ModelUsage
from agentic_loop.graph.state import Usage
from agentic_loop.graph.system import RandomIds
from tests.conftest import DatabaseMaker, Sandbox

from .packets import ended_with_packet
from .scripted import BILLED, entries, faults, scripted_world, shown, tool_requests
from .test_endings import BLOCKED
from .world import ASHA, LOOKUP, REFUND, STATUS

ATTEMPTS = CONTRACT.limits.max_inference_attempts
BOUNDS_S = [0.5, 1.0, 2.0]


@dataclass(frozen=True)
class Response:
    """What a provider's exception carries of the answer."""

    status_code: int
    headers: dict[str, str] = field(default_factory=dict)


class ProviderError(Exception):
    """A provider's exception with an HTTP status, as most of them raise."""

    def __init__(self, status_code: int, **headers: str) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code
        self.response = Response(status_code, {name.replace("_", "-"): value for name, value in headers.items()})


class EvenIds(RandomIds):
    """Ids with a jitter that is always the same share of its bound."""

    def fraction(self) -> float:
        return 0.5


# --- down -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [ProviderError(503), ProviderError(500), ProviderError(429), ConnectionRefusedError("refused")],
    ids=["503", "500", "429", "connection refused"],
)
async def test_a_model_that_stays_down_ends_failed_model_unavailable_without_spending_steps(
    sandbox: Sandbox, make_database: DatabaseMaker, fault: Exception
) -> None:
    script = [*[fault] * ATTEMPTS, LOOKUP]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        task = await world.start()
        assert len(model.prompts) == ATTEMPTS
        assert await tool_requests(world) == []
        packet = await ended_with_packet(world, task, "FAILED", "model_unavailable")
        assert task.step_count == 1
        assert len(world.clock.sleeps) == ATTEMPTS - 1
        assert all(0 <= slept <= bound for slept, bound in zip(world.clock.sleeps, BOUNDS_S, strict=True))
        assert task.usage.inference_retries == ATTEMPTS - 1
        assert task.usage.tokens == 0  # nothing was answered, so nothing is billed
        assert f"{ATTEMPTS} of {ATTEMPTS} attempts failed" in packet["detail"]
        assert packet["options"][0]["command"] == f"agentic-loop resume {task.task_id} --as WHO"


async def test_the_waits_between_attempts_are_jittered_and_double(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [ProviderError(503)] * ATTEMPTS
    async with scripted_world(sandbox, make_database(), script, ids=EvenIds()) as (world, _):
        await world.start()
        assert world.clock.sleeps == [0.25, 0.5, 1.0]


async def test_a_model_that_comes_back_spends_one_step_and_ends_succeeded(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    down = ProviderError(503)
    script = [LOOKUP, down, down, down, STATUS, REFUND]
    async with scripted_world(sandbox, make_database(), script, usages=[BILLED] * 6) as (world, _):
        task = await world.start()
        assert (task.step_count, task.usage.inference_retries, task.usage.tokens) == (3, 3, 330)
        assert await tool_requests(world) == [
            ("GET", "/orders/8472"),
            ("GET", "/refunds"),
            ("POST", "/notifications"),
        ]
        assert task.approval is not None
        task = await world.runtime.decide(task.approval.id, "approve", approver=ASHA)
        assert (task.status, len(await world.refunds())) == ("SUCCEEDED", 1)


async def test_a_model_that_is_down_can_be_resumed_when_it_answers_again(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [LOOKUP, *[ProviderError(503)] * ATTEMPTS, STATUS, REFUND]
    async with scripted_world(sandbox, make_database(), script) as (world, _):
        task = await world.start()
        await ended_with_packet(world, task, "FAILED", "model_unavailable")
        task = await world.runtime.resume(task.task_id, actor=ASHA)
        assert task.waiting, task.ending
        assert len(await world.requests("GET", "/orders/8472")) == 1  # what was read is not read again


@pytest.mark.parametrize("status_code", [400, 401, 403, 404])
async def test_a_fault_that_no_attempt_can_mend_ends_failed_at_once(
    sandbox: Sandbox, make_database: DatabaseMaker, status_code: int
) -> None:
    async with scripted_world(sandbox, make_database(), [ProviderError(status_code), LOOKUP]) as (world, model):
        task = await world.start()
        assert len(model.prompts) == 1
        assert world.clock.sleeps == []
        packet = await ended_with_packet(world, task, "FAILED", "model_unavailable")
        assert str(status_code) in packet["detail"]


# --- rate limits ------------------------------------------------------------------------------------------------


async def test_a_rate_limit_is_waited_for_as_long_as_the_provider_asks(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [ProviderError(429, retry_after="7"), LOOKUP, BLOCKED]
    async with scripted_world(sandbox, make_database(), script) as (world, _):
        task = await world.start()
        assert world.clock.sleeps == [7.0]
        assert task.usage.active_ms >= 7_000
        await ended_with_packet(world, task, "FAILED", "no_action")
        assert task.step_count == 2


@pytest.mark.parametrize(("asked_s", "limits"), [("31", {}), ("20", {"max_active_s": 15})])
async def test_a_rate_limit_that_asks_for_too_long_a_wait_ends_failed_without_waiting(
    sandbox: Sandbox, make_database: DatabaseMaker, asked_s: str, limits: dict[str, int]
) -> None:
    script = [ProviderError(429, retry_after=asked_s), LOOKUP]
    async with scripted_world(sandbox, make_database(), script, limits=limits) as (world, model):
        task = await world.start()
        assert (len(model.prompts), world.clock.sleeps) == (1, [])
        await ended_with_packet(world, task, "FAILED", "model_unavailable")


# --- time-outs, which may be billed -----------------------------------------------------------------------------


async def test_time_outs_are_charged_as_reserved(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    script = [TimeoutError(), TimeoutError(), LOOKUP, BLOCKED]
    async with scripted_world(sandbox, make_database(), script, usages=[BILLED] * 4) as (world, model):
        task = await world.start()
        assert len(model.prompts) == 4
        reserved = task.usage.estimated_cost_micro_usd
        assert task.usage.output_tokens == 2 * CONTRACT.limits.max_output_tokens + 2 * BILLED.output_tokens
        assert task.usage.input_tokens > 2 * len(shown(model, 0)) / 8
        assert task.usage.cost_micro_usd == task.usage.tokens <= reserved
        assert task.step_count == 2
        spent = (await ended_with_packet(world, task, "FAILED", "no_action"))["spent"]
        assert spent["inference_retries"] == 2


async def test_time_outs_use_up_the_tokens_and_end_budget_exhausted_without_one_more_attempt(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [TimeoutError()] * 6
    async with scripted_world(sandbox, make_database(), script, limits={"max_tokens": 9_000}) as (world, model):
        task = await world.start()
        await ended_with_packet(world, task, "BUDGET_EXHAUSTED", "tokens")
        assert 1 <= len(model.prompts) < ATTEMPTS
        assert task.usage.tokens <= 9_000
        assert task.step_count == 1


# --- answers that cannot be used --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unusable:
    """An answer, and what the model is told about it."""

    answer: Any
    told: str


def _whole(**more: Any) -> AIMessage:
    """An answer that holds a complete and tempting call, and something that spoils it."""
    call = {"name": "lookup_order", "args": {"order_id": "8472"}, "id": "call_1", "type": "tool_call"}
    return AIMessage(content="", tool_calls=[call], **more)


@pytest.mark.parametrize(
    "case",
    [
        Unusable(_whole(response_metadata={"finish_reason": "length"}), "cut off at its length limit"),
        Unusable(_whole(response_metadata={"finish_reason": "content_filter"}), "content filter withheld"),
        Unusable(_whole(additional_kwargs={"refusal": "I cannot do that."}), "was a refusal"),
        Unusable(AIMessage(content=""), "the answer was empty"),
        Unusable("I have looked it up.", "text is not an action"),
        Unusable(("lookup_order", '{"order_id": "84'), "not valid JSON"),
        Unusable(("lookup_order", '{"order_id": "8472"} {}'), "something follows the JSON object"),
        Unusable(("lookup_order", "{}"), "order_id"),
        Unusable(("lookup_order", {"order_id": "8472", "as": "admin"}), "as"),
    ],
    ids=["cut off", "filtered", "refusal", "empty", "words", "cut JSON", "two objects", "nothing given", "too much"],
)
async def test_an_unusable_answer_is_told_to_the_model_spends_a_step_and_reaches_nothing(
    sandbox: Sandbox, make_database: DatabaseMaker, case: Unusable
) -> None:
    async with scripted_world(sandbox, make_database(), [case.answer, BLOCKED]) as (world, model):
        task = await world.start()
        assert await tool_requests(world) == []
        await ended_with_packet(world, task, "FAILED", "no_action")
        assert task.step_count == 2
        (fault,) = await faults(world, task)
        assert case.told in fault.message
        assert case.told in shown(model, 1)


async def test_f17_arguments_that_are_no_object_are_three_observations_that_say_what_is_wrong(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [("lookup_order", '{"order_id":'), ("lookup_order", "null"), ("lookup_order", "[]"), LOOKUP, BLOCKED]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        task = await world.start()
        assert await tool_requests(world) == [("GET", "/orders/8472")]
        await ended_with_packet(world, task, "FAILED", "no_action")
        told = [fault.message for fault in await faults(world, task)]
        assert len(told) == 3
        assert "not valid JSON" in told[0]
        assert all("must be one JSON object" in message for message in told[1:])
        assert [entry.step for entry in await entries(world, task, "invalid")] == [1, 2, 3]
        assert "must be one JSON object" in shown(model, 2)


async def test_what_failed_attempts_cost_is_kept_apart_from_what_the_answer_cost(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    """A refused attempt costs nothing; the answer that follows is billed as the provider says."""
    script = [ProviderError(500), LOOKUP, BLOCKED]
    usages = [None, ModelUsage(700, 30), BILLED]
    async with scripted_world(sandbox, make_database(), script, usages=usages) as (world, _):
        task = await world.start()
        usage: Usage = task.usage
        assert (usage.input_tokens, usage.output_tokens) == (800, 40)
