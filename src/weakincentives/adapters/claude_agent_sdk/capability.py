"""Whether a CLI takes up tools that appear while it runs; found out once per process, without asking a model."""

from __future__ import annotations

import functools

from weakincentives.adapters.claude_agent_sdk.cli import OLDEST, Cli
from weakincentives.adapters.claude_agent_sdk.permissions import permissions

_disproved: set[Cli] = set()


def follows_list_changes(cli: Cli) -> bool:
    """True where the CLI asks for the tools again when told that they changed."""
    return cli not in _disproved and _measured(cli)


def disprove(cli: Cli) -> None:
    """Note that a CLI did not ask again when it mattered."""
    _disproved.add(cli)


@functools.cache
def _measured(cli: Cli) -> bool:
    if cli.version == OLDEST:
        return True
    from weakincentives.adapters.claude_agent_sdk.channel import ClaudeChannel
    from weakincentives.adapters.claude_agent_sdk.conversation import Settings

    channel = ClaudeChannel(Settings(cli=cli.path, options=permissions(())))
    try:
        return channel.follows_list_changes()
    finally:
        channel.close()
