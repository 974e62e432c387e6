"""Prompts: the template that declares one, the prompt bound for a run, and the context its tools receive."""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

from weakincentives import serde
from weakincentives._display import Displayed, Shown, Table
from weakincentives._frozen import quick_init
from weakincentives._generics import OutputT, Specializable
from weakincentives._threads import until
from weakincentives.errors import DeadlineExceededError, PromptError, PromptRenderError, PromptValidationError
from weakincentives.filesystem import Filesystem
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt.disclosure import COLLAPSE_SECTION, RESERVED_NAMES, ReadSections
from weakincentives.prompt.markdown import OWN_FILES
from weakincentives.prompt.outline import Node, Outline, Params, check_params
from weakincentives.prompt.output import StructuredOutputConfig, structured_output
from weakincentives.prompt.overrides import PromptDescriptor, PromptOverride, PromptOverridesStore, apply_override
from weakincentives.prompt.section import LateContent, Section, check_placeholders, require_list, split_text
from weakincentives.prompt.state import VisibilityState, declared_state, session_state
from weakincentives.prompt.tokens import Tokenizer, default_tokenizer
from weakincentives.prompt.toolkit import AnyTool, HandlerContext, HostedTool, Tool
from weakincentives.prompt.view import Disclosure, RenderedPrompt, View
from weakincentives.prompt.visibility import Overrides, SectionPath, SectionVisibility, VisibilityOverrides
from weakincentives.resources import ClassOf, ResourceRegistry, ScopedResourceContext
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.prompt")
T = TypeVar("T")
_claiming = threading.Lock()


class _HasOutput(Specializable):
    """A class with an output type as its argument."""

    _output_type: Any = None
    _type_keywords = ("output_type",)

    @classmethod
    def _attributes_for(cls, args: tuple[Any, ...]) -> dict[str, Any]:
        if len(args) != 1:
            raise PromptValidationError(f"A prompt has one output type, got {len(args)}.")
        return {"_output_type": None if args[0] is type(None) else args[0]}


class PromptTemplate(_HasOutput, Generic[OutputT]):
    """Declare once, bind and render often: `PromptTemplate[Out](ns=, key=, sections=[...])`.

    `token_budget` opens the summarized sections that fit it when the prompt is rendered; `show_prices` adds the cost of
    opening to each summary; `allow_collapse` offers `collapse_section`.
    """

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
        self.sections: tuple[Section[Any], ...] = require_list(f"Prompt '{key}'", "sections", sections)
        for section in self.sections:
            if not isinstance(section, Section):
                raise PromptValidationError(
                    f"Prompt '{key}': sections= must hold Section objects, got {section!r}; "
                    "write MarkdownSection(key=, title=, template=)."
                )
        self.resources = ResourceRegistry().merge(resources)
        self.allow_extra_keys = allow_extra_keys
        self.disclosure: Disclosure = ReadSections() if disclosure is None else _check_disclosure(key, disclosure)
        self.allow_collapse = allow_collapse
        self.token_budget = token_budget
        self.show_prices = show_prices
        self.tokenizer = tokenizer
        declared = self._output_type if output_type is None else output_type
        self.structured_output: StructuredOutputConfig | None = (
            None if declared is None else structured_output(declared, allow_extra_keys)
        )
        self._reserved = RESERVED_NAMES | {tool.name for tool in self.builtin_tools()}
        self.outline = Outline(self.sections, reserved=self._reserved)
        for node in self.outline.late:
            if (expected := node.section.stored()) is not None:
                self.outline = self.outline.with_late(node.path, expected)
        self._overridden: tuple[PromptOverride | None, Outline] = (None, self.outline)
        self.warned_of: set[type] = set()

    def render(
        self, *params: Any, visibility_overrides: Overrides | None = None, session: Session | None = None
    ) -> RenderedPrompt[OutputT]:
        """Bind and render in one go."""
        return Prompt(self).bind(*params).render(session=session, visibility_overrides=visibility_overrides)

    def builtin_tools(self) -> tuple[Tool[Any, Any], ...]:
        """Every disclosure tool that this template may ever offer."""
        tools = self.disclosure.tools(with_tools=True, content_only=True)
        return (*tools, COLLAPSE_SECTION) if self.allow_collapse else tools

    def ask_for_tools(self) -> None:
        """Take up what sections with their own `tools()` or `hosted_tools()` return now."""
        outline = self.outline.with_current_tools()
        if outline is not self.outline:
            self.outline, self._overridden = outline, (None, outline)
            vars(self).pop("descriptor", None)

    def overridden(self, store: PromptOverridesStore, tag: str) -> Outline:
        """The outline with the store's override applied; a stale override is reported and not applied."""
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
            where = f"Override of section '{'.'.join(path)}'"
            bodies[path] = split_text(body, where=where, literal=section.literal)
            check_placeholders(section, bodies[path].names, "override")
        tools = {
            tool.name: tool.with_descriptions(words.description, words.param_descriptions)
            for node in self.outline.nodes
            for tool in node.tools
            if (words := applied.tools.get(tool.name)) is not None
        }
        return self.outline.overridden(bodies, tools) if bodies or tools else self.outline

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
        other = copy.copy(self)
        other.structured_output = declared
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
        other.outline = Outline(other.sections, reserved=self._reserved)
        other._overridden = (None, other.outline)
        vars(other).pop("descriptor", None)
        return other

    @property
    def counter(self) -> Tokenizer:
        """The template's tokenizer, or the offline default."""
        return self.tokenizer or default_tokenizer()

    @cached_property
    def descriptor(self) -> PromptDescriptor:
        """Content hashes of every section and tool, against which overrides are checked."""
        return PromptDescriptor.of(self.ns, self.key, self.outline)

    def __repr__(self) -> str:
        return f"PromptTemplate({self.ns!r}, {self.key!r})"


def _kept(sections: Iterable[Section[Any]], gone: set[SectionPath], above: SectionPath) -> tuple[Section[Any], ...]:
    kept: list[Section[Any]] = []
    for section in sections:
        path = (*above, section.key)
        if path in gone:
            continue
        if any(other[: len(path)] == path for other in gone):
            section = copy.copy(section)
            section.children = _kept(section.children, gone, path)
        kept.append(section)
    return tuple(kept)


class _RunBase(NamedTuple):
    """The run that a prompt is in: its session, and the visibility it began with.

    The reference is weak, so that a prompt does not keep its sessions alive.
    """

    session: weakref.ref[Session] | None
    outline: Outline
    state: VisibilityState

    def is_on(self, session: Session | None) -> bool:
        return session is None if self.session is None else session is not None and self.session() is session


class Prompt(Displayed, _HasOutput, Generic[OutputT]):
    """`Prompt(template).bind(params...)`, ready to render or evaluate; create one for each run.

    `Prompt[Out](ns=, key=, sections=[...])` builds its template in place. `with prompt:` opens its resources, as
    `with prompt.resources:` does. `first_run` is the id of its first run, by which a session recognizes it.
    """

    def __init__(
        self,
        template: PromptTemplate[OutputT] | None = None,
        *,
        overrides_store: PromptOverridesStore | None = None,
        overrides_tag: str = "latest",
        output_type: Any = None,
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
        self.resources = PromptResources(self)
        self.first_run = ""
        self.overrides_store = overrides_store
        self._overrides_tag = overrides_tag
        self._bound: dict[type, Any] = {}
        self._bound_twice: frozenset[type] = frozenset()
        self._bound_resources = ResourceRegistry()
        self._run: _RunBase | None = None
        self._claim: tuple[Session] | None = None
        self.loaded: tuple[SectionPath, ...] = ()
        self._late: Mapping[SectionPath, LateContent] = {}
        # The outline that `_run_outline` was last made of, and the result.
        self._grown = (template.outline, template.outline)

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
        return tuple(self._bound.values())

    def bind(self, *params: Any, resources: ResourceRegistry | Mapping[type, Any] | None = None) -> Prompt[OutputT]:
        """Bind instances by their type, and resources that take precedence over the template's and the sections'.

        A dict is bound as the template's TypedDict with the same keys. Binding changes the prompt, so it raises while a
        run uses the prompt.
        """
        if self._claim is not None:
            raise self._in_use()
        check_params(params)
        types = [self._params_type_of(value) for value in params]
        bound = dict(zip(types, params, strict=True))
        twice = {kind for kind, times in Counter(types).items() if times > 1}
        self._bound_twice = self._bound_twice - bound.keys() | twice
        self._warn_of_unused(bound)
        self._bound.update(bound)
        self._bound_resources = self._bound_resources.merge(resources)
        return self

    def _warn_of_unused(self, types: Iterable[type]) -> None:
        """Warn once of params that no section uses. Tools may read `prompt.params`, so it need not be a mistake."""
        outline, warned = self.template.outline, self.template.warned_of
        for kind in types:
            if kind not in outline.params_types and not outline.late and kind not in warned:
                warned.add(kind)
                used = ", ".join(each.__name__ for each in outline.params_types) or "none"
                message = "Prompt '%s': params of type %s are bound, but no section uses them; sections use: %s."
                logger.warning(message, self.key, kind.__name__, used)

    @contextmanager
    def claim(self, session: Session) -> Iterator[None]:
        """Reserve the prompt for the run on this session while the block runs; its evaluations claim it again."""
        claim = (session,)
        with _claiming:
            if self._claim is None:
                self._claim = claim
            elif self._claim[0] is not session:
                raise self._in_use()
        try:
            yield
        finally:
            if self._claim is claim:
                self._claim = None

    def release(self) -> None:
        """End a claim early."""
        self._claim = None

    def _in_use(self) -> PromptError:
        return PromptError(
            f"Prompt '{self.name}' is in use by a run: until it ends, the prompt cannot be bound or run again; "
            "make a prompt for each run: Prompt(template).bind(...)."
        )

    def __copy__(self) -> Self:
        """A prompt to bind and run independently of this one; while this one's resources are open, it uses those."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), _bound=dict(self._bound), _claim=None)
        other.resources = PromptResources(other, lender=self.resources)
        return other

    def with_overrides(self, store: PromptOverridesStore, tag: str) -> Self:
        """A copy of this prompt, to which the store's override with this tag applies."""
        other = copy.copy(self)
        other.overrides_store, other._overrides_tag = store, tag
        return other

    def _params_type_of(self, value: Any) -> type:
        if type(value) is not dict:
            return type(value)
        fitting = [each for each in self.template.outline.params_types if serde.is_instance(value, each)]
        if len(fitting) != 1:
            found = " and ".join(each.__name__ for each in fitting) or "none"
            raise PromptValidationError(
                f"A dict is bound as the one TypedDict that has its keys ({', '.join(value)}); here that is {found}."
            )
        return fitting[0]

    def render(
        self,
        *,
        session: Session | None = None,
        visibility_overrides: Overrides | None = None,
        deadline: Deadline | None = None,
    ) -> RenderedPrompt[OutputT]:
        """Text and tools as the model would see them now."""
        self.template.ask_for_tools()
        outline = self.outline()
        view = self._view(outline, self._declared(outline, session, visibility_overrides), session)
        rendered = self._rendered(view, deadline)
        if outline.shares_tool_names:
            for node, tool, owner in view.skipped():
                logger.warning(
                    "Skipping duplicate tool '%s' of section '%s': section '%s' has it already.",
                    tool.name,
                    node.key,
                    owner.key,
                )
        return rendered

    def begin(
        self,
        session: Session | None,
        visibility_overrides: Overrides | None = None,
        words: str = "",
        *,
        again: bool = False,
    ) -> RenderedPrompt[OutputT]:
        """Render for a run, and keep the visibility declared, selected, overridden and fitted as the base of its views.

        `words` is what the user says besides the user sections. `again` renders for the same run, whose base stands.
        """
        if not again:
            self.template.ask_for_tools()
            outline = self._run_outline()
            state = self._declared(outline, session, visibility_overrides, words)
            self._run = _RunBase(None if session is None else weakref.ref(session), outline, state)
        return self._rendered(self.view(session))

    def resume(
        self,
        session: Session,
        chosen: Mapping[str, SectionVisibility],
        selected: Mapping[str, SectionVisibility],
        visibility_overrides: Overrides | None = None,
    ) -> None:
        """Continue the session's run with the visibilities of `decisions`; other sections decide anew."""
        self.template.ask_for_tools()
        outline = self._run_outline()
        overrides = {node.path: shown for key, shown in chosen.items() if (node := outline.by_key.get(key))}
        overrides.update(visibility_overrides or {})
        state = declared_state(outline, Params(outline, self._bound), session, overrides, selected)
        self._run = _RunBase(weakref.ref(session), outline, state)

    def decisions(self) -> tuple[dict[str, SectionVisibility], dict[str, SectionVisibility]]:
        """The visibilities of sections that were opened as the run began, and those that their code decided, by key."""
        assert self._run is not None
        _, outline, state = self._run
        return state.chosen(outline), state.selected(outline)

    def view(self, session: Session | None = None) -> View:
        """What is shown and offered now; for the session of a run, the base is what the run began with."""
        run = self._run
        if run is not None and run.is_on(session):
            return self._view(run.outline, run.state, session)
        self.template.ask_for_tools()
        outline = self.outline()
        return self._view(outline, self._declared(outline, session), session)

    def base_view(self) -> View:
        """What the run began with, without the session's overrides."""
        return self.view() if self._run is None else self._view(self._run.outline, self._run.state, None)

    def unloaded(self, session: Session | None) -> list[SectionPath]:
        """Sections shown in full whose tools and children are not known yet."""
        outline = self._run_outline()
        if len(outline.late) == len(self.loaded):
            return []
        view = self.view(session)
        return [
            node.path
            for node in outline.late
            if node.path not in self.loaded and view.visibility_of(node) is SectionVisibility.FULL
        ]

    def refresh(self) -> None:
        """Mark the sections that are to be loaded again as a run begins; until then they stay as they are."""
        if self.loaded:
            by_path, context = self._run_outline().by_path, self.resources.context
            self.loaded = tuple(
                path for path in self.loaded if path in by_path and not by_path[path].section.refresh(context)
            )

    def load(self, path: SectionPath, deadline: Deadline | None = None) -> None:
        """Load what a section and its ancestors add when they are opened, each once per run."""
        for end in range(1, len(path) + 1):
            outline = self._run_outline()
            node = outline.by_path.get(path[:end])
            if node is None or not node.is_late or node.path in self.loaded:
                continue
            late = DeadlineExceededError("The deadline passed while a section was being opened.", phase="tool")
            seconds = None if deadline is None else deadline.remaining().total_seconds()
            content = until(seconds, partial(node.section.load, self.resources.context), late)
            self.loaded += (node.path,)
            if content is None:
                continue
            self._late = {**self._late, node.path: content}
            grown = outline.with_late(node.path, content)
            self._grown = (self._grown[0], grown)
            if self._run is not None:
                session, before, state = self._run
                self._run = _RunBase(session, grown, state.moved(before, grown))

    def _run_outline(self) -> Outline:
        """The tree with the overrides that the store has now, and with what sections have loaded."""
        base = self.outline()
        if base is not self._grown[0]:
            grown = base
            for path, content in self._late.items():
                grown = grown.with_late(path, content)
            self._grown = (base, grown)
        return self._grown[1]

    def outline(self) -> Outline:
        """The template's tree, with prompt overrides from the store applied."""
        if self.overrides_store is None:
            return self.template.outline
        return self.template.overridden(self.overrides_store, self._overrides_tag)

    @property
    def overrides_tag(self) -> str:
        """The tag of the stored override that is applied; empty if there is none."""
        return "" if self.outline() is self.template.outline else self._overrides_tag

    def find_tool(self, section_key: str, name: str) -> AnyTool | None:
        """A tool of the section with this key, shown or not; built-in tools have the key ''."""
        if not section_key:
            return next((tool for tool in self.template.builtin_tools() if tool.name == name), None)
        outline = self._run_outline() if self._run is None else self._run.outline
        node = outline.by_key.get(section_key)
        if node is None:
            return None
        return next((tool for tool in node.all_tools if tool.name == name), None)

    def collected_resources(self) -> ResourceRegistry:
        """Template, then every section depth-first, then bind-time; later wins.

        During a run, a workspace that nobody provides is the one of its session.
        """
        registry = self.template.resources
        for node in self.template.outline.nodes:
            registry = registry.merge(node.section.resources())
        registry = registry.merge(self._bound_resources)
        if self._claim is not None and registry.bindings.get(Filesystem) is OWN_FILES:
            registry = registry.merge({Filesystem: self._claim[0].workspace})
        return registry

    def opened_by_rule(self, session: Session, words: Callable[[], str]) -> list[SectionPath]:
        """Closed sections that their rules open now, except those the session has already opened or closed."""
        if not self._run_outline().ruled:
            return []
        view = self.view(session)
        current = session[VisibilityOverrides].latest()
        decided = {} if current is None else current.overrides
        found = _ruled(view, Params(view.outline, self._bound), session, words())
        return [node.path for node in found if node.path not in decided]

    def opened_by_words(self, session: Session, words: str) -> list[SectionPath]:
        """Closed sections that a message clearly calls for, if the strategy opens those."""
        if not self.template.disclosure.preopen:
            return []
        return [node.path for node in self._preopened(self.view(session), words)]

    def _declared(
        self, outline: Outline, session: Session | None, overrides: Overrides | None = None, words: str = ""
    ) -> VisibilityState:
        """What is shown before the session's overrides.

        That is what was declared, selected or passed by the caller, plus what a rule, the user's words or the token
        budget opens.
        """
        for kind in self._bound_twice:
            raise PromptValidationError(
                f"{kind.__name__} was bound twice in one call; pass one instance of each params type."
            )
        params = Params(outline, self._bound)
        state = declared_state(outline, params, session, overrides or {})
        preopen = self.template.disclosure.preopen
        if outline.ruled or preopen:
            view = self._view(outline, state, session)
            if preopen or any(node.section.rule_needs_text for node in outline.ruled):
                words = "\n\n".join(part for part in (view.user_text(), words) if part)
            for node in _ruled(view, params, session, words):
                state = state.with_opened(outline, node, "rule")
            if preopen and words:
                for node in self._preopened(self._view(outline, state, session), words):
                    state = state.with_opened(outline, node, "search")
        budget = self.template.token_budget
        if budget is None:
            return state
        fitted = self._view(outline, state, session).fitted(budget, self.template.counter).state
        for index, decider in fitted.decided.items():
            if decider == "budget":
                state = state.with_visibility(outline.nodes[index], fitted.packed[index], decider)
        return state

    def _preopened(self, view: View, words: str) -> list[Node]:
        """The sections the strategy opens for the user's words; none if the ranker fails."""
        try:
            found = self.template.disclosure.preopened(view, words)
        except Exception as error:
            logger.warning("Prompt '%s': no section was opened for what the user said: %s", self.key, error)
            return []
        return [node for node in found if view.decided_by(node) in ("declared", "selector")]

    def _view(self, outline: Outline, base: VisibilityState, session: Session | None) -> View:
        template, params = self.template, Params(outline, self._bound)
        return View(
            outline,
            params,
            session_state(outline, base, params, session),
            template.disclosure,
            collapse_tool=COLLAPSE_SECTION if template.allow_collapse else None,
            price_tokenizer=template.counter if template.show_prices else None,
        )

    def _rendered(self, view: View, deadline: Deadline | None = None) -> RenderedPrompt[OutputT]:
        view.check_params()
        pieces = view.pieces()
        offered, skipped = view.tools()
        for node, tool, owner in skipped:
            if not view.opened_at(node):
                raise PromptRenderError(
                    f"Sections '{owner.key}' and '{node.key}' both have a tool named '{tool.name}' and are shown "
                    "together; rename one."
                )
        template = self.template
        return RenderedPrompt(
            text="".join(pieces),
            tools=tuple(tool for _, tool in offered if isinstance(tool, Tool)),
            hosted_tools=tuple(tool for _, tool in offered if isinstance(tool, HostedTool)),
            structured_output=template.structured_output,
            deadline=deadline,
            prompt_name=template.name,
            view=view,
            pieces=pieces,
            make_descriptor=lambda: template.descriptor,
        )

    def __enter__(self) -> Self:
        self.resources.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.resources.__exit__(*error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        await self.resources.__aexit__(*error)

    def __repr__(self) -> str:
        return f"Prompt({self.ns!r}, {self.key!r})"

    def _display(self) -> Iterator[Shown]:
        yield f"Prompt {self.ns}/{self.key}"
        try:
            yield from list(self.render()._display())[1:]
        except PromptError as error:
            yield f"It cannot be rendered yet: {error}"
            rows = [
                ("  " * node.depth + node.key, ", ".join(tool.name for tool in node.all_tools))
                for node in self.template.outline.nodes
            ]
            yield Table(("section", "tools"), rows)


class PromptResources:
    """`with prompt.resources:` opens the resources, `prompt.resources.get(...)` resolves one; re-entrant."""

    def __init__(self, prompt: Prompt[Any], *, lender: PromptResources | None = None) -> None:
        self._prompt = prompt
        self._lender = lender
        self._context: ScopedResourceContext | None = None
        self._borrowed = False
        self._depth = 0

    @property
    def context(self) -> ScopedResourceContext:
        if self._context is None:
            raise RuntimeError(
                f"Resources of prompt '{self._prompt.name}' are used outside `with prompt.resources:`; enter it first."
            )
        return self._context

    def get(self, protocol: ClassOf[T]) -> T:
        return self.context.get(protocol)

    def get_optional(self, protocol: ClassOf[T]) -> T | None:
        return self.context.get_optional(protocol)

    def __enter__(self) -> PromptResources:
        if self._depth == 0:
            context = None if self._lender is None else self._lender._context
            self._borrowed = context is not None
            if context is None:
                context = self._prompt.collected_resources().create_context()
                context.start()
            self._context = context
        self._depth += 1
        return self

    def __exit__(self, *error: Any) -> None:
        context = self._leave()
        if context is not None:
            context.__exit__(*error)

    async def __aenter__(self) -> PromptResources:
        return self.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        context = self._leave()
        if context is not None:
            await context.__aexit__(*error)

    def _leave(self) -> ScopedResourceContext | None:
        self._depth -= 1
        if self._depth:
            return None
        context, self._context = self._context, None
        return None if self._borrowed else context


@quick_init
@dataclass(frozen=True, slots=True)
class ToolContext(HandlerContext):
    """What a tool handler can reach: the session, resources and limits of the run, and which call this is.

    `idempotency_key` is the same for every attempt at this call, also if the run is resumed, and no other call has it.
    """

    session: Session
    resources: ScopedResourceContext
    prompt: Prompt[Any]
    call_id: str = ""
    deadline: Deadline | None = None
    budget: Budget | None = None
    idempotency_key: str = ""

    @property
    def filesystem(self) -> Filesystem | None:
        """The prompt's filesystem, if a section or the caller provides one."""
        return self.resources.get_optional(Filesystem)


def _ruled(view: View, params: Params, session: Session | None, words: str) -> list[Node]:
    """The closed sections whose rules open them; what the caller closed stays closed."""
    return [
        node
        for node in view.outline.ruled
        if view.visibility_of(node) in (SectionVisibility.SUMMARY, SectionVisibility.HIDDEN)
        and view.decided_by(node) != "override"
        and node.section.opens(params[node.source], session=session, text=words)
    ]


def _check_disclosure(key: str, given: Disclosure) -> Disclosure:
    if isinstance(given, type):
        name = given.__name__
        raise PromptValidationError(f"Prompt '{key}': disclosure={name} is a class; write disclosure={name}().")
    if not isinstance(given, Disclosure):
        raise PromptValidationError(
            f"Prompt '{key}': disclosure must be a strategy, got {given!r}; pass ReadSections(), SearchSections(), "
            "OpenOrRead(), OpenToFiles(), OpenAndHalt() or one of your own, derived from Disclosure."
        )
    return given
