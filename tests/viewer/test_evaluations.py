"""The page of evaluations: the list, one evaluation, and two side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.evals.shop import CASES, adapter, shop
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.evals import contains, evaluate
from weakincentives.telemetry import RunStore, record

if TYPE_CHECKING:
    from weakincentives.viewer import Viewer

pytest.importorskip("starlette", reason="needs the viewer: pip install 'weakincentives[viewer]'")
from weakincentives.viewer.documents import Documents
from weakincentives.viewer.evaluations import comparison, evaluation, evaluations


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evals") / "runs.db"
    evaluate(CASES, shop(), adapter(), [contains()], name="before", file=path)
    lost = ScriptedAdapter(lambda request: "<b>I do not know.</b>")
    evaluate(CASES, shop("Refunds take a week."), lost, [contains()], name="after", file=path)
    return path


@pytest.fixture(scope="module")
def serving(file: Path) -> Iterator[Viewer]:
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'weakincentives[viewer]'")
    from weakincentives.viewer import Viewer

    with Viewer(file, port=0) as viewer:
        yield viewer


def test_documents_list_evaluations_and_compare_them_by_case(file: Path) -> None:
    with RunStore(file) as store:
        listed = evaluations(store)["evaluations"]
        assert [(each["name"], each["passed"], each["failed"]) for each in listed] == [
            ("after", 0, 3),
            ("before", 2, 1),
        ]
        one = evaluation(store, "before")
        assert [(row["case_id"], row["verdict"], row["turns"]) for row in one["results"]] == [
            ("a", "passed", 3),
            ("b", "passed", 3),
            ("c", "failed", 3),
        ]
        both = comparison(store, "before", "after")
        case = Documents(store).run(one["results"][0]["run_id"])["evaluation"]
    assert (case["id"], case["case_id"], case["verdict"]) == (one["id"], "a", "passed")
    assert [(row["case_id"], row["changed"], row["regressed"]) for row in both["rows"]] == [
        ("a", True, True),
        ("b", True, True),
        ("c", False, False),
    ]
    assert both["text"][0] == "3 cases, 2 differ: 0 won, 2 lost, 1 tied."
    assert not both["same_prompt"]


def test_a_file_without_evaluations_has_an_empty_list(tmp_path: Path) -> None:
    with record(tmp_path / "runs.db"):
        pass
    with RunStore(tmp_path / "runs.db") as store:
        assert evaluations(store)["evaluations"] == []


def test_the_page_leads_from_the_list_to_cases_runs_and_differences(
    serving: Viewer, open_page: Callable[..., Any]
) -> None:
    from playwright.sync_api import expect

    page = open_page(serving.url)
    page.get_by_role("link", name="Evals").click()
    page.locator(".sheet.evals a", has_text="after").click()
    expect(page.locator(".sheet.cases .sheet-row:not(.head)")).to_have_count(3)
    expect(page.locator(".tiles")).to_contain_text("of 3")
    page.get_by_label("Compared with").select_option(label=page.locator("option", has_text="before").last.inner_text())
    expect(page.get_by_label("Comparison", exact=True)).to_contain_text("2 lost")
    expect(page.get_by_label("Comparison", exact=True)).to_contain_text(re.compile(r"Passed\s*0\s*2 before"))
    expect(page.locator(".sheet.pairs .sheet-row:not(.head)")).to_have_count(3)
    expect(page.locator(".sheet.pairs")).to_contain_text("<b>I do not know.</b>")
    page.get_by_label("only changed").check()
    expect(page.locator(".sheet.pairs .sheet-row:not(.head)")).to_have_count(2)
    page.get_by_role("link", name="difference").first.click()
    expect(page.get_by_label("Reply", exact=True)).to_contain_text("I do not know.")
    page.go_back()
    page.locator(".sheet.pairs a").first.click()
    expect(page.locator(".tree .node").first).to_be_visible()


def test_the_change_of_a_section_that_both_evaluations_opened_is_shown(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    from weakincentives.viewer import Viewer

    path = tmp_path / "runs.db"
    for name, rules in (("before", "Refunds take three days."), ("after", "Refunds take a week.")):
        evaluate(CASES, shop(rules), adapter(), [contains()], name=name, file=path)
    with Viewer(path, port=0) as viewer:
        with RunStore(path) as store:
            after, before = (each["id"] for each in evaluations(store)["evaluations"])
        page = open_page(f"{viewer.url}#/evals?a={before}&b={after}")
        changed = page.get_by_label("Prompt, in case")
        expect(changed.locator(".line.gone")).to_contain_text("Refunds take three days.")
        expect(changed.locator(".line.new")).to_contain_text("Refunds take a week.")
        page.close()
