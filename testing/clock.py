"""A clock that moves when it is told to.

Source: DESIGN §10 (time comes from the clock port).
"""

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 10, 28, 11, 17, 43, tzinfo=UTC)
"""Where a fake clock starts unless it is told otherwise."""


class FakeClock:
    """A clock for tests: only ``sleep``, which returns at once, ``advance`` and ``set`` move it forward.

    ``sleeps`` holds every delay that was asked for, in seconds, so that a test can check back-off.

    Raises:
        ValueError: an instant without a time zone, or a way back in time.
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = _in_utc(start)
        self.sleeps: list[float] = []

    def now(self) -> datetime:
        """The present instant in UTC."""
        return self._now

    async def sleep(self, delay_s: float) -> None:
        """Move forward by the delay and let other tasks run."""
        self.sleeps.append(delay_s)
        self.advance(max(0.0, delay_s))
        await asyncio.sleep(0)

    def advance(self, delay_s: float) -> None:
        """Move forward by so many seconds."""
        if delay_s < 0:
            raise ValueError(f"time does not go back: advance by 0 or more seconds, not {delay_s}")
        self._now += timedelta(seconds=delay_s)

    def set(self, instant: datetime) -> None:
        """Move forward to an instant."""
        wanted = _in_utc(instant)
        if wanted < self._now:
            raise ValueError(f"time does not go back: it is {self._now.isoformat()}, not {wanted.isoformat()}")
        self._now = wanted


def _in_utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"give an instant with a time zone, such as {START.isoformat()}, not {instant.isoformat()}")
    return instant.astimezone(UTC)
