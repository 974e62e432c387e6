"""A template with its params and resources: what an adapter evaluates."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

from weakincentives._generics import OutputT, Specialized, has_type_variables, inherited_type_args, type_args
from weakincentives.errors import PromptValidationError
from weakincentives.limits import Deadline
from weakincentives.prompt.outline import ABSENT, FULL, SUMMARY, AnyTool, Outline
from weakincentives.prompt.overrides import PromptOverridesStore
from weakincentives.prompt.params import check_params
from weakincentives.prompt.rendered import RenderedPrompt
from weakincentives.prompt.shape import Overrides, Shape
from weakincentives.prompt.template import PromptTemplate, duplicate_params, output_argument
from weakincentives.prompt.view import View
from weakincentives.resources import ResourceRegistry, ScopedResourceContext
from weakincentives.session import Session

T = TypeVar("T")


class Prompt(Generic[OutputT]):
    """`Prompt(template).bind(params...)`, ready to render or evaluate; make one for each run.

    `Prompt[Out](ns=, key=, sections=[...])` builds its template in place.
    """

    _output_type: ClassVar[Any] = None

    def __init__(
        self,
        template: PromptTemplate[OutputT] | None = None,
        *,
        overrides_store: PromptOverridesStore | None = None,
        overrides_tag: str = "latest",
        **declaration: Any,
    ) -> None:
        if template is None:
            template = PromptTemplate(**{"output_type": self._output_type, **declaration})
        elif declaration and declaration != {"output_type": None}:
            raise PromptValidationError(
                f"Prompt takes a template or a declaration, not both; got a template and {', '.join(declaration)}."
            )
        self.template = template
        self.resources = PromptResources(self)
        self._overrides_store = overrides_store
        self._overrides_tag = overrides_tag
        self._bound: dict[type, Any] = {}
        self._duplicates: tuple[Any, ...] = ()
        self._bound_resources = ResourceRegistry()
        self._base: Shape | None = None
        self._base_outline: Outline | None = None

    def __class_getitem__(cls, item: Any) -> Any:
        args = type_args(item)
        if has_type_variables(args):
            return super().__class_getitem__(item)  # type: ignore[misc]

        def build(template: PromptTemplate[Any] | None = None, **named: Any) -> Any:
            if template is not None:
                return cls(template, **named)
            return cls(output_type=output_argument(args), **named)

        return Specialized(cls, args, build)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        args = inherited_type_args(cls)
        if args is not None:
            cls._output_type = output_argument(args)

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
        """What is bound, in the order of binding."""
        return tuple(self._bound.values())

    def bind(self, *params: Any, resources: ResourceRegistry | Mapping[type, Any] | None = None) -> Prompt[OutputT]:
        """Bind dataclass instances by their type, and resources that win over the template's and the sections'."""
        check_params(params)
        self._duplicates = params if len({type(value) for value in params}) < len(params) else ()
        self._bound.update({type(value): value for value in params})
        self._bound_resources = self._bound_resources.merge(resources)
        return self

    def render(
        self,
        *,
        session: Session | None = None,
        visibility_overrides: Overrides | None = None,
        deadline: Deadline | None = None,
    ) -> RenderedPrompt[OutputT]:
        """Text and tools as the model would see them now."""
        outline = self.outline()
        base = self._new_base(outline, session, visibility_overrides or {})
        return self.template.rendered(self.template.view(outline, self._bound, base, session), deadline)

    def view(self, session: Session | None = None) -> View:
        """What is shown and offered at this moment; within a run, what the run began with is the base."""
        outline = self._base_outline or self.outline()
        base = self._base or self._new_base(outline, session, {})
        return self.template.view(outline, self._bound, base, session)

    def begin(self, session: Session | None, visibility_overrides: Overrides | None = None) -> Shape:
        """Fix for the coming run what is declared, selected, overridden by the caller and within budget."""
        self._base = None
        outline = self._base_outline = self.outline()
        self._base = self._new_base(outline, session, visibility_overrides or {})
        return self._base

    def begin_from(self, visibility: Mapping[str, str]) -> None:
        """Take up a run that began elsewhere with this visibility (section key to 'full', 'summary' or 'absent')."""
        outline = self._base_outline = self.outline()
        states = {"absent": ABSENT, "full": FULL, "summary": SUMMARY}
        self._base = Shape(bytes(states[visibility.get(node.key, "absent")] for node in outline.nodes))

    def outline(self) -> Outline:
        """The template's tree, with prompt overrides from the store applied."""
        if self._overrides_store is None:
            return self.template.outline
        return self.template.overridden(self._overrides_store, self._overrides_tag)

    def find_tool(self, section_key: str, name: str) -> AnyTool | None:
        """A tool of the section with this key, shown or not; '' is for the built-in ones."""
        if not section_key:
            return next((tool for tool in self.template.builtin_tools() if tool.name == name), None)
        node = (self._base_outline or self.outline()).by_key.get(section_key)
        if node is None:
            return None
        return next((tool for tool in node.all_tools if tool.name == name), None)

    def collected_resources(self) -> ResourceRegistry:
        """Template, then every section depth-first, then bind-time; later wins."""
        registry = self.template.resources
        for node in self.template.outline.nodes:
            registry = registry.merge(node.section.resources())
        return registry.merge(self._bound_resources)

    def _new_base(self, outline: Outline, session: Session | None, overrides: Overrides) -> Shape:
        if self._duplicates:
            raise duplicate_params(self._duplicates)
        return self.template.base_shape(outline, self._bound, session, overrides)

    def __repr__(self) -> str:
        return f"Prompt({self.ns!r}, {self.key!r})"


class PromptResources:
    """`with prompt.resources:` opens the resources, `prompt.resources.get(...)` resolves one; re-entrant."""

    def __init__(self, prompt: Prompt[Any]) -> None:
        self._prompt = prompt
        self._context: ScopedResourceContext | None = None
        self._depth = 0

    @property
    def context(self) -> ScopedResourceContext:
        if self._context is None:
            raise RuntimeError(
                f"Resources of prompt '{self._prompt.name}' are used outside `with prompt.resources:`; enter it first."
            )
        return self._context

    def get(self, protocol: type[T]) -> T:
        return self.context.get(protocol)

    def get_optional(self, protocol: type[T]) -> T | None:
        return self.context.get_optional(protocol)

    def __enter__(self) -> PromptResources:
        if self._depth == 0:
            context = self._prompt.collected_resources().create_context()
            context.start()
            self._context = context
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context = self._leave()
        if context is not None:
            context.__exit__(kind, error, trace)

    async def __aenter__(self) -> PromptResources:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context = self._leave()
        if context is not None:
            await context.__aexit__(kind, error, trace)

    def _leave(self) -> ScopedResourceContext | None:
        self._depth -= 1
        if self._depth:
            return None
        context, self._context = self._context, None
        return context
