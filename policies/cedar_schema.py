"""The Cedar schema that policies are checked against, generated from what the tools and the facts declare.

JSON Schema types become Cedar types: integer is ``Long``, string ``String``, boolean ``Bool``, array ``Set`` and
object ``Record``; a property that may be absent or null is optional. Cedar has no floating-point numbers, no open
maps and no unions, so properties of those kinds are left out of the context, and :class:`CedarRecord` lists them.

Source: DESIGN §5; Cedar's JSON schema format.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import BaseModel, JsonValue

from agentic_loop.graph.records import ToolShape

RESUME_ACTION = "resume_task"
"""The action that is judged when somebody wants to go on with an ended task."""

JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object."""

_MAX_DEPTH = 8
_MAX_EXACT_FLOAT = 2**53


@dataclass(frozen=True)
class CedarRecord:
    """A Cedar record type: its attributes in Cedar's JSON form, and the paths that Cedar cannot express."""

    attributes: Mapping[str, JsonObject]
    left_out: tuple[str, ...] = ()

    def project(self, value: Mapping[str, JsonValue]) -> JsonObject:
        """The part of a JSON object that the type declares: undeclared and null properties are dropped.

        A value of the wrong type is passed on as null, which Cedar refuses, so that it can only deny.
        """
        return _project_record(value, self.attributes)


@dataclass
class _Translation:
    """One pass over one JSON Schema."""

    definitions: Mapping[str, JsonValue]
    left_out: list[str] = field(default_factory=list)

    def record(self, schema: Mapping[str, JsonValue], path: str, depth: int) -> dict[str, JsonObject]:
        properties = _object(schema.get("properties"))
        required = schema.get("required")
        always = set(map(str, required)) if isinstance(required, list) else set()
        attributes: dict[str, JsonObject] = {}
        for name, member in properties.items():
            here = f"{path}.{name}" if path else name
            resolved, nullable = self.resolve(_object(member))
            cedar = None if name.startswith("__") else self.type_of(resolved, here, depth)
            if cedar is None:
                self.left_out.append(here)
            else:
                attributes[name] = {**cedar, "required": name in always and not nullable}
        return attributes

    def type_of(self, schema: Mapping[str, JsonValue], path: str, depth: int) -> JsonObject | None:
        if depth > _MAX_DEPTH:
            return None
        match _type_name(schema):
            case "integer":
                return {"type": "Long"}
            case "string":
                return {"type": "String"}
            case "boolean":
                return {"type": "Bool"}
            case "array":
                resolved, nullable = self.resolve(_object(schema.get("items")))
                element = None if nullable else self.type_of(resolved, f"{path}[]", depth + 1)
                return None if element is None else {"type": "Set", "element": element}
            case "object":
                attributes = self.record(schema, path, depth + 1)
                return {"type": "Record", "attributes": dict(attributes)} if attributes else None
            case _:
                return None

    def resolve(self, schema: Mapping[str, JsonValue]) -> tuple[Mapping[str, JsonValue], bool]:
        """Follow references and drop null alternatives; says whether null is allowed."""
        nullable = False
        for _ in range(_MAX_DEPTH):
            reference, every = schema.get("$ref"), schema.get("allOf")
            branches = schema.get("anyOf", schema.get("oneOf"))
            if isinstance(reference, str):
                schema = _object(self.definitions.get(reference.removeprefix("#/$defs/")))
            elif isinstance(every, list) and len(every) == 1:
                schema = _object(every[0])
            elif isinstance(branches, list):
                real = [_object(branch) for branch in branches if _object(branch).get("type") != "null"]
                nullable = nullable or len(real) < len(branches)
                schema = real[0] if len(real) == 1 else {}
            else:
                break
        kinds = schema.get("type")
        if isinstance(kinds, list):
            others = [kind for kind in kinds if kind != "null"]
            nullable = nullable or len(others) < len(kinds)
            schema = {**schema, "type": others[0] if len(others) == 1 else None}
        return schema, nullable


def record_of(schema: Mapping[str, JsonValue]) -> CedarRecord:
    """The Cedar record type of an object's JSON Schema."""
    translation = _Translation(_object(schema.get("$defs")))
    attributes = translation.record(schema, "", 0)
    return CedarRecord(attributes, tuple(translation.left_out))


def facts_record(model: type[BaseModel]) -> CedarRecord:
    """The Cedar record type of a facts model; every field is always given, except where it is None."""
    schema = model.model_json_schema(mode="serialization")
    return record_of({**schema, "required": list(_object(schema.get("properties")))})


def schema_of(arguments: Mapping[str, CedarRecord], facts: CedarRecord) -> JsonObject:
    """The whole Cedar schema: entity types, one action per tool, and the action of resuming a task."""
    actions: JsonObject = {name: _tool_action(record, facts) for name, record in arguments.items()}
    actions[RESUME_ACTION] = {
        "appliesTo": {"principalTypes": ["User"], "resourceTypes": ["Task"], "context": _record({})}
    }
    return {"": {"entityTypes": _entity_types(), "actions": actions}}


def argument_records(shapes: Mapping[str, ToolShape]) -> dict[str, CedarRecord]:
    """The Cedar record type of each tool's arguments."""
    return {name: record_of(shape.parameters) for name, shape in shapes.items()}


def _entity_types() -> JsonObject:
    text: JsonObject = {"type": "String"}
    texts: JsonObject = {"type": "Set", "element": text}
    user: JsonObject = {"type": "Entity", "name": "User"}
    return {
        "Role": {"shape": _record({})},
        "User": {"memberOfTypes": ["Role"], "shape": _record({"tenant": text})},
        "Task": {"shape": _record({"tenant": text, "requester": user, "scopes": texts, "roles": texts})},
        "Resource": {"shape": _record({"tenant": {**text, "required": False}})},
    }


def _tool_action(arguments: CedarRecord, facts: CedarRecord) -> JsonObject:
    approver: JsonObject = {"approver": {"type": "Entity", "name": "User"}}
    context = {
        "args": _record(dict(arguments.attributes)),
        "facts": _record(dict(facts.attributes)),
        "approval": {**_record(approver), "required": False},
    }
    return {"appliesTo": {"principalTypes": ["Task"], "resourceTypes": ["Resource"], "context": _record(context)}}


def _record(attributes: Mapping[str, JsonValue]) -> JsonObject:
    return {"type": "Record", "attributes": dict(attributes)}


def _object(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _type_name(schema: Mapping[str, JsonValue]) -> str | None:
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(choices, list) or not choices:
        return None
    kinds = {bool: "boolean", int: "integer", str: "string"}
    names = {kinds.get(type(choice)) for choice in choices}
    return names.pop() if len(names) == 1 else None


def _project_record(value: Mapping[str, JsonValue], attributes: Mapping[str, JsonValue]) -> JsonObject:
    return {
        name: _project(value[name], _object(attributes[name])) for name in attributes if value.get(name) is not None
    }


def _project(value: JsonValue, cedar: Mapping[str, JsonValue]) -> JsonValue:
    match cedar.get("type"), value:
        case "Record", dict():
            return _project_record(value, _object(cedar.get("attributes")))
        case "Set", list():
            return [_project(member, _object(cedar.get("element"))) for member in value]
        case "Long", float() if value.is_integer() and abs(value) <= _MAX_EXACT_FLOAT:
            return int(value)
        case (("Long" | "String" | "Bool"), (str() | int())):
            return value
        case _:
            return None
