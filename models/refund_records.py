"""What the rehearsal model reads in the records of an order: which payment is a duplicate, and what was refunded."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeGuard

from pydantic import JsonValue

from .reading import Reading

_IDENTIFIER = r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_INPUT_NAMES = ("order_id", "order", "order_number")
_MENTION = re.compile(
    r"\borders?(?![A-Za-z])(?:[\s_.:=-]*(?:is|was|number|no|nr|ids?)(?![A-Za-z0-9]))*[\s_.:=-]*"
    rf"((?:#?(?!orders?\b){_IDENTIFIER}(?:\s*(?:,|&|/|and\b|or\b)\s*)?)+)",
    re.IGNORECASE,
)
_HASHED = re.compile(rf"#({_IDENTIFIER})")
_LOOKS_LIKE_AN_ORDER_ID = re.compile(r"(?=.*\d)(?!\d{4}-\d\d-\d\d$)[A-Za-z0-9-]{3,32}")


@dataclass(frozen=True)
class Payment:
    """One captured payment."""

    payment_id: str
    amount_inr: int
    at: datetime


@dataclass(frozen=True)
class Refund:
    """One refund, whatever its status."""

    refund_id: str
    payment_id: str
    amount_inr: int
    status: str


@dataclass(frozen=True)
class Order:
    """What an order's record says: its total and its captured payments, earliest first."""

    order_id: str
    total_inr: int
    captured: list[Payment]
    statuses: list[str]
    chargeback_open: bool

    @property
    def captured_inr(self) -> int:
        """All that was captured."""
        return sum(payment.amount_inr for payment in self.captured)

    @property
    def duplicate(self) -> Payment | None:
        """The latest captured payment that repeats an earlier amount, where more than the total was captured."""
        if self.captured_inr <= self.total_inr:
            return None
        repeated = [
            payment
            for position, payment in enumerate(self.captured)
            if any(earlier.amount_inr == payment.amount_inr for earlier in self.captured[:position])
        ]
        return repeated[-1] if repeated else None


def order_ids(reading: Reading) -> list[str]:
    """The orders that the request may mean: what the newest added input says, else the inputs, else the words."""
    for note in reversed(reading.notes):
        if note.kind == "resumed":
            added = {name: value for name, value in note.args.items() if isinstance(value, str)}
            found = _named(added) or _mentioned(" ".join(added.values())) or _bare(list(added.values()))
            if found:
                return found
    return list(dict.fromkeys([*_named(reading.inputs), *_mentioned(reading.goal)]))


def order_of(data: JsonValue, order_id: str) -> Order | None:
    """The record of this order, or None where the data is not that."""
    if not isinstance(data, dict) or data.get("order_id") != order_id:
        return None
    total, payments = data.get("total_inr"), data.get("payments")
    if not _is_amount(total) or not isinstance(payments, list):
        return None
    rows = [row for row in payments if isinstance(row, dict)]
    captured = [payment for row in rows if row.get("status") == "captured" and (payment := _payment(row)) is not None]
    return Order(
        order_id=order_id,
        total_inr=total,
        captured=sorted(captured, key=lambda payment: payment.at),
        statuses=[str(row.get("status")) for row in rows],
        chargeback_open=data.get("chargeback") == "open",
    )


def refunds_of(data: JsonValue, order_id: str) -> list[Refund] | None:
    """The refunds of this order, or None where the data is not that."""
    if not isinstance(data, dict) or data.get("order_id") != order_id:
        return None
    rows = data.get("refunds")
    if not isinstance(rows, list):
        return None
    return [refund for row in rows if (refund := refund_of(row)) is not None]


def refund_of(data: JsonValue) -> Refund | None:
    """One refund, or None where the data is not that."""
    if not isinstance(data, dict):
        return None
    refund_id, payment_id, amount, status = (
        data.get(name) for name in ("refund_id", "payment_id", "amount_inr", "status")
    )
    if not (isinstance(refund_id, str) and isinstance(payment_id, str) and isinstance(status, str)):
        return None
    return Refund(refund_id, payment_id, amount, status) if _is_amount(amount) else None


def passages_of(data: JsonValue) -> Sequence[JsonValue] | None:
    """The passages that a search found, or None where the data is not that."""
    passages = data.get("passages") if isinstance(data, dict) else None
    return passages if isinstance(passages, list) else None


def _payment(row: dict[str, JsonValue]) -> Payment | None:
    payment_id, amount, at = row.get("payment_id"), row.get("amount_inr"), row.get("at")
    if not isinstance(payment_id, str) or not _is_amount(amount) or not isinstance(at, str):
        return None
    try:
        instant = datetime.fromisoformat(at)
    except ValueError:
        return None
    return Payment(payment_id, amount, instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC))


def _named(values: dict[str, str]) -> list[str]:
    given = [values.get(name, "").strip() for name in _INPUT_NAMES]
    return list(dict.fromkeys(value for value in given if value))


def _mentioned(text: str) -> list[str]:
    found = [word for mention in _MENTION.finditer(text) for word in re.findall(_IDENTIFIER, mention.group(1))]
    found += _HASHED.findall(text)
    return list(dict.fromkeys(word for word in found if _LOOKS_LIKE_AN_ORDER_ID.fullmatch(word)))


def _bare(values: list[str]) -> list[str]:
    stripped = [value.strip() for value in values]
    return [value for value in stripped if _LOOKS_LIKE_AN_ORDER_ID.fullmatch(value)]


def _is_amount(value: JsonValue) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
