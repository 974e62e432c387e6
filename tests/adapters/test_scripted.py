"""A scripted model, with which a bug in a tool fails the test instead of being sent to the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from weakincentives import run, run_async
from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import UnboundParamsError, WinkError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult, tool
from weakincentives.resources import (
    Binding,
    CircularDependencyError,
    ResourceError,
    ResourceRegistry,
    Scope,
    ScopeError,
    UnboundResourceError,
)
from weakincentives.runtime import Conversation, RunEnded, ToolInvoked
from weakincentives.session import Session


class Database:
    pass


class Connection:
    pass


class Transaction:
    pass


class Pool:
    pass


class Cache:
    pass


async def connect(resources: Any) -> Connection:
    return Connection()


MISUSED = ResourceRegistry.of(
    Binding(Connection, connect),
    Binding(Transaction, lambda r: Transaction(), scope=Scope.TOOL_CALL),
    Binding(Pool, lambda r: r.get(Transaction)),
    Binding(Cache, lambda r: r.get(Cache)),
)


@dataclass(frozen=True)
class Note:
    pass


def attribute(context: ToolContext) -> Any:
    return context.sesion  # type: ignore[attr-defined]


def name(context: ToolContext) -> Any:
    return undefined  # type: ignore[name-defined]  # noqa: F821


def unpacking(context: ToolContext) -> Any:
    return len(None)  # type: ignore[arg-type]


def assertion(context: ToolContext) -> Any:
    assert context.call_id == "another", "wrong call"


def resource(context: ToolContext) -> Any:
    return context.resources.get(Database)


def without_await(context: ToolContext) -> Any:
    return context.resources.get(Connection)


def scope(context: ToolContext) -> Any:
    return context.resources.get(Pool)


def circle(context: ToolContext) -> Any:
    return context.resources.get(Cache)


def params(context: ToolContext) -> Any:
    return context.params(Note)


def value(context: ToolContext) -> Any:
    raise ValueError("no such order")


def lookup(context: ToolContext) -> Any:
    return {}["order"]


MISTAKES: list[tuple[Callable[[ToolContext], Any], type[Exception]]] = [
    (attribute, AttributeError),
    (name, NameError),
    (unpacking, TypeError),
    (assertion, AssertionError),
    (resource, UnboundResourceError),
    (scope, ScopeError),
    (circle, CircularDependencyError),
    (params, UnboundParamsError),
]
WAYS = [
    *((*mistake, is_async) for mistake in MISTAKES for is_async in (False, True)),
    (without_await, ResourceError, True),  # A sync handler may block until the resource is created.
]
SCRIPT = [call("act"), "Done."]


def acting(body: Callable[[ToolContext], Any], *, is_async: bool = False, read_only: bool = False) -> Prompt[Any]:
    def act(*, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(Note())
        body(context)
        return ToolResult("ok")

    async def act_async(*, context: ToolContext) -> ToolResult[None]:
        return act(context=context)

    made: Tool[Any, Any] = tool(name="act", description="Act.", read_only=read_only)(act_async if is_async else act)
    section = MarkdownSection(key="s", title="S", template="Go.", tools=[made])
    return Prompt(PromptTemplate(ns="t", key="t", sections=[section], resources=MISUSED))


@pytest.mark.parametrize(("body", "error", "handler_is_async"), WAYS)
@pytest.mark.parametrize("form", ["run", "run_async", "stream", "fallback", "parallel"])
def test_a_programming_error_of_a_tool_is_raised(
    body: Callable[[ToolContext], Any], error: type[Exception], handler_is_async: bool, form: str
) -> None:
    session = Session()
    prompt = acting(body, is_async=handler_is_async, read_only=form == "parallel")
    adapter = ScriptedAdapter([[call("act"), call("act")], "Done."] if form == "parallel" else SCRIPT)
    with pytest.raises(error) as caught:
        if form == "run_async":
            asyncio.run(run_async(prompt, adapter, session=session))
        elif form == "stream":
            list(Conversation(prompt, adapter=adapter, session=session).stream("Go."))
        elif form == "fallback":
            run(prompt, FallbackAdapter(adapter, ScriptedAdapter(["Never."])), session=session)
        else:
            run(prompt, adapter, session=session)
    assert caught.traceback[-1].name == body.__name__ or issubclass(error, WinkError)
    assert {event.success for event in session[ToolInvoked]} == {False}
    assert [event.error for event in session[RunEnded]] == [error.__name__]
    assert len(session[Note]) == (0 if form != "parallel" else 2)


@pytest.mark.parametrize(("body", "error"), [*MISTAKES, (value, ValueError), (lookup, KeyError)])
@pytest.mark.parametrize("tool_errors", ["raise", "tell"])
def test_the_model_reads_other_errors_and_all_of_them_if_asked_to(
    body: Callable[[ToolContext], Any], error: type[Exception], tool_errors: Literal["raise", "tell"]
) -> None:
    if tool_errors == "raise" and error not in (ValueError, KeyError):
        return
    adapter = ScriptedAdapter(SCRIPT, tool_errors=tool_errors)
    assert run(acting(body), adapter).text == "Done."
    assert f"Tool 'act' failed: {error.__name__}: " in adapter.requests[1].messages[-1].text


def test_another_word_for_the_errors_of_tools_is_refused() -> None:
    with pytest.raises(ValueError, match="tool_errors must be 'raise' or 'tell', got 'ignore'"):
        ScriptedAdapter([], tool_errors="ignore")  # type: ignore[arg-type]
