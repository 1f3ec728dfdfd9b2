"""What each command does: one thing with a runtime, said in words or as JSON; every function gives the exit code.

Source: DESIGN §1 (the command line's users).
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import JsonValue

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ApprovalRow
from agentic_loop.graph.run import Runtime, TaskState
from agentic_loop.graph.state import TERMINAL, Principal, Resumption, Status
from agentic_loop.policies.escalation import as_markdown

from .approval_view import answers_to, approval_json, approval_table
from .doctor import finding_json, findings
from .session import Session, new_task_id
from .task_view import details_table, heading_of, line_json, next_commands, style_of, task_json, tasks_table
from .trace_view import trace_json, trace_table

MAX_LISTED = 100
"""How many approvals a list shows at most."""


# --- commands that run a task -------------------------------------------------------------------------------


def start(
    session: Session, loop: str, *, goal: str, inputs: Sequence[str], model: str | None, who: str, task_id: str | None
) -> int:
    """Start a task and run it until it ends, waits or sleeps."""
    session.task_id = task_id or new_task_id()

    async def act(runtime: Runtime) -> TaskState:
        requester = session.person(who)
        session.introduce(runtime, f"task {session.task_id}: {loop}, started by {requester.id}")
        return await runtime.start(
            loop, goal=goal, inputs=text_pairs("--input", inputs), requester=requester, task_id=session.task_id
        )

    return session.run_task(act, model=model)


def answer(
    session: Session, decision: Literal["approve", "reject"], approval_id: str, *, who: str, message: str
) -> int:
    """Approve or reject one action and run its task on."""

    async def act(runtime: Runtime) -> TaskState:
        await session.approval_row(runtime, approval_id)
        return await runtime.decide(approval_id, decision, approver=session.person(who), message=message)

    return session.run_task(act)


def edit(session: Session, approval_id: str, *, who: str, message: str, changes: Sequence[str]) -> int:
    """Approve another action in place of the one that was asked about; what is not changed stays."""

    async def act(runtime: Runtime) -> TaskState:
        changed = json_pairs("--arg", changes)
        if not changed:
            raise Misuse("say what to change: --arg NAME=VALUE, such as --arg amount_inr=1500")
        row = await session.approval_row(runtime, approval_id)
        edited = {**row.args, **changed}
        approver = session.person(who)
        return await runtime.decide(approval_id, "edit", approver=approver, message=message, edited_args=edited)

    return session.run_task(act)


def resume(session: Session, task_id: str, *, who: str, inputs: Sequence[str], more: Resumption) -> int:
    """Go on with an ended task, with new inputs or extra limits."""
    session.task_id = task_id

    async def act(runtime: Runtime) -> TaskState:
        resumption = more.model_copy(update={"inputs": text_pairs("--input", inputs)})
        return await runtime.resume(task_id, actor=session.person(who), resumption=resumption)

    return session.run_task(act)


def revise(session: Session, task_id: str, *, who: str, goal: str, inputs: Sequence[str]) -> int:
    """Start a new task in place of an ended one."""

    async def act(runtime: Runtime) -> TaskState:
        changed = text_pairs("--input", inputs)
        return await runtime.revise(task_id, actor=session.person(who), goal=goal, inputs=changed)

    return session.run_task(act)


def proceed(session: Session, task_id: str) -> int:
    """Run on a task that was interrupted, or whose time to look again has come."""
    session.task_id = task_id

    async def act(runtime: Runtime) -> TaskState:
        return await runtime.proceed(task_id)

    return session.run_task(act)


# --- commands that look -------------------------------------------------------------------------------------


def inbox(session: Session, who: str | None) -> int:
    """The approvals that wait, of one person's tenant and roles where a person is given."""

    async def act(runtime: Runtime) -> int:
        reader = session.person(who) if who is not None else None
        rows = await runtime.stores.approvals.pending(reader.tenant if reader else None, limit=MAX_LISTED)
        waiting = [row for row in rows if await _waits(runtime, row) and _concerns(reader, row)]
        if session.screen.result({"approvals": [approval_json(row) for row in waiting]}):
            return 0
        if not waiting:
            session.screen.say("nothing waits for an approval")
        for row in waiting:
            if datetime.now(UTC) >= row.expires_at:
                session.screen.say("expired; an answer makes the task ask anew:", "bold")
            session.screen.show(approval_table(row))
            session.say_commands(answers_to(row, session.program))
        return 0

    return session.look(act)


def show(session: Session, task_id: str) -> int:
    """Where a task stands."""

    async def act(runtime: Runtime) -> int:
        report = await session.report(runtime, await runtime.state(task_id))
        if session.screen.result(task_json(report)):
            return 0
        session.screen.say(heading_of(report.state), style_of(report.state.status))
        session.screen.show(details_table(report))
        session.say_rest(report)
        session.say_commands(next_commands(report, session.program))
        return 0

    return session.look(act)


def trace(session: Session, task_id: str) -> int:
    """What happened in a task, step by step."""

    async def act(runtime: Runtime) -> int:
        state, entries = await runtime.state(task_id), await runtime.trace(task_id)
        if session.screen.result({"task_id": task_id, "status": state.status, "entries": trace_json(entries)}):
            return 0
        session.screen.say(heading_of(state), style_of(state.status))
        session.screen.show(trace_table(entries, session.screen.width))
        return 0

    return session.look(act)


def packet(session: Session, task_id: str, *, markdown: bool) -> int:
    """The newest escalation packet of a task, as JSON or as Markdown."""

    async def act(runtime: Runtime) -> int:
        if markdown and session.screen.as_json:
            raise Misuse("choose one of --json and --markdown")
        packet = await runtime.packet(task_id)
        contents = packet if isinstance(packet, dict) else {}
        if not session.screen.result(contents):
            session.screen.block(as_markdown(contents))
        return 0

    return session.look(act)


def tasks(session: Session, status: Status | None, limit: int) -> int:
    """The newest tasks."""

    async def act(runtime: Runtime) -> int:
        rows = await runtime.stores.tasks.list(status=status, limit=limit)
        if session.screen.result({"tasks": [line_json(row) for row in rows]}):
            return 0
        if rows:
            session.screen.show(tasks_table(rows))
        else:
            session.screen.say("there are no such tasks" if status else "there are no tasks yet")
        return 0

    return session.look(act)


def close(session: Session, task_id: str, *, who: str, note: str) -> int:
    """Mark an ended task as dealt with by a person."""

    async def act(runtime: Runtime) -> int:
        actor = session.person(who)
        await runtime.close(task_id, actor=actor, note=note)
        if not session.screen.result({"task_id": task_id, "closed_by": actor.id, "closing_note": note}):
            session.screen.say(f"task {task_id} is closed by {actor.id}: {note}")
        return 0

    return session.look(act)


def doctor(session: Session) -> int:
    """Whether this machine can run tasks; 0 if everything is in order, else 1."""

    def act() -> int:
        made = []
        for finding in findings(session.environment, session.database):
            made.append(finding)
            mark, style = ("ok", "green") if finding.ok else ("not ok", "bold red")
            session.screen.say(f"{mark:7}{finding.name}: {finding.detail}", style)
            if not finding.ok and finding.advice:
                session.screen.say(f"       → {finding.advice}")
        ok = all(finding.ok for finding in made)
        session.screen.result({"ok": ok, "findings": [finding_json(finding) for finding in made]})
        return 0 if ok else 1

    return session.guarded(act)


# --- what the commands share


async def _waits(runtime: Runtime, row: ApprovalRow) -> bool:
    """Whether the approval's task still waits for it: a task may have ended with its question open."""
    task = await runtime.stores.tasks.get(row.task_id)
    return task is not None and task.status not in TERMINAL


def _concerns(reader: Principal | None, row: ApprovalRow) -> bool:
    """Whether to show a request to this person: nobody answers their own. Who is entitled, the policy says then."""
    return reader is None or row.requester != reader.id


def text_pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE texts as a mapping.

    Raises:
        Misuse: one has no name or no equals sign, or a name comes twice.
    """
    pairs: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise Misuse(f"{option} takes NAME=VALUE, not {text!r}")
        if name.strip() in pairs:
            raise Misuse(f"{option} {name.strip()} is given twice; give it once")
        pairs[name.strip()] = value
    return pairs


def json_pairs(option: str, given: Sequence[str]) -> dict[str, JsonValue]:
    """NAME=VALUE texts as a mapping whose values are read as JSON, or as plain text where they are no JSON.

    Raises:
        Misuse: one has no name or no equals sign, or a name comes twice.
    """
    return {name: _json_or_text(value) for name, value in text_pairs(option, given).items()}


def _json_or_text(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=_no_number)
    except ValueError:
        return text
    return value


def _no_number(name: str) -> JsonValue:
    raise ValueError(f"{name} is no JSON number")
