"""The viewer in a real browser, as a person uses it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.delegation.agents import tree
from tests.durable.payer import Bill, Payer
from tests.telemetry.agents import FAIL, prompt, record_durable_run, run
from tests.viewer.hosted import record_hosted_run
from tests.waiting import PATIENCE, until
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import JsonPromptOverridesStore, Prompt
from weakincentives.runtime import Conversation, ModelReply, ToolCall, ToolStarted
from weakincentives.session import Session
from weakincentives.telemetry import record
from weakincentives.viewer import Viewer, export_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
)
expect = playwright.expect

Open = Callable[..., Any]
READ_GUIDE = ToolCall("1", "read_section", '{"section_key": "guide"}')


@pytest.fixture
def newest(viewer: Viewer, run_ids: Sequence[str], open_page: Open) -> Page:
    """The page of the newest run at its first turn; four sections that nobody touched are one line."""
    page: Page = open_page(f"{viewer.url}#/run/{run_ids[0]}")
    expect(page.locator(".nodes .node")).to_have_count(11)
    return page


def at_turn(page: Page, n: int) -> None:
    expect(page.get_by_label("Turn", exact=True)).to_have_value(str(n))
    expect(page).to_have_url(re.compile(f"/turn/{n}"))


def test_the_list_leads_to_a_run(viewer: Viewer, open_page: Open) -> None:
    page = open_page(viewer.url)
    expect(page.locator(".run-row:not(.head)")).to_have_count(4)
    expect(page.locator(".run-row:not(.head)").last).to_contain_text("The provider answered 529 three times")
    expect(page.get_by_label("Status").get_by_role("button")).to_have_text(["All", "Answered", "Failed"])
    page.get_by_role("button", name="Failed").click()
    expect(page.locator(".run-row:not(.head)")).to_have_count(1)
    page.get_by_role("button", name="All", exact=True).click()
    expect(page.locator(".run-row:not(.head)")).to_have_count(4)
    page.get_by_label("Filter runs").fill("sonnet")
    expect(page.locator(".run-row:not(.head)")).to_have_count(1)
    page.locator(".run-row:not(.head) a").click()
    expect(page.locator("h1")).to_contain_text("p99 latency 4.8 s")
    expect(page.locator(".facts")).to_contain_text("claude-sonnet-4-6")


def test_the_list_tells_question_answer_and_what_was_saved(viewer: Viewer, open_page: Open) -> None:
    page = open_page(viewer.url)
    row = page.locator(".run-row:not(.head)").first
    expect(row.get_by_role("link")).to_contain_text("Service: checkout p99 latency 4.8 s")
    expect(row).to_contain_text("cause: Deployment 2026.11.15-1 compares lower(code)")
    expect(row.get_by_role("img").first).to_have_attribute(
        "aria-label", re.compile("4 sections opened: logs in turn 1")
    )
    expect(row).to_contain_text("15%")
    expect(page.locator(".totals")).to_contain_text("3 of 4 runs, 1 failed")


def test_the_list_is_sorted_by_a_click(viewer: Viewer, open_page: Open) -> None:
    page = open_page(viewer.url)
    rows = page.locator(".run-row:not(.head)")
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="Saved").click()
    expect(rows.first).to_contain_text("19%")
    expect(page.get_by_role("columnheader", name="Saved")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="Saved").click()
    expect(rows.first).to_contain_text("−14%")


def test_runs_are_grouped_by_prompt_and_by_conversation(viewer: Viewer, open_page: Open) -> None:
    page = open_page(viewer.url)
    page.get_by_role("button", name="By prompt").click()
    group = page.locator(".group-row:not(.head)")
    expect(group).to_have_count(1)
    expect(group).to_contain_text("operations/on-call")
    page.get_by_role("button", name="By conversation").click()
    expect(group).to_have_count(4)
    group.first.get_by_role("link").click()
    expect(page.locator(".exchange")).to_have_count(1)


def test_two_ticked_runs_are_compared(viewer: Viewer, open_page: Open) -> None:
    page = open_page(viewer.url)
    ticks = page.locator(".run-row input[type=checkbox]")
    expect(ticks).to_have_count(4)
    ticks.nth(0).check()
    ticks.nth(2).check()
    page.get_by_role("button", name="Compare these two").click()
    runs = page.get_by_label("Runs", exact=True)
    expect(runs.get_by_role("row", name="Model")).to_contain_text("gpt-5.2")
    expect(runs.get_by_role("row", name="Turns")).to_have_text("Turns97−22%")
    expect(runs.locator(".parting")).to_contain_text("They part in turn 1, by the reply")
    expect(page.get_by_label("Turn after")).to_have_value("1")


def test_scrubbing_shows_each_turn_as_it_was(newest: Page) -> None:
    page = newest
    at_turn(page, 1)
    logs = page.locator('.node[data-section="logs"]')
    expect(logs).to_have_class(re.compile("summary"))
    page.get_by_label("Next turn").click()
    at_turn(page, 2)
    expect(logs).to_have_class(re.compile("read"))
    expect(page.locator(".message.tools_added")).to_contain_text("search_logs")
    page.locator(".turns .turn").nth(4).click()
    at_turn(page, 5)
    expect(page.locator(".call.failed")).to_contain_text("rolled back")
    expect(page.locator(".call.failed .undone")).to_contain_text("Deployed")
    expect(page.locator(".call.failed")).to_contain_text("Refused: 2026.11.15-1")
    page.get_by_label("Turn", exact=True).fill("9")
    page.keyboard.press("Enter")
    at_turn(page, 9)
    expect(page.locator(".reply")).to_contain_text("defeats the index")


def test_a_section_and_its_text_point_at_each_other(newest: Page) -> None:
    page = newest
    page.locator('.node[data-section="deployments"] .label').click()
    expect(page.locator(".piece.selected")).to_contain_text("4. Deployments")
    expect(page.locator(".details")).to_contain_text("only its summary, as declared")
    expect(page).to_have_url(re.compile("section=deployments"))
    page.locator('.piece[data-section="escalation"]').click()
    expect(page.locator(".node.selected .label")).to_have_text("Escalation")
    expect(page.locator(".node.selected .details")).to_contain_text("escalation")


def test_the_request_has_all_its_parts(newest: Page) -> None:
    page = newest
    page.get_by_label("Next turn").click()
    at_turn(page, 2)
    request = page.get_by_label("Request", exact=True)
    request.get_by_role("tab", name="Tools").click()
    request.locator(".offered", has_text="search_logs").locator("summary").click()
    expect(request.locator(".offered[open]")).to_contain_text('"pattern"')
    request.get_by_role("tab", name="Conversation").click()
    expect(request.locator(".message").first).to_contain_text("The alert names no cause")
    expect(request.locator(".message.tool")).to_contain_text("Logs are kept for 14 days")
    request.get_by_role("tab", name="Prompt").click()
    expect(request.locator(".piece")).to_have_count(11)


def test_a_turn_opens_on_what_is_new(viewer: Viewer, run_ids: Sequence[str], open_page: Open) -> None:
    page = open_page(f"{viewer.url}#/run/{run_ids[0]}/turn/4")
    request = page.get_by_label("Request", exact=True)
    expect(request.get_by_role("tab", selected=True)).to_have_text("New since the last turn")
    expect(request.locator(".changed")).to_contain_text("Deployments")
    expect(request.locator(".changed")).to_contain_text("roll_back")
    expect(request.locator(".message")).to_have_count(4)
    expect(request.locator(".message").first).to_contain_text("Pool exhausted with a slow coupons query")


def test_a_section_read_in_the_conversation_marks_the_result_that_brought_it(
    viewer: Viewer, run_ids: Sequence[str], open_page: Open
) -> None:
    page = open_page(f"{viewer.url}#/run/{run_ids[0]}/turn/9")
    page.locator('.node[data-section="logs"] .label').click()
    expect(page.locator(".details")).to_contain_text("read in the conversation")
    expect(page.locator(".message.selected")).to_have_count(2)
    expect(page.locator(".message.tool.selected")).to_contain_text("Logs are kept for 14 days")


def test_text_is_markdown_until_raw_is_asked_for(newest: Page) -> None:
    page = newest
    page.get_by_role("tab", name="Prompt").click()
    alert = page.locator('.piece[data-section="alert"]')
    expect(alert.locator("strong")).to_have_text("checkout")
    page.keyboard.press("m")
    expect(alert).to_contain_text("## 2. Alert")
    expect(alert).to_contain_text("**checkout**")


def test_the_head_of_a_run_tells_it_in_a_sentence(newest: Page) -> None:
    expect(newest.locator(".story")).to_contain_text(
        "opened 4 of 14 sections, got search_logs, list_deploys, roll_back and 1 more, called them, "
        "1 of 6 calls failed, sent 15% less than with everything open"
    )
    expect(newest.locator(".answer")).to_contain_text("Rolled checkout back to 2026.11.14-3")


def test_a_run_is_copied_as_a_test(newest: Page) -> None:
    newest.context.grant_permissions(["clipboard-read", "clipboard-write"])
    newest.get_by_role("button", name="Copy as a test").click()
    expect(newest.locator(".actions")).to_contain_text("Copied")
    script = newest.evaluate("navigator.clipboard.readText()")
    assert 'call("post_status"' in script
    compile(script, "script.py", "exec")


def test_keys_lead_to_the_next_opening_and_the_next_failure(newest: Page) -> None:
    for key, turn in (("o", 3), ("o", 7), ("e", 5), ("o", 7), ("o", 1)):
        newest.keyboard.press(key)
        at_turn(newest, turn)


def test_a_request_that_failed_can_be_looked_at(viewer: Viewer, run_ids: Sequence[str], open_page: Open) -> None:
    page = open_page(f"{viewer.url}#/run/{run_ids[3]}/turn/3")
    expect(page.locator(".message.tool").last).to_contain_text("lines of search match")
    expect(page.locator(".outcome")).to_contain_text("This request got no reply.")
    expect(page.locator(".outcome .ended")).to_contain_text("overloaded")
    page.keyboard.press("k")
    at_turn(page, 2)
    expect(page.locator(".outcome .ended")).to_have_count(0)


def test_the_tree_folds_and_unfolds(newest: Page) -> None:
    page = newest
    page.get_by_role("button", name="Fold", exact=True).click()
    expect(page.locator(".nodes .node")).to_have_count(8)
    page.get_by_role("button", name="Unfold").click()
    expect(page.locator(".nodes .node")).to_have_count(11)
    page.get_by_role("button", name="4 untouched sections").click()
    expect(page.locator(".nodes .node")).to_have_count(14)


def test_everything_has_a_key(viewer: Viewer, run_ids: Sequence[str], open_page: Open) -> None:
    page = open_page(viewer.url)
    expect(page.locator(".run-row:not(.head)")).to_have_count(4)
    page.keyboard.press("j")
    expect(page.locator(".run-row.selected")).to_contain_text("checkout")
    page.keyboard.press("Enter")
    at_turn(page, 1)
    page.keyboard.press("j")
    at_turn(page, 2)
    page.keyboard.press("ArrowRight")
    at_turn(page, 3)
    page.keyboard.press("k")
    at_turn(page, 2)
    page.keyboard.press("End")
    at_turn(page, 9)
    expect(page.locator(".node").first).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".node.selected .label")).to_have_text("Role")
    page.keyboard.press("Escape")
    expect(page.locator(".node.selected")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.locator("dialog[open]")).to_contain_text("next and previous turn")
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.keyboard.press("d")
    expect(page.locator("h1")).to_have_text("Compare")
    page.keyboard.press("u")
    expect(page.locator(".run-row.selected")).to_contain_text("checkout")
    page.keyboard.press("x")
    expect(page.locator(".ticked")).to_contain_text("Tick another run")
    page.keyboard.press("/")
    page.keyboard.type("coupons query")
    page.keyboard.press("Enter")
    expect(page.locator(".hit").first).to_contain_text("coupons query")


def test_two_turns_of_a_run_are_compared(viewer: Viewer, run_ids: Sequence[str], open_page: Open) -> None:
    page = open_page(f"{viewer.url}#/compare?a={run_ids[0]}:3&b={run_ids[0]}:4")
    expect(page.get_by_label("Sections")).to_contain_text("deployments")
    expect(page.get_by_label("Tools", exact=True)).to_contain_text("+ roll_back")
    expect(page.locator(".alike.in-page")).to_have_text("Prompt is the same in both turns.")
    expect(page.get_by_label("Conversation").locator(".line.new").first).to_contain_text("Pool exhausted")


def test_a_diff_contains_both_sides_whatever_they_are(viewer: Viewer, open_page: Open) -> None:
    page = open_page(viewer.url)
    wrong = page.evaluate(
        """async () => {
            const { diff } = await import("wink/diff.js");
            const some = () => Array.from({ length: Math.random() * 30 }, () => "abcd"[Math.floor(Math.random() * 4)]);
            const pick = (runs, kind) =>
                runs.filter((run) => ["same", kind].includes(run.kind)).flatMap((run) => run.items);
            for (let round = 0; round < 500; round += 1) {
                const [a, b] = [some(), some()];
                const runs = diff(a, b);
                if (`${pick(runs, "gone")}` !== `${a}` || `${pick(runs, "new")}` !== `${b}`) return [a, b, runs];
            }
            return diff([..."abc"], [..."abd"]).map((run) => run.kind + run.items.join(""));
        }"""
    )
    assert wrong == ["sameab", "gonec", "newd"]


def test_turns_of_two_runs_are_compared(viewer: Viewer, run_ids: Sequence[str], open_page: Open) -> None:
    page = open_page(f"{viewer.url}#/compare")
    expect(page.locator(".empty")).to_contain_text("Choose two runs")
    page.get_by_label("Run before").select_option(run_ids[0])
    page.get_by_label("Run after").select_option(run_ids[2])
    page.get_by_label("Turn after").fill("2")
    page.keyboard.press("Enter")
    prompt = page.get_by_label("Prompt", exact=True)
    expect(prompt.locator(".line.gone").first).to_contain_text("How to search the logs")
    expect(prompt.locator(".line.new").first).to_contain_text("Logs are kept for 14 days")


def test_search_leads_to_the_place_and_marks_it(viewer: Viewer, run_ids: Sequence[str], open_page: Open) -> None:
    page = open_page(f"{viewer.url}#/run/{run_ids[0]}")
    page.get_by_label("Search everything").fill("Name the version to go back to")
    page.keyboard.press("Enter")
    expect(page.locator(".hit")).to_have_count(1)
    page.locator(".hit").click()
    at_turn(page, 5)
    expect(page.locator(".call mark")).to_have_text("Name the version to go back to")


def test_disclosure_ledger_and_report_have_pages(viewer: Viewer, run_ids: Sequence[str], open_page: Open) -> None:
    page = open_page(f"{viewer.url}#/run/{run_ids[2]}/disclosure")
    expect(page.locator(".steps-list li").first).to_contain_text("Find the first error after 09:12.")
    expect(page.locator(".steps-list li").first).to_contain_text("restart")
    page.keyboard.press("3")
    expect(page.locator(".tiles")).to_contain_text("would have cost $0.0")
    expect(page.locator(".chart .stroke")).to_have_count(3)
    page.get_by_role("link", name="Report").click()
    expect(page.locator(".advice")).to_contain_text("always opened")
    page.get_by_role("button", name="10 sections to keep").click()
    expect(page.locator(".sheet.report .sheet-row:not(.head)")).to_have_count(10)


def test_dark_is_the_systems_choice_until_the_reader_chooses(viewer: Viewer, open_page: Open) -> None:
    page = open_page(viewer.url)
    page.emulate_media(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(18, 18, 20)"
    page.get_by_label("Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate(background) == "rgb(246, 246, 244)"


def test_no_page_is_wider_than_the_window(viewer: Viewer, run_ids: Sequence[str], open_page: Open) -> None:
    run = f"#/run/{run_ids[0]}"
    places = {
        "#/": ".run-row:not(.head)",
        f"{run}/turn/4?section=logs": ".message",
        f"{run}/disclosure": ".lane",
        f"{run}/ledger": ".stroke",
        f"{run}/events?event=3": ".json-key",
        f"#/compare?a={run_ids[0]}:4&b={run_ids[2]}:4": ".diff",
        "#/search?q=coupons": ".hit",
        "#/report": ".advice",
    }
    fits = """([width, height]) => {
        const { scrollWidth, scrollHeight } = document.documentElement;
        return scrollWidth <= width && scrollHeight <= height;
    }"""
    page = open_page(viewer.url)
    for place, content in places.items():
        page.goto(viewer.url + place)
        for width, height in ((1440, 900), (1024, 768), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            expect(page.locator(content).first).to_be_visible()
            # The page is laid out anew a moment after the window has changed.
            page.wait_for_function(fits, arg=[width, height])


def test_what_a_hosted_tool_gave_stands_beside_the_reply(open_page: Open, tmp_path: Path) -> None:
    run_id = record_hosted_run(tmp_path / "runs.db")
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(f"{viewer.url}#/run/{run_id}")
        used = page.locator(".call")
        expect(used).to_contain_text("<b>Beware.</b>")
        expect(used.locator(".pill")).to_have_text("hosted")
        used.get_by_role("button", name="future").click()
        expect(page.locator(".node.selected .label")).to_have_text("Future")
        page.goto(f"{viewer.url}#/search?q=beware")
        page.locator(".hit", has_text="delphi output").click()
        at_turn(page, 1)
        expect(page.locator(".call mark")).to_have_text("Beware")
        page.close()


def test_an_exported_run_opens_from_disk(runs: Path, run_ids: Sequence[str], open_page: Open, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text(export_run(runs, run_ids[0]), encoding="utf-8")
    page = open_page(file.as_uri())
    expect(page.locator(".nodes .node")).to_have_count(11)
    page.keyboard.press("j")
    at_turn(page, 2)
    expect(page.locator(".message.tools_added")).to_contain_text("search_logs")
    page.keyboard.press("d")
    expect(page.get_by_label("Tools", exact=True)).to_contain_text("+ search_logs")
    page.get_by_label("Search everything").fill("smallest reversible")
    page.keyboard.press("Enter")
    expect(page.locator(".hit").first).to_contain_text("smallest reversible")
    page.goto(f"{file.as_uri()}#/run/{run_ids[0]}/events?event=8")
    expect(page.get_by_label("Event")).to_contain_text("read_section")


def test_a_durable_run_can_be_opened_from_the_list(tmp_path: Path, open_page: Open) -> None:
    record_durable_run(tmp_path / "runs.db", "order 1/2")
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(viewer.url)
        page.locator(".run-row:not(.head) a").click()
        expect(page.locator(".answer")).to_have_text("Three.")
        expect(page).to_have_url(re.compile("#/run/desk%2Forder%201%2F2/turn/1"))
        page.close()


def test_a_run_inside_a_call_is_reached_from_the_call(tmp_path: Path, open_page: Open) -> None:
    with record(tmp_path / "runs.db"):
        nested, adapter = tree(1)
        outer = Conversation(nested, adapter=adapter).send()
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(viewer.url)
        expect(page.locator(".run-row:not(.head)")).to_have_count(1)
        expect(page.locator(".run-row:not(.head)")).to_contain_text("1 run inside")
        page.locator(".run-row:not(.head) a").click()
        expect(page.locator(".facts")).to_contain_text("Runs inside1")
        page.get_by_role("link", name="Run of level0").click()
        expect(page).to_have_url(re.compile(f"#/run/{outer.run_id}%2Fcall_1/turn/1"))
        expect(page.locator(".call header code")).to_have_text("spend")
        expect(page.locator(".inside")).to_have_text("Inside level1, turn 1")
        page.locator(".inside a").click()
        expect(page).to_have_url(re.compile(f"#/run/{outer.run_id}/turn/1"))
        page.close()


def waits_on(page: Page) -> Any:
    return page.locator(".waiting-calls")


def test_a_durable_run_that_waits_shows_what_its_calls_would_change_and_the_command(
    tmp_path: Path, open_page: Open
) -> None:
    pytest.importorskip("dbos", reason="needs the durable engine: pip install 'weakincentives[durable]'")
    payer = Payer(tmp_path)
    with record(tmp_path / "runs.db"), payer.loop() as loop:
        loop.start()
        loop.submit(Bill("effects", (5,)), key="bill")
        until(lambda: loop.questions("bill"), "the question")
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(viewer.url)
        page.get_by_role("button", name="Waiting").click()
        page.locator(".run-row:not(.head) a").click()
        waits = waits_on(page)
        expect(waits.locator(".line").first).to_have_text("pay")
        expect(waits.locator(".line.new").first).to_have_text("+paid 5")
        expect(waits).to_contain_text("Decide with wink work questions payer/bill")
        page.close()
    # With the database of the work, the page can decide.
    with Viewer(tmp_path / "runs.db", port=0, database_url=payer.database) as viewer:
        page = open_page(f"{viewer.url}#/run/payer%2Fbill")
        page.get_by_role("button", name="Approve").click()
        expect(waits_on(page)).to_contain_text("Decided; the run goes on as soon as a worker is free.")
        with payer.loop() as loop, record(tmp_path / "runs.db"):
            loop.start()
            loop.result("bill", timeout=PATIENCE)
        page.reload()
        expect(page.locator(".answer")).to_contain_text("paid 5")
        expect(waits_on(page)).to_have_count(0)
        page.close()


def test_the_list_shows_tags_with_nothing_invisible_in_them(tmp_path: Path, open_page: Open) -> None:
    with record(tmp_path / "runs.db"):
        run("Hi.", session=Session(tags={"release": "7", "team": "\u202edesk"}))
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(viewer.url)
        expect(page.locator(".run-row:not(.head)")).to_contain_text("scripted · release=7 · team=⟨U+202E⟩desk")
        page.close()


def test_durable_runs_are_told_apart_by_their_ids_with_nothing_invisible_in_them(
    tmp_path: Path, open_page: Open
) -> None:
    for key in ("ticket-7", "ticket-8", "\u202e\x1b[31m"):
        record_durable_run(tmp_path / "runs.db", key)
    names = ["desk/⟨U+202E⟩␛[31m", "desk/ticket-8", "desk/ticket-7"]
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(viewer.url)
        for row, name in enumerate(names):
            expect(page.locator(".run-row:not(.head)").nth(row)).to_contain_text(f"{name} · Three.")
        page.goto(f"{viewer.url}#/compare")
        options = page.get_by_label("Run before").locator("option")
        expect(options).to_have_text(["Choose a run", *(re.compile(f" · {re.escape(name)}$") for name in names)])
        page.goto(f"{viewer.url}#/search?q=Three")
        expect(page.locator(".hits code").first).to_have_text(names[0])
        page.goto(f"{viewer.url}#/run/desk%2F%E2%80%AE%1B%5B31m")
        expect(page.locator(".facts [title]").first).to_have_attribute("title", re.compile(re.escape(names[0])))
        page.close()


def test_an_address_with_a_stray_percent_sign_still_leads_somewhere(viewer: Viewer, open_page: Open) -> None:
    page = open_page(f"{viewer.url}#/runs/%")
    expect(page.locator(".run-row:not(.head)")).to_have_count(4)


def test_an_answer_that_is_no_document_is_shown_with_its_status(viewer: Viewer, open_page: Open) -> None:
    page = open_page("about:blank")
    page.route("**/api/runs*", lambda route: route.fulfill(status=200, body="<html>Sign in to the proxy"))
    page.goto(viewer.url)
    problem = "The server answered 200 without a document: <html>Sign in to the proxy"
    expect(page.get_by_role("alert")).to_have_text(problem)


def test_a_stream_stopped_in_its_first_turn_shows_what_it_said(tmp_path: Path, open_page: Open) -> None:
    chat = Conversation(prompt(), adapter=ScriptedAdapter(["One\ntwo"]))
    with record(tmp_path / "runs.db"), chat.stream("Count.") as stream:
        next(iter(stream))
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(viewer.url)
        expect(page.locator(".run-row:not(.head)")).to_contain_text("One")
        page.get_by_role("link", name="Count.").click()
        expect(page.locator(".outcome .reply")).to_have_text("One")
        expect(page.locator(".outcome")).to_contain_text("Stopped by its caller")
        expect(page.locator(".request")).to_contain_text("Count.")
        expect(page.locator(".facts")).to_contain_text("0 + 1")
        page.close()


def test_a_run_stopped_before_a_tool_call_has_no_further_request(tmp_path: Path, open_page: Open) -> None:
    with record(tmp_path / "runs.db"):
        stream = Conversation(prompt(FAIL), adapter=ScriptedAdapter([call("fail")])).stream("Go.")
        with stream:
            next(event for event in stream if isinstance(event, ToolStarted))
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(viewer.url)
        page.get_by_role("link", name="Go.").click()
        expect(page.locator(".outcome")).to_contain_text("Stopped by its caller")
        expect(page.locator(".page.run")).to_contain_text("of 1")
        page.close()


def test_the_total_cost_says_of_how_many_runs_the_price_is_known(tmp_path: Path, open_page: Open) -> None:
    with record(tmp_path / "runs.db"):
        for model in ("gpt-5.6", "a-model-of-ours", "gpt-5.6"):
            ScriptedAdapter(["Done."], model=model).evaluate(prompt(), session=Session())
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(viewer.url)
        expect(page.locator(".totals > div").last).to_have_text(re.compile(r"Cost\$0\.\d+ of 2 of 3 runs"))
        page.get_by_role("button", name="By prompt").click()
        expect(page.locator(".group-row:not(.head)")).to_contain_text("of 2 runs")
        page.close()


def test_the_head_of_a_run_names_the_override_it_used(tmp_path: Path, open_page: Open) -> None:
    bound = prompt()
    store = JsonPromptOverridesStore(tmp_path / "overrides")
    words = bound.template.descriptor.override_section(("intro",), "Be kind.")
    store.upsert(bound.template.descriptor.new_override("kind").with_section(("intro",), words))
    tuned = Prompt(bound.template, overrides_store=store, overrides_tag="kind")
    with record(tmp_path / "runs.db"):
        ScriptedAdapter(["Done."]).evaluate(tuned, session=Session())
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(viewer.url)
        page.locator(".run-row:not(.head) a").click()
        expect(page.locator(".facts")).to_contain_text("Overridekind")
        page.close()


def test_a_choice_by_rank_is_shown_as_such(open_page: Callable[..., Any], tmp_path: Path) -> None:
    ranking = '{"type": "ranking", "by": "a-ranker", "of": 27, "best": [{"key": "guide", "score": 0.512}]}'
    replies = [ModelReply(tool_calls=(READ_GUIDE,), stop_reason="tool_calls", items=(ranking,)), "Done."]
    with record(tmp_path / "runs.db"):
        run = ScriptedAdapter(replies).evaluate(prompt(), session=Session())
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(f"{viewer.url}#/run/{run.run_id}")
        expect(page.locator(".ranked")).to_have_text("Picked by rank among 27 sections: guide 0.51")
        page.close()


def test_an_answer_that_is_a_quotation_names_its_source(open_page: Callable[..., Any], tmp_path: Path) -> None:
    items = ("not JSON", '{"type": "quotation", "from": ["hours", "<b>"]}')
    with record(tmp_path / "runs.db"):
        run = ScriptedAdapter([ModelReply(text="At six.", items=items)]).evaluate(prompt(), session=Session())
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        page = open_page(f"{viewer.url}#/run/{run.run_id}")
        expect(page.locator(".outcome .quoted")).to_have_text("Quoted word for word from hours, <b>")
        page.close()
