"""The payments service: what was ordered and what was captured for it.

Source: DESIGN §6 (wire names stay the service's own), the document's first iteration.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, WithJsonSchema

from agentic_loop.graph.errors import ToolFault

from .define import schema_of
from .http import ServiceClient, path_segment
from .tool import Arguments, ToolContext, ToolResult, ToolSpec

PAYMENTS_SERVICE = "payments-service"

OrderId = Annotated[
    str,
    StringConstraints(strip_whitespace=True, pattern=r"^[A-Za-z0-9-]{1,32}$"),
    # Judged before the white space is taken off, so the schema allows it.
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*[A-Za-z0-9-]{1,32}\s*$",
            "description": "The order's number, such as 8472.",
        }
    ),
]
"""An order id in its normal form: without white space around it."""


class OrderArguments(BaseModel):
    """One order, by its id."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    order_id: OrderId


def lookup_order(service: ServiceClient) -> ToolSpec:
    """The tool that reads an order with its payments; needs the scope ``orders:read``."""

    async def call(args: Arguments, context: ToolContext) -> ToolResult:
        order_id = str(args["order_id"])
        order = await service.read("GET", f"/orders/{path_segment(order_id)}", context)
        if not isinstance(order, dict) or order.get("order_id") != order_id:
            raise ToolFault("garbage", f"{service.source} did not answer about order {order_id}", retryable=True)
        return ToolResult(order)

    return ToolSpec(
        name="lookup_order",
        description=(
            "Read one order with its payments: what was captured, when, and how much (amount_inr: whole rupees)."
        ),
        parameters=schema_of(OrderArguments),
        arguments=OrderArguments,
        call=call,
        effect="read",
        scope="orders:read",
        source=service.source,
    )
