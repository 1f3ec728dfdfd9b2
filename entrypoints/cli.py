"""The command line, ``agentic-loop``: what can be asked for, and how.

What the commands do is in ``commands.py`` and ``demo.py``. Those are imported when a command runs, so that ``--help``
and ``--version`` answer at once.

Source: DESIGN §1 (who uses it).
"""

import sys
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal_view import Screen

if TYPE_CHECKING:
    from agentic_loop.graph.state import Status

    from .session import Session

EXIT_MISUSE = 2
EXIT_INTERRUPTED = 130

EXIT_CODES = """Exit codes of commands that run a task:
 0  SUCCEEDED
 1  doctor found something, or a fault of agentic-loop itself
 2  misuse: the message says what to do instead
 3  AWAITING_APPROVAL: a person has to answer (inbox)
 4  NEEDS_INPUT: resume with --input
 5  DENIED by policy
 6  BUDGET_EXHAUSTED: steps, tokens, cost or time
 7  NO_PROGRESS
 8  FAILED, or something that is needed is not there
 9  waiting to look again: continue it later
130 interrupted: continue runs the task on
Commands that only look (show, trace, packet, tasks, inbox) exit with 0."""

app = typer.Typer(
    name="agentic-loop",
    help="Lets an unreliable model drive real side effects: bounded, authorised, approved, exactly once, on record.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]
As = Annotated[str, typer.Option("--as", metavar="WHO", help="Who acts.")]
Task = Annotated[str, typer.Argument(metavar="TASK", help="The task's id; agentic-loop tasks lists them.")]
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id; agentic-loop inbox lists them.")]
Input = Annotated[list[str] | None, typer.Option("--input", metavar="NAME=VALUE", help="An input; repeatable.")]
Message = Annotated[str, typer.Option("--message", help="What to say with the answer; the model reads it.")]
Model = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="openai:NAME or rehearsal; else AGENTIC_LOOP_MODEL.")
]


def main() -> None:
    """Run the command line and leave with its exit code."""
    as_json = "--json" in sys.argv
    try:
        code = app(standalone_mode=False, prog_name="agentic-loop")
    except _USAGE_ERROR as error:
        said = getattr(error, "format_message", error.__str__)()
        words = f"{' '.join(str(said).split())} Run agentic-loop --help, or agentic-loop COMMAND --help."
        Screen(as_json=as_json).fail("misuse", words)
        code = EXIT_MISUSE
    except typer.Abort:
        Screen(as_json=as_json).fail("interrupted", "interrupted; what was acknowledged is on record")
        code = EXIT_INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


# typer gives no name of its own to what all its complaints about a command line have in common.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


def _session(context: typer.Context, *, as_json: bool = False, demo: bool = False) -> "Session":
    from .session import Session

    return Session(Screen(as_json=as_json), demo=demo or bool(context.obj))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentic-loop {installed_version('agentic-loop')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    demo: Annotated[bool, typer.Option("--demo", help="Look at the demo's database.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = demo


# --- commands that run a task -----------------------------------------------------------------------------------


@app.command()
def demo(
    context: typer.Context,
    loop: Annotated[str, typer.Argument(metavar="[refund]", help="Which demo.")] = "refund",
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
    model: Model = None,
    who: As = "ravi",
    approver: Annotated[str, typer.Option("--approver", metavar="WHO", help="Who approves.")] = "asha",
    keep_sandbox: Annotated[bool, typer.Option("--keep-sandbox", help="Leave the services up until Ctrl-C.")] = False,
) -> int:
    """Resolve order 8472 from complaint to refund, with its own database and services, made anew."""
    if loop != "refund":
        raise typer.BadParameter(f"there is no demo {loop!r}; there is: refund.")
    from .demo import DemoOptions, run_demo

    options = DemoOptions(requester=who, approver=approver, model=model, yes=yes, keep_sandbox=keep_sandbox)
    return run_demo(_session(context, demo=True), options)


@app.command()
def start(
    context: typer.Context,
    loop: Annotated[str, typer.Argument(metavar="LOOP", help="Which loop, such as refund.")],
    goal: Annotated[str, typer.Option("--goal", help="What is to be achieved.")] = "",
    inputs: Input = None,
    model: Model = None,
    who: As = "ravi",
    task_id: Annotated[str | None, typer.Option("--task-id", help="The id to give the task.")] = None,
    as_json: Json = False,
) -> int:
    """Start a task and run it until it ends, waits for an approval, or sleeps."""
    from . import commands

    session = _session(context, as_json=as_json)
    return commands.start(session, loop, goal=goal, inputs=inputs or [], model=model, who=who, task_id=task_id)


@app.command()
def approve(
    context: typer.Context, approval_id: ApprovalId, who: As, message: Message = "", as_json: Json = False
) -> int:
    """Approve exactly the action that was asked about, and run its task on."""
    from . import commands

    return commands.answer(_session(context, as_json=as_json), "approve", approval_id, who=who, message=message)


@app.command()
def reject(
    context: typer.Context, approval_id: ApprovalId, who: As, message: Message = "", as_json: Json = False
) -> int:
    """Reject the action; the task goes on without it."""
    from . import commands

    return commands.answer(_session(context, as_json=as_json), "reject", approval_id, who=who, message=message)


@app.command()
def edit(
    context: typer.Context,
    approval_id: ApprovalId,
    who: As,
    changes: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="An argument to change, its value as JSON; repeatable."),
    ] = None,
    message: Message = "",
    as_json: Json = False,
) -> int:
    """Approve a changed action instead; it is judged by the policy anew."""
    from . import commands

    session = _session(context, as_json=as_json)
    return commands.edit(session, approval_id, who=who, message=message, changes=changes or [])


@app.command()
def resume(
    context: typer.Context,
    task_id: Task,
    who: As,
    inputs: Input = None,
    add_steps: Annotated[int, typer.Option("--add-steps", min=0, help="More steps.")] = 0,
    add_tokens: Annotated[int, typer.Option("--add-tokens", min=0, help="More tokens.")] = 0,
    add_cost_micro_usd: Annotated[
        int, typer.Option("--add-cost-micro-usd", min=0, help="More cost, in micro-USD.")
    ] = 0,
    add_active_s: Annotated[int, typer.Option("--add-active-s", min=0, help="More active time, in seconds.")] = 0,
    as_json: Json = False,
) -> int:
    """Go on with an ended task, with new inputs or extra limits; a success is final."""
    from agentic_loop.graph.state import Resumption

    from . import commands

    more = Resumption(
        add_steps=add_steps,
        add_tokens=add_tokens,
        add_cost_micro_usd=add_cost_micro_usd,
        add_active_s=add_active_s,
    )
    return commands.resume(_session(context, as_json=as_json), task_id, who=who, inputs=inputs or [], more=more)


@app.command()
def revise(
    context: typer.Context,
    task_id: Task,
    who: As,
    goal: Annotated[str, typer.Option("--goal", help="Another goal; else the same.")] = "",
    inputs: Input = None,
    as_json: Json = False,
) -> int:
    """Start a new task in place of an ended one, with another goal or other inputs."""
    from . import commands

    return commands.revise(_session(context, as_json=as_json), task_id, who=who, goal=goal, inputs=inputs or [])


@app.command("continue")
def continue_task(context: typer.Context, task_id: Task, as_json: Json = False) -> int:
    """Run on a task that was interrupted, or whose time to look again has come."""
    from . import commands

    return commands.proceed(_session(context, as_json=as_json), task_id)


# --- commands that look -----------------------------------------------------------------------------------------


@app.command()
def inbox(
    context: typer.Context,
    who: Annotated[str | None, typer.Option("--as", metavar="WHO", help="Whose inbox; else everybody's.")] = None,
    as_json: Json = False,
) -> int:
    """List the approvals that wait, each with exactly what would be approved."""
    from . import commands

    return commands.inbox(_session(context, as_json=as_json), who)


@app.command()
def show(context: typer.Context, task_id: Task, as_json: Json = False) -> int:
    """Show where a task stands, what it spent, and what may be done next."""
    from . import commands

    return commands.show(_session(context, as_json=as_json), task_id)


@app.command()
def trace(context: typer.Context, task_id: Task, as_json: Json = False) -> int:
    """Show what happened, step by step: proposals, what each gate said, observations, cost and time."""
    from . import commands

    return commands.trace(_session(context, as_json=as_json), task_id)


@app.command()
def packet(
    context: typer.Context,
    task_id: Task,
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown, which is the default.")] = False,
    as_json: Json = False,
) -> int:
    """Show the escalation packet of a task that did not succeed: what it did, and what is safe to do now."""
    from . import commands

    return commands.packet(_session(context, as_json=as_json), task_id, markdown=markdown)


@app.command()
def tasks(
    context: typer.Context,
    status: Annotated[str | None, typer.Option("--status", help="Only tasks of this status.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="How many at most.")] = 100,
    as_json: Json = False,
) -> int:
    """List the tasks, the newest first."""
    from . import commands

    return commands.tasks(_session(context, as_json=as_json), _status(status), limit)


def _status(given: str | None) -> "Status | None":
    from typing import get_args

    from agentic_loop.graph.state import Status

    for status in get_args(Status):
        if given is not None and given.upper() == status:
            return status  # type: ignore[no-any-return]  # get_args forgets what it was given
    if given is not None:
        raise typer.BadParameter(f"--status takes one of {', '.join(get_args(Status))}, not {given!r}.")
    return None


@app.command()
def close(
    context: typer.Context,
    task_id: Task,
    who: As,
    note: Annotated[str, typer.Option("--note", help="What a person did about it.")],
    as_json: Json = False,
) -> int:
    """Mark an ended task as dealt with by a person."""
    from . import commands

    return commands.close(_session(context, as_json=as_json), task_id, who=who, note=note)


# --- the machine ------------------------------------------------------------------------------------------------


@app.command()
def sandbox(
    context: typer.Context,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0 takes any free port.")] = 8472,
    reset: Annotated[bool, typer.Option("--reset", help="Put the world back as on its first day.")] = False,
) -> int:
    """Run the services that the loops act on, until Ctrl-C: orders, refunds, policy, notifications."""
    from .sandbox_command import run_sandbox

    return run_sandbox(_session(context), port=port, reset=reset)


@app.command()
def doctor(context: typer.Context, as_json: Json = False) -> int:
    """Say whether this machine can run tasks, and what to do if not."""
    from . import commands

    return commands.doctor(_session(context, as_json=as_json))


if __name__ == "__main__":
    main()
