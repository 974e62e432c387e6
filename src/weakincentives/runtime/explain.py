"""The plan of a run, before any money is spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weakincentives._base.display import Displayed, Shown, Table, wrapped
from weakincentives.prompt import Overrides, Prompt, SectionVisibility, View
from weakincentives.runtime.events import ContextWindow, RequestSize, SectionState
from weakincentives.runtime.hosted import all_hosted, hosted_problems
from weakincentives.runtime.known.sizes import section_states
from weakincentives.runtime.model import Model
from weakincentives.runtime.providers import prices_for
from weakincentives.session import Session

MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class SectionExplanation:
    """One section: its state, and what opening it would do on this adapter ('' when it is open or hidden).

    `opening_tokens` is None if it loads tools that are not known yet.
    """

    state: SectionState
    opening: str
    opening_tokens: int | None = 0

    @property
    def opening_cost(self) -> str:
        """The tokens that opening it adds, such as +748; ? if they are not known, '' if there is nothing to open."""
        if not self.opening:
            return ""
        return "?" if self.opening_tokens is None else f"+{self.opening_tokens:,}"

    @property
    def dearer_closed(self) -> bool:
        """True if the section's summary takes at least as many tokens as the section would in full, tools included."""
        closed = self.state.visibility is SectionVisibility.SUMMARY
        return closed and self.opening_tokens is not None and self.opening_tokens <= self.state.shown_tokens


@dataclass(frozen=True, slots=True)
class HostedToolExplanation:
    """A hosted tool and whether this adapter can offer it; `problem` says why not."""

    name: str
    kind: str
    section_key: str
    problem: str = ""

    @property
    def supported(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Displayed):
    """The plan of a run: sections, tools, tokens, and the route by which tools would appear.

    `takes` is the content that the model accepts; `operator_text` says whether it accepts system messages
    mid-conversation. `compaction` says what is left out of the session's conversation, and what that costs and saves.
    """

    prompt_name: str  #: the name of the prompt
    adapter: str  #: the adapter's name
    model: str  #: the model's name
    route: str  #: how tools of opened sections reach the model
    sections: tuple[SectionExplanation, ...]  #: every section
    tools: tuple[str, ...]  #: names of the tools that can be called
    hosted_tools: tuple[HostedToolExplanation, ...]  #: tools that the provider runs
    text_tokens: int  #: tokens of the text
    tool_tokens: int  #: tokens of the tools
    full_tokens: int  #: tokens with everything open
    tokenizer: str  #: how tokens were counted
    accepts: str = "text only"  #: the media that the model accepts
    operator_text: bool = False
    compaction: str = ""

    def __repr__(self) -> str:
        total = self.text_tokens + self.tool_tokens
        return f"<Explanation of {self.prompt_name!r} on {self.adapter}: {total:,} of {self.full_tokens:,} tokens>"

    def render(self, width: int | None = None) -> str:
        """A table that fits a terminal of this width."""
        heading, table, *lines = self._display()
        assert isinstance(table, Table)
        said = [wrapped(str(line), width) for line in (heading, *lines)]
        return "\n".join([said[0], "", table.text(width), "", *said[1:]])

    def _display(self) -> Iterator[Shown]:
        total = self.text_tokens + self.tool_tokens
        least = "at least " if any(section.state.unloaded for section in self.sections) else ""
        yield (
            f"{self.prompt_name} on {self.adapter} ({self.model}): {total:,} tokens per request to start "
            f"with, {least}{self.full_tokens:,} with everything open (counted by {self.tokenizer})"
        )
        rows = [
            (
                "  " * (len(section.state.path) - 1) + ".".join(section.state.path),
                section.state.visibility.value,
                section.state.decided_by,
                f"{section.state.shown_tokens:,}",
                section.opening_cost,
                ", ".join(section.state.tools),
                section.opening,
            )
            for section in self.sections
        ]
        heading = ("section", "shows", "because", "tokens", "opening", "tools", "how")
        yield Table(heading, rows, ("tokens", "opening"), drop=("because", "tools", "tokens"), flexible="how")
        if dearer := [section for section in self.sections if section.dearer_closed]:
            more = sum(section.state.shown_tokens - (section.opening_tokens or 0) for section in dearer)
            keys = ", ".join(".".join(section.state.path) for section in dearer[:MAX_LISTED])
            others = f" and {len(dearer) - MAX_LISTED} others" if len(dearer) > MAX_LISTED else ""
            yield (
                f"closing costs more than it saves ({more:,} tokens in all), so show in full or merge: {keys}{others}"
            )
        elif not least and total > self.full_tokens:
            yield (
                f"closing these sections costs {total - self.full_tokens:,} tokens more per request than showing them, "
                "with the tool that opens them; it pays with sections of a few hundred tokens"
            )
        yield f"tools offered: {', '.join(self.tools) or 'none'}"
        spoken = "as system messages" if self.operator_text else "as results and reminders"
        yield f"the model accepts {self.accepts}; text added during a conversation arrives {spoken}"
        if self.compaction:
            yield self.compaction
        for hosted in self.hosted_tools:
            yield f"hosted tool '{hosted.name}' ({hosted.kind}): {hosted.problem or 'supported'}"


def explain(
    prompt: Prompt[Any],
    adapter: Model,
    *,
    session: Session | None,
    visibility_overrides: Overrides | None,
) -> Explanation:
    rendered = prompt.render(session=session, visibility_overrides=visibility_overrides)
    view = rendered.view
    states = section_states(view, rendered.text, adapter)
    builtin = adapter.count_tools(tool for owner, tool in view.offered() if owner is None)
    size, text_tokens = RequestSize.of(states, builtin), sum(state.shown_tokens for state in states)
    offered = [tool for _, tool in view.offered()]
    return Explanation(
        prompt_name=prompt.name,
        adapter=adapter.name,
        model=adapter.model,
        route=adapter.tool_route,
        sections=tuple(_section(view, state, adapter) for state in states),
        tools=tuple(tool.name for tool in offered),
        hosted_tools=tuple(
            HostedToolExplanation(tool.name, tool.kind, key, "" if problem is None else str(problem))
            for (key, tool), problem in hosted_problems(all_hosted(view), adapter.hosted_tool_codecs, adapter.name)
        ),
        text_tokens=text_tokens,
        tool_tokens=size.sent - text_tokens,
        full_tokens=size.full,
        tokenizer=adapter.tokenizer.name,
        accepts=str(adapter.media),
        operator_text=adapter.supports_operator_text,
        compaction="" if session is None else _compaction(session, adapter),
    )


def _compaction(session: Session, adapter: Model) -> str:
    """The cost and saving of a conversation's compactions so far."""
    window = session[ContextWindow].latest()
    if window is None or window.cut is None:
        return ""
    overhead, prices = window.overhead, prices_for(adapter.model)
    text = (
        f"of the conversation, {window.cut.omitted:,} tokens are left out of each request: {window.omitted:,} fewer "
        f"sent so far, for {overhead.total_tokens:,} tokens of summaries and {window.rewritten:,} sent anew"
    )
    if prices is None:
        return text
    read = prices.input if prices.cached_input is None else prices.cached_input
    cost = prices.cost(overhead) + window.rewritten * (prices.input * adapter.cache_write - read) / 1e6
    return f"{text}; cost about ${cost:.4f}, saved about ${window.omitted * read / 1e6:.4f}"


def _section(view: View, state: SectionState, adapter: Model) -> SectionExplanation:
    if state.visibility is not SectionVisibility.SUMMARY:
        return SectionExplanation(state, "")
    opening = view.reading(state.path)
    tokens = opening.tokens(adapter.count_tokens)
    if tokens is None:
        return SectionExplanation(state, "loads tools that are not known yet, so its cost is not known either", None)
    if not opening.overrides:
        how = "content only"
    elif not opening.tools:
        how = "opens it, with no new tools"
    elif adapter.supports_dynamic_tools:
        how = f"injects {', '.join(tool.name for tool in opening.tools)} by {adapter.tool_route}"
    else:
        how = f"restarts with {', '.join(tool.name for tool in opening.tools)}"
    return SectionExplanation(state, how, tokens)
