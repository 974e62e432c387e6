"""An adapter with only an `evaluate` of its own is complete: it restarts as any other does, in both worlds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.disclosure.desk import section
from tests.helpers.endings import endings
from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import (
    MarkdownSection,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    VisibilityExpansionRequired,
    VisibilityOverrides,
)
from weakincentives.runtime import Conversation, MainLoop, PromptResponse, ProviderAdapter, delegate
from weakincentives.session import Session

FULL = SectionVisibility.FULL
TEMPLATE = PromptTemplate[None](
    ns="tests",
    key="own",
    sections=[section("a", tools=("use_a",)), section("b", tools=("use_b",))],
    disclosure=OpenOrRead(),
)


def answer(prompt: Prompt[Any], session: Session) -> PromptResponse[Any]:
    """What each of these adapters does: it asks for one closed section after the other, and then answers."""
    text = prompt.render(session=session).text
    for key in ("a", "b"):
        if f"All of {key}." not in text:
            raise VisibilityExpansionRequired(requested_overrides={(key,): FULL}, reason="needed", section_keys=(key,))
    return PromptResponse(prompt_name=prompt.name, text="done", output=None)


class AsDeclared(ProviderAdapter[Any]):
    """As the specs declare it."""

    name = "own"

    def evaluate(self, prompt: Any, *, session: Session) -> Any:  # type: ignore[override]
        return answer(prompt, session)


class WithOptions(ProviderAdapter[Any]):
    name = "own"

    def evaluate(self, prompt: Any, *, session: Session, **options: Any) -> Any:
        return answer(prompt, session)


class OnlyAsync(ProviderAdapter[Any]):
    name = "own"

    async def evaluate_async(self, prompt: Any, *, session: Session) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return answer(prompt, session)


class Both(AsDeclared):
    async def evaluate_async(self, prompt: Any, *, session: Session) -> Any:  # type: ignore[override]
        return answer(prompt, session)


class AroundAnother(ProviderAdapter[Any]):
    """Passes all on to an adapter of the library, which asks for the sections by its strategy."""

    name = "own"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.inner = opening()

    def evaluate(self, prompt: Any, *, session: Session, **options: Any) -> Any:
        return self.inner.evaluate(prompt, session=session, **options)


class Below(ScriptedAdapter):
    """Derived from an adapter of the library, with both methods of its own."""

    name = "own"

    def __init__(self, model: str) -> None:
        super().__init__(["done"], model=model)

    def evaluate(self, prompt: Any, *, session: Session, **options: Any) -> Any:
        answer(prompt, session)
        return super().evaluate(prompt, session=session, **options)

    async def evaluate_async(self, prompt: Any, *, session: Session, **options: Any) -> Any:
        answer(prompt, session)
        return await super().evaluate_async(prompt, session=session, **options)


def opening() -> ScriptedAdapter:
    lines = [call("open_sections", section_keys=[key], reason="needed") for key in ("a", "b")]
    return ScriptedAdapter([*lines, "done"])


def broken() -> ScriptedAdapter:
    return ScriptedAdapter([PromptEvaluationError("down", phase="request")])


def by_main_loop(adapter: ProviderAdapter, session: Session) -> str:
    return MainLoop().execute(Prompt(TEMPLATE), session=session, adapter=adapter).text


def by_main_loop_async(adapter: ProviderAdapter, session: Session) -> str:
    return asyncio.run(MainLoop().execute_async(Prompt(TEMPLATE), session=session, adapter=adapter)).text


def by_conversation(adapter: ProviderAdapter, session: Session) -> str:
    return Conversation(Prompt(TEMPLATE), adapter=adapter, session=session).send("Hi.").text


def by_conversation_async(adapter: ProviderAdapter, session: Session) -> str:
    return asyncio.run(Conversation(Prompt(TEMPLATE), adapter=adapter, session=session).send_async("Hi.")).text


def after_another(adapter: ProviderAdapter, session: Session) -> str:
    return by_main_loop(FallbackAdapter(broken(), adapter), session)


def after_another_async(adapter: ProviderAdapter, session: Session) -> str:
    return by_main_loop_async(FallbackAdapter(broken(), adapter), session)


def delegating(adapter: ProviderAdapter) -> tuple[ScriptedAdapter, Prompt[None]]:
    ask = delegate(TEMPLATE, name="ask", description="Ask.", adapter=adapter)
    desk = MarkdownSection[None](title="Desk", key="desk", template="Ask.", tools=[ask])
    return ScriptedAdapter([call("ask"), "ok"]), Prompt(PromptTemplate[None](ns="tests", key="outer", sections=[desk]))


def by_delegation(adapter: ProviderAdapter, session: Session) -> str:
    outer, prompt = delegating(adapter)
    outer.evaluate(prompt, session=session)
    return outer.requests[-1].messages[-1].text


def by_delegation_async(adapter: ProviderAdapter, session: Session) -> str:
    outer, prompt = delegating(adapter)
    asyncio.run(outer.evaluate_async(prompt, session=session))
    return outer.requests[-1].messages[-1].text


WAYS = [
    by_main_loop,
    by_main_loop_async,
    by_conversation,
    by_conversation_async,
    after_another,
    after_another_async,
    by_delegation,
    by_delegation_async,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [AsDeclared, WithOptions, OnlyAsync, Both, AroundAnother, Below])
def test_every_adapter_restarts_alike_with_the_same_events(
    kind: type[ProviderAdapter], way: Callable[[ProviderAdapter, Session], str]
) -> None:
    session = Session()
    assert way(kind("model"), session) == "done"
    restarts = endings(session, "restarted")
    assert [(end.section_keys, end.reason) for end in restarts] == [(("a",), "needed"), (("b",), "needed")]
    assert {end.prompt_name for end in restarts} == {"own"}
    assert len({end.run_id for end in restarts}) == 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [AsDeclared, WithOptions, OnlyAsync, Both, AroundAnother, Below])
def test_no_adapter_restarts_more_often_than_it_may(kind: type[ProviderAdapter], is_async: bool) -> None:
    session, loop = Session(), MainLoop(max_expansions=1)
    with pytest.raises(PromptEvaluationError, match="asked to open sections more than 1 times"):
        if is_async:
            asyncio.run(loop.execute_async(Prompt(TEMPLATE), session=session, adapter=kind("model")))
        else:
            loop.execute(Prompt(TEMPLATE), session=session, adapter=kind("model"))
    assert len(endings(session, "restarted")) == 1
    assert session[VisibilityOverrides].latest().overrides == {("a",): FULL}


@pytest.mark.parametrize("kind", [AsDeclared, OnlyAsync, Both])
def test_the_message_of_an_exchange_stands_in_the_session_once(kind: type[ProviderAdapter]) -> None:
    chat = Conversation(Prompt(TEMPLATE), adapter=kind("model"))
    chat.send("Hi.")
    assert [(message.role, message.text) for message in chat.messages] == [("user", "Hi.")]


def test_a_restart_names_the_adapter_that_a_fallback_uses() -> None:
    session = Session()
    after_another(AsDeclared("model"), session)
    assert {(end.adapter, end.model) for end in endings(session, "restarted")} == {("own", "model")}


def test_what_is_made_for_event_loops_alone_says_so_in_one() -> None:
    async def main() -> None:
        MainLoop().execute(Prompt(TEMPLATE), session=Session(), adapter=OnlyAsync("model"))

    with pytest.raises(RuntimeError, match=r"OnlyAsync.evaluate cannot run .*; await evaluate_async"):
        asyncio.run(main())


def test_an_adapter_that_can_do_nothing_is_refused() -> None:
    class Nothing(ProviderAdapter[Any]):
        pass

    with pytest.raises(TypeError, match=r"Nothing cannot reach a model; implement channel\(\), or evaluate\(\)"):
        Nothing("model")
