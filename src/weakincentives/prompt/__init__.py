"""Typed prompts: sections, templates, rendering, disclosure, overrides and output."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import public_names
from weakincentives.errors import (
    OutputParseError as OutputParseError,
    PromptError as PromptError,
    PromptRenderError as PromptRenderError,
    PromptValidationError as PromptValidationError,
    ToolValidationError as ToolValidationError,
)
from weakincentives.prompt.disclosure.strategies import (
    SEARCH_TOOL as SEARCH_TOOL,
    FoundSection as FoundSection,
    OpenAndHalt as OpenAndHalt,
    OpenOrRead as OpenOrRead,
    OpenSectionsParams as OpenSectionsParams,
    OpenSectionsResult as OpenSectionsResult,
    OpenToFiles as OpenToFiles,
    ReadSectionParams as ReadSectionParams,
    ReadSectionResult as ReadSectionResult,
    ReadSections as ReadSections,
    SearchSections as SearchSections,
    SearchSectionsParams as SearchSectionsParams,
    SearchSectionsResult as SearchSectionsResult,
)
from weakincentives.prompt.guards import Guard as Guard
from weakincentives.prompt.layout import media_in as media_in, parts_in as parts_in
from weakincentives.prompt.markdown import (
    MarkdownSection as MarkdownSection,
    TextSection as TextSection,
    WorkspaceSection as WorkspaceSection,
)
from weakincentives.prompt.output import (
    StructuredOutputConfig as StructuredOutputConfig,
    parse_structured_output as parse_structured_output,
)
from weakincentives.prompt.overrides import (
    Experiment as Experiment,
    JsonPromptOverridesStore as JsonPromptOverridesStore,
    PromptDescriptor as PromptDescriptor,
    PromptOverride as PromptOverride,
    PromptOverridesStore as PromptOverridesStore,
)
from weakincentives.prompt.pages import markdown_sections as markdown_sections
from weakincentives.prompt.presentation import LoadedSections as LoadedSections, Presentation as Presentation
from weakincentives.prompt.prompt import Prompt as Prompt, ToolContext as ToolContext
from weakincentives.prompt.section import (
    LateContent as LateContent,
    Section as Section,
    SectionOptions as SectionOptions,
)
from weakincentives.prompt.template import BoundPrompt as BoundPrompt, PromptTemplate as PromptTemplate
from weakincentives.prompt.tokens import (
    EstimatedTokens as EstimatedTokens,
    O200kTokens as O200kTokens,
    Tokenizer as Tokenizer,
    default_tokenizer as default_tokenizer,
    tokenizer_named as tokenizer_named,
)
from weakincentives.prompt.tools import (
    AnyTool as AnyTool,
    ApprovalRule as ApprovalRule,
    Approvals as Approvals,
    Compensation as Compensation,
    FunctionTool as FunctionTool,
    HostedTool as HostedTool,
    HostedToolConfig as HostedToolConfig,
    HostedToolOutput as HostedToolOutput,
    Timeouts as Timeouts,
    Tool as Tool,
    ToolResult as ToolResult,
    by_tool as by_tool,
    namespace_name as namespace_name,
    portable_name as portable_name,
    tool as tool,
)
from weakincentives.prompt.view import (
    Disclosure as Disclosure,
    Opening as Opening,
    RenderedPrompt as RenderedPrompt,
    Span as Span,
    View as View,
)
from weakincentives.prompt.visibility import (
    ClearAllVisibilityOverrides as ClearAllVisibilityOverrides,
    ClearVisibilityOverride as ClearVisibilityOverride,
    CollapseSection as CollapseSection,
    DisclosureRequest as DisclosureRequest,
    Overrides as Overrides,
    SectionPath as SectionPath,
    SectionVisibility as SectionVisibility,
    SetVisibilityOverride as SetVisibilityOverride,
    VisibilityChange as VisibilityChange,
    VisibilityExpansionRequired as VisibilityExpansionRequired,
    VisibilityOverrides as VisibilityOverrides,
    ancestors as ancestors,
    effective as effective,
    inside as inside,
    with_ancestors as with_ancestors,
)

if not TYPE_CHECKING:
    __all__ = public_names(globals())
