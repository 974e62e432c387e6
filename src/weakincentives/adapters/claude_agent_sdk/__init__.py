"""The Claude Agent SDK: the real Claude Code CLI, with tools of ours that appear while it runs."""

from weakincentives.adapters.claude_agent_sdk.adapter import ClaudeAgentSDKAdapter

__all__ = ["ClaudeAgentSDKAdapter"]
