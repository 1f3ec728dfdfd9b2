"""A chat model that follows a script, for tests of loops: no key, no network, every prompt on record."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ModelUsage
from agentic_loop.models.raw_arguments import RAW_CALLS

Call: TypeAlias = tuple[str, Mapping[str, Any] | str]
"""A tool call: the name and the arguments; arguments given as text are passed on as they are, however malformed."""

Answer: TypeAlias = "Call | Sequence[Call] | str | AIMessage | Exception"
"""One answer: a call, several calls at once, words without a call, a whole message, or an exception to raise."""

Reply: TypeAlias = "Answer | Callable[[list[BaseMessage]], Answer]"
"""An answer, or a function that makes one from the messages that the model was shown."""


class ScriptExhausted(Misuse):
    """The loop asked the model once more than the script has replies."""


class ScriptedChatModel(BaseChatModel):
    """A chat model that gives the replies of a script, one for each call, and keeps what it was shown.

    ``replies`` are given in order. ``usages`` are reported with them, one for each; where the list is shorter, or
    holds None, the model reports no usage, as some providers do. The script is shared by all copies of the model.

    Shapes: ``prompts`` holds the messages of every call, ``offered`` the names of the tools that were on offer.

    Example:
        >>> model = ScriptedChatModel([("lookup_order", {"order_id": "8472"}), ("finish", {"message": "Done."})])

    Raises (when called):
        ScriptExhausted: there is no reply left; the message says how many there were.
    """

    _script: list[Reply] = PrivateAttr()
    _usages: list[ModelUsage | None] = PrivateAttr()
    _prompts: list[list[BaseMessage]] = PrivateAttr(default_factory=list)
    _offered: list[list[str]] = PrivateAttr(default_factory=list)

    def __init__(self, replies: Sequence[Reply], usages: Sequence[ModelUsage | None] = ()) -> None:
        super().__init__()
        if len(usages) > len(replies):
            raise Misuse(f"{len(usages)} usages were given for {len(replies)} replies; give at most one for each")
        self._script = list(replies)
        self._usages = list(usages)

    @property
    def prompts(self) -> list[list[BaseMessage]]:
        """The messages of every call so far, oldest first."""
        return self._prompts

    @property
    def offered(self) -> list[list[str]]:
        """The names of the tools that were on offer at every call so far."""
        return self._offered

    @property
    def replies_left(self) -> int:
        """How many replies of the script were not asked for yet."""
        return max(0, len(self._script) - len(self._prompts))

    @property
    def _llm_type(self) -> str:
        return "scripted"

    # LangChain's own signature: a tool may be a dict, a class, a function or a tool object.
    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with these tools on offer."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        number = len(self._prompts)
        self._prompts.append(list(messages))
        self._offered.append([str(tool["function"]["name"]) for tool in kwargs.get("tools", [])])
        if number >= len(self._script):
            raise ScriptExhausted(
                f"the script has {len(self._script)} replies, and this is call {number + 1}; add a reply, or find "
                "out why the loop did not end (the last message says what the model was told)"
            )
        reply = self._script[number]
        answer = reply if isinstance(reply, AIMessage) or not callable(reply) else reply(list(messages))
        if isinstance(answer, Exception):
            raise answer
        message = _message(answer, number)
        if number < len(self._usages) and (usage := self._usages[number]) is not None:
            message = message.model_copy(update={"usage_metadata": _metadata(usage)})
        return ChatResult(generations=[ChatGeneration(message=message)])


def _message(answer: Call | Sequence[Call] | str | AIMessage, number: int) -> AIMessage:
    if isinstance(answer, AIMessage):
        return answer
    if isinstance(answer, str):
        return AIMessage(content=answer, response_metadata={"finish_reason": "stop"})
    calls = [answer] if _is_call(answer) else list(answer)
    raw: list[dict[str, str]] = []
    parsed: list[ToolCall] = []
    for position, call in enumerate(calls, start=1):
        if not _is_call(call):
            raise Misuse(
                f"reply {number + 1} of the script is no answer: write (name, arguments), or a list of these"
            )
        name, args = call
        call_id = f"call_{number + 1}_{position}"
        raw.append({"id": call_id, "name": name, "arguments": args if isinstance(args, str) else json.dumps(args)})
        if not isinstance(args, str):
            parsed.append(ToolCall(name=name, args=dict(args), id=call_id, type="tool_call"))
    return AIMessage(
        content="",
        tool_calls=parsed,
        additional_kwargs={RAW_CALLS: raw},
        response_metadata={"finish_reason": "tool_calls"},
    )


def _is_call(value: object) -> TypeGuard[Call]:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], Mapping | str)
    )


def _metadata(usage: ModelUsage) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_token_details={"cache_read": usage.cached_tokens},
    )
