"""Who closed a section decides who may open it again: what a compaction closed, its rule or the user's words may."""

from __future__ import annotations

from typing import Any

import pytest

from tests.disclosure.desk import section, tool_names
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import CollapseSection, MarkdownSection, Prompt, PromptTemplate, SearchSections
from weakincentives.runtime import Compacted, Compaction, Conversation, run
from weakincentives.session import Session, Snapshot

WORDS = "What about the refund of my parcel?"
CLOSERS = ["code", "model", "compaction"]
CLOSED = [("refund",), ("desk", "refund"), ("desk",)]
"""Either the section itself, one inside another, or the one around it."""


def says_refund(*, text: str) -> bool:
    return "refund" in text


def template_of(opener: str, path: tuple[str, ...]) -> PromptTemplate[None]:
    """A prompt whose closed section `refund`, inside `desk` or not, is opened by a rule or by the user's words."""
    options: dict[str, Any] = {"open_when": says_refund} if opener == "rule" else {}
    refund = section("refund", tools=("refund",), **options)
    inner = [refund] if path == ("refund",) else [section("desk", children=[refund])]
    task = MarkdownSection(key="task", title="Task", template="Help.")
    disclosure = SearchSections(preopen=1 if opener == "search" else 0)
    return PromptTemplate(
        ns="tests", key="reopening", sections=[task, *inner], disclosure=disclosure, allow_collapse=True
    )


def restored(chat: Conversation[Any]) -> Conversation[Any]:
    session = Session()
    session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    return Conversation(chat.prompt, adapter=chat.adapter, session=session)


def rewound(chat: Conversation[Any]) -> Conversation[Any]:
    chat.send("And what else is there?")
    chat.rewind(chat.checkpoints()[-1].id)
    return chat


def same(chat: Conversation[Any]) -> Conversation[Any]:
    return chat


class Script:
    """A model that answers `OK.`, or closes a section if it is told to."""

    def __init__(self) -> None:
        self.key = ""

    def __call__(self, request: Any) -> Any:
        key, self.key = self.key, ""
        return call("collapse_section", section_key=key) if key else "OK."


def offers_refund(adapter: ScriptedAdapter) -> bool:
    request = adapter.requests[-1]
    return "refund" in set(tool_names(request.tools)) - request.revoked


@pytest.mark.parametrize("go_on", [same, restored, rewound, Conversation.fork], ids=lambda door: door.__name__)
@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "restarts"])
@pytest.mark.parametrize("path", CLOSED, ids=".".join)
@pytest.mark.parametrize("opener", ["rule", "search"])
@pytest.mark.parametrize("closer", CLOSERS)
def test_only_what_a_compaction_closed_is_opened_again(
    closer: str, opener: str, path: tuple[str, ...], dynamic: bool, go_on: Any
) -> None:
    script = Script()
    adapter = ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    chat: Conversation[Any] = Conversation(Prompt(template_of(opener, path)), adapter=adapter)
    chat.send(WORDS)
    assert offers_refund(adapter)
    if closer == "model":
        script.key = ".".join(path)
    else:
        chat.session.dispatch(CollapseSection(path, by=closer))  # type: ignore[arg-type]
    chat.send("Thank you.")
    assert not offers_refund(adapter)
    go_on(chat).send(WORDS)
    assert offers_refund(adapter) is (closer == "compaction")


PADDING = "lorem ipsum dolor sit amet " * 60


def long_chat(opener: str, **options: Any) -> tuple[Conversation[Any], ScriptedAdapter]:
    adapter = ScriptedAdapter(lambda request: f"OK. {PADDING}")
    prompt = Prompt(template_of(opener, ("refund",)))
    return Conversation(prompt, adapter=adapter, compaction=Compaction(window=3_000, keep=1), **options), adapter


@pytest.mark.parametrize("opener", ["rule", "search"])
def test_a_compaction_leaves_open_what_this_message_has_opened(opener: str) -> None:
    chat, adapter = long_chat(opener)
    chat.send("Hello.")
    for number in range(12):
        chat.send(f"{WORDS} This is message {number}.")
        assert offers_refund(adapter)
    assert chat.session[Compacted].all() and not chat.session[CollapseSection].all()


@pytest.mark.parametrize("opener", ["rule", "search"])
def test_what_a_real_compaction_closed_is_opened_when_the_user_asks_for_it_again(opener: str) -> None:
    chat, adapter = long_chat(opener)
    chat.send("Hello.")  # What is open from the start is part of the prompt, and stays open.
    chat.send(WORDS)
    for number in range(8):
        chat.send(f"Message {number}.")
    assert [event.by for event in chat.session[CollapseSection]] == ["compaction"] and not offers_refund(adapter)
    chat.send(WORDS)
    assert offers_refund(adapter)


@pytest.mark.parametrize("closer", CLOSERS)
@pytest.mark.parametrize("path", CLOSED, ids=".".join)
@pytest.mark.parametrize("opener", ["rule", "search"])
def test_a_new_run_on_the_session_follows_the_same_rule(closer: Any, path: tuple[str, ...], opener: str) -> None:
    adapter, session = ScriptedAdapter(lambda request: "OK."), Session()
    session.dispatch(CollapseSection(path, by=closer))
    user = MarkdownSection(key="user", title="User", template=WORDS, role="user")
    template = template_of(opener, path)
    sections = [*template.sections, user]
    prompt = Prompt(ns="tests", key="reopening", sections=sections, disclosure=template.disclosure)
    run(prompt, adapter, session=session)
    assert offers_refund(adapter) is (closer == "compaction")


def test_only_these_can_close_a_section() -> None:
    with pytest.raises(ValueError, match="CollapseSection by must be one of code, model, compaction, got 'me'"):
        CollapseSection(("refund",), by="me")  # type: ignore[arg-type]
