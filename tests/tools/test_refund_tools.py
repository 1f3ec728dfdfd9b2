"""The refund loop's tools against the real sandbox, over TCP."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import jsonschema_rs
import pytest
from pydantic import ValidationError

from agentic_loop.graph.errors import OutcomeUnknown, ToolFault
from agentic_loop.tools.http import LazyHttpClient, ServiceUrls
from agentic_loop.tools.refunds import refund_tools
from agentic_loop.tools.registry import ToolRegistry
from agentic_loop.tools.tool import (
    Absent,
    Found,
    PreconditionBroken,
    PreconditionHeld,
    ToolResult,
    run_call,
    run_precondition,
    run_reconcile,
)

from ..conftest import Sandbox
from .support import context, patience_s

KEY = "refund:order-8472:pay_5a2:v1"
REFUND: Mapping[str, Any] = {"order_id": "8472", "payment_id": "pay_5a2", "amount_inr": 2000}
MESSAGE: Mapping[str, Any] = {
    "recipient": "cust-3391",
    "subject": "Your refund",
    "body": "It is on its way.",
    "reference": "refund:rf_9001",
}


@pytest.fixture
async def tools(sandbox: Sandbox) -> AsyncIterator[ToolRegistry]:
    async with LazyHttpClient() as client:
        yield ToolRegistry(refund_tools(ServiceUrls.all_at(sandbox.url), client))


async def call(tools: ToolRegistry, name: str, args: Mapping[str, Any], **given: Any) -> ToolResult:
    [spec] = tools.require([name])
    return await run_call(spec, args, context(**given))


async def refunds_of(sandbox: Sandbox) -> list[dict[str, Any]]:
    tables = (await sandbox.admin.get("/_admin/tables")).json()
    return [refund for refund in tables["refunds"] if refund["order_id"] == "8472"]


async def arm(sandbox: Sandbox, service: str, operation: str, kind: str) -> None:
    fault = {"service": service, "operation": operation, "kind": kind, "delay_s": 5}
    (await sandbox.admin.post("/_admin/faults", json=fault)).raise_for_status()


async def test_the_document_s_order(tools: ToolRegistry, sandbox: Sandbox) -> None:
    order = (await call(tools, "lookup_order", {"order_id": "8472"})).payload
    assert isinstance(order, dict)
    assert (order["customer_id"], order["total_inr"]) == ("cust-3391", 2000)
    assert [payment["payment_id"] for payment in order["payments"]] == ["pay_5a1", "pay_5a2"]  # type: ignore[index, union-attr, call-overload]
    assert (await call(tools, "get_refund_status", {"order_id": "8472"})).payload == {
        "order_id": "8472",
        "refunds": [],
    }
    found = await call(tools, "search_policy", {"query": "duplicate card capture refund approval threshold"})
    assert found.ref == "POL-REF-004 v4 section 3.2"
    log = (await sandbox.admin.get("/_admin/requests")).json()["requests"]
    assert [(entry["method"], entry["path"]) for entry in log] == [
        ("GET", "/orders/8472"),
        ("GET", "/refunds"),
        ("POST", "/policy/search"),
    ]
    assert {(entry["tenant"], entry["request_id"], entry["idempotency_key"]) for entry in log} == {
        ("acme", "req-1", None)
    }


async def test_a_search_without_a_passage_has_no_reference(tools: ToolRegistry) -> None:
    assert await call(tools, "search_policy", {"query": "zeppelin"}) == ToolResult({"passages": []})


@pytest.mark.parametrize(
    ("name", "args", "tenant", "category"),
    [
        ("lookup_order", {"order_id": "0000"}, "acme", "not_found"),
        ("lookup_order", {"order_id": "8472"}, "globex", "forbidden"),
        ("get_refund_status", {"order_id": "8472"}, "globex", "forbidden"),
        ("get_refund", {"refund_id": "rf_1"}, "acme", "not_found"),
        ("lookup_order", {"order_id": "8472"}, "", "rejected"),
    ],
)
async def test_refused_reads(
    tools: ToolRegistry, name: str, args: Mapping[str, Any], tenant: str, category: str
) -> None:
    with pytest.raises(ToolFault) as raised:
        await call(tools, name, args, tenant=tenant)
    assert (raised.value.category, raised.value.retryable) == (category, False)


@pytest.mark.parametrize(
    ("kind", "category"),
    [
        ("timeout_before_commit", "timeout"),
        ("drop_before_commit", "unavailable"),
        ("error_before_commit", "unavailable"),
        ("garbage", "garbage"),
    ],
)
async def test_faults_of_reads(tools: ToolRegistry, sandbox: Sandbox, kind: str, category: str) -> None:
    await arm(sandbox, "payments-service", "GET /orders/{order_id}", kind)
    with pytest.raises(ToolFault) as raised:
        await call(tools, "lookup_order", {"order_id": "8472"}, timeout_s=2 * patience_s(kind))
    assert (raised.value.category, raised.value.retryable) == (category, True)


async def test_one_refund_made_and_read_back(tools: ToolRegistry, sandbox: Sandbox) -> None:
    [issue] = tools.require(["issue_refund"])
    assert issue.key_for(REFUND) == KEY
    assert await run_precondition(issue, REFUND, context()) == PreconditionHeld()
    made = await call(tools, "issue_refund", REFUND, key=KEY)
    assert isinstance(made.payload, dict)
    assert (made.payload["refund_id"], made.payload["status"]) == ("rf_9001", "pending")
    assert await call(tools, "get_refund", {"refund_id": "rf_9001"}) == made
    again = await call(tools, "issue_refund", REFUND, key=KEY)
    assert again == made
    assert len(await refunds_of(sandbox)) == 1
    broken = await run_precondition(issue, REFUND, context())
    assert isinstance(broken, PreconditionBroken)
    assert broken.payload == {"payment_id": "pay_5a2", "refunds": [made.payload]}
    assert broken.source == "refunds-service"


@pytest.mark.parametrize(
    ("args", "category"),
    [
        ({**REFUND, "amount_inr": 2500}, "conflict"),
        ({**REFUND, "order_id": "0000"}, "not_found"),
        ({**REFUND, "payment_id": "pay_0"}, "not_found"),
    ],
)
async def test_refused_refunds(tools: ToolRegistry, sandbox: Sandbox, args: Mapping[str, Any], category: str) -> None:
    if category == "conflict":
        await call(tools, "issue_refund", REFUND, key=KEY)
    before = await refunds_of(sandbox)
    with pytest.raises(ToolFault) as raised:
        await call(tools, "issue_refund", args, key=KEY)
    assert raised.value.category == category
    assert await refunds_of(sandbox) == before


async def test_too_large_a_refund_is_rejected(tools: ToolRegistry) -> None:
    with pytest.raises(ToolFault, match="at most INR 2000") as raised:
        await call(tools, "issue_refund", {**REFUND, "amount_inr": 2001}, key=KEY)
    assert raised.value.category == "rejected"


WRITE_FAULTS = [
    ("timeout_before_commit", 0),
    ("timeout_after_commit", 1),
    ("drop_before_commit", 0),
    ("drop_after_commit", 1),
    ("error_before_commit", 0),
    ("error_after_commit", 1),
    ("garbage", 1),
]


@pytest.mark.parametrize(("kind", "effects"), WRITE_FAULTS)
async def test_a_lost_refund_is_looked_up_by_its_key(
    tools: ToolRegistry, sandbox: Sandbox, kind: str, effects: int
) -> None:
    [issue] = tools.require(["issue_refund"])
    await arm(sandbox, "refunds-service", "POST /refunds", kind)
    with pytest.raises(OutcomeUnknown):
        await run_call(issue, REFUND, context(key=KEY, timeout_s=2 * patience_s(kind)))
    answer = await run_reconcile(issue, REFUND, context(key=KEY))
    held = await refunds_of(sandbox)
    assert len(held) == effects
    assert answer == (Found(ToolResult(held[0])) if effects else Absent())
    assert await run_reconcile(issue, REFUND, context(key=KEY, tenant="globex")) == Absent()


@pytest.mark.parametrize(("kind", "effects"), WRITE_FAULTS)
async def test_a_lost_message_is_looked_up_by_its_key(
    tools: ToolRegistry, sandbox: Sandbox, kind: str, effects: int
) -> None:
    [notify] = tools.require(["notify_customer"])
    key = notify.key_for(MESSAGE)
    assert key == "notify:refund:rf_9001:v1"
    await arm(sandbox, "notifications-service", "POST /notifications", kind)
    with pytest.raises(OutcomeUnknown):
        await run_call(notify, MESSAGE, context(key=key, timeout_s=2 * patience_s(kind)))
    answer = await run_reconcile(notify, MESSAGE, context(key=key))
    tables = (await sandbox.admin.get("/_admin/tables")).json()
    assert tables["counts"]["notifications"] == effects
    assert isinstance(answer, Found if effects else Absent)


async def test_a_service_without_lookup_leaves_it_undecided(tools: ToolRegistry, sandbox: Sandbox) -> None:
    settings = {"service": "refunds", "lookup_by_key": False}
    (await sandbox.admin.post("/_admin/settings", json=settings)).raise_for_status()
    [issue] = tools.require(["issue_refund"])
    answer = await run_reconcile(issue, REFUND, context(key=KEY))
    assert "lookup_not_offered" in getattr(answer, "detail", "")


async def test_the_declared_retention_is_the_services_own(tools: ToolRegistry, sandbox: Sandbox) -> None:
    for name, service in (("issue_refund", "refunds"), ("notify_customer", "notifications")):
        [spec] = tools.require([name])
        declared = (await sandbox.admin.get("/capabilities", params={"service": service})).json()
        assert spec.reconcile is not None
        assert spec.reconcile.key_retention_s == declared["idempotency_key_retention_s"]


NORMAL: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    ("lookup_order", {"order_id": " 8472\n"}, {"order_id": "8472"}),
    ("lookup_order", {"order_id": "A-1"}, {"order_id": "A-1"}),
    ("lookup_order", {"order_id": "8472; DROP"}, None),
    ("lookup_order", {"order_id": "../refunds"}, None),
    ("lookup_order", {"order_id": "x" * 33}, None),
    ("lookup_order", {"order_id": "८४७२"}, None),
    ("lookup_order", {"order_id": ""}, None),
    ("lookup_order", {"order_id": 8472}, None),
    ("lookup_order", {}, None),
    ("lookup_order", {"order_id": "8472", "tenant": "globex"}, None),
    ("get_refund", {"refund_id": " rf_9001 "}, {"refund_id": "rf_9001"}),
    ("get_refund", {"refund_id": "by-key?key=x"}, None),
    ("search_policy", {"query": "  refund  "}, {"query": "refund"}),
    ("search_policy", {"query": "refund", "top_k": 50}, None),
    ("issue_refund", {**REFUND, "payment_id": " pay_5a2"}, dict(REFUND)),
    ("issue_refund", {**REFUND, "amount_inr": 0}, None),
    ("issue_refund", {**REFUND, "amount_inr": "2000"}, None),
    ("issue_refund", {**REFUND, "amount_inr": True}, None),
    ("notify_customer", dict(MESSAGE), dict(MESSAGE)),
    ("notify_customer", {**MESSAGE, "subject": "a\nBcc: everybody"}, None),
    ("notify_customer", {**MESSAGE, "reference": "a b"}, None),
]


@pytest.mark.parametrize(("name", "given", "normal"), NORMAL)
async def test_arguments(
    tools: ToolRegistry, name: str, given: dict[str, Any], normal: dict[str, Any] | None
) -> None:
    [spec] = tools.require([name])
    assert spec.arguments is not None
    validator = jsonschema_rs.validator_for(dict(spec.parameters))
    if normal is None:
        with pytest.raises(ValidationError):
            spec.arguments.model_validate(given)
        return
    assert validator.is_valid(given)
    assert spec.arguments.model_validate(given).model_dump(mode="json") == normal
    assert validator.is_valid(normal)


async def test_scopes_and_sources(tools: ToolRegistry) -> None:
    assert [(spec.name, spec.effect, spec.scope, spec.source) for spec in tools] == [
        ("lookup_order", "read", "orders:read", "payments-service"),
        ("get_refund_status", "read", "refunds:read", "refunds-service"),
        ("get_refund", "read", "refunds:read", "refunds-service"),
        ("search_policy", "read", "policy:read", "policy-store"),
        ("issue_refund", "write", "refunds:write", "refunds-service"),
        ("notify_customer", "write", "notifications:write", "notifications-service"),
    ]
