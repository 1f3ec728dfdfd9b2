"""Reading the refund loop's evidence: orders with their payments, refunds, notifications, as typed values.

A payload that has not the agreed shape is read as if it were not there, so that it supports nothing.

Source: the wire shapes of the payments, refunds and notifications services.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from agentic_loop.graph.records import EvidenceRecord


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
