"""A prompt at one moment: what is shown, what can be opened, what opening would add, and the rendered text."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple

from weakincentives._base.display import Displayed, Shown, folded, tree
from weakincentives._base.generics import OutputT
from weakincentives.content import Part
from weakincentives.errors import PromptRenderError
from weakincentives.limits import Deadline
from weakincentives.prompt.layout import Layout, media_in, parts_in
from weakincentives.prompt.outline import Node, Outline, Params
from weakincentives.prompt.output import Container, StructuredOutputConfig
from weakincentives.prompt.overrides import PromptDescriptor
from weakincentives.prompt.section import SectionRole, missing_summary
from weakincentives.prompt.tokens import Tokenizer, default_tokenizer
from weakincentives.prompt.tools import AnyTool, HostedTool, Tool, portable_name
from weakincentives.prompt.visibility import (
    ABSENT,
    FULL,
    PACKED,
    SUMMARY,
    DisclosureRequest,
    Overrides,
    SectionPath,
    SectionVisibility,
    ancestors,
    visible,
    with_ancestors,
)

if TYPE_CHECKING:
    from weakincentives.prompt.disclosure.ranking.finder import SectionFinder

Decider = Literal["declared", "selector", "override", "session", "budget", "rule", "search"]
Menu = Literal["all", "top", "none"]
Voice = Literal["result", "system"]
Suffix = Literal["sentence", "key"]


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]` came from the section at `path`; `decided_by` is the reason for its visibility."""

    path: SectionPath
    start: int  #: where it begins
    end: int  #: where it ends
    visibility: SectionVisibility  #: what the section shows
    decided_by: Decider
    role: SectionRole = "system"  #: the message it is part of: system or user


class SkippedTool(NamedTuple):
    """A tool that is not offered because a section opened earlier has one with the same name."""

    node: Node
    tool: AnyTool
    owner: Node


@dataclass(frozen=True, slots=True)
class Opening:
    """The effect of opening a section: the overrides it needs, the tools it adds, and (on demand) its content.

    `unloaded` if it adds more, which is not known before it is loaded.
    """

    overrides: Overrides  #: visibility by section path
    tools: tuple[AnyTool, ...]  #: the tools it adds
    fill: Callable[[], list[str]]  #: renders its content, in pieces
    unloaded: bool = False

    def render(self) -> str:
        return "".join(self.fill())

    def media(self) -> tuple[Part, ...]:
        """The images, documents and recordings in the content."""
        return media_in(self.fill())

    def tokens(self, count: Callable[[str], int]) -> int | None:
        """The tokens that opening adds to the context, for text and tools; None if they are not known."""
        if self.unloaded:
            return None
        return count(self.render()) + sum(count(tool.definition) for tool in self.tools)


class Disclosure:
    """A strategy for letting a model open summarized sections; derive from it to write your own.

    `menu` selects the summaries that the prompt lists, and `preopen` limits how many sections `preopened` may open for
    the user's words. With `voice="system"`, a section's text is sent as a system message where that is possible. With
    `suffix="key"`, a summary ends with its key alone, and `instruction` stands once, before the first of them.
    """

    __slots__ = ()
    menu: Menu = "all"
    preopen: int = 0
    voice: Voice = "result"
    suffix: Suffix = "sentence"

    @property
    def finder(self) -> SectionFinder | None:
        """Finds sections with the ranker of the strategy; None if it has none of its own."""
        return None

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        """The tools to offer, given which kinds of summarized sections are shown."""
        return ()

    def hint(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        """The text after `---` under a summary, with `suffix="sentence"`."""
        return f"[This section is summarized; its key is '{key}'.]"

    def instruction(self, *, with_tools: bool, content_only: bool) -> str:
        """How to open a section, given which kinds of summarized sections follow; for `suffix="key"`."""
        tools = self.tools(with_tools=with_tools, content_only=content_only)
        return f"To view full content, call `{tools[0].name}` with its key." if tools else ""

    def preopened(self, view: View, words: str) -> Sequence[Node]:
        """The closed sections to open for the user's words."""
        return ()


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How a template shows its sections: the strategy, what may be closed, prices and the budget for opening."""

    disclosure: Disclosure
    tokenizer: Tokenizer | None = None
    collapse_tool: Tool[Any, Any] | None = None
    show_prices: bool = False
    token_budget: int | None = None

    @property
    def counter(self) -> Tokenizer:
        return self.tokenizer or default_tokenizer()


@dataclass(eq=False, repr=False)
class View:
    """A prompt with the visibility of its sections, packed: `own` as if their ancestors were open, `seen` with them.

    `decided` has the decider of each visibility that differs from the declared one. `order` are the sections that were
    opened on request, in order of opening.
    """

    outline: Outline  #: the tree of sections
    params: Params  #: the bound params
    options: ViewOptions  #: the options of the render
    own: bytes
    decided: Mapping[SectionPath, Decider] = field(default_factory=dict)
    order: tuple[SectionPath, ...] = ()

    @cached_property
    def seen(self) -> bytes:
        own, parents = self.own, self.outline.parents
        return self.outline.cached(("seen", own), lambda: visible(own, parents))

    def find(self, key: str) -> SectionPath | None:
        """The path of an enabled section, by its dotted key."""
        node = self.outline.by_key.get(key)
        return node.path if node is not None and self._exists(node) else None

    def is_open(self, path: SectionPath) -> bool:
        """True if the section is shown in full, ancestors included."""
        return self.seen[self.outline.by_path[path].index] == FULL

    def visibility(self) -> Overrides:
        """The visibility of each section in the text."""
        key = ("visibility", self.seen)
        return self.outline.cached(key, lambda: {node.path: self.visibility_of(node) for node in self.shown})

    def visibility_of(self, node: Node) -> SectionVisibility:
        """The visibility of a section for the model, its ancestors taken into account."""
        return PACKED[self.seen[node.index]]

    def own_visibility(self, node: Node) -> SectionVisibility:
        """The visibility that the section would have if its ancestors were open."""
        return PACKED[self.own[node.index]]

    def decided_by(self, node: Node) -> Decider:
        return self.decided.get(node.path, "declared")

    @property
    def shown(self) -> Sequence[Node]:
        """The sections in the text, in order."""
        return self.outline.cached(("shown", self.seen), lambda: self._shown(self.outline.nodes))

    def closed(self) -> list[Node]:
        """The closed sections that are not inside others, with their summaries in the text or not."""
        return self.seen_below(None, SUMMARY)

    def closed_keys(self) -> Sequence[str]:
        """The keys of the sections shown as summaries."""
        return [node.key for node in self.shown if self.seen[node.index] == SUMMARY]

    def has_tools(self, path: SectionPath) -> bool:
        """True if the section or any enabled descendant has tools."""
        below = self.outline.subtree(self.outline.by_path[path])
        return any((node.all_tools or node.is_late) and self._exists(node) for node in below)

    def content(self, path: SectionPath) -> str:
        """This section alone, in full and unnumbered; its descendants as they are."""
        return "".join(self.pieces_of(path))

    def pieces_of(self, path: SectionPath, *, everything: bool = False) -> list[str]:
        """The pieces of `content`, media included; with `everything`, its descendants are all in full."""
        node = self.outline.by_path[path]
        nodes = self.outline.subtree(node) if everything else (node,)
        opened = self.opened({each.path: SectionVisibility.FULL for each in nodes})
        seen = opened.seen[node.index : node.end]
        layout = self.outline.cached(("content", node.index, seen), lambda: opened._laid_out(node))
        return layout.fill(self.params, self._price())

    def existing(self) -> Iterator[Node]:
        """Every enabled section, shown or not."""
        return (node for node in self.outline.nodes if self._exists(node))

    def whole_text(self, path: SectionPath) -> str:
        """A section alone, in full; empty if it cannot be rendered, which is an error only if somebody opens it."""
        try:
            return "".join(self.own_pieces(path))
        except PromptRenderError:
            return ""

    def own_pieces(self, path: SectionPath, visibility: SectionVisibility = SectionVisibility.FULL) -> list[str]:
        """The section alone, unnumbered, without its children and without a price, in pieces."""
        node = self.outline.by_path[path]
        summarized = visibility is SectionVisibility.SUMMARY
        # Only a summary names what is below it.
        below = self.own[node.index + 1 : node.end] if summarized else b""

        def laid_out() -> Layout:
            layout = Layout(self.outline.user_start)
            layout.add(node, 0, "", self._suffix(node) if summarized else None)
            return layout

        return self.outline.cached(("own", node.index, visibility, below), laid_out).fill(self.params)

    def opening(self, path: SectionPath) -> Opening:
        """The effect of opening a section together with its closed ancestors: text and tools that it adds."""
        after = self.opened({path: SectionVisibility.FULL})
        overrides = dict.fromkeys((*after.order[len(self.order) :], path), SectionVisibility.FULL)
        top = self.outline.by_path[next(iter(overrides))]
        known = {portable_name(tool.name) for _, tool in self.offered()}
        coming: dict[str, AnyTool] = {}
        shown = sorted(after.seen_below(top, FULL), key=after.opened_at)
        for below in shown:
            for tool in below.all_tools:
                if (name := portable_name(tool.name)) not in known:
                    coming.setdefault(name, tool)
        unloaded = any(below.path in self.outline.unloaded for below in shown)
        return Opening(overrides, tuple(coming.values()), lambda: after.pieces_of(top.path), unloaded)

    def reading(self, path: SectionPath) -> Opening:
        """The effect of reading a section: closed ones with tools or guards are opened; others only return their text.

        A section that loads content is opened too, so that a resumed run loads it again.
        """
        node = self.outline.by_path[path]
        after = self.opened({path: SectionVisibility.FULL})
        brings = node.is_late or any(below.all_tools or below.section.guards for below in after.seen_below(node, FULL))
        if brings and not self.is_open(path):
            return self.opening(path)
        return Opening({}, (), lambda: self.pieces_of(path))

    def request(
        self,
        keys: Iterable[str],
        reason: str = "",
        *,
        overrides: Overrides | None = None,
        files: Iterable[str] = (),
        halt: bool = False,
        action: Literal["open", "close"] = "open",
    ) -> DisclosureRequest:
        """The request that a disclosure tool attaches to its result, with the current visibility.

        Unless given, `overrides` are those that reading the sections needs. A result is taken to contain the text of
        the sections, unless it names files or halts.
        """
        keys, files = tuple(keys), tuple(files)
        found = [path for key in keys if action == "open" and (path := self.find(key)) is not None]
        if overrides is None:
            overrides = {}
            for path in () if files else found:
                overrides = {**overrides, **self.reading(path).overrides}
        content = () if files or halt else tuple(dict.fromkeys((*overrides, *found)))
        return DisclosureRequest(keys, reason, self.visibility(), overrides, content, files, halt, action)

    def seen_below(self, top: Node | None, packed: int) -> list[Node]:
        """The section and its descendants, or all sections, that are seen like this."""
        nodes = self.outline.nodes if top is None else self.outline.subtree(top)
        return [node for node in nodes if self.seen[node.index] == packed]

    def opened(self, chosen: Overrides, decider: Decider = "session", *, alone: bool = False) -> View:
        """The view with sections opened or closed, unless `alone` with their ancestors; unknown paths are ignored."""
        own, decided, order = bytearray(self.own), dict(self.decided), list(self.order)
        for path, visibility in (chosen if alone else with_ancestors(chosen)).items():
            node = self.outline.by_path.get(path)
            if node is None or self.seen[node.index] == ABSENT:
                continue
            if visibility is SectionVisibility.SUMMARY and node.summary is None:
                if decider == "session":  # It had a summary when it was closed.
                    continue
                raise missing_summary(node.key)
            if visibility is SectionVisibility.FULL and own[node.index] != FULL:
                order.append(path)
            elif path not in chosen:
                continue
            own[node.index] = PACKED.index(visibility)
            decided[path] = decider
        return View(self.outline, self.params, self.options, bytes(own), decided, tuple(order))

    def moved(self, after: Outline) -> View:
        """The same in an outline that has additional sections, which show what they declare."""
        own = bytearray(after.base)
        for node in self.outline.nodes:
            if (new := after.by_path.get(node.path)) is not None:
                own[new.index] = self.own[node.index]
        return replace(self, outline=after, own=bytes(own))

    def opened_at(self, node: Node) -> int:
        """When the section became visible: 0 if it was declared open, else its place in `order`."""
        return max(self._moments.get(path, 0) for path in (*ancestors(node.path), node.path))

    @cached_property
    def _moments(self) -> dict[SectionPath, int]:
        return {path: moment for moment, path in enumerate(self.order, start=1)}

    def fitted(self, budget: int, tokenizer: Tokenizer) -> View:
        """Open summarized sections, the cheapest first, as long as text and tools stay within the budget.

        A section that the caller or the session summarized on purpose stays as it is, and so does one whose cost is not
        known before it is loaded.
        """
        spent = tokenizer.count("".join(self.pieces()))
        spent += sum(tokenizer.count(tool.definition) for _, tool in self.offered())
        view = self
        waiting: list[tuple[int, int]] = []

        def weigh(nodes: Iterable[Node]) -> None:
            for node in nodes:
                if view.decided_by(node) not in ("declared", "selector"):
                    continue
                if (cost := view.opening(node.path).tokens(tokenizer.count)) is not None:
                    heapq.heappush(waiting, (cost, node.index))

        weigh(self.closed())
        while waiting and spent + waiting[0][0] <= budget:
            cost, index = heapq.heappop(waiting)
            spent += cost
            node = view.outline.nodes[index]
            view = view.opened({node.path: SectionVisibility.FULL}, "budget")
            weigh(view.seen_below(node, SUMMARY))
        return view

    def offered(self) -> list[tuple[Node | None, AnyTool]]:
        """Every tool that may be called now, with its section; built-in tools come last and have none."""
        return self.tools[0]

    def skipped(self) -> list[SkippedTool]:
        """Tools of shown sections whose names are taken.

        Sections declared open come first, then those opened later, in order: the tool that was there first stays.
        """
        return self.tools[1]

    def pieces(self) -> list[str]:
        return self.layout.fill(self.params, self._price())

    def renders(self, text: str) -> bool:
        """True if the prompt reads like this, and has neither media nor prices, which take long to compute."""
        pieces = [] if self.options.show_prices else self.pieces()
        return bool(pieces) and "".join(pieces) == text and not media_in(pieces)

    def spans(self, pieces: Sequence[str]) -> tuple[Span, ...]:
        """The place of each section in the text that these pieces make."""
        spans, end, lead = list[Span](), 0, self.layout.lead
        for at, (node, own) in enumerate(self.layout.by_section(pieces)):
            # A blank line precedes every section but the first, and the instruction the first closed one.
            start = end + (2 if at else 0) + (lead[1] if lead is not None and lead[0] == at else 0)
            end += sum(map(len, own))
            role: SectionRole = "user" if self.is_user(node.path) else "system"
            spans.append(Span(node.path, start, end, self.visibility_of(node), self.decided_by(node), role))
        return tuple(spans)

    def is_user(self, path: SectionPath) -> bool:
        """True if the section is part of the user's turn."""
        return self.outline.by_path[path].index >= self.outline.user_start

    def is_literal(self, path: SectionPath) -> bool:
        """True if reading the section returns only the author's own words: no params, nothing generated or loaded."""
        node = self.outline.by_path[path]
        return all(
            below.text is not None
            and not below.is_late
            and not below.text.names
            and not (below.summary and below.summary.names)
            for below in self.outline.subtree(node)
            if self._exists(below)
        )

    @property
    def layout(self) -> Layout:
        """The text, laid out on first use; most views are only asked what opening would add."""
        return self.outline.cached(("layout", self.seen), self._laid_out)

    def _laid_out(self, top: Node | None = None) -> Layout:
        layout = Layout(self.outline.user_start)
        counters: list[int] = []
        nodes, least = (self.outline.nodes, 0) if top is None else (self.outline.subtree(top), top.depth)
        shown = self._shown(nodes)
        closed = shown if self.options.disclosure.suffix == "key" else ()
        short = [node for node in closed if self.seen[node.index] == SUMMARY and node.section.summary_suffix is None]
        for node in shown:
            depth = node.depth - least
            del counters[depth + 1 :]
            if len(counters) <= depth:
                counters.append(0)
            if node.section.heading or node.end > node.index + 1:
                counters[depth] += 1
            summarized = self.seen[node.index] == SUMMARY
            number = ".".join(map(str, counters)) if top is None else ""
            lead = self._instruction(short) if short and node is short[0] else ""
            layout.add(node, depth, number, self._suffix(node) if summarized else None, lead)
        return layout

    def _shown(self, nodes: Iterable[Node]) -> list[Node]:
        """Those sections that are in the text: closed ones only if the menu lists them.

        What is below a section that was opened is always listed.
        """
        seen, menu, base = self.seen, self.options.disclosure.menu, self.outline.base
        return [
            node
            for node in nodes
            if seen[node.index] == FULL
            or (
                seen[node.index] == SUMMARY
                and (menu == "all" or (base[node.parent] == SUMMARY if node.parent >= 0 else menu == "top"))
            )
        ]

    def _suffix(self, node: Node) -> str:
        children = [child.section.key for child in self.outline.children(node) if self._exists(child)]
        disclosure = self.options.disclosure
        if node.section.summary_suffix is None:
            if disclosure.suffix == "key":
                return f"\n[{node.key}]"
            words = disclosure.hint(node.key, children=children, has_tools=self.has_tools(node.path))
        else:
            words = node.section.summary_suffix.replace("${section_key}", node.key)
            if children:
                words += f"\nSubsections: {', '.join(children)}."
        return f"\n\n---\n{words}"

    def _instruction(self, nodes: Iterable[Node]) -> str:
        kinds = {self.has_tools(node.path) for node in nodes}
        how = self.options.disclosure.instruction(with_tools=True in kinds, content_only=False in kinds)
        return f"[{f'A section that ends with its key in brackets is summarized. {how}'.strip()}]\n\n"

    def _price(self) -> Callable[[Node], str] | None:
        if not self.options.show_prices:
            return None
        unpriced = replace(self, options=replace(self.options, show_prices=False))

        def price(node: Node) -> str:
            opening = unpriced.opening(node.path)
            if (tokens := opening.tokens(self.options.counter.count)) is None:
                return ""
            tools = len(opening.tools)
            counted = f", {tools} tool{'s' if tools > 1 else ''}" if tools else ""
            return f"\n[Opening it costs about {tokens:,} tokens{counted}.]"

        return price

    @property
    def tools(self) -> tuple[list[tuple[Node | None, AnyTool]], list[SkippedTool]]:
        """The tools that are offered, and those that are skipped."""
        order = self.order if self.outline.shares_tool_names else ()
        return self.outline.cached(("tools", self.seen, order), self._collect_tools)

    def _collect_tools(self) -> tuple[list[tuple[Node | None, AnyTool]], list[SkippedTool]]:
        full = self.seen_below(None, FULL)
        shown = [(node, tool) for node in full for tool in node.all_tools]
        owners: dict[str, Node] = {}
        shared = self.outline.shares_tool_names
        for node, tool in sorted(shown, key=lambda found: self.opened_at(found[0])) if shared else shown:
            owners.setdefault(portable_name(tool.name), node)
        closed = [node.path for node in self.closed()]
        builtin = self.options.disclosure.tools(
            with_tools=any(map(self.has_tools, closed)), content_only=not all(map(self.has_tools, closed))
        )
        collapse = self.options.collapse_tool
        if collapse is not None and any(node.summary is not None for node in full):
            builtin = (*builtin, collapse)
        offered: list[tuple[Node | None, AnyTool]] = []
        skipped: list[SkippedTool] = []
        for node, tool in shown:
            if (owner := owners[portable_name(tool.name)]) is node:
                offered.append((node, tool))
            else:
                skipped.append(SkippedTool(node, tool, owner))
        return [*offered, *((None, tool) for tool in builtin)], skipped

    def _exists(self, node: Node) -> bool:
        return self.seen[node.index] != ABSENT


@dataclass(frozen=True, repr=False)
class RenderedPrompt(Displayed, Generic[OutputT]):
    """The prompt as the model sees it at the start of a run.

    `text` is all of it: `system_text`, which stays the same from run to run as long as its params do, then `user_text`.
    """

    text: str
    tools: tuple[Tool[Any, Any], ...]  #: tools that can be called at the start
    hosted_tools: tuple[HostedTool[Any], ...]  #: tools that the provider runs
    structured_output: StructuredOutputConfig | None  #: the type of the answer; None for text
    deadline: Deadline | None  #: the deadline of the prompt, if it has one
    prompt_name: str  #: the name of the template
    view: View = field(compare=False)  #: the visibility of every section
    pieces: list[str] = field(compare=False)  #: `text` in pieces
    make_descriptor: Callable[[], PromptDescriptor] = field(compare=False)  #: computes the content hashes for overrides

    def __repr__(self) -> str:
        return f"<RenderedPrompt {self.prompt_name!r}: {len(self.text):,} characters, tools {self._tool_names()}>"

    def _display(self) -> Iterator[Shown]:
        view, count = self.view, self.view.options.counter.count
        yield f"{self.prompt_name}: {count(self.text):,} tokens, tools {self._tool_names()}"
        shown = {span.path: count(self.text[span.start : span.end]) for span in self.spans}
        yield tree(
            (
                node,
                view.visibility_of(node).value,
                view.decided_by(node),
                shown.get(node.path, 0),
                count(view.whole_text(node.path)),
            )
            for node in view.existing()
        )
        yield folded("Text", self.text)

    def _tool_names(self) -> str:
        names = [tool.name for tool in self.tools] + [tool.name for tool in self.hosted_tools]
        return ", ".join(names) or "none"

    @property
    def system_text(self) -> str:
        return "".join(self.pieces[: self.view.layout.user_piece])

    @property
    def user_text(self) -> str:
        """The sections with `role="user"`, which form the first user turn."""
        return "".join(self._user_pieces())

    @property
    def user_parts(self) -> tuple[Part, ...]:
        """The first user turn, with its media in place."""
        return parts_in(self._user_pieces())

    def _user_pieces(self) -> list[str]:
        pieces = self.pieces[self.view.layout.user_piece :]
        return [pieces[0].removeprefix("\n\n"), *pieces[1:]] if pieces else []

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Every part of the text with its section, in order."""
        return self.view.spans(self.pieces)

    @cached_property
    def descriptor(self) -> PromptDescriptor:
        """The content hashes of the template behind this text."""
        return self.make_descriptor()

    @property
    def visibility(self) -> Mapping[SectionPath, SectionVisibility]:
        """The visibility of each section in the text."""
        return {span.path: span.visibility for span in self.spans}

    @property
    def tool_param_descriptions(self) -> Mapping[str, Mapping[str, str]]:
        return {tool.name: tool.param_descriptions for tool in self.tools if tool.param_descriptions}

    @property
    def output_type(self) -> Any:
        return None if self.structured_output is None else self.structured_output.output_type

    @property
    def container(self) -> Container | None:
        return None if self.structured_output is None else self.structured_output.container

    @property
    def allow_extra_keys(self) -> bool | None:
        return None if self.structured_output is None else self.structured_output.allow_extra_keys
