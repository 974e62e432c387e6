"""A template's tree, flattened and checked once, and the params that fill it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from weakincentives import serde
from weakincentives.errors import PromptValidationError, UnboundParamsError
from weakincentives.prompt.section import LateContent, Section, TemplateText, check_tools, has_own
from weakincentives.prompt.tool_names import RECALL_TOOL, ToolNames, UsedNames, qualified_names
from weakincentives.prompt.tools import AnyTool, HostedTool, Tool, portable_name
from weakincentives.prompt.visibility import (
    FULL,
    SUMMARY,
    SectionPath,
    SectionVisibility,
    inside,
    visible,
)

NOTHING_LATE = LateContent()
MAX_CACHED = 256
T = TypeVar("T")
ToolKey = tuple[str, str, bool]
"""The key of a section, its own name for a tool, and whether that came with late content."""


@dataclass(frozen=True, slots=True, eq=False)
class ParamsSource:
    """Where a section's params come from: the bound instance of the type, else this default, else `type()`."""

    params_type: type
    default: Any


@dataclass(frozen=True, slots=True)
class Node:
    """A section at its place in the tree; `end` is the index after its last descendant."""

    index: int
    section: Section[Any]
    path: SectionPath
    depth: int
    parent: int
    end: int
    source: ParamsSource | None
    text: TemplateText | None
    summary: TemplateText | None
    tools: tuple[Tool[Any, Any], ...]
    hosted_tools: tuple[HostedTool[Any], ...]

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def may_be_disabled(self) -> bool:
        return self.section.enabled is not None or has_own(self.section, "is_enabled")

    @property
    def selects(self) -> bool:
        """True if code decides the section's own visibility."""
        constant = isinstance(self.section.visibility, SectionVisibility)
        return not constant or has_own(self.section, "declared_visibility")

    @property
    def is_late(self) -> bool:
        """True if the section's tools are known only once it is opened."""
        return has_own(self.section, "load")

    @property
    def all_tools(self) -> tuple[AnyTool, ...]:
        """The tools we run, then the hosted ones."""
        return (*self.tools, *self.hosted_tools)


@dataclass(frozen=True, slots=True)
class Replacements:
    """The parts of sections that an override replaces, by path."""

    bodies: Mapping[SectionPath, TemplateText] = field(default_factory=dict)
    summaries: Mapping[SectionPath, TemplateText] = field(default_factory=dict)
    visibility: Mapping[SectionPath, SectionVisibility] = field(default_factory=dict)


class Outline:
    """Nodes in depth-first order, with what is known before any params are bound."""

    def __init__(
        self,
        sections: Sequence[Section[Any]],
        *,
        reserved: frozenset[str] = frozenset(),
        replaced: Replacements | None = None,
        tools: Mapping[ToolKey, Tool[Any, Any]] | None = None,
        late: Mapping[SectionPath, LateContent] | None = None,
        names: ToolNames | None = None,
    ) -> None:
        self._sections = sections
        self._reserved = reserved
        self._replaced = replaced or Replacements()
        self._tools = tools or {}
        self._late = late or {}
        self._names = ToolNames.of(sections) if names is None else names
        # The indexes of nodes that came with late content.
        self._came_late: set[int] = set()
        self._sources: dict[tuple[type, int], ParamsSource] = {}
        self._first_default = _first_defaults(sections)
        # Sections whose code decides their tools, and what it has returned.
        self._deciding_tools: list[Section[Any]] = []
        self._asked_tools: list[AnyTool] = []
        nodes: list[Node | None] = []
        self._add([section for section in sections if section.role != "user"], (), 0, -1, nodes)
        self.user_start = len(nodes)
        self._add([section for section in sections if section.role == "user"], (), 0, -1, nodes)
        self.asked_tools = tuple(self._asked_tools)
        self.nodes: tuple[Node, ...] = tuple(node for node in nodes if node is not None)
        if self._names.used:
            self.nodes = self._without_used_names()
        self.by_path: dict[SectionPath, Node] = {node.path: node for node in self.nodes}
        self.by_key: dict[str, Node] = {}
        for node in self.nodes:
            twin = self.by_key.setdefault(node.key, node)
            if twin is not node:
                raise PromptValidationError(
                    f"Sections {'/'.join(twin.path)!r} and {'/'.join(node.path)!r} share the key '{node.key}'; "
                    "section keys must differ, also when joined with dots."
                )
        self.base = bytes(
            SUMMARY
            if self._replaced.visibility.get(node.path, node.section.visibility) is SectionVisibility.SUMMARY
            else FULL
            for node in self.nodes
        )
        self.parents = tuple((node.index, node.parent) for node in self.nodes if node.parent >= 0)
        self.dynamic: tuple[Node, ...] = tuple(node for node in self.nodes if node.may_be_disabled or node.selects)
        self.deciding: tuple[Node, ...] = tuple(
            node for node in self.nodes if has_own(node.section, "effective_visibility")
        )
        self.ruled: tuple[Node, ...] = tuple(node for node in self.nodes if node.section.open_when is not None)
        self.late: tuple[Node, ...] = tuple(node for node in self.nodes if node.is_late)
        self.guarded: tuple[Node, ...] = tuple(node for node in self.nodes if node.section.guards)
        # Sections that are not loaded yet, and whose content is not known before.
        self.unloaded = {node.path for node in self.late if node.path not in self._late}
        times = Counter(portable_name(tool.name) for node in self.nodes for tool in node.all_tools)
        self.shares_tool_names = any(count > 1 for count in times.values())
        self._cache: dict[object, Any] = {}
        self._check_tool_names(reserved)

    @cached_property
    def tool_names(self) -> frozenset[str]:
        """The names of the tools of all sections, and of those of templates that its tools run."""
        names: set[str] = set()
        for node in self.nodes:
            for tool in node.tools:
                names.add(tool.name)
                below: Outline | None = getattr(getattr(tool, "template", None), "outline", None)
                if below is not None:
                    names |= below.tool_names
        return frozenset(names)

    @cached_property
    def guarded_names(self) -> frozenset[str]:
        """All names by which a guard may know these tools, whatever they are offered as."""
        names: set[str] = set()
        for node in self.nodes:
            for tool in node.tools:
                names.update((tool.name, *tool.earlier_names))
                names.update(qualified_names(node.key, tool.own_name))
                below: Outline | None = getattr(getattr(tool, "template", None), "outline", None)
                if below is not None:
                    names |= below.guarded_names
        return frozenset(names)

    @cached_property
    def may_load(self) -> bool:
        """True if more tools may come, by sections that are not loaded, here or in delegated templates."""
        if self.unloaded:
            return True
        for node in self.nodes:
            for tool in node.tools:
                below: Outline | None = getattr(getattr(tool, "template", None), "outline", None)
                if below is not None and below.may_load:
                    return True
        return False

    def with_late(self, path: SectionPath, content: LateContent) -> Outline:
        """The outline with what a section added when it was opened, or is expected to add.

        `ToolNames` decides what its tools are offered as.
        """
        content = self._names.content(path, content, self._names_taken(path, self._late))
        within = f"{'.'.join(path)}."
        tools = dict(self._tools)
        for changed in self._tools:
            key, own_name, came_late = changed
            if came_late and own_name in content.changed and f"{key}.".startswith(within):
                del tools[changed]
        return self._rebuilt({**self._late, path: content}, tools)

    def with_names(self, used: UsedNames) -> Outline:
        """The outline with the names that a conversation has used so far."""
        names = self._names.keeping(used, self._original_names)
        if names is self._names:
            return self
        key = ("names", frozenset(names.used.items()), frozenset(names.others.items()))
        return self.cached(key, lambda: self._renamed(names, self._reserved))

    def _renamed(self, names: ToolNames, reserved: frozenset[str]) -> Outline:
        """The outline with the tools of its late content named again."""
        outline = Outline(
            self._sections,
            reserved=reserved,
            replaced=self._replaced,
            tools=self._tools,
            names=names,
        )
        late: dict[SectionPath, LateContent] = {}
        for path in sorted(self._late, key=len):
            names_taken = outline._names_taken(path, late)
            late[path] = names.content(path, self._late[path], names_taken)
        return outline._rebuilt(late, self._tools)

    @cached_property
    def _declared_names(self) -> frozenset[str]:
        """The names that are taken, opened or not, before any late section is loaded."""
        names = {*self._reserved, RECALL_TOOL}
        for tool in self._declared_tools():
            names.add(portable_name(tool.name))
            if isinstance(tool, HostedTool):
                # Some providers know a hosted tool by its kind.
                names.add(tool.kind)
        return frozenset(names)

    @cached_property
    def _original_names(self) -> frozenset[str]:
        """The same, and the names that declared tools have in a new conversation."""
        names = set(self._declared_names)
        for tool in self._declared_tools():
            if isinstance(tool, Tool):
                names.add(portable_name(tool.own_name))
        return frozenset(names)

    def _declared_tools(self) -> Iterator[AnyTool]:
        for node in self.nodes:
            if node.index not in self._came_late:
                late_tools = {tool.name for tool in self.brought(node.path).tools}
                for tool in node.all_tools:
                    if tool.name not in late_tools:
                        yield tool

    def _names_taken(self, path: SectionPath, late: Mapping[SectionPath, LateContent]) -> frozenset[str]:
        """The names that tools of a late section cannot have, whatever else has been opened.

        That is those of declared tools, and of the late content that the section is part of.
        """
        names = set(self._declared_names)
        for known, content in late.items():
            if known != path and inside(path, known):
                names.update(portable_name(name) for name in _names_in(content.tools, content.children))
        return frozenset(names)

    def ask_for_tools(self) -> tuple[AnyTool, ...]:
        """What the sections whose code decides their tools return now."""
        tools: list[AnyTool] = []
        for section in self._deciding_tools:
            own_tools, hosted_tools = _tools_of(section, f"Section '{section.key}'")
            tools += (*own_tools, *hosted_tools)
        return tuple(tools)

    def rebuilt(self) -> Outline:
        """The outline, built anew with the tools that its sections have now."""
        return self._rebuilt(self._late, self._tools)

    def overridden(self, replaced: Replacements, tools: Mapping[ToolKey, Tool[Any, Any]]) -> Outline:
        """The outline with sections replaced by path, and tools by `tool_key`."""
        return self._rebuilt(self._late, tools, replaced)

    def reserving(self, names: frozenset[str]) -> Outline:
        """The outline, built anew, with these names reserved for the tools of its strategy."""
        return self._renamed(self._names, names)

    def brought(self, path: SectionPath) -> LateContent:
        """The late content of a section, loaded or expected."""
        return self._late.get(path, NOTHING_LATE)

    def _rebuilt(
        self,
        late: Mapping[SectionPath, LateContent],
        tools: Mapping[ToolKey, Tool[Any, Any]],
        replaced: Replacements | None = None,
    ) -> Outline:
        return Outline(
            self._sections,
            reserved=self._reserved,
            replaced=self._replaced if replaced is None else replaced,
            tools=tools,
            late=late,
            names=self._names,
        )

    def subtree(self, node: Node) -> tuple[Node, ...]:
        return self.nodes[node.index : node.end]

    def ancestors(self, node: Node) -> Iterator[Node]:
        """From the parent up to the root."""
        while node.parent >= 0:
            node = self.nodes[node.parent]
            yield node

    def children(self, node: Node) -> Iterator[Node]:
        index = node.index + 1
        while index < node.end:
            yield self.nodes[index]
            index = self.nodes[index].end

    def may_be_closed(self, node: Node) -> bool:
        """True if the section is declared closed, or if code may close it."""
        return node.summary is not None and (self.base[node.index] == SUMMARY or node.selects)

    def cached(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """The value made for this key; a combination of visibilities seldom changes between renders."""
        result: T | None = self._cache.get(key)
        if result is None:
            result = make()
            if len(self._cache) >= MAX_CACHED + 2 * len(self.nodes):
                self._cache.clear()
            self._cache[key] = result
        return result

    @cached_property
    def may_have_hosted(self) -> bool:
        """True if a section has hosted tools, or may bring some when it is loaded."""
        return bool(self.late) or any(node.hosted_tools for node in self.nodes)

    @cached_property
    def params_types(self) -> tuple[type, ...]:
        """Every params type in use, in order of appearance."""
        return tuple(dict.fromkeys(params_type for params_type, _ in self._sources))

    def _without_used_names(self) -> tuple[Node, ...]:
        """The nodes, with other names for declared tools whose names the conversation has used for another's."""
        taken: set[str] = set(self._reserved)
        for node in self.nodes:
            taken.update(portable_name(tool.name) for tool in node.all_tools)
        nodes: list[Node] = []
        for node in self.nodes:
            tools: list[Tool[Any, Any]] = []
            for tool in node.tools:
                owner = self._names.owners.get(portable_name(tool.name))
                if owner is not None and owner != (node.key, tool.own_name):
                    tool = tool.offered_as(self._names.declared_name(node.path, tool.own_name, taken))
                tools.append(tool)
            nodes.append(replace(node, tools=tuple(tools)))
        return tuple(nodes)

    def _add(
        self,
        sections: Sequence[Section[Any]],
        prefix: SectionPath,
        depth: int,
        parent: int,
        nodes: list[Node | None],
        *,
        came_late: bool = False,
    ) -> None:
        for section in sections:
            index, path = len(nodes), (*prefix, section.key)
            if prefix and section.role == "user":
                raise PromptValidationError(
                    f"Section '{'.'.join(path)}': role='user' is for root sections; give it to '{prefix[0]}'."
                )
            nodes.append(None)
            if came_late:
                self._came_late.add(index)
            late = self._late.get(path, NOTHING_LATE)
            self._add(section.children, path, depth + 1, index, nodes, came_late=came_late)
            self._add(late.children, path, depth + 1, index, nodes, came_late=True)
            where = f"Section '{'.'.join(path)}'"
            tools, hosted_tools = _tools_of(section, where)
            if has_own(section, "tools", "hosted_tools"):
                self._deciding_tools.append(section)
                self._asked_tools += (*tools, *hosted_tools)
            tools = (*tools, *late.tools)
            check_tools(".".join(path), tools, hosted_tools, "()")
            nodes[index] = Node(
                index=index,
                section=section,
                path=path,
                depth=depth,
                parent=parent,
                end=len(nodes),
                source=self._source(section),
                text=self._replaced.bodies.get(path)
                or (TemplateText((late.text,), ()) if late.text else section.body_text()),
                summary=self._replaced.summaries.get(path) or section.summary_text(),
                tools=self._replaced_tools(".".join(path), tools),
                hosted_tools=hosted_tools,
            )

    def _replaced_tools(self, key: str, tools: Iterable[Tool[Any, Any]]) -> tuple[Tool[Any, Any], ...]:
        """The tools of a section with what overrides replace of them."""
        replaced: list[Tool[Any, Any]] = []
        for tool in tools:
            override = self._tools.get(tool_key(key, tool), tool)
            replaced.append(override if override.name == tool.name else override.offered_as(tool.name))
        return tuple(replaced)

    def _source(self, section: Section[Any]) -> ParamsSource | None:
        params_type, default = section.params_type, section.default_params
        if params_type is None:
            return None
        if default is None:
            default = self._first_default.get(params_type)
        return self._sources.setdefault((params_type, id(default)), ParamsSource(params_type, default))

    def _check_tool_names(self, reserved: frozenset[str]) -> None:
        # What the author's constants alone show in full.
        uncertain = {node.index for node in (*self.dynamic, *self.deciding)}
        own = bytes(SUMMARY if index in uncertain else packed for index, packed in enumerate(self.base))
        declared, shown = visible(own, self.parents), dict[str, Node]()
        for node in self.nodes:
            within: set[str] = set()
            for name in (portable_name(tool.name) for tool in node.all_tools):
                if name in reserved:
                    raise PromptValidationError(
                        f"Section '{node.key}': the tool name '{name}' is reserved for progressive disclosure."
                    )
                if name in within:
                    raise PromptValidationError(f"Section '{node.key}' has two tools named '{name}'.")
                within.add(name)
                if declared[node.index] == FULL and (twin := shown.setdefault(name, node)) is not node:
                    raise PromptValidationError(same_tool(twin, node, name))


def same_tool(one: Node, other: Node, name: str) -> str:
    keys = f"'{one.key}' and '{other.key}'"
    return f"Sections {keys} both have a tool named '{name}' and are shown together; rename one."


def tool_key(section_key: str, tool: Tool[Any, Any]) -> ToolKey:
    return section_key, tool.own_name, bool(tool.earlier_names)


def _names_in(tools: Iterable[Tool[Any, Any]], children: Iterable[Section[Any]]) -> Iterator[str]:
    """The names of the tools that late content adds."""
    for tool in tools:
        yield tool.name
    for child in children:
        yield from _names_in(child.tools(), child.children)


def _tools_of(section: Section[Any], where: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    found: list[Any] = [section.tools(), section.hosted_tools()]
    for method, given in zip(("tools()", "hosted_tools()"), found, strict=True):
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise PromptValidationError(f"{where}: {method} must return a tuple of tools, got {given!r}.")
    return tuple(found[0]), tuple(found[1])


def _first_defaults(sections: Sequence[Section[Any]]) -> dict[type, Any]:
    defaults: dict[type, Any] = {}
    for section in sections:
        if section.default_params is not None and section.params_type is not None:
            defaults.setdefault(section.params_type, section.default_params)
        for params_type, default in _first_defaults(section.children).items():
            defaults.setdefault(params_type, default)
    return defaults


class Params:
    """Resolves each source once: the bound instance, else the default, else the type without arguments."""

    def __init__(self, bound: Mapping[type, Any]) -> None:
        self._bound = bound
        self._resolved: dict[ParamsSource | None, Any] = {None: None}

    def __getitem__(self, source: ParamsSource | None) -> Any:
        if source is not None and source not in self._resolved:
            self._resolved[source] = self._resolve(source)
        return self._resolved[source]

    def _resolve(self, source: ParamsSource) -> Any:
        instance = self._bound.get(source.params_type, source.default)
        if instance is not None:
            return instance
        try:
            made = source.params_type()
            if serde.is_instance(made, source.params_type):
                return made
            raise TypeError("it lacks keys")
        except Exception as error:
            missing = tuple(each.name for each in serde.columns(source.params_type) if each.init and each.required)
            name = source.params_type.__name__
            why = (
                f"it has required fields ({', '.join(missing)})"
                if missing
                else f"it cannot be made by itself ({error})"
            )
            raise UnboundParamsError(
                f"No {name} was bound and {why}; pass one to bind().", params_type=name, missing=missing
            ) from error
