"""Which tools the CLI may use, and which of the SDK's options are ours to set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weakincentives.adapters.claude_agent_sdk.wire import PREFIX, SERVER_NAME

# Reading is governed by rules on Read, writing by rules on Edit, whichever tool does it.
_FILE_RULES = {
    "Read": "Read(./**)",
    "Glob": "Read(./**)",
    "Grep": "Read(./**)",
    "Edit": "Edit(./**)",
    "Write": "Edit(./**)",
    "NotebookEdit": "Edit(./**)",
}

_OURS = {
    "allowed_tools": "allowed_cli_tools=",
    "cli_path": "cli_path=",
    "cwd": "a HostFilesystem in the prompt's resources",
    "env": "env=",
    "hooks": "hooks=",
    "include_partial_messages": "nothing; it is always on",
    "mcp_servers": "tools in the prompt's sections",
    "model": "the first argument",
    "output_format": "PromptTemplate[Output]",
    "setting_sources": "setting_sources=",
    "strict_mcp_config": "nothing; it is always on",
    "system_prompt": "the prompt itself",
    "tools": "allowed_cli_tools=",
}


def permissions(cli_tools: Sequence[str]) -> dict[str, Any]:
    """The SDK's options for these tools of the CLI and all of ours.

    A plain name of a file tool is confined to the workspace. A rule such as `Bash(git log:*)` is passed on as it is.
    """
    tools = dict.fromkeys(tool.partition("(")[0] for tool in cli_tools)
    rules = dict.fromkeys(_FILE_RULES.get(tool, tool) for tool in cli_tools)
    return {
        "tools": list(tools),
        "allowed_tools": [f"mcp__{SERVER_NAME}", *rules],
        "permission_mode": "dontAsk",
    }


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that the adapter sets itself, naming the way to say it."""
    for name in options:
        if name in _OURS:
            raise ValueError(f"sdk_options may not set {name!r}; use {_OURS[name]}")


def names(given: Iterable[str], where: str, known: Sequence[str] = ()) -> tuple[str, ...]:
    """The names as a tuple, each of them known where that can be said."""
    if isinstance(given, str):
        raise ValueError(f"{where} is a tuple of names, got the text {given!r}; write ({given!r},)")
    found = tuple(given)
    for name in found:
        if known and name not in known:
            raise ValueError(f"{where} has {name!r} in it; there are {', '.join(known)}")
    return found


def without_our_tools(hooks: Mapping[Any, Sequence[Any]]) -> dict[Any, list[Any]]:
    """The hooks, with those before a tool blind to ours: our own loop has begun such a call when the CLI asks them."""
    return {
        event: [replace(matcher, hooks=[_blind(hook) for hook in matcher.hooks]) for matcher in matchers]
        if event == "PreToolUse"
        else list(matchers)
        for event, matchers in hooks.items()
    }


def _blind(hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def seeing_only_tools_of_the_cli(data: Mapping[str, Any], call_id: str | None, context: Any) -> Any:
        if str(data.get("tool_name", "")).startswith(PREFIX):
            return {}
        return await hook(data, call_id, context)

    return seeing_only_tools_of_the_cli
