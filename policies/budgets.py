"""Budgets: reserve before spending, settle afterwards, and say when a limit is exceeded.

Source: DESIGN §4; the document's section on budgets (checked before the model call and after the observation).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentic_loop.graph.records import ModelUsage, ToolShape
from agentic_loop.graph.state import CheckedCall, Halt, Limits, Reservation, Usage

BudgetReason: TypeAlias = Literal["steps", "tokens", "cost", "deadline"]
"""The reasons of BUDGET_EXHAUSTED."""

MIN_OUTPUT_TOKENS = 64
"""An answer with less room than this cannot hold a tool call, so it is not asked for (unless the limit is lower)."""

MIN_CALL_S = 0.05
"""With less time left than this, in seconds, no call is made."""


@dataclass(frozen=True)
class Refused:
    """What was asked for does not fit what is left of the budget; nothing was spent."""

    reason: BudgetReason
    detail: str

    @property
    def halt(self) -> Halt:
        """The refusal as a report for the stop check."""
        return Halt(kind="budget", reason=self.reason, detail=self.detail)


# --- the inference ----------------------------------------------------------------------------------------------


def reserve(
    limits: Limits, usage: Usage, *, step: int, fence: int, prompt_tokens: int, cost_micro_usd: int
) -> Reservation | Refused:
    """The most that the next inference can use, or why it must not be made.

    ``prompt_tokens`` is an upper bound of the prompt, ``cost_micro_usd`` the price of that prompt with the longest
    allowed answer. The answer may use ``min(limits.max_output_tokens, tokens left after the prompt)``.

    Source: DESIGN §4.
    """
    prompt_tokens, cost_micro_usd = max(0, prompt_tokens), max(0, cost_micro_usd)
    if prompt_tokens > limits.max_prompt_tokens:
        return Refused("tokens", f"the prompt needs {prompt_tokens} tokens of at most {limits.max_prompt_tokens}")
    left = limits.max_tokens - usage.tokens
    output_tokens = min(limits.max_output_tokens, left - prompt_tokens)
    least = max(1, min(MIN_OUTPUT_TOKENS, limits.max_output_tokens))
    if output_tokens < least:
        return Refused("tokens", f"{prompt_tokens} tokens of prompt and {least} of answer do not fit the {left} left")
    cost_left = limits.max_cost_micro_usd - usage.cost_micro_usd
    if cost_micro_usd > cost_left:
        return Refused("cost", f"the next inference may cost {cost_micro_usd} micro-USD, and {cost_left} are left")
    return Reservation(
        step=step,
        fence=fence,
        input_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cost_micro_usd=cost_micro_usd,
    )


def settle(
    usage: Usage, reservation: Reservation, billed: ModelUsage | None, cost_micro_usd: int, latency_ms: int
) -> Usage:
    """The usage after an inference: what the provider billed, or the whole reservation where it said nothing.

    ``cost_micro_usd`` is the price of ``billed``; it is not looked at without it. Nothing in the usage ever gets
    smaller, whatever a provider reports.
    """
    if billed is None:
        charged = charge_in_full(usage, reservation)
    else:
        charged = _charged(
            usage,
            billed=billed,
            cost_micro_usd=cost_micro_usd,
            estimated_micro_usd=reservation.cost_micro_usd,
        )
    return charged.model_copy(update={"model_ms": charged.model_ms + max(0, latency_ms)})


def charge_in_full(usage: Usage, reservation: Reservation) -> Usage:
    """The usage after an inference of which nobody knows what it used: all that was reserved for it."""
    return _charged(
        usage,
        billed=ModelUsage(reservation.input_tokens, reservation.output_tokens),
        cost_micro_usd=reservation.cost_micro_usd,
        estimated_micro_usd=reservation.cost_micro_usd,
    )


def _charged(usage: Usage, *, billed: ModelUsage, cost_micro_usd: int, estimated_micro_usd: int) -> Usage:
    input_tokens = max(0, billed.input_tokens)
    return usage.model_copy(
        update={
            "input_tokens": usage.input_tokens + input_tokens,
            "output_tokens": usage.output_tokens + max(0, billed.output_tokens),
            "cached_tokens": usage.cached_tokens + min(input_tokens, max(0, billed.cached_tokens)),
            "cost_micro_usd": usage.cost_micro_usd + max(0, cost_micro_usd),
            "estimated_cost_micro_usd": usage.estimated_cost_micro_usd + max(0, estimated_micro_usd),
        }
    )


# --- time -------------------------------------------------------------------------------------------------------


def remaining_s(limits: Limits, usage: Usage) -> float:
    """The active time that is left, in seconds, never below zero; time spent suspended does not count."""
    return max(0, limits.max_active_s * 1_000 - usage.active_ms) / 1_000


def time_out_s(declared_s: float, limits: Limits, usage: Usage) -> float | Refused:
    """The time-out of the next call in seconds: the declared one, but never longer than the time that is left."""
    left_s = remaining_s(limits, usage)
    if left_s < MIN_CALL_S:
        return Refused("deadline", f"{left_s:.3f} s of {limits.max_active_s} s of active time are left")
    return left_s if math.isnan(declared_s) else min(declared_s, left_s)


# --- steps and the check after an observation -------------------------------------------------------------------


def may_step(limits: Limits, step_count: int) -> bool:
    """Whether one more model decision may be made; proposals from code spend no step."""
    return step_count < limits.max_steps


def exceeded(limits: Limits, usage: Usage, step_count: int | None = None) -> Halt | None:
    """The first limit that is overstepped, in the order steps, tokens, cost, deadline.

    Give ``step_count`` only where another model decision is needed. Tokens and cost may be used up exactly: then the
    next reservation is refused, while what needs no tokens (a workflow, a tool without a price) still goes on.
    """
    if step_count is not None and not may_step(limits, step_count):
        return Halt(kind="budget", reason="steps", detail=f"{step_count} steps spent of {limits.max_steps}")
    if usage.tokens > limits.max_tokens:
        return Halt(kind="budget", reason="tokens", detail=f"{usage.tokens} tokens spent of {limits.max_tokens}")
    if usage.cost_micro_usd > limits.max_cost_micro_usd:
        detail = f"{usage.cost_micro_usd} micro-USD spent of {limits.max_cost_micro_usd}"
        return Halt(kind="budget", reason="cost", detail=detail)
    if usage.active_ms >= limits.max_active_s * 1_000:
        detail = f"{usage.active_ms} ms of active time spent of {limits.max_active_s} s"
        return Halt(kind="budget", reason="deadline", detail=detail)
    return None


# --- tool calls -------------------------------------------------------------------------------------------------


def admit_calls(
    limits: Limits, usage: Usage, shapes: Mapping[str, ToolShape], calls: Sequence[CheckedCall]
) -> Refused | None:
    """Whether the calls of one step fit the budget together; None means that they do.

    Their declared cost bounds count as a sum. They run side by side, so the longest time-out counts, cut to the time
    that is left. Calls with a fault are never made and cost nothing; control actions are no tools.

    Source: DESIGN §2 (the reservation is their sum), §4.
    """
    bounds = [shapes[call.tool] for call in calls if call.fault is None and call.tool in shapes]
    if not bounds:
        return None
    cost = sum(max(0, shape.cost_bound_micro_usd) for shape in bounds)
    left = limits.max_cost_micro_usd - usage.cost_micro_usd
    if cost > 0 and cost > left:
        return Refused("cost", f"these calls may cost {cost} micro-USD, and {max(0, left)} are left")
    longest_s = time_out_s(max(shape.timeout_s for shape in bounds), limits, usage)
    return longest_s if isinstance(longest_s, Refused) else None
