"""The register of tasks and their escalation packets, in Postgres.

Source: DESIGN §1 (what an operator gets), §9 (escalation packets: close, revise, resume).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from psycopg.rows import DictRow
from pydantic import JsonValue

from ..errors import Defect, Misuse
from ..records import TaskRow
from ..state import TERMINAL, Ending, Status, Task
from .database import Pool, connection
from .text import json_text, json_value, original, original_or_none, storable, storable_or_none

_REGISTER_TASK: Final = """
    INSERT INTO agentic_loop.tasks (
        task_id, trace_id, loop, tenant, goal, requester, status, started_at, updated_at
    )
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (task_id) DO NOTHING
"""
"""Enter a task, unless it is there."""

_UPDATE_TASK: Final = """
    UPDATE agentic_loop.tasks
    SET status = %s, step_count = %s, updated_at = %s, reason = %s, detail = %s, wake_at = %s
    WHERE task_id = %s
"""
"""Bring a task's line up to date."""

_KEEP_PACKET: Final = "INSERT INTO agentic_loop.packets (task_id, version, packet_json) VALUES (%s, %s, %s)"
"""Add an escalation packet; earlier ones stay."""

_NEWEST_PACKET: Final = """
    SELECT packet_json FROM agentic_loop.packets WHERE task_id = %s ORDER BY version DESC, sequence DESC LIMIT 1
"""
"""The packet that was written last."""

_GET_TASK: Final = "SELECT * FROM agentic_loop.tasks WHERE task_id = %s"
"""One task."""

_LIST_TASKS: Final = """
    SELECT * FROM agentic_loop.tasks
    WHERE (%(tenant)s::text IS NULL OR tenant = %(tenant)s) AND (%(status)s::text IS NULL OR status = %(status)s)
    ORDER BY started_at DESC, sequence DESC
    LIMIT %(limit)s
"""
"""The newest tasks, of one tenant and one status where these are given."""

_DUE_TASKS: Final = """
    SELECT * FROM agentic_loop.tasks
    WHERE status = 'RUNNING' AND wake_at <= %s
    ORDER BY wake_at, sequence
    LIMIT %s
"""
"""Tasks that waited to check again and whose time has come, the longest overdue first."""

_CLOSE_TASK: Final = """
    UPDATE agentic_loop.tasks
    SET closed_by = %s, closing_note = %s, closed_at = %s, updated_at = %s
    WHERE task_id = %s AND closed_by IS NULL AND status = ANY (%s)
"""
"""Close an ended task that nobody has closed."""

_SET_PARENT: Final = "UPDATE agentic_loop.tasks SET parent_task_id = %s WHERE task_id = %s"
"""Name the task that this one revises."""


class PostgresTasks:
    """The register of tasks in Postgres; implements the port ``Tasks`` and what operators read."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def register(self, task: Task, status: Status, at: datetime) -> None:
        """Enter a task; entering it again changes nothing.

        Raises:
            Outage: the database is away.
        """
        values = [task.task_id, task.trace_id, task.loop, task.tenant, task.goal, task.requester.id]
        async with connection(self._pool) as writer:
            await writer.execute(_REGISTER_TASK, [*map(storable, values), status, task.started_at, at])

    async def update(
        self,
        task_id: str,
        *,
        status: Status,
        step_count: int,
        at: datetime,
        ending: Ending | None = None,
        wake_at: datetime | None = None,
    ) -> None:
        """Bring a task's line up to date; what is not given is cleared.

        Raises:
            Defect: the task was never registered.
            Outage: the database is away.
        """
        reason, detail = (ending.reason, storable(ending.detail)) if ending else ("", "")
        async with connection(self._pool) as writer:
            cursor = await writer.execute(
                _UPDATE_TASK, [status, step_count, at, reason, detail, wake_at, storable(task_id)]
            )
        if cursor.rowcount != 1:
            raise Defect(f"Task {task_id} was updated before it was registered.")

    async def keep_packet(self, task_id: str, version: int, packet: JsonValue) -> None:
        """Store the escalation packet that was written at this version; the newest one counts.

        Raises:
            Outage: the database is away.
        """
        async with connection(self._pool) as writer:
            await writer.execute(_KEEP_PACKET, [storable(task_id), version, json_text(packet)])

    async def get(self, task_id: str) -> TaskRow | None:
        """The task with this id."""
        async with connection(self._pool) as reader:
            row = await (await reader.execute(_GET_TASK, [storable(task_id)])).fetchone()
        return _task(row) if row else None

    async def list(
        self, tenant: str | None = None, status: Status | None = None, limit: int = 100
    ) -> Sequence[TaskRow]:
        """The newest tasks first, at most ``limit``, of one tenant and of one status where these are given."""
        values = {"tenant": storable_or_none(tenant), "status": status, "limit": limit}
        async with connection(self._pool) as reader:
            return [_task(row) for row in await (await reader.execute(_LIST_TASKS, values)).fetchall()]

    async def due(self, now: datetime, limit: int = 100) -> Sequence[TaskRow]:
        """Running tasks whose time to check again has come, the longest overdue first, at most ``limit``."""
        async with connection(self._pool) as reader:
            return [_task(row) for row in await (await reader.execute(_DUE_TASKS, [now, limit])).fetchall()]

    async def packet(self, task_id: str) -> JsonValue | None:
        """The newest escalation packet of a task, or None where it has none."""
        async with connection(self._pool) as reader:
            row = await (await reader.execute(_NEWEST_PACKET, [storable(task_id)])).fetchone()
        return json_value(row["packet_json"]) if row else None

    async def close(self, task_id: str, by: str, note: str, at: datetime) -> TaskRow:
        """Note that a person has dealt with an ended task, and return its line.

        Raises:
            Misuse: there is no such task, it has not ended, or it was closed before.
        """
        values = [storable(by), storable(note), at, at, storable(task_id), sorted(TERMINAL)]
        async with connection(self._pool) as writer:
            closed = (await writer.execute(_CLOSE_TASK, values)).rowcount == 1
        task = await self.get(task_id)
        if task is None:
            raise Misuse(f"There is no task {task_id}. List the tasks to find its id.")
        if not closed and task.status not in TERMINAL:
            raise Misuse(f"Task {task_id} is {task.status}; only a task that has ended can be closed.")
        if not closed:
            raise Misuse(f"Task {task_id} was closed by {task.closed_by} already: {task.closing_note}")
        return task

    async def set_parent(self, task_id: str, parent: str) -> None:
        """Name the task that this one revises.

        Raises:
            Misuse: there is no such task.
        """
        async with connection(self._pool) as writer:
            cursor = await writer.execute(_SET_PARENT, [storable(parent), storable(task_id)])
        if cursor.rowcount != 1:
            raise Misuse(f"There is no task {task_id}. Register it before naming its parent.")


def _task(row: DictRow) -> TaskRow:
    return TaskRow(
        task_id=original(row["task_id"]),
        loop=original(row["loop"]),
        tenant=original(row["tenant"]),
        goal=original(row["goal"]),
        requester=original(row["requester"]),
        status=row["status"],
        reason=row["reason"],
        step_count=row["step_count"],
        wake_at=row["wake_at"],
        started_at=row["started_at"],
        updated_at=row["updated_at"],
        parent_task_id=original_or_none(row["parent_task_id"]),
        closed_by=original_or_none(row["closed_by"]),
        closing_note=original_or_none(row["closing_note"]),
    )
