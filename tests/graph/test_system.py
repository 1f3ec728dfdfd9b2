"""The real clock, ids and identity."""

import asyncio
import re
from datetime import UTC, datetime, timedelta

from agentic_loop.graph.ports import Clock, Identity, Ids
from agentic_loop.graph.state import Principal
from agentic_loop.graph.system import ContextIdentity, RandomIds, SystemClock, acting_as

ASHA = Principal(id="asha", tenant="acme", roles=["support_lead"])
BEN = Principal(id="ben", tenant="acme")


def test_the_clock_is_this_machine_s_in_utc() -> None:
    clock: Clock = SystemClock()
    now = clock.now()
    assert now.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - now) < timedelta(seconds=5)


async def test_a_negative_wait_is_none() -> None:
    await asyncio.wait_for(SystemClock().sleep(-1), timeout=1)


def test_ids_say_what_they_name_and_do_not_repeat() -> None:
    ids: Ids = RandomIds()
    many = [make() for _ in range(500) for make in (ids.trace_id, ids.approval_id, lambda: ids.request_id("task-1"))]
    assert len(set(many)) == len(many)
    assert all(re.fullmatch(r"(trace|apr|req)-[0-9a-z]{12}", one) for one in many)
    assert all(0 <= ids.fraction() < 1 for _ in range(100))


def test_one_seed_reproduces_a_run() -> None:
    def some(seed: int) -> list[object]:
        ids = RandomIds(seed)
        return [ids.trace_id(), ids.request_id("t"), ids.approval_id(), ids.fraction()]

    assert some(7) == some(7)
    assert some(7) != some(8)


def test_nobody_acts_unless_somebody_was_established() -> None:
    somebody: Identity = ContextIdentity()
    with acting_as(ASHA):
        assert somebody.principal("approve") == ASHA
        with acting_as(BEN):
            assert somebody.principal("approve") == BEN
        assert somebody.principal("approve") == ASHA
    assert somebody.principal("approve") is None


async def test_tasks_act_as_whoever_started_them() -> None:
    identity = ContextIdentity()

    async def who() -> Principal | None:
        await asyncio.sleep(0)
        return identity.principal("approve")

    async def as_one(principal: Principal) -> Principal | None:
        with acting_as(principal):
            return await asyncio.create_task(who())

    assert list(await asyncio.gather(as_one(ASHA), as_one(BEN), who())) == [ASHA, BEN, None]
