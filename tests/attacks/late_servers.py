"""Sections that load their tools, and say in each result whose tool it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.guards import Guard, GuardedCall, Refuse
from weakincentives.prompt import (
    LateContent,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Section,
    SectionVisibility,
    Tool,
    ToolResult,
    portable_name,
)
from weakincentives.resources import ScopedResourceContext
from weakincentives.session import Session, Snapshot

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
KEYS = ("a", "b", "a_b", "a.b", "shop", "k" * 50, f"{'k' * 50}2")
NAMES = (
    *("delete", "b_delete", "2_delete", "a_b_delete", "delete_1f3a5b7c"),
    *("files.read", portable_name("files.read"), "files/read", "n" * 128, f"{'n' * 127}m"),
)


def tool_of(section: str, name: str, approval: Any = None) -> Tool[dict[str, Any], Any]:
    """A tool whose description and result say whose it is."""

    def handler(params: dict[str, Any], *, context: Any) -> ToolResult[None]:
        return ToolResult(f"{section}|{name}")

    return Tool.from_schema(
        name=name,
        description=f"{section}|{name}",
        schema={"type": "object", "properties": {}},
        handler=handler,
        approval=approval,
    )


class Server(Section[None]):
    """A section whose tools are known once it is opened."""

    def __init__(self, key: str, names: Iterable[str], path: str = "", **options: Any) -> None:
        self._names = tuple(names)
        self._path = path or key
        self._approval = options.pop("approval", None)
        super().__init__(key=key, title=key, summary="Does much.", visibility=SUMMARY, **options)

    def render_body(self, params: None) -> str:
        return "Use it."

    def load(self, resources: ScopedResourceContext) -> LateContent:
        tools = [tool_of(self._path, name, self._approval) for name in self._names]
        return LateContent(tuple(tools))


def declared(key: str, *names: str, closed: bool = False, **options: Any) -> Section[Any]:
    return MarkdownSection(
        key=key,
        title=key,
        template="Use it.",
        summary="Does much.",
        visibility=SUMMARY if closed else FULL,
        tools=[tool_of(key, name) for name in names],
        **options,
    )


def prompt(sections: Sequence[Section[Any]], **options: Any) -> Prompt[Any]:
    return Prompt(PromptTemplate(ns="t", key="names", sections=sections, **options))


def read(*keys: str) -> list[Any]:
    return [call("read_section", section_key=key) for key in keys]


def owners(adapter: ScriptedAdapter) -> dict[str, str]:
    """The section and own name of every tool in all requests, by the name that the provider gets."""
    owners: dict[str, str] = {}
    for request in adapter.requests:
        for tool in request.tools:
            if "|" in tool.description:
                name = portable_name(tool.name)
                assert owners.setdefault(name, tool.description) == tool.description
    return owners


def copied(session: Session) -> Session:
    copy = Session()
    copy.restore(Snapshot.from_json(session.snapshot().to_json()))
    return copy


class No(Guard):
    """Refuses the tools that it is asked about."""

    def __init__(self, *tools: str) -> None:
        self.tools = tools

    def before_tool(self, call: GuardedCall, *, context: Any) -> Refuse:
        return Refuse(f"No {call.name} of {call.section_key}.")


def definitions(body: Any) -> Iterator[tuple[str, str]]:
    """Every name and description in a request, wherever its tools are declared."""
    if isinstance(body, dict) and isinstance(body.get("description"), str) and isinstance(body.get("name"), str):
        yield body["name"], body["description"]
    elif isinstance(body, dict | list):
        for value in body.values() if isinstance(body, dict) else body:
            yield from definitions(value)
