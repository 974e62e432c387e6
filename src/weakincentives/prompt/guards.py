"""Guards: rules of a template or section that are checked in code, and what they may decide."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from weakincentives._base.frozen import quick_init
from weakincentives.errors import PromptValidationError
from weakincentives.prompt.tools import HostedTool, ToolResult, check_timeout

Hook = Literal["before_run", "before_tool", "after_tool", "before_answer"]
HOOKS: tuple[Hook, ...] = get_args(Hook)
TOOL_HOOKS: tuple[Hook, ...] = ("before_tool", "after_tool")


@dataclass(frozen=True, slots=True)
class _Said:
    """An outcome with a text."""

    message: str  #: the text

    def __post_init__(self) -> None:
        if not isinstance(self.message, str) or not self.message.strip():
            raise TypeError(f"{type(self).__name__} takes a text, got {self.message!r}")


class Refuse(_Said):
    """Refuse: a tool call fails with this message, which the model reads; the user's words or an answer end the run."""

    __slots__ = ()
    kind: ClassVar[str] = "refuse"


class Retry(_Said):
    """Have the model answer again, with this feedback; for `before_answer`."""

    __slots__ = ()
    kind: ClassVar[str] = "retry"


class Ask(_Said):
    """Have a person decide about the call, who reads this text; for `before_tool`."""

    __slots__ = ()
    kind: ClassVar[str] = "ask"


class Stop(_Said):
    """End the run, for this reason."""

    __slots__ = ()
    kind: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True)
class Replace:
    """Go on with this value: the words, the params, the `ToolResult`, or the answer as text or typed output."""

    value: Any  #: the value to use


OUTCOMES: dict[Hook, tuple[type[Any], ...]] = {
    "before_run": (Refuse, Replace, Stop),
    "before_tool": (Refuse, Replace, Ask, Stop),
    "after_tool": (Refuse, Replace, Stop),
    "before_answer": (Refuse, Replace, Retry, Stop),
}
"""The outcomes that each hook may return, besides None."""
Outcome: TypeAlias = Refuse | Replace | Retry | Ask | Stop
Decided: TypeAlias = Outcome | Awaitable[Outcome | None] | None


@quick_init
@dataclass(frozen=True, slots=True)
class GuardedCall:
    """A tool call as guards see it: `params` is the typed value, `arguments` its JSON text."""

    id: str  #: the id of the call
    name: str  #: the tool's own name, as its section has it
    arguments: str
    params: Any
    section_key: str = ""  #: the section that offers the tool
    offered_name: str = ""  #: the name under which the model calls it, if that may be another


class Guard:
    """A rule that no prompt can talk away. Override the hooks you need, sync or async; None allows.

        class NoBigRefunds(Guard):
            def before_tool(self, call, *, context):
                if call.name == "refund" and call.params.amount > 100:
                    return Refuse("Refunds above 100 are made by the office.")

    `guards=` of a template holds for all of its runs, `guards=` of a section while that section is open. A hook that
    raises, returns something else, or takes longer than `timeout` seconds refuses. With `hold`, a stream shows no text
    before `before_answer` has passed. If `tools` names some, the tool hooks are called for these alone: a tool's own
    name holds for the tools of any section, whatever they are offered as, and `section.tool` for one of them. `context`
    is a `GuardContext`.
    """

    timeout: float = 10.0
    hold: bool = False
    tools: Collection[str] = ()
    needs_each_tool: ClassVar[bool] = True
    """False if the guard also works where only some of its tools are there."""

    @property
    def name(self) -> str:
        """The name of its class, by which errors and events name it."""
        return type(self).__name__

    def before_run(self, words: str, *, context: Any) -> Decided:
        """Decide about the user's words, before they are added to the conversation."""
        return None

    def before_tool(self, call: GuardedCall, *, context: Any) -> Decided:
        """Decide about a tool call, before a person is asked and before it runs."""
        return None

    def after_tool(self, call: GuardedCall, result: ToolResult[Any], *, context: Any) -> Decided:
        """Decide about a result; a refusal undoes what the call did."""
        return None

    def before_answer(self, answer: str, *, context: Any) -> Decided:
        """Decide about the answer; `context.output` is the typed value, if the template declares one."""
        return None

    def has(self, hook: Hook) -> bool:
        """True if the guard overrides this hook."""
        return getattr(getattr(self, hook), "__func__", None) is not getattr(Guard, hook)


def by_hook(guards: Iterable[Guard]) -> dict[Hook, tuple[Guard, ...]]:
    """The guards that have each hook."""
    given = tuple(guards)
    return {hook: tuple(guard for guard in given if guard.has(hook)) for hook in HOOKS}


def require_guards(whose: str, given: Any) -> tuple[Guard, ...]:
    """The guards of a list argument; an error names what is wrong with one that could never work."""
    if isinstance(given, Guard) or not isinstance(given, Iterable):
        raise PromptValidationError(f"{whose}: guards= takes a list, got {given!r}; write guards=[...].")
    guards = tuple(given)
    for guard in guards:
        if isinstance(guard, type) and issubclass(guard, Guard):
            raise PromptValidationError(f"{whose}: guards= got the class {guard.__name__}; write {guard.__name__}().")
        if not isinstance(guard, Guard):
            raise PromptValidationError(f"{whose}: guards= must hold Guard objects, got {guard!r}.")
        _check(f"{whose}: guard '{guard.name}'", guard)
    return guards


def _check(which: str, guard: Guard) -> None:
    if guard.timeout is None:
        raise PromptValidationError(f"{which}: timeout must be a number of seconds, got None.")
    check_timeout(f"{which}: timeout", guard.timeout)
    if isinstance(guard.tools, str):
        raise PromptValidationError(f"{which}: tools must be a tuple of names, got {guard.tools!r}.")
    unknown = [name for name in dir(guard) if name.startswith(("before_", "after_")) and name not in HOOKS]
    hooks = [hook for hook in HOOKS if guard.has(hook)]
    if unknown or not hooks:
        found = f"has {unknown[0]}, which is no hook" if unknown else "has no hook"
        raise PromptValidationError(f"{which} {found}; hooks are {', '.join(HOOKS)}.")
    for hook in hooks:
        given = ("call", "result") if hook == "after_tool" else (hook,)
        try:
            inspect.signature(getattr(guard, hook)).bind(*given, context=None)
        except TypeError as error:
            problem = f"{hook} cannot be called: {error}; write `def {hook}(self, ..., *, context)`"
            raise PromptValidationError(f"{which}: {problem}.") from None


def check_hosted_names(whose: str, guards: Iterable[Guard], hosted: Iterable[HostedTool[Any]]) -> None:
    """Reject a guard that names a hosted tool, which no guard would ever see."""
    names = {name: tool for tool in hosted for name in (tool.name, tool.kind)}
    for guard in guards:
        for name in guard.tools:
            if name in names:
                raise PromptValidationError(
                    f"{whose}: guard '{guard.name}' names the hosted tool '{name}', which runs at the provider and "
                    "passes no guard; leave that tool out, or close its section."
                )


def check_tool_names(whose: str, guards: Iterable[Guard], names: Collection[str], known: Collection[str]) -> None:
    """Reject a guard that names a tool which no section can have: it would never be asked.

    `names` are those of the tools, and `known` all those by which a guard may know one.
    The tools of a page and of a provider are not known before a run.
    """
    for guard in guards:
        if missing := missing_tools(guard, known):
            raise PromptValidationError(missing_tool_problem(whose, guard, missing[0], names))


def missing_tools(guard: Guard, names: Collection[str]) -> list[str]:
    """The tools of a guard that are not among these names, and belong neither to a page nor to a provider."""
    missing = [name for name in guard.tools if name not in names and not is_page_tool(name)]
    if not guard.needs_each_tool and len(missing) < len(guard.tools):
        return []
    return [name for name in missing if not is_provider_tool(name)]


def missing_tool_problem(whose: str, guard: Guard, name: str, names: Collection[str]) -> str:
    return (
        f"{whose}: guard '{guard.name}' names the tool '{name}', which no section has, so it would never be asked; the "
        f"tools are {', '.join(sorted(names)) or 'none'}. For a tool that a run is given by tools=, leave out `tools` "
        "and look at call.name."
    )


def is_page_tool(name: str) -> bool:
    """True for the name of a tool that a web page brings with a message."""
    return name.startswith("page.")


def is_provider_tool(name: str) -> bool:
    """True for a name as providers give their own tools, such as Bash or mcp__files__read of Claude Code."""
    return name[:1].isupper() or name.startswith("mcp__")
