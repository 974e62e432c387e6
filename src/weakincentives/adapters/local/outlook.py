"""A model request taken apart: the question, what can be opened, and what was read and called so far."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from weakincentives.prompt import SectionVisibility, Span, Tool
from weakincentives.prompt.disclosure.ranking import SectionText, sentences, terms
from weakincentives.runtime import ModelRequest
from weakincentives.runtime.spi import INSTRUCTIONS

OPENING_TOOLS = ("read_section", "open_sections")
SEARCH = "search_sections"
SECTION_TOOLS = (*OPENING_TOOLS, "collapse_section", SEARCH)
MAX_EARLIER = 4
# The length up to which a part of a message is compared as a whole; in a longer one, the rest outweighs the question.
MAX_WHOLE = 300
# The words that make a question clear without the one before it.
MIN_TERMS = 2
_HEADING = re.compile(r"^#{1,6} +(?:(?:\d+\.)+ +)?(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of the prompt behind a request.

    `spans` are their places in the prompt; without them, the whole prompt is the question. `texts` maps keys to the
    texts of sections not open from the start, and `closed` are the keys of those still closed. `readable` are titles
    and texts of these that the model has; `requested` are the sections it has asked for, `matches` those that a search
    listed, and `openings` the ids of its calls that opened or closed sections.
    """

    spans: Sequence[Span] = ()
    texts: Mapping[str, SectionText] = field(default_factory=dict)
    closed: Collection[str] = ()
    readable: Sequence[tuple[str, str]] = ()
    requested: Collection[str] = ()
    matches: Collection[str] = ()
    openings: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Outlook:
    """The material for a reply.

    `question` is the user's last message, or else the last open section of the prompt; `messages` is all that the user
    has written, latest first; `standing` are titles and texts of the sections open from the start, but for the
    question, and `instructions` is all of them as text; `earlier` is the conversation before the question. `choices`
    can be opened now: sections that the prompt lists or a search found, and those below them; `unlisted` says that a
    search may find more. `opened` are the sections opened so far, `readable` are their titles and texts, and `results`
    are what tools returned since the question.
    """

    question: str
    messages: str
    instructions: str
    standing: tuple[tuple[str, str], ...]
    earlier: tuple[dict[str, str], ...]
    choices: tuple[SectionText, ...]
    unlisted: bool
    opened: tuple[SectionText, ...]
    readable: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]
    tools: tuple[Tool[Any, Any], ...]

    @property
    def has_material(self) -> bool:
        """True if there is something to open, to quote or to report."""
        return bool(self.results or self.readable or self.choices or self.calls)


@dataclass(slots=True)
class _Conversation:
    """What the messages of a request say: the last question, and what was called and returned since then."""

    question: str
    questions: list[str] = field(default_factory=list)
    earlier: list[dict[str, str]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)


def outlook(request: ModelRequest, sections: Sections) -> Outlook:
    """Take a request apart."""
    prompt_text = next((message.text for message in request.messages if message.role == "system"), "")
    listed = {*sections.matches}
    declared = []
    for span in sections.spans:
        if span.role == "user":
            continue
        if span.visibility is SectionVisibility.SUMMARY:
            listed.add(".".join(span.path))
        elif span.decided_by == "declared":
            declared.append(prompt_text[span.start : span.end])
    bodies = [body for part in declared if (body := _body(part))]
    conversation = _conversation(request, sections, bodies[-1] if bodies else prompt_text)
    reachable = []
    for key in sections.closed:
        ancestors_and_self = accumulate(key.split("."), "{}.{}".format)
        if not listed.isdisjoint(ancestors_and_self):
            reachable.append(key)
    opened = [text for key, text in sections.texts.items() if key in sections.requested or key not in sections.closed]
    offered = tuple(tool for tool in request.tools if tool.name not in request.revoked)
    return Outlook(
        question=conversation.question,
        messages="\n".join(conversation.questions) or conversation.question,
        instructions="\n\n".join(part.strip() for part in declared),
        standing=tuple((_title(part), _body(part)) for part in declared if _body(part) != conversation.question),
        earlier=tuple(_alternating(conversation.earlier)[:-1][-MAX_EARLIER:]),
        choices=tuple(sections.texts[key] for key in reachable if key not in sections.requested),
        unlisted=len(reachable) < len(sections.closed) and any(tool.name == SEARCH for tool in offered),
        opened=tuple(opened),
        readable=tuple(sections.readable),
        results=tuple(conversation.results),
        calls=tuple(conversation.calls),
        tools=offered,
    )


def _conversation(request: ModelRequest, sections: Sections, question: str) -> _Conversation:
    conversation = _Conversation(question)
    for message in request.messages:
        if message.role == "user" and message.kind != INSTRUCTIONS:
            conversation.question = _body(message.text)
            conversation.questions.insert(0, conversation.question)
            conversation.results.clear()
            conversation.calls.clear()
        if message.role in ("user", "assistant") and message.text:
            conversation.earlier.append({"role": message.role, "content": message.text})
        conversation.calls += [(call.name, call.arguments) for call in message.tool_calls]
        # The run that made the calls may be another one, of which only the messages are known.
        about_sections = message.name in SECTION_TOOLS or message.call_id in sections.openings
        if message.role == "tool" and not about_sections:
            conversation.results.append(message.text)
    return conversation


def by_question(outlook: Outlook) -> list[Outlook]:
    """An outlook for each question of the message, with the results of the tools called with words of it."""
    questions = _questions(outlook.question)
    values = []
    for name, arguments in outlook.calls:
        if name not in (*OPENING_TOOLS, SEARCH):
            values += _values(arguments)
    answered_by_tool = [any(value in question for value in values) for question in questions]
    if outlook.results and not any(answered_by_tool):
        return [outlook]
    parts = []
    for question, has_result in zip(questions, answered_by_tool, strict=True):
        parts.append(replace(outlook, question=question, results=outlook.results if has_result else ()))
    return parts


def _values(arguments: str) -> list[str]:
    """The values of a call's arguments; none if another model made the call, and not as an object."""
    try:
        values = json.loads(arguments)
    except ValueError:
        return []
    return [str(value) for value in values.values()] if isinstance(values, dict) else []


def _questions(message: str) -> list[str]:
    """A message divided after each question; one part if it has at most one.

    A question of few words ("And why?") stays with the one before it. Of a long part, only the questions remain.
    """
    parts: list[str] = []
    for part in re.split(r"(?<=\?)\s+", message.strip()):
        if parts and ("?" not in part or _is_short(part) or _is_short(parts[-1])):
            parts[-1] += f" {part}"
        else:
            parts.append(part)
    return [part if len(part) <= MAX_WHOLE else _asking(part) for part in parts]


def _is_short(question: str) -> bool:
    return len(set(terms(question))) < MIN_TERMS


def _asking(text: str) -> str:
    return " ".join(sentence for sentence in sentences(text) if sentence.endswith("?")) or text


def _alternating(messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The last of each side's consecutive messages, since chat templates require alternating turns."""
    alternating = [message for message, after in pairwise(messages) if after["role"] != message["role"]]
    return [*alternating, *messages[-1:]]


def _body(part: str) -> str:
    return _HEADING.sub("", part, count=1).strip()


def _title(part: str) -> str:
    heading = _HEADING.search(part)
    return "" if heading is None else heading[1]
