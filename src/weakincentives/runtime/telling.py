"""What a model was told of its prompt: recorded when it is rendered, and again for what changes later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives.prompt import (
    Overrides,
    Prompt,
    RenderedPrompt,
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
    View,
    VisibilityOverrides,
    parts_in,
)
from weakincentives.runtime import events
from weakincentives.runtime.config import InnerLoopConfig
from weakincentives.runtime.history import related, whole_render
from weakincentives.runtime.inventory import Told, after_disclosure, inventory, prompt_difference, told_media
from weakincentives.runtime.messages import INSTRUCTIONS, PROMPT_TURN, Message, Transcript, user_message
from weakincentives.runtime.offering import Offering
from weakincentives.runtime.run import Journal, Run, RunScope
from weakincentives.session import Session


@dataclass(slots=True)
class Telling:
    """Tells the model how its prompt changes, each change once, and records what it was shown.

    `opened` are the sections opened without the model asking, for a streaming driver to show.
    """

    prompt: Prompt[Any]
    session: Session
    scope: RunScope
    config: InnerLoopConfig
    journal: Journal
    transcript: Transcript
    offering: Offering
    opened: list[str] = field(default_factory=list)
    _told_overrides: VisibilityOverrides | None = None
    # Keys of sections whose opening was recorded when they were opened.
    _recorded: set[str] = field(default_factory=set)
    _loaded: int = 0

    def record_rendered(self, rendered: RenderedPrompt[Any], view: View) -> None:
        """Record the prompt as the model is shown it first."""
        self._told_overrides = self.session[VisibilityOverrides].latest()
        count, define = self.config.count_tokens, self.config.sent_tool
        self.journal.emit(
            events.PromptRendered,
            prompt_ns=self.prompt.ns,
            prompt_key=self.prompt.key,
            prompt_name=self.prompt.name,
            adapter=self.config.adapter,
            model=self.config.model,
            attempt=self.scope.attempt,
            text=rendered.text,
            tools=tuple(tool.name for tool in rendered.tools),
            hosted_tools=tuple(tool.name for tool in rendered.hosted_tools),
            spans=rendered.spans,
            sections=self._inventory(view, rendered.text),
            tokenizer=self.config.tokenizer,
            builtin_tool_tokens=sum(count(define(tool)) for owner, tool in view.offered() if owner is None),
            definitions=self.offering.definitions,
            overrides=self.offering.overrides,
            overrides_tag=self.prompt.overrides_tag,
        )
        if media := told_media(view, rendered.pieces):
            self.journal.save(told={**media, **self.journal.run.told})

    def record_first_opened(self, view: View) -> None:
        """Record what is open from the start because of a rule or the user's words."""
        for decider in ("rule", "search"):
            keys = tuple(node.key for node, _ in view.layout.marks if view.decided_by(node) == decider)
            if keys:
                self._record_opened(keys, decider)

    def record_continued(self, run: Run) -> None:
        """Record that a run's conversation goes on with its text; only the newest such event keeps what they share."""
        before = self._render_of(run)
        if before is None:
            return
        sections = self._sections_after(before)
        self.session.dispatch(
            replace(
                before,
                run_id=self.scope.run_id,
                adapter=self.config.adapter,
                model=self.config.model,
                attempt=1,
                tools=tuple(tool.name for tool in self.offering.toolbox.offered["tools"]),
                hosted_tools=tuple(tool.name for tool in self.offering.toolbox.hosted_tools),
                sections=sections,
                definitions=self.offering.definitions,
                overrides=self.offering.overrides,
                overrides_tag=self.prompt.overrides_tag,
                timestamp=self.session.timestamp(),
                continues=run.run_id,
                read=self.journal.run.read,
            )
        )
        own = () if sections is before.sections else before.sections
        brief = replace(before, text="", spans=(), sections=own, definitions=())

        def shortened(renders: Iterable[events.PromptRendered]) -> list[events.PromptRendered]:
            kept = list(renders)
            at = len(kept) - 1
            while at >= 0 and kept[at] is not before:
                at -= 1
            if at >= 0:  # A reducer of the user's may keep fewer.
                kept[at] = brief
            return kept

        self.session[events.PromptRendered].update(shortened)

    def record_loaded(self) -> None:
        """Record what was loaded since the last call, by the loop or by a tool that opened a section."""
        fresh = self.prompt.loaded[self._loaded :]
        if not fresh:
            return
        self._loaded = len(self.prompt.loaded)
        view = self.prompt.view(self.session)
        states = self._inventory(view, "".join(view.pieces()))
        for path in fresh:
            within = tuple(state for state in states if state.path[: len(path)] == path)
            changed = view.outline.brought(path).changed
            self.journal.emit(events.SectionLoaded, section_key=".".join(path), sections=within, changed_tools=changed)

    def open(self, paths: Sequence[SectionPath], decider: str) -> None:
        """Open sections without the model asking; it reads their text before its next reply."""
        if not paths:
            return
        for path in paths:
            for opened, visibility in self.prompt.view(self.session).opening(path).overrides.items():
                self.session.dispatch(SetVisibilityOverride(opened, visibility))
                self._recorded.add(".".join(opened))
        self._record_opened(tuple(map(".".join, paths)), decider)

    def tell_opened(self) -> None:
        """Tell the model what was opened or closed without it; if that needs a new evaluation, it shows the text."""
        if self.session[VisibilityOverrides].latest() is self._told_overrides:
            return
        if not self.config.supports_dynamic_tools:
            self.offering.register()
        self.tell_changes(texts=False)

    def tell_changes(self, removed_tools: Sequence[str] = (), *, texts: bool = True, fresh: bool = False) -> None:
        """Tell the model how the prompt differs from what it knows; without `texts`, what was opened and closed.

        After a `fresh` render, only what tool results have told it can differ.
        """
        self._told_overrides = self.session[VisibilityOverrides].latest()
        render = self._render_of(self.journal.run)
        if render is None:
            return
        view = self.prompt.view(self.session)
        told = Told(render, self.journal.run.told)
        found = prompt_difference(told, view, removed_tools, texts=texts, fresh=fresh)
        said = parts_in(found.user_pieces())
        self.config.check_parts(said, self.session[Message].view())
        if found.changed or found.user_changed or found.removed_sections or removed_tools:
            self.journal.emit(
                events.PromptChanged,
                changed_sections=(*found.changed, *found.user_changed),
                removed_sections=tuple(found.removed_sections),
                removed_tools=tuple(removed_tools),
            )
        if opened := tuple(key for key in found.applying if not any(related(key, up) for up in self._recorded)):
            self._record_opened(opened, "code")
        if note := found.note():
            self.transcript.say(Message("system", note, name=PROMPT_TURN))
        for key, content in found.applying.items():
            text = f"This section of the instructions applies now:\n\n{content}"
            # Neither outlives a restart, which shows the section where it belongs.
            literal = view.is_literal(view.outline.by_key[key].path)
            self.transcript.say(Message("system" if literal else "user", text, name=INSTRUCTIONS))
        if said:
            turn = self.scope.given[PROMPT_TURN] = user_message(said, name=PROMPT_TURN)
            self.transcript.say(turn)
        if found.told or removed_tools:
            left = tuple(ref for ref in self.journal.run.tools if ref.name not in removed_tools)
            self.journal.save(told={**self.journal.run.told, **found.told}, tools=left)

    def disclosed(self, read: Sequence[str], closed: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """The changes to save after tools have returned the content of sections, or closed them."""
        if not (read or closed):
            return {}
        learned = after_disclosure(self.prompt.view(self.session), read, closed)
        now = self.session[VisibilityOverrides].latest()
        moved = _overrides_in(now).items() ^ _overrides_in(self._told_overrides).items()
        # Parents open and close with their children, which a result about a child does not say.
        if all(".".join(path[:depth]) in learned for path, _ in moved for depth in range(1, len(path) + 1)):
            self._told_overrides = now
        # Closed children are in the result too, but only as summaries.
        results = {key: f"read {of.split()[-1]}" for key, of in learned.items() if not of.startswith("summary ")}
        changed = {"told": learned, "results": results}
        return {name: {**getattr(self.journal.run, name), **new} for name, new in changed.items()}

    def known_from_results(self, run: Run, view: View) -> dict[str, str]:
        """What the model knows at a restart, which keeps tool results: the texts of sections open now or before."""
        known = {key for key, told in run.told.items() if not told.startswith("summary ")}
        render = self._render_of(run)
        shown = () if render is None else (".".join(span.path) for span in render.spans)
        nodes = (node for key in (*shown, *run.told) if (node := view.outline.by_key.get(key)))
        # A restart keeps what user sections said, also of those that are gone.
        said = {node.key: "full " for node in nodes if view.is_user(node.path)}
        return {key: full for key, full in said.items() if view.find(key) is None} | {
            key: read
            for key, read in run.results.items()
            if key in known or ((path := view.find(key)) is not None and view.is_open(path))
        }

    def _record_opened(self, keys: tuple[str, ...], decider: str) -> None:
        self.opened += keys
        self.journal.emit(events.SectionsOpened, section_keys=keys, decided_by=decider)

    def _inventory(self, view: View, text: str) -> tuple[events.SectionState, ...]:
        config, base = self.config, self.prompt.base_view()
        return inventory(view, text, config.count_tokens, config.sent_tool, count_media=config.count_media, base=base)

    def _sections_after(self, before: events.PromptRendered) -> tuple[events.SectionState, ...]:
        """The sections of the render, with those that were added, enabled or disabled since."""
        view, base = self.prompt.view(self.session), self.prompt.base_view()
        now = {node.path: base.own_visibility(node) for node in view.existing()}
        absent = SectionVisibility.ABSENT
        if now == {each.path: each.base for each in before.sections if each.base is not absent}:
            return before.sections
        known = {each.path: each for each in before.sections}
        gone = (replace(each, base=absent) for each in before.sections if each.path not in now)
        states = self._inventory(view, "".join(view.pieces()))
        return (*(state.after(known.get(state.path)) for state in states), *gone)

    def _render_of(self, run: Run) -> events.PromptRendered | None:
        """The prompt as the run was shown it; not the newest, since a session that was rewound keeps its log."""
        renders, which = reversed(self.session[events.PromptRendered].view()), (run.run_id, run.attempt)
        found = next((each for each in renders if (each.run_id, each.attempt) == which), None)
        return found if found is None or found.text else whole_render(self.session, found)


def _overrides_in(found: VisibilityOverrides | None) -> Overrides:
    return {} if found is None else found.overrides
