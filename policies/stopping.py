"""When a task ends, and why: the one place that turns what happened into a terminal status and a reason.

Pure: values in, values out.

Source: DESIGN §2 (order of the checks, statuses and reasons); the document's section on how a loop ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from agentic_loop.graph.records import Completed, CompletionAnswer, Incomplete
from agentic_loop.graph.state import (
    Ending,
    Halt,
    Limits,
    Progress,
    Reason,
    TerminalStatus,
    Thresholds,
    Usage,
    Verdict,
)

STATUS_OF: Mapping[Reason, TerminalStatus] = {
    "completed": "SUCCEEDED",
    "question": "NEEDS_INPUT",
    "approval_expired": "NEEDS_INPUT",
    "review_required": "NEEDS_INPUT",
    "policy_denied": "DENIED",
    "steps": "BUDGET_EXHAUSTED",
    "tokens": "BUDGET_EXHAUSTED",
    "cost": "BUDGET_EXHAUSTED",
    "deadline": "BUDGET_EXHAUSTED",
    "repeated_action": "NO_PROGRESS",
    "no_state_change": "NO_PROGRESS",
    "oscillation": "NO_PROGRESS",
    "progress_theatre": "NO_PROGRESS",
    "validation_churn": "NO_PROGRESS",
    "contradiction": "NO_PROGRESS",
    "no_action": "FAILED",
    "model_unavailable": "FAILED",
    "tool_exhausted": "FAILED",
    "unknown_effect": "FAILED",
    "invalid_proposal": "FAILED",
    "cancelled": "FAILED",
}
"""Which terminal status each reason belongs to; every reason belongs to exactly one."""


@dataclass(frozen=True)
class StopView:
    """What the stop check looks at.

    ``completion`` is None where completion is not judged now. ``model_step_needed`` is False when code has the next
    proposal, because only a model decision spends a step.
    """

    halt: Halt | None
    verdict: Verdict | None
    completion: CompletionAnswer | None
    progress: Progress
    thresholds: Thresholds
    limits: Limits
    usage: Usage
    step_count: int
    model_step_needed: bool


@dataclass(frozen=True)
class End:
    """The task ends here."""

    ending: Ending


@dataclass(frozen=True)
class RefuseFinish:
    """The model wants to stop but may not: tell it why, and go on."""

    detail: str


@dataclass(frozen=True)
class CorrectCourse:
    """One corrective observation about missing progress, then go on."""

    flag: Reason
    message: str


@dataclass(frozen=True)
class Pause:
    """The run ends for now and is to be woken up later; the task goes on then."""

    wait_s: int


@dataclass(frozen=True)
class RefuseWait:
    """The model wants to wait but has used up its rechecks."""

    detail: str


@dataclass(frozen=True)
class GoOn:
    """Go around again."""


StopAnswer: TypeAlias = End | RefuseFinish | CorrectCourse | Pause | RefuseWait | GoOn
"""What the stop check says."""


def judge(view: StopView) -> StopAnswer:
    """Decide whether the task ends, in the order of DESIGN §2.

    Cancelled, completion, denial (and the other halts), a question to the user, non-progress, budgets, no_action;
    a refused finish goes back as feedback unless the budget is gone, in which case the budget ends the task.
    """
    if view.halt is not None and view.halt.kind == "cancelled":
        return _end("cancelled", view.halt.detail)
    if isinstance(view.completion, Completed):
        return _end("completed", view.completion.detail)
    if view.halt is not None and view.halt.kind != "budget":
        return _end(view.halt.reason, view.halt.detail)
    if view.verdict is not None and view.verdict.kind == "ask_user":
        return _end("question", view.verdict.text)
    stalled = _judge_progress(view)
    if isinstance(stalled, End):
        return stalled
    spent = _judge_budgets(view)
    if spent is not None:
        return spent
    return stalled or _judge_proposal(view)


def _judge_progress(view: StopView) -> End | CorrectCourse | None:
    flag = view.progress.flag
    if flag is None:
        return None
    if view.progress.corrections < view.thresholds.max_corrections:
        return CorrectCourse(flag, CORRECTIONS.get(flag, "you are not making progress; propose something else"))
    return _end(flag, f"no progress: {flag.replace('_', ' ')}, after {view.progress.corrections} correction(s)")


def _judge_budgets(view: StopView) -> End | None:
    if view.halt is not None and view.halt.kind == "budget":
        return _end(view.halt.reason, view.halt.detail)
    usage, limits = view.usage, view.limits
    if usage.tokens > limits.max_tokens:
        return _end("tokens", f"{usage.tokens} tokens spent of {limits.max_tokens}")
    if usage.cost_micro_usd > limits.max_cost_micro_usd:
        return _end("cost", f"{usage.cost_micro_usd} micro-USD spent of {limits.max_cost_micro_usd}")
    if usage.active_ms >= limits.max_active_s * 1_000:
        return _end("deadline", f"{usage.active_ms} ms of active time spent of {limits.max_active_s} s")
    if view.model_step_needed and not _ends_by_itself(view) and view.step_count >= limits.max_steps:
        return _end("steps", f"{view.step_count} steps spent of {limits.max_steps}")
    return None


def _ends_by_itself(view: StopView) -> bool:
    """Whether the proposal stops the run without another step; a wait that is to be refused does not."""
    match view.verdict:
        case Verdict(kind="blocked"):
            return True
        case Verdict(kind="wait_and_recheck"):
            return view.usage.rechecks < view.limits.max_rechecks
        case _:
            return False


def _judge_proposal(view: StopView) -> StopAnswer:
    if view.verdict is None:
        return GoOn()
    match view.verdict.kind:
        case "finish":
            match view.completion:
                case Incomplete(detail):
                    return RefuseFinish(detail) if view.model_step_needed else GoOn()
                case _:
                    return GoOn()
        case "blocked":
            return _end("no_action", view.verdict.text)
        case "wait_and_recheck":
            if view.usage.rechecks >= view.limits.max_rechecks:
                return RefuseWait(f"all {view.limits.max_rechecks} rechecks are used up; decide with what is known")
            return Pause(view.verdict.wait_s)
        case "calls" | "invalid" | "ask_user":
            return GoOn()
        case _:
            assert_never(view.verdict.kind)


def _end(reason: Reason, detail: str) -> End:
    return End(Ending(status=STATUS_OF[reason], reason=reason, detail=detail))


CORRECTIONS: Mapping[Reason, str] = {
    "repeated_action": (
        "you have already made this call with these arguments and got the same answer; propose a different action, "
        "or finish, ask the user or say that you are blocked"
    ),
    "no_state_change": (
        "the last steps have added no evidence and changed nothing; propose an action that learns something new, "
        "or finish, ask the user or say that you are blocked"
    ),
    "oscillation": (
        "you are going back and forth between the same two actions with the same answers; choose a different one"
    ),
    "progress_theatre": (
        "calls with slightly different arguments have returned the same data; it is already in evidence, so use it"
    ),
    "validation_churn": (
        "several proposals in a row could not be used; read the error messages, then propose one call that fits its "
        "schema"
    ),
    "contradiction": (
        "two sources disagree on the same fact and asking them again has not settled it; do not query them again: "
        "ask the user, or say that you are blocked and name the disagreement"
    ),
}
"""The corrective observation for each way of making no progress."""
