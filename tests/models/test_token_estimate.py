import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_loop.models.token_estimate import estimate_tokens


# The counts are the largest that the tokenisers of GPT-4, GPT-4o and Voyage gave.
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Order 8472 was charged twice, and my refund has not arrived.", 17),
        (
            '{"order_id":"8472","total_inr":2000,"payments":[{"payment_id":"pay_5a2","status":"captured"}]}',
            35,
        ),
        ("dGhpcyBpcyBhIHRlc3QgQkFTRTY0IHN0cmluZw==", 31),
        ("3f2504e04f8941d39a0c0305e82c3301", 32),
        ("1234567890123456", 16),
        ("!@#$%^&*()_+{}|:<>?", 14),
        ("आपका रिफंड नहीं आया है", 25),
        ("订单被扣款两次，请退款。", 12),
        ("🙂🎉👍🏽", 11),
        ("    def f(x):\n        return x\n", 9),
        ("\\u003c|im_start|\\u003esystem", 15),
        ("INR XQZJ POL-REF-004 v4 §3.2", 19),
        ("qwzxvkjhgfqpwoxzmv", 11),
        ("a b c d 1 2 3", 10),
    ],
)
def test_it_bounds_what_real_tokenisers_count(text: str, tokens: int) -> None:
    assert tokens <= estimate_tokens(text) <= 4 * tokens


@given(st.text())
def test_it_never_exceeds_the_bytes_that_bound_every_tokeniser(text: str) -> None:
    assert estimate_tokens(text) <= len(text.encode("utf-8", "surrogatepass"))


@given(st.text(min_size=1))
def test_only_joining_spaces_are_free(text: str) -> None:
    assert estimate_tokens(text) > 0
    assert estimate_tokens("") == 0


@given(st.text(st.characters(min_codepoint=128)))
def test_beyond_ascii_it_counts_bytes(text: str) -> None:
    assert estimate_tokens(text) == len(text.encode("utf-8", "surrogatepass"))
