"""How the local adapter comes to a reply, in small steps.

Sections to open are chosen by ranking: measuring how well texts match a question works better than asking a small
model. A tool is called with arguments found in the conversation. The answer quotes what was read. A language model, if
there is one, writes what cannot be quoted; a large enough one writes the answers, with the quotation below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weakincentives.adapters.local.arguments import Grounding, copied, ground, requested
from weakincentives.adapters.local.outlook import OPENING_TOOLS, SEARCH, SECTION_TOOLS, Outlook, by_question
from weakincentives.adapters.local.relevance import Relevance
from weakincentives.adapters.local.watch import Listener, Watch
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tool
from weakincentives.prompt.disclosure.ranking import SectionText, sentences
from weakincentives.runtime import ModelReply, ModelRequest, ToolCall

if TYPE_CHECKING:
    from weakincentives.adapters.local.gguf.writer import Writer

# The most sections opened for one question, and the share of the best score that the others must reach. A model copes
# with three; a quotation gets worse with the third.
QUOTING, COMPOSING = (2, 0.8), (3, 0.75)
# Sentences in a quotation: more when none matches closely.
QUOTES, QUOTES_UNSURE, SURE = 3, 5, 0.6
# How many ranked sections are recorded, to show why one was opened.
MAX_SHOWN = 5
# How many sections are named where none answers the question.
NEAREST = 3
# Sentences a model writes its answer from; in experiments, whole pages took twice as long and helped no more.
EVIDENCE = 10
NOTHING = "The text does not say that."
LANGUAGE_MODEL = (
    "use a model that writes: a provider's, such as OpenAIAdapter('gpt-5.6'), or a language model on this machine, "
    "LocalAdapter('model.gguf') (pip install 'weakincentives[gguf]')"
)
# The beginnings of a sentence that is clear only from the one before it.
_REFERRING = re.compile(
    r"(Its?|They|Their|He|She|Th(is|at|ese|ose|ere|en)|Such|Both|Otherwise|If not|In that case|After that|The same)\b"
)

# A call that the reply makes: the name of a tool, and its arguments as JSON text.
Call = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence that was read, with its score, its position in the text, and the one before it in its paragraph."""

    score: float
    text: str
    position: int
    before: str


class Replier:
    """Opens sections, calls tools and quotes; what has to be written is up to the `writer`, if there is one.

    `count_request` counts the tokens of a request that no language model reads.
    """

    def __init__(
        self,
        relevance: Relevance,
        count_request: Callable[[ModelRequest], int],
        count_text: Callable[[str], int],
        writer: Writer | None = None,
    ) -> None:
        self._relevance = relevance
        self._count_request = count_request
        self._count_text = count_text
        self._writer = writer
        self._composes = writer is not None and writer.composes
        self._max_opened, self._close = COMPOSING if self._composes else QUOTING

    def reply(self, request: ModelRequest, outlook: Outlook, watch: Watch, listener: Listener) -> ModelReply:
        watch.check()
        if request.output is not None and self._writer is None:
            raise _unable(request, "wants structured output")
        if self._writer is None:
            tokens = self._count_request(request)
        else:
            request, tokens = self._writer.fitting(request)
        watch.check()
        parts = [outlook]
        if not self._composes and request.output is None:
            parts = by_question(outlook)
        sentences_of_parts = [self._best_sentences(part, part.readable, watch) for part in parts]
        calls, items = self._calls(outlook, parts, sentences_of_parts, watch)
        if calls:
            return self._calling(outlook, calls, items, tokens)
        best = sentences_of_parts[0]
        if self._writer is not None:
            if request.output is not None:
                evidence = _evidence(outlook, best)
                return self._writer.structured(request, outlook.question, evidence, tokens, watch)
            if not outlook.has_material and not any(sentences_of_parts):
                return self._writer.reply(request, tokens, watch, listener)
            if self._composes and (best or outlook.results):
                return self._composed(outlook, best, watch, listener)
        elif not outlook.has_material:
            return self._standing_answer(request, outlook, tokens, watch, listener)
        text, quoted = self._quoted_answer(parts, sentences_of_parts, watch)
        listener(text)
        items = _quotation_item(outlook, quoted) if quoted or outlook.results else ()
        return ModelReply(text=text, usage=TokenUsage(tokens, self._count_text(text)), items=items)

    def _calls(
        self, outlook: Outlook, parts: Sequence[Outlook], sentences_of_parts: Sequence[Sequence[Sentence]], watch: Watch
    ) -> tuple[list[Call], tuple[str, ...]]:
        """The calls that come before an answer, and what is recorded with them."""
        calls, items = self._opening(parts, watch, again=True)
        if not calls:
            calls = self._tool_call(outlook, watch)
        if not calls:
            unsure = []
            for part, best in zip(parts, sentences_of_parts, strict=True):
                if not best or best[0].score < self._relevance.enough:
                    unsure.append(part)
            calls, items = self._opening(unsure, watch)
        return calls, items

    def _calling(self, outlook: Outlook, calls: Sequence[Call], items: tuple[str, ...], tokens: int) -> ModelReply:
        first = len(outlook.calls) + 1
        tool_calls = []
        for number, (name, arguments) in enumerate(calls, start=first):
            tool_calls.append(ToolCall(f"call_{number}", name, arguments))
        output_tokens = sum(self._count_text(arguments) for _, arguments in calls)
        return ModelReply(
            tool_calls=tuple(tool_calls),
            usage=TokenUsage(tokens, output_tokens),
            stop_reason="tool_calls",
            items=items,
        )

    def _quoted_answer(
        self, parts: Sequence[Outlook], sentences_of_parts: Sequence[Sequence[Sentence]], watch: Watch
    ) -> tuple[str, list[Sentence]]:
        """The answer to each question, below it if there are several, and the sentences that were quoted."""
        answers: list[str] = []
        quoted: list[Sentence] = []
        for part, best in zip(parts, sentences_of_parts, strict=True):
            nearest = [] if part.results else self._unanswered(part, best, watch)
            if nearest:
                answer = f"{NOTHING} The nearest sections are: {', '.join(nearest)}."
            else:
                quoted += _quoted(part, best)
                answer = _quotation(part, best) or NOTHING
            answers.append(answer if len(parts) == 1 else f"{part.question}\n{answer}")
        return "\n\n".join(answers), quoted

    def _standing_answer(
        self, request: ModelRequest, outlook: Outlook, tokens: int, watch: Watch, listener: Listener
    ) -> ModelReply:
        """A quotation from the sections that are open from the start, where there are no others."""
        if not outlook.standing:
            raise _unable(request, "has no text to quote from, and no tool that fits the message")
        best = self._best_sentences(outlook, outlook.standing, watch)
        text = NOTHING
        items: tuple[str, ...] = ()
        if best and best[0].score >= self._relevance.answers:
            text = _quotation(outlook, best)
            items = _quotation_item(outlook, _quoted(outlook, best))
        listener(text)
        return ModelReply(text=text, usage=TokenUsage(tokens, self._count_text(text)), items=items)

    def _composed(self, outlook: Outlook, best: Sequence[Sentence], watch: Watch, listener: Listener) -> ModelReply:
        """An answer written by the model. It may contradict what it read, so the quotation follows below."""
        assert self._writer is not None
        answer, usage = self._writer.composed(outlook, _evidence(outlook, best), watch)
        items: tuple[str, ...] = ()
        if answer:
            quotation = _quotation(outlook, best, besides=answer).replace("\n", "\n> ")
            text = f"{answer}\n\n> {quotation}" if quotation else answer
        else:
            text = _quotation(outlook, best)
            items = _quotation_item(outlook, _quoted(outlook, best))
        listener(text)
        return ModelReply(text=text, usage=usage, items=items)

    def _best_sentences(self, outlook: Outlook, pages: Sequence[tuple[str, str]], watch: Watch) -> list[Sentence]:
        """The sentences of these titles and texts, best first, or none if none fits.

        Each is compared as part of its section and of its paragraph: alone, few say what they are about.
        """
        tool_names = [f"`{tool.name}`" for tool in outlook.tools]
        places: dict[str, tuple[str, str, str]] = {}
        for title, page in pages:
            for paragraph in re.split(r"\n\s*\n", page):
                before = ""
                for text in sentences(paragraph):
                    if not any(name in text for name in tool_names):
                        places.setdefault(text, (title, paragraph, before))
                    before = text
        if not places:
            return []
        as_part_of_section = [f"{title}: {text}" for text, (title, _, _) in places.items()]
        as_part_of_paragraph = [f"{title}: {paragraph}" for title, paragraph, _ in places.values()]
        scores = self._relevance.sentences(outlook.question, as_part_of_section, watch.reading)
        paragraph_scores = self._relevance.sentences(outlook.question, as_part_of_paragraph, watch.reading)
        best = []
        for position, (text, (_, _, before)) in enumerate(places.items()):
            score = (scores[position] + paragraph_scores[position]) / 2
            best.append(Sentence(score, text, position, before))
        best.sort(key=lambda sentence: -sentence.score)
        return best if best[0].score >= self._relevance.least else []

    def _unanswered(self, outlook: Outlook, best: Sequence[Sentence], watch: Watch) -> list[str]:
        """The titles of the nearest sections, if no sentence that was read answers the question.

        A quotation only: a model that composes decides for itself. A later question of a conversation may be clear only
        from those before it.
        """
        if self._composes or outlook.earlier or not outlook.opened:
            return []
        if best and best[0].score >= self._relevance.answers:
            return []
        sections = [*outlook.choices, *outlook.opened]
        scores = self._relevance.sections(outlook.question, sections, watch.reading)
        return [section.title for _, section in _ranked(scores, sections)[:NEAREST]]

    def _opening(
        self, parts: Sequence[Outlook], watch: Watch, *, again: bool = False
    ) -> tuple[list[Call], tuple[str, ...]]:
        """Open the section that matches each question best, and others that match nearly as well.

        Search for those not listed. With `again`, only for a later question of a conversation, and only if no section
        opened before matches better.
        """
        parts = [part for part in parts if not part.results]
        if not parts:
            return [], ()
        outlook = parts[0]
        tool = next((tool.name for tool in outlook.tools if tool.name in OPENING_TOOLS), None)
        openings = sum(name in OPENING_TOOLS for name, _ in outlook.calls)
        room = self._max_opened - openings
        if tool is None or room < 1 or (again and (openings or not outlook.earlier)):
            return [], ()
        if outlook.unlisted and SEARCH not in (name for name, _ in outlook.calls):
            return [(SEARCH, json.dumps({"query": part.question})) for part in parts], ()
        if not outlook.choices:
            return [], ()
        sections = [*outlook.choices, *(outlook.opened if again else ())]
        scores_of_parts = [self._relevance.sections(part.question, sections, watch.reading) for part in parts]
        keys = self._close_to_best(scores_of_parts, outlook.choices, room)
        if not keys:
            return [], ()
        highest = [max(scores) for scores in zip(*scores_of_parts, strict=True)]
        ranked = _ranked(highest, outlook.choices)
        best = [{"key": section.key, "score": round(score, 3)} for score, section in ranked[:MAX_SHOWN]]
        ranking = {"type": "ranking", "by": self._relevance.name, "of": len(ranked), "best": best}
        arguments: list[dict[str, Any]] = [{"section_key": key} for key in keys]
        if tool == "open_sections":
            arguments = [{"section_keys": keys, "reason": "It best matches the question."}]
        return [(tool, json.dumps(values)) for values in arguments], (json.dumps(ranking),)

    def _close_to_best(
        self, scores_of_parts: Sequence[Sequence[float]], choices: Sequence[SectionText], room: int
    ) -> list[str]:
        """For each question, the section that matches best and those that match nearly as well.

        None for a question that a section which is open already, whose score follows, matches better.
        """
        keys: dict[str, None] = {}
        for scores in scores_of_parts:
            ranked = _ranked(scores, choices)
            top = ranked[0][0]
            if top == max(scores):
                close = [section.key for score, section in ranked[:room] if score >= self._close * top]
                keys |= dict.fromkeys(close)
        return list(keys)

    def _tool_call(self, outlook: Outlook, watch: Watch) -> list[Call]:
        """Call a tool whose arguments are in the conversation; a tool with effects never gets invented arguments."""
        called = {name for name, _ in outlook.calls}
        tools = [tool for tool in outlook.tools if tool.name not in SECTION_TOOLS]
        message = outlook.messages if self._composes else outlook.question
        for tool in tools:
            if tool.name in called:
                continue
            request, rest = ("", message) if tool.read_only else requested(tool, message)
            grounding = ground(tool, f"{request}\n{rest}")
            if grounding is None:
                continue
            about = message if tool.read_only else request
            if not self._fits(tool, grounding, about, tools, watch):
                continue
            if self._writer is None or not grounding.missing:
                arguments = copied(tool, grounding, message)
            else:
                arguments = self._writer.arguments(tool, grounding, outlook.question, watch)
            if arguments is None:
                continue
            text = json.dumps({name: arguments[name] for name in tool.strict_schema["properties"]})
            if tool.read_only or self._confirmed(tool, text, outlook, watch):
                return [(tool.name, text)]
        return []

    def _fits(
        self,
        tool: Tool[Any, Any],
        grounding: Grounding,
        message: str,
        tools: Sequence[Tool[Any, Any]],
        watch: Watch,
    ) -> bool:
        """A change needs all its arguments and a request; a lookup needs one of its arguments, or a question about it.

        A message about a change is not answered with a lookup that happens to need the same number.
        """
        if not tool.read_only and (grounding.missing or not message):
            return False
        changes = [change.description for change in tools if not change.read_only and change is not tool]
        own, *scores = self._relevance.sentences(message, [tool.description, *changes], watch.reading)
        if tool.read_only and any(value is not None for value in grounding.values.values()):
            return max(scores, default=0.0) < max(own, self._relevance.fits)
        return own >= self._relevance.fits

    def _confirmed(self, tool: Tool[Any, Any], arguments: str, outlook: Outlook, watch: Watch) -> bool:
        """True if a change may be made: a model that composes is asked whether the user wants it."""
        if self._writer is None or not self._composes:
            return True
        return self._writer.confirms(tool, arguments, outlook, watch)


def _unable(request: ModelRequest, why: str) -> PromptEvaluationError:
    """The error for a prompt that cannot be answered with a quotation."""
    return PromptEvaluationError(
        f"Prompt '{request.prompt_name}' {why}, and LocalAdapter without a language model only quotes; "
        f"{LANGUAGE_MODEL}.",
        prompt_name=request.prompt_name,
        phase="request",
    )


def _ranked(scores: Sequence[float], sections: Sequence[SectionText]) -> list[tuple[float, SectionText]]:
    """The sections with their scores, best first; `scores` may go on with those of other sections."""
    return sorted(zip(scores, sections, strict=False), key=lambda pair: -pair[0])


def _evidence(outlook: Outlook, best: Sequence[Sentence]) -> str:
    """The best-matching sentences in the order they were read, and what tools returned."""
    in_order = sorted(best[:EVIDENCE], key=lambda sentence: sentence.position)
    return "\n".join(f"- {text}" for text in [*(sentence.text for sentence in in_order), *outlook.results])


def _quotation(outlook: Outlook, best: Sequence[Sentence], *, besides: str = "") -> str:
    """The results of tools or, if none was called, the best-matching sentences; omits those in `besides`."""
    quotes = outlook.results or [sentence.text for sentence in _quoted(outlook, best)]
    complete = []
    for quote in quotes:
        if quote not in besides:
            complete.append(quote if quote[-1:] in ".!?:" else f"{quote}.")
    return " ".join(complete)


def _quoted(outlook: Outlook, best: Sequence[Sentence]) -> Sequence[Sentence]:
    """The sentences to quote, each behind the one it refers to; none where a tool answered."""
    if outlook.results:
        return []
    by_text = {sentence.text: sentence for sentence in best}
    is_sure = bool(best) and best[0].score >= SURE
    passages: list[list[Sentence]] = []
    for sentence in best[: QUOTES if is_sure else QUOTES_UNSURE]:
        chain = [sentence]
        while _REFERRING.match(chain[0].text) and chain[0].before in by_text:
            chain.insert(0, by_text[chain[0].before])
        passage = _passage_with(chain, passages)
        if passage is None:
            passages.append(chain)
        else:
            passage += [link for link in chain if link not in passage]
    quoted = []
    for passage in passages:
        quoted += passage
    return quoted


def _passage_with(chain: Sequence[Sentence], passages: Sequence[list[Sentence]]) -> list[Sentence] | None:
    """The first passage that has a sentence of the chain."""
    for passage in passages:
        if any(sentence in passage for sentence in chain):
            return passage
    return None


def _quotation_item(outlook: Outlook, quoted: Sequence[Sentence]) -> tuple[str, ...]:
    """Says that the whole reply is a quotation, and from which tools or sections."""
    sources: dict[str, None] = {}
    if outlook.results:
        for name, _ in outlook.calls:
            if name not in (*OPENING_TOOLS, SEARCH):
                sources[name] = None
    texts = {sentence.text for sentence in quoted}
    for section in outlook.opened:
        if not texts.isdisjoint(sentences(section.body)):
            sources[section.key] = None
    scores = [round(sentence.score, 3) for sentence in quoted]
    return (json.dumps({"type": "quotation", "from": list(sources), "scores": scores}),)
