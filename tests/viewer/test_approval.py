"""Calls that wait for a person: decided in the playground, and shown with the way to go on elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.viewer.playground import PAY, SECRET, bills, paying
from weakincentives import ScriptedAdapter, Session, call, run
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import Approve, Deny
from weakincentives.telemetry import RunStore, record
from weakincentives.viewer import Viewer, export_run
from weakincentives.viewer.documents import Documents

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
)
expect = playwright.expect


@pytest.fixture
def files() -> InMemoryFilesystem:
    return InMemoryFilesystem({"log.txt": "begin\n"})


@pytest.fixture
def playing(tmp_path: Path, files: InMemoryFilesystem) -> Iterator[Callable[..., Viewer]]:
    from contextlib import ExitStack

    with ExitStack() as stack:

        def play(*script: Any) -> Viewer:
            playground = paying(tmp_path, files, *script)
            stack.enter_context(record(tmp_path / "runs.db"))
            return stack.enter_context(Viewer(tmp_path / "runs.db", port=0, playground=playground))

        yield play


def log(files: InMemoryFilesystem) -> str:
    return files.read("log.txt").replace(f" with {SECRET}", "")


def started(viewer: Viewer, open_page: Callable[..., Any], message: str = "", **options: Any) -> Any:
    page = open_page(f"{viewer.url}#/play", **options)
    page.get_by_label("Message").fill(message)
    page.get_by_role("button", name="Run", exact=True).click()
    return page


@pytest.mark.parametrize("message", ["", "Pay 5."])
@pytest.mark.parametrize(
    ("button", "words", "then", "written", "answer"),
    [
        ("Approve", None, None, "begin\npaid 5\n", "approved"),
        ("Deny", "too much", "Deny it", "begin\n", "denied"),
        ("Answer", "later", "Answer it", "begin\n", "answered"),
    ],
)
def test_a_call_is_shown_with_its_diff_and_decided_on_the_page(
    playing: Callable[..., Viewer],
    open_page: Callable[..., Any],
    files: InMemoryFilesystem,
    message: str,
    button: str,
    words: str | None,
    then: str | None,
    written: str,
    answer: str,
) -> None:
    page = started(playing(PAY, "Done."), open_page, message)
    waits = page.get_by_label("Calls that wait for a decision")
    expect(waits).to_contain_text("A call waits for a decision")
    expect(page.locator(".page.run .title .pill")).to_have_text("waiting")
    expect(waits.locator(".question .line.new", has_text="+paid 5 with [redacted]")).to_have_count(1)
    assert log(files) == "begin\n" and SECRET not in page.content()
    waits.get_by_role("button", name=button, exact=True).click()
    if words is not None and then is not None:
        waits.locator("textarea").fill(words)
        waits.get_by_role("button", name=then).click()
    expect(page.locator(".page.run .title .pill")).to_have_text("answered")
    expect(waits).to_have_count(0)
    assert log(files) == written
    expect(page.locator(".call .decision")).to_contain_text(answer)
    page.close()


def test_arguments_are_edited_and_shown_again_and_a_wrong_edit_says_why(
    playing: Callable[..., Viewer], open_page: Callable[..., Any], files: InMemoryFilesystem
) -> None:
    page = started(playing(PAY, "Done."), open_page)
    waits = page.get_by_label("Calls that wait for a decision")
    waits.get_by_role("button", name="Edit").click()
    waits.locator("textarea").fill('{"amount": "x"}')
    waits.get_by_role("button", name="Use these").click()
    expect(waits.get_by_role("alert")).to_contain_text("does not fit 'pay': amount")
    waits.locator("textarea").fill('{"amount": 7}')
    waits.get_by_role("button", name="Use these").click()
    expect(waits.locator(".question .line.new", has_text="+paid 7")).to_have_count(1)
    assert log(files) == "begin\n"
    waits.get_by_role("button", name="Approve").click()
    expect(page.locator(".page.run .title .pill")).to_have_text("answered")
    assert log(files) == "begin\npaid 7\n"
    page.close()


def test_several_calls_are_decided_one_by_one_and_a_secret_is_not_edited(
    playing: Callable[..., Viewer], open_page: Callable[..., Any], files: InMemoryFilesystem
) -> None:
    viewer = playing([call("pay", amount=5, to=SECRET), call("ask")], "Done.")
    page = started(viewer, open_page)
    waits = page.get_by_label("Calls that wait for a decision")
    expect(waits).to_contain_text("2 calls wait for a decision")
    expect(waits.get_by_role("button", name="Edit")).to_be_disabled()
    waits.get_by_role("button", name="Approve").click()
    expect(waits).to_contain_text("A call waits for a decision")
    expect(waits.get_by_role("button", name="Approve")).to_have_count(0)
    assert log(files) == "begin\npaid 5\n"
    page.reload()
    waits.get_by_role("button", name="Answer", exact=True).click()
    waits.locator("textarea").fill("blue")
    waits.get_by_role("button", name="Answer it").click()
    expect(page.locator(".page.run .title .pill")).to_have_text("answered")
    page.close()


def asked(viewer: Viewer, path: str, body: Any = None) -> Any:
    address = urlsplit(viewer.url)
    connection = HTTPConnection(address.hostname or "", address.port or 0)
    headers = {"x-wink-token": parse_qs(address.query)["token"][0]}
    connection.request("GET" if body is None else "POST", f"/api/play/{path}", json.dumps(body), headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def ended(viewer: Viewer, run_id: str) -> Any:
    while not (live := asked(viewer, f"live?run={run_id}"))["done"]:
        pass
    return live


def test_a_decision_that_is_none_changes_nothing(playing: Callable[..., Viewer], files: InMemoryFilesystem) -> None:
    viewer = playing(PAY, "Done.")
    started = asked(viewer, "run", {})["run_id"]
    (pending,) = ended(viewer, started)["pending"]
    good = {"run_id": started, "question": pending["id"], "decision": "approve"}
    for change, problem in (
        ({"decision": "true"}, "decision"),
        ({"decision": True}, "decision"),
        ({"question": "other"}, "It has changed, or was decided: look again."),
        ({"question": pending["call_id"]}, "It has changed, or was decided: look again."),
        ({"run_id": "other"}, "No run 'other' was started here"),
        ({"decision": "answer"}, "An answer needs a text"),
        ({"decision": "edit", "arguments": "[]"}, "object"),
        ({"amount": 6}, "amount"),
    ):
        assert problem in asked(viewer, "decide", good | change)["error"]
    assert log(files) == "begin\n"
    assert asked(viewer, "decide", good) == {"run_id": started}
    assert ended(viewer, started)["pending"] == []
    assert log(files) == "begin\npaid 5\n"
    assert asked(viewer, "decide", good)["error"] == "It has changed, or was decided: look again."


def test_a_tab_that_shows_an_older_question_decides_nothing(
    playing: Callable[..., Viewer], open_page: Callable[..., Any], files: InMemoryFilesystem
) -> None:
    first = started(playing(PAY, "Done."), open_page, refused_with=409)
    old = first.get_by_label("Calls that wait for a decision")
    expect(old.locator(".question .line.new", has_text="+paid 5")).to_have_count(1)
    second = open_page(first.url)
    new = second.get_by_label("Calls that wait for a decision")
    new.get_by_role("button", name="Edit").click()
    new.locator("textarea").fill('{"amount": 1000}')
    first.route("**/api/play/live*", lambda route: route.abort())
    new.get_by_role("button", name="Use these").click()
    expect(new.locator(".question .line.new", has_text="+paid 1000")).to_have_count(1)
    first.unroute("**/api/play/live*")
    old.get_by_role("button", name="Approve").click()
    expect(old.get_by_role("alert")).to_contain_text("It has changed, or was decided: look again.")
    expect(old.locator(".question .line.new", has_text="+paid 1000")).to_have_count(1)
    assert log(files) == "begin\n"
    first.close()
    second.close()


def test_elsewhere_the_question_is_shown_with_the_way_to_go_on(
    tmp_path: Path, files: InMemoryFilesystem, open_page: Callable[..., Any]
) -> None:
    file, made, session = tmp_path / "runs.db", bills(files), Session()
    adapter = ScriptedAdapter([PAY, "Done."])
    with record(file):
        (pending,) = run(made, adapter, session=session).pending
    with RunStore(file) as store:
        (waits,) = store.list_runs()
        whole = Documents(store).run(waits.run_id)
        assert [each["id"] for each in whole["waiting"]] == [pending.question.id]
        decisions = f"{{{pending.question.id!r}: Approve()}}"
        assert whole["continue"] == f"run(prompt, adapter, session=session, decisions={decisions})"
    exported = tmp_path / "run.html"
    exported.write_text(export_run(file, waits.run_id), encoding="utf-8")
    with Viewer(file, port=0) as viewer, record(file):
        page = open_page(viewer.url)
        page.get_by_role("button", name="Waiting").click()
        expect(page.locator(".run-row .pill.waiting")).to_have_text("waiting")
        page.locator(".run-row a").click()
        shown = page.get_by_label("Calls that wait for a decision")
        expect(shown).to_contain_text("Decide with run(prompt, adapter, session=session")
        expect(shown.get_by_role("button", name="Approve")).to_have_count(0)
        expect(page.locator(".call.waiting")).to_contain_text("waits for a decision")
        run(made, adapter, session=session, decisions={pending.call_id: Approve(by="ann")})
        expect(page.locator(".title .pill")).to_have_text("answered")
        expect(page.locator(".call .decision")).to_have_text("approved by ann")
        page.close()
    page = open_page(exported.as_uri())
    expect(page.get_by_label("Calls that wait for a decision")).to_contain_text("+paid 5 with [redacted]")
    page.close()


def test_the_command_of_a_run_of_the_command_line_and_of_a_durable_one(
    tmp_path: Path, files: InMemoryFilesystem
) -> None:
    from weakincentives.telemetry import continuation_file

    file, session = tmp_path / "runs.db", Session()
    adapter = ScriptedAdapter([PAY, "Done."])
    with record(file):
        made = bills(files)
        response = run(made, adapter, session=session)
    kept = continuation_file(file, response.run_id)
    kept.parent.mkdir()
    kept.with_suffix(".command").write_text(f"wink run bills:prompt -p key={SECRET} --resume x.json", encoding="utf-8")
    with RunStore(file) as store:
        assert store.continuation(response.run_id) == f"wink run bills:prompt -p key=[redacted] --resume {kept}"
    with record(file):
        run(made, adapter, session=session, decisions={response.pending[0].call_id: Deny()})
    with RunStore(file) as store:
        assert (store.continuation(response.run_id), store.open_calls(response.run_id)) == ("", [])
