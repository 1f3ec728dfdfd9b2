"""The refund loop: finds out what happened to an order that was charged twice, and refunds the later capture.

investigate and propose are the model's; once the refund exists, settle (verify by id, notify) is code's.

Source: DESIGN §2 (phases), §9 (completion); the document's order 8472.
"""

from collections.abc import Mapping
from importlib.resources import files

import httpx2
from pydantic import BaseModel, JsonValue

from agentic_loop.graph.contract import Contract, PhaseRule
from agentic_loop.graph.definition import LoopDefinition
from agentic_loop.graph.ports import Clock, Ids
from agentic_loop.graph.records import TaskView
from agentic_loop.graph.state import Limits
from agentic_loop.policies.authorisation import PolicySet
from agentic_loop.policies.claims import render_claims_removed
from agentic_loop.policies.completion import refund as completion
from agentic_loop.policies.refund_facts import RefundFacts, refund_facts
from agentic_loop.policies.settlement import final_message, next_proposal, phase_of
from agentic_loop.tools.http import LazyHttpClient, ServiceClient, ServiceUrls
from agentic_loop.tools.notifications import NOTIFICATIONS_SERVICE, HttpNotifier
from agentic_loop.tools.refunds import refund_tools
from agentic_loop.tools.registry import ToolRegistry

READS = ["lookup_order", "get_refund_status", "get_refund", "search_policy"]
"""The tools that investigate."""

CONTRACT = Contract(
    name="refund",
    version="1",
    limits=Limits(max_steps=8, max_active_s=120, max_tokens=40_000),
    allowed_tools=[*READS, "issue_refund", "notify_customer"],
    phases=[
        PhaseRule(name="investigate", tools=[*READS, "issue_refund"]),
        PhaseRule(name="propose", tools=[*READS, "issue_refund"]),
        PhaseRule(name="settle", decider="workflow", tools=["issue_refund", "get_refund", "notify_customer"]),
    ],
)
"""Eight steps, 120 seconds of active time, 40,000 tokens."""

INSTRUCTIONS = """\
You work on a customer's complaint about an order that may have been charged twice.
Find out what the systems of record say before you propose anything: which payments were captured, whether a refund
exists, and what the refund policy says. What the customer writes is a claim until a system confirms it.
If the order was captured twice and the later capture has not been refunded, propose issue_refund for the later
payment, for exactly its amount. The runtime obtains any approval that is needed, verifies the refund and notifies
the customer; you do not have to.
If a refund of the later capture exists already, propose finish and say what it is, with its evidence.
If the records do not show a duplicate capture, or you cannot tell which order is meant, ask the user."""
"""What the model is told about its task, before the rules that hold in every loop."""


def refund_loop(
    urls: ServiceUrls,
    *,
    ids: Ids,
    clock: Clock,
    client: httpx2.AsyncClient | LazyHttpClient | None = None,
    contract: Contract = CONTRACT,
) -> LoopDefinition:
    """The refund loop against these services.

    Raises:
        Misuse: a policy, a tool or the contract is not in order; the message says which.
    """
    shared = LazyHttpClient() if client is None else client
    tools = ToolRegistry(refund_tools(urls, shared, present=render_claims_removed))
    notices = ServiceClient(urls.notifications, source=NOTIFICATIONS_SERVICE, client=shared)
    return LoopDefinition(
        contract=contract,
        tools=tools,
        policies=PolicySet.load(
            texts={"refund.cedar": files("agentic_loop.policies").joinpath("refund.cedar").read_text("utf-8")},
            shapes=tools.shapes,
            facts=RefundFacts,
        ),
        instructions=INSTRUCTIONS,
        facts=_facts,
        completion=completion.assess,
        workflow=next_proposal,
        phase_of=phase_of,
        tenant_of=_tenant_of,
        final_message=final_message,
        notifier=HttpNotifier(notices, ids=ids, clock=clock),
    )


def _facts(tool: str, args: Mapping[str, JsonValue], view: TaskView) -> BaseModel:
    return refund_facts(tool, args, view)


def _tenant_of(tool: str, args: Mapping[str, JsonValue], view: TaskView) -> str | None:
    return refund_facts(tool, args, view).order_tenant
