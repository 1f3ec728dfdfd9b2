"""Finding in a text what can be true or false of a record: dates, times, amounts, numbers, identifiers, words.

The same reading is applied to a message and to the strings of a payload, so that both are compared in one form.

Source: DESIGN §9 (every amount, id, date and status in a message must occur in the cited payload).
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal

from pydantic import JsonValue

_STATUSES = """
    pending settled captured failed refunded voided sent authorised authorized declined reversed cancelled canceled
    disputed completed succeeded successful processed credited delivered paid queued rejected approved expired
"""

STATUS_WORDS: frozenset[str] = frozenset(_STATUSES.split())
"""Words that say where something stands; each must occur in the cited payload, negated or not."""

_OTHERS = """
    monday tuesday wednesday thursday friday saturday sunday
    january february april june july august september october november december
    usd eur gbp jpy aed dollar dollars euro euros pound pounds yen $ € £ ¥
    ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty
    seventy eighty ninety hundred thousand lakh lakhs crore crores million billion
"""
_OTHER_CLAIM_WORDS = frozenset(_OTHERS.split())
# "may" and "march" are missing above: they are also ordinary words, and with a day beside them they are dates.

_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTH = "(?:" + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS) + r"|sept)\b\.?"
_DAY = r"\b\d{1,2}(?:st|nd|rd|th)?"
_INSTANT = re.compile(
    r"\b(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2})(:\d{2})?(?:\.\d{1,9})?(Z|[+-]\d{2}:?\d{2})?(?![\w:])", re.IGNORECASE
)
_DATES = (
    re.compile(r"(?<![\w-])(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})(?![\w-])"),
    re.compile(r"(?<![\w./-])(?P<day>\d{1,2})(?P<mark>[./-])(?P<month>\d{1,2})(?P=mark)(?P<year>\d{4})(?![\w/-])"),
    re.compile(rf"(?P<day>{_DAY})\s+(?:of\s+)?(?P<name>{_MONTH})(?:,?\s+(?P<year>\d{{4}})\b)?", re.IGNORECASE),
    re.compile(rf"\b(?P<name>{_MONTH})\s+(?P<day>{_DAY})\b(?:,?\s+(?P<year>\d{{4}})\b)?", re.IGNORECASE),
)
_TIME = re.compile(r"(?<![\w:])(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap]\.?m\b\.?)?(?![\w:])", re.IGNORECASE)
# Each pattern reads a text in linear time: the texts come from models and services.
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3}|\d+)(?:\.\d+)?"
_AMOUNT = re.compile(
    rf"(?:₹|\bINR\b|\bRs\b\.?|\brupees\b)\s*({_NUMBER})(?!\w|,\d)|(?<![\w.,-])({_NUMBER})\s*(?:₹|\bINR\b|\brupees?\b)",
    re.IGNORECASE,
)
_BARE_NUMBER = re.compile(rf"(?<![\w.,-])({_NUMBER})(?![\w-]|[.,]\d)")
_TOKEN = re.compile(r"\w+(?:[-.'’]\w+)*|[$€£¥]")
_NAME_PREFIXES = ("cust-", "pol-")


@dataclass
class TextClaims:
    """What one text says, in comparable form; ``words`` holds every other token, in lower case.

    ``dates`` are (year or None, month, day); None stands for a date that does not exist. ``instants`` are cut to the
    minute where the text names no second, and ``times`` likewise.
    """

    instants: list[tuple[str, datetime | None, bool]] = field(default_factory=list)
    dates: list[tuple[str, tuple[int | None, int, int] | None]] = field(default_factory=list)
    times: list[tuple[str, time | None, bool]] = field(default_factory=list)
    amounts: list[tuple[str, Decimal]] = field(default_factory=list)
    numbers: list[tuple[str, Decimal]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


@dataclass
class PayloadContent:
    """Everything that occurs in some payloads and can support a claim."""

    instants: set[datetime] = field(default_factory=set)
    dates: set[tuple[int | None, int, int]] = field(default_factory=set)
    times: set[time] = field(default_factory=set)
    amounts: set[Decimal] = field(default_factory=set)
    words: set[str] = field(default_factory=set)

    def add(self, payload: JsonValue) -> None:
        """Take in one payload: its numbers, and what its strings say. Keys support nothing."""
        for leaf in _leaves(payload):
            if isinstance(leaf, str):
                self._add_text(plain(leaf))
            elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
                self.amounts.add(Decimal(leaf) if isinstance(leaf, int) else Decimal(str(leaf)))

    def absent(self, claims: TextClaims) -> list[str]:
        """The claims that these payloads do not hold, as they were written."""
        instants = {False: {each.replace(second=0) for each in self.instants}, True: self.instants}
        times = {False: {each.replace(second=0) for each in self.times}, True: self.times}
        dates = self.dates | {(None, month, day) for _, month, day in self.dates}
        return [
            *(written for written, found, to_second in claims.instants if found not in instants[to_second]),
            *(written for written, found in claims.dates if found not in dates),
            *(written for written, found, to_second in claims.times if found not in times[to_second]),
            *(written for written, amount in claims.amounts if amount not in self.amounts),
            *(
                written
                for written, number in claims.numbers
                if written not in self.words and number not in self.amounts
            ),
            *(word for word in claims.words if is_claim(word) and word not in self.words),
        ]

    def _add_text(self, text: str) -> None:
        claims = read_text(text)
        for _, instant, _ in claims.instants:
            if instant is not None:
                self.instants.add(instant)
                self.times.add(instant.time())
                self.dates.add((instant.year, instant.month, instant.day))
        self.dates.update(found for _, found in claims.dates if found is not None)
        self.times.update(found for _, found, _ in claims.times if found is not None)
        self.amounts.update(amount for _, amount in claims.amounts)
        self.words.update(word for word, _ in claims.numbers)
        self.words.update(claims.words)


def plain(text: str) -> str:
    """The text with compatibility forms, invisible characters and foreign digits in their plain form."""
    folded = unicodedata.normalize("NFKC", text)
    return "".join(
        str(unicodedata.decimal(letter)) if unicodedata.decimal(letter, None) is not None else letter
        for letter in folded
        if unicodedata.category(letter) != "Cf"
    )


def read_text(text: str) -> TextClaims:
    """Take a plain text apart; what was read as one kind is not read again as another."""
    claims = TextClaims()
    for match in _INSTANT.finditer(text):
        claims.instants.append((match[0], _instant(match), match[3] is not None))
    text = _INSTANT.sub(" ", text)
    for pattern in _DATES:
        claims.dates += [(match[0], _date(match.groupdict())) for match in pattern.finditer(text)]
        text = pattern.sub(" ", text)
    claims.times += [(match[0].strip(), _time(match), match[3] is not None) for match in _TIME.finditer(text)]
    text = _TIME.sub(" ", text)
    claims.amounts += [(match[0], _decimal(match[1] or match[2])) for match in _AMOUNT.finditer(text)]
    text = _AMOUNT.sub(" ", text)
    claims.numbers += [(match[1], _decimal(match[1])) for match in _BARE_NUMBER.finditer(text)]
    text = _BARE_NUMBER.sub(" ", text)
    for token in _TOKEN.findall(text):
        word = token.casefold()
        claims.words += [word] if _is_identifier(word) else re.split(r"[-.'’]", word)
    return claims


def is_claim(word: str) -> bool:
    """Whether a word must be supported: an identifier, a status, a spelled-out number, a weekday, a currency."""
    return word in STATUS_WORDS or word in _OTHER_CLAIM_WORDS or _is_identifier(word)


def _is_identifier(word: str) -> bool:
    return "_" in word or any(map(str.isdigit, word)) or word.startswith(_NAME_PREFIXES)


def _leaves(payload: JsonValue) -> Iterator[JsonValue]:
    waiting: list[JsonValue] = [payload]
    while waiting:
        match waiting.pop():
            case dict() as members:
                waiting.extend(members.values())
            case list() as members:
                waiting.extend(members)
            case leaf:
                yield leaf


def _decimal(written: str) -> Decimal:
    return Decimal(written.replace(",", ""))


def _instant(match: re.Match[str]) -> datetime | None:
    offset = (match[4] or "Z").upper()
    try:
        found = datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3] or ':00'}{offset.replace('Z', '+00:00')}")
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _date(groups: Mapping[str, str | None]) -> tuple[int | None, int, int] | None:
    name, year = groups.get("name"), groups.get("year")
    month = _month(name) if name else int(groups["month"] or 0)
    day = int(re.sub(r"\D", "", groups["day"] or "0"))
    try:
        # A leap year allows every day that a date without a year can have.
        date(int(year) if year else 2024, month, day)
    except ValueError:
        return None
    return (int(year) if year else None, month, day)


def _month(name: str) -> int:
    return next(number for number, full in enumerate(_MONTHS, 1) if full.startswith(name[:3].casefold()))


def _time(match: re.Match[str]) -> time | None:
    hour, half = int(match[1]), (match[4] or "").casefold()[:1]
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "p" else 0)
    try:
        return time(hour, int(match[2]), int(match[3] or 0))
    except ValueError:
        return None
