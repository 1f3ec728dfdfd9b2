"""What the rehearsal model makes of the messages that it is shown: a request, past calls with their results, notes.

It reads text, as any model does. Whatever is not there in the messages it does not know.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pydantic import JsonValue


@dataclass(frozen=True)
class Observed:
    """One past call and what came back: ``data`` from a service, or an ``error`` category with its message.

    ``position`` is where its result stands among the messages. ``readable`` is false where the data was left out
    or is no JSON.
    """

    position: int
    tool: str
    args: dict[str, JsonValue]
    evidence: str = ""
    data: JsonValue = None
    readable: bool = False
    error: str = ""
    message: str = ""


@dataclass(frozen=True)
class Note:
    """One note from the runtime: what kind, what it is about, its words and values."""

    position: int
    kind: str
    about: str
    message: str
    args: dict[str, JsonValue]


@dataclass(frozen=True)
class Reading:
    """Everything that the messages say."""

    goal: str
    inputs: dict[str, str]
    observed: list[Observed] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    length: int = 0

    def about(self, tool: str, **args: JsonValue) -> list[Observed]:
        """The past calls of this tool with these arguments, oldest first."""
        return [
            past
            for past in self.observed
            if past.tool == tool and all(past.args.get(name) == value for name, value in args.items())
        ]


def read_messages(messages: Sequence[BaseMessage]) -> Reading:
    """Read rendered messages; what is no JSON object is taken as plain words of the request."""
    goal, inputs = "", dict[str, str]()
    calls: dict[str, tuple[str, dict[str, JsonValue]]] = {}
    observed: list[Observed] = []
    notes: list[Note] = []
    for position, message in enumerate(messages):
        match message:
            case AIMessage():
                calls |= {call["id"] or "": (call["name"], call["args"]) for call in message.tool_calls}
            case ToolMessage() if message.tool_call_id in calls:
                tool, args = calls[message.tool_call_id]
                observed.append(_observed(position, tool, args, _object_in(str(message.content))))
            case HumanMessage():
                content = str(message.content)
                found = _object_in(content)
                if "note" in found:
                    notes.append(_note(position, found))
                elif not goal:
                    goal = _text(found.get("goal")) or content
                    inputs = {name: _text(value) for name, value in _object(found.get("inputs")).items()}
            case _:
                pass
    return Reading(goal=goal, inputs=inputs, observed=observed, notes=notes, length=len(messages))


def parsed(text: str) -> JsonValue:
    """The JSON value in a text, or None where it is none."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _observed(position: int, tool: str, args: dict[str, JsonValue], content: dict[str, JsonValue]) -> Observed:
    text = content.get("data")
    data = parsed(text) if isinstance(text, str) else None
    return Observed(
        position=position,
        tool=tool,
        args=args,
        evidence=_text(content.get("evidence")),
        data=data,
        readable=data is not None,
        error=_text(content.get("error")),
        message=_text(content.get("message")),
    )


def _note(position: int, content: dict[str, JsonValue]) -> Note:
    return Note(
        position=position,
        kind=_text(content.get("note")),
        about=_text(content.get("about")),
        message=_text(content.get("message")),
        args=_object(content.get("args")),
    )


def _object_in(content: str) -> dict[str, JsonValue]:
    """The JSON object that the content is, or that follows its label."""
    start = content.find("{")
    return _object(parsed(content[start:])) if start >= 0 else {}


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
