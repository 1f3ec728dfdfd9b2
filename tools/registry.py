"""The tools that exist in a process: an allow-list by exact name.

Source: DESIGN §5.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.records import ToolShape

from .tool import ToolSpec


class ToolRegistry:
    """A closed set of tools, found by exact name and by nothing like it.

    Raises:
        Misuse: two tools have one name, or a tool is verified by a read that is not there.
    """

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        by_name: dict[str, ToolSpec] = {}
        for spec in specs:
            if spec.name in by_name:
                raise Misuse(f"two tools are named {spec.name!r}; give one of them another name")
            by_name[spec.name] = spec
        self._by_name: Mapping[str, ToolSpec] = MappingProxyType(by_name)
        self._shapes: Mapping[str, ToolShape] = MappingProxyType({name: spec.shape for name, spec in by_name.items()})
        self._check_verifications()

    def _check_verifications(self) -> None:
        for spec in self._by_name.values():
            if spec.verified_by is None:
                continue
            verifier = self._by_name.get(spec.verified_by)
            if verifier is None:
                hint = self._hint(spec.verified_by)
                raise Misuse(f"{spec.name} is verified by {spec.verified_by!r}, which is not registered{hint}")
            if verifier.effect != "read":
                raise Misuse(f"{spec.name} is verified by {spec.verified_by!r}, which is no read")

    @property
    def shapes(self) -> Mapping[str, ToolShape]:
        """What policies may know of each tool, by name."""
        return self._shapes

    def get(self, name: str) -> ToolSpec | None:
        """The tool of exactly this name, or None."""
        return self._by_name.get(name)

    def require(self, names: Iterable[str]) -> list[ToolSpec]:
        """The tools of these names, in their order.

        Raises:
            Misuse: some are not registered; the message names each and the nearest known one.
        """
        wanted = list(names)
        missing = [name for name in wanted if name not in self._by_name]
        if missing:
            listed = ", ".join(f"{name!r}{self._hint(name)}" for name in missing)
            known = ", ".join(sorted(self._by_name)) or "none"
            raise Misuse(f"no such tool: {listed}. Registered: {known}.")
        return [self._by_name[name] for name in wanted]

    def _hint(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._by_name, n=1)
        return f" (did you mean {near[0]!r}?)" if near else ""

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)
