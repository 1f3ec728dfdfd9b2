"""The refunds service: what was refunded, and the one tool that moves money; and all tools of the refund loop.

The service itself makes a second refund for a second key, so the key, the precondition and the reconciliation
declared here are what keep a payment from being refunded twice.

Source: DESIGN §6, the document's key ``refund:order-8472:pay_5a2:v1``.
"""

from collections.abc import Callable
from typing import Annotated

import httpx2
from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, WithJsonSchema

from agentic_loop.graph.errors import OutcomeUnknown, ToolFault

from .define import schema_of
from .http import LazyHttpClient, ServiceClient, ServiceUrls, lookup_by_key, path_segment
from .notifications import NOTIFICATIONS_SERVICE, as_written, notify_customer
from .orders import PAYMENTS_SERVICE, OrderArguments, OrderId, lookup_order
from .policy_search import POLICY_STORE, search_policy
from .tool import (
    Arguments,
    PreconditionAnswer,
    PreconditionBroken,
    PreconditionHeld,
    ToolContext,
    ToolResult,
    ToolSpec,
)

REFUNDS_SERVICE = "refunds-service"

SETTLES_AFTER_S = 10.0
"""How long the service may go on with a request whose caller has given up."""

KEY_RETENTION_S = 86_400
"""How long the refunds service keeps idempotency keys, as it declares."""


def _identifier(example: str, what: str) -> object:
    return WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*[A-Za-z0-9_-]{1,64}\s*$",
            "description": f"The {what}, such as {example}.",
        }
    )


_ID = StringConstraints(strip_whitespace=True, pattern=r"^[A-Za-z0-9_-]{1,64}$")
PaymentId = Annotated[str, _ID, _identifier("pay_5a2", "payment's id")]
"""A payment id without white space around it."""
RefundId = Annotated[str, _ID, _identifier("rf_9001", "refund's id")]
"""A refund id without white space around it."""


class RefundArguments(BaseModel):
    """One refund, by its id."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    refund_id: RefundId


class IssueRefundArguments(BaseModel):
    """What to refund: one payment of one order, in whole rupees."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    order_id: OrderId
    payment_id: PaymentId
    amount_inr: Annotated[int, Field(ge=1, le=1_000_000_000, description="Whole rupees, such as 2000.")]


def get_refund_status(service: ServiceClient) -> ToolSpec:
    """The tool that lists the refunds of an order; needs the scope ``refunds:read``."""

    async def call(args: Arguments, context: ToolContext) -> ToolResult:
        order_id = str(args["order_id"])
        listed = await service.read("GET", "/refunds", context, params={"order_id": order_id})
        known = isinstance(listed, dict) and listed.get("order_id") == order_id
        if not known or not isinstance(listed, dict) or not isinstance(listed.get("refunds"), list):
            raise ToolFault("garbage", f"{service.source} did not answer about order {order_id}", retryable=True)
        return ToolResult(listed)

    return ToolSpec(
        name="get_refund_status",
        description="List the refunds of one order. A refund of the last few seconds may be missing from the list.",
        parameters=schema_of(OrderArguments),
        arguments=OrderArguments,
        call=call,
        effect="read",
        scope="refunds:read",
        source=service.source,
    )


def get_refund(service: ServiceClient) -> ToolSpec:
    """The tool that reads one refund by its id, always fresh; needs the scope ``refunds:read``."""

    async def call(args: Arguments, context: ToolContext) -> ToolResult:
        refund_id = str(args["refund_id"])
        refund = await service.read("GET", f"/refunds/{path_segment(refund_id)}", context)
        if not isinstance(refund, dict) or refund.get("refund_id") != refund_id:
            raise ToolFault("garbage", f"{service.source} did not answer about refund {refund_id}", retryable=True)
        return ToolResult(refund)

    return ToolSpec(
        name="get_refund",
        description="Read one refund by its id: its payment, its amount and its status now.",
        parameters=schema_of(RefundArguments),
        arguments=RefundArguments,
        call=call,
        effect="read",
        scope="refunds:read",
        source=service.source,
    )


def issue_refund(service: ServiceClient) -> ToolSpec:
    """The tool that refunds a payment; needs the scope ``refunds:write``.

    Its key names the business effect (the order and the payment), so that every task that means the same refund
    meets the same row. Before it is sent, the payment's refunds are read again.
    """

    async def call(args: Arguments, context: ToolContext) -> ToolResult:
        refund = await service.write("/refunds", dict(args), context)
        if not _is_refund(refund, args):
            raise OutcomeUnknown(f"{service.source} accepted the refund but answered about something else")
        return ToolResult(refund)

    async def not_refunded_yet(args: Arguments, context: ToolContext) -> PreconditionAnswer:
        payment_id = str(args["payment_id"])
        held = await service.read("GET", f"/refunds/by-payment/{path_segment(payment_id)}", context)
        if not isinstance(held, dict) or not isinstance(refunds := held.get("refunds"), list):
            raise ToolFault("garbage", f"{service.source} did not answer about {payment_id}", retryable=True)
        if not refunds:
            return PreconditionHeld()
        return PreconditionBroken(f"payment {payment_id} has a refund already", held, service.source)

    return ToolSpec(
        name="issue_refund",
        description=(
            "Refund one payment of an order. The money moves at once and does not come back; needs evidence of two "
            "captures, of the policy and that no refund exists. Propose it alone."
        ),
        parameters=schema_of(IssueRefundArguments),
        arguments=IssueRefundArguments,
        call=call,
        effect="write",
        scope="refunds:write",
        source=service.source,
        max_attempts=1,
        idempotency_key="refund:order-{order_id}:{payment_id}:v1",
        reconcile=lookup_by_key(
            service,
            "/refunds/by-key",
            member="refund",
            key_retention_s=KEY_RETENTION_S,
            settles_after_s=SETTLES_AFTER_S,
        ),
        precondition=not_refunded_yet,
        verified_by="get_refund",
    )


def _is_refund(answer: JsonValue, args: Arguments) -> bool:
    """Whether an answer is the refund that was asked for."""
    return (
        isinstance(answer, dict)
        and isinstance(answer.get("refund_id"), str)
        and all(answer.get(name) == args[name] for name in ("order_id", "payment_id", "amount_inr"))
    )


def refund_tools(
    urls: ServiceUrls,
    client: httpx2.AsyncClient | LazyHttpClient | None = None,
    *,
    present: Callable[[str], str] = as_written,
) -> list[ToolSpec]:
    """All tools of the refund loop; ``present`` turns a checked message into what the customer reads.

    They share ``client``, which its owner closes; without one, connections are opened at the first call and closed
    with the event loop.
    """
    shared = LazyHttpClient() if client is None else client
    payments = ServiceClient(urls.payments, source=PAYMENTS_SERVICE, client=shared)
    refunds = ServiceClient(urls.refunds, source=REFUNDS_SERVICE, client=shared)
    policy = ServiceClient(urls.policy, source=POLICY_STORE, client=shared)
    notifications = ServiceClient(urls.notifications, source=NOTIFICATIONS_SERVICE, client=shared)
    return [
        lookup_order(payments),
        get_refund_status(refunds),
        get_refund(refunds),
        search_policy(policy),
        issue_refund(refunds),
        notify_customer(notifications, present=present),
    ]
