"""A section: one node of a prompt's tree, with its text, tools, children and resources."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import partial
from textwrap import dedent
from types import MethodType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from weakincentives import serde
from weakincentives._base.generics import ParamsT_co, Specializable
from weakincentives.errors import PromptRenderError, PromptValidationError, SerdeError
from weakincentives.prompt.guards import Guard, require_guards
from weakincentives.prompt.tools import HostedTool, Tool, rebound
from weakincentives.prompt.visibility import SectionPath, SectionVisibility, VisibilityOverrides, with_ancestors
from weakincentives.resources import ResourceRegistry, ScopedResourceContext
from weakincentives.session import Bus, Session

SECTION_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_DOLLAR = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<named>[A-Za-z_][A-Za-z0-9_]*)"
    r"|\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<format>(?:(?!\d{4})[^{}\n])*))?\}|)"
)
_VISIBLE = re.compile(r"\S")
# A format of numbers or text with a width, a precision or a type, or one of dates; `,` alone is a separator.
_ITEM_FORMAT = re.compile(r"(?=.*[\dA-Za-z%])(?:.?[<>=^])?[-+ ]?z?#?\d*[,_]?(?:\.\d+)?[A-Za-z%]?|[^%]*%[-#]?[A-Za-z].*")
_FORMATTED = (bool, bytes, complex, dict, float, frozenset, int, set, str, Decimal)

S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
ParamsT_contra = TypeVar("ParamsT_contra", contravariant=True)


class OfSession(Protocol[T_co]):
    """A selector that looks at the session."""

    def __call__(self, *, session: Session | None) -> T_co: ...


class OfParamsAndSession(Protocol[ParamsT_contra, T_co]):
    """A selector that looks at both."""

    def __call__(self, params: ParamsT_contra, /, *, session: Session | None) -> T_co: ...


Selector = Callable[[S], T] | Callable[[], T] | OfSession[T] | OfParamsAndSession[S, T]
"""The type of `enabled=` and `visibility=`: a function of the params, of nothing, of `session=`, or of both."""


Rule = Callable[..., bool]
"""The type of `open_when=`: a function as for `enabled=`, which may take the user's words as `text=`, too."""


SectionRole = Literal["system", "user"]


@dataclass(frozen=True, slots=True)
class LateContent:
    """The content that a section adds when it is opened; `text`, if any, is its body, used literally.

    `changed` names the tools that differ from what was `stored`.
    """

    tools: tuple[Tool[Any, Any], ...] = ()  #: the tools it adds
    children: tuple[Section[Any], ...] = ()  #: the sections it adds
    text: str = ""
    changed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_sections("LateContent", "children", self.children)


class SectionOptions(TypedDict, Generic[ParamsT_co], total=False):
    """The keyword arguments that every section accepts besides its title and key."""

    children: Iterable[Section[Any]]
    """Sections inside this one; they are hidden while it is closed."""
    tools: Iterable[Tool[Any, Any]]
    """Offered while the section is shown in full."""
    hosted_tools: Iterable[HostedTool[Any]]
    """Tools that the provider runs, offered likewise."""
    enabled: Selector[ParamsT_co, bool] | None
    """Decides whether the section exists: a function of the params, of `session=`, of both or of nothing."""
    default_params: ParamsT_co | None
    """Used if no instance of the params type is bound."""
    accepts_overrides: bool
    """False keeps stored overrides away from it."""
    visibility: SectionVisibility | Selector[ParamsT_co, SectionVisibility]
    """Full, or only the summary until it is opened; or a function that decides."""
    summary: str | None
    """Shown while the section is closed."""
    summary_suffix: str | None
    """Replaces the sentence that says how to open it."""
    role: SectionRole
    """`user` puts a root section into the first user message."""
    open_when: Rule | None
    """Opens the section without the model, at the start of a run or between two turns."""
    heading: bool
    """False shows the text without title and number."""
    guards: Iterable[Guard]
    """Hold for the whole run while the section is open."""


class Section(Specializable, Generic[ParamsT_co]):
    """A part of a prompt: `Section[Params]` with a title, a key, text, tools and children.

    A root section with `role="user"` is part of the first user turn, after all system sections. `open_when` is a
    rule that opens a summarized section without the model, at the start of a run or between two turns. With
    `heading=False`, its text stands without title and number. `guards` hold for the whole run while the section is
    open.

    A subclass implements `render_body(params)`, or `render(params, ...)` to render its heading too. It may override
    `is_enabled`, `declared_visibility`, `effective_visibility`, `tools`, `hosted_tools`, `load`, `stored`, `resources`
    and `clone`.
    """

    literal: ClassVar[bool] = False
    """True if text, summary and overrides are literal, so that a `$` does not start a placeholder."""
    loads_tools: ClassVar[bool] = True
    """False if `load` never adds tools, neither its own nor those of children."""

    _params_type: type | None = None
    _type_names = ("params_type",)

    def __init__(
        self,
        *,
        title: str,
        key: str,
        children: Iterable[Section[Any]] = (),
        tools: Iterable[Tool[Any, Any]] = (),
        hosted_tools: Iterable[HostedTool[Any]] = (),
        enabled: Selector[ParamsT_co, bool] | None = None,
        default_params: ParamsT_co | None = None,
        accepts_overrides: bool = True,
        visibility: SectionVisibility | Selector[ParamsT_co, SectionVisibility] = SectionVisibility.FULL,
        summary: str | None = None,
        summary_suffix: str | None = None,
        role: SectionRole = "system",
        open_when: Rule | None = None,
        heading: bool = True,
        guards: Iterable[Guard] = (),
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
        self.children = require_sections(f"Section '{key}'", "children", children)
        self.enabled = enabled
        self.default_params = default_params
        self.accepts_overrides = accepts_overrides
        self.visibility = visibility
        self.summary = summary
        self.summary_suffix = summary_suffix
        self.role: SectionRole = role
        self.open_when = open_when
        self.heading = heading
        self.guards = require_guards(f"Section '{key}'", guards)
        self._tools: tuple[Tool[Any, Any], ...] = require_list(f"Section '{key}'", "tools", tools)
        self._hosted_tools: tuple[HostedTool[Any], ...] = require_list(f"Section '{key}'", "hosted_tools", hosted_tools)
        self._validate()
        self._read_selectors()

    @classmethod
    def _attributes_for(cls, args: tuple[Any, ...]) -> dict[str, Any]:
        attributes = super()._attributes_for(args)
        params_type = attributes["_params_type"]
        if params_type is not None and not (isinstance(params_type, type) and serde.is_record(params_type)):
            raise PromptValidationError(
                f"{cls.__name__}[...] takes a dataclass or another class with fields for its params, got "
                f"{params_type!r}; decorate it with @dataclass."
            )
        serde.declare_type(params_type)
        return attributes

    @property
    def params_type(self) -> type | None:
        """The dataclass that fills this section's placeholders, or None."""
        return self._params_type

    @property
    def enabled_needs_params(self) -> bool:
        """True if `enabled=` depends on the params."""
        return self._enabled is not None and self._enabled.wants_params

    @property
    def source(self) -> str | None:
        """The text that an override replaces; None for content generated by code."""
        return None

    def render_body(self, params: ParamsT_co | None) -> str:
        """The section's whole content without heading and children."""
        raise NotImplementedError(f"{type(self).__name__} implements render() and not render_body()")

    def body_text(self) -> TemplateText | None:
        """The body as text with placeholders, if it is nothing more; the renderer then prepares it once."""
        return None

    def summary_text(self) -> TemplateText | None:
        """The summary as text with placeholders."""
        if self.summary is None:
            return None
        return split_text(self.summary, where=f"Section '{self.key}', summary", strict=False, literal=self.literal)

    def tools(self) -> tuple[Tool[Any, Any], ...]:
        """Tools that appear when this section is shown in full."""
        return self._tools

    def hosted_tools(self) -> tuple[HostedTool[Any], ...]:
        """Provider-run tools that appear when this section is shown in full."""
        return self._hosted_tools

    def resources(self) -> ResourceRegistry:
        """Resources that this section needs; the prompt collects them from the whole tree."""
        return ResourceRegistry()

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        """Tools and children that are known only once the section is opened; override this to provide them.

        If several sections of a template do so, their tools are offered as `<section key>_<name>`;
        with `loads_tools = False`, a class declares that its `load` adds none.

        It is called when the section is first shown in full. Called again, because `refresh` or `outdated` asked for
        it, it may return None if nothing has changed.
        """
        return None

    def refresh(self, resources: ScopedResourceContext) -> bool:
        """True to load the section again, now that another run begins, such as the next exchange of a conversation.

        It is called for sections that an earlier run has loaded, and must not block.
        """
        return False

    def outdated(self, resources: ScopedResourceContext) -> bool:
        """True to load the section again in the middle of a run, because what it has loaded is out of date.

        It is called for loaded sections before each model call, and must not block.
        """
        return False

    def stored(self) -> LateContent | None:
        """The content that `load` is expected to add, if known beforehand; prices, overrides and search rely on it.

        `load` may then return None, meaning that everything is as expected.
        """
        return None

    def is_enabled(self, params: ParamsT_co | None = None, *, session: Session | None = None) -> bool:
        """True if the section exists at all for these params."""
        return self._enabled is None or bool(self._enabled(params, session))

    @property
    def rule_needs_text(self) -> bool:
        """True if `open_when=` depends on the user's words."""
        return self._open_when is not None and "text" in self._open_when.keywords

    def opens(self, params: ParamsT_co | None = None, *, session: Session | None = None, text: str = "") -> bool:
        """True if the section's rule opens it now; `text` has the user's words."""
        return self._open_when is not None and bool(self._open_when(params, session, text))

    def effective_visibility(
        self,
        override: SectionVisibility | None = None,
        params: ParamsT_co | None = None,
        *,
        session: Session | None = None,
        path: SectionPath | None = None,
    ) -> SectionVisibility:
        """The session's override, else the caller's, else the declared visibility."""
        if session is not None and path is not None:
            state = session[VisibilityOverrides].latest()
            chosen = None if state is None else with_ancestors(state.overrides).get(path)
            if chosen is not None:
                return chosen
        if override is not None:
            return override
        return self.declared_visibility(params, session=session)

    def declared_visibility(
        self, params: ParamsT_co | None = None, *, session: Session | None = None
    ) -> SectionVisibility:
        """The declared constant, or what the selector returns."""
        chosen: Any = self.visibility if self._visibility is None else self._visibility(params, session)
        return cast(SectionVisibility, chosen)

    def render(
        self,
        params: ParamsT_co | None = None,
        *,
        depth: int = 0,
        number: str = "",
        path: SectionPath = (),
        visibility: SectionVisibility = SectionVisibility.FULL,
    ) -> str:
        """This section alone as markdown: heading and body, or heading and summary."""
        if visibility is SectionVisibility.SUMMARY:
            text = self.summary_text()
            if text is None:
                raise missing_summary(".".join(path) or self.key)
            body = text.fill(params, self.key)
        else:
            body = self.render_body(params)
        head = heading(self.title, depth, number) if self.heading else ""
        return "\n\n".join(part for part in (head, body) if part)

    def with_content(self, tools: tuple[Tool[Any, Any], ...], children: tuple[Section[Any], ...]) -> Self:
        """The section with other tools and children."""
        if tools == self._tools and children == self.children:
            return self
        other = copy.copy(self)
        other._tools, other.children = tools, children
        return other

    def clone(self, *, session: Session | None = None, bus: Any = None) -> Self:
        """An independent copy: children are cloned, other attributes are deep-copied, and tools and selectors that
        are methods of this section become methods of the copy.

        An attribute that holds a session or a bus holds the one passed here in the copy. What cannot be copied, or has
        to be closed, as a connection does, is shared; override `clone` where that is wrong.
        """
        return copy.deepcopy(self, {"session": session, "bus": bus})  # type: ignore[dict-item]

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        other = memo[id(self)] = copy.copy(self)
        session, bus = memo.get("session"), memo.get("bus")
        given: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Session):
                given[name] = value if session is None else session
            elif isinstance(value, Bus) or name.strip("_") == "bus":
                given[name] = value if bus is None else bus
        memo.update((id(vars(self)[name]), new) for name, new in given.items() if vars(self)[name] is not None)
        for child in self.children:
            if has_own(child, "clone"):
                memo[id(child)] = made = child.clone(session=session, bus=bus)
                made._tools = copy.deepcopy(made._tools, memo)
        given["children"] = copy.deepcopy(self.children, memo)
        vars(other).update({name: _copied(value, memo) for name, value in vars(self).items() if name not in given})
        vars(other).update(given)
        other._read_selectors()
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def _validate(self) -> None:
        if not has_own(self, "render", "render_body"):
            raise PromptValidationError(
                f"{type(self).__name__} has no text; implement render_body(params), or render(params, ...) to write "
                "the heading too."
            )
        if not isinstance(self.heading, bool):
            raise PromptValidationError(
                f"Section '{self.key}': heading must be True or False, got {self.heading!r}; its words are title=."
            )
        if self.role not in get_args(SectionRole):
            raise PromptValidationError(f"Section '{self.key}': role must be 'system' or 'user', got {self.role!r}.")
        check_tools(self.key, self._tools, self._hosted_tools, "=")
        if self.default_params is not None and (
            self._params_type is None or not serde.is_instance(self.default_params, self._params_type)
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
        if (summary := Section.summary_text(self)) is not None:
            check_placeholders(self, summary, "summary")

    def _read_selectors(self) -> None:
        rule, enabled = self.open_when, self.enabled
        self._open_when = None if rule is None else self._selector("open_when", rule, ("session", "text"))
        self._enabled = None if enabled is None else self._selector("enabled", enabled)
        constant = isinstance(self.visibility, SectionVisibility)
        self._visibility = None if constant else self._selector("visibility", self.visibility)

    def _selector(self, what: str, given: Any, keywords: tuple[str, ...] = ("session",)) -> _Call:
        if not callable(given):
            expected = "a SectionVisibility or a callable" if what == "visibility" else "a callable"
            raise PromptValidationError(f"Section '{self.key}': {what} must be {expected}, got {given!r}.")
        if inspect.iscoroutinefunction(given):
            raise PromptValidationError(f"Section '{self.key}': {what}= must be an ordinary function, not async.")
        return _Call.of(given, f"Section '{self.key}': {what}=", keywords)


def has_own(section: Section[Any], *methods: str) -> bool:
    """True if the section's class overrides one of these methods."""
    return any(getattr(type(section), name) is not getattr(Section, name) for name in methods)


def check_placeholders(section: Section[Any], text: TemplateText, where: str) -> None:
    """Every placeholder must be a field of the section's params, and its format must fit the type of that field."""
    wanted = tuple(dict.fromkeys(text.names))
    if not wanted:
        return
    listed = ", ".join(f"${{{name}}}" for name in wanted)
    if section.params_type is None:
        raise PromptValidationError(
            f"Section '{section.key}': the {where} uses {listed} but the section takes no params; "
            f"write {type(section).__name__}[Params] with a dataclass that has these fields."
        )
    known = {column.name for column in serde.columns(section.params_type)}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        listed = ", ".join(f"${{{name}}}" for name in unknown)
        raise PromptValidationError(
            f"Section '{section.key}': placeholder {listed} in the {where} is not a field of "
            f"{section.params_type.__name__}; it has: {', '.join(sorted(known)) or 'none'}."
        )
    if problem := format_problem(section.params_type, text):
        raise PromptValidationError(f"Section '{section.key}': the {where} has {problem}.")


def format_problem(params_type: type | None, text: TemplateText) -> str:
    """The first placeholder whose format does not fit the type of its field, and why; empty if there is none."""
    for name, spec in zip(text.names, text.formats, strict=True):
        if not spec or params_type is None:
            continue
        try:
            types, _ = serde.field_types(params_type, params_type, frozenset({name}))
        except SerdeError:
            continue  # Its values are known when the section is rendered.
        if problem := _format_problem(types.get(name), spec):
            return f"${{{name}:{spec}}}, a format that does not fit: {problem}"
    return ""


def _format_problem(kind: Any, spec: str) -> str:
    """Why no value of this type can have the format; empty if some can, or if that is not known."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return _format_problem(arguments[0], spec)
    if origin in (Union, UnionType):
        problems = [_format_problem(each, spec) for each in arguments if each is not NoneType]
        return problems[0] if all(problems) else ""
    if origin in (list, tuple):
        items = [each for each in arguments if each is not ...] if _ITEM_FORMAT.fullmatch(spec) else []
        return next(filter(None, (_format_problem(each, spec) for each in items)), "")
    try:
        if origin in _FORMATTED:
            format(origin(), spec)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def heading(title: str, depth: int, number: str) -> str:
    """`## 1. Title`, with one more `#` for each level below the root."""
    return f"{'#' * (depth + 2)} {number + '. ' if number else ''}{title}"


def require_list(whose: str, what: str, given: Any) -> tuple[Any, ...]:
    """The items of a list argument; reject a single item where a list is expected."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise PromptValidationError(f"{whose}: {what}= takes a list, got {given!r}; write {what}=[...].")
    return tuple(given)


def require_sections(whose: str, what: str, given: Any) -> tuple[Section[Any], ...]:
    sections = require_list(whose, what, given)
    for section in sections:
        if not isinstance(section, Section):
            raise PromptValidationError(
                f"{whose}: {what}= must hold Section objects, got {section!r}; "
                "write MarkdownSection(key=, title=, template=)."
            )
    return sections


def check_tools(key: str, tools: Iterable[Any], hosted_tools: Iterable[Any], given_as: str) -> None:
    """Reject what is not a tool; `given_as` is `=` for an argument and `()` for an overridden method."""
    for given, place, kind, other in (
        *((tool, "tools", Tool, HostedTool) for tool in tools),
        *((tool, "hosted_tools", HostedTool, Tool) for tool in hosted_tools),
    ):
        if isinstance(given, kind):
            continue
        what, hint = repr(given), ""
        if isinstance(given, other):
            hint = f"; pass it in {'tools' if other is Tool else 'hosted_tools'}{given_as}"
        elif inspect.isroutine(given):
            what, hint = f"the function {given.__name__}", "; decorate it with @tool"
        article = "a Tool" if kind is Tool else "a HostedTool"
        raise PromptValidationError(f"Section '{key}': {what} in {place}{given_as} is not {article}{hint}.")


def missing_summary(key: str, error: type[Exception] = PromptRenderError) -> Exception:
    return error(f"Section '{key}' has visibility SUMMARY but no summary; pass summary=...")


def _copied(value: Any, memo: dict[Any, Any]) -> Any:
    """A deep copy; what cannot be copied, or has its own lifecycle, is shared."""
    if isinstance(value, MethodType | partial):
        return rebound(value, memo)
    if isinstance(value, Section) or hasattr(value, "close"):
        return memo.get(id(value), value)
    tried = dict(memo)
    try:
        copied = copy.deepcopy(value, tried)
    except Exception:
        return copy.copy(value) if isinstance(value, list | dict | set) else value
    # What the copier keeps alive is listed under the id of its dict, which another object may have from here on.
    kept_alive = tried.pop(id(tried), None)
    memo.update(tried)
    memo.setdefault(id(memo), []).append(kept_alive)
    return copied


@dataclass(frozen=True, slots=True)
class _Call:
    """A selector and the arguments it expects: the params, the keywords it names, both, or nothing."""

    function: Callable[..., Any]
    name: str
    wants_params: bool
    keywords: tuple[str, ...] = ()

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, keywords: tuple[str, ...]) -> _Call:
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:
            return cls(function, name, wants_params=True)
        wants_params = any(
            p.kind is p.VAR_POSITIONAL
            or (p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and (p.default is p.empty or p.name == "params"))
            for p in parameters
            if p.name not in keywords
        )
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = {p.name for p in parameters}
        return cls(function, name, wants_params, tuple(key for key in keywords if takes_any or key in named))

    def __call__(self, params: Any, session: Session | None, text: str = "") -> Any:
        positional = (params,) if self.wants_params else ()
        given = {"session": session, "text": text}
        named = {key: given[key] for key in self.keywords}
        try:
            return self.function(*positional, **named)
        except Exception as error:
            raise PromptRenderError(f"{self.name} raised {type(error).__name__}: {error}") from error

    def __deepcopy__(self, memo: dict[int, Any]) -> _Call:
        return self


@dataclass(frozen=True, slots=True)
class TemplateText:
    """`literals[0] names[0] literals[1] names[1] ... literals[-1]`, ready to be filled.

    `formats` has a format for each name, empty if it has none, and `indents` the space before its column.
    """

    literals: tuple[str, ...]
    names: tuple[str, ...]
    formats: tuple[str, ...] = ()
    indents: tuple[str, ...] = ()

    def fill(self, params: Any, key: str) -> str:
        """The text of the section with this key, filled from its params."""
        parts = [self.literals[0]]
        for name, spec, indent, literal in zip(self.names, self.formats, self.indents, self.literals[1:], strict=True):
            try:
                parts += (placeholder_text(serde.field_value(params, name), spec, indent), literal)
            except Exception as error:
                raise unfilled(key, name, spec, params, error) from error
        return "".join(parts)


def unfilled(key: str, name: str, spec: str, params: Any, error: Exception) -> PromptRenderError:
    placeholder = f"${{{name}:{spec}}}" if spec else f"${{{name}}}"
    return PromptRenderError(
        f"Section '{key}': {placeholder} of {type(params).__name__} cannot be filled in: "
        f"{type(error).__name__}: {error}"
    )


def placeholder_text(value: Any, spec: str = "", indent: str = "") -> str:
    """The value as text: by its own `render`, a list as bullets, an enum by its value unless it has a text of its own.

    `spec` is a format, as in an f-string. For a list, it is one of its items, or else what separates them. `indent`
    stands before all bullets but the first.
    """
    if type(value) in (list, tuple):
        item_spec = spec if _ITEM_FORMAT.fullmatch(spec) else ""
        items = [placeholder_text(item, item_spec) for item in value]
        if spec != item_spec:
            return spec.join(items)
        return "\n".join(f"- {item}".replace("\n", "\n  ") for item in items).replace("\n", f"\n{indent}")
    if isinstance(value, Enum) and type(value).__str__ is Enum.__str__:
        value = value.value
    elif callable(getattr(type(value), "render", None)):
        value = value.render()
    return format(value, spec) if spec else str(value)


def split_text(source: str, *, where: str, strict: bool = True, literal: bool = False) -> TemplateText:
    """Split dedented, stripped `source`; a stray `$` is an error if strict, else a literal.

    If `literal`, `$` has no meaning and the text is one literal.
    """
    if not isinstance(source, str):
        raise PromptValidationError(f"{where} must be text, got {source!r}.")
    text = dedent(source).strip()
    if literal:
        return TemplateText((text,), ())
    literals: list[str] = []
    names: list[str] = []
    formats: list[str] = []
    piece, position = "", 0
    for match in _DOLLAR.finditer(text):
        dollar = match.start()
        piece, position = piece + text[position:dollar], match.end()
        if name := match["named"] or match["braced"]:
            names.append(name)
            formats.append(match["format"] or "")
            literals.append(piece)
            piece = ""
        elif match["escaped"] or not strict:
            piece += "$"
        else:
            line = text.count("\n", 0, dollar) + 1
            raise PromptValidationError(
                f"{where}: the '$' in {text[dollar : dollar + 12]!r} (line {line}) does not start a placeholder, "
                "which is '${name}' or '${name:format}' with the plain name of a field, and a width of at most 999; "
                "write '$$' for a dollar sign."
            )
    indents = tuple(_indents(literals))
    return TemplateText((*literals, piece + text[position:]), tuple(names), tuple(formats), indents)


def _indents(literals: Iterable[str]) -> Iterator[str]:
    """The space before the column of the placeholder after each of these texts.

    After another placeholder, whose width is not known, it is the space that the line begins with.
    """
    start = ""
    for number, literal in enumerate(literals):
        _, newline, line = literal.rpartition("\n")
        if newline or number == 0:
            start = line[: len(line) - len(line.lstrip())]
            yield _VISIBLE.sub(" ", line)
        else:
            yield start
