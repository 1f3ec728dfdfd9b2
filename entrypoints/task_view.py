"""A task as the command line shows it: where it stands, what it spent, what may be done next, and its exit code.

Source: DESIGN §2 (statuses), §9 (every ending has its safe options).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from pydantic import BaseModel, JsonValue
from rich import box
from rich.table import Table
from rich.text import Text

from agentic_loop.graph.records import ApprovalRow, TaskRow
from agentic_loop.graph.run import TaskState
from agentic_loop.graph.state import Status

from .approval_view import answers_to, approval_json
from .terminal_view import clip, plain, usd

MAX_GOAL_CHARS = 300


@dataclass(frozen=True)
class TaskReport:
    """A task with what belongs to it: its line in the register, and the approval that it waits for, if any."""

    state: TaskState
    line: TaskRow | None
    approval: ApprovalRow | None

    @property
    def refusal(self) -> str:
        """Why the last answer to the approval decided nothing, where it did not."""
        answer = self.state.values.get("answer")
        return answer.message if answer is not None and answer.kind == "pending" and self.state.waiting else ""

    @property
    def exit_code(self) -> int:
        """What a command that ran the task exits with."""
        return exit_code_of(self.state.status)


def exit_code_of(status: Status) -> int:
    """The exit code for a status; RUNNING means that the task sleeps until it is time to look again."""
    match status:
        case "SUCCEEDED":
            return 0
        case "AWAITING_APPROVAL":
            return 3
        case "NEEDS_INPUT":
            return 4
        case "DENIED":
            return 5
        case "BUDGET_EXHAUSTED":
            return 6
        case "NO_PROGRESS":
            return 7
        case "FAILED":
            return 8
        case "RUNNING":
            return 9
        case _:
            assert_never(status)


# --- JSON -------------------------------------------------------------------------------------------------------


def task_json(report: TaskReport) -> dict[str, JsonValue]:
    """The task as JSON data. Units are in the names; instants are ISO 8601 in UTC; cost is integer micro-USD."""
    state = report.state
    values = state.values
    task, ending, wake_at = values["task"], state.ending, values.get("wake_at")
    evidence: list[JsonValue] = [_model_json(item) for item in values["evidence"]]
    outstanding: list[JsonValue] = [_model_json(item) for item in state.outstanding]
    return {
        "task_id": state.task_id,
        "trace_id": task.trace_id,
        "loop": state.loop,
        "status": state.status,
        "reason": ending.reason if ending is not None else "",
        "detail": ending.detail if ending is not None else "",
        "message": state.message,
        "goal": task.goal,
        "inputs": {**task.inputs},
        "requester": task.requester.id,
        "tenant": task.tenant,
        "model": task.versions.get("model", ""),
        "version": state.version,
        "step_count": state.step_count,
        "phase": state.phase,
        "wake_at": wake_at.isoformat() if wake_at is not None else None,
        "usage": {**_model_json(state.usage), "tokens": state.usage.tokens},
        "limits": _model_json(values["limits"]),
        "evidence_count": values["evidence_count"],
        "evidence": evidence,
        "outstanding": outstanding,
        "approval": approval_json(report.approval) if report.approval is not None else None,
        "refusal": report.refusal,
        "parent_task_id": report.line.parent_task_id if report.line is not None else None,
        "closed_by": report.line.closed_by if report.line is not None else None,
        "closing_note": report.line.closing_note if report.line is not None else None,
    }


def _model_json(value: BaseModel) -> dict[str, JsonValue]:
    dumped: dict[str, JsonValue] = value.model_dump(mode="json")
    return dumped


def line_json(row: TaskRow) -> dict[str, JsonValue]:
    """A line of the list of tasks as JSON data."""
    return {
        "task_id": row.task_id,
        "loop": row.loop,
        "tenant": row.tenant,
        "goal": row.goal,
        "requester": row.requester,
        "status": row.status,
        "reason": row.reason,
        "step_count": row.step_count,
        "wake_at": row.wake_at.isoformat() if row.wake_at is not None else None,
        "started_at": row.started_at.isoformat(),
        "updated_at": row.updated_at.isoformat(),
        "parent_task_id": row.parent_task_id,
        "closed_by": row.closed_by,
        "closing_note": row.closing_note,
    }


# --- words ------------------------------------------------------------------------------------------------------


def heading_of(state: TaskState) -> str:
    """The status and the reason in one line."""
    ending = state.ending
    if ending is None or not state.ended:
        wake_at = state.values.get("wake_at")
        sleeping = f" (sleeps until {wake_at.isoformat(timespec='seconds')})" if wake_at is not None else ""
        return f"{state.status}{sleeping}  {state.task_id}"
    return f"{state.status} ({ending.reason})  {state.task_id}"


def style_of(status: Status) -> str:
    """The colour of a status at a terminal."""
    if status == "SUCCEEDED":
        return "bold green"
    return "bold yellow" if status in ("RUNNING", "AWAITING_APPROVAL", "NEEDS_INPUT") else "bold red"


def spent_line(state: TaskState) -> str:
    """What the task spent of its limits."""
    usage, limits = state.usage, state.values["limits"]
    return (
        f"spent {state.step_count} of {limits.max_steps} steps, {usage.tokens:,} of {limits.max_tokens:,} tokens, "
        f"{usd(usage.cost_micro_usd)} of {usd(limits.max_cost_micro_usd)}, "
        f"{usage.active_ms / 1_000:.1f} of {limits.max_active_s} s active "
        f"(model {usage.model_ms:,} ms, tools {usage.tool_ms:,} ms), {usage.suspended_ms / 1_000:.1f} s suspended"
    )


def details_table(report: TaskReport) -> Table:
    """What ``show`` says of a task: its goal, who asked, its evidence, its effects."""
    state, task, line = report.state, report.state.values["task"], report.line
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    inputs = ", ".join(f"{name}={value}" for name, value in task.inputs.items())
    closed = f"by {line.closed_by}: {line.closing_note}" if line is not None and line.closed_by is not None else ""
    facts = [
        ("goal", clip(task.goal, MAX_GOAL_CHARS)),
        ("inputs", inputs),
        ("loop", f"{state.loop}, phase {state.phase}, version {state.version}"),
        ("requester", f"{task.requester.id} of {task.tenant}"),
        ("model", task.versions.get("model", "")),
        ("detail", state.ending.detail if state.ending is not None else ""),
        ("revises", (line.parent_task_id or "") if line is not None else ""),
        ("closed", closed),
    ]
    for name, value in facts:
        if value:
            table.add_row(name, Text(plain(value)))
    for action in state.outstanding:
        table.add_row("effect", Text(plain(f"{action.kind} {action.key}: {action.status}")))
    for item in state.values["evidence"]:
        origin = f"{item.tool} of {item.source}, request {item.request_id}"
        table.add_row(plain(item.id), Text(plain(origin)))
    return table


def tasks_table(rows: Sequence[TaskRow]) -> Table:
    """The list of tasks, the newest first."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("task", "status", "steps", "by", "started", "goal"):
        table.add_column(name, overflow="fold", no_wrap=name in ("task", "started"))
    for row in rows:
        status = row.status + (f" ({row.reason})" if row.reason else "") + (", closed" if row.closed_by else "")
        started = row.started_at.strftime("%Y-%m-%d %H:%M")
        cells = (row.task_id, status, str(row.step_count), row.requester, started, clip(row.goal, 100))
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def next_commands(report: TaskReport, program: str) -> list[str]:
    """Commands that are useful now, with the program's name and options in front of each."""
    state = report.state
    if report.approval is not None:
        return [*answers_to(report.approval, program), f"{program} show {state.task_id}"]
    if state.status == "SUCCEEDED":
        return [f"{program} trace {state.task_id}", f"{program} show {state.task_id}"]
    if state.ended:
        return [f"{program} packet {state.task_id}", f"{program} trace {state.task_id}"]
    return [f"{program} continue {state.task_id}", f"{program} show {state.task_id}"]
