import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_loop.graph.records import ModelUsage, ToolShape
from agentic_loop.graph.state import CallFault, CheckedCall, Limits, Reservation, Usage
from agentic_loop.policies.budgets import (
    MIN_CALL_S,
    MIN_OUTPUT_TOKENS,
    Refused,
    admit_calls,
    charge_in_full,
    exceeded,
    may_step,
    remaining_s,
    reserve,
    settle,
    time_out_s,
)

LIMITS = Limits(max_tokens=40_000, max_cost_micro_usd=500_000, max_active_s=120, max_output_tokens=1_024)
RESERVATION = Reservation(step=1, fence=7, input_tokens=1_000, output_tokens=500, cost_micro_usd=900)


def reserved(
    usage: Usage, prompt_tokens: int, cost_micro_usd: int = 0, limits: Limits = LIMITS
) -> Reservation | Refused:
    return reserve(limits, usage, step=3, fence=7, prompt_tokens=prompt_tokens, cost_micro_usd=cost_micro_usd)


# --- reserving


def test_a_reservation_holds_the_prompt_and_the_longest_answer() -> None:
    assert reserved(Usage(), 1_000, 900) == Reservation(
        step=3, fence=7, input_tokens=1_000, output_tokens=1_024, cost_micro_usd=900
    )


@pytest.mark.parametrize(
    ("spent", "prompt", "output"),
    [
        (38_000, 1_000, 1_000),
        (38_900, 1_036, MIN_OUTPUT_TOKENS),
        (38_900, 1_037, None),
        (40_000, 1, None),
        (50_000, 0, None),
    ],
)
def test_the_answer_is_cut_to_the_tokens_that_are_left(spent: int, prompt: int, output: int | None) -> None:
    answer = reserved(Usage(input_tokens=spent), prompt)
    if output is None:
        assert isinstance(answer, Refused)
        assert answer.reason == "tokens"
    else:
        assert isinstance(answer, Reservation)
        assert answer.output_tokens == output


@pytest.mark.parametrize(("cost", "reason"), [(100, None), (101, "cost")])
def test_the_price_must_fit_what_is_left(cost: int, reason: str | None) -> None:
    answer = reserved(Usage(cost_micro_usd=499_900), 10, cost)
    assert (answer.reason if isinstance(answer, Refused) else None) == reason


def test_a_prompt_beyond_its_own_limit_is_refused() -> None:
    answer = reserved(Usage(), LIMITS.max_prompt_tokens + 1)
    assert isinstance(answer, Refused)
    assert answer.reason == "tokens"
    assert answer.halt.kind == "budget"
    assert answer.halt.reason == "tokens"


def test_a_low_limit_on_answers_is_respected_and_none_at_all_is_refused() -> None:
    answer = reserved(Usage(), 10, limits=Limits(max_output_tokens=20))
    assert isinstance(answer, Reservation)
    assert answer.output_tokens == 20
    assert isinstance(reserved(Usage(), 10, limits=Limits(max_output_tokens=0)), Refused)


# --- settling


def test_what_the_provider_billed_counts() -> None:
    after = settle(Usage(input_tokens=5), RESERVATION, ModelUsage(1_200, 60, 300), 700, 250)
    assert after == Usage(
        input_tokens=1_205,
        output_tokens=60,
        cached_tokens=300,
        cost_micro_usd=700,
        estimated_cost_micro_usd=900,
        model_ms=250,
    )


def test_silence_about_usage_charges_the_whole_reservation() -> None:
    after = settle(Usage(), RESERVATION, None, 1, 250)
    assert after == charge_in_full(Usage(), RESERVATION).model_copy(update={"model_ms": 250})
    assert (after.tokens, after.cost_micro_usd) == (1_500, 900)


def test_cached_tokens_are_part_of_the_input() -> None:
    assert settle(Usage(), RESERVATION, ModelUsage(100, 1, 5_000), 0, 0).cached_tokens == 100


# --- time


@pytest.mark.parametrize(
    ("declared", "active_ms", "expected"),
    [(10.0, 0, 10.0), (10.0, 115_000, 5.0), (10.0, 119_950, MIN_CALL_S), (10.0, 119_951, None), (0.01, 0, 0.01)],
)
def test_a_time_out_never_reaches_past_the_deadline(declared: float, active_ms: int, expected: float | None) -> None:
    answer = time_out_s(declared, LIMITS, Usage(active_ms=active_ms))
    if expected is None:
        assert isinstance(answer, Refused)
        assert answer.reason == "deadline"
    else:
        assert answer == pytest.approx(expected)


def test_time_spent_suspended_is_not_counted() -> None:
    assert remaining_s(LIMITS, Usage(active_ms=20_000, suspended_ms=10**9)) == 100.0


# --- after an observation


@pytest.mark.parametrize(
    ("usage", "step_count", "reason"),
    [
        (Usage(input_tokens=40_000, cost_micro_usd=500_000, active_ms=119_999), None, None),
        (Usage(input_tokens=39_999, output_tokens=2), None, "tokens"),
        (Usage(cost_micro_usd=500_001), None, "cost"),
        (Usage(active_ms=120_000), None, "deadline"),
        (Usage(), 7, None),
        (Usage(), 8, "steps"),
        (Usage(input_tokens=40_001, cost_micro_usd=500_001, active_ms=120_000), 8, "steps"),
        (Usage(input_tokens=40_001, cost_micro_usd=500_001, active_ms=120_000), 7, "tokens"),
        (Usage(cost_micro_usd=500_001, active_ms=120_000), None, "cost"),
    ],
)
def test_the_first_limit_that_is_overstepped_is_told(
    usage: Usage, step_count: int | None, reason: str | None
) -> None:
    halt = exceeded(LIMITS, usage, step_count)
    assert (halt.reason if halt else None) == reason
    assert halt is None or halt.kind == "budget"


def test_a_task_without_money_may_use_what_costs_nothing() -> None:
    broke = Limits(max_cost_micro_usd=0)
    assert exceeded(broke, Usage()) is None
    assert isinstance(reserved(Usage(), 10, 0, broke), Reservation)
    assert isinstance(reserved(Usage(), 10, 1, broke), Refused)


@pytest.mark.parametrize(("step_count", "may"), [(0, True), (7, True), (8, False), (9, False)])
def test_the_last_step_is_the_limit(step_count: int, may: bool) -> None:
    assert may_step(LIMITS, step_count) is may


# --- tool calls


def shape(name: str, cost: int = 0, timeout_s: float = 10.0) -> ToolShape:
    return ToolShape(
        name=name,
        description="",
        parameters={},
        effect="read",
        scope="",
        cost_bound_micro_usd=cost,
        timeout_s=timeout_s,
    )


SHAPES = {one.name: one for one in (shape("free"), shape("dear", 200_000), shape("slow", timeout_s=500.0))}


def checked(tool: str, fault: bool = False) -> CheckedCall:
    reason = CallFault(category="invalid_arguments", message="x") if fault else None
    return CheckedCall(call_id="c", tool=tool, fault=reason)


@pytest.mark.parametrize(
    ("calls", "usage", "reason"),
    [
        ([], Usage(cost_micro_usd=10**9, active_ms=10**9), None),
        ([checked("dear")] * 2, Usage(), None),
        ([checked("dear")] * 3, Usage(), "cost"),
        ([checked("dear")] * 2 + [checked("dear", fault=True)], Usage(), None),
        ([checked("dear")], Usage(cost_micro_usd=300_001), "cost"),
        ([checked("free")], Usage(cost_micro_usd=600_000), None),
        ([checked("free")], Usage(active_ms=119_990), "deadline"),
        ([checked("slow"), checked("free")], Usage(active_ms=60_000), None),
        ([checked("finish")], Usage(active_ms=10**9), None),
    ],
)
def test_the_calls_of_a_step_must_fit_together(calls: list[CheckedCall], usage: Usage, reason: str | None) -> None:
    refused = admit_calls(LIMITS, usage, SHAPES, calls)
    assert (refused.reason if refused else None) == reason


# --- laws

SMALL = st.integers(-1_000, 60_000)
USAGES = st.builds(
    Usage,
    input_tokens=st.integers(0, 50_000),
    output_tokens=st.integers(0, 50_000),
    cost_micro_usd=st.integers(0, 10**6),
)


@given(USAGES, SMALL, st.integers(-1, 10**6))
def test_nothing_is_reserved_that_does_not_fit(usage: Usage, prompt_tokens: int, cost: int) -> None:
    answer = reserved(usage, prompt_tokens, cost)
    if isinstance(answer, Refused):
        assert answer.detail
        return
    assert usage.tokens + answer.tokens <= LIMITS.max_tokens
    assert usage.cost_micro_usd + answer.cost_micro_usd <= LIMITS.max_cost_micro_usd
    assert 0 <= answer.input_tokens <= LIMITS.max_prompt_tokens
    assert 0 < answer.output_tokens <= LIMITS.max_output_tokens
    assert exceeded(LIMITS, charge_in_full(usage, answer)) is None


@given(USAGES, st.none() | st.builds(ModelUsage, SMALL, SMALL, SMALL), SMALL, SMALL)
def test_settling_never_lowers_what_was_spent(
    usage: Usage, billed: ModelUsage | None, cost: int, latency_ms: int
) -> None:
    after = settle(usage, RESERVATION, billed, cost, latency_ms)
    for name in Usage.model_fields:
        if name != "calls_per_tool":
            assert getattr(after, name) >= getattr(usage, name)
    assert after.cached_tokens <= after.input_tokens
    assert Usage.model_validate(after.model_dump()) == after


@given(st.floats(0.0, 1e9), st.integers(0, 200_000))
def test_a_time_out_fits_what_is_left(declared: float, active_ms: int) -> None:
    usage = Usage(active_ms=active_ms)
    answer = time_out_s(declared, LIMITS, usage)
    if not isinstance(answer, Refused):
        assert 0 <= answer <= min(declared, remaining_s(LIMITS, usage))
