"""The prompt that callers bind and run, and the context that its tools receive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from weakincentives import serde
from weakincentives._base.display import Displayed, Shown
from weakincentives._base.fence import check_fence
from weakincentives._base.frozen import quick_init
from weakincentives._base.generics import OutputT
from weakincentives.errors import PromptValidationError, UnboundParamsError
from weakincentives.filesystem import Filesystem
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt.output import structured_output
from weakincentives.prompt.overrides import Experiment, PromptOverridesStore
from weakincentives.prompt.presentation import Presentation
from weakincentives.prompt.resources import PromptResources, Resourceful
from weakincentives.prompt.template import BoundPrompt, HasOutput, PromptTemplate
from weakincentives.prompt.tools import HandlerContext
from weakincentives.prompt.view import RenderedPrompt, View
from weakincentives.prompt.visibility import Overrides
from weakincentives.resources import ResourceRegistry, ScopedResourceContext
from weakincentives.session import Session

T = TypeVar("T")


class Prompt(Displayed, Resourceful, HasOutput, Generic[OutputT]):
    """`Prompt(template).bind(params...)`, ready to render or evaluate.

    `Prompt[Out](ns=, key=, sections=[...])` builds its template in place. `with prompt:` opens its resources, as
    `with prompt.resources:` does. A prompt may serve any number of runs, threads and conversations at once: each run
    takes what is bound when it begins, and binding affects later runs. An `experiment` chooses the override by the
    `experiment_key`; its runs are recorded with the tag `experiment`, the name and `arm`.
    """

    def __init__(
        self,
        template: PromptTemplate[OutputT] | None = None,  #: the template; without one, pass its arguments here
        *,
        overrides_store: PromptOverridesStore | None = None,  #: where stored overrides are looked up
        overrides_tag: str = "latest",  #: the tag to look up
        experiment: Experiment | None = None,
        experiment_key: str = "",  #: who takes part, such as a user's id
        output_type: Any = None,  #: as in `Prompt[Out]`
        **declaration: Any,
    ) -> None:
        output_type = self._output_type if output_type is None else output_type
        if template is None:
            template = PromptTemplate(output_type=output_type, **declaration)
        elif not isinstance(template, PromptTemplate):
            raise PromptValidationError(
                f"Prompt takes a PromptTemplate, got {template!r}; "
                "write Prompt(ns=..., key=..., sections=[MarkdownSection(...)]) for a prompt of its own."
            )
        elif declaration:
            raise PromptValidationError(
                f"Prompt takes a template or a declaration, not both; got a template and {', '.join(declaration)}."
            )
        elif output_type is not None:
            template = _with_output(template, output_type)
        arm = ""
        if experiment is not None:
            if overrides_store is None or not experiment_key:
                raise PromptValidationError(
                    "An experiment needs overrides_store= and experiment_key=, such as a user's id."
                )
            assigned_tag = experiment.assign(experiment_key)
            overrides_tag, arm = assigned_tag or overrides_tag, f"{experiment.name}:{assigned_tag or 'control'}"
        self._bound = BoundPrompt(
            template,
            overrides_store=overrides_store,
            requested_tag=overrides_tag,
            arm=arm,
        )
        self._binding = threading.Lock()
        self.resources = PromptResources(self._current)

    @classmethod
    def of(cls, bound: BoundPrompt[OutputT]) -> Prompt[OutputT]:
        """A prompt that holds what is bound to another, for runs of its own."""
        prompt = Prompt(bound.template)
        prompt._bound = bound
        return prompt

    def bound(self) -> BoundPrompt[OutputT]:
        """The prompt as a run takes it now, with the tools and the stored override that its sections have now."""
        bound = replace(self._bound)
        # Now, and not when it is first used: what sections offer may have changed by then.
        assert bound.outline
        return bound

    def _current(self) -> BoundPrompt[OutputT]:
        return self._bound

    @property
    def template(self) -> PromptTemplate[OutputT]:
        return self._bound.template

    @property
    def ns(self) -> str:
        return self._bound.ns

    @property
    def key(self) -> str:
        return self._bound.key

    @property
    def name(self) -> str:
        return self._bound.name

    @property
    def arm(self) -> str:
        """The name of the experiment and its arm; empty without an experiment."""
        return self._bound.arm

    @property
    def params(self) -> tuple[Any, ...]:
        """The bound params, in the order of binding."""
        return self._bound.params

    @property
    def params_digest(self) -> str:
        """A digest of the bound params, by which a session recognizes a run that is to be restarted."""
        return self._bound.params_digest

    @property
    def overrides_store(self) -> PromptOverridesStore | None:
        return self._bound.overrides_store

    @property
    def overrides_tag(self) -> str:
        """The tag of the stored override that is applied; empty if there is none."""
        return self.bound().overrides_tag

    def bind(self, *params: Any, resources: ResourceRegistry | Mapping[type, Any] | None = None) -> Prompt[OutputT]:
        """Bind instances by their type, and resources that take precedence over the template's and the sections'.

        A dict is bound as the template's TypedDict with the same keys. A run keeps the params and the resources with
        which it began. Resources cannot be bound while those of the prompt are held open; bind a copy instead.
        """
        registry = ResourceRegistry().merge(resources)
        if len(registry) and self.resources.held_open:
            raise PromptValidationError(
                f"Resources of prompt '{self.name}' cannot be bound while they are open; write "
                "copy(prompt).bind(resources=...), or bind them before `with`."
            )
        with self._binding:
            bound = self._bound.with_params(params)
            self._bound = bound.with_resources(registry) if len(registry) else bound
        return self

    def rebind(self, params: Iterable[Any]) -> None:
        """Bind exactly these params, in place of all that are bound."""
        with self._binding:
            self._bound = self._bound.with_params(params, only=True)

    def __copy__(self) -> Self:
        """A prompt to bind and run independently of this one.

        While this one's resources are held open, the copy uses those, unless others are bound to it.
        """
        other = object.__new__(type(self))
        vars(other).update(vars(self), _binding=threading.Lock())
        other.resources = PromptResources(other._current, lender=self.resources)
        return other

    def with_overrides(self, store: PromptOverridesStore, tag: str) -> Self:
        """A copy of this prompt, to which the store's override with this tag applies."""
        return self._copy_with(replace(self._bound, overrides_store=store, requested_tag=tag))

    def with_template(self, template: PromptTemplate[Any]) -> Self:
        """A copy of this prompt that is bound to a variant of its template."""
        return self._copy_with(self._bound.with_template(template))

    def _copy_with(self, bound: BoundPrompt[Any]) -> Self:
        other = self.__copy__()
        other._bound = bound
        return other

    def render(
        self,
        *,
        session: Session | None = None,
        visibility_overrides: Overrides | None = None,
        deadline: Deadline | None = None,
    ) -> RenderedPrompt[OutputT]:
        """Text and tools as the model would see them now."""
        return self.bound().render(session=session, visibility_overrides=visibility_overrides, deadline=deadline)

    def view(self, session: Session | None = None) -> View:
        """The sections shown and the tools offered now; a tool's `context.view` also knows what its run began with."""
        return self.bound().view(session)

    def __repr__(self) -> str:
        return f"Prompt({self.ns!r}, {self.key!r})"

    def _display(self) -> Iterator[Shown]:
        yield from self.bound()._display()


def _with_output(template: PromptTemplate[Any], output_type: Any) -> PromptTemplate[Any]:
    """The template with this output type; raises if it already declares a different one."""
    requested = structured_output(output_type, template.allow_extra_keys)
    if template.structured_output == requested:
        return template
    if template.structured_output is not None:
        raise PromptValidationError(
            f"Prompt[{requested.name}] cannot be made of '{template.key}', whose output is "
            f"{template.structured_output.name}; write Prompt(template)."
        )
    return template.with_(output=output_type)


@quick_init
@dataclass(frozen=True, slots=True)
class ToolContext(HandlerContext):
    """The context of a tool call: the session, resources and limits of the run, and which call this is.

    `deadline` is that of the run, or of this call if its timeout ends earlier. `prompt` is what was bound when the run
    began. `idempotency_key` is the same for every attempt at this call, also if the run is resumed, and no other call
    has it. `presentation` is the prompt as the run shows it, and `sink` receives what the call emits. `run` is the run
    itself, for tools that run others inside it.
    """

    session: Session  #: the session of the run
    resources: ScopedResourceContext  #: the resources bound for the run
    prompt: BoundPrompt[Any] | Prompt[Any]  #: the prompt of the run; in a test of a handler, any
    call_id: str = ""  #: the id of this call
    deadline: Deadline | None = None
    budget: Budget | None = None  #: the budget of the run
    idempotency_key: str = ""
    presentation: Presentation | None = None
    sink: Callable[[Any], None] | None = None  #: receives what the call emits
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
        presentation = self.presentation or self.prompt.bound().present(self.session)
        value = presentation.params(params_type)
        if value is not None:
            return value
        wanted = getattr(params_type, "__qualname__", repr(params_type))
        bound = ", ".join(type(params).__qualname__ for params in self.prompt.params) or "none"
        raise UnboundParamsError(
            f"Prompt '{self.prompt.name}' has no params of type {wanted} (bound: {bound}); "
            f"pass them to prompt.bind({wanted}(...)).",
            params_type=wanted,
        )

    @property
    def filesystem(self) -> Filesystem | None:
        """The prompt's filesystem, if a section or the caller provides one."""
        return self.resources.get_optional(Filesystem)
