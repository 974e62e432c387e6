"""The tools of a run, offered as their sections open and withdrawn as they close.

They follow from the view and from the tools that the model knows; every change is announced in the conversation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weakincentives.prompt import (
    SEARCH_TOOL,
    AnyTool,
    HostedTool,
    Overrides,
    View,
    VisibilityExpansionRequired,
    VisibilityOverrides,
)
from weakincentives.runtime import events
from weakincentives.runtime.hosted import Owned, all_hosted, hosted_outputs, hosted_problems
from weakincentives.runtime.known.toolbox import Offer, SkippedOffer
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.messages import Message, ModelReply, assistant_messages
from weakincentives.runtime.state import ToolRef, by_section
from weakincentives.runtime.window import transcript

logger = logging.getLogger("weakincentives.runtime")

# Of a search with the provider's own tool, so many sections bring their tools; the others are listed.
MAX_BROUGHT = 3
NOT_DYNAMIC = "Adapter does not support dynamic tools: a tool opened the section, and none can be added."


def begin(live: LiveRun, view: View) -> None:
    """Offer the first tools, which the model learns from the request itself."""
    attempt = live.attempt
    toolbox = attempt.toolbox.keeping_names(live.state)
    changes = toolbox.changes(_offers(live, view, initial=True))
    _warn(live, changes.skipped)
    attempt.toolbox = toolbox.with_offers(*changes.new)
    _check_names(live, view)
    if not _searches(live):
        for offer in _searchable(live, view):
            if attempt.toolbox.is_new(offer.tool):
                attempt.toolbox = attempt.toolbox.with_offers(offer)
    attempt.announced, attempt.registered = attempt.toolbox, view
    live.save_tools(attempt.toolbox.refs)


def take_over(live: LiveRun, *, new_exchange: bool) -> list[str]:
    """Restore the tools of an earlier attempt; return the names of those that no longer exist."""
    attempt, model = live.attempt, live.model
    attempt.toolbox = attempt.toolbox.keeping_names(live.state)
    if not model.defers_tools and any(ref.deferred for ref in live.state.tools):
        # What this adapter cannot let the provider search is offered once its section opens.
        known_tools = (replace(ref, deferred=False) for ref in live.state.tools if not ref.unfound)
        live.state = live.state.updated({"tools": tuple(known_tools)})
    removed: list[str] = []
    view = live.view
    for ref in live.state.tools:
        tool = live.find_tool(ref.section_key, ref.name)
        is_unsupported = isinstance(tool, HostedTool) and tool.kind not in model.hosted_tool_codecs
        is_offerable = tool is not None and not (is_unsupported and view.find(ref.section_key) is None)
        if tool is not None and is_offerable and attempt.toolbox.is_new(tool):
            attempt.toolbox = attempt.toolbox.with_offers(Offer(ref, tool))
        elif not ref.revoked:
            removed.append(ref.name)
    if new_exchange:
        _free_names(live, view)
    attempt.announced = attempt.toolbox
    check_hosted(live, view)
    return removed


def _free_names(live: LiveRun, view: View) -> None:
    """Free the names of tools that sections do not offer any more, for the tools of others."""
    toolbox = live.attempt.toolbox
    live.attempt.toolbox = freed = toolbox.freed(_offers(live, view, initial=False), _searchable(live, view))
    changed = {ref.key: ref for ref in freed.refs if ref.free}
    tools = tuple(changed.get(ref.key, ref) for ref in live.state.tools)
    live.state = live.state.updated({"tools": tools})


def reload(live: LiveRun) -> list[str]:
    """Offer the tools of reloaded sections; return the names of tools that no longer exist."""
    live.attempt.toolbox = live.attempt.toolbox.without_offers()
    live.attempt.registered = None
    return take_over(live, new_exchange=False)


def register(live: LiveRun, *, mid_turn: bool = False) -> None:
    """Make the tools of shown sections callable and those of closed ones not; `update` announces it.

    New tools that need a restart wait for the end of the turn.
    """
    attempt, view = live.attempt, live.view
    if view is attempt.registered:
        return
    changes = attempt.toolbox.changes(_offers(live, view, initial=False), _searchable(live, view))
    _warn(live, changes.skipped)
    if mid_turn and not attempt.dynamic:
        attempt.toolbox = attempt.toolbox.with_offers(*changes.changed)
        return
    if changes.new and not attempt.dynamic:
        live.save(opening={})
        # A handler has already opened the section in the session.
        key = changes.new[0].ref.section_key
        raise VisibilityExpansionRequired(
            requested_overrides={},
            reason=NOT_DYNAMIC,
            section_keys=(key,) if key else (),
        )
    _check(live, ((ref.section_key, tool) for ref, tool in changes.new if isinstance(tool, HostedTool)))
    attempt.toolbox = attempt.toolbox.with_offers(*changes.changed, *changes.new)
    attempt.registered = view


def offer_again(live: LiveRun) -> None:
    """Compare with what sections and the run offer, also if no section was opened or closed."""
    live.attempt.registered = None


def update(live: LiveRun) -> None:
    """Register the tools of the sections now shown, and announce what has changed since the last time."""
    register(live)
    attempt = live.attempt
    if attempt.toolbox is attempt.announced:
        return
    # In the order of the sections, whether the calls of the turn were made together or one after another.
    offered_now = _offers(live, live.view, initial=False)
    attempt.toolbox = attempt.announced = attempt.toolbox.in_order(attempt.announced, offered_now)
    before = {ref.key: ref for ref in live.state.tools if ref.is_callable}
    now = {ref.key: ref for ref in attempt.toolbox.refs if ref.is_callable}
    appeared = by_section(ref for key, ref in now.items() if key not in before)
    gone = by_section(ref for key, ref in before.items() if key not in now)
    # All at once: a snapshot has the announcement and the tools as the model then knows them, or neither.
    with live.session.together():
        _announce(live, appeared, gone)
        live.save_tools(attempt.toolbox.refs)


def find(live: LiveRun, reply: ModelReply) -> dict[str, tuple[str, ...]]:
    """Record the deferred tools that the provider has found or the model called; return them by section."""
    if not live.model.defers_tools:
        return {}
    called = (call.name for call in reply.tool_calls)
    names = (*live.model.found_tools(reply.items), *called)
    live.attempt.toolbox, names_by_section = live.attempt.toolbox.found(names)
    if names_by_section:
        # The provider has announced them.
        live.save_tools(live.attempt.toolbox.refs)
    return names_by_section


def bring(live: LiveRun, section_keys: Sequence[str]) -> tuple[str, ...]:
    """Offer the tools of the best sections that a search has found; calling one opens its section."""
    if not (section_keys and _searches(live)):
        return ()
    new: list[Offer] = []
    for key in section_keys[:MAX_BROUGHT]:
        for ref, tool in _searchable(live, live.view, key):
            if live.attempt.toolbox.is_new(tool):
                new.append(Offer(replace(ref, initial=False), tool))
    live.attempt.toolbox = live.attempt.toolbox.with_offers(*new)
    return tuple(ref.name for ref, _ in new)


def overrides_now(live: LiveRun) -> Overrides:
    """The session's overrides."""
    latest = live.session[VisibilityOverrides].latest()
    return {} if latest is None else latest.overrides


def definitions(live: LiveRun) -> tuple[str, ...]:
    """Every tool offered so far, as the adapter sends it, hosted tools last."""
    return tuple(map(live.model.define_tool, live.toolbox.all_tools))


def long_descriptions(live: LiveRun, tools: Iterable[AnyTool]) -> str:
    return "\n\n".join(filter(None, map(live.model.long_description, tools)))


def check_hosted(live: LiveRun, view: View) -> None:
    """Raise for a hosted tool of any enabled section that the adapter cannot offer."""
    _check(live, all_hosted(view))


def outputs_of_hosted(live: LiveRun) -> Mapping[str, Any]:
    """The typed outputs of the hosted tools that were used in this run, by name."""
    if not live.prompt.outline.may_have_hosted:
        return {}
    offered = live.toolbox.hosted_tools
    tools = {tool.name: tool for tool in offered}
    # A restart does not offer the tools of sections that were closed before it.
    for _, tool in all_hosted(live.view):
        tools.setdefault(tool.name, tool)
    answers = assistant_messages(live.session[Message].view())[live.state.answers :]
    outputs = hosted_outputs(tuple(tools.values()), answers, live.codecs, live.name)
    kinds = [(tool.kind, tool.config) for tool in offered]
    for name, output in outputs.items():
        tool = tools[name]
        # Of tools that the provider cannot tell apart, the one offered was invoked.
        if tool in offered or (tool.kind, tool.config) not in kinds:
            live.emit(events.HostedToolInvoked, name=name, kind=tool.kind, output=output)
    return outputs


def _searches(live: LiveRun) -> bool:
    """True if the model searches by the provider's own tool, but among the sections of the prompt."""
    builtin_tools = live.prompt.template.builtin_tools()
    return live.model.carries_search and any(tool.name == SEARCH_TOOL for tool in builtin_tools)


def _searchable(live: LiveRun, view: View, section_key: str = "") -> list[Offer]:
    """The tools of closed sections, or of this one, if the provider can search them."""
    offers: list[Offer] = []
    if live.model.defers_tools:
        for node in view.existing():
            if not view.is_open(node.path) and section_key in ("", node.key):
                offers += (Offer(ToolRef.of(node.key, tool, deferred=True), tool) for tool in node.tools)
    return offers


def _announce(live: LiveRun, appeared: Mapping[str, tuple[str, ...]], gone: Mapping[str, tuple[str, ...]]) -> None:
    route = live.model.tool_route
    for key, names in gone.items():
        live.emit(events.ToolsWithdrawn, tool_names=names, section_key=key, route=route)
        transcript.say(live, Message(role="tools_removed", tools=names, section_key=key))
        fields = {"section_key": key, "tool_count": len(names), "tool_names": names}
        logger.info("Withdrew tools of closed section '%s': %s", key, ", ".join(names), extra=fields)
    for key, names in appeared.items():
        tools = [offer.tool for name in names if (offer := live.toolbox.get(name))]
        definitions_sent = tuple(map(live.model.define_tool, tools))
        text = long_descriptions(live, tools)
        live.emit(
            events.ToolsInjected,
            tool_names=names,
            section_key=key,
            route=route,
            definitions=definitions_sent,
        )
        transcript.say(live, Message(role="tools_added", text=text, tools=names, section_key=key))
        fields = {"section_key": key, "tool_count": len(names), "tool_names": names}
        logger.info("Injected tools from section expansion of '%s': %s", key, ", ".join(names), extra=fields)


def _offers(live: LiveRun, view: View, *, initial: bool) -> list[Offer]:
    """The tools that sections now offer, then those skipped, then the run's own, in the toolbox's form."""
    offers: dict[tuple[str, str], Offer] = {}
    for node, tool in (*view.offered(), *((node, tool) for node, tool, _ in view.skipped())):
        key = "" if node is None else node.key
        if isinstance(tool, HostedTool):
            key, tool = next(iter(_same_hosted(live, tool, view)), (key, tool))
        offers.setdefault((key, tool.name), Offer(ToolRef.of(key, tool, initial=initial), tool))
    for own_tool in live.own_tools:
        offers.setdefault(("", own_tool.name), Offer(ToolRef.of("", own_tool, initial=initial), own_tool))
    return list(offers.values())


def _same_hosted(live: LiveRun, tool: HostedTool[Any], view: View) -> list[Owned]:
    """The hosted tools that the provider cannot tell from this one, in document order."""
    if not getattr(live.model.hosted_tool_codecs.get(tool.kind), "single", False):
        return []
    same: list[Owned] = []
    for key, other in all_hosted(view):
        if (other.kind, other.config) == (tool.kind, tool.config):
            same.append((key, other))
    return same


def _check_names(live: LiveRun, view: View) -> None:
    """Raise if a tool that is declared open has a name that the provider uses itself."""
    for node, tool in view.offered():
        if node is None or live.toolbox.get(tool.name) is not None or isinstance(tool, HostedTool):
            continue
        is_late = any(around.is_late for around in (node, *view.outline.ancestors(node)))
        if not is_late and not view.opened_at(node):
            raise live.error(
                f"The {live.model.name} adapter cannot offer the tool '{tool.name}' of section "
                f"'{node.key}': the provider uses this name for a tool of its own; rename it."
            )


def _check(live: LiveRun, owned: Iterable[Owned]) -> None:
    """Raise for the first of these tools that the adapter cannot offer."""
    model = live.model
    for _, problem in hosted_problems(owned, model.hosted_tool_codecs, model.name):
        if problem is not None:
            problem.prompt_name = problem.prompt_name or live.name
            raise problem


def _warn(live: LiveRun, skipped: Iterable[SkippedOffer]) -> None:
    """Warn once of each tool whose name is taken."""
    for ref, owner in skipped:
        if ref.key not in live.warned:
            live.warned.add(ref.key)
            owner_words = f"section '{owner}'" if owner else "the provider"
            message = "Skipping duplicate tool '%s' of section '%s': %s has it already."
            fields = {"section_key": ref.section_key, "tool_name": ref.name}
            logger.warning(message, ref.name, ref.section_key, owner_words, extra=fields)
