from datetime import UTC, datetime, timedelta, timezone

import pytest

from agentic_loop.graph.ports import Clock
from agentic_loop.testing.clock import START, FakeClock


async def test_sleeping_takes_no_time_and_moves_the_clock() -> None:
    clock = FakeClock()
    port: Clock = clock
    await port.sleep(3_600)
    await port.sleep(-1)
    assert clock.now() == START + timedelta(hours=1)
    assert clock.sleeps == [3_600, -1]


def test_it_moves_when_told_to_and_never_back() -> None:
    clock = FakeClock(datetime(2026, 1, 1, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))))
    assert clock.now() == datetime(2026, 1, 1, tzinfo=UTC)
    clock.advance(1.5)
    clock.set(clock.now() + timedelta(days=1))
    assert clock.now() == datetime(2026, 1, 2, 0, 0, 1, 500_000, tzinfo=UTC)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="does not go back"):
        clock.set(START - timedelta(days=1_000))


def test_an_instant_needs_a_time_zone() -> None:
    with pytest.raises(ValueError, match="with a time zone"):
        FakeClock(datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused
