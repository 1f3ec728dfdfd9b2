"""The trace of a task as a table for people, a row for each call of each step, and as JSON.

Source: DESIGN §3 (the journal), the fields that an auditor asks for.
"""

import re
from collections.abc import Sequence
from dataclasses import fields

from pydantic import JsonValue
from rich import box
from rich.table import Table
from rich.text import Text

from agentic_loop.graph.records import JournalEntry

from .terminal_view import clip, plain, shown_arguments, usd, wrapped

MAX_PROPOSAL_CHARS = 160
MAX_WORDS_CHARS = 240


def trace_json(entries: Sequence[JournalEntry]) -> list[JsonValue]:
    """The journal entries as JSON data with all their fields."""
    return [_entry_json(entry) for entry in entries]


def _entry_json(entry: JournalEntry) -> JsonValue:
    values: dict[str, JsonValue] = {field.name: getattr(entry, field.name) for field in fields(JournalEntry)}
    values["at"] = entry.at.isoformat()
    values["args"] = dict(entry.args)
    values["policy_ids"] = list(entry.policy_ids)
    values["fault"] = entry.fault.model_dump(mode="json") if entry.fault is not None else None
    return values


def trace_table(entries: Sequence[JournalEntry], width: int) -> Table:
    """One row per call: what was proposed, what every gate said, what came back, and what it cost.

    Related columns share one, so that the table fits a hundred columns (80 if need be); with more room it spreads.
    Words are broken only where they are longer than their column, so that ids can be read and found.
    """
    widths = _widths(width)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, leading=1)
    headings = (
        "ver\nstep",
        "proposal",
        "validation\nauthorisation",
        "request id\nobservation",
        "state delta",
        "tokens\ncost\ntime",
    )
    for heading, column_width in zip(headings, widths, strict=True):
        table.add_column(heading, width=column_width, no_wrap=True, overflow="fold")
    rows = [_cells(entry) for entry in entries]
    for row in [*rows, ["all", "", "", "", "", _total(entries)]]:
        table.add_row(*(Text(wrapped(cell, cells)) for cell, cells in zip(row, widths, strict=True)))
    return table


_NUMBERS = (4, 12)
"""The widths of the columns of numbers: the first and the last."""

_BETWEEN = 12
"""What the spaces between and around six columns take."""

_SHARES = (35, 22, 22, 21)
"""How the columns of words share the rest, in hundredths."""

_NARROWEST = (12, 13, 16, 11)
"""What the columns of words need at least; an id has 16 characters."""


def _widths(width: int) -> list[int]:
    rest = width - sum(_NUMBERS) - _BETWEEN - sum(_NARROWEST)
    words = [least + max(0, rest) * share // 100 for least, share in zip(_NARROWEST, _SHARES, strict=True)]
    return [_NUMBERS[0], *words, _NUMBERS[1]]


def _cells(entry: JournalEntry) -> list[str]:
    return [
        f"v{entry.version}\n{entry.step}",
        _proposal(entry),
        _lines(clip(entry.validation, MAX_WORDS_CHARS), clip(entry.authorisation, MAX_WORDS_CHARS)),
        _lines(plain(entry.request_id), _observation(entry)),
        _delta(entry),
        _spent(entry.input_tokens, entry.output_tokens, entry.cost_micro_usd, entry.model_ms, entry.tool_ms),
    ]


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _delta(entry: JournalEntry) -> str:
    """The delta with room to break the line between two statuses, which are long words."""
    return re.sub("->(?=[A-Z])", "→ ", plain(entry.state_delta)).replace("->", "→")


def _proposal(entry: JournalEntry) -> str:
    match entry.kind:
        case "tool" | "invalid":
            arguments = shown_arguments(entry.args) if entry.args else entry.arguments_json
            return _lines(_by(entry), f"{clip(entry.tool, 64)} {clip(arguments, MAX_PROPOSAL_CHARS)}".strip())
        case "approval":
            return _lines(_by(entry), f"{clip(entry.tool, 64)} {clip(shown_arguments(entry.args), 160)}")
        case "control":
            return _lines(_by(entry), f"{clip(entry.tool, 64)} {clip(entry.text, MAX_PROPOSAL_CHARS)}")
        case "feedback" | "ending" | "resumed":
            return f"({entry.kind})"


def _by(entry: JournalEntry) -> str:
    return "" if entry.source == "model" else f"({'code' if entry.source == 'workflow' else entry.source})"


def _observation(entry: JournalEntry) -> str:
    if entry.fault is not None:
        return f"{entry.fault.category}: {clip(entry.fault.message, MAX_WORDS_CHARS)}"
    if entry.evidence_id is not None:
        return entry.evidence_id
    if entry.kind in ("approval", "feedback", "ending", "resumed"):
        return clip(entry.text, MAX_WORDS_CHARS)
    return entry.outcome or ""


def _spent(input_tokens: int, output_tokens: int, cost_micro_usd: int, model_ms: int, tool_ms: int) -> str:
    tokens = f"{input_tokens:,}+{output_tokens:,}" if input_tokens or output_tokens else ""
    cost = usd(cost_micro_usd) if cost_micro_usd else ""
    model = f"model {model_ms:,} ms" if model_ms else ""
    tool = f"tool {tool_ms:,} ms" if tool_ms else ""
    return _lines(tokens, cost, model, tool)


def _total(entries: Sequence[JournalEntry]) -> str:
    return _spent(
        sum(entry.input_tokens for entry in entries),
        sum(entry.output_tokens for entry in entries),
        sum(entry.cost_micro_usd for entry in entries),
        sum(entry.model_ms for entry in entries),
        sum(entry.tool_ms for entry in entries),
    )
