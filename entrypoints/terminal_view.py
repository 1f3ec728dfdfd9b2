"""Where the command line writes: words for people, or exactly one JSON object for programs.

Text from models, customers and services is untrusted. ``plain`` takes out of it whatever a terminal would act on,
and the consoles here read no markup, so that such text can neither colour, move, hide nor forge what is printed.
"""

import json
import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Mapping
from typing import TextIO

from pydantic import JsonValue
from rich.console import Console, RenderableType
from rich.text import Text

PIPED_WIDTH = 140
"""How many columns are used where no terminal says how many it has, and COLUMNS does not say so either."""

_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor movements and the like: they carry no text
    "|\x1b[\\]PX^_]"  # the beginning of a title, link or device string: what is in it stays, to be seen
    "|\x1b[ -/]*[0-~]"
)
_BREAKS = "\n\t\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def plain(value: object, *, keep_lines: bool = False) -> str:
    """The text without escape sequences, control characters and changes of writing direction.

    Line breaks and tabs become spaces, unless ``keep_lines`` keeps line feeds. Half characters become U+FFFD.
    """
    text = str(value)
    if keep_lines:
        return "\n".join(plain(line) for line in text.splitlines())
    return "".join(map(_harmless, _SEQUENCES.sub("", text)))


def _harmless(letter: str) -> str:
    if letter in _BREAKS:
        return " "
    if letter in _DIRECTIONS:
        return ""
    match unicodedata.category(letter):
        case "Cc":
            return ""
        case "Cs":
            return "\ufffd"
        case _:
            return letter


def clip(value: object, limit_chars: int) -> str:
    """The plain text, cut off visibly at a length."""
    text = " ".join(plain(value).split(" "))
    return text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"


def shown_arguments(args: Mapping[str, JsonValue]) -> str:
    """Arguments as they are shown in a line: ``order_id="8472", amount_inr=2000``."""
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in args.items())


def wrapped(text: str, width: int) -> str:
    """The text in lines of a width; a word is broken only where it is longer than a line, at a hyphen if possible."""
    lines = []
    for line in text.split("\n"):
        words = [piece for word in line.split() for piece in textwrap.wrap(word, width)]
        lines += textwrap.wrap(" ".join(words), width, break_on_hyphens=False) or [""]
    return "\n".join(lines)


def usd(cost_micro_usd: int) -> str:
    """An amount of micro-USD in dollars, exactly."""
    dollars, rest = divmod(cost_micro_usd, 1_000_000)
    return f"${dollars}.{rest:06d}"


class Screen:
    """Standard output and standard error as the commands use them.

    With ``as_json`` standard output gets one JSON object (``result``) and nothing else; words go to standard error.
    """

    def __init__(self, *, as_json: bool, output: TextIO | None = None, errors: TextIO | None = None) -> None:
        self.as_json = as_json
        self._output = output or sys.stdout
        self._errors = console_on(errors or sys.stderr)
        self._words = self._errors if as_json else console_on(self._output)

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self._words.width

    def say(self, text: str = "", style: str = "") -> None:
        """One line of words; it is not broken, so that ids and commands can be copied."""
        self._words.print(Text(plain(text), style=style), soft_wrap=True)

    def show(self, renderable: RenderableType) -> None:
        """A table or a block of text."""
        if self._words.is_terminal:
            self._words.print(renderable)
            return
        with self._words.capture() as captured:
            self._words.print(renderable)
        # A table fills its lines up with blanks, which are a nuisance in a file.
        lines = [line.rstrip() for line in captured.get().splitlines()]
        self._words.print(Text("\n".join(lines)), soft_wrap=True)

    def block(self, text: str) -> None:
        """Several lines of text as they are, but harmless."""
        self._words.print(Text(plain(text, keep_lines=True)), soft_wrap=True)

    def result(self, value: Mapping[str, JsonValue]) -> bool:
        """The one JSON object, where it is wanted; True says that it was, so that no words are needed.

        Everything beyond ASCII is escaped: some of it a terminal would act on.
        """
        if self.as_json:
            self._output.write(json.dumps(value, indent=2, ensure_ascii=True) + "\n")
            self._output.flush()
        return self.as_json

    def fail(self, kind: str, message: str) -> None:
        """Say what is wrong: one line on standard error, or the JSON object."""
        if self.as_json:
            self.result({"error": kind, "message": message})
        else:
            self._errors.print(Text.assemble(("error: ", "bold red"), plain(message)), soft_wrap=True)


def console_on(stream: TextIO) -> Console:
    """A console that reads no markup, and that writes no control codes where the stream is no terminal."""
    return Console(file=stream, width=_width(stream), markup=False, highlight=False, emoji=False)


def _width(stream: TextIO) -> int | None:
    if stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) > 0 else PIPED_WIDTH
