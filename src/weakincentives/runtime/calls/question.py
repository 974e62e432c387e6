"""The question about a call that waits for a person: all that agreeing would do, or what of it is not shown.

It is made once, when the call begins to wait, and stored with it. Terminals, pages, hosts and workers draw it; none of
them looks at the call itself. Its texts are without secrets, and nothing in them hides.

A line of foreign text never stands at the beginning of a line: it has a mark or an indentation before it, so that it
cannot pass for a heading.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from weakincentives.runtime.calls.difference import Difference, Line
from weakincentives.runtime.calls.effects import Effects

Needs = Literal["call", "effects", "answer"]
PartKind = Literal["note", "call", "preview", "file", "events", "slice", "resource", "missing"]
AnswerKind = Literal["approve", "deny", "edit", "answer"]


@dataclass(frozen=True, slots=True)
class AskedCall:
    """The facts of a call that a person is asked about.

    `arguments` is the JSON text to be used, `params` the typed value. `effects` is what the call would change, if its
    handler ran for the question. `needs` says what was asked for: before the "call", with its "effects", or an "answer"
    in place of a handler; `note` says why, if a guard asks.
    """

    call_id: str  #: the id of the call
    tool: str  #: the tool's name
    section_key: str  #: the section that offers the tool
    arguments: str
    params: Any = None
    effects: Effects | None = None
    needs: Needs = "call"
    edited: bool = False  #: True if a person changed the arguments
    note: str = ""
    own_name: str = ""  #: the section's own name for the tool, if it was loaded late


@dataclass(frozen=True, slots=True)
class QuestionPart:
    """A part of a question: the call, a file, a slice. `title` names it, and is the first of its `lines`, if shown.

    `changes` are the differences of a slice or a resource as data.
    """

    kind: PartKind  #: what the part is about
    title: str = ""
    lines: tuple[Line, ...] = ()
    changes: tuple[Difference, ...] = ()


def missing_part(sentences: Iterable[str]) -> QuestionPart:
    """The last part of a question: what of it is not shown."""
    lines = [Line("heading", "Not all of it is shown:")]
    for sentence in sentences:
        lines.append(Line("note", f"  {sentence}"))
    return QuestionPart("missing", lines[0].text, tuple(lines))


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked about a call, as every surface draws it.

    `id` names the call and exactly what was shown: a decision about another question is none about this one. `parts`
    are what to read, in order, and `missing` says in sentences what agreeing would do besides. `answers` are the kinds
    of decisions that are possible, and `data` is the question for programs. Secrets are replaced in all of it.
    """

    id: str  #: the key of a decision
    call_id: str  #: the id of the call
    tool: str  #: the tool's name
    section_key: str = ""  #: the section that offers the tool
    needs: Needs = "call"  #: what is asked for: before the call, with its effects, or an answer
    words: str = ""  #: the question in a sentence
    parts: tuple[QuestionPart, ...] = field(default=(), repr=False)
    missing: tuple[str, ...] = ()
    answers: tuple[AnswerKind, ...] = ()
    arguments: Any = field(default=None, repr=False)  #: the arguments as data
    editable: bool = True  #: False if the arguments have secrets, which are replaced here

    @property
    def complete(self) -> bool:
        """True if all that agreeing would do is shown."""
        return not self.missing

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of all parts, for drawing."""
        lines: list[Line] = []
        for part in self.parts:
            lines += part.lines
        return tuple(lines)

    @property
    def text(self) -> str:
        """The question as plain text."""
        blocks = [self.words]
        for part in self.parts:
            blocks.append("\n".join(line.text for line in part.lines))
        return "\n\n".join(blocks)

    def excerpt(self, characters: int) -> str:
        """The text, or its beginning with a sentence that says how much is left out."""
        text = self.text
        if len(text) <= characters:
            return text
        shown = text[: text.rfind("\n", 0, characters) + 1].rstrip() or text[:characters]
        return f"{shown}\n\nNot all of it is shown: {len(text) - len(shown):,} more characters."

    @property
    def data(self) -> dict[str, Any]:
        """The question as plain JSON data, for pages and programs."""
        return {
            "id": self.id,
            "tool": self.tool,
            "words": self.words,
            "text": self.text,
            "parts": [_part_data(part) for part in self.parts],
            "arguments": self.arguments,
            "complete": self.complete,
            "missing": list(self.missing),
            "answers": list(self.answers),
            "editable": self.editable,
        }

    def with_parts(self, parts: Sequence[QuestionPart], missing: str) -> Question:
        """The same question with some of its parts alone; the sentence says what is left out."""
        return replace(self, parts=(*parts, missing_part([missing])), missing=(missing,))

    def inside(self, outer_id: str) -> Question:
        """The question as the run around it knows it, whose call has this id."""
        call_id = f"{outer_id}/{self.call_id}"
        return replace(self, id=f"{call_id}:{self.digest}", call_id=call_id)

    @property
    def digest(self) -> str:
        return self.id.rpartition(":")[2]


def _part_data(part: QuestionPart) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": part.kind,
        "title": part.title,
        "lines": [{"kind": line.kind, "text": line.text} for line in part.lines],
    }
    if part.changes:
        data["changes"] = [
            {"kind": change.kind, "path": change.path, "before": change.before, "after": change.after}
            for change in part.changes
        ]
    return data
