"""What an inference costs, in integer micro-USD, from prices that come with the installation.

Source: DESIGN §4 (cost is a budget); the price list is that of ``genai-prices``, never refreshed over the network.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Protocol

import genai_prices

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ModelUsage

CEILING_INPUT_USD_PER_MTOK = Decimal(20)
"""What a model that is on no price list is taken to cost per million input tokens, unless settings say otherwise."""

CEILING_OUTPUT_USD_PER_MTOK = Decimal(100)
"""The same for output tokens."""

REHEARSAL_USD_PER_MTOK = Decimal(1)
"""The nominal price of the rehearsal model, per million tokens of either kind, so that cost budgets are felt."""

INPUT_PRICE_VARIABLE = "AGENTIC_LOOP_PRICE_INPUT_USD_PER_MTOK"
OUTPUT_PRICE_VARIABLE = "AGENTIC_LOOP_PRICE_OUTPUT_USD_PER_MTOK"


class Pricing(Protocol):
    """The price of a usage. More tokens never cost less, so the price of an upper bound is an upper bound."""

    def cost_micro_usd(self, usage: ModelUsage) -> int:
        """The price in micro-USD, rounded up."""


@dataclass(frozen=True)
class FixedPricing:
    """A flat price per million tokens, the same for cached input: a ceiling, or a nominal price."""

    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal

    def cost_micro_usd(self, usage: ModelUsage) -> int:
        """The price in micro-USD, rounded up."""
        # One USD per million tokens is one micro-USD per token.
        price = usage.input_tokens * self.input_usd_per_mtok + usage.output_tokens * self.output_usd_per_mtok
        return _rounded_up(price)


@dataclass(frozen=True)
class ListedPricing:
    """The price from the installed price list."""

    model: str
    provider: str

    def cost_micro_usd(self, usage: ModelUsage) -> int:
        """The price in micro-USD, rounded up; cached input at its own price."""
        if usage.input_tokens + usage.output_tokens == 0:
            return 0
        listed = genai_prices.calc_price(
            genai_prices.Usage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=usage.cached_tokens,
            ),
            self.model,
            provider_id=self.provider,
        )
        return _rounded_up(listed.total_price * 1_000_000)


def pricing_for(name: str, environ: Mapping[str, str]) -> Pricing:
    """The pricing of a model named as ``provider:model``.

    Prices in the settings come first, then the price list, then the stated ceiling. ``rehearsal`` has a nominal
    price.

    Raises:
        Misuse: a price in the settings is no amount, or only one of the two is given.
    """
    declared = _declared(environ)
    if declared is not None:
        return declared
    if name == "rehearsal":
        return FixedPricing(REHEARSAL_USD_PER_MTOK, REHEARSAL_USD_PER_MTOK)
    provider, _, model = name.partition(":")
    listed = ListedPricing(model=model, provider=provider)
    try:
        listed.cost_micro_usd(ModelUsage(input_tokens=1, output_tokens=1))
    except LookupError:
        return FixedPricing(CEILING_INPUT_USD_PER_MTOK, CEILING_OUTPUT_USD_PER_MTOK)
    return listed


def _declared(environ: Mapping[str, str]) -> FixedPricing | None:
    given = {name: environ[name] for name in (INPUT_PRICE_VARIABLE, OUTPUT_PRICE_VARIABLE) if environ.get(name)}
    if not given:
        return None
    if len(given) == 1:
        raise Misuse(f"set both {INPUT_PRICE_VARIABLE} and {OUTPUT_PRICE_VARIABLE}, or neither")
    return FixedPricing(
        input_usd_per_mtok=_amount(INPUT_PRICE_VARIABLE, given[INPUT_PRICE_VARIABLE]),
        output_usd_per_mtok=_amount(OUTPUT_PRICE_VARIABLE, given[OUTPUT_PRICE_VARIABLE]),
    )


def _amount(name: str, text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0:
        raise Misuse(f"{name} must be an amount in USD per million tokens, such as 0.15, not {text!r}")
    return amount


def _rounded_up(micro_usd: Decimal) -> int:
    return int(micro_usd.to_integral_value(rounding=ROUND_CEILING))
