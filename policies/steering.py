"""Where the loop goes next, as a value: what each node's outcome means for the path through the graph.

``graph/routes.py`` maps these values to nodes and decides nothing itself.

Source: DESIGN §2 (the diagram).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

from agentic_loop.graph.records import Intent
from agentic_loop.graph.state import TERMINAL, Approval, CheckedCall, Receipt, Route, Status, Verdict


def after_observe(
    *, status: Status, intents: Sequence[Intent], approval: Approval | None, wake_at: datetime | None, now: datetime
) -> Route:
    """Where a task goes that is entered (again): terminal is final, an open intent comes before everything else."""
    if status in TERMINAL:
        return "end"
    if any(intent.status in ("intended", "unknown") for intent in intents):
        return "reconcile"
    if status == "AWAITING_APPROVAL" and approval is not None:
        return "await_approval"
    if wake_at is not None and now < wake_at:
        return "end"
    return "stop_check"


def after_validate(verdict: Verdict) -> Route:
    """Calls go on to authorisation, what cannot be used is recorded, the rest is for the stop check."""
    match verdict.kind:
        case "calls":
            return "authorise"
        case "invalid":
            return "record"
        case "finish" | "ask_user" | "blocked" | "wait_and_recheck":
            return "stop_check"
        case _:
            assert_never(verdict.kind)


def after_authorise(calls: Sequence[CheckedCall]) -> Route:
    """Anything that may run is executed; an approval that is needed is requested; the rest is recorded."""
    if any(call.fault is None and call.authorisation == "needs_approval" for call in calls):
        return "request_approval"
    if any(call.fault is None and call.authorisation == "allowed" for call in calls):
        return "execute"
    return "record"


def after_execute(receipt: Receipt) -> Route:
    """A call of which nobody knows whether it took effect must be reconciled before anything else happens."""
    return "reconcile" if any(result.outcome == "unknown" for result in receipt.results) else "record"
