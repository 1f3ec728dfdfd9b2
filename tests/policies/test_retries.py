import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_loop.policies.retries import MAX_DELAY_S, GiveUp, RetryAfter, after_model_fault, after_read_fault


def after(
    attempt: int = 1,
    *,
    max_attempts: int = 4,
    retryable: bool = True,
    retry_after_s: float | None = None,
    fraction: float = 1.0,
    remaining_s: float = 100.0,
) -> RetryAfter | GiveUp:
    return after_model_fault(
        attempt=attempt,
        max_attempts=max_attempts,
        retryable=retryable,
        retry_after_s=retry_after_s,
        fraction=fraction,
        remaining_s=remaining_s,
    )


@pytest.mark.parametrize(("attempt", "bound_s"), [(1, 0.5), (2, 1.0), (3, 2.0)])
def test_the_bounds_of_the_document(attempt: int, bound_s: float) -> None:
    assert after(attempt) == RetryAfter(bound_s)
    assert after(attempt, fraction=0.0) == RetryAfter(0.0)
    assert after(attempt, fraction=0.5) == RetryAfter(bound_s / 2)


def test_a_large_bound_is_capped() -> None:
    assert after(50, max_attempts=100, remaining_s=1e9) == RetryAfter(MAX_DELAY_S)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (after(4), "4 of 4"),
        (after(retryable=False), "same way"),
        (after(3, remaining_s=2.0), "does not fit"),
        (after(retry_after_s=31.0), "asks to wait 31"),
        (after(retry_after_s=math.inf), "asks to wait inf"),
        (after(retry_after_s=20.0, remaining_s=20.0), "does not fit"),
    ],
)
def test_giving_up_says_why(answer: RetryAfter | GiveUp, says: str) -> None:
    assert isinstance(answer, GiveUp)
    assert says in answer.detail


@pytest.mark.parametrize(
    ("retry_after_s", "delay_s"),
    [(None, 0.5), (0.0, 0.5), (-5.0, 0.5), (math.nan, 0.5), (0.2, 0.5), (3.0, 3.0), (30.0, 30.0)],
)
def test_the_providers_wish_is_honoured_where_it_is_longer(retry_after_s: float | None, delay_s: float) -> None:
    assert after(retry_after_s=retry_after_s) == RetryAfter(delay_s)


@pytest.mark.parametrize(
    ("attempt", "retryable", "remaining_s", "retries"),
    [
        (1, True, 100.0, True),
        (2, True, 100.0, True),
        (3, True, 100.0, False),
        (1, False, 100.0, False),
        (2, True, 0.5, False),
    ],
)
def test_reads_are_retried_a_bounded_number_of_times(
    attempt: int, retryable: bool, remaining_s: float, retries: bool
) -> None:
    answer = after_read_fault(
        attempt=attempt, max_attempts=3, retryable=retryable, fraction=0.9, remaining_s=remaining_s
    )
    assert isinstance(answer, RetryAfter) is retries


@given(
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    st.booleans(),
    st.none() | st.floats(),
    st.floats(0, 1),
    st.floats(-10, 1e6),
)
def test_a_delay_is_bounded_and_ends_in_time(
    attempt: int,
    max_attempts: int,
    retryable: bool,
    retry_after_s: float | None,
    fraction: float,
    remaining_s: float,
) -> None:
    answer = after(
        attempt,
        max_attempts=max_attempts,
        retryable=retryable,
        retry_after_s=retry_after_s,
        fraction=fraction,
        remaining_s=remaining_s,
    )
    if isinstance(answer, RetryAfter):
        assert retryable
        assert attempt < max_attempts
        assert 0 <= answer.delay_s <= MAX_DELAY_S
        assert answer.delay_s < remaining_s
