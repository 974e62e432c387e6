"""Small tools and requests for the tests of wire formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt import HostedTool, Tool, ToolContext, ToolResult
from weakincentives.runtime import Message, ModelRequest


@dataclass(frozen=True)
class Query:
    text: str


@dataclass(frozen=True)
class SearchConfig:
    size: int = 3


def answer(params: Query, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(f"about {params.text}")


def tool(name: str) -> Tool[Query, None]:
    return Tool(name=name, description=f"Finds {name}.", handler=answer, params_type=Query)


def hosted(name: str = "web") -> HostedTool[SearchConfig]:
    return HostedTool(kind="search", name=name, description="Searches.", config=SearchConfig())


class SearchCodec:
    """A codec with the optional attributes that adapters honour."""

    kind = "search"
    include = ("search_call.sources",)
    betas = ("search-2026",)

    def serialize(self, tool: HostedTool[SearchConfig]) -> dict[str, Any]:
        return {"type": "search", "size": tool.config.size}

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[SearchConfig]) -> None:
        return None


def ask(messages: Sequence[Message], **fields: Any) -> ModelRequest:
    """A request in which every tool was there at the start, unless told otherwise."""
    fields.setdefault("initial_tools", len(fields.get("tools", ())))
    fields.setdefault("initial_hosted_tools", len(fields.get("hosted_tools", ())))
    return ModelRequest("demo", messages, **fields)


SYSTEM = Message("system", "You help.")
