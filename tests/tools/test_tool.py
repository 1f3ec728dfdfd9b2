"""What a declaration refuses, and that nothing but known outcomes leaves a tool that runs."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_loop.graph.errors import Misuse, OutcomeUnknown, ToolFault
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
    json_size_bytes,
    run_call,
    run_precondition,
    run_reconcile,
)

from .support import context

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"order_id": {"type": "string"}, "note": {"type": "string"}, "rate": {"type": "number"}},
    "required": ["order_id", "rate"],
}


def answering(result: object) -> Callable[..., Any]:
    async def call(args: object, given: ToolContext) -> object:
        if isinstance(result, BaseException):
            raise result
        return result

    return call


def spec(**changes: Any) -> ToolSpec:
    fields: dict[str, Any] = {
        "name": "look",
        "description": "Look.",
        "parameters": SCHEMA,
        "call": answering(ToolResult(1)),
        "effect": "read",
        "scope": "s",
        "source": "svc",
    }
    return ToolSpec(**{**fields, **changes})


def write(**changes: Any) -> ToolSpec:
    fields: dict[str, Any] = {
        "effect": "write",
        "idempotency_key": "w:{order_id}:v1",
        "reconcile": Reconcile(kind="lookup", ask=answering(Absent()), key_retention_s=60),
    }
    return spec(**{**fields, **changes})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"idempotency_key": None}, "a write needs idempotency_key"),
    ({"reconcile": None}, "approval_required=True"),
    ({"idempotency_key": "w"}, "at least one argument"),
    ({"idempotency_key": "w:{nothing}"}, "'nothing', which is no argument"),
    ({"idempotency_key": "w:{note}"}, "'note', which is optional"),
    ({"idempotency_key": "w:{rate}"}, "only strings and integers"),
    ({"idempotency_key": "w:{order_id!r}"}, "plain fields"),
    ({"idempotency_key": "w:{order_id:>9}"}, "plain fields"),
    ({"idempotency_key": "w:{order_id"}, "is no template"),
    ({"idempotency_key": "w:{}"}, "which is no argument"),
    ({"idempotency_key": "w:{order_id.__class__}"}, "which is no argument"),
    ({"timeout_s": 0}, "timeout_s must be positive"),
    ({"timeout_s": math.inf}, "timeout_s must be positive and finite"),
    ({"timeout_s": math.nan}, "timeout_s must be positive"),
    ({"max_calls": 0}, "max_calls must be positive"),
    ({"max_attempts": -1}, "max_attempts must be positive"),
    ({"payload_limit_bytes": 0}, "payload_limit_bytes must be positive"),
    ({"cost_bound_micro_usd": -1}, "must not be negative"),
    ({"name": "issue refund"}, "letters, digits"),
    ({"name": ""}, "letters, digits"),
    ({"name": "finish"}, "loop's own actions"),
    ({"parameters": {"type": "array"}}, "type 'object'"),
    ({"parameters": {"type": "object", "properties": {"order_id": {"type": "strin"}}}}, "no valid JSON Schema"),
    (
        {"parameters": {**SCHEMA, "properties": {"order_id": {"$ref": "http://evil/schema"}}}},
        "'http://evil/schema'; only references inside",
    ),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_cannot_be_loaded(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse) as raised:
        write(**changes)
    assert words in str(raised.value)


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(Misuse) as raised:
        write(idempotency_key=None, timeout_s=0, name="no good")
    assert all(words in str(raised.value) for words in ("idempotency_key", "timeout_s", "letters"))


@pytest.mark.parametrize("field", ["idempotency_key", "reconcile", "precondition", "verified_by"])
def test_a_read_takes_nothing_that_belongs_to_writes(field: str) -> None:
    with pytest.raises(Misuse, match=f"only a write takes {field}"):
        spec(**{field: getattr(write(precondition=answering(1), verified_by="look"), field)})


def test_a_write_that_cannot_be_reconciled_loads_behind_an_approval() -> None:
    assert write(reconcile=None, approval_required=True).shape.approval_required


def test_keys_are_made_of_the_arguments() -> None:
    assert write().key_for({"order_id": "8472", "rate": 1}) == "w:8472:v1"
    assert spec().key_for({"order_id": "8472"}) is None


def test_the_shape_says_what_the_declaration_says() -> None:
    shape = write(max_calls=3, cost_bound_micro_usd=7).shape
    assert (shape.name, shape.effect, shape.max_calls, shape.cost_bound_micro_usd) == ("look", "write", 3, 7)


async def test_a_result_comes_back_as_it_is() -> None:
    assert await run_call(spec(call=answering(ToolResult({"a": [1]}, "ref"))), {}, context()) == ToolResult(
        {"a": [1]}, "ref"
    )


DEFECTS: list[tuple[object, str]] = [
    (ValueError("boom"), "tool_defect"),
    (KeyError("x"), "tool_defect"),
    (RecursionError(), "tool_defect"),
    (asyncio.CancelledError(), "tool_defect"),
    (TimeoutError(), "timeout"),
    (None, "tool_defect"),
    ({"not": "a result"}, "tool_defect"),
    (ToolResult((1, 2)), "tool_defect"),  # type: ignore[arg-type]
    (ToolResult({1: 2}), "tool_defect"),  # type: ignore[dict-item]
    (ToolResult(math.nan), "tool_defect"),
    (ToolResult("\ud800"), "tool_defect"),
    (ToolResult(object()), "tool_defect"),  # type: ignore[arg-type]
    (ToolResult("x" * 20_000), "payload_too_large"),
]


@pytest.mark.parametrize(("behaviour", "category"), DEFECTS)
async def test_a_defect_of_a_read_is_a_fault_and_of_a_write_an_unknown_outcome(
    behaviour: object, category: str
) -> None:
    with pytest.raises(ToolFault) as raised:
        await run_call(spec(call=answering(behaviour)), {}, context())
    assert raised.value.category == category
    with pytest.raises(OutcomeUnknown):
        await run_call(write(call=answering(behaviour)), {}, context(key="k"))


async def test_a_known_fault_passes_unchanged() -> None:
    fault = ToolFault("not_found", "no such order")
    for tool, given_context in (
        (spec(call=answering(fault)), context()),
        (write(call=answering(fault)), context(key="k")),
    ):
        with pytest.raises(ToolFault) as raised:
            await run_call(tool, {}, given_context)
        assert raised.value is fault


async def test_a_read_has_no_unknown_outcome() -> None:
    with pytest.raises(ToolFault) as raised:
        await run_call(spec(call=answering(OutcomeUnknown("?"))), {}, context())
    assert raised.value.category == "tool_defect"


async def test_a_function_that_is_not_async_is_a_defect_too() -> None:
    with pytest.raises(ToolFault) as raised:
        await run_call(spec(call=lambda args, given: ToolResult(1)), {}, context())
    assert raised.value.category == "tool_defect"


async def test_the_deadline_ends_a_tool_that_hangs() -> None:
    async def hang(args: object, given: ToolContext) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    with pytest.raises(ToolFault) as raised:
        await run_call(spec(call=hang), {}, context(timeout_s=0.02))
    assert (raised.value.category, raised.value.retryable) == ("timeout", True)
    with pytest.raises(OutcomeUnknown):
        await run_call(write(call=hang), {}, context(key="k", timeout_s=0.02))


async def test_a_cancelled_caller_stays_cancelled() -> None:
    begun = asyncio.Event()

    async def hang(args: object, given: ToolContext) -> ToolResult:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    work = asyncio.ensure_future(run_call(spec(call=hang), {}, context()))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_a_write_without_a_key_is_not_called() -> None:
    with pytest.raises(Misuse, match="needs the idempotency key"):
        await run_call(write(), {}, context())


def asking(behaviour: object) -> ToolSpec:
    return write(reconcile=Reconcile(kind="lookup", ask=answering(behaviour), key_retention_s=60))


async def test_what_a_reconcile_may_answer() -> None:
    found = Found(ToolResult(1))
    assert await run_reconcile(asking(found), {}, context(key="k")) == found
    assert await run_reconcile(asking(Absent()), {}, context(key="k")) == Absent()
    assert isinstance(await run_reconcile(asking(OutcomeUnknown("lost")), {}, context(key="k")), Undecided)
    nothing = write(reconcile=None, approval_required=True)
    assert isinstance(await run_reconcile(nothing, {}, context(key="k")), Undecided)


@pytest.mark.parametrize("behaviour", [None, {}, ValueError("x"), Found(ToolResult(math.inf)), Found(None)])  # type: ignore[arg-type]
async def test_a_defective_reconcile_never_says_absent(behaviour: object) -> None:
    with pytest.raises(ToolFault) as raised:
        await run_reconcile(asking(behaviour), {}, context(key="k"))
    assert raised.value.category == "tool_defect"


async def test_preconditions() -> None:
    broken = PreconditionBroken("gone", {}, "svc")
    assert await run_precondition(write(), {}, context()) == PreconditionHeld()
    assert await run_precondition(write(precondition=answering(broken)), {}, context()) == broken
    for behaviour in (None, True, ValueError("x"), OutcomeUnknown("wrote")):
        with pytest.raises(ToolFault) as raised:
            await run_precondition(write(precondition=answering(behaviour)), {}, context())
        assert raised.value.category == "tool_defect"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_all_json_has_a_size(payload: object) -> None:
    size_bytes = json_size_bytes(payload)
    assert size_bytes is not None
    assert size_bytes >= 1


def test_endless_nesting_is_no_json() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert json_size_bytes(endless) is None
