"""When the refund loop has reached its goal: judged over recorded evidence, never over what the model says.

Source: DESIGN §9.
"""

from agentic_loop.graph.records import Completed, CompletionAnswer, Incomplete, TaskView
from agentic_loop.policies.claims import unsupported
from agentic_loop.policies.refund_evidence import (
    GOOD_STATUSES,
    RefundSeen,
    notice_of,
    notice_sent,
    order_in_request,
    read_back,
    refund_at_stake,
)

_SHOWN_PROBLEMS = 3


def assess(view: TaskView) -> CompletionAnswer:
    """Completed once the refund was read back by id as pending or settled, the customer told, and every claim holds.

    The message that is judged is ``view.message``, else the text of the notification.
    """
    stake = refund_at_stake(view)
    if stake is None:
        return Incomplete("no refund evidence: nothing recorded shows a refund for the later of two captures")
    refund_id = stake.refund.refund_id
    verified = read_back(view, refund_id)
    if verified is None:
        return Incomplete(f"no verification: refund {refund_id} was not read back by its id")
    problem = _refund_problem(stake.refund, verified.refund, order_in_request(view))
    if problem is not None:
        return Incomplete(problem)
    if not notice_sent(view, refund_id):
        return Incomplete(f"no notification: the customer has not been told about refund {refund_id}")
    problem = _message_problem(view, refund_id)
    if problem is not None:
        return Incomplete(problem)
    status = verified.refund.status
    return Completed(
        f"refund {refund_id} was read back as {status} ({verified.evidence.id}), and the customer was told"
    )


def _refund_problem(stake: RefundSeen, verified: RefundSeen, order_id: str | None) -> str | None:
    if order_id and verified.order_id != order_id:
        return (
            f"wrong order: refund {verified.refund_id} is of order {verified.order_id}, the task is about {order_id}"
        )
    if verified.payment_id != stake.payment_id or verified.amount_inr != stake.amount_inr:
        return f"contradiction: refund {verified.refund_id} was read back with another payment or amount"
    if verified.status not in GOOD_STATUSES:
        return f"refund {verified.refund_id} is {verified.status}, neither pending nor settled"
    return None


def _message_problem(view: TaskView, refund_id: str) -> str | None:
    message = view.message.strip()
    if not message:
        notice = notice_of(view, refund_id)
        body = notice.args.get("body") if notice is not None else None
        message = body.strip() if isinstance(body, str) else ""
    if not message:
        return "no message: the final message to the customer is empty"
    problems = unsupported(message, {record.id: record for record in view.evidence})
    if not problems:
        return None
    return "the message is not supported by evidence: " + "; ".join(problems[:_SHOWN_PROBLEMS])
