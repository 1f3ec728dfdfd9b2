"""Which messages are supported by the evidence that they cite."""

import re
import string

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.graph.records import EvidenceRecord
from agentic_loop.policies.claims import (
    COURTESIES,
    MAX_MESSAGE_CHARS,
    MAX_PROBLEMS,
    cited,
    render_claims_removed,
    unsupported,
)

from .refund_records import POLICY, SENT, evidence, order, refund, refunds

EVIDENCE: dict[str, EvidenceRecord] = {
    record.id: record
    for record in evidence(
        ("lookup_order", order()),
        ("get_refund_status", refunds()),
        ("search_policy", POLICY),
        ("get_refund", refund()),
        ("notify_customer", SENT),
    )
}

SUPPORTED = [
    "Order 8472 of cust-3391 has two payments, pay_5a1 and pay_5a2, both captured [ev-1].",
    "Refund rf_9001 of INR 2,000 for pay_5a2 is pending [ev-4].",
    "Refund rf_9001 is pending. [ev-4]",
    "It is pending [ev-1, ev-4].",
    "It is pending [ev-1][ev-4].",
    "INR 2,000 [ev-4]",
    "INR 2,000.00 [ev-4]",
    "2,000.00 [ev-4]",
    "Rs 2000 [ev-4]",
    "Rs. 2000 is pending [ev-4].",
    "₹2,000 [ev-4]",
    "₹ 2000/- [ev-4]",
    "2000 rupees [ev-4]",
    "Ｒｓ ２，０００ [ev-4]",
    "२००० rupees [ev-4]",
    "It was captured on 20 October 2026 [ev-1].",
    "It was captured on October 20th, 2026 [ev-1].",
    "It was captured on 20 Oct [ev-1].",
    "It was captured on 20/10/2026 at 09:14 [ev-1].",
    "It was captured on 2026-10-20 at 9:14:41 am [ev-1].",
    "It was captured at 2026-10-20T09:14:02Z [ev-1].",
    "It was captured at 2026-10-20T14:44:02+05:30 [ev-1].",
    "It was captured at 2026-10-20 09:14 [ev-1].",
    "POL-REF-004 v4 §3.2 asks for approval above INR 1,000 [ev-3].",
    "Notification ntf_1 was sent [ev-5].",
    "Hello!\nThank you for your patience. It is pending [ev-4].\nKind regards,\nCustomer support",
    "",
    " \n\n ",
]

UNSUPPORTED = [
    ("Your refund is on its way.", "cites no evidence"),
    ("It is pending.", "cites no evidence"),
    ("It is pending [ev-4]. It will arrive soon.", "cites no evidence"),
    ("It is pending [ev-9].", "ev-9 is cited but is no evidence"),
    ("Hello [ev-9].", "ev-9 is cited but is no evidence"),
    ("It is pending (ev-4).", "cites no evidence"),
    ("It is settled [ev-4].", "settled does not occur in ev-4"),
    ("It is not settled [ev-4].", "settled"),
    ("It is not-settled [ev-4].", "settled"),
    ("It is Settled [ev-4].", "settled"),
    ("It is pending [ev-1].", "pending does not occur in ev-1"),
    ("It has been refunded [ev-4].", "refunded"),
    ("INR 2,500 [ev-4]", "INR 2,500"),
    ("₹2,001 [ev-4]", "₹2,001"),
    ("2,500 [ev-4]", "2,500"),
    ("INR 20,00 [ev-4]", "20 does not occur"),
    ("INR 2,000.50 [ev-4]", "2,000.50"),
    ("INR -2000 [ev-4]", "2000"),
    ("INR2000 [ev-4]", "inr2000"),
    ("INR 8,472 [ev-4]", "INR 8,472"),
    ("INR 8472 [ev-1]", "INR 8472"),
    ("2k [ev-4]", "2k"),
    ("two thousand rupees [ev-4]", "thousand"),
    ("USD 2,000 [ev-4]", "usd"),
    ("$2,000 [ev-4]", "$"),
    ("2\u200b500 [ev-4]", "2500"),
    ("rf_9002 [ev-4]", "rf_9002"),
    ("pay_5a1 [ev-4]", "pay_5a1"),
    ("rf_other [ev-4]", "rf_other"),
    ("cust-other [ev-1]", "cust-other"),
    ("order 8473 [ev-1]", "8473"),
    ("POL-REF-005 [ev-3]", "pol-ref-005"),
    ("POL-REF-004 v5 [ev-3]", "v5"),
    ("POL-REF-004 §3.3 [ev-3]", "3.3"),
    ("within 5 days [ev-4]", "5"),
    ("on 21 October 2026 [ev-1]", "21 October 2026"),
    ("on 20 October 2025 [ev-1]", "20 October 2025"),
    ("on 20 November [ev-1]", "20 November"),
    ("on 31/02/2026 [ev-1]", "31/02/2026"),
    ("on 10/20/2026 [ev-1]", "10/20/2026"),
    ("on 2026-10-21 [ev-1]", "2026-10-21"),
    ("on 20261020 [ev-1]", "20261020"),
    ("at 09:15 [ev-1]", "09:15"),
    ("at 9:14 pm [ev-1]", "9:14 pm"),
    ("at 25:99 [ev-1]", "25:99"),
    ("at 2026-10-20T09:14:03Z [ev-1]", "2026-10-20T09:14:03Z"),
    ("at 2026-10-20T09:14:02+05:30 [ev-1]", "2026-10-20T09:14:02+05:30"),
    ("at 2026-10-20T09:14:02+99:99 [ev-1]", "2026-10-20T09:14:02+99:99"),
    ("on Monday [ev-1]", "monday"),
    ("in October [ev-1]", "october"),
    ("Dear customer 4711", "cites no evidence"),
    ("\u202eINR 0002 [ev-4]", "order in which text is shown"),
]


@pytest.mark.parametrize("message", SUPPORTED)
def test_supported(message: str) -> None:
    assert unsupported(message, EVIDENCE) == []


@pytest.mark.parametrize(("message", "says"), UNSUPPORTED)
def test_unsupported(message: str, says: str) -> None:
    problems = unsupported(message, EVIDENCE)
    assert problems
    assert says in problems[0]


def test_every_courtesy_of_the_list_needs_no_evidence() -> None:
    for courtesy in COURTESIES:
        assert unsupported(f"{courtesy.capitalize()},\n{courtesy}.", {}) == []


def test_one_invented_amount_in_an_otherwise_supported_message_is_refused() -> None:
    good = "\n".join(SUPPORTED)
    assert unsupported(good, EVIDENCE) == []
    bad = good.replace("Refund rf_9001 of INR 2,000", "Refund rf_9001 of INR 2,500")
    (problem,) = unsupported(bad, EVIDENCE)
    assert "INR 2,500 does not occur in ev-4" in problem


def test_problems_are_bounded_and_a_long_message_is_not_read() -> None:
    assert len(unsupported("It is settled.\n" * 200, EVIDENCE)) == MAX_PROBLEMS
    (problem,) = unsupported("x" * (MAX_MESSAGE_CHARS + 1), EVIDENCE)
    assert str(MAX_MESSAGE_CHARS) in problem


def test_cited_lists_ids_once() -> None:
    assert cited("a [ev-2]. b [ev-1, ev-2]") == ["ev-2", "ev-1"]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("It is pending [ev-4].", "It is pending."),
        ("It is pending. [ev-4]", "It is pending."),
        ("It is pending [ev-1, ev-4][ev-2].\nBye.", "It is pending.\nBye."),
        ("[1] stays", "[1] stays"),
    ],
)
def test_the_customer_sees_no_marks(message: str, shown: str) -> None:
    assert render_claims_removed(message) == shown


_CLAIMED_DIGIT = re.compile(r"(?<!ev-)\d(?![^\[]*\])")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_replacing_one_digit_of_a_claim_is_refused(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from([each for each in SUPPORTED if _CLAIMED_DIGIT.search(each)]))
    place = data.draw(st.sampled_from([match.start() for match in _CLAIMED_DIGIT.finditer(message)]))
    digit = data.draw(st.sampled_from(string.digits))
    assume(digit != str(int(message[place])))
    changed = message[:place] + digit + message[place + 1 :]
    # Another true claim may result: the other payment's id, or its second.
    assume(not any(true in changed for true in _ALSO_TRUE if true not in message))
    assert unsupported(changed, EVIDENCE), changed


def note(text: str) -> list[EvidenceRecord]:
    payload: JsonValue = {"note": text}
    return evidence(("lookup_order", payload))


_ALSO_TRUE = ("pay_5a1, and pay_5a1", "pay_5a1 and pay_5a1", "pay_5a2 and pay_5a2")


@settings(max_examples=200, deadline=None)
@given(message=st.text(st.characters()), payload=st.text(st.characters()))
def test_any_text_is_judged(message: str, payload: str) -> None:
    known = {record.id: record for record in note(payload)}
    unsupported(message, known)
    unsupported(f"{message} [ev-1].", known)
    render_claims_removed(message)


@settings(max_examples=200, deadline=None)
@given(message=st.text(st.sampled_from("0123456789,.:-/ INRsev[]₹\nTZ+ pm"), max_size=40))
def test_any_arrangement_of_digits_and_marks_is_judged(message: str) -> None:
    unsupported(f"{message} [ev-1]", EVIDENCE)


@settings(max_examples=100, deadline=None)
@given(amount=st.integers(0, 10**9))
def test_only_the_recorded_amount_is_supported(amount: int) -> None:
    problems = unsupported(f"The refund is INR {amount:,} [ev-4].", EVIDENCE)
    assert (problems == []) == (amount == 2000)


@pytest.mark.parametrize(
    "hostile",
    ["." * 60_000 + "a", "INR " + "1" * 60_000 + "a", "1," * 30_000, " " * 60_000, "1 " * 30_000, "[ev-1" * 12_000],
)
@pytest.mark.timeout(10)
def test_hostile_payloads_are_read_in_reasonable_time(hostile: str) -> None:
    known = {record.id: record for record in note(hostile)}
    assert unsupported("It is settled [ev-1].", known)
    unsupported(hostile[: MAX_MESSAGE_CHARS - 7] + " [ev-1]", known)
