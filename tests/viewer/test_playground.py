"""The playground in a real browser and over HTTP: sections, params, drafts, runs, and who may use it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from queue import Queue
from typing import Any, Literal, NotRequired, TypedDict
from urllib.parse import parse_qs, urlsplit

import pytest

from scripts.viewer_runs import Alert, on_call_template
from tests.viewer.playground import on_call, shop
from weakincentives import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, ToolContext, tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import SerdeError
from weakincentives.prompt.overrides import JsonPromptOverridesStore
from weakincentives.telemetry import RunStore, record
from weakincentives.viewer import AdapterChoice, Playground, Viewer, Wanted
from weakincentives.viewer.bill import Bill, prefix_kept

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


def show(page: Any, key: str, state: str) -> None:
    """Choose what a section shows."""
    page.locator(f'.play-tree .node[data-section="{key}"]').get_by_role("radio", name=state).check()


def test_a_choice_opens_a_section_and_shows_what_changes(page: Any) -> None:
    logs = page.locator('.node[data-section="logs"]')
    expect(logs).to_have_attribute("data-state", "summary")
    expect(logs.get_by_role("radio", name="summary, as declared")).to_be_checked()
    before = page.locator(".big").inner_text()
    show(page, "logs", "in full")
    expect(logs).to_have_attribute("data-state", "full")
    expect(page.locator(".piece.fresh-piece")).to_have_count(1)
    expect(page.locator(".piece.fresh-piece")).to_contain_text("Logs are kept for 14 days")
    expect(page.locator(".offered", has_text="search_logs")).to_contain_text("added")
    expect(page.locator(".big")).not_to_have_text(before)
    expect(logs.locator(".notes")).to_contain_text("declared: summary")
    show(page, "logs", "left out")
    expect(page.locator('.piece[data-section="logs"]')).to_have_count(0)
    logs.get_by_role("button", name="undo").click()
    expect(logs).to_have_attribute("data-state", "summary")
    show(page, "escalation", "left out")
    expect(page.locator('.piece[data-section="escalation"]')).to_have_count(0)
    expect(page.locator(".bill")).to_contain_text(re.compile(r"\d+ tokens fewer than declared"))
    page.get_by_role("button", name="Back to the declared prompt").click()
    expect(page.locator('.piece[data-section="escalation"]')).to_have_count(1)
    expect(page.get_by_role("button", name="Back to the declared prompt")).to_have_count(0)


def test_params_are_a_form(page: Any) -> None:
    page.get_by_label("service").fill("payments")
    expect(page.locator('.piece[data-section="alert"]')).to_contain_text("payments")


def test_other_words_become_a_draft_with_a_diff_and_are_saved_under_a_tag(page: Any, tmp_path: Path) -> None:
    page.get_by_label("Edit Role").click()
    page.get_by_label("Text", exact=True).fill("You are on call.")
    expect(page.locator(".diff .line.new")).to_have_text(re.compile("You are on call."))
    expect(page.locator(".diff .line.gone")).to_contain_text("Prefer the smallest reversible action")
    page.get_by_label("Tag").fill("short")
    page.get_by_role("button", name="Save the draft as an override").click()
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
    show(page, "deployments", "in full")
    expect(page.locator(".piece.fresh-piece")).to_have_count(1)
    page.get_by_role("button", name="Run", exact=True).click()
    run = page.locator(".page.run")
    expect(run.locator(".title .pill")).to_have_text("answered")
    expect(run.locator(".story")).to_contain_text("opened 1 of 14 sections, got search_logs, called it")
    expect(run.locator('.node[data-section="deployments"]')).to_have_class(re.compile("full"))
    expect(page.locator(".play-tree .node")).to_have_count(14)
    with RunStore(tmp_path / "runs.db") as store:
        assert [run.status for run in store.list_runs()] == ["ok"]


def test_an_adapter_without_its_key_cannot_be_run(page: Any) -> None:
    page.get_by_label("Adapter").select_option("openai")
    expect(page.get_by_label("Model", exact=True)).to_have_value("gpt-5.6")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    expect(page.locator(".runner")).to_contain_text("set OPENAI_API_KEY")
    expect(page.locator(".price")).to_contain_text("$0.00")


def test_a_turn_of_a_run_opens_in_the_playground(page: Any) -> None:
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".page.run .title .pill")).to_have_text("answered")
    page.get_by_label("Turn", exact=True).fill("3")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Open in the playground").click()
    expect(page.locator('.play-tree .node[data-section="logs"]')).to_have_attribute("data-state", "full")
    expect(page.get_by_label("Continue the conversation of run")).not_to_be_checked()
    page.go_back()
    page.get_by_role("button", name="Continue from here").click()
    expect(page.get_by_label("Continue the conversation of run")).to_be_checked()


def test_nothing_that_was_chosen_or_written_is_lost(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    path = tmp_path / "runs.db"
    with record(path), Viewer(path, port=0, playground=shop(tmp_path)) as viewer:
        page = open_page(f"{viewer.url}#/play")
        run = page.get_by_role("button", name="Run", exact=True)
        expect(run).to_be_disabled()
        expect(page.locator(".runner")).to_contain_text("fill in name, since")
        page.get_by_label("name").fill("Ann")
        page.get_by_label("since").fill("2026-02-03")
        page.get_by_label("Add to orders").click()
        page.get_by_label("orders 1", exact=True).fill("FH-1")
        expect(run).to_be_enabled()
        show(page, "orders.cancelling", "in full")
        page.get_by_label("Edit Question").click()
        page.get_by_label("Text", exact=True).fill("Be brief.")
        page.get_by_label("Close the editor").click()
        page.get_by_label("Message").fill("Hello?")
        for leave in (lambda: page.get_by_role("link", name="Runs", exact=True).click(), page.reload):
            leave()
            page.get_by_role("link", name="Playground").click()
            expect(page.locator('.piece[data-section="question"]')).to_contain_text("Be brief.")
            expect(page.locator('.piece[data-section="customer"]')).to_contain_text("Ann (warm), here since 2026-02-03")
            expect(page.locator('.piece[data-section="customer"]')).to_contain_text("FH-1")
            expect(page.locator('.play-tree .node[data-section="orders"]')).to_contain_text("opened by Cancelling")
            expect(page.get_by_label("Message")).to_have_value("Hello?")
        page.get_by_label("Edit the draft of Question").click()
        expect(page.locator(".diff .line.gone")).to_contain_text("Answer the question.")
        asks = "dispatchEvent(new Event('beforeunload', { cancelable: true }))"
        assert page.evaluate(asks) is False
        page.get_by_role("button", name="Discard").click()
        expect(page.get_by_role("button", name="Discard")).to_have_count(0)
        assert page.evaluate(asks) is True
        page.close()


def test_a_server_is_started_from_the_page(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    path = tmp_path / "runs.db"
    with record(path), Viewer(path, port=0, playground=shop(tmp_path)) as viewer:
        page = open_page(f"{viewer.url}#/play")
        stock = page.locator('.play-tree .node[data-section="stock"]')
        expect(stock).to_contain_text("loads tools that are not known yet")
        expect(page.locator(".bill")).to_contain_text("of at least ")
        show(page, "stock", "in full")
        expect(page.locator(".big")).to_contain_text("≥")
        expect(page.locator(".unknown")).to_contain_text("loads tools that are not known yet")
        stock.get_by_role("button", name="Use a lock file").click()
        expect(stock).to_contain_text("wink mcp lock")
        stock.get_by_role("button", name="Start the server").click()
        expect(page.locator(".offered", has_text="get_stock")).to_be_visible(timeout=30_000)
        expect(page.locator(".unknown")).to_have_count(0)
        expect(page.locator(".big")).not_to_contain_text("≥")
        page.close()


def test_everything_can_be_done_at_the_width_of_a_phone(playing: Viewer, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{playing.url}#/play")
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("button", name="Sections", exact=True).click()
    show(page, "logs", "in full")
    page.get_by_role("button", name="Text", exact=True).click()
    expect(page.locator(".piece.fresh-piece")).to_be_visible()
    page.get_by_role("button", name="Params and run").click()
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


ACTS = ("render", "load", "save", "run", "stop")
WRONG: dict[str, tuple[Any, ...]] = {
    "adapter": (5, ["scripted"], {}, True),
    "params": (5, "x", [1], {"Alert": 5}, {"Alert": [1]}, {"Alert": None}),
    "states": (5, "x", [1], ["logs"], {"logs": 5}, {"logs": None}, {"logs": []}, {"logs": "open"}, {"logs": "hidden"}),
    "drafts": (5, "x", [1], ["role"], {"role": 5}, {"role": None}, {"role": {}}),
    "tag": (5, ["x"], {}, False),
    "message": (5, ["x"], {}),
    "run_id": (5, ["x"], {}),
    "section": (5, ["x"], {}),
    "unknown": ("x",),
}


def test_a_field_of_the_wrong_type_is_refused_by_name(playing: Viewer) -> None:
    for act, (name, values) in product(ACTS, WRONG.items()):
        for value in values:
            status, answer = post(playing, act, {name: value})
            assert status == 400 and name in answer["error"], (act, name, value, answer)


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
        ("load", {"section": "nowhere"}),
    ):
        status, answer = post(playing, act, wanted)
        assert (status, list(answer)) == (200, ["error"])


class Note(TypedDict):
    text: str
    by: NotRequired[str]


@dataclass(frozen=True)
class Order:
    number: int
    name: str
    urgent: bool = False
    tone: Literal["warm", "brief"] = "brief"
    note: str | None = None
    items: tuple[str, ...] = ()
    due: date = date(2026, 5, 1)
    at: datetime | None = None
    notes: list[Note] = field(default_factory=list)
    prices: dict[str, float] = field(default_factory=dict)


def test_a_form_has_an_input_for_each_type(tmp_path: Path) -> None:
    section = MarkdownSection[Order](key="order", title="Order", template="${number} ${name} ${tone} ${note} ${due}")
    playground = playing_with(tmp_path, PromptTemplate(ns="shop", key="order", sections=[section]))
    (form,) = playground.about()["params"]
    assert [(each["name"], each["kind"], each["value"], each["required"]) for each in form["fields"]] == [
        ("number", "whole number", None, True),
        ("name", "text", None, True),
        ("urgent", "yes or no", False, False),
        ("tone", "choice", "brief", False),
        ("note", "text", None, False),
        ("items", "list", [], False),
        ("due", "date", "2026-05-01", False),
        ("at", "date and time", None, False),
        ("notes", "list", [], False),
        ("prices", "json", {}, False),
    ]
    notes = form["fields"][8]["item"]
    assert [(each["name"], each["kind"], each["required"]) for each in notes["fields"]] == [
        ("text", "text", True),
        ("by", "text", False),
    ]
    given = {"Order": {"number": 7, "name": "Ann", "tone": "warm", "note": None, "notes": [{"text": "hi"}]}}
    shown = playground.render(Wanted(params=given))
    assert "7 Ann warm" in shown["pieces"][0]["text"] and shown["missing"] == []
    with pytest.raises(SerdeError, match="number"):
        playground.render(Wanted(params={"Order": {"number": "seven"}}))


def test_examples_stand_for_what_is_not_filled_in_and_a_run_needs_it(tmp_path: Path) -> None:
    section = MarkdownSection[Order](key="order", title="Order", template="${number} ${name}")
    playground = playing_with(tmp_path, PromptTemplate(ns="shop", key="order", sections=[section]))
    shown = playground.render(Wanted(params={"Order": {}}))
    assert "0 ${name}" in shown["pieces"][0]["text"] and shown["missing"] == ["number", "name"]
    with pytest.raises(SerdeError, match="name"):
        playground.run(Wanted(params={"Order": {"number": 7}}))


def playing_with(folder: Path, prompt: PromptTemplate[Any] | Prompt[Any], *script: Any, name: str = "scripted") -> Any:
    return Playground(
        prompt,
        adapters=[AdapterChoice(name)],
        make_adapter=lambda name: ScriptedAdapter(script or ["Done."], model=name.partition(":")[2] or "scripted"),
        overrides=JsonPromptOverridesStore(folder),
    )


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
    hidden = playground.render(Wanted(tag="short", states={"tone": "out"}))
    assert [each["state"] for each in hidden["sections"]] == ["full", "out"]
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


PAGES = [section(key, f"About {key}. " * 400) for key in ("a", "b", "c")]
CLOSED = MarkdownSection(
    key="d", title="D", template="In full. " * 200, summary="D.", visibility=SectionVisibility.SUMMARY
)


def bill(folder: Path, model: str, *sections: MarkdownSection[None], **wanted: Any) -> tuple[str, str]:
    playground = playing_with(folder, PromptTemplate(ns="shop", key="bill", sections=sections), name="openai")
    shown = playground.render(Wanted(adapter=f"openai:{model}", **wanted))
    return shown["price"], shown["cache"]


def test_the_price_is_that_of_the_first_request_and_the_next_ones(tmp_path: Path) -> None:
    assert bill(tmp_path, "gpt-5.6", *PAGES) == (
        "First request $0.014; next ones $0.0014 (the first 1,024 tokens must match to be cached).",
        "",
    )
    price, _ = bill(tmp_path, "gpt-5.6", section("a", "Short."))
    assert re.fullmatch(r"Each request less than \$0\.0001: nothing is cached below 1,024 tokens\.", price)
    assert "nothing is cached below 4,096 tokens" in bill(tmp_path, "claude-haiku-4-5", *PAGES)[0]
    assert bill(tmp_path, "unheard-of", *PAGES)[0] == "No price is known for unheard-of."
    adapter = ScriptedAdapter(model="gpt-5.6")
    assert Bill(adapter).open_price(2_000, 20_000) == "With everything open $0.080, then $0.0080."
    assert Bill(adapter, least=True).open_price(200, 900) == "With everything open at least $0.0036 each."
    assert Bill(adapter).open_price(900, 900) == ""


def test_a_change_says_what_becomes_of_the_cache(tmp_path: Path) -> None:
    def cache(**states: str) -> str:
        return bill(tmp_path, "gpt-5.6", *PAGES, CLOSED, section("e", "The end."), states=states)[1]

    assert cache() == ""
    assert cache(a="out") == "Leaving out “A” changes the beginning: the cache starts anew."
    assert re.fullmatch(
        r"Leaving out “C” changes what comes after 2,\d\d\d tokens: only these stay cached.", cache(c="out")
    )
    assert cache(e="out") == "All of it stands at the beginning of the declared prompt too: the cache stays."
    assert cache(a="out", d="full").startswith("Leaving out “A” and 1 more change the beginning")
    short = [section("a", "Short."), section("b", "Shorter.")]
    assert bill(tmp_path, "gpt-5.6", *short, states={"a": "out"})[1] == ""
    drafted = bill(tmp_path, "gpt-5.6", *PAGES, drafts={"a": "Other words."})[1]
    assert drafted == "The draft of “A” changes the beginning: the cache starts anew."


def test_a_model_of_ones_own_is_free(tmp_path: Path) -> None:
    class Own(ScriptedAdapter):
        name = "local"

    for named, adapter in (("local", Own()), ("ollama:qwen3", ScriptedAdapter(model="qwen3"))):
        assert Bill(adapter, named).price(2_000).startswith("Free: the model runs on ")


def test_what_an_adapter_does_not_send_does_not_count_as_cached() -> None:
    class Toolless(ScriptedAdapter):
        sends_tools = False

    rendered = on_call_template().render(Alert("a", "b"))
    counted = [prefix_kept(rendered, rendered, adapter) for adapter in (Toolless(), ScriptedAdapter())]
    assert counted[0].tokens < counted[1].tokens and all(kept.whole for kept in counted)


def states(playground: Playground, **chosen: Any) -> dict[str, tuple[str, str, str]]:
    given = {"Customer": {"name": "Ann", "since": "2026-01-01", "premium": chosen.pop("premium", False)}}
    shown = playground.render(Wanted(states=chosen.pop("states", {}), params=given))
    return {each["key"]: (each["state"], each["opened_by"], each["inside"]) for each in shown["sections"]}


def test_parents_are_opened_by_what_is_chosen_inside_them(tmp_path: Path) -> None:
    playground = shop(tmp_path)
    assert states(playground)["orders.cancelling"] == ("inside", "", "Orders")
    for choice in ("summary", "full"):
        found = states(playground, states={"orders.cancelling": choice})
        assert found["orders"] == ("full", "Cancelling", "")
        assert found["orders.cancelling"] == (choice, "", "")
        assert found["orders.returns"] == ("full", "", "")


def test_what_is_off_is_neither_left_out_nor_lost(tmp_path: Path) -> None:
    playground = shop(tmp_path)
    assert states(playground)["premium"][0] == "off"
    assert states(playground, states={"premium": "full"})["premium"][0] == "off"
    assert states(playground, premium=True)["premium"][0] == "full"
    assert states(playground, premium=True, states={"premium": "out"})["premium"][0] == "out"


def test_a_section_that_an_mcp_server_fills_is_never_shown_as_empty(tmp_path: Path) -> None:
    playground = shop(tmp_path)
    opened = Wanted(states={"stock": "full"})
    before = playground.render(opened)
    assert before["tokens"]["least"] and before["tokens"]["full"] >= before["tokens"]["total"]
    assert [each["unloaded"] for each in before["sections"] if each["key"] == "stock"] == [True]
    assert playground.load(Wanted(section="stock")) == {"loaded": ["stock"]}
    after = playground.render(opened)
    (stock,) = [each for each in after["sections"] if each["key"] == "stock"]
    assert (stock["tools"], stock["unloaded"], after["tokens"]["least"]) == (["get_stock", "list_items"], False, False)
    without = playground.render(Wanted(states={"stock": "full", "question": "out"}))
    assert [each["name"] for each in without["tools"]][:2] == ["get_stock", "list_items"]


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
