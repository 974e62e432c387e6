"""What a section has loaded for one user is shown to nobody else, by whichever door the prompt is run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from tests.disclosure.accounts import (
    ALICE,
    BOB,
    CURRENT,
    USERS,
    WAYS,
    ZOE,
    Account,
    Replies,
    User,
    Way,
    assert_own,
    from_a_bound_factory,
    from_a_factory,
    script,
    template,
)
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.adapters.selection import FallbackAdapter
from weakincentives.errors import BudgetExceededError, PromptEvaluationError
from weakincentives.evals import Case, contains, evaluate
from weakincentives.limits import Budget
from weakincentives.prompt import JsonPromptOverridesStore, Prompt, PromptTemplate, PromptValidationError
from weakincentives.runtime import Conversation, MainLoop, ModelRequest, delegate, run, run_async
from weakincentives.session import Session, Snapshot
from weakincentives.viewer.playground import AdapterChoice, Playground, Wanted

# The doors by which a prompt is run; each returns the requests.


def by_run(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter(lines)
    run(prompt, adapter)
    return adapter.requests


def by_run_async(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter(lines)
    asyncio.run(run_async(prompt, adapter))
    return adapter.requests


def by_main_loop_with_restarts(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter(lines, supports_dynamic_tools=False)
    MainLoop().execute(prompt, session=Session(), adapter=adapter)
    return adapter.requests


def by_stream(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter(lines)
    with adapter.stream(prompt, session=Session()) as events:
        list(events)
    return adapter.requests


def by_async_stream(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter(lines)

    async def read() -> None:
        async with MainLoop().stream_async(prompt, session=Session(), adapter=adapter) as events:
            async for _ in events:
                pass

    asyncio.run(read())
    return adapter.requests


def by_fallback(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter(lines)
    failing = ScriptedAdapter([PromptEvaluationError("Down.", phase="request")])
    run(prompt, FallbackAdapter(failing, adapter))
    return adapter.requests


def by_conversation(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter([*lines, "Bye."])
    chat = Conversation(prompt, adapter=adapter)
    chat.send("Pay.")
    chat.send("Thanks.", output=str)
    return adapter.requests


def by_open_conversation(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter([*lines, "Bye."])
    with Conversation(prompt, adapter=adapter) as chat:
        chat.send("Pay.")
        chat.send("Thanks.")
    return adapter.requests


def by_fork(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter(["Hello.", *lines, "Bye."])
    chat = Conversation(prompt, adapter=adapter)
    chat.send("Hello.")
    fork = chat.fork()
    fork.send("Pay.")
    fork.fork().send("Thanks.")
    return adapter.requests


def by_resume(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter, session, elsewhere = ScriptedAdapter(lines), Session(), Session()
    with pytest.raises(BudgetExceededError):
        run(prompt, adapter, session=session, budget=Budget(max_turns=1))
    elsewhere.restore(Snapshot.from_json(session.snapshot().to_json()))
    adapter.resume(prompt, session=elsewhere)
    return adapter.requests


def by_fork_of_a_run(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    fork = delegate(PromptTemplate[None](ns="tests", key="fork"), description="Forks.", fork=True)
    read, *rest = lines
    adapter = ScriptedAdapter([read, call("fork"), *rest, "All done."])
    run(prompt, adapter, tools=[fork])
    return adapter.requests


def by_next_request(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter(lines)
    chat = Conversation(prompt, adapter=adapter)
    before = adapter.next_request(chat.prompt)
    chat.send("Pay.")
    assert adapter.count(chat.prompt, chat.session) > adapter.count(prompt)
    return [before, *adapter.requests, adapter.next_request(chat.prompt, chat.session), adapter.next_request(prompt)]


def by_evaluation(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    adapter = ScriptedAdapter([*lines, *lines])
    evaluate([Case("a", "Pay."), Case("b", "Pay.")], prompt, adapter, [contains("Done.")])
    return adapter.requests


def by_playground(prompt: Prompt[Any], lines: list[Any]) -> list[ModelRequest]:
    """A playground for each user, as each developer has; the prompt may be the same."""
    adapter = ScriptedAdapter(lines)
    overrides = JsonPromptOverridesStore(Path("unused"))
    choices = [AdapterChoice("scripted")]
    playground = Playground(prompt, adapters=choices, make_adapter=lambda name: adapter, overrides=overrides)
    run_id = playground.run(Wanted())["run_id"]
    while not playground.live(run_id)["done"]:
        pass
    return adapter.requests


DOORS = [
    by_run,
    by_run_async,
    by_main_loop_with_restarts,
    by_stream,
    by_async_stream,
    by_fallback,
    by_conversation,
    by_open_conversation,
    by_fork,
    by_resume,
    by_fork_of_a_run,
    by_next_request,
    by_evaluation,
    by_playground,
]
Door = Callable[[Prompt[Any], list[Any]], list[ModelRequest]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("door", DOORS)
def test_each_user_reads_what_was_loaded_with_their_own_resources(door: Door, way: Callable[[], Way]) -> None:
    prompt_for = way()
    for user in (ALICE, BOB, ZOE, ALICE):
        assert_own(user, door(prompt_for(user), script(user)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_conversation", [False, True])
def test_runs_of_two_users_at_once_keep_to_their_own_resources(in_conversation: bool, way: Callable[[], Way]) -> None:
    prompt_for, adapters, streams = way(), [], []
    for user in (ALICE, BOB):
        adapter, prompt = ScriptedAdapter(script(user)), prompt_for(user)
        chat = Conversation(prompt, adapter=adapter)
        stream = chat.stream("Pay.") if in_conversation else adapter.stream(prompt, session=Session())
        adapters.append(adapter)
        streams.append((user, stream))
    while streams:
        user, stream = streams.pop(0)
        CURRENT[0] = user
        if next(stream, None) is not None:
            streams.append((user, stream))
    for user, adapter in zip((ALICE, BOB), adapters, strict=True):
        assert_own(user, adapter.requests)


def test_a_run_keeps_the_resources_that_were_bound_when_it_was_made() -> None:
    prompt, adapter = Prompt(template()).bind(resources={User: ALICE}), ScriptedAdapter(script(ALICE))
    stream = adapter.stream(prompt, session=Session())
    assert_own(BOB, by_run(prompt.bind(resources={User: BOB}), script(BOB)))
    list(stream)
    assert_own(ALICE, adapter.requests)


def test_a_prompt_can_be_bound_for_another_user_while_its_run_is_under_way() -> None:
    prompt, adapter = Prompt(template()).bind(resources={User: ALICE}), ScriptedAdapter(script(ALICE))
    with adapter.stream(prompt, session=Session()) as stream:
        next(stream)
        assert_own(BOB, by_run(prompt.bind(resources={User: BOB}), script(BOB)))
        list(stream)
    assert_own(ALICE, adapter.requests)


@pytest.mark.parametrize("door", DOORS)
def test_a_copy_with_resources_of_its_own_does_not_use_those_that_are_held_open(door: Door) -> None:
    prompt = Prompt(template()).bind(resources={User: ALICE})
    with prompt:
        assert_own(BOB, door(copy(prompt).bind(resources={User: BOB}), script(BOB)))
        assert_own(ALICE, door(copy(prompt), script(ALICE)))
        assert_own(ALICE, door(prompt, script(ALICE)))


def test_resources_cannot_be_bound_while_they_are_held_open() -> None:
    prompt = Prompt(template()).bind(resources={User: ALICE})
    with prompt, pytest.raises(PromptValidationError, match=r"write copy\(prompt\)\.bind\(resources=\.\.\.\)"):
        prompt.bind(resources={User: BOB})
    assert_own(ALICE, by_run(prompt, script(ALICE)))


@pytest.mark.parametrize("way", [from_a_factory, from_a_bound_factory])
def test_a_copy_of_a_conversation_s_prompt_begins_with_nothing_loaded(way: Callable[[], Way]) -> None:
    prompt_for = way()
    chat = Conversation(prompt_for(ALICE), adapter=ScriptedAdapter(script(ALICE)))
    chat.send("Pay.")
    prompt_for(BOB)
    assert_own(BOB, by_run(copy(chat.prompt), script(BOB)))


def test_a_conversation_to_which_other_resources_are_bound_loads_again() -> None:
    adapter = ScriptedAdapter([*script(ALICE), call("pay_bob"), "Bye."])
    chat = Conversation(Prompt(template()).bind(resources={User: ALICE}), adapter=adapter)
    chat.send("Pay.")
    chat.prompt.bind(resources={User: BOB})
    chat.send("Pay again.")
    last = adapter.requests[-1]
    assert "pay_alice" not in [tool.name for tool in last.tools if tool.name not in last.revoked]
    assert last.messages[-1].text == "balance-of-bob"


def test_a_section_is_loaded_once_in_a_conversation_and_once_in_each_other_run() -> None:
    made = template()
    account = made.sections[1]
    assert isinstance(account, Account)
    prompt = Prompt(made).bind(resources={User: ALICE})
    chat = Conversation(prompt, adapter=ScriptedAdapter([*script(ALICE), *["Yes."] * 3]))
    for words in ("Pay.", "Again?", "Sure?"):
        chat.send(words)
    chat.fork().send("Really?")
    assert account.loads == 1
    by_run(prompt, script(ALICE))
    by_run(prompt, script(ALICE))
    assert account.loads == 3


def test_a_prompt_forgets_what_its_runs_have_loaded() -> None:
    prompt = Prompt(template()).bind(resources={User: ALICE})
    by_run(prompt, script(ALICE))
    assert [node.key for node in prompt.view().outline.nodes] == ["task", "account"]


@contextmanager
def maybe_open(prompt: Prompt[Any], rng: random.Random) -> Iterator[None]:
    with ExitStack() as stack:
        if rng.random() < 0.3:
            stack.enter_context(prompt)
        yield


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_a_prompt_nobody_sees_what_was_loaded_for_another(seed: int) -> None:
    rng, prompts = random.Random(seed), [Prompt(template()).bind(resources={User: ALICE})]
    owners, chats = [ALICE], list[tuple[User, Conversation[Any]]]()
    for _ in range(30):
        at = rng.randrange(len(prompts))
        prompt, user = prompts[at], rng.choice(USERS)
        action = rng.choice(["copy", "bind", "run", "chat", "go on", "fork"])
        if action == "copy":
            prompts.append(copy(prompt).bind(resources={User: user}))
            owners.append(user)
        elif action == "bind":
            prompt.bind(resources={User: user})
            owners[at] = user
        elif action == "run":
            with maybe_open(prompt, rng):
                assert_own(owners[at], rng.choice(DOORS[:-2])(prompt, script(owners[at])))
        elif action == "chat":
            adapter = ScriptedAdapter(Replies(owners[at]))
            chats.append((owners[at], Conversation(prompt, adapter=adapter)))
        elif chats:
            owner, chat = rng.choice(chats)
            if action == "fork":
                chats.append((owner, chat.fork()))
            assert isinstance(chat.adapter, ScriptedAdapter)
            chat.send("Pay.")
            assert_own(owner, chat.adapter.requests)
