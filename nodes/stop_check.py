"""Stop check: may the task end, must it end, or does it go around again?"""

import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.records import CompletionAnswer, JournalEntry, TaskView
from agentic_loop.graph.state import CallFault, Feedback, FeedbackKind, LoopState, Phase, Proposal
from agentic_loop.policies import progress, stopping
from agentic_loop.policies.recording import with_inference

from .gather import task_view

FEEDBACK_CALL = 900
"""Where the runtime's own remarks stand among the entries of one version: after every call."""

MAX_FEEDBACK = 8
"""How many of the newest remarks the state shows."""


async def stop_check(state: LoopState, context: NodeContext) -> LoopState:
    """Evaluate the stop conditions in code, and choose who proposes next: a workflow or the model.

    Reads: everything. Writes: ending, status, phase, proposal, feedback, progress, wake_at, version, usage, next.
    Effects: journal entries for what ends here (a refused finish, a correction, a pause).

    Source: DESIGN §2 (order of the checks), §9 (a finish is a proposal).
    """
    view = await task_view(state, context)
    phase = context.loop.phase_of(view)
    workflow = context.loop.workflow(_in_phase(view, phase)) if state.get("halt") is None else None
    answer = stopping.judge(
        stopping.StopView(
            halt=state.get("halt"),
            verdict=state.get("verdict"),
            completion=_completion(_in_phase(view, phase), context),
            progress=state["progress"],
            thresholds=context.loop.contract.thresholds,
            limits=state["limits"],
            usage=state["usage"],
            step_count=state["step_count"],
            model_step_needed=workflow is None,
        )
    )
    journal = _Remarks(state, context, phase)
    match answer:
        case stopping.End(ending):
            return {"ending": ending, "phase": phase, "next": "finish"}
        case stopping.RefuseFinish(detail):
            update = await journal.control(CallFault(category="completion_rejected", message=detail))
            return {**update, **_feedback(state, "completion_rejected", detail), **_go_on(phase, None)}
        case stopping.RefuseWait(detail):
            update = await journal.control(CallFault(category="call_limit", message=detail))
            return {**update, **_go_on(phase, None)}
        case stopping.CorrectCourse(flag, message):
            await journal.remark("no_progress", f"{flag}: {message}")
            corrected = progress.correct(state["progress"])
            return {**_feedback(state, "no_progress", message), "progress": corrected, **_go_on(phase, workflow)}
        case stopping.Pause(wait_s):
            return await _pause(state, context, journal, wait_s, phase)
        case stopping.GoOn():
            update = await journal.what_is_left()
            return {**update, **_go_on(phase, workflow)}
        case _:
            assert_never(answer)


def _in_phase(view: TaskView, phase: Phase) -> TaskView:
    return dataclasses.replace(view, phase=phase)


def _completion(view: TaskView, context: NodeContext) -> CompletionAnswer | None:
    """Completion is judged on a finish proposal, and without one where the contract or a workflow phase says so."""
    contract = context.loop.contract
    by_evidence = contract.complete_on == "evidence" or contract.phase(view.phase).decider == "workflow"
    if view.finish_proposed or by_evidence:
        return context.loop.completion(view)
    return None


def _go_on(phase: Phase, workflow: Proposal | None) -> LoopState:
    cleared: LoopState = {"phase": phase, "verdict": None, "receipt": None, "inference": None, "halt": None}
    if workflow is not None:
        return {**cleared, "proposal": workflow, "next": "validate"}
    return {**cleared, "proposal": None, "next": "build_input"}


def _feedback(state: LoopState, kind: FeedbackKind, message: str) -> LoopState:
    remark = Feedback(kind=kind, message=message, step=state["step_count"])
    return {"feedback": [*state["feedback"], remark][-MAX_FEEDBACK:]}


async def _pause(state: LoopState, context: NodeContext, journal: "_Remarks", wait_s: int, phase: Phase) -> LoopState:
    wake_at = context.now() + timedelta(seconds=wait_s)
    update = await journal.control(None)
    usage = state["usage"]
    await context.ports.tasks.update(
        context.task_id, status="RUNNING", step_count=state["step_count"], at=context.now(), wake_at=wake_at
    )
    return {
        **update,
        **_go_on(phase, None),
        "usage": usage.model_copy(update={"rechecks": usage.rechecks + 1}),
        "progress": progress.remember_wait(state["progress"]),
        "wake_at": wake_at,
        "next": "end",
    }


@dataclass(frozen=True)
class _Remarks:
    """Writes what this node has to say into the journal."""

    state: LoopState
    context: NodeContext
    phase: Phase

    async def control(self, fault: CallFault | None) -> LoopState:
        """A control proposal that did not end the task is a step of its own: it moves the version."""
        version = self.state["version"] + 1
        await self.context.ports.journal.append([control_entry(self.state, self.context, version, fault)])
        return {"version": version}

    async def remark(self, kind: FeedbackKind, text: str) -> None:
        """Something the runtime tells the model, beside the entries of the present version."""
        await self.context.ports.journal.append([self._entry(text, kind)])

    async def what_is_left(self) -> LoopState:
        """A finish that a workflow takes over, and an inference that was cut short, are journalled here."""
        verdict, inference = self.state.get("verdict"), self.state.get("inference")
        if verdict is not None and verdict.kind == "finish":
            return await self.control(None)
        if verdict is None and inference is not None:
            fault = CallFault(
                category="interrupted", message="the inference was cut short; what was reserved for it is charged"
            )
            return await self.control(fault)
        return {}

    def _entry(self, text: str, kind: FeedbackKind) -> JournalEntry:
        return JournalEntry(
            task_id=self.context.task_id,
            version=self.state["version"],
            call=FEEDBACK_CALL + len(self.state["feedback"]),
            step=self.state["step_count"],
            at=self.context.now(),
            phase=self.phase,
            kind="feedback",
            source="runtime",
            text=text,
            validation=kind,
        )


def control_entry(state: LoopState, context: NodeContext, version: int, fault: CallFault | None) -> JournalEntry:
    """The journal entry of a control proposal (finish, ask_user, blocked, wait_and_recheck) and its inference."""
    verdict, inference, proposal = state.get("verdict"), state.get("inference"), state.get("proposal")
    proposed = proposal.calls[0] if proposal is not None and proposal.calls else None
    entry = JournalEntry(
        task_id=context.task_id,
        version=version,
        call=0,
        step=state["step_count"],
        at=context.now(),
        phase=state["phase"],
        kind="control",
        source=proposal.source if proposal is not None else "runtime",
        call_id=verdict.calls[0].call_id if verdict is not None and verdict.calls else "",
        tool=verdict.kind if verdict is not None else "",
        arguments_json=proposed.arguments_json if proposed else "",
        text=verdict.text if verdict is not None else "",
        validation="ok" if verdict is not None else "",
        fault=fault,
        state_delta=f"version {version - 1}->{version}",
    )
    return with_inference(entry, inference)
