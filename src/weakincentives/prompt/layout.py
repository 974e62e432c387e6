"""Text laid out for one combination of open, summarized and absent sections.

The set of shown sections seldom changes between renders, so literals, headings and numbers are laid out once per
combination; a render then only fills in values and joins the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import getitem
from typing import Any, Literal

from weakincentives.content import Audio, Document, Image, Part, parts_of
from weakincentives.errors import PromptRenderError
from weakincentives.prompt.outline import ABSENT, PACKED, SUMMARY, Node, Outline, Params
from weakincentives.prompt.section import Section, TemplateText, heading, missing_summary, placeholder_text
from weakincentives.prompt.toolkit import AnyTool

Suffix = Callable[[Node], str]
Price = Callable[[Node], str]
Menu = Literal["all", "top", "none"]


class Placed(str):
    """A media part, with the words that stand for it in the text."""

    part: Image | Document | Audio


def media_in(pieces: Iterable[str]) -> tuple[Image | Document | Audio, ...]:
    """The images, documents and recordings in filled pieces."""
    return tuple(piece.part for piece in pieces if isinstance(piece, Placed))


def parts_in(pieces: Iterable[str]) -> tuple[Part, ...]:
    """The content that filled pieces make, with its media in place."""
    content: list[str | Part] = []
    text: list[str] = []
    for piece in pieces:
        if isinstance(piece, Placed):
            content += ("".join(text).strip(), piece.part)
            text = []
        else:
            text.append(piece)
    return parts_of([*content, "".join(text).strip()])


class Layout:
    """Pieces of text with slots; `marks` says at which piece each shown section begins.

    The pieces from `user_piece` on are the user's. `summarized` are the closed sections; `listed` are those whose
    summaries are in the text.
    """

    def __init__(
        self, outline: Outline, states: bytes, suffix: Suffix, *, root: Node | None = None, menu: Menu = "all"
    ) -> None:
        self._outline = outline
        self._states = states
        self._menu = menu
        self._value_index: dict[tuple[int, str], int] = {}
        self._pieces: list[str] = []
        self._slots: list[tuple[int, int]] = []
        self._calls: list[tuple[int, Callable[[Params], str]]] = []
        self.marks: list[tuple[Node, int]] = []
        self.summarized: list[Node] = []
        self.listed: list[Node] = []
        self.prices: list[tuple[int, Node]] = []
        self._lay_out(root, suffix)
        user = (piece for node, piece in self.marks if node.index >= outline.user_start)
        self.user_piece = next(user, len(self._pieces))
        self.values = tuple(self._value_index)
        self.sources = outline.sources_of(states)

    @property
    def full(self) -> Iterable[Node]:
        """The sections shown in full, in order."""
        return (node for node, _ in self.marks if self._states[node.index] != SUMMARY)

    def tools(self) -> list[tuple[Node, AnyTool]]:
        """Every tool of the sections shown in full, with its section; names may still collide."""
        return [(node, tool) for node in self.full for tool in node.all_tools]

    def fill(self, params: Params, price: Price | None = None) -> list[str]:
        """The pieces with every slot filled; joined, they are the text."""
        pieces = self._pieces.copy()
        values = self._read_values(params)
        for piece, value in self._slots:
            pieces[piece] = values[value]
        if Placed in map(type, values):
            self._check_placed(values)
        for piece, call in self._calls:
            pieces[piece] = call(params)
        if price is not None:
            for piece, node in self.prices:
                pieces[piece] = price(node)
        return pieces

    def _read_values(self, params: Params) -> list[str]:
        values: list[str] = []
        known, instance = -1, None
        read: Callable[[Any, str], Any] = getattr
        for source, name in self.values:
            if source != known:
                known, instance = source, params[source]
                read = getitem if type(instance) is dict else getattr
            try:
                value = read(instance, name)
                values.append(value if type(value) is str else _text_of(value))
            except Exception as error:
                raise PromptRenderError(
                    f"${{{name}}} of {type(instance).__name__} cannot be filled in: {type(error).__name__}: {error}"
                ) from error
        return values

    def _check_placed(self, values: Sequence[str]) -> None:
        for piece, value in self._slots:
            if piece < self.user_piece and isinstance(values[value], Placed):
                _, name = self.values[value]
                raise PromptRenderError(
                    f"${{{name}}} is {values[value]}, which can only be placed in a section with role='user'."
                )

    def _lay_out(self, root: Node | None, suffix: Suffix) -> None:
        nodes, states = self._outline.nodes, self._states
        index, end, top = (0, len(nodes), 0) if root is None else (root.index, root.end, root.depth)
        counters: list[int] = []
        while index < end:
            node = nodes[index]
            if states[index] == ABSENT:
                index = node.end
                continue
            if states[index] == SUMMARY:
                self.summarized.append(node)
                if node.summary is None:
                    raise missing_summary(node.key)
                if node is not root and not self._is_listed(node):
                    index = node.end
                    continue
                self.listed.append(node)
            depth = node.depth - top
            del counters[depth + 1 :]
            if len(counters) <= depth:
                counters.append(0)
            counters[depth] += 1
            number = ".".join(map(str, counters)) if root is None else ""
            self.marks.append((node, len(self._pieces)))
            self._add_section(node, depth, number, suffix, first=len(self.marks) == 1)
            index = node.end if states[index] == SUMMARY else index + 1

    def _is_listed(self, node: Node) -> bool:
        """Whether the text contains a closed section's summary; below an opened section, it always does."""
        if self._menu == "all" or (self._menu == "top" and node.parent < 0):
            return True
        return node.parent >= 0 and self._outline.base[node.parent] == SUMMARY

    def _add_section(self, node: Node, depth: int, number: str, suffix: Suffix, *, first: bool) -> None:
        section, summarized = node.section, self._states[node.index] == SUMMARY
        separator = "" if first else "\n\n"
        if type(section).render is not Section.render:
            shown = PACKED[self._states[node.index]]
            whole = partial(section.render, depth=depth, number=number, path=node.path, visibility=shown)
            self._pieces.append(separator)
            self._add_call(node, whole)
        else:
            text = node.summary if summarized else node.text
            head = separator + heading(section.title, depth, number)
            if text is None:
                self._pieces.append(head)
                self._add_call(node, section.render_body, after="\n\n")
            elif text.names or text.literals[0]:
                self._add_text(node, head + "\n\n", text)
            else:
                self._pieces.append(head)
        if summarized:
            self._pieces.append(suffix(node))
            self.prices.append((len(self._pieces), node))
            self._pieces.append("")

    def _add_text(self, node: Node, head: str, text: TemplateText) -> None:
        self._pieces.append(head + text.literals[0])
        for name, literal in zip(text.names, text.literals[1:], strict=True):
            value = self._value_index.setdefault((node.source, name), len(self._value_index))
            self._slots.append((len(self._pieces), value))
            self._pieces += ("", literal)

    def _add_call(self, node: Node, render: Callable[[Any], str], after: str = "") -> None:
        self._calls.append((len(self._pieces), partial(_call, node, render, after)))
        self._pieces.append("")


def _text_of(value: Any) -> str:
    if not isinstance(value, Image | Document | Audio):
        return placeholder_text(value)
    placed = Placed(value)
    placed.part = value
    return placed


def _call(node: Node, render: Callable[[Any], str], after: str, params: Params) -> str:
    """The text a section renders itself, if any, after a separator."""
    try:
        text = render(params[node.source])
    except PromptRenderError:
        raise
    except Exception as error:
        raise PromptRenderError(f"Section '{node.key}' failed to render: {type(error).__name__}: {error}") from error
    if not isinstance(text, str):
        raise PromptRenderError(f"Section '{node.key}' must render text, got a {type(text).__name__}.")
    return after + text if text else ""
