"""Any LangChain chat model behind the loop's ``Model`` port: one inference, one reply, no retry.

Source: DESIGN §2 (step 3), §6 (inference retries are the loop's).
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, assert_never

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages import ToolCall as LangChainToolCall
from langchain_core.runnables import Runnable
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import JsonValue

from agentic_loop.graph.errors import Defect, Misuse, Outage
from agentic_loop.graph.records import ModelReply, ModelUsage, ToolOffer
from agentic_loop.graph.state import Prompt, PromptMessage, ProposedCall

from .answers import proposal_of, raw_of, usage_of
from .outages import outage_of
from .pricing import Pricing
from .raw_arguments import keeping_raw_arguments
from .strict_schema import strict_form
from .token_estimate import estimate_tokens


class LangChainModel:
    """Implements ``graph.ports.Model`` over a LangChain chat model that supports tool calling.

    ``name`` is the provider and model, such as ``openai:gpt-4o-mini``. ``tool_choice`` is only sent where it is
    ``required``: some servers do not know that word. Models with OpenAI's interface are used through a copy that
    keeps raw arguments and never retries by itself; of any other chat model, switch the retries off where you make
    it.
    ``timer`` measures latency, in seconds.

    Source: DESIGN §2, §6.
    """

    def __init__(
        self,
        chat: BaseChatModel,
        name: str,
        pricing: Pricing,
        *,
        tool_choice: Literal["auto", "required"] = "auto",
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._chat = keeping_raw_arguments(chat)
        self._name = name
        self._pricing = pricing
        self._tool_choice = tool_choice
        self._timer = timer

    @property
    def name(self) -> str:
        """The provider and model name."""
        return self._name

    async def propose(
        self, prompt: Prompt, tools: Sequence[ToolOffer], *, max_output_tokens: int, timeout_s: float
    ) -> ModelReply:
        """One inference, without any retry, given up after ``timeout_s`` seconds.

        Raises:
            ModelOutage: rate limit, server fault, time-out, refused connection, unusable body; ``retryable`` says
                whether another attempt may help.
            Misuse: the chat model cannot call tools.
        """
        bound = self._bound(tools, max_output_tokens)
        messages = [to_langchain(message) for message in prompt.messages]
        started = self._timer()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await bound.ainvoke(messages)
        except (Defect, Misuse, Outage):
            raise
        except Exception as error:
            # Every provider has exceptions of its own; whichever it is, there is no answer.
            raise outage_of(error, model=self._name, timeout_s=timeout_s) from error
        latency_ms = round((self._timer() - started) * 1_000)
        proposal = proposal_of(answer, prompt_digest=prompt.digest, model=self._name)
        return ModelReply(
            proposal=proposal, usage=usage_of(answer), raw=raw_of(answer, proposal), latency_ms=latency_ms
        )

    def estimate_tokens(self, text: str) -> int:
        """An upper bound of the tokens in a text."""
        return estimate_tokens(text)

    def cost_micro_usd(self, usage: ModelUsage) -> int:
        """The price of this usage in micro-USD, rounded up."""
        return self._pricing.cost_micro_usd(usage)

    def _bound(self, tools: Sequence[ToolOffer], max_output_tokens: int) -> Runnable[LanguageModelInput, AIMessage]:
        options: dict[str, Any] = {_output_limit_name(self._chat): max_output_tokens}  # whatever a provider takes
        if not tools:
            return self._chat.bind(**options)
        if self._tool_choice == "required":
            options["tool_choice"] = "any"
        has_openai_interface = isinstance(self._chat, BaseChatOpenAI)
        if has_openai_interface:
            options["parallel_tool_calls"] = True
        definitions = [definition_of(tool, strict=has_openai_interface) for tool in tools]
        try:
            return self._chat.bind_tools(definitions, **options)
        except NotImplementedError as error:
            raise Misuse(f"{self._name} cannot call tools; choose a chat model that implements bind_tools") from error


def definition_of(tool: ToolOffer, *, strict: bool) -> dict[str, JsonValue]:
    """The tool as providers expect it; enforced while decoding where that is wanted and its schema allows it."""
    parameters: dict[str, JsonValue] = dict(tool.parameters)
    function: dict[str, JsonValue] = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if strict:
        form = strict_form(parameters)
        function["strict"] = form is not None
        function["parameters"] = form if form is not None else parameters
    return {"type": "function", "function": function}


def to_langchain(message: PromptMessage) -> BaseMessage:
    """The rendered message as a LangChain message."""
    match message.role:
        case "system":
            return SystemMessage(content=message.content)
        case "user":
            return HumanMessage(content=message.content)
        case "assistant":
            return AIMessage(content=message.content, tool_calls=[_past_call(call) for call in message.calls])
        case "tool":
            return ToolMessage(content=message.content, tool_call_id=message.call_id)
        case _:
            assert_never(message.role)


def _past_call(call: ProposedCall) -> LangChainToolCall:
    try:
        args = json.loads(call.arguments_json)
    except ValueError:
        args = None
    if not isinstance(args, dict):
        args = {"unusable_arguments": call.arguments_json}
    return LangChainToolCall(name=call.name, args=args, id=call.call_id, type="tool_call")


def _output_limit_name(chat: BaseChatModel) -> str:
    """What this chat model calls the largest answer; OpenAI's and Anthropic's models say ``max_tokens``."""
    fields = type(chat).model_fields
    for name in ("max_output_tokens", "num_predict"):
        if name in fields:
            return name
    return "max_tokens"
