"""Makes the question about a call: its parsed arguments, and what it would change, part by part.

It takes a while for large effects, so it is done off the event loop, and once: the question is stored with the call.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeAlias

from weakincentives._base.annotations import signature_of
from weakincentives._base.visible import exactly_visible
from weakincentives.filesystem import FileChange
from weakincentives.limits import Deadline
from weakincentives.prompt import Tool
from weakincentives.redaction import REDACTED, Redactor, is_secret_name
from weakincentives.resources import ResourceChange
from weakincentives.runtime.calls.alignment import aligned
from weakincentives.runtime.calls.arguments import argument_lines, parsed_arguments
from weakincentives.runtime.calls.difference import Difference, Differences, Line, LineKind, differences, listing
from weakincentives.runtime.calls.effects import Effects, SliceChange
from weakincentives.runtime.calls.question import (
    AnswerKind,
    AskedCall,
    Needs,
    PartKind,
    Question,
    QuestionPart,
    missing_part,
)
from weakincentives.runtime.loop.bridge import HandlerTimeout, Step, TimedCall, TimedCalls

MAX_SHOWN = 200_000
"""The characters of all effects that one question shows; what is beyond them is named as missing."""
MAX_FILE = 60_000
MAX_ARGUMENT = 20_000
"""The characters that are shown of one argument; of a call that shows its effects, a fifth of it."""
MAX_PREVIEW = 20_000
MAX_NAMED = 200
MAX_EMPTY = 10
PREVIEW_SECONDS = 10.0
MAKING_SECONDS = 300.0
"""How long a question may take to be made: a bound for what should be a fraction of a second."""

WORDS: dict[Needs, str] = {
    "call": "Allow this call? It has not run yet.",
    "effects": "Make these changes? They were tried and taken back.",
    "answer": "This needs your answer.",
}
ANSWERS: dict[Needs, tuple[AnswerKind, ...]] = {
    "call": ("approve", "deny", "edit", "answer"),
    "effects": ("approve", "deny", "edit", "answer"),
    "answer": ("answer", "deny"),
}


Preview: TypeAlias = Callable[..., Any]


class Own(NamedTuple):
    """The tool's own text about a call; none if it has no preview, and nothing but that it `failed` if it did."""

    text: str | None = None
    failed: bool = False


def question_steps(
    tool: Tool[Any, Any] | None, asked: AskedCall, occasion: str, deadline: Deadline | None = None
) -> Generator[Step, Any, Question]:
    """The question about a call. The tool's preview is called, and the question made, off the event loop.

    `occasion` distinguishes it from others that say the same: of another run, or after an earlier decision.
    """
    limit = None if deadline is None else max(0.0, deadline.remaining().total_seconds())
    preview = None if tool is None else tool.preview
    own = Own()
    if preview is not None:
        texts: list[Any] = []
        function = partial(preview, asked.params, **_options(preview, asked))
        settle = partial(_settle_preview, texts)
        is_async = inspect.iscoroutinefunction(preview)
        yield TimedCalls([TimedCall(function, PREVIEW_SECONDS, settle, is_async=is_async)], limit)
        text = texts[0] if texts and isinstance(texts[0], str) else None
        own = Own(text, failed=text is None)
    questions: list[Question] = []
    failures: list[BaseException] = []

    def settle_question(question: Any, error: BaseException | None) -> None:
        if error is None:
            questions.append(question)
        else:
            failures.append(error)

    yield TimedCalls(
        [TimedCall(partial(question_of, asked, occasion, own), MAKING_SECONDS, settle_question, is_async=False)], limit
    )
    for error in failures:
        if isinstance(error, HandlerTimeout):
            raise TimeoutError(f"The question about '{asked.tool}' took too long to be made.")
        raise error
    return questions[0]


def _options(preview: Preview, asked: AskedCall) -> dict[str, Any]:
    return {"effects": asked.effects} if _takes_effects(preview) else {}


@lru_cache(maxsize=1024)
def _takes_effects(preview: Preview) -> bool:
    return "effects" in signature_of(preview).parameters


def _settle_preview(texts: list[Any], text: Any, error: BaseException | None) -> None:
    texts.append(text if error is None else error)


def question_of(asked: AskedCall, occasion: str = "", own: Own = Own()) -> Question:
    """The question about a call."""
    drawing = _Drawing(Redactor())
    if asked.note:
        drawing.add_note("A guard asks a person:", asked.note)
    if asked.edited:
        drawing.add(QuestionPart("note", "", (Line("note", "A person has changed the arguments."),)))
    arguments, editable = drawing.add_call(asked)
    if own.text is not None:
        drawing.add_preview(own.text)
    elif own.failed:
        drawing.add(QuestionPart("preview", "", (Line("note", "The tool's own description of this call failed."),)))
    if asked.effects is not None:
        drawing.add_effects(asked.effects)
    drawing.end()
    return Question(
        id=f"{asked.call_id}:{_digest(asked, occasion, drawing.unredacted)}",
        call_id=asked.call_id,
        tool=exactly_visible(asked.tool),
        section_key=exactly_visible(asked.section_key),
        needs=asked.needs,
        words=WORDS[asked.needs],
        parts=tuple(drawing.parts),
        missing=tuple(drawing.missing),
        answers=ANSWERS[asked.needs],
        arguments=arguments,
        editable=editable,
    )


def _digest(asked: AskedCall, occasion: str, shown: Iterable[str]) -> str:
    """A digest of all that is asked, and of all that is shown, with nothing replaced."""
    facts = (
        *(asked.tool, asked.own_name, asked.section_key, asked.needs, asked.arguments, asked.note),
        *(asked.edited, occasion),
        "" if asked.effects is None else asked.effects.digest,
    )
    digest = hashlib.sha256(json.dumps(facts).encode())
    for text in shown:
        digest.update(b"\0%d\0" % len(text))
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


class _Drawing:
    """The parts of one question, as they are made: without secrets, with nothing that hides, and not too long."""

    def __init__(self, redactor: Redactor) -> None:
        self.parts: list[QuestionPart] = []
        self.missing: dict[str, None] = {}
        self.unredacted: list[str] = []
        self._redactor = redactor
        self._room = MAX_SHOWN
        self._secrets = 0

    def add(self, part: QuestionPart) -> None:
        """Add a part as it is drawn."""
        for line in part.lines:
            self.unredacted.append(line.text)
        lines = self._without_secrets(part.lines)
        visible = [Line(line.kind, exactly_visible(line.text)) for line in lines]
        changes = tuple(map(self._shown_change, part.changes))
        self.parts.append(
            QuestionPart(part.kind, exactly_visible(self._redactor.text(part.title)), tuple(_folded(visible)), changes)
        )

    def add_note(self, heading: str, text: str) -> None:
        lines = [Line("heading", heading)]
        for line in text.split("\n"):
            lines.append(Line("same", f"  {line}"))
        self.add(QuestionPart("note", heading, tuple(lines)))

    def add_preview(self, text: str) -> None:
        if len(text) > MAX_PREVIEW:
            text = f"{text[:MAX_PREVIEW]}\n... and {len(text) - MAX_PREVIEW:,} more characters"
        lines = [Line("heading", "The tool says:")]
        for line in text.split("\n"):
            lines.append(Line("same", f"  {line}"))
        self.add(QuestionPart("preview", "The tool says:", tuple(lines)))

    def add_call(self, asked: AskedCall) -> tuple[Any, bool]:
        """Add the call; returns its arguments as data without secrets, and whether there were none."""
        data, defaults = parsed_arguments(asked.arguments, asked.params)
        clean = self._redactor.data(data)
        if clean != data:
            self._secrets += max(json.dumps(clean).count(REDACTED) - json.dumps(data).count(REDACTED), 1)
        most = MAX_ARGUMENT // 5 if asked.needs == "effects" else MAX_ARGUMENT
        lines, missing = argument_lines(asked.tool, clean, defaults, most)
        if asked.needs != "effects":
            self._miss(missing)
        self.add(QuestionPart("call", asked.tool, tuple(lines)))
        return clean, clean == data

    def add_effects(self, effects: Effects) -> None:
        for change in effects.files:
            self._add_file(change)
        for each in effects.slices:
            self._add_slice(each)
        for resource in effects.resources:
            self._add_resource(resource)
        self._add_events(effects.events)

    def _add_file(self, change: FileChange) -> None:
        title, lines, missing = file_lines(change, min(self._room, MAX_FILE))
        self._miss(missing)
        self._room -= sum(len(line.text) for line in lines)
        self.add(QuestionPart("file", title, tuple(lines)))

    def _add_slice(self, change: SliceChange) -> None:
        name = _name(change.slice_type)
        before: Any = change.before
        after: Any = change.after
        if len(before) == len(after) == 1:
            before, after = before[0], after[0]
        self._add_differences("slice", name, differences(before, after, name=name, characters=max(self._room, 0)))

    def _add_resource(self, change: ResourceChange) -> None:
        name = _name(change.protocol)
        if not change.changes:
            room = max(self._room, 0)
            self._add_differences(
                "resource", name, differences(change.before, change.after, name=name, characters=room)
            )
            return
        others = [each for each in change.changes if not isinstance(each, FileChange)]
        if others:
            self._add_listed("resource", name, others, "stated")

    def _add_events(self, events: Sequence[Any]) -> None:
        if events:
            self._add_listed("events", "It would record:", events, "added")

    def _add_listed(self, kind: PartKind, title: str, values: Sequence[Any], mark: Literal["added", "stated"]) -> None:
        """Add values that stand for themselves, such as events."""
        items: list[Difference] = []
        missing: list[str] = []
        for number, value in enumerate(values):
            listed = listing(mark, value, name=_name(type(value)), characters=max(self._room, 0))
            self._room -= sum(len(line.text) for line in listed.lines)
            items += listed.items
            missing += listed.missing
            if self._room <= 0 and number + 1 < len(values):
                missing.append(f"{len(values) - number - 1:,} more of {title.rstrip(':')} are not shown.")
                break
        self._add_differences(kind, title, Differences(tuple(items), tuple(missing)), spend=False)

    def _add_differences(self, kind: PartKind, title: str, found: Differences, *, spend: bool = True) -> None:
        lines = [Line("heading", title)]
        changes: list[Difference] = []
        for difference in found.items:
            if is_secret_name(_last_name(difference.path)) and not _is_empty(difference):
                difference = _with_secret_hidden(difference)
                self._secrets += 1
            changes.append(difference)
            lines += difference.lines
        if spend:
            self._room -= sum(len(line.text) for line in lines)
        self._miss(found.missing)
        self.add(QuestionPart(kind, title, tuple(lines), tuple(changes)))

    def end(self) -> None:
        """Add what is not shown, in words."""
        if self._secrets:
            values = "value that looks" if self._secrets == 1 else "values that look"
            self._miss([f"{self._secrets:,} {values} like a secret {'is' if self._secrets == 1 else 'are'} not shown."])
        if self.missing:
            self.parts.append(missing_part(self.missing))

    def _miss(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            if len(self.missing) < MAX_NAMED:
                self.missing.setdefault(exactly_visible(self._redactor.text(sentence)))

    def _without_secrets(self, lines: tuple[Line, ...]) -> list[Line]:
        """The lines without secrets; one may go over several lines."""
        text = "\n".join(line.text for line in lines)
        clean = self._redactor.text(text)
        if clean == text:
            return list(lines)
        cleaned = _lines_of(clean.split("\n"), lines)
        before = sum(line.text.count(REDACTED) for line in lines if line.kind != "same")
        after = sum(line.text.count(REDACTED) for line in cleaned if line.kind != "same")
        self._secrets += max(after - before, 0)
        return cleaned

    def _shown_change(self, change: Difference) -> Difference:
        """The difference as data: its lines are in the part."""

        def shown(text: str) -> str:
            return exactly_visible(self._redactor.text(text))

        return Difference(change.kind, shown(change.path), shown(change.before), shown(change.after))


def _with_secret_hidden(difference: Difference) -> Difference:
    """The difference of a field whose name says that it holds a secret."""
    lines: list[Line] = []
    for line in difference.lines[:1]:
        head = line.text.partition(": ")[0].rstrip(":")
        lines.append(Line(line.kind, f"{head}: {REDACTED}"))
    before, after = difference.before and REDACTED, difference.after and REDACTED
    return Difference(difference.kind, difference.path, before, after, tuple(lines))


def _is_empty(difference: Difference) -> bool:
    return not {difference.before, difference.after} - {"", "''", "None"}


def _last_name(path: str) -> str:
    return path.rpartition(".")[2].strip("[]'\"")


def _lines_of(texts: Sequence[str], lines: Sequence[Line]) -> list[Line]:
    """The lines that have these texts now; the mark of one that is new says of which kind it is."""
    kinds: dict[int, Line] = {}
    for at, new_at in aligned([line.text for line in lines], texts):
        kinds[new_at] = lines[at]
    found: list[Line] = []
    for at, text in enumerate(texts):
        if at in kinds:
            found.append(kinds[at])
        elif len(texts) == len(lines):
            found.append(Line(lines[at].kind, text))
        elif text.startswith("+"):
            found.append(Line("added", text))
        else:
            found.append(Line("removed" if text.startswith("-") else "same", text))
    return found


def _folded(lines: Sequence[Line]) -> list[Line]:
    """The lines with long runs of empty ones as one, which says how many they are."""
    folded: list[Line] = []
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and lines[end] == lines[start] and not lines[end].text.strip(" +-|"):
            end += 1
        if end - start > MAX_EMPTY:
            folded.append(Line(lines[start].kind, f"{lines[start].text}⟨{end - start:,} empty lines⟩"))
        else:
            end = max(end, start + 1)
            folded += lines[start:end]
        start = end
    return folded


def file_lines(change: FileChange, most: int) -> tuple[str, list[Line], list[str]]:
    """The title of a changed file, its lines of at most so many characters, and what is not shown."""
    title = _file_title(change)
    lines = [Line("heading", title)]
    missing: list[str] = []
    body = _diff_lines(change)
    for text in _facts(change, is_text=bool(body)):
        lines.append(Line("changed", f"  {text}"))
    if not body and change.before != change.after and "file" in (change.kind, change.kind_before):
        missing.append(f"{title} is binary, so that its content is not shown.")
    room = most
    for text in body:
        room -= len(text)
        if room < 0 or text.startswith("["):
            hidden = "The rest of the difference is not shown."
            lines.append(Line("note", f"  {hidden}"))
            missing.append(f"Not all of the difference of {title} is shown.")
            break
        lines.append(Line(_LINE_KINDS.get(text[:1], "note"), text))
    return title, lines, missing


_LINE_KINDS: dict[str, LineKind] = {"+": "added", "-": "removed", " ": "same"}


def _diff_lines(change: FileChange) -> list[str]:
    """The lines of a difference of text, without the names of the file."""
    lines = change.diff.rstrip("\n").split("\n")
    while lines and not lines[0].startswith("+++ "):
        del lines[0]
    return lines[1:]


def _facts(change: FileChange, *, is_text: bool) -> Iterator[str]:
    """What changes of a file besides its text."""
    kind_before = change.kind_before or change.kind
    if change.before is not None and change.after is not None and kind_before != change.kind:
        yield f"{kind_before} -> {change.kind}"
    if change.mode is not None and change.mode_before is not None and change.mode != change.mode_before:
        yield f"mode {change.mode_before:o} -> {change.mode:o}"
    elif change.before is None and change.mode is not None and change.mode & 0o111:
        yield f"mode {change.mode:o}"
    if "link" in (change.kind, kind_before):
        before = _target(change.before) if kind_before == "link" else "none"
        after = _target(change.after) if change.kind == "link" else "none"
        yield f"link to {before} -> link to {after}"
    if not is_text and change.before != change.after and "file" in (change.kind, kind_before):
        yield f"{_size(change.before)} -> {_size(change.after)}"


def _target(content: bytes | None) -> str:
    return "none" if content is None else repr(os.fsdecode(content))


def _size(content: bytes | None) -> str:
    if content is None:
        return "none"
    return f"{len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()[:12]}"


def _file_title(change: FileChange) -> str:
    path = change.path if change.path.isprintable() and change.path[:1] not in "+-@ " else repr(change.path)
    if change.before is None:
        return f"{path} (new {change.kind})"
    return path if change.after is not None else f"{path} (deleted)"


def _name(cls: Any) -> str:
    """The name of a class; a recording of a process with other classes has a stand-in for it."""
    return str(getattr(cls, "__qualname__", None) or getattr(cls, "type", cls))
