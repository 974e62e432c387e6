"""Compaction: a conversation that would fill the model's context window is sent in a shorter form.

Sections that are not used are closed, old results replaced by a line, and older exchanges by a summary, in this order
and as far as needed. Nothing of it changes the messages: a `Cut` in the session says what is left out of requests.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives.content import Media
from weakincentives.errors import ContextOverflowError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import CollapseSection, SectionPath, inside
from weakincentives.runtime.answers import StreamState
from weakincentives.runtime.context import Compaction, RunContext
from weakincentives.runtime.events import Compacted, ContextWindow, Cut, ReasoningDropped
from weakincentives.runtime.messages import EARLIER, PROMPT_TEXT, SUMMARY, Effect, Message, user_words
from weakincentives.runtime.notices import Notices
from weakincentives.runtime.providers import prices_for
from weakincentives.runtime.summaries import MAX_WORDS, Summaries
from weakincentives.runtime.tools import OfferedTools
from weakincentives.runtime.transcript import count_lasting, digest, excerpt, holds, lead, position, unit_starts

logger = logging.getLogger("weakincentives.runtime")

MAX_RISK = 0.02
"""By how much, at most, a compaction that is to pay may make a conversation dearer if it ends right after it."""
SUMMARY_TOKENS = 1_500
MIN_SHARE, MIN_SUMMARY = 0.1, 100
"""The share of a conversation, and the number of its tokens, below which it is not worth a summary."""
MIN_TOKENS = 4_000
"""Below this size, no compaction can pay."""
_WINDOW = re.compile(r"(?:> |length is |limit of |limit is |window of |size of |size \()(\d{3,9})")


@dataclass(frozen=True, slots=True)
class _Draft:
    """A cut that is being made: the last step it needed, what that closes and costs, and the text of the summary."""

    cut: Cut
    by: str = ""
    closed: tuple[SectionPath, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    text: str = ""


@dataclass(slots=True)
class Compactor:
    """Shortens the conversation of a loop, before a request or after one that was too long."""

    context: RunContext
    tools: OfferedTools
    notices: Notices
    _retried: bool = False

    def prepare(self, *, by_turns: bool) -> Generator[Effect, Any, None]:
        """Shorten the conversation if the next request would come near the window, or if that pays."""
        config = self._config
        if config is None or self.known.prepared == len(self.context.session[Message]):
            return
        window = config.window or self.context.adapter.context_window or self.known.limit
        if window is None and config.when == "full":
            return
        size = self._size()
        limit = size + 1 if window is None else config.at * window
        is_full = size > limit
        # Only now: an adapter may have to load its model to know that.
        if not (is_full or config.when == "pays") or self.context.adapter.compacts_itself:
            return
        if is_full:
            yield from _Job(self, config, size, limit, by_turns=by_turns).run()
        elif size >= MIN_TOKENS:
            job = _Job(self, config, size, limit, by_turns=by_turns)
            if (summarizes := job.pays()) is not None:
                yield from job.run(summarizes=summarizes)

    def overflowed(
        self, error: ContextOverflowError, stream: StreamState, *, by_turns: bool
    ) -> Generator[Effect, Any, bool]:
        """Shorten a conversation that was too long for the model, once per request; False if that is not possible."""
        config = self._config
        if config is None or self._retried or self.context.adapter.compacts_itself:
            return False
        known, messages = self.known, self.context.transcript.sent()
        size = max(self._size(), self.estimate(messages) // 2)
        found = _WINDOW.search(str(error).replace(",", ""))
        window = min(size, max(known.tokens, size * 3 // 4))
        if found and int(found[1]) < 20 * size:
            window = int(found[1])
            size = max(size, window + 1)
        limit = config.at * min(window, config.window or window)
        self._retried = yield from _Job(self, config, size, limit, by_turns=by_turns, window=window).run()
        if self._retried and (stream.text or error.phase == "response"):
            stream.text, stream.restarted = [], "The conversation was too long; it was shortened."
        return self._retried

    def replied(self) -> None:
        """Record that the model has replied: another overflow may shorten the conversation again."""
        self._retried = False

    @property
    def _config(self) -> Compaction | None:
        context = self.context
        last = context.session[Message].latest()
        # A paused reply must be continued with what it was begun with.
        return None if last is not None and last.paused else context.config.compaction

    @property
    def known(self) -> ContextWindow:
        return self.context.session[ContextWindow].latest() or ContextWindow()

    def _size(self) -> int:
        """The tokens of the next request: those of the last one and its reply, and an estimate of what came after."""
        known, messages = self.known, self.context.session[Message].view()
        if known.tokens and known.counted <= len(messages):
            return known.tokens + self.estimate(messages[known.counted :], with_tools=False)
        cut = known.cut if known.cut is not None and holds(messages, known.cut) else None
        return self.estimate(messages if cut is None else excerpt(messages, cut, self.context.adapter.name))

    def estimate(self, messages: Sequence[Message], *, with_tools: bool = True) -> int:
        """The tokens of these messages, and of the tools, by the adapter's tokenizer."""
        adapter, total = self.context.adapter, 0
        for message in messages:
            total += adapter.count_tokens(message.text) + 4
            total += sum(adapter.count_tokens(call.arguments) + 8 for call in message.tool_calls)
            total += sum(adapter.count_media(part) for part in message.parts if isinstance(part, Media))
        return total + (adapter.count_tools(self.tools.toolbox.offered["tools"]) if with_tools else 0)


class _Job:
    """One compaction of a conversation of `size` tokens, of which `fits` may be sent, down to the `target`."""

    def __init__(
        self,
        compactor: Compactor,
        config: Compaction,
        size: int,
        fits: float,
        *,
        by_turns: bool,
        window: int | None = None,
    ) -> None:
        self.compactor, self.config, self.size, self.window = compactor, config, size, window
        self.context = compactor.context
        self.messages = self.context.session[Message].view()
        known = compactor.known.cut
        self.known = replace(known if known and holds(self.messages, known) else Cut(), by_turns=by_turns)
        self.sent = self._part(self.known)
        self.before = compactor.estimate(self.sent)
        self.fits, self.target = fits / self.scale, fits / 2 / self.scale
        self.starts = [unit_starts(self.messages, by_turns=each) for each in (by_turns, True)]
        self.start = self._tail()

    def run(self, *, summarizes: bool = True) -> Generator[Effect, Any, bool]:
        """Shorten as far as needed; False if nothing could be shortened."""
        if self.start is None:
            return False
        draft = self._without_sections(ranks=True)
        if self._tokens(draft.cut) > self.target:
            draft = self._without_results(draft, self.start)
        if summarizes and self._tokens(draft.cut) > self.target and self._worth_summary(draft.cut, self.start):
            made = yield from self._summarized(draft, self.start)
            if self._tokens(made.cut) < self._tokens(draft.cut):
                draft = made
            else:
                self._give_up(draft.cut, self.start, was_made=made is not draft)
        after = round(self._tokens(draft.cut) * self.scale)
        if draft.cut == self.known or after >= self.size:
            return False
        self._record(draft, after)
        return True

    @property
    def scale(self) -> float:
        """The tokens that the provider counts for one that we estimate."""
        return max(self.size / self.before, 0.1)

    def pays(self) -> bool | None:
        """True or False if a shorter conversation, with or without a summary, is cheaper should it go on for as long
        again; None if it is not."""
        adapter, known, clock = self.context.adapter, self.compactor.known, self.context.session.clock
        prices = self.context.scope.meter.budget.prices or prices_for(adapter.model)
        if self.start is None or prices is None:
            return None
        read = prices.input if prices.cached_input is None else prices.cached_input
        write = prices.input * adapter.cache_write
        warm = clock.now().timestamp() - known.called < adapter.cache_seconds
        # The balance so far, at the prices of a warm cache: what compactions have cost, less what they have saved.
        balance = prices.cost(known.overhead) * 1e6 + known.rewritten * (write - read) - known.omitted * read
        risk = MAX_RISK * (prices.cost(known.usage) * 1e6 - balance)
        without = self.size * (read if warm else write)
        # A summary is asked for with the request itself, unless the provider has another way.
        reads = warm and self.config.by == "provider" and (not adapter.compacts or adapter.compaction_keeps_tools)
        best, chosen = 0.0, None
        for summarizes, since in ((False, known.compacted), (True, known.summarized)):
            after, same, asked = self._outlook(summarizes=summarizes)
            cost = asked * (read if reads else prices.input)
            cost += SUMMARY_TOKENS * prices.output if asked else 0
            cost += same * (read if warm else write) + (after - same) * write - without
            saving = (self.size - after) * read
            gain = known.calls * saving - cost
            # What could be saved has grown since the last compaction. The best moment is when carrying it has cost as
            # much as the next compaction.
            carried = (known.calls - since) * saving / 2
            if gain > best and carried >= cost and balance + cost <= risk:
                best, chosen, self.target = gain, summarizes, 0.0
        return chosen

    def _outlook(self, *, summarizes: bool) -> tuple[float, float, float]:
        """The tokens of the next request, those it shares with the last one, and those to be summarized."""
        assert self.start is not None
        draft, asked = self._without_results(self._without_sections(ranks=False), self.start), 0.0
        if summarizes:
            head = Message("user", kind=SUMMARY)
            asked = self._estimate(self._part(self.known, self.start)) * self.scale
            draft = replace(draft, cut=replace(draft.cut, summarized=draft.cut.cleared, head=head))
        after = self._tokens(draft.cut) * self.scale + (SUMMARY_TOKENS if summarizes else 0)
        return after, after - self._changed(draft.cut), asked

    def _changed(self, cut: Cut) -> float:
        """The tokens of a request with this cut after the first message that differs from the last request."""
        sent = self._part(cut)
        pairs = enumerate(zip(sent, self.sent, strict=False))
        same = next((at for at, (new, old) in pairs if new != old), min(len(sent), len(self.sent)))
        return self._estimate(sent[same:]) * self.scale

    def _part(self, cut: Cut, stop: int | None = None) -> list[Message]:
        """The messages before an index, by default all, as they would be sent."""
        return excerpt(self.messages[:stop], cut, self.context.adapter.name)

    def _tokens(self, cut: Cut) -> int:
        return self.compactor.estimate(self._part(cut))

    def _estimate(self, messages: Sequence[Message]) -> int:
        return self.compactor.estimate(messages, with_tools=False)

    def _tail(self) -> int | None:
        """Where the messages begin that stay as they are: the last exchanges, or as many of them as fit."""
        first, recent = lead(self.messages), self.starts[0][-self.config.keep :]
        later = [at for at in self.starts[1] if recent and at > recent[-1]]
        options = [at for at in (*recent, *later) if at > first]
        always = self.compactor.estimate(self.messages[:first])
        reserve = min(MAX_WORDS + SUMMARY_TOKENS, self.fits / 4)
        fitting = (at for at in options if always + self._estimate(self.messages[at:]) + reserve <= self.fits)
        return next(fitting, options[-1] if options else None)

    def _without_sections(self, *, ranks: bool) -> _Draft:
        """Close sections that were neither opened, read nor used in the exchanges that are kept, as far as needed.

        Unless it `ranks`, which may cost a request, those that the user's words call for count as not used.
        """
        view, exposure = self.context.view, self.context.exposure
        closable: list[SectionPath] = []
        for node in view.existing():
            opened_in_session = view.is_open(node.path) and view.decided_by(node) == "session"
            if opened_in_session and node.summary is not None:
                closable.append(node.path)
        in_use = self._sections_in_use()
        words = user_words(self.messages)
        in_use.update(self.context.presentation.called_for(closable, words, ranks=ranks))
        closed: list[SectionPath] = []
        calls_left_out = list(self.known.closed)
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
            return _Draft(self.known)
        cut = replace(self.known, closed=tuple(dict.fromkeys(calls_left_out)))
        return _Draft(self._about(cut), "sections", tuple(closed))

    def _sections_in_use(self) -> set[SectionPath]:
        """The sections opened, read or used in the exchanges that are kept."""
        context, view, toolbox = self.context, self.context.view, self.compactor.tools.toolbox
        recent_start = next(iter(self.starts[0][-self.config.keep :]), 0)
        calls: dict[str, str] = {}
        for message in self.messages[recent_start:]:
            calls.update((call.id, call.name) for call in message.tool_calls)
        in_use = set(context.opened_since(recent_start))
        for path, exposed in context.exposure.items():
            if exposed.result is not None and exposed.result[0] in calls:
                in_use.add(path)
        for name in calls.values():
            section = view.find(toolbox.section_of(name))
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
        stop = position(self.messages, max(cut.cleared, cut.summarized)) or 0
        own = cut.head is None or not cut.head.provider or cut.cleared > cut.summarized
        if own or rebased is None:
            rebased = sum(message.role == "assistant" for message in self.messages)
        return replace(cut, digest=digest(self.messages, stop), rebased=rebased)

    @property
    def _summaries(self) -> Summaries:
        return Summaries(self.context, self.compactor.tools, self.config)

    def _worth_summary(self, cut: Cut, start: int) -> bool:
        """True if the messages before the tail that are not summarized yet are more than a few words.

        One that fails costs as much as one that does not, so it is not tried again before they have grown, unless the
        model has refused the request.
        """
        tried = self.compactor.known.tried if self.window is None else 0
        return self._new(cut, start) > max(MIN_SHARE * self.before, MIN_SUMMARY, 1.25 * tried)

    def _new(self, cut: Cut, start: int) -> int:
        part = self._part(cut, start)
        return self._estimate([each for each in part[lead(part) :] if each.kind != SUMMARY])

    def _give_up(self, cut: Cut, start: int, *, was_made: bool) -> None:
        if was_made:
            text = "'%s': a summary is as long as what it would replace, so it is not used."
            logger.warning(text, self.context.name)
        known = replace(self.compactor.known, tried=self._new(cut, start))
        self.context.session[ContextWindow].seed(known)

    def _summarized(self, draft: _Draft, start: int) -> Generator[Effect, Any, _Draft]:
        """Put a summary in place of the messages before the tail, made in parts if they do not fit at once."""
        adapter, unit = self.context.adapter, "turns" if self.known.by_turns else "exchanges"
        summaries = self._summaries
        # A summary is made for the window itself, which has more room than what a conversation may take of it.
        room = self.fits / self.config.at
        form = self.known if self._estimate(self._part(self.known, start)) <= room else draft.cut
        rebased = form.rebased
        ends = [at for at in sorted({*self.starts[0], *self.starts[1], start}) if lead(self.messages) < at <= start]
        while ends:
            # As much as fits, unless that is next to nothing.
            sizes = [(at, self._estimate(self._part(form, at))) for at in ends]
            end = next((at for at, size in reversed(sizes) if room / 4 < size <= room), 0)
            end = end or next((at for at, size in sizes if size > room), ends[-1])
            made = yield from summaries.make(self._part(form, end))
            if made is None:
                return draft
            number = sum(at < end for at in self.starts[0])
            title = (
                f'The first {number} {unit} of the conversation are summarized here; recall("{number}") returns one.'
            )
            words, summarized = summaries.words(self.messages[:end]), count_lasting(self.messages, end)
            cut = replace(
                draft.cut,
                summarized=summarized,
                cleared=max(draft.cut.cleared, summarized),
                head=made.head(adapter.name, title, words),
                keeps_tools=made.by == "provider" and adapter.compaction_keeps_tools,
            )
            form = self._about(cut, rebased=rebased)
            draft = replace(draft, cut=form, by=made.by, usage=draft.usage + made.reply.usage, text=made.reply.text)
            ends = [at for at in ends if at > end]
        return draft

    def _record(self, draft: _Draft, after: int) -> None:
        """Record the compaction, and send again what still applies and is now left out."""
        context, cut, notices = self.context, draft.cut, self.compactor.notices
        summarized = draft.by in ("provider", "model", "function")
        cleared = position(self.messages, cut.cleared) or 0
        gone = {message.call_id for message in self.messages[:cleared] if message.role == "tool"} | {*cut.closed}
        end = position(self.messages, cut.summarized) or 0
        if any(context.adapter.binds_reasoning(each) for each in self.messages) and cut.rebased > self.known.rebased:
            context.emit(ReasoningDropped, reason="it is bound to messages that were left out")
        context.emit(
            Compacted,
            before=self.size,
            after=after,
            saved=self.size - after,
            by=draft.by,
            cut=replace(cut, omitted=self.known.omitted + self.size - after),
            usage=draft.usage,
            rewritten=round(self._changed(cut)),
            window=self.window,
            messages=len(self.messages),
            model=context.adapter.model,
        )
        for path in draft.closed:
            context.session.dispatch(CollapseSection(path, "the conversation was shortened", by="compaction"))
        own = [each for each in self.messages[:end] if (each.role, each.kind) == ("user", PROMPT_TEXT)]
        asked = draft.by == "provider" and any(each.parts or each.text not in draft.text for each in own)
        notices.forget(gone, notices_too=summarized, user_too=asked)
        if draft.by == "provider" and (words := self._summaries.words(self.messages[:end], draft.text)):
            context.transcript.say(Message("user", words, kind=EARLIER))
        self.compactor.tools.offer_again()
