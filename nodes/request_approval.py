"""Request approval: enter the request for exactly one action and tell the role that has to answer."""

from datetime import timedelta

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.errors import Defect, OutcomeUnknown, ToolFault
from agentic_loop.graph.ports import Notifier
from agentic_loop.graph.records import ApprovalRow, Begun, JournalEntry, NoticeOfApproval, TaskView
from agentic_loop.graph.state import Approval, CheckedCall, Halt, LoopState, OutstandingAction
from agentic_loop.policies.fingerprints import action_hash
from agentic_loop.policies.recording import with_inference

from .gather import task_view

NOTICE_TOOL = "notify_approver"
"""The runtime's own notice of an approval: in doubt it is never sent again, so there is nothing to reconcile."""

MAX_EVIDENCE_IDS = 32
"""How many pieces of evidence a request for approval names, newest last."""

MAX_EARLIER_ROUNDS = 256
"""How many requests for the same action a task can look back on; each resumption adds a few."""


async def request_approval(state: LoopState, context: NodeContext) -> LoopState:
    """Suspend durably: enter the approval, notify its role once, and mark the action as proposed.

    Reads: task, verdict, approval, version, inference. Writes: approval, answer, outstanding, status, version,
    halt, inference, next. Effects: the approvals row; one notice through the ledger under ``approval:{id}``.

    A node of its own, because ``interrupt`` runs its node again from the top.

    Source: DESIGN §5; the document's section on approval.
    """
    verdict = state["verdict"]
    assert verdict is not None
    call = next(call for call in verdict.calls if call.authorisation == "needs_approval" and call.fault is None)
    previous = state.get("approval")
    same_action = previous is not None and previous.action_hash == call.action_hash
    round_number = previous.round + 1 if previous is not None and same_action else 1
    if round_number > context.loop.contract.max_approval_rounds:
        detail = f"nobody approved {call.tool} in {round_number - 1} request(s) before they expired"
        return {
            "halt": Halt(kind="approval_expired", reason="approval_expired", detail=detail),
            "status": "RUNNING",
            "next": "stop_check",
        }
    view = await task_view(state, context)
    row = await _entered(call, state, context, view, round_number)
    note = await _notify(row, context)
    version = state["version"] + 1
    await context.ports.journal.append([_entry(row, call, state, version, note)])
    await context.ports.tasks.update(
        context.task_id, status="AWAITING_APPROVAL", step_count=state["step_count"], at=context.now()
    )
    return {
        "approval": Approval(
            id=row.id,
            action_hash=row.action_hash,
            call_id=call.call_id,
            requested_at=row.requested_at,
            expires_at=row.expires_at,
            required_role=row.required_role,
            round=round_number,
        ),
        "answer": None,
        "outstanding": _proposed(state["outstanding"], call),
        "status": "AWAITING_APPROVAL",
        "version": version,
        "inference": None,
        "next": "await_approval",
    }


async def _entered(
    call: CheckedCall, state: LoopState, context: NodeContext, view: TaskView, round_number: int
) -> ApprovalRow:
    """The request of this round; rounds that are over (before a resumption, say) are not opened again."""
    for number in range(round_number, round_number + MAX_EARLIER_ROUNDS):
        row = await context.ports.approvals.request(
            approval_request(
                call, state, context, view, approval_id=context.ports.ids.approval_id(), round_number=number
            )
        )
        if row.decision != "expired" and row.consumed_by is None:
            return row
    raise Defect(f"task {context.task_id} has asked for {call.tool} more than {MAX_EARLIER_ROUNDS} times")


def approval_request(
    call: CheckedCall,
    state: LoopState,
    context: NodeContext,
    view: TaskView,
    *,
    approval_id: str,
    round_number: int,
) -> ApprovalRow:
    """The approval row for this call: bound to exactly this action, and to expire."""
    now = context.now()
    return ApprovalRow(
        id=approval_id,
        task_id=context.task_id,
        tenant=view.task.tenant,
        loop=view.task.loop,
        tool=call.tool,
        args=call.args,
        idempotency_key=call.idempotency_key,
        action_hash=call.action_hash,
        required_role=call.required_role or "",
        requester=view.task.requester.id,
        policy_ids=call.policy_ids,
        policy_clause=call.policy_clause,
        reason=call.policy_reason,
        evidence_ids=[record.id for record in view.evidence][-MAX_EVIDENCE_IDS:],
        round=round_number,
        requested_at=now,
        expires_at=now + timedelta(seconds=context.loop.contract.approval_expires_after_s),
    )


async def _notify(row: ApprovalRow, context: NodeContext) -> str:
    """Tell the role, once per approval; a notice that fails is noted, and the inbox still shows the approval."""
    notifier = context.loop.notifier
    if notifier is None:
        return "no notifier is configured"
    key, ledger, now = f"approval:{row.id}", context.ports.ledger, context.now()
    arguments = {"approval_id": row.id, "role": row.required_role}
    begun = await ledger.begin(
        tenant=row.tenant,
        key=key,
        action_hash=action_hash(NOTICE_TOOL, arguments, key),
        tool=NOTICE_TOOL,
        args=arguments,
        task_id=row.task_id,
        fence=context.fence,
        approval_id=None,
        request_id=context.ports.ids.request_id(row.task_id),
        at=now,
    )
    if not isinstance(begun, Begun):
        return "notified before"
    return await _send(notifier, row, key, context)


async def _send(notifier: Notifier, row: ApprovalRow, key: str, context: NodeContext) -> str:
    ledger, tenant = context.ports.ledger, row.tenant
    notice = NoticeOfApproval(row, f"{row.tool} {dict(row.args)}")
    try:
        await notifier.notify(notice, tenant=tenant, task_id=row.task_id, key=key)
    except ToolFault as fault:
        await ledger.fail(tenant=tenant, key=key, fault=fault.fault, at=context.now())
        return f"the notice was refused: {fault}"
    except OutcomeUnknown as unknown:
        # Sent again by nobody: a second notice is worth less than the certainty that there is at most one.
        await ledger.fail(
            tenant=tenant, key=key, fault=ToolFault("unavailable", str(unknown)).fault, at=context.now()
        )
        return f"the notice may not have arrived: {unknown}"
    await ledger.finish(
        tenant=tenant, key=key, result={"notified": row.required_role}, ref="", request_id="", at=context.now()
    )
    return f"{row.required_role} was notified"


def _entry(row: ApprovalRow, call: CheckedCall, state: LoopState, version: int, note: str) -> JournalEntry:
    inference, proposal = state.get("inference"), state.get("proposal")
    entry = JournalEntry(
        task_id=row.task_id,
        version=version,
        call=0,
        step=state["step_count"],
        at=row.requested_at,
        phase=state["phase"],
        kind="approval",
        source=proposal.source if proposal is not None else "model",
        call_id=call.call_id,
        tool=call.tool,
        args=call.args,
        text=f"approval {row.id} by {row.required_role} until {row.expires_at.isoformat()}; {note}",
        validation="ok",
        authorisation=f"needs approval by {row.required_role}",
        policy_ids=call.policy_ids,
        idempotency_key=call.idempotency_key,
        state_delta=f"version {version - 1}->{version}, status RUNNING->AWAITING_APPROVAL",
    )
    return with_inference(entry, inference)


def _proposed(outstanding: list[OutstandingAction], call: CheckedCall) -> list[OutstandingAction]:
    if any(action.action_hash == call.action_hash for action in outstanding):
        return outstanding
    key = call.idempotency_key or ""
    return [
        *outstanding,
        OutstandingAction(kind=call.tool, key=key, action_hash=call.action_hash, status="proposed"),
    ]
