"""How every command runs: with a runtime on the right database, and with words and an exit code for what goes wrong.

Source: DESIGN §1 (the command line's users), §9 (errors and endings say what to do).
"""

import asyncio
import dataclasses
import os
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import uuid4

import psycopg
import typer

from agentic_loop.graph.errors import LeaseRefused, Misuse, Outage, ToolFault
from agentic_loop.graph.records import ApprovalRow
from agentic_loop.graph.run import Runtime, TaskState
from agentic_loop.graph.state import Principal
from agentic_loop.graph.store.database import translated
from agentic_loop.graph.store.embedded import EmbeddedDatabaseError
from agentic_loop.models.rehearsal import REHEARSAL
from agentic_loop.sandbox.server import SandboxStartError

from .app import DATABASE, DEMO_DATABASE, Settings, open_app, person
from .approval_view import approval_table
from .progress_view import ProgressLines
from .task_view import (
    TaskReport,
    heading_of,
    next_commands,
    spent_line,
    style_of,
    task_json,
)
from .terminal_view import Screen

EXIT_DEFECT = 1
EXIT_MISUSE = 2
EXIT_OUTAGE = 8
EXIT_INTERRUPTED = 130


def new_task_id() -> str:
    """An id for a new task."""
    return f"task-{uuid4().hex[:12]}"


class Session:
    """One run of the command line: its screen, its environment, and which database it is about."""

    def __init__(self, screen: Screen, *, demo: bool = False, environment: Mapping[str, str] = os.environ) -> None:
        self.screen = screen
        self.environment = environment
        self.database = DEMO_DATABASE if demo else DATABASE
        self.program = "agentic-loop --demo" if demo else "agentic-loop"
        self.task_id = ""

    def guarded(self, act: Callable[[], int]) -> int:
        """Do it, and turn whatever goes wrong into one line that says what to do, and an exit code."""
        try:
            return act()
        except Misuse as error:
            return self._failed("misuse", str(error), EXIT_MISUSE)
        except LeaseRefused as error:
            return self._failed("lease_refused", f"{error}; wait until it is done, then try again", EXIT_OUTAGE)
        except (Outage, EmbeddedDatabaseError, SandboxStartError) as error:
            return self._failed("outage", str(error), EXIT_OUTAGE)
        except psycopg.Error as error:
            fault = translated(error)
            code = EXIT_MISUSE if isinstance(fault, Misuse) else EXIT_OUTAGE
            return self._failed("misuse" if isinstance(fault, Misuse) else "outage", str(fault), code)
        except ToolFault as fault:
            return self._failed("tool_fault", f"{fault.category}: {fault}; try again later", EXIT_OUTAGE)
        except (KeyboardInterrupt, typer.Abort):
            return self._failed("interrupted", self._after_interruption(), EXIT_INTERRUPTED)
        except Exception as error:  # noqa: BLE001 - the outermost frame: our own fault, shown whole so it can be reported
            traceback.print_exception(error)
            words = f"{type(error).__name__}: {error}; this is a fault of agentic-loop itself, please report it"
            return self._failed("defect", words, EXIT_DEFECT)

    def introduce(self, runtime: Runtime, words: str) -> None:
        """Say what begins, and which model takes part in it."""
        self.screen.say(words, "bold")
        name = runtime.ports.model.name
        if name == REHEARSAL:
            self.screen.say(
                "model: rehearsal. This is the bundled rehearsal model, deterministic and no language model; "
                "AGENTIC_LOOP_MODEL=openai:NAME or --model chooses a real one."
            )
        else:
            self.screen.say(f"model: {name}")

    async def conclude(self, runtime: Runtime, state: TaskState, *, with_commands: bool = True) -> TaskReport:
        """Say where the task stands now and what may be done next."""
        report = await self.report(runtime, state)
        self.screen.result(task_json(report))
        self.screen.say()
        self.screen.say(heading_of(state), style_of(state.status))
        if state.ending is not None and state.ended and state.status != "SUCCEEDED":
            self.screen.say(state.ending.detail)
        self.say_rest(report)
        if with_commands:
            self.say_commands(next_commands(report, self.program))
        return report

    def settings(self, model: str | None = None) -> Settings:
        """The settings of this session's environment and database."""
        return Settings.from_environment(self.environment, model=model, database=self.database)

    def run_task(self, act: Callable[[Runtime], Awaitable[TaskState]], *, model: str | None = None) -> int:
        """Run a task and conclude; the exit code says how the task stands."""

        async def run() -> int:
            watch = ProgressLines(self.screen.say)
            async with open_app(self.settings(model), watch=watch) as runtime:
                return (await self.conclude(runtime, await act(runtime))).exit_code

        return self.guarded(lambda: asyncio.run(run()))

    def look(self, act: Callable[[Runtime], Awaitable[int]]) -> int:
        """Do something in which no task runs."""

        async def run() -> int:
            # Nothing is asked of a model here, so a model that is not set up must not keep anybody from looking.
            settings = dataclasses.replace(self.settings(), model=REHEARSAL)
            async with open_app(settings) as runtime:
                return await act(runtime)

        return self.guarded(lambda: asyncio.run(run()))

    def _failed(self, kind: str, message: str, code: int) -> int:
        self.screen.fail(kind, " ".join(message.split()))
        return code

    def _after_interruption(self) -> str:
        if not self.task_id:
            return "interrupted; what was acknowledged is on record; agentic-loop tasks lists the tasks"
        command = f"{self.program} continue {self.task_id}"
        return f"interrupted; what was acknowledged is on record, and {command} runs the task on"

    def person(self, name: str) -> Principal:
        """The person of this name.

        Raises:
            Misuse: nobody is known by it.
        """
        return person(name, self.environment)

    async def approval_row(self, runtime: Runtime, approval_id: str) -> ApprovalRow:
        """The approval of this id, whose task becomes the one that this session is about.

        Raises:
            Misuse: there is none.
        """
        row = await runtime.stores.approvals.find(approval_id)
        if row is None:
            raise Misuse(f"no approval is named {approval_id!r}; {self.program} inbox lists those that wait")
        self.task_id = row.task_id
        return row

    @staticmethod
    async def report(runtime: Runtime, state: TaskState) -> TaskReport:
        """The task with what belongs to it."""
        approval = state.approval
        row = await runtime.stores.approvals.find(approval.id) if approval is not None and state.waiting else None
        return TaskReport(state, await runtime.stores.tasks.get(state.task_id), row)

    def say_rest(self, report: TaskReport) -> None:
        """The message, the approval that is waited for, and the spending."""
        if report.state.message:
            self.screen.block(report.state.message)
        if report.refusal:
            self.screen.say(f"the answer decided nothing: {report.refusal}", "bold red")
        if report.approval is not None:
            self.screen.say("waits for this approval:")
            self.screen.show(approval_table(report.approval))
        self.screen.say(spent_line(report.state))

    def say_commands(self, commands: Sequence[str]) -> None:
        """Commands to be copied, one a line."""
        for command in commands:
            self.screen.say(f"  {command}", "cyan")
