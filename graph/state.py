"""What a task remembers: the typed state of the loop, its statuses, reasons and limits.

One module, so that a reader can see everything that survives a restart. The outer state is a ``TypedDict`` of
LangGraph channels; each value is a frozen pydantic model (or a list of them), without aliases, subclasses or
tuples, because those do not come back from a checkpoint as they went in.

Money is integer minor units, cost is integer micro-USD, durations say their unit in the name, and every instant is
timezone-aware UTC.

Source: DESIGN §2 (statuses), §3 (state), §4 (budgets).
"""

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from langgraph.channels import UntrackedValue
from pydantic import BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema
from typing_extensions import TypedDict

Status: TypeAlias = Literal[
    "RUNNING",
    "AWAITING_APPROVAL",
    "SUCCEEDED",
    "NEEDS_INPUT",
    "DENIED",
    "BUDGET_EXHAUSTED",
    "NO_PROGRESS",
    "FAILED",
]
"""Every status a task can have; all but the first two are terminal."""

TerminalStatus: TypeAlias = Literal["SUCCEEDED", "NEEDS_INPUT", "DENIED", "BUDGET_EXHAUSTED", "NO_PROGRESS", "FAILED"]
"""The statuses that end a task."""

TERMINAL: frozenset[str] = frozenset(
    {"SUCCEEDED", "NEEDS_INPUT", "DENIED", "BUDGET_EXHAUSTED", "NO_PROGRESS", "FAILED"}
)
"""The terminal statuses as a set, for membership tests."""

Reason: TypeAlias = Literal[
    "completed",
    "question",
    "approval_expired",
    "review_required",
    "policy_denied",
    "steps",
    "tokens",
    "cost",
    "deadline",
    "repeated_action",
    "no_state_change",
    "oscillation",
    "progress_theatre",
    "validation_churn",
    "contradiction",
    "no_action",
    "model_unavailable",
    "tool_exhausted",
    "unknown_effect",
    "invalid_proposal",
    "cancelled",
]
"""Why a task ended, machine-readable; which reasons go with which status is in ``policies/stopping.py``."""

Phase: TypeAlias = str
"""The name of a phase that the loop's contract declares, such as ``investigate`` or ``settle``."""

Effect: TypeAlias = Literal["read", "write"]
"""Whether a tool only reads or changes the outside world."""

FaultCategory: TypeAlias = Literal[
    "invalid_arguments",
    "unknown_tool",
    "not_allowed_now",
    "not_found",
    "forbidden",
    "rejected",
    "unavailable",
    "timeout",
    "garbage",
    "conflict",
    "precondition_failed",
    "repeat_refused",
    "call_limit",
    "denied",
    "approval_rejected",
    "completion_rejected",
    "interrupted",
    "payload_too_large",
    "tool_defect",
]
"""What went wrong with one call, as told to the model and kept in the journal."""


class Value(BaseModel):
    """The base of every state value: frozen, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- who and what -----------------------------------------------------------------------------------------------


class Principal(Value):
    """Somebody who acts: the requester of a task or the approver of an action.

    Source: DESIGN §5 (who acts comes from authentication, never from a payload or a model).
    """

    id: str
    tenant: str
    roles: list[str] = []
    scopes: list[str] = []


class Task(Value):
    """The identity of one task and what it was started with; it never changes afterwards."""

    task_id: str
    trace_id: str
    loop: str
    goal: str
    inputs: dict[str, str]
    tenant: str
    requester: Principal
    contract_digest: str
    versions: dict[str, str]
    started_at: datetime


class Ending(Value):
    """How a task ended: a terminal status, its machine-readable reason and a sentence for people."""

    status: TerminalStatus
    reason: Reason
    detail: str


# --- limits and spending ----------------------------------------------------------------------------------------


class Limits(Value):
    """The bounds of one task. Every one is enforced by code before the thing that it bounds happens."""

    max_steps: int = 8
    max_tokens: int = 40_000
    max_cost_micro_usd: int = 500_000
    max_active_s: int = 120
    max_calls_per_tool: int = 8
    max_calls_per_step: int = 8
    max_output_tokens: int = 1_024
    max_prompt_tokens: int = 16_000
    max_payload_bytes: int = 65_536
    max_invalid_proposals: int = 3
    max_inference_attempts: int = 4
    inference_timeout_s: float = 30.0
    max_dispatches_per_effect: int = 2
    max_rechecks: int = 10
    max_question_chars: int = 4_000


class Usage(Value):
    """What the task has spent so far.

    ``tokens`` counts input plus output as the provider billed them (or the whole reservation where it said
    nothing). ``active_ms`` is time when the runtime worked; ``suspended_ms`` is time spent waiting for a person.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_micro_usd: int = 0
    estimated_cost_micro_usd: int = 0
    active_ms: int = 0
    suspended_ms: int = 0
    model_ms: int = 0
    tool_ms: int = 0
    inference_retries: int = 0
    read_retries: int = 0
    rechecks: int = 0
    calls_per_tool: dict[str, int] = {}

    @property
    def tokens(self) -> int:
        """All tokens billed: input plus output."""
        return self.input_tokens + self.output_tokens


class Reservation(Value):
    """The most that the inference now in flight can cost; settled with the provider's usage afterwards.

    ``fence`` is that of the worker that reserved. Another worker that finds it charges it in full.

    Source: DESIGN §4.
    """

    step: int
    fence: int
    input_tokens: int
    output_tokens: int
    cost_micro_usd: int

    @property
    def tokens(self) -> int:
        """All tokens reserved: prompt estimate plus the largest answer."""
        return self.input_tokens + self.output_tokens


class Meter(Value):
    """Where active time was last counted, and by the holder of which fence."""

    fence: int
    marked_at: datetime


# --- the turn in flight -----------------------------------------------------------------------------------------


class Inference(Value):
    """What the inference of this step cost and where its prompt and raw reply are kept, until it is journalled."""

    prompt_digest: str = ""
    reply_digest: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_micro_usd: int = 0
    model_ms: int = 0


class Reopening(Value):
    """Reconciliation confirmed that an effect did not happen: one more dispatch of this key is permitted.

    ``dispatches`` is how many had been made when that was confirmed; the ledger refuses if there were more since.
    """

    key: str
    dispatches: int


class ProposedCall(Value):
    """One tool call as the model wrote it: untrusted, unparsed."""

    call_id: str
    name: str
    arguments_json: str


ReplyFault: TypeAlias = Literal["cut_off", "refusal", "empty", "text_without_call", "filtered"]
"""What can be wrong with a whole answer, before any call in it is looked at."""


class Proposal(Value):
    """What a decider (the model or a workflow) proposes for this step: data, never a decision."""

    source: Literal["model", "workflow"]
    calls: list[ProposedCall] = []
    text: str = ""
    fault: ReplyFault | None = None
    prompt_digest: str = ""
    model: str = ""


class CallFault(Value):
    """Why one call was not or could not be carried out, in words that help to correct it."""

    category: FaultCategory
    message: str


Authorisation: TypeAlias = Literal["pending", "allowed", "needs_approval", "denied"]
"""Where one call stands with the policy."""


class CheckedCall(Value):
    """One proposed call after validation, and what authorisation said of it.

    ``args`` is the normal form of the arguments; ``args_hash`` and ``action_hash`` are SHA-256 over canonical
    JSON. A call with a ``fault`` is never dispatched. ``on_record`` says that the ledger holds the effect already.
    """

    call_id: str
    tool: str
    args: dict[str, JsonValue] = {}
    args_hash: str = ""
    effect: Effect = "read"
    idempotency_key: str | None = None
    action_hash: str = ""
    fault: CallFault | None = None
    authorisation: Authorisation = "pending"
    policy_ids: list[str] = []
    policy_clause: str = ""
    policy_reason: str = ""
    required_role: str | None = None
    approval_id: str | None = None
    on_record: bool = False
    ends_task: bool = False


VerdictKind: TypeAlias = Literal["calls", "invalid", "finish", "ask_user", "blocked", "wait_and_recheck"]
"""What a proposal amounts to once it has been validated."""


class Verdict(Value):
    """What validation made of the proposal; ``text`` is the model's message, question or reason, kept as data."""

    kind: VerdictKind
    calls: list[CheckedCall] = []
    text: str = ""
    fault: CallFault | None = None
    wait_s: int = 0


Outcome: TypeAlias = Literal["ok", "error", "unknown"]
"""How a dispatched call came out; ``unknown`` means that an effect may or may not have happened."""


class CallResult(Value):
    """What one call returned, before it is recorded as evidence.

    ``replayed`` says that the ledger already held the result, so nothing was sent. ``exhausted`` says that the
    service stayed down past its retries.
    """

    call_id: str
    tool: str
    args: dict[str, JsonValue]
    args_hash: str
    outcome: Outcome
    request_id: str = ""
    idempotency_key: str | None = None
    action_hash: str = ""
    fetched_at: datetime | None = None
    source: str = ""
    ref: str = ""
    payload: JsonValue = None
    fault: CallFault | None = None
    attempts: int = 1
    latency_ms: int = 0
    replayed: bool = False
    exhausted: bool = False
    sent: bool = True


class Receipt(Value):
    """All results of one step, in the order of the calls."""

    results: list[CallResult]


# --- what is remembered -----------------------------------------------------------------------------------------


class Evidence(Value):
    """A reference to one recorded observation with its provenance; the payload is in the evidence table.

    ``preview`` is the first few hundred characters, for people who look at the state in Studio.
    """

    id: str
    tool: str
    request_id: str
    fetched_at: datetime
    source: str
    ref: str
    payload_digest: str
    size_bytes: int
    preview: str


class ToolRecord(Value):
    """One line of the tool history: what was called in which step and how it came out."""

    step: int
    tool: str
    args_hash: str
    outcome: Outcome
    idempotency_key: str | None = None
    evidence_id: str | None = None


OutstandingStatus: TypeAlias = Literal[
    "proposed", "approved", "intended", "executed", "verified", "rejected", "unknown"
]
"""The life of an action with an effect, from proposal to verification."""


class OutstandingAction(Value):
    """One action with a side effect and where it is in its life."""

    kind: str
    key: str
    action_hash: str
    status: OutstandingStatus


class Approval(Value):
    """The approval that the task waits for, or last waited for; its row in the store is the authority."""

    id: str
    action_hash: str
    call_id: str
    requested_at: datetime
    expires_at: datetime
    required_role: str
    round: int = 1


FeedbackKind: TypeAlias = Literal[
    "invalid_proposal",
    "completion_rejected",
    "no_progress",
    "approval_rejected",
    "approval_unanswered",
    "conflict",
    "wait_over",
    "input_added",
]
"""What the runtime tells the model of its own accord."""


class Feedback(Value):
    """One thing that the runtime tells the model in the next prompt."""

    kind: FeedbackKind
    message: str
    step: int


class ProgressMark(Value):
    """What the progress monitor remembers of one step: hashes only.

    ``pairs`` holds ``action:observation`` per call (sorted), ``payloads`` holds ``tool:payload`` with the
    argument hash, so that the same data under other arguments is seen. ``restarts`` says that the plan changed here
    after a corrective observation, so stalled steps are counted anew.
    """

    step: int
    action: str
    pairs: list[str]
    payloads: list[str] = []
    state: str = ""
    restarts: bool = False


class Progress(Value):
    """The progress monitor's memory: a bounded window of marks and the counters that the thresholds bound.

    ``corrected`` says that a corrective observation was given and that no step has followed it yet.
    """

    marks: list[ProgressMark] = []
    stalled_steps: int = 0
    invalid_in_a_row: int = 0
    corrections: int = 0
    corrected: bool = False
    flag: Reason | None = None
    denied_actions: list[str] = []
    disagreements: list[str] = []


class Thresholds(Value):
    """When the progress monitor speaks up. Source: DESIGN §8."""

    max_repeats: int = 2
    window: int = 6
    max_stalled_steps: int = 3
    max_corrections: int = 1
    max_theatre: int = 2


HaltKind: TypeAlias = Literal[
    "cancelled",
    "denied",
    "budget",
    "model_unavailable",
    "tool_exhausted",
    "unknown_effect",
    "approval_expired",
    "invalid_proposal",
    "review_required",
]
"""What a node can report to stop_check as a reason not to go on."""


class Halt(Value):
    """A node's report that the task cannot go on; stop_check turns it into an ending."""

    kind: HaltKind
    reason: Reason
    detail: str


class ApprovalAnswer(Value):
    """What became of the approval that the task waited for."""

    kind: Literal["approved", "edited", "rejected", "answered", "expired", "pending"]
    approval_id: str
    decided_by: str = ""
    message: str = ""
    edited_tool: str = ""
    edited_args: dict[str, JsonValue] = {}


class Resumption(Value):
    """An explicit request to go on with an ended task: new inputs or extra limits. Source: DESIGN §2."""

    inputs: dict[str, str] = {}
    add_steps: int = 0
    add_tokens: int = 0
    add_cost_micro_usd: int = 0
    add_active_s: int = 0


# --- the channels -----------------------------------------------------------------------------------------------


class PromptMessage(Value):
    """One rendered message of the prompt. ``calls`` and ``call_id`` carry tool calls as providers expect them."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: list[ProposedCall] = []
    call_id: str = ""


class Prompt(Value):
    """The rendered prompt of the step in flight; it is a rendering of state, so it is never persisted."""

    messages: list[PromptMessage]
    tools: list[str]
    digest: str
    estimated_tokens: int


Route: TypeAlias = Literal[
    "authorise",
    "await_approval",
    "build_input",
    "decide",
    "end",
    "execute",
    "finish",
    "reconcile",
    "record",
    "request_approval",
    "stop_check",
    "validate",
]
"""Where a policy says that the loop goes next; ``graph/routes.py`` only maps it to a node."""


class LoopInput(TypedDict, total=False):
    """Start a task with a goal and inputs, or go on with an ended one by a resumption.

    Studio and the server's API show these titles and descriptions.
    """

    goal: Annotated[
        str, Field(title="Goal", description="What is to be achieved, in a sentence. Needed to start a task.")
    ]
    inputs: Annotated[
        dict[str, str],
        Field(title="Inputs", description='What is known, by name, such as {"order_id": "8472"}.'),
    ]
    revises: Annotated[
        str,
        Field(title="Revises", description="The id of an ended task whose evidence the new one starts from."),
    ]
    resumption: Annotated[
        dict[str, JsonValue] | None,
        Field(title="Resumption", description="Only to go on with this thread's ended task."),
        WithJsonSchema({"anyOf": [Resumption.model_json_schema(), {"type": "null"}]}),
    ]


class LoopOutput(TypedDict, total=False):
    """What a caller gets back."""

    task: Task
    status: Status
    ending: Ending | None
    message: str
    step_count: int
    usage: Usage
    evidence: list[Evidence]
    outstanding: list[OutstandingAction]
    approval: Approval | None
    wake_at: datetime | None


class LoopState(TypedDict, total=False):
    """Every channel of the graph.

    ``inputs`` and ``goal`` are what the caller gave last, and only the start believes them: ``task`` holds what the
    task was started with, ``added_inputs`` what an entitled person added when it was resumed.
    Windowed lists (``evidence``, ``tool_history``) hold the newest references only; the full record is in the
    append-only tables. ``prompt`` is untracked: it can be rendered again, so no checkpoint carries it.
    """

    goal: str
    inputs: dict[str, str]
    revises: str
    resumption: dict[str, JsonValue] | None

    task: Task
    added_inputs: dict[str, str]
    status: Status
    ending: Ending | None
    version: int
    step_count: int
    phase: Phase
    wake_at: datetime | None
    limits: Limits
    usage: Usage
    meter: Meter
    reservation: Reservation | None

    evidence: list[Evidence]
    evidence_count: int
    tool_history: list[ToolRecord]
    outstanding: list[OutstandingAction]
    feedback: list[Feedback]
    progress: Progress
    message: str

    approval: Approval | None
    answer: ApprovalAnswer | None
    proposal: Proposal | None
    verdict: Verdict | None
    receipt: Receipt | None
    halt: Halt | None
    inference: Inference | None
    reopening: Reopening | None
    next: Route
    prompt: Annotated[Prompt | None, UntrackedValue]


EVIDENCE_WINDOW = 16
"""How many of the newest evidence references the state carries."""

TOOL_HISTORY_WINDOW = 32
"""How many of the newest tool records the state carries."""

PREVIEW_CHARS = 240
"""How much of a payload the state shows as a preview."""

PERSISTED_TYPES: tuple[type[Value], ...] = (
    Principal,
    Task,
    Ending,
    Limits,
    Usage,
    Reservation,
    Meter,
    Inference,
    Reopening,
    ProposedCall,
    Proposal,
    CallFault,
    CheckedCall,
    Verdict,
    CallResult,
    Receipt,
    Evidence,
    ToolRecord,
    OutstandingAction,
    Approval,
    Feedback,
    ProgressMark,
    Progress,
    Halt,
    ApprovalAnswer,
    Resumption,
)
"""The strict allow-list: the only classes that a checkpoint may be read back into."""
