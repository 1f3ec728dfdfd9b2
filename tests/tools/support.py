"""What the tests of tools share: a context, and a tool over the faulty service."""

from datetime import UTC, datetime

from agentic_loop.tools.http import ServiceClient, lookup_by_key, path_segment
from agentic_loop.tools.tool import Arguments, Reconcile, ToolContext, ToolResult, ToolSpec

NOW = datetime(2026, 10, 28, 11, 17, 43, tzinfo=UTC)


def context(*, key: str | None = None, timeout_s: float = 5.0, tenant: str = "acme") -> ToolContext:
    return ToolContext(
        tenant=tenant,
        task_id="task-1",
        request_id="req-1",
        timeout_s=timeout_s,
        now=NOW,
        idempotency_key=key,
    )


def patience_s(kind: str) -> float:
    """How long to wait for a service with this fault: briefly only where nothing will come."""
    return 0.5 if kind.startswith("timeout") or kind == "slow" else 10.0


def apply_tool(service: ServiceClient, reconcile: Reconcile | None = None) -> ToolSpec:
    """A write on the faulty service."""

    async def call(args: Arguments, given: ToolContext) -> ToolResult:
        return ToolResult(await service.write("/effects", dict(args), given))

    return ToolSpec(
        name="apply_effect",
        description="Make an effect.",
        parameters={
            "type": "object",
            "properties": {"target": {"type": "string"}},
            "required": ["target"],
            "additionalProperties": False,
        },
        call=call,
        effect="write",
        scope="effects:write",
        source=service.source,
        idempotency_key="apply:{target}:v1",
        reconcile=reconcile or lookup_by_key(service, "/effects/by-key", member="effect", key_retention_s=3_600),
    )


def thing_tool(service: ServiceClient) -> ToolSpec:
    """A read on the faulty service."""

    async def call(args: Arguments, given: ToolContext) -> ToolResult:
        return ToolResult(await service.read("GET", f"/things/{path_segment(str(args['name']))}", given))

    return ToolSpec(
        name="read_thing",
        description="Read a thing.",
        parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        call=call,
        effect="read",
        scope="things:read",
        source=service.source,
    )
