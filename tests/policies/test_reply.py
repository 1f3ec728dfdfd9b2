import json
from pathlib import Path
from typing import Literal

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.graph.contract import CONTROL_ACTIONS, ControlAction, PhaseRule
from agentic_loop.graph.records import ToolShape
from agentic_loop.graph.state import CheckedCall, Effect, Limits, Proposal, ProposedCall, ReplyFault, Verdict
from agentic_loop.policies.fingerprints import action_hash, args_hash
from agentic_loop.policies.reply import CONTROL_SHAPES, judge

DATA = Path(__file__).parents[3] / "shared" / "data"

ORDER: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"order_id": {"type": "string", "maxLength": 400}},
    "required": ["order_id"],
}


def tool(name: str, effect: Effect = "read", max_calls: int = 6, key: str | None = None) -> ToolShape:
    return ToolShape(
        name=name,
        description="",
        parameters=ORDER,
        effect=effect,
        scope="",
        max_calls=max_calls,
        idempotency_key=key,
    )


SHAPES = {
    shape.name: shape
    for shape in (
        tool("lookup_order"),
        tool("get_refund_status", max_calls=2),
        tool("issue_refund", "write", key="refund:order-{order_id}:v1"),
        tool("unlisted_now"),
        tool("keyless_write", "write"),
        tool("wrongly_keyed_write", "write", key="x:{payment_id}"),
    )
}
GRANTED = [name for name in SHAPES if name != "unlisted_now"]


def call(name: str, arguments: JsonValue = "{}", call_id: str = "") -> ProposedCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ProposedCall(call_id=call_id, name=name, arguments_json=text)


def read(order_id: str = "8472", name: str = "lookup_order", call_id: str = "") -> ProposedCall:
    return call(name, {"order_id": order_id}, call_id)


def judged(
    *calls: ProposedCall,
    text: str = "",
    fault: ReplyFault | None = None,
    limits: Limits | None = None,
    calls_so_far: dict[str, int] | None = None,
    stop_on: tuple[str, ...] = (),
    controls: list[ControlAction] | None = None,
    source: Literal["model", "workflow"] = "model",
) -> Verdict:
    return judge(
        Proposal(source=source, calls=list(calls), text=text, fault=fault),
        shapes=SHAPES,
        rule=PhaseRule(
            name="investigate", tools=GRANTED, controls=list(CONTROL_ACTIONS) if controls is None else controls
        ),
        limits=limits or Limits(),
        calls_so_far=calls_so_far or {},
        stop_on=stop_on,
    )


def categories(verdict: Verdict) -> list[str | None]:
    return [None if one.fault is None else one.fault.category for one in verdict.calls]


# --- the whole answer


@pytest.mark.parametrize("fault", ["cut_off", "refusal", "empty", "text_without_call", "filtered"])
def test_a_faulty_answer_is_never_run_even_where_its_calls_are_fine(fault: ReplyFault) -> None:
    verdict = judged(read(), text="I have refunded it.", fault=fault)
    assert verdict.kind == "invalid"
    assert verdict.calls == []
    assert verdict.fault is not None
    assert len(verdict.fault.message) > 40


def test_text_alone_is_no_action_and_claims_nothing() -> None:
    verdict = judged(text="I've processed your refund.")
    assert verdict.kind == "invalid"
    assert verdict.fault is not None
    assert "text is not an action" in verdict.fault.message
    assert "finish" in verdict.fault.message


def test_nothing_at_all_is_told_apart_from_text() -> None:
    verdict = judged(text=" \n")
    assert verdict.fault is not None
    assert "empty" in verdict.fault.message


# --- names


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        (" lookup_order", "lookup_order"),
        ("lookup_order\n", "lookup_order"),
        ("functions.lookup_order", "lookup_order"),
        ("lookup_orderlookup_order", "lookup_order"),
        ("lookup_ordr", "lookup_order"),
        ("LOOKUP_ORDER", None),
        ("delete_customer", None),
        ("", None),
        ("x" * 10_000, None),
        ("a\x00b", None),
    ],
)
def test_a_name_must_match_exactly(name: str, suggested: str | None) -> None:
    verdict = judged(call(name, {"order_id": "1"}))
    assert verdict.kind == "invalid"
    assert categories(verdict) == ["unknown_tool"]
    assert len(verdict.calls[0].tool) <= 70
    message = verdict.calls[0].fault.message if verdict.calls[0].fault else ""
    assert ("did you mean" in message) == (suggested is not None)
    assert suggested is None or f"did you mean {suggested}?" in message


@pytest.mark.parametrize("name", ["parallel", "multi_tool_use.parallel"])
def test_a_wrapper_around_calls_is_explained(name: str) -> None:
    verdict = judged(call(name, {"tool_uses": []}))
    assert verdict.fault is not None
    assert "side by side" in verdict.fault.message


def test_a_tool_of_another_phase_is_known_but_not_allowed_now() -> None:
    verdict = judged(read(name="unlisted_now"))
    assert categories(verdict) == ["not_allowed_now"]
    assert verdict.fault is not None
    assert "lookup_order" in verdict.fault.message
    assert categories(judged(call("finish", {"message": "x"}), controls=["blocked"])) == ["not_allowed_now"]


@pytest.mark.parametrize(
    ("name", "stop_on", "ends"),
    [
        ("delete_customer", ("policy_violation",), True),
        ("unlisted_now", ("policy_violation",), True),
        ("delete_customer", (), False),
        ("lookup_order", ("policy_violation",), False),
        ("finish", ("policy_violation",), False),
    ],
)
def test_a_contract_may_end_the_task_for_a_tool_it_does_not_grant(
    name: str, stop_on: tuple[str, ...], ends: bool
) -> None:
    assert [one.ends_task for one in judged(call(name), stop_on=stop_on, controls=[]).calls] == [ends]


# --- several calls


def test_several_reads_keep_their_order_and_an_invalid_one_fails_alone() -> None:
    verdict = judged(read("1"), call("lookup_order", '{"order_id":'), read("2", "get_refund_status"))
    assert verdict.kind == "calls"
    assert categories(verdict) == [None, "invalid_arguments", None]
    assert verdict.calls[2].args == {"order_id": "2"}


def test_when_every_call_is_faulty_the_answer_is_invalid_and_carries_them() -> None:
    verdict = judged(call("lookup_order", "null"), call("nothing"))
    assert verdict.kind == "invalid"
    assert categories(verdict) == ["invalid_arguments", "unknown_tool"]
    assert verdict.fault is not None
    assert "and 1 more" in verdict.fault.message


def test_a_write_is_proposed_alone() -> None:
    verdict = judged(read(), read(name="issue_refund"), read(name="get_refund_status"))
    assert verdict.kind == "calls"
    assert categories(verdict) == [None, "not_allowed_now", None]
    assert judged(read(name="issue_refund"), read(name="issue_refund")).kind == "invalid"


def test_a_control_action_is_proposed_alone() -> None:
    finish = call("finish", {"message": "done"})
    verdict = judged(finish, read())
    assert verdict.kind == "calls"
    assert categories(verdict) == ["not_allowed_now", None]
    assert judged(finish, call("blocked", {"reason": "x"})).kind == "invalid"


def test_surplus_calls_are_refused_before_any_runs() -> None:
    verdict = judged(*(read(str(number)) for number in range(8)), calls_so_far={"lookup_order": 0})
    assert categories(verdict) == [None] * 6 + ["call_limit"] * 2
    verdict = judged(
        read("1", "get_refund_status"), read("2", "get_refund_status"), calls_so_far={"get_refund_status": 1}
    )
    assert categories(verdict) == [None, "call_limit"]
    verdict = judged(read("1"), read("2"), read("3"), limits=Limits(max_calls_per_step=2))
    assert categories(verdict) == [None, None, "call_limit"]
    verdict = judged(read("1"), read("2"), limits=Limits(max_calls_per_tool=1))
    assert categories(verdict) == [None, "call_limit"]


def test_a_call_that_fails_does_not_use_up_a_call() -> None:
    verdict = judged(*[call("get_refund_status", "[]")] * 3, read(name="get_refund_status"))
    assert categories(verdict)[-1] is None


def test_call_ids_are_unique_and_deterministic() -> None:
    calls = [read("1", call_id=one) for one in ("", "a", "a", "call-1", " ", "a-call-3", "x\ny", "é")]
    ids = [one.call_id for one in judged(*calls).calls]
    assert len(set(ids)) == len(ids)
    assert ids == [one.call_id for one in judged(*calls).calls]
    assert ids[1] == "a"
    assert ids[3] == "call-1"
    assert all(one.isascii() and one.isprintable() and one.strip() == one for one in ids)


# --- what a good call carries


def test_a_write_carries_its_key_and_action_hash() -> None:
    (found,) = judged(read(name="issue_refund")).calls
    assert found.effect == "write"
    assert found.idempotency_key == "refund:order-8472:v1"
    assert found.args_hash == args_hash("issue_refund", {"order_id": "8472"})
    assert found.action_hash == action_hash("issue_refund", {"order_id": "8472"}, "refund:order-8472:v1")


def test_a_workflow_is_judged_like_the_model() -> None:
    for proposed in (read(name="issue_refund"), read(name="unlisted_now"), call("lookup_order", "{}")):
        assert judged(proposed, source="workflow") == judged(proposed)


@pytest.mark.parametrize("name", ["keyless_write", "wrongly_keyed_write"])
def test_a_write_without_a_key_fails_validation(name: str) -> None:
    assert categories(judged(read(name=name))) == ["invalid_arguments"]


@pytest.mark.parametrize("order_id", ["8472\r\nX-Role: lead", "८४७२", "9" * 300])
def test_identifiers_that_would_break_the_key_are_refused(order_id: str) -> None:
    assert categories(judged(read(order_id, "issue_refund"))) == ["invalid_arguments"]
    assert categories(judged(read(order_id))) == [None]


# --- control actions


@pytest.mark.parametrize(
    ("name", "arguments", "text", "wait_s"),
    [
        ("finish", {"message": "Refund rf_9001 is pending (ev-5)."}, "Refund rf_9001 is pending (ev-5).", 0),
        ("ask_user", {"question": "Which order?"}, "Which order?", 0),
        ("blocked", {"reason": "no tool for it"}, "no tool for it", 0),
        ("wait_and_recheck", {"wait_s": 60.0, "reason": "still pending"}, "still pending", 60),
    ],
)
def test_a_control_action_becomes_a_verdict_of_its_own(
    name: str, arguments: dict[str, JsonValue], text: str, wait_s: int
) -> None:
    verdict = judged(call(name, arguments, "c1"))
    assert (verdict.kind, verdict.text, verdict.wait_s) == (name, text, wait_s)
    assert [one.call_id for one in verdict.calls] == ["c1"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("finish", {}),
        ("finish", {"message": ""}),
        ("finish", {"message": " \n"}),
        ("finish", {"message": "x", "success": True}),
        ("ask_user", {"question": "x" * 4_001}),
        ("wait_and_recheck", {"wait_s": 0, "reason": "x"}),
        ("wait_and_recheck", {"wait_s": 3_601, "reason": "x"}),
        ("wait_and_recheck", {"wait_s": "60", "reason": "x"}),
    ],
)
def test_a_control_action_is_validated_like_a_tool(name: str, arguments: dict[str, JsonValue]) -> None:
    verdict = judged(call(name, arguments))
    assert verdict.kind == "invalid"
    assert categories(verdict) == ["invalid_arguments"]


def test_every_control_action_has_a_shape() -> None:
    assert tuple(CONTROL_SHAPES) == CONTROL_ACTIONS


# --- anything


NAMES = st.sampled_from([*SHAPES, *CONTROL_ACTIONS]) | st.text(max_size=20)
ARGUMENTS = st.sampled_from(['{"order_id": "1"}', '{"message": "x"}', "", "null", "[]", '{"wait_s":1,"reason":"y"}'])
PROPOSALS = st.builds(
    Proposal,
    source=st.sampled_from(["model", "workflow"]),
    calls=st.lists(
        st.builds(ProposedCall, call_id=st.text(max_size=5), name=NAMES, arguments_json=ARGUMENTS | st.text()),
        max_size=12,
    ),
    text=st.text(),
    fault=st.none() | st.sampled_from(["cut_off", "refusal", "empty", "text_without_call", "filtered"]),
)


def is_dispatchable(one: CheckedCall) -> bool:
    return one.fault is None


@given(PROPOSALS, st.sampled_from([(), ("policy_violation",)]), st.dictionaries(NAMES, st.integers(0, 9), max_size=3))
def test_every_proposal_gets_a_sound_verdict(
    proposal: Proposal, stop_on: tuple[str, ...], calls_so_far: dict[str, int]
) -> None:
    limits = Limits()
    rule = PhaseRule(name="investigate", tools=GRANTED)
    verdict = judge(proposal, shapes=SHAPES, rule=rule, limits=limits, calls_so_far=calls_so_far, stop_on=stop_on)
    assert verdict == judge(
        proposal, shapes=SHAPES, rule=rule, limits=limits, calls_so_far=calls_so_far, stop_on=stop_on
    )
    assert verdict == Verdict.model_validate_json(verdict.model_dump_json())
    usable = [one for one in verdict.calls if is_dispatchable(one)]
    assert (verdict.kind == "invalid") == (not usable)
    assert (verdict.kind == "invalid") == (verdict.fault is not None)
    assert len({one.call_id for one in verdict.calls}) == len(verdict.calls)
    assert proposal.fault is None or not usable
    assert len(usable) <= limits.max_calls_per_step
    for one in usable:
        assert one.tool in GRANTED or one.tool == verdict.kind
        assert (one.idempotency_key is not None) == (one.effect == "write")
    if any(one.effect == "write" for one in usable) or verdict.kind not in ("calls", "invalid"):
        assert len(verdict.calls) == 1
    for name in GRANTED:
        admitted = sum(one.tool == name for one in usable)
        assert admitted == 0 or admitted + calls_so_far.get(name, 0) <= SHAPES[name].max_calls
    kept = [
        verdict.text,
        *(one.tool + one.call_id + (one.fault.message if one.fault else "") for one in verdict.calls),
    ]
    assert "\x00" not in "".join(kept)


# --- what models really send


needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared inputs are not here")


def rows(name: str) -> list[dict[str, JsonValue]]:
    path = DATA / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def shape_of(row: dict[str, JsonValue]) -> ToolShape:
    name, parameters = row["name"], row["parameters"]
    assert isinstance(name, str)
    assert isinstance(parameters, dict)
    is_refund = name == "refund_order"
    return ToolShape(
        name=name,
        description="",
        parameters=parameters,
        effect="write" if is_refund else "read",
        scope="",
        idempotency_key="refund:{order_id}:v1" if is_refund else None,
    )


def answer_of(row: dict[str, JsonValue]) -> Proposal:
    raw, name, content = row["raw_arguments"], row["tool"], row.get("content", "")
    assert isinstance(name, str)
    assert isinstance(content, str)
    calls = [ProposedCall(call_id="", name=name, arguments_json=str(raw or ""))]
    cut = row.get("finish_reason") == "length"
    return Proposal(source="model", calls=[] if content else calls, text=content, fault="cut_off" if cut else None)


@needs_data
@pytest.mark.parametrize("row", rows("malformed_calls.jsonl"), ids=lambda row: f"{row['id']}-{row['kind']}")
def test_answers_as_models_malform_them(row: dict[str, JsonValue]) -> None:
    shapes = {tool["name"]: shape_of(tool) for tool in json.loads((DATA / "malformed_tools.json").read_text())}
    rule = PhaseRule(name="work", tools=list(shapes))
    verdict = judge(answer_of(row), shapes=shapes, rule=rule, limits=Limits(), calls_so_far={}, stop_on=())
    assert verdict.kind == ("calls" if row["expect"] == "accept" else "invalid")
    together = row.get("message_tool_calls")
    if isinstance(together, list):
        calls = [
            ProposedCall(call_id=str(one["id"]), name=str(one["name"]), arguments_json=str(one["arguments"]))
            for one in together
            if isinstance(one, dict)
        ]
        both = judge(
            Proposal(source="model", calls=calls),
            shapes=shapes,
            rule=rule,
            limits=Limits(),
            calls_so_far={},
            stop_on=(),
        )
        assert len({one.call_id for one in both.calls}) == 2
        assert categories(both) == ["not_allowed_now"] * 2


@needs_data
@pytest.mark.parametrize("row", rows("bfcl/parallel_messages.jsonl"), ids=lambda row: str(row["id"]))
def test_an_answer_with_several_calls_yields_exactly_those_calls(row: dict[str, JsonValue]) -> None:
    tools, expected = row["tools"], row["calls"]
    assert isinstance(tools, list)
    assert isinstance(expected, list)
    shapes = {shape.name: shape for shape in (shape_of(tool) for tool in tools if isinstance(tool, dict))}
    calls = [call(str(one["name"]), one["arguments"]) for one in expected if isinstance(one, dict)]
    verdict = judge(
        Proposal(source="model", calls=calls),
        shapes=shapes,
        rule=PhaseRule(name="work", tools=list(shapes)),
        limits=Limits(),
        calls_so_far={},
        stop_on=(),
    )
    assert verdict.kind == "calls"
    assert len(verdict.calls) == len(expected)
    for one, proposed in zip(verdict.calls, expected, strict=True):
        assert isinstance(proposed, dict)
        # A few recorded calls break their own schema; such a call fails alone.
        fits = jsonschema_rs.is_valid(dict(shapes[one.tool].parameters), proposed["arguments"])
        assert (one.fault is None) == fits
        assert not fits or {"name": one.tool, "arguments": one.args} == proposed
