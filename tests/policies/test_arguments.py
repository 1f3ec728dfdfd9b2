import json
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ToolShape
from agentic_loop.policies.arguments import (
    LARGEST_EXACT_INTEGER,
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENT_DEPTH,
    ArgumentsRefused,
    normalise,
    parse_object,
)

DATA = Path(__file__).parents[3] / "shared" / "data"


def shape(parameters: dict[str, JsonValue], arguments: type[BaseModel] | None = None) -> ToolShape:
    return ToolShape(name="tool", description="", parameters=parameters, effect="read", scope="", arguments=arguments)


def properties(**fields: JsonValue) -> dict[str, JsonValue]:
    return {"type": "object", "properties": dict(fields)}


# --- reading


@pytest.mark.parametrize("text", [None, "", "  \n"])
def test_nothing_is_an_empty_object(text: str | None) -> None:
    assert parse_object(text) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"order_id":', "not valid JSON"),
        ("null", "null"),
        ("[]", "an array"),
        ("true", "a boolean"),
        ("12", "a number"),
        ('"{}"', "inside quotes"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ('{"o": {"a": 1, "a": 1}}', "occurs twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": 1e400}', "too large"),
        ('{"a": 9007199254740992}', "exactly"),
        ('{"a": ' + "9" * 5000 + "}", "exactly"),
        ('{"a": 1} {"b": 2}', "follows"),
        ('{"a": 1} x', "follows"),
        ('{"a": "x\\u0000y"}', "U+0000"),
        ('{"x\\u0000y": 1}', "U+0000"),
        ('{"a": "\\ud83d"}', "surrogate"),
        ('{"\\udc00": 1}', "surrogate"),
        ('{"a": "x\ny"}', "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
        ('{"a":' * 33 + "1" + "}" * 33, "nested"),
        ('{"a":' + "[" * 5000 + "]" * 5000 + "}", "nested"),
        ('{"a": "' + "x" * MAX_ARGUMENT_BYTES + '"}', "bytes long"),
        ('{"a": "' + "é" * (MAX_ARGUMENT_BYTES // 2) + '"}', "bytes long"),
    ],
)
def test_text_that_is_no_exact_object_is_refused(text: str, says: str) -> None:
    with pytest.raises(ArgumentsRefused) as refused:
        parse_object(text)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 400


def test_the_deepest_accepted_nesting_is_accepted() -> None:
    text = '{"a":' * MAX_ARGUMENT_DEPTH + "1" + "}" * MAX_ARGUMENT_DEPTH
    assert parse_object(text) == json.loads(text)


@given(st.text(max_size=200))
def test_reading_any_text_gives_an_object_or_a_refusal(text: str) -> None:
    try:
        found = parse_object(text)
    except ArgumentsRefused as refused:
        assert str(refused)
    else:
        assert isinstance(found, dict)


# --- judging


AMOUNT = properties(order_id={"type": "string"}, amount={"type": "integer", "minimum": 1}) | {
    "required": ["order_id", "amount"]
}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the arguments are empty"),
        ('{"order_id": "1"}', "required field 'amount' is missing"),
        ('{"order_id": 1, "amount": 2}', "/order_id: must be of type string, not a number"),
        ('{"order_id": "1", "amount": "2"}', "/amount: must be of type integer, not a string"),
        ('{"order_id": "1", "amount": true}', "/amount: must be of type integer, not a boolean"),
        ('{"order_id": "1", "amount": 2.5}', "/amount: must be of type integer"),
        ('{"order_id": "1", "amount": 1e30}', "/amount: too large for an exact integer"),
        ('{"order_id": "1", "amount": 0}', "/amount: does not meet minimum 1"),
        ('{"order_id": "1", "amount": 2, "approved_by": "x"}', "takes no field named 'approved_by'"),
        ('{"parameters": {"order_id": "1", "amount": 2}}', "without a wrapper"),
    ],
)
def test_a_refusal_says_where_and_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(ArgumentsRefused) as refused:
        normalise(text, shape(AMOUNT))
    assert says in str(refused.value)


def test_a_refusal_does_not_echo_long_input() -> None:
    long = "z" * 5000
    for arguments in ({"order_id": {"k": long}, "amount": long}, {long: 1, "order_id": "1", "amount": 2}):
        with pytest.raises(ArgumentsRefused) as refused:
            normalise(json.dumps(arguments), shape(AMOUNT))
        assert str(refused.value).count("z") <= 200


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        properties(a={"type": "integer"}),
        {"$ref": "#/$defs/A", "$defs": {"A": properties(a={"type": "integer"})}},
        {"allOf": [properties(a={"type": "integer"})]},
        {"anyOf": [properties(a={"type": "integer"}), properties(b={"type": "integer"})]},
        {"$schema": "http://json-schema.org/draft-07/schema#", **properties(a={"type": "integer"})},
        {"$schema": "http://json-schema.org/draft-07/schema#", "allOf": [properties(a={"type": "integer"})]},
    ],
)
def test_a_schema_that_is_silent_about_other_names_takes_none(parameters: dict[str, JsonValue]) -> None:
    assert normalise("{}", shape(parameters)) == {}
    with pytest.raises(ArgumentsRefused, match="takes no field named 'approved'"):
        normalise('{"approved": true}', shape(parameters))


def test_nested_objects_that_name_their_fields_are_closed_and_free_maps_stay_open() -> None:
    parameters = properties(
        item=properties(id={"type": "string"}),
        items={"type": "array", "items": properties(id={"type": "string"})},
        maybe={"anyOf": [properties(id={"type": "string"}), {"type": "null"}]},
        labels={"type": "object"},
    )
    good: dict[str, JsonValue] = {"item": {"id": "1"}, "items": [{"id": "1"}], "maybe": None, "labels": {"any": 1}}
    assert normalise(json.dumps(good), shape(parameters)) == good
    for bad in ({"item": {"x": 1}}, {"items": [{"x": 1}]}, {"maybe": {"x": 1}}):
        with pytest.raises(ArgumentsRefused):
            normalise(json.dumps(bad), shape(parameters))


def test_parts_that_describe_one_object_together_stay_usable() -> None:
    parameters: dict[str, JsonValue] = {
        "allOf": [properties(a={"type": "integer"}), {"$ref": "#/$defs/B"}],
        "$defs": {"B": properties(b={"type": "integer"})},
    }
    assert normalise('{"a": 1, "b": 2}', shape(parameters)) == {"a": 1, "b": 2}


def test_a_schema_that_says_that_it_is_open_stays_open() -> None:
    assert normalise('{"x": 1}', shape({"type": "object", "additionalProperties": True})) == {"x": 1}


def test_whole_floats_become_integers_and_others_stay() -> None:
    parameters = properties(n={"type": "integer"}, x={"type": "number"})
    found = normalise('{"n": 1250.0, "x": 6.02e23}', shape(parameters))
    assert found == {"n": 1250, "x": 6.02e23}
    assert isinstance(found["n"], int)
    assert isinstance(found["x"], float)


@pytest.mark.parametrize("parameters", [{"type": "objekt"}, {"$ref": "#/$defs/None"}, {"$ref": "http://localhost/x"}])
def test_a_schema_that_cannot_be_used_is_the_fault_of_who_wrote_it(parameters: dict[str, JsonValue]) -> None:
    with pytest.raises(Misuse, match="schema"):
        normalise("{}", shape(parameters))


# --- with an arguments model


def without_leading_zeros(text: str) -> str:
    return text.lstrip("0") or "0"


class Refund(BaseModel):
    model_config = ConfigDict(extra="forbid")

    order_id: Annotated[str, AfterValidator(without_leading_zeros)]
    amount: int = Field(ge=1, le=10**9)
    ratio: float = 1.0
    on: date | None = None
    kind: Literal["full", "part"] = "full"

    @field_validator("kind")
    @classmethod
    def break_on_part(cls, value: str, info: ValidationInfo) -> str:
        if value == "part":
            raise KeyError("a validator with a fault of its own")
        return value


REFUND = shape(Refund.model_json_schema(), Refund)


def test_the_models_own_normal_form_is_the_normal_form() -> None:
    found = normalise('{"amount": 5.0, "order_id": "08472", "on": "2026-10-20", "ratio": 2}', REFUND)
    assert found == {"order_id": "8472", "amount": 5, "ratio": 2, "on": "2026-10-20", "kind": "full"}
    assert normalise('{"amount": 5, "order_id": "8472", "kind": "full"}', REFUND)["kind"] == "full"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"order_id": "1", "amount": "5"}', "/amount"),
        ('{"order_id": "1", "amount": 5, "on": "tomorrow"}', "/on"),
        ('{"order_id": "1", "amount": 5, "kind": "part"}', "KeyError"),
    ],
)
def test_the_model_is_strict_and_its_faults_never_escape(text: str, says: str) -> None:
    with pytest.raises(ArgumentsRefused, match=says):
        normalise(text, REFUND)


@given(
    st.fixed_dictionaries(
        {
            "order_id": st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00")),
            "amount": st.integers(1, 10**9),
        },
        optional={"ratio": st.floats(allow_nan=False, allow_infinity=False), "on": st.dates().map(str)},
    )
)
def test_the_normal_form_of_a_normal_form_is_itself(arguments: dict[str, JsonValue]) -> None:
    once = normalise(json.dumps(arguments), REFUND)
    assert normalise(json.dumps(once), REFUND) == once


FREE = shape({"type": "object", "additionalProperties": True})
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-LARGEST_EXACT_INTEGER, LARGEST_EXACT_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_the_plain_normal_form_is_equal_to_what_was_sent_and_stable(arguments: dict[str, JsonValue]) -> None:
    text = json.dumps(arguments)
    if "\\u0000" in text.replace("\\\\", ""):
        with pytest.raises(ArgumentsRefused):
            normalise(text, FREE)
        return
    once = normalise(text, FREE)
    assert once == arguments
    assert normalise(json.dumps(once), FREE) == once


# --- what models really send


def rows(name: str) -> list[dict[str, JsonValue]]:
    path = DATA / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared inputs are not here")


@needs_data
def test_every_valid_recorded_call_is_accepted_and_every_invalid_one_refused() -> None:
    wrong: list[str] = []
    for row in rows("bfcl/pairs.jsonl"):
        parameters, invalid = row["parameters"], row["invalid"]
        assert isinstance(parameters, dict)
        assert isinstance(invalid, list)
        tool = shape(parameters)
        assert normalise(json.dumps(row["valid"]), tool) == row["valid"]
        for variant in invalid:
            assert isinstance(variant, dict)
            try:
                normalise(json.dumps(variant["arguments"]), tool)
            except ArgumentsRefused:
                continue
            wrong.append(f"{row['id']}: {variant['kind']} at {variant['path']}")
    assert wrong == []


MALFORMED_TOOLS = {
    tool["name"]: tool for tool in (json.loads((DATA / "malformed_tools.json").read_text()) if DATA.exists() else [])
}


@needs_data
@pytest.mark.parametrize(
    "row",
    [
        row
        for row in rows("malformed_calls.jsonl")
        # Names, prose and cut-off answers are faults of the reply, not of its arguments.
        if row["tool"] in MALFORMED_TOOLS and "content" not in row and "finish_reason" not in row
    ],
    ids=lambda row: f"{row['id']}-{row['kind']}",
)
def test_arguments_as_models_malform_them(row: dict[str, JsonValue]) -> None:
    tool = shape(MALFORMED_TOOLS[row["tool"]]["parameters"])
    raw = row["raw_arguments"]
    assert raw is None or isinstance(raw, str)
    if row["expect"] == "accept":
        found = normalise(raw, tool)
        assert found == row.get("parsed", found)
        return
    with pytest.raises(ArgumentsRefused):
        normalise(raw, tool)
