"""Reconcile: find out whether an effect happened before anything else does."""

from typing import assert_never

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.errors import ToolFault
from agentic_loop.graph.records import Intent
from agentic_loop.graph.state import CallResult, CheckedCall, Halt, LoopState, Receipt, Reopening, Verdict
from agentic_loop.policies import reconciliation, retries
from agentic_loop.policies.fingerprints import args_hash
from agentic_loop.tools.tool import Absent, Found, ToolContext, ToolSpec, Undecided, run_reconcile

from .execute import READ_ATTEMPTS, recorded_result, with_status
from .observe import open_effects

MAX_LOOKS = 4
"""How often one reconciliation asks the service while an effect may still be invisible to it."""


async def reconcile(state: LoopState, context: NodeContext) -> LoopState:
    """Resolve the oldest intent of this task that has no result, by key and arguments.

    Reads: task, verdict, limits, outstanding. Writes: receipt, verdict, outstanding, reopening, halt, next.
    Effects: asks the service (a lookup, or a replay with the same key); the result in the ledger, or a flag there.

    Source: DESIGN §6; the document's section on reconciling a side effect.
    """
    intent = await _open_intent(state, context)
    if intent is None:
        return {"next": "record" if state.get("receipt") else "stop_check"}
    call = call_of(intent, state)
    spec = context.loop.tools.get(intent.tool)
    concluded = await _concluded(intent, spec, state, context)
    ledger, tenant = context.ports.ledger, intent.tenant
    match concluded:
        case reconciliation.Applied(result, ref):
            done = await ledger.finish(
                tenant=tenant, key=intent.key, result=result, ref=ref, request_id=intent.request_id, at=context.now()
            )
            assert spec is not None
            received = recorded_result(call, spec, done)
            return {
                "verdict": _with_call(state, call),
                "receipt": Receipt(results=[received]),
                "outstanding": with_status(state["outstanding"], received, "executed"),
                "halt": None,
                "next": "record",
            }
        case reconciliation.NotApplied() if (broken := _broken(call, state)) is not None:
            # Not ours, and the world no longer allows it: the intent ends here without effect.
            assert broken.fault is not None
            await ledger.fail(tenant=tenant, key=intent.key, fault=broken.fault, at=context.now())
            outstanding = with_status(state["outstanding"], broken, "rejected")
            return {"verdict": _with_call(state, call), "outstanding": outstanding, "halt": None, "next": "record"}
        case reconciliation.NotApplied():
            return {
                "verdict": _with_call(state, call),
                "receipt": None,
                "reopening": Reopening(key=intent.key, dispatches=intent.dispatches),
                "halt": None,
                "next": "execute",
            }
        case reconciliation.WaitForVisibility() | reconciliation.Unknown():
            detail = concluded.detail if isinstance(concluded, reconciliation.Unknown) else "still invisible"
            await ledger.flag(tenant=tenant, key=intent.key, detail=detail, at=context.now())
            return _give_up(intent, detail)
        case _:
            assert_never(concluded)


def _broken(call: CheckedCall, state: LoopState) -> CallResult | None:
    """What spoke against the second dispatch: the precondition as it was read just before it."""
    receipt = state.get("receipt")
    for result in receipt.results if receipt is not None else []:
        if result.call_id == call.call_id and result.fault and result.fault.category == "precondition_failed":
            return result
    return None


async def _open_intent(state: LoopState, context: NodeContext) -> Intent | None:
    verdict = state.get("verdict")
    keys = [call.idempotency_key for call in verdict.calls if call.idempotency_key] if verdict else []
    for key in keys:
        intent = await context.ports.ledger.find(tenant=state["task"].tenant, key=key)
        if intent is not None and intent.status in ("intended", "unknown"):
            return intent
    for intent in await open_effects(context):
        if intent.status in ("intended", "unknown"):
            return intent
    return None


async def _concluded(
    intent: Intent, spec: ToolSpec | None, state: LoopState, context: NodeContext
) -> reconciliation.Reconciled:
    if spec is None or spec.reconcile is None:
        return reconciliation.Unknown(f"{intent.tool} can be neither looked up nor replayed: a person must check")
    concluded: reconciliation.Reconciled = reconciliation.Unknown("the service was not asked")
    for _ in range(MAX_LOOKS):
        concluded = reconciliation.conclude(
            intent,
            await _asked(intent, spec, context),
            now=context.now(),
            key_retention_s=spec.reconcile.key_retention_s,
            visible_after_s=spec.timeout_s + spec.reconcile.settles_after_s + spec.reconcile.visible_after_s,
            max_dispatches=state["limits"].max_dispatches_per_effect,
        )
        if not isinstance(concluded, reconciliation.WaitForVisibility):
            return concluded
        await context.ports.clock.sleep(concluded.delay_s)
    return concluded


async def _asked(intent: Intent, spec: ToolSpec, context: NodeContext) -> reconciliation.ServiceAnswer:
    """Ask the service, with the bounded retries of a read: asking changes nothing."""
    fault_text = "the service did not answer"
    # Asking is a read: that its write is sent only once (max_attempts=1) does not bound it.
    for attempt in range(1, READ_ATTEMPTS + 1):
        request = ToolContext(
            tenant=intent.tenant,
            task_id=context.task_id,
            request_id=context.ports.ids.request_id(context.task_id),
            timeout_s=spec.timeout_s,
            now=context.now(),
            idempotency_key=intent.key,
        )
        try:
            answer = await run_reconcile(spec, intent.args, request)
        except ToolFault as fault:
            fault_text = str(fault)
            again = retries.after_read_fault(
                attempt=attempt,
                max_attempts=READ_ATTEMPTS,
                retryable=fault.retryable,
                fraction=context.ports.ids.fraction(),
                remaining_s=spec.timeout_s,
            )
            if isinstance(again, retries.GiveUp):
                return reconciliation.ServiceSilent(fault_text)
            await context.ports.clock.sleep(again.delay_s)
        else:
            return _as_service_answer(answer)
    return reconciliation.ServiceSilent(fault_text)


def _as_service_answer(answer: Found | Absent | Undecided) -> reconciliation.ServiceAnswer:
    match answer:
        case Found(result):
            return reconciliation.ServiceFound(result.payload, result.ref)
        case Absent():
            return reconciliation.ServiceAbsent()
        case Undecided(detail):
            return reconciliation.ServiceSilent(detail)
        case _:
            assert_never(answer)


def call_of(intent: Intent, state: LoopState) -> CheckedCall:
    """The call that an intent stands for: the one in the verdict, or one made from the intent itself."""
    verdict = state.get("verdict")
    for call in verdict.calls if verdict else []:
        if call.idempotency_key == intent.key and call.action_hash == intent.action_hash:
            return call
    return CheckedCall(
        call_id=f"intent-{intent.key}",
        tool=intent.tool,
        args=dict(intent.args),
        args_hash=args_hash(intent.tool, dict(intent.args)),
        effect="write",
        idempotency_key=intent.key,
        action_hash=intent.action_hash,
        authorisation="allowed",
    )


def _with_call(state: LoopState, call: CheckedCall) -> Verdict:
    verdict = state.get("verdict")
    if verdict is not None and call in verdict.calls:
        return verdict
    return Verdict(kind="calls", calls=[call])


def _give_up(intent: Intent, detail: str) -> LoopState:
    text = f"nobody can tell whether {intent.tool} with key {intent.key} took effect: {detail}"
    return {"halt": Halt(kind="unknown_effect", reason="unknown_effect", detail=text), "next": "stop_check"}
