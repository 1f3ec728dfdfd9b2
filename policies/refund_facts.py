"""What the refund policies may know: facts computed from recorded evidence, and from nothing else.

Source: DESIGN §5 (facts in the context come from evidence).
"""

import re
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, JsonValue

from agentic_loop.graph.records import TaskView

from .claims import cited, unsupported
from .refund_evidence import (
    OrderSeen,
    RefundRecord,
    newest_order,
    notice_reference,
    order_of_task,
    refund_status_known,
    refunds_seen,
)


class RefundFacts(BaseModel):
    """The facts about one call of the refund loop. None means that no evidence says so. Amounts are in rupees.

    ``order_named`` says that the request (goal or inputs) names the order. ``captures`` counts the captured payments
    of the order. ``payment_is_later`` says that the named payment is captured and later than every other capture.
    ``refunds_for_payment`` counts refunds of any status, and ``refunded_inr`` adds up those of the order that have
    not failed. ``refund_exists`` says that the refund which a notification refers to was seen; ``message_problems``
    counts the claims of the notification without support.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    order_named: bool = False
    order_known: bool = False
    order_tenant: str | None = None
    customer_id: str | None = None
    currency: str | None = None
    captures: int = 0
    amounts_equal: bool = False
    chargeback_open: bool = False
    payment_is_later: bool = False
    payment_amount_inr: int | None = None
    refund_status_known: bool = False
    refunds_for_payment: int = 0
    refunded_inr: int = 0
    refund_exists: bool = False
    message_problems: int = 0


def refund_facts(tool: str, args: Mapping[str, JsonValue], view: TaskView) -> RefundFacts:
    """The facts about one call, from the newest evidence about the order that the call concerns."""
    refunds = refunds_seen(view.evidence)
    refund = _refund_of_call(tool, args, refunds)
    order_id = _order_of_call(tool, args, view, refund)
    payment_id = _text(args, "payment_id")
    found = newest_order(view.evidence, order_id)
    order = None if found is None else found[0]
    of_order = [record.refund for record in refunds.values() if record.refund.order_id == order_id]
    common = RefundFacts(
        order_named=is_named(order_id, view),
        refund_status_known=refund_status_known(view.evidence, order_id),
        refunds_for_payment=sum(seen.payment_id == payment_id for seen in of_order),
        refunded_inr=sum(seen.amount_inr for seen in of_order if seen.status != "failed"),
        refund_exists=refund is not None,
        message_problems=_message_problems(args, view) if tool == "notify_customer" else 0,
    )
    return common if order is None else common.model_copy(update=_order_facts(order, payment_id))


def is_named(order_id: str, view: TaskView) -> bool:
    """Whether the request names this order as a word of its own: in its goal, its inputs, or what was added later."""
    words = " ".join([view.task.goal, *view.task.inputs.values(), *view.inputs.values()])
    return bool(order_id) and re.search(rf"(?<![\w-]){re.escape(order_id)}(?![\w-])", words) is not None


def _order_of_call(tool: str, args: Mapping[str, JsonValue], view: TaskView, refund: RefundRecord | None) -> str:
    if refund is not None:
        return refund.refund.order_id
    # A notification names no order; without a refund to lead to one, it can only be about the task's.
    return (order_of_task(view) or "") if tool == "notify_customer" else _text(args, "order_id")


def _order_facts(order: OrderSeen, payment_id: str) -> dict[str, JsonValue]:
    captured = order.captured
    later = order.later_capture
    named = captured.get(payment_id)
    return {
        "order_known": True,
        "order_tenant": order.tenant,
        "customer_id": order.customer_id,
        "currency": order.currency,
        "captures": len(captured),
        "amounts_equal": len({payment.amount_inr for payment in captured.values()}) == 1,
        # Whatever a chargeback is called, only its known absence lets money move.
        "chargeback_open": order.chargeback != "none",
        "payment_is_later": named is not None and named == later,
        "payment_amount_inr": None if named is None else named.amount_inr,
    }


def _refund_of_call(
    tool: str, args: Mapping[str, JsonValue], refunds: Mapping[str, RefundRecord]
) -> RefundRecord | None:
    match tool:
        case "get_refund":
            return refunds.get(_text(args, "refund_id"))
        case "notify_customer":
            # Only this spelling: another reference would be another idempotency key, and a second message.
            given = _text(args, "reference")
            return next((seen for seen in refunds.values() if notice_reference(seen.refund) == given), None)
        case _:
            return None


def _message_problems(args: Mapping[str, JsonValue], view: TaskView) -> int:
    """Problems of body and subject; the subject carries no marks, so it is judged against what the body cites."""
    evidence = {record.id: record for record in view.evidence}
    subject, body = _text(args, "subject"), _text(args, "body")
    marks = "".join(f" [{name}]" for name in cited(body))
    return len(unsupported(subject + marks, evidence)) + len(unsupported(body, evidence))


def _text(args: Mapping[str, JsonValue], name: str) -> str:
    value = args.get(name)
    return value if isinstance(value, str) else ""
