"""Wires a loop definition and the ports into a compiled LangGraph graph.

Source: DESIGN §2 (nodes), §7 (durability), §10 (layers).
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeAlias, get_type_hints

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from pydantic import TypeAdapter, ValidationError

from agentic_loop.nodes.authorise import authorise
from agentic_loop.nodes.await_approval import await_approval
from agentic_loop.nodes.build_input import build_input
from agentic_loop.nodes.decide import decide
from agentic_loop.nodes.execute import execute
from agentic_loop.nodes.finish import finish
from agentic_loop.nodes.observe import observe
from agentic_loop.nodes.reconcile import reconcile
from agentic_loop.nodes.record import record
from agentic_loop.nodes.request_approval import request_approval
from agentic_loop.nodes.stop_check import stop_check
from agentic_loop.nodes.validate import validate

from .definition import LoopDefinition, NodeContext, Ports
from .errors import Misuse
from .routes import ENTRY, ROUTERS
from .state import LoopInput, LoopOutput, LoopState, Meter, Usage

Node: TypeAlias = Callable[[LoopState, NodeContext], Awaitable[LoopState]]
"""One step of the loop: gather through ports, ask a policy, return a partial state."""

LoopGraph: TypeAlias = CompiledStateGraph[LoopState, None, LoopInput, LoopOutput]
"""A compiled loop: an ordinary LangGraph graph."""

NODES: dict[str, Node] = {
    "observe": observe,
    "build_input": build_input,
    "decide": decide,
    "validate": validate,
    "authorise": authorise,
    "request_approval": request_approval,
    "await_approval": await_approval,
    "execute": execute,
    "reconcile": reconcile,
    "record": record,
    "stop_check": stop_check,
    "finish": finish,
}
"""The steps of the loop by name."""

SUPERSTEPS_PER_STEP = 12
"""How many node runs one loop step takes at most, for LangGraph's recursion limit (which is not a safety bound)."""


def build_graph(
    loop: LoopDefinition, ports: Ports, checkpointer: BaseCheckpointSaver[str] | None = None
) -> LoopGraph:
    """The compiled graph of a loop.

    Without a checkpointer the graph can be embedded in a parent graph, or loaded by LangGraph Server, which brings
    its own. Durability is ``sync`` unless a caller overrides it; no safety property depends on it.

    Source: DESIGN §7.
    """
    graph = StateGraph(LoopState, input_schema=LoopInput, output_schema=LoopOutput)
    for name, node in NODES.items():
        graph.add_node(name, RunnableLambda(_step(node, loop, ports), name=name))
    graph.add_edge(START, ENTRY)
    for name, router in ROUTERS.items():
        graph.add_conditional_edges(name, router)
    compiled = graph.compile(checkpointer=checkpointer, name=loop.contract.name)
    limits = loop.contract.limits
    supersteps = SUPERSTEPS_PER_STEP * (limits.max_steps + limits.max_rechecks + 4)
    bound = compiled.with_config(recursion_limit=supersteps, configurable={"__pregel_durability": "sync"})
    assert isinstance(bound, CompiledStateGraph)
    return bound


def _step(
    node: Node, loop: LoopDefinition, ports: Ports
) -> Callable[[LoopState, RunnableConfig], Awaitable[LoopState]]:
    """A node as LangGraph calls it: with the task's lease held and active time counted."""

    async def step(state: LoopState, config: RunnableConfig) -> LoopState:
        task_id = _task_id(config)
        fence = await ports.lease.acquire(task_id)
        context = NodeContext(loop=loop, ports=ports, task_id=task_id, fence=fence)
        entered = _metered(_typed(state), fence, context.now())
        try:
            update = await node(entered, context)
        except GraphInterrupt:
            await ports.lease.release(task_id)
            raise
        if update.get("next") == "end":
            await ports.lease.release(task_id)
        return _counted(entered, update, context.now())

    step.__name__ = getattr(node, "__name__", "step")
    step.__doc__ = node.__doc__
    return step


def _task_id(config: RunnableConfig) -> str:
    """The task is the thread; inside a parent graph it is the thread and the place of this call in it.

    A parent may call a loop again, or two loops, on one thread: each call is a task of its own.
    """
    configurable = config.get("configurable", {})
    thread_id = configurable.get("thread_id")
    if not isinstance(thread_id, str) or not thread_id:
        raise Misuse('a task needs a thread: pass config={"configurable": {"thread_id": "..."}}')
    inside, _, _ = str(configurable.get("checkpoint_ns", "")).rpartition("|")
    return f"{thread_id}/{inside}" if inside else thread_id


def _typed(state: LoopState) -> LoopState:
    """The state with values that somebody edited as plain data (in Studio, or over the API) made typed again.

    Raises:
        Misuse: an edited value is not what its channel holds.
    """
    edited = {name: value for name, value in state.items() if name in _CHANNELS and _is_plain(value)}
    if not edited:
        return state
    typed = LoopState(**state)
    for name, value in edited.items():
        try:
            typed[name] = _CHANNELS[name].validate_python(value)  # type: ignore[literal-required]  # a channel's name
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(str(part) for part in problem["loc"])
            raise Misuse(f"the state was edited, and {name} is not usable: {where}: {problem['msg']}") from error
    return typed


def _is_plain(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


_PLAIN_CHANNELS = frozenset({"inputs", "added_inputs", "resumption", "prompt"})
"""Channels that hold plain data by design, and the one that is never stored."""

_CHANNELS: dict[str, TypeAdapter[object]] = {
    name: TypeAdapter(kind) for name, kind in get_type_hints(LoopState).items() if name not in _PLAIN_CHANNELS
}


def _metered(state: LoopState, fence: int, now: datetime) -> LoopState:
    """The state with the time since the last node counted as active; a new fence begins a new stretch."""
    usage = state.get("usage") or Usage()
    meter = state.get("meter")
    elapsed_ms = _between_ms(meter.marked_at, now) if meter is not None and meter.fence == fence else 0
    counted = usage.model_copy(update={"active_ms": usage.active_ms + elapsed_ms})
    entered = LoopState(**state)
    entered["usage"] = counted
    entered["meter"] = Meter(fence=fence, marked_at=now)
    return entered


def _counted(entered: LoopState, update: LoopState, now: datetime) -> LoopState:
    """The node's update with the time that the node itself took counted as active."""
    usage = update.get("usage") or entered["usage"]
    meter = entered["meter"]
    active_ms = usage.active_ms + _between_ms(meter.marked_at, now)
    left = LoopState(**update)
    left["usage"] = usage.model_copy(update={"active_ms": active_ms})
    left["meter"] = Meter(fence=meter.fence, marked_at=now)
    return left


def _between_ms(earlier: datetime, later: datetime) -> int:
    """Milliseconds between two instants; a clock that went backwards counts as no time."""
    return max(0, int((later - earlier).total_seconds() * 1_000))
