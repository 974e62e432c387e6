"""Sections whose tools come from an MCP server: started when opened, and only then."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.disclosure.desk import a_tool, answers, section, tool_names
from tests.mcp.servers import python_server
from tests.mcp.shop import PNG, items, make_server
from tests.waiting import until_async
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image, Text
from weakincentives.durable import DurableMainLoop
from weakincentives.errors import DeadlineExceededError
from weakincentives.limits import Deadline
from weakincentives.mcp import (
    Elicitation,
    HttpServer,
    MCPResult,
    MCPSection,
    Progress,
    StdioServer,
    by_prefix,
    by_resource,
)
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    portable_name,
)
from weakincentives.runtime import Conversation, Message, SectionLoaded, ToolInvoked
from weakincentives.session import Session

pytestmark = pytest.mark.slow
SHOP = str(Path(__file__).parent / "shop.py")
READ = call("read_section", section_key="shop")


def shop(log: Path | None = None, *, env: dict[str, str] | None = None, **options: Any) -> MCPSection:
    variables = {**(env or {}), **({} if log is None else {"SHOP_LOG": str(log)})}
    server = options.pop("server", None) or python_server(SHOP, env=variables)
    return MCPSection(key="shop", title="Shop", summary="Sells chairs.", server=server, **options)


def prompt(*sections: Any) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template="Help.")
    return Prompt(PromptTemplate(ns="tests", key="shop", sections=[task, *sections]))


def run(made: MCPSection, *script: Any, session: Session | None = None, **options: Any) -> list[tuple[bool, str]]:
    """What the model reads as results after opening the section."""
    session = session or Session()
    with ScriptedAdapter([READ, *script, "Done."]) as adapter:
        adapter.evaluate(prompt(made), session=session, **options)
    return answers(session)[1:]


@contextmanager
def over_http() -> Iterator[str]:
    config = uvicorn.Config(make_server().streamable_http_app(), port=0, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def shop_url() -> Iterator[str]:
    with over_http() as url:
        yield url


@pytest.fixture
def http(shop_url: str) -> HttpServer:
    """A server that is up already, for what does not depend on how it is started."""
    items[:] = ["chair"]
    return HttpServer(shop_url)


@pytest.mark.parametrize("is_async", [False, True])
def test_opening_starts_the_server_and_offers_all_its_tools(is_async: bool) -> None:
    session, adapter = Session(), ScriptedAdapter([READ, call("get_stock", item="chair"), "Three."])
    if is_async:
        asyncio.run(adapter.evaluate_async(prompt(shop()), session=session))
    else:
        adapter.evaluate(prompt(shop()), session=session)
    assert tool_names(adapter.requests[0].tools) == ["read_section"]
    assert len(adapter.requests[1].tools) == 10
    assert "Prices are in $." in answers(session)[0][1]
    assert answers(session)[1] == (True, "chair: 3")


def test_a_section_that_is_not_opened_starts_nothing() -> None:
    def never() -> StdioServer:
        raise AssertionError("started")

    with ScriptedAdapter(["Hi."]) as adapter:
        adapter.evaluate(prompt(shop(server=never)), session=Session())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_is_reached_over_http_too(http: HttpServer, is_async: bool) -> None:
    session, adapter = Session(), ScriptedAdapter([READ, call("get_stock", item="chair"), "Three."])
    if is_async:
        asyncio.run(adapter.evaluate_async(prompt(shop(server=http)), session=session))
    else:
        adapter.evaluate(prompt(shop(server=http)), session=session)
    assert answers(session)[1] == (True, "chair: 3")


def test_wrong_arguments_are_told_before_the_server_is_asked(http: HttpServer) -> None:
    (answer,) = run(shop(server=http), call("get_stock", item=3))
    assert answer == (False, "Invalid arguments for 'get_stock': item: expected string, got int 3")


def test_the_servers_own_refusal_is_a_failed_call_whose_effects_stay(http: HttpServer) -> None:
    told = "The shelf broke.\n\nWhat this call has changed on the server, if anything, is not undone."
    assert run(shop(server=http), call("add_item", item="piano")) == [(False, told)]


def test_structured_content_is_the_value_and_is_read_once(http: HttpServer) -> None:
    session = Session()
    given = run(shop(server=http), call("get_stock", item="chair"), call("list_items"), session=session)
    assert given == [(True, "chair: 3"), (True, '{"items": ["chair"]}')]
    values = [event.result.value for event in session[ToolInvoked]][1:]
    assert values == [MCPResult({"stock": 3}), MCPResult({"items": ["chair"]})]


def test_pictures_and_resources_of_a_result_are_parts_of_the_conversation(http: HttpServer) -> None:
    session = Session()
    run(shop(server=http), call("show_picture"), session=session)
    message = [message for message in session[Message] if message.role == "tool"][-1]
    assert message.parts == (
        Text("[resource chair at shop://chair: A chair.]\n\n[resource shop://manual]\nSit down."),
        Image.from_bytes(PNG, "image/png"),
    )


def test_the_environment_is_handed_on_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", "ours")
    script = [call("read_variable", name="SHOP_KEY"), call("read_variable", name="SHOP_SECRET")]
    assert run(shop(env={"SHOP_KEY": "k1"}), *script) == [(True, "k1"), (True, "not set")]


@pytest.mark.parametrize(
    ("on_elicit", "answer"),
    [(None, "decline: None"), (lambda asked: {"colour": "red"}, "accept: red"), (lambda asked: None, "decline: None")],
)
def test_what_a_server_asks_the_user_is_answered_by_the_section(http: HttpServer, on_elicit: Any, answer: str) -> None:
    assert run(shop(server=http, on_elicit=on_elicit), call("choose_colour")) == [(True, answer)]


def test_an_elicitation_says_who_asks_for_what(http: HttpServer) -> None:
    asked: list[Elicitation] = []

    async def ask(elicitation: Elicitation) -> None:
        asked.append(elicitation)

    run(shop(server=http, on_elicit=ask), call("choose_colour"))
    assert [(one.server, one.message, list(one.schema["properties"])) for one in asked] == [
        ("shop", "Which colour?", ["colour"])
    ]


def test_a_call_that_takes_too_long_is_cancelled_on_the_server(tmp_path: Path) -> None:
    heard: list[Progress] = []
    made = shop(tmp_path / "log", timeout=0.5, on_progress=heard.append)
    (answer,) = run(made, call("wait"))
    late = "Tool 'wait' did not end within 0.5 s. Whether this call had an effect is not known."
    assert answer == (False, late)
    assert (tmp_path / "log").read_text() == "waiting\ncancelled\n"
    assert heard == [Progress("wait", 1, 2, "halfway")]


def test_a_compensation_calls_the_server_although_the_tools_time_is_over(tmp_path: Path) -> None:
    async def undo(arguments: dict[str, Any], *, context: ToolContext) -> None:
        assert context.deadline is None
        await made.call("remove_item", {"item": "chair"}, context=context)

    made = shop(tmp_path / "log", timeout={"wait": 1}, compensate={"wait": undo})
    assert run(made, call("wait")) == [(False, "Tool 'wait' did not end within 1 s.")]
    assert (tmp_path / "log").read_text() == "waiting\ncancelled\nremoved chair\n"


def test_the_deadline_of_the_run_is_above_the_timeout_of_a_call(tmp_path: Path) -> None:
    adapter = ScriptedAdapter([READ, "Read.", call("wait"), "Done."])
    with Conversation(prompt(shop(tmp_path / "log")), adapter=adapter) as chat:
        chat.send("Read it.")
        with pytest.raises(DeadlineExceededError):
            chat.send("Wait.", deadline=Deadline.after(0.5))
    assert (tmp_path / "log").read_text() == "waiting\ncancelled\n"


@pytest.mark.parametrize("visibility", [SectionVisibility.SUMMARY, SectionVisibility.FULL])
def test_the_deadline_of_the_run_is_above_the_timeout_of_a_start(visibility: SectionVisibility) -> None:
    mute = shop(server=StdioServer("sleep", ["60"]), visibility=visibility)
    with pytest.raises(DeadlineExceededError):
        run(mute, deadline=Deadline.after(0.5))


async def test_a_cancelled_run_cancels_the_call_on_the_server(tmp_path: Path) -> None:
    log, adapter = tmp_path / "log", ScriptedAdapter([READ, call("wait"), "Done."])
    running = asyncio.ensure_future(adapter.evaluate_async(prompt(shop(log)), session=Session()))
    await until_async(lambda: log.exists())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert log.read_text() == "waiting\ncancelled\n"


def test_a_server_that_dies_is_reported_and_started_once_more() -> None:
    stock = call("get_stock", item="chair")
    told = "MCP server 'shop' stopped while 'crash' was running."
    first, second, third, fourth = run(shop(), call("crash"), stock, call("crash"), stock)
    assert first == (
        False,
        f"{told} It is started again for the next call; whether this call had an effect is not known.",
    )
    assert second == (True, "chair: 3")
    assert third == (False, f"{told} It stays stopped; whether this call had an effect is not known.")
    assert fourth == (False, "MCP server 'shop' has stopped and is not started again in this run.")


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (StdioServer("no-such-command"), "cannot be started: [Errno 2] No such file or directory: 'no-such-command'"),
        (StdioServer(sys.executable, ["-c", "exit('no licence')"]), "Connection closed; it wrote: no licence"),
        (StdioServer("sleep", ["60"], start_timeout=0.5), "did not start within 0.5 seconds"),
        (HttpServer("http://127.0.0.1:9/mcp"), "All connection attempts failed"),
    ],
)
def test_that_a_server_cannot_be_started_is_told_to_the_model_and_why_is_logged(
    server: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session()
    run(shop(server=server), session=session)
    assert answers(session) == [(False, "Section 'shop' cannot be opened now; go on without it.")]
    assert "MCP server 'shop'" in caplog.text and reason in caplog.text


def test_a_failed_call_is_compensated_by_a_function_of_the_section(tmp_path: Path) -> None:
    async def undo(arguments: dict[str, Any], *, context: ToolContext) -> None:
        await made.call("remove_item", arguments, context=context)

    made, session = shop(tmp_path / "log", compensate={"add_item": undo}), Session()
    assert run(made, call("add_item", item="piano"), session=session) == [(False, "The shelf broke.")]
    assert (tmp_path / "log").read_text() == "removed piano\n"
    assert [event.compensation for event in session[ToolInvoked]] == ["", "done"]


def test_only_a_trusted_server_says_which_tools_are_read_only(http: HttpServer) -> None:
    for trusted, expected in ((False, set[str]()), (True, {"get_stock", "list_items"})):
        with ScriptedAdapter([READ, "Done."]) as adapter:
            adapter.evaluate(prompt(shop(server=http, trusted=trusted)), session=Session())
        names = {tool.name for tool in adapter.requests[-1].tools if tool.read_only and tool.name != "read_section"}
        assert names == expected


def test_groups_are_sections_that_open_by_themselves(http: HttpServer) -> None:
    session, items = Session(), call("read_section", section_key="shop.item")
    with ScriptedAdapter([READ, items, call("add_item", item="table"), "Done."]) as adapter:
        adapter.evaluate(prompt(shop(server=http, group=by_resource)), session=session)
    assert tool_names(adapter.requests[1].tools) == ["read_section", "wait", "crash"]
    assert "Tools: list_items, add_item, remove_item." in answers(session)[0][1]
    assert tool_names(adapter.requests[2].tools)[-3:] == ["list_items", "add_item", "remove_item"]
    assert answers(session)[-1] == (True, "The shelf broke.")


@pytest.mark.parametrize(
    ("group", "keys"),
    [
        (by_prefix, ["browser", "API", None]),
        (by_resource, ["click", "get-user", None]),
    ],
)
def test_tools_are_grouped_by_the_words_of_their_names(group: Callable[[str], str | None], keys: list[Any]) -> None:
    found = [group(name) for name in ("browser_clicks", "API-get-user", "search")]
    assert found == [key and key.lower() for key in keys]


def test_a_tool_whose_name_is_taken_is_offered_under_the_sections_key_in_groups_too(http: HttpServer) -> None:
    session, stock = Session(), section("stock", closed=False, tools=("get_stock",))
    group = call("read_section", section_key="shop.stock")
    with ScriptedAdapter([READ, group, call("shop_get_stock", item="chair"), "Done."]) as adapter:
        adapter.evaluate(prompt(stock, shop(server=http, group=by_resource)), session=session)
    assert answers(session)[-1] == (True, "chair: 3")


def test_a_conversation_keeps_its_server_between_turns(http: HttpServer) -> None:
    script = [READ, call("add_item", item="table"), "Added.", call("list_items"), "Two."]
    with Conversation(prompt(shop(server=http)), adapter=ScriptedAdapter(script)) as chat:
        chat.send("Add a table.")
        chat.send("What is there?")
    assert answers(chat.session)[-1] == (True, '{"items": ["chair", "table"]}')


def test_a_server_that_died_is_started_again_in_the_next_turn() -> None:
    script = [READ, call("crash"), call("crash"), "Down.", call("list_items"), "Back."]
    with Conversation(prompt(shop()), adapter=ScriptedAdapter(script)) as chat:
        chat.send("Crash twice.")
        chat.send("What is there?")
    assert answers(chat.session)[-1] == (True, '{"items": ["chair"]}')


def test_each_turn_offers_what_the_server_lists_by_then(http: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = ScriptedAdapter([READ, "One.", "Two.", "Three."])
    monkeypatch.setenv("SHOP_TOOLS", "paint")
    with Conversation(prompt(shop(server=http)), adapter=adapter) as chat:
        chat.send("Open it.")
        monkeypatch.setenv("SHOP_TOOLS", "sand polish")
        chat.send("What can you do?")
        chat.send("And now?")
    listed = [
        [name for name in tool_names(request.tools) if name in ("paint", "sand", "polish")]
        for request in adapter.requests
    ]
    assert listed == [[], ["paint"], ["sand", "polish"], ["sand", "polish"]]
    told = [message for message in chat.messages if message.role in ("system", "tools_added")][2:]
    assert [message.text or message.tools for message in told] == [
        "These tools are no longer available: paint.",
        ("sand", "polish"),
    ]


def test_a_durable_run_starts_the_server_again_when_it_is_replayed(http: HttpServer, tmp_path: Path) -> None:
    script = [READ, call("get_stock", item="chair"), OSError("power cut"), "Three."]
    loop = DurableMainLoop(
        "shop", lambda _: prompt(shop(server=http)), ScriptedAdapter(script), str(tmp_path / "durable.db")
    )
    with loop:
        with pytest.raises(OSError, match="power cut"):
            loop.execute("How many?", key="a")
        loop.retry("a")
        assert loop.result("a").text == "Three."


def test_a_section_may_be_open_from_the_start(http: HttpServer) -> None:
    with ScriptedAdapter([call("get_stock", item="chair"), "Three."]) as adapter:
        adapter.evaluate(prompt(shop(server=http, visibility=SectionVisibility.FULL)), session=Session())
    assert len(adapter.requests[0].tools) == 9


def test_tools_given_in_code_stand_beside_those_of_the_server(http: HttpServer) -> None:
    with ScriptedAdapter([READ, call("haggle"), "Done."]) as adapter:
        adapter.evaluate(prompt(shop(server=http, tools=[a_tool("haggle")])), session=(session := Session()))
    assert answers(session)[-1] == (True, "haggle done")


def test_what_was_opened_is_in_the_history_of_the_run(http: HttpServer) -> None:
    session = Session()
    run(shop(server=http), session=session)
    (loaded,) = session[SectionLoaded].all()
    assert (loaded.section_key, len(loaded.sections[0].tools), loaded.changed_tools) == ("shop", 9, ())


def test_a_tool_with_a_wrong_schema_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    made = shop(lock=Path(__file__).parent / "wrong.lock.json")
    assert [tool.name for tool in made.stored().tools] == ["good"]  # type: ignore[union-attr]
    assert "Tool 'bad' of MCP server 'shop' is left out" in caplog.text


def test_a_server_cannot_take_over_a_tool_whose_name_is_mapped_for_providers() -> None:
    def read(params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
        return ToolResult("The operator's file.")

    own = Tool.from_schema(name="files.read", description="Read.", schema={"type": "object"}, handler=read)
    task = MarkdownSection(title="Files", key="files", template="Read files.", tools=[own])
    session = Session()
    taken = portable_name("files.read")
    with ScriptedAdapter([READ, call(taken), "Done."]) as adapter:
        adapter.evaluate(prompt(task, shop(env={"SHOP_TOOLS": taken})), session=session)
    assert answers(session)[-1] == (True, "The operator's file.")
    assert f"shop_{taken}" in tool_names(adapter.requests[-1].tools)
