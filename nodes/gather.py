"""What several nodes gather in the same way: the view of the whole task that judges look at."""

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.records import TaskView
from agentic_loop.graph.state import LoopState


async def task_view(state: LoopState, context: NodeContext) -> TaskView:
    """The task as judges see it: everything on record, and whether the model wants to stop."""
    verdict = state.get("verdict")
    finishing = verdict is not None and verdict.kind == "finish"
    return TaskView(
        task=state["task"],
        phase=state["phase"],
        evidence=await context.ports.evidence.load(context.task_id, state["evidence_count"]),
        outstanding=state["outstanding"],
        message=verdict.text if verdict is not None and finishing else state["message"],
        finish_proposed=finishing,
        inputs={**state["task"].inputs, **(state.get("added_inputs") or {})},
    )
