"""The evidence of all tasks, append-only, in Postgres.

Source: DESIGN §3 (evidence is append-only), §8 (payloads are stored once and referenced).
"""

from collections.abc import Sequence
from typing import Final

from psycopg.rows import DictRow

from agentic_loop.policies.fingerprints import digest

from ..errors import Defect
from ..records import EvidenceRecord
from .database import Pool, connection, transaction
from .payloads import keep_payloads
from .text import json_object, json_value, object_text, original, storable

_APPEND_EVIDENCE: Final = """
    INSERT INTO agentic_loop.evidence (
        task_id, evidence_id, ordinal, request_id, step, tool, args_json, fetched_at, source, ref,
        payload_digest, size_bytes
    )
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (task_id, evidence_id, request_id) DO NOTHING
"""
"""Add one record, unless the same attempt has added it before."""

_LOAD_EVIDENCE: Final = """
    SELECT DISTINCT ON (evidence.ordinal) evidence.*, payloads.content_json
    FROM agentic_loop.evidence JOIN agentic_loop.payloads ON payloads.digest = evidence.payload_digest
    WHERE evidence.task_id = %s AND evidence.ordinal <= %s
    ORDER BY evidence.ordinal, evidence.sequence DESC
"""
"""The newest record of each ordinal up to a bound, with its payload."""


class PostgresEvidence:
    """The evidence store in Postgres; implements the port ``EvidenceStore``.

    A step that runs again after a crash may append a second record under the same evidence id, with a request id of
    its own. Both stay, and the newer one counts.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def append(self, task_id: str, records: Sequence[EvidenceRecord]) -> None:
        """Store records in one transaction; storing the same record again changes nothing.

        Raises:
            Outage: the database is away; nothing was stored.
        """
        if not records:
            return
        async with transaction(self._pool) as writer:
            await keep_payloads(writer, {record.payload_digest: record.payload for record in records})
            for record in records:
                await writer.execute(_APPEND_EVIDENCE, _columns(task_id, record))

    async def load(self, task_id: str, count: int) -> list[EvidenceRecord]:
        """The first ``count`` pieces of evidence of a task, oldest first.

        Raises:
            Defect: a stored payload does not have the digest that it is stored under.
            Outage: the database is away.
        """
        async with connection(self._pool) as reader:
            cursor = await reader.execute(_LOAD_EVIDENCE, [storable(task_id), count])
            records = [_record(row) for row in await cursor.fetchall()]
        for record in records:
            if digest(record.payload) != record.payload_digest:
                raise Defect(
                    f"The payload of evidence {record.id} of task {task_id} is not what was recorded: its digest "
                    f"is no longer {record.payload_digest}. Do not act on it; restore the database."
                )
        return records


def _columns(task_id: str, record: EvidenceRecord) -> list[object]:
    return [
        storable(task_id),
        storable(record.id),
        record.ordinal,
        storable(record.request_id),
        record.step,
        storable(record.tool),
        object_text(record.args),
        record.fetched_at,
        storable(record.source),
        storable(record.ref),
        storable(record.payload_digest),
        record.size_bytes,
    ]


def _record(row: DictRow) -> EvidenceRecord:
    return EvidenceRecord(
        id=original(row["evidence_id"]),
        ordinal=row["ordinal"],
        step=row["step"],
        tool=original(row["tool"]),
        args=json_object(row["args_json"]),
        request_id=original(row["request_id"]),
        fetched_at=row["fetched_at"],
        source=original(row["source"]),
        ref=original(row["ref"]),
        payload=json_value(row["content_json"]),
        payload_digest=original(row["payload_digest"]),
        size_bytes=row["size_bytes"],
    )
