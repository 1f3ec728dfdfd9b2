import pytest

from agentic_loop.graph.errors import Misuse
from agentic_loop.tools.registry import ToolRegistry

from .test_tool import spec, write


def test_tools_are_found_by_exact_name_only() -> None:
    registry = ToolRegistry([spec(name="lookup_order"), spec(name="get_refund")])
    assert registry.get("lookup_order") is registry.require(["lookup_order"])[0]
    for near in ("lookup_orders", "Lookup_order", " lookup_order", "functions.lookup_order", ""):
        assert registry.get(near) is None
        assert near not in registry
    assert [tool.name for tool in registry] == ["lookup_order", "get_refund"]
    assert list(registry.shapes) == ["lookup_order", "get_refund"]
    assert len(registry) == 2


def test_two_tools_of_one_name_are_misuse() -> None:
    with pytest.raises(Misuse, match="two tools are named 'look'"):
        ToolRegistry([spec(), spec()])


def test_what_is_required_and_missing_is_named_with_the_nearest() -> None:
    registry = ToolRegistry([spec(name="lookup_order"), spec(name="get_refund")])
    with pytest.raises(Misuse) as raised:
        registry.require(["lookup_order", "lookup_ordr", "fly"])
    words = str(raised.value)
    assert "'lookup_ordr' (did you mean 'lookup_order'?), 'fly'." in words
    assert "Registered: get_refund, lookup_order." in words
    with pytest.raises(Misuse, match="Registered: none"):
        ToolRegistry([]).require(["x"])


def test_required_tools_come_in_the_order_asked_for() -> None:
    registry = ToolRegistry([spec(name="a"), spec(name="b")])
    assert [tool.name for tool in registry.require(["b", "a"])] == ["b", "a"]


def test_the_registry_cannot_be_changed_from_outside() -> None:
    shapes = ToolRegistry([spec(name="a")]).shapes
    with pytest.raises(TypeError):
        shapes["b"] = shapes["a"]  # type: ignore[index]


def test_a_verification_must_be_a_registered_read() -> None:
    with pytest.raises(Misuse, match=r"not registered \(did you mean 'get_refund'"):
        ToolRegistry([write(name="pay", verified_by="get_refunt"), spec(name="get_refund")])
    with pytest.raises(Misuse, match="no read"):
        ToolRegistry([write(name="pay", verified_by="pay2"), write(name="pay2")])
    ToolRegistry([write(name="pay", verified_by="get_refund"), spec(name="get_refund")])
