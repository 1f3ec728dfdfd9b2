"""Every rule of the refund policy: a row that it allows and a row that it denies, through facts from evidence.

The rows are run once more with each rule taken out of the text; then at least one of them must come out otherwise.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest
from pydantic import JsonValue

from agentic_loop.graph.records import TaskView
from agentic_loop.graph.state import Principal
from agentic_loop.policies import authorisation
from agentic_loop.policies.authorisation import (
    Allowed,
    AuthorisationAnswer,
    Denied,
    NeedsApproval,
    PolicySet,
    authorise,
    entitled,
    may_resume,
)
from agentic_loop.policies.refund_facts import refund_facts

from .refund_records import (
    ALL_SCOPES,
    CEDAR_TEXT,
    LEAD,
    LOOKED_UP,
    MANAGER,
    REQUESTER,
    load,
    order,
    payment,
    refund,
    refunds,
    view,
)


@dataclass(frozen=True)
class Row:
    """One question to the policies, and the answer: ``allowed``, a role, ``denied`` or ``ends``, by which rules."""

    name: str
    tool: str
    args: Mapping[str, JsonValue]
    seen: TaskView
    expected: str
    by: tuple[str, ...]
    scopes: list[str] = field(default_factory=lambda: list(ALL_SCOPES))
    resource_tenant: str | None = "acme"
    approver: Principal | None = None


def pay(amount_inr: int, payment_id: str = "pay_5a2") -> dict[str, JsonValue]:
    return {"order_id": "8472", "payment_id": payment_id, "amount_inr": amount_inr}


def on_order(**changes: object) -> TaskView:
    described = order(**changes)  # type: ignore[arg-type]
    return view(("lookup_order", described), ("get_refund_status", refunds()))


def captured(*amounts: int) -> TaskView:
    payments: list[JsonValue] = [payment(f"pay_5a{n}", amount, n) for n, amount in enumerate(amounts, 1)]
    return on_order(payments=payments)


def notice(**changes: str) -> dict[str, JsonValue]:
    said = {
        "recipient": "cust-3391",
        "subject": "Your refund for order 8472",
        "body": "Your refund rf_9001 of INR 2,000 for order 8472 is pending [ev-3].",
        "reference": "refund:rf_9001:pending",
    }
    return {**said, **changes}


def without(scope: str) -> list[str]:
    return [each for each in ALL_SCOPES if each != scope]


EMPTY = view()
READY = view(*LOOKED_UP)
REFUNDED = view(*LOOKED_UP, ("get_refund", refund()))
TENFOLD = captured(20_000, 20_000)
UNNAMED = replace(READY, task=READY.task.model_copy(update={"goal": "Order 18472 was charged twice."}))
LEAD_RULE, MANAGER_RULE = ("refund-approved-by-support-lead",), ("refund-approved-by-manager",)
DEFAULT: tuple[str, ...] = ()
FOREIGN_LEAD = Principal(id="asha", tenant="evil", roles=["support_lead"])
OWN_LEAD = Principal(id="ravi", tenant="acme", roles=["support_lead"])

ROWS = [
    Row("order read", "lookup_order", {"order_id": "8472"}, EMPTY, "allowed", ("read-orders",)),
    Row("order unread", "lookup_order", {"order_id": "8472"}, EMPTY, "denied", DEFAULT, without("orders:read")),
    Row("status read", "get_refund_status", {"order_id": "8472"}, EMPTY, "allowed", ("read-refunds",)),
    Row("status unread", "get_refund_status", {"order_id": "8"}, EMPTY, "denied", DEFAULT, without("refunds:read")),
    Row("refund read", "get_refund", {"refund_id": "rf_9001"}, EMPTY, "allowed", ("read-refunds",)),
    Row("refund unread", "get_refund", {"refund_id": "rf_9001"}, EMPTY, "denied", DEFAULT, without("refunds:read")),
    Row("policy read", "search_policy", {"query": "q"}, EMPTY, "allowed", ("read-policy",)),
    Row("policy unread", "search_policy", {"query": "q"}, EMPTY, "denied", DEFAULT, without("policy:read")),
    # who may refund
    Row("900 alone", "issue_refund", pay(900), captured(900, 900), "allowed", ("refund-autonomous",)),
    Row("900 of 2,000 asks lead", "issue_refund", pay(900), READY, "support_lead", LEAD_RULE),
    Row("1,000 alone", "issue_refund", pay(1_000), captured(1_000, 1_000), "allowed", ("refund-autonomous",)),
    Row("900 without scope", "issue_refund", pay(900), READY, "denied", DEFAULT, without("refunds:write")),
    Row("1,001 asks lead", "issue_refund", pay(1_001), READY, "support_lead", LEAD_RULE),
    Row("2,000 asks lead", "issue_refund", pay(2_000), READY, "support_lead", LEAD_RULE),
    Row("10,000 asks lead", "issue_refund", pay(10_000), captured(10_000, 10_000), "support_lead", LEAD_RULE),
    Row("10,001 asks manager", "issue_refund", pay(10_001), TENFOLD, "manager", MANAGER_RULE),
    Row("2,000 without scope", "issue_refund", pay(2_000), READY, "denied", DEFAULT, without("refunds:write")),
    Row("lead approves 2,000", "issue_refund", pay(2_000), READY, "allowed", LEAD_RULE, approver=LEAD),
    Row("lead approves 10,001", "issue_refund", pay(10_001), TENFOLD, "denied", DEFAULT, approver=LEAD),
    Row("manager approves 2,000", "issue_refund", pay(2_000), READY, "allowed", MANAGER_RULE, approver=MANAGER),
    Row("manager approves 20,000", "issue_refund", pay(20_000), TENFOLD, "allowed", MANAGER_RULE, approver=MANAGER),
    Row(
        "own approval", "issue_refund", pay(2_000), READY, "denied", ("forbid-self-approval",), approver=OWN_LEAD
    ),
    Row(
        "foreign approval", "issue_refund", pay(2_000), READY, "denied",
        ("forbid-approver-of-other-tenant",), approver=FOREIGN_LEAD,
    ),
    # what is never refunded
    Row(
        "order of another tenant", "issue_refund", pay(900), on_order(tenant="evil"), "ends",
        ("forbid-order-of-other-tenant",),
    ),
    Row(
        "refunds of another tenant's order", "get_refund_status", {"order_id": "8472"}, on_order(tenant="evil"),
        "ends", ("forbid-order-of-other-tenant",),
    ),
    Row(
        "resource of another tenant", "issue_refund", pay(900), READY, "ends", ("forbid-other-tenant",),
        resource_tenant="evil",
    ),
    Row("resource of nobody known", "issue_refund", pay(900), captured(900, 900), "allowed", ("refund-autonomous",),
        resource_tenant=None),
    Row(
        "order not asked about", "issue_refund", pay(900), UNNAMED, "denied", ("forbid-refund-of-unnamed-order",)
    ),
    Row(
        "order unknown", "issue_refund", pay(900), view(("get_refund_status", refunds())), "denied",
        ("forbid-refund-of-unknown-order",),
    ),
    Row(
        "900 on one capture", "issue_refund", pay(900, "pay_5a1"), captured(2_000), "denied",
        ("forbid-refund-without-two-captures",),
    ),
    Row(
        "three captures", "issue_refund", pay(900, "pay_5a3"), captured(2_000, 2_000, 2_000), "denied",
        ("forbid-refund-without-two-captures",),
    ),
    Row(
        "earlier payment", "issue_refund", pay(900, "pay_5a1"), READY, "denied",
        ("forbid-refund-of-other-than-later-payment",),
    ),
    Row(
        "unknown payment", "issue_refund", pay(900, "pay_zzz"), READY, "denied",
        ("forbid-refund-of-other-than-later-payment",),
    ),
    Row(
        "unequal captures", "issue_refund", pay(900), captured(2_100, 2_000), "denied",
        ("forbid-refund-of-unequal-captures",),
    ),
    Row(
        "status unknown", "issue_refund", pay(900), view(("lookup_order", order())), "denied",
        ("forbid-refund-before-status",),
    ),
    *(
        Row(
            f"{status} refund exists", "issue_refund", pay(900),
            view(LOOKED_UP[0], ("get_refund_status", refunds(refund(status, amount_inr=100)))), "ends",
            ("forbid-second-refund",),
        )
        for status in ("pending", "settled", "failed")
    ),
    Row("nothing", "issue_refund", pay(0), READY, "denied", ("forbid-refund-not-positive",)),
    Row("less than nothing", "issue_refund", pay(-5), READY, "denied", ("forbid-refund-not-positive",)),
    Row("one rupee", "issue_refund", pay(1), captured(900, 900), "support_lead", LEAD_RULE),
    Row("too much", "issue_refund", pay(2_001), READY, "denied", ("forbid-over-refund",)),
    Row("too much for a manager", "issue_refund", pay(2_001), READY, "denied", ("forbid-over-refund",),
        approver=MANAGER),
    Row(
        "the other payment refunded", "issue_refund", pay(900),
        view(LOOKED_UP[0], ("get_refund_status", refunds(refund(payment_id="pay_5a1")))), "denied",
        ("forbid-over-refund",),
    ),
    Row(
        "the other payment's refund failed", "issue_refund", pay(900),
        view(LOOKED_UP[0], ("get_refund_status", refunds(refund("failed", payment_id="pay_5a1")))), "support_lead",
        LEAD_RULE,
    ),
    Row(
        "dollars", "issue_refund", pay(900), on_order(currency="USD"), "ends", ("forbid-refund-in-other-currency",)
    ),
    Row(
        "chargeback", "issue_refund", pay(900), on_order(chargeback="open"), "ends",
        ("forbid-refund-during-chargeback",),
    ),
    Row(
        "chargeback approved", "issue_refund", pay(2_000), on_order(chargeback="open"), "ends",
        ("forbid-refund-during-chargeback",), approver=MANAGER,
    ),
    # telling the customer
    Row("notice", "notify_customer", notice(), REFUNDED, "allowed", ("notify-customer",)),
    Row("notice unscoped", "notify_customer", notice(), REFUNDED, "denied", DEFAULT, without("notifications:write")),
    Row(
        "notice to another", "notify_customer", notice(recipient="cust-1"), REFUNDED, "denied",
        ("forbid-notice-to-others",),
    ),
    Row(
        "notice about no refund", "notify_customer",
        notice(reference="refund:rf_1:pending", body="Order 8472 is in INR [ev-1]."), READY, "denied",
        ("forbid-notice-without-refund",),
    ),
    Row(
        "notice under another spelling", "notify_customer", notice(reference="rf_9001"), REFUNDED, "denied",
        ("forbid-notice-without-refund",),
    ),
    Row(
        "notice with an invented amount", "notify_customer",
        notice(body="Your refund rf_9001 of INR 2,500 is pending [ev-3]."), REFUNDED, "denied",
        ("forbid-unsupported-notice",),
    ),
    Row(
        "notice with an invented subject", "notify_customer", notice(subject="Your INR 9,000"), REFUNDED, "denied",
        ("forbid-unsupported-notice",),
    ),
]  # fmt: skip


def outcome(row: Row, policies: PolicySet) -> tuple[str, tuple[str, ...]]:
    requester = REQUESTER.model_copy(update={"scopes": row.scopes})
    facts = refund_facts(row.tool, row.args, row.seen)
    answer: AuthorisationAnswer
    if row.approver is not None:
        answer = entitled(
            policies,
            requester=requester,
            approver=row.approver,
            tool=row.tool,
            args=row.args,
            facts=facts,
            resource_tenant=row.resource_tenant,
        )
    else:
        answer = authorise(
            policies,
            requester=requester,
            tool=row.tool,
            args=row.args,
            facts=facts,
            resource_tenant=row.resource_tenant,
        )
    match answer:
        case Allowed(by):
            return "allowed", by
        case NeedsApproval(role, by):
            return role, by
        case Denied(by):
            return "ends" if answer.ends_task else "denied", by


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row(row: Row) -> None:
    assert outcome(row, load()) == (row.expected, row.by)


def test_the_threshold_names_its_clause() -> None:
    def clause(amount_inr: int) -> str:
        args = pay(amount_inr)
        facts = refund_facts("issue_refund", args, captured(amount_inr, amount_inr))
        answer = authorise(
            load(), requester=REQUESTER, tool="issue_refund", args=args, facts=facts, resource_tenant="acme"
        )
        assert isinstance(answer, NeedsApproval)
        return answer.clause

    assert clause(10_000) == "POL-REF-004 v4 §3.2"
    assert clause(10_001) == "POL-REF-004 v4 §3.3"


# --- no rule is superfluous -------------------------------------------------------------------------------------

_RULE = re.compile(r'@id\("(?P<id>[^"]+)"\).*?\};\n', re.DOTALL)
RESUME_ROWS = [(REQUESTER, True), (LEAD, True), (FOREIGN_LEAD, False), (Principal(id="dev", tenant="acme"), False)]


def texts_without_one_rule(text: str) -> Iterator[tuple[str, str]]:
    for match in _RULE.finditer(text):
        yield match["id"], text[: match.start()] + text[match.end() :]


def verdicts(policies: PolicySet) -> list[object]:
    """Only whether it is allowed, needs whom, is denied or ends: not by which rules."""
    rows: list[object] = [outcome(row, policies)[0] for row in ROWS]
    resumes = [
        isinstance(may_resume(policies, requester=REQUESTER, actor=actor), Allowed) for actor, _ in RESUME_ROWS
    ]
    return rows + resumes


EXPECTED: list[object] = [*(row.expected for row in ROWS), *(allowed for _, allowed in RESUME_ROWS)]


def test_the_rows_and_the_texts_match() -> None:
    assert verdicts(load()) == EXPECTED
    found = {name for text in (CEDAR_TEXT, authorisation.AUTHORITY_RULES) for name, _ in texts_without_one_rule(text)}
    assert found == set(load().rules)


@pytest.mark.parametrize(("rule", "text"), list(texts_without_one_rule(CEDAR_TEXT)))
def test_taking_out_any_rule_is_noticed(rule: str, text: str) -> None:
    assert verdicts(load(text)) != EXPECTED, f"no row notices that {rule} is missing"


@pytest.mark.parametrize(("rule", "text"), list(texts_without_one_rule(authorisation.AUTHORITY_RULES)))
def test_taking_out_any_rule_of_every_loop_is_noticed(rule: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorisation, "AUTHORITY_RULES", text)
    assert verdicts(load()) != EXPECTED, f"no row notices that {rule} is missing"
