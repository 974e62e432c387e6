"""How a very small model replies: relevance is measured, sections are opened by it, and answers are quotations.

A model of 0.1 billion weights picks sections and states facts little better than chance, but measuring how well texts
fit a question works well at that size. So the choice is a ranking, an answer quotes what was read, and the language
model writes only what nothing else can give: arguments that are not in the question, structured output, and text
where there is nothing to quote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.adapters.local.arguments import Grounding, ground
from weakincentives.adapters.local.chat import chat
from weakincentives.adapters.local.decoding import Hear, Watch, Written, too_long, write, write_json
from weakincentives.adapters.local.engine import Engine
from weakincentives.adapters.local.outlook import OPENING_TOOLS, Outlook
from weakincentives.adapters.local.relevance import Relevance, ranked
from weakincentives.adapters.local.text import sentences
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tool
from weakincentives.runtime import ModelReply, ModelRequest, ToolCall

MAX_OPENED = 2
QUOTES = 3
EVIDENCE = 6


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with its score."""

    score: float
    text: str


class Quoter:
    """Replies by ranking and quoting."""

    def __init__(self, engine: Engine, relevance: Relevance, max_tokens: int) -> None:
        self._engine = engine
        self._relevance = relevance
        self._max_tokens = max_tokens

    def reply(self, request: ModelRequest, outlook: Outlook, watch: Watch, heard: Hear) -> ModelReply:
        watch.check()
        sent = self._count(request, watch)
        found = self._best_sentences(outlook)
        call = self._tool_call(outlook, watch)
        if call is None and not outlook.results and not (found and found[0].score >= self._relevance.enough):
            call = self._opening(outlook)
        if call is not None:
            name, arguments, items = call
            written = self._engine.count(arguments)
            return ModelReply(
                tool_calls=(ToolCall(f"call_{len(outlook.calls) + 1}", name, arguments),),
                usage=TokenUsage(input_tokens=sent, output_tokens=written),
                stop_reason="tool_calls",
                items=items,
            )
        if request.output is not None:
            return self._structured(request, outlook, found, sent, watch)
        if not found and not outlook.results:
            written_text = write(self._engine, chat(request), watch, heard=heard, max_tokens=self._max_tokens)
            return _said(written_text.text.strip(), written_text, sent)
        text = self._quoted(outlook.results, found, heard)
        return ModelReply(text=text, usage=TokenUsage(sent, self._engine.count(text)), items=_quotes_item(found))

    def _count(self, request: ModelRequest, watch: Watch) -> int:
        """The tokens of the whole conversation, which has to fit although the language model seldom reads all of it."""
        tokens = self._engine.count_chat(chat(request))
        if tokens > self._engine.settings.context:
            raise too_long(tokens, self._engine, request.prompt_name)
        watch.check()
        return tokens

    def _best_sentences(self, outlook: Outlook) -> list[Sentence]:
        names = [f"`{tool.name}`" for tool in outlook.tools]
        units = [unit for text in outlook.read for unit in sentences(text) if not any(name in unit for name in names)]
        if not units:
            return []
        scores = self._relevance.sentences(outlook.question, units)
        return sorted(
            (Sentence(*pair) for pair in zip(scores, units, strict=True)), key=lambda sentence: -sentence.score
        )

    def _opening(self, outlook: Outlook) -> tuple[str, str, tuple[str, ...]] | None:
        """Open the section whose summary fits best, if one more may be opened."""
        tool = next((tool for tool in outlook.tools if tool.name in OPENING_TOOLS), None)
        if tool is None or not outlook.choices or len(outlook.opened) >= MAX_OPENED:
            return None
        ranking = ranked(outlook, self._relevance)
        best = ranking.choices[0]
        arguments: dict[str, Any] = {"section_key": best.key}
        if tool.name == "open_sections":
            arguments = {"section_keys": [best.key], "reason": "Its summary is closest to what is asked."}
        return tool.name, json.dumps(arguments), (ranking.item(),)

    def _tool_call(self, outlook: Outlook, watch: Watch) -> tuple[str, str, tuple[str, ...]] | None:
        """Call a tool whose arguments are in the question; nothing is changed on arguments that a model made up."""
        called = {name for name, _ in outlook.calls}
        for tool in outlook.tools:
            if tool.name in OPENING_TOOLS or tool.name == "collapse_section" or tool.name in called:
                continue
            grounding = ground(tool, outlook.question)
            if grounding is None or not self._fits(tool, grounding, outlook.question):
                continue
            arguments: Mapping[str, Any] = grounding.given
            if grounding.missing:
                filled = self._filled(tool, grounding, outlook, watch)
                if filled is None:
                    continue
                arguments = filled
            return tool.name, json.dumps({name: arguments[name] for name in tool.strict_schema["properties"]}), ()
        return None

    def _fits(self, tool: Tool[Any, Any], grounding: Grounding, question: str) -> bool:
        """Looking something up needs one argument from the question; changing something needs all, and to be asked."""
        if tool.read_only and any(value is not None for value in grounding.given.values()):
            return True
        if not tool.read_only and grounding.missing:
            return False
        return self._relevance.sentences(question, [tool.description])[0] >= self._relevance.enough

    def _filled(
        self, tool: Tool[Any, Any], grounding: Grounding, outlook: Outlook, watch: Watch
    ) -> Mapping[str, Any] | None:
        """All arguments, with those the question lacks written by the model."""
        known = {name: {"enum": [value]} for name, value in grounding.given.items()}
        schema = {**tool.strict_schema, "properties": {**tool.strict_schema["properties"], **known}}
        task = f"{outlook.question}\n\nWrite the JSON arguments of the tool {tool.name}: {tool.description}"
        written = write_json(self._engine, [_user(task)], watch, schema, max_tokens=self._max_tokens)
        return json.loads(written.text) if written.whole else None

    def _structured(
        self, request: ModelRequest, outlook: Outlook, found: Sequence[Sentence], sent: int, watch: Watch
    ) -> ModelReply:
        """Structured output, written by the model from the sentences that fit best."""
        assert request.output is not None
        evidence = "\n".join([*outlook.results, *(sentence.text for sentence in found[:EVIDENCE])])
        messages = [_user(f"{evidence}\n\n{outlook.question}\n\nAnswer as JSON.")] if evidence else chat(request)
        written = write_json(self._engine, messages, watch, request.output.schema, max_tokens=self._max_tokens)
        return _said(written.text, written, sent)

    def _quoted(self, results: Sequence[str], found: Sequence[Sentence], heard: Hear) -> str:
        """What tools returned; where none was called, the sentences that fit best."""
        quotes = [_ended(quote) for quote in results or [sentence.text for sentence in found[:QUOTES]]]
        for index, quote in enumerate(quotes):
            heard(f" {quote}" if index else quote)
        return " ".join(quotes)


def _ended(quote: str) -> str:
    return quote if quote[-1:] in ".!?:" else f"{quote}."


def _said(text: str, written: Written, sent: int) -> ModelReply:
    cached = min(sent, written.usage.cached_tokens)
    usage = TokenUsage(input_tokens=sent, output_tokens=written.usage.output_tokens, cached_tokens=cached)
    return ModelReply(text=text, usage=usage, stop_reason="end" if written.whole else "length")


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _quotes_item(found: Sequence[Sentence]) -> tuple[str, ...]:
    return (json.dumps({"type": "quotation", "scores": [round(sentence.score, 3) for sentence in found[:QUOTES]]}),)
