"""Facts come from evidence of the agreed shape, and only the newest of it."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.policies.refund_facts import RefundFacts, refund_facts

from .refund_records import LOOKED_UP, order, payment, refund, refunds, view

PAY: dict[str, JsonValue] = {"order_id": "8472", "payment_id": "pay_5a2", "amount_inr": 2000}


def test_without_evidence_nothing_is_known() -> None:
    assert refund_facts("issue_refund", PAY, view()) == RefundFacts(order_named=True)


def test_order_8472() -> None:
    assert refund_facts("issue_refund", PAY, view(*LOOKED_UP)) == RefundFacts(
        order_named=True,
        order_known=True,
        order_tenant="acme",
        customer_id="cust-3391",
        currency="INR",
        captures=2,
        amounts_equal=True,
        payment_is_later=True,
        payment_amount_inr=2000,
        refund_status_known=True,
    )


def test_evidence_about_another_order_does_not_count() -> None:
    seen = view(("lookup_order", order(order_id="1")), ("get_refund_status", refunds(order_id="1")))
    assert refund_facts("issue_refund", PAY, seen) == RefundFacts(order_named=True)


def test_only_captured_payments_count_and_each_once() -> None:
    payments: list[JsonValue] = [
        payment("pay_5a1"),
        payment("pay_5a1"),
        payment("pay_5a2", second=41, status="voided"),
        payment("pay_5a3", second=50, status="authorised"),
    ]
    facts = refund_facts("issue_refund", PAY, view(("lookup_order", order(payments=payments))))
    assert (facts.captures, facts.payment_is_later, facts.payment_amount_inr) == (1, False, None)


def test_of_two_captures_at_the_same_instant_neither_is_later() -> None:
    payments: list[JsonValue] = [payment("pay_5a1"), payment("pay_5a2")]
    assert not refund_facts("issue_refund", PAY, view(("lookup_order", order(payments=payments)))).payment_is_later


def test_instants_are_compared_across_offsets() -> None:
    earlier = {**payment("pay_5a2"), "at": "2026-10-20T14:43:00+05:30"}
    payments: list[JsonValue] = [payment("pay_5a1"), earlier]
    assert not refund_facts("issue_refund", PAY, view(("lookup_order", order(payments=payments)))).payment_is_later


def test_the_newest_description_of_an_order_counts() -> None:
    seen = view(("lookup_order", order(chargeback="open")), ("lookup_order", order()))
    assert not refund_facts("issue_refund", PAY, seen).chargeback_open
    worse = view(*LOOKED_UP, ("lookup_order", order(chargeback="under review")))
    assert refund_facts("issue_refund", PAY, worse).chargeback_open


def test_a_refund_once_seen_counts_even_if_a_later_list_lacks_it() -> None:
    seen = view(*LOOKED_UP, ("issue_refund", refund()), ("get_refund_status", refunds()))
    facts = refund_facts("issue_refund", PAY, seen)
    assert (facts.refunds_for_payment, facts.refunded_inr) == (1, 2000)


def test_the_newest_status_of_a_refund_counts() -> None:
    seen = view(*LOOKED_UP, ("get_refund", refund("pending")), ("get_refund", refund("failed")))
    facts = refund_facts("issue_refund", PAY, seen)
    assert (facts.refunds_for_payment, facts.refunded_inr) == (1, 0)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        {"order_id": "8472"},
        {**order(), "total_inr": "2000"},
        {**order(), "payments": [{**payment("pay_5a1"), "amount_inr": 2000.5}]},
        {**order(), "payments": [{**payment("pay_5a1"), "at": "yesterday"}]},
        {**order(), "payments": [{**payment("pay_5a1"), "at": "2026-10-20T09:14:02"}]},
        {**order(), "order_id": 8472},
    ],
)
def test_a_payload_of_another_shape_says_nothing(payload: JsonValue) -> None:
    assert not refund_facts("issue_refund", PAY, view(("lookup_order", payload))).order_known


def test_a_status_list_of_another_shape_is_no_look_up() -> None:
    broken: JsonValue = {"order_id": "8472", "refunds": [{"refund_id": "rf_1"}]}
    assert not refund_facts("issue_refund", PAY, view(("get_refund_status", broken))).refund_status_known


def test_an_order_described_by_another_tool_is_not_believed() -> None:
    assert not refund_facts("issue_refund", PAY, view(("search_policy", order()))).order_known


def test_a_notification_is_about_the_order_of_its_refund() -> None:
    seen = view(*LOOKED_UP, ("get_refund", refund()))
    args = {
        "recipient": "cust-3391",
        "subject": "Hello",
        "body": "INR 1 [ev-1].",
        "reference": "refund:rf_9001:pending",
    }
    facts = refund_facts("notify_customer", dict(args), seen)
    assert (facts.refund_exists, facts.customer_id, facts.message_problems) == (True, "cust-3391", 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["order_id", "payments", "refunds", "refund_id", "tenant", "amount_inr", "status"])


@settings(max_examples=150, deadline=None)
@given(
    tool=st.sampled_from(["lookup_order", "get_refund_status", "get_refund", "issue_refund", "notify_customer"]),
    changes=st.dictionaries(FIELDS, JSON),
    args=st.dictionaries(st.sampled_from(["order_id", "reference", "body", "subject", "refund_id"]), JSON),
)
def test_any_payload_and_any_arguments_give_facts(
    tool: str, changes: Mapping[str, JsonValue], args: Mapping[str, JsonValue]
) -> None:
    base: dict[str, JsonValue] = {**order(), **refund(), "refunds": [refund()]}
    facts = refund_facts(tool, args, view((tool, {**base, **changes}), (tool, changes.get("payments"))))
    assert facts.captures >= 0
