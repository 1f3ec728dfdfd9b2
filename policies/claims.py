"""Is every claim of a message supported by the evidence that its own sentence cites.

A sentence cites with marks such as ``[ev-4]`` or ``[ev-1, ev-4]``. Every sentence must cite, except the courtesies of
a closed list. Every amount, number, identifier, date, time and status word in it must occur in a cited payload:
amounts compared as numbers, dates as dates, the rest as written. Where a reading is in doubt the claim is refused.

Source: DESIGN §9.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentic_loop.graph.records import EvidenceRecord

from .claim_text import PayloadContent, plain, read_text

COURTESIES: frozenset[str] = frozenset(
    {
        "hello",
        "hi",
        "good morning",
        "good afternoon",
        "good evening",
        "dear customer",
        "dear sir or madam",
        "hello and thank you for contacting us",
        "thank you",
        "thanks",
        "thank you for contacting us",
        "thank you for writing to us",
        "thank you for your patience",
        "thank you for your message",
        "we are sorry for the inconvenience",
        "we are sorry for the trouble",
        "we apologise for the inconvenience",
        "we apologize for the inconvenience",
        "sorry for the inconvenience",
        "sorry for the trouble",
        "please let us know if you need anything else",
        "please let us know if you have any questions",
        "have a nice day",
        "regards",
        "kind regards",
        "best regards",
        "yours sincerely",
        "sincerely",
        "customer support",
        "support team",
        "the support team",
        "your support team",
    }
)
"""The only sentences that need no evidence, in lower case and without punctuation."""

MAX_MESSAGE_CHARS = 8_000
"""A longer message is refused without being read."""

MAX_QUOTED_CHARS = 80
"""How much of a sentence a problem quotes."""

MAX_PROBLEMS = 20
"""How many problems are reported; a message with more is no more refused than that."""

_CITATION = r"\[\s*ev-\d{1,9}(?:\s*[,;]\s*ev-\d{1,9})*\s*\]"
_CITATIONS = re.compile(_CITATION)
_SENTENCE_END = re.compile(rf"(?<![.!?])[.!?]++[\"'”’)]*(?=\s|$)(?:\s*{_CITATION})*")
_WORDS_AND_SYMBOLS = re.compile(r"[\w']+|[^\w\s.,!?:;()\-–—]")
_REORDERING = re.compile("[\u202a-\u202e\u2066-\u2069]")
_RUPEE_STOP = re.compile(r"\b(Rs)\.(?=\s*\d)", re.IGNORECASE)


def unsupported(message: str, evidence: Mapping[str, EvidenceRecord]) -> list[str]:
    """The problems of a message, each as a sentence that says what to change; empty where every claim is supported.

    ``evidence`` is by evidence id (``ev-4``).
    """
    if len(message) > MAX_MESSAGE_CHARS:
        return [f"the message has {len(message)} characters; at most {MAX_MESSAGE_CHARS} are allowed"]
    if _REORDERING.search(message):
        return ["the message has characters that change the order in which text is shown; remove them"]
    problems: list[str] = []
    contents = _Contents(evidence)
    for sentence in _sentences(plain(message)):
        problems += _sentence_problems(sentence, contents)
        if len(problems) >= MAX_PROBLEMS:
            break
    return problems[:MAX_PROBLEMS]


def cited(message: str) -> list[str]:
    """The evidence ids that a message cites, each once, in order of appearance."""
    return list(dict.fromkeys(_ids(plain(message))))


def render_claims_removed(message: str) -> str:
    """The message as the customer reads it: without the citation marks."""
    return re.sub(rf"(?<![ \t])[ \t]*{_CITATION}", "", message).strip()


def _sentences(text: str) -> Iterator[str]:
    for line in _RUPEE_STOP.sub(r"\1 ", text).splitlines():
        start = 0
        for end in _SENTENCE_END.finditer(line):
            yield line[start : end.end()]
            start = end.end()
        yield line[start:]


def _ids(text: str) -> list[str]:
    return [name for mark in _CITATIONS.findall(text) for name in re.findall(r"ev-\d+", mark)]


def _sentence_problems(sentence: str, contents: "_Contents") -> list[str]:
    ids = _ids(sentence)
    missing = [f"{name} is cited but is no evidence of this task" for name in ids if name not in contents.evidence]
    text = _CITATIONS.sub(" ", sentence).strip()
    normal = " ".join(_WORDS_AND_SYMBOLS.findall(text.casefold()))
    if not normal or normal in COURTESIES:
        return missing
    quoted = f'"{text[:MAX_QUOTED_CHARS]}"'
    if not ids:
        return [f"this sentence cites no evidence, add marks such as [ev-1]: {quoted}"]
    claims = read_text(text)
    absent = PayloadContent().absent(claims)
    for name in ids:
        here = set(contents.of(name).absent(claims))
        absent = [claim for claim in absent if claim in here]
    where = ", ".join(ids)
    return missing + [f"{claim} does not occur in {where}: {quoted}" for claim in absent]


@dataclass
class _Contents:
    """What the payloads say, each read once."""

    evidence: Mapping[str, EvidenceRecord]
    read: dict[str, PayloadContent] = field(default_factory=dict)

    def of(self, name: str) -> PayloadContent:
        if name not in self.read:
            self.read[name] = PayloadContent()
            if name in self.evidence:
                self.read[name].add(self.evidence[name].payload)
        return self.read[name]
