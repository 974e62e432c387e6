"""How a capable model replies: it sees everything and decides by itself, held to the form of a reply.

The sections that the ranker finds closest are named to it at the end, since small models lose the thread in long lists;
it may open any other.
"""

from __future__ import annotations

import json

from weakincentives.adapters.local.chat import chat, with_hint
from weakincentives.adapters.local.constraint import reply_schema
from weakincentives.adapters.local.decoding import Hear, Watch, write, write_json
from weakincentives.adapters.local.engine import Engine
from weakincentives.adapters.local.outlook import OPENING_TOOLS, Outlook
from weakincentives.adapters.local.relevance import MAX_SHOWN, Relevance, ranked
from weakincentives.limits import TokenUsage
from weakincentives.runtime import ModelReply, ModelRequest, StopReason, ToolCall

_LEAD = '{"answer": "'


class Composer:
    """Decodes one reply: a call or an answer, as one piece of JSON."""

    def __init__(self, engine: Engine, relevance: Relevance, max_tokens: int, max_calls: int) -> None:
        self._engine = engine
        self._relevance = relevance
        self._max_tokens = max_tokens
        self._max_calls = max_calls

    def reply(self, request: ModelRequest, outlook: Outlook, watch: Watch, heard: Hear) -> ModelReply:
        keys = [choice.key for choice in outlook.choices]
        usable = [tool for tool in outlook.tools if keys or tool.name not in OPENING_TOOLS]
        # A model that calls tools without end is made to answer.
        tools = usable if len(outlook.calls) < self._max_calls else []
        messages = chat(request)
        if not tools and request.output is None and not request.tools:
            written = write(self._engine, messages, watch, heard=heard, max_tokens=self._max_tokens)
            return _reply(written.text.strip(), (), written.usage, written.whole)
        items: tuple[str, ...] = ()
        if tools:
            ranking = ranked(outlook, self._relevance)
            items = (ranking.item(),) if ranking.places and not outlook.opened else ()
            messages = with_hint(messages, outlook, ranking.choices[:MAX_SHOWN])
        answer = AnswerText(heard)
        written = write_json(
            self._engine,
            messages,
            watch,
            reply_schema(tools, keys, request.output),
            heard=answer.feed if request.output is None else None,
            told=answer.told,
            max_tokens=self._max_tokens,
        )
        if not written.whole:
            return _reply(written.text, (), written.usage, False)
        said = json.loads(written.text)
        if "tool" in said:
            call = ToolCall(f"call_{len(outlook.calls) + 1}", said["tool"], json.dumps(said["arguments"]))
            return _reply("", (call,), written.usage, True, items)
        text = said["answer"] if request.output is None else json.dumps(said["answer"], ensure_ascii=False)
        return _reply(text, (), written.usage, True)


class AnswerText:
    """Hands on the text of an answer while its JSON is still being written."""

    def __init__(self, heard: Hear) -> None:
        self._heard = heard
        self._raw = ""
        self._length = 0

    def told(self) -> bool:
        """Whether anything was handed on."""
        return self._length > 0

    def feed(self, piece: str) -> None:
        self._raw += piece
        if not self._raw.startswith(_LEAD):
            return
        body = self._raw[len(_LEAD) :]
        end = _closing_quote(body)
        text = _readable(body[:end])
        if len(text) > self._length:
            self._heard(text[self._length :])
            self._length = len(text)


def _closing_quote(body: str) -> int | None:
    escaped = False
    for index, character in enumerate(body):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            return index
    return None


def _readable(body: str) -> str:
    """What an unfinished JSON string says so far: not a half escape, not half a surrogate pair."""
    for cut in range(len(body), max(-1, len(body) - 12), -1):
        try:
            text: str = json.loads(f'"{body[:cut]}"')
            text.encode()
            return text
        except ValueError:
            continue
    return ""


def _reply(
    text: str, calls: tuple[ToolCall, ...], usage: TokenUsage, whole: bool, items: tuple[str, ...] = ()
) -> ModelReply:
    stop: StopReason = "tool_calls" if calls else "end" if whole else "length"
    return ModelReply(text=text, tool_calls=calls, usage=usage, stop_reason=stop, items=items)
