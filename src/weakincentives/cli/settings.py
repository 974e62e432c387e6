"""Defaults of flags: `WINK_*` variables, then `[tool.wink]` in pyproject.toml, then the user's config.

The user's config is `$XDG_CONFIG_HOME/wink/config.toml`. Keys are the names of the flags, with dashes.
"""

from __future__ import annotations

import os
from pathlib import Path

from weakincentives.cli.output import UsageError


def default(key: str) -> str | None:
    """The value for a flag that was not given."""
    variable = os.environ.get("WINK_" + key.upper().replace("-", "_"))
    if variable is not None:
        return variable
    for values in (_project(), _user()):
        if key in values:
            return str(values[key])
    return None


def _project() -> dict[str, object]:
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (found := folder / "pyproject.toml").is_file():
            text = found.read_text(encoding="utf-8")
            return _table(text, "tool", "wink") if "[tool.wink" in text else {}
    return {}


def _user() -> dict[str, object]:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    found = Path(home) / "wink" / "config.toml"
    return _table(found.read_text(encoding="utf-8")) if found.is_file() else {}


def _table(text: str, *path: str) -> dict[str, object]:
    import tomllib

    try:
        table: object = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"settings must be TOML: {error}") from None
    for name in path:
        table = table.get(name, {}) if isinstance(table, dict) else {}
    return table if isinstance(table, dict) else {}
