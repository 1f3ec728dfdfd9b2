"""The layers hold, and the check that says so fails when they do not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("entrypoints", "graph", "models", "nodes", "policies", "sandbox", "src", "testing", "tests", "tools")
LINT_TIMEOUT_S = 60

ILLEGAL = [
    ("layers", "graph/state.py", "from agentic_loop.graph.errors import Misuse"),
    ("layers", "graph/routes.py", "from agentic_loop.graph.build import NODES"),
    ("layers", "graph/store/tasks.py", "from agentic_loop.tools.registry import ToolRegistry"),
    ("policies", "policies/budgets.py", "from agentic_loop.graph.ports import Clock"),
    ("policies", "policies/completion/refund.py", "from agentic_loop.tools.tool import ToolSpec"),
    ("nodes", "nodes/execute.py", "from agentic_loop.graph.store.ledger import PostgresLedger"),
    ("nodes", "nodes/decide.py", "from agentic_loop.models.chat_model import LangChainModel"),
    ("nodes", "nodes/execute.py", "from agentic_loop.tools.http import ServiceClient"),
    ("ports", "graph/store/ledger.py", "from agentic_loop.policies.authorisation import PolicySet"),
    ("ports", "tools/orders.py", "from agentic_loop.nodes.execute import execute"),
    ("sandbox", "sandbox/refunds.py", "from agentic_loop.graph.state import Value"),
    ("entrypoints", "graph/run.py", "from agentic_loop.entrypoints.app import PEOPLE"),
    ("tests", "testing/clock.py", "from tests.conftest import Sandbox"),
    ("testing", "models/pricing.py", "from agentic_loop.testing.clock import FakeClock"),
]
"""One import per rule that the rule forbids: which contract, in which file, what."""


def copied(into: Path) -> Path:
    """The project's code, links included, somewhere else."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, into / package, symlinks=True, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", into)
    return into


def linted(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What lint-imports says about the project in this folder."""
    command = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "NO_COLOR": "1"}
    return subprocess.run(
        [command, "--no-cache", *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LINT_TIMEOUT_S,
        check=False,
    )


def test_the_layers_hold(tmp_path: Path) -> None:
    report = linted(copied(tmp_path))
    assert report.returncode == 0, report.stdout
    assert "0 broken" in report.stdout


@pytest.mark.parametrize(("contract", "file", "line"), ILLEGAL)
def test_an_illegal_import_is_seen(tmp_path: Path, contract: str, file: str, line: str) -> None:
    project = copied(tmp_path)
    with (project / file).open("a") as source:
        source.write(f"\n\n{line}\n")
    report = linted(project, "--contract", contract)
    assert report.returncode != 0, f"{line} in {file} was not seen"
    assert "BROKEN" in report.stdout
    importer = "agentic_loop." + file.removesuffix(".py").replace("/", ".")
    assert importer in report.stdout
