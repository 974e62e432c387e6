"""A section: one node of a prompt's tree, with its text, tools, children and resources."""

from __future__ import annotations

import copy
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any, Generic

from weakincentives._generics import ParamsT, Specialized, has_type_variables, inherited_type_args, type_args
from weakincentives.errors import PromptRenderError, PromptValidationError
from weakincentives.prompt.hosted import HostedTool
from weakincentives.prompt.text import TemplateText, split_text
from weakincentives.prompt.tool import Tool
from weakincentives.prompt.visibility import SectionPath, SectionVisibility, VisibilityOverrides
from weakincentives.resources import ResourceRegistry
from weakincentives.session import Session

SECTION_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
Selector = Callable[[Any, Session | None], Any]


class Section(ABC, Generic[ParamsT]):
    """A part of a prompt: `Section[Params]` with a title, a key, text, tools and children.

    Subclasses implement `render_body(params)` and may override `tools()`, `hosted_tools()` and `resources()`.
    """

    _params_type: type | None = None

    def __init__(
        self,
        *,
        title: str,
        key: str,
        children: Iterable[Section[Any]] = (),
        tools: Iterable[Tool[Any, Any]] = (),
        hosted_tools: Iterable[HostedTool[Any]] = (),
        enabled: Callable[..., bool] | None = None,
        default_params: ParamsT | None = None,
        accepts_overrides: bool = True,
        visibility: SectionVisibility | Callable[..., SectionVisibility] = SectionVisibility.FULL,
        summary: str | None = None,
        summary_suffix: str | None = None,
    ) -> None:
        if not isinstance(key, str) or not SECTION_KEY.fullmatch(key):
            raise PromptValidationError(
                f"Section key {key!r} is invalid; use 1 to 64 of a-z, 0-9, '.', '_', '-', "
                "starting with a letter or digit."
            )
        if not isinstance(title, str) or not title.strip():
            raise PromptValidationError(f"Section '{key}' has no title; pass title=...")
        for what, words in (("summary", summary), ("summary_suffix", summary_suffix)):
            if not isinstance(words, str | None):
                raise PromptValidationError(f"Section '{key}': {what} must be text, got {words!r}.")
        self.title = title.strip()
        self.key = key
        self.children: tuple[Section[Any], ...] = require_list(f"Section '{key}'", "children", children)
        self.enabled = enabled
        self.default_params = default_params
        self.accepts_overrides = accepts_overrides
        self.visibility = visibility
        self.summary = summary
        self.summary_suffix = summary_suffix
        self._tools: tuple[Tool[Any, Any], ...] = require_list(f"Section '{key}'", "tools", tools)
        self._hosted_tools: tuple[HostedTool[Any], ...] = require_list(f"Section '{key}'", "hosted_tools", hosted_tools)
        self._select_enabled: Selector | None = None
        self._select_visibility: Selector | None = None
        self._validate()

    def __class_getitem__(cls, item: Any) -> Any:
        args = type_args(item)
        if has_type_variables(args):
            return super().__class_getitem__(item)  # type: ignore[misc]
        params_type = _checked_params_type(cls, args)

        def build(*positional: Any, **named: Any) -> Any:
            section = cls.__new__(cls)
            section._params_type = params_type
            section.__init__(*positional, **named)  # type: ignore[misc]
            return section

        return Specialized(cls, args, build)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        args = inherited_type_args(cls)
        if args is not None:
            cls._params_type = _checked_params_type(cls, args)

    @property
    def params_type(self) -> type | None:
        """The dataclass that fills this section's placeholders, or None."""
        return self._params_type

    @property
    def source(self) -> str | None:
        """The text that an override replaces; None for content made by code."""
        return None

    @abstractmethod
    def render_body(self, params: ParamsT | None) -> str:
        """The section's whole content without heading and children."""

    def body_text(self) -> TemplateText | None:
        """The body as text with placeholders, if that is all it is; the renderer then prepares it once."""
        return None

    def tools(self) -> tuple[Tool[Any, Any], ...]:
        """Tools that appear when this section is shown in full."""
        return self._tools

    def hosted_tools(self) -> tuple[HostedTool[Any], ...]:
        """Provider-run tools that appear when this section is shown in full."""
        return self._hosted_tools

    def resources(self) -> ResourceRegistry:
        """Resources that this section needs; the prompt collects them from the whole tree."""
        return ResourceRegistry()

    def is_enabled(self, params: ParamsT | None = None, *, session: Session | None = None) -> bool:
        """Whether the section exists at all for these params."""
        if self._select_enabled is None:
            return True
        return bool(_call(self._select_enabled, "enabled", self.key, params, session))

    def effective_visibility(
        self,
        override: SectionVisibility | None = None,
        params: ParamsT | None = None,
        *,
        session: Session | None = None,
        path: SectionPath | None = None,
    ) -> SectionVisibility:
        """The session's override, else the caller's, else what was declared."""
        if session is not None and path is not None:
            state = session[VisibilityOverrides].latest()
            if state is not None and path in state.overrides:
                return state.overrides[path]
        if override is not None:
            return override
        return self.declared_visibility(params, session=session)

    def declared_visibility(
        self, params: ParamsT | None = None, *, session: Session | None = None
    ) -> SectionVisibility:
        """The declared constant, or what the selector returns."""
        if self._select_visibility is None:
            return self.visibility if isinstance(self.visibility, SectionVisibility) else SectionVisibility.FULL
        chosen = _call(self._select_visibility, "visibility", self.key, params, session)
        if not isinstance(chosen, SectionVisibility) or chosen not in (
            SectionVisibility.FULL,
            SectionVisibility.SUMMARY,
        ):
            raise PromptRenderError(
                f"Section '{self.key}': visibility= must return SectionVisibility.FULL or SUMMARY, got {chosen!r}."
            )
        return chosen

    def render(
        self,
        params: ParamsT | None = None,
        *,
        depth: int = 0,
        number: str = "",
        path: SectionPath = (),
        visibility: SectionVisibility = SectionVisibility.FULL,
    ) -> str:
        """This section alone as markdown: heading and body, or heading and summary."""
        if visibility is SectionVisibility.SUMMARY:
            if self.summary is None:
                raise missing_summary(".".join(path) or self.key)
            text = split_text(self.summary, where=f"Section '{self.key}', summary", strict=False)
            body = text.fill({name: str(getattr(params, name)) for name in text.names})
        else:
            body = self.render_body(params)
        return "\n\n".join(part for part in (heading(self.title, depth, number), body) if part)

    def clone(self, **kwargs: Any) -> Section[ParamsT]:
        """An independent copy with its children cloned too.

        Subclasses whose tools hold a session or a bus override this and rewire them to `session=` and `bus=`.
        """
        other = copy.copy(self)
        other.children = tuple(child.clone(**kwargs) for child in self.children)
        other.default_params = copy.deepcopy(self.default_params)
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def _validate(self) -> None:
        for child in self.children:
            if not isinstance(child, Section):
                raise PromptValidationError(
                    f"Section '{self.key}': children= must hold Section objects, got {child!r}."
                )
        for tool in self._tools:
            if not isinstance(tool, Tool):
                raise PromptValidationError(f"Section '{self.key}': {_not_a_tool(tool)}.")
        for hosted in self._hosted_tools:
            if not isinstance(hosted, HostedTool):
                hint = "; pass it in tools=" if isinstance(hosted, Tool) else ""
                raise PromptValidationError(
                    f"Section '{self.key}': {hosted!r} in hosted_tools= is not a HostedTool{hint}."
                )
        if self.default_params is not None and (
            self._params_type is None or not isinstance(self.default_params, self._params_type)
        ):
            expected = "no params" if self._params_type is None else self._params_type.__name__
            raise PromptValidationError(
                f"Section '{self.key}': default_params is a {type(self.default_params).__name__}, "
                f"but the section takes {expected}."
            )
        if self.visibility in (SectionVisibility.HIDDEN, SectionVisibility.ABSENT):
            raise PromptValidationError(
                f"Section '{self.key}': visibility must be FULL or SUMMARY, got {self.visibility}; "
                "use enabled= to leave a section out."
            )
        if self.visibility is SectionVisibility.SUMMARY and self.summary is None:
            raise missing_summary(self.key, PromptValidationError)
        if self.enabled is not None:
            self._select_enabled = self._selector("enabled", self.enabled, "a callable")
        if not isinstance(self.visibility, SectionVisibility):
            self._select_visibility = self._selector("visibility", self.visibility, "a SectionVisibility or a callable")

    def _selector(self, what: str, given: Any, expected: str) -> Selector:
        if not callable(given):
            raise PromptValidationError(f"Section '{self.key}': {what} must be {expected}, got {given!r}.")
        if inspect.iscoroutinefunction(given):
            raise PromptValidationError(f"Section '{self.key}': {what}= must be an ordinary function, not async.")
        return selector(given)


def heading(title: str, depth: int, number: str) -> str:
    """`## 1. Title`, one `#` more for each level below the root."""
    return f"{'#' * (depth + 2)} {number + '. ' if number else ''}{title}"


def require_list(whose: str, what: str, given: Any) -> tuple[Any, ...]:
    """The items of a list argument; reject a single item where a list is expected."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise PromptValidationError(f"{whose}: {what}= takes a list, got {given!r}; write {what}=[...].")
    return tuple(given)


def _not_a_tool(given: Any) -> str:
    if isinstance(given, HostedTool):
        return f"{given!r} in tools= is not a Tool; pass it in hosted_tools="
    if inspect.isroutine(given):
        return f"the function {given.__name__} in tools= is not a Tool; decorate it with @tool"
    return f"{given!r} in tools= is not a Tool"


def missing_summary(key: str, error: type[Exception] = PromptRenderError) -> Exception:
    return error(f"Section '{key}' has visibility SUMMARY but no summary; pass summary=...")


def _checked_params_type(cls: type, args: tuple[Any, ...]) -> type | None:
    if len(args) != 1:
        raise PromptValidationError(f"{cls.__name__} takes one params type, got {len(args)}.")
    (params_type,) = args
    if params_type is None or params_type is type(None):
        return None
    if not (isinstance(params_type, type) and is_dataclass(params_type)):
        raise PromptValidationError(
            f"{cls.__name__}[...] takes a dataclass for its params, got {params_type!r}; decorate it with @dataclass."
        )
    return params_type


def _call(function: Selector, what: str, key: str, params: Any, session: Session | None) -> Any:
    try:
        return function(params, session)
    except Exception as error:
        raise PromptRenderError(f"Section '{key}': {what}= raised {type(error).__name__}: {error}") from error


def selector(function: Callable[..., Any]) -> Selector:
    """Call `function` with the params, with `session=` by keyword, with both or with nothing, as it declares."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return lambda params, session: function(params)
    wants_session = any(p.name == "session" or p.kind is p.VAR_KEYWORD for p in parameters)
    wants_params = any(
        p.kind is p.VAR_POSITIONAL
        or (p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and (p.default is p.empty or p.name == "params"))
        for p in parameters
        if p.name != "session"
    )
    if wants_params and wants_session:
        return lambda params, session: function(params, session=session)
    if wants_session:
        return lambda params, session: function(session=session)
    if wants_params:
        return lambda params, session: function(params)
    return lambda params, session: function()
