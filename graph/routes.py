"""Every edge of the loop, readable as its diagram.

A router maps the route that a policy chose to a node and decides nothing. Each is total: whatever it does not expect
goes to the stop check, because an edge that raises would end a run silently.

Source: DESIGN §2 (the diagram).
"""

from typing import Literal

from langgraph.graph import END

from .state import LoopState

ENTRY = "observe"
"""The node in which every run begins."""


def after_observe(state: LoopState) -> Literal["reconcile", "await_approval", "stop_check", "__end__"]:
    """An open intent first, then a pending approval; an ended or sleeping task stays as it is."""
    match state.get("next"):
        case "reconcile" | "await_approval" as node:
            return node
        case "end":
            return "__end__"
        case _:
            return "stop_check"


def after_stop_check(state: LoopState) -> Literal["finish", "validate", "build_input", "__end__"]:
    """End, let the workflow propose, ask the model, or sleep until it is time to look again."""
    match state.get("next"):
        case "validate" | "build_input" as node:
            return node
        case "end":
            return "__end__"
        case _:
            return "finish"


def after_build_input(state: LoopState) -> Literal["decide", "stop_check"]:
    """Ask the model only when the most it can cost has been reserved."""
    match state.get("next"):
        case "decide" as node:
            return node
        case _:
            return "stop_check"


def after_decide(state: LoopState) -> Literal["validate", "stop_check"]:
    """A proposal is validated; a model that is down, or an inference cut short, is for the stop check."""
    match state.get("next"):
        case "validate" as node:
            return node
        case _:
            return "stop_check"


def after_validate(state: LoopState) -> Literal["authorise", "record", "stop_check"]:
    """Usable calls are authorised, unusable ones recorded, control proposals judged."""
    match state.get("next"):
        case "authorise" | "record" as node:
            return node
        case _:
            return "stop_check"


def after_authorise(state: LoopState) -> Literal["execute", "request_approval", "record"]:
    """Allowed calls run, gated ones wait for a person, denied ones are recorded."""
    match state.get("next"):
        case "execute" | "request_approval" as node:
            return node
        case _:
            return "record"


def after_request_approval(state: LoopState) -> Literal["await_approval", "stop_check"]:
    """Wait for the answer, unless nobody answered in time too often."""
    match state.get("next"):
        case "await_approval" as node:
            return node
        case _:
            return "stop_check"


def after_await_approval(state: LoopState) -> Literal["validate", "record", "request_approval", "await_approval"]:
    """Approved or edited: everything is checked again. Rejected: recorded. Expired: asked once more."""
    match state.get("next"):
        case "validate" | "record" | "request_approval" as node:
            return node
        case _:
            return "await_approval"


def after_execute(state: LoopState) -> Literal["record", "reconcile", "validate"]:
    """A result is recorded, an unknown outcome reconciled, an approval that ran out judged again."""
    match state.get("next"):
        case "record" | "validate" as node:
            return node
        case _:
            return "reconcile"


def after_reconcile(state: LoopState) -> Literal["record", "execute", "stop_check"]:
    """Applied: recorded. Confirmed not applied: sent once more with the same key. Unknown: a person must look."""
    match state.get("next"):
        case "record" | "execute" as node:
            return node
        case _:
            return "stop_check"


def after_record(_state: LoopState) -> Literal["stop_check"]:
    """Every observation is followed by the stop check."""
    return "stop_check"


def after_finish(_state: LoopState) -> Literal["__end__"]:
    """The one way out."""
    return "__end__"


ROUTERS = {
    "observe": after_observe,
    "stop_check": after_stop_check,
    "build_input": after_build_input,
    "decide": after_decide,
    "validate": after_validate,
    "authorise": after_authorise,
    "request_approval": after_request_approval,
    "await_approval": after_await_approval,
    "execute": after_execute,
    "reconcile": after_reconcile,
    "record": after_record,
    "finish": after_finish,
}
"""Which router leads out of which node."""

assert END == "__end__"
