"""Code that raises SystemExit, GeneratorExit or the like fails, and does not end the program, the loop or the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.helpers.endings import endings
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import WinkError
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.resources import Binding, ResourceRegistry, Scope
from weakincentives.runtime import (
    MainLoop,
    Message,
    ResourcesNotClosed,
    ToolInvoked,
)
from weakincentives.session import Session

EXITS: dict[str, Callable[[], BaseException]] = {
    "SystemExit: 2": lambda: SystemExit(2),
    "GeneratorExit: ": GeneratorExit,
    "StopIteration: ": StopIteration,
    "CancelledError: ": asyncio.CancelledError,
}


def evaluate(adapter: ScriptedAdapter, prompt: Prompt[Any], session: Session) -> Any:
    return adapter.evaluate(prompt, session=session).text


def stream(adapter: ScriptedAdapter, prompt: Prompt[Any], session: Session) -> Any:
    with adapter.stream(prompt, session=session) as events:
        return list(events)[-1].response.text  # type: ignore[union-attr]


def beside_others(run: Callable[[], Any]) -> Any:
    """Run on an event loop on which another task is waiting, which must outlive it."""

    async def main() -> Any:
        go = asyncio.Event()
        other = asyncio.ensure_future(go.wait())
        try:
            return await asyncio.wait_for(run(), 20)
        finally:
            go.set()
            assert await other

    return asyncio.run(main())


def evaluate_async(adapter: ScriptedAdapter, prompt: Prompt[Any], session: Session) -> Any:
    async def run() -> Any:
        return (await MainLoop().execute_async(prompt, session=session, adapter=adapter)).text

    return beside_others(run)


def stream_async(adapter: ScriptedAdapter, prompt: Prompt[Any], session: Session) -> Any:
    async def run() -> Any:
        async with adapter.stream_async(prompt, session=session) as events:
            return [event async for event in events][-1].response.text  # type: ignore[union-attr]

    return beside_others(run)


FRONTS = [evaluate, stream, evaluate_async, stream_async]


def prompt_with(tool: Tool[Any, Any], **options: Any) -> Prompt[None]:
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool])
    return Prompt(ns="tests", key="exits", sections=[task], **options)


def leaving(exits: str, how: str) -> Any:
    def leave(params: None, *, context: ToolContext) -> ToolResult[None]:
        raise EXITS[exits]()

    async def leave_async(params: None, *, context: ToolContext) -> ToolResult[None]:
        await asyncio.sleep(0)
        # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
        raise EXITS[exits]()

    return leave_async if how == "async" else leave


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("how", ["blocking", "async"])
@pytest.mark.parametrize("exits", EXITS)
def test_a_tool_that_exits_has_failed_and_the_run_goes_on(exits: str, how: str, calls: int, front: Any) -> None:
    leave: Tool[None, None] = Tool(name="leave", description="Leave.", handler=leaving(exits, how), read_only=calls > 1)
    session, adapter = Session(), ScriptedAdapter([[call("leave")] * calls, "Done."])
    assert front(adapter, prompt_with(leave), session) == "Done."
    told = [message.text for message in session[Message] if message.role == "tool"]
    assert all(text.startswith("Tool 'leave' failed: ") and exits.split(":")[0] in text for text in told)
    if exits.startswith("SystemExit"):
        assert told == ["Tool 'leave' failed: SystemExit: 2"] * calls
    assert [event.success for event in session[ToolInvoked]] == [False] * calls


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("how", ["blocking", "async"])
@pytest.mark.parametrize("exits", EXITS)
def test_a_compensation_that_exits_is_reported_and_the_call_rolled_back(exits: str, how: str, front: Any) -> None:
    def fail(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult("No.", success=False)

    charge: Tool[None, None] = Tool(name="charge", description="Charge.", handler=fail, compensate=leaving(exits, how))
    session = Session()
    assert front(ScriptedAdapter([call("charge"), "Done."]), prompt_with(charge), session) == "Done."
    (event,) = session[ToolInvoked]
    assert event.rolled_back and event.compensation.startswith("Compensation of 'charge' failed: ")


class Odd(BaseException):
    """One that means to stop the program, as far as anyone can tell."""


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("how", ["blocking", "async"])
def test_any_other_exception_that_is_no_error_stops_the_run_and_is_recorded(
    how: str, front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXITS, "Odd", Odd)
    leave: Tool[None, None] = Tool(name="leave", description="Leave.", handler=leaving("Odd", how))
    session = Session()
    with pytest.raises(Odd):
        front(ScriptedAdapter([call("leave")]), prompt_with(leave), session)
    assert [event.rolled_back for event in session[ToolInvoked]] == [True]
    assert len(endings(session, "stopped")) == 1


@dataclass(frozen=True)
class Counted:
    number: int


class Stubborn:
    """A resource that exits when it is closed."""

    def close(self) -> None:
        raise SystemExit(2)


def leave(*arguments: Any, **named: Any) -> Any:
    raise SystemExit(2)


def exits_in_a_selector() -> tuple[Prompt[None], Session]:
    section = MarkdownSection(title="T", key="t", template="Go.", summary="Go?", visibility=lambda: leave())
    return Prompt(ns="tests", key="exits", sections=[section]), Session()


def exits_in_a_provider() -> tuple[Prompt[None], Session]:
    eager = ResourceRegistry.of(Binding(Stubborn, leave, eager=True))
    return prompt_with(use, resources=eager), Session()


def exits_in_a_reducer() -> tuple[Prompt[None], Session]:
    session = Session()
    session[ToolInvoked].register(ToolInvoked, leave)
    return prompt_with(use), session


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("place", [exits_in_a_selector, exits_in_a_provider, exits_in_a_reducer])
def test_other_code_that_exits_fails_its_run(place: Any, front: Any) -> None:
    prompt, session = place()
    with pytest.raises(WinkError, match=r"SystemExit\(2\)"):
        front(ScriptedAdapter([call("use"), "Done."]), prompt, session)
    if place is not exits_in_a_provider:
        assert (len(endings(session, "failed")), len(endings(session, "stopped"))) == (1, 0)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("scope", [Scope.SINGLETON, Scope.TOOL_CALL])
def test_a_resource_that_exits_when_it_is_closed_could_not_be_closed(scope: Scope, front: Any) -> None:
    resources = ResourceRegistry.of(Binding(Stubborn, lambda resolver: Stubborn(), scope=scope))
    session = Session()
    assert front(ScriptedAdapter([call("use"), "Done."]), prompt_with(use, resources=resources), session) == "Done."
    reported = [event.message for event in session[ResourcesNotClosed]]
    reported += [event.result.message for event in session[ToolInvoked] if not event.success]
    assert len(reported) == 1 and "Could not close Stubborn: it raised SystemExit(2)" in reported[0]


def _use(params: None, *, context: ToolContext) -> ToolResult[None]:
    context.resources.get_optional(Stubborn)
    return ToolResult("Used.")


use: Tool[None, None] = Tool(name="use", description="Use.", handler=_use)
