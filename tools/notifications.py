"""The notifications service: messages to customers, and to the role that an approval waits for.

Source: DESIGN §5 (the role is told once, under the key ``approval:{id}``), §6.
"""

import json
from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, WithJsonSchema

from agentic_loop.graph.errors import OutcomeUnknown
from agentic_loop.graph.ports import Clock, Ids
from agentic_loop.graph.records import ApprovalRow, NoticeOfApproval

from .define import schema_of
from .http import ServiceClient, lookup_by_key
from .tool import Arguments, ToolContext, ToolResult, ToolSpec

NOTIFICATIONS_SERVICE = "notifications-service"

SETTLES_AFTER_S = 10.0
"""How long the service may go on with a request whose caller has given up."""

KEY_RETENTION_S = 86_400
"""How long the notifications service keeps idempotency keys, as it declares."""

_ONE_LINE = r"^[^\r\n\x00]*$"


class NotifyArguments(BaseModel):
    """One message to one customer. The reference names what it is about, and makes it one message for good."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    recipient: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=128, pattern=_ONE_LINE),
        Field(description="The customer's id as the order has it, such as cust-3391."),
    ]
    subject: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=_ONE_LINE)]
    body: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4_000)]
    reference: Annotated[
        str,
        StringConstraints(strip_whitespace=True, pattern=r"^[A-Za-z0-9:_.-]{1,128}$"),
        WithJsonSchema(
            {
                "type": "string",
                "pattern": r"^\s*[A-Za-z0-9:_.-]{1,128}\s*$",
                "description": "What the message is about, such as refund:rf_9001:pending; each is told once.",
            }
        ),
    ]


def as_written(text: str) -> str:
    """The text as it is."""
    return text


def notify_customer(service: ServiceClient, *, present: Callable[[str], str] = as_written) -> ToolSpec:
    """The tool that sends a customer a message; needs the scope ``notifications:write``.

    ``present`` turns the body as it was checked (with its citations) into what the customer reads.
    """

    def as_read(args: Arguments) -> dict[str, JsonValue]:
        return {**args, "body": present(str(args["body"]))}

    async def call(args: Arguments, context: ToolContext) -> ToolResult:
        message: dict[str, JsonValue] = {**as_read(args), "channel": "email"}
        return ToolResult(await _send(service, message, context))

    return ToolSpec(
        name="notify_customer",
        description="Send the customer one message. Say only what recorded evidence shows. Propose it alone.",
        parameters=schema_of(NotifyArguments),
        arguments=NotifyArguments,
        call=call,
        effect="write",
        scope="notifications:write",
        source=service.source,
        max_attempts=1,
        idempotency_key="notify:{reference}:v1",
        # The citations are this task's own numbering; to the customer the message is the same without them.
        effect_of=as_read,
        reconcile=lookup_by_key(
            service,
            "/notifications/by-key",
            member="notification",
            key_retention_s=KEY_RETENTION_S,
            settles_after_s=SETTLES_AFTER_S,
        ),
    )


async def _send(service: ServiceClient, message: dict[str, JsonValue], context: ToolContext) -> JsonValue:
    sent = await service.write("/notifications", message, context)
    if not isinstance(sent, dict) or not isinstance(sent.get("notification_id"), str):
        raise OutcomeUnknown(f"{service.source} accepted the message but did not say under which id")
    return sent


class HttpNotifier:
    """Tells a role through the notifications service that an approval waits.

    The message is made of the approval's row alone: sent again under its key, it is the same message.
    """

    def __init__(self, service: ServiceClient, *, ids: Ids, clock: Clock, timeout_s: float = 10.0) -> None:
        self._service = service
        self._ids = ids
        self._clock = clock
        self._timeout_s = timeout_s

    async def notify(self, notice: NoticeOfApproval, *, tenant: str, task_id: str, key: str) -> None:
        """Send the notice to the inbox of the required role, once for this key.

        Raises:
            ToolFault: the service refused or is down; nothing was sent.
            OutcomeUnknown: it may have been sent; sending it again under the same key is safe.
        """
        context = ToolContext(
            tenant=tenant,
            task_id=task_id,
            request_id=self._ids.request_id(task_id),
            timeout_s=self._timeout_s,
            now=self._clock.now(),
            idempotency_key=key,
        )
        message: dict[str, JsonValue] = {
            "recipient": f"role:{notice.approval.required_role}",
            "channel": "inbox",
            "template": "approval_requested",
            "subject": f"Approval {notice.approval.id}: {notice.approval.tool}"[:_MAX_SUBJECT_CHARS],
            "body": body_of(notice),
            "reference": f"approval:{notice.approval.id}",
        }
        await _send(self._service, message, context)


_MAX_SUBJECT_CHARS = 200
_MAX_SUMMARY_CHARS = 2_000
_MAX_ARGUMENTS_CHARS = 8_000


def body_of(notice: NoticeOfApproval) -> str:
    """What an approver must know: the exact action, the amount, why, until when, and how to answer."""
    row = notice.approval
    lines = [
        f"{row.requester} asks for an approval by {row.required_role}.",
        "",
        f"Action:    {row.tool}",
        f"Arguments: {_arguments(row)}",
        *_amount(row),
        f"Key:       {row.idempotency_key or 'none'}",
        f"Hash:      {row.action_hash}",
        f"Policy:    {row.policy_clause or 'not named'}" + (f" ({row.reason})" if row.reason else ""),
        f"Evidence:  {', '.join(row.evidence_ids) or 'none'}",
        f"Expires:   {row.expires_at.isoformat()}",
        f"Task:      {row.task_id}",
        "",
        notice.summary[:_MAX_SUMMARY_CHARS],
        "",
        "Answer with one of:",
        f"  agentic-loop approve {row.id} --as YOU",
        f'  agentic-loop reject {row.id} --as YOU --message "why"',
        f"  agentic-loop edit {row.id} --as YOU",
        "The approval is for exactly this action, once. Anything else needs another one.",
    ]
    return "\n".join(lines)


def _arguments(row: ApprovalRow) -> str:
    """The arguments as JSON: all of them, because nobody can approve what is not shown."""
    shown = json.dumps(dict(row.args), ensure_ascii=False, sort_keys=True)
    if len(shown) <= _MAX_ARGUMENTS_CHARS:
        return shown
    return f"too long to show here; read them with: agentic-loop show {row.task_id}"


def _amount(row: ApprovalRow) -> list[str]:
    amount = row.args.get("amount_inr")
    return [f"Amount:    INR {amount:,}"] if isinstance(amount, int) and not isinstance(amount, bool) else []
