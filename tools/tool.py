"""What a tool is: one declaration that says everything the loop's gates need to know about it.

The declaration also knows how to run what it declares: ``run_call``, ``run_reconcile`` and ``run_precondition`` let
nothing out of a tool but a result, a ``ToolFault`` or an ``OutcomeUnknown``.

Source: DESIGN §5 and §6, and the document's list of what a tool's contract holds.
"""

import asyncio
import json
import math
import re
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias, TypeVar

import jsonschema_rs
from pydantic import BaseModel, JsonValue, TypeAdapter

from agentic_loop.graph.contract import CONTROL_ACTIONS
from agentic_loop.graph.errors import Misuse, OutcomeUnknown, ToolFault
from agentic_loop.graph.records import ToolShape, whole
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
    ``visible_after_s`` how long a fresh effect may stay invisible to the lookup. ``settles_after_s`` is how long the
    service may go on with a request after its caller has given up. An absence is believed only after the call's own
    deadline and both of these.
    """

    kind: Literal["lookup", "replay"]
    ask: ReconcileCall
    key_retention_s: int
    visible_after_s: float = 0.0
    settles_after_s: float = 0.0


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
    ``effect_of`` leaves out of the arguments what changes nothing outside.
    ``verified_by`` names the read that shows the effect by its identifier.

    Raises:
        Misuse: when a write has no key template, or no way to reconcile and is not ``approval_required``; when a
            bound, the name, the key template or the schema is unusable. The message names every problem.

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
    effect_of: Callable[[Arguments], Arguments] = whole
    tags: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        problems = [
            *_name_problems(self.name),
            *_schema_problems(self.parameters),
            *self._effect_problems(),
            *self._bound_problems(),
            *self._key_problems(),
        ]
        if problems:
            raise Misuse(f"tool {self.name!r} cannot be loaded: " + "; ".join(problems))

    def _effect_problems(self) -> list[str]:
        if self.effect == "read":
            only_writes = {
                "idempotency_key": self.idempotency_key,
                "reconcile": self.reconcile,
                "precondition": self.precondition,
                "verified_by": self.verified_by,
            }
            given = [name for name, value in only_writes.items() if value is not None]
            return [f"only a write takes {name}; declare effect='write' or leave it out" for name in given]
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
        problems = [
            f"{name} must be positive and finite, not {value}"
            for name, value in bounds.items()
            if not 0 < value < math.inf
        ]
        if self.cost_bound_micro_usd < 0:
            problems.append(f"cost_bound_micro_usd must not be negative, not {self.cost_bound_micro_usd}")
        return problems

    def _key_problems(self) -> list[str]:
        if self.idempotency_key is None:
            return []
        try:
            parts = list(string.Formatter().parse(self.idempotency_key))
        except ValueError as unreadable:
            return [f"idempotency_key {self.idempotency_key!r} is no template: {unreadable}"]
        declared = self.parameters.get("properties")
        properties = declared if isinstance(declared, Mapping) else {}
        required = self.parameters.get("required")
        always = set(required) if isinstance(required, list) else set()
        fields = [name for _, name, _, _ in parts if name is not None]
        if not fields:
            return ["idempotency_key must name at least one argument, else every call is the same effect"]
        problems = [
            problem
            for name in dict.fromkeys(fields)
            if (problem := _field_problem(name, properties, always)) is not None
        ]
        if any(conversion or specification for _, _, specification, conversion in parts):
            problems.append(
                "idempotency_key takes plain fields such as {order_id}, without '!' or ':' inside the braces"
            )
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
            effect_of=self.effect_of,
        )

    def key_for(self, args: Arguments) -> str | None:
        """The deterministic idempotency key of this call, or None for a read."""
        return None if self.idempotency_key is None else self.idempotency_key.format(**args)


_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_IDENTIFYING_TYPES = ("string", "integer")
_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
_Answer = TypeVar("_Answer")


def _name_problems(name: str) -> list[str]:
    problems = []
    if _TOOL_NAME.fullmatch(name) is None:
        problems.append("a name is 1 to 64 letters, digits, '_' or '-' (providers accept no other)")
    if name in CONTROL_ACTIONS:
        problems.append(
            f"{name!r} is one of the loop's own actions ({', '.join(CONTROL_ACTIONS)}); choose another name"
        )
    return problems


def _schema_problems(parameters: Mapping[str, JsonValue]) -> list[str]:
    problems = []
    if parameters.get("type") != "object":
        problems.append("parameters must be a JSON Schema with type 'object'")
    try:
        if not jsonschema_rs.meta.is_valid(dict(parameters)):
            problems.append("parameters is no valid JSON Schema")
    except (TypeError, ValueError) as unusable:
        problems.append(f"parameters is no JSON Schema: {unusable}")
    else:
        elsewhere = sorted(set(_references(dict(parameters))))
        problems += [
            f"parameters refers to {target!r}; only references inside it (#/...) work" for target in elsewhere
        ]
    return problems


def _references(schema: JsonValue) -> list[str]:
    """The targets of all references that leave the schema: resolving one would go to the network."""
    found: list[str] = []
    left: list[JsonValue] = [schema]
    while left:
        match left.pop():
            case dict() as members:
                target = members.get("$ref")
                if isinstance(target, str) and not target.startswith("#"):
                    found.append(target)
                left.extend(members.values())
            case list() as items:
                left.extend(items)
            case _:
                pass
    return found


def _field_problem(name: str, properties: Mapping[str, JsonValue], always: set[JsonValue]) -> str | None:
    """Why this argument cannot be part of a key, or None when it can."""
    if name not in properties:
        return f"idempotency_key names {name!r}, which is no argument"
    if name not in always:
        return f"idempotency_key names {name!r}, which is optional: a key must not depend on an absent value"
    declared = properties[name]
    kind = declared.get("type") if isinstance(declared, Mapping) else None
    if kind is not None and kind not in _IDENTIFYING_TYPES:
        return f"idempotency_key names {name!r}, which is {kind!r}: only strings and integers identify an effect"
    return None


async def run_call(spec: ToolSpec, args: Arguments, context: ToolContext) -> ToolResult:
    """Do a tool's work once, within ``context.timeout_s``, and let only known outcomes out.

    Whatever else a tool raises or returns is its defect. Of a read that is a ``ToolFault``; of a write nobody knows
    what it did before, so that it is ``OutcomeUnknown``. Cancellation of the caller passes through: the intent in
    the ledger then has no result, which is reconciled like an unknown outcome.

    Raises:
        ToolFault: a known failure; a write had no effect. A read can fail with ``timeout``, ``tool_defect`` and
            ``payload_too_large`` too.
        OutcomeUnknown: a write may have happened.

    Source: DESIGN §6.
    """
    if spec.effect == "write" and context.idempotency_key is None:
        raise Misuse(f"{spec.name} is a write: its context needs the idempotency key from the ledger")
    try:
        result = await _bounded(spec.name, spec.call, args, context)
        return _checked(spec, result)
    except ToolFault as fault:
        if spec.effect == "write" and fault.category in _NEVER_OF_A_WRITE:
            raise OutcomeUnknown(str(fault)) from fault
        raise
    except OutcomeUnknown as unknown:
        if spec.effect == "read":
            raise ToolFault(
                "tool_defect", f"{spec.name} is a read and has no outcome to lose: {unknown}"
            ) from unknown
        raise


_NEVER_OF_A_WRITE = ("timeout", "garbage", "tool_defect", "payload_too_large")
"""Faults that leave open what a write did, whoever raises them."""


async def run_reconcile(spec: ToolSpec, args: Arguments, context: ToolContext) -> ReconcileAnswer:
    """Ask the tool's service what became of the context's key, within ``context.timeout_s``.

    A replay whose own outcome is unknown is ``Undecided``, as is a tool that cannot be asked at all.

    Raises:
        ToolFault: the service did not answer; a retryable fault may be asked again.
    """
    if spec.reconcile is None:
        return Undecided(f"{spec.name} declares no way to look an effect up or to replay it")
    try:
        answer = await _bounded(spec.name, spec.reconcile.ask, args, context)
    except OutcomeUnknown as unknown:
        return Undecided(str(unknown))
    match answer:
        case Found(result=result):
            return Found(_checked(spec, result))
        case Absent() | Undecided():
            return answer
        case _:
            raise ToolFault("tool_defect", f"the reconcile of {spec.name} returned {_clipped(repr(answer))}")


async def run_precondition(spec: ToolSpec, args: Arguments, context: ToolContext) -> PreconditionAnswer:
    """Read again whether a write may still be sent, within ``context.timeout_s``; without a precondition it may.

    Raises:
        ToolFault: the world could not be read, so that nothing may be sent.
    """
    if spec.precondition is None:
        return PreconditionHeld()
    try:
        answer = await _bounded(spec.name, spec.precondition, args, context)
    except OutcomeUnknown as unknown:
        raise ToolFault("tool_defect", f"the precondition of {spec.name} wrote something: {unknown}") from unknown
    match answer:
        case PreconditionHeld() | PreconditionBroken():
            return answer
        case _:
            raise ToolFault("tool_defect", f"the precondition of {spec.name} returned {_clipped(repr(answer))}")


async def _bounded(
    name: str, work: Callable[[Arguments, ToolContext], Awaitable[_Answer]], args: Arguments, context: ToolContext
) -> _Answer:
    """Do a tool's work with a deadline; turn everything that a tool should not raise into its fault."""
    try:
        async with asyncio.timeout(context.timeout_s):
            return await work(args, context)
    except (ToolFault, OutcomeUnknown):
        raise
    except TimeoutError as late:
        raise ToolFault("timeout", f"{name} did not answer within {context.timeout_s:g} s", retryable=True) from late
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled the caller: the tool cancelled itself, and that must not look like a shutdown.
        raise ToolFault("tool_defect", f"{name} cancelled its own work") from cancelled
    except Exception as defect:  # a tool is foreign code: whatever it raises must not end the loop
        message = f"{name} failed with {type(defect).__name__}: {_clipped(str(defect))}"
        raise ToolFault("tool_defect", message) from defect


def _checked(spec: ToolSpec, result: ToolResult) -> ToolResult:
    """The result, if it is JSON data of a size that the tool declared."""
    if not isinstance(result, ToolResult):
        raise ToolFault("tool_defect", f"{spec.name} returned {_clipped(repr(result))} instead of a ToolResult")
    size_bytes = json_size_bytes(result.payload)
    if size_bytes is None:
        raise ToolFault("tool_defect", f"{spec.name} returned something that is not JSON data")
    if size_bytes > spec.payload_limit_bytes:
        raise ToolFault(
            "payload_too_large",
            f"{spec.name} returned {size_bytes} bytes; its limit is {spec.payload_limit_bytes}. Ask for less.",
        )
    return result


def json_size_bytes(payload: object) -> int | None:
    """The size of a payload as compact JSON in UTF-8, or None where it is not JSON data.

    Strict: no tuples, no bytes, no keys but strings, no NaN or infinity, no lone surrogates, no endless nesting.
    """
    try:
        data = _JSON.validate_python(payload, strict=True)
        return len(json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())
    except (ValueError, TypeError, RecursionError):  # pydantic's and Unicode's errors are ValueErrors
        return None


_MAX_MESSAGE_CHARS = 300


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[: _MAX_MESSAGE_CHARS - 1] + "…"
