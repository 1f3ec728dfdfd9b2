from decimal import Decimal

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ModelUsage
from agentic_loop.models.pricing import (
    CEILING_INPUT_USD_PER_MTOK,
    CEILING_OUTPUT_USD_PER_MTOK,
    INPUT_PRICE_VARIABLE,
    OUTPUT_PRICE_VARIABLE,
    FixedPricing,
    pricing_for,
)

MILLION = 1_000_000
NAMES = [
    "openai:gpt-4o-mini",
    "openai:gpt-4o",
    "openai:gpt-4.1-mini",
    "openai:gpt-5",
    "anthropic:claude-sonnet-4-5",
    "google:gemini-2.5-pro",
    "rehearsal",
    "openai:a-model-of-my-own",
]
counts = st.integers(0, 2_000_000)


@pytest.mark.parametrize(
    ("usage", "micro_usd"),
    [
        (ModelUsage(MILLION, 0), 150_000),
        (ModelUsage(0, MILLION), 600_000),
        (ModelUsage(MILLION, 0, cached_tokens=MILLION), 75_000),
        (ModelUsage(1000, 100, cached_tokens=500), 173),
        (ModelUsage(1, 0), 1),
        (ModelUsage(0, 0), 0),
    ],
)
def test_a_listed_model_has_its_price_rounded_up(usage: ModelUsage, micro_usd: int) -> None:
    assert pricing_for("openai:gpt-4o-mini", {}).cost_micro_usd(usage) == micro_usd


def test_a_model_on_no_list_is_taken_to_be_dear() -> None:
    pricing = pricing_for("openai:a-model-of-my-own", {})
    assert pricing == FixedPricing(CEILING_INPUT_USD_PER_MTOK, CEILING_OUTPUT_USD_PER_MTOK)
    assert pricing.cost_micro_usd(ModelUsage(1000, 10)) == 21_000
    assert pricing_for("elsewhere:model", {}) == pricing


def test_declared_prices_come_first() -> None:
    declared = {INPUT_PRICE_VARIABLE: "0.5", OUTPUT_PRICE_VARIABLE: "2"}
    for name in NAMES:
        assert pricing_for(name, declared).cost_micro_usd(ModelUsage(1001, 10, cached_tokens=5)) == 521
    free = {INPUT_PRICE_VARIABLE: "0", OUTPUT_PRICE_VARIABLE: "0"}
    assert pricing_for("openai:x", free).cost_micro_usd(ModelUsage(1000, 1000)) == 0


@pytest.mark.parametrize(
    "declared",
    [
        {INPUT_PRICE_VARIABLE: "1"},
        {OUTPUT_PRICE_VARIABLE: "1"},
        {INPUT_PRICE_VARIABLE: "cheap", OUTPUT_PRICE_VARIABLE: "1"},
        {INPUT_PRICE_VARIABLE: "-1", OUTPUT_PRICE_VARIABLE: "1"},
        {INPUT_PRICE_VARIABLE: "1", OUTPUT_PRICE_VARIABLE: "NaN"},
    ],
)
def test_half_or_strange_prices_are_refused(declared: dict[str, str]) -> None:
    with pytest.raises(Misuse, match="AGENTIC_LOOP_PRICE"):
        pricing_for("openai:gpt-4o-mini", declared)


def test_the_rehearsal_model_has_a_nominal_price() -> None:
    assert pricing_for("rehearsal", {}) == FixedPricing(Decimal(1), Decimal(1))
    assert pricing_for("rehearsal", {}).cost_micro_usd(ModelUsage(1200, 60)) == 1260


@pytest.mark.parametrize("name", NAMES)
@given(billed_in=counts, billed_out=counts, more_in=counts, more_out=counts, share=st.floats(0, 1))
def test_the_price_of_an_upper_bound_is_an_upper_bound(
    name: str, billed_in: int, billed_out: int, more_in: int, more_out: int, share: float
) -> None:
    pricing = pricing_for(name, {})
    billed = ModelUsage(billed_in, billed_out, cached_tokens=int(billed_in * share))
    bound = ModelUsage(billed_in + more_in, billed_out + more_out)
    assert 0 <= pricing.cost_micro_usd(billed) <= pricing.cost_micro_usd(bound)


def test_prices_come_from_the_installation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_update(*_args: object, **_options: object) -> None:
        raise AssertionError("prices must not be updated over the network")

    monkeypatch.setattr(genai_prices.UpdatePrices, "start", no_update)
    monkeypatch.setattr(genai_prices.UpdatePrices, "fetch", no_update)
    assert pricing_for("openai:gpt-4o", {}).cost_micro_usd(ModelUsage(10, 10)) > 0
