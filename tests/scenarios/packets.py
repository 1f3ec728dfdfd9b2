"""What every ending but success has to leave behind for the person who goes on from it."""

import re
import shlex
from typing import Any

from agentic_loop.graph.run import TaskState

from .world import World

SAFE = frozenset({"check", "close", "revise", "resume"})
_COMMAND = re.compile(r"agentic-loop (trace|close|revise|resume) \S+")


async def ended_with_packet(world: World, task: TaskState, status: str, reason: str) -> dict[str, Any]:
    """Assert that the task ended like this, everywhere where that is on record, and return its packet."""
    assert task.ending is not None, f"the task is {task.status}"
    assert (task.status, task.ending.status, task.ending.reason) == (status, status, reason), task.ending
    row = await world.runtime.stores.tasks.get(task.task_id)
    assert row is not None
    assert (row.status, row.reason) == (status, reason)
    packet = await world.packet(task)
    assert (packet["status"], packet["reason"]) == (status, reason)
    assert packet["task_id"] == task.task_id
    assert packet["goal"] == task.values["task"].goal
    assert packet["detail"] == task.ending.detail
    assert packet["spent"]["steps"] == task.step_count
    assert packet["spent"]["tokens"] == task.usage.tokens
    _check_options(packet, task.task_id)
    last = (await world.runtime.trace(task.task_id))[-1]
    assert last.kind == "ending"
    assert last.text.startswith(f"{status}({reason})")
    return packet


def _check_options(packet: dict[str, Any], task_id: str) -> None:
    """Each option is known, says when it is right, and names the exact command about this very task."""
    options = packet["options"]
    named = [option["option"] for option in options]
    assert set(named) <= SAFE
    assert {"close", "revise"} <= set(named)
    assert ("resume" in named) == (packet["reason"] != "policy_denied")
    for option in options:
        assert _COMMAND.match(option["command"]), option
        assert shlex.split(option["command"])[2] == task_id
        assert option["when"]
