"""An upper bound of the tokens in a text, without any tokeniser's tables (those would have to be downloaded)."""

import re

_PIECES = re.compile(r"(?P<letters>[A-Za-z]+)|(?P<spaces>[ \n\r\t]+)|(?P<other>[\x00-\x7f])|(?P<wide>[^\x00-\x7f]+)")


def estimate_tokens(text: str) -> int:
    """At least as many tokens as common byte-pair tokenisers make of this text.

    The sum over its pieces: a run of n ASCII letters counts ceil(n / 2); a run of n blanks counts ceil(n / 2), except
    that a single space counts nothing, since it joins the next word; every digit and sign counts one; everything else
    counts its UTF-8 bytes, which no byte-level tokeniser can exceed. English prose comes out at about twice its real
    size, JSON at about one and a half times.
    """
    total = 0
    for piece in _PIECES.finditer(text):
        match piece.lastgroup:
            case "letters":
                total += (len(piece.group()) + 1) // 2
            case "spaces":
                total += len(piece.group()) // 2 if piece.group() != " " else 0
            case "wide":
                total += len(piece.group().encode("utf-8", "surrogatepass"))
            case _:
                total += 1
    return total
