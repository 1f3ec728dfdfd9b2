"""Await approval: pause durably until an entitled person answers, and take exactly one answer."""

from collections.abc import Mapping
from typing import assert_never

from langgraph.types import interrupt
from pydantic import JsonValue

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.errors import Defect
from agentic_loop.graph.records import ApprovalRow, Decision
from agentic_loop.graph.state import (
    ApprovalAnswer,
    CallFault,
    CallResult,
    CheckedCall,
    LoopState,
    Principal,
    Proposal,
    ProposedCall,
    Receipt,
    Usage,
)
from agentic_loop.policies import approvals, authorisation, reply
from agentic_loop.policies.fingerprints import canonical_json

from .gather import task_view


async def await_approval(state: LoopState, context: NodeContext) -> LoopState:
    """Interrupt with the request, judge the answer, and make a decision durable before anything follows from it.

    Reads: task, approval, verdict, usage. Writes: answer, proposal, receipt, status, usage, next.
    Effects: the decision in the approvals row. Nothing else happens here, because a resume runs the node again.

    A decision that is on record is never asked for again. An answer that is malformed, names another approval or
    comes from somebody who is not entitled leaves the approval pending, and the interrupt is raised again.

    Source: DESIGN §5.
    """
    approval = state["approval"]
    row = await context.ports.approvals.find(approval.id) if approval is not None else None
    if row is None:
        raise Defect(f"task {context.task_id} waits for an approval that is not on record")
    answer: JsonValue = None
    if row.decision is None and context.now() < row.expires_at:
        answer = interrupt(await _request(row, state, context))
    principal = context.ports.identity.principal("approve")
    outcome = approvals.judge_answer(
        row, answer, principal=principal, now=context.now(), bare_answers=context.ports.bare_answers
    )
    usage = _suspended(state["usage"], row, context)
    match outcome:
        case approvals.Approve():
            return await _decided(row, "approved", principal, state, context, usage)
        case approvals.Edit():
            return await _edited(row, outcome, principal, state, context, usage)
        case approvals.Reject(message):
            return await _decided(row, "rejected", principal, state, context, usage, message)
        case approvals.Answer(message):
            return await _decided(row, "answered", principal, state, context, usage, message)
        case approvals.Expired():
            await _decide(row, "expired", None, "", context)
            answered = ApprovalAnswer(kind="expired", approval_id=row.id)
            return {"answer": answered, "usage": usage, "status": "RUNNING", "next": "request_approval"}
        case approvals.AlreadyDecided(decided):
            return _follow(decided, state, usage)
        case approvals.Refused(detail):
            return _pending(row, detail)
        case _:
            assert_never(outcome)


async def _request(row: ApprovalRow, state: LoopState, context: NodeContext) -> dict[str, JsonValue]:
    view = await task_view(state, context)
    payload = approvals.request_payload(row, view.evidence)
    refused = state.get("answer")
    if refused is not None and refused.kind == "pending":
        payload["last_answer_refused"] = refused.message
    return payload


def _pending(row: ApprovalRow, detail: str) -> LoopState:
    answer = ApprovalAnswer(kind="pending", approval_id=row.id, message=detail)
    return {"answer": answer, "next": "await_approval"}


async def _decided(
    row: ApprovalRow,
    decision: Decision,
    principal: Principal | None,
    state: LoopState,
    context: NodeContext,
    usage: Usage,
    message: str = "",
) -> LoopState:
    call = _call(state)
    role = await entitled_role(call, principal, state, context)
    if role is None or principal is None:
        return _pending(row, f"{principal.id if principal else 'nobody'} is not entitled to answer this request")
    decided = await _decide(row, decision, principal, role, context, message)
    return _follow(decided, state, usage)


async def _edited(
    row: ApprovalRow,
    edit: approvals.Edit,
    principal: Principal | None,
    state: LoopState,
    context: NodeContext,
    usage: Usage,
) -> LoopState:
    """An edit is a new action, judged from the start; who may edit is who may approve the request as it stood."""
    contract = context.loop.contract
    verdict = reply.judge(
        edited_proposal(row, edit.tool, edit.args),
        shapes={name: context.loop.tools.shapes[name] for name in contract.allowed_tools},
        rule=contract.phase(state["phase"]),
        limits=state["limits"],
        calls_so_far={},
        stop_on=[],
    )
    if edit.tool != row.tool or verdict.kind != "calls":
        problem = (
            verdict.calls[0].fault.message if verdict.calls and verdict.calls[0].fault else "the tool may not change"
        )
        return _pending(row, f"the edited action cannot be used: {problem}")
    role = await entitled_role(_call(state), principal, state, context)
    if role is None or principal is None:
        return _pending(row, f"{principal.id if principal else 'nobody'} is not entitled to edit this request")
    if verdict.calls[0].action_hash == row.action_hash:
        # An edit that changes nothing approves; a real one leaves the first action unapproved for good.
        decided = await _decide(row, "approved", principal, role, context, edit.message)
        return _follow(decided, state, usage)
    decided = await context.ports.approvals.decide(
        row.id, decision="edited", decided_by=principal.id, decided_role=role, at=context.now(), message=edit.message,
        edited_args=verdict.calls[0].args,
    )  # fmt: skip
    return _follow(decided, state, usage)


async def _decide(
    row: ApprovalRow,
    decision: Decision,
    principal: Principal | None,
    role: str,
    context: NodeContext,
    message: str = "",
) -> ApprovalRow:
    return await context.ports.approvals.decide(
        row.id,
        decision=decision,
        decided_by=principal.id if principal else "",
        decided_role=role,
        at=context.now(),
        message=message,
    )


def _follow(row: ApprovalRow, state: LoopState, usage: Usage) -> LoopState:
    """What a decision on record leads to."""
    assert row.decision is not None
    answer = ApprovalAnswer(
        kind=row.decision, approval_id=row.id, decided_by=row.decided_by, message=row.message,
        edited_args=dict(row.edited_args),
    )  # fmt: skip
    after: LoopState = {"answer": answer, "usage": usage, "status": "RUNNING"}
    match row.decision:
        case "approved":
            return {**after, "next": "validate"}
        case "edited":
            return {**after, "proposal": edited_proposal(row, row.tool, row.edited_args), "next": "validate"}
        case "rejected" | "answered":
            return {**after, "receipt": Receipt(results=[_rejection(row, _call(state))]), "next": "record"}
        case "expired":
            return {**after, "next": "request_approval"}
        case _:
            assert_never(row.decision)


def edited_proposal(row: ApprovalRow, tool: str, args: Mapping[str, JsonValue]) -> Proposal:
    """The action as a person edited it, as a proposal that goes through every gate again."""
    call = ProposedCall(call_id=f"edit-{row.id}", name=tool, arguments_json=canonical_json(dict(args)))
    return Proposal(source="model", calls=[call])


def _rejection(row: ApprovalRow, call: CheckedCall) -> CallResult:
    said = row.message or "no reason was given"
    verb = "rejected this action" if row.decision == "rejected" else "answered instead of the tool"
    return CallResult(
        call_id=call.call_id,
        tool=call.tool,
        args=call.args,
        args_hash=call.args_hash,
        outcome="error",
        idempotency_key=call.idempotency_key,
        action_hash=call.action_hash,
        fault=CallFault(category="approval_rejected", message=f"{row.decided_by} {verb}: {said}"),
        sent=False,
    )


def _call(state: LoopState) -> CheckedCall:
    verdict, approval = state["verdict"], state["approval"]
    assert verdict is not None
    assert approval is not None
    return next(call for call in verdict.calls if call.call_id == approval.call_id)


async def entitled_role(
    call: CheckedCall, principal: Principal | None, state: LoopState, context: NodeContext
) -> str | None:
    """The first of the person's roles under which the policy lets them answer for this action, or None."""
    if principal is None:
        return None
    loop = context.loop
    view = await task_view(state, context)
    for role in principal.roles:
        verdict = authorisation.entitled(
            loop.policies,
            requester=view.task.requester,
            approver=principal.model_copy(update={"roles": [role]}),
            tool=call.tool,
            args=call.args,
            facts=loop.facts(call.tool, call.args, view),
            resource_tenant=loop.tenant_of(call.tool, call.args, view),
            confirm=loop.tools.shapes[call.tool].approval_required
            or call.tool in loop.contract.requires_confirmation,
        )
        if isinstance(verdict, authorisation.Allowed):
            return role
    return None


def _suspended(usage: Usage, row: ApprovalRow, context: NodeContext) -> Usage:
    waited_ms = max(0, int((context.now() - row.requested_at).total_seconds() * 1_000))
    return usage.model_copy(update={"suspended_ms": usage.suspended_ms + waited_ms})
