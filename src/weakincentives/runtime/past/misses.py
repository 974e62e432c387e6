"""Closed sections that a finished run may have needed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from weakincentives._base.display import shortened
from weakincentives.prompt import View
from weakincentives.prompt.disclosure.ranking import WORD_FINDER, Found, collecting
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.messages import Message, user_words
from weakincentives.runtime.past.history import related

logger = logging.getLogger("weakincentives.runtime")

MAX_MISSES = 3
# A larger template is checked only if a search has already built its index.
MAX_SECTIONS = 500
# A closed section is reported if its score is this many times the next; stricter than for opening one.
CLEAR = 1.7
# How much of the user's words is ranked, in characters.
MAX_WORDS = 4_000

Ranked = Callable[[str], Iterable[Found]]

_LACKING = re.compile(
    r"\b(?:(?:do(?:es)? not|don't|doesn't) (?:\w+ )?(?:have|know)"
    r"|(?:can ?not|can't|could not|couldn't|unable to|not able to) (?:\w+ )?(?:access|find|see|look|help|answer|verify)"
    r"|no (?:access|information|tool|way)\b)",
    re.IGNORECASE,
)
_MEASURE = re.compile(r"\b\d[\d.,]* ?(?:ms|s|seconds?|min|minutes?|h|hours?|bytes?|tokens?)\b", re.IGNORECASE)


class Miss(NamedTuple):
    section_key: str
    score: float
    reason: str


def possible_misses(live: LiveRun, answer: str) -> list[Miss]:
    """Closed sections that may have been needed, most likely first; empty if the search fails."""
    view = live.view
    if not view.closed():
        return []
    outline, strategy = live.prompt.outline, live.prompt.template.disclosure
    finder = strategy.finder
    if finder is None or not finder.finds_misses:
        finder = WORD_FINDER
    if len(outline.nodes) > MAX_SECTIONS and not finder.has_index(outline):
        return []
    misses: dict[str, Miss] = {}
    try:
        with collecting(live.presentation.rankings):
            for miss in _misses(live, view, partial(finder.ranked, view, outline=outline), answer):
                misses.setdefault(miss.section_key, miss)
    except Exception as error:
        logger.warning("Prompt '%s' was not checked for missed sections: %s", live.name, error)
    return list(misses.values())[:MAX_MISSES]


def _misses(live: LiveRun, view: View, ranked: Ranked, answer: str) -> Iterator[Miss]:
    session, run_id = live.session, live.run_id
    read = {".".join(path) for path, exposed in live.exposure.items() if exposed.source == "conversation"}
    # Calls of runs inside this one, or beside it, come in between.
    outermost = (*live.spec.parents, run_id)[0]
    recent = takewhile(lambda event: event.run_id.startswith(outermost), reversed(session[ToolInvoked].view()))
    failed = [event for event in recent if event.run_id == run_id and not event.success][::-1]
    yield from _called(view, failed)
    for event in failed:
        if event.disclosure is None and event.section_key:
            # "after 30 s" does not ask for a section named s30.
            for miss in best_miss(ranked(_MEASURE.sub("", event.result.message)), read):
                yield miss._replace(reason=f"'{event.name}' failed: {shortened(event.result.message, 100)}")
    asked = user_words(session[Message].view())[-MAX_WORDS:]
    lacking = _LACKING.search(answer)
    clear = 1.0 if lacking else CLEAR
    for miss in best_miss(ranked(f"{asked}\n\n{answer[:MAX_WORDS]}"), read, clear=clear):
        yield miss._replace(reason=f'the answer says "{lacking[0]}"') if lacking else miss


def _called(view: View, failed: Iterable[ToolInvoked]) -> Iterator[Miss]:
    """Closed sections whose tools the model called anyway."""
    names = {event.name for event in failed if event.params is None and event.disclosure is None}
    for node in view.existing() if names else ():
        for name in names.intersection(tool.name for tool in node.all_tools):
            if not view.is_open(node.path):
                yield Miss(node.key, 1.0, f"its tool '{name}' was called while it was closed")


def best_miss(ranked: Iterable[Found], read: Collection[str], *, clear: float = CLEAR) -> list[Miss]:
    """The best closed section, if it ranks above every section that was opened and clearly above other closed ones."""
    closed: list[Found] = []
    chosen: list[Found] = []
    for found in ranked:
        if found.closed and found.node.key not in read:
            closed.append(found)
        elif found.node.summary is not None:
            chosen.append(found)
    if not closed:
        return []
    best = closed[0]
    rival = next((found for found in closed if not related(best.node.key, found.node.key)), None)
    if (chosen and chosen[0].score >= best.score) or (rival and best.score < clear * rival.score):
        return []
    above = f", above '{chosen[0].node.key}', which was opened" if chosen else ""
    return [Miss(best.node.key, best.score, f"it ranks first for what was asked and answered{above}")]
