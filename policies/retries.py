"""Retries of what changed nothing outside: a failed inference and a failed read. Writes are never retried.

A retry decision is a value; the caller waits and counts.

Source: DESIGN §6 (three retries, never mixed); the document: bounds of 0.5 s, 1 s, 2 s, each with full jitter.
"""

import math
from dataclasses import dataclass

FIRST_BOUND_S = 0.5
"""The bound of the first wait, in seconds; each further wait has twice the bound of the one before."""

MAX_DELAY_S = 30.0
"""The longest wait, in seconds; a provider that asks for more is given up."""


@dataclass(frozen=True)
class RetryAfter:
    """Try again after this many seconds."""

    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """Do not try again; ``detail`` says why."""

    detail: str


def after_model_fault(
    *,
    attempt: int,
    max_attempts: int,
    retryable: bool,
    retry_after_s: float | None,
    fraction: float,
    remaining_s: float,
) -> RetryAfter | GiveUp:
    """What to do after inference number ``attempt`` (from 1) failed.

    The delay is ``fraction * min(30, 0.5 * 2 ** (attempt - 1))`` seconds (full jitter), or what the provider asked
    for where that is longer. It must end before the remaining active time does. Costs time and tokens, never a step.

    Source: DESIGN §6.
    """
    refused = _refused(attempt, max_attempts, retryable)
    if refused is not None:
        return refused
    delay_s = _jittered_s(attempt, fraction)
    if retry_after_s is not None and not math.isnan(retry_after_s):
        if retry_after_s > MAX_DELAY_S:
            return GiveUp(f"the provider asks to wait {retry_after_s:g} s; at most {MAX_DELAY_S:g} s are waited")
        delay_s = max(delay_s, retry_after_s)
    return _within(delay_s, remaining_s)


def after_read_fault(
    *, attempt: int, max_attempts: int, retryable: bool, fraction: float, remaining_s: float
) -> RetryAfter | GiveUp:
    """What to do after attempt number ``attempt`` (from 1) of a read failed; the delays are those of inference.

    Each attempt is a request of its own, with its own request id, and is recorded.

    Source: DESIGN §6.
    """
    refused = _refused(attempt, max_attempts, retryable)
    return refused if refused is not None else _within(_jittered_s(attempt, fraction), remaining_s)


def _refused(attempt: int, max_attempts: int, retryable: bool) -> GiveUp | None:
    if not retryable:
        return GiveUp("another attempt would fail in the same way")
    if attempt >= max_attempts:
        return GiveUp(f"{attempt} of {max_attempts} attempts failed")
    return None


def _jittered_s(attempt: int, fraction: float) -> float:
    # Past six doublings the bound is above the cap; larger exponents would only overflow.
    bound_s = min(MAX_DELAY_S, FIRST_BOUND_S * 2.0 ** min(6, max(0, attempt - 1)))
    share: float = min(1.0, max(0.0, fraction))
    return bound_s * share


def _within(delay_s: float, remaining_s: float) -> RetryAfter | GiveUp:
    if delay_s >= remaining_s:
        return GiveUp(f"a wait of {delay_s:.2f} s does not fit the {max(0.0, remaining_s):.2f} s that are left")
    return RetryAfter(delay_s)
