"""The refund loop inside a FastAPI app: start a task, look at it, approve what it asks for.

Who somebody is comes from the host's own authentication. Here that is a token in a header; in an app it is whatever
the app has. Nothing in a body can say who acts. Run it from a checkout, next to ``agentic-loop sandbox``:

    .venv/bin/uvicorn --app-dir examples fastapi_app:app --port 8000
    curl localhost:8000/tasks -H 'Authorization: Bearer ravi-token' -H 'Content-Type: application/json' \
        -d '{"goal": "Order 8472 was charged twice, and my refund has not arrived.", "inputs": {"order_id": "8472"}}'
    curl localhost:8000/approvals/apr-... -H 'Authorization: Bearer asha-token' -H 'Content-Type: application/json' \
        -d '{"decision": "approve"}'

``DATABASE_URL``, ``AGENTIC_LOOP_MODEL`` and ``AGENTIC_LOOP_SANDBOX_URL`` are read as everywhere.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, JsonValue

from agentic_loop import (
    LeaseRefused,
    Misuse,
    Outage,
    Principal,
    Runtime,
    TaskState,
    chat_model,
    create_database,
    database_url,
    model_from_settings,
    open_runtime,
)
from agentic_loop.entrypoints.app import services_of
from agentic_loop.graph.loops.refund import refund_loop
from agentic_loop.tools.http import LazyHttpClient

SCOPES = ["orders:read", "refunds:read", "refunds:write", "policy:read", "notifications:write"]
PEOPLE_BY_TOKEN = {
    "ravi-token": Principal(id="ravi", tenant="acme", roles=["support_agent"], scopes=SCOPES),
    "asha-token": Principal(id="asha", tenant="acme", roles=["support_lead"], scopes=SCOPES),
    "gita-token": Principal(id="gita", tenant="globex", roles=["support_lead"], scopes=SCOPES),
}
"""Stands for the login of a real app."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One runtime for the whole app, opened before the first request and closed after the last."""
    database = await asyncio.to_thread(_database)
    services = services_of(os.environ)
    model = chat_model(*model_from_settings(None, os.environ))
    async with (
        LazyHttpClient() as client,
        open_runtime(
            lambda clock, ids: {"refund": refund_loop(services, ids=ids, clock=clock, client=client)},
            database_url=database,
            model=model,
        ) as runtime,
    ):
        app.state.runtime = runtime
        yield


def _database() -> str:
    return os.environ.get("DATABASE_URL") or create_database(database_url(), "agentic_loop_examples")


app = FastAPI(title="Refunds", lifespan=lifespan)


# --- who calls, and what answers -------------------------------------------------------------------------------


def principal(authorization: Annotated[str, Header()] = "") -> Principal:
    """Whoever the token belongs to."""
    person = PEOPLE_BY_TOKEN.get(authorization.removeprefix("Bearer "))
    if person is None:
        raise HTTPException(401, "send Authorization: Bearer and a token that this app has given out")
    return person


def runtime(request: Request) -> Runtime:
    """The app's runtime."""
    opened: Runtime = request.app.state.runtime
    return opened


Caller = Annotated[Principal, Depends(principal)]
FromApp = Annotated[Runtime, Depends(runtime)]


class TaskToStart(BaseModel):
    """What a task is about."""

    goal: str
    inputs: dict[str, str] = {}


class Answer(BaseModel):
    """An answer to a request for approval."""

    decision: Literal["approve", "reject"]
    message: str = ""


class ApprovalToAnswer(BaseModel):
    """The approval that a task waits for."""

    approval_id: str
    required_role: str
    expires_at: str


class TaskView(BaseModel):
    """Where a task stands."""

    task_id: str
    status: str
    reason: str | None
    message: str
    steps: int
    waits_for: ApprovalToAnswer | None

    @classmethod
    def of(cls, state: TaskState) -> "TaskView":
        """What callers may see of a state."""
        waiting = state.approval if state.waiting else None
        return cls(
            task_id=state.task_id,
            status=state.status,
            reason=state.ending.reason if state.ending else None,
            message=state.message,
            steps=state.step_count,
            waits_for=None
            if waiting is None
            else ApprovalToAnswer(
                approval_id=waiting.id,
                required_role=waiting.required_role,
                expires_at=waiting.expires_at.isoformat(),
            ),
        )


# --- the routes ------------------------------------------------------------------------------------------------


@app.post("/tasks", status_code=201)
async def start(task: TaskToStart, caller: Caller, refunds: FromApp) -> TaskView:
    """Start a task and run it until it ends or waits for somebody. An app with long tasks answers first instead."""
    return TaskView.of(await refunds.start("refund", goal=task.goal, inputs=task.inputs, requester=caller))


@app.get("/tasks/{task_id}")
async def read(task_id: str, caller: Caller, refunds: FromApp) -> TaskView:
    """Where a task of the caller's tenant stands."""
    row = await refunds.stores.tasks.get(task_id)
    if row is None or row.tenant != caller.tenant:
        raise HTTPException(404, f"no task is named {task_id}")
    return TaskView.of(await refunds.state(task_id))


@app.post("/approvals/{approval_id}")
async def decide(approval_id: str, answer: Answer, caller: Caller, refunds: FromApp) -> TaskView:
    """Answer a request; the loop's policy says who may. From anybody else it changes nothing."""
    row = await refunds.stores.approvals.find(approval_id)
    if row is None or row.tenant != caller.tenant:
        raise HTTPException(404, f"no approval is named {approval_id}")
    state = await refunds.decide(approval_id, answer.decision, approver=caller, message=answer.message)
    if state.waiting and state.approval is not None and state.approval.id == approval_id:
        raise HTTPException(403, f"{caller.id} may not answer this; a {row.required_role} may")
    return TaskView.of(state)


@app.exception_handler(Misuse)
async def misuse(_request: Request, error: Misuse) -> JSONResponse:
    """What the caller got wrong; the message says what to do."""
    return _problem(409, str(error))


@app.exception_handler(LeaseRefused)
async def busy(_request: Request, error: LeaseRefused) -> JSONResponse:
    """Another worker runs this task at the moment."""
    return _problem(409, str(error))


@app.exception_handler(Outage)
async def outage(_request: Request, _error: Outage) -> JSONResponse:
    """Something is away for now."""
    return _problem(503, "something that this needs is away; try again later")


def _problem(status_code: int, detail: str) -> JSONResponse:
    content: dict[str, JsonValue] = {"detail": detail}
    return JSONResponse(content, status_code)
