from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.graph.records import EvidenceRecord
from agentic_loop.graph.state import (
    CallFault,
    CallResult,
    FaultCategory,
    Limits,
    Progress,
    ProgressMark,
    Reason,
    Thresholds,
)
from agentic_loop.policies.fingerprints import args_hash, digest
from agentic_loop.policies.progress import (
    MAX_MARKS,
    DeclaredFact,
    assess,
    correct,
    disagreements,
    mark_of,
    remember,
    remember_evidence,
    remember_invalid,
    remember_wait,
    would_repeat,
)

DEFAULTS = Thresholds()


def result(tool: str, arg: str, payload: JsonValue = None, fault: FaultCategory | None = None) -> CallResult:
    args: dict[str, JsonValue] = {"order_id": arg}
    return CallResult(
        call_id="c",
        tool=tool,
        args=args,
        args_hash=args_hash(tool, args),
        outcome="ok" if fault is None else "error",
        payload=payload,
        fault=None if fault is None else CallFault(category=fault, message="as told to the model"),
    )


class History:
    """A run as the recorder would feed it to the monitor: the state fingerprint follows the set of payloads."""

    def __init__(self, thresholds: Thresholds = DEFAULTS) -> None:
        self.thresholds = thresholds
        self.progress = Progress()
        self._payloads: set[str] = set()
        self._steps = 0

    def step(self, *results: CallResult) -> Reason | None:
        self._steps += 1
        self._payloads |= {digest(one.payload) for one in results if one.outcome == "ok"}
        state = digest([*sorted(self._payloads)])
        self.progress = remember(
            self.progress, mark_of(step=self._steps, results=results, state=state), self.thresholds
        )
        return self.progress.flag

    def repeats(self, one: CallResult) -> bool:
        return would_repeat(self.progress, one.args_hash, self.thresholds)


A = result("lookup_order", "8472", {"captures": 2})
B = result("get_refund_status", "8472", {"refunds": []})
C = result("search_policy", "threshold", {"passages": ["3.2"]})
D = result("get_chargeback", "8472", {"chargeback": None})


# --- the document's example


def test_the_documents_four_calls() -> None:
    observed = result("get_refund_status", "8472", {"refunds": []})
    state = digest({"evidence": ["ev-1", "ev-2"], "outstanding": []})
    marks = [mark_of(step=number, results=[observed], state=state) for number in range(1, 5)]
    found = [assess(marks[:count], DEFAULTS) for count in range(1, 5)]
    assert found == [None, None, "repeated_action", "repeated_action"]


def test_an_empty_history_shows_nothing() -> None:
    assert assess([], DEFAULTS) is None


# --- each sign


def test_a_repeat_is_refused_before_the_third_dispatch_and_flagged() -> None:
    history = History()
    assert not history.repeats(B)
    history.step(B)
    assert not history.repeats(B)
    history.step(B)
    assert history.repeats(B)
    assert not history.repeats(A)
    refused = result("get_refund_status", "8472", fault="repeat_refused")
    assert history.step(refused) == "repeated_action"
    assert history.repeats(B)


def test_a_changed_observation_is_no_repeat() -> None:
    history = History()
    for status in ("pending", "pending", "settled"):
        assert history.step(result("get_refund", "rf_1", {"status": status})) is None
    assert not history.repeats(result("get_refund", "rf_1"))


def test_new_evidence_from_elsewhere_excuses_a_fresh_look() -> None:
    history = History()
    history.step(A)
    history.step(A)
    assert history.repeats(A)
    history.step(C)
    assert not history.repeats(A)
    assert history.step(A) is None


def test_a_repeat_hidden_behind_new_evidence_in_the_same_steps_is_seen() -> None:
    history = History()
    assert history.step(A, B) is None
    assert history.step(A, C) is None
    assert history.repeats(A)
    assert history.step(A, D) == "repeated_action"


def test_back_and_forth_between_two_actions_is_oscillation() -> None:
    history = History()
    assert [history.step(one) for one in (A, B, A, B)] == [None, None, None, "oscillation"]


def test_back_and_forth_that_keeps_learning_is_not() -> None:
    history = History()
    flags = [
        history.step(result("get_order", "1", {"seen": 1})),
        history.step(result("get_refund", "1", {"seen": 2})),
        history.step(result("get_order", "1", {"seen": 3})),
        history.step(result("get_refund", "1", {"seen": 4})),
    ]
    assert flags == [None] * 4


def test_oscillation_is_judged_over_the_set_of_calls_of_a_step() -> None:
    history = History()
    assert [history.step(*calls) for calls in ((A, B), (C,), (B, A), (C,))] == [None, None, None, "oscillation"]


def test_steps_that_learn_nothing_are_a_stall() -> None:
    history = History()
    history.step(A)
    misses = [result("lookup_order", str(number), fault="not_found") for number in range(3)]
    assert [history.step(one) for one in misses] == [None, None, "no_state_change"]
    assert history.progress.stalled_steps == 3


def test_four_different_reads_in_one_step_are_no_stall() -> None:
    history = History()
    assert history.step(A, B, C, D) is None
    assert history.progress.stalled_steps == 0


def test_the_same_data_under_other_arguments_is_theatre() -> None:
    history = History(Thresholds(max_stalled_steps=9))
    same: JsonValue = {"order_id": "8472"}
    flags = [history.step(result("lookup_order", arg, same)) for arg in ("8472", "08472", "008472")]
    assert flags == [None, None, "progress_theatre"]


def test_the_same_data_for_calls_of_one_step_is_no_theatre() -> None:
    empty: JsonValue = {"refunds": []}
    assert History().step(*(result("get_refund_status", str(number), empty) for number in range(4))) is None


def test_the_same_data_from_other_tools_is_no_theatre() -> None:
    history = History(Thresholds(max_stalled_steps=9))
    for number in range(4):
        assert history.step(result(f"tool_{number}", str(number), {"refunds": []})) is None


def test_the_order_of_the_checks() -> None:
    """Where several signs show at once: the repeated action, then the stall, then oscillation, then theatre."""
    twice = History()
    twice.step(A)
    twice.step(A)
    assert assess(twice.progress.marks, Thresholds(max_repeats=1, max_stalled_steps=1)) == "repeated_action"
    assert assess(twice.progress.marks, Thresholds(max_stalled_steps=1)) == "no_state_change"
    other_args = result("lookup_order", "08472", A.payload)
    to_and_fro = History()
    for one in (A, other_args, A, other_args):
        to_and_fro.step(one)
    calm = Thresholds(max_repeats=9, max_stalled_steps=9, max_theatre=1)
    assert assess(to_and_fro.progress.marks, Thresholds(max_stalled_steps=3)) == "no_state_change"
    assert assess(to_and_fro.progress.marks, calm) == "oscillation"
    assert assess(to_and_fro.progress.marks[:2], calm) == "progress_theatre"


@pytest.mark.parametrize(("max_repeats", "flagged_at"), [(1, 2), (2, 3), (3, 4)])
def test_the_thresholds_decide(max_repeats: int, flagged_at: int) -> None:
    history = History(Thresholds(max_repeats=max_repeats, max_stalled_steps=99))
    flags = [history.step(A) for _ in range(flagged_at)]
    assert flags == [None] * (flagged_at - 1) + ["repeated_action"]


# --- corrections and counters


def test_the_same_sign_after_a_correction_shows_again() -> None:
    history = History()
    for one in (A, B, A, B):
        history.step(one)
    history.progress = correct(history.progress)
    assert history.progress.flag is None
    assert history.progress.corrections == 1
    assert history.step(A) is not None
    assert history.progress.corrections == 1


def test_new_evidence_gives_a_new_correction() -> None:
    history = History()
    for one in (A, B, A, B):
        history.step(one)
    history.progress = correct(history.progress)
    assert history.step(C) is None
    assert history.progress.corrections == 0


def test_a_changed_plan_counts_stalled_steps_anew_once() -> None:
    history = History()
    history.step(A)
    misses = [result("lookup_order", str(number), fault="not_found") for number in range(9)]
    flags = [history.step(one) for one in misses[:3]]
    assert flags[-1] == "no_state_change"
    history.progress = correct(history.progress)
    assert [history.step(one) for one in misses[3:7]] == [None, None, None, "no_state_change"]
    assert history.progress.corrections == 1


def test_the_old_plan_again_after_a_correction_is_still_a_stall() -> None:
    history = History(Thresholds(max_repeats=9))
    for _ in range(4):
        history.step(A)
    assert history.progress.flag == "no_state_change"
    history.progress = correct(history.progress)
    assert history.step(A) == "no_state_change"


def test_invalid_proposals_in_a_row_are_churn() -> None:
    limits = Limits(max_invalid_proposals=3)
    history = History()
    history.progress = remember_invalid(remember_invalid(history.progress, limits), limits)
    assert history.progress.flag is None
    history.step(A)
    assert history.progress.invalid_in_a_row == 0
    for _ in range(2):
        history.progress = remember_invalid(history.progress, limits)
    assert history.progress.flag is None
    history.progress = remember_invalid(history.progress, limits)
    assert history.progress.flag == "validation_churn"
    history.progress = remember_invalid(correct(history.progress), limits)
    assert history.progress.flag == "validation_churn"


def test_after_waiting_the_same_call_is_no_repeat() -> None:
    history = History()
    history.step(B)
    history.step(B)
    assert history.repeats(B)
    history.progress = remember_wait(history.progress)
    assert not history.repeats(B)
    assert history.step(B) is None


def test_denied_actions_survive_every_step() -> None:
    progress = Progress(denied_actions=["h"])
    for after in (
        remember(progress, mark_of(step=1, results=[A], state="s"), DEFAULTS),
        remember_invalid(progress, Limits()),
        remember_wait(progress),
        correct(progress),
    ):
        assert after.denied_actions == ["h"]


# --- contradiction


def evidence(ordinal: int, tool: str, payload: JsonValue, order_id: str = "8472") -> EvidenceRecord:
    return EvidenceRecord(
        id=f"ev-{ordinal}",
        ordinal=ordinal,
        step=ordinal,
        tool=tool,
        args={"order_id": order_id},
        request_id=f"req-{ordinal}",
        fetched_at=datetime(2026, 10, 28, tzinfo=UTC),
        source="s",
        ref="",
        payload=payload,
        payload_digest=digest(payload),
        size_bytes=1,
    )


def captures(payload: JsonValue) -> JsonValue:
    return payload["captures"] if isinstance(payload, dict) else None


CAPTURES = DeclaredFact(
    "captures",
    {"lookup_order": captures, "captures_report": captures},
    subject=lambda record: str(record.args["order_id"]),
)
ORDER_SAYS_2 = evidence(1, "lookup_order", {"captures": 2})
REPORT_SAYS_1 = evidence(2, "captures_report", {"captures": 1})
REPORT_AGAIN = evidence(3, "captures_report", {"captures": 1})


def test_sources_that_disagree_are_named() -> None:
    assert disagreements([ORDER_SAYS_2, REPORT_SAYS_1], [CAPTURES]) == [
        "captures of 8472: captures_report says 1, lookup_order says 2"
    ]


@pytest.mark.parametrize(
    "records",
    [
        [ORDER_SAYS_2],
        [ORDER_SAYS_2, evidence(2, "captures_report", {"captures": 2})],
        [ORDER_SAYS_2, evidence(2, "captures_report", {"captures": 1}, order_id="9000")],
        [ORDER_SAYS_2, REPORT_SAYS_1, evidence(3, "captures_report", {"captures": 2})],
        [ORDER_SAYS_2, evidence(2, "captures_report", {"nothing": 1})],
        [ORDER_SAYS_2, evidence(2, "captures_report", ["garbage"])],
        [ORDER_SAYS_2, evidence(2, "another_tool", {"captures": 1})],
    ],
)
def test_no_disagreement(records: list[EvidenceRecord]) -> None:
    assert disagreements(records, [CAPTURES]) == []


@pytest.mark.parametrize(
    ("before", "fresh", "flag"),
    [
        ([ORDER_SAYS_2], [REPORT_SAYS_1], None),
        ([ORDER_SAYS_2, REPORT_SAYS_1], [REPORT_AGAIN], "contradiction"),
        ([ORDER_SAYS_2, REPORT_SAYS_1], [evidence(3, "lookup_order", {"captures": 2})], "contradiction"),
        ([ORDER_SAYS_2, REPORT_SAYS_1], [evidence(3, "captures_report", {"captures": 2})], None),
        ([ORDER_SAYS_2, REPORT_SAYS_1], [evidence(3, "captures_report", {"captures": 3})], None),
        ([ORDER_SAYS_2, REPORT_SAYS_1], [evidence(3, "search_policy", {"captures": 1})], None),
        ([ORDER_SAYS_2, REPORT_SAYS_1], [evidence(3, "lookup_order", {"captures": 2}, order_id="1")], None),
    ],
)
def test_a_disagreement_that_survives_asking_again_is_a_contradiction(
    before: list[EvidenceRecord], fresh: list[EvidenceRecord], flag: Reason | None
) -> None:
    after = remember_evidence(Progress(), before=before, fresh=fresh, declared=[CAPTURES])
    assert after.flag == flag
    assert after.disagreements == disagreements([*before, *fresh], [CAPTURES])


def test_a_flag_that_is_up_stays() -> None:
    after = remember_evidence(
        Progress(flag="oscillation"), before=[ORDER_SAYS_2, REPORT_SAYS_1], fresh=[REPORT_AGAIN], declared=[CAPTURES]
    )
    assert after.flag == "oscillation"


# --- laws

RESULTS = st.builds(
    result,
    tool=st.sampled_from(["a", "b"]),
    arg=st.sampled_from(["1", "2"]),
    payload=st.sampled_from([1, 2, 3]),
    fault=st.sampled_from([None, None, None, "not_found"]),
)
STEPS = st.lists(st.lists(RESULTS, min_size=1, max_size=3), min_size=1, max_size=40)


@given(STEPS)
def test_the_memory_is_bounded_and_its_flag_is_what_the_marks_show(steps: Sequence[Sequence[CallResult]]) -> None:
    history = History()
    for calls in steps:
        flag = history.step(*calls)
        assert flag == assess(history.progress.marks, DEFAULTS)
        assert len(history.progress.marks) <= 12
        assert Progress.model_validate_json(history.progress.model_dump_json()) == history.progress


@given(STEPS)
def test_a_call_that_is_admitted_and_differs_from_the_record_is_never_called_a_repeat(
    steps: Sequence[Sequence[CallResult]],
) -> None:
    """The gate and the flag agree: what may be dispatched and returns something new is no repeated action."""
    history = History()
    for number, calls in enumerate(steps):
        history.step(*calls)
        fresh = result("a", "1", {"never seen": number})
        if not history.repeats(fresh):
            probe = mark_of(step=99, results=[fresh], state=digest(["never seen", number]))
            assert assess([*history.progress.marks, probe], DEFAULTS) is None


@given(st.integers(-3, 10_000), st.integers(-3, 10_000))
def test_no_threshold_unbounds_the_memory(window: int, max_repeats: int) -> None:
    thresholds = Thresholds(window=window, max_repeats=max_repeats)
    progress = Progress(marks=[ProgressMark(step=0, action="x", pairs=["x:y"])] * 200)
    after = remember(progress, ProgressMark(step=1, action="x", pairs=["x:y"]), thresholds)
    assert 4 <= len(after.marks) <= MAX_MARKS
