"""Sections whose tools and children are known only once they are opened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.disclosure.desk import FULL, SUMMARY, Server, a_tool, answers, section, tool_names
from weakincentives import delegate
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import DeadlineExceededError
from weakincentives.mcp import MCPSection, StdioServer
from weakincentives.prompt import (
    JsonPromptOverridesStore,
    LateContent,
    MarkdownSection,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    ReadSections,
    SearchSections,
    Section,
    SetVisibilityOverride,
    ToolContext,
    default_tokenizer,
    tool,
)
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime import (
    Conversation,
    MainLoop,
    Message,
    PromptEvaluationError,
    SectionLoaded,
    ToolsInjected,
    ledger,
    run_history,
)
from weakincentives.session import Session, Snapshot


class Stored(Server):
    """One that knows beforehand what it will bring."""

    brings: LateContent | None = None

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        return self.brings

    def stored(self) -> LateContent:
        return LateContent((a_tool("search"), a_tool("find")))


def template(server: Server, **options: Any) -> PromptTemplate[None]:
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=[a_tool("find")])
    return PromptTemplate(ns="t", key="late", sections=[task, server], **options)


READ = call("read_section", section_key="server")


def test_nothing_is_loaded_before_the_section_is_opened() -> None:
    server = Server("search", visibility=SUMMARY)
    with ScriptedAdapter(["Hi."]) as adapter:
        adapter.evaluate(Prompt(template(server)), session=Session())
    assert (server.loads, tool_names(adapter.requests[0].tools)) == (0, ["find", "read_section"])


@pytest.mark.parametrize("is_async", [False, True])
def test_reading_the_section_brings_its_tools_into_the_conversation(is_async: bool) -> None:
    server, session = Server("search", visibility=SUMMARY), Session()
    adapter = ScriptedAdapter([READ, call("search"), "Found."])
    if is_async:
        asyncio.run(adapter.evaluate_async(Prompt(template(server)), session=session))
    else:
        adapter.evaluate(Prompt(template(server)), session=session)
    assert answers(session)[1] == (True, "search done")
    assert "[Tools now available: search.]" in answers(session)[0][1]
    assert [event.tool_names for event in session[ToolsInjected] if event.section_key] == [("search",)]
    assert server.loads == 1


def test_a_tool_whose_name_is_taken_is_offered_under_the_sections_key() -> None:
    session = Session()
    with ScriptedAdapter([READ, call("server_find"), "Found."]) as adapter:
        adapter.evaluate(Prompt(template(Server("find", visibility=SUMMARY))), session=session)
    assert answers(session)[1] == (True, "find done")


def test_children_that_come_with_it_open_like_others() -> None:
    server, session = Server(children=(section("issues", tools=("close",)),), visibility=SUMMARY), Session()
    script = [READ, call("read_section", section_key="server.issues"), call("close"), "Closed."]
    with ScriptedAdapter(script) as adapter:
        adapter.evaluate(Prompt(template(server)), session=session)
    assert answers(session)[-1] == (True, "close done")
    (loaded,) = session[SectionLoaded].all()
    assert [state.path for state in loaded.sections] == [("server",), ("server", "issues")]
    seen = {found.key: found.seen for found in run_history(session).now.sections}
    assert seen == {"task": "prompt", "server": "conversation", "server.issues": "conversation"}


def test_the_ledger_counts_the_tools_that_came_late() -> None:
    server, session = Server("search", visibility=SUMMARY), Session()
    with ScriptedAdapter([READ, call("search"), "Found."]) as adapter:
        adapter.evaluate(Prompt(template(server)), session=session)
    count = default_tokenizer().count
    late = next(section for section in ledger(session).sections if section.key == "server")
    assert late.full_tokens == count("## 2. Server\n\nUse it well.") + count(a_tool("search").definition)


def test_what_is_not_known_yet_has_no_price() -> None:
    explained = ScriptedAdapter([]).explain(Prompt(template(Server("search", visibility=SUMMARY))))
    server = explained.sections[1]
    words = "loads tools that are not known yet, so its cost is not known either"
    assert (server.opening, server.opening_tokens) == (words, None)
    assert f"at least {explained.full_tokens} with everything open" in explained.render()
    priced = template(Server("search", visibility=SUMMARY), show_prices=True, token_budget=10_000)
    assert "Does much." in (text := Prompt(priced).render().text) and "Opening it costs" not in text


def test_what_is_stored_of_a_section_is_known_before_it_is_loaded() -> None:
    server = Stored("search", visibility=SUMMARY)
    explained = ScriptedAdapter([]).explain(Prompt(template(server)))
    assert (explained.sections[1].state.tools, server.loads) == (("search", "server_find"), 0)
    with ScriptedAdapter([READ, call("server_find"), "Found."]) as adapter:
        adapter.evaluate(Prompt(template(server)), session=(session := Session()))
    assert answers(session)[-1] == (True, "find done")
    assert tool_names(adapter.requests[0].tools) == ["find", "read_section"]


def test_what_is_loaded_takes_the_place_of_what_was_stored() -> None:
    server, session = Stored("browse", visibility=SUMMARY), Session()
    server.brings = LateContent((a_tool("browse"),), (section("more"),), "Newer.", ("search", "browse"))
    with ScriptedAdapter([READ, call("browse"), "Found."]) as adapter:
        adapter.evaluate(Prompt(template(server)), session=session)
    assert tool_names(adapter.requests[1].tools) == ["find", "read_section", "browse"]
    assert "Newer." in answers(session)[0][1]
    assert [event.changed_tools for event in session[SectionLoaded]] == [("search", "browse")]


def test_a_section_that_is_open_from_the_start_is_loaded_before_the_first_request() -> None:
    server = Server("search")
    with ScriptedAdapter([call("search"), "Found."]) as adapter:
        adapter.evaluate(Prompt(template(server)), session=Session())
    assert tool_names(adapter.requests[0].tools) == ["find", "search"]
    with ScriptedAdapter([call("search"), "Found."]) as adapter:
        overrides = {("server",): FULL}
        adapter.evaluate(
            Prompt(template(Server("search", visibility=SUMMARY))), session=Session(), visibility_overrides=overrides
        )


def test_a_restart_loads_what_it_opens() -> None:
    server, session = Server("search", visibility=SUMMARY), Session()
    opened = call("open_sections", section_keys=["server"], reason="needed")
    with ScriptedAdapter([opened, call("search"), "Found."]) as adapter:
        MainLoop().execute(Prompt(template(server, disclosure=OpenOrRead())), session=session, adapter=adapter)
    assert answers(session)[-1] == (True, "search done")


def test_a_section_that_cannot_be_loaded_is_told_to_the_model() -> None:
    server, session = Server(error="no such command", visibility=SUMMARY), Session()
    with ScriptedAdapter([READ, "Sorry."]) as adapter:
        adapter.evaluate(Prompt(template(server)), session=session)
    assert answers(session) == [(False, "Section 'server' cannot be opened now; go on without it.")]


CAUSE = "no such command: /srv/app/start-server --key sk-secret-4711; run pip install 'shop[server]'"


def late_sections(tmp_path: Path) -> dict[str, Section[Any]]:
    """A section of each kind that loads late, none of which can be loaded."""
    command = StdioServer(str(tmp_path / "no-such-server"), ["--key", "sk-secret-4711"])
    return {
        "server": MCPSection(server=command, key="server", title="Server", summary="Does much."),
        "own": Server(error=CAUSE, visibility=SUMMARY),
        "broken": Exploding(title="Server", key="server", summary="Does much.", visibility=SUMMARY),
    }


class Exploding(MarkdownSection[None]):
    """One whose text cannot be made."""

    def __init__(self, **options: Any) -> None:
        super().__init__(template="", **options)

    def render_body(self, params: None) -> str:
        raise RuntimeError(CAUSE)


DOORS = {
    "run": lambda prompt, adapter: adapter.evaluate(prompt, session=Session()),
    "async": lambda prompt, adapter: asyncio.run(adapter.evaluate_async(prompt, session=Session())),
    "conversation": lambda prompt, adapter: Conversation(prompt, adapter=adapter).send("Hi."),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["server", "own", "broken"])
@pytest.mark.parametrize("strategy", [ReadSections(), ReadSections(voice="system"), SearchSections()])
def test_the_model_reads_what_it_can_act_on_and_the_developer_the_cause(
    kind: str, strategy: Any, door: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = MarkdownSection(title="Task", key="task", template="Help.")
    sections = [task, late_sections(tmp_path)[kind]]
    prompt = Prompt(PromptTemplate(ns="t", key="late", sections=sections, disclosure=strategy))
    adapter = ScriptedAdapter([READ, "Sorry."])
    DOORS[door](prompt, adapter)
    (result,) = (message for message in adapter.requests[-1].messages if message.role == "tool")
    assert (result.success, result.text) == (False, "Section 'server' cannot be opened now; go on without it.")
    (record,) = (record for record in caplog.records if "cannot be opened" in record.message)
    assert ("no-such-server" if kind == "server" else CAUSE) in str(record.exc_info)


def test_a_child_whose_prompt_cannot_be_prepared_is_told_without_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    child = template(Server(error=CAUSE))
    helper = delegate(child, name="helper", description="Help.", adapter=ScriptedAdapter([]))
    section = MarkdownSection(title="Task", key="task", template="Help.", tools=[helper])
    adapter = ScriptedAdapter([call("helper"), "Sorry."])
    adapter.evaluate(Prompt(PromptTemplate(ns="t", key="parent", sections=[section])), session=Session())
    assert adapter.requests[-1].messages[-1].text == "'helper' is not available now; go on without it."
    assert CAUSE in caplog.text


def test_a_resumed_run_goes_on_without_a_section_that_cannot_be_loaded_and_logs_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, session = Server("search", visibility=SUMMARY), Session()
    with ScriptedAdapter([READ, "Found."]) as adapter:
        Conversation(Prompt(template(server)), adapter=adapter, session=session).send("Hi.")
    again = Session()
    again.restore(Snapshot.from_json(session.snapshot().to_json()))
    with ScriptedAdapter(["Hello."]) as adapter:
        gone = Prompt(template(Server("search", error=CAUSE, visibility=SUMMARY)))
        Conversation(gone, adapter=adapter, session=again).send("Still there?")
    assert all(CAUSE not in message.text for message in adapter.requests[-1].messages)
    assert CAUSE in caplog.text


def test_one_that_must_be_open_is_the_callers_error() -> None:
    with pytest.raises(PromptEvaluationError, match="Section 'server' of 'late' cannot be opened: no such command"):
        ScriptedAdapter([]).evaluate(Prompt(template(Server(error="no such command"))), session=Session())


class Interrupted(Server):
    """One whose loading can be interrupted, in every turn."""

    interrupted: BaseException | None = None

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        if self.interrupted is not None:
            raise self.interrupted
        return super().load(resources)

    def refresh(self, resources: ScopedResourceContext) -> bool:
        return True


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeadlineExceededError("Too late.", phase="tool")])
def test_what_the_user_said_is_kept_if_the_turn_ends_while_a_section_is_loaded(error: BaseException) -> None:
    server = Interrupted("search")
    chat = Conversation(Prompt(template(server)), adapter=ScriptedAdapter(["One.", "Two."]))
    for before in ("a", "b"):
        server.interrupted = error
        with pytest.raises(type(error)):
            chat.send(before)
        server.interrupted = None
        chat.send()
    said = [(message.role, message.text) for message in chat.messages][1:]
    assert said == [("user", "a"), ("assistant", "One."), ("user", "b"), ("assistant", "Two.")]


def test_a_conversation_goes_on_elsewhere_with_the_tools_of_the_section() -> None:
    chat = Conversation(
        Prompt(template(Server("search", visibility=SUMMARY))), adapter=ScriptedAdapter([READ, "Read."])
    )
    chat.send("Read it.")
    session = Session()
    session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    again = Server("search", visibility=SUMMARY)
    later = Conversation(Prompt(template(again)), adapter=ScriptedAdapter([call("search"), "Found."]), session=session)
    assert (later.send("Search.").text, again.loads) == ("Found.", 1)


def test_an_override_stored_after_the_section_was_loaded_is_told(tmp_path: Path) -> None:
    prompts, store = template(Server("search", visibility=SUMMARY)), JsonPromptOverridesStore(tmp_path)
    adapter = ScriptedAdapter([READ, "Hi.", "New.", call("search"), "Found."])
    chat = Conversation(Prompt(prompts, overrides_store=store), adapter=adapter)
    chat.send("a")
    described = prompts.descriptor
    task = described.override_section(("task",), "Help kindly.")
    store.upsert(described.new_override("latest").with_section(("task",), task))
    chat.send("b")
    assert sum("Help kindly." in message.text for message in chat.messages) == 1
    assert chat.send("c").text == "Found."
    assert answers(chat.session)[-1] == (True, "search done")


def test_a_conversation_goes_on_elsewhere_with_the_children_of_the_section() -> None:
    def server() -> Server:
        return Server(children=(section("issues", tools=("close",)),), visibility=SUMMARY)

    chat = Conversation(Prompt(template(server())), adapter=ScriptedAdapter([READ, "Read."]))
    chat.send("Read it.")
    script = [call("read_section", section_key="server.issues"), call("close"), "Closed."]
    later = Conversation(Prompt(template(server())), adapter=ScriptedAdapter(script), session=chat.session)
    assert later.send("Close it.").text == "Closed."
    assert answers(chat.session)[-1] == (True, "close done")


def test_a_section_that_cannot_be_loaded_any_more_has_lost_its_tools() -> None:
    chat = Conversation(
        Prompt(template(Server("search", visibility=SUMMARY))), adapter=ScriptedAdapter([READ, "Read."])
    )
    chat.send("Read it.")
    gone = Prompt(template(Server(error="gone", visibility=SUMMARY)))
    later = Conversation(gone, adapter=ScriptedAdapter(["It is gone."]), session=chat.session)
    assert later.send("Search.").text == "It is gone."
    notes = [message.text for message in chat.session[Message] if message.role == "system"]
    assert notes[-1] == "These tools are no longer available: search."


@tool
def unlock(path: str, *, context: ToolContext) -> str:
    "Open a section."
    context.session.dispatch(SetVisibilityOverride(tuple(path.split(".")), FULL))
    return "unlocked"


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_section_that_code_opens_between_two_calls_of_a_turn_brings_its_tools(dynamic: bool) -> None:
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=[unlock])
    template = PromptTemplate(
        ns="t", key="late", sections=[task, Server("search", visibility=SUMMARY), section("docs")]
    )
    script = [[call("unlock", path="server"), call("read_section", section_key="docs")], call("search"), "Done."]
    with ScriptedAdapter(script, supports_dynamic_tools=dynamic) as adapter:
        MainLoop().execute(Prompt(template), session=Session(), adapter=adapter)
    assert "search" in tool_names(adapter.requests[1].tools)


def test_a_parent_that_opens_with_its_child_is_told_even_if_the_child_is_read_in_the_same_turn() -> None:
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=[unlock])
    template = PromptTemplate(ns="t", key="nest", sections=[task, section("outer", children=[section("inner")])])
    script = [[call("unlock", path="outer.inner"), call("read_section", section_key="outer.inner")], "Done."]
    with ScriptedAdapter(script) as adapter:
        adapter.evaluate(Prompt(template), session=Session())
    assert any("All of outer." in message.text for message in adapter.requests[1].messages)
