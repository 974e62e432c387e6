"""Tools return media, and opened sections may speak as the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.disclosure.desk import section
from tests.test_content import png
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ReadSections,
    SectionVisibility,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import Message, ToolEnded, ToolInvoked
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
