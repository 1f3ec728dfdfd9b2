"""The loop as a part of somebody else's graph: its interrupt is the parent's, and so is the answer to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from agentic_loop import (
    LoopGraph,
    Principal,
    RandomIds,
    Stores,
    SystemClock,
    acting_as,
    build_graph,
    chat_model,
    model_from_settings,
    open_stores,
    ports_on,
)
from agentic_loop.graph.loops.refund import refund_loop
from agentic_loop.graph.state import Status
from agentic_loop.tools.http import LazyHttpClient, ServiceUrls
from tests.conftest import DatabaseMaker, Sandbox

SCOPES = ["orders:read", "refunds:read", "refunds:write", "policy:read", "notifications:write"]
RAVI = Principal(id="ravi", tenant="acme", roles=["support_agent"], scopes=SCOPES)
ASHA = Principal(id="asha", tenant="acme", roles=["support_lead"])
GOAL = "Order 8472 was charged twice, and my refund has not arrived."


class Ticket(TypedDict, total=False):
    """The parent's state; the channels that it shares with the loop have the loop's names."""

    order_id: str
    goal: str
    inputs: dict[str, str]
    status: Status
    message: str
    log: list[str]


async def triage(state: Ticket) -> Ticket:
    return {"goal": GOAL, "inputs": {"order_id": state["order_id"]}, "log": ["triage"]}


async def close(state: Ticket) -> Ticket:
    return {"log": [*state["log"], f"closed as {state['status']}"]}


@asynccontextmanager
async def loop_on(url: str, sandbox_url: str) -> AsyncIterator[tuple[LoopGraph, Stores]]:
    clock, ids = SystemClock(), RandomIds()
    async with open_stores(url) as stores, LazyHttpClient() as client:
        loop = refund_loop(ServiceUrls.all_at(sandbox_url), ids=ids, clock=clock, client=client)
        model = chat_model(*model_from_settings("rehearsal", {}))
        yield build_graph(loop, ports_on(stores, model=model, clock=clock, ids=ids)), stores


def as_a_node(loop: LoopGraph, stores: Stores) -> Any:
    """The compiled loop added as a node: it shares channels with the parent."""
    graph = StateGraph(Ticket)
    graph.add_node("triage", triage)
    graph.add_node("refund", loop)
    graph.add_node("close", close)
    graph.add_edge(START, "triage")
    graph.add_edge("triage", "refund")
    graph.add_edge("refund", "close")
    graph.add_edge("close", END)
    return graph.compile(checkpointer=stores.saver)


def called_in_a_node(loop: LoopGraph, stores: Stores) -> Any:
    """The compiled loop invoked by a node of the parent, which translates between the two states."""

    async def refund(state: Ticket) -> Ticket:
        ended = await loop.ainvoke({"goal": GOAL, "inputs": {"order_id": state["order_id"]}})
        return {"status": ended["status"], "message": ended["message"]}

    graph = StateGraph(Ticket)
    graph.add_node("triage", triage)
    graph.add_node("refund", refund)
    graph.add_node("close", close)
    graph.add_edge(START, "triage")
    graph.add_edge("triage", "refund")
    graph.add_edge("refund", "close")
    graph.add_edge("close", END)
    return graph.compile(checkpointer=stores.saver)


@pytest.mark.parametrize("embedded", [as_a_node, called_in_a_node])
async def test_a_parent_graph_sees_the_interrupt_and_resumes_it(
    embedded: Any, make_database: DatabaseMaker, sandbox: Sandbox
) -> None:
    url = make_database()
    thread: RunnableConfig = {"configurable": {"thread_id": f"ticket-{embedded.__name__}"}}
    async with loop_on(url, sandbox.url) as (loop, stores):
        parent = embedded(loop, stores)
        with acting_as(RAVI):
            paused = await parent.ainvoke({"order_id": "8472"}, thread)
        [interrupt] = paused["__interrupt__"]
        assert interrupt.value["action_requests"][0]["name"] == "issue_refund"
        assert (await parent.aget_state(thread)).next == ("refund",)
        assert await refunds(sandbox) == []

    # Another process would go on in the same way: nothing but the database is left of the first.
    async with loop_on(url, sandbox.url) as (loop, stores):
        parent = embedded(loop, stores)
        [interrupt] = (await parent.aget_state(thread)).interrupts
        answer = {"approval_id": interrupt.value["approval_id"], "decisions": [{"type": "approve"}]}
        with acting_as(ASHA):
            ended = await parent.ainvoke(Command(resume=answer), thread)
        assert ended["status"] == "SUCCEEDED"
        assert "INR 2,000" in ended["message"]
        assert ended["log"] == ["triage", "closed as SUCCEEDED"]
        assert await refunds(sandbox) == [("pay_5a2", 2000)]


async def refunds(sandbox: Sandbox) -> list[tuple[str, int]]:
    tables = (await sandbox.admin.get("/_admin/tables")).json()
    return [(row["payment_id"], row["amount_inr"]) for row in tables["refunds"] if row["order_id"] == "8472"]
