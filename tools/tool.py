"""What a tool is: one declaration that says everything the loop's gates need to know about it.

Source: DESIGN §5 and §6, and the document's list of what a tool's contract holds.
"""

import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import BaseModel, JsonValue

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ToolShape
from agentic_loop.graph.state import Effect

Arguments: TypeAlias = Mapping[str, JsonValue]
"""The normal form of a call's arguments."""


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a tool is given besides its arguments.

    ``timeout_s`` is the deadline of this attempt. ``idempotency_key`` is present for writes and must be sent
    as it is. ``now`` is the clock port's time.
    """

    tenant: str
    task_id: str
    request_id: str
    timeout_s: float
    now: datetime
    idempotency_key: str | None = None


@dataclass(frozen=True)
class ToolResult:
    """A tool's answer: the payload as JSON data, and a reference (document, version, section) if it has one."""

    payload: JsonValue
    ref: str = ""


ToolCall: TypeAlias = Callable[[Arguments, ToolContext], Awaitable[ToolResult]]
"""A tool's work. Raises ``ToolFault`` for a known failure and ``OutcomeUnknown`` where a write may have happened."""


@dataclass(frozen=True)
class Found:
    """Reconciliation found the effect: this is the result that the service holds."""

    result: ToolResult


@dataclass(frozen=True)
class Absent:
    """The service is sure that the key had no effect."""


@dataclass(frozen=True)
class Undecided:
    """The service cannot say; a person must look."""

    detail: str


ReconcileAnswer: TypeAlias = Found | Absent | Undecided
"""What a service says about a key."""

ReconcileCall: TypeAlias = Callable[[Arguments, ToolContext], Awaitable[ReconcileAnswer]]
"""Asks the service about the context's key, given the arguments as well. Raises ``ToolFault`` when unreachable."""


@dataclass(frozen=True)
class Reconcile:
    """How an unknown outcome is resolved.

    ``lookup`` asks by key and changes nothing. ``replay`` sends the same request with the same key and relies on
    the service to return the first result. ``key_retention_s`` is how long the service keeps keys, and
    ``visible_after_s`` how long a fresh effect may stay invisible to the lookup.
    """

    kind: Literal["lookup", "replay"]
    ask: ReconcileCall
    key_retention_s: int
    visible_after_s: float = 0.0


@dataclass(frozen=True)
class PreconditionHeld:
    """The world still allows the action."""


@dataclass(frozen=True)
class PreconditionBroken:
    """The world has changed; the action must not be sent. ``payload`` is what was read, kept as evidence."""

    detail: str
    payload: JsonValue
    source: str


PreconditionAnswer: TypeAlias = PreconditionHeld | PreconditionBroken
"""Whether a write may still be sent."""

PreconditionCall: TypeAlias = Callable[[Arguments, ToolContext], Awaitable[PreconditionAnswer]]
"""Reads by identifier, just before dispatch, whether the action still makes sense."""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """The declaration of one tool.

    Shapes: ``parameters`` is the JSON Schema of the arguments (an object schema); ``arguments`` is the pydantic
    model that gives them their normal form, where there is one. Units: seconds, bytes, micro-USD.
    ``idempotency_key`` is a template over the arguments, such as ``refund:order-{order_id}:{payment_id}:v1``.

    Raises:
        Misuse: when a write has no key template, or no way to reconcile and is not ``approval_required``.

    Source: DESIGN §5, §6.
    """

    name: str
    description: str
    parameters: Mapping[str, JsonValue]
    call: ToolCall
    effect: Effect
    scope: str
    source: str
    arguments: type[BaseModel] | None = None
    timeout_s: float = 10.0
    max_attempts: int = 3
    max_calls: int = 6
    payload_limit_bytes: int = 16_384
    cost_bound_micro_usd: int = 0
    idempotency_key: str | None = None
    reconcile: Reconcile | None = None
    precondition: PreconditionCall | None = None
    verified_by: str | None = None
    approval_required: bool = False
    tags: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        problems = [*self._write_problems(), *self._bound_problems(), *self._key_problems()]
        if problems:
            raise Misuse(f"tool {self.name!r} cannot be loaded: " + "; ".join(problems))

    def _write_problems(self) -> list[str]:
        if self.effect == "read":
            return []
        problems = []
        if self.idempotency_key is None:
            problems.append(
                "a write needs idempotency_key, a template over its arguments such as 'refund:{order_id}:v1'"
            )
        if self.reconcile is None and not self.approval_required:
            problems.append(
                "a write that can be neither looked up nor replayed needs approval_required=True "
                "(one dispatch, and a person decides when the outcome is unknown)"
            )
        return problems

    def _bound_problems(self) -> list[str]:
        bounds = {
            "timeout_s": self.timeout_s,
            "max_attempts": self.max_attempts,
            "max_calls": self.max_calls,
            "payload_limit_bytes": self.payload_limit_bytes,
        }
        return [f"{name} must be positive, not {value}" for name, value in bounds.items() if value <= 0]

    def _key_problems(self) -> list[str]:
        if self.idempotency_key is None:
            return []
        properties = self.parameters.get("properties")
        known = set(properties) if isinstance(properties, Mapping) else set()
        required = self.parameters.get("required")
        always = set(required) if isinstance(required, list) else set()
        fields = [name for _, name, _, _ in string.Formatter().parse(self.idempotency_key) if name is not None]
        problems = [f"idempotency_key names {name!r}, which is no argument" for name in fields if name not in known]
        problems += [
            f"idempotency_key names {name!r}, which is optional: a key must not depend on an absent value"
            for name in fields
            if name in known and name not in always
        ]
        if not fields:
            problems.append("idempotency_key must name at least one argument, else every call is the same effect")
        return problems

    @property
    def shape(self) -> ToolShape:
        """What policies may know of this tool."""
        return ToolShape(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            effect=self.effect,
            scope=self.scope,
            arguments=self.arguments,
            idempotency_key=self.idempotency_key,
            approval_required=self.approval_required,
            max_calls=self.max_calls,
            timeout_s=self.timeout_s,
            cost_bound_micro_usd=self.cost_bound_micro_usd,
        )

    def key_for(self, args: Arguments) -> str | None:
        """The deterministic idempotency key of this call, or None for a read."""
        return None if self.idempotency_key is None else self.idempotency_key.format(**args)
