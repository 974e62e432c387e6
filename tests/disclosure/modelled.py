"""Random trees of sections, for the library and for its model, and a run of the model that follows a script."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.disclosure import model as spec
from tests.disclosure.model import Model, Shape
from weakincentives.adapters.scripted import call
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import (
    ClearAllVisibilityOverrides,
    Disclosure,
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenToFiles,
    ReadSections,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import Message, ModelRequest
from weakincentives.session import Session

STRATEGIES = {
    "ReadSections": ReadSections(),
    "OpenOrRead": OpenOrRead(),
    "OpenToFiles": OpenToFiles(),
    "OpenAndHalt": OpenAndHalt(),
}


@dataclass(frozen=True)
class Flags:
    on: bool


@dataclass(frozen=True)
class Poked:
    pass


class Coded(MarkdownSection[Flags]):
    """A section whose methods decide, instead of arguments."""

    shape: Shape

    def is_enabled(self, params: Flags | None = None, *, session: Session | None = None) -> bool:
        assert params is not None
        return params.on if self.shape.enabled == "method" else super().is_enabled(params, session=session)

    def declared_visibility(self, params: Flags | None = None, *, session: Session | None = None) -> SectionVisibility:
        assert params is not None
        if self.shape.visibility == "method":
            return SectionVisibility.FULL if params.on else SectionVisibility.SUMMARY
        return super().declared_visibility(params, session=session)

    def render_body(self, params: Flags | None) -> str:
        return f"All of {self.key}."


def poked(session: Session | None) -> bool:
    return session is not None and session[Poked].latest() is not None


SELECTORS: dict[str, Any] = {
    "params": lambda flags: flags.on,
    "session": lambda *, session: poked(session),
    "never": lambda: False,
    "always": None,
    "method": None,
}
VISIBILITIES: dict[str, Any] = {
    "full": SectionVisibility.FULL,
    "summary": SectionVisibility.SUMMARY,
    "params": lambda flags: SectionVisibility.FULL if flags.on else SectionVisibility.SUMMARY,
    "session": lambda *, session: SectionVisibility.FULL if poked(session) else SectionVisibility.SUMMARY,
    "method": SectionVisibility.FULL,
}


def build(shape: Shape, above: spec.Path = ()) -> MarkdownSection[Flags]:
    path = (*above, shape.key)
    made = Coded if "method" in (shape.visibility, shape.enabled) else MarkdownSection[Flags]
    if made is Coded:
        Coded.shape = shape
    section: MarkdownSection[Flags] = made(
        title=shape.key.upper(),
        key=shape.key,
        template="never shown" if made is Coded else f"All of {shape.key}.",
        summary=f"About {shape.key}." if shape.summary else None,
        summary_suffix="Ask for ${section_key}." if shape.suffix else None,
        visibility=VISIBILITIES[shape.visibility],
        enabled=SELECTORS[shape.enabled],
        tools=[a_tool(name, ".".join(path)) for name in shape.tools],
        heading=shape.heading,
        children=[build(child, path) for child in shape.children],
    )
    if isinstance(section, Coded):
        section.shape = shape
    return section


def a_tool(name: str, owner: str) -> Tool[None, None]:
    return Tool(name=name, description=owner, handler=lambda params, *, context: ToolResult("done"))


def draw_shape(draw: Any, numbers: Iterator[int], depth: int) -> Shape:
    number = next(numbers)
    visibility = draw(st.sampled_from(["summary"] * 4 + ["full"] * 3 + ["params", "session", "method"]))
    children = draw(st.integers(0, 3 - depth)) if depth < 3 else 0
    return Shape(
        key=f"s{number}",
        visibility=visibility,
        enabled=draw(st.sampled_from(["always"] * 8 + ["never", "params", "session", "method"])),
        tools=draw(st.sampled_from([(), (), (f"own{number}",), ("same",), ("same", f"own{number}"), ("other",)])),
        summary=visibility != "full" or draw(st.booleans()),
        suffix=draw(st.sampled_from([False, False, False, True])),
        heading=draw(st.sampled_from([True, True, True, False])),
        children=tuple(draw_shape(draw, numbers, depth + 1) for _ in range(children)),
    )


@st.composite
def trees(draw: Any) -> tuple[Shape, ...]:
    numbers = itertools.count()
    return tuple(draw_shape(draw, numbers, 0) for _ in range(draw(st.integers(1, 3))))


def strategy_of(model: Model) -> Disclosure:
    strategy: Any = STRATEGIES[model.strategy]
    return replace(strategy, suffix="key" if model.keyed else "sentence")


def shown_owners(tools: Any, revoked: Any = ()) -> dict[str, str]:
    """Which section each tool on offer belongs to, in order; built-in ones are left out."""
    kept = [tool for tool in tools if tool.description.startswith("s") and tool.name not in revoked]
    return {tool.name: tool.description for tool in kept}


def collides_by_constants(model: Model) -> bool:
    """Whether constants alone show two tools of one name, which is an error at construction."""
    fixed = [
        node
        for node in model.nodes
        if all(up.shape.visibility == "full" and up.shape.enabled == "always" for up in model.chain(node))
    ]
    names = [name for node in fixed for name in node.shape.tools]
    return len(names) != len(set(names))


IN_CALL: list[str] = []
"""The snapshot that was taken inside the first call of `poke`, until it is resumed."""


@tool
def poke(what: str, key: str, fail: bool, *, context: ToolContext) -> ToolResult[None]:
    """Change visibility from inside a handler, and maybe fail."""
    if not IN_CALL:
        IN_CALL.append(context.session.snapshot().to_json())
    context.session.dispatch(Poked())
    path = context.view.find(key)
    if path is None:
        return ToolResult("no such section", success=False)
    if what == "open":
        context.session.dispatch(SetVisibilityOverride(path, SectionVisibility.FULL))
    else:
        context.session.dispatch(ClearAllVisibilityOverrides())
    return ToolResult("poked", success=not fail)


TASK = Shape("task", summary=False)
FILES = Shape("workspace", summary=False)
steps = st.lists(
    st.tuples(
        st.sampled_from(["read"] * 4 + ["open"] * 2 + ["collapse", "poke open", "poke clear", "poke fail"]),
        st.integers(0, 99),
    ),
    max_size=7,
)


class Run:
    """The model of a run: what it answers to each step, and which tools have been registered since it (re)started."""

    def __init__(self, model: Model, *, dynamic: bool, session: Session) -> None:
        self.model = model
        self.dynamic = dynamic
        self.session = session
        self.files: dict[str, str] = {}
        self.registered: dict[str, str] = {}
        self.answer: tuple[bool, str] | None = None
        self.start()

    def start(self) -> None:
        self.registered = self.offered()
        self.system = self.model.text()

    def offered(self) -> dict[str, str]:
        """Every tool with its section; the built-in ones have none."""
        return {**self.model.owners(), **dict.fromkeys(self.model.builtin(collapse=True), "")}

    def callable_now(self) -> dict[str, str]:
        open_now = {node.key for node in self.model.nodes if self.model.is_shown(node) and self.model.is_open(node)}
        return {name: owner for name, owner in self.registered.items() if owner in open_now}

    def changed(self, *, restart: bool = False) -> None:
        """Register what appeared; a new evaluation starts where the strategy or the adapter needs one."""
        new = self.offered().keys() - self.registered.keys()
        if restart or (new and not self.dynamic):
            self.answer = None
            self.start()
        else:
            self.registered = {**self.offered(), **self.registered}

    def step(self, action: str, key: str, offered: set[str]) -> Any:
        """The call to make, if its tool is on offer; the model does the same."""
        if action == "read" and "read_section" in offered:
            self.read(key)
            return call("read_section", section_key=key)
        if action == "open" and "open_sections" in offered:
            self.open(key)
            return call("open_sections", section_keys=[key], reason="")
        if action == "collapse" and "collapse_section" in offered:
            self.collapse(key)
            return call("collapse_section", section_key=key)
        what = action.removeprefix("poke ") if action.startswith("poke ") else "clear"
        self.poke(what, key)
        return call("poke", what="open" if what == "fail" else what, key=key, fail=what == "fail")

    def read(self, key: str) -> None:
        model, node = self.model, self.model.find(key)
        if node is None:
            self.answer = (False, f"Unknown section key: '{key}'.")
        elif model.is_open(node):
            self.answer = (True, f"Section is already expanded.\n\n{model.content(node)}")
        elif model.strategy == "OpenOrRead" and model.has_tools(node):
            self.answer = (False, f"Section '{key}' has tools; call open_sections")
        elif not model.comes_with_tools(node):
            self.answer = (True, f"Content of section '{key}':\n\n{model.content(node)}")
        else:
            closed = model.closed_above(node)
            for up in closed:
                model.set(up.path, spec.FULL)
            self.answer = (True, f"Content of section '{key}':\n\n{model.content(closed[0])}")
            self.changed()

    def open(self, key: str) -> None:
        model, node = self.model, self.model.find(key)
        if node is None:
            self.answer = (False, f"Section '{key}' does not exist in this prompt.")
        elif model.is_open(node):
            self.answer = (False, f"Section '{key}' is already expanded.")
        elif model.strategy == "OpenToFiles" and not model.has_tools(node):
            self.files[f"context/{key}.md"] = model.content(node, everything=True)
            self.answer = (True, f"Section content written to: context/{key}.md")
        else:
            for up in model.closed_above(node):
                model.set(up.path, spec.FULL)
            self.changed(restart=True)

    def collapse(self, key: str) -> None:
        node = self.model.find(key)
        if node is None:
            self.answer = (False, f"Unknown section key: '{key}'.")
        elif not self.model.is_open(node):
            self.answer = (False, f"Section '{key}' is not expanded.")
        elif not node.shape.summary:
            self.answer = (False, f"Section '{key}' has no summary, so it stays open.")
        else:
            self.model.set(node.path, spec.SUMMARY)
            self.answer = (True, f"Section '{key}' is closed")
            self.changed()

    def poke(self, what: str, key: str) -> None:
        node = self.model.find(key)
        if node is None or what == "fail":
            self.answer = (False, "no such section" if node is None else "poked")
            return
        self.answer = (True, "poked")
        if what == "open":
            self.model.set(node.path, spec.FULL)
        else:
            self.model.overrides = {}
        self.changed()

    def check(self, request: ModelRequest, files: Filesystem) -> None:
        assert request.messages[0].text == self.system
        assert shown_owners(request.tools, request.revoked) == self.callable_now()
        if self.answer is not None:
            said = [message for message in self.session[Message].all() if message.role == "tool"][-1]
            assert (said.success, said.text[: len(self.answer[1])]) == self.answer
        assert {path: files.read(path) for path in files.glob("context/*.md")} == self.files
