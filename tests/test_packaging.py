"""What is installed is the whole project, and what it needs is what it declares."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from setuptools import find_packages

from tests.test_layers import copied

ROOT = Path(__file__).resolve().parent.parent
FACE = ROOT / "src" / "agentic_loop"
BUILD_TIMEOUT_S = 100

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

COMES_WITH = {"psycopg_pool": "psycopg", "pydantic_core": "pydantic"}
"""Modules that come with a declared dependency under a name of their own."""

IMPORTS_EVERYTHING = """
import importlib, json, pkgutil, sys
from importlib.resources import files
import agentic_loop
from agentic_loop import PolicySet, define_loop
names = [found.name for found in pkgutil.walk_packages(agentic_loop.__path__, "agentic_loop.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
from agentic_loop.graph.loops.refund import refund_loop
from agentic_loop.graph.system import RandomIds, SystemClock
from agentic_loop.tools.http import ServiceUrls
loop = refund_loop(ServiceUrls.all_at("http://127.0.0.1"), ids=RandomIds(0), clock=SystemClock())
migrations = [file.name for file in files("agentic_loop.graph.store.migrations").iterdir()]
sys.stdout.write(json.dumps({
    "from": agentic_loop.__file__, "modules": names, "loop": loop.contract.name, "migrations": migrations,
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a wheel, built from a copy of the tree."""
    project = copied(tmp_path_factory.mktemp("project"))
    for name in ("README.md", "LICENSE"):
        (project / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-index", "--wheel-dir", str(built), str(project)],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [file] = built.glob("agentic_loop-*.whl")
    return file


def test_the_list_of_packages_is_complete() -> None:
    found = {f"agentic_loop.{name}" for name in find_packages(str(FACE))}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == {"agentic_loop", *found}


def test_every_package_is_mapped_to_its_folder() -> None:
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    assert set(folders) == set(PROJECT["tool"]["setuptools"]["packages"])
    assert [name for name, folder in folders.items() if not (ROOT / folder / "__init__.py").is_file()] == []


def test_every_link_leads_to_its_folder() -> None:
    links = {entry.name: entry for entry in FACE.iterdir() if entry.is_symlink()}
    folders = {name.split(".")[1] for name in PROJECT["tool"]["setuptools"]["packages"] if "." in name}
    assert set(links) == folders
    for name, link in links.items():
        assert not link.readlink().is_absolute()
        assert link.resolve() == ROOT / name


def test_tools_that_must_not_see_the_code_twice_know_every_link() -> None:
    folders = {entry.name for entry in FACE.iterdir() if entry.is_symlink()}
    assert set(PROJECT["tool"]["ruff"]["extend-exclude"]) == {f"src/agentic_loop/{name}" for name in folders}
    excluded = re.compile(PROJECT["tool"]["mypy"]["exclude"])
    assert [name for name in folders if not excluded.search(f"{name}/module.py")] == []


def test_a_wheel_holds_everything_that_is_not_code(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    suffixes = (".cedar", ".cedarschema", ".sql", ".json", ".typed")
    data = [file for file in FACE.iterdir() if file.suffix in suffixes]
    for link in (entry for entry in FACE.iterdir() if entry.is_symlink()):
        data += [
            link / file.relative_to(link.resolve()) for file in link.resolve().rglob("*") if file.suffix in suffixes
        ]
    expected = {file.relative_to(FACE.parent).as_posix() for file in data}
    assert {"agentic_loop/py.typed", "agentic_loop/policies/refund.cedar"} <= expected
    assert expected <= inside


def test_a_wheel_holds_nothing_of_other_names(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"agentic_loop", f"agentic_loop-{PROJECT['project']['version']}.dist-info"}


def test_an_installed_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_EVERYTHING],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert Path(said["from"]).is_relative_to(site)
    assert said["loop"] == "refund"
    assert "0001_initial.sql" in said["migrations"]
    assert set(PROJECT["tool"]["setuptools"]["packages"]) <= {"agentic_loop", *said["modules"]}


def test_the_version_is_in_the_changelog_and_pinned_versions_are_exact() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"## [{PROJECT['project']['version']}]" in changelog
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.+!]+( ; .+)?", pin)] == []


def test_everything_declared_is_pinned() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    declared = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    pinned = {canonical(line) for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()}
    assert [line for line in declared if canonical(line) not in pinned] == []


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    declared = {canonical(line) for line in PROJECT["project"]["dependencies"]}
    providers = packages_distributions()
    undeclared: set[str] = set()
    used: set[str] = set()
    for module in imported_modules():
        distributions = {canonical(name) for name in providers.get(COMES_WITH.get(module, module), [])}
        used |= distributions
        if not distributions & declared:
            undeclared.add(module)
    assert undeclared == set()
    assert declared - used == set()


def canonical(requirement: str) -> str:
    """The name in a requirement, spelt as registries compare names."""
    named = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", named[0]).lower() if named else ""


def imported_modules() -> set[str]:
    """The top-level modules of others that the product imports."""
    found: set[str] = set()
    packages = [ROOT / folder for folder in PROJECT["tool"]["setuptools"]["package-dir"].values()]
    for file in (file for package in packages for file in package.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            match node:
                case ast.Import(names=names):
                    found |= {alias.name.split(".")[0] for alias in names}
                case ast.ImportFrom(module=str(module), level=0):
                    found.add(module.split(".")[0])
                case _:
                    continue
    return found - set(sys.stdlib_module_names) - {"agentic_loop"}
