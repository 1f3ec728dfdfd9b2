"""The document's trace of order 8472, state by state, then approval, execution, verification and notification.

What cannot hold to the letter: the document shows no token usage for step 4 and abbreviates the action hash; the
approval is requested when the fake clock says so, with the document's two-hour expiry.
"""

import itertools
from datetime import UTC, datetime, timedelta
from typing import cast

from agentic_loop.graph.build import LoopGraph
from agentic_loop.graph.records import ModelUsage
from agentic_loop.graph.state import LoopState
from agentic_loop.policies.fingerprints import action_hash
from agentic_loop.testing.clock import FakeClock
from tests.conftest import DatabaseMaker, Sandbox

from .world import ASHA, GOAL, INVESTIGATION, RAVI, REFUND, World, open_world

START = datetime(2026, 10, 28, 11, 17, 43, tzinfo=UTC)
KEY = "refund:order-8472:pay_5a2:v1"
USAGES = [ModelUsage(1_200, 60), ModelUsage(1_640, 65), ModelUsage(2_300, 70), ModelUsage(2_500, 80)]


class DocumentIds:
    """The ids of the document, in its order."""

    def __init__(self) -> None:
        self._requests = itertools.count(1)

    def trace_id(self) -> str:
        return "trace-7f3a"

    def request_id(self, task_id: str) -> str:
        return f"req-8472-{next(self._requests):02d}"

    def approval_id(self) -> str:
        return "apr-5521"

    def fraction(self) -> float:
        return 0.5


async def test_the_documents_trace(sandbox: Sandbox, make_database: DatabaseMaker) -> None:
    clock = FakeClock(START)
    script = [*INVESTIGATION, REFUND]
    async with open_world(sandbox, make_database(), script, clock=clock, ids=DocumentIds(), usages=USAGES) as world:
        waiting = await world.runtime.start("refund", goal=GOAL, requester=RAVI, task_id="task-8472-a")
        assert waiting.status == "AWAITING_APPROVAL"
        history = await _versions(world.runtime.graph("refund"), "task-8472-a")
        _check_investigation(history)
        _check_gate(history[4])
        row = await world.runtime.stores.approvals.find("apr-5521")
        assert row is not None
        assert row.expires_at - row.requested_at == timedelta(hours=2)
        assert row.required_role == "support_lead"
        assert "POL-REF-004 v4 §3.2" in row.policy_clause
        assert await world.refunds() == []

        clock.advance(600)
        ended = await world.runtime.decide("apr-5521", "approve", approver=ASHA)
        assert ended.status == "SUCCEEDED"
        assert ended.step_count == 4
        assert ended.usage.tokens == 5_335 + 2_580
        assert ended.usage.suspended_ms == 600_000
        assert ended.usage.active_ms < 120_000
        assert [(entry.source, entry.tool) for entry in await world.runtime.trace("task-8472-a")][4:7] == [
            ("model", "issue_refund"),
            ("workflow", "get_refund"),
            ("workflow", "notify_customer"),
        ]
        assert {action.kind: action.status for action in ended.outstanding} == {
            "issue_refund": "verified",
            "notify_customer": "executed",
        }
        await _check_the_services(world)


async def _versions(graph: LoopGraph, task_id: str) -> dict[int, LoopState]:
    """The state that each version began with, as the checkpoints hold it: what the step had just left."""
    history: dict[int, LoopState] = {}
    async for snapshot in graph.aget_state_history({"configurable": {"thread_id": task_id}}):
        values = cast(LoopState, snapshot.values)
        if "version" in values:
            history[values["version"]] = values  # newest first, so that the oldest of a version stays
    return history


def _check_investigation(history: dict[int, LoopState]) -> None:
    assert sorted(history) == [0, 1, 2, 3, 4]
    assert history[0]["status"] == "RUNNING"
    assert history[0]["evidence"] == []
    assert history[0]["limits"].max_steps == 8
    assert history[0]["limits"].max_active_s == 120
    assert history[0]["limits"].max_tokens == 40_000
    assert history[0]["task"].trace_id == "trace-7f3a"
    sources = ["payments-service", "refunds-service", "policy-store"]
    tools = ["lookup_order", "get_refund_status", "search_policy"]
    for version, tokens in ((1, 1_260), (2, 2_965), (3, 5_335)):
        state = history[version]
        assert state["step_count"] == version
        assert state["usage"].tokens == tokens
        assert [item.id for item in state["evidence"]] == [f"ev-{n}" for n in range(1, version + 1)]
        assert [item.source for item in state["evidence"]] == sources[:version]
        assert [item.request_id for item in state["evidence"]] == [f"req-8472-{n:02d}" for n in range(1, version + 1)]
        assert [(item.step, item.tool, item.outcome, item.evidence_id) for item in state["tool_history"]] == [
            (n, tools[n - 1], "ok", f"ev-{n}") for n in range(1, version + 1)
        ]
        assert state["outstanding"] == []
    assert history[3]["evidence"][2].ref == "POL-REF-004 v4 section 3.2"


def _check_gate(state: LoopState) -> None:
    assert state["status"] == "AWAITING_APPROVAL"
    assert state["step_count"] == 4
    assert [(action.kind, action.key, action.status) for action in state["outstanding"]] == [
        ("issue_refund", KEY, "proposed")
    ]
    approval = state["approval"]
    assert approval is not None
    assert approval.id == "apr-5521"
    assert approval.action_hash == action_hash(REFUND[0], REFUND[1], KEY)
    assert approval.expires_at - approval.requested_at == timedelta(hours=2)


async def _check_the_services(world: World) -> None:
    refunds = await world.refunds()
    assert [(row["payment_id"], row["amount_inr"]) for row in refunds] == [("pay_5a2", 2000)]
    assert len(await world.customer_notices()) == 1
    assert len(await world.role_notices()) == 1
    posts = await world.requests("POST", "/refunds")
    assert [row["idempotency_key"] for row in posts] == [KEY]
