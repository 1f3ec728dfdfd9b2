"""LangGraph's Postgres checkpointer, reading only the classes that the state may hold.

Source: DESIGN §3 (strict allow-list: the default deserialiser executed a crafted blob), §7 (the saver).
"""

import asyncio
import hashlib
from functools import partial
from typing import Final

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer
from psycopg.rows import DictRow
from pydantic import ValidationError

from ..errors import Defect, Outage
from ..state import PERSISTED_TYPES, Value
from .database import Connection, Pool, connection
from .text import original, storable

SETUP_LOCK: Final = int.from_bytes(hashlib.sha256(b"agentic_loop.saver").digest()[:8], signed=True)
"""The advisory lock that makes starting processes set LangGraph's tables up in turn."""

_UNPACK_OPTIONS: Final = ormsgpack.OPT_NON_STR_KEYS
_SETUP_ATTEMPTS: Final = 600
_PAUSE_BETWEEN_ATTEMPTS_S: Final = 0.1

_TRY_SETUP_LOCK: Final = "SELECT pg_try_advisory_lock(%s) AS locked"
"""Asked again and again, because waiting inside a statement would block LangGraph's CREATE INDEX CONCURRENTLY."""

_SETUP_UNLOCK: Final = "SELECT pg_advisory_unlock(%s)"
"""Let the next process look."""

_TABLES_ARE_THERE: Final = "SELECT to_regclass('checkpoint_migrations') IS NOT NULL AS is_there"
"""Whether LangGraph's tables were ever set up here."""

_TABLES_VERSION: Final = "SELECT coalesce(max(v), -1) AS version FROM checkpoint_migrations"
"""How far LangGraph's own migrations have come."""


class StrictSerializer(JsonPlusSerializer):
    """Reads msgpack only, and makes no object of ours but those of ``PERSISTED_TYPES``, fully validated.

    A blob that names another class comes back as plain data, without importing anything; LangGraph's and LangChain's
    own value types stay readable.
    """

    def __init__(self) -> None:
        super().__init__(pickle_fallback=False, allowed_msgpack_modules=PERSISTED_TYPES)
        self._persisted: dict[tuple[str, str], type[Value]] = {
            (persisted.__module__, persisted.__name__): persisted for persisted in PERSISTED_TYPES
        }

    def with_msgpack_allowlist(self, extra_allowlist: object) -> "StrictSerializer":
        """This serializer: the list is closed, whatever a graph's schema mentions."""
        return self

    def loads_typed(self, data: tuple[str, bytes]) -> object:
        """The value that was stored.

        Raises:
            Defect: the blob is of a kind that this saver never writes, or its content is not a valid value.
        """
        kind, content = data
        match kind:
            case "null" | "bytes" | "bytearray":
                return super().loads_typed(data)
            case "msgpack":
                return self._unpacked(content)
            case _:
                raise Defect(
                    f"A checkpoint holds a value of kind {kind!r}, which is never read. Restore the database."
                )

    def _unpacked(self, content: bytes) -> object:
        # The unpacker forgets what its hook raised, therefore the hook leaves its reason here.
        reasons: list[Defect] = []
        try:
            return ormsgpack.unpackb(content, ext_hook=partial(self._revive, reasons), option=_UNPACK_OPTIONS)
        except ormsgpack.MsgpackDecodeError as error:
            unreadable = Defect(f"A checkpoint holds bytes that cannot be read: {error}. Restore the database.")
            raise (reasons[0] if reasons else unreadable) from error

    def _revive(self, reasons: list[Defect], code: int, content: bytes) -> object:
        """Turn an extension value into an object: ours strictly, all others as the library does."""
        if code == EXT_PYDANTIC_V2:
            named = ormsgpack.unpackb(content, ext_hook=partial(self._revive, reasons), option=_UNPACK_OPTIONS)
            match named:
                case [str(module), str(name), values, *_] if (module, name) in self._persisted:
                    return _validated(self._persisted[module, name], values, reasons)
        return self._unpack_ext_hook(code, content)


def _validated(persisted: type[Value], values: object, reasons: list[Defect]) -> Value:
    """The value as its class makes it; the library would pass over the validation where it fails."""
    try:
        return persisted.model_validate(values)
    except ValidationError as error:
        defect = Defect(
            f"A checkpoint holds a {persisted.__name__} that this version cannot read: {error}. "
            "Go on with the version that wrote it."
        )
        reasons.append(defect)
        raise defect from error


class LoopSaver(AsyncPostgresSaver):
    """LangGraph's saver, for texts that Postgres does not hold: it keeps plain channels as ``jsonb``, without NUL."""

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint."""
        escaped = checkpoint.copy()
        escaped["channel_values"] = {
            name: storable(value) if isinstance(value, str) else value
            for name, value in checkpoint["channel_values"].items()
        }
        return await super().aput(config, escaped, metadata, new_versions)

    async def _load_checkpoint_tuple(self, value: DictRow) -> CheckpointTuple:
        loaded = await super()._load_checkpoint_tuple(value)
        values = loaded.checkpoint["channel_values"]
        for name in [name for name, content in values.items() if isinstance(content, str)]:
            values[name] = original(values[name])
        return loaded


async def open_saver(pool: Pool) -> AsyncPostgresSaver:
    """A checkpointer on this pool, with strict deserialisation, whose tables exist.

    Any number of processes may call this at once.

    Raises:
        Outage: the database is away, or another process sets the tables up for longer than a minute.
    """
    async with connection(pool) as link:
        if not await _is_set_up(link):
            await _set_up(link)
    return LoopSaver(pool, serde=StrictSerializer())


async def _is_set_up(link: Connection) -> bool:
    row = await (await link.execute(_TABLES_ARE_THERE)).fetchone()
    if row is None or not row["is_there"]:
        return False
    row = await (await link.execute(_TABLES_VERSION)).fetchone()
    return row is not None and int(row["version"]) >= len(AsyncPostgresSaver.MIGRATIONS) - 1


async def _set_up(link: Connection) -> None:
    for _ in range(_SETUP_ATTEMPTS):
        row = await (await link.execute(_TRY_SETUP_LOCK, [SETUP_LOCK])).fetchone()
        if row is not None and row["locked"]:
            break
        await asyncio.sleep(_PAUSE_BETWEEN_ATTEMPTS_S)
    else:
        raise Outage("Another process has been setting up the checkpoint tables for a minute. Try again.")
    try:
        await AsyncPostgresSaver(link).setup()
    finally:
        await link.execute(_SETUP_UNLOCK, [SETUP_LOCK])
