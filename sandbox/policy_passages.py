"""The policy documents of the sandbox, section by section, the superseded versions too."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyPassage:
    """One section of one version of a document. `title` is searched but not shown."""

    doc: str
    version: str
    section: str
    title: str
    text: str
    current: bool = True

    @property
    def chunk_id(self) -> str:
        """The id by which an answer cites the passage, such as `POL-REF-004/v4/3.2`."""
        return f"{self.doc}/{self.version}/{self.section}"


PASSAGES: tuple[PolicyPassage, ...] = (
    # Refunds of card payments, version 4.
    PolicyPassage(
        "POL-REF-004",
        "v4",
        "1.1",
        "Scope",
        "This policy covers payments in Indian rupees. Payments in other currencies go to payments operations.",
    ),
    PolicyPassage(
        "POL-REF-004",
        "v4",
        "3.1",
        "What counts as a duplicate",
        "An order has a duplicate when exactly two card payments of the same amount were captured for it. A payment "
        "that was only authorised, or was voided, took no money. Two payments that add up to the "
        "order total are a split payment.",
    ),
    PolicyPassage(
        "POL-REF-004",
        "v4",
        "3.2",
        "Duplicate card capture: refund and approval threshold",
        "If one order was captured twice (a duplicate capture), the later payment is refundable in full. "
        "Refunds above INR 1,000 need approval by a support lead.",
    ),
    PolicyPassage(
        "POL-REF-004",
        "v4",
        "3.3",
        "Large amounts",
        "Refunds above INR 10,000 need approval by a manager instead. Nobody approves a refund that they asked for.",
    ),
    PolicyPassage(
        "POL-REF-004",
        "v4",
        "3.4",
        "More than two payments",
        "Orders with three or more captured payments are examined by payments operations; support issues no refund.",
    ),
    PolicyPassage(
        "POL-REF-004",
        "v4",
        "3.5",
        "Earlier refunds of the same payment",
        "A payment is refunded once. If a refund of it is pending or settled, tell the customer its state. If one "
        "has failed, or covers only a part, hand the case to payments operations instead of issuing another.",
    ),
    PolicyPassage(
        "POL-REF-004",
        "v4",
        "4.1",
        "Chargebacks",
        "While a chargeback is open at the customer's bank, no refund is issued for any payment of that order.",
    ),
    PolicyPassage(
        "POL-REF-004",
        "v4",
        "5.1",
        "How long a refund takes",
        "Money from a refund reaches the customer's account 5 to 7 days after the refund was issued.",
    ),
    PolicyPassage(
        "POL-REF-004",
        "v4",
        "6.1",
        "Telling the customer",
        "After a refund is issued, the customer is told its number, its amount and when to expect the money.",
    ),
    # Version 3, superseded.
    PolicyPassage(
        "POL-REF-004",
        "v3",
        "3.2",
        "Duplicate card capture: refund and approval threshold",
        "If one order was captured twice (a duplicate capture), the later payment is refundable in full. "
        "Refunds above INR 2,500 need approval by a support lead.",
        current=False,
    ),
    PolicyPassage(
        "POL-REF-004",
        "v3",
        "5.1",
        "How long a refund takes",
        "Money from a refund reaches the customer's account 10 to 14 days after the refund was issued.",
        current=False,
    ),
    # Goods that are sent back.
    PolicyPassage(
        "POL-RET-002",
        "v2",
        "2.1",
        "Returning goods",
        "Unused goods may be sent back within 30 days of delivery for their price; the customer pays the postage.",
    ),
    PolicyPassage(
        "POL-RET-002",
        "v2",
        "2.4",
        "Partial refunds",
        "When some of the goods of an order come back, a partial refund of their price is made after inspection.",
    ),
    PolicyPassage(
        "POL-RET-002",
        "v1",
        "2.1",
        "Returning goods",
        "Unused goods may be sent back within 14 days of delivery for their price.",
        current=False,
    ),
    PolicyPassage(
        "POL-EXC-001",
        "v1",
        "1.2",
        "Exchanges",
        "Clothing may be exchanged for another size once, free of charge, while stock lasts.",
    ),
    # Delivery.
    PolicyPassage(
        "POL-SHP-003",
        "v5",
        "1.1",
        "Delivery times",
        "Parcels inside India arrive within four working days; to the islands and the north-east within nine.",
    ),
    PolicyPassage(
        "POL-SHP-003",
        "v5",
        "2.3",
        "Lost parcels",
        "A parcel without a tracking scan for ten days counts as lost; a replacement is sent without charge.",
    ),
    # Gift cards, accounts, records.
    PolicyPassage(
        "POL-GFT-001",
        "v2",
        "1.1",
        "Gift cards",
        "Gift cards are valid for a year, cannot be exchanged for cash, and may pay for a part of an order.",
    ),
    PolicyPassage(
        "POL-LOY-002",
        "v1",
        "3.1",
        "Loyalty points",
        "Points earned with an order are taken back when its payment is refunded.",
    ),
    PolicyPassage(
        "POL-REC-001",
        "v3",
        "1.1",
        "Retention of records",
        "Records of payments and refunds are retained for eight years, messages to customers for two.",
    ),
    PolicyPassage(
        "POL-PRV-001",
        "v2",
        "2.2",
        "Requests about personal data",
        "A customer who asks for the data held about them gets a copy within 30 days, after proving who they are.",
    ),
    PolicyPassage(
        "POL-SUP-006",
        "v1",
        "1.4",
        "When to escalate",
        "A case that support cannot settle goes to a person with what was done, what is missing and what may "
        "be done next.",
    ),
)
