"""Tools return media, and opened sections may speak as the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.disclosure.desk import section
from tests.pictures import png
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image, Text, parts_of
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import (
    MarkdownSection,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    ReadSections,
    SectionVisibility,
    SetVisibilityOverride,
    ToolContext,
    ToolResult,
    WorkspaceSection,
    tool,
)
from weakincentives.runtime import Conversation, Message, ToolEnded, ToolInvoked
from weakincentives.session import Session

PICTURE = Image.from_bytes(png(), "image/png", name="box.png")


@tool
def photograph() -> ToolResult[None]:
    """Take a photo."""
    return ToolResult("Here it is:", attachments=(PICTURE,))


def prompt() -> Prompt[None]:
    task = MarkdownSection(title="Task", key="task", template="Look.", tools=[photograph])
    return Prompt(PromptTemplate(ns="t", key="k", sections=[task]))


def test_the_media_of_a_result_go_to_the_model() -> None:
    session = Session()
    ScriptedAdapter([call("photograph"), "A box."]).evaluate(prompt(), session=session)
    (result,) = [message for message in session[Message] if message.role == "tool"]
    assert result.parts[-1] == PICTURE
    assert result.text == f"Here it is:\n[image box.png (image/png, {len(png())} bytes)]"


@pytest.mark.parametrize("returned", [PICTURE, [PICTURE], ("Here it is:", PICTURE), Text("None.")])
def test_a_function_may_return_content_as_it_is(returned: Any) -> None:
    @tool
    def look() -> Any:
        "Look."
        return returned

    session, task = Session(), MarkdownSection(title="Task", key="task", template="Look.", tools=[look])
    ScriptedAdapter([call("look"), "A box."]).evaluate(Prompt(ns="t", key="k", sections=[task]), session=session)
    (result,) = [message for message in session[Message] if message.role == "tool"]
    assert result.parts == parts_of(returned)


@dataclass(frozen=True)
class Parcel:
    photo: Image
    sent: bool = True


def parcel(**options: Any) -> MarkdownSection[Parcel]:
    return MarkdownSection[Parcel](title="Parcel", key="parcel", template="See ${photo}", role="user", **options)


def photos(messages: Any) -> list[tuple[str, Any]]:
    return [(message.role, message.parts[-1]) for message in messages if message.parts]


def test_another_photo_in_a_user_section_is_sent_once_even_under_the_same_name() -> None:
    other = Image.from_bytes(png()[:-1] + b"x", "image/png", name="box.png")
    template = PromptTemplate(ns="t", key="k", sections=[parcel()])
    chat = Conversation(Prompt(template).bind(Parcel(PICTURE)), adapter=ScriptedAdapter(["1", "2", "3"]))
    chat.send()
    chat.send("Sure?")
    chat.bind(Parcel(other))
    chat.send("And now?")
    assert photos(chat.messages) == [("user", PICTURE), ("user", other)]


def test_a_user_section_that_is_enabled_later_brings_its_photo() -> None:
    template = PromptTemplate(ns="t", key="k", sections=[parcel(enabled=lambda params: params.sent)])
    chat = Conversation(Prompt(template).bind(Parcel(PICTURE, sent=False)), adapter=ScriptedAdapter(["1", "2"]))
    chat.send("Hello.")
    chat.bind(Parcel(PICTURE))
    chat.send("Look.")
    assert photos(chat.messages) == [("user", PICTURE)]


@pytest.mark.parametrize(
    ("disclosure", "opening"),
    [
        (ReadSections(), call("read_section", section_key="parcel")),
        (OpenToFiles(), call("open_sections", section_keys=["parcel"], reason="look")),
    ],
)
def test_a_closed_user_section_is_read_with_its_photo(disclosure: Any, opening: Any) -> None:
    closed = parcel(summary="A parcel.", visibility=SectionVisibility.SUMMARY)
    template = PromptTemplate(ns="t", key="k", sections=[closed, WorkspaceSection()], disclosure=disclosure)
    session = Session()
    ScriptedAdapter([opening, "A box."]).evaluate(Prompt(template).bind(Parcel(PICTURE)), session=session)
    assert photos(session[Message]) == [("tool", PICTURE)]


class TextOnly(ScriptedAdapter):
    def check_content(self, parts: Any) -> None:
        if parts:
            raise PromptEvaluationError("this model takes text only", phase="request")


def test_media_that_the_model_does_not_take_are_a_failed_result() -> None:
    session = Session()
    TextOnly([call("photograph"), "I cannot see it."]).evaluate(prompt(), session=session)
    (result,) = [message for message in session[Message] if message.role == "tool"]
    assert (result.success, result.parts) == (False, ())
    assert result.text == "Here it is:\n\nThe attachments cannot be shown: this model takes text only"


def test_a_photo_that_the_model_does_not_take_stays_out_of_a_conversation_whose_prompt_changes() -> None:
    template = PromptTemplate(ns="t", key="k", sections=[parcel(enabled=lambda params: params.sent)])
    chat = Conversation(Prompt(template).bind(Parcel(PICTURE, sent=False)), adapter=TextOnly(["1", "2"]))
    chat.send("Hello.")
    chat.bind(Parcel(PICTURE))
    with pytest.raises(PromptEvaluationError, match="text only"):
        chat.send("Look.")
    assert photos(chat.messages) == []


@dataclass(frozen=True)
class Photo:
    number: int


def test_a_call_whose_media_are_not_taken_has_failed_for_everyone() -> None:
    @tool
    def photograph(*, context: ToolContext) -> ToolResult[None]:
        """Take a photo."""
        context.session.dispatch(Photo(1))
        return ToolResult("Here it is:", attachments=(PICTURE,))

    task = MarkdownSection(title="Task", key="task", template="Look.", tools=[photograph])
    template, session = PromptTemplate(ns="t", key="k", sections=[task]), Session()
    stream = TextOnly([call("photograph"), "I cannot see it."]).stream(Prompt(template), session=session)
    (ended,) = [event for event in stream if isinstance(event, ToolEnded)]
    (result,) = [message for message in session[Message] if message.role == "tool"]
    assert (ended.success, ended.message) == (False, result.text)
    assert [(event.success, event.rolled_back) for event in session[ToolInvoked]] == [(False, True)]
    assert session[Photo].all() == ()


class Operator(ScriptedAdapter):
    supports_operator_text = True


def conversation(adapter: ScriptedAdapter, *sections: Any) -> list[tuple[str, str]]:
    session = Session()
    template = PromptTemplate(ns="t", key="k", sections=sections, disclosure=ReadSections(voice="system"))
    adapter.evaluate(Prompt(template).bind(*([Name("Ann")] if len(sections) > 1 else [])), session=session)
    return [(message.role, message.text) for message in session[Message]][2:]


@dataclass(frozen=True)
class Name:
    name: str


def test_an_opened_section_speaks_as_the_operator_where_the_model_takes_that() -> None:
    said = conversation(Operator([call("read_section", section_key="docs"), "Read."]), section("docs"))
    assert said == [
        ("tool", "The section's text follows as a system message."),
        ("system", "## Docs\n\nAll of docs."),
        ("assistant", "Read."),
    ]


def test_it_is_a_result_where_the_model_does_not() -> None:
    said = conversation(ScriptedAdapter([call("read_section", section_key="docs"), "Read."]), section("docs"))
    assert said[0] == ("tool", "Content of section 'docs':\n\n## Docs\n\nAll of docs.")


def test_text_with_params_never_speaks_as_the_operator() -> None:
    named = MarkdownSection[Name](
        title="Named",
        key="named",
        template="Serve ${name}.",
        summary="A name.",
        visibility=SectionVisibility.SUMMARY,
    )
    adapter = Operator([call("read_section", section_key="named"), "Read."])
    said = conversation(adapter, section("docs"), named)
    assert said[0] == ("tool", "Content of section 'named':\n\n## Named\n\nServe Ann.")


def test_attachments_must_be_media() -> None:
    with pytest.raises(TypeError, match="Content must be text, an Image"):
        ToolResult("x", attachments=(b"bytes",))  # type: ignore[arg-type]


def test_a_photo_in_a_section_that_code_opens_is_sent_even_if_the_model_reads_it_in_the_same_turn() -> None:
    @tool
    def unlock(*, context: ToolContext) -> str:
        "Open the parcel."
        context.session.dispatch(SetVisibilityOverride(("parcel",), SectionVisibility.FULL))
        return "open"

    task = MarkdownSection(title="Task", key="task", template="Look.", tools=[unlock])
    closed = parcel(summary="A parcel.", visibility=SectionVisibility.SUMMARY)
    template, session = PromptTemplate(ns="t", key="k", sections=[task, closed]), Session()
    script = [[call("unlock"), call("read_section", section_key="parcel")], "A box."]
    ScriptedAdapter(script).evaluate(Prompt(template).bind(Parcel(PICTURE)), session=session)
    assert photos(session[Message]) == [("tool", PICTURE)]
