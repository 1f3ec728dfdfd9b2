"""Brings the tables up to date: forward only, all or nothing, safe when many processes start at once.

Migrations are the numbered ``.sql`` files beside this module, ``NNNN_name.sql``, without gaps.

Source: DESIGN §7 (one database).
"""

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from typing import Final

from psycopg.sql import SQL

from ..errors import Defect, Misuse
from .database import Connection, Pool, connection, transaction

_FILE_NAME: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

MIGRATION_LOCK: Final = int.from_bytes(hashlib.sha256(b"agentic_loop.migrate").digest()[:8], signed=True)
"""The advisory lock that makes starting processes take turns."""

_TAKE_TURNS: Final = "SELECT pg_advisory_xact_lock(%s)"
"""Wait until no other process migrates; given back at the end of the transaction."""

_WAIT_LONGER: Final = "SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '120s'"
"""Waiting for another process's migration may take longer than any ordinary lock."""

_SCHEMA_IS_THERE: Final = "SELECT to_regclass('agentic_loop.schema_version') IS NOT NULL AS is_there"
"""Whether any migration has ever run here."""

_CREATE_SCHEMA: Final = """
    CREATE SCHEMA IF NOT EXISTS agentic_loop;
    CREATE TABLE IF NOT EXISTS agentic_loop.schema_version (
        version integer PRIMARY KEY,
        name text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
"""
"""The schema and the record of the migrations that ran."""

_PRESENT_VERSION: Final = "SELECT coalesce(max(version), 0) AS version FROM agentic_loop.schema_version"
"""The number of the newest migration that ran."""

_RECORD_VERSION: Final = "INSERT INTO agentic_loop.schema_version (version, name) VALUES (%s, %s)"
"""Note that a migration ran."""


@dataclass(frozen=True)
class Migration:
    """One numbered step of the schema: its number, its name and its SQL."""

    number: int
    name: str
    statements: str


def migrations() -> list[Migration]:
    """All migrations that this version of the code knows, in order.

    Raises:
        Defect: two files share a number, or a number is missing.
    """
    found = []
    for file in resources.files(f"{__package__}.migrations").iterdir():
        if name := _FILE_NAME.fullmatch(file.name):
            found.append(Migration(int(name[1]), name[2], file.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise Defect(f"The migrations are not numbered 1 to {len(found)} without gaps or doubles.")
    return found


async def migrate(pool: Pool) -> int:
    """Apply every pending migration in one transaction and return the schema's version.

    Raises:
        Misuse: the database was migrated by a newer version of this code.
        Outage: the database is away, or another process migrates for longer than a minute.
    """
    known = migrations()
    async with connection(pool) as reader:
        if await _version(reader, newest_known=len(known)) == len(known):
            return len(known)
    async with transaction(pool) as writer:
        await writer.execute(_WAIT_LONGER, prepare=False)
        await writer.execute(_TAKE_TURNS, [MIGRATION_LOCK])
        await writer.execute(_CREATE_SCHEMA, prepare=False)
        present = await _version(writer, newest_known=len(known))
        for migration in known[present:]:
            await writer.execute(SQL(migration.statements), prepare=False)
            await writer.execute(_RECORD_VERSION, [migration.number, migration.name])
    return len(known)


async def _version(reader: Connection, *, newest_known: int) -> int:
    row = await (await reader.execute(_SCHEMA_IS_THERE)).fetchone()
    if row is None or not row["is_there"]:
        return 0
    row = await (await reader.execute(_PRESENT_VERSION)).fetchone()
    version = int(row["version"]) if row else 0
    if version > newest_known:
        raise Misuse(
            f"The database has schema version {version}, and this version of agentic-loop knows only {newest_known}. "
            "Install the newer agentic-loop, or point DATABASE_URL at another database."
        )
    return version
