"""The world of a scenario: a runtime in this process, the sandbox and the approver in processes of their own.

Assertions read the services' own tables and request logs over HTTP, never the loop's state alone.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import JsonValue

from agentic_loop.entrypoints.app import PEOPLE
from agentic_loop.graph.contract import Contract
from agentic_loop.graph.definition import LoopDefinition
from agentic_loop.graph.loops.refund import CONTRACT, refund_loop
from agentic_loop.graph.ports import Clock, Ids
from agentic_loop.graph.records import ModelUsage
from agentic_loop.graph.run import Runtime, TaskState, open_runtime
from agentic_loop.graph.state import Limits, Principal
from agentic_loop.graph.system import RandomIds
from agentic_loop.models.chat_model import LangChainModel
from agentic_loop.models.pricing import FixedPricing
from agentic_loop.models.rehearsal import RehearsalChatModel
from agentic_loop.testing.clock import FakeClock
from agentic_loop.testing.models import ScriptedChatModel
from agentic_loop.tools.http import LazyHttpClient, ServiceUrls
from tests.conftest import Sandbox

GOAL = "Order 8472 was charged twice, and my refund has not arrived. Please investigate and resolve it."
RAVI, ASHA, MEERA, GITA, NINA = (PEOPLE[name] for name in ("ravi", "asha", "meera", "gita", "nina"))
APPROVER_TIMEOUT_S = 60

LOOKUP = ("lookup_order", {"order_id": "8472"})
STATUS = ("get_refund_status", {"order_id": "8472"})
POLICY = ("search_policy", {"query": "duplicate card capture refund approval threshold"})
REFUND: tuple[str, dict[str, JsonValue]] = (
    "issue_refund",
    {"order_id": "8472", "payment_id": "pay_5a2", "amount_inr": 2000},
)
INVESTIGATION = [LOOKUP, STATUS, POLICY]


@dataclass(frozen=True)
class World:
    """One scenario's surroundings. ``model`` is None where the rehearsal model decides."""

    runtime: Runtime
    sandbox: Sandbox
    database_url: str
    clock: FakeClock
    model: ScriptedChatModel | None

    async def start(self, goal: str = GOAL, *, requester: Principal = RAVI, **inputs: str) -> TaskState:
        return await self.runtime.start("refund", goal=goal, inputs=inputs, requester=requester)

    async def tables(self) -> dict[str, Any]:
        """The services' own rows."""
        response = await self.sandbox.admin.get("/_admin/tables")
        tables: dict[str, Any] = response.raise_for_status().json()
        return tables

    async def refunds(self, order_id: str = "8472") -> list[dict[str, Any]]:
        return [row for row in (await self.tables())["refunds"] if row["order_id"] == order_id]

    async def customer_notices(self) -> list[dict[str, Any]]:
        """What customers were told; notices to roles are left out."""
        rows = (await self.tables())["notifications"]
        return [row for row in rows if not row["recipient"].startswith("role:")]

    async def role_notices(self) -> list[dict[str, Any]]:
        rows = (await self.tables())["notifications"]
        return [row for row in rows if row["recipient"].startswith("role:")]

    async def requests(self, method: str | None = None, path: str | None = None) -> list[dict[str, Any]]:
        """The services' request log, oldest first; paths match by prefix."""
        response = await self.sandbox.admin.get("/_admin/requests")
        log = response.raise_for_status().json()
        rows: list[dict[str, Any]] = log["requests"] if isinstance(log, dict) else log
        return [
            row
            for row in rows
            if (method is None or row["method"] == method) and (path is None or row["path"].startswith(path))
        ]

    async def fault(self, service: str, operation: str, kind: str, **more: Any) -> None:
        """Let the sandbox fail on demand."""
        body = {"service": service, "operation": operation, "kind": kind, **more}
        (await self.sandbox.admin.post("/_admin/faults", json=body)).raise_for_status()

    async def put_order(self, order: Mapping[str, Any]) -> None:
        (await self.sandbox.admin.post("/_admin/orders", json=dict(order))).raise_for_status()

    async def answer_elsewhere(self, *command: str, expect: Sequence[int] | None = None) -> dict[str, Any]:
        """Run an ``agentic-loop`` command as another process on the same database and services; its JSON object."""
        return await command_elsewhere(self.database_url, self.sandbox.url, *command, expect=expect)

    async def packet(self, task: TaskState) -> dict[str, Any]:
        packet = await self.runtime.packet(task.task_id)
        assert isinstance(packet, dict)
        return dict(packet)


async def command_elsewhere(
    database_url: str,
    sandbox_url: str,
    *command: str,
    expect: Sequence[int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run ``agentic-loop COMMAND --json`` as a process of its own, and return the object that it prints."""
    settings = {**os.environ, "DATABASE_URL": database_url, "AGENTIC_LOOP_SANDBOX_URL": sandbox_url}
    settings.pop("OPENAI_API_KEY", None)
    settings.update(environment or {})
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "agentic_loop.entrypoints.cli", *command, "--json"],
        env=settings,
        capture_output=True,
        text=True,
        timeout=APPROVER_TIMEOUT_S,
        check=False,
    )
    if expect is not None:
        assert done.returncode in expect, f"exit {done.returncode}: {done.stdout} {done.stderr}"
    printed: dict[str, Any] = json.loads(done.stdout)
    return {**printed, "exit_code": done.returncode}


@asynccontextmanager
async def open_world(
    sandbox: Sandbox,
    database_url: str,
    script: Sequence[Any] | None = None,
    *,
    limits: Mapping[str, Any] | None = None,
    contract: Contract = CONTRACT,
    clock: FakeClock | None = None,
    ids: Ids | None = None,
    urls: ServiceUrls | None = None,
    pricing: FixedPricing | None = None,
    usages: Sequence[ModelUsage | None] = (),
    adapt: Callable[[LoopDefinition], LoopDefinition] | None = None,
) -> AsyncIterator[World]:
    """A runtime of the refund loop on this sandbox; with a script the model says exactly that.

    The clock starts at the real present, so that a process with a real clock agrees about what has expired.
    ``adapt`` changes the loop before it is built, for example its tools' time-outs.
    """
    ticking = clock or FakeClock(datetime.now(UTC))
    bounded = contract.model_copy(update={"limits": Limits(**{**contract.limits.model_dump(), **(limits or {})})})
    scripted = ScriptedChatModel(list(script), usages) if script is not None else None
    model = LangChainModel(
        scripted or RehearsalChatModel(),
        "scripted" if scripted else "rehearsal",
        pricing or FixedPricing(Decimal(1), Decimal(1)),
    )
    async with LazyHttpClient() as client:

        def define(the_clock: Clock, the_ids: Ids) -> dict[str, LoopDefinition]:
            services = urls or ServiceUrls.all_at(sandbox.url)
            loop = refund_loop(services, ids=the_ids, clock=the_clock, client=client, contract=bounded)
            return {"refund": adapt(loop) if adapt is not None else loop}

        async with open_runtime(
            define, database_url=database_url, model=model, clock=ticking, ids=ids or RandomIds()
        ) as runtime:
            yield World(runtime, sandbox, database_url, ticking, scripted)
