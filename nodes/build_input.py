"""Build input: render the state into a prompt and reserve what the next inference can cost."""

from pydantic import JsonValue

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.records import ModelUsage, ToolOffer
from agentic_loop.graph.state import Halt, LoopState, Prompt
from agentic_loop.policies import budgets
from agentic_loop.policies.fingerprints import digest
from agentic_loop.policies.rendering import prompt_tokens, render
from agentic_loop.policies.reply import CONTROL_SHAPES


async def build_input(state: LoopState, context: NodeContext) -> LoopState:
    """Count the step, render the prompt and reserve its upper bound, all before the model is asked.

    Reads: task, phase, limits, usage, step_count, version. Writes: step_count, prompt, reservation, halt, next.
    Effects: none outside the state; the checkpoint that follows makes step and reservation durable.

    Source: DESIGN §4 (reserve before spending).
    """
    prompt = await rendered_prompt(state, context)
    limits, step = state["limits"], state["step_count"] + 1
    bound = ModelUsage(input_tokens=prompt.estimated_tokens, output_tokens=limits.max_output_tokens)
    answer = budgets.reserve(
        limits,
        state["usage"],
        step=step,
        fence=context.fence,
        prompt_tokens=prompt.estimated_tokens,
        cost_micro_usd=context.ports.model.cost_micro_usd(bound),
    )
    if isinstance(answer, budgets.Refused):
        return {"halt": Halt(kind="budget", reason=answer.reason, detail=answer.detail), "next": "stop_check"}
    return {"step_count": step, "prompt": prompt, "reservation": answer, "next": "decide"}


async def rendered_prompt(state: LoopState, context: NodeContext) -> Prompt:
    """The prompt for the present state; the same state gives the same prompt."""
    task, limits, model = state["task"], state["limits"], context.ports.model
    entries = await context.ports.journal.load(task.task_id, state["version"])
    evidence = await context.ports.evidence.load(task.task_id, state["evidence_count"])
    offers = tool_offers(state, context)
    messages = render(
        instructions=context.loop.instructions,
        goal=task.goal,
        inputs=task.inputs,
        entries=entries,
        evidence={record.id: record for record in evidence},
        limits=limits,
        budget_tokens=limits.max_prompt_tokens - prompt_tokens([], offers, model.estimate_tokens),
        estimate=model.estimate_tokens,
    )
    content: list[JsonValue] = [message.model_dump(mode="json") for message in messages]
    estimated = prompt_tokens(messages, offers, model.estimate_tokens)
    return Prompt(
        messages=messages, tools=[offer.name for offer in offers], digest=digest(content), estimated_tokens=estimated
    )


def tool_offers(state: LoopState, context: NodeContext) -> list[ToolOffer]:
    """What the model may propose in the present phase: the phase's tools and the control actions."""
    rule = context.loop.contract.phase(state["phase"])
    shapes = context.loop.tools.shapes
    names = rule.tools if rule.decider == "model" else []
    offered = [shapes[name] for name in names] + [CONTROL_SHAPES[name] for name in rule.controls]
    return [ToolOffer(shape.name, shape.description, shape.parameters) for shape in offered]
