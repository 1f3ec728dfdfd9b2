"""What the refund loop does by itself once money has moved: read the refund back by its id, then tell the customer.

Source: DESIGN §2 (two sources of a proposal), §9; the message is a template over verified facts.
"""

import json

from pydantic import JsonValue

from agentic_loop.graph.records import TaskView
from agentic_loop.graph.state import Proposal, ProposedCall

from .fingerprints import args_hash
from .refund_evidence import (
    GOOD_STATUSES,
    RefundRecord,
    issued_refund,
    newest_order,
    notice_of,
    notice_reference,
    notice_sent,
    order_of_task,
    read_back,
    refund_at_stake,
    refund_status_known,
)

INVESTIGATE, PROPOSE, SETTLE = "investigate", "propose", "settle"
"""The phases of the refund loop, in order."""

_EXECUTED = ("executed", "verified")


def phase_of(view: TaskView) -> str:
    """The phase that the evidence calls for; a settling task goes on settling.

    ``investigate`` lasts until an order and its refunds were looked up. ``settle`` begins when a refund was issued,
    or when the model wants to stop and a refund of the later capture exists already.
    """
    if view.phase == SETTLE or issued_refund(view) is not None or _refund_executed(view):
        return SETTLE
    existing = refund_at_stake(view)
    if view.finish_proposed and existing is not None and existing.refund.status in GOOD_STATUSES:
        return SETTLE
    order_id = order_of_task(view)
    if order_id is None or newest_order(view.evidence, order_id) is None:
        return INVESTIGATE
    return PROPOSE if refund_status_known(view.evidence, order_id) else INVESTIGATE


def next_proposal(view: TaskView) -> Proposal | None:
    """The next step of settling, or None where nothing is due (or nothing can be said truthfully).

    The same view gives the same proposal, call id included.
    """
    if phase_of(view) != SETTLE:
        return None
    target = refund_at_stake(view)
    if target is None:
        return None
    refund_id = target.refund.refund_id
    verified = read_back(view, refund_id)
    if verified is None:
        return _proposal("get_refund", {"refund_id": refund_id}, view)
    if verified.refund.status not in GOOD_STATUSES or notice_sent(view, refund_id):
        return None
    notice = notice_for(verified, view)
    return None if notice is None else _proposal("notify_customer", notice, view)


def notice_for(verified: RefundRecord, view: TaskView) -> dict[str, JsonValue] | None:
    """The arguments of the notification about a refund that was read back; None where its order is not in evidence.

    Every sentence that claims something cites its evidence.
    """
    refund = verified.refund
    found = newest_order(view.evidence, refund.order_id)
    if found is None:
        return None
    order, seen = found
    captured = order.captured.get(refund.payment_id)
    if captured is None:
        return None
    body = (
        "Dear customer,\n"
        f"Payment {captured.payment_id} of INR {captured.amount_inr:,} on order {order.order_id} was captured after "
        f"an earlier payment for the same order [{seen.id}].\n"
        f"Your refund {refund.refund_id} of INR {refund.amount_inr:,} for payment {refund.payment_id} is "
        f"{refund.status} [{verified.evidence.id}].\n"
        "Kind regards,\n"
        "Customer support"
    )
    return {
        "recipient": order.customer_id,
        "subject": f"Your refund for order {order.order_id}",
        "body": body,
        "reference": notice_reference(refund),
    }


def final_message(view: TaskView) -> str:
    """The message of a task that succeeded, with its citations: what the customer was told, else the finish."""
    target = refund_at_stake(view)
    notice = notice_of(view, target.refund.refund_id) if target is not None else None
    body = notice.args.get("body") if notice is not None else None
    return body if isinstance(body, str) and body.strip() else view.message


def _refund_executed(view: TaskView) -> bool:
    return any(action.kind == "issue_refund" and action.status in _EXECUTED for action in view.outstanding)


def _proposal(tool: str, args: dict[str, JsonValue], view: TaskView) -> Proposal:
    # The count of evidence tells a repeated step from the first, without a counter of its own.
    call_id = f"settle-{len(view.evidence)}-{args_hash(tool, args)[:16]}"
    arguments = json.dumps(args, sort_keys=True, ensure_ascii=False)
    return Proposal(source="workflow", calls=[ProposedCall(call_id=call_id, name=tool, arguments_json=arguments)])
