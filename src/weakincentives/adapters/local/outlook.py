"""A model request taken apart: the question, what can be opened, and what was read and called so far."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, zip_longest
from typing import Any

from weakincentives.prompt import SectionVisibility, Span, Tool
from weakincentives.prompt.disclosure.ranking import SectionText, sentences, terms
from weakincentives.runtime import Message, ModelRequest
from weakincentives.runtime.spi import INSTRUCTIONS

OPENING_TOOLS = ("read_section", "open_sections")
SEARCH = "search_sections"
SECTION_TOOLS = (*OPENING_TOOLS, "collapse_section", SEARCH)
MAX_EARLIER = 4
# The length up to which a part of a message is compared as a whole; in a longer one, the rest outweighs the question.
MAX_WHOLE = 300
# The words that make a question clear without the one before it.
MIN_TERMS = 2
_HEADING = re.compile(r"^#{1,6} +(?:(?:\d+\.)+ +)?.+?\s*$", re.MULTILINE)
_SYSTEM = "You are a helpful assistant. Answer briefly."


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of the prompt behind a request.

    `spans` are their places in the prompt; without them, the whole prompt is the question. `known` maps keys to the
    texts of sections not open from the start, and `closed` are the keys of those still closed. `read` are titles
    and texts of these that the model has; `asked` are the sections it has asked for, `found` those that a search
    listed, and `openings` the ids of its calls that opened or closed sections.
    """

    spans: Sequence[Span] = ()
    known: Mapping[str, SectionText] = field(default_factory=dict)
    closed: Collection[str] = ()
    read: Sequence[tuple[str, str]] = ()
    asked: Collection[str] = ()
    found: Collection[str] = ()
    openings: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Outlook:
    """The material for a reply.

    `question` is the user's last message, or else the last open section of the prompt; `said` is all of the user's
    messages, latest first; `instructions` are the sections open from the start; `earlier` is the conversation before
    the question. `choices` can be opened now: sections that the prompt lists or a search found, and those below them;
    `unlisted` says that a search may find more. `opened` are the sections opened so far, `read` are their titles and
    texts, and `results` are what tools returned since the question.
    """

    question: str
    said: str
    instructions: str
    earlier: tuple[dict[str, str], ...]
    choices: tuple[SectionText, ...]
    unlisted: bool
    opened: tuple[SectionText, ...]
    read: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]
    tools: tuple[Tool[Any, Any], ...]


def outlook(request: ModelRequest, sections: Sections) -> Outlook:
    """Take a request apart."""
    text = next((message.text for message in request.messages if message.role == "system"), "")
    results: list[str] = []
    calls: list[tuple[str, str]] = []
    said: list[str] = []
    earlier: list[dict[str, str]] = []
    question, instructions, listed = text, [], {*sections.found}
    for span in sections.spans:
        part = text[span.start : span.end]
        if span.role == "user":
            continue
        if span.visibility is SectionVisibility.SUMMARY:
            listed.add(".".join(span.path))
        elif span.decided_by == "declared":
            question = _body(part) or question
            instructions.append(part.strip())
    for message in request.messages:
        if message.role == "user" and message.kind != INSTRUCTIONS:
            question, results, calls = _body(message.text), [], []
            said.insert(0, question)
        if message.role in ("user", "assistant") and message.text:
            earlier.append({"role": message.role, "content": message.text})
        calls += [(call.name, call.arguments) for call in message.tool_calls]
        # The run that made the calls may be another one, of which only the messages are known.
        about_sections = message.name in SECTION_TOOLS or message.call_id in sections.openings
        if message.role == "tool" and not about_sections:
            results.append(message.text)
    offered = tuple(tool for tool in request.tools if tool.name not in request.revoked)
    known, closed = sections.known, sections.closed
    reachable = [key for key in closed if not listed.isdisjoint(accumulate(key.split("."), "{}.{}".format))]
    return Outlook(
        question=question,
        said="\n".join(said) or question,
        instructions="\n\n".join(instructions),
        earlier=tuple(_alternating(earlier)[:-1][-MAX_EARLIER:]),
        choices=tuple(known[key] for key in reachable if key not in sections.asked),
        unlisted=len(reachable) < len(closed) and any(tool.name == SEARCH for tool in offered),
        opened=tuple(text for key, text in known.items() if key in sections.asked or key not in closed),
        read=tuple(sections.read),
        results=tuple(results),
        calls=tuple(calls),
        tools=offered,
    )


def by_question(outlook: Outlook) -> list[Outlook]:
    """An outlook for each question of the message, with the results of the tools called with words of it."""
    asked = _questions(outlook.question)
    words = [word for name, said in outlook.calls if name not in (*OPENING_TOOLS, SEARCH) for word in _values(said)]
    about = [any(word in question for word in words) for question in asked]
    if outlook.results and not any(about):
        return [outlook]
    return [
        replace(outlook, question=question, results=outlook.results if own else ())
        for question, own in zip(asked, about, strict=True)
    ]


def chat(request: ModelRequest) -> list[dict[str, str]]:
    """A run's messages; consecutive messages of one side are merged, since chat templates require alternating turns."""
    messages = [{"role": "system", "content": _SYSTEM}]
    for message in request.messages:
        role, text = ("assistant" if message.role == "assistant" else "user"), _text(message)
        if messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        elif text:
            messages.append({"role": role, "content": text})
    return messages


def _values(arguments: str) -> list[str]:
    """The values of a call's arguments; none if another model made the call, and not as an object."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return []
    return [str(value) for value in found.values()] if isinstance(found, dict) else []


def _questions(message: str) -> list[str]:
    """A message divided after each question; one part if it has at most one.

    A question of few words ("And why?") stays with the one before it. Of a long part, only the questions remain.
    """
    parts: list[str] = []
    for part in re.split(r"(?<=\?)\s+", message.strip()):
        if parts and ("?" not in part or min(len(set(terms(text))) for text in (part, parts[-1])) < MIN_TERMS):
            parts[-1] += f" {part}"
        else:
            parts.append(part)
    return [part if len(part) <= MAX_WHOLE else _asking(part) for part in parts]


def _asking(text: str) -> str:
    return " ".join(sentence for sentence in sentences(text) if sentence.endswith("?")) or text


def _alternating(messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The last of each side's consecutive messages, since chat templates require alternating turns."""
    pairs = zip_longest(messages, messages[1:])
    return [message for message, after in pairs if after is None or after["role"] != message["role"]]


def _body(part: str) -> str:
    return _HEADING.sub("", part, count=1).strip()


def _text(message: Message) -> str:
    if message.role == "tool":
        return f"{message.name} {'returned' if message.success else 'failed'}:\n{message.text}"
    return "\n".join([message.text, *(f"{call.name}({call.arguments})" for call in message.tool_calls)]).strip()
