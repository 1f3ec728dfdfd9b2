"""Execute: carry out what is authorised. Reads run side by side; a write goes through the ledger, once."""

import asyncio
from datetime import datetime
from typing import assert_never

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.errors import LeaseRefused, OutcomeUnknown, ToolFault
from agentic_loop.graph.records import (
    AlreadyBegun,
    ApprovalRefused,
    BeginAnswer,
    Begun,
    FenceLost,
    Intent,
    KeyConflict,
)
from agentic_loop.graph.state import (
    CallFault,
    CallResult,
    CheckedCall,
    LoopState,
    Outcome,
    OutstandingAction,
    OutstandingStatus,
    Proposal,
    ProposedCall,
    Receipt,
    Usage,
)
from agentic_loop.policies import budgets, retries, steering
from agentic_loop.policies.fingerprints import canonical_json
from agentic_loop.tools.tool import (
    PreconditionBroken,
    ToolContext,
    ToolResult,
    ToolSpec,
    run_call,
    run_precondition,
)

from .authorise import checked_again
from .gather import task_view

READ_ATTEMPTS = 3
"""How often the reads around a write are tried: its precondition, and the lookup of what became of it."""


async def execute(state: LoopState, context: NodeContext) -> LoopState:
    """Dispatch every allowed call of this step and return what came of each.

    Reads: task, verdict, limits, usage, reopening. Writes: receipt, outstanding, usage, reopening, next.
    Effects: the calls themselves; intents and results in the ledger, each in a transaction of its own.

    Every gate judges every call again here, so that a state edited from outside opens nothing. A write is sent only
    after its intent is durable, and never when an intent is there already: then it is reconciled.

    Source: DESIGN §6.
    """
    verdict = state["verdict"]
    assert verdict is not None
    view = await task_view(state, context)
    due = [call for call in verdict.calls if call.fault is None and call.authorisation == "allowed"]
    checked = [await checked_again(call, state, context, view) for call in due]
    if len(checked) == 1 and checked[0].fault is None and checked[0].authorisation == "needs_approval":
        return await _judged_again(checked[0], "no approval covers it now", state, context)
    allowed = [call for call in checked if call.fault is None and call.authorisation == "allowed"]
    refused = [_refused(call) for call in checked if call not in allowed]
    writes = [call for call in allowed if call.effect == "write"]
    if writes and len(checked) == 1:
        return await _execute_write(writes[0], state, context)
    refused += [_refused(call) for call in writes]
    reads = [call for call in allowed if call.effect == "read"]
    results = await asyncio.gather(*(_read(call, state, context) for call in reads))
    receipt = Receipt(results=[*results, *refused])
    return {"receipt": receipt, "next": steering.after_execute(receipt)}


def _refused(call: CheckedCall) -> CallResult:
    """A call that was to be carried out and is no longer allowed: nothing is sent."""
    fault = call.fault or CallFault(
        category="denied", message=f"{call.tool} is not allowed now: {call.policy_reason or 'no approval covers it'}"
    )
    return _result(call, "error").model_copy(update={"fault": fault, "sent": False})


# --- reads ------------------------------------------------------------------------------------------------------


async def _read(call: CheckedCall, state: LoopState, context: NodeContext) -> CallResult:
    """One read with bounded retries; every attempt has its own request id, and the last one is recorded."""
    spec = _spec(call, context)
    began = context.now()
    attempt = 0
    while True:
        attempt += 1
        request = _tool_context(call, state, context, _time_out_s(spec, state, context, began))
        try:
            result = await run_call(spec, call.args, request)
        except ToolFault as fault:
            answer = retries.after_read_fault(
                attempt=attempt,
                max_attempts=spec.max_attempts,
                retryable=fault.retryable,
                fraction=context.ports.ids.fraction(),
                remaining_s=budgets.remaining_s(state["limits"], _usage_now(state, context, began)),
            )
            match answer:
                case retries.GiveUp():
                    exhausted = fault.retryable
                    return _failed(call, spec, request, fault.fault, context, began_at=began, attempts=attempt,
                                   exhausted=exhausted)  # fmt: skip
                case retries.RetryAfter(delay_s):
                    await context.ports.clock.sleep(delay_s)
                case _:
                    assert_never(answer)
        else:
            return _succeeded(call, spec, request, result, context, began_at=began, attempts=attempt)


# --- writes -----------------------------------------------------------------------------------------------------


async def _execute_write(call: CheckedCall, state: LoopState, context: NodeContext) -> LoopState:
    spec = _spec(call, context)
    assert call.idempotency_key is not None
    known = await context.ports.ledger.find(tenant=state["task"].tenant, key=call.idempotency_key)
    reopening = state.get("reopening")
    may_be_sent = known is None or known.status == "failed" or reopening is not None
    if may_be_sent:
        broken = await _broken_precondition(call, spec, state, context)
        if broken is not None and reopening is None:
            return _received(broken, state, "rejected")
        if broken is not None and broken.fault is not None and broken.fault.category == "precondition_failed":
            # Perhaps it is our own first attempt that arrived late: only the service can tell, by the key.
            return {"receipt": Receipt(results=[broken]), "reopening": None, "next": "reconcile"}
        if broken is not None:
            return _received(broken, state, "unknown")
    if call.on_record and reopening is None:
        # Allowed only because the ledger held it: then it is taken from there, and never begun anew.
        if known is None or known.status == "failed":
            return {"proposal": state.get("proposal") or proposal_of(call), "next": "validate"}
        return _met_again(call, spec, known, state)
    request = _tool_context(call, state, context, spec.timeout_s)
    begun = await _begin(call, state, context, request)
    match begun:
        case Begun():
            return await _send(call, spec, request, state, context)
        case AlreadyBegun(intent):
            return _met_again(call, spec, intent, state)
        case KeyConflict(intent):
            return _received(_conflict(call, spec, intent), state, "rejected")
        case ApprovalRefused(detail):
            return await _judged_again(call, detail, state, context)
        case FenceLost():
            raise LeaseRefused(f"task {context.task_id} has been taken over by another worker; nothing was sent")
        case _:
            assert_never(begun)


async def _judged_again(call: CheckedCall, detail: str, state: LoopState, context: NodeContext) -> LoopState:
    """An approval that ran out meanwhile is requested once more, within its bound.

    Where the first attempt is confirmed to have had no effect, its intent ends here; the same key may be begun anew,
    under another approval.
    """
    if state.get("reopening") is not None:
        fault = CallFault(category="interrupted", message=f"confirmed to have had no effect; {detail}")
        await context.ports.ledger.fail(
            tenant=state["task"].tenant, key=call.idempotency_key or "", fault=fault, at=context.now()
        )
    proposal = state.get("proposal") or proposal_of(call)
    return {"proposal": proposal, "reopening": None, "next": "validate"}


def proposal_of(call: CheckedCall) -> Proposal:
    """The call as a proposal, for the gates to judge once more: after a restart the first proposal is gone."""
    proposed = ProposedCall(call_id=call.call_id, name=call.tool, arguments_json=canonical_json(call.args))
    return Proposal(source="model", calls=[proposed])


async def _begin(call: CheckedCall, state: LoopState, context: NodeContext, request: ToolContext) -> BeginAnswer:
    assert call.idempotency_key is not None
    ledger, tenant, reopening = context.ports.ledger, state["task"].tenant, state.get("reopening")
    if reopening is not None and reopening.key == call.idempotency_key:
        return await ledger.reopen(
            tenant=tenant,
            key=call.idempotency_key,
            action_hash=call.action_hash,
            task_id=context.task_id,
            fence=context.fence,
            approval_id=call.approval_id,
            request_id=request.request_id,
            dispatches=reopening.dispatches,
            max_dispatches=state["limits"].max_dispatches_per_effect,
            at=context.now(),
        )
    return await ledger.begin(
        tenant=tenant,
        key=call.idempotency_key,
        action_hash=call.action_hash,
        tool=call.tool,
        args=call.args,
        task_id=context.task_id,
        fence=context.fence,
        approval_id=call.approval_id,
        request_id=request.request_id,
        at=context.now(),
    )


async def _send(
    call: CheckedCall, spec: ToolSpec, request: ToolContext, state: LoopState, context: NodeContext
) -> LoopState:
    ledger, tenant, began = context.ports.ledger, state["task"].tenant, context.now()
    key = call.idempotency_key or ""
    try:
        result = await run_call(spec, call.args, request)
    except ToolFault as fault:
        await ledger.fail(tenant=tenant, key=key, fault=fault.fault, at=context.now())
        exhausted = fault.category in ("unavailable", "timeout")
        failed = _failed(call, spec, request, fault.fault, context, began_at=began, attempts=1, exhausted=exhausted)
        return _received(failed, state, "rejected")
    except OutcomeUnknown as unknown:
        await ledger.mark_unknown(tenant=tenant, key=key, at=context.now())
        fault_value = CallFault(category="timeout", message=str(unknown))
        lost = _failed(call, spec, request, fault_value, context, began_at=began, attempts=1)
        return _received(lost.model_copy(update={"outcome": "unknown"}), state, "unknown")
    await ledger.finish(
        tenant=tenant, key=key, result=result.payload, ref=result.ref, request_id=request.request_id, at=context.now()
    )
    return _received(_succeeded(call, spec, request, result, context, began_at=began), state, "executed")


async def _broken_precondition(
    call: CheckedCall, spec: ToolSpec, state: LoopState, context: NodeContext
) -> CallResult | None:
    """Read the world again just before dispatch; what was read is kept as evidence when it forbids the action."""
    began = context.now()
    for attempt in range(1, READ_ATTEMPTS + 1):
        request = _tool_context(call, state, context, _time_out_s(spec, state, context, began))
        try:
            answer = await run_precondition(spec, call.args, request)
        except ToolFault as fault:
            again = retries.after_read_fault(
                attempt=attempt,
                max_attempts=READ_ATTEMPTS,
                retryable=fault.retryable,
                fraction=context.ports.ids.fraction(),
                remaining_s=budgets.remaining_s(state["limits"], _usage_now(state, context, began)),
            )
            if isinstance(again, retries.GiveUp):
                return _failed(
                    call, spec, request, fault.fault, context, began_at=began, attempts=attempt,
                    exhausted=fault.retryable, sent=False,
                )  # fmt: skip
            await context.ports.clock.sleep(again.delay_s)
        else:
            if isinstance(answer, PreconditionBroken):
                return _refused_by_world(call, answer, request, context)
            return None
    return None


def _refused_by_world(
    call: CheckedCall, broken: PreconditionBroken, request: ToolContext, context: NodeContext
) -> CallResult:
    return _result(call, "error").model_copy(
        update={
            "request_id": request.request_id,
            "fetched_at": context.now(),
            "source": broken.source,
            "payload": broken.payload,
            "fault": CallFault(category="precondition_failed", message=broken.detail),
            "sent": False,
        }
    )


def _met_again(call: CheckedCall, spec: ToolSpec, intent: Intent, state: LoopState) -> LoopState:
    """An earlier attempt, ours or another task's: take the result it left, or reconcile. Never send."""
    if intent.status == "executed":
        return _received(recorded_result(call, spec, intent), state, "executed")
    fault = CallFault(category="timeout", message=f"key {intent.key} is {intent.status} since {intent.intended_at}")
    lost = _result(call, "unknown").model_copy(update={"fault": fault, "sent": False, "source": spec.source})
    return _received(lost, state, "unknown")


def recorded_result(call: CheckedCall, spec: ToolSpec, intent: Intent) -> CallResult:
    """The result that the ledger holds, as the result of this call; nothing was sent for it."""
    return _result(call, "ok").model_copy(
        update={
            "request_id": intent.request_id,
            "fetched_at": intent.finished_at,
            "source": spec.source,
            "ref": intent.ref,
            "payload": intent.result,
            "replayed": True,
            "sent": False,
        }
    )


def _conflict(call: CheckedCall, spec: ToolSpec, intent: Intent) -> CallResult:
    fault = CallFault(
        category="conflict",
        message=f"key {intent.key} already belongs to {intent.tool} with other arguments ({dict(intent.args)})",
    )
    return _result(call, "error").model_copy(update={"fault": fault, "sent": False, "source": spec.source})


def _received(result: CallResult, state: LoopState, status: OutstandingStatus) -> LoopState:
    receipt = Receipt(results=[result])
    return {
        "receipt": receipt,
        "outstanding": with_status(state["outstanding"], result, status),
        "reopening": None,
        "next": steering.after_execute(receipt),
    }


def with_status(
    outstanding: list[OutstandingAction], result: CallResult, status: OutstandingStatus
) -> list[OutstandingAction]:
    """The outstanding actions with this one moved to a status; one that is not there yet is added."""
    key = result.idempotency_key or ""
    moved = OutstandingAction(kind=result.tool, key=key, action_hash=result.action_hash, status=status)
    others = [action for action in outstanding if action.action_hash != result.action_hash]
    if len(others) == len(outstanding):
        return [*outstanding, moved]
    return [moved if action.action_hash == result.action_hash else action for action in outstanding]


# --- what both share --------------------------------------------------------------------------------------------


def _spec(call: CheckedCall, context: NodeContext) -> ToolSpec:
    return context.loop.tools.require([call.tool])[0]


def _time_out_s(spec: ToolSpec, state: LoopState, context: NodeContext, began: datetime) -> float:
    bounded = budgets.time_out_s(spec.timeout_s, state["limits"], _usage_now(state, context, began))
    return budgets.MIN_CALL_S if isinstance(bounded, budgets.Refused) else bounded


def _usage_now(state: LoopState, context: NodeContext, began: datetime) -> Usage:
    """The usage with the time since this node began: attempts and waits count while they happen, not afterwards."""
    usage = state["usage"]
    return usage.model_copy(update={"active_ms": usage.active_ms + _since_ms(began, context)})


def _tool_context(call: CheckedCall, state: LoopState, context: NodeContext, timeout_s: float) -> ToolContext:
    task = state["task"]
    return ToolContext(
        tenant=task.tenant,
        task_id=task.task_id,
        request_id=context.ports.ids.request_id(task.task_id),
        timeout_s=timeout_s,
        now=context.now(),
        idempotency_key=call.idempotency_key,
    )


def _result(call: CheckedCall, outcome: Outcome) -> CallResult:
    return CallResult(
        call_id=call.call_id,
        tool=call.tool,
        args=call.args,
        args_hash=call.args_hash,
        idempotency_key=call.idempotency_key,
        action_hash=call.action_hash,
        outcome=outcome,
    )


def _succeeded(
    call: CheckedCall,
    spec: ToolSpec,
    request: ToolContext,
    result: ToolResult,
    context: NodeContext,
    *,
    began_at: datetime,
    attempts: int = 1,
) -> CallResult:
    return _result(call, "ok").model_copy(
        update={
            "request_id": request.request_id,
            "fetched_at": context.now(),
            "source": spec.source,
            "ref": result.ref,
            "payload": result.payload,
            "attempts": attempts,
            "latency_ms": _since_ms(began_at, context),
        }
    )


def _failed(
    call: CheckedCall,
    spec: ToolSpec,
    request: ToolContext,
    fault: CallFault,
    context: NodeContext,
    *,
    began_at: datetime,
    attempts: int,
    exhausted: bool = False,
    sent: bool = True,
) -> CallResult:
    return _result(call, "error").model_copy(
        update={
            "request_id": request.request_id,
            "fetched_at": context.now(),
            "source": spec.source,
            "fault": fault,
            "attempts": attempts,
            "latency_ms": _since_ms(began_at, context),
            "exhausted": exhausted,
            "sent": sent,
        }
    )


def _since_ms(began_at: datetime, context: NodeContext) -> int:
    return max(0, int((context.now() - began_at).total_seconds() * 1_000))
