"""How text and JSON are written into Postgres so that they come back exactly as they were.

Postgres text holds neither NUL nor a lone surrogate, yet a model may write either. Such text is escaped; all other
text is stored as it is, so that the tables stay readable.
"""

import json
import re
from collections.abc import Mapping

from pydantic import JsonValue

_ESCAPE = "\x10"  # Data Link Escape: nobody writes it, so ordinary text is never changed.
_UNSTORABLE = re.compile("[\x00\x10\ud800-\udfff]")
_ESCAPED = re.compile("\x10([0-9a-f]{4})")


def storable(text: str) -> str:
    """The text with NUL, lone surrogates and the escape itself written as escape plus four hex digits."""
    return _UNSTORABLE.sub(lambda found: f"{_ESCAPE}{ord(found.group()):04x}", text)


def original(stored: str) -> str:
    """The text that :func:`storable` was given."""
    return _ESCAPED.sub(lambda found: chr(int(found.group(1), 16)), stored)


def storable_or_none(text: str | None) -> str | None:
    """Like :func:`storable`, for a column that may be empty."""
    return None if text is None else storable(text)


def original_or_none(stored: str | None) -> str | None:
    """Like :func:`original`, for a column that may be empty."""
    return None if stored is None else original(stored)


def json_text(value: JsonValue) -> str:
    """The value as compact JSON that reads back equal: integers stay integers, key order stays."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no bytes of its own in UTF-8, but it has a JSON escape.
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text


def json_value(text: str) -> JsonValue:
    """The value that :func:`json_text` was given."""
    value: JsonValue = json.loads(text)
    return value


def json_object(text: str) -> dict[str, JsonValue]:
    """The object that was stored with :func:`object_text`."""
    value: dict[str, JsonValue] = json.loads(text)
    return value


def object_text(value: Mapping[str, JsonValue]) -> str:
    """A mapping as compact JSON."""
    return json_text(dict(value))


def strings(text: str) -> tuple[str, ...]:
    """The strings that were stored as a JSON list."""
    values: list[str] = json.loads(text)
    return tuple(values)
