"""The runtime: starts, resumes, approves and reads tasks of one loop or several, on one database.

Source: DESIGN §1 (who uses it), §7 (the lease is taken before the graph is entered).
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from pydantic import JsonValue

from .build import LoopGraph, build_graph
from .definition import LoopDefinition, Ports
from .errors import Misuse
from .ports import Clock, Identity, Ids, Model
from .records import ApprovalRow, EvidenceRecord, JournalEntry, TaskRow
from .state import (
    TERMINAL,
    Approval,
    Ending,
    LoopInput,
    LoopState,
    OutstandingAction,
    Principal,
    Resumption,
    Status,
    Usage,
)
from .store.lease import run_token
from .store.stores import Stores, open_stores
from .system import ContextIdentity, RandomIds, SystemClock, acting_as

_TASK_ID = re.compile(r"[A-Za-z0-9._:/@-]{1,200}")

DecisionType: TypeAlias = Literal["approve", "edit", "reject", "respond"]
"""What a person can answer to a request for approval."""


Watcher: TypeAlias = Callable[[str, LoopState], None]
"""Is told each node that has run, and what it changed."""


@dataclass(frozen=True)
class TaskState:
    """A task as a caller sees it: where it stands, what it spent, and what it waits for."""

    task_id: str
    loop: str
    status: Status
    ending: Ending | None
    message: str
    version: int
    step_count: int
    phase: str
    usage: Usage
    outstanding: list[OutstandingAction]
    approval: Approval | None
    values: LoopState

    @property
    def waiting(self) -> bool:
        """Whether the task waits for a person."""
        return self.status == "AWAITING_APPROVAL"

    @property
    def ended(self) -> bool:
        """Whether the task has a terminal status."""
        return self.status in TERMINAL


class Runtime:
    """Runs tasks of the given loops against one set of stores.

    Open one with :func:`open_runtime`. ``watch`` is told what each node did while a task runs. Every method that acts
    takes the principal whom the host's authentication established; nothing in a payload can say who somebody is.
    """

    def __init__(
        self, loops: Mapping[str, LoopDefinition], stores: Stores, ports: Ports, *, watch: Watcher | None = None
    ) -> None:
        self._watch = watch
        self._loops = dict(loops)
        self._stores = stores
        self._ports = ports
        self._graphs: dict[str, LoopGraph] = {
            name: build_graph(loop, ports, stores.saver) for name, loop in self._loops.items()
        }

    @property
    def stores(self) -> Stores:
        """The stores that this runtime writes to."""
        return self._stores

    @property
    def ports(self) -> Ports:
        """The ports that the nodes reach the outside through."""
        return self._ports

    def graph(self, loop: str) -> LoopGraph:
        """The compiled graph of a loop, for LangGraph's own calls.

        Raises:
            Misuse: no such loop.
        """
        if loop not in self._graphs:
            known = ", ".join(sorted(self._graphs)) or "none"
            raise Misuse(f"no loop is named {loop!r}; this runtime has: {known}")
        return self._graphs[loop]

    async def start(
        self,
        loop: str,
        *,
        goal: str = "",
        inputs: Mapping[str, str] | None = None,
        requester: Principal,
        task_id: str | None = None,
        revises: str = "",
    ) -> TaskState:
        """Start a task and run it until it ends, waits for an approval, or sleeps.

        Raises:
            Misuse: no such loop, no goal, or a task of this id exists.
            LeaseRefused: another worker runs this task.
        """
        graph = self.graph(loop)
        chosen = task_id or f"task-{uuid4().hex[:12]}"
        if _TASK_ID.fullmatch(chosen) is None:
            raise Misuse("a task id is 1 to 200 letters, digits and . _ : / @ - characters")
        given: LoopInput = {"goal": goal, "inputs": dict(inputs or {}), "revises": revises, "resumption": None}
        with acting_as(requester):
            await self._run(graph, chosen, given, is_new=True)
        return await self.state(chosen, loop)

    async def decide(
        self,
        approval_id: str,
        decision: DecisionType,
        *,
        approver: Principal,
        message: str = "",
        edited_args: Mapping[str, JsonValue] | None = None,
    ) -> TaskState:
        """Answer a request for approval, and run the task on from there.

        An answer from somebody who is not entitled leaves the request pending: look at the returned state.

        Raises:
            Misuse: no such approval, it was answered before, or its task has ended.
        """
        row = await self._pending_row(approval_id)
        answered: dict[str, JsonValue] = {"type": decision, "approval_id": approval_id}
        if message:
            answered["message"] = message
        if decision == "edit":
            answered["edited_action"] = {"name": row.tool, "args": dict(edited_args or row.args)}
        return await self._answer(row, {"approval_id": approval_id, "decisions": [answered]}, approver)

    async def _pending_row(self, approval_id: str) -> ApprovalRow:
        row = await self._stores.approvals.find(approval_id)
        if row is None:
            raise Misuse(f"no approval is named {approval_id!r}; agentic-loop inbox lists those that wait")
        if row.decision is not None:
            raise Misuse(
                f"approval {approval_id} was {row.decision} by {row.decided_by or 'the clock'}; that is final"
            )
        task = await self._stores.tasks.get(row.task_id)
        if task is None or task.status in TERMINAL:
            raise Misuse(f"task {row.task_id} has ended, so approval {approval_id} can no longer be answered")
        return row

    async def _answer(self, row: ApprovalRow, answer: dict[str, JsonValue], approver: Principal) -> TaskState:
        graph = self.graph(row.loop)
        snapshot = await graph.aget_state(self._config(row.task_id))
        waiting = [item for item in snapshot.interrupts if _names(item.value, row.id)]
        if not waiting:
            # The request is on record but its interrupt is not: the worker died in between. Run up to it first.
            with acting_as(approver):
                await self._run(graph, row.task_id, None)
            snapshot = await graph.aget_state(self._config(row.task_id))
            waiting = [item for item in snapshot.interrupts if _names(item.value, row.id)]
        if not waiting:
            raise Misuse(f"task {row.task_id} does not wait for approval {row.id}")
        with acting_as(approver):
            await self._run(graph, row.task_id, Command(resume={waiting[0].id: answer}))
        await self._require_own_decision(row.id, approver)
        return await self.state(row.task_id, row.loop)

    async def _require_own_decision(self, approval_id: str, approver: Principal) -> None:
        """Somebody may have answered while this answer was on its way; theirs counts, and this caller must know."""
        decided = await self._stores.approvals.find(approval_id)
        if decided is not None and decided.decided_by and decided.decided_by != approver.id:
            raise Misuse(f"approval {approval_id} was {decided.decision} by {decided.decided_by} in the meantime")

    async def resume(self, task_id: str, *, actor: Principal, resumption: Resumption | None = None) -> TaskState:
        """Go on with an ended task, with new inputs or extra limits; a success is final.

        Raises:
            Misuse: no such task, it has not ended, it was closed, or the actor may not resume it.
        """
        row = await self._task(task_id)
        if row.closed_by is not None:
            raise Misuse(f"task {task_id} was closed by {row.closed_by}; start a new one with agentic-loop revise")
        if row.status not in TERMINAL:
            raise Misuse(f"task {task_id} is {row.status}: it has not ended; agentic-loop continue runs it on")
        request = (resumption or Resumption()).model_dump(mode="json")
        with acting_as(actor):
            await self._run(self.graph(row.loop), task_id, {"resumption": request})
        return await self.state(task_id, row.loop)

    async def proceed(self, task_id: str) -> TaskState:
        """Run on a task that was interrupted by a crash, or whose time to look again has come.

        Raises:
            Misuse: no such task.
            LeaseRefused: another worker runs it.
        """
        row = await self._task(task_id)
        graph = self.graph(row.loop)
        snapshot = await graph.aget_state(self._config(task_id))
        if "task" not in snapshot.values:
            raise Misuse(f"task {task_id} died before it began: start it again, with --task-id {task_id}")
        sleeping = not snapshot.next
        await self._run(graph, task_id, {"resumption": None} if sleeping else None)
        return await self.state(task_id, row.loop)

    async def close(self, task_id: str, *, actor: Principal, note: str) -> None:
        """Mark an ended task as dealt with by a person.

        Raises:
            Misuse: no such task, it has not ended, it is closed already, or the actor may not.
        """
        row = await self._task(task_id)
        if row.status not in TERMINAL:
            raise Misuse(f"task {task_id} is {row.status}: only an ended task can be closed")
        if actor.tenant != row.tenant:
            raise Misuse(f"{actor.id} may not close a task of another tenant")
        await self._stores.tasks.close(task_id, by=actor.id, note=note, at=self._ports.clock.now())

    async def revise(
        self, task_id: str, *, actor: Principal, goal: str = "", inputs: Mapping[str, str] | None = None
    ) -> TaskState:
        """Start a new task from the evidence of an ended one, with its goal and inputs unless others are given.

        Raises:
            Misuse: no such task, it has not ended, or the actor may not go on from it.
        """
        row = await self._task(task_id)
        earlier = await self.state(task_id, row.loop)
        merged = {**earlier.values["task"].inputs, **(inputs or {})}
        return await self.start(row.loop, goal=goal or row.goal, inputs=merged, requester=actor, revises=task_id)

    async def state(self, task_id: str, loop: str | None = None) -> TaskState:
        """Where a task stands.

        Raises:
            Misuse: no such task.
        """
        name = loop or (await self._task(task_id)).loop
        snapshot = await self.graph(name).aget_state(self._config(task_id))
        values = cast(LoopState, snapshot.values)
        if "task" not in values:
            raise Misuse(f"no task is named {task_id!r}; agentic-loop tasks lists them")
        return TaskState(
            task_id=task_id,
            loop=name,
            status=values["status"],
            ending=values.get("ending"),
            message=values.get("message", ""),
            version=values["version"],
            step_count=values["step_count"],
            phase=values["phase"],
            usage=values["usage"],
            outstanding=values["outstanding"],
            approval=values.get("approval"),
            values=values,
        )

    async def trace(self, task_id: str) -> list[JournalEntry]:
        """The journal of a task, oldest first."""
        current = await self.state(task_id)
        return await self._stores.journal.load(task_id, current.version)

    async def evidence(self, task_id: str) -> list[EvidenceRecord]:
        """Everything that the task has on record, with payloads."""
        current = await self.state(task_id)
        return await self._stores.evidence.load(task_id, current.values["evidence_count"])

    async def packet(self, task_id: str) -> JsonValue:
        """The newest escalation packet of a task.

        Raises:
            Misuse: the task has none, because it succeeded or has not ended.
        """
        row = await self._task(task_id)
        packet = await self._stores.tasks.packet(task_id)
        if packet is None:
            raise Misuse(f"task {task_id} is {row.status}: only an ending other than SUCCEEDED has a packet")
        return packet

    async def _task(self, task_id: str) -> TaskRow:
        row = await self._stores.tasks.get(task_id)
        if row is None:
            raise Misuse(f"no task is named {task_id!r}; agentic-loop tasks lists them")
        return row

    async def _run(
        self, graph: LoopGraph, task_id: str, given: LoopInput | Command[str] | None, *, is_new: bool = False
    ) -> None:
        with _running_as(uuid4().hex):
            await self._ports.lease.acquire(task_id)
            try:
                if is_new and "task" in (await graph.aget_state(self._config(task_id))).values:
                    raise Misuse(f"task {task_id} exists already; choose another id or leave it out")
                async for part in graph.astream(given, self._config(task_id), stream_mode="updates"):
                    self._show(part)
            finally:
                await self._ports.lease.release(task_id)

    def _show(self, part: object) -> None:
        if self._watch is None or not isinstance(part, Mapping):
            return
        for node, update in part.items():
            if isinstance(update, Mapping):
                self._watch(str(node), cast(LoopState, update))

    @staticmethod
    def _config(task_id: str) -> RunnableConfig:
        return {"configurable": {"thread_id": task_id}}


@contextmanager
def _running_as(token: str) -> Iterator[None]:
    """Name the run that the code inside belongs to, so that its nodes share one lease."""
    reset = run_token.set(token)
    try:
        yield
    finally:
        run_token.reset(reset)


def _names(value: object, approval_id: str) -> bool:
    return isinstance(value, Mapping) and value.get("approval_id") == approval_id


@asynccontextmanager
async def open_runtime(
    loops: Mapping[str, LoopDefinition] | Callable[[Clock, Ids], Mapping[str, LoopDefinition]],
    *,
    database_url: str,
    model: Model,
    clock: Clock | None = None,
    ids: Ids | None = None,
    watch: Watcher | None = None,
) -> AsyncIterator[Runtime]:
    """A runtime on this database, migrated and ready; everything is closed again at the end of the block.

    ``loops`` are the loops by name, or a function that makes them with the clock and the ids that the runtime uses.

    Raises:
        Outage: the database cannot be reached.
        Misuse: the database has a newer schema than this code understands, or a loop is not in order.
    """
    the_clock, the_ids = clock or SystemClock(), ids or RandomIds()
    defined = loops(the_clock, the_ids) if callable(loops) else loops
    async with open_stores(database_url) as stores:
        ports = ports_on(stores, model=model, clock=the_clock, ids=the_ids)
        yield Runtime(defined, stores, ports, watch=watch)


def ports_on(
    stores: Stores,
    *,
    model: Model,
    clock: Clock,
    ids: Ids,
    identity: Identity | None = None,
    bare_answers: bool = False,
) -> Ports:
    """The ports of a process that runs on these stores."""
    return Ports(
        clock=clock,
        ids=ids,
        identity=identity or ContextIdentity(),
        model=model,
        evidence=stores.evidence,
        journal=stores.journal,
        tasks=stores.tasks,
        ledger=stores.ledger,
        approvals=stores.approvals,
        lease=stores.lease,
        bare_answers=bare_answers,
    )
