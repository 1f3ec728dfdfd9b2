"""The real clock, the real ids and the identity of whoever acts: what a process binds to these ports.

Source: DESIGN §5 (identity), §10 (ports).
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from .ports import Purpose
from .state import Principal

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_CHARS = 12  # 60 random bits: a collision is a matter of a billion ids, and people still can read one aloud


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The present instant in UTC."""
        return datetime.now(UTC)

    async def sleep(self, delay_s: float) -> None:
        """Wait; a delay of zero or less only lets others run."""
        await asyncio.sleep(max(0.0, delay_s))


class RandomIds:
    """Short ids that say what they name: ``trace-…``, ``req-…``, ``apr-…``.

    Without a seed they come from the system's randomness and are unique across processes. With a seed the same
    sequence comes again, so that one number reproduces a run; two processes must then not share a database.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.SystemRandom() if seed is None else random.Random(seed)

    def _token(self) -> str:
        bits = self._random.getrandbits(5 * _ID_CHARS)
        return "".join(_ALPHABET[bits >> shift & 31] for shift in range(0, 5 * _ID_CHARS, 5))

    def trace_id(self) -> str:
        """A new trace id."""
        return f"trace-{self._token()}"

    def request_id(self, task_id: str) -> str:
        """A new request id; the task's id is not part of it, so that a service learns nothing from it."""
        return f"req-{self._token()}"

    def approval_id(self) -> str:
        """A new approval id."""
        return f"apr-{self._token()}"

    def fraction(self) -> float:
        """A random number in [0, 1)."""
        return self._random.random()


_acting: ContextVar[Principal | None] = ContextVar("agentic_loop_acting", default=None)


@contextmanager
def acting_as(principal: Principal) -> Iterator[None]:
    """Let everything inside the block, tasks started there included, act as this principal.

    The host calls it with whom its own authentication established. Blocks nest; at the end of one the outer
    principal acts again.
    """
    token = _acting.set(principal)
    try:
        yield
    finally:
        _acting.reset(token)


class ContextIdentity:
    """The identity that the innermost ``acting_as`` block established, and nobody outside of one."""

    def principal(self, purpose: Purpose) -> Principal | None:
        """Whoever acts in this context, whatever they are about to do."""
        return _acting.get()
