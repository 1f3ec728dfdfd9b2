"""What a person may safely do with a task that did not succeed, each with the command that does it.

Pure: values in, values out.

Source: DESIGN §2 (a terminal state is final; resume by someone entitled, never for SUCCEEDED), §9 (close, revise,
resume).
"""

import shlex
from dataclasses import dataclass
from typing import Literal, assert_never

from agentic_loop.graph.state import Limits, Reason


@dataclass(frozen=True)
class SafeOption:
    """One thing to do: its exact command, and when it is the right one."""

    option: Literal["check", "close", "revise", "resume"]
    command: str
    when: str


def safe_options(task_id: str, reason: Reason, limits: Limits, unsettled_keys: list[str]) -> list[SafeOption]:
    """What is safe after an ending for this reason, the best first; nothing after ``completed``.

    ``unsettled_keys`` names the effects of which nobody knows whether they happened: as long as there are any,
    checking them comes first, and everything else only after it.
    """
    if reason == "completed":
        return []
    commands = _Commands(shlex.quote(task_id))
    options = [*_resumptions(commands, reason, limits), *_always(commands, reason)]
    if not unsettled_keys:
        return options
    check = SafeOption(
        "check",
        commands.trace,
        "First: look each key under effects up in its service, and see whether the effect happened: "
        + ", ".join(unsettled_keys),
    )
    return [check, *(SafeOption(one.option, one.command, f"After the check: {one.when}") for one in options)]


@dataclass(frozen=True)
class _Commands:
    """The commands about one task; the words in capitals are for the person to fill in."""

    task: str

    @property
    def trace(self) -> str:
        return f"agentic-loop trace {self.task}"

    @property
    def close(self) -> str:
        return f'agentic-loop close {self.task} --note "WHAT WAS DONE" --as WHO'

    @property
    def revise(self) -> str:
        return f"agentic-loop revise {self.task} --as WHO"

    def resume(self, extra: str = "") -> str:
        return f"agentic-loop resume {self.task} {extra}{' ' if extra else ''}--as WHO"


def _always(commands: _Commands, reason: Reason) -> list[SafeOption]:
    """Close and revise are open after every ending that is no success."""
    revise = "to start a new task from this one's evidence, with another goal, other limits or another contract"
    if reason == "policy_denied":
        revise = (
            "to start a new task with a goal that the policy allows, or by a requester who may; this one stays denied"
        )
    return [
        SafeOption("revise", commands.revise, revise),
        SafeOption("close", commands.close, "when a person has dealt with it"),
    ]


def _resumptions(commands: _Commands, reason: Reason, limits: Limits) -> list[SafeOption]:
    """How this task itself can go on, if it can."""

    def resume(extra: str, when: str) -> list[SafeOption]:
        return [SafeOption("resume", commands.resume(extra), when)]

    match reason:
        case "completed" | "policy_denied":
            return []
        case "question":
            return resume("--input NAME=VALUE", "to give the answer that the task asked for")
        case "approval_expired":
            return resume("", "when somebody of the required role is there to answer; the approval is asked for anew")
        case "review_required":
            return resume("--input review=WHAT_WAS_FOUND", "after a person has looked at the evidence in question")
        case "steps":
            return resume(f"--add-steps {_half(limits.max_steps)}", "when the attempts below lead towards the goal")
        case "tokens":
            return resume(f"--add-tokens {_half(limits.max_tokens)}", "when the attempts below lead towards the goal")
        case "cost":
            more = _half(limits.max_cost_micro_usd)
            return resume(f"--add-cost-micro-usd {more}", "when the goal is worth that much more (micro-USD)")
        case "deadline":
            return resume(f"--add-active-s {_half(limits.max_active_s)}", "when slowness was the only trouble")
        case "repeated_action" | "no_state_change" | "oscillation" | "progress_theatre" | "validation_churn":
            return resume(
                "--input NAME=VALUE", "only with information that the task did not have; else it stalls again"
            )
        case "contradiction":
            return resume("--input NAME=VALUE", "after a person has found out which of the sources is right")
        case "no_action":
            return resume("--input NAME=VALUE", "with the information without which there was nothing useful to do")
        case "model_unavailable":
            return resume("", "when the model answers again")
        case "tool_exhausted":
            return resume("", "when the service in the last errors answers again")
        case "unknown_effect":
            return resume("", "only when the service can say again what became of the key: resuming asks it first")
        case "invalid_proposal":
            return resume("", "after the model or the prompt was changed; the same proposal ends the same way")
        case "cancelled":
            return resume("", "when the task should go on after all")
        case _:
            assert_never(reason)


def _half(limit: int) -> int:
    """How much more is offered: half of what the task had, at least one."""
    return max(1, limit // 2)
