"""How the local model produces a reply: in small steps, each simple enough for a small model.

Sections to open are chosen by ranking: at this size, measuring how well texts match a question works better than asking
the model. A tool is called with arguments found in the conversation. The answer quotes what was read; a large enough
model writes the answer from more sentences than that, with the quotation below it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from weakincentives.adapters.local.arguments import Grounding, ground, requested
from weakincentives.adapters.local.decoding import Hear, Watch, WrittenReply, too_long, write, write_json
from weakincentives.adapters.local.engine import Engine
from weakincentives.adapters.local.outlook import OPENING_TOOLS, SEARCH, SECTION_TOOLS, Outlook, by_question, chat
from weakincentives.adapters.local.relevance import Relevance
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tool
from weakincentives.prompt.disclosure.ranking import SectionText, sentences, terms
from weakincentives.runtime import ModelReply, ModelRequest, ToolCall
from weakincentives.runtime.spi import INSTRUCTIONS, PROMPT_TEXT

# The most sections opened for one question, and the share of the best score that the others must reach. A model copes
# with three; a quotation gets worse with the third.
QUOTING, COMPOSING = (2, 0.8), (3, 0.75)
# Sentences in a quotation: more when none matches closely.
QUOTES, QUOTES_UNSURE, SURE = 3, 5, 0.6
# How many ranked sections are recorded, to show why one was opened.
MAX_SHOWN = 5
# How many sections are named where none answers the question.
NEAREST = 3
# Sentences the model writes its answer from; in experiments, whole pages took twice as long and helped no more.
EVIDENCE = 10
# Tokens in a composed answer: anything later repeats itself.
MAX_ANSWER = 200
_CONFIRM = (
    "The user wrote:\n{said}\n\nThe tool {name} does this: {description}\nIt would be called with {arguments}.\n"
    "Does the user ask for this to be done now? Answer yes or no."
)
# The beginnings of a sentence that is clear only from the one before it.
_REFERRING = re.compile(
    r"(Its?|They|Their|He|She|Th(is|at|ese|ose|ere|en)|Such|Both|Otherwise|If not|In that case|After that|The same)\b"
)
_ASK = "Text:\n{text}\n\nQuestion: {question}"
_NOTHING = "The text does not say that."
# Asked to use its own words, a small model omits conditions or reverses them; using the words of the text, it answers
# half again as many questions. Worked examples help it more than instructions.
_STYLE = "Copy the sentences of the text that answer the question, word for word."
_EXAMPLES = (
    (
        "- The museum opens at 10 and closes at 18 o'clock.\n"
        "- A ticket costs 8 euros, for children under 12 it costs 4 euros.\n- Dogs wait outside.",
        "what do I pay with my little son",
        "A ticket costs 8 euros, for children under 12 it costs 4 euros.",
    ),
    (
        "- Bicycles are lent for a day at 12 euros.\n- A helmet is free.",
        "do you have parking for my car",
        _NOTHING,
    ),
    (
        "- The desk is open until 22 o'clock.\n"
        "- A lost key is reported to the desk at once, so that the lock can be changed.\n- A new key costs 25 euros.",
        "cannot find my key anywhere",
        "A lost key is reported to the desk at once, so that the lock can be changed. A new key costs 25 euros.",
    ),
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence that was read, with its score, its position in the text, and the one before it in its paragraph."""

    score: float
    text: str
    place: int
    before: str


class Replier:
    """Opens sections, calls tools and answers; with `composes`, the model writes the answers."""

    def __init__(self, engine: Engine, relevance: Relevance, max_tokens: int, *, composes: bool) -> None:
        self._engine = engine
        self._relevance = relevance
        self._max_tokens = max_tokens
        self._composes = composes
        self._max_opened, self._close = COMPOSING if composes else QUOTING

    def reply(self, request: ModelRequest, outlook: Outlook, watch: Watch, heard: Hear) -> ModelReply:
        watch.check()
        request, sent = self._fitting(request)
        watch.check()
        parts = [outlook] if self._composes or request.output is not None else by_question(outlook)
        found = [self._best_sentences(part) for part in parts]
        calls, items = self._opening(parts, again=True)
        calls = calls or self._tool_call(outlook, watch)
        if not calls:
            enough = self._relevance.enough
            unsure = [part for part, best in zip(parts, found, strict=True) if not best or best[0].score < enough]
            calls, items = self._opening(unsure)
        if calls:
            first = len(outlook.calls) + 1
            return ModelReply(
                tool_calls=tuple(ToolCall(f"call_{first + at}", name, said) for at, (name, said) in enumerate(calls)),
                usage=TokenUsage(sent, sum(self._engine.count(said) for _, said in calls)),
                stop_reason="tool_calls",
                items=items,
            )
        if request.output is not None:
            return self._structured(request, outlook, found[0], sent, watch)
        if not (any(found) or outlook.results or outlook.read or outlook.choices or outlook.calls):
            written = write(self._engine, chat(request), watch, heard=heard, max_tokens=self._max_tokens)
            return _said(written.text.strip(), written, sent)
        if self._composes and (found[0] or outlook.results):
            return self._composed(outlook, found[0], watch, heard)
        text, quoted = self._quoted_answer(parts, found)
        heard(text)
        items = _quotes_item(outlook, quoted) if quoted or outlook.results else ()
        return ModelReply(text=text, usage=TokenUsage(sent, self._engine.count(text)), items=items)

    def _quoted_answer(
        self, parts: Sequence[Outlook], found: Sequence[Sequence[Sentence]]
    ) -> tuple[str, list[Sentence]]:
        """The answer to each question, below it if there are several, and the sentences that were quoted."""
        answers: list[str] = []
        quoted: list[Sentence] = []
        for part, best in zip(parts, found, strict=True):
            nearest = () if part.results else self._unanswered(part, best)
            if nearest:
                answer = f"{_NOTHING} The nearest sections are: {', '.join(nearest)}."
            else:
                quoted += _quoted(part, best)
                answer = _quotation(part, best) or _NOTHING
            answers.append(answer if len(parts) == 1 else f"{part.question}\n{answer}")
        return "\n\n".join(answers), quoted

    def _fitting(self, request: ModelRequest) -> tuple[ModelRequest, int]:
        """The request without the oldest turns that leave no room for a reply, and its number of tokens.

        The language model rarely reads all of it; what was read in an earlier turn can still be quoted.
        """
        said, room = request.messages, self._engine.settings.context
        asked = (at for at, each in enumerate(said) if each.asks)
        starts = list(asked) or [len(said)]

        def since(turn: int) -> tuple[ModelRequest, int]:
            left_out = said[starts[0] : starts[turn]]
            kept = (each for each in left_out if each.role == "system" or each.kind in (PROMPT_TEXT, INSTRUCTIONS))
            later = replace(request, messages=[*said[: starts[0]], *kept, *said[starts[turn] :]])
            return later, self._engine.count_chat(chat(later))

        fitting, sent = since(0)
        wanted = room - min(self._max_tokens, room // 4)
        if sent > wanted:
            turns = range(len(starts) - 1)
            fitting, sent = since(bisect_left(turns, True, key=lambda turn: since(turn)[1] <= wanted))
        if sent > room:
            raise too_long(sent, self._engine, request.prompt_name)
        return fitting, sent

    def _best_sentences(self, outlook: Outlook) -> list[Sentence]:
        """The sentences that were read, best first, or none if none fits.

        Each is compared as part of its section and of its paragraph: alone, few say what they are about.
        """
        names = [f"`{tool.name}`" for tool in outlook.tools]
        texts: dict[str, tuple[str, str, str]] = {}
        for title, page in outlook.read:
            for paragraph in re.split(r"\n\s*\n", page):
                before = ""
                for text in sentences(paragraph):
                    if not any(name in text for name in names):
                        texts.setdefault(text, (title, paragraph, before))
                    before = text
        if not texts:
            return []
        own = self._relevance.sentences(outlook.question, [f"{title}: {text}" for text, (title, *_) in texts.items()])
        around = self._relevance.sentences(
            outlook.question, [f"{title}: {paragraph}" for title, paragraph, _ in texts.values()]
        )
        found = [
            Sentence((own[at] + around[at]) / 2, text, at, before)
            for at, (text, (*_, before)) in enumerate(texts.items())
        ]
        found.sort(key=lambda sentence: -sentence.score)
        return found if found[0].score >= self._relevance.least else []

    def _unanswered(self, outlook: Outlook, found: Sequence[Sentence]) -> list[str]:
        """The titles of the nearest sections, if no sentence that was read answers the question.

        A quotation only: a model that composes decides for itself. A later question of a conversation may be clear only
        from those before it.
        """
        if self._composes or outlook.earlier or not outlook.opened:
            return []
        if found and found[0].score >= self._relevance.answers:
            return []
        known = [*outlook.choices, *outlook.opened]
        ranked = _ranked(self._relevance.sections(outlook.question, known), known)
        return [section.title for _, section in ranked[:NEAREST]]

    def _opening(
        self, parts: Sequence[Outlook], *, again: bool = False
    ) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
        """Open the section that matches each question best, and others that match nearly as well.

        Search for those not listed. With `again`, only for a later question of a conversation, and only if no section
        opened before matches better.
        """
        parts = [part for part in parts if not part.results]
        if not parts:
            return [], ()
        outlook = parts[0]
        tool = next((tool.name for tool in outlook.tools if tool.name in OPENING_TOOLS), None)
        opened = sum(name in OPENING_TOOLS for name, _ in outlook.calls)
        left = self._max_opened - opened
        if tool is None or left < 1 or (again and (opened or not outlook.earlier)):
            return [], ()
        if outlook.unlisted and SEARCH not in (name for name, _ in outlook.calls):
            return [(SEARCH, json.dumps({"query": part.question})) for part in parts], ()
        if not outlook.choices:
            return [], ()
        known = [*outlook.choices, *(outlook.opened if again else ())]
        by_part = [self._relevance.sections(part.question, known) for part in parts]
        keys: dict[str, None] = {}
        for scores in by_part:
            ranked = _ranked(scores, outlook.choices)
            top = ranked[0][0]
            close = [section.key for score, section in ranked[:left] if score >= self._close * top]
            keys |= dict.fromkeys(close if top == max(scores) else ())
        if not keys:
            return [], ()
        ranked = _ranked([max(scores) for scores in zip(*by_part, strict=True)], outlook.choices)
        best = [{"key": section.key, "score": round(score, 3)} for score, section in ranked[:MAX_SHOWN]]
        ranking = {"type": "ranking", "by": self._relevance.name, "of": len(ranked), "best": best}
        said: list[dict[str, Any]] = [{"section_key": key} for key in keys]
        if tool == "open_sections":
            said = [{"section_keys": list(keys), "reason": "It best matches the question."}]
        return [(tool, json.dumps(arguments)) for arguments in said], (json.dumps(ranking),)

    def _tool_call(self, outlook: Outlook, watch: Watch) -> list[tuple[str, str]]:
        """Call a tool whose arguments are in the conversation; a tool with effects never gets invented arguments."""
        called = {name for name, _ in outlook.calls}
        tools = [tool for tool in outlook.tools if tool.name not in SECTION_TOOLS]
        asked = outlook.said if self._composes else outlook.question
        for tool in tools:
            if tool.name in called:
                continue
            wanted, beside = ("", asked) if tool.read_only else requested(tool, asked)
            grounding = ground(tool, f"{wanted}\n{beside}")
            if grounding is None or not self._fits(tool, grounding, asked if tool.read_only else wanted, tools):
                continue
            arguments: Mapping[str, Any] = grounding.given
            if grounding.missing:
                filled = self._filled(tool, grounding, outlook, watch)
                if filled is None:
                    continue
                arguments = filled
            text = json.dumps({name: arguments[name] for name in tool.strict_schema["properties"]})
            if tool.read_only or not self._composes or self._confirmed(tool, text, outlook, watch):
                return [(tool.name, text)]
        return []

    def _fits(self, tool: Tool[Any, Any], grounding: Grounding, asked: str, tools: Sequence[Tool[Any, Any]]) -> bool:
        """A change needs all its arguments and a request; a lookup needs one of its arguments, or a question about it.

        A message about a change is not answered with a lookup that happens to need the same number.
        """
        if not tool.read_only and (grounding.missing or not asked):
            return False
        changes = [other.description for other in tools if not other.read_only and other is not tool]
        own, *others = self._relevance.sentences(asked, [tool.description, *changes])
        if tool.read_only and any(value is not None for value in grounding.given.values()):
            return max(others, default=0.0) < max(own, self._relevance.fits)
        return own >= self._relevance.fits

    def _confirmed(self, tool: Tool[Any, Any], arguments: str, outlook: Outlook, watch: Watch) -> bool:
        """True if the model agrees that the user wants this change."""
        task = _CONFIRM.format(said=outlook.said, name=tool.name, description=tool.description, arguments=arguments)
        schema = {"type": "string", "enum": ["yes", "no"]}
        return write_json(self._engine, [_user(task)], watch, schema, max_tokens=8).text == '"yes"'

    def _filled(
        self, tool: Tool[Any, Any], grounding: Grounding, outlook: Outlook, watch: Watch
    ) -> Mapping[str, Any] | None:
        """All arguments; the model writes those missing from the question."""
        known = {name: {"enum": [value]} for name, value in grounding.given.items()}
        schema = {**tool.strict_schema, "properties": {**tool.strict_schema["properties"], **known}}
        task = f"{outlook.question}\n\nWrite the JSON arguments of the tool {tool.name}: {tool.description}"
        written = write_json(self._engine, [_user(task)], watch, schema, max_tokens=self._max_tokens)
        return json.loads(written.text) if written.whole else None

    def _structured(
        self, request: ModelRequest, outlook: Outlook, found: Sequence[Sentence], sent: int, watch: Watch
    ) -> ModelReply:
        """Structured output, written by the model from the best-matching sentences."""
        assert request.output is not None
        evidence = _evidence(outlook, found)
        messages = [_user(f"{evidence}\n\n{outlook.question}\n\nAnswer as JSON.")] if evidence else chat(request)
        written = write_json(self._engine, messages, watch, request.output.schema, max_tokens=self._max_tokens)
        return _said(written.text, written, sent)

    def _composed(self, outlook: Outlook, found: Sequence[Sentence], watch: Watch, heard: Hear) -> ModelReply:
        """An answer written by the model. It may contradict what it read, so the rest of the quotation follows below.

        It is not streamed, since only the whole answer shows whether it is based on what was read.
        """
        messages = [{"role": "system", "content": f"{outlook.instructions}\n\n{_STYLE}".strip()}]
        for read, question, answer in _EXAMPLES:
            messages += [_user(_ASK.format(text=read, question=question)), {"role": "assistant", "content": answer}]
        if outlook.question not in outlook.instructions:
            self._engine.recall(messages, partial(write, self._engine, messages, watch, max_tokens=1))
        evidence = _evidence(outlook, found)
        messages += [*outlook.earlier, _user(_ASK.format(text=evidence, question=outlook.question))]
        limit = min(MAX_ANSWER, self._max_tokens)
        written = write(self._engine, messages, watch, max_tokens=limit, repeat_penalty=1.0)
        composed = written.text.strip() + ("" if written.whole else "…")
        items: tuple[str, ...] = ()
        if _made_of(composed, f"{_NOTHING} {evidence}", outlook.question):
            quotation = _quotation(outlook, found, besides=composed).replace("\n", "\n> ")
            text = f"{composed}\n\n> {quotation}" if quotation else composed
        else:
            text, items = _quotation(outlook, found), _quotes_item(outlook, _quoted(outlook, found))
        heard(text)
        return ModelReply(text=text, usage=written.usage, items=items)


def _ranked(scores: Sequence[float], sections: Sequence[SectionText]) -> list[tuple[float, SectionText]]:
    """The sections with their scores, best first; `scores` may go on with those of others."""
    return sorted(zip(scores, sections, strict=False), key=lambda place: -place[0])


def _evidence(outlook: Outlook, found: Sequence[Sentence]) -> str:
    """The best-matching sentences in the order they were read, and what tools returned."""
    best = sorted(found[:EVIDENCE], key=lambda sentence: sentence.place)
    return "\n".join(f"- {text}" for text in [*(sentence.text for sentence in best), *outlook.results])


def _made_of(answer: str, read: str, question: str) -> bool:
    """True if an answer adds to the question, and has no numbers and few words that were not read.

    Small models repeat the question, repeat examples, and make things up.
    """
    own, asked = set(terms(answer)), set(terms(question))
    given = asked | set(terms(read))
    echoes = own <= asked
    return not echoes and len(own) <= 2 * len(own & given) and not any(term[0].isdigit() for term in own - given)


def _quotation(outlook: Outlook, found: Sequence[Sentence], *, besides: str = "") -> str:
    """The results of tools or, if none was called, the best-matching sentences; omits those in `besides`."""
    quotes = outlook.results or [sentence.text for sentence in _quoted(outlook, found)]
    return " ".join(quote if quote[-1:] in ".!?:" else f"{quote}." for quote in quotes if quote not in besides)


def _quoted(outlook: Outlook, found: Sequence[Sentence]) -> Sequence[Sentence]:
    """The sentences to quote, each behind the one it refers to; none where a tool answered."""
    if outlook.results:
        return []
    known = {sentence.text: sentence for sentence in found}
    runs: list[list[Sentence]] = []
    for sentence in found[: QUOTES if found and found[0].score >= SURE else QUOTES_UNSURE]:
        chain = [sentence]
        while _REFERRING.match(chain[0].text) and chain[0].before in known:
            chain.insert(0, known[chain[0].before])
        run = next((run for run in runs if any(each in run for each in chain)), None)
        if run is None:
            runs.append(chain)
        else:
            run += [each for each in chain if each not in run]
    return [sentence for run in runs for sentence in run]


def _said(text: str, written: WrittenReply, sent: int) -> ModelReply:
    cached = min(sent, written.usage.cached_tokens)
    usage = TokenUsage(input_tokens=sent, output_tokens=written.usage.output_tokens, cached_tokens=cached)
    return ModelReply(text=text, usage=usage, stop_reason="end" if written.whole else "length")


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _quotes_item(outlook: Outlook, quoted: Sequence[Sentence]) -> tuple[str, ...]:
    """Says that the whole reply is a quotation, and from which tools or sections."""
    called = [name for name, _ in outlook.calls if name not in (*OPENING_TOOLS, SEARCH)] if outlook.results else []
    texts = {sentence.text for sentence in quoted}
    read = [section.key for section in outlook.opened if not texts.isdisjoint(sentences(section.body))]
    sources = list(dict.fromkeys([*called, *read]))
    scores = [round(sentence.score, 3) for sentence in quoted]
    return (json.dumps({"type": "quotation", "from": sources, "scores": scores}),)
