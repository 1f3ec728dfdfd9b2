"""Style as a test: what reviewers would otherwise have to say again and again."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("entrypoints", "graph", "models", "nodes", "policies", "sandbox", "src", "testing", "tools")
MAX_FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef
Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def tracked(*folders: str) -> list[Path]:
    """The files that belong to the project: what git would commit, or everything where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listing.stdout.split("\0") if listing.returncode == 0 else map(str, ROOT.rglob("*"))
    files = (ROOT / name for name in names if name)
    chosen = [file for file in files if file.is_file() and not file.is_symlink() and ".venv" not in file.parts]
    return sorted(file for file in chosen if not folders or file.relative_to(ROOT).parts[0] in folders)


@cache
def sources(*folders: str) -> dict[str, ast.Module]:
    """The parsed Python files under these folders, by path."""
    files = [file for file in tracked(*folders) if file.suffix == ".py"]
    assert files, f"no Python files under {folders}"
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text("utf-8")) for file in files}


def texts() -> Iterator[tuple[str, str]]:
    """Every text file of the project with its content."""
    for file in tracked():
        try:
            yield file.relative_to(ROOT).as_posix(), file.read_text("utf-8")
        except UnicodeDecodeError:
            continue


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function in a syntax tree, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


# --- names ------------------------------------------------------------------------------------------------------

VAGUE = re.compile(r"util|helper|manager|common|misc", re.IGNORECASE)


def vague_names(path: str, tree: ast.Module) -> list[str]:
    """Modules, packages and classes whose name says nothing about what they are."""
    names = [*Path(path).parts[:-1], Path(path).stem]
    names += [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [name for name in names if VAGUE.search(name)]


UNIT_NOT_SHORT = re.compile(r"_(seconds|secs|sec|milliseconds|millis|msecs|minutes|hours|kilobytes|megabytes)$")
NEEDS_UNIT = re.compile(r"^(timeout|delay|duration|interval|deadline|ttl|elapsed|cost|price)$")
NUMBERS = {"int", "float", "Decimal"}


def names_without_unit(tree: ast.Module) -> list[str]:
    """Parameters and fields that hold a number of something without saying of what, or say it in another spelling.

    Units come last and are short: ``timeout_s``, ``active_ms``, ``cost_micro_usd``.
    """
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=kind) | ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                number = kind is not None and bool(NUMBERS & set(re.findall(r"\w+", ast.unparse(kind))))
                if UNIT_NOT_SHORT.search(name) or (number and NEEDS_UNIT.search(name.lower())):
                    found.append(name)
            case _:
                continue
    return found


def test_names_say_what_a_thing_is() -> None:
    vague = {path: vague_names(path, tree) for path, tree in sources(*PRODUCT, "tests").items()}
    assert {path: names for path, names in vague.items() if names} == {}


def test_numbers_have_their_unit_last() -> None:
    unclear = {path: names_without_unit(tree) for path, tree in sources(*PRODUCT).items()}
    assert {path: names for path, names in unclear.items() if names} == {}


# --- size and documentation -------------------------------------------------------------------------------------


def long_functions(tree: ast.Module) -> list[str]:
    """Functions that do not fit on a screen."""
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions(tree)}
    return [f"{name} has {length} lines" for name, length in lengths.items() if length >= MAX_FUNCTION_LINES]


def undocumented(tree: ast.Module) -> list[str]:
    """Public classes and functions, methods included, and the module itself, without a docstring."""
    missing = [] if ast.get_docstring(tree) else ["the module"]

    def visit(body: list[ast.stmt], owner: str) -> None:
        for node in body:
            if not isinstance(node, Named) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                missing.append(f"{owner}{node.name}")
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{node.name}.")

    visit(tree.body, "")
    return missing


def test_functions_fit_on_a_screen() -> None:
    found = {path: long_functions(tree) for path, tree in sources(*PRODUCT).items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_everything_public_is_documented() -> None:
    found = {path: undocumented(tree) for path, tree in sources(*PRODUCT).items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_node_says_what_it_reads_writes_and_does_outside() -> None:
    nodes = {Path(path).stem: tree for path, tree in sources("nodes").items()}
    silent: list[str] = []
    checked = 0
    for name, tree in nodes.items():
        for node in tree.body:
            if isinstance(node, ast.AsyncFunctionDef) and node.name == name:
                checked += 1
                said = ast.get_docstring(node) or ""
                silent += [f"{name}: {word}" for word in ("Reads:", "Writes:", "Effects:") if word not in said]
    assert silent == []
    assert checked == 12


# --- what does not belong in the tree ---------------------------------------------------------------------------

# Written so that this file does not contain what it looks for.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
ONE_MACHINE = re.compile(
    r"(?<![\w./<{-])/(?:" + "|".join(["work", "root", "tmp", "home/[a-z]{2,}", "Users/[a-z]{2,}"]) + r")/[\w.]"
)
REGISTRY = re.compile(r"(?:index-url|extra-index-url|find-links|registry)\s*[=:]\s*\w+://", re.IGNORECASE)
WITHOUT_CODE = re.compile(r"#\s*type:\s*ignore(?!\[[\w, -]+\])")
UNEXPLAINED = re.compile(r"#\s*type:\s*ignore(?!\[[\w, -]+\]\s+#\s*\S)")


def lines_with(pattern: re.Pattern[str], *, only: str = "", within: tuple[str, ...] = ()) -> list[str]:
    """The places in the project's files where a pattern occurs."""
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts()
        if path.endswith(only) and (not within or path.split("/")[0] in within)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def printing(tree: ast.Module) -> list[int]:
    """The lines on which something is printed past the console and the log."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


def test_nothing_is_left_unfinished() -> None:
    assert lines_with(UNFINISHED) == []


def test_nothing_depends_on_one_machine_or_one_registry() -> None:
    assert lines_with(ONE_MACHINE) == []
    assert lines_with(REGISTRY) == []


def test_an_ignored_type_error_has_a_code_and_in_the_product_a_reason() -> None:
    assert lines_with(WITHOUT_CODE, only=".py") == []
    assert lines_with(UNEXPLAINED, only=".py", within=PRODUCT) == []


def test_the_product_does_not_print() -> None:
    found = {path: printing(tree) for path, tree in sources(*PRODUCT).items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


# --- tests ------------------------------------------------------------------------------------------------------

CHECKS = re.compile(r"^_?(assert|check|expect|verify|refuse|raises|warns|fail|wait_for$|run_state_machine_as_test$)")

PASS_IF_NOTHING_IS_RAISED = {
    "test_any_text_is_judged",
    "test_any_arrangement_of_digits_and_marks_is_judged",
}
"""Tests whose whole statement is that arbitrary input raises nothing."""


def checks_something(node: ast.AST) -> bool:
    """Whether a piece of code can fail: an assert, ``raises``, a bounded wait, or a call named as a check."""
    for inner in ast.walk(node):
        match inner:
            case ast.Assert() | ast.Raise():
                return True
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if CHECKS.match(name):
                return True
            case _:
                continue
    return False


def checking_functions(tree: ast.Module) -> set[str]:
    """The functions of a file that can fail."""
    return {node.name for node in functions(tree) if checks_something(node)}


def toothless_tests(tree: ast.Module, elsewhere: frozenset[str] = frozenset()) -> list[str]:
    """Tests that cannot fail; calling a function that checks, of the same file or elsewhere, counts as a check."""
    here = checking_functions(tree)
    found: list[str] = []
    for node in functions(tree):
        if not node.name.startswith("test_") or node.name in here | PASS_IF_NOTHING_IS_RAISED:
            continue
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        if not names & (here | elsewhere):
            found.append(node.name)
    return found


def test_every_test_can_fail() -> None:
    trees = sources("tests")
    shared = [tree for path, tree in trees.items() if not Path(path).name.startswith("test_")]
    elsewhere = frozenset(name for tree in shared for name in checking_functions(tree))
    found = {path: toothless_tests(tree, elsewhere) for path, tree in trees.items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {file.parent for file in tracked("tests") if file.suffix == ".py"}
    assert [folder.name for folder in folders if not (folder / "__init__.py").exists()] == []


# --- the checks themselves --------------------------------------------------------------------------------------


def parsed(text: str) -> ast.Module:
    """A piece of Python."""
    return ast.parse(text)


def test_the_checks_see_what_they_forbid() -> None:
    assert vague_names("tools/http_utils.py", parsed("class PoolManager: ...")) == ["http_utils", "PoolManager"]
    assert names_without_unit(parsed("def f(timeout: float, wait_seconds: int | None): ...")) == [
        "timeout",
        "wait_seconds",
    ]
    assert names_without_unit(parsed("class A:\n    cost: int\n    active_ms: int")) == ["cost"]
    assert long_functions(parsed("def f():\n" + "    x = 1\n" * 59)) == ["f has 60 lines"]
    assert undocumented(parsed("class A:\n    '''Doc.'''\n    def b(self): ...")) == ["the module", "A.b"]
    assert printing(parsed("x = 1\nprint(x)")) == [2]
    assert toothless_tests(parsed("def test_a():\n    f()\n\ndef f(): ...")) == ["test_a"]


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (UNFINISHED, "# TO" + "DO: later"),
        (ONE_MACHINE, 'open("/ho' + 'me/ravi/x")'),
        (ONE_MACHINE, "cd /wo" + "rk/main"),
        (REGISTRY, "extra-index" + "-url = https://packages.example/simple"),
        (WITHOUT_CODE, "x = y  # type" + ": ignore"),
        (UNEXPLAINED, "x = y  # type" + ": ignore"),
        (UNEXPLAINED, "x = y  # type" + ": ignore[arg-type]"),
    ],
)
def test_the_patterns_see_what_they_forbid(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (ONE_MACHINE, "GET /orders/8472"),
        (ONE_MACHINE, "docs/work/plan.md"),
        (REGISTRY, "registry: ToolRegistry"),
        (UNEXPLAINED, "x = y  # type" + ": ignore[arg-type]  # the stub is wrong"),
    ],
)
def test_the_patterns_let_the_rest_pass(pattern: re.Pattern[str], line: str) -> None:
    assert not pattern.search(line)
