"""The guards that come along."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.guarding.cases import OUTSIDE, pay
from weakincentives import (
    Approve,
    Conversation,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    Snapshot,
    call,
    run,
    run_async,
    tool,
)
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.guards import (
    Guard,
    GuardDecided,
    GuardRefusedError,
    MaxCalls,
    OutputCheck,
    ReadBeforeWrite,
    Refuse,
    RequiresTool,
)
from weakincentives.runtime import Message

LOOKED: list[str] = []


@tool(read_only=True)
async def look(what: str) -> str:
    "Look at something."
    await asyncio.sleep(0)
    LOOKED.append(what)
    return f"saw {what}"


def prompt_with(*guards: Guard) -> Prompt[Any]:
    section = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay, look])
    return Prompt(ns="tests", key="rules", sections=[section], guards=guards)


def results(session: Session) -> list[str]:
    return [message.text for message in session[Message].all() if message.role == "tool"]


@pytest.fixture(autouse=True)
def _clean() -> None:
    OUTSIDE.clear()
    LOOKED.clear()


# MaxCalls


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("in_one_turn", [False, True], ids=["turns", "one turn"])
@pytest.mark.parametrize("is_async", [False, True], ids=["run", "run_async"])
def test_a_tool_may_be_called_so_often_in_a_run(limit: int, in_one_turn: bool, is_async: bool) -> None:
    """Calls of a read-only tool overlap, so that none has ended when the last one is asked about."""
    calls = [call("look", what=str(number)) for number in range(3)]
    model = ScriptedAdapter([calls, "Done."] if in_one_turn else [*calls, "Done."])
    prompt, session = prompt_with(MaxCalls("look", limit)), Session()
    if is_async:
        asyncio.run(run_async(prompt, model, session=session))
    else:
        run(prompt, model, session=session)
    assert sorted(LOOKED) == ["0", "1", "2"][:limit]
    assert [text.startswith("saw") for text in results(session)] == [number < limit for number in range(3)]


def test_calls_of_another_run_or_another_tool_do_not_count() -> None:
    script: list[Any] = []
    for number in range(2):
        script += [call("pay", amount=1), call("look", what=str(number)), call("look", what="again"), "Done."]
    chat = Conversation(prompt_with(MaxCalls("look", 1)), adapter=ScriptedAdapter(script))
    chat.send("One")
    chat.send("Two")
    assert LOOKED == ["0", "1"]


def test_a_call_that_another_guard_refused_does_not_count() -> None:
    class NotFirst(Guard):
        def before_tool(self, call: Any, *, context: Any) -> Any:
            return Refuse("Not first.") if call.params.what == "first" else None

    model = ScriptedAdapter([*(call("look", what=what) for what in ("first", "second", "third")), "Done."])
    run(prompt_with(MaxCalls("look", 1), NotFirst()), model)
    assert LOOKED == ["second"]


def test_ids_that_a_provider_gives_again_are_calls_of_their_own() -> None:
    model = ScriptedAdapter([*(call("look", call_id="c", what=str(number)) for number in range(3)), "Done."])
    run(prompt_with(MaxCalls("look", 2)), model)
    assert LOOKED == ["0", "1"]


def test_a_call_that_waits_counts() -> None:
    @tool(approval="call")
    def send(text: str) -> str:
        "Send it."
        OUTSIDE.append(text)
        return "sent"

    section = MarkdownSection(key="mail", title="Mail", template="Mail.", tools=[send])
    prompt: Prompt[Any] = Prompt(ns="tests", key="k", sections=[section], guards=[MaxCalls("send", 1)])
    session, model = Session(), ScriptedAdapter([[call("send", text="a"), call("send", text="b")], "Done."])
    (pending,) = run(prompt, model, session=session).pending
    assert pending.params.text == "a"
    run(prompt, model, session=session, decisions={pending.call_id: Approve()})
    assert OUTSIDE == ["a"]


# RequiresTool


def test_no_answer_before_the_tool_has_succeeded() -> None:
    model = ScriptedAdapter(["Done.", call("look", what="x"), "Done."])
    session = Session()
    assert run(prompt_with(RequiresTool("look")), model, session=session).text == "Done."
    assert LOOKED == ["x"]
    assert model.requests[1].messages[-1].text == "Call the tool 'look' before you answer."
    with pytest.raises(GuardRefusedError, match="RequiresTool refused the answer of 'rules': Call the tool 'look'"):
        run(prompt_with(RequiresTool("look")), ScriptedAdapter(["Done.", "Done."]))


def test_a_call_that_failed_or_belongs_to_another_exchange_is_not_enough() -> None:
    chat = Conversation(
        prompt_with(RequiresTool("look")), adapter=ScriptedAdapter([call("look", what="x"), "Done.", "Done.", "Done."])
    )
    assert chat.send("One").text == "Done."
    with pytest.raises(GuardRefusedError):
        chat.send("Two")
    prompt = prompt_with(RequiresTool("look"), MaxCalls("look", 0))
    with pytest.raises(GuardRefusedError):
        run(prompt, ScriptedAdapter([call("look", what="x"), "A.", "B."]))


# OutputCheck


@dataclass(frozen=True)
class Offer:
    price: int


def test_the_output_is_checked_by_a_function_and_its_feedback_is_for_the_model() -> None:
    def cheap(offer: Offer) -> str | None:
        return None if offer.price < 10 else f"{offer.price} is too much."

    async def cheap_later(offer: Offer) -> str | None:
        return cheap(offer)

    for check in (cheap, cheap_later):
        section = MarkdownSection(key="s", title="S", template="Offer.")
        template = PromptTemplate[Offer](ns="tests", key="k", sections=[section], guards=[OutputCheck(check)])
        model = ScriptedAdapter(['{"price": 11}', '{"price": 9}'])
        assert run(Prompt(template), model).require_output() == Offer(9)
        assert model.requests[1].messages[-1].text == "11 is too much."
        assert asyncio.run(run_async(Prompt(template), ScriptedAdapter(['{"price": 3}']))).output == Offer(3)


def test_a_check_of_text_gets_the_text_and_one_that_says_true_refuses() -> None:
    seen: list[str] = []
    run(prompt_with(OutputCheck(seen.append)), ScriptedAdapter(["Done."]))
    assert seen == ["Done."]
    with pytest.raises(GuardRefusedError, match="Guard 'OutputCheck' failed: TypeError: Retry takes a text, got True"):
        run(prompt_with(OutputCheck(lambda text: True)), ScriptedAdapter(["Done."]))  # type: ignore[arg-type, return-value]


# ReadBeforeWrite


def files_prompt(files: Filesystem) -> Prompt[Any]:
    return Prompt(ns="tests", key="files", sections=[VfsToolsSection(files)], guards=[ReadBeforeWrite()])


def files_in(folder: Path, kind: str) -> Filesystem:
    files: Filesystem = HostFilesystem(folder) if kind == "host" else InMemoryFilesystem()
    files.write("a.txt", "one\n")
    files.write("sub/b.txt", "two\n")
    return files


READ = call("read", path="a.txt")
CHANGES = [
    call("write", path="a.txt", content="x", mode="overwrite"),
    call("write", path="./a.txt", content="x", mode="append"),
    call("edit", path="a.txt", old="one", new="1"),
    call("rm", path="a.txt"),
]


LINES = "one\ntwo\nthree\nfour\n"
OVERWRITE = call("write", path="a.txt", content="x", mode="overwrite")
APPEND = call("write", path="a.txt", content="x", mode="append")
FIRST = call("read", path="a.txt", limit=1)
REST = call("read", path="a.txt", offset=1)
LAST = call("read", path="a.txt", offset=3)


def edit(old: str, new: str = "new") -> Any:
    return call("edit", path="a.txt", old=old, new=new)


@pytest.mark.parametrize(
    ("turns", "content"),
    [
        ([FIRST, OVERWRITE], LINES),
        ([FIRST, call("rm", path="a.txt")], LINES),
        ([FIRST, REST, OVERWRITE], "x"),
        ([REST, FIRST, OVERWRITE], "x"),
        ([FIRST, edit("one")], LINES.replace("one", "new")),
        ([FIRST, edit("two")], LINES),
        ([FIRST, edit("one\ntwo")], LINES),
        ([LAST, edit("four", "more\nmore"), edit("more\nmore", "x")], LINES.replace("four", "x")),
        ([FIRST, edit("one", "longer"), edit("two")], LINES.replace("one", "longer")),
        ([FIRST, edit("one", "1"), REST, OVERWRITE], "x"),
        ([FIRST, APPEND], LINES),
        ([LAST, APPEND], LINES + "x"),
        ([[READ, OVERWRITE]], LINES),
        ([[READ, edit("one")], edit("two")], LINES.replace("two", "new")),
        ([READ, [edit("one"), edit("two")]], LINES.replace("one", "new").replace("two", "new")),
    ],
)
def test_what_is_changed_was_read_before_the_reply_that_changes_it(turns: list[Any], content: str) -> None:
    files = InMemoryFilesystem({"a.txt": LINES})
    run(files_prompt(files), ScriptedAdapter([*turns, "Done."]))
    assert files.read("a.txt") == content


@pytest.mark.parametrize("kind", ["memory", "host"])
@pytest.mark.parametrize("content", ["one\r\ntwo\r\n", "\ufeffone\n", "", "ä\u2028b\x0cc\rd", "x" * 70_000 + "\nend\n"])
def test_a_file_with_odd_lines_can_be_replaced_once_it_is_read(content: str, kind: str, tmp_path: Path) -> None:
    files: Filesystem = HostFilesystem(tmp_path) if kind == "host" else InMemoryFilesystem()
    files.write("a.txt", content)
    pages = [READ, call("read", path="a.txt", offset=1)] if len(content) > 60_000 else [READ]
    run(files_prompt(files), ScriptedAdapter([*pages, OVERWRITE, "Done."]))
    assert files.read("a.txt") == "x"


def test_a_refusal_names_the_first_line_that_was_not_read() -> None:
    session = Session()
    prompt = files_prompt(InMemoryFilesystem({"a.txt": LINES}))
    run(prompt, ScriptedAdapter([FIRST, OVERWRITE, "Done."]), session=session)
    refusal = "Read the rest of 'a.txt' before you change it: you have not seen line 2."
    assert results(session)[-1] == refusal


@pytest.mark.parametrize("kind", ["memory", "host"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_file_is_read_before_it_is_changed(change: Any, kind: str, tmp_path: Path) -> None:
    files, session = files_in(tmp_path, kind), Session()
    run(files_prompt(files), ScriptedAdapter([change, READ, change, "Done."]), session=session)
    refused, _, changed = results(session)
    assert refused == "Read 'a.txt' before you change it: you have not seen what it contains now."
    assert "before you change it" not in changed
    assert not files.exists("a.txt") or files.read("a.txt") != "one\n"


@pytest.mark.parametrize("kind", ["memory", "host"])
def test_a_new_file_may_be_written_and_then_changed(kind: str, tmp_path: Path) -> None:
    files, session = files_in(tmp_path, kind), Session()
    script = [call("write", path="new.txt", content="a"), call("edit", path="new.txt", old="a", new="b"), "Done."]
    run(files_prompt(files), ScriptedAdapter(script), session=session)
    assert files.read("new.txt") == "b"


@pytest.mark.parametrize("kind", ["memory", "host"])
def test_a_file_that_has_changed_since_counts_as_unread(kind: str, tmp_path: Path) -> None:
    files = files_in(tmp_path, kind)
    edit = call("edit", path="a.txt", old="o", new="0")
    model = ScriptedAdapter([READ, "Read.", edit, "Well.", READ, edit, "Done."])
    chat = Conversation(files_prompt(files), adapter=model)
    chat.send("Read it.")
    files.write("a.txt", "other\n")
    chat.send("Edit it.")
    assert files.read("a.txt") == "other\n"
    chat.send("Try again.")
    assert files.read("a.txt") == "0ther\n"


def test_what_was_read_is_known_in_the_next_process() -> None:
    files, session = files_in(Path(), "memory"), Session()
    run(files_prompt(files), ScriptedAdapter([READ, "Read."]), session=session)
    later = Session()
    later.restore(Snapshot.from_json(session.snapshot().to_json()))
    edit = call("edit", path="a.txt", old="one", new="1")
    run(files_prompt(files), ScriptedAdapter([edit, "Done."]), session=later)
    assert files.read("a.txt") == "1\n"


def test_a_directory_is_deleted_only_if_its_files_were_read() -> None:
    files, session = files_in(Path(), "memory"), Session()
    remove = call("rm", path="sub", recursive=True)
    model = ScriptedAdapter([remove, call("read", path="sub/b.txt"), remove, "Done."])
    run(files_prompt(files), model, session=session)
    assert results(session)[0] == "Read 'sub/b.txt' before you change it: you have not seen what it contains now."
    assert not files.exists("sub")


def test_paths_that_the_tool_rejects_are_left_to_it() -> None:
    session = Session()
    bad = call("write", path="../x", content="x")
    run(files_prompt(files_in(Path(), "memory")), ScriptedAdapter([bad, "Done."]), session=session)
    assert ".." in results(session)[0]
    assert session[GuardDecided].all() == ()
