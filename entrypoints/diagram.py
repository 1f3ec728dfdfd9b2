"""Draws the compiled graph into the docs, so that the picture is the program: ``make diagram``.

Source: DESIGN §2 (the drawing is generated from the compiled graph, and a test keeps them equal).
"""

import inspect
import sys
from pathlib import Path
from typing import cast

from langgraph.graph import END, START

from agentic_loop.graph.build import NODES, LoopGraph, build_graph
from agentic_loop.graph.definition import Ports
from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.loops.refund import refund_loop
from agentic_loop.graph.routes import ROUTERS
from agentic_loop.graph.system import RandomIds, SystemClock
from agentic_loop.tools.http import ServiceUrls

NAMES_OF_ENDS = {START: "START", END: "END"}
"""How the two ends of a run are written in the drawing."""


def compiled() -> LoopGraph:
    """The graph as it is compiled for the refund loop; every loop has the same nodes and edges."""
    nowhere = ServiceUrls.all_at("http://127.0.0.1")
    # Drawing runs no node, so that no port is ever reached.
    return build_graph(refund_loop(nowhere, ids=RandomIds(0), clock=SystemClock()), cast(Ports, None))


def edges(graph: LoopGraph) -> list[tuple[str, str]]:
    """Every edge of a compiled graph as (from, to), in the order of the steps."""
    order = {name: place for place, name in enumerate([START, *NODES, END])}
    found = {(edge.source, edge.target) for edge in graph.get_graph().edges}
    return sorted(found, key=lambda edge: (order[edge[0]], order[edge[1]]))


def mermaid(graph: LoopGraph) -> str:
    """The graph as a Mermaid flowchart; the same graph gives the same text."""
    drawn = [f"    {_shown(source)} --> {_shown(target)}" for source, target in edges(graph)]
    return "\n".join(["```mermaid", "flowchart TD", *drawn, "```"])


def steps() -> str:
    """A Markdown table of the nodes: what each does, and where it leads, in the words of their docstrings."""
    rows = [f"| `{name}` | {_summary(node)} | {_summary(ROUTERS[name])} |" for name, node in NODES.items()]
    return "\n".join(["| Node | What it does | Where it leads |", "|---|---|---|", *rows])


def drawn_into(text: str) -> str:
    """A document with the drawing and the table put between their markers.

    The markers are HTML comments, ``<!-- diagram -->`` to ``<!-- /diagram -->`` and the same with ``steps``.

    Raises:
        Misuse: a marker is missing.
    """
    parts = {"diagram": mermaid(compiled()), "steps": steps()}
    for name, content in parts.items():
        opening, closing = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, opened, rest = text.partition(opening)
        _, closed, after = rest.partition(closing)
        if not opened or not closed:
            raise Misuse(f"the document needs the lines {opening.strip()} and {closing} around the place to draw")
        text = f"{before}{opening}{content}\n{closing}{after}"
    return text


def main(arguments: list[str] | None = None) -> int:
    """Draw into the document that the only argument names; 0 when it was written, 2 when it could not be."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        sys.stderr.write("name the document to draw into, such as docs/loop.md\n")
        return 2
    document = Path(given[0])
    try:
        document.write_text(drawn_into(document.read_text("utf-8")), "utf-8")
    except (Misuse, OSError) as error:
        sys.stderr.write(f"{document}: {error}\n")
        return 2
    return 0


def _shown(node: str) -> str:
    return NAMES_OF_ENDS.get(node, node)


def _summary(documented: object) -> str:
    return (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
