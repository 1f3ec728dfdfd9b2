"""The rehearsal model: a bundled, deterministic chat model, so that everything runs without a key or a network.

It is no language model and no script. It reads the rendered messages and the tools on offer, and reasons over the
records that it finds there, whatever their ids, amounts and histories are. What is not in the messages it does not
know, and text inside data it does not follow. A loop that it has no strategy for, it declines.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool

from . import refund_reasoning
from .reading import Reading, read_messages
from .refund_reasoning import Move

REHEARSAL = "rehearsal"
"""The name under which the rehearsal model is chosen and reported."""

BYTES_PER_TOKEN = 4
"""The rehearsal model reports one token for every four bytes of text, rounded up for each message."""

Strategy = Callable[[Reading, Collection[str]], Move]

STRATEGIES: Sequence[tuple[frozenset[str], Strategy]] = ((refund_reasoning.TOOLS, refund_reasoning.next_move),)
"""How to proceed, by the tools that must be on offer; the first that fits is taken."""


class RehearsalChatModel(BaseChatModel):
    """A deterministic chat model that calls tools: the same messages and tools give the same answer.

    It knows the refund loop. Answers carry one call and a usage estimate; the model's name is ``rehearsal``.
    """

    @property
    def _llm_type(self) -> str:
        return REHEARSAL

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
        tools: list[dict[str, Any]] = kwargs.get("tools", [])
        offered = [str(tool["function"]["name"]) for tool in tools]
        move = _move(read_messages(messages), offered)
        answer = _answer(move, offered, call_id=f"call_{len(messages)}")
        read = sum(_tokens(_written(message)) for message in messages) + sum(_tokens(str(tool)) for tool in tools)
        wrote = _tokens(_written(answer))
        answer.usage_metadata = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _move(reading: Reading, offered: Collection[str]) -> Move:
    for needed, strategy in STRATEGIES:
        if needed.issubset(offered):
            return strategy(reading, offered)
    reason = (
        "The rehearsal model has no strategy for these tools; choose a model with AGENTIC_LOOP_MODEL=openai:NAME."
    )
    return Move("blocked", {"reason": reason}, reason)


def _answer(move: Move, offered: Collection[str], *, call_id: str) -> AIMessage:
    """The move as a call; as words where it is not on offer, since a model cannot call what it was not offered."""
    metadata = {"model_name": REHEARSAL, "finish_reason": "stop"}
    if move.name not in offered:
        said = next((value for value in move.args.values() if isinstance(value, str)), move.because)
        return AIMessage(content=said, response_metadata=metadata)
    call = {"name": move.name, "args": move.args, "id": call_id, "type": "tool_call"}
    return AIMessage(
        content=move.because, tool_calls=[call], response_metadata={**metadata, "finish_reason": "tool_calls"}
    )


def _written(message: BaseMessage) -> str:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return str(message.content) + "".join(f"{call['name']}{call['args']}" for call in calls)


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)
