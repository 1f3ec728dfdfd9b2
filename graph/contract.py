"""The contract of a loop: its limits, tools, phases and stop rules, as one validated value.

Source: DESIGN §1 (who writes it), §2 (phases), §4 (limits), §8 (thresholds).
"""

import hashlib
from typing import Literal, TypeAlias

import rfc8785
from pydantic import Field

from .state import Limits, Thresholds, Value

ControlAction: TypeAlias = Literal["finish", "ask_user", "blocked", "wait_and_recheck"]
"""What the model may propose besides calling a tool."""

CONTROL_ACTIONS: tuple[ControlAction, ...] = ("finish", "ask_user", "blocked", "wait_and_recheck")
"""All control actions, in the order in which they are offered."""


class PhaseRule(Value):
    """One phase: which tools and control actions the model may propose while it lasts.

    A phase with ``decider="workflow"`` asks no model: the loop's workflow proposes.
    """

    name: str
    decider: Literal["model", "workflow"] = "model"
    tools: list[str]
    controls: list[ControlAction] = list(CONTROL_ACTIONS)


class Contract(Value):
    """What one loop may do and where it must stop.

    ``complete_on`` says when completion is judged: on a finish proposal, or whenever evidence changes.
    ``stop_on`` may hold ``policy_violation`` (an unlisted tool ends the task DENIED) and ``invalid_proposal``
    (the first invalid proposal ends it FAILED).

    Source: DESIGN §2, §4, §5, §8.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,47}$")
    version: str = "1"
    goal: str = ""
    limits: Limits = Limits()
    allowed_tools: list[str]
    controls: list[ControlAction] = list(CONTROL_ACTIONS)
    phases: list[PhaseRule] = []
    stop_on: list[Literal["policy_violation", "invalid_proposal"]] = []
    requires_confirmation: list[str] = []
    complete_on: Literal["finish", "evidence"] = "finish"
    thresholds: Thresholds = Thresholds()
    approval_expires_after_s: int = 7_200
    max_approval_rounds: int = 2

    def phase(self, name: str) -> PhaseRule:
        """The rule of the phase with this name; a loop without phases has one that allows everything.

        Raises:
            KeyError: no such phase is declared.
        """
        if not self.phases:
            return PhaseRule(name=name, tools=self.allowed_tools, controls=self.controls)
        for rule in self.phases:
            if rule.name == name:
                return rule
        raise KeyError(name)

    @property
    def first_phase(self) -> str:
        """The phase in which a task starts."""
        return self.phases[0].name if self.phases else "work"

    @property
    def digest(self) -> str:
        """SHA-256 of the contract's canonical JSON, so that a record says which contract it ran under."""
        return hashlib.sha256(rfc8785.dumps(self.model_dump(mode="json"))).hexdigest()
