"""Checkpoints come back as they went in, and nothing that is planted in them is ever run."""

import asyncio
import types
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Literal, Union, get_args, get_origin

import ormsgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_METHOD_SINGLE_ARG,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
)
from langgraph.graph import END, START, StateGraph
from langgraph.types import Interrupt
from pydantic import JsonValue

from agentic_loop.graph.errors import Defect
from agentic_loop.graph.state import PERSISTED_TYPES, LoopState, Usage, Value
from agentic_loop.graph.store.database import open_pool
from agentic_loop.graph.store.saver import StrictSerializer, open_saver
from agentic_loop.graph.store.stores import Stores

from .samples import fresh, task

SERIALIZER = StrictSerializer()
whole_numbers = st.integers(-(2**63), 2**63 - 1)
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | whole_numbers | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


def values_of(annotation: object) -> st.SearchStrategy[object]:
    """Values of one field type of the state."""
    plain: dict[object, st.SearchStrategy[object]] = {
        JsonValue: json_values,
        str: st.text(),
        int: whole_numbers,
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        type(None): st.none(),
        datetime: st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(fold=0)),
    }
    if annotation in plain:
        return plain[annotation]
    inner = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is Literal:
            return st.sampled_from(inner)
        case origin if origin is list:
            return st.lists(values_of(inner[0]), max_size=3)
        case origin if origin is dict:
            return st.dictionaries(st.text(), values_of(inner[1]), max_size=3)
        case origin if origin in (Union, types.UnionType):
            return st.one_of([values_of(one) for one in inner])
        case _:
            assert isinstance(annotation, type)
            assert issubclass(annotation, Value)
            return filled(annotation)


def filled(persisted: type[Value]) -> st.SearchStrategy[object]:
    """Instances of a class of the state with every field filled."""
    fields = {name: values_of(field.annotation) for name, field in persisted.model_fields.items()}
    return st.builds(persisted, **fields)


# --- exact ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persisted", PERSISTED_TYPES, ids=lambda persisted: persisted.__name__)
def test_every_class_of_the_state_reads_back_identical(persisted: type[Value]) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(filled(persisted))
    def reads_back(value: Value) -> None:
        for written in (value, [value, value]):
            assert repr(SERIALIZER.loads_typed(SERIALIZER.dumps_typed(written))) == repr(written)

    reads_back()


def test_the_values_that_langgraph_itself_stores_stay_readable() -> None:
    for value in (
        None,
        b"bytes",
        "text",
        7,
        [1.5, {"a": None}],
        Interrupt(value={"a": 1}, id="i"),
        AIMessage("hello"),
    ):
        assert SERIALIZER.loads_typed(SERIALIZER.dumps_typed(value)) == value


async def test_a_graphs_state_reads_back_from_postgres(stores: Stores) -> None:
    written: LoopState = {
        "task": task(fresh("task"), goal="odd \x00 text"),
        "message": "a NUL \x00, the escape \x10 and ₹",
        "version": 3,
        "status": "RUNNING",
        "usage": Usage(input_tokens=5, calls_per_tool={"lookup_order": 1}),
        "evidence": [],
        "ending": None,
    }

    async def write(state: LoopState) -> LoopState:
        return written

    graph = StateGraph(LoopState)
    graph.add_node("write", write)
    graph.add_edge(START, "write")
    graph.add_edge("write", END)
    compiled = graph.compile(checkpointer=stores.saver)
    config: RunnableConfig = {"configurable": {"thread_id": fresh("thread")}}
    goal = "goal with NUL \x00"
    await compiled.ainvoke({"goal": goal}, config)
    assert (await compiled.aget_state(config)).values == written | {"goal": goal}
    history = [snapshot.values async for snapshot in compiled.aget_state_history(config)]
    assert history[0] == written | {"goal": goal}
    assert history[1] == {"goal": goal}


# --- strict -----------------------------------------------------------------------------------------------------

RUN: list[object] = []


class Planted:
    """What an attacker would like to have constructed or called."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        RUN.append(args or kwargs)

    @classmethod
    def model_validate_json(cls, value: object) -> None:
        RUN.append(value)


def _blob(code: int, *parts: object) -> tuple[str, bytes]:
    return "msgpack", ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(parts)))


@pytest.mark.parametrize(
    ("code", "name", "argument"),
    [
        (EXT_CONSTRUCTOR_SINGLE_ARG, "Planted", "x"),
        (EXT_CONSTRUCTOR_POS_ARGS, "Planted", ["x"]),
        (EXT_CONSTRUCTOR_KW_ARGS, "Planted", {"x": 1}),
        (EXT_METHOD_SINGLE_ARG, "Planted", "x"),
        (EXT_PYDANTIC_V1, "Planted", {"x": 1}),
        (EXT_PYDANTIC_V2, "Planted", {"x": 1}),
    ],
)
def test_a_blob_that_names_another_class_comes_back_as_plain_data(code: int, name: str, argument: object) -> None:
    RUN.clear()
    assert SERIALIZER.loads_typed(_blob(code, __name__, name, argument, "model_validate_json")) == argument
    assert RUN == []


def test_a_planted_class_inside_a_value_of_ours_is_not_made() -> None:
    RUN.clear()
    planted = ormsgpack.Ext(EXT_CONSTRUCTOR_SINGLE_ARG, ormsgpack.packb((__name__, "Planted", "x")))
    values = {"kind": planted, "key": "k", "action_hash": "h", "status": "proposed"}
    blob = _blob(EXT_PYDANTIC_V2, "agentic_loop.graph.state", "OutstandingAction", values, "model_validate_json")
    assert "kind='x'" in repr(SERIALIZER.loads_typed(blob))
    assert RUN == []


def test_the_probe_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the strict list the same blob does run: the tests above can fail."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    RUN.clear()
    trusting = JsonPlusSerializer(allowed_msgpack_modules=True)
    trusting.loads_typed(_blob(EXT_CONSTRUCTOR_SINGLE_ARG, __name__, "Planted", "x"))
    assert RUN == [("x",)]


@pytest.mark.parametrize("kind", ["pickle", "json", "yaml"])
def test_kinds_that_are_never_written_are_never_read(kind: str) -> None:
    with pytest.raises(Defect, match=f"kind '{kind}'"):
        SERIALIZER.loads_typed((kind, b"{}"))


def test_a_value_of_ours_that_is_not_valid_is_a_defect_and_not_a_half_made_object() -> None:
    module, name = Usage.__module__, "Usage"
    for wrong in ({"input_tokens": "many"}, {"no_such_field": 1}, ["not", "a", "mapping"]):
        with pytest.raises(Defect, match="Usage"):
            SERIALIZER.loads_typed(_blob(EXT_PYDANTIC_V2, module, name, wrong, "model_validate_json"))


def test_bytes_that_are_no_msgpack_are_a_defect() -> None:
    with pytest.raises(Defect, match="cannot be read"):
        SERIALIZER.loads_typed(("msgpack", b"\xc1"))


def test_the_list_is_closed() -> None:
    RUN.clear()
    wider = SERIALIZER.with_msgpack_allowlist([Planted])
    assert wider.loads_typed(_blob(EXT_CONSTRUCTOR_SINGLE_ARG, __name__, "Planted", "x")) == "x"
    assert RUN == []


# --- set up -----------------------------------------------------------------------------------------------------


async def test_the_tables_are_set_up_once_by_however_many(make_database: Callable[[], str]) -> None:
    url = make_database()
    async with AsyncExitStack() as stack:
        pools = [await stack.enter_async_context(await open_pool(url, max_size=1)) for _ in range(6)]
        savers = await asyncio.gather(*map(open_saver, pools))
        async with pools[0].connection() as link:
            rows = await (await link.execute("SELECT v FROM checkpoint_migrations ORDER BY v")).fetchall()
        assert [row["v"] for row in rows] == list(range(len(savers[0].MIGRATIONS)))
