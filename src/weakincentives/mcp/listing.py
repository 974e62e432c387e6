"""The listing of an MCP server, and the lock file that keeps it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakincentives import serde
from weakincentives.errors import PromptValidationError, SerdeError

MAX_SKILLS = 1_000
MAX_PAGES = 100
MAX_TOOLS = 1_000
MAX_LISTING = 4 << 20
"""The most text that a server may list, in characters: its instructions, and the definitions of its tools."""


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server describes it; `read_only` is the server's own claim."""

    name: str  #: its name
    description: str  #: its description
    schema: Mapping[str, Any]  #: the JSON schema of its arguments
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill, with the digest and the size of its content."""

    uri: str  #: its address
    digest: str  #: of its content
    size: int  #: in bytes


@dataclass(frozen=True, slots=True)
class ListedSkill:
    """A skill as its server lists it: the URI of its `SKILL.md`, and its files unless they are `dynamic`."""

    uri: str  #: the URI of its SKILL.md
    name: str  #: its name
    description: str  #: its description
    files: tuple[SkillFile, ...] = ()  #: its files
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The offer of a server: its name and version, its instructions, its tools and its skills."""

    name: str = ""  #: the server's name
    version: str = ""  #: the server's version
    instructions: str = ""  #: the server's instructions for the model
    tools: tuple[ListedTool, ...] = ()  #: its tools
    skills: tuple[ListedSkill, ...] = ()  #: its skills

    def same_as(self, before: Listing) -> bool:
        """True if the model would see the same."""
        texts, texts_before = (self.instructions, self.skills), (before.instructions, before.skills)
        return texts == texts_before and not self.changed_from(before)

    def changed_from(self, before: Listing) -> dict[str, str]:
        """The tools that differ from an earlier listing, and how: added, removed or changed."""
        old, new = ({tool.name: tool for tool in listing.tools} for listing in (before, self))
        differ = [name for name in old | new if old.get(name) != new.get(name)]
        return {name: "removed" if name not in new else "changed" if name in old else "added" for name in differ}


def lock_file(config: str | os.PathLike[str]) -> Path:
    """The file with the listings of a config file's servers: `.mcp.lock.json` beside `.mcp.json`."""
    path = Path(config)
    return path.with_name(f"{path.stem}.lock.json")


def read_lock(path: str | os.PathLike[str]) -> dict[str, Listing]:
    """The listings in a lock file, by section key; empty if there is no such file."""
    try:
        return serde.decode(dict[str, Listing], Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except SerdeError as error:
        raise PromptValidationError(
            f"'{path}' is not a lock file of MCP servers: {error}; delete it, and write it again with `wink mcp lock`."
        ) from None


def write_lock(path: str | os.PathLike[str], listings: Mapping[str, Listing]) -> None:
    """Write the listings, in an order and layout that make diffs easy to read."""
    text = json.dumps(serde.dump(dict(sorted(listings.items()))), indent=2, ensure_ascii=False)
    Path(path).write_text(f"{text}\n", encoding="utf-8")
