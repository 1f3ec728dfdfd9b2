"""The scripted chat model that people use in their own tests."""

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from agentic_loop.graph.errors import Misuse, ModelOutage
from agentic_loop.graph.records import ModelUsage, ToolOffer
from agentic_loop.graph.state import Prompt, PromptMessage
from agentic_loop.models.chat_model import LangChainModel
from agentic_loop.models.pricing import pricing_for
from agentic_loop.testing.models import ScriptedChatModel, ScriptExhausted

PROMPT = Prompt(messages=[PromptMessage(role="user", content="hi")], tools=["t"], digest="d", estimated_tokens=1)


async def propose(chat: ScriptedChatModel) -> list[tuple[str, str]]:
    model = LangChainModel(chat, "scripted", pricing_for("scripted", {}))
    reply = await model.propose(PROMPT, [ToolOffer("t", "d", {"type": "object"})], max_output_tokens=9, timeout_s=1)
    return [(call.name, call.arguments_json) for call in reply.proposal.calls]


async def test_replies_come_in_order_in_every_form() -> None:
    def by_what_it_sees(messages: list[BaseMessage]) -> tuple[str, dict[str, str]]:
        return "t", {"saw": str(messages[-1].content)}

    chat = ScriptedChatModel(
        [
            ("t", {"a": 1}),
            [("t", {"a": 1}), ("u", {})],
            ("t", '{"a": 1, "a": 2}'),
            "only words",
            AIMessage(content="x", tool_calls=[{"name": "v", "args": {}, "id": "1", "type": "tool_call"}]),
            by_what_it_sees,
        ]
    )
    assert [await propose(chat) for _ in range(6)] == [
        [("t", '{"a": 1}')],
        [("t", '{"a": 1}'), ("u", "{}")],
        [("t", '{"a": 1, "a": 2}')],
        [],
        [("v", "{}")],
        [("t", '{"saw": "hi"}')],
    ]
    assert chat.replies_left == 0


async def test_what_it_was_shown_is_on_record() -> None:
    chat = ScriptedChatModel([("t", {}), ("t", {})])
    await propose(chat)
    assert [message.content for message in chat.prompts[0]] == ["hi"]
    assert chat.offered == [["t"]]
    assert chat.replies_left == 1


async def test_exceptions_are_raised() -> None:
    chat = ScriptedChatModel([ModelOutage("down", retryable=True, retry_after_s=3), TimeoutError()])
    with pytest.raises(ModelOutage, match="down") as caught:
        await propose(chat)
    assert caught.value.retry_after_s == 3
    with pytest.raises(ModelOutage, match="did not answer"):
        await propose(chat)


async def test_usage_is_reported_where_it_is_given() -> None:
    chat = ScriptedChatModel(["a", "b", "c"], usages=[ModelUsage(1200, 60, cached_tokens=1000), None])
    answers = [await chat.ainvoke([HumanMessage("x")]) for _ in range(3)]
    assert [answer.usage_metadata and answer.usage_metadata["total_tokens"] for answer in answers] == [
        1260,
        None,
        None,
    ]
    model = LangChainModel(ScriptedChatModel(["a"], usages=[ModelUsage(7, 3, 5)]), "s", pricing_for("s", {}))
    assert (await model.propose(PROMPT, [], max_output_tokens=9, timeout_s=1)).usage == ModelUsage(7, 3, 5)


async def test_a_script_that_is_too_short_says_so() -> None:
    chat = ScriptedChatModel([("t", {})])
    await propose(chat)
    with pytest.raises(ScriptExhausted, match="1 replies, and this is call 2"):
        await propose(chat)
    assert len(chat.prompts) == 2


async def test_a_reply_in_no_known_form_is_refused() -> None:
    with pytest.raises(Misuse, match="reply 1 of the script"):
        await propose(ScriptedChatModel([[("t", {}), ("t", {}, "extra")]]))  # type: ignore[list-item]
    with pytest.raises(Misuse, match="2 usages"):
        ScriptedChatModel(["a"], usages=[None, None])
