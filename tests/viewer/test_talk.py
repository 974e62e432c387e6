"""A conversation in the viewer: as documents, and in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.viewer_runs import INVESTIGATION, investigate, line
from scripts.viewer_talk import record_talk
from weakincentives.adapters.scripted import call
from weakincentives.telemetry import RunStore, bill_of
from weakincentives.viewer import Viewer, export_run
from weakincentives.viewer.comparison import parting
from weakincentives.viewer.documents import Documents

expect = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
).expect


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conversation of six exchanges and its fork, and two runs that part in their fifth turn."""
    path = tmp_path_factory.mktemp("talk") / "runs.db"
    record_talk(path)
    investigate(path, ago=200)
    other = [*INVESTIGATION[:4], line("Roll it back.", call("roll_back", service="checkout", version="2026.11.14-3"))]
    investigate(path, [*other, *INVESTIGATION[6:]], ago=300, model="gpt-5.4-mini")
    return path


@pytest.fixture
def documents(talk: Path) -> Iterator[Documents]:
    with RunStore(talk) as store:
        yield Documents(store)


def asked(documents: Documents, words: str) -> str:
    """The id of the run with this question."""
    return next(run.run_id for run in documents.store.list_runs() if run.question.startswith(words))


def chat_of(documents: Documents) -> Any:
    run = documents.store.run(asked(documents, "Tell the warehouse"))
    return documents.conversation(run.conversation_id)


def test_a_conversation_is_read_from_its_first_exchange(documents: Documents) -> None:
    chat = chat_of(documents)
    assert [one["at"] for one in chat["exchanges"]] == [1, 2, 3, 4, 5, 6]
    assert [one["said"][0]["text"].split("\n")[0] for one in chat["exchanges"]][:2] == [
        "Where is my order FH-20430?",
        "What does it cost to ship to Switzerland?",
    ]
    assert [part["kind"] for part in chat["exchanges"][2]["said"][0]["parts"]] == ["text", "image"]
    assert [one["answer"] for one in chat["exchanges"]][2:] == [
        "A new lid is on its way.",
        "Then nothing is sent.",
        "The warehouse knows.",
        "",
    ]
    assert (chat["sums"]["runs"], chat["forked_from"]) == (6, None)


def test_what_was_shortened_undone_and_forked_is_part_of_the_conversation(documents: Documents) -> None:
    chat = chat_of(documents)
    assert [one["undone_from"] for one in chat["exchanges"]] == [None, None, None, 0, None, None]
    assert [len(one["compacted"]) for one in chat["exchanges"]] == [0, 0, 1, 0, 0, 0]
    (fork,) = chat["forks"]
    assert (fork["after"], fork["question"]) == (asked(documents, "What does it cost"), "And to Norway?")
    forked = documents.conversation(fork["conversation_id"])
    assert forked["forked_from"]["run_id"] == fork["after"]


def test_a_run_knows_its_place_and_how_much_was_said_before(documents: Documents) -> None:
    whole = documents.run(asked(documents, "The lid arrived"))
    place = whole["conversation"]
    assert (place["at"], place["of"]) == (3, 6)
    assert place["previous"] == asked(documents, "What does it cost")
    assert place["next"] == asked(documents, "No, leave it")
    request = documents.turn(whole["run"]["run_id"], 1)["request"]
    numbers = [number for start, stop in request for number in range(start, stop)]
    assert [number for number in numbers if number >= whole["earlier"]] == [numbers[-1]]
    assert documents.run(asked(documents, "Service"))["conversation"] is None


def test_the_list_has_one_row_for_a_conversation_until_runs_are_looked_for(documents: Documents) -> None:
    folded, every = documents.runs(newest=True), documents.runs()
    assert (folded["total"], every["total"], folded["sums"]["runs"]) == (4, 9, 9)
    assert [run["exchanges"] for run in folded["runs"] if run["exchanges"]] == [{"of": 6, "failed": 0}]
    assert any(run["question"] == "I would like 12 euros back for the first one." for run in folded["runs"])
    assert documents.runs(newest=True, status="waiting")["total"] == 1


def test_marks_tell_what_happened_besides_turns(documents: Documents) -> None:
    marks = {
        words: [mark["kind"] for mark in documents.run(asked(documents, words))["marks"]]
        for words in ("The lid", "No, leave", "Tell the", "I would like")
    }
    assert marks == {
        "The lid": ["compacted"],
        "No, leave": ["rewound"],
        "Tell the": ["inside"],
        "I would like": ["asked"],
    }


def test_events_of_a_call_that_was_rolled_back_are_undone(documents: Documents) -> None:
    rows = documents.events(asked(documents, "The lid"), kinds=["Refunded"])["events"]
    assert [row["undone"] for row in rows] == ["its call was rolled back", ""]
    rows = documents.events(asked(documents, "No, leave"))["events"]
    assert {row["undone"] for row in rows if row["kind"] != "Rewound"} == {"the conversation went back to before it"}


def test_two_runs_part_where_their_replies_first_differ(documents: Documents) -> None:
    one, other = (run.run_id for run in documents.store.list_runs(prompt="on-call", order="started"))
    found = parting(documents.store, one, other)
    assert (found["turn"], found["what"], found["same_prompt"]) == (5, "the reply", True)
    assert (found["before"][:30], found["after"][:13]) == ("The runbook says to roll back.", "Roll it back.")
    assert parting(documents.store, one, one)["turn"] is None


def test_the_bill_compares_money_with_everything_open_and_its_cache(documents: Documents) -> None:
    run = documents.store.list_runs(prompt="on-call")[0]
    history, ledger = documents.store.history(run.run_id), documents.store.ledger(run.run_id)
    bill = bill_of(history, ledger)
    assert bill is not None and run.cost is not None
    assert bill.cost == pytest.approx(run.cost)
    uncached = sum(row.full_prompt_tokens or 0 for row in ledger.rows) * 1.75 / 1_000_000
    assert 0 < bill.open_cost < uncached


def test_a_story_leaves_out_what_did_not_happen(documents: Documents) -> None:
    assert documents.run(asked(documents, "Tell the"))["story"].startswith("called note, sent ")
    assert documents.run(asked(documents, "And to Norway"))["story"].startswith("sent ")


def test_an_exported_exchange_says_where_it_stands(
    talk: Path, documents: Documents, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "run.html"
    file.write_text(export_run(talk, asked(documents, "The lid")), encoding="utf-8")
    page = open_page(file.as_uri())
    expect(page.locator(".place")).to_have_text("Exchange 3 of 6 in this conversation")
    page.goto(f"{file.as_uri()}#/run/x/events")
    expect(page.locator(".undone-event")).to_contain_text("Refunded")


def test_a_conversation_is_read_as_a_chat(talk: Path, open_page: Callable[..., Any]) -> None:
    with Viewer(talk, port=0) as viewer:
        page = open_page(viewer.url)
        expect(page.locator(".run-row:not(.head)")).to_have_count(4)
        page.get_by_role("link", name="6 exchanges").click()
        exchanges = page.locator(".exchange")
        expect(exchanges).to_have_count(6)
        expect(exchanges.nth(2).get_by_role("img", name="lid.png")).to_be_visible()
        expect(exchanges.nth(2)).to_contain_text("The conversation was shortened here, before turn 4")
        expect(exchanges.nth(3).locator(".pill")).to_have_text("undone")
        expect(exchanges.nth(1)).to_contain_text("Another conversation goes on from here: And to Norway?")
        exchanges.nth(2).get_by_role("button", name="4 turns").click()
        expect(exchanges.nth(2).locator(".chat-turns li")).to_have_count(4)
        expect(exchanges.nth(2).locator(".chat-turns li").nth(1)).to_contain_text("new_lid")
        exchanges.nth(2).get_by_role("link", name="Exchange 3").click()
        expect(page.locator(".place")).to_contain_text("Exchange 3 of 6 in this conversation")
        request = page.get_by_label("Request", exact=True)
        expect(request.locator(".message")).to_have_count(1)
        request.get_by_role("button", name="11 earlier messages").click()
        expect(request.locator(".message")).to_have_count(12)
        # A tool's result keeps its columns; a section's text is Markdown.
        result = request.locator(".message.tool", has_text="7-331-900")
        expect(result.locator(".text")).to_contain_text("FH-20430  7-331-900     received     Mon")
        expect(request.locator(".message.tool", has_text="4 to 6").locator("td").first).to_be_visible()
        page.keyboard.press("]")
        expect(page.locator(".place")).to_contain_text("Exchange 4 of 6")
        expect(request).to_contain_text("Sent shortened: from 1,601 to 931 tokens by function")
        expect(page.locator(".turns .mark.rewound")).to_have_count(1)
        page.get_by_text("Turns", exact=True).first.focus()
        page.locator(".facts .term").first.hover()
        expect(page.get_by_role("tooltip")).to_contain_text("one model call and the tool calls")
        page.goto(f"{viewer.url}#/")
        page.get_by_role("link", name="I would like 12 euros back").click()
        expect(page.get_by_label("Turn", exact=True)).to_have_value("2")
        waits = page.locator(".waiting-calls")
        expect(waits.locator(".line.new").first).to_contain_text("Refunded(order='FH-20430', euros=12)")
        expect(waits.locator(".elsewhere")).to_contain_text("Decide with")
        page.close()
