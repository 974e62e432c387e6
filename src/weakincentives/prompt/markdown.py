"""Sections written as markdown text with `${placeholders}`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, cast

from weakincentives._generics import ParamsT
from weakincentives.errors import PromptRenderError, PromptValidationError
from weakincentives.prompt.hosted import HostedTool
from weakincentives.prompt.section import Rule, Section, SectionRole, Selector, has_own
from weakincentives.prompt.text import TemplateText, split_text
from weakincentives.prompt.tool import Tool
from weakincentives.prompt.visibility import SectionVisibility


class MarkdownSection(Section[ParamsT]):
    """Text that is dedented, stripped, and filled from the fields of its params dataclass.

    MarkdownSection[Tone](title="Tone", key="tone", template="Target tone: ${tone}", summary="Tone guidance.")
    """

    def __init__(
        self,
        *,
        template: str,
        title: str,
        key: str,
        children: Iterable[Section[Any]] = (),
        tools: Iterable[Tool[Any, Any]] = (),
        hosted_tools: Iterable[HostedTool[Any]] = (),
        enabled: Selector[ParamsT, bool] | None = None,
        default_params: ParamsT | None = None,
        accepts_overrides: bool = True,
        visibility: SectionVisibility | Selector[ParamsT, SectionVisibility] = SectionVisibility.FULL,
        summary: str | None = None,
        summary_suffix: str | None = None,
        role: SectionRole = "system",
        open_when: Rule[ParamsT] | None = None,
    ) -> None:
        self.template = template
        self._text = split_text(template, where=f"Section '{key}'")
        super().__init__(
            title=title,
            key=key,
            children=children,
            tools=tools,
            hosted_tools=hosted_tools,
            enabled=enabled,
            default_params=default_params,
            accepts_overrides=accepts_overrides,
            visibility=visibility,
            summary=summary,
            summary_suffix=summary_suffix,
            role=role,
            open_when=open_when,
        )
        check_placeholders(self, self._text.names, "template")
        if self.summary is not None:
            check_placeholders(
                self, split_text(self.summary, where=f"Section '{key}', summary", strict=False).names, "summary"
            )

    @property
    def source(self) -> str | None:
        return None if self.body_text() is None or has_own(self, "render") else self.template

    def body_text(self) -> TemplateText | None:
        return self._text if type(self).render_body is MarkdownSection.render_body else None

    def render_body(self, params: ParamsT | None) -> str:
        try:
            return self._text.fill({name: str(getattr(params, name)) for name in self._text.names})
        except AttributeError as error:
            raise PromptRenderError(f"Section '{self.key}': {error}.") from error


def check_placeholders(section: Section[Any], names: Iterable[str], where: str) -> None:
    """Every placeholder must be a field of the section's params."""
    wanted = tuple(dict.fromkeys(names))
    if not wanted:
        return
    listed = ", ".join(f"${{{name}}}" for name in wanted)
    if section.params_type is None:
        raise PromptValidationError(
            f"Section '{section.key}': the {where} uses {listed} but the section takes no params; "
            f"write {type(section).__name__}[Params] with a dataclass that has these fields."
        )
    known = {field.name for field in fields(cast(Any, section.params_type))}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        listed = ", ".join(f"${{{name}}}" for name in unknown)
        raise PromptValidationError(
            f"Section '{section.key}': placeholder {listed} in the {where} is no field of "
            f"{section.params_type.__name__}; it has: {', '.join(sorted(known)) or 'none'}."
        )
