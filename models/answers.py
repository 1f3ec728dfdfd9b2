"""A provider's answer taken apart into a proposal, without judging any call in it.

Source: DESIGN §2 (a proposal is untrusted data).
"""

import json
from collections.abc import Mapping

from langchain_core.messages import AIMessage
from pydantic import JsonValue

from agentic_loop.graph.records import ModelUsage
from agentic_loop.graph.state import Proposal, ProposedCall, ReplyFault

from .raw_arguments import RAW_CALLS

MAX_CALLS = 64
"""How many calls of one answer are kept; limits on calls per step are far lower."""

MAX_ARGUMENT_CHARS = 70_000
"""How much of one call's arguments is kept: more than validation accepts, so cut arguments are always refused."""

MAX_TEXT_CHARS = 20_000
"""How much of an answer's text is kept."""

_FAULT_OF_FINISH: Mapping[str, ReplyFault] = {
    "length": "cut_off",
    "max_tokens": "cut_off",
    "max_output_tokens": "cut_off",
    "model_length": "cut_off",
    "content_filter": "filtered",
    "safety": "filtered",
    "recitation": "filtered",
    "prohibited_content": "filtered",
    "blocklist": "filtered",
    "spii": "filtered",
    "guardrail_intervened": "filtered",
    "refusal": "refusal",
}


def proposal_of(message: AIMessage, *, prompt_digest: str, model: str) -> Proposal:
    """What the model proposes: every call with its arguments as text, the words beside them, and what is wrong.

    A fault of the whole answer comes in this order: cut off, filtered, refused, empty, text without a call.
    """
    calls = _calls(message)
    refusal = _refusal(message)
    text = _clean(_text(message) or refusal, MAX_TEXT_CHARS)
    fault = _FAULT_OF_FINISH.get(finish_reason(message).lower())
    if fault is None and refusal:
        fault = "refusal"
    if fault is None and not calls:
        fault = "text_without_call" if text.strip() else "empty"
    return Proposal(source="model", calls=calls, text=text, fault=fault, prompt_digest=prompt_digest, model=model)


def usage_of(message: AIMessage) -> ModelUsage | None:
    """The tokens that the provider billed, or None where it did not say (an input of nought tokens says nothing)."""
    usage = message.usage_metadata
    if usage is None:
        return None
    read, written = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    if read is None or written is None or read == 0:
        return None
    details = usage.get("input_token_details")
    cached = _count(details.get("cache_read")) if isinstance(details, dict) else None
    return ModelUsage(input_tokens=read, output_tokens=written, cached_tokens=min(cached or 0, read))


MAX_BILLED_TOKENS = 10_000_000
"""More than any one inference uses: a provider that reports more has said nothing that can be believed."""


def _count(value: object) -> int | None:
    """A number of tokens, or None where it is no believable one; what is negative counts as nought."""
    if isinstance(value, bool) or not isinstance(value, int) or value > MAX_BILLED_TOKENS:
        return None
    return max(0, value)


def raw_of(message: AIMessage, proposal: Proposal) -> JsonValue:
    """The answer as it is kept in the journal: what the model wrote and how the provider ended it."""
    response_id = message.response_metadata.get("id") or message.id
    answered_by = message.response_metadata.get("model_name")
    return {
        "text": proposal.text,
        "calls": [call.model_dump() for call in proposal.calls],
        "finish_reason": finish_reason(message),
        "response_id": response_id if isinstance(response_id, str) else "",
        "answered_by": answered_by if isinstance(answered_by, str) else "",
    }


def finish_reason(message: AIMessage) -> str:
    """Why the provider stopped, in its own word; empty where it did not say."""
    metadata = message.response_metadata
    incomplete = metadata.get("incomplete_details")
    if isinstance(incomplete, Mapping) and isinstance(incomplete.get("reason"), str):
        return str(incomplete["reason"])
    for name in ("finish_reason", "stop_reason", "done_reason", "stopReason"):
        value = metadata.get(name)
        if isinstance(value, str):
            return value
    return ""


def _calls(message: AIMessage) -> list[ProposedCall]:
    raw = message.additional_kwargs.get(RAW_CALLS)
    if isinstance(raw, list):
        parts = [(call["id"], call["name"], call["arguments"]) for call in raw]
    else:
        parts = [(call["id"], call["name"], _rewritten(call["args"])) for call in message.tool_calls]
        parts += [(call["id"], call["name"], call["args"]) for call in message.invalid_tool_calls]
    return [
        ProposedCall(
            call_id=_clean(call_id or "", 200),
            name=_clean(name or "", 200),
            arguments_json=_clean(arguments or "", MAX_ARGUMENT_CHARS),
        )
        for call_id, name, arguments in parts[:MAX_CALLS]
    ]


def _rewritten(args: Mapping[str, object]) -> str:
    """Arguments that the provider's adapter has parsed already, as text again."""
    return json.dumps(args, ensure_ascii=False, default=str)


def _text(message: AIMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = []
    for block in message.content:
        if isinstance(block, str):
            parts.append(block)
        elif block.get("type") == "text":
            parts.append(str(block.get("text", "")))
    return "".join(parts)


def _refusal(message: AIMessage) -> str:
    said = message.additional_kwargs.get("refusal")
    if isinstance(said, str) and said:
        return said
    if isinstance(message.content, list):
        for block in message.content:
            if isinstance(block, dict) and block.get("type") == "refusal":
                return str(block.get("refusal", "")) or "refused"
    return ""


def _clean(text: str, max_chars: int) -> str:
    """The text, bounded, with lone surrogates replaced: no encoder takes them."""
    return text[:max_chars].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
