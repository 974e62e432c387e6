"""The tools the CLI may use, and the SDK options that the adapter sets itself."""

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

_SET_BY_THE_ADAPTER = {
    "allowed_tools": "allowed_cli_tools=",
    "cli_path": "cli_path=",
    "cwd": "a HostFilesystem in the prompt's resources",
    "env": "env=",
    "hooks": "hooks=",
    "include_partial_messages": "nothing, it is always on",
    "mcp_servers": "tools in the prompt's sections",
    "model": "the first argument",
    "output_format": "PromptTemplate[Output]",
    "setting_sources": "setting_sources=",
    "strict_mcp_config": "nothing, it is always on",
    "system_prompt": "the prompt itself",
    "tools": "allowed_cli_tools=",
}


def permissions(cli_tools: Sequence[str]) -> dict[str, Any]:
    """The SDK's options that allow these tools of the CLI and all of ours.

    A file tool given by its plain name is confined to the workspace. A rule such as `Bash(git log:*)` is passed on.
    """
    tools = dict.fromkeys(tool.partition("(")[0] for tool in cli_tools)
    rules = dict.fromkeys(_FILE_RULES.get(tool, tool) for tool in cli_tools)
    return {
        "tools": list(tools),
        "allowed_tools": [f"mcp__{SERVER_NAME}", *rules],
        "permission_mode": "dontAsk",
    }


def check_options(options: Mapping[str, Any]) -> None:
    """Reject options that the adapter sets itself, and say what to use instead."""
    for name in options:
        if name in _SET_BY_THE_ADAPTER:
            raise ValueError(f"sdk_options may not set {name!r}; use {_SET_BY_THE_ADAPTER[name]}")


def require_names(given: Iterable[str], where: str, known: Sequence[str] = ()) -> tuple[str, ...]:
    """The names as a tuple; rejects a single string, and names that are not in `known`."""
    if isinstance(given, str):
        raise ValueError(f"{where} must be a tuple of names, got the string {given!r}; write ({given!r},)")
    found = tuple(given)
    for name in found:
        if known and name not in known:
            raise ValueError(f"{where} may contain {', '.join(known)}, got {name!r}")
    return found


def hooks_for_cli_tools(hooks: Mapping[Any, Sequence[Any]]) -> dict[Any, list[Any]]:
    """The hooks, with `PreToolUse` skipped for our tools: our own loop has already started such a call."""
    return {
        event: [replace(matcher, hooks=[_skipping_our_tools(hook) for hook in matcher.hooks]) for matcher in matchers]
        if event == "PreToolUse"
        else list(matchers)
        for event, matchers in hooks.items()
    }


def _skipping_our_tools(hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def for_cli_tools(data: Mapping[str, Any], call_id: str | None, context: Any) -> Any:
        if str(data.get("tool_name", "")).startswith(PREFIX):
            return {}
        return await hook(data, call_id, context)

    return for_cli_tools
