"""Typed prompts: sections, templates, rendering, disclosure, overrides and output."""

from weakincentives.errors import (
    OutputParseError,
    PromptError,
    PromptRenderError,
    PromptValidationError,
    ToolValidationError,
)
from weakincentives.prompt.context import ToolContext
from weakincentives.prompt.disclosure import (
    Disclosure,
    OpenAndHalt,
    OpenOrRead,
    OpenSectionsParams,
    OpenSectionsResult,
    OpenToFiles,
    ReadSectionParams,
    ReadSectionResult,
    ReadSections,
)
from weakincentives.prompt.hosted import HostedTool, HostedToolConfig, HostedToolOutput
from weakincentives.prompt.markdown import MarkdownSection
from weakincentives.prompt.output import StructuredOutputConfig, parse_structured_output
from weakincentives.prompt.overrides import (
    JsonPromptOverridesStore,
    PromptDescriptor,
    PromptOverride,
    PromptOverridesStore,
)
from weakincentives.prompt.prompt import Prompt
from weakincentives.prompt.rendered import RenderedPrompt
from weakincentives.prompt.section import Section
from weakincentives.prompt.template import PromptTemplate
from weakincentives.prompt.tokens import EstimatedTokens, O200kTokens, Tokenizer
from weakincentives.prompt.tool import Tool, ToolResult, tool
from weakincentives.prompt.view import Span
from weakincentives.prompt.visibility import (
    ClearAllVisibilityOverrides,
    ClearVisibilityOverride,
    CollapseSection,
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
    VisibilityExpansionRequired,
    VisibilityOverrides,
)
from weakincentives.prompt.workspace import WorkspaceSection

__all__ = [
    "ClearAllVisibilityOverrides",
    "ClearVisibilityOverride",
    "CollapseSection",
    "Disclosure",
    "EstimatedTokens",
    "HostedTool",
    "HostedToolConfig",
    "HostedToolOutput",
    "JsonPromptOverridesStore",
    "MarkdownSection",
    "O200kTokens",
    "OpenAndHalt",
    "OpenOrRead",
    "OpenSectionsParams",
    "OpenSectionsResult",
    "OpenToFiles",
    "OutputParseError",
    "Prompt",
    "PromptDescriptor",
    "PromptError",
    "PromptOverride",
    "PromptOverridesStore",
    "PromptRenderError",
    "PromptTemplate",
    "PromptValidationError",
    "ReadSectionParams",
    "ReadSectionResult",
    "ReadSections",
    "RenderedPrompt",
    "Section",
    "SectionPath",
    "SectionVisibility",
    "SetVisibilityOverride",
    "Span",
    "StructuredOutputConfig",
    "Tokenizer",
    "Tool",
    "ToolContext",
    "ToolResult",
    "ToolValidationError",
    "VisibilityExpansionRequired",
    "VisibilityOverrides",
    "WorkspaceSection",
    "parse_structured_output",
    "tool",
]
