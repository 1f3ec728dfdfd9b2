"""The records that cross a port: evidence, journal entries, intents, approvals, model replies. Values, no behaviour.

Policies read them, nodes carry them, stores keep them.

Source: DESIGN §3, §5, §6.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import BaseModel, JsonValue

from .state import CallFault, Effect, Outcome, OutstandingAction, Proposal, Status, Task


@dataclass(frozen=True)
class ModelUsage:
    """What the provider says one call used. ``cached_tokens`` is part of ``input_tokens``."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class ModelReply:
    """One answer, taken apart but not judged. ``usage`` is None where the provider did not say."""

    proposal: Proposal
    usage: ModelUsage | None
    raw: JsonValue
    latency_ms: int


@dataclass(frozen=True)
class ToolOffer:
    """A tool or control action as it is offered to the model: name, description, JSON Schema of the arguments."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue]


def whole(args: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The effect of a tool whose every argument counts."""
    return args


@dataclass(frozen=True, kw_only=True)
class ToolShape:
    """What the policies may know of a tool: its arguments, effect, bounds and key, but nothing that can be called.

    ``parameters`` is the JSON Schema of the arguments; ``arguments`` the pydantic model that gives them their normal
    form, where there is one. ``idempotency_key`` is a template over the arguments. ``effect_of`` leaves out of the
    arguments what changes nothing outside: the same effect has the same hash. Units: seconds, bytes, micro-USD.
    """

    name: str
    description: str
    parameters: Mapping[str, JsonValue]
    effect: Effect
    scope: str
    arguments: type[BaseModel] | None = None
    idempotency_key: str | None = None
    approval_required: bool = False
    max_calls: int = 6
    timeout_s: float = 10.0
    cost_bound_micro_usd: int = 0
    effect_of: Callable[[Mapping[str, JsonValue]], Mapping[str, JsonValue]] = whole


@dataclass(frozen=True)
class EvidenceRecord:
    """One recorded observation with its payload: what completion, facts and rendering read.

    ``ordinal`` is the number in the id (``ev-3`` has 3). ``step`` is the step that caused it.
    """

    id: str
    ordinal: int
    step: int
    tool: str
    args: Mapping[str, JsonValue]
    request_id: str
    fetched_at: datetime
    source: str
    ref: str
    payload: JsonValue
    payload_digest: str
    size_bytes: int


@dataclass(frozen=True)
class JournalEntry:
    """What happened to one call of one step: everything that trace, replay, rendering and packets read.

    ``kind`` says what the entry is. ``version`` and ``call`` identify it within its task; writing it again replaces
    nothing that differs. Units: milliseconds, tokens, micro-USD.
    """

    task_id: str
    version: int
    call: int
    step: int
    at: datetime
    phase: str
    kind: Literal["tool", "control", "invalid", "feedback", "approval", "ending", "resumed"]
    source: Literal["model", "workflow", "runtime"]
    call_id: str = ""
    tool: str = ""
    args: Mapping[str, JsonValue] = field(default_factory=dict)
    arguments_json: str = ""
    text: str = ""
    validation: str = ""
    authorisation: str = ""
    policy_ids: Sequence[str] = ()
    request_id: str = ""
    idempotency_key: str | None = None
    outcome: Outcome | None = None
    fault: CallFault | None = None
    evidence_id: str | None = None
    observation_digest: str = ""
    state_digest: str = ""
    state_delta: str = ""
    prompt_digest: str = ""
    reply_digest: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_micro_usd: int = 0
    model_ms: int = 0
    tool_ms: int = 0
    suspended_ms: int = 0


@dataclass(frozen=True)
class TaskRow:
    """One line of the list of tasks."""

    task_id: str
    loop: str
    tenant: str
    goal: str
    requester: str
    status: Status
    reason: str
    step_count: int
    wake_at: datetime | None
    started_at: datetime
    updated_at: datetime
    parent_task_id: str | None = None
    closed_by: str | None = None
    closing_note: str | None = None


@dataclass(frozen=True)
class Intent:
    """One business effect in the ledger.

    ``status`` moves intended → executed, or → unknown (→ executed | intended again by reopen). ``dispatches`` counts
    how often a call was sent for it.
    """

    tenant: str
    key: str
    action_hash: str
    tool: str
    args: Mapping[str, JsonValue]
    task_id: str
    status: Literal["intended", "executed", "failed", "unknown"]
    dispatches: int
    intended_at: datetime
    result: JsonValue = None
    ref: str = ""
    request_id: str = ""
    finished_at: datetime | None = None
    flagged: bool = False


@dataclass(frozen=True)
class Begun:
    """The intent is durable and this worker alone may send the call, once."""

    intent: Intent


@dataclass(frozen=True)
class AlreadyBegun:
    """An earlier attempt of the same action left an intent: never call, reconcile (or take the result it holds)."""

    intent: Intent


@dataclass(frozen=True)
class KeyConflict:
    """The key belongs to an action with other arguments."""

    intent: Intent


@dataclass(frozen=True)
class ApprovalRefused:
    """The approval does not cover this action now; ``detail`` says why."""

    detail: str


@dataclass(frozen=True)
class FenceLost:
    """Another worker has taken the task over; this one must stop."""


BeginAnswer: TypeAlias = Begun | AlreadyBegun | KeyConflict | ApprovalRefused | FenceLost
"""What the ledger says to an attempt to begin an effect."""


Decision: TypeAlias = Literal["approved", "edited", "rejected", "answered", "expired"]
"""What became of an approval, once and for all."""


@dataclass(frozen=True)
class ApprovalRow:
    """One approval: exactly one action of one task.

    ``decision`` is None while it waits. ``consumed_by`` names the idempotency key that used it up.
    """

    id: str
    task_id: str
    tenant: str
    loop: str
    tool: str
    args: Mapping[str, JsonValue]
    idempotency_key: str | None
    action_hash: str
    required_role: str
    requester: str
    policy_ids: Sequence[str]
    policy_clause: str
    reason: str
    evidence_ids: Sequence[str]
    round: int
    requested_at: datetime
    expires_at: datetime
    decision: Decision | None = None
    decided_by: str = ""
    decided_role: str = ""
    decided_at: datetime | None = None
    message: str = ""
    edited_args: Mapping[str, JsonValue] = field(default_factory=dict)
    consumed_by: str | None = None


@dataclass(frozen=True)
class NoticeOfApproval:
    """What the required role is told: the exact action, and how to answer."""

    approval: ApprovalRow
    summary: str


@dataclass(frozen=True)
class TaskView:
    """What judges of a whole task look at: completion predicates, workflows and fact gatherers.

    ``evidence`` is everything recorded so far, oldest first. ``message`` is the text of a finish proposal, or the
    last message that was sent to the customer. ``finish_proposed`` says that the model wants to stop. ``inputs``
    are the inputs with those that were added at a resumption.
    """

    task: Task
    phase: str
    evidence: Sequence[EvidenceRecord]
    outstanding: Sequence[OutstandingAction]
    message: str = ""
    finish_proposed: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Completed:
    """The goal is reached, and this recorded evidence shows it."""

    detail: str


@dataclass(frozen=True)
class Incomplete:
    """The goal is not reached; ``detail`` tells the model what is missing."""

    detail: str


CompletionAnswer: TypeAlias = Completed | Incomplete
"""What a completion predicate says."""
