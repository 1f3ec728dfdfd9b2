"""Programs of the project run as people run them: processes of their own, whose whole group is ended in any case."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
MAX_OUTPUT_BYTES = 1_000_000

_NOT_INHERITED = ("AGENTIC_LOOP_", "OPENAI_", "LANGSMITH_", "LANGCHAIN_", "DATABASE_URL")


def environment(**settings: str) -> dict[str, str]:
    """This process's environment with these settings and none of the developer's own; warnings are errors."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    return {**inherited, "PYTHONWARNINGS": "error", "NO_COLOR": "1", "LANGSMITH_TRACING": "false", **settings}


def run_example(name: str, *arguments: str, settings: Mapping[str, str]) -> str:
    """Run an example to its end and return what it printed; anything on standard error is a failure."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        env=environment(**settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


@contextmanager
def serving(
    command: Sequence[str], *, settings: Mapping[str, str], announces: str, output: Path, cwd: Path = ROOT
) -> Iterator[str]:
    """Run a server until the end of the block; gives the first group of the ``announces`` pattern in its output.

    All that it prints is in the file ``output`` afterwards.
    """
    with output.open("wb") as sink:
        child = subprocess.Popen(
            list(command),
            env=environment(**settings),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield _announced(child, re.compile(announces), output)
        finally:
            _end_group(child)


def _announced(child: "subprocess.Popen[bytes]", pattern: "re.Pattern[str]", output: Path) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        printed = output.read_bytes()[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
        if (found := pattern.search(printed)) is not None:
            return found.group(1)
        if child.poll() is not None:
            break
        select.select([], [], [], 0.05)
    raise AssertionError(f"the server did not come up:\n{output.read_text('utf-8', 'replace')[-4_000:]}")


def _end_group(child: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):  # whatever is left of the group
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(STOP_TIMEOUT_S)
