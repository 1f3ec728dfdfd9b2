"""The packet: complete, bounded, deterministic, and safe to act on."""

import dataclasses
import json
import re
import shlex
from datetime import timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.graph.records import ApprovalRow, EvidenceRecord, Intent, JournalEntry
from agentic_loop.graph.state import (
    CallFault,
    Ending,
    Limits,
    OutstandingAction,
    Principal,
    Reason,
    Task,
    Usage,
)
from agentic_loop.policies.escalation import MAX_ROWS, as_markdown, packet
from agentic_loop.policies.safe_options import safe_options
from agentic_loop.policies.stopping import STATUS_OF
from agentic_loop.testing.clock import START

TASK = Task(
    task_id="task-8472-a",
    trace_id="trace-7f3a",
    loop="refund",
    goal="Resolve order 8472",
    inputs={"order_id": "8472"},
    tenant="acme",
    requester=Principal(id="agent-7", tenant="acme"),
    contract_digest="cd" * 32,
    versions={"prompt": "1", "policy": "4"},
    started_at=START,
)
KEY = "refund:order-8472:pay_5a2:v1"


def evidence(number: int = 1, payload: JsonValue = None) -> EvidenceRecord:
    return EvidenceRecord(
        id=f"ev-{number}",
        ordinal=number,
        step=number,
        tool="lookup_order",
        args={"order_id": "8472"},
        request_id=f"req-{number}",
        fetched_at=START,
        source="payments-service",
        ref="",
        payload=payload if payload is not None else {"order_id": "8472"},
        payload_digest="d",
        size_bytes=20,
    )


def entry(step: int = 1, **changes: Any) -> JournalEntry:
    first = JournalEntry(
        task_id=TASK.task_id,
        version=step,
        call=0,
        step=step,
        at=START,
        phase="investigate",
        kind="tool",
        source="model",
        tool="lookup_order",
        args={"order_id": "8472"},
        validation="ok",
        authorisation="allowed",
        outcome="ok",
        evidence_id="ev-1",
        request_id=f"req-{step}",
    )
    return dataclasses.replace(first, **changes)


def intent(status: Any = "unknown", *, key: str = KEY, flagged: bool = False, **changes: Any) -> Intent:
    first = Intent(
        tenant="acme",
        key=key,
        action_hash="ab",
        tool="issue_refund",
        args={"amount_inr": 2000},
        task_id=TASK.task_id,
        status=status,
        dispatches=1,
        intended_at=START,
        flagged=flagged,
    )
    return dataclasses.replace(first, **changes)


APPROVAL = ApprovalRow(
    id="apr-1",
    task_id=TASK.task_id,
    tenant="acme",
    loop="refund",
    tool="issue_refund",
    args={"amount_inr": 2000},
    idempotency_key=KEY,
    action_hash="ab",
    required_role="support_lead",
    requester="agent-7",
    policy_ids=[],
    policy_clause="",
    reason="",
    evidence_ids=[],
    round=1,
    requested_at=START,
    expires_at=START + timedelta(hours=2),
)


def made(reason: Reason = "steps", **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "task": TASK,
        "ending": Ending(status=STATUS_OF[reason], reason=reason, detail="8 of 8 steps are used"),
        "step_count": 8,
        "usage": Usage(
            input_tokens=5_000,
            output_tokens=335,
            cost_micro_usd=900,
            estimated_cost_micro_usd=1_100,
            active_ms=12_500,
            suspended_ms=60_000,
        ),
        "limits": Limits(),
        "evidence": [evidence()],
        "entries": [entry()],
        "outstanding": [],
        "intents": [],
        "approvals": [],
        "missing": "no refund evidence",
        "versions": TASK.versions,
    }
    return packet(**{**fields, **changes})


def test_it_holds_everything_that_a_person_needs() -> None:
    fault = CallFault(category="not_found", message="no such order")
    whole = made(
        entries=[entry(), entry(2, outcome="error", fault=fault, evidence_id=None), entry(3, kind="feedback")],
        outstanding=[
            OutstandingAction(kind="issue_refund", key=KEY, action_hash="ab", status="unknown"),
            OutstandingAction(kind="notify_customer", key="notify:x:v1", action_hash="cd", status="proposed"),
        ],
        intents=[intent("executed", result={"refund_id": "rf_9001"}, finished_at=START)],
        approvals=[dataclasses.replace(APPROVAL, decision="approved", decided_by="asha", consumed_by=KEY)],
    )
    assert (whole["status"], whole["reason"], whole["goal"]) == ("BUDGET_EXHAUSTED", "steps", "Resolve order 8472")
    assert whole["missing_evidence"] == "no refund evidence"
    assert whole["completed_work"]["rows"][0]["preview"] == '{"order_id": "8472"}'
    assert [row["observation"] for row in whole["attempted_actions"]["rows"]] == [
        'ev-1: {"order_id": "8472"}',
        "not_found: no such order",
    ]
    assert [error["message"] for error in whole["last_errors"]] == ["no such order"]
    assert whole["effects"]["rows"][0]["status"] == "executed"
    assert whole["effects"]["rows"][0]["needs_review"] is False
    assert whole["not_sent"]["rows"] == [{"action": "notify_customer", "key": "notify:x:v1", "status": "proposed"}]
    assert whole["approvals"]["rows"][0]["decided_by"] == "asha"
    assert whole["spent"]["billed_cost_micro_usd"] == 900
    assert whole["spent"]["estimated_cost_micro_usd"] == 1_100
    assert whole["spent"]["active_s"] == 12.5
    assert whole["remaining"] == {"steps": 0, "tokens": 34_665, "cost_micro_usd": 499_100, "active_s": 107.5}
    assert whole["versions"] == {"policy": "4", "prompt": "1"}
    json.dumps(whole, allow_nan=False)


def test_nothing_remains_below_zero() -> None:
    over = made(step_count=99, usage=Usage(input_tokens=99_999, cost_micro_usd=999_999, active_ms=999_999))
    assert set(over["remaining"].values()) == {0}


def test_effects_that_need_a_person_come_first() -> None:
    intents = [
        intent("executed", key="a"),
        intent("unknown", key="b"),
        intent("failed", key="c"),
        intent("intended", key="d"),
        intent("executed", key="e", flagged=True),
    ]
    rows = made("unknown_effect", intents=intents)["effects"]["rows"]
    assert [(row["key"], row["needs_review"]) for row in rows] == [
        ("b", True),
        ("d", True),
        ("e", True),
        ("a", False),
        ("c", False),
    ]


OPTIONS: dict[str, list[str]] = {
    "completed": [],
    "policy_denied": ["revise", "close"],
    **{
        reason: ["resume", "revise", "close"]
        for reason in get_args(Reason)
        if reason not in ("completed", "policy_denied")
    },
}


@pytest.mark.parametrize("reason", get_args(Reason))
def test_which_options_are_safe_after_each_reason(reason: Reason) -> None:
    assert [one["option"] for one in made(reason)["options"]] == OPTIONS[reason]


@pytest.mark.parametrize("reason", [reason for reason in get_args(Reason) if reason != "completed"])
def test_an_unsettled_effect_is_checked_before_anything_else(reason: Reason) -> None:
    first, *others = made(reason, intents=[intent()])["options"]
    assert first["option"] == "check"
    assert KEY in first["when"]
    assert all(one["when"].startswith("After the check: ") for one in others)


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("question", "agentic-loop resume task-8472-a --input NAME=VALUE --as WHO"),
        ("steps", "agentic-loop resume task-8472-a --add-steps 4 --as WHO"),
        ("tokens", "agentic-loop resume task-8472-a --add-tokens 20000 --as WHO"),
        ("cost", "agentic-loop resume task-8472-a --add-cost-micro-usd 250000 --as WHO"),
        ("deadline", "agentic-loop resume task-8472-a --add-active-s 60 --as WHO"),
        ("approval_expired", "agentic-loop resume task-8472-a --as WHO"),
        ("model_unavailable", "agentic-loop resume task-8472-a --as WHO"),
        ("policy_denied", "agentic-loop revise task-8472-a --as WHO"),
    ],
)
def test_the_first_command_is_exact(reason: Reason, command: str) -> None:
    assert made(reason)["options"][0]["command"] == command


def test_every_packet_can_be_closed_with_a_note() -> None:
    assert (
        made("cancelled")["options"][-1]["command"]
        == 'agentic-loop close task-8472-a --note "WHAT WAS DONE" --as WHO'
    )


def test_a_task_id_cannot_become_another_command() -> None:
    for option in safe_options("a; rm -rf x", "steps", Limits(max_steps=1), []):
        assert shlex.split(option.command)[2] == "a; rm -rf x"


def test_it_is_bounded() -> None:
    huge = "x" * 100_000
    many = made(
        task=TASK.model_copy(update={"goal": huge, "inputs": {str(n): huge for n in range(500)}}),
        evidence=[evidence(n, huge) for n in range(1, 500)],
        entries=[entry(n, fault=CallFault(category="garbage", message=huge), args={"a": huge}) for n in range(500)],
        intents=[intent(key=f"{n}{huge}", args={"a": huge}) for n in range(500)],
        approvals=[dataclasses.replace(APPROVAL, message=huge)] * 500,
        outstanding=[OutstandingAction(kind="a", key=huge, action_hash="", status="proposed")] * 500,
        missing=huge,
    )
    assert len(json.dumps(many)) < 512_000
    assert len(as_markdown(many)) < 512_000
    assert many["completed_work"]["left_out"] == 499 - MAX_ROWS
    assert many["completed_work"]["rows"][-1]["evidence_id"] == "ev-499"
    assert many["effects"]["rows"][0]["key"].startswith("0x")
    assert len(many["last_errors"]) == 5


def test_the_same_records_give_the_same_packet() -> None:
    assert json.dumps(made(versions={"b": "1", "a": "2"})) == json.dumps(made(versions={"a": "2", "b": "1"}))


def test_markdown_says_the_same_as_the_data() -> None:
    text = as_markdown(made("unknown_effect", intents=[intent("unknown", flagged=True)]))
    assert text.startswith("# FAILED (unknown_effect): task `task-8472-a`\n")
    effect = (
        """- **NEEDS REVIEW** status: `unknown`; tool: `issue_refund`; arguments: `{"amount_inr": 2000}`; key: """
    )
    assert f"{effect}`{KEY}`" in text
    assert text.index("check") < text.index("revise") < text.index("## Effects")
    assert '`agentic-loop close task-8472-a --note "WHAT WAS DONE" --as WHO`' in text
    assert "## Approvals\n\nNone." in text


def outside_code(markdown: str) -> str:
    """The Markdown without its code spans, as CommonMark finds them."""
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", markdown)


@given(st.text(alphabet=st.sampled_from("`\n\r#*<>[]()! x\u202e\u2028|"), max_size=40))
def test_hostile_text_stays_in_its_code_span(hostile: str) -> None:
    marked = f"EVIL{hostile}EVIL"
    text = as_markdown(
        made(
            task=TASK.model_copy(update={"goal": marked, "inputs": {"a": marked}}),
            evidence=[evidence(1, {"note": marked})],
            entries=[entry(fault=CallFault(category="garbage", message=marked))],
            intents=[intent(args={"a": marked})],
            missing=marked,
        )
    )
    assert "EVIL" in text
    assert "EVIL" not in outside_code(text)
    assert "\u202e" not in text
