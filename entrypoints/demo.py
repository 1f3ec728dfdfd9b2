"""The demo: order 8472 from the complaint to the refund, on real parts, with one question to a person.

The sandbox runs as a process of its own on a database of its own; everything starts anew each time. What came of it
is read back from the services, not from the task's own state.

Source: DESIGN §2; the document's order 8472.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import httpx2
import typer
from pydantic import JsonValue
from rich import box
from rich.table import Table
from rich.text import Text

from agentic_loop.graph.errors import Outage
from agentic_loop.graph.records import ApprovalRow, EvidenceRecord
from agentic_loop.graph.run import DecisionType, Runtime, TaskState
from agentic_loop.graph.store.embedded import create_database, database_url, drop_database
from agentic_loop.models.settings import MODEL_VARIABLE
from agentic_loop.sandbox.server import SandboxProcess, start_sandbox_process
from agentic_loop.tools.http import ServiceUrls

from .app import DEMO_DATABASE, Settings, open_app
from .approval_view import approval_table
from .progress_view import ProgressLines
from .sandbox_command import DEMO_SANDBOX_DATABASE, serve_until_interrupted
from .session import Session, new_task_id
from .task_view import TaskReport
from .terminal_view import clip, plain
from .trace_view import trace_table

ORDER_ID = "8472"

GOAL = f"Order {ORDER_ID} was charged twice, and my refund has not arrived. Please investigate and resolve it."

MAX_QUESTIONS = 5
"""How many requests for approval the demo answers before it stops asking."""

SERVICE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class DemoOptions:
    """How to run the demo: who asks, who approves, with which model, and whether to ask at the terminal."""

    requester: str = "ravi"
    approver: str = "asha"
    model: str | None = None
    yes: bool = False
    keep_sandbox: bool = False


@dataclass(frozen=True)
class _Answer:
    decision: DecisionType
    message: str = ""
    amount_inr: int | None = None


def run_demo(session: Session, options: DemoOptions) -> int:
    """Run the demo and return the exit code of its task's status."""
    return session.guarded(lambda: _demo(session, options))


def _demo(session: Session, options: DemoOptions) -> int:
    session.person(options.requester)
    session.person(options.approver)
    urls = [anew(name) for name in (DEMO_DATABASE, DEMO_SANDBOX_DATABASE)]
    with start_sandbox_process(urls[1]) as sandbox:
        session.screen.say(f"sandbox: the services at {sandbox.url}, in process {sandbox.pid}")
        settings = Settings(
            database_url=urls[0],
            # Never the services that the environment names: the demo moves money.
            services=ServiceUrls.all_at(sandbox.url),
            model=options.model or session.environment.get(MODEL_VARIABLE),
            environment=session.environment,
        )
        code = _from_complaint_to_end(session, settings, sandbox, options)
        if options.keep_sandbox:
            _keep(session, sandbox)
    return code


def anew(name: str) -> str:
    """The URL of an empty database of this name; the one that was there is dropped."""
    server = database_url()
    drop_database(server, name)
    return create_database(server, name)


def _from_complaint_to_end(
    session: Session, settings: Settings, sandbox: SandboxProcess, options: DemoOptions
) -> int:
    state = asyncio.run(_start(session, settings, options))
    for _ in range(MAX_QUESTIONS):
        if not state.waiting:
            break
        # The runtime is closed while a person thinks: a suspended task holds nothing in memory.
        row, evidence = asyncio.run(_request_of(settings, state))
        session.screen.say()
        session.screen.say("An approval is needed. This, and nothing else, would be approved:", "bold yellow")
        session.screen.show(approval_table(row, evidence))
        answer = _answer(session, row, options)
        state = asyncio.run(_decide(session, settings, row, answer, options))
    report = asyncio.run(_conclude(session, settings, state))
    show_tables(session, asyncio.run(tables_of(sandbox.url)), ORDER_ID)
    session.screen.say()
    session.screen.say("next, for example:")
    session.say_commands([f"{session.program} {command}" for command in _next(report)])
    return report.exit_code


async def _start(session: Session, settings: Settings, options: DemoOptions) -> TaskState:
    session.task_id = new_task_id()
    async with open_app(settings, watch=ProgressLines(session.screen.say)) as runtime:
        requester = session.person(options.requester)
        session.introduce(runtime, f"task {session.task_id}: refund, started by {requester.id}")
        session.screen.say(f"goal: {GOAL}")
        return await runtime.start("refund", goal=GOAL, requester=requester, task_id=session.task_id)


async def _request_of(settings: Settings, state: TaskState) -> tuple[ApprovalRow, list[EvidenceRecord]]:
    async with open_app(settings) as runtime:
        row = await runtime.stores.approvals.find(state.approval.id) if state.approval is not None else None
        if row is None:
            raise Outage(f"task {state.task_id} waits for an approval that is not on record; start the demo again")
        return row, await runtime.evidence(state.task_id)


async def _decide(
    session: Session, settings: Settings, row: ApprovalRow, answer: _Answer, options: DemoOptions
) -> TaskState:
    edited = {**row.args, "amount_inr": answer.amount_inr} if answer.amount_inr is not None else None
    async with open_app(settings, watch=ProgressLines(session.screen.say)) as runtime:
        state = await runtime.decide(
            row.id,
            answer.decision,
            approver=session.person(options.approver),
            message=answer.message,
            edited_args=edited,
        )
        refusal = (await session.report(runtime, state)).refusal
    if refusal:
        session.screen.say(f"the answer decided nothing: {refusal}", "bold red")
    return state


async def _conclude(session: Session, settings: Settings, state: TaskState) -> TaskReport:
    async with open_app(settings) as runtime:
        report = await session.conclude(runtime, state, with_commands=False)
        await _show_trace(session, runtime, state)
    return report


async def _show_trace(session: Session, runtime: Runtime, state: TaskState) -> None:
    session.screen.say()
    session.screen.say("trace", "bold")
    session.screen.show(trace_table(await runtime.trace(state.task_id), session.screen.width))


def _next(report: TaskReport) -> list[str]:
    task = report.state.task_id
    look = [f"show {task}", f"trace {task} --json", "tasks"]
    return look if report.state.status == "SUCCEEDED" else [f"packet {task}", *look]


# --- the question -----------------------------------------------------------------------------------------------


def _answer(session: Session, row: ApprovalRow, options: DemoOptions) -> _Answer:
    approver = session.person(options.approver)
    who = f"{approver.id} ({', '.join(approver.roles)})"
    if options.yes or not sys.stdin.isatty():
        why = "--yes was given" if options.yes else "there is no terminal to ask at"
        session.screen.say(f"Approved as {who} without asking anybody, because {why}.", "bold yellow")
        return _Answer("approve", message=f"approved by the demo: {why}")
    session.screen.say(f"You answer as {who}.")
    match _choice():
        case "approve":
            return _Answer("approve")
        case "reject":
            return _Answer("reject", message=str(typer.prompt("why (the model will read it)", default="")))
        case "edit":
            now = row.args.get("amount_inr")
            amount: int = typer.prompt("amount in INR", type=int, default=now if isinstance(now, int) else None)
            return _Answer("edit", amount_inr=amount)
        case other:
            assert_never(other)


def _choice() -> Literal["approve", "reject", "edit"]:
    """What the person chooses; a word that is none of these is asked for again."""
    while True:
        said = str(typer.prompt("[a]pprove, [r]eject, or [e]dit the amount")).strip().lower()
        for choice in ("approve", "reject", "edit"):
            if said and choice.startswith(said):
                return choice


# --- what the services hold -------------------------------------------------------------------------------------


async def tables_of(url: str) -> Mapping[str, JsonValue]:
    """The tables of a sandbox, as its services have them.

    Raises:
        Outage: it does not answer.
    """
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=SERVICE_TIMEOUT_S, trust_env=False) as client:
            answer = await client.get("/_admin/tables")
            answer.raise_for_status()
    except httpx2.HTTPError as error:
        raise Outage(f"the sandbox at {url} does not show its tables ({error}); start the demo again") from error
    tables: dict[str, JsonValue] = answer.json()
    return tables


def show_tables(session: Session, tables: Mapping[str, JsonValue], order_id: str) -> None:
    """The refunds of one order and all notifications, as tables."""
    refunds = _rows(tables.get("refunds"))
    ours = [row for row in refunds if row.get("order_id") == order_id]
    others = len(refunds) - len(ours)
    session.screen.say(f"refunds of order {order_id} in the refunds service ({others} of other orders)", "bold")
    session.screen.show(_table(ours, ("refund_id", "payment_id", "amount_inr", "status", "created_at")))
    session.screen.say("notifications in the notifications service", "bold")
    columns = ("notification_id", "recipient", "channel", "reference", "subject", "body")
    session.screen.show(_table(_rows(tables.get("notifications")), columns))


def _rows(value: JsonValue) -> list[dict[str, JsonValue]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _table(rows: Sequence[Mapping[str, JsonValue]], columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row, name)) for name in columns))
    return table


def _cell(row: Mapping[str, JsonValue], name: str) -> str:
    value = row.get(name)
    return "" if value is None else clip(value, 200) if name == "body" else plain(value)


def _keep(session: Session, sandbox: SandboxProcess) -> None:
    session.screen.say(
        f"the sandbox goes on at {sandbox.url} until Ctrl-C; to use it: export AGENTIC_LOOP_SANDBOX_URL={sandbox.url}"
    )
    serve_until_interrupted(sandbox)
