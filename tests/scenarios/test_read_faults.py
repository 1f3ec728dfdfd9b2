"""Reads that fail, are slow or broken, one by one and side by side: bounded retries, each attempt with its own id."""

import dataclasses
from datetime import datetime, timedelta

import pytest

from agentic_loop.graph.definition import LoopDefinition
from agentic_loop.testing.models import ScriptedChatModel
from agentic_loop.tools.registry import ToolRegistry
from agentic_loop.tools.tool import Arguments, ToolContext, ToolResult
from tests.conftest import DatabaseMaker, Sandbox

from .packets import ended_with_packet
from .scripted import entries, faults, scripted_world, shown, tool_requests
from .test_endings import BLOCKED
from .world import ASHA, LOOKUP, POLICY, REFUND, STATUS, World

ORDERS = "GET /orders/{order_id}"
SLOW_S = 1.2


# --- one dependency down ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["error_before_commit", "drop_before_commit", "garbage"])
async def test_a_dependency_down_past_its_retries_ends_failed_tool_exhausted(
    sandbox: Sandbox, make_database: DatabaseMaker, kind: str
) -> None:
    async with scripted_world(sandbox, make_database(), [LOOKUP, BLOCKED]) as (world, model):
        await world.fault("payments", ORDERS, kind, times=9)
        task = await world.start()
        attempts = await world.requests("GET", "/orders/8472")
        assert len(attempts) == 3
        assert len({row["request_id"] for row in attempts}) == 3
        packet = await ended_with_packet(world, task, "FAILED", "tool_exhausted")
        assert "payments-service stayed down after 3 attempt(s)" in packet["detail"]
        assert (len(model.prompts), task.step_count) == (1, 1)
        assert task.usage.read_retries == 2
        assert [0 <= slept <= bound for slept, bound in zip(world.clock.sleeps, (0.5, 1.0), strict=True)] == [
            True
        ] * 2
        assert packet["last_errors"][0]["request_id"] == attempts[-1]["request_id"]
        assert await world.runtime.evidence(task.task_id) == []


async def test_a_task_whose_dependency_was_down_can_be_resumed_and_ends_succeeded(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [LOOKUP, STATUS, STATUS, REFUND]
    async with scripted_world(sandbox, make_database(), script) as (world, _):
        await world.fault("refunds", "GET /refunds", "error_before_commit", times=3)
        task = await world.start()
        await ended_with_packet(world, task, "FAILED", "tool_exhausted")
        task = await world.runtime.resume(task.task_id, actor=ASHA)
        assert task.approval is not None
        task = await world.runtime.decide(task.approval.id, "approve", approver=ASHA)
        assert (task.status, len(await world.refunds())) == ("SUCCEEDED", 1)


@pytest.mark.parametrize("kind", ["error_before_commit", "drop_before_commit", "garbage"])
async def test_one_fault_of_a_read_then_fine_ends_succeeded(
    sandbox: Sandbox, make_database: DatabaseMaker, kind: str
) -> None:
    async with scripted_world(sandbox, make_database(), [LOOKUP, STATUS, REFUND]) as (world, model):
        await world.fault("payments", ORDERS, kind, times=1)
        task = await world.start()
        attempts = await world.requests("GET", "/orders/8472")
        assert len(attempts) == 2
        (first, *_) = await world.runtime.evidence(task.task_id)
        assert first.request_id == attempts[1]["request_id"] != attempts[0]["request_id"]
        assert (task.usage.read_retries, task.step_count, len(model.prompts)) == (1, 3, 3)
        assert task.approval is not None
        task = await world.runtime.decide(task.approval.id, "approve", approver=ASHA)
        assert (task.status, len(await world.refunds())) == ("SUCCEEDED", 1)


async def test_something_that_does_not_exist_is_an_observation_and_not_retried(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [("lookup_order", {"order_id": "0000"}), ("ask_user", {"question": "Which order is meant?"})]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        task = await world.start("Order 0000 was charged twice.")
        assert len(await world.requests("GET", "/orders/0000")) == 1
        assert "not_found" in shown(model, 1)
        await ended_with_packet(world, task, "NEEDS_INPUT", "question")


async def test_f18_a_tool_that_raises_is_an_observation_and_the_run_goes_on(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    async def broken(args: Arguments, context: ToolContext) -> ToolResult:
        raise ValueError("invalid literal for int()")

    def with_broken_search(loop: LoopDefinition) -> LoopDefinition:
        specs = [
            dataclasses.replace(spec, call=broken) if spec.name == "search_policy" else spec for spec in loop.tools
        ]
        return dataclasses.replace(loop, tools=ToolRegistry(specs))

    script = [LOOKUP, POLICY, STATUS, BLOCKED]
    async with scripted_world(sandbox, make_database(), script, adapt=with_broken_search) as (world, model):
        task = await world.start()
        assert await tool_requests(world) == [("GET", "/orders/8472"), ("GET", "/refunds")]
        (fault,) = await faults(world, task)
        assert fault.category == "tool_defect"
        assert "ValueError: invalid literal for int()" in fault.message
        assert "tool_defect" in shown(model, 2)
        await ended_with_packet(world, task, "FAILED", "no_action")
        assert task.step_count == 4


# --- several reads at once --------------------------------------------------------------------------------------


async def _slow_reads(world: World) -> None:
    operations = {"payments": ORDERS, "refunds": "GET /refunds", "policy-store": "POST /policy/search"}
    for service, operation in operations.items():
        await world.fault(service, operation, "slow", delay_s=SLOW_S)


async def test_several_reads_of_one_answer_run_side_by_side_in_one_step(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [[LOOKUP, STATUS, POLICY], REFUND]
    async with scripted_world(sandbox, make_database(), script) as (world, _):
        await _slow_reads(world)
        task = await world.start()
        reads = (await world.requests())[:3]
        arrived = [datetime.fromisoformat(row["at"]) for row in reads]
        # Each takes SLOW_S: all three arriving before the first can have been answered means that they overlap.
        assert max(arrived) - min(arrived) < timedelta(seconds=SLOW_S)
        assert {row["fault"] for row in reads} == {"slow"}
        assert len({row["request_id"] for row in reads}) == 3
        evidence = (await world.runtime.evidence(task.task_id))[:3]
        assert [record.tool for record in evidence] == ["lookup_order", "get_refund_status", "search_policy"]
        assert {record.request_id for record in evidence} == {row["request_id"] for row in reads}
        assert {record.step for record in evidence} == {1}
        history = task.values["tool_history"][:3]
        assert [(line.step, line.evidence_id) for line in history] == [(1, "ev-1"), (1, "ev-2"), (1, "ev-3")]
        journal = await entries(world, task, "tool")
        assert [entry.version for entry in journal[:3]] == [1, 1, 1]
        assert task.waiting
        assert task.step_count == 2


async def test_an_invalid_call_among_several_fails_alone(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    script = [[LOOKUP, ("get_refund_status", {"order": "8472"}), ("look_up", {}), POLICY], BLOCKED]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        task = await world.start()
        assert sorted(await tool_requests(world)) == [("GET", "/orders/8472"), ("POST", "/policy/search")]
        assert [fault.category for fault in await faults(world, task)] == ["invalid_arguments", "unknown_tool"]
        trace = (await world.runtime.trace(task.task_id))[:4]
        assert [(entry.step, entry.call, entry.evidence_id) for entry in trace] == [
            (1, 0, "ev-1"), (1, 1, None), (1, 2, None), (1, 3, "ev-2"),
        ]  # fmt: skip
        _check_each_call_is_answered(model)


def _check_each_call_is_answered(model: ScriptedChatModel) -> None:
    """As providers demand it: every call that the model is shown has exactly one answer, by id."""
    asked = [call["id"] for message in model.prompts[1] for call in getattr(message, "tool_calls", [])]
    answered = [getattr(message, "tool_call_id", None) for message in model.prompts[1] if message.type == "tool"]
    assert len(asked) == 4
    assert asked == answered


async def test_a_failing_read_among_several_leaves_the_others_their_evidence(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [[LOOKUP, STATUS, POLICY], BLOCKED]
    async with scripted_world(sandbox, make_database(), script) as (world, _):
        await world.fault("refunds", "GET /refunds", "error_before_commit", times=9)
        task = await world.start()
        evidence = await world.runtime.evidence(task.task_id)
        assert [record.tool for record in evidence] == ["lookup_order", "search_policy"]
        await ended_with_packet(world, task, "FAILED", "tool_exhausted")
        assert len(await world.requests("GET", "/refunds")) == 3


async def test_a_write_among_reads_is_refused_and_the_reads_run(
    sandbox: Sandbox, make_database: DatabaseMaker
) -> None:
    script = [LOOKUP, [STATUS, REFUND], BLOCKED]
    async with scripted_world(sandbox, make_database(), script) as (world, model):
        task = await world.start()
        assert await tool_requests(world) == [("GET", "/orders/8472"), ("GET", "/refunds")]
        assert task.approval is None
        assert "propose it alone" in shown(model, 2)
        await ended_with_packet(world, task, "FAILED", "no_action")


async def test_two_writes_in_one_answer_are_both_refused(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    script = [[LOOKUP, STATUS], [REFUND, REFUND], REFUND]
    async with scripted_world(sandbox, make_database(), script) as (world, _):
        task = await world.start()
        assert await world.requests("POST", "/refunds") == []
        assert [fault.category for fault in await faults(world, task)] == ["not_allowed_now"] * 2
        assert task.approval is not None
        assert (await world.runtime.decide(task.approval.id, "approve", approver=ASHA)).status == "SUCCEEDED"
        assert len(await world.refunds()) == 1
