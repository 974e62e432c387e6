"""What the specs say about visibility, text, tools and disclosure, written down as plainly as possible.

Nothing here is fast, cached or shared with the library: `test_model.py` compares the two on random trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Path = tuple[str, ...]
FULL, SUMMARY = "full", "summary"


@dataclass(frozen=True)
class Shape:
    """A section as drawn: `visibility` and `enabled` name a constant or what decides (see `build` in the test)."""

    key: str
    visibility: str = "full"
    enabled: str = "always"
    tools: tuple[str, ...] = ()
    summary: bool = True
    suffix: bool = False
    heading: bool = True
    children: tuple[Shape, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """What callbacks look at: the bound params, and whether the session holds an event."""

    on: bool
    poked: bool = False

    def answer(self, word: str) -> bool:
        """Whether a section whose `enabled` or `visibility` is this word is there, or in full."""
        if word in ("params", "method"):
            return self.on
        return self.poked if word == "session" else word in ("always", "full")


@dataclass
class Node:
    shape: Shape
    path: Path

    @property
    def key(self) -> str:
        return ".".join(self.path)


@dataclass
class Model:
    """A template with the visibility that a run began with, and the session's overrides in the order they were made."""

    shapes: tuple[Shape, ...]
    strategy: str
    inputs: Inputs
    caller: dict[Path, str] = field(default_factory=dict)
    overrides: dict[Path, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    keyed: bool = False

    def __post_init__(self) -> None:
        self.nodes = list(_walk(self.shapes, ()))

    def node(self, path: Path) -> Node:
        return next(node for node in self.nodes if node.path == path)

    def find(self, key: str) -> Node | None:
        return next((node for node in self.nodes if node.key == key and self.exists(node)), None)

    def chain(self, node: Node) -> list[Node]:
        """The section and all above it, outermost first."""
        return [self.node(node.path[:length]) for length in range(1, len(node.path) + 1)]

    def below(self, node: Node) -> list[Node]:
        """The section and all enabled descendants, in document order."""
        size = len(node.path)
        return [other for other in self.nodes if other.path[:size] == node.path and self.exists(other)]

    def exists(self, node: Node) -> bool:
        return all(self.inputs.answer(up.shape.enabled) for up in self.chain(node))

    def base(self, node: Node) -> str:
        """Before the session: the caller's override, else what was declared."""
        declared = FULL if self.inputs.answer(node.shape.visibility) else SUMMARY
        return _with_ancestors(self.caller).get(node.path, declared)

    def visibility(self, node: Node) -> str:
        return _with_ancestors(self.overrides).get(node.path, self.base(node))

    def is_open(self, node: Node) -> bool:
        return all(self.visibility(up) == FULL for up in self.chain(node))

    def is_shown(self, node: Node) -> bool:
        return self.exists(node) and all(self.visibility(up) == FULL for up in self.chain(node)[:-1])

    def opened_at(self, node: Node) -> tuple[int, int]:
        """When the section came to be shown: by declaration, by the caller, or by the session, in order."""
        caller, session = list(_with_ancestors(self.caller)), list(_with_ancestors(self.overrides))

        def moment(up: Node) -> tuple[int, int]:
            if self.base(up) != FULL:
                return (2, session.index(up.path))
            declared = self.inputs.answer(up.shape.visibility)
            return (0, 0) if declared else (1, caller.index(up.path))

        return max(moment(up) for up in self.chain(node))

    def has_tools(self, node: Node) -> bool:
        return any(other.shape.tools for other in self.below(node))

    def candidates(self) -> list[tuple[str, Node]]:
        """The tools of all sections in full, those that were there first before the others."""
        full = [node for node in self.nodes if self.is_shown(node) and self.is_open(node)]
        full.sort(key=self.opened_at)
        return [(name, node) for node in full for name in node.shape.tools]

    def collides(self) -> bool:
        """Whether declarations alone show two tools of one name."""
        names = [name for name, node in self.candidates() if self.opened_at(node) == (0, 0)]
        return len(names) != len(set(names))

    def owners(self) -> dict[str, str]:
        """Which section each offered tool belongs to, when all that is shown is offered at once."""
        owners: dict[str, str] = {}
        for name, node in self.candidates():
            owners.setdefault(name, node.key)
        return owners

    def builtin(self, *, collapse: bool) -> list[str]:
        """The disclosure tools, in order."""
        closed = [self.has_tools(node) for node in self.nodes if self.is_shown(node) and not self.is_open(node)]
        names: list[str] = []
        if closed and self.strategy != "ReadSections" and (self.strategy != "OpenOrRead" or any(closed)):
            names.append("open_sections")
        if (closed and self.strategy == "ReadSections") or (self.strategy == "OpenOrRead" and not all(closed)):
            names.append("read_section")
        if collapse and any(node.shape.summary for node in self.nodes if self.is_shown(node) and self.is_open(node)):
            names.append("collapse_section")
        return names

    def text(self) -> str:
        parts: list[tuple[Node, str, str]] = []
        counters: list[int] = []
        for node in self.nodes:
            if self.is_shown(node):
                depth = len(node.path) - 1
                counters = counters[: depth + 1] + [0] * (depth + 1 - len(counters))
                counters[depth] += bool(node.shape.heading or node.shape.children)
                number = ".".join(map(str, counters)) + ". "
                shown = self.visibility(node)
                parts.append((node, shown, self.section_text(node, depth, number, shown)))
        return self.joined(parts)

    def joined(self, parts: list[tuple[Node, str, str]]) -> str:
        """The texts of sections; the first that ends with its key is preceded by how to open such sections."""
        texts = [text for _, _, text in parts]
        short = [at for at, (node, shown, _) in enumerate(parts) if shown == SUMMARY and not node.shape.suffix]
        if self.keyed and short:
            texts.insert(short[0], self.lead([parts[at][0] for at in short]))
        return "\n\n".join(texts)

    def lead(self, nodes: list[Node]) -> str:
        tools = [self.has_tools(node) for node in nodes]
        how = {"ReadSections": "`read_section` with its key.", "OpenAndHalt": "`open_sections` with its key."}
        how["OpenToFiles"] = "`open_sections` with its key. Content without tools will be written to "
        how["OpenToFiles"] += "context/<key>.md for you to read."
        how["OpenOrRead"] = "`open_sections` with its key." if all(tools) else "`read_section` with its key."
        if any(tools) and not all(tools):
            how["OpenOrRead"] = "`read_section` with its key, or `open_sections` if it has tools."
        start = "[A section that ends with its key in brackets is summarized. To view full content, call"
        return f"{start} {how[self.strategy]}]"

    def content(self, top: Node, *, everything: bool = False) -> str:
        """A section in full by itself, unnumbered, with its descendants as they are or all in full."""
        parts: list[tuple[Node, str, str]] = []
        for node in self.below(top):
            between = self.chain(node)[len(top.path) : -1]
            if not everything and any(self.visibility(up) != FULL for up in between):
                continue
            shown = FULL if everything or node is top else self.visibility(node)
            parts.append((node, shown, self.section_text(node, len(node.path) - len(top.path), "", shown)))
        return self.joined(parts)

    def section_text(self, node: Node, depth: int, number: str, visibility: str) -> str:
        heading = f"{'#' * (depth + 2)} {number}{node.shape.key.upper()}\n\n" if node.shape.heading else ""
        if visibility == FULL:
            return f"{heading}All of {node.shape.key}."
        if self.keyed and not node.shape.suffix:
            return f"{heading}About {node.shape.key}.\n[{node.key}]"
        return f"{heading}About {node.shape.key}.\n\n---\n{self.suffix(node)}"

    def suffix(self, node: Node) -> str:
        key, tools = node.key, self.has_tools(node)
        listed = ", ".join(child.shape.key for child in self.below(node) if len(child.path) == len(node.path) + 1)
        if node.shape.suffix:
            return f"Ask for {key}." + (f"\nSubsections: {listed}." if listed else "")
        start = "[This section is summarized."
        if self.strategy == "ReadSections" or (self.strategy == "OpenOrRead" and not tools):
            return f'{start} To view full content, call `read_section` with key "{key}".]'
        if self.strategy == "OpenOrRead" or (self.strategy == "OpenAndHalt" and not listed):
            return f'{start} To view full content, call `open_sections` with key "{key}".]'
        call = f'{start} Call `open_sections` with key "{key}"'
        view = f"{call} to view full content including subsections: {listed}."
        if self.strategy == "OpenAndHalt":
            return f"{view}]"
        if tools and listed:
            return f"{view} Additional tools may become available.]"
        if tools:
            return f'{start} To view full content and access additional tools, call `open_sections` with key "{key}".]'
        if listed:
            return f"{call} to write content (including subsections: {listed}) to context/{key}.md.]"
        return (
            f'{start} To view full content, call `open_sections` with key "{key}". The content will be written to '
            f"context/{key}.md for you to read.]"
        )

    def closed_above(self, node: Node) -> list[Node]:
        """What has to be opened for the section to be open, outermost first."""
        return [up for up in self.chain(node) if self.visibility(up) != FULL]

    def comes_with_tools(self, node: Node) -> bool:
        """Whether the section in full, with its descendants as they are, shows tools."""
        return any(
            other.shape.tools
            for other in self.below(node)
            if all(self.visibility(up) == FULL for up in self.chain(other)[len(node.path) :])
        )

    def set(self, path: Path, visibility: str) -> None:
        """Override a section; what is open already, be it for the sake of a section below it, keeps its place."""
        closed = [path[:length] for length in range(1, len(path)) if self.overrides.get(path[:length]) == SUMMARY]
        if visibility == FULL and closed:
            for other in (*closed, path):
                self.overrides.pop(other, None)
        order = _with_ancestors(self.overrides)
        if order.get(path) != visibility:
            order.pop(path, None)
            order[path] = visibility
        self.overrides = {other: order[other] for other in order if other in self.overrides or other == path}


def _with_ancestors(overrides: dict[Path, str]) -> dict[Path, str]:
    """Opening a path opens what is above it, just before, unless that is named itself."""
    result: dict[Path, str] = {}
    for path, visibility in overrides.items():
        for length in range(1, len(path)) if visibility == FULL else ():
            if path[:length] not in overrides:
                result.setdefault(path[:length], FULL)
        result[path] = visibility
    return result


def _walk(shapes: tuple[Shape, ...], above: Path) -> Iterator[Node]:
    for shape in shapes:
        path = (*above, shape.key)
        yield Node(shape, path)
        yield from _walk(shape.children, path)
