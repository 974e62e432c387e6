"""The names under which the tools of late sections are offered, whatever is opened first.

A name follows from the declared sections, the section that adds the tool, and the section's own name for it, or it is
the name that the conversation has used so far. So a section that is opened cannot take a name from another, and a
conversation that continues elsewhere calls the same tools.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import count
from types import MappingProxyType
from typing import Any

from weakincentives.prompt.guards import is_page_tool
from weakincentives.prompt.section import LateContent, Section, has_own
from weakincentives.prompt.tools import MAX_FOREIGN_NAME, Tool, portable_name
from weakincentives.prompt.visibility import SectionPath

logger = logging.getLogger("weakincentives.prompt")

ToolId = tuple[str, str]
"""The key of a section, and its own name for one of its tools."""
RECALL_TOOL = "recall"
"""The library's tool for what a compaction has left out, which is offered only then."""
MAX_LABEL = 45
"""The longest section name that a cut name still contains in full, with the character that follows it."""
_MAX_BEFORE_DIGEST = 55
_HAS_DIGEST = re.compile(r"_[0-9a-f]{8}$")
_NOT_PORTABLE = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True)
class UsedNames:
    """The names that a conversation has used: `by_tool` those that belong to a tool for good.

    `others` are those of declared tools, which another declared tool may have later, but no late
    one of another section: the keys of their sections by portable name.
    """

    by_tool: Mapping[ToolId, str] = field(default_factory=lambda: MappingProxyType({}))
    others: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class ToolNames:
    """Names tools. `late` are the declared sections that add tools once they are opened.

    `used` and `others` are names that a conversation keeps, also those of sections that are gone.
    """

    late: tuple[SectionPath, ...] = ()
    used: Mapping[ToolId, str] = field(default_factory=lambda: MappingProxyType({}))
    others: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, sections: Iterable[Section[Any]]) -> ToolNames:
        return cls(tuple(_late_paths(sections, ())))

    def keeping(self, names: UsedNames, declared_names: Collection[str]) -> ToolNames:
        """The same, with those of the used names that are not taken or given without it."""
        unusual: dict[ToolId, str] = {}
        for tool_id, name in names.by_tool.items():
            if name in declared_names or not self._is_certain(tool_id, name):
                unusual[tool_id] = name
        others: dict[str, str] = {}
        for name, section_key in names.others.items():
            if name not in declared_names:
                others[name] = section_key
        if (unusual, others) == (self.used, self.others):
            return self
        return ToolNames(self.late, unusual, others)

    def content(self, path: SectionPath, content: LateContent, names_taken: Collection[str]) -> LateContent:
        """What a late section adds, with the names of its tools; `names_taken` are portable.

        A tool is first given the name that it has in a new conversation, by which guards know it,
        too.
        """
        content = _Naming(self, path, set(names_taken)).content(content)
        if not (self.used or self.others):
            return content
        return _Naming(self, path, set(names_taken), keeps_used=True).content(content)

    def candidates(self, path: SectionPath, own_name: str) -> Iterator[str]:
        """The names for a tool that the late section at this path adds, the best first."""
        if self.late == (path,):
            if not is_page_tool(own_name):
                yield own_name
            yield f"{path[-1]}_{own_name}"[:MAX_FOREIGN_NAME]
            for number in count(2):
                yield f"{path[-1]}_{number}_{own_name}"[:MAX_FOREIGN_NAME]
        else:
            label = self._labels.get(path, _label(path[-1:]))
            if path in self._clear:
                yield f"{label}_{own_name}"[:MAX_FOREIGN_NAME]
            yield _with_digest(f"{label}_{own_name}", path)
            for number in count(2):
                yield _with_digest(f"{label}_{number}_{own_name}", path)

    def declared_name(self, path: SectionPath, own_name: str, names_taken: Collection[str]) -> str:
        """The name for a declared tool whose own is another tool's in this conversation."""
        tool_id = (".".join(path), own_name)
        if tool_id in self.used:
            return self.used[tool_id]
        name = portable_name(f"{_label(path[-1:])}_{own_name}")
        if name in names_taken or name in self.owners:
            name = _with_digest(f"{_label(path)}_{own_name}", path)
        return name

    @cached_property
    def owners(self) -> Mapping[str, ToolId]:
        """The tools that the used names belong to, by portable name."""
        owners: dict[str, ToolId] = {}
        for tool_id, name in self.used.items():
            owners.setdefault(portable_name(name), tool_id)
        return owners

    @cached_property
    def _labels(self) -> Mapping[SectionPath, str]:
        """The name of each late section within the names of its tools: its key, or its path if the key repeats."""
        repeated = Counter(path[-1] for path in self.late)
        labels: dict[SectionPath, str] = {}
        for path in self.late:
            labels[path] = _label(path if repeated[path[-1]] > 1 else path[-1:])
        return labels

    @cached_property
    def _clear(self) -> Collection[SectionPath]:
        """The sections whose tools cannot have the name of another section's, whatever they are called.

        Sections that come with the content of others are not known here, and are not clear.
        """
        clear: set[SectionPath] = set()
        for path, label in self._labels.items():
            rivals = [rival for rival_path, rival in self._labels.items() if rival_path != path]
            if len(label) <= MAX_LABEL and not any(_overlap(label, rival) for rival in rivals):
                clear.add(path)
        return clear

    def _is_certain(self, tool_id: ToolId, name: str) -> bool:
        """True if the tool gets this name in any case, as long as no declared tool has it.

        That is not certain of names that may also be made for another tool of the section.
        """
        key, own_name = tool_id
        path = self._late_path(key)
        if path is None or portable_name(name) != name or name != next(self.candidates(path, own_name)):
            return False
        if _HAS_DIGEST.search(name):
            return False
        return self.late != (path,) or not name.startswith(f"{path[-1]}_")

    def _late_path(self, key: str) -> SectionPath | None:
        """The declared late section that a section is, or came with."""
        around: list[SectionPath] = []
        for path in self.late:
            if f"{key}.".startswith(f"{'.'.join(path)}."):
                around.append(path)
        return max(around, key=len, default=None)


class _Naming:
    """Gives the tools of one late section their names, the one that comes first in its listing first."""

    def __init__(
        self,
        names: ToolNames,
        path: SectionPath,
        taken: set[str],
        *,
        keeps_used: bool = False,
    ) -> None:
        self._names = names
        self._path = path
        self._taken = taken
        self._keeps_used = keeps_used

    def content(self, content: LateContent) -> LateContent:
        tools = self._tools(self._path, content.tools)
        return replace(content, tools=tools, children=self._children(self._path, content.children))

    def _children(self, path: SectionPath, children: Sequence[Section[Any]]) -> tuple[Section[Any], ...]:
        named: list[Section[Any]] = []
        for child in children:
            child_path = (*path, child.key)
            tools = self._tools(child_path, child.tools())
            named.append(child.with_content(tools, self._children(child_path, child.children)))
        return tuple(named)

    def _tools(self, path: SectionPath, tools: Iterable[Tool[Any, Any]]) -> tuple[Tool[Any, Any], ...]:
        key = ".".join(path)
        named: dict[str, Tool[Any, Any]] = {}
        for tool in tools:
            if tool.own_name in named:
                message = "Section '%s' lists the tool '%s' twice; the second one is left out."
                logger.warning(message, key, tool.own_name)
                continue
            name = self._name((key, tool.own_name))
            self._taken.add(portable_name(name))
            named[tool.own_name] = tool if self._has(tool, name) else tool.offered_as(name)
        return tuple(named.values())

    def _name(self, tool_id: ToolId) -> str:
        used = self._names.used.get(tool_id)
        if self._keeps_used and used is not None and portable_name(used) not in self._taken:
            return used
        for name in self._names.candidates(self._path, tool_id[1]):
            if self._is_free(portable_name(name), tool_id):
                return name
        raise AssertionError("there is always another candidate")

    def _is_free(self, name: str, tool_id: ToolId) -> bool:
        if name in self._taken:
            return False
        if not self._keeps_used:
            return True
        section_key = tool_id[0]
        is_own = self._names.owners.get(name, tool_id) == tool_id
        return is_own and self._names.others.get(name, section_key) == section_key

    def _has(self, tool: Tool[Any, Any], name: str) -> bool:
        return tool.name == name and bool(tool.earlier_names)


def qualified_names(section_key: str, own_name: str) -> Iterator[str]:
    """The names of a tool after the key of its section, and of each section around that."""
    while section_key:
        yield f"{section_key}.{own_name}"
        section_key = section_key.rpartition(".")[0]


def _late_paths(sections: Iterable[Section[Any]], above: SectionPath) -> Iterator[SectionPath]:
    for section in sections:
        path = (*above, section.key)
        if has_own(section, "load") and section.loads_tools:
            yield path
        yield from _late_paths(section.children, path)


def _label(keys: SectionPath) -> str:
    return _NOT_PORTABLE.sub("_", "_".join(keys))


def _overlap(label: str, rival: str) -> bool:
    """True if a name that begins with one may also begin with the other."""
    return f"{label}_".startswith(f"{rival}_") or f"{rival}_".startswith(f"{label}_")


def _with_digest(name: str, path: SectionPath) -> str:
    """The name as any provider accepts it, followed by the digest of a path."""
    if len(name) > _MAX_BEFORE_DIGEST or _NOT_PORTABLE.search(name):
        checksum = zlib.crc32(name.encode())
        name = f"{_NOT_PORTABLE.sub('_', name)[: MAX_LABEL + 1]}_{checksum:08x}"
    return f"{name}_{_digest(path)}"


def _digest(path: SectionPath) -> str:
    return blake2b("/".join(path).encode(), digest_size=4).hexdigest()
