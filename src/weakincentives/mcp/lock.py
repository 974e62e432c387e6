"""The listings of MCP servers in a file, so that tools and prices are known before a server is started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from weakincentives import serde
from weakincentives.errors import PromptValidationError, SerdeError
from weakincentives.mcp.server import Listing


def lock_file(config: str | os.PathLike[str]) -> Path:
    """Where the listings of a config file's servers are: `.mcp.lock.json` beside `.mcp.json`."""
    path = Path(config)
    return path.with_name(f"{path.stem}.lock.json")


def read_lock(path: str | os.PathLike[str]) -> dict[str, Listing]:
    """The listings of a lock file by section key; none if there is no such file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        return serde.decode(dict[str, Listing], text)
    except SerdeError as error:
        raise PromptValidationError(f"'{path}' is not a lock file of MCP servers: {error}; delete it.") from None


def write_lock(path: str | os.PathLike[str], listings: Mapping[str, Listing]) -> None:
    """Write the listings, in an order and layout that make differences easy to read."""
    text = json.dumps(serde.dump(dict(sorted(listings.items()))), indent=2, ensure_ascii=False)
    Path(path).write_text(f"{text}\n", encoding="utf-8")


def stored_listing(path: str | os.PathLike[str], key: str) -> Listing | None:
    return read_lock(path).get(key)
