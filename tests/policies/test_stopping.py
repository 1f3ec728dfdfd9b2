"""When a task ends: one row for each reason, the order of the checks, and laws that hold for every view."""

import dataclasses
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_loop.graph.records import Completed, Incomplete
from agentic_loop.graph.state import (
    TERMINAL,
    CheckedCall,
    Ending,
    Halt,
    HaltKind,
    Limits,
    Progress,
    Reason,
    Thresholds,
    Usage,
    Verdict,
    VerdictKind,
)
from agentic_loop.policies.stopping import (
    CORRECTIONS,
    STATUS_OF,
    CorrectCourse,
    End,
    GoOn,
    Pause,
    RefuseFinish,
    RefuseWait,
    StopAnswer,
    StopView,
    judge,
)

LIMITS = Limits(max_steps=8, max_tokens=1_000, max_cost_micro_usd=1_000, max_active_s=100, max_rechecks=2)
QUIET = StopView(
    halt=None,
    verdict=None,
    completion=None,
    progress=Progress(),
    thresholds=Thresholds(),
    limits=LIMITS,
    usage=Usage(),
    step_count=3,
    model_step_needed=True,
)
INCOMPLETE = Incomplete("no refund evidence")
COMPLETED = Completed("the refund was read back")


def view(**changes: Any) -> StopView:
    return dataclasses.replace(QUIET, **changes)


def halted(kind: HaltKind, reason: Reason) -> StopView:
    return view(halt=Halt(kind=kind, reason=reason, detail="why"))


def said(kind: VerdictKind, text: str = "words", **more: Any) -> StopView:
    return view(verdict=Verdict(kind=kind, text=text, wait_s=60), **more)


def flagged(flag: Reason, corrections: int = 1) -> StopView:
    return view(progress=Progress(flag=flag, corrections=corrections))


@dataclass(frozen=True)
class Row:
    """What happened, and how the task ends because of it."""

    reason: Reason
    status: str
    view: StopView


ROWS = [
    Row("completed", "SUCCEEDED", view(completion=COMPLETED)),
    Row("question", "NEEDS_INPUT", said("ask_user", "Which order?")),
    Row("approval_expired", "NEEDS_INPUT", halted("approval_expired", "approval_expired")),
    Row("review_required", "NEEDS_INPUT", halted("review_required", "review_required")),
    Row("policy_denied", "DENIED", halted("denied", "policy_denied")),
    Row("steps", "BUDGET_EXHAUSTED", view(step_count=8)),
    Row("tokens", "BUDGET_EXHAUSTED", view(usage=Usage(input_tokens=900, output_tokens=101))),
    Row("cost", "BUDGET_EXHAUSTED", view(usage=Usage(cost_micro_usd=1_001))),
    Row("deadline", "BUDGET_EXHAUSTED", view(usage=Usage(active_ms=100_000))),
    Row("repeated_action", "NO_PROGRESS", flagged("repeated_action")),
    Row("no_state_change", "NO_PROGRESS", flagged("no_state_change")),
    Row("oscillation", "NO_PROGRESS", flagged("oscillation")),
    Row("progress_theatre", "NO_PROGRESS", flagged("progress_theatre")),
    Row("validation_churn", "NO_PROGRESS", flagged("validation_churn")),
    Row("contradiction", "NO_PROGRESS", flagged("contradiction")),
    Row("no_action", "FAILED", said("blocked", "nothing is left to do")),
    Row("model_unavailable", "FAILED", halted("model_unavailable", "model_unavailable")),
    Row("tool_exhausted", "FAILED", halted("tool_exhausted", "tool_exhausted")),
    Row("unknown_effect", "FAILED", halted("unknown_effect", "unknown_effect")),
    Row("invalid_proposal", "FAILED", halted("invalid_proposal", "invalid_proposal")),
    Row("cancelled", "FAILED", halted("cancelled", "cancelled")),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.reason)
def test_each_reason_ends_with_its_status(row: Row) -> None:
    answer = judge(row.view)
    assert isinstance(answer, End)
    assert (answer.ending.reason, answer.ending.status) == (row.reason, row.status)
    assert answer.ending.detail


def test_every_reason_has_a_row_and_one_status() -> None:
    assert sorted(row.reason for row in ROWS) == sorted(get_args(Reason)) == sorted(STATUS_OF)
    assert set(STATUS_OF.values()) == TERMINAL
    assert {row.reason: row.status for row in ROWS} == STATUS_OF


@pytest.mark.parametrize("reason", ["steps", "tokens", "cost", "deadline"])
def test_a_refused_reservation_ends_for_the_budget_that_refused_it(reason: Reason) -> None:
    answer = judge(halted("budget", reason))
    assert isinstance(answer, End)
    assert (answer.ending.status, answer.ending.reason) == ("BUDGET_EXHAUSTED", reason)


# --- the order --------------------------------------------------------------------------------------------------

SPENT = Usage(input_tokens=5_000, cost_micro_usd=5_000, active_ms=500_000)
CANCELLED = Halt(kind="cancelled", reason="cancelled", detail="by the operator")
DENIED = Halt(kind="denied", reason="policy_denied", detail="forbidden")
ASKED = Verdict(kind="ask_user", text="Which order?")
STALLED = Progress(flag="oscillation", corrections=1)
BLOCKED = Verdict(kind="blocked", text="nothing is left to do")


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"halt": CANCELLED, "completion": COMPLETED, "progress": STALLED, "usage": SPENT}, "cancelled"),
        ({"halt": DENIED, "completion": COMPLETED, "progress": STALLED, "usage": SPENT}, "completed"),
        ({"completion": COMPLETED, "usage": SPENT, "step_count": 8}, "completed"),
        ({"halt": DENIED, "progress": STALLED, "usage": SPENT, "verdict": ASKED}, "policy_denied"),
        ({"verdict": ASKED, "progress": STALLED, "usage": SPENT, "step_count": 8}, "question"),
        ({"progress": STALLED, "usage": SPENT, "step_count": 8, "verdict": BLOCKED}, "oscillation"),
        ({"usage": SPENT, "step_count": 8, "verdict": BLOCKED}, "tokens"),
        ({"step_count": 8, "verdict": BLOCKED}, "no_action"),
        ({"step_count": 8, "verdict": Verdict(kind="finish"), "completion": INCOMPLETE}, "steps"),
    ],
)
def test_what_counts_first_where_several_things_are_true(changes: dict[str, Any], first: Reason) -> None:
    answer = judge(view(**changes))
    assert isinstance(answer, End)
    assert answer.ending.reason == first


def test_a_correction_is_not_given_where_no_step_is_left_for_it() -> None:
    answer = judge(view(progress=Progress(flag="oscillation"), step_count=8))
    assert answer == End(Ending(status="BUDGET_EXHAUSTED", reason="steps", detail="8 steps spent of 8"))


# --- going on ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (view(), GoOn()),
        (view(usage=Usage(input_tokens=1_000, cost_micro_usd=1_000, active_ms=99_999), step_count=7), GoOn()),
        (said("calls"), GoOn()),
        (said("invalid"), GoOn()),
        (said("finish", completion=INCOMPLETE), RefuseFinish("no refund evidence")),
        # A workflow has the next step, and will bring about what is missing.
        (said("finish", completion=INCOMPLETE, model_step_needed=False), GoOn()),
        (said("wait_and_recheck"), Pause(60)),
        (said("wait_and_recheck", usage=Usage(rechecks=1)), Pause(60)),
        (said("wait_and_recheck", step_count=8), Pause(60)),
        (view(step_count=8, model_step_needed=False), GoOn()),
    ],
)
def test_what_does_not_end_the_task(seen: StopView, expected: StopAnswer) -> None:
    assert judge(seen) == expected


def test_a_wait_too_many_is_refused_and_at_the_last_step_ends_by_steps() -> None:
    used_up = Usage(rechecks=2)
    assert isinstance(judge(said("wait_and_recheck", usage=used_up)), RefuseWait)
    answer = judge(said("wait_and_recheck", usage=used_up, step_count=8))
    assert isinstance(answer, End)
    assert answer.ending.reason == "steps"


@pytest.mark.parametrize("flag", sorted(reason for reason, status in STATUS_OF.items() if status == "NO_PROGRESS"))
def test_the_first_flag_is_corrected_in_words_of_its_own_and_the_second_ends(flag: Reason) -> None:
    assert judge(flagged(flag, corrections=0)) == CorrectCourse(flag, CORRECTIONS[flag])
    assert isinstance(judge(flagged(flag, corrections=1)), End)
    strict = dataclasses.replace(flagged(flag, corrections=0), thresholds=Thresholds(max_corrections=0))
    assert isinstance(judge(strict), End)


# --- laws -------------------------------------------------------------------------------------------------------

counts = st.integers(0, 2_000)
views = st.builds(
    StopView,
    halt=st.none()
    | st.builds(
        Halt, kind=st.sampled_from(get_args(HaltKind)), reason=st.sampled_from(get_args(Reason)), detail=st.text()
    ),
    verdict=st.none()
    | st.builds(
        Verdict,
        kind=st.sampled_from(get_args(VerdictKind)),
        text=st.text(max_size=20),
        wait_s=counts,
        calls=st.lists(st.builds(CheckedCall, call_id=st.just("c"), tool=st.just("t")), max_size=2),
    ),
    completion=st.sampled_from([None, COMPLETED, INCOMPLETE]),
    progress=st.builds(
        Progress,
        flag=st.none() | st.sampled_from([r for r, status in STATUS_OF.items() if status == "NO_PROGRESS"]),
        corrections=st.integers(0, 3),
    ),
    thresholds=st.builds(Thresholds, max_corrections=st.integers(0, 2)),
    limits=st.just(LIMITS),
    usage=st.builds(
        Usage,
        input_tokens=counts,
        output_tokens=counts,
        cost_micro_usd=counts,
        active_ms=st.integers(0, 200_000),
        rechecks=st.integers(0, 4),
    ),
    step_count=st.integers(0, 12),
    model_step_needed=st.booleans(),
)


@given(views)
def test_every_ending_has_the_status_of_its_reason(seen: StopView) -> None:
    answer = judge(seen)
    if isinstance(answer, End):
        assert answer.ending.status == STATUS_OF[answer.ending.reason]


@given(views)
def test_no_model_is_asked_beyond_a_limit(seen: StopView) -> None:
    """Whatever asks the model again was judged to fit: steps, tokens, cost, time, corrections."""
    answer = judge(seen)
    if isinstance(answer, End | Pause) or not seen.model_step_needed:
        return
    assert seen.step_count < LIMITS.max_steps
    assert seen.usage.tokens <= LIMITS.max_tokens
    assert seen.usage.cost_micro_usd <= LIMITS.max_cost_micro_usd
    assert seen.usage.active_ms < LIMITS.max_active_s * 1_000
    if isinstance(answer, CorrectCourse):
        assert seen.progress.corrections < seen.thresholds.max_corrections


@given(views)
def test_a_halt_always_ends_and_only_completion_ends_as_a_success(seen: StopView) -> None:
    answer = judge(seen)
    if seen.halt is not None:
        # A budget's refusal waits for a correction or a step of code no more than anything else does.
        assert isinstance(answer, End)
    if isinstance(answer, End) and answer.ending.status == "SUCCEEDED" and seen.halt is None:
        assert seen.completion == COMPLETED
    if isinstance(answer, Pause):
        assert seen.usage.rechecks < LIMITS.max_rechecks
