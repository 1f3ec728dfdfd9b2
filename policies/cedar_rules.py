"""Reading the policy texts: what each policy's annotations say, and every mistake that can be found before use.

Each policy carries ``@id`` and ``@reason``; it may carry ``@clause`` (the clause of the written policy that it comes
from) and, if it forbids, ``@on_deny("observe")`` or ``@on_deny("end")``.

Source: DESIGN §5.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import cedarpy
from pydantic import JsonValue

from agentic_loop.graph.errors import Misuse

_REQUIRED = ("id", "reason")
_KNOWN = ("id", "reason", "clause", "on_deny")


@dataclass(frozen=True)
class PolicyRule:
    """One policy as its annotations describe it. ``on_deny`` says whether a denial by it ends the task."""

    id: str
    effect: Literal["permit", "forbid"]
    reason: str
    clause: str
    on_deny: Literal["observe", "end"]
    file: str


def read_rules(
    sources: Mapping[str, str], schema: "cedarpy.Schema", approver_roles: Sequence[str], *, built_in: str
) -> dict[str, PolicyRule]:
    """The policies of all files by id, in the order in which Cedar numbers them once the files are joined.

    ``built_in`` names the source whose roles are not checked against ``approver_roles``.

    Raises:
        Misuse: something in a text is wrong; the message names file and policy.
    """
    rules: dict[str, PolicyRule] = {}
    for file, text in sources.items():
        parsed = _parse(file, text)
        for policy in parsed:
            rule = _rule(file, policy)
            if rule.id in rules:
                raise Misuse(f"{file}: policy {rule.id!r} is also in {rules[rule.id].file}; an @id may be used once")
            if file != built_in:
                _check_roles(rule, policy, approver_roles)
            rules[rule.id] = rule
        _check_types(file, text, schema, [_rule(file, policy).id for policy in parsed])
    return rules


def _parse(file: str, text: str) -> list[dict[str, JsonValue]]:
    try:
        document: dict[str, dict[str, dict[str, JsonValue]]] = json.loads(cedarpy.policies_to_json_str(text))
    except ValueError as error:
        raise Misuse(f"{file}: this is not Cedar: {error}") from error
    if document["templates"]:
        raise Misuse(f"{file}: a policy has a slot such as ?principal; templates are not supported, write it out")
    numbered = document["staticPolicies"]
    return [numbered[key] for key in sorted(numbered, key=lambda key: int(key.removeprefix("policy")))]


def _rule(file: str, policy: Mapping[str, JsonValue]) -> PolicyRule:
    found = policy.get("annotations")
    annotations = {name: str(value or "") for name, value in found.items()} if isinstance(found, dict) else {}
    name = f"policy {annotations['id']!r}" if annotations.get("id") else "a policy"
    for required in _REQUIRED:
        if not annotations.get(required, "").strip():
            raise Misuse(f'{file}: {name} needs @{required}("…")')
    for annotation in annotations:
        if annotation not in _KNOWN:
            known = ", ".join(f"@{each}" for each in _KNOWN)
            raise Misuse(f"{file}: {name} has @{annotation}, which means nothing here; known are {known}")
    effect: Literal["permit", "forbid"] = "permit" if policy["effect"] == "permit" else "forbid"
    on_deny = annotations.get("on_deny", "observe")
    if on_deny not in ("observe", "end"):
        raise Misuse(f'{file}: {name} has @on_deny("{on_deny}"); write "observe" or "end"')
    if effect == "permit" and "on_deny" in annotations:
        raise Misuse(f"{file}: {name} permits, so its @on_deny would never apply; move it to the forbid that denies")
    return PolicyRule(
        id=annotations["id"],
        effect=effect,
        reason=annotations["reason"],
        clause=annotations.get("clause", ""),
        on_deny="end" if on_deny == "end" else "observe",
        file=file,
    )


def _check_roles(rule: PolicyRule, policy: JsonValue, approver_roles: Sequence[str]) -> None:
    for role in _roles_in(policy):
        if role not in approver_roles:
            raise Misuse(
                f'{rule.file}: policy {rule.id!r} names Role::"{role}", which has no place in the order of approver '
                f"roles ({', '.join(approver_roles)}); add it to approver_roles, least entitled first"
            )


def _roles_in(node: JsonValue) -> Iterator[str]:
    match node:
        case {"type": "Role", "id": str(role)}:
            yield role
        case dict():
            for member in node.values():
                yield from _roles_in(member)
        case list():
            for member in node:
                yield from _roles_in(member)
        case _:
            return


def _check_types(file: str, text: str, schema: "cedarpy.Schema", ids: Sequence[str]) -> None:
    result = cedarpy.validate_policies(text, schema)
    if result.validation_passed:
        return
    problems = dict.fromkeys(with_names(error.error, ids) for error in result.errors)
    raise Misuse(f"{file}: {'; '.join(problems)}")


def with_names(message: str, ids: Sequence[str]) -> str:
    """Cedar's message with the ids that people wrote in place of Cedar's numbers (``policy0``, …)."""
    for number, name in enumerate(ids):
        message = message.replace(f"`policy{number}`", f"`{name}`")
    return message
