"""The ledger: the record of every effect, in transactions of its own, so that none can happen twice.

An effect is begun before its call is sent and finished after the answer came. The row in between, an *intent*, tells
whoever comes next that a call may have been sent: reconcile, never send again.

Source: DESIGN §5 (an approval is consumed with the reservation of its effect), §6 (the ledger).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, LiteralString

from psycopg import Rollback
from psycopg.rows import DictRow
from pydantic import JsonValue

from ..errors import Defect
from ..records import AlreadyBegun, ApprovalRefused, BeginAnswer, Begun, FenceLost, Intent, KeyConflict
from ..state import CallFault
from .database import Connection, Pool, connection, transaction
from .text import json_object, json_text, json_value, object_text, original, storable, storable_or_none

MAX_INTENTS_OF_A_TASK: Final = 500
"""How many intents ``of_task`` returns at most."""

_SHARE_LEASE: Final = "SELECT fence FROM agentic_loop.leases WHERE task_id = %s FOR SHARE"
"""The current fence, held still until the transaction ends: a takeover waits, or has happened and is seen."""

_INSERT_INTENT: Final = """
    INSERT INTO agentic_loop.intents AS earlier (
        tenant, key, action_hash, tool, args_json, task_id, status, dispatches, approval_id,
        intended_at, updated_at, request_id
    )
    VALUES (
        %(tenant)s, %(key)s, %(action_hash)s, %(tool)s, %(args_json)s, %(task_id)s, 'intended', 1, %(approval_id)s,
        %(at)s, %(at)s, %(request_id)s
    )
    ON CONFLICT (tenant, key) DO UPDATE SET
        action_hash = excluded.action_hash, tool = excluded.tool, args_json = excluded.args_json,
        task_id = excluded.task_id, status = 'intended', dispatches = 1, approval_id = excluded.approval_id,
        intended_at = excluded.intended_at, updated_at = excluded.updated_at, finished_at = NULL,
        request_id = excluded.request_id, result_json = NULL, ref = '', fault_json = NULL,
        flagged = false, flag_detail = ''
    WHERE earlier.status = 'failed'
    RETURNING *
"""
"""Insert an intent, or begin anew where the earlier one is confirmed to have had no effect; else return nothing."""

_FIND_INTENT: Final = "SELECT * FROM agentic_loop.intents WHERE tenant = %s AND key = %s"
"""The intent under one key."""

_LOCK_INTENT: Final = "SELECT * FROM agentic_loop.intents WHERE tenant = %s AND key = %s FOR UPDATE"
"""The intent under one key, held until the transaction ends."""

_LOCK_APPROVAL: Final = "SELECT * FROM agentic_loop.approvals WHERE id = %s FOR UPDATE"
"""One approval, held until the transaction ends, so that only one effect can consume it."""

_CONSUME_APPROVAL: Final = "UPDATE agentic_loop.approvals SET consumed_by = %s WHERE id = %s"
"""Use an approval up."""

_REOPEN_INTENT: Final = """
    UPDATE agentic_loop.intents
    SET status = 'intended', dispatches = dispatches + 1, request_id = %(request_id)s, task_id = %(task_id)s,
        approval_id = %(approval_id)s, updated_at = %(at)s
    WHERE tenant = %(tenant)s AND key = %(key)s
    RETURNING *
"""
"""Permit one more dispatch."""

_FINISH_INTENT: Final = """
    UPDATE agentic_loop.intents
    SET status = 'executed', result_json = %(result_json)s, ref = %(ref)s, request_id = %(request_id)s,
        fault_json = NULL, finished_at = %(at)s, updated_at = %(at)s
    WHERE tenant = %(tenant)s AND key = %(key)s AND status <> 'executed'
    RETURNING *
"""
"""Record the first result."""

_FAIL_INTENT: Final = """
    UPDATE agentic_loop.intents
    SET status = 'failed', fault_json = %(fault_json)s, finished_at = %(at)s, updated_at = %(at)s
    WHERE tenant = %(tenant)s AND key = %(key)s AND status IN ('intended', 'unknown')
"""
"""Record that there was no effect, unless there is a result."""

_MARK_UNKNOWN: Final = """
    UPDATE agentic_loop.intents SET status = 'unknown', updated_at = %(at)s
    WHERE tenant = %(tenant)s AND key = %(key)s AND status = 'intended'
"""
"""Record that nobody knows, unless somebody does."""

_FLAG_INTENT: Final = """
    UPDATE agentic_loop.intents SET flagged = true, flag_detail = %(detail)s, updated_at = %(at)s
    WHERE tenant = %(tenant)s AND key = %(key)s
"""
"""Mark an intent for review by a person."""

_INTENTS_OF_TASK: Final = "SELECT * FROM agentic_loop.intents WHERE task_id = %s ORDER BY sequence LIMIT %s"
"""What a task began, oldest first."""

_FLAGGED_INTENTS: Final = """
    SELECT * FROM agentic_loop.intents
    WHERE flagged AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    ORDER BY sequence
    LIMIT %(limit)s
"""
"""What waits for review by a person, oldest first."""


class PostgresLedger:
    """The ledger in Postgres; implements the port ``Ledger``.

    Keys belong to a tenant. Every method is one transaction; after an :class:`~agentic_loop.graph.errors.Outage`
    it may or may not have been committed, and asking again is safe.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def begin(
        self,
        *,
        tenant: str,
        key: str,
        action_hash: str,
        tool: str,
        args: Mapping[str, JsonValue],
        task_id: str,
        fence: int,
        approval_id: str | None,
        request_id: str,
        at: datetime,
    ) -> BeginAnswer:
        """In one transaction: check the fence, insert the intent, check and consume the approval.

        ``approval_id`` None means that the policy allowed the action without one. What the ledger holds already is
        told before the approval is looked at, so nobody is asked to approve what has been done. An intent that failed
        (confirmed without effect) may be begun anew, by any action, under an approval that is not used up.

        Raises:
            Outage: the database is away; send nothing.

        Source: DESIGN §5, §6.
        """
        intent = {
            "tenant": storable(tenant),
            "key": storable(key),
            "action_hash": action_hash,
            "tool": storable(tool),
            "args_json": object_text(args),
            "task_id": storable(task_id),
            "approval_id": storable_or_none(approval_id),
            "at": at,
            "request_id": storable(request_id),
        }
        answer: BeginAnswer = FenceLost()
        async with connection(self._pool) as writer, writer.transaction() as everything:
            if not await _is_current(writer, task_id, fence):
                return FenceLost()
            row = await (await writer.execute(_INSERT_INTENT, intent)).fetchone()
            if row is None:
                return _present(await _locked(writer, tenant, key), action_hash)
            answer = Begun(_intent(row))
            if approval_id is not None:
                refusal = await _consume(writer, approval_id, answer.intent, action_hash, at)
                if refusal:
                    answer = refusal
                    raise Rollback(everything)
        return answer

    async def finish(
        self, *, tenant: str, key: str, result: JsonValue, ref: str, request_id: str, at: datetime
    ) -> Intent:
        """Record the result and return the intent; a late answer is accepted by key, and the first result stays.

        Raises:
            Defect: nothing was begun under this key.
            Outage: the database is away.
        """
        values = {
            "result_json": json_text(result),
            "ref": storable(ref),
            "request_id": storable(request_id),
            "at": at,
        }
        async with transaction(self._pool) as writer:
            cursor = await writer.execute(_FINISH_INTENT, values | _name(tenant, key))
            return _intent(await cursor.fetchone() or await _locked(writer, tenant, key))

    async def fail(self, *, tenant: str, key: str, fault: CallFault, at: datetime) -> None:
        """Record that the service refused the action and that it had no effect; the key may be begun again.

        A result that is already recorded stays.

        Raises:
            Defect: nothing was begun under this key.
            Outage: the database is away.
        """
        values = {"fault_json": json_text(fault.model_dump()), "at": at}
        await self._change(_FAIL_INTENT, tenant, key, values)

    async def mark_unknown(self, *, tenant: str, key: str, at: datetime) -> None:
        """Record that the outcome of the call is unknown; an outcome that is already known stays.

        Raises:
            Defect: nothing was begun under this key.
            Outage: the database is away.
        """
        await self._change(_MARK_UNKNOWN, tenant, key, {"at": at})

    async def reopen(
        self,
        *,
        tenant: str,
        key: str,
        action_hash: str,
        fence: int,
        approval_id: str | None,
        request_id: str,
        dispatches: int,
        max_dispatches: int,
        at: datetime,
        task_id: str | None = None,
    ) -> BeginAnswer:
        """Permit one more dispatch with the same key, after the service confirmed that there was no effect.

        The approval that was consumed for this key still counts while it has not expired; another one must be unused.
        ``fence`` is that of ``task_id``, by default the task that began the intent; another task that reopens it
        takes it over. ``dispatches`` is how many had been made when the service was asked: an intent that was
        dispatched since, that was dispatched ``max_dispatches`` times, or that is settled, is ``AlreadyBegun``.

        Raises:
            Defect: nothing was begun under this key.
            Outage: the database is away; send nothing.

        Source: DESIGN §6.
        """
        async with transaction(self._pool) as writer:
            # The lease comes first, as in begin, so that two transactions never wait for each other.
            owner = task_id or _intent(await _found(writer, tenant, key)).task_id
            if not await _is_current(writer, owner, fence):
                return FenceLost()
            row = await _locked(writer, tenant, key)
            intent = _intent(row)
            if task_id is None and intent.task_id != owner:
                return FenceLost()
            closed = intent.status in ("executed", "failed") or intent.dispatches >= max_dispatches
            if closed or intent.action_hash != action_hash or intent.dispatches > dispatches:
                return _present(row, action_hash)
            consumed = original(row["approval_id"]) if row["approval_id"] else None
            refusal = await self._refusal_to_reopen(writer, consumed, approval_id, intent, at)
            if refusal:
                return refusal
            values = {
                "request_id": storable(request_id),
                "task_id": storable(owner),
                "approval_id": storable_or_none(approval_id or consumed),
                "at": at,
            }
            reopened = await (await writer.execute(_REOPEN_INTENT, values | _name(tenant, key))).fetchone()
        if reopened is None:
            raise Defect(f"The intent {key} of tenant {tenant} went away while it was locked.")
        return Begun(_intent(reopened))

    async def flag(self, *, tenant: str, key: str, detail: str, at: datetime) -> None:
        """Mark the intent for review by a person.

        Raises:
            Defect: nothing was begun under this key.
            Outage: the database is away.
        """
        await self._change(_FLAG_INTENT, tenant, key, {"detail": storable(detail), "at": at})

    async def find(self, *, tenant: str, key: str) -> Intent | None:
        """The intent under this key, if there is one."""
        async with connection(self._pool) as reader:
            row = await (await reader.execute(_FIND_INTENT, [storable(tenant), storable(key)])).fetchone()
        return _intent(row) if row else None

    async def of_task(self, task_id: str) -> list[Intent]:
        """All intents that this task began, oldest first, at most 500."""
        async with connection(self._pool) as reader:
            cursor = await reader.execute(_INTENTS_OF_TASK, [storable(task_id), MAX_INTENTS_OF_A_TASK])
            return [_intent(row) for row in await cursor.fetchall()]

    async def flagged(self, tenant: str | None = None, limit: int = 100) -> list[Intent]:
        """The intents that wait for review by a person, oldest first, at most ``limit``, of one tenant or of all."""
        values = {"tenant": storable_or_none(tenant), "limit": limit}
        async with connection(self._pool) as reader:
            return [_intent(row) for row in await (await reader.execute(_FLAGGED_INTENTS, values)).fetchall()]

    async def _change(self, statement: LiteralString, tenant: str, key: str, values: Mapping[str, object]) -> None:
        """Run a conditional update; that it changed nothing is an error only where there is no intent."""
        async with transaction(self._pool) as writer:
            cursor = await writer.execute(statement, dict(values) | _name(tenant, key))
            if cursor.rowcount == 0:
                await _found(writer, tenant, key)

    async def _refusal_to_reopen(
        self, writer: Connection, consumed: str | None, offered: str | None, intent: Intent, at: datetime
    ) -> ApprovalRefused | None:
        """Why the approval does not carry one more dispatch, or None; a fresh approval is consumed."""
        if offered is not None and offered != consumed:
            return await _consume(writer, offered, intent, intent.action_hash, at)
        if consumed is None:
            return None
        approval = await (await writer.execute(_LOCK_APPROVAL, [storable(consumed)])).fetchone()
        if approval is None:
            raise Defect(f"The approval {consumed} that {intent.key} consumed is gone.")
        if approval["expires_at"] <= at:
            return ApprovalRefused(f"approval {consumed} expired at {approval['expires_at'].isoformat()}")
        return None


def _name(tenant: str, key: str) -> dict[str, object]:
    return {"tenant": storable(tenant), "key": storable(key)}


async def _is_current(writer: Connection, task_id: str, fence: int) -> bool:
    """Whether this is the fence of the task's present lease, which stays so until the transaction ends."""
    row = await (await writer.execute(_SHARE_LEASE, [storable(task_id)])).fetchone()
    return row is not None and row["fence"] == fence


async def _found(reader: Connection, tenant: str, key: str) -> DictRow:
    row = await (await reader.execute(_FIND_INTENT, [storable(tenant), storable(key)])).fetchone()
    if row is None:
        raise Defect(f"Nothing was begun under the key {key} of tenant {tenant}.")
    return row


async def _locked(writer: Connection, tenant: str, key: str) -> DictRow:
    row = await (await writer.execute(_LOCK_INTENT, [storable(tenant), storable(key)])).fetchone()
    if row is None:
        raise Defect(f"Nothing was begun under the key {key} of tenant {tenant}.")
    return row


def _present(row: DictRow, action_hash: str) -> AlreadyBegun | KeyConflict:
    """What an intent that is in the way means for this action."""
    intent = _intent(row)
    return AlreadyBegun(intent) if intent.action_hash == action_hash else KeyConflict(intent)


async def _consume(
    writer: Connection, approval_id: str, intent: Intent, action_hash: str, at: datetime
) -> ApprovalRefused | None:
    """Use the approval up for this intent, or say why it does not cover it."""
    approval = await (await writer.execute(_LOCK_APPROVAL, [storable(approval_id)])).fetchone()
    detail = _uncovered(approval, intent, action_hash, at)
    if detail is not None:
        return ApprovalRefused(f"approval {approval_id} {detail}")
    await writer.execute(_CONSUME_APPROVAL, [storable(intent.key), storable(approval_id)])
    return None


def _uncovered(approval: DictRow | None, intent: Intent, action_hash: str, at: datetime) -> str | None:
    """Why an approval does not cover an action now, as the rest of a sentence, or None where it does."""
    if approval is None:
        return "does not exist"
    if original(approval["task_id"]) != intent.task_id or original(approval["tenant"]) != intent.tenant:
        return "belongs to another task"
    if approval["action_hash"] != action_hash:
        return "was given for another action"
    if approval["decision"] is None:
        return "has not been decided"
    if approval["decision"] not in ("approved", "edited"):
        return f"was {approval['decision']}"
    if approval["expires_at"] <= at:
        return f"expired at {approval['expires_at'].isoformat()}"
    if approval["consumed_by"] is not None:
        return f"was used already, for {original(approval['consumed_by'])}"
    return None


def _intent(row: DictRow) -> Intent:
    return Intent(
        tenant=original(row["tenant"]),
        key=original(row["key"]),
        action_hash=row["action_hash"],
        tool=original(row["tool"]),
        args=json_object(row["args_json"]),
        task_id=original(row["task_id"]),
        status=row["status"],
        dispatches=row["dispatches"],
        intended_at=row["intended_at"],
        result=None if row["result_json"] is None else json_value(row["result_json"]),
        ref=original(row["ref"]),
        request_id=original(row["request_id"]),
        finished_at=row["finished_at"],
        flagged=row["flagged"],
    )
