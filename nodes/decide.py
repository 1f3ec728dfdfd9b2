"""Decide: one inference. The answer is a proposal, never a decision."""

from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.errors import ModelOutage
from agentic_loop.graph.records import ModelReply, ModelUsage
from agentic_loop.graph.state import Halt, Inference, LoopState, Prompt, Proposal, Reservation, Usage
from agentic_loop.policies import budgets, retries
from agentic_loop.policies.fingerprints import digest

from .build_input import tool_offers


@dataclass(frozen=True)
class _Answered:
    reply: ModelReply
    usage: Usage
    reservation: Reservation


@dataclass(frozen=True)
class _TryAgain:
    usage: Usage
    reservation: Reservation
    delay_s: float


@dataclass(frozen=True)
class _GaveUp:
    halt: Halt
    usage: Usage


async def decide(state: LoopState, context: NodeContext) -> LoopState:
    """Ask the model once (with inference retries), and settle the reservation with what was billed.

    Reads: prompt, reservation, limits, usage. Writes: proposal, inference, usage, reservation, halt, next.
    Effects: model calls; keeps prompt and raw reply by digest.

    A reservation of another fence, or one without its prompt, means that an inference was under way when a worker
    died: it is charged in full and the loop goes on to the stop check.

    Source: DESIGN §4, §6 (inference retries).
    """
    reservation, prompt = state.get("reservation"), state.get("prompt")
    if reservation is None or reservation.fence != context.fence or prompt is None:
        return _charged_in_full(state, reservation)
    answer = await _ask(state, context, prompt, reservation)
    match answer:
        case _GaveUp(halt, usage):
            return {"halt": halt, "usage": usage, "reservation": None, "next": "stop_check"}
        case _Answered(reply, usage, reserved):
            return await _settled(context, prompt, reserved, reply, usage)
        case _:
            assert_never(answer)


def _charged_in_full(state: LoopState, reservation: Reservation | None) -> LoopState:
    if reservation is None:
        return {"next": "stop_check"}
    inference = Inference(
        input_tokens=reservation.input_tokens,
        output_tokens=reservation.output_tokens,
        cost_micro_usd=reservation.cost_micro_usd,
    )
    usage = budgets.charge_in_full(state["usage"], reservation)
    return {"usage": usage, "inference": inference, "reservation": None, "next": "stop_check"}


async def _ask(
    state: LoopState, context: NodeContext, prompt: Prompt, reservation: Reservation
) -> _Answered | _GaveUp:
    limits, usage = state["limits"], state["usage"]
    began = context.now()
    offers = tool_offers(state, context)
    for attempt in range(1, limits.max_inference_attempts + 1):
        spent = usage.model_copy(update={"active_ms": state["usage"].active_ms + _elapsed_ms(began, context.now())})
        timeout_s = budgets.time_out_s(limits.inference_timeout_s, limits, spent)
        if isinstance(timeout_s, budgets.Refused):
            return _GaveUp(Halt(kind="budget", reason=timeout_s.reason, detail=timeout_s.detail), usage)
        try:
            reply = await context.ports.model.propose(
                prompt, offers, max_output_tokens=reservation.output_tokens, timeout_s=timeout_s
            )
        except ModelOutage as outage:
            fault = _after_fault(outage, attempt, state, context, reservation, usage, began)
            if isinstance(fault, _GaveUp):
                return fault
            usage, reservation = fault.usage, fault.reservation
            await context.ports.clock.sleep(fault.delay_s)
        else:
            return _Answered(reply, usage, reservation)
    return _GaveUp(
        Halt(kind="model_unavailable", reason="model_unavailable", detail="the model did not answer"), usage
    )


def _after_fault(
    outage: ModelOutage,
    attempt: int,
    state: LoopState,
    context: NodeContext,
    reservation: Reservation,
    usage: Usage,
    began: datetime,
) -> _TryAgain | _GaveUp:
    """What a failed attempt costs, and whether another one may follow, under a reservation of its own."""
    limits = state["limits"]
    elapsed_ms = _elapsed_ms(began, context.now())
    clocked = usage.model_copy(update={"active_ms": state["usage"].active_ms + elapsed_ms})
    answer = retries.after_model_fault(
        attempt=attempt,
        max_attempts=limits.max_inference_attempts,
        retryable=outage.retryable,
        retry_after_s=outage.retry_after_s,
        fraction=context.ports.ids.fraction(),
        remaining_s=budgets.remaining_s(limits, clocked),
    )
    if outage.billable:
        usage = budgets.charge_in_full(usage, reservation)
    match answer:
        case retries.GiveUp(detail):
            halt = Halt(kind="model_unavailable", reason="model_unavailable", detail=f"{outage} ({detail})")
            return _GaveUp(halt, usage)
        case retries.RetryAfter(delay_s):
            usage = usage.model_copy(update={"inference_retries": usage.inference_retries + 1})
            again = budgets.reserve(
                limits,
                usage,
                step=reservation.step,
                fence=reservation.fence,
                prompt_tokens=reservation.input_tokens,
                cost_micro_usd=reservation.cost_micro_usd,
            )
            if isinstance(again, budgets.Refused):
                return _GaveUp(Halt(kind="budget", reason=again.reason, detail=again.detail), usage)
            return _TryAgain(usage, again, delay_s)
        case _:
            assert_never(answer)


async def _settled(
    context: NodeContext,
    prompt: Prompt,
    reservation: Reservation,
    reply: ModelReply,
    usage: Usage,
) -> LoopState:
    billed = reply.usage or ModelUsage(reservation.input_tokens, reservation.output_tokens)
    cost = context.ports.model.cost_micro_usd(billed) if reply.usage else reservation.cost_micro_usd
    reply_digest = digest(reply.raw)
    await context.ports.journal.keep(prompt.digest, [message.model_dump(mode="json") for message in prompt.messages])
    await context.ports.journal.keep(reply_digest, reply.raw)
    proposal: Proposal = reply.proposal.model_copy(update={"prompt_digest": prompt.digest})
    return {
        "proposal": proposal,
        "inference": Inference(
            prompt_digest=prompt.digest,
            reply_digest=reply_digest,
            input_tokens=billed.input_tokens,
            output_tokens=billed.output_tokens,
            cached_tokens=billed.cached_tokens,
            cost_micro_usd=cost,
            model_ms=reply.latency_ms,
        ),
        "usage": budgets.settle(usage, reservation, reply.usage, cost, reply.latency_ms),
        "reservation": None,
        "next": "validate",
    }


def _elapsed_ms(began: datetime, now: datetime) -> int:
    return max(0, int((now - began).total_seconds() * 1_000))
