"""What ``langgraph.json`` names: the loops as graph factories, and the checkpointer they share.

LangGraph Server runs several event loops and opens a factory for every run and every request for a schema, so that
stores and connections are kept once per event loop.

Source: DESIGN §7 (LangGraph Server is the other engine), §10 (factories).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from langgraph.checkpoint.base import BaseCheckpointSaver

from agentic_loop.graph.build import LoopGraph, build_graph
from agentic_loop.graph.loops.refund import refund_loop
from agentic_loop.graph.run import ports_on
from agentic_loop.graph.store.stores import Stores, open_stores
from agentic_loop.graph.system import RandomIds, SystemClock
from agentic_loop.tools.http import LazyHttpClient

from .app import Settings, model_of
from .auth import BARE_ANSWERS, ServerIdentity


@dataclass(frozen=True)
class _Opened:
    """What one event loop has open: kept until the loop is gone or the server closes the checkpointer."""

    stores: Stores
    graphs: Mapping[str, LoopGraph]


_opened: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = WeakKeyDictionary()
_opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_closing: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncExitStack] = WeakKeyDictionary()


async def _open() -> _Opened:
    loop = asyncio.get_running_loop()
    async with _opening.setdefault(loop, asyncio.Lock()):
        if loop not in _opened:
            stack = AsyncExitStack()
            _opened[loop] = await _open_on(stack)
            _closing[loop] = stack
        return _opened[loop]


async def _open_on(stack: AsyncExitStack) -> _Opened:
    settings = await asyncio.to_thread(Settings.from_environment)
    stores = await stack.enter_async_context(open_stores(settings.database_url))
    client = await stack.enter_async_context(LazyHttpClient())
    clock, ids = SystemClock(), RandomIds()
    ports = ports_on(
        stores,
        model=model_of(settings),
        clock=clock,
        ids=ids,
        identity=ServerIdentity(os.environ),
        bare_answers=os.environ.get(BARE_ANSWERS) == "1",
    )
    refund = refund_loop(settings.services, ids=ids, clock=clock, client=client)
    return _Opened(stores, {"refund": build_graph(refund, ports)})


async def _close() -> None:
    loop = asyncio.get_running_loop()
    _opened.pop(loop, None)
    stack = _closing.pop(loop, None)
    if stack is not None:
        await stack.aclose()


@asynccontextmanager
async def checkpointer() -> AsyncIterator[BaseCheckpointSaver[str]]:
    """The checkpointer of the server: LangGraph's Postgres saver with strict deserialisation."""
    opened = await _open()
    try:
        yield opened.stores.saver
    finally:
        await _close()


@asynccontextmanager
async def refund() -> AsyncIterator[LoopGraph]:
    """The refund loop; the server brings the checkpointer."""
    opened = await _open()
    yield opened.graphs["refund"]
