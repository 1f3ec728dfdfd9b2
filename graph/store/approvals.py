"""The approvals, in transactions of their own: one action of one task each, decided once, consumed once.

They are consumed by the ledger, in the transaction that reserves the effect.

Source: DESIGN §5 (authority).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from psycopg.rows import DictRow
from pydantic import JsonValue

from ..errors import Defect, Misuse
from ..records import ApprovalRow
from .database import Pool, connection, transaction
from .text import (
    json_object,
    json_text,
    object_text,
    original,
    original_or_none,
    storable,
    storable_or_none,
    strings,
)

MAX_APPROVALS_OF_A_TASK: Final = 500
"""How many approvals ``of_task`` returns at most."""

_REQUEST_APPROVAL: Final = """
    INSERT INTO agentic_loop.approvals (
        id, task_id, tenant, loop, tool, args_json, idempotency_key, action_hash, required_role, requester,
        policy_ids_json, policy_clause, reason, evidence_ids_json, round, requested_at, expires_at
    )
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT DO NOTHING
"""
"""Enter a request, unless this task has asked for this action in this round before."""

_FIND_REQUEST: Final = "SELECT * FROM agentic_loop.approvals WHERE task_id = %s AND action_hash = %s AND round = %s"
"""The request of a task for one action in one round."""

_FIND_APPROVAL: Final = "SELECT * FROM agentic_loop.approvals WHERE id = %s"
"""One approval."""

_DECIDE_APPROVAL: Final = """
    UPDATE agentic_loop.approvals
    SET decision = %(decision)s, decided_by = %(decided_by)s, decided_role = %(decided_role)s, decided_at = %(at)s,
        message = %(message)s, edited_args_json = %(edited_args_json)s
    WHERE id = %(id)s AND decision IS NULL
"""
"""Record the first decision."""

_PENDING_APPROVALS: Final = """
    SELECT * FROM agentic_loop.approvals
    WHERE decision IS NULL
        AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
        AND (%(role)s::text IS NULL OR required_role = %(role)s)
    ORDER BY requested_at, sequence
    LIMIT %(limit)s
"""
"""What waits for a decision, the longest waiting first."""

_APPROVALS_OF_TASK: Final = "SELECT * FROM agentic_loop.approvals WHERE task_id = %s ORDER BY sequence LIMIT %s"
"""What a task has asked for, oldest first."""


class PostgresApprovals:
    """The approvals in Postgres; implements the port ``Approvals`` and what an inbox reads."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def request(self, row: ApprovalRow) -> ApprovalRow:
        """Enter a request; for the same task, action and round the row that exists is returned, decided or not.

        Raises:
            Defect: the row carries a decision, or its id belongs to another request.
            Outage: the database is away.
        """
        if row.decision is not None or row.consumed_by is not None:
            raise Defect(f"Approval {row.id} was entered as decided; enter it undecided and record the decision.")
        async with transaction(self._pool) as writer:
            await writer.execute(_REQUEST_APPROVAL, _columns(row))
            cursor = await writer.execute(_FIND_REQUEST, [storable(row.task_id), row.action_hash, row.round])
            present = await cursor.fetchone()
        if present is None:
            raise Defect(f"The approval id {row.id} belongs to another request already.")
        return _approval(present)

    async def find(self, approval_id: str) -> ApprovalRow | None:
        """The approval with this id."""
        async with connection(self._pool) as reader:
            row = await (await reader.execute(_FIND_APPROVAL, [storable(approval_id)])).fetchone()
        return _approval(row) if row else None

    async def decide(
        self,
        approval_id: str,
        *,
        decision: Literal["approved", "edited", "rejected", "answered", "expired"],
        decided_by: str,
        decided_role: str,
        at: datetime,
        message: str = "",
        edited_args: Mapping[str, JsonValue] | None = None,
    ) -> ApprovalRow:
        """Record a decision, once; a decision that is already there stays and is returned.

        Whether the person was entitled is for the policy to say, before.

        Raises:
            Misuse: no such approval.
            Outage: the database is away.
        """
        values = {
            "id": storable(approval_id),
            "decision": decision,
            "decided_by": storable(decided_by),
            "decided_role": storable(decided_role),
            "at": at,
            "message": storable(message),
            "edited_args_json": object_text(edited_args or {}),
        }
        async with connection(self._pool) as writer:
            await writer.execute(_DECIDE_APPROVAL, values)
        decided = await self.find(approval_id)
        if decided is None:
            raise Misuse(f"There is no approval {approval_id}. Look in the inbox for the ids of those that wait.")
        return decided

    async def pending(
        self, tenant: str | None = None, role: str | None = None, limit: int = 100
    ) -> list[ApprovalRow]:
        """What waits for a decision, the longest waiting first, at most ``limit``; also what has expired unseen.

        Of one tenant and for one required role where these are given.
        """
        values = {"tenant": storable_or_none(tenant), "role": storable_or_none(role), "limit": limit}
        async with connection(self._pool) as reader:
            return [_approval(row) for row in await (await reader.execute(_PENDING_APPROVALS, values)).fetchall()]

    async def of_task(self, task_id: str) -> list[ApprovalRow]:
        """All approvals that this task has asked for, oldest first, at most 500."""
        async with connection(self._pool) as reader:
            cursor = await reader.execute(_APPROVALS_OF_TASK, [storable(task_id), MAX_APPROVALS_OF_A_TASK])
            return [_approval(row) for row in await cursor.fetchall()]


def _columns(row: ApprovalRow) -> list[object]:
    return [
        storable(row.id),
        storable(row.task_id),
        storable(row.tenant),
        storable(row.loop),
        storable(row.tool),
        object_text(row.args),
        storable_or_none(row.idempotency_key),
        row.action_hash,
        storable(row.required_role),
        storable(row.requester),
        json_text(list(row.policy_ids)),
        storable(row.policy_clause),
        storable(row.reason),
        json_text(list(row.evidence_ids)),
        row.round,
        row.requested_at,
        row.expires_at,
    ]


def _approval(row: DictRow) -> ApprovalRow:
    return ApprovalRow(
        id=original(row["id"]),
        task_id=original(row["task_id"]),
        tenant=original(row["tenant"]),
        loop=original(row["loop"]),
        tool=original(row["tool"]),
        args=json_object(row["args_json"]),
        idempotency_key=original_or_none(row["idempotency_key"]),
        action_hash=row["action_hash"],
        required_role=original(row["required_role"]),
        requester=original(row["requester"]),
        policy_ids=strings(row["policy_ids_json"]),
        policy_clause=original(row["policy_clause"]),
        reason=original(row["reason"]),
        evidence_ids=strings(row["evidence_ids_json"]),
        round=row["round"],
        requested_at=row["requested_at"],
        expires_at=row["expires_at"],
        decision=row["decision"],
        decided_by=original(row["decided_by"]),
        decided_role=original(row["decided_role"]),
        decided_at=row["decided_at"],
        message=original(row["message"]),
        edited_args=json_object(row["edited_args_json"]),
        consumed_by=original_or_none(row["consumed_by"]),
    )
