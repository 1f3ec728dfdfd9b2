"""Routers are total: whatever stands in the state, each leads to a node that it is declared to lead to."""

from collections.abc import Callable
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.graph import END

from agentic_loop.entrypoints.diagram import compiled, edges
from agentic_loop.graph.build import NODES
from agentic_loop.graph.routes import ENTRY, ROUTERS
from agentic_loop.graph.state import LoopState, Route

ROUTES: tuple[str, ...] = get_args(Route)

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
"""What can stand where a route belongs, once a checkpoint was edited by hand or written by another version."""

near_misses = st.sampled_from(ROUTES).flatmap(
    lambda route: st.sampled_from([route.upper(), f" {route}", f"{route}\n", f"__{route}__", route[:-1]])
)


def declared(router: Callable[..., str]) -> set[str]:
    """Where a router is declared to lead: the literal that it returns, which LangGraph reads as its edges."""
    returned = get_type_hints(router)["return"]
    assert get_origin(returned) is Literal
    return set(get_args(returned))


def led_to(router: Callable[[LoopState], str], next_value: object) -> str:
    """Where a router leads when this stands in the state as ``next``."""
    state = LoopState()
    state["next"] = next_value  # type: ignore[typeddict-item]  # what a hand-edited checkpoint could hold
    return router(state)


def test_every_node_has_one_router_and_every_router_a_node() -> None:
    assert list(ROUTERS) != []
    assert set(ROUTERS) == set(NODES)
    assert ENTRY in NODES


@pytest.mark.parametrize("name", list(ROUTERS))
def test_a_router_is_named_after_its_node_and_leads_to_nodes(name: str) -> None:
    assert ROUTERS[name].__name__ == f"after_{name}"
    assert declared(ROUTERS[name]) <= {*NODES, END}


@pytest.mark.parametrize("name", list(ROUTERS))
def test_the_compiled_edges_are_those_that_the_router_declares(name: str) -> None:
    assert {target for source, target in edges(compiled()) if source == name} == declared(ROUTERS[name])


@pytest.mark.parametrize("name", list(ROUTERS))
@given(next_value=st.sampled_from(ROUTES) | near_misses | junk)
def test_a_router_is_total(name: str, next_value: object) -> None:
    assert led_to(ROUTERS[name], next_value) in declared(ROUTERS[name])


@pytest.mark.parametrize("name", list(ROUTERS))
def test_every_declared_edge_can_be_taken(name: str) -> None:
    taken = {led_to(ROUTERS[name], route) for route in ROUTES}
    assert taken == declared(ROUTERS[name])


@pytest.mark.parametrize("name", list(ROUTERS))
def test_a_route_that_a_router_declares_is_obeyed(name: str) -> None:
    for route in ROUTES:
        target = END if route == "end" else route
        if target in declared(ROUTERS[name]):
            assert led_to(ROUTERS[name], route) == target


SAFE = {
    "observe": "stop_check",
    "stop_check": "finish",
    "build_input": "stop_check",
    "decide": "stop_check",
    "validate": "stop_check",
    "authorise": "record",
    "request_approval": "stop_check",
    "await_approval": "await_approval",
    "execute": "reconcile",
    "reconcile": "stop_check",
    "record": "stop_check",
    "finish": END,
}
"""Where each node leads when the route means nothing: never to a model call, a dispatch or past an approval."""


@pytest.mark.parametrize("name", list(ROUTERS))
@given(next_value=near_misses | junk)
def test_an_unknown_route_leads_to_the_safe_side(name: str, next_value: object) -> None:
    assert led_to(ROUTERS[name], next_value) == SAFE[name]
