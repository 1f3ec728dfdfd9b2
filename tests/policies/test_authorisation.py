"""The engine: what is refused at load, and how Cedar's answers become allowed, needs-approval and denied."""

from collections.abc import Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, JsonValue

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ToolShape
from agentic_loop.graph.state import Principal
from agentic_loop.policies.authorisation import (
    Allowed,
    Denied,
    NeedsApproval,
    PolicySet,
    authorise,
    entitled,
    may_resume,
)


class Facts(BaseModel):
    model_config = ConfigDict(frozen=True)

    hold: bool = False
    factor: int = 1
    owner: str | None = None
    labels: list[str] = []


PARAMETERS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "price": {"type": "number"},
        "where": {"$ref": "#/$defs/Place"},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["amount"],
    "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}, "lat": {"type": "number"}}}},
}
TEXT = """
@id("small") @reason("Small amounts are free.") @clause("P §1")
permit (principal, action == Action::"pay", resource)
when { principal.scopes.contains("pay") && context.args.amount <= 10 };

@id("by-lead") @reason("A lead may approve up to 100.") @clause("P §2")
permit (principal, action == Action::"pay", resource)
when {
  principal.scopes.contains("pay") && context.args.amount <= 100 &&
  context has approval && context.approval.approver in Role::"support_lead"
};

@id("by-manager") @reason("A manager may approve more.") @clause("P §3")
permit (principal, action == Action::"pay", resource)
when {
  principal.scopes.contains("pay") && context has approval && context.approval.approver in Role::"manager"
};

@id("hold") @reason("It is on hold.") @clause("P §4") @on_deny("end")
forbid (principal, action == Action::"pay", resource)
when { context.facts.hold };

@id("overflowing") @reason("The product is negative.")
forbid (principal, action == Action::"pay", resource)
when { context.args.amount * context.facts.factor < 0 };
"""
REQUESTER = Principal(id="ravi", tenant="acme", scopes=["pay"])
LEAD = Principal(id="asha", tenant="acme", roles=["support_lead"])
MANAGER = Principal(id="meera", tenant="acme", roles=["manager"])


def shapes(**others: ToolShape) -> dict[str, ToolShape]:
    pay = ToolShape(name="pay", description="", parameters=PARAMETERS, effect="write", scope="pay")
    return {"pay": pay, **others}


def load(text: str = TEXT) -> PolicySet:
    return PolicySet.load(texts={"pay.cedar": text}, shapes=shapes(), facts=Facts)


POLICIES = load()


def ask(
    amount: JsonValue,
    *,
    facts: Facts | None = None,
    tenant: str | None = "acme",
    confirm: bool = False,
    requester: Principal = REQUESTER,
    tool: str = "pay",
    others: Mapping[str, JsonValue] | None = None,
) -> Allowed | NeedsApproval | Denied:
    return authorise(
        POLICIES,
        requester=requester,
        tool=tool,
        args={"amount": amount, **(others or {})},
        facts=facts or Facts(),
        resource_tenant=tenant,
        confirm=confirm,
    )


def approve(
    approver: Principal, amount: int, *, facts: Facts | None = None, confirm: bool = False
) -> Allowed | Denied:
    return entitled(
        POLICIES,
        requester=REQUESTER,
        approver=approver,
        tool="pay",
        args={"amount": amount},
        facts=facts or Facts(),
        resource_tenant="acme",
        confirm=confirm,
    )


# --- loading ----------------------------------------------------------------------------------------------------

PERMIT = "permit (principal, action, resource);"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("permit (principal", "pay.cedar: this is not Cedar"),
        ('@reason("r") ' + PERMIT, "pay.cedar: a policy needs @id"),
        ('@id("a") ' + PERMIT, "pay.cedar: policy 'a' needs @reason"),
        ('@id("") @reason("r") ' + PERMIT, "pay.cedar: a policy needs @id"),
        (f'@id("a") @reason("r") {PERMIT} @id("a") @reason("r") {PERMIT}', "policy 'a' is also in pay.cedar"),
        (f'@id("forbid-self-approval") @reason("r") {PERMIT}', "is also in authority"),
        (f'@id("a") @reason("r") @on_deny("stop") {PERMIT.replace("permit", "forbid")}', '@on_deny("stop")'),
        (f'@id("a") @reason("r") @on_deny("end") {PERMIT}', "its @on_deny would never apply"),
        (f'@id("a") @reason("r") @on_denial("end") {PERMIT}', "@on_denial, which means nothing here"),
        ('@id("a") @reason("r") permit (principal == ?principal, action, resource);', "templates are not supported"),
        (
            '@id("a") @reason("r") permit (principal, action == Action::"pay", resource) '
            "when { context.args.zip > 1 };",
            "pay.cedar: for policy `a`, attribute `args.zip`",
        ),
        (
            '@id("a") @reason("r") permit (principal, action == Action::"pay", resource) '
            "when { context.args.price > 1 };",
            "attribute `args.price`",
        ),
        (
            '@id("a") @reason("r") permit (principal, action == Action::"pay", resource) '
            'when { context.args.note == "x" };',
            "optional attribute",
        ),
        ('@id("a") @reason("r") permit (principal, action == Action::"fly", resource);', 'Action::"fly"'),
        (
            '@id("a") @reason("r") permit (principal, action == Action::"pay", resource) '
            'when { context has approval && context.approval.approver in Role::"boss" };',
            'Role::"boss", which has no place in the order of approver roles',
        ),
    ],
)
def test_a_wrong_policy_text_is_refused_with_file_and_policy(text: str, says: str) -> None:
    with pytest.raises(Misuse) as refused:
        load(text)
    assert says in str(refused.value)


def test_a_rule_may_be_used_by_one_file_only() -> None:
    rule = f'@id("a") @reason("r") {PERMIT}'
    with pytest.raises(Misuse, match=r"two\.cedar: policy 'a' is also in one\.cedar"):
        PolicySet.load(texts={"one.cedar": rule, "two.cedar": rule}, shapes=shapes(), facts=Facts)


def test_policies_of_all_files_are_numbered_together() -> None:
    extra = "".join(
        f'@id("no-{n}") @reason("not {n}") forbid (principal, action == Action::"pay", resource) '
        f"when {{ context.args.amount == {n} }};\n"
        for n in range(12)
    )
    policies = PolicySet.load(texts={"pay.cedar": TEXT, "more.cedar": extra}, shapes=shapes(), facts=Facts)
    for n in range(12):
        answer = authorise(
            policies, requester=REQUESTER, tool="pay", args={"amount": n}, facts=Facts(), resource_tenant=None
        )
        assert answer == Denied((f"no-{n}",), "", f"not {n}", False)


def test_facts_and_names_that_cannot_be_given_to_cedar_are_refused() -> None:
    class Floating(BaseModel):
        ratio: float

    with pytest.raises(Misuse, match="no type for ratio"):
        PolicySet.load(texts={}, shapes=shapes(), facts=Floating)
    pay = shapes()["pay"]
    with pytest.raises(Misuse, match="resume_task"):
        PolicySet.load(texts={}, shapes={"resume_task": pay}, facts=Facts)
    with pytest.raises(Misuse, match="authority"):
        PolicySet.load(texts={"authority": ""}, shapes=shapes(), facts=Facts)
    for roles in ([], ["lead", "lead"]):
        with pytest.raises(Misuse, match="approver_roles"):
            PolicySet.load(texts={}, shapes=shapes(), facts=Facts, approver_roles=roles)


def test_arguments_without_a_cedar_type_are_listed() -> None:
    assert POLICIES.left_out == {"pay": ("price", "where.lat")}


def test_facts_of_another_model_are_refused() -> None:
    class Other(BaseModel):
        hold: bool = False

    with pytest.raises(Misuse, match="facts of Facts, not Other"):
        authorise(
            POLICIES, requester=REQUESTER, tool="pay", args={"amount": 1}, facts=Other(), resource_tenant="acme"
        )


# --- judging ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "answer"),
    [
        (10, Allowed(("small",))),
        (10.0, Allowed(("small",))),
        (11, NeedsApproval("support_lead", ("by-lead",), "P §2", "A lead may approve up to 100.")),
        (100, NeedsApproval("support_lead", ("by-lead",), "P §2", "A lead may approve up to 100.")),
        (101, NeedsApproval("manager", ("by-manager",), "P §3", "A manager may approve more.")),
        (-1, Denied(("overflowing",), "", "The product is negative.", False)),
    ],
)
def test_the_least_role_that_suffices_is_asked(amount: JsonValue, answer: Allowed | NeedsApproval | Denied) -> None:
    assert ask(amount) == answer


def test_a_forbid_denies_with_or_without_approval() -> None:
    denied = Denied(("hold",), "P §4", "It is on hold.", True)
    assert ask(5, facts=Facts(hold=True)) == denied
    assert ask(50, facts=Facts(hold=True)) == denied
    assert approve(MANAGER, 50, facts=Facts(hold=True)) == denied


def test_several_forbids_are_all_told_in_the_order_of_the_file_and_one_end_ends() -> None:
    answer = ask(-5, facts=Facts(hold=True))
    assert answer == Denied(("hold", "overflowing"), "P §4", "It is on hold. The product is negative.", True)


def test_what_no_policy_permits_is_denied() -> None:
    assert isinstance(ask(5, tool="fly"), Denied)


def test_a_tool_whose_scope_the_task_lacks_is_denied_for_good_whatever_the_loops_policy_says() -> None:
    without_scope = Principal(id="ravi", tenant="acme")
    answer = ask(5, requester=without_scope)
    assert answer == Denied(("scope-of-pay",), "", "The task lacks the scope pay, which pay needs.", True)


def test_a_policy_that_cannot_be_evaluated_denies_although_another_permits() -> None:
    answer = ask(2, facts=Facts(factor=2**63 - 1))
    assert isinstance(answer, Denied)
    assert "`overflowing`" in answer.reason
    assert isinstance(approve(LEAD, 20, facts=Facts(factor=2**63 - 1)), Denied)


def test_another_tenants_resource_is_denied_for_good_and_an_unknown_one_is_left_to_the_policies() -> None:
    answer = ask(5, tenant="evil")
    assert isinstance(answer, Denied)
    assert answer.policy_ids == ("forbid-other-tenant",)
    assert answer.ends_task
    assert isinstance(ask(5, tenant=None), Allowed)


def test_a_demanded_approval_is_asked_of_the_least_role() -> None:
    wanted = ask(5, confirm=True)
    assert wanted == NeedsApproval("support_lead", ("by-lead",), "P §2", "A lead may approve up to 100.")
    assert ask(101, confirm=True) == ask(101)


def test_a_demanded_approval_that_no_role_may_give_denies() -> None:
    never = TEXT + (
        '@id("nobody") @reason("Nobody approves.") forbid (principal, action == Action::"pay", resource) '
        "when { context has approval };"
    )
    policies = load(never)
    answer = authorise(
        policies,
        requester=REQUESTER,
        tool="pay",
        args={"amount": 5},
        facts=Facts(),
        resource_tenant="acme",
        confirm=True,
    )
    assert isinstance(answer, Denied)
    assert "no role" in answer.reason


@pytest.mark.parametrize(
    ("approver", "amount", "allowed"),
    [
        (LEAD, 50, True),
        (LEAD, 101, False),
        (MANAGER, 50, True),
        (MANAGER, 101, True),
        (Principal(id="dev", tenant="acme"), 50, False),
        (Principal(id="dev", tenant="acme", roles=["engineer"]), 5, False),
        (Principal(id="ravi", tenant="acme", roles=["manager"]), 50, False),
        (Principal(id="asha", tenant="evil", roles=["manager"]), 50, False),
        (Principal(id="ravi", tenant="evil", roles=["manager"]), 50, False),
    ],
)
@pytest.mark.parametrize("confirm", [True, False])
def test_entitlement_is_the_same_policy_with_the_real_person(
    approver: Principal, amount: int, allowed: bool, confirm: bool
) -> None:
    assert isinstance(approve(approver, amount, confirm=confirm), Allowed) is allowed


def test_entitlement_says_what_is_missing() -> None:
    assert approve(LEAD, 101) == Denied(
        (), "P §3", "this needs the approval of a manager; asha has support_lead", False
    )
    itself = approve(Principal(id="ravi", tenant="acme", roles=["manager"]), 50)
    assert isinstance(itself, Denied)
    assert itself.policy_ids == ("forbid-self-approval",)


def test_a_requester_with_a_slash_in_the_tenant_is_not_mistaken_for_another() -> None:
    approver = Principal(id="c", tenant="a/b", roles=["manager"])
    answer = entitled(
        POLICIES,
        requester=Principal(id="b/c", tenant="a", scopes=["pay"]),
        approver=approver,
        tool="pay",
        args={"amount": 50},
        facts=Facts(),
        resource_tenant="a",
    )
    assert isinstance(answer, Denied)
    assert answer.policy_ids == ("forbid-approver-of-other-tenant",)


@pytest.mark.parametrize(
    ("actor", "allowed"),
    [
        (REQUESTER, True),
        (LEAD, True),
        (MANAGER, True),
        (Principal(id="dev", tenant="acme"), False),
        (Principal(id="ravi", tenant="evil"), False),
        (Principal(id="asha", tenant="evil", roles=["support_lead", "manager"]), False),
    ],
)
def test_who_may_resume(actor: Principal, allowed: bool) -> None:
    assert isinstance(may_resume(POLICIES, requester=REQUESTER, actor=actor), Allowed) is allowed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(amount=JSON, others=st.dictionaries(st.sampled_from(["note", "tags", "where", "kind", "zip"]), JSON))
def test_any_arguments_get_an_answer_and_only_small_integers_are_free(
    amount: JsonValue, others: Mapping[str, JsonValue]
) -> None:
    answer = ask(amount, others=others)
    if isinstance(answer, Allowed):
        assert not isinstance(amount, bool)
        assert isinstance(amount, int | float)
        assert amount <= 10


@settings(max_examples=60, deadline=None)
@given(person=st.text(st.characters()), tenant=st.text(st.characters()))
def test_any_name_of_another_tenant_is_never_entitled(person: str, tenant: str) -> None:
    assume(tenant != "acme")
    assert isinstance(approve(Principal(id=person, tenant=tenant, roles=["manager"]), 50), Denied)


def test_cedars_own_escapes_in_arguments_are_not_followed() -> None:
    escape: JsonValue = {"__entity": {"type": "User", "id": "acme/asha"}}
    assert isinstance(ask(5, others={"note": escape}), Denied)
    assert isinstance(ask(5, others={"tags": [escape]}), Denied)
    assert isinstance(ask(5, others={"where": {"__extn": {"fn": "ip", "arg": "::"}}}), Allowed)
