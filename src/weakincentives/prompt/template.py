"""A prompt's blueprint: sections, resources, disclosure strategy and output type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic

from weakincentives._generics import OutputT, Specialized, has_type_variables, inherited_type_args, type_args
from weakincentives.errors import PromptValidationError
from weakincentives.limits import Deadline
from weakincentives.prompt.disclosure import Disclosure, ReadSections
from weakincentives.prompt.disclosure.collapse import COLLAPSE_SECTION
from weakincentives.prompt.disclosure.strategy import RESERVED_NAMES
from weakincentives.prompt.fitting import fit
from weakincentives.prompt.markdown import check_placeholders
from weakincentives.prompt.outline import Outline
from weakincentives.prompt.output import StructuredOutputConfig, structured_output
from weakincentives.prompt.overrides import PromptDescriptor, PromptOverride, PromptOverridesStore, apply_override
from weakincentives.prompt.params import Params, check_params
from weakincentives.prompt.rendered import RenderedPrompt
from weakincentives.prompt.section import Section, several
from weakincentives.prompt.shape import Overrides, Shape, declared_shape, session_shape
from weakincentives.prompt.text import split_text
from weakincentives.prompt.tokens import Tokenizer, default_tokenizer
from weakincentives.prompt.tool import Tool
from weakincentives.prompt.view import View, split_tools
from weakincentives.resources import ResourceRegistry
from weakincentives.session import Session


class PromptTemplate(Generic[OutputT]):
    """Declare once, bind and render often: `PromptTemplate[Out](ns=, key=, sections=[...])`.

    `token_budget` opens, at render, those summarized sections that fit; `show_prices` says under each summary what
    opening it costs; `allow_collapse` offers `collapse_section`.
    """

    _output_type: ClassVar[Any] = None

    def __init__(
        self,
        *,
        ns: str,
        key: str,
        name: str | None = None,
        sections: Iterable[Section[Any]] = (),
        resources: ResourceRegistry | Mapping[type, Any] | None = None,
        disclosure: Disclosure | None = None,
        allow_extra_keys: bool = False,
        allow_collapse: bool = False,
        token_budget: int | None = None,
        show_prices: bool = False,
        tokenizer: Tokenizer | None = None,
        output_type: Any = None,
    ) -> None:
        for what, value in (("ns", ns), ("key", key)):
            if not isinstance(value, str) or not value.strip():
                raise PromptValidationError(f"A prompt needs a non-empty {what}; got {value!r}.")
        if token_budget is not None and token_budget < 1:
            raise PromptValidationError(f"Prompt '{key}': token_budget must be positive, got {token_budget}.")
        self.ns = ns.strip()
        self.key = key.strip()
        self.name = name or self.key
        self.sections: tuple[Section[Any], ...] = several(f"Prompt '{key}'", "sections", sections)
        for section in self.sections:
            if not isinstance(section, Section):
                raise PromptValidationError(
                    f"Prompt '{key}': {section!r} in sections= is not a Section; write MarkdownSection(key=, title=, "
                    "template=)."
                )
        self.resources = ResourceRegistry().merge(resources)
        self.disclosure: Disclosure = ReadSections() if disclosure is None else _checked_disclosure(key, disclosure)
        self.allow_collapse = allow_collapse
        self.token_budget = token_budget
        self.show_prices = show_prices
        self.tokenizer = tokenizer
        declared = self._output_type if output_type is None else output_type
        self.structured_output: StructuredOutputConfig | None = (
            None if declared is None else structured_output(declared, allow_extra_keys)
        )
        self.outline = Outline(self.sections, reserved=RESERVED_NAMES)
        self._overridden: tuple[PromptOverride | None, Outline] = (None, self.outline)

    def __class_getitem__(cls, item: Any) -> Any:
        args = type_args(item)
        if has_type_variables(args):
            return super().__class_getitem__(item)  # type: ignore[misc]
        return Specialized(cls, args, lambda **named: cls(output_type=output_argument(args), **named))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        args = inherited_type_args(cls)
        if args is not None:
            cls._output_type = output_argument(args)

    def render(
        self, *params: Any, visibility_overrides: Overrides | None = None, session: Session | None = None
    ) -> RenderedPrompt[OutputT]:
        """Bind and render in one go."""
        check_params(params)
        bound = {type(value): value for value in params}
        if len(bound) < len(params):
            raise duplicate_params(params)
        base = self.base_shape(self.outline, bound, session, visibility_overrides or {})
        return self.rendered(self.view(self.outline, bound, base, session))

    def base_shape(
        self, outline: Outline, bound: dict[type, Any], session: Session | None, overrides: Overrides
    ) -> Shape:
        """What is shown before the session has its say: declared, selected, passed by the caller, or within budget."""
        params = Params(outline, bound)
        base = declared_shape(outline, params, session, overrides)
        if self.token_budget is None:
            return base
        fitted = fit(self.view(outline, bound, base, session), self.token_budget, self.counter).shape
        for index, decider in fitted.decided.items():
            if decider == "budget":
                base = base.with_state(outline.nodes[index], fitted.states[index], decider)
        return base

    def view(self, outline: Outline, bound: dict[type, Any], base: Shape, session: Session | None) -> View:
        """The prompt of this moment: the base with the session's overrides on top."""
        return View(
            outline,
            Params(outline, bound),
            session_shape(outline, base, session),
            self.disclosure,
            allow_collapse=self.allow_collapse,
            price_tokenizer=self.counter if self.show_prices else None,
        )

    def rendered(self, view: View, deadline: Deadline | None = None) -> RenderedPrompt[OutputT]:
        pieces = view.pieces()
        tools, hosted_tools = split_tools(view.offered())
        return RenderedPrompt(
            text="".join(pieces),
            tools=tools,
            hosted_tools=hosted_tools,
            structured_output=self.structured_output,
            deadline=deadline,
            prompt_name=self.name,
            view=view,
            pieces=pieces,
            make_descriptor=lambda: self.descriptor,
        )

    def builtin_tools(self) -> tuple[Tool[Any, Any], ...]:
        """Every disclosure tool that this template may ever offer."""
        tools = self.disclosure.tools(with_tools=True, content_only=True)
        return (*tools, COLLAPSE_SECTION) if self.allow_collapse else tools

    def overridden(self, store: PromptOverridesStore, tag: str) -> Outline:
        """The outline with the store's override for this template applied; what is stale is reported, not applied."""
        override = store.resolve(self.descriptor, tag)
        if override is None:
            return self.outline
        if override != self._overridden[0]:
            self._overridden = (override, self._override(override))
        return self._overridden[1]

    def _override(self, override: PromptOverride) -> Outline:
        applied = apply_override(self.descriptor, override)
        bodies = {}
        for path, body in applied.section_bodies.items():
            section = self.outline.by_path[path].section
            bodies[path] = split_text(body, where=f"Override of section '{'.'.join(path)}'")
            check_placeholders(section, bodies[path].names, "override")
        tools = {
            tool.name: tool.with_descriptions(words.description, words.param_descriptions)
            for node in self.outline.nodes
            for tool in node.tools
            if (words := applied.tools.get(tool.name)) is not None
        }
        return Outline(self.sections, reserved=RESERVED_NAMES, bodies=bodies, tools=tools)

    @property
    def counter(self) -> Tokenizer:
        """The template's tokenizer, or the offline default."""
        return self.tokenizer or default_tokenizer()

    @cached_property
    def descriptor(self) -> PromptDescriptor:
        """Content hashes of every section and tool, by which overrides know what they were made for."""
        return PromptDescriptor.of(self.ns, self.key, self.outline)

    def __repr__(self) -> str:
        return f"PromptTemplate({self.ns!r}, {self.key!r})"


def _checked_disclosure(key: str, given: Disclosure) -> Disclosure:
    if isinstance(given, type):
        name = given.__name__
        raise PromptValidationError(f"Prompt '{key}': disclosure={name} is a class; write disclosure={name}().")
    for method in ("tools", "suffix"):
        if not callable(getattr(given, method, None)):
            raise PromptValidationError(
                f"Prompt '{key}': disclosure={given!r} is no strategy, it has no {method}(); pass ReadSections(), "
                "OpenOrRead(), OpenToFiles(), OpenAndHalt() or one of your own."
            )
    return given


def duplicate_params(params: Iterable[Any]) -> PromptValidationError:
    names = [type(value).__name__ for value in params]
    twice = next(name for name in names if names.count(name) > 1)
    return PromptValidationError(f"{twice} was bound twice in one call; pass one instance of each params type.")


def output_argument(args: tuple[Any, ...]) -> Any:
    if len(args) != 1:
        raise PromptValidationError(f"A prompt has one output type, got {len(args)}.")
    return None if args[0] is type(None) else args[0]
