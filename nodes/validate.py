"""Validate: is the proposal something that can be judged at all?"""

from collections.abc import Sequence

from agentic_loop.graph.contract import PhaseRule
from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.state import Halt, LoopState, Proposal, Verdict
from agentic_loop.policies import budgets, reply, steering


async def validate(state: LoopState, context: NodeContext) -> LoopState:
    """Check names, arguments, phase, batch and budget of the proposal; nothing in it is trusted before.

    Reads: proposal, phase, limits, usage. Writes: verdict, halt, next. Effects: none.

    Source: DESIGN §2 (step 4), §4 (the call's declared bound must fit).
    """
    proposal = state["proposal"] or Proposal(source="model", fault="empty")
    contract = context.loop.contract
    shapes = {name: context.loop.tools.shapes[name] for name in contract.allowed_tools}
    verdict = reply.judge(
        proposal,
        shapes=shapes,
        rule=effective_rule(contract.phase(state["phase"]), proposal),
        limits=state["limits"],
        calls_so_far=state["usage"].calls_per_tool,
        stop_on=contract.stop_on,
    )
    refused = budgets.admit_calls(state["limits"], state["usage"], shapes, verdict.calls)
    if refused is not None and verdict.kind == "calls":
        halt = Halt(kind="budget", reason=refused.reason, detail=refused.detail)
        return {"verdict": verdict, "halt": halt, "next": "stop_check"}
    return {"verdict": verdict, "halt": _halt(verdict, contract.stop_on), "next": steering.after_validate(verdict)}


def effective_rule(rule: PhaseRule, proposal: Proposal) -> PhaseRule:
    """In a phase where code proposes, the model may use control actions only."""
    if rule.decider == "workflow" and proposal.source == "model":
        return rule.model_copy(update={"tools": []})
    return rule


def _halt(verdict: Verdict, stop_on: Sequence[str]) -> Halt | None:
    if any(call.ends_task for call in verdict.calls):
        names = ", ".join(call.tool for call in verdict.calls if call.ends_task)
        return Halt(kind="denied", reason="policy_denied", detail=f"the contract does not list {names}")
    if verdict.kind == "invalid" and "invalid_proposal" in stop_on:
        return Halt(
            kind="invalid_proposal", reason="invalid_proposal", detail="the contract allows no invalid proposal"
        )
    return None
