"""What the nodes need from the outside, as protocols: clock, ids, model, stores, services, identity.

A node gathers through these ports and through nothing else; ``graph/build.py`` decides what implements them. Every
fault that a port knows comes back as a value or as one of the exceptions in ``graph/errors.py``.

Source: DESIGN §10.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

from pydantic import JsonValue

from .records import (
    ApprovalRow,
    BeginAnswer,
    Decision,
    EvidenceRecord,
    Intent,
    JournalEntry,
    ModelReply,
    ModelUsage,
    NoticeOfApproval,
    TaskRow,
    ToolOffer,
)
from .state import CallFault, Ending, Principal, Prompt, Status, Task

# --- time, identity, ids ----------------------------------------------------------------------------------------


class Clock(Protocol):
    """The only source of time."""

    def now(self) -> datetime:
        """The present instant, timezone-aware UTC."""

    async def sleep(self, delay_s: float) -> None:
        """Wait; a fake clock returns at once and moves forward."""


class Ids(Protocol):
    """The only source of identifiers and randomness, so that one seed reproduces a run."""

    def trace_id(self) -> str:
        """A new trace id."""

    def request_id(self, task_id: str) -> str:
        """A new request id, unique for every attempt."""

    def approval_id(self) -> str:
        """A new approval id."""

    def fraction(self) -> float:
        """A random number in [0, 1), for jitter."""


Purpose: TypeAlias = Literal["start", "approve", "resume"]
"""What somebody is about to do."""


class Identity(Protocol):
    """Who acts in this run, as authentication established it."""

    def principal(self, purpose: Purpose) -> Principal | None:
        """The person or service that is about to do this, or None when nobody is authenticated.

        Source: DESIGN §5: never from a payload, never from model text.
        """


# --- the model --------------------------------------------------------------------------------------------------


class Model(Protocol):
    """Any chat model behind one call."""

    @property
    def name(self) -> str:
        """The provider and model name, such as ``openai:gpt-4o-mini``."""

    async def propose(
        self, prompt: Prompt, tools: Sequence[ToolOffer], *, max_output_tokens: int, timeout_s: float
    ) -> ModelReply:
        """One inference, without any retry.

        Raises:
            ModelOutage: rate limit, server fault, time-out, refused connection, unusable body.
        """

    def estimate_tokens(self, text: str) -> int:
        """An upper bound of the tokens in a text."""

    def cost_micro_usd(self, usage: ModelUsage) -> int:
        """The price of this usage in micro-USD, rounded up."""


# --- evidence and journal ---------------------------------------------------------------------------------------


class EvidenceStore(Protocol):
    """The append-only evidence of all tasks; each payload is stored once, by digest."""

    async def append(self, task_id: str, records: Sequence[EvidenceRecord]) -> None:
        """Store records; storing the same record again changes nothing."""

    async def load(self, task_id: str, count: int) -> list[EvidenceRecord]:
        """The first ``count`` pieces of evidence of a task, oldest first."""


class Journal(Protocol):
    """The append-only record of every step."""

    async def append(self, entries: Sequence[JournalEntry]) -> None:
        """Write entries; the same (task, version, call) again changes nothing."""

    async def load(self, task_id: str, version: int) -> list[JournalEntry]:
        """All entries of a task up to this version, in order of version and call."""

    async def keep(self, digest: str, content: JsonValue) -> None:
        """Store a prompt or a raw reply once, by digest."""

    async def recall(self, digest: str) -> JsonValue:
        """A stored prompt or raw reply.

        Raises:
            KeyError: nothing is stored under this digest.
        """


# --- tasks, packets ---------------------------------------------------------------------------------------------


class Tasks(Protocol):
    """The register of tasks and their escalation packets."""

    async def register(self, task: Task, status: Status, at: datetime) -> None:
        """Enter a task; entering it again changes nothing."""

    async def get(self, task_id: str) -> TaskRow | None:
        """The task's line."""

    async def set_parent(self, task_id: str, parent: str) -> None:
        """Note which task a new one revises."""

    async def update(
        self,
        task_id: str,
        *,
        status: Status,
        step_count: int,
        at: datetime,
        ending: Ending | None = None,
        wake_at: datetime | None = None,
    ) -> None:
        """Bring a task's line up to date."""

    async def keep_packet(self, task_id: str, version: int, packet: JsonValue) -> None:
        """Store the escalation packet that was written at this version."""


# --- effects ----------------------------------------------------------------------------------------------------


class Ledger(Protocol):
    """The record of every effect, in transactions of its own. Source: DESIGN §6."""

    async def begin(
        self,
        *,
        tenant: str,
        key: str,
        action_hash: str,
        tool: str,
        args: Mapping[str, JsonValue],
        task_id: str,
        fence: int,
        approval_id: str | None,
        request_id: str,
        at: datetime,
    ) -> BeginAnswer:
        """In one transaction: check the fence, check and consume the approval, insert the intent."""

    async def finish(
        self, *, tenant: str, key: str, result: JsonValue, ref: str, request_id: str, at: datetime
    ) -> Intent:
        """Record the result; a late answer is accepted by key, and the first result stays."""

    async def fail(self, *, tenant: str, key: str, fault: CallFault, at: datetime) -> None:
        """Record that the service refused the action and that it had no effect; the key may be begun again."""

    async def mark_unknown(self, *, tenant: str, key: str, at: datetime) -> None:
        """Record that the outcome of the call is unknown."""

    async def reopen(
        self,
        *,
        tenant: str,
        key: str,
        action_hash: str,
        task_id: str,
        fence: int,
        approval_id: str | None,
        request_id: str,
        dispatches: int,
        max_dispatches: int,
        at: datetime,
    ) -> BeginAnswer:
        """Permit one more dispatch with the same key, after the service confirmed that there was no effect.

        ``dispatches`` is how many had been made when that was confirmed: if there were more since, the answer is
        ``AlreadyBegun``, so that a crash after the second dispatch leads to reconciliation and not to a third.
        The approval that was consumed for this key still counts while it has not expired.
        """

    async def flag(self, *, tenant: str, key: str, detail: str, at: datetime) -> None:
        """Mark the intent for review by a person."""

    async def find(self, *, tenant: str, key: str) -> Intent | None:
        """The intent under this key, if there is one."""

    async def of_task(self, task_id: str) -> list[Intent]:
        """All intents that this task began, oldest first (at most a few hundred)."""


# --- approvals --------------------------------------------------------------------------------------------------


class Approvals(Protocol):
    """The approvals, in transactions of their own. Source: DESIGN §5."""

    async def request(self, row: ApprovalRow) -> ApprovalRow:
        """Enter a request; for the same task, action and round the row that exists is returned."""

    async def find(self, approval_id: str) -> ApprovalRow | None:
        """The approval with this id."""

    async def decide(
        self,
        approval_id: str,
        *,
        decision: Decision,
        decided_by: str,
        decided_role: str,
        at: datetime,
        message: str = "",
        edited_args: Mapping[str, JsonValue] | None = None,
    ) -> ApprovalRow:
        """Record a decision, once; a decision that is already there stays and is returned.

        Raises:
            Misuse: no such approval.
        """


# --- lease ------------------------------------------------------------------------------------------------------


class Lease(Protocol):
    """One worker per task at a time, and a token that shows who came last. Source: DESIGN §7."""

    async def acquire(self, task_id: str) -> int:
        """Take the task and return a new fence, or the present one where this run holds it already.

        Raises:
            LeaseRefused: another worker holds it.
        """

    async def release(self, task_id: str) -> None:
        """Give the task back; giving back what is not held does nothing."""


# --- services ---------------------------------------------------------------------------------------------------


class Notifier(Protocol):
    """Tells a role that an approval waits."""

    async def notify(self, notice: NoticeOfApproval, *, tenant: str, task_id: str, key: str) -> None:
        """Send the notice under this idempotency key.

        Raises:
            ToolFault: the service refused or is down.
            OutcomeUnknown: it may have been sent.
        """


class NothingToTell:
    """A notifier for loops without one: the inbox is where approvals are found."""

    async def notify(self, notice: NoticeOfApproval, *, tenant: str, task_id: str, key: str) -> None:
        """Do nothing."""
