"""The tools of a run, offered as their sections open and withdrawn as they close."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
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
from weakincentives.prompt.disclosure.ranking import section_headline
from weakincentives.runtime import events
from weakincentives.runtime.context import RunContext
from weakincentives.runtime.hosted import Owned, all_hosted, hosted_outputs, hosted_problems
from weakincentives.runtime.messages import Message, ModelReply, assistant_messages
from weakincentives.runtime.runs import Offer, Toolbox, ToolRef, by_section

logger = logging.getLogger("weakincentives.runtime")

_NOT_SEEN = object()
# Of a search with the provider's own tool, so many sections bring their tools; the others are listed.
MAX_BROUGHT = 3


@dataclass(slots=True)
class OfferedTools:
    """Keeps the tools of a run in step with its open sections, and announces every change in the conversation."""

    context: RunContext
    toolbox: Toolbox = field(init=False)
    _seen_overrides: VisibilityOverrides | object | None = _NOT_SEEN
    _announced: int = 0
    _new_exchange: bool = False

    def __post_init__(self) -> None:
        adapter = self.context.adapter
        self.toolbox = Toolbox(adapter.hosted_tool_codecs, adapter.reserved_names, adapter.own_tools, self._describe)

    def begin(self, view: View) -> None:
        """Offer the first tools, which the model learns from the request itself."""
        self.toolbox.keep_names(self.context.run)
        self.toolbox.add(*self.toolbox.changes(self._offers(view, initial=True))[0])
        self._check_names(view)
        for offer in self._searchable(view) if not self._searches else ():
            if self.toolbox.is_new(offer.tool):
                self.toolbox.add(offer)
        self._announced = self.toolbox.version
        self.context.save_tools(self.toolbox.refs)
        self._seen_overrides = self.context.session[VisibilityOverrides].latest()

    def take_over(self, *, new_exchange: bool) -> list[str]:
        """Restore the tools of an earlier attempt; return the names of those that no longer exist."""
        self._new_exchange = new_exchange
        self.toolbox.keep_names(self.context.run)
        removed: list[str] = []
        if not self.context.adapter.defers_tools and any(ref.deferred for ref in self.context.run.tools):
            # What this adapter cannot let the provider search is offered once its section opens.
            known = (replace(ref, deferred=False) for ref in self.context.run.tools if not ref.unfound)
            self.context.run = replace(self.context.run, tools=tuple(known))
        view = self.context.view
        for ref in self.context.run.tools:
            tool = self.context.find_tool(ref.section_key, ref.name)
            unsupported = isinstance(tool, HostedTool) and tool.kind not in self.context.adapter.hosted_tool_codecs
            offerable = tool is not None and not (unsupported and view.find(ref.section_key) is None)
            if tool is not None and offerable and self.toolbox.is_new(tool):
                self.toolbox.add(Offer(ref, tool))
            elif not ref.revoked:
                removed.append(ref.name)
        self._announced = self.toolbox.version
        self.check_hosted(view)
        return removed

    def reload(self) -> list[str]:
        """Take up the tools of sections that were loaded again; return the names of those that no longer exist."""
        self.toolbox.clear()
        self.offer_again()
        return self.take_over(new_exchange=False)

    def register(self, *, mid_turn: bool = False) -> None:
        """Make the tools of shown sections callable and those of closed ones not; `update` announces it.

        New tools that need a restart wait for the end of the turn.
        """
        overrides = self.context.session[VisibilityOverrides].latest()
        if overrides is self._seen_overrides:
            return
        view = self.context.view
        wanted, searchable = self._offers(view, initial=False), self._searchable(view)
        new, changed = self.toolbox.changes(wanted, searchable, new_exchange=self._new_exchange)
        self._new_exchange = False
        if mid_turn and not self.context.config.supports_dynamic_tools:
            self.toolbox.add(*changed)
            return
        if new and not self.context.config.supports_dynamic_tools:
            self.context.save(opening=True)
            # A handler has already opened the section in the session.
            key = new[0].ref.section_key
            raise VisibilityExpansionRequired(
                requested_overrides={},
                reason="Adapter does not support dynamic tools: a tool opened the section, and none can be added.",
                section_keys=(key,) if key else (),
            )
        self._check((ref.section_key, tool) for ref, tool in new if isinstance(tool, HostedTool))
        self.toolbox.add(*changed, *new)
        self._seen_overrides = overrides

    def offer_again(self) -> None:
        """Compare with what sections and the run offer, also if no section was opened or closed."""
        self._seen_overrides = _NOT_SEEN

    def update(self) -> None:
        """Register the tools of the sections now shown, and announce what has changed since the last time."""
        self.register()
        if self.toolbox.version == self._announced:
            return
        self._announced = self.toolbox.version
        before, now = (
            {(ref.section_key, ref.name): ref for ref in refs if not (ref.revoked or ref.unfound)}
            for refs in (self.context.run.tools, self.toolbox.refs)
        )
        appeared = by_section(ref for each, ref in now.items() if each not in before)
        gone = by_section(ref for each, ref in before.items() if each not in now)
        self._announce(appeared, gone)
        self.context.save_tools(self.toolbox.refs)

    def find(self, reply: ModelReply) -> dict[str, tuple[str, ...]]:
        """Record the deferred tools that the provider has found or the model called; return them by section."""
        if not self.context.adapter.defers_tools:
            return {}
        called = (call.name for call in reply.tool_calls)
        found = self.toolbox.find((*self.context.adapter.found_tools(reply.items), *called))
        if found:
            # The provider has announced them.
            self.context.save_tools(self.toolbox.refs)
        return found

    def bring(self, section_keys: Sequence[str]) -> tuple[str, ...]:
        """Offer the tools of the best sections that a search has found; calling one opens its section."""
        if not (section_keys and self._searches):
            return ()
        found = [offer for key in section_keys[:MAX_BROUGHT] for offer in self._searchable(self.context.view, key)]
        new = [offer for offer in found if self.toolbox.is_new(offer.tool)]
        self.toolbox.add(*(Offer(replace(offer.ref, initial=False), offer.tool) for offer in new))
        return tuple(offer.ref.name for offer in new)

    @property
    def overrides(self) -> Overrides:
        """The session's overrides as of the last request, or for the first one."""
        seen = self._seen_overrides
        latest = self.context.session[VisibilityOverrides].latest() if seen is _NOT_SEEN else seen
        return latest.overrides if isinstance(latest, VisibilityOverrides) else {}

    @property
    def definitions(self) -> tuple[str, ...]:
        """Every tool offered so far, as the adapter sends it, hosted tools last."""
        offered = (*self.toolbox.offered["tools"], *self.toolbox.hosted_tools)
        return tuple(self.context.adapter.define_tool(tool) for tool in offered)

    def long_descriptions(self, tools: Iterable[AnyTool]) -> str:
        return "\n\n".join(filter(None, map(self.context.adapter.long_description, tools)))

    def check_hosted(self, view: View) -> None:
        """Raise for a hosted tool of any enabled section that the adapter cannot offer."""
        self._check(all_hosted(view))

    def hosted_outputs(self, codecs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The typed outputs of the hosted tools that were used in this run, by name."""
        if not self.context.prompt.outline.may_have_hosted:
            return {}
        offered, tools = self.toolbox.hosted_tools, {tool.name: tool for tool in self.toolbox.hosted_tools}
        # A restart does not offer the tools of sections that were closed before it.
        for _, tool in all_hosted(self.context.view):
            tools.setdefault(tool.name, tool)
        answers = assistant_messages(self.context.session[Message].view())[self.context.run.answers :]
        outputs = hosted_outputs(tuple(tools.values()), answers, codecs, self.context.prompt.name)
        kinds = [(tool.kind, tool.config) for tool in offered]
        for name, output in outputs.items():
            tool = tools[name]
            # Of tools that the provider cannot tell apart, the one offered was invoked.
            if tool in offered or (tool.kind, tool.config) not in kinds:
                self.context.emit(events.HostedToolInvoked, name=name, kind=tool.kind, output=output)
        return outputs

    @property
    def _searches(self) -> bool:
        """True if the model searches by the provider's own tool, but among the sections of the prompt."""
        offered = self.context.prompt.template.builtin_tools()
        return self.context.adapter.carries_search and any(tool.name == SEARCH_TOOL for tool in offered)

    def _describe(self, section_key: str) -> str:
        node = self.context.presentation.outline.by_key.get(section_key)
        return section_key if node is None else section_headline(node)

    def _searchable(self, view: View, section_key: str = "") -> list[Offer]:
        """The tools of closed sections, or of this one, if the provider can search them."""
        closed = (node for node in view.existing() if not view.is_open(node.path))
        return [
            Offer(ToolRef.of(node.key, tool, deferred=True), tool)
            for node in (() if not self.context.adapter.defers_tools else closed)
            if section_key in ("", node.key)
            for tool in node.tools
        ]

    def _announce(self, appeared: Mapping[str, tuple[str, ...]], gone: Mapping[str, tuple[str, ...]]) -> None:
        route, emit = self.context.adapter.tool_route, self.context.emit
        unannounced: set[tuple[str, str]] = set()
        for key, names in (*gone.items(), *appeared.items()):
            unannounced.update(product([key], names))
        for key, names in gone.items():
            emit(events.ToolsWithdrawn, tool_names=names, section_key=key, route=route)
            unannounced.difference_update(product([key], names))
            self._save_announced(unannounced)
            self.context.transcript.say(Message(role="tools_removed", tools=names, section_key=key))
            fields = {"section_key": key, "tool_count": len(names), "tool_names": names}
            logger.info("Withdrew tools of closed section '%s': %s", key, ", ".join(names), extra=fields)
        for key, names in appeared.items():
            offers = [offer for name in names if (offer := self.toolbox.get(name))]
            definitions = tuple(self.context.adapter.define_tool(offer.tool) for offer in offers)
            text = self.long_descriptions(offer.tool for offer in offers)
            emit(events.ToolsInjected, tool_names=names, section_key=key, route=route, definitions=definitions)
            unannounced.difference_update(product([key], names))
            self._save_announced(unannounced)
            self.context.transcript.say(Message(role="tools_added", text=text, tools=names, section_key=key))
            fields = {"section_key": key, "tool_count": len(names), "tool_names": names}
            logger.info("Injected tools from section expansion of '%s': %s", key, ", ".join(names), extra=fields)

    def _save_announced(self, unannounced: Collection[tuple[str, str]]) -> None:
        """Save the tools as the model knows them with the next message, so that a run taken up announces the others."""
        earlier = {(ref.section_key, ref.name): ref for ref in self.context.run.tools}
        refs: list[ToolRef] = []
        for ref in self.toolbox.refs:
            key = ref.section_key, ref.name
            if key not in unannounced:
                refs.append(ref)
            elif key in earlier:
                refs.append(earlier[key])
        self.context.save_tools(refs)

    def _offers(self, view: View, *, initial: bool) -> list[Offer]:
        """The tools that sections now offer, then those skipped, then the run's own, in the toolbox's form."""
        offers: dict[tuple[str, str], Offer] = {}
        for node, tool in (*view.offered(), *((node, tool) for node, tool, _ in view.skipped())):
            key = "" if node is None else node.key
            if isinstance(tool, HostedTool):
                key, tool = next(iter(self._same_hosted(tool, view)), (key, tool))
            offers.setdefault((key, tool.name), Offer(ToolRef.of(key, tool, initial=initial), tool))
        for own in self.context.own_tools:
            offers.setdefault(("", own.name), Offer(ToolRef.of("", own, initial=initial), own))
        return list(offers.values())

    def _same_hosted(self, tool: HostedTool[Any], view: View) -> list[Owned]:
        """The hosted tools that the provider cannot tell from this one, in document order."""
        if not getattr(self.context.adapter.hosted_tool_codecs.get(tool.kind), "single", False):
            return []
        return [
            (key, other) for key, other in all_hosted(view) if (other.kind, other.config) == (tool.kind, tool.config)
        ]

    def _check_names(self, view: View) -> None:
        """Raise if a tool that is declared open has a name that the provider uses itself."""
        for node, tool in view.offered():
            if node is None or self.toolbox.get(tool.name) is not None or isinstance(tool, HostedTool):
                continue
            late = any(up.is_late for up in (node, *view.outline.ancestors(node)))
            if not late and not view.opened_at(node):
                raise self.context.error(
                    f"The {self.context.adapter.name} adapter cannot offer the tool '{tool.name}' of section "
                    f"'{node.key}': the provider uses this name for a tool of its own; rename it."
                )

    def _check(self, owned: Iterable[Owned]) -> None:
        """Raise for the first of these tools that the adapter cannot offer."""
        adapter = self.context.adapter
        for _, problem in hosted_problems(owned, adapter.hosted_tool_codecs, adapter.name):
            if problem is not None:
                problem.prompt_name = problem.prompt_name or self.context.name
                raise problem
