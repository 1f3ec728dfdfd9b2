"""What may be concluded about an effect whose outcome nobody saw."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_loop.graph.records import Intent
from agentic_loop.policies.reconciliation import (
    Applied,
    NotApplied,
    Reconciled,
    ServiceAbsent,
    ServiceAnswer,
    ServiceFound,
    ServiceSilent,
    Unknown,
    WaitForVisibility,
    conclude,
)

INTENDED_AT = datetime(2026, 10, 28, 11, tzinfo=UTC)
RETENTION_S = 86_400
VISIBLE_AFTER_S = 5.0
MAX_DISPATCHES = 2
REFUND = ServiceFound({"refund_id": "rf_9001"}, "rf_9001")


def concluded(answer: ServiceAnswer, age_s: float, dispatches: int = 1, visible_after_s: float = 5.0) -> Reconciled:
    intent = Intent(
        tenant="acme",
        key="refund:order-8472:pay_5a2:v1",
        action_hash="hash",
        tool="issue_refund",
        args={},
        task_id="task-1",
        status="unknown",
        dispatches=dispatches,
        intended_at=INTENDED_AT,
    )
    return conclude(
        intent,
        answer,
        now=INTENDED_AT + timedelta(seconds=age_s),
        key_retention_s=RETENTION_S,
        visible_after_s=visible_after_s,
        max_dispatches=MAX_DISPATCHES,
    )


@dataclass(frozen=True)
class Row:
    """What the service answered and when, and what follows."""

    answer: ServiceAnswer
    age_s: float
    dispatches: int
    expected: type[Applied | NotApplied | WaitForVisibility | Unknown]


@pytest.mark.parametrize(
    "row",
    [
        Row(REFUND, 0, 1, Applied),
        Row(REFUND, 10 * RETENTION_S, 9, Applied),
        Row(ServiceSilent("501"), 10, 1, Unknown),
        Row(ServiceAbsent(), 0, 1, WaitForVisibility),
        Row(ServiceAbsent(), 4.999, 1, WaitForVisibility),
        Row(ServiceAbsent(), 5, 1, NotApplied),
        Row(ServiceAbsent(), RETENTION_S - 1, 1, NotApplied),
        Row(ServiceAbsent(), RETENTION_S, 1, Unknown),
        Row(ServiceAbsent(), RETENTION_S + 1, 1, Unknown),
        Row(ServiceAbsent(), 10, 2, Unknown),
        Row(ServiceAbsent(), 10, 3, Unknown),
        # The clocks of two machines differ: an intent of the future is a young one.
        Row(ServiceAbsent(), -60, 1, WaitForVisibility),
    ],
)
def test_what_follows_from_an_answer(row: Row) -> None:
    assert isinstance(concluded(row.answer, row.age_s, row.dispatches), row.expected)


def test_the_result_that_was_found_is_the_effects_own() -> None:
    assert concluded(REFUND, 1) == Applied({"refund_id": "rf_9001"}, "rf_9001")


def test_the_wait_ends_exactly_when_an_effect_would_be_visible() -> None:
    assert concluded(ServiceAbsent(), 2) == WaitForVisibility(3.0)
    assert concluded(ServiceAbsent(), 2 + 3) == NotApplied()
    assert concluded(ServiceAbsent(), 0, visible_after_s=0.0) == NotApplied()


@pytest.mark.parametrize(
    ("answer", "age_s", "dispatches", "words"),
    [
        (ServiceSilent("the service offers no lookup"), 10, 1, "the service offers no lookup"),
        (ServiceAbsent(), RETENTION_S, 1, "keeps keys for 86400 s only"),
        (ServiceAbsent(), 10, 2, "after 2 dispatch(es), the limit"),
    ],
)
def test_what_is_unknown_says_why(answer: ServiceAnswer, age_s: float, dispatches: int, words: str) -> None:
    found = concluded(answer, age_s, dispatches)
    assert isinstance(found, Unknown)
    assert words in found.detail


@given(
    st.sampled_from([REFUND, ServiceAbsent(), ServiceSilent("away")]),
    st.floats(-100, 3 * RETENTION_S),
    st.integers(1, 5),
    st.floats(0, 100),
)
def test_one_more_dispatch_only_after_an_absence_that_counts(
    answer: ServiceAnswer, age_s: float, dispatches: int, visible_after_s: float
) -> None:
    found = concluded(answer, age_s, dispatches, visible_after_s)
    assert isinstance(found, Applied) == isinstance(answer, ServiceFound)
    if isinstance(found, NotApplied):
        assert isinstance(answer, ServiceAbsent)
        assert visible_after_s - 0.001 <= age_s < RETENTION_S
        assert dispatches < MAX_DISPATCHES
    if isinstance(found, WaitForVisibility):
        assert 0 < found.delay_s <= visible_after_s - age_s + 0.001
