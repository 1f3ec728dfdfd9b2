"""The register of tasks says what became of each, and a person closes each once."""

from datetime import timedelta

import pytest

from agentic_loop.graph.errors import Defect, Misuse
from agentic_loop.graph.state import Ending
from agentic_loop.graph.store.stores import Stores

from .samples import LATER, NOON, fresh, task

FAILED = Ending(status="FAILED", reason="no_action", detail="the model had nothing useful to do")


async def test_a_task_is_entered_once(stores: Stores) -> None:
    entered = task(fresh("task"), goal="Refund\x00 this")
    await stores.tasks.register(entered, "RUNNING", NOON)
    await stores.tasks.register(task(entered.task_id, goal="another goal"), "FAILED", LATER)
    row = await stores.tasks.get(entered.task_id)
    assert row is not None
    assert (row.goal, row.status, row.requester, row.loop) == ("Refund\x00 this", "RUNNING", "u-1", "refund")
    assert (row.started_at, row.updated_at, row.reason, row.step_count) == (NOON, NOON, "", 0)
    assert await stores.tasks.get("no-such-task") is None


async def test_an_update_says_everything_anew(stores: Stores) -> None:
    task_id = fresh("task")
    await stores.tasks.register(task(task_id), "RUNNING", NOON)
    await stores.tasks.update(task_id, status="FAILED", step_count=3, at=LATER, ending=FAILED)
    ended = await stores.tasks.get(task_id)
    assert ended is not None
    assert (ended.status, ended.reason, ended.step_count, ended.updated_at) == ("FAILED", "no_action", 3, LATER)
    await stores.tasks.update(task_id, status="RUNNING", step_count=4, at=LATER, wake_at=LATER)
    resumed = await stores.tasks.get(task_id)
    assert resumed is not None
    assert (resumed.status, resumed.reason, resumed.wake_at) == ("RUNNING", "", LATER)
    with pytest.raises(Defect, match="before it was registered"):
        await stores.tasks.update("never-registered", status="RUNNING", step_count=0, at=NOON)


async def test_the_list_is_newest_first_and_can_be_narrowed(stores: Stores) -> None:
    tenant = fresh("tenant")
    ids = [fresh("task") for _ in range(3)]
    for minutes, task_id in enumerate(ids):
        started = NOON + timedelta(minutes=minutes)
        await stores.tasks.register(task(task_id, tenant=tenant, at=started), "RUNNING", started)
    await stores.tasks.update(ids[1], status="FAILED", step_count=1, at=LATER, ending=FAILED)
    assert [row.task_id for row in await stores.tasks.list(tenant)] == ids[::-1]
    assert [row.task_id for row in await stores.tasks.list(tenant, "FAILED")] == [ids[1]]
    assert [row.task_id for row in await stores.tasks.list(tenant, None, 2)] == ids[:0:-1]
    assert {row.tenant for row in await stores.tasks.list(None, None, 1000)} > {tenant}
    assert await stores.tasks.list(fresh("tenant")) == []


async def test_only_running_tasks_whose_time_has_come_are_due(stores: Stores) -> None:
    long_ago = NOON - timedelta(days=400)
    ids = {name: fresh(name) for name in ("overdue", "due", "early", "ended", "idle")}
    for task_id in ids.values():
        await stores.tasks.register(task(task_id), "RUNNING", NOON)
    for name, wake_at in (("overdue", long_ago), ("due", long_ago + timedelta(hours=1)), ("early", NOON)):
        await stores.tasks.update(ids[name], status="RUNNING", step_count=1, at=NOON, wake_at=wake_at)
    await stores.tasks.update(ids["ended"], status="FAILED", step_count=1, at=NOON, ending=FAILED, wake_at=long_ago)
    due = await stores.tasks.due(long_ago + timedelta(hours=1), 10)
    assert [row.task_id for row in due] == [ids["overdue"], ids["due"]]
    assert [row.task_id for row in await stores.tasks.due(NOON, 1)] == [ids["overdue"]]


async def test_an_ended_task_is_closed_once(stores: Stores) -> None:
    task_id = fresh("task")
    with pytest.raises(Misuse, match="no task"):
        await stores.tasks.close(task_id, "op-1", "done by hand", NOON)
    await stores.tasks.register(task(task_id), "RUNNING", NOON)
    with pytest.raises(Misuse, match="is RUNNING"):
        await stores.tasks.close(task_id, "op-1", "done by hand", NOON)
    await stores.tasks.update(task_id, status="FAILED", step_count=1, at=NOON, ending=FAILED)
    closed = await stores.tasks.close(task_id, "op-1", "done by hand", LATER)
    assert (closed.closed_by, closed.closing_note, closed.status) == ("op-1", "done by hand", "FAILED")
    with pytest.raises(Misuse, match="closed by op-1 already: done by hand"):
        await stores.tasks.close(task_id, "op-2", "me too", LATER)
    assert await stores.tasks.get(task_id) == closed


async def test_the_newest_packet_counts(stores: Stores) -> None:
    task_id = fresh("task")
    assert await stores.tasks.packet(task_id) is None
    await stores.tasks.keep_packet(task_id, 5, {"reason": "steps"})
    await stores.tasks.keep_packet(task_id, 4, {"reason": "older"})
    assert await stores.tasks.packet(task_id) == {"reason": "steps"}
    await stores.tasks.keep_packet(task_id, 5, {"reason": "written again\x00"})
    assert await stores.tasks.packet(task_id) == {"reason": "written again\x00"}


async def test_a_revision_names_its_parent(stores: Stores) -> None:
    parent, child = fresh("task"), fresh("task")
    await stores.tasks.register(task(child), "RUNNING", NOON)
    await stores.tasks.set_parent(child, parent)
    row = await stores.tasks.get(child)
    assert row is not None
    assert row.parent_task_id == parent
    with pytest.raises(Misuse, match="no task"):
        await stores.tasks.set_parent("no-such-task", parent)
