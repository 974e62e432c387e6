"""The playground in a real browser and over HTTP: sections, params, drafts, runs, and who may use it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from queue import Queue
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest

from scripts.viewer_runs import on_call_template
from tests.viewer.playground import SCRIPT, on_call
from weakincentives import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, ToolContext, tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import SerdeError
from weakincentives.prompt.overrides import JsonPromptOverridesStore
from weakincentives.telemetry import RunStore, record
from weakincentives.viewer import AdapterChoice, Playground, Viewer, Wanted

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
)
expect = playwright.expect


@pytest.fixture
def playing(tmp_path: Path) -> Iterator[Viewer]:
    with record(tmp_path / "runs.db"), Viewer(tmp_path / "runs.db", port=0, playground=on_call(tmp_path)) as viewer:
        yield viewer


@pytest.fixture
def page(playing: Viewer, open_page: Callable[..., Any]) -> Iterator[Any]:
    opened = open_page(f"{playing.url}#/play")
    expect(opened.locator(".play-tree .node")).to_have_count(14)
    yield opened
    opened.close()


def test_a_click_opens_a_section_and_shows_what_changes(page: Any) -> None:
    logs = page.locator('.node[data-section="logs"]')
    expect(logs).to_contain_text("summary")
    before = page.locator(".big").inner_text()
    logs.locator(".cycle").click()
    expect(logs).to_contain_text("in full")
    expect(page.locator(".piece.fresh-piece")).to_have_count(1)
    expect(page.locator(".piece.fresh-piece")).to_contain_text("Logs are kept for 14 days")
    expect(page.locator(".offered", has_text="search_logs")).to_contain_text("added")
    expect(page.locator(".big")).not_to_have_text(before)
    expect(page.locator(".cache")).to_contain_text("breaks at tool search_logs")


def test_a_section_cycles_through_hidden_summary_and_full(page: Any) -> None:
    flags = page.locator('.node[data-section="flags"]')
    for state in ("in full", "hidden", "summary"):
        flags.locator(".cycle").click()
        expect(flags.locator(".state-word")).to_have_text(state)
    page.locator('.node[data-section="escalation"] .cycle').click()
    page.locator('.node[data-section="escalation"] .cycle').click()
    expect(page.locator('.piece[data-section="escalation"]')).to_have_count(0)
    expect(page.locator(".cache")).to_contain_text("breaks at section architecture")
    expect(page.locator(".costs")).to_contain_text(re.compile(r"Declared\d+ tokens fewer than declared"))
    page.get_by_role("button", name="As declared").click()
    expect(page.locator(".cache")).to_contain_text("stay cached")
    expect(page.locator('.piece[data-section="escalation"]')).to_have_count(1)


def test_params_are_a_form(page: Any) -> None:
    page.get_by_label("service").fill("payments")
    expect(page.locator('.piece[data-section="alert"]')).to_contain_text("payments")


def test_other_words_become_a_draft_with_a_diff_and_are_saved_under_a_tag(page: Any, tmp_path: Path) -> None:
    page.get_by_label("Edit Role").click()
    page.get_by_label("Text", exact=True).fill("You are on call.")
    expect(page.locator(".diff .line.new")).to_have_text(re.compile("You are on call."))
    expect(page.locator(".diff .line.gone")).to_contain_text("Prefer the smallest reversible action")
    page.get_by_label("Tag").fill("short")
    page.get_by_role("button", name="Save 1 draft").click()
    expect(page.get_by_label("Override")).to_have_value("short")
    page.get_by_label("Close the editor").click()
    expect(page.locator('.piece[data-section="role"]')).to_contain_text("You are on call.")
    stored = JsonPromptOverridesStore(tmp_path / "overrides").get(ns="operations", key="on-call", tag="short")
    assert stored is not None
    assert {path: section.body for path, section in stored.sections.items()} == {("role",): "You are on call."}


def test_a_draft_that_cannot_apply_says_why(page: Any) -> None:
    page.get_by_label("Edit Role").click()
    page.get_by_label("Text", exact=True).fill("You are ${nobody}.")
    expect(page.get_by_role("alert")).to_contain_text("uses ${nobody}, which the section cannot fill")


def test_a_run_is_shown_below_as_it_happens(page: Any, tmp_path: Path) -> None:
    page.locator('.node[data-section="deployments"] .cycle').click()
    expect(page.locator(".piece.fresh-piece")).to_have_count(1)
    page.get_by_role("button", name="Run", exact=True).click()
    run = page.locator(".page.run")
    expect(run.locator(".title .pill")).to_have_text("answered")
    expect(run.locator(".story")).to_contain_text("read 1 of 14 sections, got search_logs, called it")
    expect(run.locator('.node[data-section="deployments"]')).to_have_class(re.compile("full"))
    expect(page.locator(".play-tree .node")).to_have_count(14)
    with RunStore(tmp_path / "runs.db") as store:
        assert [run.status for run in store.list_runs()] == ["ok"]


def test_an_adapter_without_its_key_cannot_be_run(page: Any) -> None:
    page.get_by_label("Adapter").select_option("openai")
    expect(page.get_by_label("Model", exact=True)).to_have_value("gpt-5.6")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    expect(page.locator(".runner")).to_contain_text("set OPENAI_API_KEY")
    expect(page.locator(".costs")).to_contain_text("$0.00")


def test_a_turn_of_a_run_opens_in_the_playground(page: Any) -> None:
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".page.run .title .pill")).to_have_text("answered")
    page.get_by_label("Turn", exact=True).fill("3")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Open in the playground").click()
    expect(page.locator('.play-tree .node[data-section="logs"] .state-word')).to_have_text("in full")


def test_everything_can_be_done_at_the_width_of_a_phone(playing: Viewer, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{playing.url}#/play")
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("button", name="Sections", exact=True).click()
    page.locator('.node[data-section="logs"] .cycle').click()
    page.get_by_role("button", name="Text", exact=True).click()
    expect(page.locator(".piece.fresh-piece")).to_be_visible()
    page.get_by_role("button", name="Cost and run").click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".page.run .title .pill")).to_have_text("answered")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def request(viewer: Viewer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", viewer.port, timeout=20)
    sent = body.encode("latin-1") if isinstance(body, str) else None if body is None else json.dumps(body)
    connection.request(method, path, body=sent, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_only_who_has_the_token_is_served(playing: Viewer) -> None:
    (token,) = parse_qs(urlsplit(playing.url).query)["token"]
    assert request(playing, "GET", "/api/play")[0] == 403
    assert request(playing, "GET", "/api/runs")[0] == 403
    assert request(playing, "GET", "/api/play", **{"x-wink-token": "wrong"})[0] == 403
    assert request(playing, "GET", "/api/play", **{"x-wink-token": token})[0] == 200
    assert request(playing, "POST", "/api/play/run", {}, **{"x-wink-token": "wrong"})[0] == 403
    assert request(playing, "POST", f"/api/play/render?token={token}", {})[0] == 403
    assert request(playing, "POST", "/api/play/render", {}, **{"x-wink-token": token})[0] == 200
    assert request(playing, "POST", "/api/runs", {}, **{"x-wink-token": token})[0] == 405
    assert request(playing, "POST", "/api/play/run", {}, **{"x-wink-token": token, "origin": "http://evil"})[0] == 403


def post(viewer: Viewer, act: str, body: Any) -> tuple[int, Any]:
    (token,) = parse_qs(urlsplit(viewer.url).query)["token"]
    status, text = request(viewer, "POST", f"/api/play/{act}", body, **{"x-wink-token": token})
    return status, json.loads(text)


ACTS = ("render", "save", "run", "stop")
WRONG = {
    "adapter": (5, ["scripted"], {}, True),
    "params": (5, "x", [1], {"Alert": 5}, {"Alert": [1]}, {"Alert": None}),
    "states": (5, "x", [1], ["logs"], {"logs": 5}, {"logs": None}, {"logs": []}, {"logs": "open"}),
    "drafts": (5, "x", [1], ["role"], {"role": 5}, {"role": None}, {"role": {}}),
    "tag": (5, ["x"], {}, False),
    "message": (5, ["x"], {}),
    "run_id": (5, ["x"], {}),
    "unknown": ("x",),
}


def test_a_field_of_the_wrong_type_is_refused_by_name(playing: Viewer) -> None:
    for act, (field, values) in product(ACTS, WRONG.items()):
        for value in values:
            status, answer = post(playing, act, {field: value})
            assert status == 400 and field in answer["error"], (act, field, value, answer)


def test_a_body_that_is_no_json_object_is_refused(playing: Viewer) -> None:
    for act, body in product(ACTS, ("", "{", "[]", "null", "\xff", "[" * 100_000, '{"states":' * 50_000)):
        status, answer = post(playing, act, body)
        assert (status, list(answer)) == (400, ["error"])


def test_only_the_adapters_of_the_list_can_be_named(playing: Viewer) -> None:
    for act, name in product(ACTS, ("os:getuid", "os", "scripted2", ":x", "sys:exit", "desk:template", " scripted")):
        status, answer = post(playing, act, {"adapter": name})
        assert status == 400
        assert answer["error"] == f"adapter must be one of scripted, openai, or one with a model; got {name!r}"


def test_the_adapters_of_the_list_can_be_named_with_a_model(playing: Viewer) -> None:
    for name in ("", "scripted", "openai", "openai:gpt-5.6", "openai:of:your:own"):
        status, answer = post(playing, "render", {"adapter": name})
        assert (status, answer["model"]) == (200, name.partition(":")[2] or "scripted")


def test_a_form_that_is_not_finished_is_no_error_of_the_browser(playing: Viewer) -> None:
    for act, wanted in (
        ("render", {"params": {"Alert": {"service": []}}}),
        ("render", {"drafts": {"role": "${nobody}"}}),
        ("render", {"states": {"nowhere": "full"}}),
        ("render", {"params": {"Nowhere": {}}}),
        ("save", {"tag": " "}),
    ):
        status, answer = post(playing, act, wanted)
        assert (status, list(answer)) == (200, ["error"])


@dataclass(frozen=True)
class Order:
    number: int
    urgent: bool = False
    tone: Literal["warm", "brief"] = "brief"
    note: str | None = None
    items: tuple[str, ...] = ()


def test_a_form_has_an_input_for_each_type(tmp_path: Path) -> None:
    section = MarkdownSection[Order](
        key="order", title="Order", template="${number} ${urgent} ${tone} ${note} ${items}"
    )
    playground = Playground(
        PromptTemplate(ns="shop", key="order", sections=[section]),
        adapters=[AdapterChoice("scripted")],
        make_adapter=lambda name: ScriptedAdapter(["Done."]),
        overrides=JsonPromptOverridesStore(tmp_path),
    )
    (form,) = playground.about()["params"]
    assert [(field["name"], field["kind"], field["value"]) for field in form["fields"]] == [
        ("number", "whole number", None),
        ("urgent", "yes or no", False),
        ("tone", "choice", "brief"),
        ("note", "text", None),
        ("items", "json", []),
    ]
    given = {"Order": {"number": 7, "urgent": True, "tone": "warm", "note": None, "items": ["a"]}}
    assert "7 True warm" in playground.render(Wanted(params=given))["pieces"][0]["text"]
    with pytest.raises(SerdeError, match="number"):
        playground.render(Wanted(params={"Order": {"number": "seven"}}))


def test_a_run_uses_what_is_bound_to_the_prompt(tmp_path: Path) -> None:
    @tool
    def file(note: str, *, context: ToolContext) -> str:
        "File a note."
        context.resources.get(Queue).put(note)
        return "Filed."

    notes: Queue[str] = Queue()
    section = MarkdownSection(key="task", title="Task", template="Keep notes.", tools=[file])
    playground = Playground(
        Prompt(ns="shop", key="notes", sections=[section]).bind(resources={Queue: notes}),
        adapters=[AdapterChoice("scripted")],
        make_adapter=lambda name: ScriptedAdapter([call("file", note="milk"), "Done."]),
        overrides=JsonPromptOverridesStore(tmp_path),
    )
    for drafts in ({}, {"task": "Keep short notes."}):
        playground.run(Wanted(message="Milk.", drafts=drafts))
        assert notes.get(timeout=30) == "milk"


def test_drafts_come_on_top_of_the_override_that_a_prompt_has(tmp_path: Path) -> None:
    store, sections = JsonPromptOverridesStore(tmp_path), [section("task", "Do."), section("tone", "Be kind.")]
    template = PromptTemplate(ns="shop", key="own", sections=sections)
    words = template.descriptor.override_section(("tone",), "Be brief.")
    store.upsert(template.descriptor.new_override("own").with_section(("tone",), words))
    playground = Playground(
        Prompt(template, overrides_store=store, overrides_tag="own"),
        adapters=[AdapterChoice("scripted")],
        make_adapter=lambda name: ScriptedAdapter([]),
        overrides=store,
    )
    shown = playground.render(Wanted(drafts={"task": "Do it."}))["sections"]
    assert [each["source"] for each in shown] == ["Do it.", "Be brief."]


def test_a_stored_summary_and_visibility_apply_unless_their_section_is_hidden(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, sections = JsonPromptOverridesStore(tmp_path), [section("task", "Do."), section("tone", "Be kind.")]
    template = PromptTemplate(ns="shop", key="own", sections=sections)
    made = template.descriptor
    override = made.new_override("short").with_summary(("tone",), made.override_summary(("tone",), "On manners."))
    store.upsert(override.with_visibility(("tone",), made.override_visibility(("tone",), SectionVisibility.SUMMARY)))
    playground = Playground(
        Prompt(template),
        adapters=[AdapterChoice("scripted")],
        make_adapter=lambda name: ScriptedAdapter([]),
        overrides=store,
    )
    shown = playground.render(Wanted(tag="short"))
    assert [each["state"] for each in shown["sections"]] == ["full", "summary"]
    assert "summary" in shown["sections"][1]["choices"] and "On manners." in shown["pieces"][-1]["text"]
    hidden = playground.render(Wanted(tag="short", states={"tone": "hidden"}))
    assert [each["state"] for each in hidden["sections"]] == ["full", "absent"]
    assert "not applied" not in caplog.text


def section(key: str, text: str) -> MarkdownSection[None]:
    return MarkdownSection(key=key, title=key.title(), template=text)


class Unreachable(ScriptedAdapter):
    """An adapter that fails before anything of a run is recorded."""

    def channel(self) -> Any:
        raise OSError("the model file is gone")


def test_a_run_that_cannot_begin_says_why(tmp_path: Path) -> None:
    playground = Playground(
        on_call_template(),
        adapters=[AdapterChoice("broken")],
        make_adapter=lambda name: Unreachable(),
        overrides=JsonPromptOverridesStore(tmp_path),
    )
    path = tmp_path / "runs.db"
    with record(path), Viewer(path, port=0, playground=playground) as viewer:
        (token,) = parse_qs(urlsplit(viewer.url).query)["token"]
        status, text = request(viewer, "POST", "/api/play/run", {}, **{"x-wink-token": token})
    assert (status, json.loads(text)) == (200, {"error": "OSError: the model file is gone"})


def test_what_an_adapter_does_not_send_does_not_count_as_cached(tmp_path: Path) -> None:
    class Toolless(ScriptedAdapter):
        sends_tools = False

    for kind, sends in ((Toolless, False), (ScriptedAdapter, True)):
        playground = Playground(
            on_call_template(),
            adapters=[AdapterChoice("scripted")],
            make_adapter=lambda name, kind=kind: kind(SCRIPT),
            overrides=JsonPromptOverridesStore(tmp_path / "overrides"),
        )
        shown = playground.render(Wanted(params={"Alert": {"service": "a", "text": "b"}}))
        assert (shown["tokens"]["tools"] > 0) is sends
        assert shown["cache"] == {"tokens": shown["tokens"]["total"], "breaks_at": "", "section": ""}


def test_a_run_goes_on_from_a_turn_of_a_recorded_one(tmp_path: Path) -> None:
    script = ["Hello.", "From there."]
    sections = [MarkdownSection(key="a", title="A", template="Answer.")]
    playground = Playground(
        PromptTemplate(ns="tests", key="play", sections=sections),
        adapters=[AdapterChoice("scripted")],
        make_adapter=lambda name: ScriptedAdapter([script.pop(0)]),
        overrides=JsonPromptOverridesStore(tmp_path),
    )
    path = tmp_path / "runs.db"
    with record(path), Viewer(path, port=0, playground=playground) as viewer:
        (token,) = parse_qs(urlsplit(viewer.url).query)["token"]

        def ran(**wanted: Any) -> str:
            _, text = request(viewer, "POST", "/api/play/run", wanted, **{"x-wink-token": token})
            run_id: str = json.loads(text)["run_id"]
            while not playground.live(run_id)["done"]:
                pass
            return run_id

        first = ran(message="Who is on call?")
        second = ran(from_run=first, from_turn=1)
    with RunStore(path) as store:
        said = [message.text for message in store.turn(second, 1).messages if message.role == "user"]
        assert (said, store.run(second).answer) == (["Who is on call?"], "From there.")
