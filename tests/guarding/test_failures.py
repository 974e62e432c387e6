"""Guards that fail refuse, by name; those that could never work are rejected where they are declared."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.guarding.cases import OUTSIDE, Paid, prompt_for
from tests.waiting import forever
from weakincentives import (
    Deadline,
    DeadlineExceededError,
    FallbackAdapter,
    MarkdownSection,
    PromptTemplate,
    PromptValidationError,
    ScriptedAdapter,
    Session,
    call,
    run,
    run_async,
)
from weakincentives.guards import (
    Ask,
    Guard,
    GuardDecided,
    GuardRefusedError,
    MaxCalls,
    OutputCheck,
    Refuse,
    Replace,
    RequiresTool,
    Retry,
    Stop,
)
from weakincentives.runtime import MainLoop, Message, RunEnded
from weakincentives.tools.web_search import WebSearchConfig, web_search_tool

HOOKS = ("before_run", "before_tool", "after_tool", "before_answer")
RELEASED = threading.Event()


def raises(error: BaseException) -> Callable[..., Any]:
    def hook(*given: Any, context: Any) -> Any:
        raise error

    return hook


def returns(value: Any) -> Callable[..., Any]:
    return lambda *given, context: value


def hangs(*given: Any, context: Any) -> Any:
    RELEASED.wait(30)


BROKEN: dict[str, Callable[..., Any]] = {
    "raises": raises(ValueError("broken")),
    "exits": raises(SystemExit(3)),
    "stops iterating": raises(StopIteration()),
    "is cancelled": raises(asyncio.CancelledError()),
    "says True": returns(True),
    "says False": returns(False),
    "says a word": returns("unsafe"),
    "gives a class": returns(Refuse),
    "gives a number": returns(0),
    "replaces by nonsense": returns(Replace(object())),
    "hangs": hangs,
}
WRONG = {hook: Retry("again") if hook != "before_answer" else Ask("may I?") for hook in HOOKS}


def broken(hook: str, function: Callable[..., Any], *, is_async: bool) -> Guard:
    async def later(self: Guard, *given: Any, context: Any) -> Any:
        if function is hangs:
            await forever()
        return function(*given, context=context)

    def now(self: Guard, *given: Any, context: Any) -> Any:
        return function(*given, context=context)

    timeout = 0.05 if function is hangs else 10.0
    made: type[Guard] = type("Broken", (Guard,), {hook: later if is_async else now, "timeout": timeout})
    return made()


def outcome_of(hook: str, guard: Guard, *, driver: str) -> str:
    """The text with which a run with the guard was refused."""
    OUTSIDE.clear()
    session = Session()
    # None of the answers pass.
    model = ScriptedAdapter([call("pay", amount=5), "Done.", "Done."], tool_errors="tell")
    try:
        if driver == "async":
            asyncio.run(run_async(prompt_for(guard), model, session=session))
        else:
            run(prompt_for(guard), model, session=session)
    except GuardRefusedError as error:
        assert hook in ("before_run", "before_answer")
        assert (error.message, error.guard) == ("", "Broken")
        text = str(error)
    else:
        assert hook in ("before_tool", "after_tool")
        (text,) = [message.text for message in session[Message].all() if message.role == "tool"]
        assert session[Paid].all() == ()
        assert ([] if hook == "before_tool" else ["pay 5", "undo 5"]) == OUTSIDE
    (decided,) = session[GuardDecided].all()
    assert (decided.guard, decided.hook, decided.outcome) == ("Broken", hook, "refuse")
    assert decided.message in text
    return text


@pytest.mark.parametrize("driver", ["sync", "async"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync guard", "async guard"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_guard_that_fails_refuses_by_name(
    hook: str, is_async: bool, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    RELEASED.clear()
    with caplog.at_level(logging.CRITICAL, "weakincentives"):
        for what, function in BROKEN.items():
            text = outcome_of(hook, broken(hook, function, is_async=is_async), driver=driver)
            expected = "Guard 'Broken' did not decide within 0.05 s." if what == "hangs" else "Guard 'Broken' failed: "
            assert expected in text, what
        wrong = outcome_of(hook, broken(hook, returns(WRONG[hook]), is_async=is_async), driver=driver)
    assert f"{hook} must return None or one of Refuse, Replace" in wrong
    RELEASED.set()


def test_what_a_guard_writes_after_its_time_is_refused() -> None:
    session, tried, ended = Session(), threading.Event(), []

    class Late(Guard):
        timeout = 0.05

        def before_tool(self, call: Any, *, context: Any) -> None:
            tried.wait(10)
            try:
                context.session.dispatch(Paid(1))
            except Exception as error:
                ended.append(type(error).__name__)
            written.set()

    written = threading.Event()
    assert run(prompt_for(Late()), ScriptedAdapter([call("pay", amount=5), "Done."]), session=session).text == "Done."
    tried.set()
    assert written.wait(10)
    assert (session[Paid].all(), ended) == ((), ["AbandonedCallError"])


def test_guards_behind_one_that_hangs_are_still_asked() -> None:
    released, asked = threading.Event(), []

    class Hangs(Guard):
        timeout = 0.05

        def before_tool(self, call: Any, *, context: Any) -> None:
            released.wait(10)

    class Stops(Guard):
        def before_tool(self, call: Any, *, context: Any) -> Stop:
            asked.append(call.name)
            return Stop("Enough.")

    with pytest.raises(GuardRefusedError, match=r"Stops stopped 'guarding': Enough\."):
        run(prompt_for(Hangs(), Stops()), ScriptedAdapter([call("pay", amount=5)]))
    released.set()
    assert asked == ["pay"]


@pytest.mark.parametrize("hook", HOOKS)
def test_the_deadline_of_the_run_is_above_the_timeout(hook: str) -> None:
    async def waits(self: Guard, *given: Any, context: Any) -> None:
        await forever()

    guard: Guard = type("Slow", (Guard,), {hook: waits})()
    session = Session()
    with pytest.raises(DeadlineExceededError, match="passed while its guards were asked"):
        run(
            prompt_for(guard),
            ScriptedAdapter([call("pay", amount=5), "Done."]),
            session=session,
            deadline=Deadline.after(0.2),
        )
    assert session[Paid].all() == ((Paid(5),) if hook == "before_answer" else ())


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync guard", "async guard"])
def test_a_run_that_is_cancelled_while_a_guard_is_asked_ends_at_once(hook: str, is_async: bool) -> None:
    RELEASED.clear()
    OUTSIDE.clear()
    session, begun = Session(), threading.Event()

    async def waits(self: Guard, *given: Any, context: Any) -> None:
        begun.set()
        await forever()

    def blocks(self: Guard, *given: Any, context: Any) -> None:
        begun.set()
        RELEASED.wait(30)

    guard: Guard = type("Slow", (Guard,), {hook: waits if is_async else blocks})()

    async def work() -> None:
        model = ScriptedAdapter([call("pay", amount=5), "Done."])
        running = asyncio.create_task(run_async(prompt_for(guard), model, session=session))
        await asyncio.to_thread(begun.wait, 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 10)

    asyncio.run(work())
    RELEASED.set()
    assert session[RunEnded].latest().status == "stopped"  # type: ignore[union-attr]
    assert session[Paid].all() == ((Paid(5),) if hook == "before_answer" else ())
    assert {"after_tool": ["pay 5", "undo 5"], "before_answer": ["pay 5"]}.get(hook, []) == OUTSIDE


def test_a_stream_that_is_closed_while_a_guard_is_asked_runs_nothing() -> None:
    OUTSIDE.clear()
    begun, released = threading.Event(), threading.Event()

    class Slow(Guard):
        def before_tool(self, call: Any, *, context: Any) -> None:
            begun.set()
            released.wait(10)

    model = ScriptedAdapter([call("pay", amount=5), "Done."])
    stream = MainLoop().stream(prompt_for(Slow()), session=Session(), adapter=model)
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    assert begun.wait(10)
    stream.close()
    released.set()
    reader.join(10)
    assert OUTSIDE == []


def test_another_adapter_does_not_take_over_what_a_guard_refused() -> None:
    class Never(Guard):
        def before_answer(self, answer: str, *, context: Any) -> Refuse:
            return Refuse("No.")

    second = ScriptedAdapter(["Done."])
    with pytest.raises(GuardRefusedError, match=r"Never refused the answer of 'guarding': No\."):
        run(prompt_for(Never()), FallbackAdapter(ScriptedAdapter(["Done."]), second))
    assert second.requests == []


class Silent(Guard):
    """It has no hook."""


class Mistyped(Guard):
    def before_tool(self, call: Any, *, context: Any) -> None: ...
    def before_anwser(self, answer: str, *, context: Any) -> None: ...


class NoContext(Guard):
    def before_tool(self, call: Any) -> None: ...  # type: ignore[override]


class Timeless(Guard):
    timeout = None  # type: ignore[assignment]

    def before_tool(self, call: Any, *, context: Any) -> None: ...


class OneName(Guard):
    tools = "pay"

    def before_tool(self, call: Any, *, context: Any) -> None: ...


@pytest.mark.parametrize(
    ("guards", "problem"),
    [
        ([Silent()], "guard 'Silent' has no hook; hooks are before_run"),
        ([Mistyped()], "guard 'Mistyped' has before_anwser, which is no hook; hooks are"),
        ([NoContext()], "guard 'NoContext': before_tool cannot be called: got an unexpected keyword argument"),
        ([Timeless()], "guard 'Timeless': timeout must be a number of seconds, got None"),
        ([OneName()], "guard 'OneName': tools must be a tuple of names, got 'pay'"),
        ([Silent], r"got the class Silent; write Silent\(\)"),
        ([lambda call: None], "guards= must hold Guard objects"),
        (MaxCalls("pay", 1), r"guards= takes a list, got .*; write guards=\[\.\.\.\]"),
    ],
)
def test_a_guard_that_could_not_work_is_rejected_where_it_is_declared(guards: Any, problem: str) -> None:
    for declare in (
        lambda: PromptTemplate(ns="tests", key="k", guards=guards),
        lambda: MarkdownSection(key="k", title="K", template="x", guards=guards),
    ):
        with pytest.raises(PromptValidationError, match=problem):
            declare()


@pytest.mark.parametrize("make", [lambda: MaxCalls("", 1), lambda: MaxCalls("pay", -1), lambda: MaxCalls("pay", True)])
def test_a_rule_with_wrong_arguments_is_rejected(make: Callable[[], Guard]) -> None:
    with pytest.raises(PromptValidationError):
        make()


@pytest.mark.parametrize("make", [RequiresTool, OutputCheck])
def test_a_rule_about_nothing_is_rejected(make: Callable[[Any], Guard]) -> None:
    with pytest.raises(PromptValidationError, match=f"{make.__name__} takes"):  # type: ignore[attr-defined]
        make(7)


@pytest.mark.parametrize("outcome", [Refuse, Retry, Ask, Stop])
def test_an_outcome_needs_words(outcome: Any) -> None:
    for words in ("", "  ", None, 7):
        with pytest.raises(TypeError, match=f"{outcome.__name__} takes a text"):
            outcome(words)


def test_a_guard_that_names_a_hosted_tool_is_rejected() -> None:
    search = web_search_tool(WebSearchConfig())
    section = MarkdownSection(key="web", title="Web", template="Search.", hosted_tools=[search])
    problem = r"guard 'MaxCalls' names the hosted tool 'web_search', which runs at the provider and passes no guard"
    with pytest.raises(PromptValidationError, match=problem):
        PromptTemplate(ns="tests", key="k", sections=[section], guards=[MaxCalls("web_search", 1)])
