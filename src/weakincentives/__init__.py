"""The front door: the names that a first program needs, each loaded when it is first used.

Nothing is imported here, so `import weakincentives` is nearly free; `_NAMES` says where each name lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front

if TYPE_CHECKING:
    from weakincentives.adapters import FallbackAdapter as FallbackAdapter, adapter_for as adapter_for
    from weakincentives.adapters.anthropic import AnthropicAdapter as AnthropicAdapter
    from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter as ClaudeAgentSDKAdapter
    from weakincentives.adapters.litellm import LiteLLMAdapter as LiteLLMAdapter
    from weakincentives.adapters.local import LocalAdapter as LocalAdapter
    from weakincentives.adapters.openai import OpenAIAdapter as OpenAIAdapter
    from weakincentives.adapters.openai_chat import OpenAIChatAdapter as OpenAIChatAdapter
    from weakincentives.adapters.scripted import ScriptedAdapter as ScriptedAdapter, call as call
    from weakincentives.content import Audio as Audio, Document as Document, Image as Image, Text as Text
    from weakincentives.errors import (
        BudgetExceededError as BudgetExceededError,
        ContextOverflowError as ContextOverflowError,
        DeadlineExceededError as DeadlineExceededError,
        PromptEvaluationError as PromptEvaluationError,
        WinkError as WinkError,
    )
    from weakincentives.limits import (
        Budget as Budget,
        Deadline as Deadline,
        Prices as Prices,
    )
    from weakincentives.mcp import mcp_sections as mcp_sections
    from weakincentives.prompt import (
        MarkdownSection as MarkdownSection,
        Prompt as Prompt,
        PromptTemplate as PromptTemplate,
        PromptValidationError as PromptValidationError,
        Section as Section,
        SectionVisibility as SectionVisibility,
        TextSection as TextSection,
        Tool as Tool,
        ToolContext as ToolContext,
        ToolResult as ToolResult,
        WorkspaceSection as WorkspaceSection,
        markdown_sections as markdown_sections,
        tool as tool,
    )
    from weakincentives.resources import Binding as Binding, ResourceRegistry as ResourceRegistry, Scope as Scope
    from weakincentives.runtime import (
        Answer as Answer,
        Approve as Approve,
        Compaction as Compaction,
        Conversation as Conversation,
        Deny as Deny,
        Edit as Edit,
        MainLoop as MainLoop,
        PromptResponse as PromptResponse,
        Settings as Settings,
        delegate as delegate,
        run as run,
        run_async as run_async,
    )
    from weakincentives.session import Session as Session, Snapshot as Snapshot, reducer as reducer
    from weakincentives.skills import skill_sections as skill_sections
    from weakincentives.telemetry import record as record

__version__ = "0.1.0"

_NAMES = {
    "adapters": ["FallbackAdapter", "adapter_for"],
    "adapters.anthropic": ["AnthropicAdapter"],
    "adapters.claude_agent_sdk": ["ClaudeAgentSDKAdapter"],
    "adapters.litellm": ["LiteLLMAdapter"],
    "adapters.local": ["LocalAdapter"],
    "adapters.openai": ["OpenAIAdapter"],
    "adapters.openai_chat": ["OpenAIChatAdapter"],
    "adapters.scripted": ["ScriptedAdapter", "call"],
    "content": ["Audio", "Document", "Image", "Text"],
    "errors": [
        "BudgetExceededError",
        "ContextOverflowError",
        "DeadlineExceededError",
        "PromptEvaluationError",
        "WinkError",
    ],
    "limits": ["Budget", "Deadline", "Prices"],
    "mcp": ["mcp_sections"],
    "prompt": [
        "MarkdownSection",
        "Prompt",
        "PromptTemplate",
        "PromptValidationError",
        "Section",
        "SectionVisibility",
        "TextSection",
        "Tool",
        "ToolContext",
        "ToolResult",
        "WorkspaceSection",
        "markdown_sections",
        "tool",
    ],
    "resources": ["Binding", "ResourceRegistry", "Scope"],
    "runtime": [
        "Answer",
        "Approve",
        "Compaction",
        "Conversation",
        "Deny",
        "Edit",
        "MainLoop",
        "PromptResponse",
        "Settings",
        "delegate",
        "run",
        "run_async",
    ],
    "session": ["Session", "Snapshot", "reducer"],
    "skills": ["skill_sections"],
    "telemetry": ["record"],
}

_names = sorted(name for names in _NAMES.values() for name in names)
if not TYPE_CHECKING:
    # Type checkers understand no computed list; without one, `import *` means what is imported above.
    __all__ = _names


__getattr__ = lazy_front(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_names})
