"""Agentic Loop: let an unreliable model drive real side effects, bounded, authorised, approved, and on record.

Define a loop, open a runtime, start a task, approve what it asks for:

>>> loop = define_loop(contract="thermostat", tools=[...], policy="...", completion=..., instructions="...")
>>> async with open_runtime(lambda clock, ids: {"thermostat": loop}, database_url=..., model=...) as runtime:
...     state = await runtime.start("thermostat", goal="Make it 21 degrees.", requester=ravi)
...     state = await runtime.decide(state.approval.id, "approve", approver=asha)

The names, by what one does with them:

- **Define a loop.** :func:`define_loop` makes a :class:`LoopDefinition` of a :class:`Contract` (with :class:`Limits`,
  :class:`PhaseRule`, :class:`Thresholds`), tools, a Cedar policy (a :class:`PolicySet`) and a completion check.
- **Declare tools.** :func:`tool` makes one of a typed function, :func:`tool_from_schema` of a JSON Schema and a
  callable; both give a :class:`ToolSpec`. A tool gets a :class:`ToolContext`, returns JSON data or a
  :class:`ToolResult`, and raises :class:`ToolFault` or, for a write that may have happened, :class:`OutcomeUnknown`.
  A write says how to :class:`Reconcile`: its service answers :class:`Found`, :class:`Absent` or :class:`Undecided`.
  :class:`ServiceClient`, :func:`lookup_by_key` and :func:`replay_with_key` do this over HTTP.
- **Judge.** A completion check is given a :class:`TaskView` with every :class:`EvidenceRecord` and says
  :class:`Completed` or :class:`Incomplete`; a workflow makes a :class:`Proposal` of :class:`ProposedCall` values.
- **Choose a model.** :func:`chat_model` takes any LangChain chat model that can call tools;
  :func:`model_from_settings` finds the one that the environment names.
- **Run.** :func:`open_runtime` gives a :class:`Runtime`, whose methods return a :class:`TaskState`. To embed the
  graph itself, :func:`open_stores`, :func:`ports_on` and :func:`build_graph` give a compiled LangGraph graph, and
  :func:`acting_as` says who acts: a :class:`Principal` that the host has authenticated.
- **Errors.** :class:`Misuse` is the caller's (its message says what to do), :class:`Outage` passes by itself, and
  :class:`Defect` is ours.

``agentic_loop.testing`` has what tests need: a scripted chat model, a clock that is told the time, a faulty service.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentic_loop.graph.build import LoopGraph, build_graph
    from agentic_loop.graph.contract import Contract, PhaseRule
    from agentic_loop.graph.define import define_loop
    from agentic_loop.graph.definition import LoopDefinition, Ports
    from agentic_loop.graph.errors import Defect, LeaseRefused, Misuse, ModelOutage, Outage, OutcomeUnknown, ToolFault
    from agentic_loop.graph.ports import Model
    from agentic_loop.graph.records import Completed, EvidenceRecord, Incomplete, JournalEntry, TaskView
    from agentic_loop.graph.run import Runtime, TaskState, open_runtime, ports_on
    from agentic_loop.graph.state import (
        Ending,
        Limits,
        LoopInput,
        LoopOutput,
        Principal,
        Proposal,
        ProposedCall,
        Resumption,
        Status,
        Thresholds,
        Usage,
    )
    from agentic_loop.graph.store.embedded import create_database, database_url
    from agentic_loop.graph.store.stores import Stores, open_stores
    from agentic_loop.graph.system import RandomIds, SystemClock, acting_as
    from agentic_loop.models.chat_model import LangChainModel
    from agentic_loop.models.define import chat_model
    from agentic_loop.models.settings import model_from_settings
    from agentic_loop.policies.authorisation import PolicySet
    from agentic_loop.policies.progress import DeclaredFact
    from agentic_loop.tools.define import tool, tool_from_schema
    from agentic_loop.tools.http import ServiceClient, lookup_by_key, replay_with_key
    from agentic_loop.tools.registry import ToolRegistry
    from agentic_loop.tools.tool import (
        Absent,
        Found,
        PreconditionBroken,
        PreconditionHeld,
        Reconcile,
        ToolContext,
        ToolResult,
        ToolSpec,
        Undecided,
    )

_HOMES = {
    "agentic_loop.graph.build": "LoopGraph build_graph",
    "agentic_loop.graph.contract": "Contract PhaseRule",
    "agentic_loop.graph.define": "define_loop",
    "agentic_loop.graph.definition": "LoopDefinition Ports",
    "agentic_loop.graph.errors": "Defect LeaseRefused Misuse ModelOutage Outage OutcomeUnknown ToolFault",
    "agentic_loop.graph.ports": "Model",
    "agentic_loop.graph.records": "Completed EvidenceRecord Incomplete JournalEntry TaskView",
    "agentic_loop.graph.run": "Runtime TaskState open_runtime ports_on",
    "agentic_loop.graph.state": (
        "Ending Limits LoopInput LoopOutput Principal Proposal ProposedCall Resumption Status Thresholds Usage"
    ),
    "agentic_loop.graph.store.embedded": "create_database database_url",
    "agentic_loop.graph.store.stores": "Stores open_stores",
    "agentic_loop.graph.system": "RandomIds SystemClock acting_as",
    "agentic_loop.models.chat_model": "LangChainModel",
    "agentic_loop.models.define": "chat_model",
    "agentic_loop.models.settings": "model_from_settings",
    "agentic_loop.policies.authorisation": "PolicySet",
    "agentic_loop.policies.progress": "DeclaredFact",
    "agentic_loop.tools.define": "tool tool_from_schema",
    "agentic_loop.tools.http": "ServiceClient lookup_by_key replay_with_key",
    "agentic_loop.tools.registry": "ToolRegistry",
    "agentic_loop.tools.tool": (
        "Absent Found PreconditionBroken PreconditionHeld Reconcile ToolContext ToolResult ToolSpec Undecided"
    ),
}
"""Where the public names are defined."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Absent",
    "Completed",
    "Contract",
    "DeclaredFact",
    "Defect",
    "Ending",
    "EvidenceRecord",
    "Found",
    "Incomplete",
    "JournalEntry",
    "LangChainModel",
    "LeaseRefused",
    "Limits",
    "LoopDefinition",
    "LoopGraph",
    "LoopInput",
    "LoopOutput",
    "Misuse",
    "Model",
    "ModelOutage",
    "Outage",
    "OutcomeUnknown",
    "PhaseRule",
    "PolicySet",
    "Ports",
    "PreconditionBroken",
    "PreconditionHeld",
    "Principal",
    "Proposal",
    "ProposedCall",
    "RandomIds",
    "Reconcile",
    "Resumption",
    "Runtime",
    "ServiceClient",
    "Status",
    "Stores",
    "SystemClock",
    "TaskState",
    "TaskView",
    "Thresholds",
    "ToolContext",
    "ToolFault",
    "ToolRegistry",
    "ToolResult",
    "ToolSpec",
    "Undecided",
    "Usage",
    "acting_as",
    "build_graph",
    "chat_model",
    "create_database",
    "database_url",
    "define_loop",
    "lookup_by_key",
    "model_from_settings",
    "open_runtime",
    "open_stores",
    "ports_on",
    "replay_with_key",
    "tool",
    "tool_from_schema",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Every public name, loaded or not."""
    return sorted({*globals(), *__all__})
