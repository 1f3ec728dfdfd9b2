"""The two public ways to declare a tool."""

import threading
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, JsonValue

from agentic_loop.graph.errors import Misuse, OutcomeUnknown, ToolFault
from agentic_loop.tools.define import schema_of, tool, tool_from_schema
from agentic_loop.tools.tool import Absent, Reconcile, ToolContext, ToolResult, run_call

from .support import context


async def absent(args: object, given: ToolContext) -> Absent:
    return Absent()


LOOKUP = Reconcile(kind="lookup", ask=absent, key_retention_s=60)


@tool(effect="read", scope="weather:read", source="weather-service", max_calls=2)
async def forecast(
    city: Annotated[str, Field(description="Its name.")], day: date, unit: Literal["C", "F"] = "C"
) -> JsonValue:
    """Say what the weather will be."""
    return {"city": city, "day": day.isoformat(), "weekday": day.weekday(), "unit": unit}


def test_the_signature_becomes_a_strict_schema() -> None:
    assert forecast.name == "forecast"
    assert forecast.description == "Say what the weather will be."
    assert (forecast.scope, forecast.source, forecast.max_calls) == ("weather:read", "weather-service", 2)
    assert forecast.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city", "day"],
        "properties": {
            "city": {"type": "string", "description": "Its name."},
            "day": {"type": "string", "format": "date"},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        },
    }


async def test_arguments_arrive_as_the_function_s_types() -> None:
    result = await run_call(forecast, {"city": "Pune", "day": "2026-10-28"}, context())
    assert result == ToolResult({"city": "Pune", "day": "2026-10-28", "weekday": 2, "unit": "C"})


@pytest.mark.parametrize(
    "args",
    [
        {"city": "Pune"},
        {"city": 5, "day": "2026-10-28"},
        {"city": "Pune", "day": "soon"},
        {"city": "Pune", "day": "2026-10-28", "unit": "K"},
        {"city": "Pune", "day": "2026-10-28", "extra": 1},
    ],
)
async def test_what_the_signature_does_not_take_never_reaches_the_function(args: dict[str, Any]) -> None:
    with pytest.raises(ToolFault) as raised:
        await run_call(forecast, args, context())
    assert raised.value.category == "invalid_arguments"


def test_the_normal_form_is_the_model_s() -> None:
    assert forecast.arguments is not None
    normal = forecast.arguments.model_validate_json('{"day":"2026-10-28","city":"Pune"}').model_dump(mode="json")
    assert normal == {"city": "Pune", "day": "2026-10-28", "unit": "C"}


async def test_a_sync_function_runs_in_a_thread_of_its_own() -> None:
    @tool(effect="read", scope="s", source="svc")
    def where() -> JsonValue:
        """Say in which thread."""
        return threading.get_ident()

    assert (await run_call(where, {}, context())).payload != threading.get_ident()


async def test_the_deadline_does_not_wait_for_a_thread_that_hangs() -> None:
    release = threading.Event()

    @tool(effect="read", scope="s", source="svc")
    def hang() -> JsonValue:
        """Hang."""
        release.wait(10)
        return None

    try:
        with pytest.raises(ToolFault) as raised:
            await run_call(hang, {}, context(timeout_s=0.05))
        assert raised.value.category == "timeout"
    finally:
        release.set()


async def test_the_context_is_given_and_not_shown() -> None:
    @tool(
        effect="write",
        scope="s",
        source="svc",
        idempotency_key="w:{a}",
        reconcile=LOOKUP,
        name="write_it",
        description="Write it.",
    )
    async def anything(a: int, told: ToolContext) -> JsonValue:
        return [a, told.idempotency_key]

    assert anything.name == "write_it"
    assert anything.parameters["properties"] == {"a": {"type": "integer"}}
    assert (await run_call(anything, {"a": 1}, context(key="w:1"))).payload == [1, "w:1"]


async def test_models_and_results_may_be_returned() -> None:
    class Weather(BaseModel):
        on: date

    @tool(effect="read", scope="s", source="svc")
    async def modelled() -> Weather:
        """Return a model."""
        return Weather(on=date(2026, 10, 28))

    @tool(effect="read", scope="s", source="svc")
    async def referenced() -> ToolResult:
        """Return a result."""
        return ToolResult("x", "DOC v1")

    assert await run_call(modelled, {}, context()) == ToolResult({"on": "2026-10-28"})
    assert await run_call(referenced, {}, context()) == ToolResult("x", "DOC v1")


async def test_what_a_function_raises_never_escapes() -> None:
    @tool(effect="read", scope="s", source="svc")
    def broken() -> JsonValue:
        """Break."""
        raise ZeroDivisionError("oh")

    @tool(effect="write", scope="s", source="svc", idempotency_key="w:{a}", reconcile=LOOKUP)
    async def broken_write(a: str, given: ToolContext) -> JsonValue:
        """Break."""
        raise ZeroDivisionError("oh")

    with pytest.raises(ToolFault) as raised:
        await run_call(broken, {}, context())
    assert raised.value.category == "tool_defect"
    with pytest.raises(OutcomeUnknown, match="ZeroDivisionError"):
        await run_call(broken_write, {"a": "x"}, context(key="w:x"))


def no_docstring(a: int) -> JsonValue:
    return a


def no_annotation(a) -> JsonValue:  # type: ignore[no-untyped-def]
    """Say nothing of a."""
    return str(a)


def unknown_annotation(a: "Nowhere") -> JsonValue:  # type: ignore[name-defined]  # noqa: F821
    """Name a type that is not there."""
    return str(a)


def many(*a: int) -> JsonValue:
    """Take many."""
    return list(a)


def named_anyhow(**a: int) -> JsonValue:
    """Take anything."""
    return dict(a)


def position(a: int, /) -> JsonValue:
    """Take one by position."""
    return a


def reserved(copy: str) -> JsonValue:
    """Use a name that pydantic has."""
    return copy


def unschematic(a: threading.Event) -> JsonValue:
    """Take what JSON does not have."""
    return a.is_set()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_docstring, "needs a docstring"),
        (no_annotation, "needs an annotation"),
        (unknown_annotation, "cannot be resolved"),
        (many, "ordinary named parameter"),
        (named_anyhow, "ordinary named parameter"),
        (position, "ordinary named parameter"),
        (reserved, "choose another"),
        (unschematic, "no JSON Schema"),
    ],
)
def test_functions_that_cannot_be_tools(function: Any, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        tool(effect="read", scope="s", source="svc")(function)


def test_a_write_must_be_able_to_send_its_key() -> None:
    def pay(a: str) -> JsonValue:
        """Pay."""
        return a

    with pytest.raises(Misuse, match="cannot send context"):
        tool(effect="write", scope="s", source="svc", idempotency_key="w:{a}", reconcile=LOOKUP)(pay)
    tool(effect="write", scope="s", source="svc", idempotency_key="w:{a}", approval_required=True)(pay)


def test_an_argument_named_title_stays() -> None:
    class Book(BaseModel):
        title: str

    schema = schema_of(Book)
    assert schema["properties"] == {"title": {"type": "string"}}
    assert "title" not in schema


PARAMETERS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
}


async def test_a_schema_and_a_callable_make_a_tool() -> None:
    def double(arguments: Any, given: ToolContext) -> JsonValue:
        return [arguments["a"] * 2, given.tenant]

    async def later(arguments: Any, given: ToolContext) -> ToolResult:
        return ToolResult(arguments["a"], "ref")

    sync = tool_from_schema("double", "Double it.", PARAMETERS, double, effect="read", scope="s", source="svc")
    eventual = tool_from_schema("later", "Later.", PARAMETERS, later, effect="read", scope="s", source="svc")
    assert await run_call(sync, {"a": 2}, context()) == ToolResult([4, "acme"])
    assert await run_call(eventual, {"a": 2}, context()) == ToolResult(2, "ref")
    assert sync.parameters == {**PARAMETERS, "additionalProperties": False}
    assert sync.arguments is None


def echo(arguments: Any, given: ToolContext) -> object:
    return arguments


def test_an_open_schema_stays_open() -> None:
    parameters: dict[str, JsonValue] = {**PARAMETERS, "additionalProperties": True}
    spec = tool_from_schema("open", "Open.", parameters, echo, effect="read", scope="s", source="x")
    assert spec.parameters["additionalProperties"] is True


def test_a_schema_that_is_none_is_misuse() -> None:
    with pytest.raises(Misuse, match="type 'object'"):
        tool_from_schema("bad", "Bad.", {"type": "string"}, echo, effect="read", scope="s", source="x")
