"""The ledger does what a few lines of plain Python say, whatever is asked of it in whatever order."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.conninfo import make_conninfo

from agentic_loop.graph.records import AlreadyBegun, ApprovalRefused, BeginAnswer, Begun, FenceLost, KeyConflict
from agentic_loop.graph.state import CallFault
from agentic_loop.graph.store.approvals import PostgresApprovals
from agentic_loop.graph.store.database import Pool, open_pool
from agentic_loop.graph.store.ledger import PostgresLedger
from agentic_loop.graph.store.migrate import migrate

from .samples import HASH, NOON, OTHER_HASH, approval, fresh

Answer = TypeVar("Answer")

MAX_DISPATCHES = 3
tasks = st.sampled_from(["first", "second"])
keys = st.sampled_from(["k1", "k2", "k3"])
# Mostly what can succeed, so that long lives of one key are common.
hashes = st.sampled_from([HASH, HASH, HASH, OTHER_HASH])
stale = st.sampled_from([0, 0, 0, 0, -1])
picks = st.sampled_from([0, 0, 0, *range(1, 12)])
Verdict = Literal["approved", "edited", "rejected"]


@dataclass
class ModelApproval:
    task: str
    action_hash: str
    expires_at: datetime
    decision: str | None = None
    consumed_by: str | None = None

    def covers(self, task: str, action_hash: str, at: datetime) -> bool:
        decided = self.decision in ("approved", "edited") and self.consumed_by is None and at < self.expires_at
        return decided and (self.task, self.action_hash) == (task, action_hash)


@dataclass
class ModelIntent:
    action_hash: str
    task: str
    approval: str | None
    status: str = "intended"
    dispatches: int = 1
    result: str | None = None
    flagged: bool = False


@dataclass
class World:
    """What the ledger should hold."""

    fences: dict[str, int] = field(default_factory=dict)
    approvals: dict[str, ModelApproval] = field(default_factory=dict)
    intents: dict[str, ModelIntent] = field(default_factory=dict)

    def begin(self, task: str, fence: int, key: str, action_hash: str, approval: str | None, at: datetime) -> type:
        if self.fences[task] != fence:
            return FenceLost
        present = self.intents.get(key)
        if present is not None and present.status != "failed":
            return AlreadyBegun if present.action_hash == action_hash else KeyConflict
        if approval is not None:
            if approval not in self.approvals or not self.approvals[approval].covers(task, action_hash, at):
                return ApprovalRefused
            self.approvals[approval].consumed_by = key
        self.intents[key] = ModelIntent(action_hash, task, approval)
        return Begun

    def reopen(
        self, fence: int, key: str, action_hash: str, approval: str | None, dispatches: int, at: datetime
    ) -> type:
        present = self.intents[key]
        if self.fences[present.task] != fence:
            return FenceLost
        if present.action_hash != action_hash:
            return KeyConflict
        settled = present.status in ("executed", "failed")
        if settled or present.dispatches >= MAX_DISPATCHES or present.dispatches > dispatches:
            return AlreadyBegun
        if approval is not None and approval != present.approval:
            if approval not in self.approvals or not self.approvals[approval].covers(present.task, action_hash, at):
                return ApprovalRefused
            self.approvals[approval].consumed_by = key
            present.approval = approval
        elif present.approval is not None and self.approvals[present.approval].expires_at <= at:
            return ApprovalRefused
        present.status = "intended"
        present.dispatches += 1
        return Begun


class LedgerMachine(RuleBasedStateMachine):
    """Drives the ledger and the model side by side; each example has a tenant and tasks of its own."""

    pool: Pool
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.ledger = PostgresLedger(self.pool)
        self.registered = PostgresApprovals(self.pool)
        self.world = World()
        self.now = NOON
        self.tenant = fresh("tenant")
        self.names = {"first": fresh("task"), "second": fresh("task")}

    def run(self, work: Awaitable[Answer]) -> Answer:
        async def awaited() -> Answer:
            return await work

        return self.runner.run(awaited())

    async def _take_over(self, task: str) -> None:
        async with self.pool.connection() as link:
            await link.execute(
                """INSERT INTO agentic_loop.leases VALUES (%s, 1, 'model', now())
                ON CONFLICT (task_id) DO UPDATE SET fence = leases.fence + 1""",
                [self.names[task]],
            )

    @initialize()
    def start(self) -> None:
        for task in self.names:
            self.take_over(task)

    @rule(task=tasks)
    def take_over(self, task: str) -> None:
        self.run(self._take_over(task))
        self.world.fences[task] = self.world.fences.get(task, 0) + 1

    @rule(minutes=st.sampled_from([1, 5, 40]))
    def time_passes(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)

    @rule(
        task=tasks,
        action_hash=hashes,
        decision=st.sampled_from([None, "approved", "approved", "edited", "rejected"]),
        minutes=st.sampled_from([5, 60, 600]),
    )
    def ask(self, task: str, action_hash: str, decision: Verdict | None, minutes: int) -> None:
        expires_at = self.now + timedelta(minutes=minutes)
        number = len(self.world.approvals) + 1
        row = approval(
            self.names[task],
            tenant=self.tenant,
            action_hash=action_hash,
            round_number=number,
            expires_at=expires_at,
        )
        self.run(self.registered.request(row))
        if decision is not None:
            decided = self.registered.decide(
                row.id, decision=decision, decided_by="lead", decided_role="lead", at=self.now
            )
            self.run(decided)
        self.world.approvals[row.id] = ModelApproval(task, action_hash, expires_at, decision)

    def _pick(self, number: int) -> str | None:
        """No approval, one that does not exist, or one of those there are."""
        choices = [None, "no-such-approval", *self.world.approvals]
        return choices[number % len(choices)]

    @rule(task=tasks, key=keys, action_hash=hashes, number=picks, off=stale)
    def begin(self, task: str, key: str, action_hash: str, number: int, off: int) -> None:
        fence, approval_id = self.world.fences[task] + off, self._pick(number)
        expected = self.world.begin(task, fence, key, action_hash, approval_id, self.now)
        answer = self.run(
            self.ledger.begin(
                tenant=self.tenant,
                key=key,
                action_hash=action_hash,
                tool="issue_refund",
                args={"key": key},
                task_id=self.names[task],
                fence=fence,
                approval_id=approval_id,
                request_id="req",
                at=self.now,
            )
        )
        self._check(answer, expected)

    @precondition(lambda self: self.world.intents)
    @rule(key=keys, action_hash=hashes, number=picks, off=stale, seen=st.integers(1, MAX_DISPATCHES))
    def reopen(self, key: str, action_hash: str, number: int, off: int, seen: int) -> None:
        if key in self.world.intents:
            self._reopen(key, action_hash, self._pick(number), off, seen)

    @precondition(lambda self: self.world.intents)
    @rule(number=picks, behind=st.sampled_from([0, 0, 1]), fresh_approval=st.booleans())
    def reopen_as_a_node_does(self, number: int, behind: int, fresh_approval: bool) -> None:
        open_keys = sorted(key for key, one in self.world.intents.items() if one.status in ("intended", "unknown"))
        if not open_keys:
            return
        key = open_keys[number % len(open_keys)]
        present = self.world.intents[key]
        approval_id = self._pick(number) if fresh_approval else present.approval
        self._reopen(key, present.action_hash, approval_id, 0, present.dispatches - behind)

    def _reopen(self, key: str, action_hash: str, approval_id: str | None, off: int, seen: int) -> None:
        fence = self.world.fences[self.world.intents[key].task] + off
        expected = self.world.reopen(fence, key, action_hash, approval_id, seen, self.now)
        answer = self.run(
            self.ledger.reopen(
                tenant=self.tenant,
                key=key,
                action_hash=action_hash,
                fence=fence,
                approval_id=approval_id,
                request_id="req",
                dispatches=seen,
                max_dispatches=MAX_DISPATCHES,
                at=self.now,
            )
        )
        self._check(answer, expected)

    def _check(self, answer: BeginAnswer, expected: type) -> None:
        assert type(answer) is expected

    @rule(key=keys, result=st.text(max_size=3), hold_back=st.integers(0, 3))
    def finish(self, key: str, result: str, hold_back: int) -> None:
        present = self.world.intents.get(key)
        if present is None or hold_back:  # an executed intent never changes again: let it live a little
            return
        if present.status != "executed":
            present.status, present.result = "executed", result
        done = self.ledger.finish(tenant=self.tenant, key=key, result=result, ref="", request_id="req", at=self.now)
        assert self.run(done).result == present.result

    @rule(key=keys)
    def fail(self, key: str) -> None:
        present = self.world.intents.get(key)
        if present is None:
            return
        if present.status in ("intended", "unknown"):
            present.status = "failed"
        fault = CallFault(category="rejected", message="no")
        self.run(self.ledger.fail(tenant=self.tenant, key=key, fault=fault, at=self.now))

    @rule(key=keys)
    def lose_the_answer(self, key: str) -> None:
        present = self.world.intents.get(key)
        if present is None:
            return
        if present.status == "intended":
            present.status = "unknown"
        self.run(self.ledger.mark_unknown(tenant=self.tenant, key=key, at=self.now))

    @rule(key=keys)
    def flag(self, key: str) -> None:
        if key in self.world.intents:
            self.world.intents[key].flagged = True
            self.run(self.ledger.flag(tenant=self.tenant, key=key, detail="look", at=self.now))

    @invariant()
    def the_tables_say_what_the_model_says(self) -> None:
        assert self.run(self._tables()) == (
            {
                key: (self.names[one.task], one.action_hash, one.approval, one.status, one.dispatches, one.flagged)
                for key, one in self.world.intents.items()
            },
            {name: one.consumed_by for name, one in self.world.approvals.items()},
        )

    async def _tables(self) -> tuple[dict[str, tuple[object, ...]], dict[str, str | None]]:
        async with self.pool.connection() as link:
            intents = await link.execute("SELECT * FROM agentic_loop.intents WHERE tenant = %s", [self.tenant])
            columns = ("task_id", "action_hash", "approval_id", "status", "dispatches", "flagged")
            kept = {row["key"]: tuple(row[column] for column in columns) for row in await intents.fetchall()}
            approvals = await link.execute("SELECT * FROM agentic_loop.approvals WHERE tenant = %s", [self.tenant])
            return kept, {row["id"]: row["consumed_by"] for row in await approvals.fetchall()}


@pytest.mark.timeout(60)
def test_the_ledger_follows_its_model(store_url: str) -> None:
    # A loop of its own, given by factory, so that the session's loop stays the current one.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        # What happens when the server loses power is not what this test asks, so it need not wait for the disk.
        pool = runner.run(open_pool(make_conninfo(store_url, options="-c synchronous_commit=off"), max_size=2))
        try:
            runner.run(migrate(pool))
            LedgerMachine.pool, LedgerMachine.runner = pool, runner
            run_state_machine_as_test(
                LedgerMachine, settings=settings(max_examples=30, stateful_step_count=35, deadline=None)
            )
        finally:
            runner.run(pool.close())
