"""Finish: write the ending down, with everything that a person needs to go on from it."""

import dataclasses

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.errors import Defect
from agentic_loop.graph.records import ApprovalRow, Incomplete, JournalEntry, TaskView
from agentic_loop.graph.state import Ending, LoopState
from agentic_loop.policies import escalation

from .gather import task_view
from .stop_check import control_entry


async def finish(state: LoopState, context: NodeContext) -> LoopState:
    """End the task with a status and a reason; every ending but success gets an escalation packet.

    Reads: everything. Writes: status, version, message, and clears the turn in flight.
    Effects: the last journal entries, the packet, the task's line in the register.

    Source: DESIGN §2 (terminal is explicit), §9 (escalation packet).
    """
    ending = state.get("ending")
    if ending is None:
        raise Defect(f"task {context.task_id} reached finish without an ending")
    version, now = state["version"] + 1, context.now()
    entries = _last_entries(state, context, ending, version)
    await context.ports.journal.append(entries)
    view = await task_view(state, context)
    if ending.status != "SUCCEEDED":
        packet = await _packet(state, context, ending, view, version)
        await context.ports.tasks.keep_packet(context.task_id, version, packet)
    await context.ports.tasks.update(
        context.task_id, status=ending.status, step_count=state["step_count"], at=now, ending=ending
    )
    return {
        "status": ending.status,
        "version": version,
        "message": context.loop.final_message(view) if ending.status == "SUCCEEDED" else "",
        "proposal": None,
        "verdict": None,
        "receipt": None,
        "inference": None,
        "reservation": None,
        "reopening": None,
        "answer": None,
        "next": "end",
    }


def _last_entries(state: LoopState, context: NodeContext, ending: Ending, version: int) -> list[JournalEntry]:
    entries = []
    verdict = state.get("verdict")
    if (verdict is not None and verdict.kind != "calls") or state.get("inference") is not None:
        entries.append(control_entry(state, context, version, None))
    entries.append(
        JournalEntry(
            task_id=context.task_id,
            version=version,
            call=len(entries),
            step=state["step_count"],
            at=context.now(),
            phase=state["phase"],
            kind="ending",
            source="runtime",
            text=f"{ending.status}({ending.reason}): {ending.detail}",
            state_delta=f"version {version - 1}->{version}, status {state['status']}->{ending.status}",
        )
    )
    return entries


async def _packet(
    state: LoopState, context: NodeContext, ending: Ending, view: TaskView, version: int
) -> dict[str, escalation.JsonValue]:
    ports, task = context.ports, state["task"]
    missing = context.loop.completion(dataclasses.replace(view, message="", finish_proposed=False))
    return escalation.packet(
        task=task,
        ending=ending,
        step_count=state["step_count"],
        usage=state["usage"],
        limits=state["limits"],
        evidence=view.evidence,
        entries=await ports.journal.load(task.task_id, version),
        outstanding=state["outstanding"],
        intents=await ports.ledger.of_task(task.task_id),
        approvals=await _approvals(state, context),
        missing=missing.detail if isinstance(missing, Incomplete) else "",
        versions=task.versions,
    )


async def _approvals(state: LoopState, context: NodeContext) -> list[ApprovalRow]:
    approval = state.get("approval")
    row = await context.ports.approvals.find(approval.id) if approval is not None else None
    return [row] if row is not None else []
