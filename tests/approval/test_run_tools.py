"""Tools that the caller offers in one run, besides those of the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from weakincentives import (
    Answer,
    Conversation,
    Deny,
    MarkdownSection,
    Prompt,
    ScriptedAdapter,
    Session,
    Tool,
    call,
    run,
    tool,
)
from weakincentives.prompt import SectionVisibility

SCHEMA = {"type": "object", "properties": {"color": {"type": "string"}}}
PICK = Tool.from_schema(name="pick", description="Pick a color.", schema=SCHEMA, handler=None)


@tool
def note() -> str:
    "Note."
    return "the prompt's"


@tool
def look() -> str:
    "Look."
    return "looked"


def prompt() -> Prompt[None]:
    sections = [
        MarkdownSection(key="a", title="A", template="Go.", tools=[note]),
        MarkdownSection(
            key="b", title="B", template="All.", summary="Some.", visibility=SectionVisibility.SUMMARY, tools=[look]
        ),
    ]
    return Prompt(ns="tests", key="run-tools", sections=sections)


def offered(model: ScriptedAdapter) -> set[str]:
    request = model.requests[-1]
    return {each.name for each in request.tools if each.name not in request.revoked}


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_tool_of_a_run_is_offered_in_that_run_alone(dynamic: bool) -> None:
    @tool
    def double(number: int) -> str:
        "Double."
        return str(2 * number)

    script = ["One.", call("double", number=4), call("read_section", section_key="b"), call("look"), "Two.", "Three."]
    model = ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    chat = Conversation(prompt(), adapter=model)
    assert chat.send("Go.").text == "One." and "double" not in offered(model)
    assert chat.send("Go.", tools=[double]).text == "Two." and "double" in offered(model)
    results = [message.text for message in chat.messages if message.role == "tool"]
    assert (results[0], results[-1]) == ("8", "looked")
    assert chat.send("Go.").text == "Three." and "double" not in offered(model)


def test_a_tool_of_the_prompt_keeps_its_name() -> None:
    mine = Tool.from_schema(name="note", description="Mine.", schema={}, handler=None)
    model = ScriptedAdapter([call("note"), "Done."])
    assert run(prompt(), model, tools=[mine]).text == "Done."
    assert model.requests[-1].messages[-1].text == "the prompt's"
    assert [each.description for each in model.requests[0].tools if each.name == "note"] == ["Note."]


def test_what_is_no_tool_is_refused() -> None:
    with pytest.raises(TypeError, match=r"tools must be a list of tools, got <function .* with @tool"):
        run(prompt(), ScriptedAdapter([]), tools=[lambda: "x"])  # type: ignore[list-item]


@pytest.mark.parametrize("again", [True, False])
def test_an_answer_needs_no_tool(again: bool) -> None:
    session, model = Session(), ScriptedAdapter([[call("pick", color="red"), call("pick")], "Done."])
    one, two = run(prompt(), model, session=session, tools=[PICK]).pending
    assert (one.needs, one.params) == ("answer", {"color": "red"})
    decisions: Any = {one.call_id: Answer("ff0000"), two.call_id: Deny("no")}
    assert run(prompt(), model, session=session, decisions=decisions, tools=[PICK] if again else None).text == "Done."
    results = [message for message in model.requests[-1].messages if message.role == "tool"]
    assert [result.success for result in results] == [True, False] and results[0].text == "ff0000"
