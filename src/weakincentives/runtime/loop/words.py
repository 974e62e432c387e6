"""What people write, as `before_run` guards let it pass: messages, documents, words in decisions, tools of pages."""

from __future__ import annotations

import codecs
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weakincentives._base.display import shortened
from weakincentives.content import Document, Part, text_of
from weakincentives.errors import GuardRefusedError
from weakincentives.prompt.guards import is_page_tool
from weakincentives.runtime.calls.approval import Answer, Deny, Edit, PendingCall, Settled
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.effects import Effect
from weakincentives.runtime.loop.inquiry import HeldGuard, Inquiry, held_guards
from weakincentives.runtime.media import TEXT_TYPES
from weakincentives.runtime.messages import Message

Words = Generator[Effect, Any, str]
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def pass_words(
    live: LiveRun, messages: Sequence[Message | None], *, always: bool
) -> Generator[Effect, Any, list[Message | None]]:
    """The user's messages as the guards let them pass, each text asked about once; `always` asks even without any."""
    guards = held_guards(live, "before_run")
    passed: list[Message | None] = []
    try:
        if always and all(message is None for message in messages):
            yield from _pass_text(live, guards, "")
        yield from _check_page_tools(live, guards)
        for message in messages:
            if message is not None:
                message = message.with_text((yield from _pass_text(live, guards, message.text)))
                message = yield from _pass_documents(live, guards, message)
            passed.append(message)
    except GuardRefusedError:
        live.attempt.message = None
        raise
    return passed


def pass_decisions(
    live: LiveRun, decisions: Mapping[str, Settled], waiting: Mapping[str, PendingCall]
) -> Generator[Effect, Any, dict[str, Settled]]:
    """The decisions with the words in them as the guards let them pass.

    If they refuse some, the run ends before any decision acts, and the calls go on waiting: the error ends the runs
    around this one too.
    """
    guards = held_guards(live, "before_run")
    passed: dict[str, Settled] = {}
    try:
        yield from _check_page_tools(live, guards)
        for call_id, decision in decisions.items():
            match decision:
                case Deny(reason) if reason:
                    decision = replace(decision, reason=(yield from _pass_text(live, guards, reason)))
                case Answer(text) if text:
                    decision = replace(decision, text=(yield from _pass_text(live, guards, text)))
                case Edit(arguments):
                    known = set(_texts(_parsed(waiting[call_id].arguments)))
                    arguments = yield from _pass_value(live, guards, dict(arguments), known)
                    decision = replace(decision, arguments=arguments)
            passed[call_id] = decision
    except GuardRefusedError as error:
        error.ends_run = True
        raise
    return passed


def refuses_decision(error: BaseException) -> bool:
    """True for the error of a guard that has refused words of a decision, so that the calls go on waiting."""
    return isinstance(error, GuardRefusedError) and error.hook == "before_run" and error.ends_run


def _pass_text(live: LiveRun, guards: Sequence[HeldGuard], text: str, *, replaceable: bool = True) -> Words:
    passed = live.passed
    if not guards or text in passed:
        return passed.get(text, text)

    def accept(words: Any) -> str:
        if not replaceable:
            raise TypeError("The words in which a page declares a tool cannot be replaced; return Refuse(...)")
        if not isinstance(words, str) or not words or not text:
            raise TypeError(f"Replace takes the user's words as text, got {shortened(repr(words), 100)}")
        return words

    verdict = yield from Inquiry(live, "before_run", text, accept=accept).ask(guards)
    if verdict.refuses:
        raise verdict.error("before_run", live.name)
    words: str = verdict.value
    passed.update({text: words, words: words})
    return words


def _check_page_tools(live: LiveRun, guards: Sequence[HeldGuard]) -> Generator[Effect, Any, None]:
    """Ask about the tools that a page has declared: the model reads what stands in them."""
    for tool in live.spec.tools:
        if is_page_tool(tool.name):
            words = [tool.name, tool.description, *_texts(tool.plain_schema)]
            yield from _pass_text(live, guards, "\n".join(words), replaceable=False)


def _pass_documents(live: LiveRun, guards: Sequence[HeldGuard], message: Message) -> Generator[Effect, Any, Message]:
    """The message with its text documents as the guards let them pass."""
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, Document) and part.blob is not None and part.media_type in TEXT_TYPES:
            text = _decoded(part.data)
            words = yield from _pass_text(live, guards, text)
            if words != text:
                part = Document.from_bytes(words.encode(), part.media_type, name=part.name)
        parts.append(part)
    if parts == list(message.parts):
        return message
    return replace(message, text=text_of(parts), parts=tuple(parts))


def _pass_value(live: LiveRun, guards: Sequence[HeldGuard], value: Any, known: set[str]) -> Generator[Effect, Any, Any]:
    """The value with every text that is not known yet as the guards let it pass; numbers and keys are texts, too."""
    if isinstance(value, Mapping):
        items: dict[Any, Any] = {}
        for key, item in value.items():
            name = yield from _pass_value(live, guards, key, known)
            items[name] = yield from _pass_value(live, guards, item, known)
        return items
    if isinstance(value, list | tuple):
        passed: list[Any] = []
        for item in value:
            passed.append((yield from _pass_value(live, guards, item, known)))
        return passed
    text = _as_text(value)
    if text in known:
        return value
    words = yield from _pass_text(live, guards, text)
    return value if words == text else words


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value of JSON, those of keys and numbers included."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    else:
        yield _as_text(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def _decoded(data: bytes) -> str:
    return data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8", "replace")
