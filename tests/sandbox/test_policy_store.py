from typing import Any

import pytest

from agentic_loop.sandbox.policy_passages import PASSAGES
from tests.sandbox.conftest import ACME, World


async def _search(world: World, **search: Any) -> list[dict[str, str]]:
    response = await world.client.post("/policy/search", json=search, headers=ACME)
    passages: list[dict[str, str]] = response.raise_for_status().json()["passages"]
    return passages


async def test_the_threshold_is_found_first_with_its_provenance(world: World) -> None:
    first = (await _search(world, query="duplicate card capture refund approval threshold"))[0]
    assert set(first) == {"chunk_id", "doc", "version", "section", "text"}
    assert (first["doc"], first["version"], first["section"]) == ("POL-REF-004", "v4", "3.2")
    assert "INR 1,000" in first["text"]
    assert "support lead" in first["text"]


@pytest.mark.parametrize(
    ("query", "section"),
    [
        ("Is a refund allowed while a chargeback is open?", "POL-REF-004/v4/4.1"),
        ("when will the money reach the customer's account", "POL-REF-004/v4/5.1"),
        ("who approves refunds above INR 10,000, a manager?", "POL-REF-004/v4/3.3"),
        ("three captured payments", "POL-REF-004/v4/3.4"),
        ("the earlier refund has failed", "POL-REF-004/v4/3.5"),
        ("my parcel is lost, no tracking scan", "POL-SHP-003/v5/2.3"),
        ("can I exchange a gift card for cash", "POL-GFT-001/v2/1.1"),
        ("how long are payment records retained", "POL-REC-001/v3/1.1"),
    ],
)
async def test_a_question_in_plain_words_finds_its_section(world: World, query: str, section: str) -> None:
    assert (await _search(world, query=query))[0]["chunk_id"] == section


async def test_superseded_versions_appear_only_when_asked_for(world: World) -> None:
    query = "duplicate card capture refund approval threshold"
    current = await _search(world, query=query, top_k=5)
    assert {passage["version"] for passage in current if passage["doc"] == "POL-REF-004"} == {"v4"}
    old = await _search(world, query=query, version="v3")
    assert (old[0]["version"], "INR 2,500" in old[0]["text"]) == ("v3", True)
    assert await _search(world, query=query, version="v99") == []


async def test_top_k_bounds_the_answer(world: World) -> None:
    assert len(await _search(world, query="refund payment order customer", top_k=5)) == 5
    assert len(await _search(world, query="refund payment order customer", top_k=1)) == 1
    too_many = await world.client.post("/policy/search", json={"query": "x", "top_k": 6}, headers=ACME)
    assert too_many.status_code == 422


@pytest.mark.parametrize("query", ["the of and", "zebra xylophone", "'; DROP TABLE x; -- & | ! ( <->", "\x00", "💸"])
async def test_a_question_that_nothing_answers_finds_nothing(world: World, query: str) -> None:
    assert await _search(world, query=query) == []


def test_every_passage_has_an_id_of_its_own() -> None:
    ids = [passage.chunk_id for passage in PASSAGES]
    assert len(set(ids)) == len(ids) >= 20
