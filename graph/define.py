"""The short way to a loop of one's own: a definition from plain parts, with everything optional left out.

Source: DESIGN §1 (who writes a loop), §10 (a loop is a contract, tools, a policy, a completion check and a prompt).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_type_hints

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from agentic_loop.policies.authorisation import APPROVER_ROLES, PolicySet
from agentic_loop.policies.progress import DeclaredFact
from agentic_loop.tools.registry import ToolRegistry
from agentic_loop.tools.tool import ToolSpec

from .contract import Contract
from .definition import (
    CompletionOf,
    FactsOf,
    LoopDefinition,
    MessageOf,
    PhaseOf,
    TenantOf,
    WorkflowOf,
    finish_text,
    no_workflow,
    same_phase,
    tenant_unknown,
)
from .errors import Misuse
from .ports import Notifier
from .records import TaskView

POLICY_FILE = "policy.cedar"
"""The file name that messages give to a policy that was passed as text."""


class NoFacts(BaseModel):
    """The facts of a loop whose policy looks at the arguments and the requester only."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def define_loop(
    *,
    contract: Contract | str,
    tools: Sequence[ToolSpec],
    policy: str | Path | Mapping[str, str],
    completion: CompletionOf,
    instructions: str,
    facts: FactsOf | None = None,
    workflow: WorkflowOf = no_workflow,
    phase_of: PhaseOf = same_phase,
    tenant_of: TenantOf = tenant_unknown,
    final_message: MessageOf = finish_text,
    declared_facts: Sequence[DeclaredFact] = (),
    approver_roles: Sequence[str] = APPROVER_ROLES,
    notifier: Notifier | None = None,
) -> LoopDefinition:
    """A loop from its parts: what it may do, with which tools, under which policy, and when it is done.

    ``contract`` may be just a name: the loop then has the default limits and may use all the ``tools``. ``policy`` is
    Cedar text, the path of a file that holds it, or several texts by file name; nothing is allowed that it does not
    permit. ``completion`` judges recorded evidence. ``facts`` gathers from evidence what the policy wants to know;
    its return annotation names the model of ``context.facts``. ``approver_roles`` are the roles that can approve,
    least entitled first. Whatever is left out, the loop has none of.

    Raises:
        Misuse: something is not in order; the message says what, and what to write instead.

    Source: DESIGN §1, §10.
    """
    registry = ToolRegistry(_checked_tools(tools))
    if not instructions.strip():
        raise Misuse("instructions are empty: say in a few sentences what the model is to do, and when it is done")
    return LoopDefinition(
        contract=_contract(contract, registry),
        tools=registry,
        policies=PolicySet.load(
            texts=_texts(policy), shapes=registry.shapes, facts=_facts_model(facts), approver_roles=approver_roles
        ),
        instructions=instructions,
        facts=facts or _no_facts,
        completion=completion,
        workflow=workflow,
        phase_of=phase_of,
        tenant_of=tenant_of,
        final_message=final_message,
        declared_facts=declared_facts,
        notifier=notifier,
    )


def _no_facts(_tool: str, _args: Mapping[str, JsonValue], _view: TaskView) -> NoFacts:
    return NoFacts()


def _checked_tools(tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    # Callers without a type checker pass plain functions; say what is missing instead of failing somewhere inside.
    found: list[object] = list(tools)
    for candidate in found:
        if not isinstance(candidate, ToolSpec):
            name = getattr(candidate, "__name__", repr(candidate))
            raise Misuse(
                f"{name} is no tool: put @tool(effect=..., scope=..., source=...) on the function, or make one with "
                "tool_from_schema(...)"
            )
    if not found:
        raise Misuse("a loop needs at least one tool; without any, evidence can never show that the goal is reached")
    return list(tools)


def _contract(contract: Contract | str, registry: ToolRegistry) -> Contract:
    if isinstance(contract, Contract):
        return contract
    try:
        return Contract(name=contract, allowed_tools=[spec.name for spec in registry])
    except ValidationError as error:
        raise Misuse(
            f"{contract!r} cannot name a loop: use a lower-case letter, then letters, digits and '_', at most 48"
        ) from error


def _texts(policy: str | Path | Mapping[str, str]) -> Mapping[str, str]:
    match policy:
        case Path():
            try:
                texts = {policy.name: policy.read_text("utf-8")}
            except (OSError, UnicodeDecodeError) as error:
                raise Misuse(f"the policy file {policy} cannot be read: {error}") from error
        case str():
            texts = {POLICY_FILE: policy}
        case _:
            texts = dict(policy)
    if not any(text.strip() for text in texts.values()):
        raise Misuse(
            "the policy is empty, and what no policy permits is denied; write for example\n"
            '@id("read")\n@reason("Anybody may read.")\npermit (principal, action == Action::"my_tool", resource);'
        )
    return texts


def _facts_model(facts: FactsOf | None) -> type[BaseModel]:
    """The model that a facts function returns, as its annotation says."""
    if facts is None:
        return NoFacts
    returned = _return_annotation(facts)
    if not isinstance(returned, type) or not issubclass(returned, BaseModel) or returned is BaseModel:
        raise Misuse(
            "facts must be a function whose return annotation is a pydantic model of its own, because the policy is "
            "checked against the model's fields: def facts(tool, args, view) -> MyFacts"
        )
    return returned


def _return_annotation(function: Callable[..., object]) -> object:
    try:
        return get_type_hints(function).get("return")
    except (NameError, TypeError) as error:
        raise Misuse(
            f"the annotations of facts cannot be resolved: {error}; define its model at module level"
        ) from error
