"""Images, documents and recordings on the wire, what is refused before it, and what they cost."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.models import MINI, MINIMAL, PLAIN
from tests.adapters.tools import SYSTEM, SearchCodec, ask
from tests.pictures import png
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.anthropic.wire import MessagesWire
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.adapters.litellm.wire import ChatWire
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.openai.wire import ResponsesWire
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.content import Audio, Document, Image, text_of
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Conversation, MediaSupport, Message, PromptRendered, ToolCall, ledger
from weakincentives.session import Session

PNG = png()
DATA = b64encode(PNG).decode()
PICTURE = Image.from_bytes(PNG, "image/png", name="box.png")
PAPER = Document.from_bytes(b"%PDF-1.4", "application/pdf", name="terms.pdf")
PAPER_DATA = b64encode(b"%PDF-1.4").decode()
NOTE = Document.from_bytes(b"hello", "text/plain", name="note.txt")
SOUND = Audio.from_bytes(b"RIFF0000WAVE", "audio/wav")

OPENAI, ANTHROPIC = OpenAIAdapter("gpt-5.6"), AnthropicAdapter("claude-opus-5")
LITELLM = LiteLLMAdapter("openai/scripted")


def spoken(adapter: Any, *parts: Any) -> Any:
    """What a user turn with these parts is on the wire."""
    messages = [SYSTEM, Message("user", text_of(parts), parts=parts)]
    body = json.loads(adapter._wire().encode_request(ask(messages)).body())
    return (body.get("input") or body["messages"])[-1]["content"]


def result(adapter: Any, *parts: Any) -> Any:
    """What a tool result with these parts is on the wire."""
    asked = Message("assistant", tool_calls=(ToolCall("c1", "look", "{}"),))
    messages = [SYSTEM, asked, Message("tool", text_of(parts), call_id="c1", name="look", parts=parts)]
    body = json.loads(adapter._wire().encode_request(ask(messages)).body())
    return (body.get("input") or body["messages"])[-1]


def test_openai_gets_parts_of_the_input() -> None:
    assert spoken(OPENAI, PICTURE, PAPER) == [
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{DATA}"},
        {
            "type": "input_file",
            "filename": "terms.pdf",
            "file_data": f"data:application/pdf;base64,{PAPER_DATA}",
        },
    ]


def test_openai_gets_addresses_and_ids_as_they_are() -> None:
    parts = (Image.from_url("https://x.example/a.png"), Document.from_file_id("file-1"))
    assert spoken(OPENAI, *parts) == [
        {"type": "input_image", "detail": "auto", "image_url": "https://x.example/a.png"},
        {"type": "input_file", "file_id": "file-1"},
    ]


def test_anthropic_gets_blocks_with_sources() -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": PAPER_DATA}
    plain = {"type": "text", "media_type": "text/plain", "data": "hello"}
    assert spoken(ANTHROPIC, PICTURE, PAPER, NOTE, Image.from_file_id("file_1")) == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        {"type": "document", "source": pdf, "title": "terms.pdf"},
        {"type": "document", "source": plain, "title": "note.txt"},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    ]


def test_litellm_gets_the_chat_forms() -> None:
    assert spoken(LITELLM, PICTURE, PAPER, SOUND) == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        {
            "type": "file",
            "file": {"filename": "terms.pdf", "file_data": f"data:application/pdf;base64,{PAPER_DATA}"},
        },
        {
            "type": "input_audio",
            "input_audio": {"data": b64encode(b"RIFF0000WAVE").decode(), "format": "wav"},
        },
    ]


def test_media_of_a_tool_go_with_its_result() -> None:
    shown = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{DATA}"}
    assert result(OPENAI, PICTURE) == {"type": "function_call_output", "call_id": "c1", "output": [shown]}
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
    found = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}
    assert result(ANTHROPIC, PICTURE) == {"role": "user", "content": [found]}
    link = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}
    assert result(LITELLM, PICTURE) == {"role": "tool", "tool_call_id": "c1", "content": [link]}


@pytest.mark.parametrize("wire", [ResponsesWire, MessagesWire, ChatWire])
def test_media_of_earlier_turns_that_this_model_does_not_take_are_named_in_words(wire: Any) -> None:
    options = {ResponsesWire: {"route": "append"}, MessagesWire: {"route": "append", "max_tokens": 9}}
    line = wire("m", codecs={"s": SearchCodec()}, parameters={}, **options.get(wire, {"first_user_turn": False}))
    body = line.encode_request(ask([SYSTEM, Message("user", "x", parts=(PICTURE,))])).body()
    assert b"[image box.png (image/png, %d bytes)]" % len(PNG) in body


BIG = Image.from_bytes(png(9000, 10), "image/png")


@pytest.mark.parametrize(
    ("adapter", "part", "problem"),
    [
        (
            OPENAI,
            SOUND,
            "The openai adapter with model 'gpt-5.6' accepts text, images (png, jpg, webp, gif)",
        ),
        (ANTHROPIC, SOUND, "The anthropic adapter with model 'claude-opus-5' accepts text, images"),
        (ANTHROPIC, Document.from_bytes(b"x", Document.types["docx"]), "got [document (application/vnd.openxml"),
        (ANTHROPIC, BIG, "accepts images of at most 8000 pixels a side, got 9000"),
        (ANTHROPIC, Image.from_bytes(PNG + bytes(8 << 20), "image/png"), "accepts at most 7.5 MB for one image"),
        (LITELLM, Document.from_url("https://x.example/a.pdf"), "accepts no documents by URL"),
        (LiteLLMAdapter("anthropic/claude-opus-5"), SOUND, "with model 'anthropic/claude-opus-5' accepts text, images"),
    ],
)
def test_what_a_model_does_not_take_is_refused_by_name(adapter: Any, part: Any, problem: str) -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        adapter.check_content([part])
    assert problem in str(caught.value) and caught.value.phase == "request"


class OneImage(ScriptedAdapter):
    media = MediaSupport(images=("image/png",), max_images=1)  # type: ignore[assignment]


def test_images_of_earlier_turns_count_and_the_message_is_not_added() -> None:
    prompt = Prompt(PromptTemplate(ns="t", key="k", sections=[MarkdownSection(title="A", key="a", template="x")]))
    chat = Conversation(prompt, adapter=OneImage(["One.", "Fine."]))
    chat.send(PICTURE)
    with pytest.raises(PromptEvaluationError, match="accepts at most 1 images, got 2"):
        chat.send([PICTURE, "And this?"])
    assert chat.send("Never mind.").text == "Fine."
    assert [len(message.parts) for message in chat.messages if message.role == "user"] == [1, 0]


@pytest.mark.parametrize(
    ("adapter", "size", "tokens"),
    [
        (ANTHROPIC, (1024, 1024), 37 * 37),
        (ANTHROPIC, (4000, 2000), 72 * 36),
        (AnthropicAdapter("claude-haiku-4-5"), (2000, 2000), 1568),
        (OPENAI, (1024, 1024), 1229),
        (OpenAIAdapter(MINI), (1024, 1024), 1659),
        (OpenAIAdapter(PLAIN), (1024, 1024), 85 + 4 * 170),
        (OpenAIAdapter(MINIMAL), (2048, 4096), 70 + 6 * 140),
    ],
)
def test_an_image_costs_what_the_vendor_says(adapter: Any, size: tuple[int, int], tokens: int) -> None:
    assert adapter.count_media(Image.from_bytes(png(*size), "image/png")) == tokens


def test_a_document_costs_its_pages_or_its_text() -> None:
    pages = Document.from_bytes(b"%PDF-1.4 /Type /Pages /Type /Page /Type/Page", "application/pdf")
    assert (ANTHROPIC.count_media(pages), OPENAI.count_media(NOTE)) == (4500, 1)


@dataclass(frozen=True)
class Order:
    photo: Image


class Priced(ScriptedAdapter):
    def count_media(self, part: Any) -> int:
        return 1000


def test_a_picture_in_the_params_counts_for_its_section() -> None:
    photo = MarkdownSection[Order](title="Photo", key="photo", template="See ${photo}.", role="user")
    task = MarkdownSection(title="Task", key="task", template="Look.")
    prompt = Prompt(PromptTemplate(ns="t", key="k", sections=[task, photo])).bind(Order(PICTURE))
    adapter, session = Priced(["A box."]), Session()
    adapter.evaluate(prompt, session=session)
    shown = {state.path: state.shown_tokens for state in session[PromptRendered].all()[0].sections}
    assert shown["photo",] >= 1000 > shown["task",]
    assert {section.key: section.shown_tokens for section in ledger(session).sections}["photo"] >= 1000
    assert adapter.explain(prompt).text_tokens >= 1000
