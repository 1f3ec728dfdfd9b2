"""Plain records for the tests of the stores; every field can be set by name."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Literal, TypedDict

from pydantic import JsonValue

from agentic_loop.graph.records import ApprovalRow, EvidenceRecord
from agentic_loop.graph.state import Principal, Task
from agentic_loop.policies.fingerprints import digest

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)
HASH = "a" * 64
OTHER_HASH = "b" * 64

_numbers = count(1)


def fresh(what: str) -> str:
    """A name that no other test of this session uses."""
    return f"{what}-{next(_numbers)}"


def evidence(ordinal: int, payload: JsonValue, request_id: str = "req-1") -> EvidenceRecord:
    return EvidenceRecord(
        id=f"ev-{ordinal}",
        ordinal=ordinal,
        step=ordinal,
        tool="lookup_order",
        args={"order_id": "8472"},
        request_id=request_id,
        fetched_at=NOON,
        source="payments-service",
        ref="order:8472",
        payload=payload,
        payload_digest=digest(payload),
        size_bytes=len(str(payload)),
    )


def task(task_id: str, tenant: str = "acme", goal: str = "Refund order 8472", at: datetime = NOON) -> Task:
    return Task(
        task_id=task_id,
        trace_id=f"trace-of-{task_id}",
        loop="refund",
        goal=goal,
        inputs={"order_id": "8472"},
        tenant=tenant,
        requester=Principal(id="u-1", tenant=tenant, roles=["agent"], scopes=["orders:read"]),
        contract_digest="c" * 64,
        versions={"prompt": "1"},
        started_at=at,
    )


def approval(
    task_id: str,
    *,
    approval_id: str | None = None,
    tenant: str = "acme",
    action_hash: str = HASH,
    round_number: int = 1,
    role: str = "support_lead",
    expires_at: datetime = NOON + timedelta(hours=2),
    args: Mapping[str, JsonValue] | None = None,
) -> ApprovalRow:
    return ApprovalRow(
        id=approval_id or fresh("apr"),
        task_id=task_id,
        tenant=tenant,
        loop="refund",
        tool="issue_refund",
        args=args or {"order_id": "8472", "amount_inr": 2000},
        idempotency_key="refund:order-8472:pay_5a2:v1",
        action_hash=action_hash,
        required_role=role,
        requester="u-1",
        policy_ids=("refund-above-threshold",),
        policy_clause="POL-REF-004 v4 §3.2",
        reason="above INR 1,000",
        evidence_ids=("ev-1", "ev-3"),
        round=round_number,
        requested_at=NOON,
        expires_at=expires_at,
    )


class Decision(TypedDict):
    """What ``decide`` is told of a person's decision."""

    decision: Literal["approved", "edited", "rejected", "answered", "expired"]
    decided_by: str
    decided_role: str
    at: datetime


def by_the_lead(
    decision: Literal["approved", "edited", "rejected", "answered", "expired"] = "approved", at: datetime = NOON
) -> Decision:
    return {"decision": decision, "decided_by": "lead-1", "decided_role": "support_lead", "at": at}
