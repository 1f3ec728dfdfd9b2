"""Reading the refund loop's evidence: orders with their payments, refunds, notifications, as typed values.

A payload that has not the agreed shape is read as if it were not there, so that it supports nothing.

Source: the wire shapes of the payments, refunds and notifications services.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from agentic_loop.graph.records import EvidenceRecord, TaskView


class WireValue(BaseModel):
    """The base of what services answer: exact types, other fields ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class PaymentSeen(WireValue):
    """One payment of an order. ``amount_inr`` is in whole rupees, as the service counts."""

    payment_id: str
    amount_inr: int
    status: str
    at: Annotated[AwareDatetime, Field(strict=False)]


class OrderSeen(WireValue):
    """An order as the payments service described it."""

    order_id: str
    customer_id: str
    tenant: str
    currency: str
    total_inr: int
    payments: list[PaymentSeen]
    chargeback: str

    @property
    def captured(self) -> dict[str, PaymentSeen]:
        """The captured payments by id."""
        return {payment.payment_id: payment for payment in self.payments if payment.status == "captured"}

    @property
    def later_capture(self) -> PaymentSeen | None:
        """The captured payment that is later than all others; None where there are not two, or two share the time."""
        in_order = sorted(self.captured.values(), key=lambda payment: payment.at)
        if len(in_order) < 2 or in_order[-1].at == in_order[-2].at:
            return None
        return in_order[-1]

    @property
    def duplicate_capture(self) -> PaymentSeen | None:
        """The later of exactly two captures of one amount; of anything else a refund of one resolves nothing."""
        amounts = [payment.amount_inr for payment in self.captured.values()]
        return self.later_capture if len(amounts) == 2 and amounts[0] == amounts[1] else None


class RefundSeen(WireValue):
    """One refund as the refunds service described it."""

    refund_id: str
    order_id: str
    payment_id: str
    amount_inr: int
    status: str


class RefundListSeen(WireValue):
    """All refunds of an order, as a status lookup found them."""

    order_id: str
    refunds: list[RefundSeen]


class NotificationSeen(WireValue):
    """One notification as the notifications service confirmed it."""

    notification_id: str
    status: str


_Wire = TypeVar("_Wire", bound=WireValue)


@dataclass(frozen=True)
class RefundRecord:
    """One sighting of a refund, and the evidence that it is from."""

    refund: RefundSeen
    evidence: EvidenceRecord


def read_as(model: type[_Wire], payload: JsonValue) -> _Wire | None:
    """The payload as this model, or None where it has another shape."""
    try:
        return model.model_validate(payload)
    except ValidationError:
        return None


def newest_order(evidence: Sequence[EvidenceRecord], order_id: str) -> tuple[OrderSeen, EvidenceRecord] | None:
    """The newest description of an order, with the evidence that it is from."""
    for record in reversed(evidence):
        if record.tool == "lookup_order":
            order = read_as(OrderSeen, record.payload)
            if order is not None and order.order_id == order_id:
                return order, record
    return None


def refund_status_known(evidence: Sequence[EvidenceRecord], order_id: str) -> bool:
    """Whether the refunds of this order were looked up."""
    return any(listed.order_id == order_id for _, listed in _lists(evidence))


def refunds_seen(evidence: Sequence[EvidenceRecord]) -> dict[str, RefundRecord]:
    """Every refund that was ever seen, by id, as it was seen last.

    A list that no longer holds a refund (a lagging replica) does not make it unseen.
    """
    return {record.refund.refund_id: record for record in _sightings(evidence)}


def _sightings(evidence: Sequence[EvidenceRecord]) -> Iterator[RefundRecord]:
    listed = {record.id: found for record, found in _lists(evidence)}
    for record in evidence:
        if record.id in listed:
            yield from (RefundRecord(refund, record) for refund in listed[record.id].refunds)
        elif record.tool in ("get_refund", "issue_refund"):
            refund = read_as(RefundSeen, record.payload)
            if refund is not None:
                yield RefundRecord(refund, record)


def _lists(evidence: Sequence[EvidenceRecord]) -> Iterator[tuple[EvidenceRecord, RefundListSeen]]:
    for record in evidence:
        if record.tool == "get_refund_status":
            listed = read_as(RefundListSeen, record.payload)
            if listed is not None:
                yield record, listed


GOOD_STATUSES: tuple[str, ...] = ("pending", "settled")
"""The statuses of a refund that is on its way or has arrived."""

_DONE = ("executed", "verified")


def order_in_request(view: TaskView) -> str | None:
    """The order that the inputs name; one that was added when the task was resumed takes the place of the first."""
    return view.inputs.get("order_id") or view.task.inputs.get("order_id")


def order_of_task(view: TaskView) -> str | None:
    """The order that the task is about: as its inputs say, else the newest that was looked up with its refunds."""
    named = order_in_request(view)
    if named:
        return named
    for record in reversed(view.evidence):
        order = read_as(OrderSeen, record.payload) if record.tool == "lookup_order" else None
        if order is not None and refund_status_known(view.evidence, order.order_id):
            return order.order_id
    return None


def issued_refund(view: TaskView) -> RefundRecord | None:
    """The refund that this task issued, as the service answered."""
    issued = [record for record in _sightings(view.evidence) if record.evidence.tool == "issue_refund"]
    return issued[-1] if issued else None


def refund_at_stake(view: TaskView) -> RefundRecord | None:
    """The refund that settles the case: the one issued, else one in full that exists for the order's later capture.

    Of several the newest that did not fail is meant.
    """
    issued = issued_refund(view)
    order_id = order_of_task(view)
    found = newest_order(view.evidence, order_id) if issued is None and order_id is not None else None
    duplicate = found[0].duplicate_capture if found is not None else None
    if duplicate is None:
        return issued
    candidates = [
        record
        for record in refunds_seen(view.evidence).values()
        if record.refund.order_id == order_id
        and record.refund.payment_id == duplicate.payment_id
        and record.refund.amount_inr == duplicate.amount_inr
    ]
    alive = [record for record in candidates if record.refund.status in GOOD_STATUSES]
    return max(alive or candidates, key=lambda record: record.evidence.ordinal, default=None)


def read_back(view: TaskView, refund_id: str) -> RefundRecord | None:
    """The newest reading of a refund by its id; one from before this task issued it does not count."""
    issued = issued_refund(view)
    since = issued.evidence.ordinal if issued is not None and issued.refund.refund_id == refund_id else 0
    readings = [
        record
        for record in _sightings(view.evidence)
        if record.evidence.tool == "get_refund"
        and record.refund.refund_id == refund_id
        and record.evidence.ordinal > since
    ]
    return readings[-1] if readings else None


def notice_reference(refund: RefundSeen) -> str:
    """The reference under which the customer is told that a refund has this status, once."""
    return f"refund:{refund.refund_id}:{refund.status}"


def notice_sent(view: TaskView, refund_id: str) -> bool:
    """Whether the customer was told about the refund."""
    keys = {f"notify:refund:{refund_id}:{status}:v1" for status in GOOD_STATUSES}
    return notice_of(view, refund_id) is not None or any(
        action.kind == "notify_customer" and action.key in keys and action.status in _DONE
        for action in view.outstanding
    )


def notice_of(view: TaskView, refund_id: str) -> EvidenceRecord | None:
    """The evidence that the customer was told about the refund; its arguments hold the text."""
    references = {f"refund:{refund_id}:{status}" for status in GOOD_STATUSES}
    for record in reversed(view.evidence):
        if record.tool == "notify_customer" and record.args.get("reference") in references:
            notification = read_as(NotificationSeen, record.payload)
            if notification is not None and notification.status == "sent":
                return record
    return None
