"""The picture in the docs is the compiled graph."""

import re
from pathlib import Path

import pytest

from agentic_loop.entrypoints.diagram import compiled, drawn_into, edges, main, mermaid
from agentic_loop.graph.build import NODES
from agentic_loop.graph.errors import Misuse

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "loop.md"


def test_the_drawing_in_the_docs_is_the_compiled_graph() -> None:
    written = DOCUMENT.read_text("utf-8")
    assert written == drawn_into(written), "docs/loop.md is out of date: run make diagram"


def test_every_edge_of_the_graph_is_drawn_once() -> None:
    drawn = re.findall(r"^    (\w+) --> (\w+)$", mermaid(compiled()), re.MULTILINE)
    names = {"__start__": "START", "__end__": "END"}
    assert drawn == [(names.get(source, source), names.get(target, target)) for source, target in edges(compiled())]
    assert len(drawn) == len(set(drawn))
    assert {name for edge in drawn for name in edge} == {*NODES, "START", "END"}


def test_the_same_graph_is_drawn_the_same_way() -> None:
    assert mermaid(compiled()) == mermaid(compiled())


def test_a_stale_drawing_is_replaced(tmp_path: Path) -> None:
    stale = tmp_path / "loop.md"
    written = DOCUMENT.read_text("utf-8")
    stale.write_text(written.replace("    finish --> END\n", "").replace("`observe` |", "`look` |"), "utf-8")
    assert stale.read_text("utf-8") != written
    assert main([str(stale)]) == 0
    assert stale.read_text("utf-8") == written


def test_a_document_without_a_place_to_draw_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tmp_path / "plain.md"
    plain.write_text("no markers here\n", "utf-8")
    with pytest.raises(Misuse, match="<!-- diagram -->"):
        drawn_into("no markers here\n")
    assert main([str(plain)]) == 2
    assert main([str(tmp_path / "absent.md")]) == 2
    assert main([]) == 2
    assert plain.read_text("utf-8") == "no markers here\n"
    assert "<!-- diagram -->" in capsys.readouterr().err
