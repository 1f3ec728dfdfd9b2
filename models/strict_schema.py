"""Which argument schemas a provider can enforce while it decodes, and the form in which it accepts them.

Source: OpenAI's structured outputs: closed objects in which every property is required, and a subset of keywords.
"""

from collections.abc import Mapping

from pydantic import JsonValue

_KEPT = frozenset(
    {
        "type",
        "description",
        "enum",
        "const",
        "pattern",
        "format",
        "multipleOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minItems",
        "maxItems",
        "required",
        "$ref",
    }
)
# These only narrow or describe. The runtime validates against the full schema, so an offer can do without them.
_DROPPED = frozenset({"title", "default", "examples", "minLength", "maxLength", "uniqueItems", "$schema", "$comment"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_MAX_DEPTH = 5


def strict_form(parameters: Mapping[str, JsonValue]) -> dict[str, JsonValue] | None:
    """The schema as strict decoding accepts it, or None where it cannot be enforced (an optional property, say)."""
    if parameters.get("type") != "object":
        return None
    return _form(parameters, depth=0)


def _form(schema: Mapping[str, JsonValue], depth: int) -> dict[str, JsonValue] | None:
    if depth > _MAX_DEPTH:
        return None
    form: dict[str, JsonValue] = {}
    for keyword, value in schema.items():
        if keyword in _DROPPED or (keyword == "format" and value not in _FORMATS):
            continue
        if keyword in _KEPT:
            form[keyword] = value
            continue
        if keyword == "additionalProperties" and value is False:
            form[keyword] = False
            continue
        nested = _nested(keyword, value, depth)
        if nested is None:
            return None
        form[keyword] = nested
    return form if _is_closed(form) else None


def _nested(keyword: str, value: JsonValue, depth: int) -> JsonValue | None:
    match keyword, value:
        case (("properties" | "$defs"), dict()):
            forms = {
                name: _form(schema, depth + 1) if isinstance(schema, dict) else None for name, schema in value.items()
            }
            return None if None in forms.values() else dict(forms)
        case "items", dict():
            return _form(value, depth + 1)
        case "anyOf", list():
            choices = [_form(schema, depth + 1) if isinstance(schema, dict) else None for schema in value]
            return None if None in choices or not choices else list(choices)
        case _:
            return None


def _is_closed(form: Mapping[str, JsonValue]) -> bool:
    kind = form.get("type")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind) and "properties" not in form:
        return True
    properties, required = form.get("properties", {}), form.get("required", [])
    return (
        form.get("additionalProperties") is False
        and isinstance(properties, dict)
        and isinstance(required, list)
        and set(properties) == {name for name in required if isinstance(name, str)}
    )
