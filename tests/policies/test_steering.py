"""The path through the graph as values: each outcome of a node, and the route that it takes."""

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_loop.graph.records import Intent
from agentic_loop.graph.state import (
    TERMINAL,
    Approval,
    Authorisation,
    CallFault,
    CallResult,
    CheckedCall,
    Outcome,
    Receipt,
    Route,
    Status,
    Verdict,
    VerdictKind,
)
from agentic_loop.policies import steering

NOW = datetime(2026, 10, 28, 11, tzinfo=UTC)
LATER, EARLIER = NOW + timedelta(seconds=1), NOW - timedelta(seconds=1)
APPROVAL = Approval(
    id="apr-1", action_hash="a", call_id="c", requested_at=EARLIER, expires_at=LATER, required_role="support_lead"
)
FAULT = CallFault(category="rejected", message="no")
INTENT_STATUSES = ("intended", "executed", "failed", "unknown")


def intent(status: str) -> Intent:
    return Intent("acme", "key", "hash", "issue_refund", {}, "task-1", status, 1, NOW)  # type: ignore[arg-type]


def entered(
    status: Status, intents: tuple[str, ...] = (), approval: Approval | None = None, wake_at: datetime | None = None
) -> Route:
    open_intents = [intent(one) for one in intents]
    return steering.after_observe(status=status, intents=open_intents, approval=approval, wake_at=wake_at, now=NOW)


# --- observe ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (entered("RUNNING"), "stop_check"),
        (entered("RUNNING", ("executed", "failed")), "stop_check"),
        (entered("RUNNING", ("executed", "intended")), "reconcile"),
        (entered("RUNNING", ("unknown",)), "reconcile"),
        (entered("AWAITING_APPROVAL", (), APPROVAL), "await_approval"),
        # Money that may have moved comes before a question.
        (entered("AWAITING_APPROVAL", ("unknown",), APPROVAL), "reconcile"),
        (entered("AWAITING_APPROVAL"), "stop_check"),
        # An approval of the past is not waited for again.
        (entered("RUNNING", (), APPROVAL), "stop_check"),
        (entered("RUNNING", wake_at=LATER), "end"),
        (entered("RUNNING", wake_at=NOW), "stop_check"),
        (entered("RUNNING", wake_at=EARLIER), "stop_check"),
        (entered("RUNNING", ("intended",), wake_at=LATER), "reconcile"),
    ],
)
def test_where_a_task_goes_that_is_entered_again(route: Route, expected: Route) -> None:
    assert route == expected


@given(
    st.sampled_from(sorted(TERMINAL)),
    st.lists(st.sampled_from(INTENT_STATUSES), max_size=3),
    st.sampled_from([None, APPROVAL]),
    st.sampled_from([None, EARLIER, NOW, LATER]),
)
def test_a_terminal_task_stays_ended_whatever_else_is_true(
    status: Status, intents: list[str], approval: Approval | None, wake_at: datetime | None
) -> None:
    assert entered(status, tuple(intents), approval, wake_at) == "end"


@given(
    st.sampled_from(["RUNNING", "AWAITING_APPROVAL"]),
    st.lists(st.sampled_from(INTENT_STATUSES), max_size=3),
    st.sampled_from([None, APPROVAL]),
    st.sampled_from([None, EARLIER, NOW, LATER]),
)
def test_nothing_happens_before_an_open_intent_is_reconciled(
    status: Status, intents: list[str], approval: Approval | None, wake_at: datetime | None
) -> None:
    is_open = any(one in ("intended", "unknown") for one in intents)
    assert (entered(status, tuple(intents), approval, wake_at) == "reconcile") == is_open


# --- validate ---------------------------------------------------------------------------------------------------

ROUTES: dict[VerdictKind, Route] = {
    "calls": "authorise",
    "invalid": "record",
    "finish": "stop_check",
    "ask_user": "stop_check",
    "blocked": "stop_check",
    "wait_and_recheck": "stop_check",
}


@pytest.mark.parametrize("kind", get_args(VerdictKind))
def test_where_a_verdict_goes(kind: VerdictKind) -> None:
    assert steering.after_validate(Verdict(kind=kind)) == ROUTES[kind]


# --- authorise and execute --------------------------------------------------------------------------------------


def call(authorisation: Authorisation, fault: CallFault | None = None) -> CheckedCall:
    return CheckedCall(call_id="c", tool="t", authorisation=authorisation, fault=fault)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], "record"),
        ([call("allowed")], "execute"),
        ([call("needs_approval")], "request_approval"),
        ([call("denied", FAULT)], "record"),
        ([call("pending", FAULT)], "record"),
        ([call("allowed"), call("denied", FAULT)], "execute"),
        ([call("pending", FAULT), call("allowed")], "execute"),
        # What has a fault neither runs nor is asked about, whatever was said of it before.
        ([call("allowed", FAULT)], "record"),
        ([call("needs_approval", FAULT)], "record"),
        ([call("needs_approval", FAULT), call("allowed")], "execute"),
        ([call("pending")], "record"),
    ],
)
def test_where_authorised_calls_go(calls: list[CheckedCall], expected: Route) -> None:
    assert steering.after_authorise(calls) == expected


def result(outcome: Outcome) -> CallResult:
    return CallResult(call_id="c", tool="t", args={}, args_hash="h", outcome=outcome)


@given(st.lists(st.sampled_from(get_args(Outcome)), max_size=5))
def test_an_unknown_outcome_is_reconciled_and_everything_else_recorded(outcomes: list[Outcome]) -> None:
    route = steering.after_execute(Receipt(results=[result(outcome) for outcome in outcomes]))
    assert route == ("reconcile" if "unknown" in outcomes else "record")
