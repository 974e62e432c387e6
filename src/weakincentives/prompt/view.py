"""A prompt as it is at one moment: what is shown, what can be opened, and what opening would bring."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from weakincentives.errors import PromptRenderError
from weakincentives.prompt.disclosure.collapse import COLLAPSE_SECTION
from weakincentives.prompt.disclosure.strategy import Disclosure, Opening
from weakincentives.prompt.hosted import HostedTool
from weakincentives.prompt.outline import ABSENT, FULL, VISIBILITIES, AnyTool, Node, Outline
from weakincentives.prompt.params import Params
from weakincentives.prompt.plan import Plan
from weakincentives.prompt.shape import Decider, Shape, opened_shape
from weakincentives.prompt.tokens import Tokenizer
from weakincentives.prompt.tool import Tool
from weakincentives.prompt.visibility import SectionPath, SectionVisibility

logger = logging.getLogger("weakincentives.prompt")
T = TypeVar("T")
MAX_PLANS = 256


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]` came from the section at `path`; `decided_by` says why it shows what it shows."""

    path: SectionPath
    start: int
    end: int
    visibility: SectionVisibility
    decided_by: Decider


class View:
    """One shape of one prompt with its params; everything asked here is about this moment."""

    def __init__(
        self,
        outline: Outline,
        params: Params,
        shape: Shape,
        disclosure: Disclosure,
        *,
        allow_collapse: bool = False,
        price_tokenizer: Tokenizer | None = None,
    ) -> None:
        self.outline = outline
        self.shape = shape
        self._params = params
        self._disclosure = disclosure
        self._allow_collapse = allow_collapse
        self._price_tokenizer = price_tokenizer

    def find(self, key: str) -> SectionPath | None:
        """The path of an existing (enabled) section, by its dotted key."""
        node = self.outline.by_key.get(key)
        return node.path if node is not None and self._exists(node) else None

    def is_open(self, path: SectionPath) -> bool:
        """Whether the section is really shown in full, ancestors included."""
        node = self.outline.by_path[path]
        return all(self.shape.states[up.index] == FULL for up in (node, *self.outline.ancestors(node)))

    def visibility(self) -> dict[SectionPath, SectionVisibility]:
        """What each shown section shows."""
        return {node.path: VISIBILITIES[self.shape.states[node.index]] for node, _ in self.plan.marks}

    def decided_by(self, node: Node) -> Decider:
        return self.shape.decided.get(node.index, "declared")

    def closed_keys(self) -> Sequence[str]:
        """Keys of the summarized sections on show."""
        return [node.key for node in self.plan.summarized]

    def has_tools(self, path: SectionPath) -> bool:
        """Whether the section or any existing descendant has tools."""
        node = self.outline.by_path[path]
        return any(below.all_tools for below in self.outline.subtree(node) if self._exists(below))

    def collapsible(self, path: SectionPath) -> bool:
        return self.outline.by_path[path].summary is not None

    def content(self, path: SectionPath, *, everything: bool = False) -> str:
        """The section in full by itself, unnumbered; descendants as they are, or all in full."""
        node = self.outline.by_path[path]
        states = bytearray(self.shape.states)
        for below in self.outline.subtree(node) if everything else (node,):
            if states[below.index] != ABSENT:
                states[below.index] = FULL
        plan = self._cached(
            ("content", bytes(states), node.index), lambda: Plan(self.outline, bytes(states), self._suffix, root=node)
        )
        return "".join(plan.fill(self._params, self._price()))

    def existing(self) -> Iterator[Node]:
        """Every section that is not disabled, shown or not."""
        return (node for node in self.outline.nodes if self._exists(node))

    def own_text(self, node: Node) -> str:
        """The section in full without its children."""
        states = bytearray(self.shape.states)
        states[node.index] = FULL
        for below in self.outline.subtree(node)[1:]:
            states[below.index] = ABSENT
        plan = self._cached(("own", node.index), lambda: Plan(self.outline, bytes(states), self._suffix, root=node))
        return "".join(plan.fill(self._params))

    def opening(self, path: SectionPath) -> Opening:
        """What would be shown and which tools would come if the section and its closed ancestors were opened."""
        node = self.outline.by_path[path]
        closed = [up for up in (node, *self.outline.ancestors(node)) if self.shape.states[up.index] != FULL]
        overrides = {up.path: SectionVisibility.FULL for up in reversed(closed)}
        after = self.opened(overrides)
        top = closed[-1] if closed else node
        known = {tool.name for _, tool in self.offered()}
        coming: dict[str, AnyTool] = {}
        for below in after.shown_below(top, FULL):
            for tool in below.all_tools:
                if tool.name not in known:
                    coming.setdefault(tool.name, tool)
        tools = tuple(coming.values())
        return Opening(overrides, tools, lambda: after.content(top.path if tools else path))

    def shown_below(self, top: Node, state: int) -> Iterator[Node]:
        """The section and its descendants that are shown in this state; a summary hides what is below it."""
        index = top.index
        while index < top.end:
            node, now = self.outline.nodes[index], self.shape.states[index]
            if now == state:
                yield node
            index = index + 1 if now == FULL else node.end

    def opened(self, overrides: Mapping[SectionPath, SectionVisibility]) -> View:
        """The view with these overrides on top."""
        return self.with_shape(opened_shape(self.outline, self.shape, overrides))

    def with_shape(self, shape: Shape) -> View:
        return View(
            self.outline,
            self._params,
            shape,
            self._disclosure,
            allow_collapse=self._allow_collapse,
            price_tokenizer=self._price_tokenizer,
        )

    def offered(self) -> list[tuple[Node | None, AnyTool]]:
        """Every tool that may be called now, with its section; the built-in ones come last and have none."""
        return self._cached(("offered", self.shape.states), self._collect_tools)

    def pieces(self) -> list[str]:
        return self.plan.fill(self._params, self._price())

    def spans(self, pieces: Sequence[str]) -> tuple[Span, ...]:
        starts: list[int] = []
        position, marks = 0, iter([*self.plan.marks, (None, -1)])
        _, following = next(marks)
        for index, piece in enumerate(pieces):
            if index == following:
                starts.append(position + (2 if starts else 0))
                _, following = next(marks)
            position += len(piece)
        ends = [*(start - 2 for start in starts[1:]), position][: len(starts)]
        return tuple(
            Span(node.path, start, end, VISIBILITIES[self.shape.states[node.index]], self.decided_by(node))
            for (node, _), start, end in zip(self.plan.marks, starts, ends, strict=True)
        )

    def opening_cost(self, node: Node, tokenizer: Tokenizer) -> tuple[int, int]:
        """Tokens and tools that opening a summarized section would add."""
        opening = self.opening(node.path)
        return opening_tokens(opening, tokenizer.count), len(opening.tools)

    @cached_property
    def plan(self) -> Plan:
        """The text laid out; made when it is first needed, since many a view is only asked what it would bring."""
        states = self.shape.states
        return self._cached(("plan", states), lambda: Plan(self.outline, states, self._suffix))

    def _cached(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        plans = self.outline.plans
        result: T | None = plans.get(key)
        if result is None:
            result = make()
            if len(plans) >= MAX_PLANS + 2 * len(self.outline.nodes):
                plans.clear()
            plans[key] = result
        return result

    def _suffix(self, node: Node) -> str:
        if node.section.summary_suffix is not None:
            words = node.section.summary_suffix.replace("${section_key}", node.key)
        else:
            children = [child.section.key for child in self.outline.children(node) if self._exists(child)]
            words = self._disclosure.suffix(node.key, children=children, has_tools=self.has_tools(node.path))
        return f"\n\n---\n{words}"

    def _price(self) -> Callable[[Node], str] | None:
        tokenizer = self._price_tokenizer
        if tokenizer is None:
            return None

        def price(node: Node) -> str:
            bare = View(self.outline, self._params, self.shape, self._disclosure, allow_collapse=self._allow_collapse)
            tokens, tools = bare.opening_cost(node, tokenizer)
            counted = f", {tools} tool{'s' if tools > 1 else ''}" if tools else ""
            return f"\n[Opening it costs about {tokens:,} tokens{counted}.]"

        return price

    def _collect_tools(self) -> list[tuple[Node | None, AnyTool]]:
        found: dict[str, tuple[Node, AnyTool]] = {}
        for node, tool in self.plan.tools():
            if tool.name not in found:
                found[tool.name] = (node, tool)
                continue
            first, _ = found[tool.name]
            if not (self._opened_by_request(first) or self._opened_by_request(node)):
                raise PromptRenderError(
                    f"Sections '{first.key}' and '{node.key}' both have a tool named '{tool.name}' and are shown "
                    "together; rename one."
                )
            logger.warning(
                "Skipping duplicate tool '%s' of section '%s': section '%s' has it already.",
                tool.name,
                node.key,
                first.key,
            )
        summarized = [self.has_tools(node.path) for node in self.plan.summarized]
        builtin = self._disclosure.tools(with_tools=any(summarized), content_only=not all(summarized))
        if self._allow_collapse and any(node.summary is not None for node in self.plan.full):
            builtin = (*builtin, COLLAPSE_SECTION)
        return [*found.values(), *((None, tool) for tool in builtin)]

    def _opened_by_request(self, node: Node) -> bool:
        return any(
            self.decided_by(up) in ("session", "override", "budget") for up in (node, *self.outline.ancestors(node))
        )

    def _exists(self, node: Node) -> bool:
        return all(self.shape.states[up.index] != ABSENT for up in (node, *self.outline.ancestors(node)))


def split_tools(
    offered: Sequence[tuple[Node | None, AnyTool]],
) -> tuple[tuple[Tool[Any, Any], ...], tuple[HostedTool[Any], ...]]:
    tools = tuple(tool for _, tool in offered if isinstance(tool, Tool))
    hosted = tuple(tool for _, tool in offered if isinstance(tool, HostedTool))
    return tools, hosted


def opening_tokens(opening: Opening, count: Callable[[str], int]) -> int:
    """What an opening adds to the context: its text and its tools."""
    return count(opening.show()) + sum(count(tool_text(tool)) for tool in opening.tools)


def tool_text(tool: AnyTool) -> str:
    """A tool about as a provider shows it to the model; for counting."""
    if isinstance(tool, Tool):
        return tool.wire_text
    return json.dumps({"name": tool.name, "kind": tool.kind, "description": tool.description})
