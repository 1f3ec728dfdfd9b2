"""Payloads, prompts and raw replies: each stored once, under its digest.

Source: DESIGN §3 (payload once, by digest), §8 (payloads are referenced).
"""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from .database import Connection
from .text import json_text, json_value, storable

_KEEP_PAYLOAD: Final = """
    INSERT INTO agentic_loop.payloads (digest, content_json, size_bytes)
    VALUES (%s, %s, %s)
    ON CONFLICT (digest) DO NOTHING
"""
"""Store content under its digest, unless it is there."""

_READ_PAYLOAD: Final = "SELECT content_json FROM agentic_loop.payloads WHERE digest = %s"
"""The content under one digest."""


async def keep_payloads(writer: Connection, contents: Mapping[str, JsonValue]) -> None:
    """Store each content under its digest, once, as part of the caller's transaction.

    In order of digest, so that two transactions with the same payloads cannot wait for each other.
    """
    for digest in sorted(contents):
        text = json_text(contents[digest])
        await writer.execute(_KEEP_PAYLOAD, [storable(digest), text, len(text.encode())])


async def read_payload(reader: Connection, digest: str) -> JsonValue:
    """The content under this digest.

    Raises:
        KeyError: nothing is stored under it.
    """
    row = await (await reader.execute(_READ_PAYLOAD, [storable(digest)])).fetchone()
    if row is None:
        raise KeyError(digest)
    return json_value(row["content_json"])
