"""Typed prompts: sections, templates, rendering, disclosure, overrides and output."""

from typing import TYPE_CHECKING

from weakincentives.errors import (
    OutputParseError,
    PromptError,
    PromptRenderError,
    PromptValidationError,
    ToolValidationError,
)
from weakincentives.prompt.disclosure import (
    FoundSection,
    OpenAndHalt,
    OpenOrRead,
    OpenSectionsParams,
    OpenSectionsResult,
    OpenToFiles,
    ReadSectionParams,
    ReadSectionResult,
    ReadSections,
    SearchSections,
    SearchSectionsParams,
    SearchSectionsResult,
)
from weakincentives.prompt.layout import Placed, media_in, parts_in
from weakincentives.prompt.markdown import MarkdownSection, TextSection, WorkspaceSection
from weakincentives.prompt.output import StructuredOutputConfig, parse_structured_output
from weakincentives.prompt.overrides import (
    JsonPromptOverridesStore,
    PromptDescriptor,
    PromptOverride,
    PromptOverridesStore,
)
from weakincentives.prompt.pages import markdown_sections
from weakincentives.prompt.prompt import Prompt, PromptTemplate, ToolContext
from weakincentives.prompt.section import LateContent, Section, SectionOptions
from weakincentives.prompt.tokens import EstimatedTokens, O200kTokens, Tokenizer, default_tokenizer
from weakincentives.prompt.tool import (
    AnyTool,
    Compensation,
    FunctionTool,
    HostedTool,
    HostedToolConfig,
    HostedToolOutput,
    Tool,
    ToolResult,
    portable_name,
)
from weakincentives.prompt.view import Disclosure, Opening, RenderedPrompt, Span, View
from weakincentives.prompt.visibility import (
    ClearAllVisibilityOverrides,
    ClearVisibilityOverride,
    CollapseSection,
    DisclosureRequest,
    Overrides,
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
    VisibilityChange,
    VisibilityExpansionRequired,
    VisibilityOverrides,
    ancestors,
    with_ancestors,
)

if TYPE_CHECKING:
    # At run time, `tool` is the module of that name, which is callable and acts as the decorator.
    from weakincentives.prompt.tool import tool

__all__ = [
    "AnyTool",
    "ClearAllVisibilityOverrides",
    "ClearVisibilityOverride",
    "CollapseSection",
    "Compensation",
    "Disclosure",
    "DisclosureRequest",
    "EstimatedTokens",
    "FoundSection",
    "FunctionTool",
    "HostedTool",
    "HostedToolConfig",
    "HostedToolOutput",
    "JsonPromptOverridesStore",
    "LateContent",
    "MarkdownSection",
    "O200kTokens",
    "OpenAndHalt",
    "OpenOrRead",
    "OpenSectionsParams",
    "OpenSectionsResult",
    "OpenToFiles",
    "Opening",
    "OutputParseError",
    "Overrides",
    "Placed",
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
    "SearchSections",
    "SearchSectionsParams",
    "SearchSectionsResult",
    "Section",
    "SectionOptions",
    "SectionPath",
    "SectionVisibility",
    "SetVisibilityOverride",
    "Span",
    "StructuredOutputConfig",
    "TextSection",
    "Tokenizer",
    "Tool",
    "ToolContext",
    "ToolResult",
    "ToolValidationError",
    "View",
    "VisibilityChange",
    "VisibilityExpansionRequired",
    "VisibilityOverrides",
    "WorkspaceSection",
    "ancestors",
    "default_tokenizer",
    "markdown_sections",
    "media_in",
    "parse_structured_output",
    "parts_in",
    "portable_name",
    "tool",
    "with_ancestors",
]
