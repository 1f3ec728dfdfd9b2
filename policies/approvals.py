"""What a person's answer to an approval means, and what the person is asked.

Answers come as LangChain's approval clients send them, ``{"decisions": [{"type": "approve"}]}``, and name the
approval that they are for. Whether the person is entitled is another question: ``authorisation.entitled``.

Source: DESIGN §5; LangChain's HITLRequest and HITLResponse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import JsonValue

from agentic_loop.graph.records import ApprovalRow, EvidenceRecord
from agentic_loop.graph.state import Principal

Decision: TypeAlias = Literal["approved", "edited", "rejected", "answered", "expired"]
"""What can become of an approval."""

MAX_ANSWER_CHARS = 4_000
"""The longest message that an answer may carry."""

MAX_SHOWN_PAYLOAD_BYTES = 4_096
"""Larger evidence is named in the request but not shown."""

_SHAPE = (
    'answer {"approval_id": "…", "decisions": [D]} with exactly one D: {"type": "approve"}, '
    '{"type": "edit", "edited_action": {"name": "…", "args": {…}}}, {"type": "reject", "message": "…"} '
    'or {"type": "respond", "message": "…"}'
)


@dataclass(frozen=True)
class Approve:
    """Do exactly the action that was shown."""

    message: str = ""


@dataclass(frozen=True)
class Edit:
    """Do this action instead; it is validated and judged anew."""

    args: Mapping[str, JsonValue]
    tool: str
    message: str = ""


@dataclass(frozen=True)
class Reject:
    """Do not do it; ``message`` says why and may be empty."""

    message: str


@dataclass(frozen=True)
class Answer:
    """Do not do it now; the message is an observation for the model."""

    message: str


@dataclass(frozen=True)
class Expired:
    """The time to decide is over, whatever was answered."""


@dataclass(frozen=True)
class AlreadyDecided:
    """A decision was recorded before and stands; this answer changes nothing."""

    row: ApprovalRow


@dataclass(frozen=True)
class Refused:
    """The answer decides nothing, and the approval stays pending; ``detail`` says what to answer instead."""

    detail: str


AnswerJudgement: TypeAlias = Approve | Edit | Reject | Answer | Expired | AlreadyDecided | Refused
"""What an answer amounts to."""


def judge_answer(
    row: ApprovalRow, answer: JsonValue, *, principal: Principal | None, now: datetime, bare_answers: bool
) -> AnswerJudgement:
    """Judge any JSON value as an answer to this approval; never raises.

    An earlier decision stands, then expiry counts, then who answers, then what. ``bare_answers`` accepts an answer
    that names no approval.
    """
    if row.decision == "expired":
        return Expired()
    if row.decision is not None:
        return AlreadyDecided(row)
    if now >= row.expires_at:
        return Expired()
    if principal is None:
        return Refused("nobody is authenticated: who approves comes from the login, not from the answer")
    if not isinstance(answer, dict):
        return Refused(_SHAPE)
    decisions = answer.get("decisions")
    if not isinstance(decisions, list) or len(decisions) != 1 or not isinstance(decisions[0], dict):
        return Refused(_SHAPE)
    unknown = sorted(answer.keys() - {"decisions", "approval_id"})
    if unknown:
        return Refused(f"unknown field {_quoted(unknown[0])}: {_SHAPE}")
    decision = {name: value for name, value in decisions[0].items() if value is not None}
    problem = _naming_problem(row, answer.get("approval_id"), decision.pop("approval_id", None), bare_answers)
    return Refused(problem) if problem else _judge_decision(decision)


def request_payload(row: ApprovalRow, evidence: Sequence[EvidenceRecord] = ()) -> dict[str, JsonValue]:
    """What the interrupt shows: LangChain's HITLRequest with everything that binds the approval to this one action.

    ``evidence`` holds the records that the action rests on; small payloads are shown.
    """
    args = dict(row.args)
    return {
        "action_requests": [{"name": row.tool, "args": args, "description": _description(row)}],
        "review_configs": [{"action_name": row.tool, "allowed_decisions": ["approve", "edit", "reject", "respond"]}],
        "approval_id": row.id,
        "task_id": row.task_id,
        "action_hash": row.action_hash,
        "idempotency_key": row.idempotency_key,
        "requested_at": row.requested_at.isoformat(),
        "expires_at": row.expires_at.isoformat(),
        "required_role": row.required_role,
        "requester": row.requester,
        "evidence_ids": list(row.evidence_ids),
        "evidence": [_shown(record) for record in evidence if record.id in row.evidence_ids],
        "policy_clause": row.policy_clause,
        "policy_ids": list(row.policy_ids),
        "reason": row.reason,
        "round": row.round,
    }


def _naming_problem(row: ApprovalRow, outer: JsonValue, inner: JsonValue, bare_answers: bool) -> str | None:
    """Why the answer does not name this approval, or None where it does."""
    names = [name for name in (outer, inner) if name is not None]
    if not names and not bare_answers:
        return f'name the approval that this is for, "approval_id": {_quoted(row.id)}'
    for name in names:
        if name != row.id:
            return f"this answers approval {_quoted(name)}, but {_quoted(row.id)} is the one that waits"
    return None


def _judge_decision(decision: Mapping[str, JsonValue]) -> AnswerJudgement:
    kind, message = decision.get("type"), decision.get("message", "")
    if not isinstance(message, str) or len(message) > MAX_ANSWER_CHARS:
        return Refused(f"message must be text of at most {MAX_ANSWER_CHARS} characters")
    known = {"type", "message", "edited_action"} if kind == "edit" else {"type", "message"}
    unknown = sorted(decision.keys() - known)
    if unknown:
        # An approval with, say, other arguments beside it was meant differently from how it would be carried out.
        return Refused(f"field {_quoted(unknown[0])} does not belong to {_quoted(kind)}: {_SHAPE}")
    match kind:
        case "approve":
            return Approve(message)
        case "edit":
            return _judge_edit(decision.get("edited_action"), message)
        case "reject":
            return Reject(message)
        case "respond" if message.strip():
            return Answer(message)
        case "respond":
            return Refused(f"a respond needs a message: {_SHAPE}")
        case _:
            return Refused(f"unknown type {_quoted(kind)}: {_SHAPE}")


def _judge_edit(action: JsonValue, message: str) -> AnswerJudgement:
    match action:
        case {"name": str(tool), "args": dict(args), **others} if tool and not others:
            return Edit(args, tool, message)
        case _:
            return Refused(f'an edit needs "edited_action" with just "name" and "args": {_SHAPE}')


def _quoted(value: JsonValue) -> str:
    return repr(value[:64]) if isinstance(value, str) else f"of type {type(value).__name__}"


def _description(row: ApprovalRow) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in row.args.items())
    clause = f" ({row.policy_clause})" if row.policy_clause else ""
    grounds = f" It rests on {', '.join(row.evidence_ids)}." if row.evidence_ids else ""
    return (
        f"{row.requester} asks for {row.tool} with {arguments}. {row.reason}{clause}{grounds} "
        f"A {row.required_role} can decide until {row.expires_at.isoformat()}."
    )


def _shown(record: EvidenceRecord) -> dict[str, JsonValue]:
    small = record.size_bytes <= MAX_SHOWN_PAYLOAD_BYTES
    return {
        "id": record.id,
        "tool": record.tool,
        "source": record.source,
        "ref": record.ref,
        "request_id": record.request_id,
        "fetched_at": record.fetched_at.isoformat(),
        "payload": record.payload if small else None,
    }
