"""A request as a reader sees it: what is asked, what can be opened, what was read and called so far."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt import SectionVisibility, Span, Tool
from weakincentives.runtime import Message, ModelRequest

OPENING_TOOLS = ("read_section", "open_sections")
_HEADING = re.compile(r"^#{1,6} +(?:(?:\d+\.)+ +)?(.+?)\s*$", re.MULTILINE)
_KEY = re.compile(r'key "([^"]+)"')
_SUFFIX = "\n---\n"


@dataclass(frozen=True, slots=True)
class Choice:
    """A summarized section that can be opened now."""

    key: str
    title: str
    summary: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a reply can be made of.

    `question` is what the user said last, or else the last open section of the prompt; `read` is what was opened,
    `results` what tools returned since.
    """

    question: str
    choices: tuple[Choice, ...]
    read: tuple[str, ...]
    results: tuple[str, ...]
    opened: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]
    tools: tuple[Tool[Any, Any], ...]


def outlook(request: ModelRequest, spans: Sequence[Span]) -> Outlook:
    """Read a request; without `spans` the whole prompt is the question and nothing can be told apart."""
    text = next((message.text for message in request.messages if message.role == "system"), "")
    results: list[str] = []
    calls: list[tuple[str, str]] = []
    question, read, choices, opened = text, [], [], []
    for span in spans:
        if span.role == "user":
            continue
        part = text[span.start : span.end]
        if span.visibility is SectionVisibility.SUMMARY:
            choices.append(_choice(".".join(span.path), part))
        elif span.decided_by == "declared":
            question = _body(part) or question
        else:
            read.append(part)
            opened.append(".".join(span.path))
    for message in request.messages:
        if message.role == "user":
            question, results, calls = _body(message.text), [], []
        for call in message.tool_calls:
            calls.append((call.name, call.arguments))
            opened += _keys(call.arguments) if call.name in OPENING_TOOLS else []
        if message.role == "tool" and message.name not in OPENING_TOOLS:
            results.append(message.text)
        elif message.role == "tool" and message.success:
            read.append(message.text.partition("\n\n")[2])
            choices += _nested(message)
    offered = tuple(tool for tool in request.tools if tool.name not in request.revoked)
    left = {choice.key: choice for choice in choices if choice.key not in opened}
    return Outlook(question, tuple(left.values()), tuple(read), tuple(results), tuple(opened), tuple(calls), offered)


def _choice(key: str, part: str) -> Choice:
    heading = _HEADING.search(part)
    title = heading[1] if heading else key
    summary = _body(part).partition(_SUFFIX)[0].strip()
    return Choice(key, title, " ".join(summary.split()))


def _nested(message: Message) -> list[Choice]:
    """Summarized sections within a section that was read."""
    parts = [part for part in re.split(r"(?=^#{1,6} )", message.text, flags=re.MULTILINE) if _SUFFIX in part]
    found = ((_KEY.search(part.rpartition(_SUFFIX)[2]), part) for part in parts)
    return [_choice(key[1], part) for key, part in found if key]


def _body(part: str) -> str:
    return _HEADING.sub("", part, count=1).strip()


def _keys(arguments: str) -> list[str]:
    try:
        given = json.loads(arguments)
    except ValueError:
        return []
    keys = given.get("section_keys") or [given.get("section_key")]
    return [key for key in keys if isinstance(key, str)]
