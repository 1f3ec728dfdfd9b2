"""The FastAPI example over HTTP, in a process of its own, against the sandbox in another."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentic_loop.sandbox.server import SandboxProcess
from tests.conftest import DatabaseMaker, Sandbox

from .processes import ROOT, serving

GOAL = "Order 8472 was charged twice, and my refund has not arrived."


@pytest.fixture(scope="module")
def app_url(
    make_database: DatabaseMaker, sandbox_process: SandboxProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(ROOT / "examples"), "fastapi_app:app", "--port", "0"]
    output: Path = tmp_path_factory.mktemp("fastapi") / "output.txt"
    settings = {"DATABASE_URL": make_database(), "AGENTIC_LOOP_SANDBOX_URL": sandbox_process.url}
    with serving(command, settings=settings, announces=r"running on (http://\S+)", output=output) as url:
        yield url
    printed = output.read_text("utf-8")
    assert "Traceback" not in printed, printed


@pytest.fixture
async def app(app_url: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=app_url, timeout=30.0) as client:
        yield client


def as_(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-token"}


async def start(app: httpx2.AsyncClient, order_id: str = "8472") -> dict[str, Any]:
    begun = await app.post("/tasks", json={"goal": GOAL, "inputs": {"order_id": order_id}}, headers=as_("ravi"))
    assert begun.status_code == 201, begun.text
    task: dict[str, Any] = begun.json()
    return task


async def refunds(sandbox: Sandbox) -> list[tuple[str, int]]:
    tables = (await sandbox.admin.get("/_admin/tables")).json()
    return [(row["payment_id"], row["amount_inr"]) for row in tables["refunds"] if row["order_id"] == "8472"]


async def test_only_an_entitled_person_of_the_tenant_moves_the_money_and_only_once(
    app: httpx2.AsyncClient, sandbox: Sandbox
) -> None:
    task = await start(app)
    assert (task["status"], task["waits_for"]["required_role"]) == ("AWAITING_APPROVAL", "support_lead")
    where = f"/approvals/{task['waits_for']['approval_id']}"

    by_nobody = await app.post(where, json={"decision": "approve"})
    by_requester = await app.post(where, json={"decision": "approve"}, headers=as_("ravi"))
    by_other_tenant = await app.post(where, json={"decision": "approve"}, headers=as_("gita"))
    claiming = {"decision": "approve", "approver": "asha", "principal": {"id": "asha", "roles": ["support_lead"]}}
    by_claim = await app.post(where, json=claiming, headers=as_("ravi"))
    assert [answer.status_code for answer in (by_nobody, by_requester, by_other_tenant, by_claim)] == [
        401,
        403,
        404,
        403,
    ]
    assert await refunds(sandbox) == []

    approved = await app.post(where, json={"decision": "approve"}, headers=as_("asha"))
    assert (approved.status_code, approved.json()["status"]) == (200, "SUCCEEDED")
    assert await refunds(sandbox) == [("pay_5a2", 2000)]

    twice = await app.post(where, json={"decision": "approve"}, headers=as_("asha"))
    assert twice.status_code == 409
    assert "approved by asha" in twice.json()["detail"]
    assert await refunds(sandbox) == [("pay_5a2", 2000)]
    read = (await app.get(f"/tasks/{task['task_id']}", headers=as_("ravi"))).json()
    assert (read["status"], read["reason"], read["waits_for"]) == ("SUCCEEDED", "completed", None)
    assert "INR 2,000" in read["message"]


async def test_a_task_is_seen_by_its_own_tenant_only(app: httpx2.AsyncClient, sandbox: Sandbox) -> None:
    task = await start(app, "8473")
    where = f"/tasks/{task['task_id']}"
    assert (await app.get(where, headers=as_("asha"))).json()["status"] == "NEEDS_INPUT"
    assert (await app.get(where, headers=as_("gita"))).status_code == 404
    assert (await app.get("/tasks/task-unheard", headers=as_("asha"))).status_code == 404
    assert (await app.get(where)).status_code == 401


async def test_a_task_without_a_goal_is_the_callers_mistake(app: httpx2.AsyncClient, sandbox: Sandbox) -> None:
    refused = await app.post("/tasks", json={"goal": "  "}, headers=as_("ravi"))
    assert refused.status_code == 409
    assert "give the task a goal" in refused.json()["detail"]
