"""An MCP server as configured, what it lists, and the lock file that keeps its listing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weakincentives import serde
from weakincentives.errors import PromptValidationError, SerdeError, WinkError


class MCPServerError(WinkError):
    """An MCP server could not be started, or has stopped."""


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that runs as a process of ours and is spoken to over its standard input and output.

    Besides `env` it inherits HOME, LOGNAME, PATH, SHELL, TERM and USER, and nothing else.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | Path | None = None
    start_timeout: float = field(default=20.0, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.args, str):
            raise TypeError(f"StdioServer: args must be a list of strings, got {self.args!r}")
        object.__setattr__(self, "args", tuple(self.args))


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that is reached over streamable HTTP; `headers` go with every request."""

    url: str
    headers: Mapping[str, str] | None = None
    start_timeout: float = field(default=20.0, kw_only=True)


Server = StdioServer | HttpServer


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server describes it; `read_only` is the server's own word for it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server offers: its name and version, its instructions, and its tools."""

    name: str = ""
    version: str = ""
    instructions: str = ""
    tools: tuple[ListedTool, ...] = ()

    def changed_from(self, before: Listing) -> dict[str, str]:
        """The tools that differ from an earlier listing, and how: added, removed or changed."""
        old, new = ({tool.name: tool for tool in listing.tools} for listing in (before, self))
        differ = [name for name in old | new if old.get(name) != new.get(name)]
        return {name: "removed" if name not in new else "changed" if name in old else "added" for name in differ}


def lock_file(config: str | os.PathLike[str]) -> Path:
    """Where the listings of a config file's servers are: `.mcp.lock.json` beside `.mcp.json`."""
    path = Path(config)
    return path.with_name(f"{path.stem}.lock.json")


def read_lock(path: str | os.PathLike[str]) -> dict[str, Listing]:
    """The listings of a lock file by section key; none if there is no such file."""
    try:
        return serde.decode(dict[str, Listing], Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except SerdeError as error:
        raise PromptValidationError(f"'{path}' is not a lock file of MCP servers: {error}; delete it.") from None


def write_lock(path: str | os.PathLike[str], listings: Mapping[str, Listing]) -> None:
    """Write the listings, in an order and layout that make differences easy to read."""
    text = json.dumps(serde.dump(dict(sorted(listings.items()))), indent=2, ensure_ascii=False)
    Path(path).write_text(f"{text}\n", encoding="utf-8")
