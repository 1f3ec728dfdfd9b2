"""The reply: what a proposal amounts to once names, phase, arguments and batch have been judged.

Everything in a proposal is untrusted text. The whole batch is judged before any call of it may run, and an invalid
call fails alone.

Source: DESIGN §2 (step 4; several calls in one answer), §4 (bounds on calls), §5 (tools are an allow-list).
"""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import assert_never

from pydantic import JsonValue

from agentic_loop.graph.contract import CONTROL_ACTIONS, ControlAction, PhaseRule
from agentic_loop.graph.records import ToolShape
from agentic_loop.graph.state import (
    CallFault,
    CheckedCall,
    Limits,
    Proposal,
    ProposedCall,
    ReplyFault,
    Verdict,
)

from .arguments import ArgumentsRefused, normalise
from .fingerprints import action_hash, args_hash

MAX_NAME_CHARS = 64
"""How much of a name or call id that a model made up is kept."""

MAX_KEY_CHARS = 255
"""The longest idempotency key; it travels in a header and is the key of a table."""

_GOOD_CALL_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_GOOD_KEY = re.compile(rf"[\x20-\x7e]{{1,{MAX_KEY_CHARS}}}", re.ASCII)


def _text_field(description: str) -> dict[str, JsonValue]:
    return {"type": "string", "minLength": 1, "maxLength": 8_000, "description": description}


def _control(name: ControlAction, description: str, properties: dict[str, JsonValue]) -> ToolShape:
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return ToolShape(name=name, description=description, parameters=parameters, effect="read", scope="")


CONTROL_SHAPES: Mapping[str, ToolShape] = {
    shape.name: shape
    for shape in (
        _control(
            "finish",
            "Propose to end the task as completed. It is checked against the recorded evidence.",
            {"message": _text_field("The final message; every fact in it must be in the evidence.")},
        ),
        _control(
            "ask_user",
            "Ask for a fact that only the user can give. The task pauses until it is answered.",
            {"question": _text_field("One precise question.")},
        ),
        _control(
            "blocked",
            "Say that no available action can bring the task further.",
            {"reason": _text_field("What is in the way.")},
        ),
        _control(
            "wait_and_recheck",
            "Wait for something outside to change, then go on. Use it instead of repeating a call.",
            {
                "wait_s": {"type": "integer", "minimum": 1, "maximum": 3_600, "description": "Seconds to wait."},
                "reason": _text_field("What is expected to change."),
            },
        ),
    )
}
"""The control actions as they are offered and validated: like tools, but nothing is called."""


def judge(
    proposal: Proposal,
    *,
    shapes: Mapping[str, ToolShape],
    rule: PhaseRule,
    limits: Limits,
    calls_so_far: Mapping[str, int],
    stop_on: Sequence[str],
) -> Verdict:
    """What the proposal amounts to; total over every proposal, whoever made it.

    ``shapes`` are the tools that the contract lists, ``rule`` says which of them and which control actions the
    present phase allows, ``calls_so_far`` counts earlier calls by tool. The verdict of a control action carries its
    one call as well, for the record. A verdict in which every call has a fault is ``invalid``.

    Source: DESIGN §2, §4, §5.
    """
    fault = proposal.fault
    if fault is None and not proposal.calls:
        fault = "text_without_call" if proposal.text.strip() else "empty"
    if fault is not None:
        return Verdict(kind="invalid", text=_storable(proposal.text), fault=_reply_fault(fault))
    batch = _Batch(shapes=shapes, rule=rule, limits=limits, calls_so_far=calls_so_far, stop_on=stop_on)
    calls = batch.judged(proposal.calls)
    usable = [call for call in calls if call.fault is None]
    if not usable:
        return Verdict(kind="invalid", calls=calls, text=_storable(proposal.text), fault=_first_fault(calls))
    # A usable control action is always alone, because mixing faults it.
    control = control_named(usable[0].tool)
    if control is None:
        return Verdict(kind="calls", calls=calls, text=_storable(proposal.text))
    return _control_verdict(control, calls, usable[0].args)


def control_named(name: str) -> ControlAction | None:
    """The control action of exactly this name, if there is one."""
    return next((control for control in CONTROL_ACTIONS if control == name), None)


def _control_verdict(control: ControlAction, calls: list[CheckedCall], args: Mapping[str, JsonValue]) -> Verdict:
    match control:
        case "finish":
            return Verdict(kind="finish", calls=calls, text=str(args["message"]))
        case "ask_user":
            return Verdict(kind="ask_user", calls=calls, text=str(args["question"]))
        case "blocked":
            return Verdict(kind="blocked", calls=calls, text=str(args["reason"]))
        case "wait_and_recheck":
            wait_s = args["wait_s"]
            assert isinstance(wait_s, int)  # the schema says so
            return Verdict(kind="wait_and_recheck", calls=calls, text=str(args["reason"]), wait_s=wait_s)
        case _:
            assert_never(control)


def _first_fault(calls: Sequence[CheckedCall]) -> CallFault:
    fault = next(call.fault for call in calls if call.fault is not None)
    more = len(calls) - 1
    return fault if more == 0 else CallFault(category=fault.category, message=f"{fault.message} (and {more} more)")


# --- one answer with its calls ----------------------------------------------------------------------------------


class _Batch:
    """The calls of one answer, judged together: what one may do depends on what else is proposed."""

    def __init__(
        self,
        *,
        shapes: Mapping[str, ToolShape],
        rule: PhaseRule,
        limits: Limits,
        calls_so_far: Mapping[str, int],
        stop_on: Sequence[str],
    ) -> None:
        self._shapes = shapes
        self._rule = rule
        self._limits = limits
        self._admitted = Counter(calls_so_far)
        self._stop_on = stop_on
        self._allowed = [name for name in rule.tools if name in shapes] + [*rule.controls]

    def judged(self, calls: Sequence[ProposedCall]) -> list[CheckedCall]:
        """Every call with its fault or its normal form, in the order of the answer."""
        call_ids = _unique_ids(calls)
        return [
            self._judged_one(call, call_id, position, alone=len(calls) == 1)
            for position, (call, call_id) in enumerate(zip(calls, call_ids, strict=True))
        ]

    def _judged_one(self, call: ProposedCall, call_id: str, position: int, *, alone: bool) -> CheckedCall:
        shape = self._shape_of(call.name)
        effect = "read" if shape is None else shape.effect
        fault = (
            self._position_fault(position)
            or self._name_fault(call.name, shape)
            or self._mixture_fault(call.name, effect, alone)
        )
        if shape is None or fault is not None:
            return CheckedCall(
                call_id=call_id,
                tool=shape.name if shape is not None else printable_name(call.name),
                effect=effect,
                fault=fault,
                ends_task=self._is_violation(call.name),
            )
        try:
            args = normalise(call.arguments_json, shape)
            key = _idempotency_key(shape, args)
        except ArgumentsRefused as refused:
            fault = CallFault(category="invalid_arguments", message=f"{shape.name}: {refused}")
            return CheckedCall(call_id=call_id, tool=shape.name, effect=effect, fault=fault)
        return CheckedCall(
            call_id=call_id,
            tool=shape.name,
            args=args,
            args_hash=args_hash(shape.name, args),
            effect=effect,
            idempotency_key=key,
            action_hash=action_hash(shape.name, shape.effect_of(args), key),
            fault=self._content_fault(shape, args) or self._count_fault(shape),
        )

    def _shape_of(self, name: str) -> ToolShape | None:
        return CONTROL_SHAPES[name] if control_named(name) else self._shapes.get(name)

    def _is_violation(self, name: str) -> bool:
        """Whether the contract ends the task for proposing this: a tool that is unknown or not granted now."""
        is_granted = control_named(name) is not None or (name in self._rule.tools and name in self._shapes)
        return "policy_violation" in self._stop_on and not is_granted

    def _name_fault(self, name: str, shape: ToolShape | None) -> CallFault | None:
        if shape is None:
            return CallFault(category="unknown_tool", message=self._unknown_message(name))
        if name not in self._allowed:
            listed = ", ".join(self._allowed) or "none"
            return CallFault(
                category="not_allowed_now",
                message=f"{shape.name} is not allowed in the phase {self._rule.name!r}; allowed now: {listed}",
            )
        return None

    def _unknown_message(self, name: str) -> str:
        shown = ascii(printable_name(name))
        if name.removeprefix("multi_tool_use.") == "parallel":
            return f"there is no tool named {shown}; propose the calls side by side in one answer, without a wrapper"
        nearest = _nearest(name[:200], self._allowed)
        advice = f"did you mean {nearest}? " if nearest else ""
        listed = ", ".join(self._allowed) or "none"
        return f"there is no tool named {shown}; {advice}names must match exactly. Available now: {listed}"

    def _mixture_fault(self, name: str, effect: str, alone: bool) -> CallFault | None:
        if not alone and control_named(name):
            return CallFault(
                category="not_allowed_now",
                message=f"{name} was proposed together with other calls and was ignored; propose it alone",
            )
        if not alone and effect == "write":
            return CallFault(
                category="not_allowed_now",
                message=f"{name} changes something and was proposed together with other calls; propose it alone",
            )
        return None

    def _position_fault(self, position: int) -> CallFault | None:
        most = self._limits.max_calls_per_step
        if position < most:
            return None
        return CallFault(
            category="call_limit", message=f"at most {most} calls fit in one answer; this one was not looked at"
        )

    def _content_fault(self, shape: ToolShape, args: Mapping[str, JsonValue]) -> CallFault | None:
        """What the schema of a control action cannot say."""
        if control_named(shape.name) is None:
            return None
        blank = next((name for name, value in args.items() if isinstance(value, str) and not value.strip()), None)
        if blank is not None:
            return CallFault(category="invalid_arguments", message=f"{shape.name}: /{blank}: is blank; write a text")
        question, longest = str(args.get("question", "")), self._limits.max_question_chars
        if len(question) > longest:
            return CallFault(
                category="invalid_arguments",
                message=f"{shape.name}: /question: has {len(question)} characters; at most {longest} are passed on",
            )
        return None

    def _count_fault(self, shape: ToolShape) -> CallFault | None:
        """Count the call in, or say that the tool has been called often enough."""
        if control_named(shape.name):
            return None
        most = min(shape.max_calls, self._limits.max_calls_per_tool)
        if self._admitted[shape.name] >= most:
            return CallFault(
                category="call_limit",
                message=f"{shape.name} may be called {most} times in a task and has been; use the evidence at hand",
            )
        self._admitted[shape.name] += 1
        return None


def _idempotency_key(shape: ToolShape, args: Mapping[str, JsonValue]) -> str | None:
    """The deterministic key of a write.

    Raises:
        ArgumentsRefused: no usable key can be made of these arguments.
    """
    if shape.effect == "read":
        return None
    if shape.idempotency_key is None:
        raise ArgumentsRefused("this tool changes something but has no idempotency key; it cannot be used")
    try:
        key = shape.idempotency_key.format(**args)
    except (KeyError, IndexError, AttributeError, ValueError):
        raise ArgumentsRefused(
            f"no idempotency key can be made from these arguments; the fields in {shape.idempotency_key!r} are needed"
        ) from None
    if not _GOOD_KEY.fullmatch(key):
        raise ArgumentsRefused(
            "the identifiers are too long or hold characters outside printable ASCII; "
            "send them exactly as the evidence has them"
        )
    return key


# --- names, ids, texts ------------------------------------------------------------------------------------------


def _unique_ids(calls: Sequence[ProposedCall]) -> list[str]:
    """One id per call: the model's where it is usable and new, else one made from the position."""
    reserved = {call.call_id for call in calls}
    seen: set[str] = set()
    ids: list[str] = []
    for number, call in enumerate(calls, start=1):
        call_id = call.call_id
        if not _GOOD_CALL_ID.fullmatch(call_id):
            call_id = _free(f"call-{number}", reserved)
        elif call_id in seen:
            call_id = _free(f"{call_id[:40]}-call-{number}", reserved)
        seen.add(call_id)
        reserved.add(call_id)
        ids.append(call_id)
    return ids


def _free(call_id: str, reserved: set[str]) -> str:
    """The id, lengthened until nobody else has it; ends, because ``reserved`` is finite."""
    while call_id in reserved:
        call_id += "x"
    return call_id


def printable_name(name: str) -> str:
    """A name that a model made up, in printable characters and shortened, fit for records and messages."""
    shown = ascii(name[:MAX_NAME_CHARS])[1:-1]
    return shown if len(name) <= MAX_NAME_CHARS else shown + "..."


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that was probably meant."""
    trimmed = name.strip()
    bare = trimmed.rsplit(".", 1)[-1]
    for candidate in (trimmed, bare):
        if candidate in known:
            return candidate
    close = difflib.get_close_matches(bare, known, n=1, cutoff=0.6)
    contained = [one for one in known if one in trimmed]
    return close[0] if close else next(iter(contained), None)


def _storable(text: str) -> str:
    """The text without the one character that Postgres does not store."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def _reply_fault(fault: ReplyFault) -> CallFault:
    match fault:
        case "cut_off":
            return CallFault(
                category="garbage",
                message="the answer was cut off at its length limit, so nothing in it was carried out, even where it "
                "looks complete; propose one call with short arguments",
            )
        case "refusal":
            return CallFault(
                category="rejected",
                message="the answer was a refusal, which is not an action; propose a tool call, ask_user, or blocked "
                "with the reason",
            )
        case "filtered":
            return CallFault(
                category="garbage",
                message="the provider's content filter withheld the answer, so nothing was carried out; propose one "
                "call with plain arguments, or blocked",
            )
        case "empty":
            return CallFault(
                category="garbage", message="the answer was empty; propose a tool call, finish, ask_user or blocked"
            )
        case "text_without_call":
            return CallFault(
                category="garbage",
                message="text is not an action: nothing was carried out and nothing it claims counts as done; "
                "propose a tool call, finish with a message, ask_user with a question, or blocked with a reason",
            )
        case _:
            assert_never(fault)
