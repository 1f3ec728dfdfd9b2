"""The sandbox's own clock: real time (or the given one) plus an offset that the admin sets.

Retention and replication lag are judged by it, so that a test moves time instead of waiting.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta


def real_time() -> datetime:
    """The time of this machine, in UTC."""
    return datetime.now(UTC)


class SandboxClock:
    """A clock that runs at the speed of `base` and may be moved."""

    def __init__(self, base: Callable[[], datetime] = real_time) -> None:
        self._base = base
        self._offset = timedelta()

    def now(self) -> datetime:
        """The sandbox's time, with a time zone."""
        return self._base() + self._offset

    @property
    def offset_s(self) -> float:
        """How far the sandbox's time is ahead of the base clock, in seconds."""
        return self._offset.total_seconds()

    def shift_to(self, offset_s: float) -> None:
        """Set the offset, in seconds; zero returns to the base clock."""
        self._offset = timedelta(seconds=offset_s)

    def offset_that_makes_it(self, now: datetime) -> float:
        """The offset, in seconds, under which the sandbox's time is `now`."""
        return (now - self._base()).total_seconds()


def wire_time(moment: datetime) -> str:
    """A moment as the services write it: UTC, whole seconds, `2026-10-20T09:14:02Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
