"""Sections with role="user" make the first user turn, after all system sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.pictures import png
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.content import Image, Text
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    SectionVisibility,
)
from weakincentives.runtime import Conversation, Message, PromptEvaluationError, PromptRendered
from weakincentives.session import Session


@dataclass(frozen=True)
class Question:
    text: str


@dataclass(frozen=True)
class Damage:
    photo: Image
    note: str = ""


def shop(*more: Any) -> PromptTemplate[None]:
    ask = MarkdownSection[Question](title="Question", key="question", template="${text}", role="user")
    rules = MarkdownSection(title="Rules", key="rules", template="Be kind.")
    return PromptTemplate(ns="t", key="shop", sections=[ask, rules, *more])


def test_user_sections_come_after_all_system_sections() -> None:
    rendered = shop().render(Question("Where is it?"))
    assert rendered.system_text == "## 1. Rules\n\nBe kind."
    assert rendered.user_text == "## 2. Question\n\nWhere is it?"
    assert rendered.text == f"{rendered.system_text}\n\n{rendered.user_text}"


def test_spans_say_whose_words_they_are() -> None:
    rendered = shop().render(Question("Where is it?"))
    assert [(span.path, span.role, rendered.text[span.start : span.end]) for span in rendered.spans] == [
        (("rules",), "system", "## 1. Rules\n\nBe kind."),
        (("question",), "user", "## 2. Question\n\nWhere is it?"),
    ]


def test_two_runs_with_other_words_have_the_same_system_text() -> None:
    one, two = (shop().render(Question(text)) for text in ("Where is it?", "Refund me!"))
    assert one.system_text == two.system_text
    assert one.user_text != two.user_text


def test_the_model_gets_them_as_the_first_user_turn() -> None:
    with ScriptedAdapter(["In Lyon."]) as adapter:
        adapter.evaluate(Prompt(shop()).bind(Question("Where is it?")), session=Session())
    assert [(message.role, message.text) for message in adapter.requests[0].messages] == [
        ("system", "## 1. Rules\n\nBe kind."),
        ("user", "## 2. Question\n\nWhere is it?"),
    ]


def test_a_conversation_says_them_before_what_is_sent() -> None:
    chat = Conversation(Prompt(shop()).bind(Question("Where is it?")), adapter=ScriptedAdapter(["In Lyon.", "Soon."]))
    chat.send()
    chat.send("When?")
    said = [(message.role, message.text) for message in chat.messages if message.role != "system"]
    assert said == [
        ("user", "## 2. Question\n\nWhere is it?"),
        ("assistant", "In Lyon."),
        ("user", "When?"),
        ("assistant", "Soon."),
    ]


def test_user_sections_bound_anew_are_the_next_user_turn() -> None:
    adapter = ScriptedAdapter(["In Lyon.", "Done."])
    chat = Conversation(Prompt(shop()).bind(Question("Where is it?")), adapter=adapter)
    chat.send()
    chat.bind(Question("Refund me!"))
    chat.send()
    assert adapter.requests[1].messages[-1] == Message("user", "## Question\n\nRefund me!", kind="prompt")


def test_there_must_be_something_to_answer() -> None:
    chat = Conversation(Prompt(shop()).bind(Question("Where is it?")), adapter=ScriptedAdapter(["In Lyon."]))
    chat.send()
    with pytest.raises(PromptEvaluationError, match="has nothing to answer"):
        chat.send()


def test_a_picture_in_the_params_stands_where_its_placeholder_is() -> None:
    picture = Image.from_bytes(png(), "image/png", name="box.png")
    damage = MarkdownSection[Damage](
        title="Damage", key="damage", template="See:\n${photo}\nNote: ${note}", role="user"
    )
    rendered = shop(damage).render(Question("Broken."), Damage(picture, "wet"))
    assert rendered.user_parts == (
        Text("## 2. Question\n\nBroken.\n\n## 3. Damage\n\nSee:"),
        picture,
        Text("Note: wet"),
    )
    adapter, session = ScriptedAdapter(["Sorry."]), Session()
    prompt = Prompt(shop(damage)).bind(Question("Broken."), Damage(picture, "wet"))
    adapter.evaluate(prompt, session=session)
    assert adapter.requests[0].messages[1].parts == rendered.user_parts
    assert session[PromptRendered].all()[0].text == rendered.text


def test_a_picture_cannot_stand_in_a_system_section() -> None:
    section = MarkdownSection[Damage](title="Damage", key="damage", template="See: ${photo}")
    with pytest.raises(PromptRenderError, match=r"\$\{photo\} is \[image .* can only be placed in a section with role"):
        shop(section).render(Question("?"), Damage(Image.from_bytes(png(), "image/png")))


def test_a_role_is_for_root_sections() -> None:
    child = MarkdownSection(title="Child", key="child", template="x", role="user")
    with pytest.raises(PromptValidationError, match=r"'parent\.child': role='user' is for root sections"):
        shop(MarkdownSection(title="Parent", key="parent", template="x", children=[child]))
    with pytest.raises(PromptValidationError, match="role must be 'system' or 'user', got 'human'"):
        MarkdownSection(title="A", key="a", template="x", role="human")  # type: ignore[arg-type]


def test_a_prompt_of_user_sections_alone_has_no_system_message() -> None:
    ask = MarkdownSection(title="Question", key="question", template="Hello?", role="user")
    with ScriptedAdapter(["Hi."]) as adapter:
        adapter.evaluate(Prompt(PromptTemplate(ns="t", key="k", sections=[ask])), session=Session())
    assert [message.role for message in adapter.requests[0].messages] == ["user"]


def test_a_user_section_may_be_summarized_and_read() -> None:
    letter = MarkdownSection(
        title="Letter",
        key="letter",
        template="Dear all.",
        summary="A letter.",
        visibility=SectionVisibility.SUMMARY,
        role="user",
    )
    rendered = shop(letter).render(Question("?"))
    assert "A letter." in rendered.user_text and "read_section" in rendered.user_text
