"""When the refund loop is complete, and what it says is missing."""

import pytest
from pydantic import JsonValue

from agentic_loop.graph.records import Completed, Incomplete, TaskView
from agentic_loop.graph.state import OutstandingAction
from agentic_loop.policies.completion.refund import assess
from tests.policies.refund_records import LOOKED_UP, SENT, Seen, order, payment, refund, refunds, view

BODY = "Your refund rf_9001 of INR 2,000 is pending [ev-4]."
TOLD: dict[str, JsonValue] = {"reference": "refund:rf_9001:pending", "body": BODY}
ISSUED: tuple[Seen, ...] = (*LOOKED_UP, ("issue_refund", refund()))
READ_BACK: tuple[Seen, ...] = (*ISSUED, ("get_refund", refund()))
DONE: tuple[Seen, ...] = (*READ_BACK, ("notify_customer", SENT, TOLD))
EXISTING: tuple[Seen, ...] = (
    LOOKED_UP[0],
    ("get_refund_status", refunds(refund("settled"))),
    ("get_refund", refund("settled")),
)
EXECUTED = OutstandingAction(
    kind="notify_customer", key="notify:refund:rf_9001:pending:v1", action_hash="", status="executed"
)
FAILED_NOTICE: dict[str, JsonValue] = {**SENT, "status": "failed"}


@pytest.mark.parametrize(
    "seen",
    [
        view(*DONE),
        view(*DONE, message=BODY, finish_proposed=True),
        view(*DONE, inputs={"order_id": "8472"}),
        view(*READ_BACK, outstanding=[EXECUTED], message=BODY),
        view(
            *EXISTING,
            ("notify_customer", SENT, {**TOLD, "body": "Your refund rf_9001 is settled [ev-3]."}),
        ),
    ],
)
def test_completed(seen: TaskView) -> None:
    answer = assess(seen)
    assert isinstance(answer, Completed), answer
    assert "rf_9001" in answer.detail


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (view(message="I've processed your refund.", finish_proposed=True), "no refund evidence"),
        (view(*LOOKED_UP, message=BODY), "no refund evidence"),
        (view(LOOKED_UP[0], ("get_refund_status", refunds(refund(payment_id="pay_5a1")))), "no refund evidence"),
        (
            view(
                ("lookup_order", order(payments=[payment("pay_5a2")])),
                ("get_refund_status", refunds(refund())),
                ("get_refund", refund()),
            ),
            "no refund evidence",
        ),
        (view(*ISSUED), "not read back by its id"),
        (view(*LOOKED_UP, ("get_refund", refund()), ("issue_refund", refund())), "not read back by its id"),
        (view(*ISSUED, ("get_refund_status", refunds(refund()))), "not read back by its id"),
        (view(*ISSUED, ("get_refund", refund("failed"))), "is failed, neither pending nor settled"),
        (view(*ISSUED, ("get_refund", refund(amount_inr=2500))), "contradiction"),
        (view(*ISSUED, ("get_refund", refund(payment_id="pay_5a1"))), "contradiction"),
        (view(*DONE, inputs={"order_id": "1"}), "wrong order"),
        (view(*READ_BACK), "no notification"),
        (view(*READ_BACK, ("notify_customer", FAILED_NOTICE, TOLD)), "no notification"),
        (
            view(*READ_BACK, ("notify_customer", SENT, {**TOLD, "reference": "refund:rf_1:pending"})),
            "no notification",
        ),
        (view(*READ_BACK, outstanding=[EXECUTED]), "no message"),
        (view(*DONE, message="Your refund of INR 2,500 is pending [ev-4]."), "INR 2,500 does not occur in ev-4"),
        (view(*DONE, message="All done."), "cites no evidence"),
        (view(*READ_BACK, ("notify_customer", SENT, {**TOLD, "body": "All done."})), "cites no evidence"),
    ],
)
def test_incomplete_says_what_is_missing(seen: TaskView, says: str) -> None:
    answer = assess(seen)
    assert isinstance(answer, Incomplete)
    assert says in answer.detail


def test_a_later_reading_counts() -> None:
    later = view(*ISSUED, ("get_refund", refund("failed")), ("get_refund", refund()), ("notify_customer", SENT, TOLD))
    answer = assess(later)
    assert isinstance(answer, Incomplete)
    assert "pending does not occur in ev-4" in answer.detail
    fresh: dict[str, JsonValue] = {**TOLD, "body": "Your refund rf_9001 is pending [ev-5]."}
    read_again: tuple[Seen, ...] = (*ISSUED, ("get_refund", refund("failed")), ("get_refund", refund()))
    assert isinstance(assess(view(*read_again, ("notify_customer", SENT, fresh))), Completed)
