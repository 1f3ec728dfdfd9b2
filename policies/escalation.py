"""The escalation packet: everything that a person needs to go on from a task that did not succeed.

Pure and deterministic: the same records give the same packet, of a bounded size. Nobody has to read a model's prose
to use it; what a model, a customer or a service wrote is in it as quoted data.

Source: DESIGN §9 (endings and escalation).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pydantic import JsonValue

from agentic_loop.graph.records import ApprovalRow, EvidenceRecord, Intent, JournalEntry
from agentic_loop.graph.state import Ending, Limits, OutstandingAction, Task, Usage

from .safe_options import safe_options

__all__ = ["JsonValue", "as_markdown", "packet"]

MAX_ROWS = 40
"""How many rows of one kind a packet shows; the newest stay, and the number of those left out is said."""

MAX_ERRORS = 5
MAX_TEXT_CHARS = 1_000
MAX_PREVIEW_CHARS = 240

_Line: TypeAlias = Callable[[Mapping[str, JsonValue]], str]


def packet(
    *,
    task: Task,
    ending: Ending,
    step_count: int,
    usage: Usage,
    limits: Limits,
    evidence: Sequence[EvidenceRecord],
    entries: Sequence[JournalEntry],
    outstanding: Sequence[OutstandingAction],
    intents: Sequence[Intent],
    approvals: Sequence[ApprovalRow],
    missing: str,
    versions: Mapping[str, str],
) -> dict[str, JsonValue]:
    """The packet as JSON data.

    ``missing`` is what completion still lacks, in its own words. Effects that need a person's look come first, and
    ``options`` holds what may be done, each with its exact command. Units: micro-USD, seconds, tokens.
    """
    unsettled = [intent for intent in intents if _needs_review(intent)]
    options = safe_options(task.task_id, ending.reason, limits, [_clip(i.key) for i in unsettled[:MAX_ERRORS]])
    return {
        "task_id": task.task_id,
        "trace_id": task.trace_id,
        "loop": task.loop,
        "tenant": task.tenant,
        "requester": task.requester.id,
        "started_at": task.started_at.isoformat(),
        "goal": _clip(task.goal),
        "inputs": {_clip(name): _clip(value) for name, value in sorted(task.inputs.items())[:MAX_ROWS]},
        "status": ending.status,
        "reason": ending.reason,
        "detail": _clip(ending.detail),
        "effects": _shown([_effect(i) for i in sorted(intents, key=lambda i: not _needs_review(i))], newest=False),
        "not_sent": _shown(_never_begun(outstanding, intents)),
        "completed_work": _shown([_work(record) for record in evidence]),
        "missing_evidence": _clip(missing),
        "attempted_actions": _shown(_attempts(entries, evidence)),
        "last_errors": [_error(entry) for entry in entries if entry.fault is not None][-MAX_ERRORS:],
        "approvals": _shown([_approval(row) for row in approvals]),
        "spent": _spent(step_count, usage),
        "remaining": _remaining(step_count, usage, limits),
        "versions": {_clip(name): _clip(value) for name, value in sorted(versions.items())[:MAX_ROWS]},
        "contract_digest": task.contract_digest,
        "options": [{"option": one.option, "command": one.command, "when": one.when} for one in options],
    }


def _needs_review(intent: Intent) -> bool:
    """Whether nobody knows yet what became of an effect, or somebody said that a person must look."""
    return intent.flagged or intent.status in ("unknown", "intended")


def _effect(intent: Intent) -> JsonValue:
    return {
        "needs_review": _needs_review(intent),
        "status": intent.status,
        "tool": intent.tool,
        "arguments": _preview(dict(intent.args)),
        "key": _clip(intent.key),
        "dispatches": intent.dispatches,
        "request_id": intent.request_id,
        "intended_at": intent.intended_at.isoformat(),
        "finished_at": None if intent.finished_at is None else intent.finished_at.isoformat(),
        "result": "" if intent.result is None else _preview(intent.result),
    }


def _never_begun(outstanding: Sequence[OutstandingAction], intents: Sequence[Intent]) -> list[JsonValue]:
    """Actions that were proposed or approved, and of which nothing was sent."""
    begun = {intent.key for intent in intents}
    return [
        {"action": action.kind, "key": _clip(action.key), "status": action.status}
        for action in outstanding
        if action.key not in begun
    ]


def _work(record: EvidenceRecord) -> JsonValue:
    return {
        "evidence_id": record.id,
        "tool": record.tool,
        "source": record.source,
        "ref": _clip(record.ref),
        "request_id": record.request_id,
        "fetched_at": record.fetched_at.isoformat(),
        "preview": _preview(record.payload),
    }


def _attempts(entries: Sequence[JournalEntry], evidence: Sequence[EvidenceRecord]) -> list[JsonValue]:
    payloads = {record.id: record.payload for record in evidence}
    return [
        {
            "step": entry.step,
            "by": entry.source,
            "action": entry.tool or entry.kind,
            "arguments": _preview(dict(entry.args)) if entry.args else _clip(entry.arguments_json, MAX_PREVIEW_CHARS),
            "validation": _clip(entry.validation, MAX_PREVIEW_CHARS),
            "authorisation": _clip(entry.authorisation, MAX_PREVIEW_CHARS),
            "outcome": entry.outcome or "",
            "observation": _observation(entry, payloads),
            "request_id": entry.request_id,
        }
        for entry in entries
        if entry.kind in ("tool", "control", "invalid")
    ]


def _observation(entry: JournalEntry, payloads: Mapping[str, JsonValue]) -> str:
    if entry.fault is not None:
        return _clip(f"{entry.fault.category}: {entry.fault.message}", MAX_PREVIEW_CHARS)
    if entry.evidence_id is not None and entry.evidence_id in payloads:
        return f"{entry.evidence_id}: {_preview(payloads[entry.evidence_id])}"
    return _clip(entry.text, MAX_PREVIEW_CHARS)


def _error(entry: JournalEntry) -> JsonValue:
    fault = entry.fault
    return {
        "step": entry.step,
        "action": entry.tool or entry.kind,
        "category": fault.category if fault is not None else "",
        "message": _clip(fault.message) if fault is not None else "",
        "request_id": entry.request_id,
    }


def _approval(row: ApprovalRow) -> JsonValue:
    return {
        "id": row.id,
        "action": row.tool,
        "arguments": _preview(dict(row.args)),
        "required_role": row.required_role,
        "decision": row.decision or "none",
        "decided_by": row.decided_by,
        "message": _clip(row.message),
        "expires_at": row.expires_at.isoformat(),
        "used_for": row.consumed_by or "",
    }


def _spent(step_count: int, usage: Usage) -> dict[str, JsonValue]:
    return {
        "steps": step_count,
        "tokens": usage.tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "billed_cost_micro_usd": usage.cost_micro_usd,
        "estimated_cost_micro_usd": usage.estimated_cost_micro_usd,
        "active_s": usage.active_ms / 1_000,
        "suspended_s": usage.suspended_ms / 1_000,
        "inference_retries": usage.inference_retries,
        "read_retries": usage.read_retries,
    }


def _remaining(step_count: int, usage: Usage, limits: Limits) -> dict[str, JsonValue]:
    return {
        "steps": max(0, limits.max_steps - step_count),
        "tokens": max(0, limits.max_tokens - usage.tokens),
        "cost_micro_usd": max(0, limits.max_cost_micro_usd - usage.cost_micro_usd),
        "active_s": max(0.0, limits.max_active_s - usage.active_ms / 1_000),
    }


def _shown(rows: list[JsonValue], *, newest: bool = True) -> dict[str, JsonValue]:
    """A bounded list that says how much it leaves out: the oldest rows, or the last ones."""
    kept = rows[-MAX_ROWS:] if newest else rows[:MAX_ROWS]
    return {"rows": kept, "left_out": len(rows) - len(kept)}


def _preview(payload: JsonValue) -> str:
    return _clip(json.dumps(payload, ensure_ascii=False, sort_keys=True), MAX_PREVIEW_CHARS)


def _clip(text: str, limit_chars: int = MAX_TEXT_CHARS) -> str:
    return text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"


# --- for people -------------------------------------------------------------------------------------------------


def as_markdown(packet: Mapping[str, JsonValue]) -> str:
    """The packet as Markdown; everything that came from outside is in code spans that it cannot close."""
    blocks = [
        f"# {_plain(packet.get('status'))} ({_plain(packet.get('reason'))}): task {_code(packet.get('task_id'))}",
        _facts(packet, ("detail", "goal", "inputs", "loop", "tenant", "requester", "started_at", "trace_id")),
        _section("What may be done now", _options(packet)),
        _section("Effects", _listed(packet, "effects", _effect_line)),
        _section("Actions that were not sent", _listed(packet, "not_sent", _row_line)),
        _section("Missing evidence", _code(packet.get("missing_evidence"))),
        _section("Completed work", _listed(packet, "completed_work", _row_line)),
        _section("Attempted actions", _listed(packet, "attempted_actions", _row_line)),
        _section("Last errors", "\n".join(_row_line(row) for row in _rows(packet.get("last_errors")))),
        _section("Approvals", _listed(packet, "approvals", _row_line)),
        _section("Spent", _row_line(_members(packet.get("spent")))),
        _section("Remaining", _row_line(_members(packet.get("remaining")))),
        _section("Versions", _row_line(_members(packet.get("versions")))),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body or 'None.'}"


def _facts(packet: Mapping[str, JsonValue], names: Sequence[str]) -> str:
    return "\n".join(f"- {name.replace('_', ' ')}: {_code(packet[name])}" for name in names if packet.get(name))


def _options(packet: Mapping[str, JsonValue]) -> str:
    lines = []
    for row in _rows(packet.get("options")):
        lines += [f"- **{_plain(row.get('option'))}**: {_code(row.get('command'))}", f"  {_code(row.get('when'))}"]
    return "\n".join(lines)


def _effect_line(row: Mapping[str, JsonValue]) -> str:
    mark = "**NEEDS REVIEW** " if row.get("needs_review") is True else ""
    return f"- {mark}{_row_line({k: v for k, v in row.items() if k != 'needs_review'})[2:]}"


def _row_line(row: Mapping[str, JsonValue]) -> str:
    parts = [
        f"{_plain(name).replace('_', ' ')}: {_code(value)}" for name, value in row.items() if value not in ("", None)
    ]
    return "- " + "; ".join(parts) if parts else ""


def _listed(packet: Mapping[str, JsonValue], name: str, line: _Line) -> str:
    shown = _members(packet.get(name))
    lines = [line(row) for row in _rows(shown.get("rows"))]
    left_out = shown.get("left_out")
    if isinstance(left_out, int) and left_out > 0:
        lines.append(f"- and {left_out} more, in the trace of the task")
    return "\n".join(lines)


def _members(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _rows(value: JsonValue) -> list[dict[str, JsonValue]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _plain(value: JsonValue) -> str:
    """A word of our own vocabulary; anything else would be a way to write Markdown."""
    return "".join(letter for letter in str(value) if letter.isalnum() or letter in "_ -.")


def _code(value: JsonValue) -> str:
    """A value as a code span that its content cannot close, on one line and without control characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    if not line:
        return "none"
    longest = max((len(run) for run in "".join(c if c == "`" else " " for c in line).split()), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"
