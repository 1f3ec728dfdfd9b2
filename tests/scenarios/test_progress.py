"""Going round without getting anywhere: one correction, then NO_PROGRESS, and a repeat is refused before dispatch."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import JsonValue

from agentic_loop.graph.definition import LoopDefinition
from agentic_loop.graph.loops.refund import CONTRACT
from agentic_loop.graph.state import Thresholds
from agentic_loop.policies.progress import DeclaredFact
from agentic_loop.policies.stopping import CORRECTIONS
from tests.conftest import DatabaseMaker, Sandbox

from .packets import ended_with_packet
from .scripted import corrections, entries, faults, scripted_world, shown, tool_requests
from .test_endings import BLOCKED, lookup, status
from .world import ASHA, LOOKUP, POLICY, REFUND, STATUS

PATIENT = CONTRACT.model_copy(update={"thresholds": Thresholds(max_repeats=4, max_stalled_steps=20)})


def search(query: str) -> tuple[str, dict[str, str]]:
    return ("search_policy", {"query": query})


def read_refund(refund_id: str) -> tuple[str, dict[str, str]]:
    return ("get_refund", {"refund_id": refund_id})


# --- repeats ----------------------------------------------------------------------------------------------------


async def test_a_repeated_call_is_corrected_once_and_then_ends_no_progress(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    """The document's four calls: none, none, repeated_action, repeated_action; the third is never dispatched."""
    async with scripted_world(sandbox, make_database(), [LOOKUP] * 6) as (world, model):
        task = await world.start()
        assert await tool_requests(world) == [("GET", "/orders/8472")] * 2
        packet = await ended_with_packet(world, task, "NO_PROGRESS", "repeated_action")
        assert len(model.prompts) == 4
        assert await corrections(world, task) == ["repeated_action"]
        assert CORRECTIONS["repeated_action"] in shown(model, 3)
        assert CORRECTIONS["repeated_action"] not in shown(model, 2)
        assert [fault.category for fault in await faults(world, task)] == ["repeat_refused"] * 2
        assert [row["outcome"] for row in packet["attempted_actions"]["rows"]] == ["ok", "ok", "", ""]


async def test_a_corrected_model_that_changes_its_plan_ends_succeeded(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [LOOKUP, LOOKUP, LOOKUP, STATUS, REFUND]
    async with scripted_world(sandbox, make_database(), script) as (world, _):
        task = await world.start()
        assert await corrections(world, task) == ["repeated_action"]
        assert task.approval is not None
        task = await world.runtime.decide(task.approval.id, "approve", approver=ASHA)
        assert [row["payment_id"] for row in await world.refunds()] == ["pay_5a2"]
        assert task.status == "SUCCEEDED"


async def test_f16_the_same_call_id_again_and_again_ends_no_progress_with_each_proposal_judged_once(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    def same_id(name: str, args: dict[str, Any]) -> AIMessage:
        return AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": "call_1", "type": "tool_call"}])

    script = [same_id(*call) for call in (LOOKUP, STATUS, STATUS, STATUS, STATUS)]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        task = await world.start()
        assert await tool_requests(world) == [("GET", "/orders/8472"), ("GET", "/refunds"), ("GET", "/refunds")]
        assert len({row["request_id"] for row in await world.requests()}) == 3
        await ended_with_packet(world, task, "NO_PROGRESS", "repeated_action")
        judged = [(entry.step, entry.call_id) for entry in await entries(world, task, "tool", "invalid")]
        assert judged == [(step, "call_1") for step in range(1, 6)]
        assert len(model.prompts) == 5


async def test_f16_one_answer_with_one_call_id_for_two_calls_keeps_them_apart(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    both = AIMessage(
        content="",
        tool_calls=[
            {"name": "lookup_order", "args": {"order_id": "8472"}, "id": "call_1", "type": "tool_call"},
            {"name": "get_refund_status", "args": {"order_id": "8472"}, "id": "call_1", "type": "tool_call"},
        ],
    )
    async with scripted_world(sandbox, make_database(), [both, BLOCKED]) as (world, _):
        task = await world.start()
        assert sorted(await tool_requests(world)) == [("GET", "/orders/8472"), ("GET", "/refunds")]
        evidence = await world.runtime.evidence(task.task_id)
        assert [record.tool for record in evidence] == ["lookup_order", "get_refund_status"]
        assert len({entry.call_id for entry in await entries(world, task, "tool")}) == 2


# --- other ways of going round ----------------------------------------------------------------------------------


async def test_f15_oscillation_is_corrected_once_and_then_ends_no_progress(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    """A, B, A, B with the same results. B was news once, which excuses a second look at A but not a third."""
    async with scripted_world(sandbox, make_database(), [LOOKUP, STATUS] * 4) as (world, model):
        task = await world.start()
        there_and_back = [("GET", "/orders/8472"), ("GET", "/refunds")]
        assert await tool_requests(world) == [*there_and_back, *there_and_back, there_and_back[0]]
        await ended_with_packet(world, task, "NO_PROGRESS", "oscillation")
        assert await corrections(world, task) == ["oscillation"]
        assert CORRECTIONS["oscillation"] in shown(model, 4)
        assert len(model.prompts) == 5


async def test_oscillation_after_its_correction_ends_no_progress(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    async with scripted_world(sandbox, make_database(), [LOOKUP, STATUS] * 4, contract=PATIENT) as (world, model):
        task = await world.start()
        await ended_with_packet(world, task, "NO_PROGRESS", "oscillation")
        assert await corrections(world, task) == ["oscillation"]
        assert len(model.prompts) == 5
        assert len(await tool_requests(world)) == 5


async def test_a_stall_is_corrected_once_and_then_ends_no_progress(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    """Ever new calls that teach nothing: three of them, a correction, a changed plan, and three more."""
    script = [LOOKUP, *(lookup(f"000{n}") for n in (1, 2, 3)), *(read_refund(f"rf_{n}") for n in range(9))]
    async with scripted_world(sandbox, make_database(), script, limits={"max_steps": 12}) as (world, model):
        task = await world.start()
        await ended_with_packet(world, task, "NO_PROGRESS", "no_state_change")
        assert await corrections(world, task) == ["no_state_change"]
        assert CORRECTIONS["no_state_change"] in shown(model, 4)
        assert CORRECTIONS["no_state_change"] not in shown(model, 3)
        assert len(model.prompts) == 8


async def test_progress_theatre_is_corrected_once_and_then_ends_no_progress(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    """The same words in another order find the same passages."""
    words = [
        "duplicate refund approval",
        "refund approval duplicate",
        "approval duplicate refund",
        "REFUND duplicate approval",
    ]
    script = [search(query) for query in words]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        task = await world.start()
        found = await world.runtime.evidence(task.task_id)
        assert len({record.payload_digest for record in found}) == 1
        assert len(await world.requests("POST", "/policy/search")) == 4
        await ended_with_packet(world, task, "NO_PROGRESS", "progress_theatre")
        assert await corrections(world, task) == ["progress_theatre"]
        assert CORRECTIONS["progress_theatre"] in shown(model, 3)


@pytest.mark.parametrize(
    "answer",
    [
        "I have refunded the customer.",
        ("lookup_order", "{'order_id': '8472'}"),
        ("lookup_order", {"order": "8472"}),
        ("look_up", {}),
        AIMessage(content=""),
    ],
    ids=["words", "no JSON", "wrong arguments", "unknown tool", "nothing"],
)
async def test_validation_churn_is_corrected_once_and_then_ends_no_progress(
    sandbox: Sandbox, make_database: DatabaseMaker, answer: Any
) -> None:
    async with scripted_world(sandbox, make_database(), [answer] * 6) as (world, model):
        task = await world.start()
        assert await tool_requests(world) == []
        await ended_with_packet(world, task, "NO_PROGRESS", "validation_churn")
        assert await corrections(world, task) == ["validation_churn"]
        assert CORRECTIONS["validation_churn"] in shown(model, 3)
        assert len(model.prompts) == task.step_count == 4


async def test_invalid_proposals_with_a_useful_one_between_them_are_no_churn(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = ["hm", "hm", LOOKUP, "hm", "hm", STATUS, BLOCKED]
    async with scripted_world(sandbox, make_database(), script) as (world, _):
        task = await world.start()
        assert await corrections(world, task) == []
        await ended_with_packet(world, task, "FAILED", "no_action")


# --- contradiction ----------------------------------------------------------------------------------------------


def _member(name: str, payload: JsonValue) -> JsonValue:
    return payload.get(name) if isinstance(payload, dict) else None


def _with_disagreeing_sources(loop: LoopDefinition) -> LoopDefinition:
    """Two services both say what is refunded of order 8477, and they do not agree: 2,400 and 800."""
    fact = DeclaredFact(
        "refunded amount",
        {
            "lookup_order": lambda payload: _member("total_inr", payload),
            "get_refund": lambda payload: _member("amount_inr", payload),
        },
    )
    return dataclasses.replace(loop, declared_facts=[fact])


def _contradicted(*more: tuple[str, dict[str, str]]) -> Sequence[Any]:
    return [lookup("8477"), read_refund("rf_8104"), *more]


async def test_a_contradiction_that_is_asked_about_again_is_corrected_once_and_then_ends_no_progress(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = _contradicted(read_refund("rf_8104"), lookup("8477"), BLOCKED)
    async with scripted_world(sandbox, make_database(), script, adapt=_with_disagreeing_sources) as (world, model):
        task = await world.start("Order 8477 was charged twice.")
        await ended_with_packet(world, task, "NO_PROGRESS", "contradiction")
        assert await corrections(world, task) == ["contradiction"]
        assert CORRECTIONS["contradiction"] in shown(model, 3)
        assert len(model.prompts) == 4


async def test_a_contradiction_that_is_left_alone_is_nothing_to_correct(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = _contradicted(status("8477"), POLICY, BLOCKED)
    async with scripted_world(sandbox, make_database(), script, adapt=_with_disagreeing_sources) as (world, _):
        task = await world.start("Order 8477 was charged twice.")
        assert await corrections(world, task) == []
        await ended_with_packet(world, task, "FAILED", "no_action")
        assert "refunded amount" in task.values["progress"].disagreements[0]
