"""The journal keeps everything and reads back what the newest run of each step wrote."""

from dataclasses import replace

import pytest

from agentic_loop.graph.records import JournalEntry
from agentic_loop.graph.state import CallFault
from agentic_loop.graph.store.database import Pool
from agentic_loop.graph.store.stores import Stores

from .samples import LATER, NOON, fresh


def _entry(task_id: str, version: int, call: int = 0, request_id: str = "", text: str = "") -> JournalEntry:
    return JournalEntry(
        task_id=task_id,
        version=version,
        call=call,
        step=version,
        at=NOON,
        phase="investigate",
        kind="tool",
        source="model",
        request_id=request_id,
        text=text,
    )


async def test_every_field_comes_back(stores: Stores) -> None:
    entry = replace(
        _entry(fresh("task"), 1, request_id="req-1", text="NUL \x00 and ₹"),
        call_id="call-1",
        tool="no such tool\x00",
        args={"n": 1, "x": 1.5, "deep": [{"y": None}]},
        arguments_json='{"n": 1',
        validation="ok",
        authorisation="denied",
        policy_ids=("p1", "p2"),
        idempotency_key="refund:1",
        outcome="error",
        fault=CallFault(category="denied", message="above the limit"),
        evidence_id="ev-1",
        observation_digest="o",
        state_digest="s",
        state_delta="+ev-1",
        prompt_digest="p",
        reply_digest="r",
        input_tokens=10,
        output_tokens=5,
        cached_tokens=2,
        cost_micro_usd=7,
        model_ms=100,
        tool_ms=20,
        suspended_ms=3,
    )
    await stores.journal.append([entry])
    assert await stores.journal.load(entry.task_id, 1) == [entry]


async def test_entries_come_in_order_up_to_the_version(stores: Stores) -> None:
    task_id = fresh("task")
    entries = [_entry(task_id, version, call) for version in (1, 2) for call in (0, 1)]
    await stores.journal.append([entries[1], entries[0]])
    await stores.journal.append(entries[2:])
    await stores.journal.append([_entry(task_id, 3)])
    assert await stores.journal.load(task_id, 2) == entries
    assert await stores.journal.load(fresh("task"), 2) == []


async def test_calls_of_a_version_may_be_written_one_by_one(stores: Stores) -> None:
    task_id = fresh("task")
    entries = [_entry(task_id, 1, call) for call in (0, 1, 2)]
    for entry in entries:
        await stores.journal.append([entry])
    assert await stores.journal.load(task_id, 1) == entries


async def test_the_same_attempt_again_changes_nothing(stores: Stores, pool: Pool) -> None:
    task_id = fresh("task")
    first = _entry(task_id, 1, request_id="req-1", text="first")
    await stores.journal.append([first])
    await stores.journal.append([first])
    await stores.journal.append([replace(first, at=LATER, text="written again")])
    assert await stores.journal.load(task_id, 1) == [first]
    assert await _rows(pool, task_id) == 1


async def test_a_step_that_ran_again_replaces_its_earlier_self_in_what_is_read(stores: Stores, pool: Pool) -> None:
    task_id = fresh("task")
    await stores.journal.append([_entry(task_id, 1, call, f"req-{call}") for call in (0, 1, 2)])
    again = [_entry(task_id, 1, call, f"req-again-{call}") for call in (0, 1)]
    await stores.journal.append(again)
    assert await stores.journal.load(task_id, 1) == again
    assert await _rows(pool, task_id) == 5


async def test_without_request_ids_other_content_is_another_attempt(stores: Stores) -> None:
    task_id = fresh("task")
    await stores.journal.append([_entry(task_id, 1, text="the model said this"), _entry(task_id, 2)])
    await stores.journal.append([_entry(task_id, 1, text="and after the crash that")])
    assert [entry.text for entry in await stores.journal.load(task_id, 1)] == ["and after the crash that"]
    assert len(await stores.journal.load(task_id, 2)) == 2


async def test_what_a_newer_version_added_is_passed_over(stores: Stores, pool: Pool) -> None:
    task_id = fresh("task")
    await stores.journal.append([_entry(task_id, 1)])
    async with pool.connection() as link:
        await link.execute(
            """UPDATE agentic_loop.steps SET entry_json = (entry_json::jsonb || '{"mood": "good"}')::text
            WHERE task_id = %s""",
            [task_id],
        )
    assert await stores.journal.load(task_id, 1) == [_entry(task_id, 1)]


async def test_prompts_and_replies_are_kept_once_by_digest(stores: Stores) -> None:
    name = fresh("digest")
    await stores.journal.keep(name, ["prompt \x00", 1.0, {"b": 1, "a": 2}])
    await stores.journal.keep(name, ["something else"])
    assert repr(await stores.journal.recall(name)) == repr(["prompt \x00", 1.0, {"b": 1, "a": 2}])
    with pytest.raises(KeyError, match="nothing-here"):
        await stores.journal.recall("nothing-here")


async def _rows(pool: Pool, task_id: str) -> int:
    async with pool.connection() as link:
        cursor = await link.execute("SELECT count(*) AS n FROM agentic_loop.steps WHERE task_id = %s", [task_id])
        row = await cursor.fetchone()
    assert row is not None
    return int(row["n"])
