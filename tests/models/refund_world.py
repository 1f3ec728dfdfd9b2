"""A refund loop in miniature: real rendering and a real model, with the services played by dictionaries."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import JsonValue

from agentic_loop.graph.records import EvidenceRecord, JournalEntry, ToolOffer
from agentic_loop.graph.state import CallFault, FaultCategory, Limits, Prompt, PromptMessage, ProposedCall
from agentic_loop.models.chat_model import LangChainModel
from agentic_loop.models.pricing import pricing_for
from agentic_loop.models.rehearsal import REHEARSAL, RehearsalChatModel
from agentic_loop.models.token_estimate import estimate_tokens
from agentic_loop.policies.rendering import prompt_tokens, render
from agentic_loop.policies.reply import CONTROL_SHAPES

AT = datetime(2026, 10, 28, 11, 0, tzinfo=UTC)
READS = ("lookup_order", "get_refund_status", "get_refund", "search_policy")
POLICY: JsonValue = {
    "passages": [
        {"doc": "POL-REF-004", "version": "v4", "section": "3.2", "text": "Refundable for the later payment."}
    ]
}


def payment(payment_id: str, amount_inr: int, minute: int, status: str = "captured") -> dict[str, JsonValue]:
    at = f"2026-10-20T09:{minute:02d}:00Z"
    return {"payment_id": payment_id, "amount_inr": amount_inr, "status": status, "at": at}


def order(order_id: str, total_inr: int, *payments: dict[str, JsonValue], **more: JsonValue) -> dict[str, JsonValue]:
    rows: list[JsonValue] = list(payments)
    fields: dict[str, JsonValue] = {
        "order_id": order_id,
        "customer_id": "cust-1",
        "total_inr": total_inr,
        "payments": rows,
        "currency": "INR",
        "chargeback": "none",
    }
    return {**fields, **more}


def refund(refund_id: str, payment_id: str, amount_inr: int, status: str, order_id: str = "8472") -> JsonValue:
    return {
        "refund_id": refund_id,
        "order_id": order_id,
        "payment_id": payment_id,
        "amount_inr": amount_inr,
        "status": status,
        "created_at": "2026-10-22T12:00:00Z",
    }


TWICE = order("8472", 2000, payment("pay_5a1", 2000, 14), payment("pay_5a2", 2000, 15))


@dataclass
class World:
    """What each service answers, and which calls fail how often first."""

    orders: dict[str, JsonValue] = field(default_factory=dict)
    refunds: list[JsonValue] = field(default_factory=list)
    policy: JsonValue = field(default_factory=lambda: POLICY)
    faults: dict[str, list[FaultCategory]] = field(default_factory=dict)

    def answer(self, tool: str, args: Mapping[str, Any]) -> tuple[JsonValue, CallFault | None]:
        waiting = self.faults.get(tool, [])
        if waiting:
            return None, CallFault(category=waiting.pop(0), message=f"{tool} did not work")
        match tool:
            case "lookup_order":
                found = self.orders.get(args["order_id"])
                missing = CallFault(category="not_found", message="order_not_found")
                return found, None if found is not None else missing
            case "get_refund_status":
                return {"order_id": args["order_id"], "refunds": self.refunds}, None
            case "get_refund":
                rows = [row for row in self.refunds if isinstance(row, dict)]
                return next(row for row in rows if row["refund_id"] == args["refund_id"]), None
            case "search_policy":
                return self.policy, None
            case _:
                raise AssertionError(f"{tool} was not expected to be called")


@dataclass
class Task:
    """The records of one task as they grow, and what the model proposed at each step."""

    goal: str = "Order 8472 was charged twice, and my refund has not arrived."
    inputs: dict[str, str] = field(default_factory=dict)
    entries: list[JournalEntry] = field(default_factory=list)
    evidence: dict[str, EvidenceRecord] = field(default_factory=dict)
    proposals: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def step(self) -> int:
        return len({entry.version for entry in self.entries}) + 1

    def messages(self) -> list[PromptMessage]:
        return render(
            instructions="Resolve it.",
            goal=self.goal,
            inputs=self.inputs,
            entries=self.entries,
            evidence=self.evidence,
            limits=Limits(),
            budget_tokens=10**9,
            estimate=len,
        )

    def observe(self, tool: str, args: Mapping[str, Any], payload: JsonValue, fault: CallFault | None = None) -> None:
        number = len(self.evidence) + 1
        if fault is None:
            self.evidence[f"ev-{number}"] = EvidenceRecord(
                id=f"ev-{number}",
                ordinal=number,
                step=self.step,
                tool=tool,
                args=dict(args),
                request_id=f"req-{number}",
                fetched_at=AT,
                source="a-service",
                ref="",
                payload=payload,
                payload_digest="0" * 64,
                size_bytes=1,
            )
        self.entries.append(
            self._entry(
                kind="tool", source="model", tool=tool, args=dict(args), fault=fault,
                evidence_id=None if fault is not None else f"ev-{number}",
            )
        )  # fmt: skip

    def remark(self, about: str, text: str = "") -> None:
        self.entries.append(self._entry(kind="feedback", source="runtime", validation=about, text=text))

    def resume(self, **inputs: JsonValue) -> None:
        self.entries.append(self._entry(kind="resumed", source="runtime", args={**inputs, "add_steps": 0}))

    def _entry(self, **fields: Any) -> JournalEntry:
        return JournalEntry(task_id="t", version=self.step, call=0, step=self.step, at=AT, phase="work", **fields)


def offers(*names: str) -> list[ToolOffer]:
    plain: dict[str, JsonValue] = {"type": "object"}
    tools = [ToolOffer(name, "a tool", plain) for name in names]
    return tools + [ToolOffer(shape.name, shape.description, shape.parameters) for shape in CONTROL_SHAPES.values()]


ALL = offers(*READS, "issue_refund")
MODEL = LangChainModel(RehearsalChatModel(), REHEARSAL, pricing_for(REHEARSAL, {}))


async def proposal(messages: Sequence[PromptMessage], tools: Sequence[ToolOffer] = ALL) -> tuple[str, dict[str, Any]]:
    """What the rehearsal model proposes for these messages; its usage estimate stays below the upper bound."""
    estimated = prompt_tokens(messages, tools, estimate_tokens)
    prompt = Prompt(messages=list(messages), tools=[t.name for t in tools], digest="d", estimated_tokens=estimated)
    reply = await MODEL.propose(prompt, tools, max_output_tokens=1024, timeout_s=10)
    [call] = reply.proposal.calls
    assert isinstance(call, ProposedCall)
    assert reply.proposal.fault is None
    assert reply.usage is not None
    assert 0 < reply.usage.input_tokens <= estimated
    return call.name, json.loads(call.arguments_json)


async def run(world: World, task: Task | None = None, tools: Sequence[ToolOffer] = ALL, steps: int = 12) -> Task:
    """Step until the model proposes something that is not a read; that proposal is the last one in the task."""
    task = task or Task()
    for _ in range(steps):
        name, args = await proposal(task.messages(), tools)
        task.proposals.append((name, args))
        if name not in READS:
            return task
        task.observe(name, args, *world.answer(name, args))
    raise AssertionError(f"no end after {steps} steps: {task.proposals}")
