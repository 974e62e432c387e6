"""Notices: the messages that inform a model of changes to its prompt, and the record of what it was sent.

Each change is sent once. `Exposure` and `RunState.shown` say what the model has; all that is to be sent follows from
comparing them with the view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weakincentives.content import Part
from weakincentives.prompt import (
    RenderedPrompt,
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
    View,
    inside,
    parts_in,
)
from weakincentives.runtime import events
from weakincentives.runtime.calls.call import ToolExecutionOutcome
from weakincentives.runtime.events import Exposed, Exposure
from weakincentives.runtime.known import offers
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
from weakincentives.runtime.known.sizes import section_states
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.messages import INSTRUCTIONS, PROMPT_TEXT, READ_TEXT, Message, user_message
from weakincentives.runtime.past.history import related
from weakincentives.runtime.state import RunState
from weakincentives.runtime.window import transcript

EVERYWHERE = ("prompt", "conversation", "summary", "none")
SUMMARY, FULL = SectionVisibility.SUMMARY, SectionVisibility.FULL


def record_rendered(live: LiveRun, rendered: RenderedPrompt[Any], view: View, *, restarts: bool) -> None:
    """Record the prompt as the model is shown it first; a restart keeps the conversation."""
    live.attempt.noticed = view
    before = live.exposure if restarts else Exposure()
    model = live.model
    changes = after_render(rendered, before, model)
    # A restart keeps the text of user sections, also of those that are gone, but not the notice of that.
    gone: dict[SectionPath, SectionVisibility] = {}
    for path in before:
        if is_user(view, path) and not view.find(".".join(path)):
            gone[path] = FULL
    live.save(shown={**gone, **view.visibility()})
    live.emit(
        events.PromptRendered,
        prompt_ns=live.prompt.ns,
        prompt_key=live.prompt.key,
        prompt_name=live.name,
        adapter=model.name,
        model=model.model,
        attempt=live.state.attempt,
        text=rendered.text,
        tools=tuple(tool.name for tool in rendered.tools),
        hosted_tools=tuple(tool.name for tool in rendered.hosted_tools),
        spans=rendered.spans,
        sections=_states(live, view, rendered.text),
        exposed=before.with_changes(changes).sections,
        tokenizer=model.tokenizer.name,
        builtin_tool_tokens=model.count_tools(tool for owner, tool in view.offered() if owner is None),
        definitions=offers.definitions(live),
        overrides=offers.overrides_now(live),
        overrides_tag=live.prompt.overrides_tag,
        tags=live.tags,
        module=live.prompt.template.module,
    )
    _announce_params(live)
    forgotten = {path: Exposed("none") for path in live.exposure if path not in before}
    _expose(live, {**forgotten, **changes}, "render")


def record_first_opened(live: LiveRun, view: View) -> None:
    """Record what is open from the start because of a rule or the user's words."""
    for decider in ("rule", "search"):
        keys = tuple(node.key for node in view.shown if view.decided_by(node) == decider)
        if keys:
            _record_opened(live, keys, decider)


def record_continued(live: LiveRun, earlier: RunState) -> None:
    """Record that the conversation of an earlier run goes on with its text."""
    before = _render_of(live, earlier)
    if before is None:
        return
    live.session.dispatch(
        replace(
            before,
            adapter=live.model.name,
            model=live.model.model,
            attempt=1,
            tools=tuple(tool.name for tool in live.toolbox.offered["tools"]),
            hosted_tools=tuple(tool.name for tool in live.toolbox.hosted_tools),
            sections=_sections_after(live, before),
            definitions=offers.definitions(live),
            overrides=offers.overrides_now(live),
            overrides_tag=live.prompt.overrides_tag,
            tags=live.tags,
            continues=earlier.run_id,
            exposed=live.exposure.sections,
            **live.stamp,
        )
    )
    _announce_params(live)


def _announce_params(live: LiveRun) -> None:
    if params := live.prompt.params:
        live.announce(events.ParamsBound, params=params)


def record_resumed(live: LiveRun) -> None:
    """Record what the model has in a session that was restored, which keeps its log."""
    logged, now = Exposure(), live.exposure
    for event in reversed([*live.events(events.SectionsExposed)]):
        logged = logged.handle(event)
    changes = {path: now[path] for path in {**logged, **now} if logged[path] != now[path]}
    if changes:
        live.emit(events.SectionsExposed, changes=changes, reason="resume")


def record_loaded(live: LiveRun) -> None:
    """Record what was loaded since the last call, by the loop or by a tool that opened a section."""
    loaded = live.presentation.loaded
    fresh = loaded[live.attempt.recorded_loads :]
    if not fresh:
        return
    live.attempt.recorded_loads = len(loaded)
    if loaded != live.state.loaded:
        live.save(loaded=loaded)
    view = live.view
    states = _states(live, view, "".join(view.pieces()))
    for path in fresh:
        within = tuple(state for state in states if inside(state.path, path))
        changed_tools = view.outline.brought(path).changed
        live.emit(events.SectionLoaded, section_key=".".join(path), sections=within, changed_tools=changed_tools)


def open_sections(live: LiveRun, paths: Sequence[SectionPath], decider: str) -> None:
    """Open sections without a call of the model; their text precedes its next reply."""
    if not paths:
        return
    # All at once: a snapshot has what was opened and who has opened it, or neither.
    with live.session.together():
        for path in paths:
            for opened_path, visibility in live.view.opening(path).overrides.items():
                live.session.dispatch(SetVisibilityOverride(opened_path, visibility))
        _record_opened(live, tuple(map(".".join, paths)), decider)


def open_found(live: LiveRun, names_by_section: Mapping[str, tuple[str, ...]]) -> None:
    """Open the sections whose tools the provider found or the model called."""
    if not names_by_section:
        return
    view = live.view
    paths: list[SectionPath] = []
    for key in names_by_section:
        path = view.find(key)
        if path is not None and not view.is_open(path):
            paths.append(path)
    open_sections(live, paths, "provider")
    for key, names in names_by_section.items():
        live.emit(events.ToolsInjected, tool_names=names, section_key=key, route="tool_search")


def announce_opened(live: LiveRun) -> None:
    """Notify the model of sections opened or closed by code or rules.

    If that requires a restart, the new prompt shows them.
    """
    if live.view is live.attempt.noticed:
        return
    if not live.attempt.dynamic:
        offers.register(live)
    announce(live, trusted=EVERYWHERE)


def announce(
    live: LiveRun,
    removed_tools: Sequence[str] = (),
    *,
    trusted: Sequence[str] | None = None,
    restarted: bool = False,
) -> None:
    """Notify the model of how the prompt differs from what it has; texts in `trusted` places are not compared."""
    view = live.attempt.noticed = live.view
    if restarted:
        trusted = ("prompt", "summary")
    elif trusted is None:
        render = _render_of(live, live.state)
        trusted = ("prompt", "summary") if render is not None and view.renders(render.text) else ()
    difference = Comparison(
        live.exposure,
        live.state.shown,
        view,
        live.model,
        trusted,
        restarted,
        PromptDifference(removed_tools=removed_tools),
    ).difference()
    parts = parts_in(difference.user_pieces())
    live.model.check_parts(parts, live.session[Message].view())
    # All at once: a snapshot has the text and that the model has it, or neither.
    with live.session.together():
        _send(live, difference, parts, view)


def _send(live: LiveRun, difference: PromptDifference, parts: tuple[Part, ...], view: View) -> None:
    """Send a difference, and record that the model has it."""
    removed_tools = difference.removed_tools
    if difference.changed or difference.user_changed or difference.removed_sections or removed_tools:
        live.emit(
            events.PromptChanged,
            changed_sections=(*difference.changed, *difference.user_changed),
            removed_sections=tuple(difference.removed_sections),
            removed_tools=tuple(removed_tools),
        )
    _record_opened_by_code(live, difference.applying)
    if note := difference.note():
        transcript.say(live, Message("system", note, kind=PROMPT_TEXT))
    for key, content in difference.applying.items():
        text = f"This section of the instructions applies now:\n\n{content}"
        # Neither outlives a restart, which shows the section where it belongs.
        literal = view.is_literal(view.outline.by_key[key].path)
        transcript.say(live, Message("system" if literal else "user", text, kind=INSTRUCTIONS))
    if parts:
        turn = live.given[PROMPT_TEXT] = user_message(parts, kind=PROMPT_TEXT)
        transcript.say(live, turn)
    visibility = view.visibility()
    if removed_tools or visibility != live.state.shown:
        remaining = [ref for ref in live.state.tools if ref.name not in removed_tools]
        live.save_tools(remaining, shown=visibility)
    _expose(live, difference.exposed, "notice")


def _record_opened_by_code(live: LiveRun, keys: Iterable[str]) -> None:
    """Record those of these sections whose opening was not recorded when they were opened."""
    recorded = {".".join(path) for path in live.opened_since(live.attempt.ordered)}
    opened_by_code: list[str] = []
    for key in keys:
        if not any(related(key, other) for other in recorded):
            opened_by_code.append(key)
    if opened_by_code:
        _record_opened(live, tuple(opened_by_code), "code")


def disclosed(live: LiveRun, outcomes: Iterable[ToolExecutionOutcome]) -> None:
    """Update `Exposure` after tool calls: for sections whose text a tool returned, and for those a tool closed."""
    for outcome in outcomes:
        request = outcome.disclosure
        if request is None and not outcome.found:
            continue
        view, exposure = live.view, live.exposure
        if outcome.found:
            changes = after_search(view, exposure, outcome.found, outcome.tool_call_id, live.model)
            _expose(live, changes, "search")
        if request is None or outcome.ends_turn:
            continue
        changes, shown = after_result(view, exposure, request.content, outcome.tool_call_id, live.model)
        if request.action == "close":
            closed_paths = filter(None, map(view.find, request.keys))
            shown |= {path: SUMMARY for path in closed_paths if path in live.state.shown}
        if shown:
            live.save(shown={**live.state.shown, **shown})
        _expose(live, changes, "result")


def send_read(live: LiveRun) -> None:
    """Send the texts that calls have read as a system message, if they are to be the operator's."""
    texts = live.state.unsent
    if texts:
        live.save(unsent=())
        transcript.say(live, Message("system", "\n\n".join(texts), kind=READ_TEXT))


def forget(live: LiveRun, gone: Collection[str], *, notices_too: bool, user_too: bool, user_kept: bool) -> None:
    """Record that the results of these calls are not sent any more, and send what still applies.

    The text of user sections is lost, too, or it is kept.
    """
    view = live.view
    lost = after_compaction(view, live.exposure, gone, live.model, notices=notices_too, user_turn=user_too)
    if user_kept:
        lost = {path: exposed for path, exposed in lost.items() if not is_user(view, path)}
    _expose(live, lost, "compaction")
    announce(live)


def _record_opened(live: LiveRun, keys: tuple[str, ...], decider: str) -> None:
    live.stream.opened += keys
    live.emit(events.SectionsOpened, section_keys=keys, decided_by=decider)


def _expose(live: LiveRun, changes: Changes, reason: str) -> None:
    exposure = live.exposure
    changes = {path: exposed for path, exposed in changes.items() if exposure[path] != exposed}
    if changes:
        live.emit(events.SectionsExposed, changes=changes, reason=reason)


def _states(live: LiveRun, view: View, text: str) -> tuple[events.SectionState, ...]:
    return section_states(view, text, live.model, live.presentation.base_view())


def _sections_after(live: LiveRun, before: events.PromptRendered) -> tuple[events.SectionState, ...]:
    """The sections of the render, with those that were added, enabled or disabled since."""
    view, base = live.view, live.presentation.base_view()
    now = {node.path: base.own_visibility(node) for node in view.existing()}
    absent = SectionVisibility.ABSENT
    if now == {state.path: state.base for state in before.sections if state.base is not absent}:
        return before.sections
    rendered_states = {state.path: state for state in before.sections}
    gone = (replace(state, base=absent) for state in before.sections if state.path not in now)
    states = _states(live, view, "".join(view.pieces()))
    return (*(state.after(rendered_states.get(state.path)) for state in states), *gone)


def _render_of(live: LiveRun, state: RunState) -> events.PromptRendered | None:
    """The prompt as a run was shown it; not the newest, since a session that was rewound keeps its log."""
    wanted = state.run_id, state.attempt
    for render in reversed(live.session[events.PromptRendered].view()):
        if (render.run_id, render.attempt) == wanted:
            return render
    return None
