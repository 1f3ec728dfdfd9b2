import math

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.graph.state import OutstandingAction
from agentic_loop.policies.fingerprints import action_hash, args_hash, canonical_json, digest, state_fingerprint

EXACT = st.integers(-(2**53) + 1, 2**53 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | EXACT | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)


def reordered(value: JsonValue) -> JsonValue:
    match value:
        case dict():
            return {key: reordered(value[key]) for key in reversed(value)}
        case list():
            return [reordered(item) for item in value]
        case _:
            return value


def nested(depth: int, innermost: JsonValue) -> JsonValue:
    value = innermost
    for _ in range(depth):
        value = {"b": [value], "a": 1}
    return value


@given(PLAIN)
def test_what_rfc_8785_can_encode_is_encoded_by_it(value: JsonValue) -> None:
    # Keys that begin with U+0000 are escaped, because that is how marks begin.
    if "\\u0000" not in canonical_json(value):
        assert canonical_json(value) == rfc8785.dumps(value).decode()


@given(ANYTHING)
def test_a_digest_is_total_and_does_not_depend_on_the_order_of_keys(value: JsonValue) -> None:
    assert len(digest(value)) == 64
    assert digest(value) == digest(reordered(value))


@given(ANYTHING, ANYTHING)
def test_different_data_have_different_canonical_json(one: JsonValue, other: JsonValue) -> None:
    if canonical_json(one) == canonical_json(other):
        assert repr(rounded(one)) == repr(rounded(other))


def rounded(value: JsonValue) -> JsonValue:
    """The value up to what JSON does not tell apart: whole floats from integers, and the order of keys."""
    match value:
        case float() if math.isfinite(value) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {key: rounded(value[key]) for key in sorted(value)}
        case list():
            return [rounded(item) for item in value]
        case _:
            return value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2**53, str(2**53)),
        (2**53, {"\x00int": hex(2**53)}),
        (2**60, 2**60 + 1),
        pytest.param(10**5000, 10**5000 + 1, id="longer than Python writes in digits"),
        (math.inf, "inf"),
        (math.inf, -math.inf),
        (math.nan, None),
        ("\ud800", "\ud801"),
        ({"\ud800": 1}, {"\ud801": 1}),
        ({"\x00a": 1}, {"a": 1}),
        ({"\x00a": 1}, {"\x00\x00a": 1}),
        (True, 1),
        (None, "null"),
        (nested(200, 1), nested(200, 2)),
        (nested(200, 1), nested(201, 1)),
    ],
)
def test_data_that_differ_have_different_digests(one: JsonValue, other: JsonValue) -> None:
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2, 2.0),
        (-0.0, 0),
        (math.nan, math.nan),
        (nested(5000, 7), nested(5000, 7)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_equal_data_have_equal_digests(one: JsonValue, other: JsonValue) -> None:
    assert digest(one) == digest(other)


def test_nesting_far_below_the_recursion_limit_does_not_depend_on_the_order_of_keys() -> None:
    deep = nested(100, {"y": 1, "x": 2})
    assert digest(deep) == digest(reordered(deep))


def test_an_action_hash_covers_tool_arguments_and_key() -> None:
    args: dict[str, JsonValue] = {"order_id": "8472", "amount_inr": 2000}
    base = action_hash("issue_refund", args, "k")
    others = {
        action_hash("issue_refunds", args, "k"),
        action_hash("issue_refund", {**args, "amount_inr": 2500}, "k"),
        action_hash("issue_refund", args, "k2"),
        action_hash("issue_refund", args, None),
        args_hash("issue_refund", args),
    }
    assert base not in others
    assert len(others) == 5
    assert base == action_hash("issue_refund", dict(reversed(args.items())), "k")


def fingerprint(**changes: object) -> str:
    given_values: dict[str, object] = {
        "evidence_digests": ["a", "b"],
        "outstanding": [],
        "status": "RUNNING",
        "phase": "x",
    }
    return state_fingerprint(**(given_values | changes))  # type: ignore[arg-type]


def action(status: str, key: str = "k1") -> OutstandingAction:
    return OutstandingAction.model_validate(
        {"kind": "issue_refund", "key": key, "action_hash": "h", "status": status}
    )


def test_a_state_fingerprint_changes_with_what_counts_as_progress() -> None:
    seen = [
        fingerprint(),
        fingerprint(evidence_digests=["a", "b", "c"]),
        fingerprint(status="AWAITING_APPROVAL"),
        fingerprint(phase="y"),
        fingerprint(outstanding=[action("proposed")]),
        fingerprint(outstanding=[action("executed")]),
    ]
    assert len(set(seen)) == len(seen)


def test_a_state_fingerprint_ignores_order_and_repetition() -> None:
    assert fingerprint() == fingerprint(evidence_digests=["b", "a", "b"])
    pair = [action("proposed", "k1"), action("executed", "k2")]
    assert fingerprint(outstanding=pair) == fingerprint(outstanding=pair[::-1])
