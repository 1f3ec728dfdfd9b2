"""May this task do this now, and if not, whose approval would be enough: judged by Cedar policies.

Nothing is allowed that no policy permits; a policy that cannot be evaluated denies. Whether an approval is needed is
found by asking the same policies again with an imagined approver of each role, so a threshold is written down once.

Source: DESIGN §5; Cedar policy language.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

import cedarpy
from pydantic import BaseModel, JsonValue

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ToolShape
from agentic_loop.graph.state import Principal

from .cedar_rules import PolicyRule, read_rules, with_names
from .cedar_schema import RESUME_ACTION, CedarRecord, JsonObject, argument_records, facts_record, schema_of

APPROVER_ROLES: tuple[str, ...] = ("support_lead", "manager")
"""The roles that can approve, least entitled first, where a loop names no others."""

AUTHORITY_FILE = "authority"
"""The name under which :data:`AUTHORITY_RULES` appears in messages; no policy file may have it."""

AUTHORITY_RULES = """
@id("forbid-other-tenant")
@reason("A task never touches what belongs to another tenant.")
@on_deny("end")
forbid (principal, action, resource)
when { resource has tenant && resource.tenant != principal.tenant };

@id("forbid-self-approval")
@reason("Whoever started the task cannot approve its actions.")
forbid (principal is Task, action, resource)
when { context has approval && context.approval.approver == principal.requester };

@id("forbid-approver-of-other-tenant")
@reason("An approver decides only for the own tenant.")
forbid (principal is Task, action, resource)
when { context has approval && context.approval.approver.tenant != principal.tenant };

@id("resume-own-task")
@reason("Whoever started a task may go on with it.")
permit (principal is User, action == Action::"resume_task", resource is Task)
when { principal == resource.requester };

@id("resume-as-approver")
@reason("A support lead or a manager may go on with a task of the own tenant.")
permit (principal is User, action == Action::"resume_task", resource is Task)
when { principal in Role::"support_lead" || principal in Role::"manager" };
"""
"""The rules that hold for every loop; they are added to each policy set."""

# Cedar quotes the whole request in some errors, and the reason of a denial goes into the next prompt.
_MAX_ERROR_CHARS = 500


def scope_rules(shapes: Mapping[str, ToolShape]) -> str:
    """The rules that hold every tool to its declared scope, whatever a loop's own policy forgets."""
    return "".join(
        f"""
@id({json.dumps(f"scope-of-{shape.name}")})
@reason({json.dumps(f"The task lacks the scope {shape.scope}, which {shape.name} needs.")})
@on_deny("end")
forbid (principal, action == Action::{json.dumps(shape.name)}, resource)
unless {{ principal.scopes.contains({json.dumps(shape.scope)}) }};
"""
        for shape in shapes.values()
        if shape.scope
    )


@dataclass(frozen=True)
class Allowed:
    """The policies allow it; ``policy_ids`` are those that permit it."""

    policy_ids: tuple[str, ...]


@dataclass(frozen=True)
class NeedsApproval:
    """It is allowed once somebody with ``role`` approves it. ``clause`` and ``reason`` say by which rule."""

    role: str
    policy_ids: tuple[str, ...]
    clause: str
    reason: str


@dataclass(frozen=True)
class Denied:
    """It is not allowed, approved or not.

    ``ends_task`` says that no other proposal changes this. ``policy_ids`` is empty where nothing permits it.
    """

    policy_ids: tuple[str, ...]
    clause: str
    reason: str
    ends_task: bool


AuthorisationAnswer: TypeAlias = Allowed | NeedsApproval | Denied
"""What the policies say to an action."""


@dataclass(frozen=True)
class PolicySet:
    """The policies of one loop, parsed and checked against the schema that its tools and facts imply.

    ``rules`` are in the order of the files. ``arguments`` holds the Cedar type of each tool's arguments.
    """

    rules: Mapping[str, PolicyRule]
    approver_roles: tuple[str, ...]
    arguments: Mapping[str, CedarRecord]
    facts: CedarRecord
    facts_model: type[BaseModel]
    schema: "cedarpy.Schema"
    compiled: "cedarpy.PolicySet"

    @classmethod
    def load(
        cls,
        *,
        texts: Mapping[str, str],
        shapes: Mapping[str, ToolShape],
        facts: type[BaseModel],
        approver_roles: Sequence[str] = APPROVER_ROLES,
    ) -> "PolicySet":
        """Parse and check policy texts, given by file name.

        ``facts`` is a flat model of int, str, bool and list[str] fields, None where unknown. ``approver_roles`` are
        the roles that can approve, least entitled first.

        Raises:
            Misuse: a text has a syntax error, an unknown field, tool or role, a missing, unknown or duplicate
                annotation; or a tool or a fact cannot be given to Cedar. The message names file and policy.
        """
        arguments, facts_type = argument_records(shapes), facts_record(facts)
        if facts_type.left_out:
            raise Misuse(
                f"facts model {facts.__name__}: Cedar has no type for {', '.join(facts_type.left_out)}; "
                "use int, str, bool or list[str], or None where it is unknown"
            )
        if RESUME_ACTION in shapes:
            raise Misuse(f"no tool may be called {RESUME_ACTION!r}: that action is the runtime's own")
        if AUTHORITY_FILE in texts:
            raise Misuse(f"no policy file may be called {AUTHORITY_FILE!r}: it would hide the rules of every loop")
        if not approver_roles or len(set(approver_roles)) < len(approver_roles):
            raise Misuse(f"approver_roles must name each role once, and at least one: {list(approver_roles)}")
        schema = cedarpy.Schema.from_json_str(json.dumps(schema_of(arguments, facts_type)))
        sources = {AUTHORITY_FILE: AUTHORITY_RULES + scope_rules(shapes), **texts}
        return cls(
            rules=read_rules(sources, schema, approver_roles, built_in=AUTHORITY_FILE),
            approver_roles=tuple(approver_roles),
            arguments=arguments,
            facts=facts_type,
            facts_model=facts,
            schema=schema,
            compiled=cedarpy.PolicySet.from_str("\n".join(sources.values())),
        )

    @property
    def left_out(self) -> dict[str, tuple[str, ...]]:
        """Per tool, the arguments that no policy can see; tools with none are not listed."""
        return {tool: record.left_out for tool, record in self.arguments.items() if record.left_out}


def authorise(
    policies: PolicySet,
    *,
    requester: Principal,
    tool: str,
    args: Mapping[str, JsonValue],
    facts: BaseModel,
    resource_tenant: str | None,
    confirm: bool = False,
) -> AuthorisationAnswer:
    """Judge one call of a tool for the requester of a task.

    ``resource_tenant`` is whom the thing acted on belongs to, None where that is not known. ``confirm`` demands an
    approval even where the policies would not, by the least role that they accept.

    Raises:
        Misuse: ``facts`` is not of the model that the policies were loaded with.
    """
    question = _Question(policies, requester, tool, args, facts, resource_tenant)
    plain = question.ask(None)
    if plain.errors or (plain.allowed and not confirm):
        return plain.answer(policies, tool)
    for role in policies.approver_roles:
        imagined = Principal(id=role, tenant=requester.tenant, roles=[role])
        opinion = question.ask(_User(f"imagined {role}", imagined))
        if opinion.allowed and not opinion.errors:
            added = tuple(name for name in opinion.policy_ids if name not in plain.policy_ids) or opinion.policy_ids
            rules = [policies.rules[name] for name in added]
            return NeedsApproval(role, added, _clauses(rules), _reasons(rules))
    if plain.allowed:
        return Denied((), "", f"{tool} needs an approval here, and no role is permitted to give it", False)
    return plain.answer(policies, tool)


def entitled(
    policies: PolicySet,
    *,
    requester: Principal,
    approver: Principal,
    tool: str,
    args: Mapping[str, JsonValue],
    facts: BaseModel,
    resource_tenant: str | None,
    confirm: bool = False,
) -> Allowed | Denied:
    """Judge whether this approver's approval makes the call allowed: the same policies, with the real person.

    The parameters are those of :func:`authorise`. An approver without any approving role is never entitled.

    Raises:
        Misuse: as for :func:`authorise`.
    """
    needed = authorise(
        policies,
        requester=requester,
        tool=tool,
        args=args,
        facts=facts,
        resource_tenant=resource_tenant,
        confirm=confirm,
    )
    if isinstance(needed, Denied):
        return needed
    role = needed.role if isinstance(needed, NeedsApproval) else policies.approver_roles[0]
    clause = needed.clause if isinstance(needed, NeedsApproval) else ""
    question = _Question(policies, requester, tool, args, facts, resource_tenant)
    opinion = question.ask(_User(_person_id(approver), approver))
    may_approve = not set(policies.approver_roles).isdisjoint(approver.roles)
    if opinion.allowed and not opinion.errors and may_approve:
        return Allowed(opinion.policy_ids)
    if opinion.errors or (not opinion.allowed and opinion.policy_ids):
        return opinion.answer(policies, tool)
    roles = ", ".join(approver.roles) or "no role"
    return Denied((), clause, f"this needs the approval of a {role}; {approver.id} has {roles}", False)


def may_resume(policies: PolicySet, *, requester: Principal, actor: Principal) -> Allowed | Denied:
    """Judge whether the actor may go on with an ended task of the requester."""
    users = [_User(_person_id(requester), requester), _User(_person_id(actor), actor)]
    opinion = _evaluate(
        policies,
        principal=_reference("User", users[1].id),
        action=RESUME_ACTION,
        resource=_reference("Task", "task"),
        context={},
        entities=[*_people(users), _task(requester)],
    )
    return opinion.answer(policies, RESUME_ACTION)


# --- asking Cedar -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Opinion:
    """One evaluation: Cedar's decision, the determining policies in file order, and what could not be evaluated."""

    allowed: bool
    policy_ids: tuple[str, ...]
    errors: tuple[str, ...]

    def answer(self, policies: PolicySet, action: str) -> Allowed | Denied:
        if self.errors:
            problems = "; ".join(self.errors)[:_MAX_ERROR_CHARS]
            return Denied((), "", f"the policies could not be evaluated: {problems}", False)
        if self.allowed:
            return Allowed(self.policy_ids)
        rules = [policies.rules[name] for name in self.policy_ids]
        if not rules:
            return Denied((), "", f"no policy permits {action} for this requester", False)
        return Denied(self.policy_ids, _clauses(rules), _reasons(rules), any(rule.on_deny == "end" for rule in rules))


@dataclass(frozen=True)
class _User:
    """A person under the id by which Cedar knows them."""

    id: str
    principal: Principal


@dataclass(frozen=True)
class _Question:
    """One call of a tool, to be judged with or without an approver."""

    policies: PolicySet
    requester: Principal
    tool: str
    args: Mapping[str, JsonValue]
    facts: BaseModel
    resource_tenant: str | None

    def ask(self, approver: _User | None) -> _Opinion:
        if not isinstance(self.facts, self.policies.facts_model):
            raise Misuse(
                f"the policies were loaded for facts of {self.policies.facts_model.__name__}, "
                f"not {type(self.facts).__name__}"
            )
        arguments = self.policies.arguments.get(self.tool)
        if arguments is None:
            return _Opinion(False, (), ())
        context: JsonObject = {
            "args": arguments.project(self.args),
            "facts": self.policies.facts.project(self.facts.model_dump(mode="json")),
        }
        people = [_User(_person_id(self.requester), self.requester)]
        if approver is not None:
            context["approval"] = {"approver": {"__entity": _reference("User", approver.id)}}
            people.append(approver)
        tenant: JsonObject = {} if self.resource_tenant is None else {"tenant": self.resource_tenant}
        return _evaluate(
            self.policies,
            principal=_reference("Task", "task"),
            action=self.tool,
            resource=_reference("Resource", "resource"),
            context=context,
            entities=[*_people(people), _task(self.requester), _entity(_reference("Resource", "resource"), tenant)],
        )


def _evaluate(
    policies: PolicySet,
    *,
    principal: JsonObject,
    action: str,
    resource: JsonObject,
    context: JsonObject,
    entities: list[JsonObject],
) -> _Opinion:
    request = {
        "principal": principal,
        "action": _reference("Action", action),
        "resource": resource,
        "context": context,
    }
    try:
        world = cedarpy.Entities.from_json_str(json.dumps(entities), policies.schema)
        result = cedarpy.is_authorized(request, policies.compiled, world, policies.schema)
    except (ValueError, RecursionError) as error:
        return _Opinion(False, (), (f"Cedar cannot read the request: {error}",))
    determining = set(result.diagnostics.id_annotations_by_reason.values())
    return _Opinion(
        bool(result.allowed),
        tuple(name for name in policies.rules if name in determining),
        tuple(with_names(str(error), tuple(policies.rules)) for error in result.diagnostics.errors),
    )


def _reference(kind: str, identifier: str) -> JsonObject:
    return {"type": kind, "id": identifier}


def _entity(uid: JsonObject, attributes: JsonObject, parents: Sequence[JsonObject] = ()) -> JsonObject:
    return {"uid": uid, "attrs": attributes, "parents": list(parents)}


def _person_id(person: Principal) -> str:
    # Two tenants may use the same id for different people; the escaped slash keeps the pair unambiguous.
    return f"{quote(person.tenant, safe='', errors='replace')}/{person.id}"


def _people(users: Sequence[_User]) -> list[JsonObject]:
    """One entity per person; somebody who appears twice has the roles of both appearances."""
    roles: dict[str, set[str]] = {}
    for user in users:
        roles.setdefault(user.id, set()).update(user.principal.roles)
    tenants = {user.id: user.principal.tenant for user in users}
    return [
        _entity(
            _reference("User", who), {"tenant": tenants[who]}, [_reference("Role", role) for role in sorted(names)]
        )
        for who, names in roles.items()
    ]


def _task(requester: Principal) -> JsonObject:
    return _entity(
        _reference("Task", "task"),
        {
            "tenant": requester.tenant,
            "requester": {"__entity": _reference("User", _person_id(requester))},
            "scopes": list(requester.scopes),
            "roles": list(requester.roles),
        },
    )


def _clauses(rules: Sequence[PolicyRule]) -> str:
    return "; ".join(dict.fromkeys(rule.clause for rule in rules if rule.clause))


def _reasons(rules: Sequence[PolicyRule]) -> str:
    return " ".join(dict.fromkeys(rule.reason for rule in rules))
