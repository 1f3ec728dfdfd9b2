"""A request for approval as a person sees it before answering: exactly the action, and all of it.

Source: DESIGN §1 (what an approver sees), §5.
"""

import json
from collections.abc import Sequence
from datetime import datetime

from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from agentic_loop.graph.records import ApprovalRow, EvidenceRecord

from .terminal_view import clip, plain

MAX_PREVIEW_CHARS = 200


def approval_json(row: ApprovalRow) -> dict[str, JsonValue]:
    """The approval as JSON data; instants are ISO 8601 in UTC."""
    return {
        "id": row.id,
        "task_id": row.task_id,
        "tenant": row.tenant,
        "loop": row.loop,
        "tool": row.tool,
        "args": dict(row.args),
        "idempotency_key": row.idempotency_key,
        "action_hash": row.action_hash,
        "required_role": row.required_role,
        "requester": row.requester,
        "policy_ids": list(row.policy_ids),
        "policy_clause": row.policy_clause,
        "reason": row.reason,
        "evidence_ids": list(row.evidence_ids),
        "round": row.round,
        "requested_at": row.requested_at.isoformat(),
        "expires_at": row.expires_at.isoformat(),
        "decision": row.decision,
        "decided_by": row.decided_by,
        "message": row.message,
    }


def approval_table(row: ApprovalRow, evidence: Sequence[EvidenceRecord] = ()) -> Table:
    """Everything that binds the approval, one line each; of the evidence named, a preview where it is given."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in _facts(row):
        table.add_row(name, Text(plain(value)))
    for record in evidence:
        if record.id in row.evidence_ids:
            preview = clip(json.dumps(record.payload, ensure_ascii=False), MAX_PREVIEW_CHARS)
            table.add_row(Text(record.id), Text(f"{plain(record.tool)} of {plain(record.source)}: {preview}"))
    return table


def _facts(row: ApprovalRow) -> list[tuple[str, str]]:
    clause = f"{row.policy_clause} " if row.policy_clause else ""
    facts = [
        ("approval", row.id),
        ("action", row.tool),
        ("arguments", json.dumps(dict(row.args), ensure_ascii=False)),
        ("amount", amount_of(row)),
        ("key", row.idempotency_key or "none"),
        ("action hash", row.action_hash),
        ("needs", f"{row.required_role} of {row.tenant}"),
        ("asked by", row.requester),
        ("policy", f"{clause}({', '.join(row.policy_ids)})"),
        ("reason", row.reason),
        ("evidence", ", ".join(row.evidence_ids) or "none"),
        ("expires", f"{_instant(row.expires_at)} (request {row.round})"),
        ("task", row.task_id),
    ]
    return [(name, value) for name, value in facts if value]


def amount_of(row: ApprovalRow) -> str:
    """The amount of the action in words, or nothing where it has none."""
    amount = row.args.get("amount_inr")
    return f"INR {amount:,}" if isinstance(amount, int) and not isinstance(amount, bool) else ""


def answers_to(row: ApprovalRow, program: str) -> list[str]:
    """The commands that answer the request; the words in capitals are for the person to fill in."""
    edit = next(iter(row.args), "NAME")
    edited = "amount_inr" if "amount_inr" in row.args else plain(edit)
    return [
        f"{program} approve {row.id} --as WHO",
        f'{program} reject {row.id} --as WHO --message "WHY"',
        f"{program} edit {row.id} --as WHO --arg {edited}=VALUE",
    ]


def _instant(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")
