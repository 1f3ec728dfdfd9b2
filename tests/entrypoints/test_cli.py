"""The command line as people and programs run it: real processes, a real database, the sandbox over TCP."""

import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from pydantic import JsonValue

from agentic_loop.entrypoints import cli
from agentic_loop.entrypoints.terminal_view import console_on
from agentic_loop.sandbox.server import SandboxProcess
from tests.conftest import DatabaseMaker

pytestmark = pytest.mark.timeout(300)

RUN_TIMEOUT_S = 120
COMMAND = (sys.executable, "-m", "agentic_loop.entrypoints.cli")
CONTROL_CODES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")

Json = dict[str, JsonValue]


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Json:
        """Standard output, which must be one JSON object and nothing else."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


@dataclass(frozen=True)
class CommandLine:
    """The command line on a database and a sandbox of its own."""

    environment: Mapping[str, str]
    sandbox_url: str

    def run(self, *arguments: str, **environment: str) -> Ran:
        ran = subprocess.run(
            [*COMMAND, *arguments],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert "Traceback" not in ran.stdout + ran.stderr, ran.stderr
        assert not CONTROL_CODES.search(ran.stdout + ran.stderr)
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def charged_twice(self, amount_inr: int = 2_000) -> str:
        """Place an order that was captured twice, and return its id."""
        order_id = str(random.randrange(100_000, 1_000_000))
        payments = [
            {"payment_id": f"pay_{order_id}_{n}", "amount_inr": amount_inr, "status": "captured", "at": at}
            for n, at in ((1, "2026-10-20T09:14:02Z"), (2, "2026-10-20T09:14:31Z"))
        ]
        order = {"order_id": order_id, "total_inr": amount_inr, "payments": payments}
        httpx2.post(f"{self.sandbox_url}/_admin/orders", json=order, trust_env=False).raise_for_status()
        return order_id

    def refunds(self, order_id: str) -> list[tuple[JsonValue, JsonValue]]:
        """Payment and amount of each refund of an order, as the refunds service has them."""
        return refunds_at(self.sandbox_url, order_id)

    def ask_for_refund(self, order_id: str) -> Json:
        """Start a task about an order and return its JSON, which waits for an approval."""
        started = self.run("start", "refund", "--goal", f"Order {order_id} was charged twice.", "--json")
        assert started.code == 3, started.err
        return started.json


def refunds_at(url: str, order_id: str) -> list[tuple[JsonValue, JsonValue]]:
    tables = httpx2.get(f"{url}/_admin/tables", trust_env=False).json()
    return [(row["payment_id"], row["amount_inr"]) for row in tables["refunds"] if row["order_id"] == order_id]


def member(value: JsonValue, name: str) -> JsonValue:
    assert isinstance(value, dict)
    return value[name]


def text(value: JsonValue) -> str:
    assert isinstance(value, str)
    return value


def rows(value: JsonValue) -> list[Json]:
    assert isinstance(value, list)
    return [row for row in value if isinstance(row, dict)]


@pytest.fixture(scope="module")
def command_line(make_database: DatabaseMaker, sandbox_process: SandboxProcess) -> CommandLine:
    left_out = ("AGENTIC_LOOP_", "OPENAI_", "COLUMNS", "FORCE_COLOR")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment |= {"DATABASE_URL": make_database(), "AGENTIC_LOOP_SANDBOX_URL": sandbox_process.url}
    return CommandLine(environment, sandbox_process.url)


# --- a refund, from the start to the trace ----------------------------------------------------------------------


def test_a_refund_is_asked_for_approved_and_traced(command_line: CommandLine) -> None:
    order_id = command_line.charged_twice()
    later = f"pay_{order_id}_2"
    started = command_line.run("start", "refund", "--goal", f"Order {order_id} was charged twice.", "--json")
    assert started.code == 3
    task, approval = text(started.json["task_id"]), text(member(started.json["approval"], "id"))
    assert "bundled rehearsal model" in started.err
    assert f'step 4 · the model proposes issue_refund(order_id="{order_id}"' in started.err

    inbox = command_line.run("inbox", "--as", "asha")
    assert inbox.code == 0
    shown = (approval, "issue_refund", "INR 2,000", f"refund:order-{order_id}:{later}:v1", "support_lead", "§3.2")
    for fact in (*shown, "ev-1, ev-2, ev-3", f"agentic-loop approve {approval} --as WHO"):
        assert fact in inbox.out

    by_requester = command_line.run("approve", approval, "--as", "ravi")
    assert by_requester.code == 3
    assert "ravi is not entitled" in by_requester.out
    assert command_line.refunds(order_id) == []

    approved = command_line.run("approve", approval, "--as", "asha", "--json")
    assert approved.code == 0
    assert (approved.json["status"], approved.json["reason"]) == ("SUCCEEDED", "completed")
    assert command_line.refunds(order_id) == [(later, 2_000)]

    again = command_line.run("approve", approval, "--as", "asha", "--json")
    assert (again.code, again.json["error"]) == (2, "misuse")
    assert command_line.refunds(order_id) == [(later, 2_000)]
    _assert_that_the_task_can_be_read(command_line, task, approval)


def _assert_that_the_task_can_be_read(command_line: CommandLine, task: str, approval: str) -> None:
    entries = rows(command_line.run("trace", task, "--json").json["entries"])
    assert [entry["tool"] for entry in entries][:4] == [
        "lookup_order", "get_refund_status", "search_policy", "issue_refund",
    ]  # fmt: skip
    trace = command_line.run("trace", task, COLUMNS="100")
    assert trace.code == 0
    assert max(map(len, trace.out.splitlines())) <= 100
    for entry in entries:
        for whole in (text(entry["request_id"]), text(entry["evidence_id"] or "")):
            assert whole in trace.out
    assert approval in trace.out
    show = command_line.run("show", task)
    assert show.code == 0
    assert "SUCCEEDED (completed)" in show.out
    assert "of 8 steps" in show.out
    listed = command_line.run("tasks", "--status", "succeeded", "--json")
    assert task in [row["task_id"] for row in rows(listed.json["tasks"])]


def test_an_edited_amount_is_what_is_refunded(command_line: CommandLine) -> None:
    order_id = command_line.charged_twice()
    approval = text(member(command_line.ask_for_refund(order_id)["approval"], "id"))
    edited = command_line.run("edit", approval, "--as", "asha", "--arg", "amount_inr=1500", "--json")
    assert edited.code == 0, edited.err
    assert command_line.refunds(order_id) == [(f"pay_{order_id}_2", 1_500)]


def test_a_rejected_refund_is_not_made_and_its_task_is_closed_and_revised(command_line: CommandLine) -> None:
    order_id = command_line.charged_twice()
    approval = text(member(command_line.ask_for_refund(order_id)["approval"], "id"))
    rejected = command_line.run("reject", approval, "--as", "asha", "--message", "not now", "--json")
    assert rejected.code in {4, 5, 7, 8}
    assert rejected.json["status"] not in {"SUCCEEDED", "AWAITING_APPROVAL"}
    assert "rejected by asha: not now" in rejected.err
    assert command_line.refunds(order_id) == []

    task = text(rejected.json["task_id"])
    closed = command_line.run("close", task, "--as", "asha", "--note", "called the customer")
    assert (closed.code, closed.out) == (0, f"task {task} is closed by asha: called the customer\n")
    refused = command_line.run("resume", task, "--as", "asha", "--json")
    assert (refused.code, refused.json["error"]) == (2, "misuse")
    assert "was closed by asha" in text(refused.json["message"])
    revised = command_line.run(
        "revise", task, "--as", "ravi", "--goal", f"Refund order {order_id} after all.", "--json"
    )
    assert revised.json["parent_task_id"] == task
    assert revised.json["goal"] == f"Refund order {order_id} after all."


def test_a_task_that_needs_input_has_a_packet_and_is_resumed(command_line: CommandLine) -> None:
    started = command_line.run("start", "refund", "--goal", "My refund has not arrived.", "--task-id", "ask-1")
    assert started.code == 4
    assert "agentic-loop packet ask-1" in started.out
    packet = command_line.run("packet", "ask-1", "--json")
    assert (packet.code, packet.json["status"], packet.json["reason"]) == (0, "NEEDS_INPUT", "question")
    markdown = command_line.run("packet", "ask-1", "--markdown")
    assert markdown.out.startswith("# NEEDS_INPUT (question): task `ask-1`")

    order_id = command_line.charged_twice()
    resumed = command_line.run(
        "resume", "ask-1", "--as", "asha", "--input", f"order_id={order_id}", "--add-steps", "4", "--json"
    )
    assert resumed.code == 3, resumed.err
    assert member(resumed.json["limits"], "max_steps") == 12


def test_a_killed_task_is_continued(command_line: CommandLine) -> None:
    order_id = command_line.charged_twice()
    goal = f"Order {order_id} was charged twice."
    with subprocess.Popen(
        [*COMMAND, "start", "refund", "--goal", goal, "--task-id", f"killed-{order_id}"],
        env=command_line.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("step 2"):
                break
        child.kill()
    continued = command_line.run("continue", f"killed-{order_id}", "--json")
    assert continued.code == 3, continued.err
    assert member(member(continued.json["approval"], "args"), "order_id") == order_id


# --- the machine ------------------------------------------------------------------------------------------------


def test_doctor_finds_everything_in_order(command_line: CommandLine) -> None:
    doctor = command_line.run("doctor", "--json")
    assert (doctor.code, doctor.json["ok"]) == (0, True), doctor.out
    names = [text(finding["name"]) for finding in rows(doctor.json["findings"])]
    assert names[:5] == ["python", "versions", "database", "migrations", "model"]


def test_what_is_not_there_is_an_outage_in_one_line(command_line: CommandLine) -> None:
    away = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    listed = command_line.run("tasks", **away)
    assert (listed.code, listed.out) == (8, "")
    assert listed.err.startswith("error: ")
    assert len(listed.err.splitlines()) == 1
    as_json = command_line.run("tasks", "--json", **away)
    assert (as_json.code, as_json.json["error"], as_json.err) == (8, "outage", "")


def test_the_sandbox_runs_until_it_is_interrupted(command_line: CommandLine) -> None:
    with subprocess.Popen(
        [*COMMAND, "sandbox", "--port", "0", "--reset"],
        env=command_line.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            assert child.stdout is not None
            url = _url_in(child.stdout)
            assert httpx2.get(f"{url}/_admin/tables", trust_env=False).status_code == 200
            os.killpg(child.pid, signal.SIGINT)  # as a terminal does it: to the sandbox's own process too
            rest = child.stdout.read()
        finally:
            child.kill()
    assert "Traceback" not in rest
    assert rest.endswith("the sandbox has stopped\n")


def _url_in(lines: Iterator[str]) -> str:
    """The URL that is to be exported."""
    for line in lines:
        if found := re.search(r"export AGENTIC_LOOP_SANDBOX_URL=(\S+)", line):
            return found[1]
    raise AssertionError("no URL was printed")


# --- the demo ---------------------------------------------------------------------------------------------------


def test_the_demo_refunds_once_asked_or_not(command_line: CommandLine) -> None:
    """One test, because demos on one server share their database."""
    unasked = command_line.run("demo")
    assert unasked.code == 0, unasked.out
    assert "Approved as asha (support_lead) without asking anybody, because there is no terminal" in unasked.out
    assert "rehearsal model" in unasked.out
    assert re.search(r"rf_9001 +pay_5a2 +2000 +pending", unasked.out)
    assert "SUCCEEDED (completed)" in unasked.out
    task = re.search(r"agentic-loop --demo show (task-\w+)", unasked.out)
    assert task is not None
    assert command_line.run("--demo", "show", task[1], "--json").json["status"] == "SUCCEEDED"
    _demo_at_a_terminal(command_line)


def _demo_at_a_terminal(command_line: CommandLine) -> None:
    terminal, child_end = pty.openpty()
    environment = {**command_line.environment, "TERM": "dumb", "COLUMNS": "120"}
    with subprocess.Popen(
        [*COMMAND, "demo", "--keep-sandbox"], env=environment, stdin=child_end, stdout=child_end, stderr=child_end
    ) as child:
        os.close(child_end)
        try:
            screen = _read_until(terminal, "or [e]dit the amount", "")
            for fact in ("INR 2,000", "refund:order-8472:pay_5a2:v1", "support_lead", "ev-1", "expires"):
                assert fact in screen
            os.write(terminal, b"a\n")
            screen = _read_until(terminal, "export AGENTIC_LOOP_SANDBOX_URL=", screen)
            screen = _read_until(terminal, "\n", screen[screen.rindex("export ") :])
            assert refunds_at(_url_in(iter([screen])), "8472") == [("pay_5a2", 2_000)]
            child.send_signal(signal.SIGINT)
            assert child.wait(RUN_TIMEOUT_S) == 0
        finally:
            child.kill()
            os.close(terminal)


def _read_until(terminal: int, words: str, screen: str) -> str:
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while words not in screen:
        remaining_s = deadline - time.monotonic()
        assert remaining_s > 0, screen
        if select.select([terminal], [], [], remaining_s)[0]:
            screen += os.read(terminal, 65_536).decode("utf-8", "replace")
    return screen


# --- help and misuse, which need no process of their own ---------------------------------------------------------


def _main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    monkeypatch.setattr(sys, "argv", ["agentic-loop", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    captured = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return Ran(left.value.code, captured.out, captured.err)


COMMANDS = [
    *("demo", "start", "inbox", "approve", "reject", "edit", "resume", "revise"),
    *("close", "show", "trace", "packet", "tasks", "continue", "sandbox", "doctor"),
]


def test_help_names_every_command_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = _main(monkeypatch, capsys, "--help")
    assert shown.code == 0
    for name in COMMANDS:
        assert re.search(rf"│ {name} ", shown.out), name
    for status in ("0  SUCCEEDED", "3  AWAITING_APPROVAL", "9  waiting", "130 interrupted"):
        assert status in shown.out


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _main(monkeypatch, capsys, "--version")
    assert (shown.code, shown.err) == (0, "")
    assert re.fullmatch(r"agentic-loop \d+\.\d+\.\d+\n", shown.out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["approve", "apr-1"], "Missing option '--as'"),
        (["start"], "Missing argument 'LOOP'"),
        (["strat", "refund"], "No such command 'strat'"),
        (["tasks", "--status", "asleep"], "--status takes one of RUNNING, AWAITING_APPROVAL"),
        (["resume", "t", "--as", "asha", "--add-steps", "-1"], "--add-steps"),
        (["demo", "support"], "there is no demo 'support'"),
    ],
)
def test_misuse_is_one_line_and_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    said = _main(monkeypatch, capsys, *arguments)
    assert (said.code, said.out) == (2, "")
    assert words in said.err
    assert "--help" in said.err
    assert len(said.err.splitlines()) == 1
    as_json = _main(monkeypatch, capsys, *arguments, "--json")
    assert as_json.code == 2
    assert as_json.json["error"] == "misuse"
    assert as_json.err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "nope"], "agentic-loop tasks"),
        (["approve", "apr-nope", "--as", "asha"], "inbox lists those that wait"),
        (["start", "refund", "--goal", "x", "--as", "bob"], "nobody is known as 'bob'; known are: ravi"),
    ],
)
def test_unknown_names_say_where_to_look(command_line: CommandLine, arguments: list[str], words: str) -> None:
    said = command_line.run(*arguments, "--json")
    assert said.code == 2
    assert said.json["error"] == "misuse"
    assert words in text(said.json["message"])


def test_a_console_on_a_file_writes_no_control_codes(tmp_path: Path) -> None:
    with (tmp_path / "words").open("w+", encoding="utf-8") as file:
        console_on(file).print("words", style="bold red")
        file.seek(0)
        assert file.read() == "words\n"
