"""A client that speaks to the services as a tenant."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.conftest import Sandbox

Json = dict[str, Any]

ACME = {"X-Tenant": "acme"}
GLOBEX = {"X-Tenant": "globex"}

REFUND_8472 = {"order_id": "8472", "payment_id": "pay_5a2", "amount_inr": 2000}
MESSAGE = {"recipient": "cust-3391", "channel": "email", "subject": "Your refund", "body": "It is on its way."}


class World:
    """Shorthands over the sandbox's HTTP."""

    def __init__(self, sandbox: Sandbox, client: httpx2.AsyncClient) -> None:
        self.admin = sandbox.admin
        self.client = client
        self.url = sandbox.url

    async def get(self, path: str, **params: str) -> httpx2.Response:
        return await self.client.get(path, params=params or None, headers=ACME)

    async def refund(self, key: str | None, payload: Json = REFUND_8472, tenant: str = "acme") -> httpx2.Response:
        headers = {"X-Tenant": tenant} | ({"Idempotency-Key": key} if key is not None else {})
        return await self.client.post("/refunds", json=payload, headers=headers)

    async def notify(self, key: str, payload: Json = MESSAGE) -> httpx2.Response:
        return await self.client.post("/notifications", json=payload, headers={**ACME, "Idempotency-Key": key})

    async def refunds_of(self, order_id: str) -> list[Json]:
        """What the table holds, whatever the services show."""
        return [refund for refund in (await self.tables())["refunds"] if refund["order_id"] == order_id]

    async def tables(self) -> Json:
        found: Json = (await self.admin.get("/_admin/tables")).raise_for_status().json()
        return found

    async def log(self, **filters: str) -> list[Json]:
        found: list[Json] = (await self.admin.get("/_admin/requests", params=filters)).json()["requests"]
        return found

    async def arm(self, kind: str, operation: str = "POST /refunds", service: str = "refunds", **more: float) -> None:
        fault = {"service": service, "operation": operation, "kind": kind, **more}
        (await self.admin.post("/_admin/faults", json=fault)).raise_for_status()

    async def settings(self, service: str, **change: int | bool) -> None:
        (await self.admin.post("/_admin/settings", json={"service": service, **change})).raise_for_status()

    async def pass_time(self, offset_s: float) -> None:
        (await self.admin.post("/_admin/clock", json={"offset_s": offset_s})).raise_for_status()


@pytest.fixture
async def world(sandbox: Sandbox) -> AsyncIterator[World]:
    async with httpx2.AsyncClient(base_url=sandbox.url, timeout=10.0) as client:
        yield World(sandbox, client)


def refusal_of(response: httpx2.Response) -> tuple[int, str]:
    """The status and error code of a refusal, which must also say what to do."""
    body = response.json()
    assert set(body) == {"error", "message"}
    assert len(body["message"]) > 10
    return response.status_code, body["error"]
