"""A loop of one's own, complete: one tool that reads, one that writes, a policy, and a check of when it is done.

The loop apologises to the customer of an order. The model may read the order and propose the apology; a support lead
must approve each one, it goes to nobody but the customer whom the order names, and no order gets a second one. Run it
from a checkout, next to ``agentic-loop sandbox``:

    AGENTIC_LOOP_SANDBOX_URL=http://127.0.0.1:8472 .venv/bin/python examples/own_loop.py 8473 cust-3402

The model is a script, so that the example needs no key. ``chat_model(ChatOpenAI(...), "openai:gpt-4o-mini")`` in its
place is all that a real one takes.
"""

import asyncio
import os
import sys
from collections.abc import Mapping

from pydantic import BaseModel, JsonValue

from agentic_loop import (
    Completed,
    Contract,
    Incomplete,
    Limits,
    LoopDefinition,
    Principal,
    ServiceClient,
    TaskView,
    ToolContext,
    ToolFault,
    chat_model,
    create_database,
    database_url,
    define_loop,
    lookup_by_key,
    open_runtime,
    tool,
)
from agentic_loop.testing import ScriptedChatModel

SANDBOX = os.environ.get("AGENTIC_LOOP_SANDBOX_URL", "http://127.0.0.1:8472")
ORDERS = ServiceClient(SANDBOX, source="payments-service")
MESSAGES = ServiceClient(SANDBOX, source="notifications-service")


# --- tools: typed functions ------------------------------------------------------------------------------------


@tool(effect="read", scope="orders:read", source=ORDERS.source)
async def read_order(order_id: str, context: ToolContext) -> JsonValue:
    """Read one order: who bought it, and what was paid."""
    if not order_id.isalnum():
        raise ToolFault("invalid_arguments", "an order id has letters and digits only, such as 8473")
    return await ORDERS.read("GET", f"/orders/{order_id}", context)


@tool(
    effect="write",
    scope="messages:write",
    source=MESSAGES.source,
    # What this names happens once, whichever task, worker or retry asks for it.
    idempotency_key="apology:{order_id}:v1",
    # A lost answer is no reason to send again: the service is asked what became of the key.
    reconcile=lookup_by_key(MESSAGES, "/notifications/by-key", member="notification", key_retention_s=86_400),
)
async def send_apology(order_id: str, customer_id: str, text: str, context: ToolContext) -> JsonValue:
    """Send the customer of an order an apology. Propose it alone."""
    message: dict[str, JsonValue] = {
        "recipient": customer_id,
        "channel": "email",
        "subject": f"About your order {order_id}",
        "body": text,
    }
    return await MESSAGES.write("/notifications", message, context)  # sends context.idempotency_key


# --- the policy, and what it may know --------------------------------------------------------------------------

POLICY = """
@id("read-orders")
@reason("Whoever may read orders may let a task read them.")
permit (principal, action == Action::"read_order", resource)
when { principal.scopes.contains("orders:read") };

@id("apology-approved-by-lead")
@reason("Every apology needs the approval of a support lead.")
@clause("Handbook §12")
permit (principal, action == Action::"send_apology", resource)
when {
  principal.scopes.contains("messages:write") &&
  context has approval && context.approval.approver in Role::"support_lead"
};

@id("only-to-the-customer")
@reason("An apology goes to the customer whom the order names: read the order first.")
forbid (principal, action == Action::"send_apology", resource)
unless { context.facts has customer_id && context.facts.customer_id == context.args.customer_id };
"""


class ApologyFacts(BaseModel):
    """What the policy may know about a call; None where no evidence says it."""

    customer_id: str | None = None


def facts(_tool: str, args: Mapping[str, JsonValue], view: TaskView) -> ApologyFacts:
    """The customer of the order, as the newest evidence has it."""
    for record in reversed(view.evidence):
        order = record.payload
        if record.tool == "read_order" and isinstance(order, dict) and order.get("order_id") == args.get("order_id"):
            return ApologyFacts(customer_id=str(order.get("customer_id")))
    return ApologyFacts()


# --- when it is done -------------------------------------------------------------------------------------------


def completion(view: TaskView) -> Completed | Incomplete:
    """Done once the service has confirmed an apology: recorded evidence, whatever the model says."""
    for record in view.evidence:
        if record.tool == "send_apology" and isinstance(record.payload, dict):
            return Completed(f"apology {record.payload.get('notification_id')} was sent ({record.id})")
    return Incomplete("no apology was sent: nothing recorded shows one")


def apology_loop() -> LoopDefinition:
    """The loop, which fails to load where a part does not fit the others."""
    return define_loop(
        contract=Contract(
            name="apology",
            limits=Limits(max_steps=4, max_active_s=60, max_tokens=20_000),
            allowed_tools=["read_order", "send_apology"],
        ),
        tools=[read_order, send_apology],
        policy=POLICY,
        facts=facts,
        completion=completion,
        instructions="Read the order, then apologise to its customer for the delay, in two sentences.",
    )


# --- run it ----------------------------------------------------------------------------------------------------

RAVI = Principal(id="ravi", tenant="acme", scopes=["orders:read", "messages:write"])
ASHA = Principal(id="asha", tenant="acme", roles=["support_lead"])


def scripted(order_id: str, customer_id: str) -> ScriptedChatModel:
    """What a good model would propose, one answer a turn."""
    text = "We are sorry that your order is late. It is on its way now."
    return ScriptedChatModel(
        [
            ("read_order", {"order_id": order_id}),
            ("send_apology", {"order_id": order_id, "customer_id": customer_id, "text": text}),
            ("finish", {"message": "The customer has our apology [ev-2]."}),
        ]
    )


async def main(order_id: str, customer_id: str, database: str) -> None:
    """Start a task, approve what it asks for, and show how it ended."""
    async with open_runtime(
        lambda clock, ids: {"apology": apology_loop()},
        database_url=database,
        model=chat_model(scripted(order_id, customer_id), "script:apology"),
    ) as runtime:
        state = await runtime.start("apology", goal=f"Apologise for the delay of order {order_id}.", requester=RAVI)
        if state.waiting and state.approval is not None:
            print(f"waits for a {state.approval.required_role}")
            state = await runtime.decide(state.approval.id, "approve", approver=ASHA)
        print(state.status, "-", state.ending.detail if state.ending else state.phase)
    await ORDERS.aclose()
    await MESSAGES.aclose()


if __name__ == "__main__":
    DATABASE = os.environ.get("DATABASE_URL") or create_database(database_url(), "agentic_loop_examples")
    ORDER_ID, CUSTOMER_ID = sys.argv[1:3] or ["8473", "cust-3402"]
    asyncio.run(main(ORDER_ID, CUSTOMER_ID, DATABASE))
