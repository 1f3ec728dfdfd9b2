"""Chat models that are not OpenAI's, behind the port; their answers and exceptions are as different as they are."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from pydantic import PrivateAttr

from agentic_loop.graph.errors import Misuse, ModelOutage
from agentic_loop.graph.records import ModelReply, ToolOffer
from agentic_loop.graph.state import Prompt, PromptMessage, ProposedCall
from agentic_loop.models.answers import MAX_ARGUMENT_CHARS, MAX_CALLS, MAX_TEXT_CHARS
from agentic_loop.models.chat_model import LangChainModel, to_langchain
from agentic_loop.models.outages import outage_of
from agentic_loop.models.pricing import pricing_for
from agentic_loop.testing.models import Reply, ScriptedChatModel

PROMPT = Prompt(messages=[PromptMessage(role="user", content="x")], tools=["t"], digest="d", estimated_tokens=1)
TOOLS = [ToolOffer("t", "a tool", {"type": "object"})]


async def ask(*replies: Reply, tools: Sequence[ToolOffer] = TOOLS) -> ModelReply:
    model = LangChainModel(ScriptedChatModel(replies), "other:model", pricing_for("other:model", {}))
    return await model.propose(PROMPT, tools, max_output_tokens=100, timeout_s=5)


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        ({"stop_reason": "max_tokens"}, "cut_off"),
        ({"finish_reason": "MAX_TOKENS"}, "cut_off"),
        ({"done_reason": "length"}, "cut_off"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "cut_off"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "filtered"),
        ({"finish_reason": "SAFETY"}, "filtered"),
        ({"stop_reason": "refusal"}, "refusal"),
        ({"stop_reason": "tool_use"}, None),
        ({}, None),
    ],
)
async def test_every_provider_has_its_own_word_for_how_it_ended(metadata: dict[str, Any], fault: str | None) -> None:
    call = {"name": "t", "args": {}, "id": "1", "type": "tool_call"}
    reply = await ask(AIMessage(content="", tool_calls=[call], response_metadata=metadata))
    assert reply.proposal.fault == fault
    assert [c.name for c in reply.proposal.calls] == ["t"]


async def test_blocks_of_content_are_read() -> None:
    blocks: list[str | dict[str, Any]] = [
        {"type": "reasoning", "reasoning": "secret thoughts"},
        {"type": "text", "text": "Hello "},
        "you",
    ]
    assert (await ask(AIMessage(content=blocks))).proposal.text == "Hello you"
    refused = await ask(AIMessage(content=[{"type": "refusal", "refusal": "No."}]))
    assert (refused.proposal.fault, refused.proposal.text) == ("refusal", "No.")


async def test_invalid_calls_of_any_provider_keep_their_text() -> None:
    invalid = {"name": "t", "args": '{"a":', "id": None, "error": "bad", "type": "invalid_tool_call"}
    valid = {"name": "t", "args": {"é": 1}, "id": "1", "type": "tool_call"}
    reply = await ask(AIMessage(content="", tool_calls=[valid], invalid_tool_calls=[invalid]))
    assert reply.proposal.calls == [
        ProposedCall(call_id="1", name="t", arguments_json='{"é": 1}'),
        ProposedCall(call_id="", name="t", arguments_json='{"a":'),
    ]
    assert reply.proposal.fault is None


async def test_an_answer_is_bounded_and_can_be_stored() -> None:
    many: Any = [("t", "x" * (2 * MAX_ARGUMENT_CHARS))] * (MAX_CALLS + 5)
    proposal = (await ask(many)).proposal
    assert len(proposal.calls) == MAX_CALLS
    assert {len(call.arguments_json) for call in proposal.calls} == {MAX_ARGUMENT_CHARS}
    proposal = (await ask("y" * (2 * MAX_TEXT_CHARS))).proposal
    assert len(proposal.text) == MAX_TEXT_CHARS
    reply = await ask(("t\ud800", '{"a":"\ud83d"}'))
    assert reply.proposal.calls[0].arguments_json == '{"a":"\ufffd"}'
    json.dumps(reply.raw, ensure_ascii=False).encode()


class Unbindable(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "unbindable"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise AssertionError("it is not reached")


async def test_a_model_without_tools_is_refused() -> None:
    model = LangChainModel(Unbindable(), "other:model", pricing_for("other:model", {}))
    with pytest.raises(Misuse, match="cannot call tools"):
        await model.propose(PROMPT, TOOLS, max_output_tokens=1, timeout_s=1)


async def test_without_tools_none_are_bound() -> None:
    scripted = ScriptedChatModel(["Dear customer"])
    model = LangChainModel(scripted, "other:model", pricing_for("other:model", {}))
    await model.propose(PROMPT, [], max_output_tokens=10, timeout_s=1)
    assert scripted.offered == [[]]


class Waiting(ScriptedChatModel):
    """Answers never; ``asked`` is set when it was asked."""

    _asked: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    def __init__(self) -> None:
        super().__init__([])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self._asked.set()
        await asyncio.Event().wait()
        raise AssertionError("it is not reached")


async def test_being_cancelled_is_no_outage() -> None:
    chat = Waiting()
    model = LangChainModel(chat, "other:model", pricing_for("other:model", {}))
    asking = asyncio.create_task(model.propose(PROMPT, TOOLS, max_output_tokens=1, timeout_s=30))
    await chat._asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_no_answer_in_time_is_an_outage() -> None:
    model = LangChainModel(Waiting(), "other:model", pricing_for("other:model", {}))
    with pytest.raises(ModelOutage, match=r"within 0.01 s") as caught:
        await model.propose(PROMPT, TOOLS, max_output_tokens=1, timeout_s=0.01)
    assert caught.value.retryable
    assert caught.value.billable


def test_past_calls_that_are_no_objects_still_convert() -> None:
    past = PromptMessage(
        role="assistant", content="", calls=[ProposedCall(call_id="1", name="t", arguments_json="[1]")]
    )
    message = to_langchain(past)
    assert isinstance(message, AIMessage)
    assert message.tool_calls[0]["args"] == {"unusable_arguments": "[1]"}


# --- exceptions of any provider ---------------------------------------------------------------------------------


class HttpAnswer:
    def __init__(self, status_code: int, headers: dict[str, str] | None = None) -> None:
        self.status_code = status_code
        self.headers = headers or {}


class SomebodysStatusError(Exception):
    def __init__(self, text: str, response: HttpAnswer) -> None:
        super().__init__(text)
        self.response = response


class SomebodysTimeoutException(Exception):
    pass


def outage(error: Exception) -> ModelOutage:
    return outage_of(error, model="other:model", timeout_s=30)


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *[(status, False) for status in (400, 401, 402, 403, 404, 418, 422)],
        *[(status, True) for status in (200, 408, 409, 429, 500, 502, 503, 504, 529)],
    ],
)
def test_a_status_says_whether_waiting_helps(status: int, retryable: bool) -> None:
    found = outage(SomebodysStatusError("x", HttpAnswer(status)))
    assert found.retryable is retryable
    assert "other:model" in str(found)


@pytest.mark.parametrize(
    ("error", "retryable", "billable"),
    [
        (SomebodysTimeoutException(), True, True),
        (TimeoutError(), True, True),
        (ConnectionRefusedError("refused"), True, False),
        (ConnectionResetError("reset"), True, True),
        (json.JSONDecodeError("bad", "x", 0), True, True),
        (KeyError("choices"), True, True),
        (RuntimeError("something of its own"), False, False),
    ],
)
def test_other_exceptions(error: Exception, retryable: bool, billable: bool) -> None:
    found = outage(error)
    assert (found.retryable, found.billable) == (retryable, billable)


def test_a_retry_after_date_is_measured_by_the_servers_clock() -> None:
    now = datetime(2026, 10, 20, 9, 14, 2, tzinfo=UTC)
    headers = {"date": format_datetime(now), "retry-after": format_datetime(now + timedelta(seconds=28))}
    assert outage(SomebodysStatusError("x", HttpAnswer(503, headers))).retry_after_s == 28.0
    for wrong in [{**headers, "date": "?"}, {"retry-after": "-5"}, {"retry-after": "nan"}, {"retry-after": "1e9"}]:
        assert outage(SomebodysStatusError("x", HttpAnswer(503, wrong))).retry_after_s is None


def test_no_key_is_passed_on_and_no_novel() -> None:
    found = outage(SomebodysStatusError("key sk-abcdef123456 is wrong. " + "x" * 5000, HttpAnswer(401)))
    assert "abcdef" not in str(found)
    assert len(str(found)) < 600


@given(st.text(), st.integers(100, 599), st.dictionaries(st.sampled_from(["retry-after", "date"]), st.text()))
def test_any_exception_becomes_an_outage(text: str, status: int, headers: dict[str, str]) -> None:
    found = outage(SomebodysStatusError(text, HttpAnswer(status, headers)))
    assert found.retry_after_s is None or 0 <= found.retry_after_s < 86_400
