"""Keeps the arguments of tool calls as the provider sent them.

LangChain parses arguments leniently: of a duplicate key it keeps the last value, it accepts NaN, and a parsed call no
longer shows what was written. What the model wrote decides whether a call may run, so the text itself is kept.
"""

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatResult
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from openai import BaseModel as OpenAIRecord

RAW_CALLS = "agentic_loop_raw_calls"
"""Under this name an answer's ``additional_kwargs`` hold the calls as they were sent: id, name, arguments."""


class KeepsRawArguments(BaseChatOpenAI):
    """A chat model of OpenAI's interface whose answers also hold the calls as they were sent."""

    # LangChain types a provider's answer as dict; what it holds is checked here field by field.
    def _create_chat_result(
        self, response: dict[str, Any] | OpenAIRecord, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        if isinstance(response, OpenAIRecord):
            response = response.model_dump(warnings=False)
        if not isinstance(response, dict):
            return super()._create_chat_result(response, generation_info)
        raw = [_repair_calls(choice) for choice in _choices(response)]
        result = super()._create_chat_result(response, generation_info)
        for generation, calls in zip(result.generations, raw, strict=False):
            if calls and isinstance(generation.message, AIMessage):
                generation.message.additional_kwargs[RAW_CALLS] = calls
        return result


class ChatOpenAIKeepingArguments(KeepsRawArguments, ChatOpenAI):
    """ChatOpenAI whose answers also hold the calls as they were sent."""


def keeping_raw_arguments(chat: BaseChatModel) -> BaseChatModel:
    """A copy of this chat model that keeps raw arguments and never retries by itself.

    Models with OpenAI's interface are changed; any other chat model is returned as it is, and its retries must be
    switched off where it is made (``max_retries=0``).
    """
    if not isinstance(chat, BaseChatOpenAI):
        return chat
    # Streaming takes another path through LangChain, on which the raw text is lost; a cache would answer for a model.
    copy = chat.model_copy(update={"max_retries": 0, "disable_streaming": True, "cache": False})
    copy.root_async_client = chat.root_async_client.with_options(max_retries=0)
    copy.async_client = copy.root_async_client.chat.completions
    if not isinstance(copy, KeepsRawArguments):
        # Fields and layout are the same; only the method that builds the result differs.
        copy.__class__ = type(type(chat).__name__, (KeepsRawArguments, type(chat)), {"__module__": __name__})
    return copy


def _choices(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = response.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _repair_calls(choice: dict[str, Any]) -> list[dict[str, str]]:
    """Take the raw calls of one choice, and give each the fields that LangChain cannot do without."""
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return []
    raw = []
    for position, call in enumerate(calls):
        call = call if isinstance(call, dict) else {}
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        fields = {
            "id": _text(call.get("id")),
            "name": _text(function.get("name")),
            "arguments": _text(function.get("arguments")),
        }
        raw.append(fields)
        calls[position] = {
            "id": fields["id"],
            "type": "function",
            "function": {"name": fields["name"], "arguments": _digestible(fields["arguments"])},
        }
    return raw


def _digestible(arguments: str) -> str:
    """Arguments on which LangChain does not give up the whole answer: it does on JSON that is no object."""
    try:
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    return arguments if isinstance(value, dict) else json.dumps({"unusable_arguments": arguments})


def _text(value: object) -> str:
    """Text as it is, nothing as empty text, and JSON where a server sends a value instead of text."""
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return json.dumps(value, ensure_ascii=False, default=str)
