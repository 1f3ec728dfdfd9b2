"""Whatever a model may write comes back from the database as it was."""

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from agentic_loop.graph.store.database import Pool
from agentic_loop.graph.store.text import json_text, json_value, original, storable

any_text = st.text(st.characters(exclude_categories=[]))  # with NUL and lone surrogates
any_json: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


@given(any_text)
def test_stored_text_reads_back_and_holds_nothing_that_postgres_refuses(text: str) -> None:
    stored = storable(text)
    assert original(stored) == text
    assert "\x00" not in stored
    stored.encode()


def test_ordinary_text_is_stored_as_it_is() -> None:
    text = "Order 8472 \\ “₹2,000” \n\t 退款 🎉"
    assert storable(text) == text


@given(any_text, any_text)
def test_two_texts_are_never_stored_alike(one: str, other: str) -> None:
    assert (storable(one) == storable(other)) == (one == other)


@given(any_json)
def test_json_reads_back_with_the_same_types(value: JsonValue) -> None:
    text = json_text(value)
    assert repr(json_value(text)) == repr(value)
    text.encode()


async def test_postgres_keeps_the_worst_texts(pool: Pool) -> None:
    worst = ["\x00", "\x10", "\ud800", "\x100000", "a\x00b\udfff\x10c", "\uffff\U0010ffff"]
    async with pool.connection() as link:
        for text in worst:
            row = await (await link.execute("SELECT %s::text AS kept", [storable(text)])).fetchone()
            assert row is not None
            assert original(row["kept"]) == text
