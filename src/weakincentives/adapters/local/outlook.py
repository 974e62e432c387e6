"""A model request taken apart: the question, what can be opened, and what was read and called so far."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Any

from weakincentives.prompt import SectionVisibility, Span, Tool
from weakincentives.prompt.ranking import SectionText
from weakincentives.runtime import INSTRUCTIONS, Message, ModelRequest

OPENING_TOOLS = ("read_section", "open_sections")
SEARCH = "search_sections"
MAX_EARLIER = 4
_HEADING = re.compile(r"^#{1,6} +(?:(?:\d+\.)+ +)?.+?\s*$", re.MULTILINE)
_HIT = re.compile(r'^- "([^"]+)": ', re.MULTILINE)
# A closed section below one that was read: its summary is not yet an answer.
_SUMMARY = re.compile(
    r"^#{1,6} (?:(?!^#{1,6} ).)*?^---\n\[This section is summarized\b[^\n]*", re.MULTILINE | re.DOTALL
)
_SYSTEM = "You are a helpful assistant. Answer briefly."


@dataclass(frozen=True, slots=True)
class Outlook:
    """The material for a reply.

    `question` is the user's last message, or else the last open section of the prompt; `said` is all of the user's
    messages, latest first; `instructions` are the sections open from the start; `earlier` is the conversation before
    the question. `choices` can be opened now: sections that the prompt lists or a search found, and those below them;
    `unlisted` says that a search may find more. `opened` are the sections opened so far, `read` is what they said, and
    `results` are what tools returned since the question.
    """

    question: str
    said: str
    instructions: str
    earlier: tuple[dict[str, str], ...]
    choices: tuple[SectionText, ...]
    unlisted: bool
    opened: tuple[SectionText, ...]
    read: tuple[str, ...]
    results: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]
    tools: tuple[Tool[Any, Any], ...]


def outlook(
    request: ModelRequest, spans: Sequence[Span], known: Mapping[str, SectionText], closed: Collection[str]
) -> Outlook:
    """Take a request apart; without `spans`, the whole prompt is the question and nothing can be distinguished.

    `known` maps keys to the texts of sections not open from the start; `closed` are the keys of those still closed.
    """
    text = next((message.text for message in request.messages if message.role == "system"), "")
    results: list[str] = []
    calls: list[tuple[str, str]] = []
    said: list[str] = []
    earlier: list[dict[str, str]] = []
    question, instructions, read, listed, opened = text, [], [], set(), []
    for span in spans:
        if span.role == "user":
            continue
        part = text[span.start : span.end]
        if span.visibility is SectionVisibility.SUMMARY:
            listed.add(".".join(span.path))
        elif span.decided_by == "declared":
            question = _body(part) or question
            instructions.append(part.strip())
        else:
            read.append(part)
    for message in request.messages:
        if message.role == "user" and message.name != INSTRUCTIONS:
            question, results, calls = _body(message.text), [], []
            said.insert(0, question)
        if message.role in ("user", "assistant") and message.text:
            earlier.append({"role": message.role, "content": message.text})
        for call in message.tool_calls:
            calls.append((call.name, call.arguments))
            opened += _keys(call.arguments) if call.name in OPENING_TOOLS else []
        if message.role == "tool" and message.name == SEARCH:
            listed.update(_HIT.findall(message.text))
        elif message.role == "tool" and message.name not in OPENING_TOOLS:
            results.append(message.text)
        elif message.role == "tool" and message.success:
            read.append(_SUMMARY.sub("", message.text.partition("\n\n")[2]))
    offered = tuple(tool for tool in request.tools if tool.name not in request.revoked)
    reachable = [key for key in closed if not listed.isdisjoint(accumulate(key.split("."), "{}.{}".format))]
    return Outlook(
        question=question,
        said="\n".join(said) or question,
        instructions="\n\n".join(instructions),
        earlier=tuple(_alternating(earlier)[:-1][-MAX_EARLIER:]),
        choices=tuple(known[key] for key in reachable if key not in opened),
        unlisted=len(reachable) < len(closed) and any(tool.name == SEARCH for tool in offered),
        opened=tuple(text for key, text in known.items() if key in opened or key not in closed),
        read=tuple(read),
        results=tuple(results),
        calls=tuple(calls),
        tools=offered,
    )


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


def _alternating(messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The last of each side's consecutive messages, since chat templates require alternating turns."""
    pairs = zip_longest(messages, messages[1:])
    return [message for message, after in pairs if after is None or after["role"] != message["role"]]


def _body(part: str) -> str:
    return _HEADING.sub("", part, count=1).strip()


def _keys(arguments: str) -> list[str]:
    try:
        given = json.loads(arguments)
    except ValueError:
        return []
    keys = given.get("section_keys") or [given.get("section_key")]
    return [key for key in keys if isinstance(key, str)]


def _text(message: Message) -> str:
    if message.role == "tool":
        return f"{message.name} {'returned' if message.success else 'failed'}:\n{message.text}"
    return "\n".join([message.text, *(f"{call.name}({call.arguments})" for call in message.tool_calls)]).strip()
