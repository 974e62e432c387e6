"""Text laid out for one combination of open, summarized and absent sections.

The set of shown sections seldom changes between renders, so literals, headings and numbers are laid out once per
combination; a render then only fills in values and joins the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from operator import getitem
from typing import Any

from weakincentives.content import Audio, Document, Image, Part, parts_of
from weakincentives.errors import PromptRenderError
from weakincentives.prompt.outline import Node, Params, ParamsSource
from weakincentives.prompt.section import Section, TemplateText, heading, missing_summary, placeholder_text, unfilled
from weakincentives.prompt.visibility import SectionVisibility

Price = Callable[[Node], str]


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
    """Pieces of text with slots; `marks` has the piece at which each shown section begins.

    The pieces from `user_piece` on are the user's: those of sections whose index is `user_start` or higher. `lead` has
    the mark of the section that text of no section precedes, and the length of that text.
    """

    def __init__(self, user_start: int) -> None:
        self._user_start = user_start
        self._value_index: dict[tuple[ParamsSource | None, str, str, str], int] = {}
        self._pieces: list[str] = []
        self._slots: list[tuple[int, int]] = []
        self._calls: list[tuple[int, Callable[[Params], str]]] = []
        self._prices: list[tuple[int, Node]] = []
        self.marks: list[tuple[Node, int]] = []
        self.lead: tuple[int, int] | None = None

    def add(self, node: Node, depth: int, number: str, suffix: str | None, lead: str = "") -> None:
        """Append a section; with a suffix, as a summary. `lead` is text before it that belongs to no section."""
        section, separator = node.section, ("\n\n" if self.marks else "") + lead
        if lead:
            self.lead = (len(self.marks), len(lead))
        if suffix is not None and node.summary is None:
            raise missing_summary(node.key)
        self.marks.append((node, len(self._pieces)))
        if type(section).render is not Section.render:
            shown = SectionVisibility.FULL if suffix is None else SectionVisibility.SUMMARY
            whole = partial(section.render, depth=depth, number=number, path=node.path, visibility=shown)
            self._pieces.append(separator)
            self._add_call(node, whole)
        else:
            text = node.text if suffix is None else node.summary
            head = separator + (heading(section.title, depth, number) if section.heading else "")
            gap = "\n\n" if section.heading else ""
            if text is None:
                self._pieces.append(head)
                self._add_call(node, section.render_body, after=gap)
            elif text.names or text.literals[0]:
                self._add_text(node, head + gap, text)
            else:
                self._pieces.append(head)
        if suffix is not None:
            self._prices.append((len(self._pieces) + 1, node))
            self._pieces += (suffix, "")

    @cached_property
    def user_piece(self) -> int:
        return next((piece for node, piece in self.marks if node.index >= self._user_start), len(self._pieces))

    def by_section(self, pieces: Sequence[str]) -> Iterator[tuple[Node, Sequence[str]]]:
        """The filled pieces of each shown section, in order."""
        ends = [*(piece for _, piece in self.marks[1:]), len(pieces)]
        return ((node, pieces[start:end]) for (node, start), end in zip(self.marks, ends, strict=False))

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
            for piece, node in self._prices:
                pieces[piece] = price(node)
        return pieces

    def _read_values(self, params: Params) -> list[str]:
        values: list[str] = []
        known: ParamsSource | None = None
        instance: Any = None
        read: Callable[[Any, str], Any] = getattr
        for source, name, spec, indent in self._value_index:
            if source is not known:
                known, instance = source, params[source]
                read = getitem if type(instance) is dict else getattr
            try:
                value = read(instance, name)
                values.append(value if type(value) is str and not spec else _text_of(value, spec, indent))
            except Exception as error:
                slot = next(piece for piece, at in self._slots if at == len(values))
                key = [node.key for node, piece in self.marks if piece <= slot][-1]
                raise unfilled(key, name, spec, instance, error) from error
        return values

    def _check_placed(self, values: Sequence[str]) -> None:
        for piece, value in self._slots:
            if piece < self.user_piece and isinstance(values[value], Placed):
                _, name, *_ = list(self._value_index)[value]
                raise PromptRenderError(
                    f"${{{name}}} is {values[value]}, which can only be placed in a section with role='user'."
                )

    def _add_text(self, node: Node, head: str, text: TemplateText) -> None:
        self._pieces.append(head + text.literals[0])
        for name, spec, indent, literal in zip(text.names, text.formats, text.indents, text.literals[1:], strict=True):
            value = self._value_index.setdefault((node.source, name, spec, indent), len(self._value_index))
            self._slots.append((len(self._pieces), value))
            self._pieces += ("", literal)

    def _add_call(self, node: Node, render: Callable[[Any], str], after: str = "") -> None:
        self._calls.append((len(self._pieces), partial(_call, node, render, after)))
        self._pieces.append("")


def _text_of(value: Any, spec: str, indent: str) -> str:
    if not isinstance(value, Image | Document | Audio):
        return placeholder_text(value, spec, indent)
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
