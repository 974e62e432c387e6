"""Several runs may use a prompt at once, and a conversation has its own copy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.errors import SessionBusyError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import Conversation, MainLoop
from weakincentives.session import Session


@dataclass(frozen=True)
class Customer:
    name: str


def template(*tools: Any, **options: Any) -> PromptTemplate[None]:
    serve = MarkdownSection[Customer](title="Serve", key="serve", template="You serve ${name}.", tools=tools)
    return PromptTemplate(ns="tests", key="desk", sections=[serve, *options.pop("sections", [])], **options)


@tool
async def pause() -> str:
    """Let other tasks run."""
    await asyncio.sleep(0)
    return "paused"


def first_text(adapter: ScriptedAdapter) -> str:
    return adapter.requests[0].messages[0].text


def test_two_runs_of_one_prompt_at_once_keep_the_params_they_began_with() -> None:
    shared = Prompt(template(pause))

    async def handle(name: str) -> str:
        adapter = ScriptedAdapter([call("pause"), "Hello."])
        await adapter.evaluate_async(shared.bind(Customer(name)), session=Session())
        return first_text(adapter)

    async def main() -> list[Any]:
        return await asyncio.gather(handle("Ann"), handle("Bob"))

    assert asyncio.run(main()) == ["## 1. Serve\n\nYou serve Ann.", "## 1. Serve\n\nYou serve Bob."]


@pytest.mark.parametrize("runner", ["adapter", "main loop", "stream"])
def test_a_prompt_runs_twice_at_once_on_two_sessions_with_files_of_their_own(runner: str) -> None:
    write = [call("write", path="note.md", content="Mine."), "Done."]
    prompt, other = Prompt(template(sections=[VfsToolsSection()])).bind(Customer("Ann")), ScriptedAdapter(write)
    session, first = Session(), Session()
    with ScriptedAdapter([*write]).stream(prompt, session=first) as events:
        next(events)
        if runner == "adapter":
            other.evaluate(prompt, session=session)
        elif runner == "main loop":
            MainLoop().execute(prompt, session=session, adapter=other)
        else:
            list(other.stream(prompt, session=session))
        assert (session.workspace.read("note.md"), first.workspace.exists("note.md")) == ("Mine.", False)
        list(events)
    assert first.workspace.read("note.md") == "Mine."


def test_a_tool_may_bind_the_prompt_for_later_runs() -> None:
    @tool
    def rename(*, context: ToolContext) -> str:
        """Rename."""
        prompt.bind(Customer("Bob"))
        assert context.prompt.params == (Customer("Ann"),)
        return context.view.content(("serve",))

    prompt, adapter = Prompt(template(rename)).bind(Customer("Ann")), ScriptedAdapter([call("rename"), "done", "done"])
    adapter.evaluate(prompt, session=Session())
    assert adapter.requests[1].messages[-1].text == "## Serve\n\nYou serve Ann."
    adapter.evaluate(prompt, session=Session())
    assert adapter.requests[2].messages[0].text == "## 1. Serve\n\nYou serve Bob."


@pytest.mark.parametrize("ending", ["answered", "failed", "closed", "dropped", "cancelled"])
def test_a_prompt_can_be_bound_again_however_its_run_ends(ending: str) -> None:
    prompt = Prompt(template(pause)).bind(Customer("Ann"))

    async def end() -> None:
        adapter = ScriptedAdapter([] if ending == "failed" else [call("pause"), "One\ntwo."])
        if ending in ("answered", "failed", "cancelled"):
            await adapter.evaluate_async(prompt, session=Session())
        else:
            events = adapter.stream_async(prompt, session=Session())
            await anext(events)
            if ending == "closed":
                await events.aclose()

    async def main() -> None:
        run = asyncio.create_task(end())
        await asyncio.sleep(0)
        if ending == "cancelled":
            run.cancel()
        await asyncio.wait([run])
        prompt.bind(Customer("Bob"))
        await ScriptedAdapter(["Hello."]).evaluate_async(prompt, session=Session())
        assert (run.cancelled(), run.cancelled() or run.exception() is None) == (
            ending == "cancelled",
            ending != "failed",
        )

    asyncio.run(main())


def test_a_prompt_can_be_rendered_during_its_run_and_used_within_its_open_resources() -> None:
    prompt = Prompt(template(resources={list: ["open"]})).bind(Customer("Ann"))
    with prompt.resources, ScriptedAdapter(["One\ntwo."]).stream(prompt, session=Session()) as events:
        next(events)

        assert prompt.render().text == "## 1. Serve\n\nYou serve Ann."


def test_a_second_turn_at_the_same_time_is_refused_by_the_session() -> None:
    chat = Conversation(Prompt(template()).bind(Customer("Ann")), adapter=ScriptedAdapter(["One\ntwo."]))
    with chat.stream("Hello") as events:
        next(events)
        with pytest.raises(SessionBusyError):
            chat.send("Hello?")


def test_conversations_made_of_one_prompt_do_not_change_each_other() -> None:
    prompt = Prompt(template()).bind(Customer("Ann"))
    first, second = ScriptedAdapter(["a"]), ScriptedAdapter(["b"])
    chats = Conversation(prompt, adapter=first), Conversation(prompt, adapter=second)
    chats[0].bind(Customer("Bob"))
    with chats[0].stream("x") as events:
        next(events)
        chats[1].send("y")

    assert (first_text(first)[-4:], first_text(second)[-4:], prompt.params) == ("Bob.", "Ann.", (Customer("Ann"),))


def test_a_conversation_uses_the_resources_that_are_open_on_its_prompt() -> None:
    @tool
    def keep(*, context: ToolContext) -> str:
        """Keep."""
        kept.append(context.resources.get(Customer))
        return "kept"

    kept: list[Customer] = []
    made = ResourceRegistry.of(Binding(Customer, lambda _: Customer(str(len(kept)))))
    prompt = Prompt(template(keep, resources=made)).bind(Customer("Ann"))
    chat = Conversation(prompt, adapter=ScriptedAdapter([call("keep"), "a", call("keep"), "b", call("keep"), "c"]))
    with prompt.resources:
        chat.send("x")
        chat.send("y")
    chat.send("z")

    assert kept == [Customer("0"), Customer("0"), Customer("2")]
