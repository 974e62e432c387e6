"""The Claude Agent SDK: the real Claude Code CLI, with tools of ours that appear while it runs."""

from weakincentives.adapters.claude_agent_sdk.adapter import ClaudeAgentSDKAdapter
from weakincentives.adapters.claude_agent_sdk.events import CliRunEnded

__all__ = ["ClaudeAgentSDKAdapter", "CliRunEnded"]
