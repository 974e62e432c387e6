from __future__ import annotations

import json
import keyword
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scripts.viewer_runs import RESOLUTION, Alert, on_call_template
from tests.disclosure.desk import LookUp, desk
from tests.viewer.hosted import record_hosted_run
from weakincentives import MainLoop, Prompt, Session
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenToFiles,
    PromptTemplate,
    ReadSections,
    SectionVisibility,
    tool,
)
from weakincentives.runtime import ToolCall
from weakincentives.telemetry import RunNotFoundError, RunStore, record
from weakincentives.viewer.documents import Documents

SUMMARY = SectionVisibility.SUMMARY


@pytest.fixture
def documents(runs: Path) -> Iterator[Documents]:
    with RunStore(runs) as store:
        yield Documents(store)


def test_a_turn_names_its_prompt_and_its_messages_instead_of_repeating_them(
    documents: Documents, run_ids: tuple[str, ...]
) -> None:
    turn = documents.turn(run_ids[0], 4)
    assert turn["prompt"] == 1
    assert turn["request"] == [(0, 10)]
    assert turn["messages"] == 10
    assert [call["name"] for call in turn["calls"]] == ["list_deploys"]


def test_a_restarted_conversation_begins_with_its_own_prompt(documents: Documents, run_ids: tuple[str, ...]) -> None:
    first, second = documents.turn(run_ids[2], 1), documents.turn(run_ids[2], 2)
    assert first["prompt"] != second["prompt"]
    assert second["request"][0][0] > first["request"][0][0]
    assert [event["status"] for event in first["ended"]] == ["restarted"]


def test_the_pieces_of_a_prompt_are_its_whole_text_with_sections(
    documents: Documents, runs: Path, run_ids: tuple[str, ...]
) -> None:
    pieces = documents.prompt(run_ids[0], 1)["pieces"]
    with RunStore(runs) as store:
        rendered = store.turn(run_ids[0], 1).rendered
    assert rendered is not None
    assert "".join(piece["text"] for piece in pieces) == rendered.text
    assert [piece["section"] for piece in pieces if "section" in piece][:3] == ["role", "alert", "logs"]


def test_a_request_that_failed_is_a_turn_without_a_reply(documents: Documents, run_ids: tuple[str, ...]) -> None:
    whole = documents.run(run_ids[3])
    assert (whole["turns"]["n"], whole["pending"]) == ([1, 2], True)
    answered, failed = documents.turn(run_ids[3], 2), documents.turn(run_ids[3], 3)
    assert (answered["ended"], failed["reply"], failed["pending"]) == ([], None, True)
    assert failed["request"] == [(0, 6)]
    assert [tool["name"] for tool in failed["tools"]] == ["read_section", "search_logs"]
    assert [event["reason"] for event in failed["ended"]] == ["The provider answered 529 three times: overloaded"]
    assert {section["key"]: section["visibility"] for section in failed["sections"]}["logs"] == "full"


def test_a_run_that_ended_has_nothing_pending(documents: Documents, run_ids: tuple[str, ...]) -> None:
    assert [documents.run(run_id)["pending"] for run_id in run_ids] == [False, False, False, True]


def test_steps_tell_what_was_asked_why_and_by_which_route(documents: Documents, run_ids: tuple[str, ...]) -> None:
    injected = documents.run(run_ids[0])["steps"]
    assert [(step["turn"], step["sections"], step["route"], step["tools"]) for step in injected] == [
        (1, ["logs"], "additional_tools", ["search_logs"]),
        (3, ["runbooks.checkout"], "tool result", []),
        (3, ["deployments"], "additional_tools", ["list_deploys", "roll_back"]),
        (7, ["communication"], "additional_tools", ["post_status"]),
    ]
    assert injected[0]["said"].startswith("The alert names no cause")
    restarted = documents.run(run_ids[2])["steps"][0]
    assert (restarted["route"], restarted["reason"]) == ("restart", "Find the first error after 09:12.")


@pytest.mark.parametrize(
    ("strategy", "routes"),
    [(OpenToFiles(), ["file", "restart"]), (OpenAndHalt(), ["restart", "restart"]), (OpenOrRead(), ["restart"] * 2)],
    ids=lambda value: type(value).__name__,
)
def test_every_strategy_has_its_routes(strategy: Disclosure, routes: list[str], tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    prompt = Prompt(on_call_template(strategy)).bind(Alert(), resources={Filesystem: InMemoryFilesystem()})
    script = [call("open_sections", section_keys=[key], reason="why not") for key in ("escalation", "logs")]
    with record(path):
        MainLoop().execute(prompt, session=Session(), adapter=ScriptedAdapter([*script, RESOLUTION]))
    with RunStore(path) as store:
        run = Documents(store).run(store.list_runs()[0].run_id)
    assert [step["route"] for step in run["steps"]] == routes
    assert {step["reason"] for step in run["steps"]} == {"why not"}


def test_a_strategy_of_ones_own_is_shown_like_ours(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    script = [call("look_up", words="All of orders"), call("lookup"), "Done."]
    with record(path):
        ScriptedAdapter(script).evaluate(Prompt(desk(disclosure=LookUp())), session=Session())
    with RunStore(path) as store:
        documents, run_id = Documents(store), store.list_runs()[0].run_id
        run, tools = documents.run(run_id), documents.turn(run_id, 2)["tools"]
    (step,) = run["steps"]
    assert (step["kind"], step["action"], step["sections"], step["route"]) == ("open", "look_up", ["orders"], "append")
    assert {lane["key"]: lane["states"] for lane in run["lanes"]}["orders"][-1] == [2, "read", "session"]
    assert (run["turns"]["opened"], run["turns"]["full"][0]) == ([1, 0, 0], None)
    assert {tool["name"]: (tool["builtin"], tool["section"]) for tool in tools} == {
        "look_up": (True, ""),
        "lookup": (False, "orders"),
    }


def test_a_halt_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    opening = call("open_sections", section_keys=["logs"], reason="")
    with record(path):
        prompt = Prompt(on_call_template(OpenAndHalt())).bind(Alert())
        ScriptedAdapter([opening]).evaluate(prompt, session=Session())
    with RunStore(path) as store:
        run = Documents(store).run(store.list_runs()[0].run_id)
    assert [(step["action"], step["route"]) for step in run["steps"]] == [("open_sections", "halt")]
    assert run["run"]["status"] == "halted"


def test_lanes_show_when_each_section_opened(documents: Documents, run_ids: tuple[str, ...]) -> None:
    lanes = {lane["key"]: lane["states"] for lane in documents.run(run_ids[0])["lanes"]}
    assert lanes["role"] == [[1, "full", "declared"]]
    assert lanes["logs"] == [[1, "summary", "declared"], [2, "read", "session"]]
    assert lanes["runbooks.checkout"] == [[1, "hidden", "declared"], [4, "read", "declared"]]


class Operated(ScriptedAdapter):
    """A model that takes system messages in mid-conversation, and tools with short descriptions only."""

    supports_operator_text = True
    max_tool_description = 120


def test_what_the_operator_says_later_and_beneath_the_prompt_is_shown(tmp_path: Path) -> None:
    long = "Count the boxes. " * 9 + "All of them."
    count = tool(name="count", description=long)(lambda: 3)
    sections = [
        MarkdownSection(key="task", title="Task", template="Help.", tools=[count]),
        MarkdownSection(key="word", title="Word", template="It is plum.", summary="A word.", visibility=SUMMARY),
    ]
    template = PromptTemplate(ns="t", key="k", sections=sections, disclosure=ReadSections(voice="system"))
    with record(tmp_path / "runs.db"), Operated([call("read_section", section_key="word"), "Plum."]) as adapter:
        response = adapter.evaluate(Prompt(template), session=Session())
    with RunStore(tmp_path / "runs.db") as store:
        documents = Documents(store)
        messages = documents.messages(response.run_id, 0, 9)["messages"]
        pieces = documents.prompt(response.run_id, messages[0]["prompt"])["pieces"]
    assert [
        (m["role"], m["text"], "prompt" not in m or m["prompt"] is None)
        for m in messages
        if m["role"] in ("system", "user")
    ] == [
        ("system", "", False),
        ("user", f"The tool count, in full: {long}", True),
        ("system", "## Word\n\nIt is plum.", True),
    ]
    assert "".join(piece["text"] for piece in pieces).startswith("## 1. Task")


def test_a_rollback_is_told_with_its_call(documents: Documents, run_ids: tuple[str, ...]) -> None:
    (call,) = documents.turn(run_ids[0], 5)["calls"]
    assert (call["name"], call["result"]["success"], call["rolled_back"]) == ("roll_back", False, True)
    assert call["text"].startswith("Refused: 2026.11.15-1")


def test_what_a_hosted_tool_gave_is_told_with_the_last_turn(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record_hosted_run(path)
    with RunStore(path) as store:
        documents, run_id = Documents(store), store.list_runs()[0].run_id
        (used,) = documents.turn(run_id, 1)["hosted"]
        line = documents.events(run_id, kinds=["HostedToolInvoked"])["events"][0]
    assert (used["name"], used["kind"], used["output"]) == ("delphi", "oracle", {"sayings": ["<b>Beware.</b>"]})
    assert (line["kind"], line["summary"]) == ("HostedToolInvoked", "delphi · oracle")


def test_search_finds_short_and_long_texts_and_says_where(documents: Documents, run_ids: tuple[str, ...]) -> None:
    hits = documents.search("coupon codes", run_ids[0])["hits"]
    assert [(hit["turn"], hit["kind"], hit["name"]) for hit in hits] == [(4, "ToolInvoked", "list_deploys")]
    prompt = documents.search("smallest reversible")["hits"]
    assert {hit["kind"] for hit in prompt} == {"PromptRendered"}
    assert documents.search("current_visibility_state")["hits"] == []


def test_events_come_in_pages_and_by_kind(documents: Documents, run_ids: tuple[str, ...]) -> None:
    page = documents.events(run_ids[0], offset=2, limit=3)
    assert [line["seq"] for line in page["events"]] == [3, 4, 5]
    assert page["total"] == sum(page["kinds"].values())
    said = documents.events(run_ids[0], kinds=["Message"])["events"]
    assert said[4]["summary"] == "assistant · calls search_logs"
    injected = documents.events(run_ids[0], kinds=["ToolsInjected"])
    assert injected["total"] == 3
    assert injected["events"][0]["summary"] == "logs · search_logs · additional_tools"


@dataclass(frozen=True)
class Moved:
    path: Any
    usage: Any = None


class Unspeakable:
    """Has no serialised form."""

    def __repr__(self) -> str:
        return "an unspeakable thing"


def test_events_of_ones_own_are_described_whatever_their_fields_hold(tmp_path: Path) -> None:
    path, session = tmp_path / "runs.db", Session()
    session[Moved].register(Unspeakable, lambda moves, event: tuple(moves))
    with record(path):
        run_id = record_hosted_run(path, session)
        for event in (Moved(5), Moved([1, 2]), Moved("/a/b", {"disk": 1}), Unspeakable()):
            session.dispatch(event)
    with RunStore(path) as store:
        documents = Documents(store)
        lines = documents.events(run_id)["events"]
        assert documents.search("unspeakable")["hits"][0]["kind"] == "Unspeakable"
    assert [line["summary"] for line in lines if line["kind"] == "Moved"] == ["5", "1.2", "/a/b"]


def test_what_is_not_there_is_said_by_name(documents: Documents, run_ids: tuple[str, ...]) -> None:
    with pytest.raises(RunNotFoundError, match="turns 1 to 9"):
        documents.turn(run_ids[0], 10)
    with pytest.raises(RunNotFoundError, match="no event 999"):
        documents.event(run_ids[0], 999)
    with pytest.raises(RunNotFoundError, match="no prompt rendered at 2"):
        documents.prompt(run_ids[0], 2)


def test_the_report_advises_for_each_prompt(documents: Documents) -> None:
    report = documents.report()
    assert [prompt["prompt"] for prompt in report["prompts"]] == ["operations/on-call"]
    assert report["prompts"][0]["runs"] == 3


def test_a_copied_test_plays_the_same_calls_whatever_their_arguments_are_called(tmp_path: Path) -> None:
    random = Random(8)
    names = [
        *keyword.kwlist,
        *keyword.softkwlist,
        "call_id",
        "name",
        "self",
        "__debug__",
        "ﬁ",
        "é",
        "1a",
        "a b",
        "",
        "ok",
    ]
    values = [1, 2.5, None, True, "x\u2028y", ["\\", {"class": '"""'}], {"inf": -1}]
    recorded = []
    for number in range(40):
        arguments = {}
        for name in random.sample(names, random.randint(0, 3)):
            arguments[name] = random.choice(values)
        recorded.append(ToolCall(f"c{number}", "look", json.dumps(arguments)))
    for name, text in (("look", '{"a": 1e999}'), ("look", "[1"), ("²", "{}")):
        recorded.append(ToolCall(f"c{len(recorded)}", name, text))
    section = MarkdownSection(title="Task", key="task", template="Help.")
    prompt: Prompt[None] = Prompt(ns="t", key="k", name="ｄesk²", sections=[section])
    with record(tmp_path / "runs.db"):
        ScriptedAdapter([*recorded, "Done."]).evaluate(prompt, session=Session())
    with RunStore(tmp_path / "runs.db") as store:
        text = Documents(store).script(store.list_runs(1)[0].run_id)["text"]
    namespace: dict[str, Any] = {}
    exec(compile(text, "copied.py", "exec"), namespace)
    *calls, answer = namespace["SCRIPT"]
    assert answer == "Done."
    assert [(each.name, each.arguments) for each in calls] == [(each.name, each.arguments) for each in recorded]
