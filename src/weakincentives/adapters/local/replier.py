"""How a model in this process comes to its reply: in small steps, each of which a small model can take.

Which section to open is a ranking, since measuring how well texts fit a question works better at this size than asking
which one does. A tool is called with arguments that the conversation holds. The answer is a quotation of what was read;
a model that is large enough writes it in its own words instead, above the best quotation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weakincentives.adapters.local.arguments import Grounding, ground
from weakincentives.adapters.local.chat import chat
from weakincentives.adapters.local.decoding import Hear, Watch, Written, too_long, write, write_json
from weakincentives.adapters.local.engine import Engine
from weakincentives.adapters.local.outlook import OPENING_TOOLS, Outlook
from weakincentives.adapters.local.relevance import Ranking, Relevance
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tool
from weakincentives.prompt.ranking import sentences
from weakincentives.runtime import ModelReply, ModelRequest, ToolCall

# Sections opened for one question; two at once if the second scores at least this share of the first.
MAX_OPENED = 2
CLOSE = 0.85
QUOTES = 3
EVIDENCE = 6
_CONFIRM = (
    "The user wrote:\n{said}\n\nThe tool {name} does this: {description}\nIt would be called with {arguments}.\n"
    "Does the user ask for this to be done now? Answer yes or no."
)
_ANSWER = "{question}\n\n{evidence}\n\nAnswer this from the text above, with the figures it gives: {question}"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with its score, and the text that was read it comes from."""

    score: float
    text: str
    page: str


class Replier:
    """Opens, calls and answers; with `composes`, answers are written by the model."""

    def __init__(self, engine: Engine, relevance: Relevance, max_tokens: int, *, composes: bool) -> None:
        self._engine = engine
        self._relevance = relevance
        self._max_tokens = max_tokens
        self._composes = composes

    def reply(self, request: ModelRequest, outlook: Outlook, watch: Watch, heard: Hear) -> ModelReply:
        watch.check()
        sent = self._count(request, watch)
        found = self._best_sentences(outlook)
        calls = self._tool_call(outlook, watch)
        items: tuple[str, ...] = ()
        if not calls and not outlook.results and not (found and found[0].score >= self._relevance.enough):
            calls, items = self._opening(outlook)
        if calls:
            first = len(outlook.calls) + 1
            return ModelReply(
                tool_calls=tuple(ToolCall(f"call_{first + at}", name, said) for at, (name, said) in enumerate(calls)),
                usage=TokenUsage(sent, sum(self._engine.count(said) for _, said in calls)),
                stop_reason="tool_calls",
                items=items,
            )
        if request.output is not None:
            return self._structured(request, outlook, found, sent, watch)
        if not found and not outlook.results:
            written = write(self._engine, chat(request), watch, heard=heard, max_tokens=self._max_tokens)
            return _said(written.text.strip(), written, sent)
        if self._composes:
            return self._composed(outlook, found, watch, heard)
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
        units = [
            (unit, page) for page in outlook.read for unit in sentences(page) if not any(name in unit for name in names)
        ]
        if not units:
            return []
        scores = self._relevance.sentences(outlook.question, [unit for unit, _ in units])
        found = (Sentence(score, *unit) for score, unit in zip(scores, units, strict=True))
        return sorted(found, key=lambda sentence: -sentence.score)

    def _opening(self, outlook: Outlook) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
        """Open the section that fits best, and the next if it fits nearly as well."""
        tool = next((tool.name for tool in outlook.tools if tool.name in OPENING_TOOLS), None)
        left = MAX_OPENED - sum(name in OPENING_TOOLS for name, _ in outlook.calls)
        if tool is None or not outlook.choices or left < 1:
            return [], ()
        ranking = Ranking(outlook.question, outlook.choices, self._relevance)
        best = ranking.places[0][0]
        keys = [section.key for score, section in ranking.places[:left] if score >= CLOSE * best]
        if tool == "open_sections":
            reason = "It fits best what is asked."
            return [(tool, json.dumps({"section_keys": keys, "reason": reason}))], (ranking.item(),)
        return [(tool, json.dumps({"section_key": key})) for key in keys], (ranking.item(),)

    def _tool_call(self, outlook: Outlook, watch: Watch) -> list[tuple[str, str]]:
        """Call a tool whose arguments the conversation holds; nothing is changed on arguments that a model made up."""
        called = {name for name, _ in outlook.calls}
        for tool in outlook.tools:
            if tool.name in (*OPENING_TOOLS, "collapse_section", "search_sections", *called):
                continue
            grounding = ground(tool, outlook.said if self._composes else outlook.question)
            if grounding is None or not self._fits(tool, grounding, outlook):
                continue
            arguments: Mapping[str, Any] = grounding.given
            if grounding.missing:
                filled = self._filled(tool, grounding, outlook, watch)
                if filled is None:
                    continue
                arguments = filled
            text = json.dumps({name: arguments[name] for name in tool.schema["properties"]})
            if tool.read_only or not self._composes or self._confirmed(tool, text, outlook, watch):
                return [(tool.name, text)]
        return []

    def _fits(self, tool: Tool[Any, Any], grounding: Grounding, outlook: Outlook) -> bool:
        """Looking something up needs one argument from the user; changing something needs all, and to be asked."""
        if tool.read_only and any(value is not None for value in grounding.given.values()):
            return True
        if not tool.read_only and grounding.missing:
            return False
        asked = outlook.said if self._composes else outlook.question
        return self._relevance.sentences(asked, [tool.description])[0] >= self._relevance.enough

    def _confirmed(self, tool: Tool[Any, Any], arguments: str, outlook: Outlook, watch: Watch) -> bool:
        """Whether the model agrees that the user asks for this change."""
        task = _CONFIRM.format(said=outlook.said, name=tool.name, description=tool.description, arguments=arguments)
        schema = {"type": "string", "enum": ["yes", "no"]}
        return write_json(self._engine, [_user(task)], watch, schema, max_tokens=8).text == '"yes"'

    def _filled(
        self, tool: Tool[Any, Any], grounding: Grounding, outlook: Outlook, watch: Watch
    ) -> Mapping[str, Any] | None:
        """All arguments, with those the question lacks written by the model."""
        known = {name: {"enum": [value]} for name, value in grounding.given.items()}
        schema = {**tool.schema, "properties": {**tool.schema["properties"], **known}}
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

    def _composed(self, outlook: Outlook, found: Sequence[Sentence], watch: Watch, heard: Hear) -> ModelReply:
        """An answer in the model's words. It can contradict what it read, so the best quotation stands beneath."""
        pages = dict.fromkeys(sentence.page for sentence in found[:QUOTES])
        evidence = "\n\n".join([*pages, *outlook.results])
        task = _ANSWER.format(question=outlook.question, evidence=evidence)
        messages = [{"role": "system", "content": outlook.instructions}, *outlook.earlier, _user(task)]
        written = write(self._engine, messages, watch, heard=heard, max_tokens=self._max_tokens)
        text = written.text.strip()
        if found and not outlook.results:
            quotation = f"\n\n> {found[0].text}"
            heard(quotation)
            text += quotation
        reply = _said(text, written, written.usage.input_tokens)
        return replace(reply, usage=written.usage, items=_quotes_item(found))

    def _quoted(self, results: Sequence[str], found: Sequence[Sentence], heard: Hear) -> str:
        """What tools returned; where none was called, the sentences that fit best."""
        quotes = [_ended(quote) for quote in results or [sentence.text for sentence in found[:QUOTES]]]
        for index, quote in enumerate(quotes):
            heard(f" {quote}" if index else quote)
        return " ".join(quotes)


def _ended(quote: str) -> str:
    return quote if quote[-1:] in ".!?:" else f"{quote}."


def _said(text: str, written: Written, sent: int) -> ModelReply:
    usage = TokenUsage(input_tokens=sent, output_tokens=written.usage.output_tokens)
    return ModelReply(text=text, usage=usage, stop_reason="end" if written.whole else "length")


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _quotes_item(found: Sequence[Sentence]) -> tuple[str, ...]:
    return (json.dumps({"type": "quotation", "scores": [round(sentence.score, 3) for sentence in found[:QUOTES]]}),)
