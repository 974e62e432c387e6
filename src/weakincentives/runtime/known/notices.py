"""Notices: the messages that inform a model of changes to its prompt, and the record of what it was sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives.content import Part
from weakincentives.prompt import (
    RenderedPrompt,
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
    View,
    VisibilityOverrides,
    inside,
    parts_in,
)
from weakincentives.runtime import events
from weakincentives.runtime.calls.call import ToolExecutionOutcome
from weakincentives.runtime.context import RunContext
from weakincentives.runtime.events import Exposed, Exposure
from weakincentives.runtime.known.exposure import (
    Changes,
    Comparison,
    PromptDifference,
    after_compaction,
    after_render,
    after_result,
    after_search,
    is_user,
)
from weakincentives.runtime.known.offers import OfferedTools
from weakincentives.runtime.known.sizes import section_states
from weakincentives.runtime.messages import INSTRUCTIONS, PROMPT_TEXT, READ_TEXT, Message, user_message
from weakincentives.runtime.past.history import related
from weakincentives.runtime.runs import Run

_EVERYWHERE = ("prompt", "conversation", "summary", "none")


@dataclass(slots=True)
class Notices:
    """Sends each prompt change to the model once, and records what was sent.

    `opened` are the sections opened without the model asking, for a streaming driver to show.
    """

    context: RunContext
    tools: OfferedTools
    opened: list[str] = field(default_factory=list)
    _seen_overrides: VisibilityOverrides | None = None
    # Keys of sections whose opening was recorded when they were opened.
    _recorded: set[str] = field(default_factory=set)
    _loaded: int = 0

    def record_rendered(self, rendered: RenderedPrompt[Any], view: View, *, restarts: bool) -> None:
        """Record the prompt as the model is shown it first; a restart keeps the conversation."""
        self._seen_overrides = self.context.session[VisibilityOverrides].latest()
        before = self.context.exposure if restarts else Exposure()
        adapter = self.context.adapter
        changes = after_render(rendered, before, adapter)
        # A restart keeps the text of user sections, also of those that are gone, but not the notice of that.
        gone = {
            path: SectionVisibility.FULL for path in before if is_user(view, path) and not view.find(".".join(path))
        }
        self.context.save(shown={**gone, **view.visibility()})
        self.context.emit(
            events.PromptRendered,
            prompt_ns=self.context.prompt.ns,
            prompt_key=self.context.prompt.key,
            prompt_name=self.context.prompt.name,
            adapter=adapter.name,
            model=adapter.model,
            attempt=self.context.scope.attempt,
            text=rendered.text,
            tools=tuple(tool.name for tool in rendered.tools),
            hosted_tools=tuple(tool.name for tool in rendered.hosted_tools),
            spans=rendered.spans,
            sections=self._states(view, rendered.text),
            exposed=before.with_changes(changes).sections,
            tokenizer=adapter.tokenizer.name,
            builtin_tool_tokens=adapter.count_tools(tool for owner, tool in view.offered() if owner is None),
            definitions=self.tools.definitions,
            overrides=self.tools.overrides,
            overrides_tag=self.context.prompt.overrides_tag,
            tags=self.context.tags,
            module=self.context.prompt.template.module,
        )
        self._announce_params()
        forgotten = {path: Exposed("none") for path in self.context.exposure if path not in before}
        self._expose({**forgotten, **changes}, "render")

    def record_first_opened(self, view: View) -> None:
        """Record what is open from the start because of a rule or the user's words."""
        for decider in ("rule", "search"):
            keys = tuple(node.key for node in view.shown if view.decided_by(node) == decider)
            if keys:
                self._record_opened(keys, decider)

    def record_continued(self, run: Run) -> None:
        """Record that a run's conversation goes on with its text."""
        before = self._render_of(run)
        if before is None:
            return
        self.context.session.dispatch(
            replace(
                before,
                adapter=self.context.adapter.name,
                model=self.context.adapter.model,
                attempt=1,
                tools=tuple(tool.name for tool in self.tools.toolbox.offered["tools"]),
                hosted_tools=tuple(tool.name for tool in self.tools.toolbox.hosted_tools),
                sections=self._sections_after(before),
                definitions=self.tools.definitions,
                overrides=self.tools.overrides,
                overrides_tag=self.context.prompt.overrides_tag,
                tags=self.context.tags,
                continues=run.run_id,
                exposed=self.context.exposure.sections,
                **self.context.stamp,
            )
        )
        self._announce_params()

    def _announce_params(self) -> None:
        if params := self.context.prompt.params:
            self.context.announce(events.ParamsBound, params=params)

    def record_resumed(self) -> None:
        """Record what the model has in a session that was restored, which keeps its log."""
        logged, now = Exposure(), self.context.exposure
        for event in reversed([*self.context.own(events.SectionsExposed)]):
            logged = logged.handle(event)
        changes = {path: now[path] for path in {**logged, **now} if logged[path] != now[path]}
        if changes:
            self.context.emit(events.SectionsExposed, changes=changes, reason="resume")

    def loads_again(self) -> None:
        """Expect sections that were loaded before to be loaded again."""
        self._loaded = len(self.context.presentation.loaded)

    def record_loaded(self) -> None:
        """Record what was loaded since the last call, by the loop or by a tool that opened a section."""
        fresh = self.context.presentation.loaded[self._loaded :]
        if not fresh:
            return
        self._loaded = len(self.context.presentation.loaded)
        view = self.context.view
        states = self._states(view, "".join(view.pieces()))
        for path in fresh:
            within = tuple(state for state in states if inside(state.path, path))
            changed = view.outline.brought(path).changed
            self.context.emit(events.SectionLoaded, section_key=".".join(path), sections=within, changed_tools=changed)

    def open(self, paths: Sequence[SectionPath], decider: str) -> None:
        """Open sections without a call of the model; their text precedes its next reply."""
        if not paths:
            return
        for path in paths:
            for opened, visibility in self.context.view.opening(path).overrides.items():
                self.context.session.dispatch(SetVisibilityOverride(opened, visibility))
                self._recorded.add(".".join(opened))
        self._record_opened(tuple(map(".".join, paths)), decider)

    def open_found(self, found: Mapping[str, tuple[str, ...]]) -> None:
        """Open the sections whose tools the provider found or the model called; `found` has their names by section."""
        if not found:
            return
        view = self.context.view
        paths = [path for key in found if (path := view.find(key)) is not None and not view.is_open(path)]
        self.open(paths, "provider")
        for key, names in found.items():
            self.context.emit(events.ToolsInjected, tool_names=names, section_key=key, route="tool_search")

    def announce_opened(self) -> None:
        """Notify the model of sections opened or closed by code or rules.

        If that requires a restart, the new prompt shows them.
        """
        if self.context.session[VisibilityOverrides].latest() is self._seen_overrides:
            return
        if not self.context.config.supports_dynamic_tools:
            self.tools.register()
        self.announce(trusted=_EVERYWHERE)

    def announce(
        self, removed_tools: Sequence[str] = (), *, trusted: Sequence[str] | None = None, restarted: bool = False
    ) -> None:
        """Notify the model of how the prompt differs from what it has; texts in `trusted` places are not compared."""
        self._seen_overrides = self.context.session[VisibilityOverrides].latest()
        view = self.context.view
        if restarted:
            trusted = ("prompt", "summary")
        elif trusted is None:
            render = self._render_of(self.context.run)
            trusted = ("prompt", "summary") if render is not None and view.renders(render.text) else ()
        difference = Comparison(
            self.context.exposure,
            self.context.run.shown,
            view,
            self.context.adapter,
            trusted,
            restarted,
            PromptDifference(removed_tools=removed_tools),
        ).difference()
        parts = parts_in(difference.user_pieces())
        self.context.adapter.check_parts(parts, self.context.session[Message].view())
        with self.context.session.together():
            self._announce(difference, parts, view, removed_tools)

    def _announce(
        self, difference: PromptDifference, parts: tuple[Part, ...], view: View, removed_tools: Sequence[str]
    ) -> None:
        """Send and record a difference, all at once: a snapshot has the text and that the model has it, or neither."""
        if difference.changed or difference.user_changed or difference.removed_sections or removed_tools:
            self.context.emit(
                events.PromptChanged,
                changed_sections=(*difference.changed, *difference.user_changed),
                removed_sections=tuple(difference.removed_sections),
                removed_tools=tuple(removed_tools),
            )
        opened_by_code: list[str] = []
        for key in difference.applying:
            if not any(related(key, recorded) for recorded in self._recorded):
                opened_by_code.append(key)
        if opened_by_code:
            self._record_opened(tuple(opened_by_code), "code")
        if note := difference.note():
            self.context.transcript.say(Message("system", note, kind=PROMPT_TEXT))
        for key, content in difference.applying.items():
            text = f"This section of the instructions applies now:\n\n{content}"
            # Neither outlives a restart, which shows the section where it belongs.
            literal = view.is_literal(view.outline.by_key[key].path)
            self.context.transcript.say(Message("system" if literal else "user", text, kind=INSTRUCTIONS))
        if parts:
            turn = self.context.scope.given[PROMPT_TEXT] = user_message(parts, kind=PROMPT_TEXT)
            self.context.transcript.say(turn)
        shown = view.visibility()
        if removed_tools or shown != self.context.run.shown:
            remaining = [ref for ref in self.context.run.tools if ref.name not in removed_tools]
            self.context.save_tools(remaining, shown=shown)
        self._expose(difference.exposed, "notice")

    def disclosed(self, outcomes: Iterable[ToolExecutionOutcome]) -> None:
        """Record what the model has of sections whose content tools have returned, or which they have closed."""
        for outcome in outcomes:
            asked = outcome.disclosure
            if asked is None and not outcome.found:
                continue
            view, exposure = self.context.view, self.context.exposure
            if outcome.found:
                found = after_search(view, exposure, outcome.found, outcome.tool_call_id, self.context.adapter)
                self._expose(found, "search")
            if asked is None or outcome.ends_turn:
                continue
            changes, shown = after_result(view, exposure, asked.content, outcome.tool_call_id, self.context.adapter)
            if asked.action == "close":
                closed = filter(None, map(view.find, asked.keys))
                shown |= {path: SectionVisibility.SUMMARY for path in closed if path in self.context.run.shown}
            if shown:
                self.context.save(shown={**self.context.run.shown, **shown})
            self._expose(changes, "result")

    def send_read(self) -> None:
        """Send the texts that calls have read as a system message, if they are to be the operator's."""
        texts = self.context.run.unsent
        if texts:
            self.context.save(unsent=())
            self.context.transcript.say(Message("system", "\n\n".join(texts), kind=READ_TEXT))

    def forget(self, gone: Collection[str], *, notices_too: bool, user_too: bool, user_kept: bool) -> None:
        """Record that the results of these calls are not sent any more, and send what still applies.

        The text of user sections is lost, too, or it is kept.
        """
        context = self.context
        lost = after_compaction(
            context.view, context.exposure, gone, context.adapter, notices=notices_too, user_turn=user_too
        )
        if user_kept:
            view = context.view
            lost = {path: exposed for path, exposed in lost.items() if not is_user(view, path)}
        self._expose(lost, "compaction")
        self.announce()

    def _record_opened(self, keys: tuple[str, ...], decider: str) -> None:
        self.opened += keys
        self.context.emit(events.SectionsOpened, section_keys=keys, decided_by=decider)

    def _expose(self, changes: Changes, reason: str) -> None:
        exposure = self.context.exposure
        changes = {path: exposed for path, exposed in changes.items() if exposure[path] != exposed}
        if changes:
            self.context.emit(events.SectionsExposed, changes=changes, reason=reason)

    def _states(self, view: View, text: str) -> tuple[events.SectionState, ...]:
        return section_states(view, text, self.context.adapter, self.context.presentation.base_view())

    def _sections_after(self, before: events.PromptRendered) -> tuple[events.SectionState, ...]:
        """The sections of the render, with those that were added, enabled or disabled since."""
        view, base = self.context.view, self.context.presentation.base_view()
        now = {node.path: base.own_visibility(node) for node in view.existing()}
        absent = SectionVisibility.ABSENT
        if now == {each.path: each.base for each in before.sections if each.base is not absent}:
            return before.sections
        known = {each.path: each for each in before.sections}
        gone = (replace(each, base=absent) for each in before.sections if each.path not in now)
        states = self._states(view, "".join(view.pieces()))
        return (*(state.after(known.get(state.path)) for state in states), *gone)

    def _render_of(self, run: Run) -> events.PromptRendered | None:
        """The prompt as the run was shown it; not the newest, since a session that was rewound keeps its log."""
        renders, which = reversed(self.context.session[events.PromptRendered].view()), (run.run_id, run.attempt)
        return next((each for each in renders if (each.run_id, each.attempt) == which), None)
