"""The Claude Agent SDK: runs the Claude Code CLI with our tools, which may appear while it runs."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.runtime import AdapterSpec

if TYPE_CHECKING:
    from weakincentives.adapters.claude_agent_sdk.adapter import ClaudeAgentSDKAdapter
    from weakincentives.adapters.claude_agent_sdk.wire import CliRunEnded

__all__ = ["SPEC", "ClaudeAgentSDKAdapter", "CliRunEnded"]

SPEC = AdapterSpec(
    name="claude_agent_sdk",
    package=__name__,
    adapter="ClaudeAgentSDKAdapter",
    provider="claude",
    package_needed="claude_agent_sdk",
    key_variables=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_BASE_URL"),
    requires_model=False,
    vendor="anthropic",
    accepts_codecs=False,
)

__getattr__ = lazy_front(__name__, {"adapter": ["ClaudeAgentSDKAdapter"], "wire": ["CliRunEnded"]})
