"""In-memory files belong to a session: every evaluation on it finds them, and no other session does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.disclosure.desk import answers, section
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.prompt import (
    OpenAndHalt,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    ReadSections,
    SetVisibilityOverride,
    VisibilityExpansionRequired,
)
from weakincentives.runtime import Completed, Conversation, MainLoop, Message
from weakincentives.session import Session

Evaluate = Callable[[ScriptedAdapter, Prompt[Any], Session], Any]


def evaluate_streamed(adapter: ScriptedAdapter, prompt: Prompt[Any], session: Session) -> Any:
    with adapter.stream(prompt, session=session) as events:
        *_, last = events
    assert isinstance(last, Completed)
    return last.response


EVALUATIONS: dict[str, Evaluate] = {
    "sync": lambda adapter, prompt, session: adapter.evaluate(prompt, session=session),
    "async": lambda adapter, prompt, session: asyncio.run(adapter.evaluate_async(prompt, session=session)),
    "streamed": evaluate_streamed,
    "resumed": lambda adapter, prompt, session: (adapter.resume if session[Message].all() else adapter.evaluate)(
        prompt, session=session
    ),
    "main loop": lambda adapter, prompt, session: MainLoop().execute(prompt, session=session, adapter=adapter),
}


def run(evaluate: Evaluate, adapter: ScriptedAdapter, prompt: Prompt[Any], session: Session) -> None:
    """Evaluate until there is an answer, as a caller's own loop does."""
    for _ in range(5):
        try:
            response = evaluate(adapter, prompt, session)
            if response.halt is None:
                return
            requested = response.halt.requested_overrides
        except VisibilityExpansionRequired as signal:
            requested = signal.requested_overrides
        for path, visibility in requested.items():
            session.broadcast(SetVisibilityOverride(path=path, visibility=visibility))


def clerk(disclosure: Any = None) -> PromptTemplate[None]:
    sections = [VfsToolsSection(), section("doc"), section("refunds", tools=("refund",))]
    return PromptTemplate(ns="t", key="clerk", sections=sections, disclosure=disclosure)


def open_(key: str) -> Any:
    return call("open_sections", section_keys=[key], reason="needed")


@pytest.mark.parametrize("evaluate", EVALUATIONS.values(), ids=EVALUATIONS.keys())
@pytest.mark.parametrize(
    ("disclosure", "opening"),
    [
        (OpenToFiles(), open_("refunds")),
        (OpenAndHalt(), open_("refunds")),
        (ReadSections(), call("read_section", section_key="refunds")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_files_are_there_after_a_restart(evaluate: Evaluate, disclosure: Any, opening: Any) -> None:
    session = Session()
    script = [call("write", path="note.md", content="Mine."), opening, call("read", path="note.md"), "Done."]
    adapter = ScriptedAdapter(script, supports_dynamic_tools=False)
    run(evaluate, adapter, Prompt(clerk(disclosure)), session)
    assert "Mine." in answers(session)[-1][1]
    assert session.workspace.read("note.md") == "Mine."


@pytest.mark.parametrize("evaluate", EVALUATIONS.values(), ids=EVALUATIONS.keys())
def test_a_section_written_to_a_file_can_be_read_after_a_restart(evaluate: Evaluate) -> None:
    session = Session()
    adapter = ScriptedAdapter([open_("doc"), open_("refunds"), call("read", path="context/doc.md"), "Done."])
    run(evaluate, adapter, Prompt(clerk(OpenToFiles())), session)
    assert "All of doc." in answers(session)[-1][1]


@pytest.mark.parametrize("entered", [False, True])
def test_files_are_there_in_every_turn_of_a_conversation(entered: bool) -> None:
    script = [call("write", path="note.md", content="Mine."), "Written.", call("read", path="note.md"), "Read."]
    chat = Conversation(Prompt(clerk()), adapter=ScriptedAdapter(script))
    if entered:
        with chat:
            chat.send("Write it.")
    else:
        chat.send("Write it.")
    chat.send("Read it.")
    assert "Mine." in answers(chat.session)[-1][1]


@pytest.mark.parametrize("evaluate", EVALUATIONS.values(), ids=EVALUATIONS.keys())
def test_two_sessions_of_one_prompt_share_no_file(evaluate: Evaluate) -> None:
    prompt, first, second = Prompt(clerk()), Session(), Session()
    run(evaluate, ScriptedAdapter([call("write", path="note.md", content="Mine."), "Done."]), prompt, first)
    run(evaluate, ScriptedAdapter([call("read", path="note.md"), "Done."]), prompt, second)
    assert answers(second)[-1][0] is False
    assert not second.workspace.exists("note.md")


def test_a_clone_of_a_session_has_a_copy_of_its_files() -> None:
    session = Session()
    session.workspace.write("note.md", "Mine.")
    clone = session.clone()
    clone.workspace.write("note.md", "Yours.")
    assert (session.workspace.read("note.md"), clone.workspace.read("note.md")) == ("Mine.", "Yours.")


def test_files_are_there_while_the_resources_of_the_prompt_are_open() -> None:
    session = Session()
    prompt = Prompt(clerk())
    with prompt.resources:
        ScriptedAdapter([call("write", path="note.md", content="Mine."), "Done."]).evaluate(prompt, session=session)
        ScriptedAdapter([call("read", path="note.md"), "Done."]).evaluate(prompt, session=session)
    assert "Mine." in answers(session)[-1][1]
