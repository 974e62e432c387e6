"""Points of a conversation, and going back to them: what changes, what is left alone, and how it is undone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rewind.desk import Desk, Noted, Notes, Tone, publish, texts
from weakincentives import (
    Approve,
    Budget,
    Conversation,
    MarkdownSection,
    PromptTemplate,
    ScriptedAdapter,
    SectionVisibility,
    Session,
    call,
    delegate,
)
from weakincentives.errors import OutsideEffectsError, SessionBusyError, SessionError
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import SetVisibilityOverride, VisibilityOverrides
from weakincentives.runtime import (
    CheckpointFailed,
    Exposure,
    Message,
    PromptRendered,
    RewindReport,
    Rewound,
    RunEnded,
    SectionsExposed,
    run_history,
)
from weakincentives.session import Snapshot


def wrote(path: str, text: str) -> Any:
    return call("write", path=path, text=text)


def test_there_is_a_point_for_each_message_and_each_turn() -> None:
    chat = Desk().chat(call("note", text="a"), "One.", "Two.")
    chat.send("First?")
    chat.send("Second?")
    found = [(point.kind, point.turn, point.text) for point in chat.checkpoints()]
    assert found == [
        ("message", 0, "First?"),
        ("turn", 1, ""),
        ("turn", 2, ""),
        ("message", 0, "Second?"),
        ("turn", 1, ""),
    ]
    assert len({point.id for point in chat.checkpoints()}) == 5


def test_everything_goes_back_together() -> None:
    chat = Desk().chat("One.", call("note", text="a"), wrote("a.txt", "1"), "Two.", "Three.")
    chat.send("First?")
    chat.bind(Tone("loud"))
    chat.send("Second?")
    (point,) = [each for each in chat.checkpoints() if each.text == "Second?"]
    chat.bind(Tone("soft"))
    report = chat.rewind(point)
    assert [each.path for each in report.files] == ["a.txt"]
    assert report.slices == (Message, Notes, Noted)
    assert (report.left_alone, report.outside) == ({}, ())
    assert texts(chat) == ["First?", "One."]
    assert not chat.session[Notes].latest() or not chat.session[Notes].all()[0].texts
    assert not chat.session.workspace.exists("a.txt")
    assert chat.prompt.params == (Tone("loud"),)
    assert [each.kind for each in chat.checkpoints()] == ["message", "turn"]


def test_a_preview_says_what_a_rewind_would_change_and_changes_nothing() -> None:
    chat = Desk().chat(wrote("a.txt", "1"), "One.")
    chat.send("First?")
    before = chat.session.snapshot()
    preview = chat.preview(chat.checkpoints()[0])
    assert chat.session.snapshot() == before
    assert [each.diff for each in preview.files] == [
        "--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n\\ No newline at end of file\n"
    ]
    assert chat.rewind(chat.checkpoints()[0]) == preview


def test_after_a_turns_point_send_repeats_its_request() -> None:
    chat = Desk().chat(call("note", text="a"), "One.", "Other.")
    chat.send("First?")
    *_, point = chat.checkpoints()
    chat.rewind(point.id)
    assert chat.send().text == "Other."
    adapter = chat.adapter
    assert isinstance(adapter, ScriptedAdapter)
    _, before, again = adapter.requests
    assert (tuple(again.messages), again.tools) == (tuple(before.messages), before.tools)
    assert texts(chat) == ["First?", "Other."]


def test_a_rewind_can_be_undone_once_until_a_message_is_sent() -> None:
    chat = Desk().chat("One.", wrote("a.txt", "1"), "Two.", "Three.")
    chat.send("First?")
    chat.send("Second?")
    points, said = chat.checkpoints(), texts(chat)
    chat.rewind(points[0])
    report = chat.undo_rewind()
    assert [(each.path, each.after) for each in report.files] == [("a.txt", b"1")]
    assert (texts(chat), chat.checkpoints(), chat.session.workspace.read("a.txt")) == (said, points, "1")
    with pytest.raises(SessionError, match="no rewind to undo"):
        chat.undo_rewind()
    chat.rewind(points[0])
    chat.send("Third?")
    with pytest.raises(SessionError, match="until the next message is sent"):
        chat.undo_rewind()


def test_an_unknown_point_is_an_error_that_names_the_last() -> None:
    chat = Desk().chat("One.", "Two.")
    chat.send("First?")
    chat.send("Second?")
    late = chat.checkpoints()[-1]
    chat.rewind(chat.checkpoints()[2])
    with pytest.raises(SessionError, match=f"no point '{late.id}'; the last of 2 is '{chat.checkpoints()[-1].id}'"):
        chat.preview(late)


def test_going_back_is_refused_while_a_run_is_under_way() -> None:
    chat = Desk().chat("One.", "Two.")
    chat.send("First?")
    point = chat.checkpoints()[0]
    with chat.stream("Second?") as events:
        next(iter(events))
        for act in (chat.rewind, chat.preview, chat.fork):
            with pytest.raises(SessionBusyError, match=r"in use by 'desk \("):
                act(point)


# Files on disk.


def test_a_file_that_something_else_changed_since_is_left_alone_and_named(tmp_path: Path) -> None:
    for name in ("kept", "changed", "deleted", "between"):
        (tmp_path / f"{name}.txt").write_text("old")
    lines = [wrote(f"{name}.txt", "new") for name in ("kept", "changed", "deleted", "between", "made")]
    chat = Desk().chat(lines, "One.", wrote("between.txt", "newer"), "Two.", files=HostFilesystem(tmp_path))
    chat.send("First?")
    (tmp_path / "between.txt").write_text("mine")
    chat.send("Second?")
    (tmp_path / "changed.txt").write_text("mine")
    (tmp_path / "deleted.txt").unlink()
    (tmp_path / "unknown.txt").write_text("mine")
    preview = chat.preview(chat.checkpoints()[0])
    report = chat.rewind(chat.checkpoints()[0])
    left = dict.fromkeys(["changed.txt", "deleted.txt", "between.txt"], "something else has changed it since")
    assert (report.left_alone, preview.left_alone) == (left, left)
    assert sorted(each.path for each in report.files) == ["kept.txt", "made.txt"]
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"kept.txt": "old", "changed.txt": "mine", "between.txt": "newer", "unknown.txt": "mine"}
    chat.undo_rewind()
    assert (tmp_path / "kept.txt").read_text() == "new" and (tmp_path / "changed.txt").read_text() == "mine"


def test_a_folder_that_a_tool_made_stays_if_something_else_put_a_file_into_it(tmp_path: Path) -> None:
    chat = Desk().chat(wrote("a/b/c.txt", "1"), "One.", files=HostFilesystem(tmp_path))
    chat.send("First?")
    (tmp_path / "a" / "mine.txt").write_text("mine")
    assert not chat.rewind(chat.checkpoints()[0]).left_alone
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine.txt"]
    chat.undo_rewind()
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "1"


def test_files_on_disk_go_back_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0")
    desk, root = Desk(), HostFilesystem(tmp_path)
    chat = desk.chat(wrote("a.txt", "1"), "One.", wrote("a.txt", "2"), "Two.", files=root)
    chat.send("First?")
    chat.send("Second?")
    chat = desk.restarted(chat, files=HostFilesystem(tmp_path))
    chat.rewind(chat.checkpoints()[3])
    assert (tmp_path / "a.txt").read_text() == "1"
    chat = desk.restarted(chat, files=HostFilesystem(tmp_path))
    chat.undo_rewind()
    assert (tmp_path / "a.txt").read_text() == "2"
    chat.rewind(chat.checkpoints()[0])
    assert (tmp_path / "a.txt").read_text() == "0"


def test_a_large_file_is_named_at_once_as_not_restorable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log.txt").write_bytes(b"x" * 10_000_001)
    chat = Desk().chat(wrote("log.txt", "1"), "One.", files=HostFilesystem(tmp_path))
    chat.send("First?")
    (failed,) = chat.session[CheckpointFailed].all()
    assert failed.paths == ("log.txt",) and "log.txt" in caplog.text
    report = chat.rewind(chat.checkpoints()[0])
    assert (report.files, [*report.left_alone]) == ((), ["log.txt"])
    assert (tmp_path / "log.txt").read_text() == "1"


def test_a_failed_call_leaves_nothing_to_take_back(tmp_path: Path) -> None:
    chat = Desk().chat(wrote("../out.txt", "1"), "One.", files=HostFilesystem(tmp_path))
    chat.send("First?")
    assert chat.preview(chat.checkpoints()[0]).files == ()


# The session: snapshots, events, exposure.


def test_points_keep_their_ids_over_snapshots_and_share_what_they_hold() -> None:
    desk = Desk()
    chat = desk.chat(*[f"Answer {n}." for n in range(30)])
    for n in range(30):
        chat.send(f"Message {n}?")
    text = chat.session.snapshot().to_json()
    other = desk.restarted(chat)
    assert other.checkpoints() == chat.checkpoints()
    assert other.session.snapshot().to_json() == text.replace(chat.session.session_id, other.session.session_id, 1)
    for point in (other.checkpoints()[40], other.checkpoints()[7]):
        other.rewind(point)
        assert texts(other) == texts(chat)[: int(point.id.split(":")[1])]


def test_the_in_memory_files_of_a_conversation_are_part_of_its_snapshot() -> None:
    desk = Desk()
    chat = desk.chat(wrote("a.txt", "1"), "One.", wrote("a.txt", "2"), "Two.")
    chat.send("First?")
    chat.send("Second?")
    other = desk.restarted(chat)
    assert other.session.workspace.read("a.txt") == "2"
    other.rewind(other.checkpoints()[3])
    assert other.session.workspace.read("a.txt") == "1"


def test_events_stay_and_usage_is_not_given_back() -> None:
    chat = Desk().chat("One.", "Two.", "Three.")
    chat.send("First?")
    chat.send("Second?")
    used = chat.usage
    chat.rewind(chat.checkpoints()[0])
    assert chat.usage == used
    first, second = chat.session[Rewound].all()
    assert [(each.turn, each.back) for each in (first, second)] == [(0, True), (0, True)]
    assert run_history(chat.session, second.run_id).undone_from == 0
    chat.undo_rewind()
    assert run_history(chat.session, second.run_id).undone_from is None


def test_the_budget_of_the_conversation_counts_undone_turns() -> None:
    chat = Desk().chat("One.", "Two.")
    chat.total = Budget(max_turns=1)
    chat.send("First?")
    chat.rewind(chat.checkpoints()[0])
    with pytest.raises(Exception, match="turns"):
        chat.send("Second?")


def test_what_the_model_has_follows_from_the_events_after_a_rewind() -> None:
    chat = Desk().chat(call("read_section", section_key="more"), "One.", "Two.", "Three.")
    chat.send("First?")
    chat.rewind(chat.checkpoints()[1])
    folded = Exposure()
    for event in chat.session[SectionsExposed].all():
        folded = folded.handle(event)
    assert folded == chat.session[Exposure].latest()
    assert chat.session[Exposure].all()[0]["more",].source == "summary"
    assert not (chat.session[VisibilityOverrides].latest() or VisibilityOverrides()).overrides
    chat.undo_rewind()
    assert chat.session[Exposure].all()[0]["more",].source == "conversation"


def test_the_conversation_keeps_its_id_when_it_goes_back_to_its_beginning_in_another_process() -> None:
    desk = Desk()
    chat = desk.chat("One.")
    chat.send("First?")
    other = desk.restarted(chat, "Two.")
    mine = other.conversation_id
    other.rewind(other.checkpoints()[0])
    other.send("Second?")
    assert (mine, other.conversation_id) == (chat.conversation_id, chat.conversation_id)
    assert texts(other) == ["Second?", "Two."] and other.usage.total_tokens > chat.usage.total_tokens


def test_params_that_cannot_be_stored_go_back_in_their_process_and_are_named_in_another() -> None:
    desk = Desk()
    chat = desk.chat("One.", "Two.")
    chat.bind(Tone(object()))  # type: ignore[arg-type]
    chat.send("First?")
    chat.bind(Tone("loud"))
    chat.send("Second?")
    other = desk.restarted(chat)
    assert [*other.preview(other.checkpoints()[0]).left_alone] == ["params"]
    assert not chat.rewind(chat.checkpoints()[0]).left_alone
    assert chat.prompt.params != (Tone("loud"),)


# Calls that wait, and effects outside.


def test_pending_calls_are_those_of_the_point() -> None:
    chat = Desk().chat(call("publish", text="a", call_id="c"), "Never mind.", "Done.")
    chat.send("Publish.")
    chat.send("Leave it.")
    assert not chat.pending
    (left,) = [each for each in chat.checkpoints() if each.text == "Leave it."]
    chat.rewind(left)
    assert [waiting.call_id for waiting in chat.pending] == ["c"]
    chat.decide({"c": Approve()})
    assert chat.session.workspace.read("published.txt") == "a"
    chat.rewind(chat.checkpoints()[1])
    assert chat.pending == () and not chat.session.workspace.exists("published.txt")


def test_effects_outside_are_named_and_undone_only_on_request() -> None:
    desk = Desk()
    chat = desk.chat("One.", call("mail", text="a"), call("mail", text="b"), "Two.")
    chat.send("First?")
    chat.send("Second?")
    point = chat.checkpoints()[2]
    assert [(each.tool, each.compensation) for each in chat.preview(point).outside] == [("mail", ""), ("mail", "")]
    before = texts(chat)
    with pytest.raises(OutsideEffectsError, match=r"'mail' \(call_1\).*over_effects=True.*compensate=True") as refused:
        chat.rewind(point)
    assert [call.tool for call in refused.value.outside] == ["mail", "mail"]
    assert (texts(chat), desk.mails) == (before, ["a", "b"])
    chat.rewind(point, over_effects=True)
    assert (texts(chat) != before, desk.mails) == (True, ["a", "b"])
    chat.undo_rewind()
    report = chat.rewind(point, compensate=True)
    assert [each.compensation for each in report.outside] == ["done", "done"]
    assert desk.mails == ["a", "b", "not b", "not a"]


def test_effects_outside_are_undone_in_another_process_too() -> None:
    desk = Desk()
    chat = desk.chat(call("mail", text="a"), "One.")
    chat.send("First?")
    other = desk.restarted(chat)
    other.rewind(other.checkpoints()[0], compensate=True)
    assert desk.mails == ["a", "not a"]


# Forks.


def test_a_fork_is_a_second_conversation_and_the_first_goes_on_as_it_was() -> None:
    desk = Desk()
    lines = [
        wrote("a.txt", "1"),
        "One.",
        wrote("a.txt", "2"),
        "Two.",
        "Fork.",
        "Three.",
    ]
    chat = desk.chat(*lines)
    chat.send("First?")
    chat.send("Second?")
    fork = chat.fork(chat.checkpoints()[3])
    assert fork.conversation_id != chat.conversation_id and fork.usage.total_tokens == 0
    assert [each.id for each in fork.checkpoints()] == [each.id for each in chat.checkpoints()[:3]]
    assert (fork.session.workspace.read("a.txt"), chat.session.workspace.read("a.txt")) == ("1", "2")
    fork.send("Other?")
    chat.send("Third?")
    assert texts(fork) == ["First?", "One.", "Other?", "Fork."]
    assert texts(chat) == ["First?", "One.", "Second?", "Two.", "Third?", "Three."]
    fork.rewind(fork.checkpoints()[0])
    assert (texts(fork), fork.session.workspace.exists("a.txt")) == ([], False)
    assert chat.session.workspace.read("a.txt") == "2" and fork.conversation_id == fork.session.session_id


def test_a_fork_has_no_events_of_what_came_after_its_point() -> None:
    chat = Desk().chat(call("publish", text="a", call_id="c"), "Never mind.")
    chat.send("Publish.")
    chat.send("Leave it.")
    (left,) = [each for each in chat.checkpoints() if each.text == "Leave it."]
    assert [event.status for event in chat.fork(left).session[RunEnded].all()] == ["waiting"]
    assert chat.fork(chat.checkpoints()[0]).session[PromptRendered].all() == ()


@pytest.mark.parametrize("is_open", [True, False])
def test_a_fork_has_a_copy_of_in_memory_files_that_were_bound(is_open: bool) -> None:
    files = InMemoryFilesystem({"b.txt": "0"})
    chat = Desk().chat(wrote("a.txt", "1"), "One.", wrote("b.txt", "2"), "F.", files=files)
    if is_open:
        chat.__enter__()
    chat.send("First?")
    fork = chat.fork(chat.checkpoints()[0])
    fork.send("Other?")
    assert (files.read("a.txt"), files.read("b.txt")) == ("1", "0")
    if is_open:
        chat.__exit__(None, None, None)


def test_files_on_disk_are_shared_with_a_fork_and_stay_as_they_are(tmp_path: Path) -> None:
    chat = Desk().chat(wrote("a.txt", "1"), "One.", files=HostFilesystem(tmp_path))
    chat.send("First?")
    fork = chat.fork(chat.checkpoints()[0])
    assert (tmp_path / "a.txt").read_text() == "1" and fork.preview is not None
    assert chat.rewind(chat.checkpoints()[0]) != RewindReport()


def test_another_adapter_goes_on_from_a_point() -> None:
    desk = Desk()
    chat = desk.chat(call("read_section", section_key="more"), "One.", "Two.")
    chat.send("First?")
    chat.send("Second?")
    chat.adapter = ScriptedAdapter(["Again."], supports_dynamic_tools=False)
    chat.rewind(chat.checkpoints()[2])
    assert chat.send().text == "Again."
    assert texts(chat) == ["First?", "Again."]


# Stored text.


def test_a_damaged_point_is_left_out_if_reading_is_lenient_and_else_an_error() -> None:
    chat = Desk().chat("One.")
    chat.send("First?")
    document = json.loads(chat.session.snapshot().to_json())
    text = json.dumps(document).replace('"state": "', '"state": "0:0-99999 ')
    with pytest.raises(SessionError, match="an earlier state cannot be read"):
        Snapshot.from_json(text)
    read = Snapshot.from_json(text, lenient=True)
    session = Session()
    session.restore(read)
    assert read.problems and Conversation.checkpoints(Desk().chat(session=session)) == ()
    assert [each.text for each in session[Message].all() if each.role == "assistant"] == ["One."]


def test_a_call_inside_a_delegated_run_waits_again_after_going_back_and_forward() -> None:
    child = PromptTemplate[Any](
        ns="tests", key="helper", sections=[MarkdownSection(key="h", title="H", template="Help.", tools=[publish])]
    )
    desk = Desk(extra=(delegate(child, description="Help.", name="help"),))
    lines = ["Hello.", call("help", call_id="h"), call("publish", text="a", call_id="p"), "Helped.", "Done."]
    chat = desk.chat(*lines)
    chat.session.dispatch(SetVisibilityOverride(("more",), SectionVisibility.FULL))
    chat.send("Hi.")
    (waiting,) = chat.send("Have it published.").pending
    (point,) = [each for each in chat.checkpoints() if each.text.startswith("Have")]
    chat.rewind(point)
    assert chat.pending == ()
    chat = desk.restarted(chat, *lines[3:])
    chat.undo_rewind()
    assert [each.call_id for each in chat.pending] == [waiting.call_id]
    assert chat.decide({waiting.call_id: Approve()}).text == "Done."
    assert chat.session.workspace.read("published.txt") == "a"
    (asked,) = [each for each in chat.checkpoints() if each.text.startswith("Have")]
    report = chat.rewind(asked)
    assert [each.path for each in report.files] == ["published.txt"] and not chat.session.workspace.exists(
        "published.txt"
    )
