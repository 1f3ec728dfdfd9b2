"""Fingerprints: SHA-256 over canonical JSON, for arguments, actions, observations and the state of progress.

Equal data has equal fingerprints whatever the order of its keys; ``2`` and ``2.0`` are one number in JSON.

Source: DESIGN §5 (action hash), §8 (fingerprints); RFC 8785.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

import rfc8785
from pydantic import JsonValue

from agentic_loop.graph.state import OutstandingAction, Phase, Status

_LARGEST_EXACT_INTEGER = 2**53 - 1
_DEEPEST_NESTING = 64
# Marks what RFC 8785 cannot express. A key of real data that begins with it gets it once more, so that no data can
# imitate a mark.
_MARK = "\x00"


def canonical_json(value: JsonValue) -> str:
    """The canonical JSON of any JSON value, as RFC 8785 defines it; never raises.

    Services send what RFC 8785 cannot encode, and their observations need fingerprints as well. An integer beyond
    2**53 - 1, a float that is not finite, a text with lone surrogates, and nesting below level 64 are rendered as
    marked objects whose key begins with U+0000; no real data collides with them, and no argument reader takes them.

    Source: DESIGN §8.
    """
    encodable = _encodable(value) if _fits(value) else {f"{_MARK}flat": _flattened(value)}
    canonical: bytes = rfc8785.dumps(encodable)
    return canonical.decode("utf-8")


def digest(value: JsonValue) -> str:
    """SHA-256 (64 hex digits) of the canonical JSON of any JSON value; never raises.

    Source: DESIGN §8.
    """
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()


def args_hash(tool: str, args: Mapping[str, JsonValue]) -> str:
    """The fingerprint of one call: the tool and the normal form of its arguments.

    Source: DESIGN §8 (action fingerprint).
    """
    return digest({"tool": tool, "args": dict(args)})


def action_hash(tool: str, args: Mapping[str, JsonValue], idempotency_key: str | None) -> str:
    """What an approval is bound to: the tool, the normal form of its arguments and the idempotency key.

    Source: DESIGN §5.
    """
    return digest({"tool": tool, "args": dict(args), "idempotency_key": idempotency_key})


def state_fingerprint(
    *, evidence_digests: Sequence[str], outstanding: Sequence[OutstandingAction], status: Status, phase: Phase
) -> str:
    """The fingerprint of what counts as progress; step and tokens always change and are left out.

    ``evidence_digests`` are the payload digests of all evidence of the task (not only of the window that the state
    carries). They count as a set: the same payload once more is no progress.

    Source: DESIGN §8.
    """
    actions: list[JsonValue] = [
        [action.kind, action.key, action.action_hash, action.status]
        for action in sorted(outstanding, key=lambda one: (one.kind, one.key, one.action_hash, one.status))
    ]
    evidence: list[JsonValue] = [*sorted(set(evidence_digests))]
    return digest({"evidence": evidence, "outstanding": actions, "status": status, "phase": phase})


def _encodable(value: JsonValue) -> JsonValue:
    """The value with everything that RFC 8785 cannot encode replaced by a marked string."""
    match value:
        case dict():
            return {_encodable_key(key): _encodable(item) for key, item in value.items()}
        case list():
            return [_encodable(item) for item in value]
        case _:
            return _encodable_scalar(value)


def _encodable_scalar(value: JsonValue) -> JsonValue:
    match value:
        case bool() | None:
            return value
        case int() if abs(value) > _LARGEST_EXACT_INTEGER:
            # Hexadecimal, because Python refuses to write very long integers in decimal digits.
            return {f"{_MARK}int": hex(value)}
        case float() if not math.isfinite(value):
            return {f"{_MARK}float": repr(value)}
        case str() if not _is_unicode(value):
            return {f"{_MARK}text": _surrogate_bytes(value)}
        case _:
            return value


def _encodable_key(key: str) -> str:
    if not _is_unicode(key):
        return f"{_MARK}key:{_surrogate_bytes(key)}"
    return _MARK + key if key.startswith(_MARK) else key


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _surrogate_bytes(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").hex()


def _fits(value: JsonValue) -> bool:
    """Whether nesting stays within what may be walked by recursion; found without recursion."""
    level: list[JsonValue] = [value]
    for _ in range(_DEEPEST_NESTING):
        below: list[JsonValue] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return True
        level = below
    return False


def _flattened(value: JsonValue) -> list[JsonValue]:
    """A deeply nested value as the flat sequence of its brackets, keys and scalars, keys in sorted order."""
    events: list[JsonValue] = []
    # Work still to do, last first: an event to write down as it is, or a value to take apart.
    todo: list[tuple[bool, JsonValue]] = [(False, value)]
    while todo:
        is_event, item = todo.pop()
        if is_event:
            events.append(item)
        elif isinstance(item, list):
            events.append("[")
            todo.append((True, "]"))
            todo.extend((False, part) for part in reversed(item))
        elif isinstance(item, dict):
            events.append("{")
            todo.append((True, "}"))
            for key in sorted(item, reverse=True):
                todo.append((False, item[key]))
                todo.append((True, {"key": _encodable_key(key)}))
        else:
            events.append({"value": _encodable_scalar(item)})
    return events
