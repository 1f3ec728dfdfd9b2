"""The short way from a LangChain chat model to a model that a loop can use."""

import os
from collections.abc import Mapping
from typing import Literal

from langchain_core.language_models import BaseChatModel

from .chat_model import LangChainModel
from .pricing import pricing_for


def chat_model(
    chat: BaseChatModel,
    name: str,
    *,
    tool_choice: Literal["auto", "required"] = "auto",
    environment: Mapping[str, str] = os.environ,
) -> LangChainModel:
    """Any LangChain chat model that can call tools, with its prices.

    ``name`` is ``provider:model``, such as ``openai:gpt-4o-mini``: it goes on record and finds the price. A model on
    no price list counts at a stated ceiling; AGENTIC_LOOP_PRICE_INPUT_USD_PER_MTOK and its like say what it costs.
    The loop does the retries: switch off those of the chat model.

    Example:
        >>> model = chat_model(*model_from_settings("openai:gpt-4o-mini", os.environ))

    Raises:
        Misuse: a price in the settings is no amount.

    Source: DESIGN §4 (cost is a budget), §6 (inference retries).
    """
    return LangChainModel(chat, name, pricing_for(name, environment), tool_choice=tool_choice)
