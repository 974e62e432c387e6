"""Compaction: a conversation that would fill the model's context window is sent in a shorter form.

Sections that are not used are closed, old results replaced by a line, and older exchanges by a summary, in this order
and as far as needed. Nothing of it changes the messages: a `Cut` in the session says what is left out of requests.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from weakincentives.errors import ContextOverflowError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import CollapseSection, SectionPath, inside
from weakincentives.runtime.events import (
    Compacted,
    ContextWindow,
    Cut,
    Insert,
    ModelWindows,
    ReasoningDropped,
)
from weakincentives.runtime.known import notices, offers
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.effects import Compute, Effect
from weakincentives.runtime.messages import EARLIER, SUMMARY, Message, user_words
from weakincentives.runtime.model import Model
from weakincentives.runtime.providers import prices_for
from weakincentives.runtime.window import transcript
from weakincentives.runtime.window.excerpt import (
    count_lasting,
    cut_position,
    digest,
    holds,
    lasts,
    lead,
    placed_excerpt,
    prompt_messages,
    summarized_end,
    unit_starts,
)
from weakincentives.runtime.window.rules import Compaction
from weakincentives.runtime.window.summaries import (
    MAX_WORDS,
    QUESTION,
    REPEATED,
    UNANSWERED,
    Summary,
    make_summary,
    users_words,
)

logger = logging.getLogger("weakincentives.runtime")

MAX_RISK = 0.02
"""By how much, at most, a compaction that is to pay may make a conversation dearer if it ends right after it."""
SUMMARY_TOKENS = 1_500
MIN_SHARE, MIN_SUMMARY = 0.1, 100
"""The share of a conversation, and the number of its tokens, below which it is not worth a summary."""
MIN_TOKENS = 4_000
"""Below this size, no compaction can pay."""
MAX_CHARACTERS = 20_000
"""The number of characters that are counted on an event loop; more are counted in a thread."""
_WINDOW = re.compile(r"(?:> |length is |limit of |limit is |window of |size of |size \(|allowed \()(\d{3,9})")


@dataclass(frozen=True, slots=True)
class _Draft:
    """A cut that is being made: the last step it needed, its costs, and the text of the summary.

    `closed` are the sections to close. `repeats` is a message for the end of the conversation;
    `repeats_prompt` says that the prompt's user sections belong there, too.
    """

    cut: Cut
    by: str = ""
    closed: tuple[SectionPath, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    text: str = ""
    repeats: Message | None = None
    repeats_prompt: bool = False


class _Sizes:
    """The tokens of an excerpt up to any message of its conversation, each message counted once."""

    def __init__(self, excerpt: Iterable[tuple[int, Message]], adapter: Model) -> None:
        self._indexes: list[int] = []
        self._totals = [0]
        for index, message in excerpt:
            self._indexes.append(index)
            self._totals.append(self._totals[-1] + adapter.count_message(message))

    @property
    def total(self) -> int:
        return self._totals[-1]

    def before(self, stop: int) -> int:
        """The tokens of what stands for the messages before this index."""
        return self._totals[bisect_left(self._indexes, stop)]


def prepare(live: LiveRun) -> Generator[Effect, Any, None]:
    """Shorten the conversation if the next request comes near the window, or if that pays."""
    config = _config(live)
    if config is None or _is_prepared(live):
        return
    window = _window(live, config)
    if window is None and config.when == "full":
        return
    size = yield from _request_size(live)
    limit = size + 1 if window is None else config.at * window
    is_shorter = yield from _shorten(live, config, size, limit)
    if not is_shorter:
        live.save(estimated=(size, len(live.session[Message])))


def _shorten(live: LiveRun, config: Compaction, size: int, limit: float) -> Generator[Effect, Any, bool]:
    """Shorten a conversation of this size if it is above the limit, or if that pays; False if it stays as it is."""
    is_full = size > limit
    # Only now: an adapter may have to load its model to know that.
    if not (is_full or config.when == "pays") or live.model.compacts_itself:
        return False
    if not is_full and size < MIN_TOKENS:
        return False
    job: _Job = yield Compute(partial(_job, live, config, size, limit))
    if is_full:
        return (yield from job.run())
    payment: _Payment | None = yield Compute(job.pays)
    if payment is None:
        return False
    return (yield from replace(job, target=0.0).run(summarizes=payment.summarizes))


def overflowed(live: LiveRun, error: ContextOverflowError) -> Generator[Effect, Any, bool]:
    """Shorten a conversation that was too long for the model, once per request.

    False if that is not possible.
    """
    config = _config(live)
    if config is None or live.state.shortened or live.model.compacts_itself:
        return False
    state = window_state(live)
    counted = yield Compute(partial(estimate, live, transcript.sent_now(live)))
    size = max((yield from _request_size(live)), counted // 2)
    window = min(size, max(state.tokens, size * 3 // 4))
    stated = _WINDOW.search(str(error).replace(",", ""))
    if stated and int(stated[1]) < 20 * size:
        window = int(stated[1])
        size = max(size, window + 1)
    declared = config.window or live.model.context_window
    limit = config.at * min(window, declared or window)
    job = yield Compute(partial(_job, live, config, size, limit, window=window))
    is_shorter: bool = yield from job.run()
    if stated and not is_shorter:
        # Nothing could be shortened, so no event says it.
        live.session[ModelWindows].seed(_windows(live).with_size(live.model.model, window))
    if is_shorter and (live.stream.text or error.phase == "response"):
        live.stream.text, live.stream.restarted = [], "The conversation was too long; it was shortened."
    return is_shorter


def replied(live: LiveRun) -> None:
    """Record that the model has replied: another overflow may shorten it again."""
    state, estimated = window_state(live), live.state.estimated
    if estimated is not None and not state.tokens:
        # The provider does not say how long the request was. Without this, each request would be counted from its
        # beginning.
        tokens, counted = estimated
        messages = live.session[Message].view()
        tokens += estimate(live, messages[counted:], with_tools=False)
        live.session[ContextWindow].seed(replace(state, tokens=tokens, counted=len(messages)))
    if estimated is not None or live.state.shortened:
        live.save(estimated=None, shortened=False)


def window_state(live: LiveRun) -> ContextWindow:
    """The use of the model's context window so far."""
    return live.session[ContextWindow].latest() or ContextWindow()


def estimate(live: LiveRun, messages: Iterable[Message], *, with_tools: bool = True) -> int:
    """The tokens of these messages, and of the tools, by the adapter's tokenizer."""
    tools = live.toolbox.all_tools if with_tools else ()
    return live.model.estimate_request(messages, tools)


def _config(live: LiveRun) -> Compaction | None:
    last = live.session[Message].latest()
    # A paused reply must be continued with what it was begun with.
    return None if last is not None and last.paused else live.spec.compaction


def _is_prepared(live: LiveRun) -> bool:
    """True if this request was prepared before: the run stopped then, or has gone back to it, and sends it again."""
    state = live.state
    if state.estimated is not None and not state.shortened:
        return True
    return not state.model and window_state(live).prepared == len(live.session[Message])


def _windows(live: LiveRun) -> ModelWindows:
    return live.session[ModelWindows].latest() or ModelWindows()


def _window(live: LiveRun, config: Compaction) -> int | None:
    """The size of the model's context window, if it is known.

    What an overflow has revealed counts if it is less than what is declared.
    """
    windows = _windows(live)
    declared = config.window or live.model.context_window
    revealed = windows.of(live.model.model) if windows.sizes else window_state(live).limit
    sizes = [size for size in (declared, revealed) if size is not None]
    return min(sizes, default=None)


def _request_size(live: LiveRun) -> Generator[Effect, Any, int]:
    """The tokens of the next request: of the last one, its reply, and what came after."""
    state, messages = window_state(live), live.session[Message].view()
    is_known = state.tokens > 0 and state.counted <= len(messages)
    added = messages[state.counted :] if is_known else transcript.sent_now(live)
    characters = sum(len(message.text) for message in added)
    count = partial(estimate, live, added, with_tools=not is_known)
    tokens: int = (yield Compute(count)) if characters > MAX_CHARACTERS else count()
    return state.tokens + tokens if is_known else tokens


class _Payment(NamedTuple):
    """A shorter conversation is cheaper, with or without a summary."""

    summarizes: bool


def _job(live: LiveRun, config: Compaction, size: int, fits: float, *, window: int | None = None) -> _Job:
    """A compaction of the conversation as it is now, of which so many tokens may be sent."""
    by_turns = not live.in_conversation
    messages, state = live.session[Message].view(), window_state(live)
    cut = state.cut
    if cut is None or not holds(messages, cut):
        cut = Cut()
    current = replace(cut, by_turns=by_turns)
    sent = [message for _, message in placed_excerpt(messages, current, live.model.name)]
    tool_tokens = estimate(live, ())
    before = tool_tokens + estimate(live, sent, with_tools=False)
    if window is None and not state.usage.input_tokens:
        # The provider never says how long a request was: the size is a sum of estimates.
        size = before
    scale = max(size / before, 0.1)
    turns = unit_starts(messages, by_turns=True)
    units = turns if by_turns else unit_starts(messages, by_turns=False)
    job = _Job(
        live,
        config,
        size,
        window,
        messages,
        current,
        sent,
        tool_tokens,
        before,
        scale,
        fits / scale,
        fits / 2 / scale,
        turns,
        units,
    )
    return replace(job, start=job.tail())


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One compaction of a conversation of `size` tokens, of which `fits` may be sent.

    It goes down to the `target`. All counting and comparing is in methods that only read, for `Compute`: it takes long
    in a long conversation. `scale` is the number of tokens that the provider counts for one that we estimate; `fits`
    and `target` are in those that we do.
    """

    live: LiveRun
    config: Compaction
    size: int
    window: int | None
    messages: Sequence[Message]
    current: Cut
    sent: Sequence[Message]
    tool_tokens: int
    before: int
    scale: float
    fits: float
    target: float
    turns: Sequence[int]
    units: Sequence[int]
    start: int | None = None

    def run(self, *, summarizes: bool = True) -> Generator[Effect, Any, bool]:
        """Shorten as far as needed; False if nothing could be shortened."""
        if self.start is None:
            return False
        draft = yield Compute(partial(self._without_summary, self.start))
        if summarizes and (yield Compute(partial(self._needs_summary, draft.cut, self.start))):
            summarized = yield from self._summarized(draft, self.start)
            if (yield Compute(partial(self._is_shorter, summarized.cut, draft.cut))):
                draft = summarized
            else:
                yield from self._give_up(draft.cut, self.start, was_made=summarized is not draft)
        after = round((yield Compute(partial(self._tokens, draft.cut))) * self.scale)
        if draft.cut == self.current or after >= self.size:
            return False
        rewritten = yield Compute(partial(self._changed, draft.cut))
        self._record(draft, after, round(rewritten))
        return True

    def pays(self) -> _Payment | None:
        """If a shorter conversation is cheaper should it go on for as long again, the way to shorten it."""
        adapter, clock = self.live.model, self.live.session.clock
        state = window_state(self.live)
        prices = self.live.meter.budget.prices or prices_for(adapter.model)
        if self.start is None or prices is None:
            return None
        read = prices.input if prices.cached_input is None else prices.cached_input
        write = prices.input * adapter.cache_write
        warm = clock.now().timestamp() - state.called < adapter.cache_seconds
        # The balance so far, at the prices of a warm cache: what compactions have cost, less what they have saved.
        balance = prices.cost(state.overhead) * 1e6 + state.rewritten * (write - read) - state.omitted * read
        risk = MAX_RISK * (prices.cost(state.usage) * 1e6 - balance)
        without = self.size * (read if warm else write)
        # A summary is asked for with the request itself, unless the provider has another way.
        reads = warm and self.config.by == "provider" and (not adapter.compacts or adapter.compaction_keeps_tools)
        best, payment = 0.0, None
        for summarizes, since in ((False, state.compacted), (True, state.summarized)):
            after, same, asked = self._outlook(summarizes=summarizes)
            cost = asked * (read if reads else prices.input)
            cost += SUMMARY_TOKENS * prices.output if asked else 0
            cost += same * (read if warm else write) + (after - same) * write - without
            saving = (self.size - after) * read
            gain = state.calls * saving - cost
            # What could be saved has grown since the last compaction. The best moment is when carrying it has cost as
            # much as the next compaction.
            carried = (state.calls - since) * saving / 2
            if gain > best and carried >= cost and balance + cost <= risk:
                best, payment = gain, _Payment(summarizes)
        return payment

    def _outlook(self, *, summarizes: bool) -> tuple[float, float, float]:
        """The tokens of the next request, those it shares with the last one, and those to sum up."""
        assert self.start is not None
        cut = self._without_results(self._without_sections(ranks=False), self.start).cut
        to_summarize, summary_tokens = 0.0, 0
        if summarizes:
            to_summarize = self._sizes(self.current).before(self.start) * self.scale
            summary_tokens = SUMMARY_TOKENS
            cut = replace(cut, summarized=cut.cleared, head=Message("user", kind=SUMMARY))
        after = self._tokens(cut) * self.scale + summary_tokens
        return after, after - self._changed(cut), to_summarize

    def _changed(self, cut: Cut) -> float:
        """The tokens of a request with this cut after the first difference to the last request."""
        sent = self._part(cut)
        same = 0
        for new, old in zip(sent, self.sent, strict=False):
            if new != old:
                break
            same += 1
        return self._estimate(sent[same:]) * self.scale

    def _part(self, cut: Cut, stop: int | None = None) -> list[Message]:
        """The messages as they would be sent; with `stop`, what stands for those before it."""
        part: list[Message] = []
        for index, message in self._placed(cut):
            if stop is None or index < stop:
                part.append(message)
        return part

    def _placed(self, cut: Cut) -> Iterator[tuple[int, Message]]:
        return placed_excerpt(self.messages, cut, self.live.model.name)

    def _sizes(self, cut: Cut) -> _Sizes:
        return _Sizes(self._placed(cut), self.live.model)

    def _tokens(self, cut: Cut) -> int:
        return self.tool_tokens + self._sizes(cut).total

    def _is_shorter(self, cut: Cut, other: Cut) -> bool:
        return self._tokens(cut) < self._tokens(other)

    def _estimate(self, messages: Iterable[Message]) -> int:
        return estimate(self.live, messages, with_tools=False)

    def tail(self) -> int | None:
        """Where the messages begin that stay as they are: the last exchanges, as many as fit."""
        prompt_end = lead(self.messages)
        recent = self.units[-self.config.keep :]
        starts = [index for index in recent if index > prompt_end]
        if recent:
            starts += [index for index in self.turns if index > max(recent[-1], prompt_end)]
        if not starts:
            return None
        prompt_tokens = self.tool_tokens + self._estimate(self.messages[:prompt_end])
        reserve = min(MAX_WORDS + SUMMARY_TOKENS, self.fits / 4)
        room = self.fits - prompt_tokens - reserve
        # From the end, so that nothing before what fits is counted.
        start, stop, tokens = starts[-1], len(self.messages), 0
        for index in reversed(starts):
            tokens += self._estimate(self.messages[index:stop])
            if tokens > room:
                break
            start = stop = index
        return start

    def _without_summary(self, start: int) -> _Draft:
        """Close sections and replace results, as far as needed."""
        draft = self._without_sections(ranks=True)
        if self._tokens(draft.cut) > self.target:
            draft = self._without_results(draft, start)
        return draft

    def _without_sections(self, *, ranks: bool) -> _Draft:
        """Close sections that were neither opened, read nor used in the exchanges that are kept, as far as needed.

        Unless it `ranks`, which may cost a request, those that the user's words call for count as not used.
        """
        view, exposure = self.live.view, self.live.exposure
        closable: list[SectionPath] = []
        for node in view.existing():
            opened_in_session = view.is_open(node.path) and view.decided_by(node) == "session"
            if opened_in_session and node.summary is not None:
                closable.append(node.path)
        in_use = self._sections_in_use()
        words = user_words(self.messages)
        in_use.update(self.live.presentation.called_for(closable, words, ranks=ranks))
        closed: list[SectionPath] = []
        calls_left_out = list(self.current.closed)
        freed, needed = 0, self.before - self.target
        for section in closable:
            if freed >= needed:
                break
            is_used = any(inside(path, section) for path in in_use)
            closes_with_parent = any(inside(section, path) for path in closed)
            if is_used or closes_with_parent:
                continue
            closed.append(section)
            for path, exposed in exposure.items():
                if not inside(path, section):
                    continue
                if exposed.result is not None:
                    calls_left_out.append(exposed.result[0])
                if exposed.source == "conversation":
                    freed += exposed.tokens
        if not closed:
            return _Draft(self.current)
        cut = replace(self.current, closed=tuple(dict.fromkeys(calls_left_out)))
        return _Draft(self._about(cut), "sections", tuple(closed))

    def _sections_in_use(self) -> set[SectionPath]:
        """The sections opened, read or used in the exchanges that are kept."""
        live, view = self.live, self.live.view
        recent_start = next(iter(self.units[-self.config.keep :]), 0)
        calls: dict[str, str] = {}
        for message in self.messages[recent_start:]:
            calls.update((call.id, call.name) for call in message.tool_calls)
        in_use = set(live.opened_since(recent_start))
        for path, exposed in live.exposure.items():
            if exposed.result is not None and exposed.result[0] in calls:
                in_use.add(path)
        for name in calls.values():
            section = view.find(live.toolbox.section_of(name))
            if section is not None:
                in_use.add(section)
        return in_use

    def _without_results(self, draft: _Draft, start: int) -> _Draft:
        """Replace the results before the exchanges that are kept."""
        cleared = max(draft.cut.cleared, count_lasting(self.messages, start))
        cut = self._about(replace(draft.cut, cleared=cleared))
        return draft if cut == draft.cut else replace(draft, cut=cut, by="results")

    def _about(self, cut: Cut, rebased: int | None = None) -> Cut:
        """The cut with a digest of the messages it is about; replies after what it has changed are marked.

        If the provider has summarized all that it changes, that is no other than in the request for it: `rebased`.
        """
        stop = cut_position(self.messages, max(cut.cleared, cut.summarized))
        own = cut.head is None or not cut.head.provider or cut.cleared > cut.summarized
        if own or rebased is None:
            rebased = sum(message.role == "assistant" for message in self.messages)
        return replace(cut, digest=digest(self.messages, stop), rebased=rebased)

    @property
    def _words_room(self) -> float:
        """The tokens of the user's messages that are repeated; a small window needs the room."""
        return min(MAX_WORDS, self.fits / 4)

    def _needs_summary(self, cut: Cut, start: int) -> bool:
        """True if the request is still too long, and more than a few words are not summarized yet.

        A summary that fails costs as much as one that does not, so it is not tried again before
        there is more to summarize, unless the model has refused the request.
        """
        if self._tokens(cut) <= self.target:
            return False
        tried = window_state(self.live).tried if self.window is None else 0
        least = max(MIN_SHARE * self.before, MIN_SUMMARY, 1.25 * tried)
        return self._unsummarized(cut, start) > least

    def _unsummarized(self, cut: Cut, start: int) -> int:
        """The tokens of the messages before the tail that are not summarized yet."""
        part = self._part(cut, start)
        return self._estimate(message for message in part[lead(part) :] if message.kind != SUMMARY)

    def _give_up(self, cut: Cut, start: int, *, was_made: bool) -> Generator[Effect, Any, None]:
        if was_made:
            text = "'%s': a summary is as long as what it would replace, so it is not used."
            logger.warning(text, self.live.name)
        tokens = yield Compute(partial(self._unsummarized, cut, start))
        self.live.session[ContextWindow].seed(replace(window_state(self.live), tried=tokens))

    def _summarized(self, draft: _Draft, start: int) -> Generator[Effect, Any, _Draft]:
        """Put a summary in place of the messages before the tail, in parts if they do not fit."""
        # The request for a summary may fill the window, of which a conversation takes a part, but
        # for the instructions and the summary itself.
        window = self.fits / self.config.at
        room = window - min(SUMMARY_TOKENS, window / 8)
        cut = self.current
        sizes = yield Compute(partial(self._sizes, cut))
        if sizes.before(start) > room:
            cut = draft.cut
            sizes = yield Compute(partial(self._sizes, cut))
        rebased = cut.rebased
        ends = self._possible_ends(cut, start)
        while ends:
            end = _summary_end(ends, sizes, room)
            summary = yield from make_summary(self.live, self.config, self._part(cut, end))
            if summary is None:
                return draft
            draft = yield Compute(partial(self._with_summary, draft, summary, end, rebased))
            cut = draft.cut
            ends = [index for index in ends if index > end]
            sizes = yield Compute(partial(self._sizes, cut))
        draft = yield Compute(partial(self._with_user_words, draft))
        return draft

    def _possible_ends(self, cut: Cut, start: int) -> list[int]:
        """Where the part to summarize may end: between turns, after what is summarized already."""
        provider = self.live.model.name
        first = max(lead(self.messages), summarized_end(self.messages, cut, provider))
        ends = sorted({*self.units, *self.turns, start})
        return [index for index in ends if first < index <= start]

    def _with_summary(self, draft: _Draft, summary: Summary, end: int, rebased: int) -> _Draft:
        """The draft with a summary of the messages before an index."""
        adapter, unit = self.live.model, "turns" if self.current.by_turns else "exchanges"
        number = bisect_left(self.units, end)
        extent = f"The first {number} {unit} of the conversation are summarized here"
        title = f'{extent}; recall("{number}") returns one.'
        words: list[str] = []
        if summary.by != "provider":
            words = users_words(self.live, self.messages[:end], self._words_room)
        summarized = count_lasting(self.messages, end)
        cut = replace(
            draft.cut,
            summarized=summarized,
            cleared=max(draft.cut.cleared, summarized),
            head=summary.head(adapter.name, title, words),
            keeps_tools=summary.by == "provider" and adapter.compaction_keeps_tools,
        )
        reply = summary.reply
        return replace(
            draft,
            cut=self._about(cut, rebased=rebased),
            by=summary.by,
            usage=draft.usage + reply.usage,
            text=reply.text,
        )

    def _with_user_words(self, draft: _Draft) -> _Draft:
        """The draft with what requests must repeat of the user's words, before the question of now.

        Where that would make bound reasoning invalid, it is repeated at the end, with the question.
        """
        cut = draft.cut
        if cut.head is None or cut == self.current:
            return draft
        by_provider = bool(cut.head.provider)
        inserts: list[Insert] = []
        if by_provider:
            # The replies after those that stand in the rest were written with them.
            inserts += [insert for insert in cut.inserts if insert[0] >= cut.summarized]
        end = cut_position(self.messages, cut.summarized)
        words = self._words_to_repeat(draft, inserts, end) if by_provider else []
        repeats_prompt = self._repeats_prompt(draft, inserts, end)
        texts = [REPEATED, *words] if words else []

        question = self._question(end)
        rest = self.messages[end if question is None else question :]
        if by_provider and any(map(self.live.model.binds_reasoning, rest)):
            if question is not None and (words or repeats_prompt):
                texts.append(QUESTION)
                texts.extend(message.text for message in rest if message.by_user)
            elif words:
                texts.append(UNANSWERED)
            repeats = Message("user", "\n\n".join(texts), kind=EARLIER) if texts else None
            cut = replace(cut, inserts=tuple(inserts))
            return replace(draft, cut=cut, repeats=repeats, repeats_prompt=repeats_prompt)

        place = cut.summarized if question is None else count_lasting(self.messages, question)
        if repeats_prompt:
            inserts.append((place, None))
        if texts:
            if question is None:
                texts.append(UNANSWERED)
            inserts.append((place, Message("user", "\n\n".join(texts), kind=EARLIER)))
        return replace(draft, cut=replace(cut, inserts=tuple(inserts)))

    def _words_to_repeat(self, draft: _Draft, inserts: Sequence[Insert], end: int) -> list[str]:
        """The user's messages before `end` that neither the summary nor an insert contains."""
        texts = [draft.text]
        for _, message in inserts:
            if message is not None:
                texts.append(message.text)
        return users_words(self.live, self.messages[:end], self._words_room, "\n\n".join(texts))

    def _repeats_prompt(self, draft: _Draft, inserts: Sequence[Insert], end: int) -> bool:
        """True if the prompt's user messages before `end` are in neither of them."""
        if any(message is None for _, message in inserts):
            return False
        for message in prompt_messages(self.messages, draft.cut, end):
            if draft.by != "provider" or message.parts or message.text not in draft.text:
                return True
        return False

    def _question(self, end: int) -> int | None:
        """The index of the user's messages to be answered; None if they are before `end`."""
        question = None
        for index in range(len(self.messages) - 1, end - 1, -1):
            message = self.messages[index]
            if message.by_user:
                question = index
            elif question is not None and lasts(message):
                break
        return question

    def _record(self, draft: _Draft, after: int, rewritten: int) -> None:
        """Record the compaction, and send again what still applies and is now left out."""
        live, cut = self.live, draft.cut
        summarized = draft.by in ("provider", "model", "function")
        cleared = cut_position(self.messages, cut.cleared)
        gone = {message.call_id for message in self.messages[:cleared] if message.role == "tool"} | {*cut.closed}
        is_bound = any(map(live.model.binds_reasoning, self.messages))
        # All at once: a snapshot has the shorter conversation with all that still applies, or the longer one.
        with live.session.together():
            if is_bound and cut.rebased > self.current.rebased:
                live.emit(ReasoningDropped, reason="it is bound to messages that were left out")
            live.emit(
                Compacted,
                before=self.size,
                after=after,
                saved=self.size - after,
                by=draft.by,
                cut=replace(cut, omitted=self.current.omitted + self.size - after),
                usage=draft.usage,
                rewritten=rewritten,
                window=self.window,
                messages=len(self.messages),
                model=live.model.model,
            )
            for path in draft.closed:
                live.session.dispatch(CollapseSection(path, "the conversation was shortened", by="compaction"))
            # Only an overflow says how large the window is.
            is_overflow = self.window is not None
            live.save(estimated=(after, len(self.messages)), shortened=live.state.shortened or is_overflow)
            notices.forget(
                live,
                gone,
                notices_too=summarized,
                user_too=draft.repeats_prompt,
                user_kept=any(message is None for _, message in cut.inserts),
            )
            if draft.repeats is not None:
                transcript.say(live, draft.repeats)
            offers.offer_again(live)


def _summary_end(ends: Sequence[int], sizes: _Sizes, room: float) -> int:
    """Where the next part to summarize ends: as much as fits, unless that is next to nothing."""
    fitting = 0
    for end in ends:
        size = sizes.before(end)
        if size > room:
            return fitting or end
        if size > room / 4:
            fitting = end
    return fitting or ends[-1]
