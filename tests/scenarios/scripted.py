"""A scripted world, and what a test wants to read of it: prompts, refusals, the requests of tools."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentic_loop.graph.records import JournalEntry, ModelUsage
from agentic_loop.graph.run import TaskState
from agentic_loop.graph.state import CallFault
from agentic_loop.testing.models import ScriptedChatModel
from tests.conftest import Sandbox

from .world import World, open_world

BILLED = ModelUsage(100, 10)
"""What each reply of a script costs unless a test says otherwise."""


@asynccontextmanager
async def scripted_world(
    sandbox: Sandbox, database_url: str, script: Sequence[Any], **more: Any
) -> AsyncIterator[tuple[World, ScriptedChatModel]]:
    """A world whose model says exactly this, at a small and certain price."""
    more.setdefault("usages", [BILLED] * len(script))
    async with open_world(sandbox, database_url, script, **more) as world:
        assert world.model is not None
        yield world, world.model


def shown(model: ScriptedChatModel, number: int = -1) -> str:
    """Everything that the model was shown in one of its calls, as one text."""
    return "\n".join(str(message.content) for message in model.prompts[number])


async def tool_requests(world: World) -> list[tuple[str, str]]:
    """Method and path of every request that reached a service, oldest first."""
    return [(row["method"], row["path"]) for row in await world.requests()]


async def entries(world: World, task: TaskState, *kinds: str) -> list[JournalEntry]:
    """The journal's entries of these kinds, oldest first."""
    return [entry for entry in await world.runtime.trace(task.task_id) if entry.kind in kinds]


async def faults(world: World, task: TaskState) -> list[CallFault]:
    """Every fault in the journal, oldest first."""
    return [entry.fault for entry in await world.runtime.trace(task.task_id) if entry.fault is not None]


async def corrections(world: World, task: TaskState) -> list[str]:
    """The flags about which the model was corrected, oldest first."""
    remarks = await entries(world, task, "feedback")
    return [remark.text.split(":")[0] for remark in remarks if remark.validation == "no_progress"]


def body_of(request: dict[str, Any]) -> Any:
    """The JSON body of a logged request."""
    return json.loads(request["body"])
