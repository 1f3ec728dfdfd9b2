"""What an answer to an approval amounts to, for any JSON value."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.graph.records import ApprovalRow
from agentic_loop.policies.approvals import (
    MAX_ANSWER_CHARS,
    AlreadyDecided,
    Answer,
    AnswerJudgement,
    Approve,
    Edit,
    Expired,
    Refused,
    Reject,
    judge_answer,
    request_payload,
)

from .refund_records import LEAD, LOOKED_UP, NOW, evidence

ROW = ApprovalRow(
    id="apr-5521",
    task_id="task-8472-a",
    tenant="acme",
    loop="refund",
    tool="issue_refund",
    args={"order_id": "8472", "payment_id": "pay_5a2", "amount_inr": 2000},
    idempotency_key="refund:order-8472:pay_5a2:v1",
    action_hash="9c41e0d2b7f3",
    required_role="support_lead",
    requester="ravi",
    policy_ids=["refund-approved-by-support-lead"],
    policy_clause="POL-REF-004 v4 §3.2",
    reason="A refund above INR 1,000 needs the approval of a support lead.",
    evidence_ids=["ev-1", "ev-2"],
    round=1,
    requested_at=NOW,
    expires_at=NOW + timedelta(hours=2),
)


def judge(answer: JsonValue, *, row: ApprovalRow = ROW, hours: float = 0, bare: bool = False) -> AnswerJudgement:
    return judge_answer(row, answer, principal=LEAD, now=NOW + timedelta(hours=hours), bare_answers=bare)


def answered(**decision: JsonValue) -> dict[str, JsonValue]:
    return {"approval_id": ROW.id, "decisions": [decision]}


EDITED: dict[str, JsonValue] = {"name": "issue_refund", "args": {"amount_inr": 900}}


@pytest.mark.parametrize(
    ("answer", "judgement"),
    [
        (answered(type="approve"), Approve()),
        (answered(type="approve", message="fine", edited_action=None), Approve("fine")),
        (answered(type="reject"), Reject("")),
        (answered(type="reject", message="not a duplicate"), Reject("not a duplicate")),
        (answered(type="respond", message="ask the bank"), Answer("ask the bank")),
        (answered(type="edit", edited_action=EDITED), Edit({"amount_inr": 900}, "issue_refund")),
        ({"decisions": [{"type": "approve", "approval_id": "apr-5521"}]}, Approve()),
        ({"approval_id": "apr-5521", "decisions": [{"type": "approve", "approval_id": "apr-5521"}]}, Approve()),
    ],
)
def test_decisions(answer: JsonValue, judgement: AnswerJudgement) -> None:
    assert judge(answer) == judgement


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "exactly one"),
        (True, "exactly one"),
        ("approve", "exactly one"),
        ([{"type": "approve"}], "exactly one"),
        ({"approval_id": "apr-5521"}, "exactly one"),
        ({"approval_id": "apr-5521", "decisions": []}, "exactly one"),
        ({"approval_id": "apr-5521", "decisions": [{"type": "approve"}] * 2}, "exactly one"),
        ({"approval_id": "apr-5521", "decisions": ["approve"]}, "exactly one"),
        ({"approval_id": "apr-5521", "decisions": {"type": "approve"}}, "exactly one"),
        ({"decisions": [{"type": "approve"}]}, "name the approval"),
        ({"approval_id": None, "decisions": [{"type": "approve"}]}, "name the approval"),
        ({"approval_id": "apr-1", "decisions": [{"type": "approve"}]}, "'apr-1'"),
        ({"approval_id": 5521, "decisions": [{"type": "approve"}]}, "of type int"),
        ({"approval_id": "apr-5521", "decisions": [{"type": "approve", "approval_id": "apr-1"}]}, "'apr-1'"),
        ({"approval_id": "apr-5521", "decisions": [{"type": "approve"}], "as": "meera"}, "unknown field 'as'"),
        (answered(type="Approve"), "unknown type 'Approve'"),
        (answered(), "unknown type of type NoneType"),
        (answered(type=["approve"]), "unknown type of type list"),
        (answered(type="approve", args={"amount_inr": 900}), "'args' does not belong to 'approve'"),
        (answered(type="approve", edited_action=EDITED), "'edited_action' does not belong to 'approve'"),
        (answered(type="edit"), "an edit needs"),
        (answered(type="edit", edited_action={"name": "issue_refund"}), "an edit needs"),
        (answered(type="edit", edited_action={"name": "", "args": {}}), "an edit needs"),
        (answered(type="edit", edited_action={"name": "issue_refund", "args": []}), "an edit needs"),
        (answered(type="edit", edited_action={**EDITED, "key": "x"}), "an edit needs"),
        (answered(type="respond"), "needs a message"),
        (answered(type="respond", message="  "), "needs a message"),
        (answered(type="reject", message=5), "message must be text"),
        (answered(type="reject", message="x" * (MAX_ANSWER_CHARS + 1)), "message must be text"),
    ],
)
def test_anything_else_is_refused_with_the_right_shape(answer: JsonValue, says: str) -> None:
    judgement = judge(answer)
    assert isinstance(judgement, Refused)
    assert says in judgement.detail


def test_a_bare_answer_counts_only_where_it_is_accepted() -> None:
    bare: JsonValue = {"decisions": [{"type": "approve"}]}
    assert judge(bare, bare=True) == Approve()
    named: JsonValue = {"approval_id": "apr-1", "decisions": [{"type": "approve"}]}
    assert isinstance(judge(named, bare=True), Refused)


def test_nobody_cannot_answer() -> None:
    judgement = judge_answer(ROW, answered(type="approve"), principal=None, now=NOW, bare_answers=True)
    assert isinstance(judgement, Refused)
    assert "authenticated" in judgement.detail


@pytest.mark.parametrize("answer", [answered(type="approve"), None, "nonsense"])
def test_expiry_is_judged_before_the_answer(answer: JsonValue) -> None:
    assert judge(answer, hours=2) == Expired()
    assert judge_answer(ROW, answer, principal=None, now=ROW.expires_at, bare_answers=False) == Expired()
    assert not isinstance(judge(answer, hours=1.999), Expired)


@pytest.mark.parametrize("hours", [0, 3])
def test_an_earlier_decision_stands(hours: float) -> None:
    approved = replace(ROW, decision="approved", decided_by="asha")
    assert judge(answered(type="reject"), row=approved, hours=hours) == AlreadyDecided(approved)
    assert judge(answered(type="approve"), row=replace(ROW, decision="expired"), hours=hours) == Expired()


def test_the_request_shows_the_exact_action_and_what_binds_it() -> None:
    order, status, *_ = evidence(*LOOKED_UP)
    large = replace(status, size_bytes=10**6)
    payload = request_payload(ROW, [order, large])
    actions = payload["action_requests"]
    assert isinstance(actions, list)
    (action,) = actions
    assert isinstance(action, dict)
    assert action["name"] == "issue_refund"
    assert action["args"] == dict(ROW.args)
    for part in ("amount_inr=2000", "ravi", "support_lead", "POL-REF-004 v4 §3.2", "ev-1", "2026-10-28T13:19:43"):
        assert part in str(action["description"])
    assert payload["review_configs"] == [
        {"action_name": "issue_refund", "allowed_decisions": ["approve", "edit", "reject", "respond"]}
    ]
    assert payload["approval_id"] == "apr-5521"
    assert payload["action_hash"] == "9c41e0d2b7f3"
    assert payload["idempotency_key"] == "refund:order-8472:pay_5a2:v1"
    assert payload["expires_at"] == "2026-10-28T13:19:43+00:00"
    assert payload["required_role"] == "support_lead"
    assert payload["evidence_ids"] == ["ev-1", "ev-2"]
    shown = payload["evidence"]
    assert isinstance(shown, list)
    assert [entry["payload"] for entry in shown if isinstance(entry, dict)] == [order.payload, None]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(["type", "message", "edited_action", "approval_id", "name", "args"])
TYPES = st.sampled_from(["approve", "edit", "reject", "respond", "apr-5521"])
NEAR_MISSES = st.fixed_dictionaries(
    {"decisions": st.lists(st.dictionaries(KEYS, JSON | TYPES, max_size=4), max_size=2)},
    optional={"approval_id": JSON | TYPES},
)


@settings(max_examples=300, deadline=None)
@given(answer=JSON | NEAR_MISSES)
def test_any_answer_is_judged_and_only_one_that_names_the_approval_decides(answer: JsonValue) -> None:
    if isinstance(judge(answer), Approve | Edit | Reject | Answer):
        assert isinstance(answer, dict)
        decisions = answer["decisions"]
        assert isinstance(decisions, list)
        (decision,) = decisions
        assert isinstance(decision, dict)
        assert ROW.id in (answer.get("approval_id"), decision.get("approval_id"))
