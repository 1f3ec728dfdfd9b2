"""ChatOpenAI itself, behind the loop's port, against a provider over real HTTP: requests as well as replies."""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agentic_loop.graph.errors import ModelOutage
from agentic_loop.graph.records import ModelReply, ModelUsage, ToolOffer
from agentic_loop.graph.state import Prompt, PromptMessage, ProposedCall
from agentic_loop.models.chat_model import LangChainModel
from agentic_loop.models.pricing import pricing_for
from tests.models.provider import Answer, Provider, call, completion, running_provider

LOOKUP = ToolOffer(
    name="lookup_order",
    description="Read an order.",
    parameters={
        "type": "object",
        "properties": {"order_id": {"type": "string", "maxLength": 32, "title": "Order"}},
        "required": ["order_id"],
        "additionalProperties": False,
    },
)
SEARCH = ToolOffer(
    name="search",
    description="Search; the limit is optional.",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
        "additionalProperties": False,
    },
)
PROMPT = Prompt(
    messages=[
        PromptMessage(role="system", content="rules"),
        PromptMessage(role="user", content="goal"),
        PromptMessage(
            role="assistant",
            content="",
            calls=[ProposedCall(call_id="call_1_0", name="lookup_order", arguments_json='{"order_id":"8472"}')],
        ),
        PromptMessage(role="tool", content='{"evidence":"ev-1"}', call_id="call_1_0"),
    ],
    tools=["lookup_order", "search"],
    digest="d" * 64,
    estimated_tokens=100,
)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as running:
        yield running


def model_at(url: str) -> LangChainModel:
    # A chat model as anybody would make it, with the SDK's own retries and time-out left on.
    chat = ChatOpenAI(model="gpt-4o-mini", api_key=SecretStr("sk-test-key"), base_url=url)
    return LangChainModel(chat, "openai:gpt-4o-mini", pricing_for("openai:gpt-4o-mini", {}))


@pytest.fixture
async def model(provider: Provider) -> AsyncIterator[LangChainModel]:
    yield model_at(provider.url)


async def propose(model: LangChainModel, timeout_s: float = 5.0) -> ModelReply:
    return await model.propose(PROMPT, [LOOKUP, SEARCH], max_output_tokens=321, timeout_s=timeout_s)


async def outage(model: LangChainModel, timeout_s: float = 5.0) -> ModelOutage:
    with pytest.raises(ModelOutage) as caught:
        await propose(model, timeout_s)
    return caught.value


async def test_the_request_holds_what_the_provider_needs(provider: Provider, model: LangChainModel) -> None:
    provider.answers.append(completion(calls=[call("lookup_order", '{"order_id":"1"}')], finish_reason="tool_calls"))
    await propose(model)
    [request] = provider.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-test-key"
    body = request.body
    assert body["model"] == "gpt-4o-mini"
    assert body["max_completion_tokens"] == 321
    assert body["parallel_tool_calls"] is True
    assert not body.get("stream")
    assert "tool_choice" not in body
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    past = body["messages"][2]["tool_calls"]
    assert [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in past] == [
        ("call_1_0", "lookup_order", {"order_id": "8472"})
    ]
    assert body["messages"][3]["tool_call_id"] == "call_1_0"
    assert body["messages"][3]["content"] == '{"evidence":"ev-1"}'


async def test_a_schema_is_strict_where_it_can_be(provider: Provider, model: LangChainModel) -> None:
    provider.answers.append(completion(content="x"))
    await propose(model)
    lookup, search = (tool["function"] for tool in provider.requests[0].body["tools"])
    assert lookup["strict"] is True
    # Strict decoding refuses maxLength and needs no title; the runtime checks the full schema anyway.
    assert lookup["parameters"] == {
        "type": "object",
        "properties": {"order_id": {"type": "string"}},
        "required": ["order_id"],
        "additionalProperties": False,
    }
    assert search["strict"] is False
    assert search["parameters"] == SEARCH.parameters


async def test_a_call_can_be_required(provider: Provider) -> None:
    chat = ChatOpenAI(model="gpt-4o-mini", api_key=SecretStr("k"), base_url=provider.url)
    provider.answers.append(completion(content="x"))
    await propose(LangChainModel(chat, "openai:x", pricing_for("openai:x", {}), tool_choice="required"))
    assert provider.requests[0].body["tool_choice"] == "required"


async def test_a_reply_with_several_calls_and_usage(provider: Provider, model: LangChainModel) -> None:
    usage = {
        "prompt_tokens": 1200,
        "completion_tokens": 60,
        "total_tokens": 1260,
        "prompt_tokens_details": {"cached_tokens": 1024},
    }
    calls = [call("lookup_order", '{"order_id":"1"}', "a"), call("search", '{"query":"q"}', "b")]
    provider.answers.append(completion(content="I look.", calls=calls, finish_reason="tool_calls", usage=usage))
    reply = await propose(model)
    assert reply.proposal.calls == [
        ProposedCall(call_id="a", name="lookup_order", arguments_json='{"order_id":"1"}'),
        ProposedCall(call_id="b", name="search", arguments_json='{"query":"q"}'),
    ]
    assert reply.proposal.text == "I look."
    assert reply.proposal.fault is None
    assert reply.proposal.source == "model"
    assert reply.proposal.model == "openai:gpt-4o-mini"
    assert reply.proposal.prompt_digest == PROMPT.digest
    assert reply.usage == ModelUsage(input_tokens=1200, output_tokens=60, cached_tokens=1024)
    assert reply.latency_ms >= 0
    assert isinstance(reply.raw, dict)
    assert reply.raw["answered_by"] == "test-model-2026"
    assert reply.raw["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "raw",
    [
        '{"order_id":"1","order_id":"2"}',
        '{"order_id":NaN}',
        '{"order_id": "1",}',
        "",
        "null",
        "[]",
        '"{\\"order_id\\":\\"1\\"}"',
        '{"order_id":"1"',
        '{ "order_id" :  "1" }',
        '{"order_id":"a\nb"}',
        '{"order_id":"\\ud800"}',
    ],
)
async def test_arguments_stay_as_they_were_written(provider: Provider, model: LangChainModel, raw: str) -> None:
    provider.answers.append(completion(calls=[call("lookup_order", raw)], finish_reason="tool_calls"))
    reply = await propose(model)
    assert [c.arguments_json for c in reply.proposal.calls] == [raw]
    assert reply.proposal.fault is None


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"type": "function", "function": {"name": "lookup_order"}}, ("", "lookup_order", "")),
        ({"type": "function", "id": None, "function": {"name": None, "arguments": None}}, ("", "", "")),
        ({"id": "x", "function": {"name": "f", "arguments": {"a": 1}}}, ("x", "f", '{"a": 1}')),
        ({"id": "x"}, ("x", "", "")),
    ],
)
async def test_a_call_with_missing_parts_is_still_a_call(
    provider: Provider, model: LangChainModel, sent: dict[str, Any], kept: tuple[str, str, str]
) -> None:
    provider.answers.append(completion(calls=[sent], finish_reason="tool_calls"))
    [found] = (await propose(model)).proposal.calls
    assert (found.call_id, found.name, found.arguments_json) == kept


@pytest.mark.parametrize(
    ("answer", "fault", "text"),
    [
        (completion(content="I am done."), "text_without_call", "I am done."),
        (completion(content=None), "empty", ""),
        (completion(content="  \n"), "empty", "  \n"),
        (completion(content="partial", finish_reason="length"), "cut_off", "partial"),
        (
            completion(calls=[call("lookup_order", '{"order_id":"1"}')], finish_reason="length"),
            "cut_off",
            "",
        ),
        (completion(content="x", finish_reason="content_filter"), "filtered", "x"),
        (completion(content=None, refusal="I will not."), "refusal", "I will not."),
    ],
)
async def test_faults_of_a_whole_answer(
    provider: Provider, model: LangChainModel, answer: Answer, fault: str, text: str
) -> None:
    provider.answers.append(answer)
    proposal = (await propose(model)).proposal
    assert (proposal.fault, proposal.text) == (fault, text)


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}])
async def test_usage_that_says_nothing_is_no_usage(
    provider: Provider, model: LangChainModel, usage: dict[str, int] | None
) -> None:
    provider.answers.append(completion(content="x", usage=usage))
    assert (await propose(model)).usage is None


@pytest.mark.parametrize(
    ("answer", "retry_after_s"),
    [
        (Answer(b'{"error":{"message":"slow down"}}', 429, {"Retry-After": "7"}), 7.0),
        (Answer(b'{"error":{"message":"slow down"}}', 429, {"retry-after-ms": "1500"}), 1.5),
        (
            Answer(
                b"{}",
                503,
                {"Retry-After": "Tue, 20 Oct 2099 09:15:30 GMT", "Date": "Tue, 20 Oct 2026 09:14:02 GMT"},
            ),
            None,
        ),
        (Answer(b'{"error":{"message":"slow down"}}', 429, {"Retry-After": "soon"}), None),
        (Answer(b"oops", 500, content_type="text/plain"), None),
        (Answer(b"<html>gateway</html>", 503, {"Retry-After": "2"}, content_type="text/html"), 2.0),
        (Answer(b"{}", 529), None),
        (Answer(b"{}", 408), None),
    ],
)
async def test_waiting_may_help(
    provider: Provider, model: LangChainModel, answer: Answer, retry_after_s: float | None
) -> None:
    provider.answers.append(answer)
    found = await outage(model)
    assert found.retryable
    assert not found.billable
    assert found.retry_after_s == retry_after_s
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (Answer(b'{"error":{"message":"Incorrect API key provided: sk-test-key"}}', 401), "OPENAI_API_KEY"),
        (Answer(b'{"error":{"message":"not for you"}}', 403), "AGENTIC_LOOP_MODEL"),
        (Answer(b'{"error":{"message":"no such model"}}', 404), "OPENAI_BASE_URL"),
        (Answer(b'{"error":{"message":"bad tool schema"}}', 400), "bad tool schema"),
        (Answer(b'{"error":{"message":"x","code":"context_length_exceeded"}}', 400), "prompt size"),
        (
            Answer(b'{"error":{"message":"no money","code":"insufficient_quota"}}', 429, {"Retry-After": "1"}),
            "quota",
        ),
    ],
)
async def test_waiting_does_not_help(provider: Provider, model: LangChainModel, answer: Answer, advice: str) -> None:
    provider.answers.append(answer)
    found = await outage(model)
    assert not found.retryable
    assert advice in str(found)
    assert "sk-test-key" not in str(found)
    assert len(provider.requests) == 1


BODY = completion(calls=[call("lookup_order", '{"order_id":"1"}')], finish_reason="tool_calls").body


@pytest.mark.parametrize(
    "answer",
    [
        Answer(BODY, cut_after=len(BODY) // 2),
        Answer(BODY[: len(BODY) // 2]),
        Answer(b"<html>hello</html>", content_type="text/html"),
        Answer(b"garbage"),
        Answer(b""),
        Answer(b"{}"),
        Answer(b"[]"),
        Answer(b'{"choices": null}'),
        Answer(b'{"choices": []}'),
        Answer(b'{"choices": [{"message": null}]}'),
        Answer(b'{"error": {"message": "overloaded"}}'),
    ],
)
async def test_an_unusable_body_is_worth_another_attempt(
    provider: Provider, model: LangChainModel, answer: Answer
) -> None:
    provider.answers.append(answer)
    found = await outage(model)
    assert found.retryable, str(found)
    assert found.billable
    assert len(provider.requests) == 1


async def test_slow_bytes_run_into_the_callers_time_out(provider: Provider, model: LangChainModel) -> None:
    provider.answers.append(Answer(BODY, drip=True))
    found = await outage(model, timeout_s=0.4)
    assert found.retryable
    assert found.billable
    assert "0.4 s" in str(found)
    assert len(provider.requests) == 1


async def test_a_refused_connection_is_worth_another_attempt() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    found = await outage(model_at(f"http://127.0.0.1:{port}/v1"))
    assert found.retryable
    assert not found.billable
    assert "could not be reached" in str(found)


async def test_the_callers_chat_model_is_left_alone(provider: Provider) -> None:
    chat = ChatOpenAI(model="gpt-4o-mini", api_key=SecretStr("k"), base_url=provider.url, max_retries=2)
    LangChainModel(chat, "openai:x", pricing_for("openai:x", {}))
    assert type(chat) is ChatOpenAI
    assert chat.max_retries == 2
    assert chat.root_async_client.max_retries == 2
