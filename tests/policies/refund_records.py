"""Evidence of order 8472 and its variations, as the services' wire shapes have it, for the tests of the policies."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

import agentic_loop.policies
from agentic_loop.graph.records import EvidenceRecord, TaskView, ToolShape
from agentic_loop.graph.state import OutstandingAction, Principal, Task
from agentic_loop.policies.authorisation import PolicySet
from agentic_loop.policies.refund_facts import RefundFacts

Seen: TypeAlias = tuple[str, JsonValue] | tuple[str, JsonValue, Mapping[str, JsonValue]]
"""One observation: the tool, its payload and, if they matter, its arguments."""

NOW = datetime(2026, 10, 28, 11, 19, 43, tzinfo=UTC)
ALL_SCOPES = ["orders:read", "refunds:read", "refunds:write", "policy:read", "notifications:write"]
REQUESTER = Principal(id="ravi", tenant="acme", scopes=ALL_SCOPES)
LEAD = Principal(id="asha", tenant="acme", roles=["support_lead"])
MANAGER = Principal(id="meera", tenant="acme", roles=["manager"])
CEDAR_TEXT = Path(agentic_loop.policies.__file__).with_name("refund.cedar").read_text("utf-8")


def shape(name: str, **types: str) -> ToolShape:
    properties: dict[str, JsonValue] = {argument: {"type": kind} for argument, kind in types.items()}
    return ToolShape(
        name=name,
        description="",
        effect="read",
        scope="",
        parameters={"type": "object", "properties": properties, "required": list(types)},
    )


SHAPES = {
    tool.name: tool
    for tool in (
        shape("lookup_order", order_id="string"),
        shape("get_refund_status", order_id="string"),
        shape("get_refund", refund_id="string"),
        shape("search_policy", query="string"),
        shape("issue_refund", order_id="string", payment_id="string", amount_inr="integer"),
        shape("notify_customer", recipient="string", subject="string", body="string", reference="string"),
    )
}


def load(text: str = CEDAR_TEXT) -> PolicySet:
    return PolicySet.load(texts={"refund.cedar": text}, shapes=SHAPES, facts=RefundFacts)


def payment(
    payment_id: str, amount_inr: int = 2000, second: int = 2, status: str = "captured"
) -> dict[str, JsonValue]:
    at = f"2026-10-20T09:14:{second:02d}Z"
    return {"payment_id": payment_id, "amount_inr": amount_inr, "status": status, "at": at}


def order(
    *,
    order_id: str = "8472",
    tenant: str = "acme",
    currency: str = "INR",
    chargeback: str = "none",
    payments: Sequence[JsonValue] | None = None,
) -> dict[str, JsonValue]:
    twice: list[JsonValue] = [payment("pay_5a1"), payment("pay_5a2", second=41)]
    return {
        "order_id": order_id,
        "customer_id": "cust-3391",
        "tenant": tenant,
        "currency": currency,
        "total_inr": 2000,
        "payments": twice if payments is None else list(payments),
        "chargeback": chargeback,
    }


def refund(status: str = "pending", *, payment_id: str = "pay_5a2", amount_inr: int = 2000) -> dict[str, JsonValue]:
    return {
        "refund_id": "rf_9001",
        "order_id": "8472",
        "payment_id": payment_id,
        "amount_inr": amount_inr,
        "status": status,
        "created_at": "2026-10-28T11:25:00Z",
    }


def refunds(*found: JsonValue, order_id: str = "8472") -> dict[str, JsonValue]:
    return {"order_id": order_id, "refunds": list(found)}


POLICY: dict[str, JsonValue] = {
    "passages": [
        {
            "chunk_id": "c-32",
            "doc": "POL-REF-004",
            "version": "v4",
            "section": "3.2",
            "text": "Refunds above INR 1,000 require approval by a support lead.",
        }
    ]
}
SENT: dict[str, JsonValue] = {"notification_id": "ntf_1", "status": "sent", "recipient": "cust-3391"}


def evidence(*seen: Seen) -> list[EvidenceRecord]:
    """Records in order."""
    return [
        EvidenceRecord(
            id=f"ev-{number}",
            ordinal=number,
            step=number,
            tool=entry[0],
            args=entry[2] if len(entry) == 3 else {},
            request_id=f"req-{number}",
            fetched_at=NOW,
            source="a-service",
            ref="",
            payload=entry[1],
            payload_digest="",
            size_bytes=100,
        )
        for number, entry in enumerate(seen, 1)
    ]


def view(
    *seen: Seen,
    phase: str = "investigate",
    inputs: Mapping[str, str] | None = None,
    outstanding: Sequence[OutstandingAction] = (),
    message: str = "",
    finish_proposed: bool = False,
) -> TaskView:
    task = Task(
        task_id="task-8472-a",
        trace_id="trace-7f3a",
        loop="refund",
        goal="Order 8472 was charged twice.",
        inputs=dict(inputs or {}),
        tenant="acme",
        requester=REQUESTER,
        contract_digest="",
        versions={},
        started_at=NOW,
    )
    return TaskView(
        task=task,
        phase=phase,
        evidence=evidence(*seen),
        outstanding=outstanding,
        message=message,
        finish_proposed=finish_proposed,
    )


LOOKED_UP: tuple[Seen, ...] = (("lookup_order", order()), ("get_refund_status", refunds()))
"""What is on record before a refund of order 8472 is proposed."""
