"""The notice that a role gets when an approval waits, through the real sandbox."""

import dataclasses
from datetime import timedelta

import pytest

from agentic_loop.graph.errors import OutcomeUnknown
from agentic_loop.graph.ports import Notifier
from agentic_loop.graph.records import ApprovalRow, NoticeOfApproval
from agentic_loop.graph.system import RandomIds
from agentic_loop.testing.clock import START, FakeClock
from agentic_loop.tools.http import LazyHttpClient, ServiceClient
from agentic_loop.tools.notifications import NOTIFICATIONS_SERVICE, HttpNotifier, body_of

from ..conftest import Sandbox

ROW = ApprovalRow(
    id="apr-1",
    task_id="task-8472-a",
    tenant="acme",
    loop="refund",
    tool="issue_refund",
    args={"order_id": "8472", "payment_id": "pay_5a2", "amount_inr": 2000},
    idempotency_key="refund:order-8472:pay_5a2:v1",
    action_hash="ab" * 32,
    required_role="support_lead",
    requester="agent-7",
    policy_ids=["threshold"],
    policy_clause="POL-REF-004 v4 §3.2",
    reason="above INR 1,000",
    evidence_ids=["ev-1", "ev-2"],
    round=1,
    requested_at=START,
    expires_at=START + timedelta(hours=2),
)
NOTICE = NoticeOfApproval(ROW, "Refund the later capture of order 8472.")


async def test_the_role_is_told_once_and_exactly(sandbox: Sandbox) -> None:
    async with LazyHttpClient() as client:
        service = ServiceClient(sandbox.url, source=NOTIFICATIONS_SERVICE, client=client)
        notifier: Notifier = HttpNotifier(service, ids=RandomIds(1), clock=FakeClock())
        for _ in range(2):
            await notifier.notify(NOTICE, tenant="acme", task_id=ROW.task_id, key="approval:apr-1")
    tables = (await sandbox.admin.get("/_admin/tables")).json()
    [message] = tables["notifications"]
    assert (message["recipient"], message["channel"], message["template"], message["reference"]) == (
        "role:support_lead",
        "inbox",
        "approval_requested",
        "approval:apr-1",
    )
    for words in (
        '{"amount_inr": 2000, "order_id": "8472", "payment_id": "pay_5a2"}',
        "INR 2,000",
        "refund:order-8472:pay_5a2:v1",
        "2026-10-28T13:17:43+00:00",
        "agentic-loop approve apr-1 --as",
        "agentic-loop reject apr-1 --as",
        "POL-REF-004 v4 §3.2",
        "ev-1, ev-2",
    ):
        assert words in message["body"]


async def test_a_lost_notice_is_unknown_and_can_be_sent_again(sandbox: Sandbox) -> None:
    fault = {"service": "notifications", "operation": "POST /notifications", "kind": "drop_after_commit"}
    (await sandbox.admin.post("/_admin/faults", json=fault)).raise_for_status()
    async with LazyHttpClient() as client:
        service = ServiceClient(sandbox.url, source=NOTIFICATIONS_SERVICE, client=client)
        notifier = HttpNotifier(service, ids=RandomIds(), clock=FakeClock())
        with pytest.raises(OutcomeUnknown):
            await notifier.notify(NOTICE, tenant="acme", task_id=ROW.task_id, key="approval:apr-1")
        await notifier.notify(NOTICE, tenant="acme", task_id=ROW.task_id, key="approval:apr-1")
    assert (await sandbox.admin.get("/_admin/tables")).json()["counts"]["notifications"] == 1


def test_arguments_too_long_to_show_are_not_cut() -> None:
    long = dataclasses.replace(ROW, args={"body": "x" * 9_000})
    body = body_of(NoticeOfApproval(long, "s" * 9_000))
    assert "agentic-loop show task-8472-a" in body
    assert "xxx" not in body
    assert len(body) < 4_000
