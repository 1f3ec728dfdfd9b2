"""The refund loop as an ordinary LangGraph graph in a script of one's own: invoke, interrupt, resume.

It starts the sandbox's services, compiles the graph with a checkpointer, runs the task of order 8472 up to the
approval, and resumes it as a support lead. Run it from a checkout:

    .venv/bin/python examples/embed_script.py

``DATABASE_URL`` names the database (else an embedded Postgres is started), ``AGENTIC_LOOP_MODEL`` the model (else the
rehearsal model), ``AGENTIC_LOOP_SANDBOX_URL`` a sandbox that runs already.
"""

import asyncio
import os
import uuid

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from agentic_loop import (
    Principal,
    RandomIds,
    SystemClock,
    acting_as,
    build_graph,
    chat_model,
    create_database,
    database_url,
    model_from_settings,
    open_stores,
    ports_on,
)
from agentic_loop.graph.loops.refund import refund_loop
from agentic_loop.sandbox.server import start_sandbox_process
from agentic_loop.tools.http import LazyHttpClient, ServiceUrls

SCOPES = ["orders:read", "refunds:read", "refunds:write", "policy:read", "notifications:write"]
RAVI = Principal(id="ravi", tenant="acme", roles=["support_agent"], scopes=SCOPES)
ASHA = Principal(id="asha", tenant="acme", roles=["support_lead"])


async def main(database: str, sandbox_url: str) -> None:
    """Run the task of order 8472 to its end."""
    clock, ids = SystemClock(), RandomIds()
    model = chat_model(*model_from_settings(None, os.environ))
    async with open_stores(database) as stores, LazyHttpClient() as client:
        loop = refund_loop(ServiceUrls.all_at(sandbox_url), ids=ids, clock=clock, client=client)
        graph = build_graph(loop, ports_on(stores, model=model, clock=clock, ids=ids), stores.saver)

        # One task is one thread. Whoever is named by acting_as is who asks, or who approves.
        thread: RunnableConfig = {"configurable": {"thread_id": f"task-{uuid.uuid4().hex[:12]}"}}
        with acting_as(RAVI):
            result = await graph.ainvoke(
                {
                    "goal": "Order 8472 was charged twice, and my refund has not arrived.",
                    "inputs": {"order_id": "8472"},
                },
                thread,
            )

        # An answer names its approval. It could be given a day later, by another process on the same database.
        for interrupt in result.get("__interrupt__", []):
            request = interrupt.value
            print("waits for:", request["action_requests"][0]["description"])
            answer = {"approval_id": request["approval_id"], "decisions": [{"type": "approve"}]}
            with acting_as(ASHA):
                result = await graph.ainvoke(Command(resume={interrupt.id: answer}), thread)
        print(result["status"])
        print(result["message"])


if __name__ == "__main__":
    DATABASE = os.environ.get("DATABASE_URL") or create_database(database_url(), "agentic_loop_examples")
    if running := os.environ.get("AGENTIC_LOOP_SANDBOX_URL"):
        asyncio.run(main(DATABASE, running))
    else:
        with start_sandbox_process(DATABASE) as sandbox:
            asyncio.run(main(DATABASE, sandbox.url))
