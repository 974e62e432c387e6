"""Prompt templates, and what is bound to one for a run: both are values that never change."""

from __future__ import annotations

import copy
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import PurePath
from types import FrameType, MappingProxyType
from typing import Any, Generic, NoReturn, TypedDict, Unpack, get_args
from weakref import WeakKeyDictionary

from weakincentives import serde
from weakincentives._base.display import Displayed, Shown, tree
from weakincentives._base.generics import OutputT, Specializable
from weakincentives._base.latest import Latest
from weakincentives.errors import PromptError, PromptRenderError, PromptValidationError
from weakincentives.limits import Deadline
from weakincentives.prompt.disclosure.strategies import BUILT_IN_TOOLS, COLLAPSE_SECTION, RESERVED_NAMES, ReadSections
from weakincentives.prompt.guards import (
    Guard,
    Hook,
    by_hook,
    check_hosted_names,
    check_tool_names,
    require_guards,
)
from weakincentives.prompt.outline import Node, Outline, same_tool
from weakincentives.prompt.output import StructuredOutputConfig, structured_output
from weakincentives.prompt.overrides import PromptDescriptor, PromptOverride, PromptOverridesStore, apply_override
from weakincentives.prompt.presentation import LoadedSections, Presentation
from weakincentives.prompt.section import LateContent, Section, require_sections
from weakincentives.prompt.tokens import Tokenizer
from weakincentives.prompt.tools import AnyTool, HostedTool, Tool, check_timeout
from weakincentives.prompt.view import Disclosure, RenderedPrompt, Suffix, View, ViewOptions
from weakincentives.prompt.visibility import PACKED, Overrides, SectionPath, inside, visible
from weakincentives.resources import ResourceRegistry
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.prompt")


class HasOutput(Specializable):
    """A class with an output type as its argument."""

    _output_type: Any = None
    _type_names = ("output_type",)


class TemplateOptions(TypedDict, total=False):
    """The options of a template that `with_` changes; `output` is the type of the answer, None for plain text."""

    name: str
    resources: ResourceRegistry | Mapping[type, Any] | None
    disclosure: Disclosure | None
    output: Any
    allow_extra_keys: bool
    allow_collapse: bool
    token_budget: int | None
    show_prices: bool
    tokenizer: Tokenizer | None
    tool_timeout: float | None
    guards: Iterable[Guard]


class PromptTemplate(Displayed, HasOutput, Generic[OutputT]):
    """Declare once, bind and render often: `PromptTemplate[Out](ns=, key=, sections=[...])`.

    `token_budget` opens the summarized sections that fit it when the prompt is rendered; `show_prices` adds the cost of
    opening to each summary; `allow_collapse` offers `collapse_section`. `tool_timeout` is the timeout, in seconds, of
    every tool that has none of its own. `guards` hold in every run. A template never changes; `with_` makes a variant.
    """

    ns: str
    key: str
    name: str
    module: str
    """The module whose code made the template, by the name under which it can be imported."""
    sections: tuple[Section[Any], ...]
    resources: ResourceRegistry
    disclosure: Disclosure
    output_type: Any
    allow_extra_keys: bool
    allow_collapse: bool
    token_budget: int | None
    show_prices: bool
    tokenizer: Tokenizer | None
    tool_timeout: float | None
    guards: tuple[Guard, ...]
    outline: Outline
    """The tree of the sections as they were declared, with late content that is known before it is loaded."""
    _current: Latest[tuple[AnyTool, ...], Outline]
    _overridden: Latest[tuple[Outline, PromptOverride], Outline]

    def __init__(
        self,
        *,
        ns: str,  #: a namespace, such as the team's name
        key: str,  #: the prompt's key in its namespace
        name: str | None = None,  #: a name for people; by default the key
        sections: Iterable[Section[Any]] = (),  #: the root sections, in order
        resources: ResourceRegistry | Mapping[type, Any] | None = None,  #: bindings for tools, or instances by type
        disclosure: Disclosure | None = None,  #: how sections are opened; by default `ReadSections()`
        allow_extra_keys: bool = False,  #: ignore unknown keys of a typed answer
        allow_collapse: bool = False,  #: offer `collapse_section`, too
        token_budget: int | None = None,  #: open what fits when the prompt is rendered
        show_prices: bool = False,  #: add the cost of opening to each summary
        tokenizer: Tokenizer | None = None,  #: counts tokens for `token_budget` and prices
        tool_timeout: float | None = None,
        guards: Iterable[Guard] = (),
        output_type: Any = None,  #: as in `PromptTemplate[Out]`
    ) -> None:
        for what, value in (("ns", ns), ("key", key)):
            if not isinstance(value, str) or not value.strip():
                raise PromptValidationError(f"A prompt needs a non-empty {what}; got {value!r}.")
        key = key.strip()
        options = TemplateOptions(
            name=name or key,
            resources=resources,
            disclosure=disclosure,
            output=self._output_type if output_type is None else output_type,
            allow_extra_keys=allow_extra_keys,
            allow_collapse=allow_collapse,
            token_budget=token_budget,
            show_prices=show_prices,
            tokenizer=tokenizer,
            tool_timeout=tool_timeout,
            guards=guards,
        )
        self._declare(
            {
                "ns": ns.strip(),
                "key": key,
                "module": _callers_module(),
                "sections": require_sections(f"Prompt '{key}'", "sections", sections),
                **_checked_options(key, options),
            }
        )

    def _declare(self, facts: Mapping[str, Any]) -> None:
        """Take the facts of the template; those that depend on others are computed from them."""
        vars(self).update(facts, _current=Latest(), _overridden=Latest())
        if "outline" not in facts:
            outline = Outline(self.sections, reserved=self._reserved_names)
            for node in outline.late:
                expected_content = node.section.stored()
                if expected_content is not None:
                    outline = outline.with_late(node.path, expected_content)
            vars(self)["outline"] = outline
        self._check(self.outline)
        # The output type is checked now, and not in the first run.
        assert self.structured_output is None or self.output_type is not None

    def _variant(self, **changes: Any) -> PromptTemplate[Any]:
        """Another template with these facts in place of this one's; nothing that was computed is taken over."""
        other = object.__new__(type(self))
        facts = {name: value for name, value in vars(self).items() if name not in _computed_names(type(self))}
        other._declare(facts | changes)
        return other

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            f"Prompt template '{self.key}' cannot be changed, got a new value for '{name}'; make a variant: "
            "template.with_(disclosure=..., output=...)"
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Prompt template '{self.key}' cannot be changed; '{name}' cannot be deleted")

    def with_(self, **options: Unpack[TemplateOptions]) -> PromptTemplate[Any]:
        """The template with other options, such as `with_(disclosure=OpenOrRead(), output=Answer)`."""
        unknown = options.keys() - TemplateOptions.__annotations__.keys()
        if unknown:
            known_options = ", ".join(TemplateOptions.__annotations__)
            raise TypeError(f"with_() got an unexpected keyword argument '{min(unknown)}'; known: {known_options}")
        changes = _checked_options(self.key, options)
        if changes.keys() & {"disclosure", "allow_collapse"}:
            # A new outline: this one has cached layouts and tools, which depend on the strategy.
            disclosure = changes.get("disclosure", self.disclosure)
            allow_collapse = changes.get("allow_collapse", self.allow_collapse)
            tools = _builtin_tools(disclosure, allow_collapse=allow_collapse)
            changes["outline"] = self.outline.reserving(_reserved(tools))
        return self._variant(**changes)

    def without(self, paths: Collection[SectionPath]) -> PromptTemplate[OutputT]:
        """The template without these sections and their descendants."""
        removed = set(paths)
        unknown = [path for path in removed if path not in self.outline.by_path]
        if unknown:
            raise PromptValidationError(f"Prompt '{self.key}' has no section '{'.'.join(unknown[0])}' to leave out.")
        if not removed:
            return self
        sections = _without(self.sections, removed, ())
        outline = Outline(sections, reserved=self._reserved_names)
        for node in self.outline.late:
            is_loaded = node.path not in self.outline.unloaded
            if is_loaded and not any(inside(node.path, path) for path in removed):
                outline = outline.with_late(node.path, self.outline.brought(node.path))
        return self._variant(sections=sections, outline=outline)

    def with_late(self, path: SectionPath, content: LateContent) -> PromptTemplate[OutputT]:
        """The template with what a section will load, so that it is known before."""
        return self._variant(outline=self.outline.with_late(path, content))

    @cached_property
    def structured_output(self) -> StructuredOutputConfig | None:
        """The declared type of the answer; None for plain text."""
        return None if self.output_type is None else structured_output(self.output_type, self.allow_extra_keys)

    @cached_property
    def view_options(self) -> ViewOptions:
        """How the sections are shown."""
        collapse_tool = COLLAPSE_SECTION if self.allow_collapse else None
        return ViewOptions(self.disclosure, self.tokenizer, collapse_tool, self.show_prices, self.token_budget)

    @cached_property
    def guards_by_hook(self) -> Mapping[Hook, tuple[Guard, ...]]:
        """The template's guards by the hooks that they have."""
        return by_hook(self.guards)

    @property
    def descriptor(self) -> PromptDescriptor:
        """Content hashes of every section and of the tools it has now, against which overrides are checked."""
        return self.describe(self.current_outline())

    @property
    def counter(self) -> Tokenizer:
        """The template's tokenizer, or the offline default."""
        return self.view_options.counter

    def builtin_tools(self) -> tuple[Tool[Any, Any], ...]:
        """Every disclosure tool that this template may ever offer."""
        return _builtin_tools(self.disclosure, allow_collapse=self.allow_collapse)

    @property
    def _reserved_names(self) -> frozenset[str]:
        return _reserved(self.builtin_tools())

    def describe(self, outline: Outline) -> PromptDescriptor:
        """The content hashes of an outline of this template."""
        return outline.cached(("descriptor",), lambda: PromptDescriptor.of(self.ns, self.key, outline))

    def current_outline(self) -> Outline:
        """The outline with the tools that sections with their own `tools()` or `hosted_tools()` return now."""
        tools = self.outline.ask_for_tools()
        if tools == self.outline.asked_tools:
            return self.outline
        return self._current.of(tools, self._outline_with_current_tools)

    def _outline_with_current_tools(self) -> Outline:
        outline = self.outline.rebuilt()
        self._check(outline)
        return outline

    def overridden(self, outline: Outline, store: PromptOverridesStore, tag: str) -> Outline:
        """An outline of this template with the store's override applied; a stale one is reported and not applied."""
        descriptor = self.describe(outline)
        override = store.resolve(descriptor, tag)
        if override is None:
            return outline
        return self._overridden.of((outline, override), lambda: apply_override(outline, descriptor, override))

    def _check(self, outline: Outline) -> None:
        """Raise for a tool whose changes cannot be captured, and a guard that names a tool which nothing can have."""
        check_captured(changing_tools(outline), lambda: resources_of(outline, self.resources))
        section_guards = (guard for node in outline.guarded for guard in node.section.guards)
        guards = (*self.guards, *section_guards)
        if not guards:
            return
        hosted_tools = [tool for node in outline.nodes for tool in node.hosted_tools]
        check_hosted_names(f"Prompt '{self.key}'", guards, hosted_tools)
        if not outline.may_load:
            names = outline.tool_names | BUILT_IN_TOOLS
            check_tool_names(f"Prompt '{self.key}'", guards, names, names | outline.guarded_names)

    def render(
        self, *params: Any, visibility_overrides: Overrides | None = None, session: Session | None = None
    ) -> RenderedPrompt[OutputT]:
        """Bind and render in one go."""
        prompt = BoundPrompt(self).with_params(params)
        return prompt.render(session=session, visibility_overrides=visibility_overrides)

    def params_type_of(self, value: Any) -> type:
        """The type of params to bind; for a dict, the TypedDict with its keys.

        Warns once of params that no section uses. That is legal: tools may read `prompt.params`.
        """
        params_types = self.outline.params_types
        if type(value) is dict:
            fitting = [params_type for params_type in params_types if serde.is_instance(value, params_type)]
            if len(fitting) != 1:
                names = " and ".join(params_type.__name__ for params_type in fitting) or "none"
                raise PromptValidationError(
                    f"A dict is bound as the one TypedDict that has its keys ({', '.join(value)}); that is {names}."
                )
            return fitting[0]
        kind = type(value)
        if isinstance(value, type) or not serde.is_record(kind):
            value_text = repr(value)
            if isinstance(value, type):
                value_text = f"the class {value.__name__}; write {value.__name__}(...)"
            raise PromptValidationError(
                f"Params must be instances of a dataclass or another class with fields, got {value_text}."
            )
        if kind not in params_types and not self.outline.late:
            self._warn_of_unused(kind)
        return kind

    def _warn_of_unused(self, kind: type) -> None:
        reported = _reported_types.setdefault(self, set())
        if kind not in reported:
            reported.add(kind)
            names = ", ".join(params_type.__name__ for params_type in self.outline.params_types) or "none"
            message = "Prompt '%s': params of type %s are bound, but no section uses them; sections use: %s."
            logger.warning(message, self.key, kind.__name__, names)

    def __repr__(self) -> str:
        return f"PromptTemplate({self.ns!r}, {self.key!r})"

    def _display(self) -> Iterator[Shown]:
        yield from BoundPrompt(self)._display()


@dataclass(frozen=True, eq=False, repr=False)
class BoundPrompt(Displayed, Generic[OutputT]):
    """A prompt as one run takes it: a template with the params, resources and stored override bound to it.

    It never changes: what is bound to its `Prompt` later is for later runs. The tools of its sections, and the override
    that applies, are those of the first time that its outline is used.

    The bound params are `params_by_type`.
    """

    template: PromptTemplate[OutputT]  #: the template
    params_by_type: Mapping[type, Any] = field(default_factory=lambda: MappingProxyType({}))
    bound_resources: ResourceRegistry = field(default_factory=ResourceRegistry)  #: the bound ones
    overrides_store: PromptOverridesStore | None = None  #: the store of changed texts
    requested_tag: str = "latest"  #: the tag to look up in the store
    arm: str = ""  #: the name of an experiment, and the arm of it that was assigned
    bound_twice: frozenset[type] = frozenset()  #: types bound more than once in one call

    @property
    def ns(self) -> str:
        return self.template.ns

    @property
    def key(self) -> str:
        return self.template.key

    @property
    def name(self) -> str:
        return self.template.name

    @property
    def params(self) -> tuple[Any, ...]:
        """The bound params, in the order of binding."""
        return tuple(self.params_by_type.values())

    def bound(self) -> BoundPrompt[OutputT]:
        """This prompt: it is what a run takes."""
        return self

    @cached_property
    def params_digest(self) -> str:
        """A digest of the bound params, by which a session recognizes a run that is to be restarted."""
        return digest_of(self.params)

    @cached_property
    def declared_outline(self) -> Outline:
        """The template's tree, with the tools that its sections have now."""
        return self.template.current_outline()

    @cached_property
    def outline(self) -> Outline:
        """The template's tree, with the stored override applied."""
        if self.overrides_store is None:
            return self.declared_outline
        return self.template.overridden(self.declared_outline, self.overrides_store, self.requested_tag)

    @property
    def overrides_tag(self) -> str:
        """The tag of the stored override that is applied; empty if there is none."""
        return "" if self.outline is self.declared_outline else self.requested_tag

    def with_params(self, params: Iterable[Any], *, only: bool = False) -> BoundPrompt[OutputT]:
        """The prompt with these params, in place of those of the same types; `only` with these."""
        params = tuple(params)
        types = [self.template.params_type_of(value) for value in params]
        repeated = {kind for kind, count in Counter(types).items() if count > 1}
        before = {} if only else self.params_by_type
        bound_twice = frozenset() if only else self.bound_twice
        return replace(
            self,
            params_by_type=MappingProxyType({**before, **dict(zip(types, params, strict=True))}),
            bound_twice=bound_twice.difference(types) | repeated,
        )

    def with_resources(self, resources: ResourceRegistry) -> BoundPrompt[OutputT]:
        """The prompt with more bound resources; they take precedence over those that are bound."""
        bound = replace(self, bound_resources=self.bound_resources.merge(resources))
        check_captured(changing_tools(self.template.outline), bound.collect_resources)
        return bound

    def with_template(self, template: PromptTemplate[Any]) -> BoundPrompt[Any]:
        """The same bound to a variant of the template."""
        return replace(self, template=template)

    def collect_resources(self) -> ResourceRegistry:
        """Those of the template, of every section depth-first, and those that are bound; later ones win."""
        registry = resources_of(self.template.outline, self.template.resources)
        return registry.merge(self.bound_resources)

    def present(
        self,
        session: Session | None = None,
        loaded: LoadedSections | None = None,
        *,
        listed: Callable[[], Iterable[SectionPath]] = tuple,
    ) -> Presentation:
        """The prompt as a run shows it; `loaded` is what its sections have loaded for the owner of the run.

        `listed` returns the sections whose summary the model has.
        """
        for kind in self.bound_twice:
            raise PromptValidationError(
                f"{kind.__name__} was bound twice in one call; pass one instance of each params type."
            )
        return Presentation(
            self.outline,
            self.params_by_type,
            self.template.view_options,
            session,
            content=loaded,
            listed=listed,
        )

    def view(self, session: Session | None = None) -> View:
        """The sections shown and the tools offered now; a tool's `context.view` also knows what its run began with."""
        return self.present(session).view()

    def render(
        self,
        *,
        session: Session | None = None,
        visibility_overrides: Overrides | None = None,
        deadline: Deadline | None = None,
    ) -> RenderedPrompt[OutputT]:
        """Text and tools as the model would see them now."""
        presentation = self.present(session)
        presentation.begin(visibility_overrides)
        view = presentation.view()
        rendered = self.rendered(view, deadline)
        for node, tool, owner in view.skipped():
            message = "Skipping duplicate tool '%s' of section '%s': section '%s' has it already."
            fields = {"section_key": node.key, "tool_name": tool.name}
            logger.warning(message, tool.name, node.key, owner.key, extra=fields)
        return rendered

    def rendered(self, view: View, deadline: Deadline | None = None) -> RenderedPrompt[OutputT]:
        """The text and tools of a view."""
        # Params that an enabled section needs must be bound, whether it is shown or not.
        for source in view.outline.cached(("sources", view.seen), lambda: {node.source for node in view.existing()}):
            view.params[source]
        pieces = view.pieces()
        offered, skipped = view.tools
        for node, tool, owner in skipped:
            if not view.opened_at(node):
                raise PromptRenderError(same_tool(owner, node, tool.name))
        tools = [tool for _, tool in offered]
        return RenderedPrompt(
            text="".join(pieces),
            tools=tuple([tool for tool in tools if isinstance(tool, Tool)]),
            hosted_tools=tuple([tool for tool in tools if isinstance(tool, HostedTool)]),
            structured_output=self.template.structured_output,
            deadline=deadline,
            prompt_name=self.name,
            view=view,
            pieces=pieces,
            make_descriptor=lambda: self.template.describe(self.declared_outline),
        )

    def __repr__(self) -> str:
        return f"BoundPrompt({self.ns!r}, {self.key!r})"

    def _display(self) -> Iterator[Shown]:
        template = self.template
        params = ", ".join(params_type.__name__ for params_type in template.outline.params_types)
        params_words = f", params {params}" if params else ""
        output = "" if template.structured_output is None else f", output {template.structured_output.name}"
        yield f"Prompt {self.ns}/{self.key}{params_words}{output}"
        try:
            yield from self.render()._display()
        except PromptError as error:
            yield f"It cannot be rendered yet: {error}"
            yield tree(self._declared_rows())
        if template.module:
            yield f"In the playground: wink play {template.module}:VARIABLE"

    def _declared_rows(self) -> Iterator[tuple[Node, str, str, int, int]]:
        """The sections as they are declared."""
        outline = self.declared_outline
        descriptions = self.template.describe(outline).sections
        visibility = visible(outline.base, outline.parents)
        for node in outline.nodes:
            tokens = self.template.counter.count(descriptions[node.path].source or "")
            yield node, PACKED[visibility[node.index]].value, "declared", 0, tokens


def resources_of(outline: Outline, registry: ResourceRegistry) -> ResourceRegistry:
    """These resources with those of every section, depth-first; later ones win."""
    for node in outline.nodes:
        registry = registry.merge(node.section.resources())
    return registry


def changing_tools(outline: Outline) -> list[Tool[Any, Any]]:
    """The tools that declare what they may change."""
    tools: list[Tool[Any, Any]] = []
    for node in outline.nodes:
        tools.extend(tool for tool in node.tools if tool.changes)
    return tools


def check_captured(tools: Iterable[Tool[Any, Any]], bound: Callable[[], ResourceRegistry]) -> None:
    """Raise for a tool that declares changes of a resource which, as it is bound, has no snapshots."""
    registry: ResourceRegistry | None = None
    for tool in tools:
        registry = registry or bound()
        for protocol in tool.changes or ():
            binding = registry.bindings.get(protocol)
            problem = binding.capture_problem if binding is not None else ""
            if problem:
                raise PromptValidationError(
                    f"Tool '{tool.name}': changes= names {protocol.__qualname__}, whose changes cannot "
                    f"be captured: {problem}. Use approval='call' for a tool that acts on it."
                )


def digest_of(params: tuple[Any, ...]) -> str:
    """A digest of params as they are printed."""
    return blake2b(repr(params).encode("utf-8", "replace"), digest_size=8).hexdigest()


_reported_types: WeakKeyDictionary[PromptTemplate[Any], set[type]] = WeakKeyDictionary()
"""The types of params that no section of a template uses, and that were reported."""


def _computed_names(kind: type) -> frozenset[str]:
    """The attributes of a class that are computed from others and cached."""
    names: set[str] = set()
    for base in kind.__mro__:
        names.update(name for name, value in vars(base).items() if isinstance(value, cached_property))
    return frozenset(names)


def _checked_options(key: str, options: TemplateOptions) -> dict[str, Any]:
    """The options of the prompt with this key as facts of its template; raises for one that is not possible."""
    facts: dict[str, Any] = {**options}
    if "output" in options:
        facts["output_type"] = facts.pop("output")
    if "resources" in options:
        facts["resources"] = ResourceRegistry().merge(options["resources"])
    if "disclosure" in options:
        facts["disclosure"] = _checked_disclosure(key, options["disclosure"])
    if "guards" in options:
        facts["guards"] = require_guards(f"Prompt '{key}'", options["guards"])
    if "tool_timeout" in options:
        check_timeout(f"Prompt '{key}': tool_timeout", options["tool_timeout"])
    token_budget = options.get("token_budget")
    if token_budget is not None and token_budget < 1:
        raise PromptValidationError(f"Prompt '{key}': token_budget must be positive, got {token_budget}.")
    return facts


def _checked_disclosure(key: str, disclosure: Disclosure | None) -> Disclosure:
    if disclosure is None:
        return ReadSections()
    if isinstance(disclosure, type):
        name = disclosure.__name__
        raise PromptValidationError(f"Prompt '{key}': disclosure={name} is a class; write disclosure={name}().")
    if not isinstance(disclosure, Disclosure):
        raise PromptValidationError(
            f"Prompt '{key}': disclosure must be a strategy, got {disclosure!r}; pass ReadSections(), "
            "SearchSections(), OpenOrRead(), OpenToFiles(), OpenAndHalt() or one of your own, derived from Disclosure."
        )
    if disclosure.suffix not in get_args(Suffix):
        hint = ""
        if callable(disclosure.suffix):
            hint = "; a strategy's own text below summaries is its hint()"
        raise PromptValidationError(
            f"Prompt '{key}': {type(disclosure).__name__}.suffix must be 'sentence' or 'key', "
            f"got {disclosure.suffix!r}{hint}."
        )
    return disclosure


def _builtin_tools(disclosure: Disclosure, *, allow_collapse: bool) -> tuple[Tool[Any, Any], ...]:
    tools = disclosure.tools(with_tools=True, content_only=True)
    return (*tools, COLLAPSE_SECTION) if allow_collapse else tools


def _reserved(builtin_tools: Iterable[Tool[Any, Any]]) -> frozenset[str]:
    return RESERVED_NAMES | {tool.name for tool in builtin_tools}


def _without(
    sections: Iterable[Section[Any]], removed: Collection[SectionPath], prefix: SectionPath
) -> tuple[Section[Any], ...]:
    """The sections without those at the removed paths; a section that loses descendants is copied."""
    remaining: list[Section[Any]] = []
    for section in sections:
        path = (*prefix, section.key)
        if path in removed:
            continue
        if any(inside(removed_path, path) for removed_path in removed):
            section = copy.copy(section)
            section.children = _without(section.children, removed, path)
        remaining.append(section)
    return tuple(remaining)


def _callers_module() -> str:
    """The module whose code makes a template, by the name under which it can be imported."""
    frame: FrameType | None = sys._getframe(1)
    library = ("weakincentives.prompt.", "weakincentives._")
    while frame is not None and frame.f_globals.get("__name__", "").startswith(library):
        frame = frame.f_back
    names = {} if frame is None else frame.f_globals
    if names.get("__name__") != "__main__":
        return str(names.get("__name__", ""))
    spec = names.get("__spec__")
    return spec.name if spec is not None else PurePath(names.get("__file__") or "").stem
