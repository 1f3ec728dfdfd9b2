"""What the command line prints: readable, bounded, and with nothing in it that a terminal would act on."""

import io
import json
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_loop.entrypoints.approval_view import answers_to, approval_table
from agentic_loop.entrypoints.cli import EXIT_CODES
from agentic_loop.entrypoints.commands import json_pairs, text_pairs
from agentic_loop.entrypoints.doctor import findings
from agentic_loop.entrypoints.progress_view import ProgressLines
from agentic_loop.entrypoints.session import Session
from agentic_loop.entrypoints.task_view import exit_code_of
from agentic_loop.entrypoints.terminal_view import Screen, plain, usd, wrapped
from agentic_loop.entrypoints.trace_view import trace_json, trace_table
from agentic_loop.graph.errors import LeaseRefused, Misuse, Outage, ToolFault
from agentic_loop.graph.records import ApprovalRow, EvidenceRecord, JournalEntry
from agentic_loop.graph.state import (
    ApprovalAnswer,
    CallFault,
    CallResult,
    CheckedCall,
    Evidence,
    Proposal,
    ProposedCall,
    Receipt,
    Status,
    Verdict,
)

NOW = datetime(2026, 10, 20, 9, 30, tzinfo=UTC)

HOSTILE = "[bold red]approved[/] \x1b[2J\x1b]0;title\x07\x9b31m\x1b[1A\r\x08\u202egnp\u2066 \x00 :smile: \ud800 end"


def printed(*, as_json: bool = False) -> tuple[Screen, io.StringIO, io.StringIO]:
    output, errors = io.StringIO(), io.StringIO()
    return Screen(as_json=as_json, output=output, errors=errors), output, errors


def entry(**changes: object) -> JournalEntry:
    values: dict[str, object] = {
        "task_id": "task-1", "version": 1, "call": 0, "step": 1, "at": NOW, "phase": "investigate", "kind": "tool",
        "source": "model", "tool": "lookup_order", "args": {"order_id": "8472"}, "validation": "ok",
        "authorisation": "allowed (read-orders)", "policy_ids": ("read-orders",), "request_id": "req-24n817xtk2p3",
        "outcome": "ok", "evidence_id": "ev-1", "state_delta": "version 0->1, evidence +ev-1",
        "input_tokens": 1_180, "output_tokens": 80, "cost_micro_usd": 1_260, "model_ms": 412, "tool_ms": 83,
    }  # fmt: skip
    return JournalEntry(**{**values, **changes})  # type: ignore[arg-type]


def approval_row(**changes: object) -> ApprovalRow:
    values: dict[str, object] = {
        "id": "apr-e03e9m9346ex", "task_id": "task-1", "tenant": "acme", "loop": "refund", "tool": "issue_refund",
        "args": {"order_id": "8472", "payment_id": "pay_5a2", "amount_inr": 2_000},
        "idempotency_key": "refund:order-8472:pay_5a2:v1", "action_hash": "ab" * 32, "required_role": "support_lead",
        "requester": "ravi", "policy_ids": ("refund-approved-by-support-lead",),
        "policy_clause": "POL-REF-004 v4 §3.2", "reason": "Above INR 1,000.", "evidence_ids": ("ev-1",), "round": 1,
        "requested_at": NOW, "expires_at": NOW + timedelta(hours=2),
    }  # fmt: skip
    return ApprovalRow(**{**values, **changes})  # type: ignore[arg-type]


# --- untrusted text ---------------------------------------------------------------------------------------------


def test_what_a_terminal_would_act_on_is_taken_out_and_the_words_stay() -> None:
    assert plain(HOSTILE) == "[bold red]approved[/] 0;title gnp  :smile: \ufffd end"


@given(st.text(alphabet=st.characters()))
def test_no_text_gets_a_control_character_through(text: str) -> None:
    shown = plain(text)
    assert not {unicodedata.category(letter) for letter in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert plain(shown) == shown
    assert "\n".join(map(plain, text.splitlines())) == plain(text, keep_lines=True)


def test_markup_in_text_is_printed_as_it_is() -> None:
    screen, output, _ = printed()
    screen.say(HOSTILE)
    screen.block(f"first\n{HOSTILE}")
    screen.show(approval_table(approval_row(reason=HOSTILE), [_record(HOSTILE)]))
    screen.show(trace_table([entry(tool=HOSTILE, validation=HOSTILE, request_id="req-1", state_delta=HOSTILE)], 140))
    shown = output.getvalue()
    assert shown.count("[bold red]approved[/]") >= 5
    assert not set(shown) & set("\x1b\x07\x08\r\x9b\x00\u202e\u2066\ud800")


def _record(payload: str) -> EvidenceRecord:
    return EvidenceRecord(
        "ev-1", 1, 1, "lookup_order", {}, "req-1", NOW, "payments-service", "", payload, "0" * 64, 9
    )


def test_progress_says_each_thing_once_and_harmlessly() -> None:
    lines: list[str] = []
    watch = ProgressLines(lines.append)
    call = ProposedCall(call_id="c1", name="lookup_order", arguments_json='{"order_id": "8472"}')
    allowed = CheckedCall(call_id="c1", tool="lookup_order", authorisation="allowed", policy_ids=["read-orders"])
    result = CallResult(
        call_id="c1", tool="lookup_order", args={}, args_hash="", outcome="ok", request_id="req-1", latency_ms=83
    )
    evidence = Evidence(
        id="ev-1", tool="lookup_order", request_id="req-1", fetched_at=NOW, source="payments-service", ref="",
        payload_digest="", size_bytes=1, preview="",
    )  # fmt: skip
    watch("build_input", {"step_count": 1})
    watch("decide", {"proposal": Proposal(source="model", calls=[call])})
    watch("authorise", {"verdict": Verdict(kind="calls", calls=[allowed])})
    watch("execute", {"receipt": Receipt(results=[result])})
    watch("record", {"evidence": [evidence]})
    watch("stop_check", {"proposal": None})
    assert lines == [
        'step 1 · the model proposes lookup_order(order_id="8472")',
        "    allowed by read-orders",
        "    request req-1 → ev-1 from payments-service, 83 ms",
    ]


@pytest.mark.parametrize(
    ("node", "update", "words"),
    [
        ("decide", {"proposal": Proposal(source="model", text=HOSTILE, fault="text_without_call")}, "approved[/]"),
        ("validate", {"verdict": Verdict(kind="invalid", fault=CallFault(category="garbage", message=HOSTILE))}, "]"),
        (
            "authorise",
            {"verdict": Verdict(kind="calls", calls=[
                CheckedCall(call_id="c", tool="t", authorisation="denied", policy_reason=HOSTILE)
            ])},
            "denied by default: [bold red]approved",
        ),
        (
            "await_approval",
            {"answer": ApprovalAnswer(kind="pending", approval_id="apr-1", message="ravi is not entitled")},
            "approval apr-1 is still pending: ravi is not entitled",
        ),
    ],
)  # fmt: skip
def test_progress_of_what_goes_wrong(node: str, update: object, words: str) -> None:
    lines: list[str] = []
    ProgressLines(lines.append)(node, update)  # type: ignore[arg-type]
    assert len(lines) == 1
    assert words in lines[0]
    assert not set(lines[0]) & set("\x1b\n\r\x07\x9b\u202e")


# --- the trace --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_the_trace_fits_and_keeps_ids_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    entries = [
        entry(),
        entry(version=2, kind="approval", tool="issue_refund", evidence_id=None, request_id="",
              authorisation="needs approval by support_lead (refund-approved-by-support-lead)",
              text="approval apr-e03e9m9346ex by support_lead until 2026-10-20T11:30:00+00:00",
              state_delta="version 1->2, status RUNNING->AWAITING_APPROVAL"),
        entry(version=3, tool="get_refund", source="workflow", evidence_id=None, outcome="error",
              fault=CallFault(category="not_found", message="There is no refund rf_1.")),
    ]  # fmt: skip
    screen, output, _ = printed()
    screen.show(trace_table(entries, screen.width))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)
    for whole in ("req-24n817xtk2p3", "apr-e03e9m9346ex", "ev-1", "lookup_order", "not_found:", "(code)"):
        assert whole in output.getvalue()
    for number in ("1,180+80", "$0.001260", "model 412 ms", "tool 83 ms", "3,540+240", "$0.003780"):
        assert number in output.getvalue()


def test_the_trace_as_json_has_every_field() -> None:
    fault = CallFault(category="not_found", message="no")
    read = json.loads(json.dumps(trace_json([entry(fault=fault)])))
    assert read[0]["at"] == "2026-10-20T09:30:00+00:00"
    assert read[0]["fault"] == {"category": "not_found", "message": "no"}
    assert read[0]["policy_ids"] == ["read-orders"]
    assert read[0]["cost_micro_usd"] == 1_260


def test_words_are_broken_only_where_they_are_longer_than_the_line() -> None:
    assert wrapped("approval apr-e03e9m9346ex", 17) == "approval\napr-e03e9m9346ex"
    assert wrapped("by refund-approved-by-support-lead", 18) == "by\nrefund-approved-\nby-support-lead"
    assert wrapped("a\n\nb", 5) == "a\n\nb"


def test_money_is_exact() -> None:
    assert (usd(0), usd(1_260), usd(12_000_001)) == ("$0.000000", "$0.001260", "$12.000001")


# --- approvals, errors, codes -----------------------------------------------------------------------------------


def test_an_approval_shows_all_that_binds_it() -> None:
    screen, output, _ = printed()
    screen.show(approval_table(approval_row(), [_record("two captures")]))
    facts = ("issue_refund", '"amount_inr": 2000', "INR 2,000", "refund:order-8472:pay_5a2:v1", "ab" * 32)
    for fact in (
        *facts,
        "support_lead of acme",
        "§3.2",
        "Above INR 1,000.",
        "2026-10-20 11:30:00 UTC",
        "two captures",
    ):
        assert fact in output.getvalue()
    assert answers_to(approval_row(), "agentic-loop")[2].endswith(
        "edit apr-e03e9m9346ex --as WHO --arg amount_inr=VALUE"
    )


def _raising(error: BaseException, *, as_json: bool) -> tuple[int, str, str]:
    screen, output, errors = printed(as_json=as_json)

    def act() -> int:
        raise error

    return Session(screen, environment={}).guarded(act), output.getvalue(), errors.getvalue()


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (Misuse("give it\na goal"), "misuse", 2),
        (Outage("the database is away"), "outage", 8),
        (LeaseRefused("another worker runs task-1"), "lease_refused", 8),
        (ToolFault("unavailable", "refunds-service is down"), "tool_fault", 8),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
)
def test_whatever_goes_wrong_is_one_line_and_a_code(error: BaseException, kind: str, code: int) -> None:
    left, output, errors = _raising(error, as_json=False)
    assert (left, output) == (code, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    left, output, errors = _raising(error, as_json=True)
    assert (left, errors) == (code, "")
    assert json.loads(output)["error"] == kind
    assert json.loads(output).keys() == {"error", "message"}


def test_an_interrupted_task_says_how_it_goes_on() -> None:
    screen, _, errors = printed()
    session = Session(screen, environment={})
    session.task_id = "task-1"

    def act() -> int:
        raise KeyboardInterrupt

    assert session.guarded(act) == 130
    assert "agentic-loop continue task-1" in errors.getvalue()


def test_a_fault_of_our_own_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    left, output, _ = _raising(RuntimeError("a promise was broken"), as_json=True)
    assert (left, json.loads(output)["error"]) == (1, "defect")
    assert "Traceback" in capsys.readouterr().err


def test_every_status_has_its_own_documented_exit_code() -> None:
    codes = {status: exit_code_of(status) for status in get_args(Status)}
    assert len(set(codes.values())) == len(codes)
    for status, code in codes.items():
        if status != "RUNNING":
            assert f"{code}  {status}" in EXIT_CODES
    assert codes["RUNNING"] == 9


def test_json_escapes_whatever_is_beyond_ascii() -> None:
    screen, output, _ = printed(as_json=True)
    assert screen.result({"text": HOSTILE})
    assert output.getvalue().isascii()
    assert json.loads(output.getvalue()) == {"text": HOSTILE}


def test_pairs() -> None:
    assert text_pairs("--input", ["order_id=8472", "note=a=b"]) == {"order_id": "8472", "note": "a=b"}
    assert json_pairs("--arg", ["amount_inr=1500", 'x="1"', "y=plain", "z=NaN"]) == {
        "amount_inr": 1500, "x": "1", "y": "plain", "z": "NaN",
    }  # fmt: skip
    for wrong in (["novalue"], ["=x"], ["a=1", "a=2"]):
        with pytest.raises(Misuse, match="--input"):
            text_pairs("--input", wrong)


def test_the_doctor_says_what_to_do_about_each_thing(database_url: str) -> None:
    environment = {
        "DATABASE_URL": database_url, "AGENTIC_LOOP_MODEL": "openai:some-model", "AGENTIC_LOOP_PAYMENTS_URL": "http://x",
    }  # fmt: skip
    found = {finding.name: finding for finding in findings(environment, "agentic_loop")}
    assert found["python"].ok
    assert found["database"].ok
    assert "DATABASE_URL" in found["database"].detail
    assert not found["model"].ok
    assert "OPENAI_API_KEY" in found["model"].detail
    assert not found["services"].ok
    assert "AGENTIC_LOOP_REFUNDS_URL" in found["services"].detail
    assert all(finding.advice for finding in found.values() if not finding.ok)


def test_the_doctor_goes_on_past_what_is_away() -> None:
    environment = {"DATABASE_URL": "postgresql://x@127.0.0.1:1/x", "AGENTIC_LOOP_SANDBOX_URL": "http://127.0.0.1:1"}
    found = {finding.name: finding for finding in findings(environment, "agentic_loop")}
    away = [name for name, finding in found.items() if not finding.ok]
    assert away == ["database", "migrations", "services payments, refunds, policy, notifications"]
    assert "agentic-loop sandbox" in found[away[2]].advice
