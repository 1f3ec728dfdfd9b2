"""Evidence is stored once, never changed, and never believed when it is not what was recorded."""

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import JsonValue

from agentic_loop.graph.errors import Defect
from agentic_loop.graph.store.database import Pool
from agentic_loop.graph.store.stores import Stores

from .samples import evidence, fresh
from .test_text import any_json


async def test_records_come_back_as_they_were_oldest_first_up_to_the_count(stores: Stores) -> None:
    task_id = fresh("task")
    records = [evidence(number, {"number": number}) for number in (1, 2, 3)]
    await stores.evidence.append(task_id, [records[1], records[0]])
    await stores.evidence.append(task_id, [records[2]])
    assert await stores.evidence.load(task_id, 3) == records
    assert await stores.evidence.load(task_id, 2) == records[:2]
    assert await stores.evidence.load(task_id, 0) == []
    assert await stores.evidence.load(fresh("task"), 3) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=any_json)
async def test_any_payload_reads_back_exactly(stores: Stores, payload: JsonValue) -> None:
    task_id = fresh("task")
    await stores.evidence.append(task_id, [evidence(1, payload)])
    [loaded] = await stores.evidence.load(task_id, 1)
    assert loaded == evidence(1, payload)


async def test_numbers_keep_their_types(stores: Stores) -> None:
    task_id = fresh("task")
    payload: JsonValue = {
        "int": 2000,
        "float": 2000.5,
        "whole": 1e22,
        "big": 2**70,
        "text": "₹\x00\ud800",
        "z": 1,
        "a": 2,
    }
    await stores.evidence.append(task_id, [evidence(1, payload)])
    [loaded] = await stores.evidence.load(task_id, 1)
    assert repr(loaded.payload) == repr(payload)


async def test_the_same_record_again_changes_nothing(stores: Stores, pool: Pool) -> None:
    task_id = fresh("task")
    for _ in range(2):
        await stores.evidence.append(task_id, [evidence(1, {"amount": 1})])
    assert await _rows(pool, task_id) == 1


async def test_a_step_that_ran_again_counts_and_the_first_run_stays(stores: Stores, pool: Pool) -> None:
    task_id = fresh("task")
    await stores.evidence.append(task_id, [evidence(1, {"run": 1}, "req-1"), evidence(2, {"run": 1}, "req-2")])
    await stores.evidence.append(task_id, [evidence(1, {"run": 2}, "req-3")])
    await stores.evidence.append(task_id, [evidence(1, {"run": 1}, "req-1")])
    loaded = await stores.evidence.load(task_id, 2)
    assert [(record.id, record.payload) for record in loaded] == [("ev-1", {"run": 2}), ("ev-2", {"run": 1})]
    assert await _rows(pool, task_id) == 3


async def test_a_payload_is_stored_once_for_all_tasks(stores: Stores, pool: Pool) -> None:
    payload: JsonValue = {"only": fresh("payload")}
    record = evidence(1, payload)
    for task_id in (fresh("task"), fresh("task")):
        await stores.evidence.append(task_id, [record])
    async with pool.connection() as link:
        cursor = await link.execute(
            "SELECT count(*) AS n FROM agentic_loop.payloads WHERE digest = %s", [record.payload_digest]
        )
        assert await cursor.fetchone() == {"n": 1}


async def test_a_changed_payload_is_a_defect(stores: Stores, pool: Pool) -> None:
    task_id = fresh("task")
    record = evidence(1, {"amount": 2000, "task": task_id})
    await stores.evidence.append(task_id, [record])
    async with pool.connection() as link:
        await link.execute(
            "UPDATE agentic_loop.payloads SET content_json = replace(content_json, '2000', '9000') WHERE digest = %s",
            [record.payload_digest],
        )
    with pytest.raises(Defect, match="ev-1"):
        await stores.evidence.load(task_id, 1)


async def _rows(pool: Pool, task_id: str) -> int:
    async with pool.connection() as link:
        cursor = await link.execute("SELECT count(*) AS n FROM agentic_loop.evidence WHERE task_id = %s", [task_id])
        row = await cursor.fetchone()
    assert row is not None
    return int(row["n"])
