"""What a tool's name means does not change: not by what is opened first, a restart, or another template."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.adapters.vendors import ANTHROPIC, VENDORS, Vendor
from tests.attacks.late_servers import (
    KEYS,
    NAMES,
    No,
    Server,
    copied,
    declared,
    definitions,
    owners,
    prompt,
    read,
    tool_of,
)
from tests.rounds import rounds
from tests.servers.turn import Call, Turn
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import PromptEvaluationError
from weakincentives.guards import MaxCalls, RequiresTool
from weakincentives.prompt import MarkdownSection, Prompt, Section, Tool, portable_name
from weakincentives.runtime import (
    Approve,
    Compaction,
    Conversation,
    Edit,
    MainLoop,
    ModelRequest,
    PendingCall,
    ToolInvoked,
    run,
)
from weakincentives.session import Session


class World:
    """Random servers, some of which list what others list, beside declared tools."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.listings: dict[str, tuple[str, ...]] = {}
        for key in self.random.sample(KEYS, self.random.randint(1, 4)):
            self.listings[key] = self._names()
        if self.random.random() < 0.3:
            # A key that repeats.
            self.listings["outer.shop"] = self._names()
        self.declared = self.random.sample(NAMES, self.random.randint(0, 2))
        self.closed = self.random.random() < 0.5

    def _names(self) -> tuple[str, ...]:
        return tuple(self.random.sample(NAMES, self.random.randint(1, 6)))

    def prompt(self, keys: Iterable[str], **options: Any) -> Prompt[Any]:
        sections: list[Section[Any]] = []
        inner: list[Section[Any]] = []
        for key in keys:
            if key == "outer.shop":
                inner.append(Server("shop", self.listings[key], key))
            else:
                sections.append(Server(key, self.listings[key]))
        own = declared("own", *self._without_twins(), closed=self.closed)
        return prompt([own, *sections, declared("outer", children=inner)], **options)

    def _without_twins(self) -> list[str]:
        unique = {portable_name(name): name for name in self.declared}
        return list(unique.values())

    def order(self) -> list[str]:
        return self.random.sample([*self.listings], len(self.listings))


@pytest.mark.parametrize("seed", range(rounds(5, 12)))
def test_tools_have_the_same_names_in_every_order_of_opening(seed: int) -> None:
    world = World(seed)
    names: list[dict[str, str]] = []
    for dynamic in (True, True, False):
        adapter = ScriptedAdapter([*read(*world.order()), "Done."], supports_dynamic_tools=dynamic)
        MainLoop().execute(world.prompt(world.listings), session=Session(), adapter=adapter)
        names.append(owners(adapter))
    listed = {f"{key}|{name}" for key, listing in world.listings.items() for name in listing}
    assert names[0] == names[1] == names[2]
    assert listed <= {*names[0].values()}
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names[0])


@pytest.mark.parametrize("seed", range(rounds(5, 12)))
def test_a_name_means_one_tool_for_a_whole_conversation(seed: int) -> None:
    world, session = World(seed), Session()
    known: dict[str, str] = {}
    for _ in range(4):
        keys = world.random.sample([*world.listings], world.random.randint(1, len(world.listings)))
        calls = [call(name) for name in known]
        adapter = ScriptedAdapter([*calls, *read(*world.random.sample(keys, len(keys))), "Done."])
        session = copied(session)
        before = len(session[ToolInvoked].all())
        Conversation(world.prompt(keys), adapter=adapter, session=session).send("Go on.")
        for name, owner in owners(adapter).items():
            assert known.setdefault(name, owner) == owner
        for event in session[ToolInvoked].all()[before:]:
            if event.success and not event.disclosure:
                assert event.result.message == known[portable_name(event.name)]


@pytest.mark.parametrize("keeps", ["all", "one", "none", "more"])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_an_approved_call_reaches_the_tool_of_its_question_or_nothing(order: str, keeps: str) -> None:
    def servers(keys: str) -> list[Section[Any]]:
        return [Server(key, ["delete"], approval="call") for key in keys]

    session, first = Session(), "ab" if keeps != "more" else "a"
    opened = [key for key in order if key in first]
    calls = "a_delete" if keeps != "more" else "delete"
    chat = Conversation(
        prompt(servers(first)),
        adapter=ScriptedAdapter([*read(*opened), call(calls), "Ok."]),
        session=session,
    )
    chat.send("Delete it.")
    (pending,) = session[PendingCall].all()
    assert (pending.section_key, pending.own_name) == ("a", "delete")
    session = copied(session)
    later = {"all": "ba", "one": "a", "none": "b", "more": "ba"}[keeps]
    chat = Conversation(prompt(servers(later)), adapter=ScriptedAdapter(["Ok."]), session=session)
    chat.decide({pending.call_id: Approve()})
    last = session[ToolInvoked].all()[-1]
    assert (last.success, last.result.message) == (True, "a|delete") if keeps != "none" else (last.success is False)


DECIDING: dict[str, Any] = {
    "decide": lambda chat, decisions: chat.decide(decisions),
    "stream": lambda chat, decisions: list(chat.stream(decisions=decisions)),
    "async": lambda chat, decisions: asyncio.run(chat.decide_async(decisions)),
    "fork": lambda chat, decisions: chat.fork().decide(decisions),
    "with a message": lambda chat, decisions: chat.send("Go on.", decisions=decisions),
}


@pytest.mark.parametrize("decision", [Approve(), Edit({})], ids=["approve", "edit"])
@pytest.mark.parametrize("door", DECIDING)
def test_an_approved_call_is_not_made_to_a_tool_that_has_its_name_by_now(door: str, decision: Any) -> None:
    """Declared tools may be moved to other sections, which others may have written."""

    def sections(key: str) -> list[Section[Any]]:
        tool = tool_of(key, "delete", "call")
        return [MarkdownSection(key=key, title=key, template="Use it.", tools=[tool])]

    session = Session()
    chat = Conversation(prompt(sections("a")), adapter=ScriptedAdapter([call("delete"), "Ok."]), session=session)
    (pending,) = chat.send("Delete it.").pending
    adapter = ScriptedAdapter(["Ok."])
    moved = Conversation(prompt(sections("b")), adapter=adapter, session=copied(session))
    DECIDING[door](moved, {pending.call_id: decision})
    (result,) = [message for message in adapter.requests[0].messages if message.role == "tool"]
    assert "the question was about the tool 'delete' of section 'a'" in result.text
    assert "b|delete" not in result.text


def test_an_approved_call_is_not_made_to_another_tool_of_its_section() -> None:
    session = Session()
    servers = [Server("a", ["delete", "destroy"], approval="call")]
    adapter = ScriptedAdapter([*read("a"), call("delete"), "Ok."])
    chat = Conversation(prompt(servers), adapter=adapter, session=session)
    (pending,) = chat.send("Delete it.").pending
    session[PendingCall].seed(replace(pending, own_name="destroy"))
    chat.decide({pending.call_id: Approve()})
    last = session[ToolInvoked].all()[-1]
    assert (last.success, "was about the tool 'destroy'" in last.result.message) == (False, True)


def test_a_conversation_keeps_a_name_that_a_new_section_or_tool_would_take() -> None:
    session, adapter = Session(), ScriptedAdapter([*read("shop"), call("find"), "Ok."])
    Conversation(prompt([Server("shop", ["find"])]), adapter=adapter, session=session).send("Hi.")
    adapter = ScriptedAdapter([*read("copy"), call("find"), call("task_find"), "Ok."])
    sections = [declared("task", "find"), Server("shop", ["find"]), Server("copy", ["find"])]
    Conversation(prompt(sections), adapter=adapter, session=copied(session)).send("Again.")
    names = {"find": "shop|find", "task_find": "task|find", "copy_find": "copy|find"}
    assert owners(adapter) == names
    results = [m.text for m in adapter.requests[-1].messages if m.role == "tool"]
    assert results[-2:] == ["shop|find", "task|find"]


def test_a_name_stays_with_a_section_that_is_gone_for_a_while() -> None:
    session = Session()
    seen: list[dict[str, str]] = []
    for keys in ("a", "b", "ab"):
        adapter = ScriptedAdapter([*read(*keys), "Ok."])
        servers = [Server(key, ["delete"]) for key in keys]
        session = copied(session)
        Conversation(prompt(servers), adapter=adapter, session=session).send("Hi.")
        seen.append(owners(adapter))
    assert seen[0] == {"delete": "a|delete"}
    assert seen[1] == {"b_delete": "b|delete"}
    assert seen[2] == {"delete": "a|delete", "b_delete": "b|delete"}


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("where", ["template", "section"])
@pytest.mark.parametrize("name", ["delete", "a.delete", "a_delete"])
def test_a_guard_holds_for_a_tool_by_each_of_its_names(name: str, where: str, order: str) -> None:
    guards = {where: [No(name)]}
    servers = [
        Server("a", ["delete"], guards=guards.get("section", ())),
        Server("b", ["delete"]),
    ]
    session = Session()
    script = [*read(*order), call("a_delete"), call("b_delete"), "Ok."]
    made = prompt(servers, guards=guards.get("template", ()))
    run(made, ScriptedAdapter(script), session=session)
    results = [event.result.message for event in session[ToolInvoked] if not event.disclosure]
    assert results[0] == "No delete of a."
    assert results[1] == ("No delete of b." if name == "delete" else "b|delete")


def test_a_guard_that_names_the_tool_of_a_new_conversation_holds_in_an_old_one() -> None:
    session = Session()
    Conversation(
        prompt([Server("a", ["delete"])]),
        adapter=ScriptedAdapter([*read("a"), "Ok."]),
        session=session,
    ).send("Hi.")
    servers = [Server("a", ["delete"]), Server("b", ["delete"])]
    adapter = ScriptedAdapter([call("delete"), "Ok."])
    session = copied(session)
    Conversation(prompt(servers, guards=[No("a_delete")]), adapter=adapter, session=session).send("Delete.")
    assert session[ToolInvoked].all()[-1].result.message == "No delete of a."


def test_a_limit_counts_the_tools_of_all_sections_with_the_name() -> None:
    session = Session()
    servers = [Server("a", ["delete"]), Server("b", ["delete"])]
    script = [*read("a", "b"), [call("a_delete"), call("b_delete")], call("b_delete"), "Ok."]
    run(prompt(servers, guards=[MaxCalls("delete", 1)]), ScriptedAdapter(script), session=session)
    ran = [event.name for event in session[ToolInvoked] if event.success and not event.disclosure]
    assert ran == ["a_delete"]


def test_another_servers_tool_does_not_count_as_the_required_one() -> None:
    servers = [Server("a", ["verify"]), Server("b", ["verify"])]
    script = [*read("b"), call("b_verify"), "Ok.", *read("a"), call("a_verify"), "Ok."]
    made = prompt(servers, guards=[RequiresTool("a.verify")])
    assert run(made, ScriptedAdapter([*script]), session=Session()).text == "Ok."
    unclear = prompt(servers, guards=[RequiresTool("verify")])
    with pytest.raises(PromptEvaluationError, match=r"write RequiresTool\('b.verify'\)"):
        run(unclear, ScriptedAdapter([*script]), session=Session())


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_every_provider_gets_names_that_it_accepts(vendor: Vendor) -> None:
    made = prompt([Server(key, NAMES) for key in KEYS[-4:]])
    reading = [Turn(calls=(Call("read_section", {"section_key": key}),)) for key in KEYS[-4:]]
    with vendor.server([*reading, Turn("Done.")]) as server, vendor.adapter(server) as adapter:
        MainLoop().execute(made, session=Session(), adapter=adapter)
    tools = {words: name for name, words in definitions(server.requests[-1].json) if "|" in words}
    assert len(tools) == len(set(tools.values())) == 4 * len(NAMES)
    limit = 128 if vendor is ANTHROPIC else 64
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", name) for name in tools.values())
    assert max(map(len, tools.values())) <= limit


@pytest.mark.parametrize("keys", [["shop"], ["shop", "copy"]], ids=["one server", "two servers"])
def test_a_server_cannot_take_the_name_of_a_tool_that_the_library_offers_later(keys: list[str]) -> None:
    """`recall` appears once a conversation is shortened, which names it in the text that the model reads."""
    lines: list[Any] = [*read(*keys), *["It is open. " * 100] * 15, call("recall", what="1"), "Done."]

    def answer(request: ModelRequest) -> Any:
        spoken = [message for message in request.messages if message.by_user]
        return "They ask." if spoken[-1].text.startswith("Summarize") else lines.pop(0)

    adapter = ScriptedAdapter(answer)
    servers = [Server(key, ["recall"]) for key in keys]
    chat = Conversation(prompt(servers), adapter=adapter, compaction=Compaction(4_000, keep=1))
    for number in range(16):
        chat.send(f"Question {number}?")
    assert {f"{key}_recall": f"{key}|recall" for key in keys} == owners(adapter)
    (recalled,) = [message.text for message in chat.messages if message.name == "recall"]
    assert recalled.startswith("[Exchange 1.")


def test_a_server_cannot_take_the_name_of_a_tool_of_a_page() -> None:
    page_tool = Tool.from_schema(name="page.pick", description="page|pick", schema={"type": "object"}, handler=None)
    adapter = ScriptedAdapter([*read("shop"), "Ok.", call("page.pick")])
    chat = Conversation(prompt([Server("shop", ["page.pick"])]), adapter=adapter)
    chat.send("Hello.")
    (pending,) = chat.send("Pick one.", tools=[page_tool]).pending
    assert (pending.tool, pending.section_key, pending.needs) == ("page.pick", "", "answer")
    assert owners(adapter) == {
        portable_name("shop_page.pick"): "shop|page.pick",
        portable_name("page.pick"): "page|pick",
    }
