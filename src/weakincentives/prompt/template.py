"""Prompts: the template that declares one, the prompt bound for a run, and the context its tools receive."""

from __future__ import annotations

import copy
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import PurePath
from types import FrameType
from typing import Any, Generic, Self, TypeVar, get_args

from weakincentives import serde
from weakincentives._base.display import Displayed, Shown, tree
from weakincentives._base.fence import check_fence
from weakincentives._base.frozen import quick_init
from weakincentives._base.generics import OutputT, Specializable
from weakincentives.errors import PromptError, PromptRenderError, PromptValidationError, UnboundParamsError
from weakincentives.filesystem import Filesystem
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt.disclosure.strategies import BUILT_IN_TOOLS, COLLAPSE_SECTION, RESERVED_NAMES, ReadSections
from weakincentives.prompt.guards import Guard, by_hook, check_hosted_names, check_tool_names, require_guards
from weakincentives.prompt.outline import Outline, same_tool
from weakincentives.prompt.output import StructuredOutputConfig, structured_output
from weakincentives.prompt.overrides import (
    Experiment,
    PromptDescriptor,
    PromptOverride,
    PromptOverridesStore,
    apply_override,
)
from weakincentives.prompt.presentation import LoadedSections, Presentation
from weakincentives.prompt.resources import PromptResources, Resourceful, check_captured
from weakincentives.prompt.section import LateContent, Section, require_sections
from weakincentives.prompt.tokens import Tokenizer
from weakincentives.prompt.tools import HandlerContext, HostedTool, Tool, check_timeout
from weakincentives.prompt.view import Disclosure, RenderedPrompt, Suffix, View, ViewOptions
from weakincentives.prompt.visibility import PACKED, Overrides, SectionPath, inside, visible
from weakincentives.resources import ResourceRegistry, ScopedResourceContext
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.prompt")
T = TypeVar("T")


class _HasOutput(Specializable):
    """A class with an output type as its argument."""

    _output_type: Any = None
    _type_names = ("output_type",)


class PromptTemplate(Displayed, _HasOutput, Generic[OutputT]):
    """Declare once, bind and render often: `PromptTemplate[Out](ns=, key=, sections=[...])`.

    `token_budget` opens the summarized sections that fit it when the prompt is rendered; `show_prices` adds the cost of
    opening to each summary; `allow_collapse` offers `collapse_section`. `tool_timeout` is the timeout, in seconds, of
    every tool that has none of its own. `guards` hold in every run.
    """

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
        allow_collapse: bool = False,
        token_budget: int | None = None,
        show_prices: bool = False,
        tokenizer: Tokenizer | None = None,  #: counts tokens for `token_budget` and prices
        tool_timeout: float | None = None,
        guards: Iterable[Guard] = (),
        output_type: Any = None,  #: as in `PromptTemplate[Out]`
    ) -> None:
        for what, value in (("ns", ns), ("key", key)):
            if not isinstance(value, str) or not value.strip():
                raise PromptValidationError(f"A prompt needs a non-empty {what}; got {value!r}.")
        if token_budget is not None and token_budget < 1:
            raise PromptValidationError(f"Prompt '{key}': token_budget must be positive, got {token_budget}.")
        check_timeout(f"Prompt '{key}': tool_timeout", tool_timeout)
        self.ns = ns.strip()
        self.key = key.strip()
        self.name = name or self.key
        self.module = _callers_module()
        self.sections = require_sections(f"Prompt '{key}'", "sections", sections)
        self.resources = ResourceRegistry().merge(resources)
        self.allow_extra_keys = allow_extra_keys
        self.tool_timeout = tool_timeout
        self.guards = require_guards(f"Prompt '{key}'", guards)
        self.guards_by_hook = by_hook(self.guards)
        collapse = COLLAPSE_SECTION if allow_collapse else None
        strategy = ReadSections() if disclosure is None else _check_disclosure(key, disclosure)
        self.view_options = ViewOptions(strategy, tokenizer, collapse, show_prices, token_budget)
        declared = self._output_type if output_type is None else output_type
        self.structured_output: StructuredOutputConfig | None = (
            None if declared is None else structured_output(declared, allow_extra_keys)
        )
        self._reserved = RESERVED_NAMES | {tool.name for tool in self.builtin_tools()}
        outline = Outline(self.sections, reserved=self._reserved)
        for node in outline.late:
            if (expected := node.section.stored()) is not None:
                outline = outline.with_late(node.path, expected)
        self._show(outline)
        self._warned_of: set[type] = set()

    def _show(self, outline: Outline) -> None:
        self.outline = outline
        check_captured(self.changing_tools, lambda: resources_of(outline, self.resources))
        guards = (*self.guards, *(guard for node in outline.guarded for guard in node.section.guards))
        hosted = [tool for node in outline.nodes for tool in node.hosted_tools] if guards else []
        check_hosted_names(f"Prompt '{self.key}'", guards, hosted)
        if guards and not outline.may_load:
            names = outline.tool_names | BUILT_IN_TOOLS
            known = names | outline.guarded_names
            check_tool_names(f"Prompt '{self.key}'", guards, names, known)
        self._overridden: tuple[PromptOverride | None, Outline] = (None, outline)
        vars(self).pop("descriptor", None)

    def render(
        self, *params: Any, visibility_overrides: Overrides | None = None, session: Session | None = None
    ) -> RenderedPrompt[OutputT]:
        """Bind and render in one go."""
        return Prompt(self).bind(*params).render(session=session, visibility_overrides=visibility_overrides)

    @property
    def disclosure(self) -> Disclosure:
        """How sections are opened."""
        return self.view_options.disclosure

    def builtin_tools(self) -> tuple[Tool[Any, Any], ...]:
        """Every disclosure tool that this template may ever offer."""
        collapse = self.view_options.collapse_tool
        tools = self.disclosure.tools(with_tools=True, content_only=True)
        return tools if collapse is None else (*tools, collapse)

    @property
    def changing_tools(self) -> list[Tool[Any, Any]]:
        """The tools that declare what they may change."""
        tools: list[Tool[Any, Any]] = []
        for node in self.outline.nodes:
            tools.extend(tool for tool in node.tools if tool.changes)
        return tools

    def ask_for_tools(self) -> None:
        """Take up what sections with their own `tools()` or `hosted_tools()` return now."""
        outline = self.outline.with_current_tools()
        if outline is not self.outline:
            self._show(outline)

    def overridden(self, store: PromptOverridesStore, tag: str) -> Outline:
        """The outline with the store's override applied; a stale override is reported and not applied."""
        override = store.resolve(self.descriptor, tag)
        if override is None:
            return self.outline
        if override != self._overridden[0]:
            self._overridden = (override, apply_override(self.outline, self.descriptor, override))
        return self._overridden[1]

    def with_output(self, output_type: Any) -> PromptTemplate[Any]:
        """The template with this output type; raises if it already declares a different one."""
        declared = structured_output(output_type, self.allow_extra_keys)
        if self.structured_output == declared:
            return self
        if self.structured_output is not None:
            raise PromptValidationError(
                f"Prompt[{declared.name}] cannot be made of '{self.key}', whose output is "
                f"{self.structured_output.name}; write Prompt(template)."
            )
        return self.answering(output_type)

    def answering(self, output_type: Any) -> PromptTemplate[Any]:
        """The template with this output type, whatever it declares; None for plain text."""
        other = copy.copy(self)
        other.structured_output = None if output_type is None else structured_output(output_type, self.allow_extra_keys)
        return other

    def with_disclosure(self, disclosure: Disclosure) -> PromptTemplate[OutputT]:
        """The template with another strategy for opening its sections."""
        other = copy.copy(self)
        other.view_options = replace(self.view_options, disclosure=_check_disclosure(self.key, disclosure))
        other._reserved = RESERVED_NAMES | {tool.name for tool in other.builtin_tools()}
        # A new outline: this one has cached layouts and tools, which depend on the strategy.
        other._show(self.outline.reserving(other._reserved))
        return other

    def without(self, paths: Collection[SectionPath]) -> PromptTemplate[OutputT]:
        """The template without these sections and their descendants."""
        gone = set(paths)
        unknown = [path for path in gone if path not in self.outline.by_path]
        if unknown:
            raise PromptValidationError(f"Prompt '{self.key}' has no section '{'.'.join(unknown[0])}' to leave out.")
        if not gone:
            return self
        other = copy.copy(self)
        other.sections = _kept(self.sections, gone, ())
        outline = Outline(other.sections, reserved=self._reserved)
        for node in self.outline.late:
            is_known = node.path not in self.outline.unloaded
            if is_known and not any(inside(node.path, path) for path in gone):
                outline = outline.with_late(node.path, self.outline.brought(node.path))
        other._show(outline)
        return other

    def with_late(self, path: SectionPath, content: LateContent) -> PromptTemplate[OutputT]:
        """The template with what a section will load, so that it is known before."""
        other = copy.copy(self)
        other._show(self.outline.with_late(path, content))
        return other

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
            structured_output=self.structured_output,
            deadline=deadline,
            prompt_name=self.name,
            view=view,
            pieces=pieces,
            make_descriptor=lambda: self.descriptor,
        )

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
        if kind not in params_types and not self.outline.late and kind not in self._warned_of:
            self._warned_of.add(kind)
            used = ", ".join(params_type.__name__ for params_type in params_types) or "none"
            message = "Prompt '%s': params of type %s are bound, but no section uses them; sections use: %s."
            logger.warning(message, self.key, kind.__name__, used)
        return kind

    @property
    def counter(self) -> Tokenizer:
        """The template's tokenizer, or the offline default."""
        return self.view_options.counter

    @cached_property
    def descriptor(self) -> PromptDescriptor:
        """Content hashes of every section and tool, against which overrides are checked."""
        return PromptDescriptor.of(self.ns, self.key, self.outline)

    def __repr__(self) -> str:
        return f"PromptTemplate({self.ns!r}, {self.key!r})"

    def _display(self) -> Iterator[Shown]:
        yield from Prompt(self)._display()


def _kept(sections: Iterable[Section[Any]], gone: set[SectionPath], above: SectionPath) -> tuple[Section[Any], ...]:
    kept: list[Section[Any]] = []
    for section in sections:
        path = (*above, section.key)
        if path in gone:
            continue
        if any(inside(other, path) for other in gone):
            section = copy.copy(section)
            section.children = _kept(section.children, gone, path)
        kept.append(section)
    return tuple(kept)


class Prompt(Displayed, Resourceful, _HasOutput, Generic[OutputT]):
    """`Prompt(template).bind(params...)`, ready to render or evaluate.

    `Prompt[Out](ns=, key=, sections=[...])` builds its template in place. `with prompt:` opens its resources, as
    `with prompt.resources:` does. Several runs may use a prompt at once; binding affects later runs. An `experiment`
    chooses the override by the `experiment_key`; its runs are recorded with the tag `experiment`, the name and `arm`.

    `loaded`, which a conversation sets on its own copy, is what sections have loaded in its runs. Any other run loads
    for itself.
    """

    def __init__(
        self,
        template: PromptTemplate[OutputT] | None = None,  #: the template; without one, pass its arguments here
        *,
        overrides_store: PromptOverridesStore | None = None,  #: where stored overrides are looked up
        overrides_tag: str = "latest",  #: the tag to look up
        experiment: Experiment | None = None,
        experiment_key: str = "",
        output_type: Any = None,  #: as in `Prompt[Out]`
        **declaration: Any,
    ) -> None:
        declared = self._output_type if output_type is None else output_type
        if template is None:
            template = PromptTemplate(output_type=declared, **declaration)
        elif not isinstance(template, PromptTemplate):
            raise PromptValidationError(
                f"Prompt takes a PromptTemplate, got {template!r}; "
                "write Prompt(ns=..., key=..., sections=[MarkdownSection(...)]) for a prompt of its own."
            )
        elif declaration:
            raise PromptValidationError(
                f"Prompt takes a template or a declaration, not both; got a template and {', '.join(declaration)}."
            )
        elif declared is not None:
            template = template.with_output(declared)
        self.template = template
        self.ns, self.key, self.name = template.ns, template.key, template.name
        self.resources = PromptResources(self)
        self.overrides_store = overrides_store
        self.arm = ""
        if experiment is not None:
            if overrides_store is None or not experiment_key:
                raise PromptValidationError(
                    "An experiment needs overrides_store= and experiment_key=, such as a user's id."
                )
            assigned = experiment.assign(experiment_key)
            overrides_tag, self.arm = assigned or overrides_tag, f"{experiment.name}:{assigned or 'control'}"
        self._overrides_tag = overrides_tag
        self._bound: dict[type, Any] = {}
        self._bound_twice: frozenset[type] = frozenset()
        self.bound_resources = ResourceRegistry()
        self.loaded: LoadedSections | None = None

    @property
    def params(self) -> tuple[Any, ...]:
        """The bound params, in the order of binding."""
        return tuple(self._bound.values())

    @property
    def params_digest(self) -> str:
        """A digest of the bound params, by which a session recognizes a run that is to be restarted."""
        return digest_of(self.params)

    def bind(self, *params: Any, resources: ResourceRegistry | Mapping[type, Any] | None = None) -> Prompt[OutputT]:
        """Bind instances by their type, and resources that take precedence over the template's and the sections'.

        A dict is bound as the template's TypedDict with the same keys. A run keeps the params and the resources with
        which it began. Resources cannot be bound while those of the prompt are held open; bind a copy instead.
        """
        resources = ResourceRegistry().merge(resources)
        if len(resources) and self.resources.held_open:
            raise PromptValidationError(
                f"Resources of prompt '{self.name}' cannot be bound while they are open; write "
                "copy(prompt).bind(resources=...), or bind them before `with`."
            )
        types = [self.template.params_type_of(value) for value in params]
        twice = {kind for kind, times in Counter(types).items() if times > 1}
        self._bound_twice = self._bound_twice.difference(types) | twice
        self._bound.update(zip(types, params, strict=True))
        if len(resources):
            bound = self.bound_resources.merge(resources)
            check_captured(self.template.changing_tools, partial(self.collect_resources, bound))
            self.bound_resources = bound
            # What was loaded with others may be about somebody else.
            self.loaded = None if self.loaded is None else LoadedSections()
        return self

    def rebind(self, params: Iterable[Any]) -> None:
        """Bind exactly these params, in place of all that are bound."""
        self._bound, self._bound_twice = {}, frozenset()
        self.bind(*params)

    def __copy__(self) -> Self:
        """A prompt to bind and run independently of this one.

        While this one's resources are held open, the copy uses those, unless others are bound to it.
        """
        other = object.__new__(type(self))
        vars(other).update(vars(self), _bound=dict(self._bound), loaded=None)
        other.resources = PromptResources(other, lender=self.resources)
        return other

    def with_overrides(self, store: PromptOverridesStore, tag: str) -> Self:
        """A copy of this prompt, to which the store's override with this tag applies."""
        other = copy.copy(self)
        other.overrides_store, other._overrides_tag = store, tag
        return other

    def render(
        self,
        *,
        session: Session | None = None,
        visibility_overrides: Overrides | None = None,
        deadline: Deadline | None = None,
    ) -> RenderedPrompt[OutputT]:
        """Text and tools as the model would see them now."""
        presentation = self.present(session, LoadedSections())
        presentation.begin(visibility_overrides)
        view = presentation.view()
        rendered = self.template.rendered(view, deadline)
        for node, tool, owner in view.skipped():
            message = "Skipping duplicate tool '%s' of section '%s': section '%s' has it already."
            fields = {"section_key": node.key, "tool_name": tool.name}
            logger.warning(message, tool.name, node.key, owner.key, extra=fields)
        return rendered

    def present(self, session: Session | None = None, content: LoadedSections | None = None) -> Presentation:
        """The prompt for one run, with the params and resources bound now.

        Without `content`, its sections have what they loaded in earlier runs of the conversation, if it is one's.
        """
        for kind in self._bound_twice:
            raise PromptValidationError(
                f"{kind.__name__} was bound twice in one call; pass one instance of each params type."
            )
        self.template.ask_for_tools()
        return Presentation(
            self.outline(),
            self._bound,
            self.template.view_options,
            session,
            content=self.loaded if content is None else content,
            bound_resources=self.bound_resources,
        )

    def view(self, session: Session | None = None) -> View:
        """The sections shown and the tools offered now; a tool's `context.view` also knows what its run began with."""
        return self.present(session, LoadedSections()).view()

    def collect_resources(self, bound: ResourceRegistry) -> ResourceRegistry:
        """Those of the template, of every section depth-first, and those that are bound; later ones win."""
        return resources_of(self.template.outline, self.template.resources).merge(bound)

    def outline(self) -> Outline:
        """The template's tree, with prompt overrides from the store applied."""
        if self.overrides_store is None:
            return self.template.outline
        return self.template.overridden(self.overrides_store, self._overrides_tag)

    @property
    def overrides_tag(self) -> str:
        """The tag of the stored override that is applied; empty if there is none."""
        return "" if self.outline() is self.template.outline else self._overrides_tag

    def __repr__(self) -> str:
        return f"Prompt({self.ns!r}, {self.key!r})"

    def _display(self) -> Iterator[Shown]:
        template = self.template
        params = ", ".join(each.__name__ for each in template.outline.params_types)
        output = "" if template.structured_output is None else f", output {template.structured_output.name}"
        yield f"Prompt {self.ns}/{self.key}{f', params {params}' if params else ''}{output}"
        try:
            yield from self.render()._display()
        except PromptError as error:
            yield f"It cannot be rendered yet: {error}"
            count, described, outline = template.counter.count, template.descriptor.sections, template.outline
            seen = visible(outline.base, outline.parents)
            yield tree(
                (node, PACKED[seen[node.index]].value, "declared", 0, count(described[node.path].source or ""))
                for node in outline.nodes
            )
        if template.module:
            yield f"In the playground: wink play {template.module}:VARIABLE"


def resources_of(outline: Outline, registry: ResourceRegistry) -> ResourceRegistry:
    """These resources with those of every section, depth-first; later ones win."""
    for node in outline.nodes:
        registry = registry.merge(node.section.resources())
    return registry


def _callers_module() -> str:
    """The module whose code makes a template, by the name under which it can be imported."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        ("weakincentives.prompt.", "weakincentives._")
    ):
        frame = frame.f_back
    known = {} if frame is None else frame.f_globals
    if known.get("__name__") != "__main__":
        return str(known.get("__name__", ""))
    spec = known.get("__spec__")
    return spec.name if spec is not None else PurePath(known.get("__file__") or "").stem


def digest_of(params: tuple[Any, ...]) -> str:
    """A digest of params as they are printed."""
    return blake2b(repr(params).encode("utf-8", "replace"), digest_size=8).hexdigest()


@quick_init
@dataclass(frozen=True, slots=True)
class ToolContext(HandlerContext):
    """The context of a tool call: the session, resources and limits of the run, and which call this is.

    `deadline` is that of the run, or of this call if its timeout ends earlier.
    `idempotency_key` is the same for every attempt at this call, also if the run is resumed, and no other call has it.
    `presentation` is the prompt as the run shows it, and `sink` receives what the call emits. `run` is the run itself,
    for tools that run others inside it.
    """

    session: Session  #: the session of the run
    resources: ScopedResourceContext  #: the resources bound for the run
    prompt: Prompt[Any]  #: the prompt of the run
    call_id: str = ""  #: the id of this call
    deadline: Deadline | None = None
    budget: Budget | None = None  #: the budget of the run
    idempotency_key: str = ""
    presentation: Presentation | None = None
    sink: Callable[[Any], None] | None = None
    run: Any = None

    def emit(self, data: Any) -> None:
        """Send progress or other data to whoever streams the run, as a `ToolEmitted` event; the model does not see it.

        Anything that can be written as JSON, a dataclass too. If the run is not streamed, nothing happens.
        """
        check_fence()
        if self.sink is not None:
            self.sink(serde.dump(data))

    @property
    def view(self) -> View:
        """The prompt as it is shown now, with what can be opened and what that would do."""
        return self.prompt.view(self.session) if self.presentation is None else self.presentation.view()

    def params(self, params_type: type[T]) -> T:
        """The params of this type that are bound to the prompt, as the run began with them."""
        shown = self.prompt.present(self.session) if self.presentation is None else self.presentation
        if (found := shown.params(params_type)) is not None:
            return found
        wanted = getattr(params_type, "__qualname__", repr(params_type))
        bound = ", ".join(type(each).__qualname__ for each in self.prompt.params) or "none"
        raise UnboundParamsError(
            f"Prompt '{self.prompt.name}' has no params of type {wanted} (bound: {bound}); "
            f"pass them to prompt.bind({wanted}(...)).",
            params_type=wanted,
        )

    @property
    def filesystem(self) -> Filesystem | None:
        """The prompt's filesystem, if a section or the caller provides one."""
        return self.resources.get_optional(Filesystem)


def _check_disclosure(key: str, given: Disclosure) -> Disclosure:
    if isinstance(given, type):
        name = given.__name__
        raise PromptValidationError(f"Prompt '{key}': disclosure={name} is a class; write disclosure={name}().")
    if not isinstance(given, Disclosure):
        raise PromptValidationError(
            f"Prompt '{key}': disclosure must be a strategy, got {given!r}; pass ReadSections(), SearchSections(), "
            "OpenOrRead(), OpenToFiles(), OpenAndHalt() or one of your own, derived from Disclosure."
        )
    if given.suffix not in get_args(Suffix):
        hint = "; a strategy's own text below summaries is its hint()" if callable(given.suffix) else ""
        raise PromptValidationError(
            f"Prompt '{key}': {type(given).__name__}.suffix must be 'sentence' or 'key', got {given.suffix!r}{hint}."
        )
    return given
