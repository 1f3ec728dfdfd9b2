"""A loop as one value, and everything that its nodes may reach.

Source: DESIGN §10 (a loop is a contract, tools, a policy, a completion check and a prompt).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from pydantic import BaseModel, JsonValue

from agentic_loop.policies.authorisation import PolicySet
from agentic_loop.policies.progress import DeclaredFact
from agentic_loop.tools.registry import ToolRegistry

from .contract import Contract
from .errors import Misuse
from .ports import (
    Approvals,
    Clock,
    EvidenceStore,
    Identity,
    Ids,
    Journal,
    Lease,
    Ledger,
    Model,
    Notifier,
    Tasks,
)
from .records import CompletionAnswer, TaskView
from .state import Phase, Proposal

FactsOf: TypeAlias = Callable[[str, Mapping[str, JsonValue], TaskView], BaseModel]
"""Gathers what the policy wants to know about a call (tool name, arguments) from recorded evidence only."""

CompletionOf: TypeAlias = Callable[[TaskView], CompletionAnswer]
"""Says whether recorded evidence shows that the goal is reached."""

WorkflowOf: TypeAlias = Callable[[TaskView], Proposal | None]
"""The next proposal that code makes on its own, or None when it is the model's turn."""

PhaseOf: TypeAlias = Callable[[TaskView], Phase]
"""The phase that the task is in, given what is on record."""

MessageOf: TypeAlias = Callable[[TaskView], str]
"""The final message of a task that succeeded, every claim of it cited."""

TenantOf: TypeAlias = Callable[[str, Mapping[str, JsonValue], TaskView], str | None]
"""The tenant that owns what a call touches, as evidence shows it, or None while nobody knows."""


def no_workflow(_view: TaskView) -> Proposal | None:
    """The workflow of a loop that has none."""
    return None


def same_phase(view: TaskView) -> Phase:
    """The phase rule of a loop that has one phase."""
    return view.phase


def finish_text(view: TaskView) -> str:
    """The final message of a loop whose model writes it: the text of the accepted finish."""
    return view.message


def tenant_unknown(_tool: str, _args: Mapping[str, JsonValue], _view: TaskView) -> str | None:
    """The tenant rule of a loop whose policy does not ask who owns what."""
    return None


@dataclass(frozen=True, kw_only=True)
class LoopDefinition:
    """Everything that makes one loop: contract, tools, policy, facts, completion, workflow and prompt.

    Raises:
        Misuse: the contract allows a tool that is not registered, or a phase names a tool that it does not allow.

    Source: DESIGN §2 (phases and workflows), §5, §9.
    """

    contract: Contract
    tools: ToolRegistry
    policies: PolicySet
    instructions: str
    facts: FactsOf
    completion: CompletionOf
    workflow: WorkflowOf = no_workflow
    phase_of: PhaseOf = same_phase
    tenant_of: TenantOf = tenant_unknown
    final_message: MessageOf = finish_text
    declared_facts: Sequence[DeclaredFact] = ()
    notifier: Notifier | None = None

    def __post_init__(self) -> None:
        self.tools.require(self.contract.allowed_tools)
        for rule in self.contract.phases:
            strangers = sorted(set(rule.tools) - set(self.contract.allowed_tools))
            if strangers:
                raise Misuse(
                    f"loop {self.contract.name!r}: phase {rule.name!r} names {', '.join(strangers)}, which "
                    "allowed_tools does not list; add them there or remove them from the phase"
                )


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The outside as the nodes see it; ``graph/build.py`` decides what implements each port.

    ``bare_answers`` accepts an approval answer that does not name its approval: a development setting.
    """

    clock: Clock
    ids: Ids
    identity: Identity
    model: Model
    evidence: EvidenceStore
    journal: Journal
    tasks: Tasks
    ledger: Ledger
    approvals: Approvals
    lease: Lease
    bare_answers: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """What one node run is given: the loop, the ports, the task's id and the fence that it holds."""

    loop: LoopDefinition
    ports: Ports
    task_id: str
    fence: int

    def now(self) -> datetime:
        """The clock port's present instant."""
        return self.ports.clock.now()
