"""Authorise: may this task, this requester, run this call now? Code decides; nothing the model wrote can grant it."""

from dataclasses import dataclass
from typing import assert_never

from pydantic import BaseModel

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.records import ApprovalRow, TaskView
from agentic_loop.graph.state import (
    CallFault,
    CheckedCall,
    Halt,
    LoopState,
    OutstandingAction,
    Principal,
    Proposal,
    ProposedCall,
)
from agentic_loop.policies import authorisation, progress, reply, steering
from agentic_loop.policies.fingerprints import canonical_json

from .gather import task_view
from .request_approval import approval_request
from .validate import effective_rule


async def authorise(state: LoopState, context: NodeContext) -> LoopState:
    """Judge every call that is still in order: repeats, policy, a result that is on record, an approval given.

    Reads: task, verdict, progress, approval, answer, evidence. Writes: verdict, outstanding, halt, next.
    Effects: where an entitled person edited the action, enters the approval of the edited action.

    Source: DESIGN §5 (authority), §8 (a repeat is refused before dispatch).
    """
    verdict = state["verdict"]
    assert verdict is not None
    view = await task_view(state, context)
    calls = [await _judged(call, state, context, view) for call in verdict.calls]
    halt = state.get("halt") or _denial(calls, state)
    return {
        "verdict": verdict.model_copy(update={"calls": calls}),
        "outstanding": _approved(state["outstanding"], calls),
        "halt": halt,
        "next": "record" if halt is not None else steering.after_authorise(calls),
    }


async def checked_again(call: CheckedCall, state: LoopState, context: NodeContext, view: TaskView) -> CheckedCall:
    """The call as every gate judges it now, from its tool and arguments alone.

    Nothing that the state says about the call is believed: a state can be edited from outside, and between approval
    and dispatch the world moves on. Effect, key and hashes come from the registry again.
    """
    proposal = state.get("proposal")
    source = proposal.source if proposal is not None else "workflow"
    again = Proposal(
        source=source,
        calls=[ProposedCall(call_id=call.call_id, name=call.tool, arguments_json=canonical_json(call.args))],
    )
    contract = context.loop.contract
    verdict = reply.judge(
        again,
        shapes={name: context.loop.tools.shapes[name] for name in contract.allowed_tools},
        rule=effective_rule(contract.phase(state["phase"]), again),
        limits=state["limits"],
        calls_so_far={},
        stop_on=[],
    )
    fresh = verdict.calls[0].model_copy(update={"call_id": call.call_id})
    if fresh.effect == "write" and not await _is_requester(view, context):
        message = f"the task's requester is not the one that it was registered with; {call.tool} is not carried out"
        return fresh.model_copy(update={"fault": CallFault(category="denied", message=message)})
    if fresh.fault is None and (fresh.action_hash != call.action_hash or fresh.effect != call.effect):
        message = f"{call.tool} is not what was validated; it is not carried out"
        return fresh.model_copy(update={"fault": CallFault(category="denied", message=message)})
    return await _judged(fresh, state, context, view)


async def _is_requester(view: TaskView, context: NodeContext) -> bool:
    """Whether the state names the requester who is in the register: who asked decides who may approve."""
    row = await context.ports.tasks.get(context.task_id)
    requester = view.task.requester
    return row is not None and (row.requester, row.tenant) == (requester.id, requester.tenant)


async def _judged(call: CheckedCall, state: LoopState, context: NodeContext, view: TaskView) -> CheckedCall:
    if call.fault is not None:
        return call
    proposal = state.get("proposal")
    by_model = proposal is not None and proposal.source == "model"
    thresholds = context.loop.contract.thresholds
    if by_model and call.effect == "read" and progress.would_repeat(state["progress"], call.args_hash, thresholds):
        message = f"{call.tool} with these arguments has already given the same answer; it is not called again"
        return call.model_copy(update={"fault": CallFault(category="repeat_refused", message=message)})
    request = _Request.of(call, context, view)
    answer = authorisation.authorise(
        context.loop.policies,
        requester=view.task.requester,
        tool=call.tool,
        args=call.args,
        facts=request.facts,
        resource_tenant=request.resource_tenant,
        confirm=request.confirm,
    )
    match answer:
        case authorisation.Denied():
            return _denied(call, answer)
        case authorisation.Allowed(policy_ids):
            return await _on_record(call, context, view) or call.model_copy(
                update={"authorisation": "allowed", "policy_ids": list(policy_ids)}
            )
        case authorisation.NeedsApproval():
            on_record = await _on_record(call, context, view)
            return on_record or await _with_approval(call, answer, request, state, context, view)
        case _:
            assert_never(answer)


@dataclass(frozen=True)
class _Request:
    """What the policy is asked about a call besides the call itself."""

    facts: BaseModel
    resource_tenant: str | None
    confirm: bool

    @classmethod
    def of(cls, call: CheckedCall, context: NodeContext, view: TaskView) -> "_Request":
        loop = context.loop
        confirm = loop.tools.shapes[call.tool].approval_required or call.tool in loop.contract.requires_confirmation
        return cls(loop.facts(call.tool, call.args, view), loop.tenant_of(call.tool, call.args, view), confirm)


async def _on_record(call: CheckedCall, context: NodeContext, view: TaskView) -> CheckedCall | None:
    """A result or an intent that the ledger holds already: nobody is asked, and nothing will be sent unreconciled."""
    if call.idempotency_key is None:
        return None
    intent = await context.ports.ledger.find(tenant=view.task.tenant, key=call.idempotency_key)
    if intent is None or intent.status == "failed":
        return None
    if intent.action_hash != call.action_hash:
        message = (
            f"key {call.idempotency_key} already belongs to {intent.tool} with other arguments "
            f"({dict(intent.args)}); that effect is {intent.status}"
        )
        return call.model_copy(update={"fault": CallFault(category="conflict", message=message)})
    return call.model_copy(
        update={"authorisation": "allowed", "policy_reason": f"already {intent.status}", "on_record": True}
    )


def _denied(call: CheckedCall, answer: authorisation.Denied) -> CheckedCall:
    return call.model_copy(
        update={
            "authorisation": "denied",
            "policy_ids": list(answer.policy_ids),
            "policy_clause": answer.clause,
            "policy_reason": answer.reason,
            "ends_task": answer.ends_task,
            "fault": CallFault(category="denied", message=f"policy denies {call.tool}: {answer.reason}"),
        }
    )


async def _with_approval(
    call: CheckedCall,
    answer: authorisation.NeedsApproval,
    request: _Request,
    state: LoopState,
    context: NodeContext,
    view: TaskView,
) -> CheckedCall:
    asked = call.model_copy(
        update={
            "authorisation": "needs_approval",
            "policy_ids": list(answer.policy_ids),
            "policy_clause": answer.clause,
            "policy_reason": answer.reason,
            "required_role": answer.role,
        }
    )
    row = await _granting_row(asked, request, state, context, view)
    if row is None or not _grants(row, call, context):
        return asked
    approver = Principal(id=row.decided_by, tenant=row.tenant, roles=[row.decided_role])
    if not isinstance(_entitled(call, request, context, view, approver), authorisation.Allowed):
        return asked
    return asked.model_copy(update={"authorisation": "allowed", "approval_id": row.id})


async def _granting_row(
    call: CheckedCall, request: _Request, state: LoopState, context: NodeContext, view: TaskView
) -> ApprovalRow | None:
    """The approval on record for this very action; an entitled person's edit counts as the approval of the edit."""
    approval, answer = state.get("approval"), state.get("answer")
    if approval is None:
        return None
    row = await context.ports.approvals.find(approval.id)
    if row is None or row.decision != "edited":
        return row
    if row.action_hash == call.action_hash:
        return None  # somebody wanted another action in its place
    if answer is None or answer.kind != "edited" or answer.approval_id != row.id:
        return None
    if canonical_json(call.args) != canonical_json(dict(row.edited_args)):
        return None  # what was approved is the edit as it is on record, nothing near it
    editor = Principal(id=row.decided_by, tenant=row.tenant, roles=[row.decided_role])
    if not isinstance(_entitled(call, request, context, view, editor), authorisation.Allowed):
        return None
    edited = await context.ports.approvals.request(
        approval_request(call, state, context, view, approval_id=context.ports.ids.approval_id(), round_number=1)
    )
    return await context.ports.approvals.decide(
        edited.id, decision="approved", decided_by=editor.id, decided_role=row.decided_role, at=context.now(),
        message=f"edited from {row.id}",
    )  # fmt: skip


def _grants(row: ApprovalRow, call: CheckedCall, context: NodeContext) -> bool:
    return (
        row.decision == "approved"
        and row.action_hash == call.action_hash
        and row.task_id == context.task_id
        and row.consumed_by is None
        and context.now() < row.expires_at
    )


def _entitled(
    call: CheckedCall, request: _Request, context: NodeContext, view: TaskView, approver: Principal
) -> authorisation.Allowed | authorisation.Denied:
    return authorisation.entitled(
        context.loop.policies,
        requester=view.task.requester,
        approver=approver,
        tool=call.tool,
        args=call.args,
        facts=request.facts,
        resource_tenant=request.resource_tenant,
        confirm=request.confirm,
    )


def _denial(calls: list[CheckedCall], state: LoopState) -> Halt | None:
    """A denial that no other proposal can change, or the same denied action a second time, ends the task."""
    for call in calls:
        if call.authorisation != "denied":
            continue
        again = call.args_hash in state["progress"].denied_actions
        if call.ends_task or again:
            detail = f"{call.policy_reason} ({', '.join(call.policy_ids) or 'denied by default'})"
            return Halt(kind="denied", reason="policy_denied", detail=detail + (", proposed again" if again else ""))
    return None


def _approved(outstanding: list[OutstandingAction], calls: list[CheckedCall]) -> list[OutstandingAction]:
    approved = {call.action_hash for call in calls if call.approval_id is not None}
    return [
        action.model_copy(update={"status": "approved"})
        if action.action_hash in approved and action.status == "proposed"
        else action
        for action in outstanding
    ]
