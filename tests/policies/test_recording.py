"""What a step leaves behind: evidence with provenance, history, usage, progress, journal entries, and halts."""

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.graph.records import EvidenceRecord
from agentic_loop.graph.state import (
    EVIDENCE_WINDOW,
    PREVIEW_CHARS,
    TOOL_HISTORY_WINDOW,
    CallFault,
    CallResult,
    CheckedCall,
    FaultCategory,
    Inference,
    Limits,
    OutstandingAction,
    Progress,
    Proposal,
    ProposedCall,
    Thresholds,
    Usage,
    Verdict,
)
from agentic_loop.policies.fingerprints import args_hash, digest
from agentic_loop.policies.recording import Step, halt_of, record_step

AT = datetime(2026, 10, 28, 11, tzinfo=UTC)
FETCHED_AT = datetime(2026, 10, 28, 10, 59, 58, tzinfo=UTC)
ORDER: JsonValue = {"order_id": "8472", "total_inr": 2_000}


def checked(call_id: str, tool: str = "lookup_order", **more: Any) -> CheckedCall:
    args = more.pop("args", {"order_id": "8472"})
    return CheckedCall(call_id=call_id, tool=tool, args=args, args_hash=args_hash(tool, args), **more)


def result(call: CheckedCall, payload: JsonValue = None, **more: Any) -> CallResult:
    fields: dict[str, Any] = {
        "call_id": call.call_id,
        "tool": call.tool,
        "args": call.args,
        "args_hash": call.args_hash,
        "outcome": "ok",
        "request_id": f"req-{call.call_id}",
        "fetched_at": FETCHED_AT,
        "source": "payments-service",
        "payload": payload,
        "latency_ms": 7,
    }
    return CallResult(**{**fields, **more})


def failed(call: CheckedCall, category: FaultCategory = "timeout", **more: Any) -> CallResult:
    return result(call, outcome="error", fault=CallFault(category=category, message="it failed"), **more)


def known(ordinal: int, tool: str, payload: JsonValue, args: dict[str, JsonValue] | None = None) -> EvidenceRecord:
    return EvidenceRecord(
        id=f"ev-{ordinal}",
        ordinal=ordinal,
        step=1,
        tool=tool,
        args=args or {},
        request_id="req-0",
        fetched_at=AT,
        source="a-service",
        ref="",
        payload=payload,
        payload_digest=digest(payload),
        size_bytes=1,
    )


def step(calls: list[CheckedCall], results: list[CallResult], **more: Any) -> Step:
    proposed = [ProposedCall(call_id=call.call_id, name=call.tool, arguments_json="{}") for call in calls]
    fields: dict[str, Any] = {
        "task_id": "task-1",
        "version": 5,
        "step": 4,
        "at": AT,
        "phase": "investigate",
        "status": "RUNNING",
        "proposal": Proposal(source="model", calls=proposed),
        "verdict": Verdict(kind="calls", calls=calls),
        "results": {one.call_id: one for one in results},
        "inference": Inference(),
        "usage": Usage(),
        "evidence": [],
        "evidence_count": 0,
        "tool_history": [],
        "outstanding": [],
        "progress": Progress(),
        "known": [],
        "verified_by": {"issue_refund": "get_refund"},
        "thresholds": Thresholds(),
        "limits": Limits(),
    }
    return Step(**{**fields, **more})


# --- evidence and history ---------------------------------------------------------------------------------------


def test_an_answer_becomes_evidence_with_its_provenance() -> None:
    call = checked("a")
    recorded = record_step(step([call], [result(call, ORDER, ref="v3")], evidence_count=6))
    (record,) = recorded.evidence
    assert (record.id, record.ordinal, record.step, record.tool) == ("ev-7", 7, 4, "lookup_order")
    assert (record.request_id, record.source, record.ref) == ("req-a", "payments-service", "v3")
    assert (record.fetched_at, record.payload, record.payload_digest) == (FETCHED_AT, ORDER, digest(ORDER))
    (reference,) = recorded.update["evidence"]
    assert (reference.id, reference.payload_digest) == ("ev-7", record.payload_digest)
    assert recorded.update["evidence_count"] == 7
    (line,) = recorded.update["tool_history"]
    assert (line.step, line.outcome, line.evidence_id, line.args_hash) == (4, "ok", "ev-7", call.args_hash)
    (entry,) = recorded.entries
    assert (entry.evidence_id, entry.request_id, entry.outcome) == ("ev-7", "req-a", "ok")
    assert entry.state_delta == "version 4->5, evidence +ev-7"


def test_a_failed_call_is_history_but_no_evidence() -> None:
    call = checked("a")
    recorded = record_step(step([call], [failed(call)]))
    assert recorded.evidence == []
    assert recorded.update["evidence_count"] == 0
    assert [line.evidence_id for line in recorded.update["tool_history"]] == [None]
    assert recorded.entries[0].fault == CallFault(category="timeout", message="it failed")


def test_what_a_broken_precondition_read_is_evidence_of_the_refusal() -> None:
    call = checked("a", "issue_refund", effect="write", idempotency_key="key")
    refused = failed(call, "precondition_failed", payload={"refunds": [1]}, sent=False, idempotency_key="key")
    recorded = record_step(step([call], [refused]))
    assert [record.payload for record in recorded.evidence] == [{"refunds": [1]}]
    assert recorded.update["usage"].calls_per_tool == {}


def test_a_call_that_was_never_made_leaves_an_entry_only() -> None:
    call = checked("a", fault=CallFault(category="repeat_refused", message="again"))
    recorded = record_step(step([call], []))
    assert (recorded.evidence, recorded.update["tool_history"]) == ([], [])
    assert recorded.update["usage"] == Usage()
    (entry,) = recorded.entries
    assert (entry.kind, entry.outcome, entry.validation) == ("invalid", None, "again")


def test_the_windows_are_bounded_and_keep_the_newest() -> None:
    recorded = record_step(step([], []))
    for number in range(1, 40):
        call = checked("a", args={"order_id": str(number)})
        recorded = record_step(
            step(
                [call],
                [result(call, {"order_id": str(number), "note": "x" * 500})],
                evidence=recorded.update["evidence"],
                evidence_count=recorded.update["evidence_count"],
                tool_history=recorded.update["tool_history"],
            )
        )
    evidence, history = recorded.update["evidence"], recorded.update["tool_history"]
    assert [one.id for one in evidence] == [f"ev-{number}" for number in range(40 - EVIDENCE_WINDOW, 40)]
    assert len(history) == TOOL_HISTORY_WINDOW
    assert history[-1].evidence_id == "ev-39"
    assert {len(one.preview) for one in evidence} == {PREVIEW_CHARS}


# --- usage ------------------------------------------------------------------------------------------------------


def test_only_what_was_sent_counts_and_retries_add_up() -> None:
    first, second, third = checked("a"), checked("b"), checked("c", "get_refund")
    results = [result(first, ORDER, attempts=3), failed(second, attempts=2), result(third, ORDER, sent=False)]
    before = Usage(calls_per_tool={"lookup_order": 1, "search_policy": 2}, tool_ms=100, read_retries=1)
    usage = record_step(step([first, second, third], results, usage=before)).update["usage"]
    assert usage.calls_per_tool == {"lookup_order": 3, "search_policy": 2}
    assert (usage.tool_ms, usage.read_retries) == (114, 4)


# --- verification -----------------------------------------------------------------------------------------------

EXECUTED = OutstandingAction(kind="issue_refund", key="refund:1", action_hash="h", status="executed")
ISSUED = known(1, "issue_refund", {"refund_id": "rf_9001", "status": "pending"})


@pytest.mark.parametrize(
    ("tool", "args", "before", "expected"),
    [
        ("get_refund", {"refund_id": "rf_9001"}, EXECUTED, "verified"),
        ("get_refund", {"refund_id": "rf_9002"}, EXECUTED, "executed"),
        ("get_refund", {}, EXECUTED, "executed"),
        # A list is no read by the identifier held.
        ("get_refund_status", {"refund_id": "rf_9001"}, EXECUTED, "executed"),
        ("get_refund", {"refund_id": "rf_9001"}, EXECUTED.model_copy(update={"status": "unknown"}), "unknown"),
        ("get_refund", {"refund_id": "rf_9001"}, EXECUTED.model_copy(update={"kind": "notify_customer"}), "executed"),
    ],
)
def test_only_a_read_by_the_identifier_of_an_executed_action_verifies_it(
    tool: str, args: dict[str, JsonValue], before: OutstandingAction, expected: str
) -> None:
    call = checked("a", tool, args=args)
    recorded = record_step(
        step([call], [result(call, {"refund_id": "rf_9001"})], known=[ISSUED], outstanding=[before])
    )
    assert [action.status for action in recorded.update["outstanding"]] == [expected]


def test_a_failed_read_verifies_nothing() -> None:
    call = checked("a", "get_refund", args={"refund_id": "rf_9001"})
    recorded = record_step(step([call], [failed(call)], known=[ISSUED], outstanding=[EXECUTED]))
    assert recorded.update["outstanding"] == [EXECUTED]


# --- progress ---------------------------------------------------------------------------------------------------


def test_a_workflow_step_leaves_the_monitor_alone() -> None:
    call = checked("a")
    before = Progress(invalid_in_a_row=2, corrections=1)
    recorded = record_step(step([call], [result(call, ORDER)], progress=before, proposal=Proposal(source="workflow")))
    assert recorded.update["progress"] == before


def test_an_invalid_proposal_counts_as_churn_and_a_valid_one_ends_the_count() -> None:
    churning = Progress(invalid_in_a_row=1)
    fault = CallFault(category="garbage", message="text is not an action")
    verdict = Verdict(kind="invalid", fault=fault)
    recorded = record_step(step([], [], verdict=verdict, progress=churning))
    assert recorded.update["progress"].invalid_in_a_row == 2
    (entry,) = recorded.entries
    assert (entry.kind, entry.tool, entry.fault) == ("invalid", "", fault)
    call = checked("a")
    assert (
        record_step(step([call], [result(call, ORDER)], progress=churning)).update["progress"].invalid_in_a_row == 0
    )


def test_a_denied_action_is_remembered_once() -> None:
    fault = CallFault(category="denied", message="forbidden")
    call = checked("a", "issue_refund", authorisation="denied", policy_ids=["forbid-x"], fault=fault)
    recorded = record_step(step([call], []))
    again = record_step(step([call], [], progress=recorded.update["progress"]))
    assert again.update["progress"].denied_actions == [call.args_hash]
    (entry,) = recorded.entries
    assert (entry.kind, entry.authorisation, entry.policy_ids) == ("tool", "denied (forbid-x)", ["forbid-x"])


def test_the_state_digest_changes_with_new_evidence_only() -> None:
    call = checked("a")
    first = record_step(step([call], [result(call, ORDER)]))
    again = record_step(
        step([call], [result(call, ORDER)], known=first.evidence, evidence_count=1, step=9, version=9)
    )
    other = record_step(step([call], [result(call, {"order_id": "1"})], known=first.evidence, evidence_count=1))
    assert first.entries[0].state_digest == again.entries[0].state_digest != other.entries[0].state_digest


# --- the journal ------------------------------------------------------------------------------------------------


def test_what_the_inference_cost_is_on_the_first_entry_of_the_step_only() -> None:
    calls = [checked("a"), checked("b", "get_refund")]
    cost = Inference(prompt_digest="p", input_tokens=1_200, output_tokens=60, cost_micro_usd=9, model_ms=40)
    entries = record_step(step(calls, [result(call, ORDER) for call in calls], inference=cost)).entries
    assert [(entry.call, entry.input_tokens, entry.output_tokens) for entry in entries] == [(0, 1_200, 60), (1, 0, 0)]
    assert [entry.prompt_digest for entry in entries] == ["p", ""]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"authorisation": "allowed", "policy_ids": ["read-orders"]}, "allowed (read-orders)"),
        ({"authorisation": "allowed", "policy_reason": "already executed"}, "allowed (already executed)"),
        ({"authorisation": "allowed", "approval_id": "apr-1", "policy_ids": ["x"]}, "allowed by approval apr-1 (x)"),
        ({"authorisation": "denied"}, "denied (by default)"),
        (
            {"authorisation": "needs_approval", "required_role": "manager", "policy_ids": ["x"]},
            "needs approval by manager (x)",
        ),
        ({"authorisation": "pending"}, ""),
    ],
)
def test_the_journal_says_why_a_call_was_permitted_or_not(more: dict[str, Any], words: str) -> None:
    call = checked("a", **more)
    assert record_step(step([call], [result(call, ORDER)])).entries[0].authorisation == words


# --- halts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One result or fault, and what it rules out for good: a halt's kind, or nothing."""

    source: str
    category: FaultCategory
    exhausted: bool
    expected: str | None


@pytest.mark.parametrize(
    "row",
    [
        Row("model", "unavailable", True, "tool_exhausted"),
        Row("model", "timeout", True, "tool_exhausted"),
        Row("model", "unavailable", False, None),
        Row("model", "forbidden", False, "denied"),
        Row("model", "not_found", False, None),
        Row("model", "rejected", False, None),
        Row("model", "tool_defect", False, None),
        Row("workflow", "not_found", False, "tool_exhausted"),
        Row("workflow", "conflict", False, "tool_exhausted"),
        Row("workflow", "denied", False, "denied"),
        Row("workflow", "approval_rejected", False, "denied"),
        Row("workflow", "forbidden", False, "denied"),
    ],
    ids=lambda row: f"{row.source}-{row.category}-{row.exhausted}",
)
def test_what_an_observation_rules_out(row: Row) -> None:
    call = checked("a")
    one = failed(call, row.category, exhausted=row.exhausted, attempts=3)
    proposal = Proposal(source="model" if row.source == "model" else "workflow")
    halt = halt_of(proposal, [call], [result(checked("b"), ORDER), one])
    assert (halt.kind if halt is not None else None) == row.expected


def test_a_fault_before_dispatch_ends_a_workflow_but_not_a_model() -> None:
    call = checked("a", fault=CallFault(category="invalid_arguments", message="no"))
    assert halt_of(Proposal(source="model"), [call], []) is None
    halted = halt_of(Proposal(source="workflow"), [call], [])
    assert halted is not None
    assert halted.reason == "tool_exhausted"
    assert "lookup_order" in halted.detail


# --- laws -------------------------------------------------------------------------------------------------------

payloads = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    calls, results = [], []
    for number in range(draw(st.integers(0, 5))):
        tool = draw(st.sampled_from(["lookup_order", "get_refund", "search_policy"]))
        call = checked(f"c{number}", tool, args={"q": draw(st.text(max_size=5))})
        match draw(st.sampled_from(["ok", "failed", "undispatched"])):
            case "ok":
                results.append(result(call, draw(payloads), attempts=draw(st.integers(1, 3))))
            case "failed":
                results.append(failed(call, draw(st.sampled_from(["timeout", "rejected"]))))
            case _:
                call = call.model_copy(update={"fault": CallFault(category="invalid_arguments", message="no")})
        calls.append(call)
    count = draw(st.integers(0, 60))
    is_valid = any(call.fault is None for call in calls)
    verdict = Verdict(kind="calls" if is_valid else "invalid", calls=calls)
    return step(calls, results, verdict=verdict, evidence_count=count, step=draw(st.integers(0, 99)))


@given(steps())
def test_every_evidence_has_provenance_and_consecutive_ids_and_every_call_one_entry(given_step: Step) -> None:
    recorded = record_step(given_step)
    count = given_step.evidence_count
    assert [record.ordinal for record in recorded.evidence] == list(
        range(count + 1, count + 1 + len(recorded.evidence))
    )
    for record in recorded.evidence:
        assert record.id == f"ev-{record.ordinal}"
        assert record.request_id
        assert record.source
        assert record.payload_digest == digest(record.payload)
    assert recorded.update["evidence_count"] == count + len(recorded.evidence)
    assert [entry.call for entry in recorded.entries] == list(range(max(1, len(given_step.verdict.calls))))
    assert {entry.version for entry in recorded.entries} == {given_step.version}
    named = [entry.evidence_id for entry in recorded.entries if entry.evidence_id is not None]
    assert named == [record.id for record in recorded.evidence]


@given(steps())
def test_recording_the_same_step_again_gives_the_same(given_step: Step) -> None:
    assert record_step(given_step) == record_step(dataclasses.replace(given_step))
