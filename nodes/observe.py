"""Observe: load or begin the task, and find out where it stands before anything else happens."""

import platform
import re
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version as installed_version

from pydantic import JsonValue, ValidationError

from agentic_loop.graph.definition import NodeContext
from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import EvidenceRecord, Intent, JournalEntry
from agentic_loop.graph.state import (
    EVIDENCE_WINDOW,
    TERMINAL,
    Limits,
    LoopState,
    Principal,
    Progress,
    Resumption,
    Task,
    Usage,
)
from agentic_loop.policies import authorisation, recording, steering

from .request_approval import NOTICE_TOOL

MAX_INPUTS = 32
"""How many inputs a task may be started with."""

_INPUT_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

MAX_INHERITED = 500
"""How much evidence a task takes over from the one that it revises."""

MAX_INPUT_CHARS = 4_000
"""How long a goal or one input may be."""


async def observe(state: LoopState, context: NodeContext) -> LoopState:
    """Begin a new task, resume an ended one on request, or find where a running one has to continue.

    Reads: everything. Writes: task, status, version, limits, usage, phase, next. Effects: registers the task.

    Raises:
        Misuse: no goal, inputs of the wrong shape, or a resumption that is not permitted.

    Source: DESIGN §2 and §7 (an open intent is reconciled first; new input never discards an approval).
    """
    if "task" not in state:
        return await _begin(state, context)
    if state.get("resumption") and state["status"] in TERMINAL:
        return await _resume(state, context)
    intents = await open_effects(context)
    now = context.now()
    wake_at = state.get("wake_at")
    next_route = steering.after_observe(
        status=state["status"], intents=intents, approval=state.get("approval"), wake_at=wake_at, now=now
    )
    waking = wake_at is not None and now >= wake_at
    return {"next": next_route, "resumption": None, "wake_at": None if waking else wake_at}


async def _begin(state: LoopState, context: NodeContext) -> LoopState:
    contract = context.loop.contract
    now = context.now()
    requester = context.ports.identity.principal("start")
    if requester is None:
        raise Misuse(
            "nobody is authenticated: start the task as somebody (acting_as(...) in an app, --as on the command "
            "line, authentication or AGENTIC_LOOP_DEVELOPMENT_IDENTITY on a server)"
        )
    task = Task(
        task_id=context.task_id,
        trace_id=context.ports.ids.trace_id(),
        loop=contract.name,
        goal=_checked_goal(state.get("goal") or contract.goal),
        inputs=_checked_inputs(state.get("inputs") or {}),
        tenant=requester.tenant,
        requester=requester,
        contract_digest=contract.digest,
        versions={**versions(), **context.ports.versions, "model": context.ports.model.name},
        started_at=now,
    )
    revised = state.get("revises") or ""
    inherited = await _inherited(revised, requester, context)
    await context.ports.tasks.register(task, "RUNNING", now)
    if revised:
        await context.ports.evidence.append(task.task_id, inherited)
        await context.ports.journal.append([_inherited_entry(task, record, now) for record in inherited])
        await context.ports.tasks.set_parent(task.task_id, revised)
    return {
        "task": task,
        "status": "RUNNING",
        "ending": None,
        "added_inputs": {},
        "version": 0,
        "step_count": 0,
        "phase": contract.first_phase,
        "wake_at": None,
        "limits": contract.limits,
        "usage": state.get("usage") or Usage(),
        "reservation": None,
        "evidence": [recording.reference(record) for record in inherited][-EVIDENCE_WINDOW:],
        "evidence_count": len(inherited),
        "tool_history": [],
        "outstanding": [],
        "feedback": [],
        "progress": Progress(),
        "message": "",
        "approval": None,
        "resumption": None,
        "next": "stop_check",
    }


async def _inherited(revised: str, requester: Principal, context: NodeContext) -> list[EvidenceRecord]:
    """The evidence of the ended task that this one revises, if the requester may go on from it."""
    if not revised:
        return []
    row = await context.ports.tasks.get(revised)
    if row is None or row.tenant != requester.tenant or row.loop != context.loop.contract.name:
        raise Misuse(f"there is no task {revised!r} of this loop and tenant that could be revised")
    if row.status not in TERMINAL:
        raise Misuse(f"task {revised} is {row.status}: only an ended task can be revised")
    _require_entitlement(context, Principal(id=row.requester, tenant=row.tenant), requester)
    return await context.ports.evidence.load(revised, MAX_INHERITED)


def _inherited_entry(task: Task, record: EvidenceRecord, now: datetime) -> JournalEntry:
    return JournalEntry(
        task_id=task.task_id, version=0, call=record.ordinal, step=0, at=now, phase="", kind="tool",
        source="workflow", call_id=f"inherited-{record.ordinal}", tool=record.tool, args=record.args, validation="ok",
        authorisation="inherited", request_id=record.request_id, outcome="ok", evidence_id=record.id,
        observation_digest=record.payload_digest,
    )  # fmt: skip


async def _resume(state: LoopState, context: NodeContext) -> LoopState:
    task, ending = state["task"], state.get("ending")
    if state["status"] == "SUCCEEDED":
        raise Misuse(f"task {task.task_id} has succeeded, which is final; start a new task (agentic-loop revise)")
    actor = context.ports.identity.principal("resume")
    request = _checked_resumption(state.get("resumption") or {})
    _require_entitlement(context, task.requester, actor)
    assert actor is not None
    version = state["version"] + 1
    now = context.now()
    added = _checked_inputs(request.inputs)
    text = f"resumed by {actor.id} after {ending.status if ending else state['status']}"
    entry = JournalEntry(
        task_id=task.task_id, version=version, call=0, step=state["step_count"], at=now, phase=state["phase"],
        kind="resumed", source="runtime", text=text, args={**added, "add_steps": request.add_steps},
    )  # fmt: skip
    await context.ports.journal.append([entry])
    await context.ports.tasks.update(task.task_id, status="RUNNING", step_count=state["step_count"], at=now)
    intents = await open_effects(context)
    return {
        "added_inputs": {**(state.get("added_inputs") or {}), **added},
        "status": "RUNNING",
        "ending": None,
        "version": version,
        "limits": _extended(state["limits"], request),
        "progress": Progress(),
        "halt": None,
        "verdict": None,
        "receipt": None,
        "proposal": None,
        "approval": None,
        "answer": None,
        "wake_at": None,
        "resumption": None,
        "next": steering.after_observe(status="RUNNING", intents=intents, approval=None, wake_at=None, now=now),
    }


async def open_effects(context: NodeContext) -> list[Intent]:
    """The intents of this task that a reconciliation could resolve; the runtime's own notices are not among them."""
    intents = await context.ports.ledger.of_task(context.task_id)
    return [intent for intent in intents if intent.tool != NOTICE_TOOL]


def _require_entitlement(context: NodeContext, requester: Principal, actor: Principal | None) -> None:
    if actor is None:
        raise Misuse("nobody is authenticated: resume the task as somebody")
    verdict = authorisation.may_resume(context.loop.policies, requester=requester, actor=actor)
    if not isinstance(verdict, authorisation.Allowed):
        raise Misuse(f"{actor.id} may not resume this task: {verdict.reason}")


def _checked_goal(goal: object) -> str:
    if not isinstance(goal, str) or not goal.strip():
        raise Misuse("give the task a goal: a sentence that says what is to be achieved")
    if len(goal) > MAX_INPUT_CHARS:
        raise Misuse(f"the goal has {len(goal)} characters; at most {MAX_INPUT_CHARS} are accepted")
    return goal.strip()


def _checked_inputs(inputs: Mapping[str, object]) -> dict[str, str]:
    if not isinstance(inputs, Mapping) or len(inputs) > MAX_INPUTS:
        raise Misuse(f"inputs must be an object with at most {MAX_INPUTS} names")
    for name, value in inputs.items():
        if not isinstance(name, str) or _INPUT_NAME.fullmatch(name) is None:
            raise Misuse("the name of an input is 1 to 64 letters, digits and . _ - characters")
        if not isinstance(value, str) or len(value) > MAX_INPUT_CHARS:
            raise Misuse(f"input {name!r} must be a text of at most {MAX_INPUT_CHARS} characters")
    return {str(name): str(value) for name, value in inputs.items()}


def _checked_resumption(raw: Mapping[str, JsonValue]) -> Resumption:
    try:
        return Resumption.model_validate(raw)
    except ValidationError as error:
        raise Misuse(f"the resumption is not understood: {error.errors()[0]['msg']}") from error


def _extended(limits: Limits, request: Resumption) -> Limits:
    return limits.model_copy(
        update={
            "max_steps": limits.max_steps + max(0, request.add_steps),
            "max_tokens": limits.max_tokens + max(0, request.add_tokens),
            "max_cost_micro_usd": limits.max_cost_micro_usd + max(0, request.add_cost_micro_usd),
            "max_active_s": limits.max_active_s + max(0, request.add_active_s),
        }
    )


def versions() -> dict[str, str]:
    """The versions that a record of this run has to name."""
    return {
        "agentic_loop": installed_version("agentic-loop"),
        "langgraph": installed_version("langgraph"),
        "python": platform.python_version(),
    }
