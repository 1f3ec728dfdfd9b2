"""The journal of every step, append-only, in Postgres.

Source: DESIGN §3 (the append-only tables), §7 (the tail since the last boundary may be repeated).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Final

from psycopg.rows import DictRow
from pydantic import JsonValue

from ..records import JournalEntry
from ..state import CallFault
from .database import Pool, connection, transaction
from .payloads import keep_payloads, read_payload
from .text import json_text, storable

_APPEND_ENTRY: Final = """
    INSERT INTO agentic_loop.steps (task_id, version, call, attempt, step, kind, at, entry_json)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (task_id, version, call, attempt) DO NOTHING
"""
"""Add one entry, unless the same attempt has added it before."""

_LOAD_ENTRIES: Final = """
    WITH written AS (
        SELECT version, call, entry_json, min(call) OVER (
            PARTITION BY version ORDER BY sequence DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS lowest_call_written_later
        FROM agentic_loop.steps
        WHERE task_id = %s AND version <= %s
    )
    SELECT entry_json FROM written
    WHERE lowest_call_written_later IS NULL OR lowest_call_written_later > call
    ORDER BY version, call
"""
"""The entries of the newest run of each version: an entry is superseded once a later row of the same version has the
same or a lower call number, because a version's calls are written in order."""

_FIELDS: Final = tuple(field.name for field in fields(JournalEntry))


class PostgresJournal:
    """The journal in Postgres; implements the port ``Journal``.

    The calls of one version are written in ascending order. When a step runs again after a crash, what its first run
    wrote stays in the table, and ``load`` returns what its last run wrote, even where that made fewer calls.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def append(self, entries: Sequence[JournalEntry]) -> None:
        """Write entries in one transaction; the same attempt at the same (task, version, call) changes nothing.

        Attempts are told apart by request id, or by content where there is none.

        Raises:
            Outage: the database is away; nothing was written.
        """
        if not entries:
            return
        async with transaction(self._pool) as writer:
            for entry in sorted(entries, key=lambda entry: (entry.task_id, entry.version, entry.call)):
                await writer.execute(_APPEND_ENTRY, _columns(entry))

    async def load(self, task_id: str, version: int) -> list[JournalEntry]:
        """All entries of a task up to this version, in order of version and call.

        Raises:
            Outage: the database is away.
        """
        async with connection(self._pool) as reader:
            cursor = await reader.execute(_LOAD_ENTRIES, [storable(task_id), version])
            return [_entry(row) for row in await cursor.fetchall()]

    async def keep(self, digest: str, content: JsonValue) -> None:
        """Store a prompt or a raw reply once, by digest; what is already there stays.

        Raises:
            Outage: the database is away.
        """
        async with connection(self._pool) as writer:
            await keep_payloads(writer, {digest: content})

    async def recall(self, digest: str) -> JsonValue:
        """A stored prompt or raw reply.

        Raises:
            KeyError: nothing is stored under this digest.
            Outage: the database is away.
        """
        async with connection(self._pool) as reader:
            return await read_payload(reader, digest)


def _columns(entry: JournalEntry) -> list[object]:
    text = _entry_text(entry)
    return [
        storable(entry.task_id),
        entry.version,
        entry.call,
        storable(entry.request_id) or hashlib.sha256(text.encode()).hexdigest(),
        entry.step,
        entry.kind,
        entry.at,
        text,
    ]


def _entry_text(entry: JournalEntry) -> str:
    values: dict[str, JsonValue] = {name: getattr(entry, name) for name in _FIELDS}
    values["at"] = entry.at.isoformat()
    values["args"] = dict(entry.args)
    values["policy_ids"] = list(entry.policy_ids)
    values["fault"] = entry.fault.model_dump() if entry.fault else None
    return json_text(values)


def _entry(row: DictRow) -> JournalEntry:
    # Fields that a newer version of the code wrote are passed over; fields it did not know have their defaults.
    values = {name: value for name, value in json.loads(row["entry_json"]).items() if name in _FIELDS}
    values["at"] = datetime.fromisoformat(values["at"])
    values["policy_ids"] = tuple(values.get("policy_ids", ()))
    values["fault"] = CallFault.model_validate(values["fault"]) if values.get("fault") else None
    return JournalEntry(**values)
