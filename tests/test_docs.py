"""What the docs say is so: commands parse, links resolve, settings exist, examples run."""

import ast
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import typer.main

from agentic_loop.entrypoints import cli
from agentic_loop.entrypoints.diagram import compiled, edges
from agentic_loop.graph.build import NODES
from agentic_loop.policies.stopping import STATUS_OF
from agentic_loop.tools.http import ServiceUrls
from tests.conftest import DatabaseMaker

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRODUCT = ("entrypoints", "graph", "models", "nodes", "policies", "sandbox", "src", "testing", "tools")
RUN_TIMEOUT_S = 60

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"\b(?:AGENTIC_LOOP_[A-Z_]+[A-Z]|OPENAI_[A-Z_]+[A-Z]|DATABASE_URL)\b")


def named(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def shown_commands(text: str) -> list[str]:
    """Every ``agentic-loop …`` command of a document: console lines, and inline code."""
    lines = [
        line
        for language, block in FENCE.findall(text)
        if language in ("console", "sh")
        for line in block.splitlines()
    ]
    commands = [line.removeprefix("$ ").strip() for line in lines]
    commands += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return [command for command in commands if re.match(r"agentic-loop( |$)", command)]


def check_parses(command: str) -> None:
    """Parse a command line as ``agentic-loop`` would, without running it.

    Raises:
        Exception: the command line is refused; the message says why.
    """
    words = shlex.split(command, comments=True)[1:]
    group = typer.main.get_command(cli.app)
    if not words:
        return
    assert isinstance(group, typer.core.TyperGroup)
    context = group.make_context("agentic-loop", [*words], resilient_parsing=False)
    name, subcommand, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    assert subcommand is not None
    subcommand.make_context(name, rest, parent=context)


COMMANDS = [(named(document), command) for document in DOCUMENTS for command in shown_commands(document.read_text())]


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_every_command_shown_parses(document: str, command: str) -> None:
    check_parses(command)


def test_a_command_that_does_not_exist_is_seen() -> None:
    assert len(COMMANDS) > 10
    for wrong in ("agentic-loop begin refund", "agentic-loop approve", "agentic-loop start refund --gaol x"):
        with pytest.raises(Exception, match=r"(?i)no such|missing"):
            check_parses(wrong)


def test_every_make_target_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    texts = " ".join(document.read_text("utf-8") for document in DOCUMENTS)
    shown = set(re.findall(r"(?:`|\$ )make ([a-z]+)", texts))
    assert {"demo", "test", "help", "studio", "diagram"} <= shown
    assert shown <= targets


# --- links ------------------------------------------------------------------------------------------------------


def anchors(document: Path) -> set[str]:
    """The anchors that a Markdown file offers: its headings, as web pages spell them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    """The relative links of a Markdown file that lead nowhere."""
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", document.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=named)
def test_every_link_resolves(document: Path) -> None:
    assert broken_links(document) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# A heading\n[b](b.md) [here](#a-heading) [there](#nowhere) [web](https://example.org)\n")
    assert broken_links(document) == ["b.md", "#nowhere"]


def test_every_guide_is_reachable_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#\s]+\.md)", (ROOT / "README.md").read_text("utf-8")))
    assert {named(document) for document in DOCUMENTS if document.parent.name == "docs"} == linked


def test_every_path_named_in_a_table_exists() -> None:
    for document in DOCUMENTS:
        text = FENCE.sub("", document.read_text("utf-8"))
        paths = re.findall(
            r"`((?:docs|examples|graph|nodes|policies|tests|tools|entrypoints|sandbox)/[\w./-]*)`", text
        )
        assert [path for path in paths if not (ROOT / path).exists()] == [], named(document)


# --- settings and tables ----------------------------------------------------------------------------------------


@cache
def settings_in_code() -> set[str]:
    """Every environment variable that the code reads, by the strings in it (docstrings are not settings)."""
    found: set[str] = set()
    for file in (file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and SETTING.fullmatch(node.value):
                found.add(node.value)
    return found | {f"AGENTIC_LOOP_{field.name.upper()}_URL" for field in fields(ServiceUrls)}


def test_every_setting_of_the_code_is_in_the_readme_and_the_other_way_round() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    table = readme.partition("## Settings")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert set(SETTING.findall(" ".join(rows))) == settings_in_code()


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_no_document_names_a_setting_that_does_not_exist(document: Path) -> None:
    assert set(SETTING.findall(document.read_text("utf-8"))) <= settings_in_code()


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    listed = dict(re.findall(r"^ *(\d+) +([A-Z_]{4,})?", cli.EXIT_CODES, re.MULTILINE))
    rows = re.findall(r"^\| (\d+) \| (?:`([A-Z_]+)`)?", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert dict(rows) == listed


def test_the_endings_in_the_docs_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "loop.md").read_text("utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+) \| (\d) \|$", text, re.MULTILINE)
    written = {reason: status for status, reasons, _ in rows for reason in re.findall(r"`(\w+)`", reasons)}
    assert written == dict(STATUS_OF)
    codes = dict(re.findall(r"^ *(\d+) +([A-Z_]{4,})", cli.EXIT_CODES, re.MULTILINE))
    assert {code: status for status, _, code in rows}.items() <= codes.items()


def test_the_picture_in_the_readme_has_no_edge_that_the_graph_has_not() -> None:
    [picture] = [
        block for language, block in FENCE.findall((ROOT / "README.md").read_text("utf-8")) if language == "mermaid"
    ]
    drawn = re.findall(r"(\w+) --> (\w+)", picture)
    assert {name for edge in drawn for name in edge} == set(NODES)
    assert set(drawn) <= set(edges(compiled()))


# --- code -------------------------------------------------------------------------------------------------------

BLOCKS = [
    (named(document), language, block)
    for document in DOCUMENTS
    for language, block in FENCE.findall(document.read_text("utf-8"))
    if language.startswith("python")
]


@pytest.mark.parametrize(("document", "language", "block"), BLOCKS)
def test_python_in_the_docs_is_python(document: str, language: str, block: str) -> None:
    compile(block, document, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert language in ("python", "python runnable")


def test_what_is_marked_as_runnable_runs(make_database: DatabaseMaker, tmp_path: Path) -> None:
    runnable = [(document, block) for document, language, block in BLOCKS if language == "python runnable"]
    assert runnable != []
    for document, block in runnable:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block],
            cwd=tmp_path,
            env={**os.environ, "DATABASE_URL": make_database()},
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"`{done.stdout.strip()}`" in (ROOT / document).read_text("utf-8")
