"""The observation: what a step leaves behind as evidence, history, progress and journal entries.

Pure: values in, values out. The node that calls this writes the result through its ports.

Source: DESIGN §3 (what is kept), §8 (fingerprints), §9 (verification reads by the identifier held).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pydantic import JsonValue

from agentic_loop.graph.records import EvidenceRecord, JournalEntry
from agentic_loop.graph.state import (
    EVIDENCE_WINDOW,
    PREVIEW_CHARS,
    TOOL_HISTORY_WINDOW,
    CallFault,
    CallResult,
    CheckedCall,
    Evidence,
    Halt,
    Inference,
    Limits,
    LoopState,
    OutstandingAction,
    Progress,
    Proposal,
    Status,
    Thresholds,
    ToolRecord,
    Usage,
    Verdict,
)

from . import progress as monitor
from .fingerprints import canonical_json, digest, state_fingerprint


@dataclass(frozen=True)
class Step:
    """One finished step as the recorder sees it.

    ``version`` is the version that this record makes. ``verified_by`` maps a write to the read that verifies it;
    ``known`` is what was on record before.
    """

    task_id: str
    version: int
    step: int
    at: datetime
    phase: str
    status: Status
    proposal: Proposal
    verdict: Verdict
    results: Mapping[str, CallResult]
    inference: Inference
    usage: Usage
    evidence: Sequence[Evidence]
    evidence_count: int
    tool_history: Sequence[ToolRecord]
    outstanding: Sequence[OutstandingAction]
    progress: Progress
    known: Sequence[EvidenceRecord]
    verified_by: Mapping[str, str]
    thresholds: Thresholds
    limits: Limits
    declared_facts: Sequence[monitor.DeclaredFact] = ()


@dataclass(frozen=True)
class Recorded:
    """What to store, and the partial state that follows from it."""

    evidence: list[EvidenceRecord]
    entries: list[JournalEntry]
    update: LoopState


@dataclass
class _Notes:
    """What accumulates while the calls of a step are gone through in order."""

    evidence: list[EvidenceRecord] = field(default_factory=list)
    history: list[ToolRecord] = field(default_factory=list)
    observations: dict[str, tuple[str, str | None]] = field(default_factory=dict)


def record_step(step: Step) -> Recorded:
    """Turn the verdict and the results of one step into evidence, history, progress and journal entries."""
    notes = _Notes()
    for call in step.verdict.calls:
        _note(step, call, notes)
    outstanding = _verified(step, notes)
    usage = _usage(step)
    state_digest = state_fingerprint(
        evidence_digests=[
            *(item.payload_digest for item in step.known),
            *(new.payload_digest for new in notes.evidence),
        ],
        outstanding=outstanding,
        status=step.status,
        phase=step.phase,
    )
    update: LoopState = {
        "version": step.version,
        "evidence": [*step.evidence, *map(reference, notes.evidence)][-EVIDENCE_WINDOW:],
        "evidence_count": step.evidence_count + len(notes.evidence),
        "tool_history": [*step.tool_history, *notes.history][-TOOL_HISTORY_WINDOW:],
        "outstanding": outstanding,
        "usage": usage,
        "progress": _progress(step, notes, state_digest),
    }
    return Recorded(notes.evidence, _entries(step, notes, state_digest), update)


# --- evidence and history ---------------------------------------------------------------------------------------


def _note(step: Step, call: CheckedCall, notes: _Notes) -> None:
    result = step.results.get(call.call_id)
    fault = call.fault if result is None else result.fault
    evidence_id = None
    if result is not None and (result.outcome == "ok" or result.payload is not None):
        record = _evidence(step, result, step.evidence_count + len(notes.evidence) + 1)
        notes.evidence.append(record)
        evidence_id, observation = record.id, record.payload_digest
    else:
        observation = digest({"fault": fault.category if fault is not None else "none"})
    notes.observations[call.call_id] = (observation, evidence_id)
    if result is not None:
        notes.history.append(_history(step, result, evidence_id))


def _evidence(step: Step, result: CallResult, ordinal: int) -> EvidenceRecord:
    return EvidenceRecord(
        id=f"ev-{ordinal}",
        ordinal=ordinal,
        step=step.step,
        tool=result.tool,
        args=result.args,
        request_id=result.request_id,
        fetched_at=result.fetched_at or step.at,
        source=result.source,
        ref=result.ref,
        payload=result.payload,
        payload_digest=digest(result.payload),
        size_bytes=len(_text(result.payload).encode()),
    )


def reference(record: EvidenceRecord) -> Evidence:
    """What the state carries of a piece of evidence."""
    return Evidence(
        id=record.id,
        tool=record.tool,
        request_id=record.request_id,
        fetched_at=record.fetched_at,
        source=record.source,
        ref=record.ref,
        payload_digest=record.payload_digest,
        size_bytes=record.size_bytes,
        preview=_text(record.payload)[:PREVIEW_CHARS],
    )


def _text(payload: JsonValue) -> str:
    return json.dumps(payload, ensure_ascii=False)


def _history(step: Step, result: CallResult, evidence_id: str | None) -> ToolRecord:
    return ToolRecord(
        step=step.step,
        tool=result.tool,
        args_hash=result.args_hash,
        outcome=result.outcome,
        idempotency_key=result.idempotency_key,
        evidence_id=evidence_id,
    )


def _verified(step: Step, notes: _Notes) -> list[OutstandingAction]:
    """The outstanding actions, with those verified that a read by their identifier has just confirmed."""
    results = {record.tool: record.payload for record in [*step.known, *notes.evidence]}
    confirmed = {
        kind
        for kind, verifier in step.verified_by.items()
        for record in notes.evidence
        if record.tool == verifier and _identifies(record.args, results.get(kind))
    }
    return [
        action.model_copy(update={"status": "verified"})
        if action.kind in confirmed and action.status == "executed"
        else action
        for action in step.outstanding
    ]


def _identifies(args: Mapping[str, JsonValue], payload: JsonValue) -> bool:
    """Whether a read asked for the very thing that a write returned: its arguments are all in the write's result."""
    return (
        isinstance(payload, dict) and bool(args) and all(payload.get(name) == value for name, value in args.items())
    )


def _usage(step: Step) -> Usage:
    sent = [result for result in step.results.values() if result.sent]
    calls = dict(step.usage.calls_per_tool)
    for result in sent:
        calls[result.tool] = calls.get(result.tool, 0) + 1
    return step.usage.model_copy(
        update={
            "calls_per_tool": calls,
            "tool_ms": step.usage.tool_ms + sum(result.latency_ms for result in sent),
            "read_retries": step.usage.read_retries + sum(max(0, result.attempts - 1) for result in sent),
        }
    )


# --- progress ---------------------------------------------------------------------------------------------------


def _progress(step: Step, notes: _Notes, state_digest: str) -> Progress:
    denied = [call.args_hash for call in step.verdict.calls if call.authorisation == "denied"]
    progress = step.progress.model_copy(
        update={"denied_actions": sorted({*step.progress.denied_actions, *denied}), "flag": None}
    )
    if step.proposal.source == "workflow":
        return progress
    if step.verdict.kind == "invalid":
        return monitor.remember_invalid(progress, step.limits)
    results = [step.results.get(call.call_id) or _undispatched(call) for call in step.verdict.calls]
    mark = monitor.mark_of(step=step.step, results=results, state=state_digest)
    return monitor.remember_evidence(
        monitor.remember(progress, mark, step.thresholds),
        before=step.known,
        fresh=notes.evidence,
        declared=step.declared_facts,
    )


def _undispatched(call: CheckedCall) -> CallResult:
    """A call that never ran, as the monitor counts it: by what was wrong with it."""
    return CallResult(
        call_id=call.call_id,
        tool=call.tool,
        args=call.args,
        args_hash=call.args_hash or digest([call.tool]),
        outcome="error",
        fault=call.fault,
        sent=False,
    )


# --- the journal ------------------------------------------------------------------------------------------------


def _entries(step: Step, notes: _Notes, state_digest: str) -> list[JournalEntry]:
    if not step.verdict.calls:
        return [with_inference(_entry_of_reply(step, state_digest), step.inference)]
    entries = [_entry(step, call, index, notes, state_digest) for index, call in enumerate(step.verdict.calls)]
    return [with_inference(entries[0], step.inference), *entries[1:]]


def _entry_of_reply(step: Step, state_digest: str) -> JournalEntry:
    """An answer that held no call at all."""
    fault = step.verdict.fault or CallFault(category="invalid_arguments", message="the answer held no usable call")
    return JournalEntry(
        task_id=step.task_id,
        version=step.version,
        call=0,
        step=step.step,
        at=step.at,
        phase=step.phase,
        kind="invalid",
        source=step.proposal.source,
        text=step.proposal.text,
        validation=fault.message,
        fault=fault,
        state_digest=state_digest,
        state_delta=_delta(step, None),
    )


def _entry(step: Step, call: CheckedCall, index: int, notes: _Notes, state_digest: str) -> JournalEntry:
    result = step.results.get(call.call_id)
    observation, evidence_id = notes.observations[call.call_id]
    fault = call.fault if result is None else result.fault
    # By position: a model may have left ids out or used one twice, and the verdict's calls are in the same order.
    proposed = step.proposal.calls[index].arguments_json if index < len(step.proposal.calls) else None
    denied_or_invalid = result is None and fault is not None
    return JournalEntry(
        task_id=step.task_id,
        version=step.version,
        call=index,
        step=step.step,
        at=step.at,
        phase=step.phase,
        kind="invalid" if denied_or_invalid and call.authorisation == "pending" else "tool",
        source=step.proposal.source,
        call_id=call.call_id,
        tool=call.tool,
        args=call.args,
        arguments_json=canonical_json(dict(call.args)) if proposed is None else proposed,
        validation=fault.message if denied_or_invalid and fault is not None else "ok",
        authorisation=_authorisation(call),
        policy_ids=call.policy_ids,
        request_id=result.request_id if result is not None else "",
        idempotency_key=call.idempotency_key,
        outcome=result.outcome if result is not None else None,
        fault=fault,
        evidence_id=evidence_id,
        observation_digest=observation,
        state_digest=state_digest,
        state_delta=_delta(step, evidence_id),
        tool_ms=result.latency_ms if result is not None else 0,
    )


def _authorisation(call: CheckedCall) -> str:
    rule = ", ".join(call.policy_ids)
    match call.authorisation:
        case "pending":
            return ""
        case "allowed" if call.approval_id is not None:
            return f"allowed by approval {call.approval_id} ({rule})"
        case "allowed":
            return f"allowed ({rule or call.policy_reason})"
        case "needs_approval":
            return f"needs approval by {call.required_role} ({rule})"
        case "denied":
            return f"denied ({rule or 'by default'})"


def _delta(step: Step, evidence_id: str | None) -> str:
    added = f", evidence +{evidence_id}" if evidence_id else ""
    return f"version {step.version - 1}->{step.version}{added}"


def with_inference(entry: JournalEntry, inference: Inference | None) -> JournalEntry:
    """The entry with what the step's inference cost; only the first entry of a step carries it."""
    if inference is None:
        return entry
    return replace(
        entry,
        prompt_digest=inference.prompt_digest,
        reply_digest=inference.reply_digest,
        input_tokens=inference.input_tokens,
        output_tokens=inference.output_tokens,
        cached_tokens=inference.cached_tokens,
        cost_micro_usd=inference.cost_micro_usd,
        model_ms=inference.model_ms,
    )


def halt_of(proposal: Proposal, calls: Sequence[CheckedCall], results: Sequence[CallResult]) -> Halt | None:
    """What an observation rules out for good.

    A dependency that stayed down past its retries, a service that refuses us, and a workflow's step that failed: code
    would only propose the same again.
    """
    for result in results:
        if result.fault is None:
            continue
        if result.exhausted:
            detail = f"{result.source} stayed down after {result.attempts} attempt(s): {result.fault.message}"
            return Halt(kind="tool_exhausted", reason="tool_exhausted", detail=detail)
        if result.fault.category == "forbidden":
            detail = f"{result.source} refuses {result.tool}: {result.fault.message}"
            return Halt(kind="denied", reason="policy_denied", detail=detail)
    return _workflow_halt(calls, results) if proposal.source == "workflow" else None


def _workflow_halt(calls: Sequence[CheckedCall], results: Sequence[CallResult]) -> Halt | None:
    faults = [(call.tool, call.fault) for call in calls if call.fault is not None]
    faults += [(result.tool, result.fault) for result in results if result.fault is not None]
    for tool, fault in faults:
        if fault is None:
            continue
        detail = f"the workflow's step {tool} failed: {fault.message}"
        if fault.category in ("denied", "approval_rejected"):
            return Halt(kind="denied", reason="policy_denied", detail=detail)
        return Halt(kind="tool_exhausted", reason="tool_exhausted", detail=detail)
    return None
