import pytest
from pydantic import JsonValue

from agentic_loop.models.strict_schema import strict_form
from agentic_loop.policies.reply import CONTROL_SHAPES


def closed(**properties: JsonValue) -> dict[str, JsonValue]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


TEXT: JsonValue = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        (closed(), closed()),
        (closed(a=TEXT), closed(a=TEXT)),
        (closed(a={"type": "string", "maxLength": 3, "title": "A", "default": "x"}), closed(a=TEXT)),
        (closed(a={"type": "string", "format": "uuid"}), closed(a={"type": "string", "format": "uuid"})),
        (closed(a={"type": "string", "format": "order-id"}), closed(a=TEXT)),
        (closed(a={"type": "integer", "minimum": 1}), closed(a={"type": "integer", "minimum": 1})),
        (closed(a=closed(b=TEXT)), closed(a=closed(b=TEXT))),
        (
            closed(a={"type": "array", "items": closed(b=TEXT), "uniqueItems": True}),
            closed(a={"type": "array", "items": closed(b=TEXT)}),
        ),
        (closed(a={"anyOf": [TEXT, {"type": "null"}]}), closed(a={"anyOf": [TEXT, {"type": "null"}]})),
        (
            {**closed(a={"$ref": "#/$defs/B"}), "$defs": {"B": closed(c=TEXT)}},
            {**closed(a={"$ref": "#/$defs/B"}), "$defs": {"B": closed(c=TEXT)}},
        ),
    ],
)
def test_what_can_be_enforced(schema: dict[str, JsonValue], form: dict[str, JsonValue]) -> None:
    assert strict_form(schema) == form


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string"},
        {"type": "object"},
        {**closed(a=TEXT), "required": []},
        {**closed(a=TEXT), "additionalProperties": True},
        {**closed(a=TEXT), "additionalProperties": TEXT},
        {**closed(a=TEXT), "patternProperties": {"^x": TEXT}},
        closed(a={"type": "object"}),
        closed(a={"properties": {"b": TEXT}}),
        closed(a={"type": "array", "items": {"type": "object", "properties": {"b": TEXT}}}),
        closed(a={"oneOf": [TEXT]}),
        closed(a={"anyOf": [TEXT, {"type": "object"}]}),
        closed(a={"not": TEXT}),
        {**closed(a={"$ref": "#/$defs/B"}), "$defs": {"B": {"type": "object"}}},
        closed(a=closed(a=closed(a=closed(a=closed(a=closed(a=TEXT)))))),
    ],
)
def test_what_cannot(schema: dict[str, JsonValue]) -> None:
    assert strict_form(schema) is None


def test_the_control_tools_can_be_enforced() -> None:
    for shape in CONTROL_SHAPES.values():
        assert strict_form(shape.parameters) is not None
