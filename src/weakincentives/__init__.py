"""The front door: the names that a first program needs, each loaded when it is first used.

Nothing is imported here, so `import weakincentives` is nearly free; `_HOMES` says where each name lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front

if TYPE_CHECKING:
    from weakincentives.adapters.anthropic import AnthropicAdapter as AnthropicAdapter
    from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter as ClaudeAgentSDKAdapter
    from weakincentives.adapters.litellm import LiteLLMAdapter as LiteLLMAdapter
    from weakincentives.adapters.local import LocalAdapter as LocalAdapter
    from weakincentives.adapters.openai import OpenAIAdapter as OpenAIAdapter
    from weakincentives.adapters.scripted import ScriptedAdapter as ScriptedAdapter
    from weakincentives.content import Audio as Audio, Document as Document, Image as Image, Text as Text
    from weakincentives.errors import (
        BudgetExceededError as BudgetExceededError,
        ContextOverflowError as ContextOverflowError,
        DeadlineExceededError as DeadlineExceededError,
        PromptEvaluationError as PromptEvaluationError,
        ToolValidationError as ToolValidationError,
        WinkError as WinkError,
    )
    from weakincentives.filesystem import HostFilesystem as HostFilesystem, InMemoryFilesystem as InMemoryFilesystem
    from weakincentives.limits import (
        Budget as Budget,
        Deadline as Deadline,
        Prices as Prices,
        TokenUsage as TokenUsage,
    )
    from weakincentives.prompt import (
        HostedTool as HostedTool,
        MarkdownSection as MarkdownSection,
        OpenAndHalt as OpenAndHalt,
        OpenOrRead as OpenOrRead,
        OpenToFiles as OpenToFiles,
        OutputParseError as OutputParseError,
        Prompt as Prompt,
        PromptRenderError as PromptRenderError,
        PromptTemplate as PromptTemplate,
        PromptValidationError as PromptValidationError,
        ReadSections as ReadSections,
        RenderedPrompt as RenderedPrompt,
        SearchSections as SearchSections,
        Section as Section,
        SectionVisibility as SectionVisibility,
        SetVisibilityOverride as SetVisibilityOverride,
        Tool as Tool,
        ToolContext as ToolContext,
        ToolResult as ToolResult,
        VisibilityExpansionRequired as VisibilityExpansionRequired,
        VisibilityOverrides as VisibilityOverrides,
        WorkspaceSection as WorkspaceSection,
        parse_structured_output as parse_structured_output,
    )
    from weakincentives.prompt.tool import tool as tool
    from weakincentives.resources import Binding as Binding, ResourceRegistry as ResourceRegistry, Scope as Scope
    from weakincentives.runtime import (
        Completed as Completed,
        Conversation as Conversation,
        MainLoop as MainLoop,
        PromptExecuted as PromptExecuted,
        PromptResponse as PromptResponse,
        Settings as Settings,
        TextDelta as TextDelta,
        ToolInvoked as ToolInvoked,
        ToolsInjected as ToolsInjected,
    )
    from weakincentives.session import (
        Append as Append,
        Replace as Replace,
        Session as Session,
        Snapshot as Snapshot,
        reducer as reducer,
    )

__version__ = "0.1.0"

_HOMES = {
    "AnthropicAdapter": "adapters.anthropic",
    "Append": "session",
    "Audio": "content",
    "Binding": "resources",
    "Budget": "limits",
    "BudgetExceededError": "errors",
    "ClaudeAgentSDKAdapter": "adapters.claude_agent_sdk",
    "Completed": "runtime",
    "ContextOverflowError": "errors",
    "Conversation": "runtime",
    "Deadline": "limits",
    "DeadlineExceededError": "errors",
    "Document": "content",
    "HostFilesystem": "filesystem",
    "HostedTool": "prompt",
    "Image": "content",
    "InMemoryFilesystem": "filesystem",
    "LiteLLMAdapter": "adapters.litellm",
    "LocalAdapter": "adapters.local",
    "MainLoop": "runtime",
    "MarkdownSection": "prompt",
    "OpenAIAdapter": "adapters.openai",
    "OpenAndHalt": "prompt",
    "OpenOrRead": "prompt",
    "OpenToFiles": "prompt",
    "OutputParseError": "prompt",
    "Prices": "limits",
    "Prompt": "prompt",
    "PromptEvaluationError": "errors",
    "PromptExecuted": "runtime",
    "PromptRenderError": "prompt",
    "PromptResponse": "runtime",
    "PromptTemplate": "prompt",
    "PromptValidationError": "prompt",
    "ReadSections": "prompt",
    "RenderedPrompt": "prompt",
    "Replace": "session",
    "ResourceRegistry": "resources",
    "Scope": "resources",
    "ScriptedAdapter": "adapters.scripted",
    "SearchSections": "prompt",
    "Section": "prompt",
    "SectionVisibility": "prompt",
    "Session": "session",
    "SetVisibilityOverride": "prompt",
    "Settings": "runtime",
    "Snapshot": "session",
    "Text": "content",
    "TextDelta": "runtime",
    "TokenUsage": "limits",
    "Tool": "prompt",
    "ToolContext": "prompt",
    "ToolInvoked": "runtime",
    "ToolResult": "prompt",
    "ToolValidationError": "errors",
    "ToolsInjected": "runtime",
    "VisibilityExpansionRequired": "prompt",
    "VisibilityOverrides": "prompt",
    "WinkError": "errors",
    "WorkspaceSection": "prompt",
    "parse_structured_output": "prompt",
    "reducer": "session",
    "tool": "prompt.tool",
}

__all__ = sorted(_HOMES)


__getattr__ = lazy_front(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
