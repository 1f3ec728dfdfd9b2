"""Arguments of a proposed call: from the text that a model wrote to the normal form that every later gate sees.

Nothing is repaired and nothing is coerced: what is not exactly right is refused with words that help to correct it.

Source: DESIGN §2 (validate), §8 (normal form).
"""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NoReturn

import jsonschema_rs
import rfc8785
from pydantic import BaseModel, JsonValue, ValidationError

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ToolShape

MAX_ARGUMENT_BYTES = 65_536
"""The longest text of arguments that is read, in bytes of UTF-8."""

MAX_ARGUMENT_DEPTH = 32
"""The deepest nesting of objects and arrays that is accepted; the outermost object is level 1."""

LARGEST_EXACT_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""

_MAX_PROBLEMS = 4
_WRAPPERS = frozenset({"arguments", "args", "parameters", "properties", "input", "kwargs", "tool_input"})
_COMPOSITION = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"})


class ArgumentsRefused(ValueError):
    """The arguments cannot be used; the message says what is wrong, where, and what would be right."""


# --- reading ----------------------------------------------------------------------------------------------------


def parse_object(text: str | None) -> dict[str, JsonValue]:
    """The JSON object in the text, read strictly; nothing at all (None or blank) is an empty object.

    Raises:
        ArgumentsRefused: the text is no single JSON object, repeats a key, holds a number or a character that cannot
            be kept exactly, or is too long or too deeply nested.
    """
    if text is None or not text.strip():
        return {}
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_ARGUMENT_BYTES:
        raise ArgumentsRefused(f"the arguments are {size_bytes} bytes long; at most {MAX_ARGUMENT_BYTES} are read")
    root = _parse(text)
    if isinstance(root, str):
        raise ArgumentsRefused(
            "the arguments are a JSON string, not an object: send the object itself, not JSON text inside quotes"
        )
    if not isinstance(root, dict):
        raise ArgumentsRefused(f'the arguments are {_kind(root)}; they must be one JSON object such as {{"name": …}}')
    _refuse_unkeepable(root)
    return root


def _parse(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_int=_exact_integer,
            parse_float=_finite_float,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as fault:
        near = ascii(text[max(0, fault.pos - 12) : fault.pos + 12])
        what = "something follows the JSON object" if fault.msg == "Extra data" else fault.msg
        raise ArgumentsRefused(
            f"the arguments are not valid JSON: {what} at character {fault.pos} near {near}; "
            "send exactly one JSON object with double-quoted keys and texts, no comments and no trailing commas"
        ) from None
    except RecursionError:
        raise _too_deep() from None
    return value


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in found:
            raise ArgumentsRefused(f"the key {_quoted(key)} occurs twice in one object; send it once")
        found[key] = value
    return found


def _exact_integer(digits: str) -> int:
    # Compared by length first: Python refuses to convert very long integers at all.
    number = int(digits) if len(digits) <= 17 else LARGEST_EXACT_INTEGER + 1
    if abs(number) > LARGEST_EXACT_INTEGER:
        raise ArgumentsRefused(
            f"the integer {_quoted(digits)} is too large to be kept exactly (at most {LARGEST_EXACT_INTEGER}); "
            "where it is an identifier, send it as a text"
        )
    return number


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ArgumentsRefused(f"the number {_quoted(digits)} is too large to be kept")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ArgumentsRefused(f"{name} is no JSON number; send a finite number or leave the field out")


def _refuse_unkeepable(root: JsonValue) -> None:
    """Refuse nesting that is too deep, and characters that no database and no other service would take."""
    level: list[tuple[str, JsonValue]] = [("", root)]
    for _ in range(MAX_ARGUMENT_DEPTH + 1):
        below: list[tuple[str, JsonValue]] = []
        for pointer, value in level:
            if isinstance(value, str):
                _refuse_characters(value, pointer)
            elif isinstance(value, dict):
                for key, item in value.items():
                    _refuse_characters(key, f"{pointer} (a key)")
                    below.append((f"{pointer}/{key}", item))
            elif isinstance(value, list):
                below.extend((f"{pointer}/{index}", item) for index, item in enumerate(value))
        if not below:
            return
        level = below
    raise _too_deep()


def _refuse_characters(text: str, pointer: str) -> None:
    if "\x00" in text:
        raise ArgumentsRefused(f"{_place(pointer)}: holds the character U+0000, which cannot be stored; leave it out")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ArgumentsRefused(
            f"{_place(pointer)}: holds half of a surrogate pair, which is no character; send the whole character"
        ) from None


def _too_deep() -> ArgumentsRefused:
    return ArgumentsRefused(f"the arguments are nested more than {MAX_ARGUMENT_DEPTH} levels deep; flatten them")


# --- judging against the tool -----------------------------------------------------------------------------------


def normalise(raw_text: str | None, shape: ToolShape) -> dict[str, JsonValue]:
    """The normal form of the arguments of a call of this tool.

    They are read strictly, validated against the tool's JSON Schema (closed to unknown names where the schema says
    nothing about them), and, where the tool has an arguments model, validated strictly by it; its JSON dump is then
    the normal form. Whole floats become integers. The normal form of a normal form is itself.

    Raises:
        ArgumentsRefused: the arguments are not what the tool takes.
        Misuse: the tool's schema cannot be used.
    """
    args = {key: _whole(value) for key, value in parse_object(raw_text).items()}
    validator = _validator(_schema_text(shape))
    problems = [_problem(error) for error, _ in zip(validator.iter_errors(args), range(_MAX_PROBLEMS), strict=False)]
    if problems:
        missing = "the arguments are empty; " if not args else ""
        raise ArgumentsRefused(missing + "; ".join(problems) + _hint(args, shape))
    _refuse_inexact(args, validator)
    if shape.arguments is not None:
        args = _modelled(args, shape.arguments)
    try:
        rfc8785.dumps(args)
    except rfc8785.CanonicalizationError as fault:
        raise ArgumentsRefused(f"the arguments have no exact JSON form: {str(fault)[:120]}") from None
    return args


def _whole(value: JsonValue) -> JsonValue:
    """The value with whole floats as integers: JSON has one kind of number, and tools expect an int for 1250.0."""
    match value:
        case float() if value.is_integer() and abs(value) <= LARGEST_EXACT_INTEGER:
            return int(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {key: _whole(item) for key, item in value.items()}
        case _:
            return value


def _schema_text(shape: ToolShape) -> str:
    return json.dumps(dict(shape.parameters), sort_keys=True)


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> jsonschema_rs.Validator:
    schema = _closed(json.loads(schema_text), root=True)
    # An older dialect ignores unevaluatedProperties; what is valid in the newest is judged by it.
    newest = {key: value for key, value in schema.items() if key != "$schema"}
    try:
        if jsonschema_rs.meta.is_valid(newest):
            schema = newest
        return jsonschema_rs.validator_for(schema, validate_formats=True, retriever=_refuse_retrieval)
    except ValueError as fault:
        raise Misuse(f"the arguments schema of a tool cannot be used: {str(fault)[:200]}") from fault


def _refuse_retrieval(uri: str) -> NoReturn:
    raise ValueError(f"a schema must be self-contained, but this one refers to {uri}")


def _closed(
    schema: dict[str, JsonValue], *, root: bool = False, has_all_of: bool | None = None
) -> dict[str, JsonValue]:
    """The schema with every object that names its properties closed to other names, unless it says otherwise.

    Branches of ``allOf`` describe one object together and stay open; the object around them is closed as a whole.
    """
    if has_all_of is None:
        has_all_of = '"allOf"' in json.dumps(schema)
    # An object schema that names no properties at all takes none.
    closed = {"properties": {}, **schema} if root else dict(schema)
    for word in ("properties", "$defs", "definitions"):
        children = schema.get(word)
        if isinstance(children, dict) and not (has_all_of and word != "properties"):
            closed[word] = {name: _closed_child(child, has_all_of) for name, child in children.items()}
    closed["items"] = _closed_child(schema.get("items"), has_all_of)
    if "properties" not in schema:
        for word in ("anyOf", "oneOf"):
            branches = schema.get(word)
            if isinstance(branches, list) and not root:
                closed[word] = [_closed_child(branch, has_all_of) for branch in branches]
    if "items" not in schema:
        del closed["items"]
    says = {"additionalProperties", "unevaluatedProperties", "patternProperties"} & schema.keys()
    if (root or "properties" in schema) and not says:
        composed = bool(_COMPOSITION & schema.keys())
        closed["unevaluatedProperties" if composed else "additionalProperties"] = False
    return closed


def _closed_child(child: JsonValue, has_all_of: bool) -> JsonValue:
    return _closed(child, has_all_of=has_all_of) if isinstance(child, dict) else child


def _refuse_inexact(args: dict[str, JsonValue], validator: jsonschema_rs.Validator) -> None:
    """Refuse huge whole floats such as 1e30 where the schema wants an integer: they name no exact integer.

    Which fields want one is asked of the schema itself, by putting a broken number in their place.
    """
    huge: set[str] = set()

    def broken(value: JsonValue, pointer: str) -> JsonValue:
        match value:
            case float() if value.is_integer():
                huge.add(pointer)
                return math.copysign(2**52 - 0.5, value)
            case list():
                return [broken(item, f"{pointer}/{index}") for index, item in enumerate(value)]
            case dict():
                return {key: broken(item, f"{pointer}/{key}") for key, item in value.items()}
            case _:
                return value

    probe = broken(args, "")
    if not huge:
        return
    for error in validator.iter_errors(probe):
        pointer = _pointer(error)
        if pointer in huge and error.kind.name in {"type", "anyOf", "oneOf"}:
            raise ArgumentsRefused(
                f"{_place(pointer)}: too large for an exact integer (at most {LARGEST_EXACT_INTEGER})"
            )


def _modelled(args: dict[str, JsonValue], model: type[BaseModel]) -> dict[str, JsonValue]:
    try:
        checked = model.model_validate_json(json.dumps(args), strict=True)
        dumped: dict[str, JsonValue] = checked.model_dump(mode="json", by_alias=True)
    except ValidationError as fault:
        problems = [
            f"{_place(''.join(f'/{part}' for part in error['loc']))}: {error['msg'][:160]}"
            for error in fault.errors(include_url=False, include_context=False, include_input=False)[:_MAX_PROBLEMS]
        ]
        raise ArgumentsRefused("; ".join(problems)) from None
    except Exception as fault:
        # Arguments that a model wrote must not end the run, even where a tool's own validator breaks on them.
        raise ArgumentsRefused(
            f"the tool's own check could not take these arguments ({type(fault).__name__}); send other values"
        ) from fault
    return {key: _whole(value) for key, value in dumped.items()}


# --- saying what is wrong ---------------------------------------------------------------------------------------


def _problem(error: jsonschema_rs.ValidationError) -> str:
    place, keyword, wanted = _place(_pointer(error)), error.kind.name, error.kind.value
    match keyword:
        case "type":
            types = wanted if isinstance(wanted, list) else [wanted]
            hint = " (do not put JSON text inside quotes)" if _is_quoted_json(error.instance, types) else ""
            return f"{place}: must be of type {' or '.join(map(str, types))}, not {_kind(error.instance)}{hint}"
        case "required":
            return f"{place}: the required field {_quoted(str(wanted))} is missing"
        case "additionalProperties" | "unevaluatedProperties":
            names = ", ".join(_quoted(str(name)) for name in list(wanted)[:3])
            return f"{place}: takes no field named {names}"
        case "falseSchema":
            return f"{place}: takes no value here"
        case "enum":
            return f"{place}: must be one of {_shown(wanted)}"
        case _:
            return f"{place}: does not meet {keyword} {_shown(wanted)}"


def _hint(args: Mapping[str, JsonValue], shape: ToolShape) -> str:
    properties = shape.parameters.get("properties")
    known = list(properties) if isinstance(properties, dict) else []
    if len(args) == 1 and not args.keys() & set(known) and args.keys() & _WRAPPERS:
        return ". Put the fields at the top level, without a wrapper around them"
    fields = ", ".join(known[:12]) if known else "none"
    return f". The fields are: {fields[:300]}"


def _is_quoted_json(instance: object, types: list[object]) -> bool:
    return (
        isinstance(instance, str) and instance.lstrip()[:1] in ("[", "{") and bool({"array", "object"} & set(types))
    )


def _pointer(error: jsonschema_rs.ValidationError) -> str:
    return "".join(f"/{part}" for part in error.instance_path)


def _place(pointer: str) -> str:
    """Where: a JSON pointer in printable characters, shortened."""
    return ascii(pointer[:80])[1:-1] if pointer else "top level"


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")


def _shown(wanted: object) -> str:
    text = json.dumps(wanted, default=str)
    return text if len(text) <= 300 else text[:300] + "…"


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
