"""The guide to a loop of one's own, followed to the letter: every block is written to its file or run, in order."""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import DatabaseMaker
from tests.examples.processes import ROOT, environment

GUIDE = ROOT / "docs" / "your-own-loop.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_LINE = re.compile(r"(?:#|//) file: ([\w.]+)\n")
RUN_TIMEOUT_S = 100.0


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def file(self) -> str | None:
        named = FILE_LINE.match(self.text)
        return named.group(1) if named else None


def blocks() -> list[Block]:
    return [Block(language, text) for language, text in BLOCK.findall(GUIDE.read_text("utf-8"))]


def run(command: str, folder: Path, database_url: str) -> str:
    program, *arguments = shlex.split(command)
    assert program == "python", "the guide runs Python only"
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        # A newcomer has pytest alone, without the plugins that this project's own tests use.
        env=environment(DATABASE_URL=database_url, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_guide_can_be_followed_from_an_empty_folder(tmp_path: Path, make_database: DatabaseMaker) -> None:
    database_url = make_database()
    printed, commands = "", []
    for block in blocks():
        match block.language:
            case "python" | "cedar":
                assert block.file is not None, f"a block without a file name:\n{block.text}"
                (tmp_path / block.file).write_text(block.text, "utf-8")
            case "sh":
                for command in block.text.splitlines():
                    printed = run(command, tmp_path, database_url)
                    commands.append(command)
            case "text":
                assert printed == block.text, f"{commands[-1]} prints something else than the guide says"
            case _:
                pytest.fail(f"a block of a kind that nobody runs: {block.language!r}")
    assert commands == ["python run.py", "python run.py", "python -m pytest -q test_heating.py"]
    assert "4 passed" in printed
