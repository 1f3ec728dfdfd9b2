"""One worker per task; the next one gets in the moment this one is dead, and under a newer fence."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from agentic_loop.graph.errors import LeaseRefused, Outage
from agentic_loop.graph.store.database import Pool
from agentic_loop.graph.store.lease import PostgresLease, run_token
from agentic_loop.graph.store.stores import Stores

from .samples import fresh

# Bounded wait for another process: the server notices a dead client within milliseconds.
ATTEMPTS = 100
PAUSE_S = 0.05

_WORKER = """
import asyncio, sys
from agentic_loop.graph.store.lease import PostgresLease

async def hold() -> None:
    lease = PostgresLease(sys.argv[1], "the doomed worker")
    for task_id in sys.argv[2:]:
        await lease.acquire(task_id)
    sys.stdout.write("holding\\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(hold())
"""


@pytest.fixture
async def lease(stores: Stores, store_url: str) -> AsyncIterator[PostgresLease]:
    """A lease holder of this test alone; ``stores`` has made the tables."""
    async with PostgresLease(store_url, "this test") as opened:
        yield opened


@pytest.fixture
async def other(stores: Stores, store_url: str) -> AsyncIterator[PostgresLease]:
    """Another worker: a session of its own, as another process would have."""
    async with PostgresLease(store_url, "the other worker") as opened:
        yield opened


@contextmanager
def running(token: str) -> Iterator[None]:
    """Act as this run."""
    present = run_token.set(token)
    try:
        yield
    finally:
        run_token.reset(present)


async def _end_session(pool: Pool, lease: PostgresLease) -> None:
    """End the session that holds the leases, as a lost network or a restart would."""
    assert lease._connection is not None
    process = lease._connection.info.backend_pid
    async with pool.connection() as link:
        await link.execute("SELECT pg_terminate_backend(%s, 5000)", [process])


async def test_a_run_gets_a_fence_and_keeps_it(lease: PostgresLease) -> None:
    task_id = fresh("task")
    assert await lease.current(task_id) == 0
    assert await lease.acquire(task_id) == 1
    assert await lease.acquire(task_id) == 1
    assert await lease.current(task_id) == 1
    assert await lease.check(task_id)


async def test_every_new_holder_gets_a_newer_fence(lease: PostgresLease, other: PostgresLease) -> None:
    task_id = fresh("task")
    assert await lease.acquire(task_id) == 1
    await lease.release(task_id)
    assert not await lease.check(task_id)
    assert await other.acquire(task_id) == 2
    await other.release(task_id)
    assert await lease.acquire(task_id) == 3


async def test_another_worker_is_refused_and_told_who_holds_it(lease: PostgresLease, other: PostgresLease) -> None:
    task_id = fresh("task\x00")
    await lease.acquire(task_id)
    with pytest.raises(LeaseRefused, match="is being run by this test since"):
        await other.acquire(task_id)
    assert await other.current(task_id) == 1
    assert await lease.check(task_id)
    assert await other.acquire(fresh("task")) == 1


async def test_runs_of_one_process_are_told_apart(lease: PostgresLease) -> None:
    task_id = fresh("task")
    with running("run-1"):
        assert await lease.acquire(task_id) == 1
        assert await asyncio.create_task(lease.acquire(task_id)) == 1
    with running("run-2"):
        with pytest.raises(LeaseRefused, match="another run of this process"):
            await lease.acquire(task_id)
        await lease.release(task_id)  # not its own: nothing happens
    with pytest.raises(LeaseRefused):
        await lease.acquire(task_id)
    with running("run-1"):
        assert await lease.acquire(task_id) == 1
        await lease.release(task_id)
    with running("run-2"):
        assert await lease.acquire(task_id) == 2


async def test_giving_back_what_is_not_held_does_nothing(lease: PostgresLease, other: PostgresLease) -> None:
    task_id = fresh("task")
    await lease.release(task_id)
    await lease.acquire(task_id)
    await other.release(task_id)
    assert await lease.check(task_id)
    await lease.release(task_id)
    await lease.release(task_id)
    assert await other.acquire(task_id) == 2


async def test_closing_gives_everything_back(lease: PostgresLease, other: PostgresLease) -> None:
    ids = [fresh("task") for _ in range(3)]
    for task_id in ids:
        await other.acquire(task_id)
    await other.close()
    assert [await lease.acquire(task_id) for task_id in ids] == [2, 2, 2]


async def test_of_many_workers_at_once_one_gets_the_task(stores: Stores, store_url: str) -> None:
    task_id = fresh("task")
    workers = [PostgresLease(store_url, f"worker {number}") for number in range(6)]
    try:
        answers = await asyncio.gather(*(worker.acquire(task_id) for worker in workers), return_exceptions=True)
    finally:
        for worker in workers:
            await worker.close()
    assert answers.count(1) == 1
    assert sum(isinstance(answer, LeaseRefused) for answer in answers) == 5


async def test_many_tasks_at_once_on_one_connection(lease: PostgresLease) -> None:
    ids = [fresh("task") for _ in range(50)]
    assert await asyncio.gather(*map(lease.acquire, ids)) == [1] * 50
    await asyncio.gather(*map(lease.release, ids))
    assert await asyncio.gather(*map(lease.acquire, ids)) == [2] * 50


async def test_a_lost_connection_loses_every_lease(lease: PostgresLease, other: PostgresLease, pool: Pool) -> None:
    first, second, third = fresh("task"), fresh("task"), fresh("task")
    for task_id in (first, second, third):
        await lease.acquire(task_id)
    await _end_session(pool, lease)
    assert await other.acquire(first) == 2
    assert not await lease.check(first)
    with pytest.raises(LeaseRefused, match="the other worker"):
        await lease.acquire(first)
    assert not await lease.check(third)
    assert await lease.acquire(second) == 2  # held before by the lost connection: a new fence


async def test_the_first_use_after_a_loss_connects_again(lease: PostgresLease, pool: Pool) -> None:
    held, new = fresh("task"), fresh("task")
    await lease.acquire(held)
    await _end_session(pool, lease)
    assert await lease.acquire(new) == 1
    assert await lease.acquire(held) == 2
    await _end_session(pool, lease)
    await lease.release(held)
    assert await lease.acquire(held) == 3


async def test_a_fence_that_was_moved_by_hand_loses_the_lease(
    lease: PostgresLease, other: PostgresLease, pool: Pool
) -> None:
    task_id = fresh("task")
    await lease.acquire(task_id)
    async with pool.connection() as link:
        await link.execute("UPDATE agentic_loop.leases SET fence = fence + 1 WHERE task_id = %s", [task_id])
    assert not await lease.check(task_id)
    assert await other.acquire(task_id) == 3


@pytest.mark.parametrize("when", ["acquiring", "releasing"])
async def test_a_cancelled_call_leaves_no_lock_behind(
    when: str, lease: PostgresLease, other: PostgresLease, pool: Pool
) -> None:
    task_id = fresh("task")
    await other.acquire(task_id)
    await other.release(task_id)
    if when == "acquiring":
        async with pool.connection() as link, link.transaction():
            await link.execute("SELECT 1 FROM agentic_loop.leases WHERE task_id = %s FOR UPDATE", [task_id])
            waiting = asyncio.create_task(lease.acquire(task_id))
            await asyncio.wait([waiting], timeout=0.1)
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    else:
        await lease.acquire(task_id)
        waiting_for_release = asyncio.create_task(lease.release(task_id))
        await asyncio.wait([waiting_for_release], timeout=0)
        waiting_for_release.cancel()
        await asyncio.wait([waiting_for_release])
        await lease.release(task_id)
        await lease.current(task_id)  # takes its turn on the connection behind the release
    assert await other.acquire(task_id) >= 2


async def test_a_database_that_is_away_is_an_outage() -> None:
    lease = PostgresLease("postgresql://nobody@127.0.0.1:9/nothing")
    with pytest.raises(Outage, match="cannot be reached"):
        await lease.acquire("task")
    with pytest.raises(Outage):
        await lease.current("task")
    assert not await lease.check("task")
    await lease.release("task")
    await lease.close()


async def test_a_killed_process_holds_nothing(stores: Stores, lease: PostgresLease, store_url: str) -> None:
    ids = [fresh("task"), fresh("task")]
    with subprocess.Popen(  # noqa: ASYNC220  (starting it takes no time; waiting for it is done in threads)
        [sys.executable, "-c", _WORKER, store_url, *ids], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            assert await asyncio.to_thread(worker.stdout.readline) == "holding\n"
            with pytest.raises(LeaseRefused, match="the doomed worker"):
                await lease.acquire(ids[0])
            worker.send_signal(signal.SIGKILL)
            assert await asyncio.to_thread(worker.wait, 10) == -signal.SIGKILL
            assert [await _acquired_soon(lease, task_id) for task_id in ids] == [2, 2]
        finally:
            worker.kill()


async def _acquired_soon(lease: PostgresLease, task_id: str) -> int:
    for _ in range(ATTEMPTS):
        try:
            return await lease.acquire(task_id)
        except LeaseRefused:
            await asyncio.sleep(PAUSE_S)
    raise AssertionError("the lease of a killed process was not given back")
