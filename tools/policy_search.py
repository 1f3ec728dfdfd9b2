"""The policy store: what the company's rules say, by full-text search.

Source: the document's third iteration.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from agentic_loop.graph.errors import ToolFault

from .define import schema_of
from .http import ServiceClient
from .tool import Arguments, ToolContext, ToolResult, ToolSpec

POLICY_STORE = "policy-store"

PASSAGES_PER_SEARCH = 5


class PolicyQuery(BaseModel):
    """What to look for, in ordinary words."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    query: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=400),
        Field(description="Words that the passage should contain, such as 'duplicate capture refund approval'."),
    ]


def search_policy(service: ServiceClient) -> ToolSpec:
    """The tool that searches the policies in force; needs the scope ``policy:read``.

    The result's reference is that of the best passage, such as ``POL-REF-004 v4 section 3.2``.
    """

    async def call(args: Arguments, context: ToolContext) -> ToolResult:
        wanted: dict[str, JsonValue] = {"query": args["query"], "top_k": PASSAGES_PER_SEARCH}
        found = await service.read("POST", "/policy/search", context, body=wanted)
        if not isinstance(found, dict) or not isinstance(passages := found.get("passages"), list):
            raise ToolFault("garbage", f"{service.source} answered without a list of passages", retryable=True)
        return ToolResult(found, reference_of(passages[0]) if passages else "")

    return ToolSpec(
        name="search_policy",
        description="Search the policies in force; each passage comes with its document, version and section.",
        parameters=schema_of(PolicyQuery),
        arguments=PolicyQuery,
        call=call,
        effect="read",
        scope="policy:read",
        source=service.source,
    )


def reference_of(passage: JsonValue) -> str:
    """How a passage is cited: document, version and section; empty where it does not say all three."""
    if not isinstance(passage, dict):
        return ""
    parts = [passage.get("doc"), passage.get("version"), passage.get("section")]
    if not all(isinstance(part, str) and part for part in parts):
        return ""
    return f"{parts[0]} {parts[1]} section {parts[2]}"
