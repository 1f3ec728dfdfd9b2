"""The settle workflow, step by step, and the phases."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.graph.records import TaskView
from agentic_loop.graph.state import OutstandingAction
from agentic_loop.policies.authorisation import Allowed, authorise
from agentic_loop.policies.claims import unsupported
from agentic_loop.policies.refund_facts import refund_facts
from agentic_loop.policies.settlement import final_message, next_proposal, phase_of

from .refund_records import LOOKED_UP, REQUESTER, SENT, Seen, load, order, payment, refund, refunds, view

ISSUED: tuple[Seen, ...] = (*LOOKED_UP, ("issue_refund", refund()))
READ_BACK: tuple[Seen, ...] = (*ISSUED, ("get_refund", refund()))
REFERENCE: dict[str, JsonValue] = {"reference": "refund:rf_9001:pending", "body": "It is pending [ev-4]."}
TOLD: tuple[Seen, ...] = (*READ_BACK, ("notify_customer", SENT, REFERENCE))
EXISTING: tuple[Seen, ...] = (LOOKED_UP[0], ("get_refund_status", refunds(refund("settled"))))


def proposed(seen: TaskView) -> tuple[str, dict[str, JsonValue]] | None:
    proposal = next_proposal(seen)
    if proposal is None:
        return None
    assert proposal.source == "workflow"
    (call,) = proposal.calls
    assert proposal == next_proposal(seen)
    args = json.loads(call.arguments_json)
    assert isinstance(args, dict)
    return call.name, args


def done(kind: str, key: str) -> OutstandingAction:
    return OutstandingAction(kind=kind, key=key, action_hash="", status="executed")


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        (view(), "investigate"),
        (view(LOOKED_UP[0]), "investigate"),
        (view(LOOKED_UP[1]), "investigate"),
        (view(LOOKED_UP[0], ("get_refund_status", refunds(order_id="1"))), "investigate"),
        (view(*LOOKED_UP), "propose"),
        (view(*LOOKED_UP, ("lookup_order", order(order_id="1"))), "propose"),
        (view(*LOOKED_UP, inputs={"order_id": "8472"}), "propose"),
        (view(*LOOKED_UP, inputs={"order_id": "1"}), "investigate"),
        (view(*LOOKED_UP, finish_proposed=True), "propose"),
        (view(*EXISTING), "propose"),
        (view(*EXISTING, finish_proposed=True), "settle"),
        (view(LOOKED_UP[0], ("get_refund_status", refunds(refund("failed"))), finish_proposed=True), "propose"),
        (
            view(LOOKED_UP[0], ("get_refund_status", refunds(refund(payment_id="pay_5a1"))), finish_proposed=True),
            "propose",
        ),
        (view(*ISSUED), "settle"),
        (view(*LOOKED_UP, outstanding=[done("issue_refund", "k")]), "settle"),
        (view(phase="settle"), "settle"),
    ],
)
def test_phase(seen: TaskView, phase: str) -> None:
    assert phase_of(seen) == phase


def test_an_issued_refund_is_read_back_then_told_then_nothing() -> None:
    assert proposed(view(*ISSUED)) == ("get_refund", {"refund_id": "rf_9001"})
    told = proposed(view(*READ_BACK))
    assert told is not None
    assert told[0] == "notify_customer"
    assert told[1]["recipient"] == "cust-3391"
    assert told[1]["reference"] == "refund:rf_9001:pending"
    assert proposed(view(*TOLD)) is None


def test_a_reading_from_before_the_refund_was_issued_does_not_verify_it() -> None:
    seen = view(*LOOKED_UP, ("get_refund", refund()), ("issue_refund", refund()))
    assert proposed(seen) == ("get_refund", {"refund_id": "rf_9001"})


def test_an_existing_refund_is_settled_once_the_model_wants_to_stop() -> None:
    assert proposed(view(*EXISTING)) is None
    assert proposed(view(*EXISTING, finish_proposed=True)) == ("get_refund", {"refund_id": "rf_9001"})
    read: tuple[Seen, ...] = (*EXISTING, ("get_refund", refund("settled")))
    told = proposed(view(*read, phase="settle"))
    assert told is not None
    assert "settled [ev-3]" in str(told[1]["body"])


def test_the_notice_is_supported_and_permitted() -> None:
    seen = view(*READ_BACK, phase="settle")
    told = proposed(seen)
    assert told is not None
    tool, args = told
    assert unsupported(str(args["body"]), {record.id: record for record in seen.evidence}) == []
    answer = authorise(
        load(),
        requester=REQUESTER,
        tool=tool,
        args=args,
        facts=refund_facts(tool, args, seen),
        resource_tenant="acme",
    )
    assert answer == Allowed(("notify-customer",))


def test_a_customer_is_told_once() -> None:
    notified = done("notify_customer", "notify:refund:rf_9001:pending:v1")
    assert proposed(view(*READ_BACK, outstanding=[notified])) is None
    other = done("notify_customer", "notify:refund:rf_1:pending:v1")
    assert proposed(view(*READ_BACK, outstanding=[other])) is not None


def test_a_failed_refund_is_not_announced() -> None:
    assert proposed(view(*ISSUED, ("get_refund", refund("failed")))) is None


def test_nothing_is_said_about_an_order_that_is_not_in_evidence() -> None:
    assert proposed(view(("issue_refund", refund()), ("get_refund", refund()))) is None


def test_the_final_message_is_what_the_customer_was_told_with_its_marks() -> None:
    assert final_message(view(*TOLD, message="Done [ev-4].")) == "It is pending [ev-4]."
    assert final_message(view(message="Done [ev-4].")) == "Done [ev-4]."


@settings(max_examples=100, deadline=None)
@given(
    amount=st.integers(1, 10**7),
    number=st.integers(1000, 10**9),
    seconds=st.tuples(st.integers(0, 29), st.integers(30, 59)),
    status=st.sampled_from(["pending", "settled"]),
)
def test_the_notice_about_any_order_is_supported(
    amount: int, number: int, seconds: tuple[int, int], status: str
) -> None:
    payments: list[JsonValue] = [payment("pay_5a1", amount, seconds[0]), payment("pay_5a2", amount, seconds[1])]
    about = {**refund(status, amount_inr=amount), "order_id": str(number), "refund_id": f"rf_{number}"}
    seen = view(
        ("lookup_order", order(order_id=str(number), payments=payments)),
        ("get_refund_status", refunds(order_id=str(number))),
        ("issue_refund", about),
        ("get_refund", about),
    )
    told = proposed(seen)
    assert told is not None
    assert unsupported(str(told[1]["body"]), {record.id: record for record in seen.evidence}) == []
    assert refund_facts("notify_customer", told[1], seen).message_problems == 0
