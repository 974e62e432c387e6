"""Advice on runs computed by hand. Tokens are words; a million of them costs 2 new, 0.2 cached and 10 as output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.limits import Prices, TokenUsage
from weakincentives.prompt import (
    LateContent,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Section,
    SectionVisibility,
    Tool,
    ToolResult,
)
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime import MainLoop, ModelReply, ToolCall
from weakincentives.session import Session
from weakincentives.telemetry import PromptAdvice, RunStore, SectionAdvice, advise, record

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
PRICES = {"scripted": Prices(2.0, 10.0, 0.2)}
MICRO = 1e-6
# "## 2. Docs" and 100 words; "## 2. Docs", "docs", "---" and thirteen words that say how to read it.
DOCS, DOCS_SHOWN = 103, 18
# What reading docs adds: two words of arguments, "Content of section 'docs':" and the text without its number.
DOCS_READ = 2 + 4 + DOCS - 1


class Words:
    name = "words"
    exact = True

    def count(self, text: str) -> int:
        return len(text.split())


def search(params: None, *, context: Any) -> ToolResult[None]:
    return ToolResult("found nothing")


SEARCH = Tool[None, None](name="search", description="Search.", handler=search)


class Late(Section[None]):
    """A section that gets its tool when it is opened."""

    def render_body(self, params: None) -> str:
        return ""

    def load(self, resources: ScopedResourceContext) -> LateContent:
        return LateContent((SEARCH,))


def prompt(web: SectionVisibility = SUMMARY) -> Prompt[None]:
    sections = [
        MarkdownSection(title="Intro", key="intro", template="one two three"),
        MarkdownSection(title="Docs", key="docs", template="word " * 100, summary="docs", visibility=SUMMARY),
        MarkdownSection(title="Web", key="web", template="web " * 10, summary="web", visibility=web, tools=[SEARCH]),
    ]
    return Prompt(PromptTemplate(ns="tests", key="advice", sections=sections))


def reply(tokens: int, *calls: ToolCall, cached: int = 0, out: int = 0) -> ModelReply:
    numbered = tuple(ToolCall(f"{tokens}-{at}", c.name, c.arguments) for at, c in enumerate(calls))
    usage = TokenUsage(input_tokens=tokens, cached_tokens=cached, output_tokens=out)
    return ModelReply(tool_calls=numbered, usage=usage, stop_reason="tool_calls" if calls else "end")


READ_DOCS, READ_WEB = call("read_section", section_key="docs"), call("read_section", section_key="web")


def nested() -> Prompt[None]:
    inner = MarkdownSection[None](title="Inner", key="inner", template="word " * 100)
    outer = MarkdownSection[None](
        title="Outer", key="outer", template="outer", summary="outer", visibility=SUMMARY, children=[inner]
    )
    return Prompt(PromptTemplate(ns="tests", key="nested", sections=[outer]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def played(path: Path, *script: ModelReply, runs: int = 3, web: SectionVisibility = SUMMARY, **options: Any) -> None:
    with record(path):
        for _ in range(runs):
            adapter = ScriptedAdapter(script, tokenizer=Words(), **options)
            MainLoop().execute(prompt(web), session=Session(), adapter=adapter)


def advised(path: Path, **options: Any) -> tuple[PromptAdvice, dict[str, SectionAdvice]]:
    with RunStore(path) as store:
        (advice,) = advise(store, tokenizer=Words(), **{"prices": PRICES, **options}).prompts
    return advice, {section.key: section for section in advice.sections}


def test_a_section_that_every_run_opens_is_cheaper_in_full(path: Path) -> None:
    played(path, reply(50, READ_DOCS, out=5), reply(160, out=10))
    advice, sections = advised(path)
    docs = sections["docs"]
    # The opening turn costs 50 * 2 + 5 * 10; then summary and content are sent once. In full: the section, once.
    assert docs.cost_summary == pytest.approx((150 + (DOCS_SHOWN + DOCS_READ) * 2) * MICRO)
    assert docs.cost_full == pytest.approx(DOCS * 2 * MICRO)
    assert (docs.advised, docs.findings, docs.opened_runs, docs.first_use) == ("full", ("always opened",), 3, 1)
    assert advice.cost == pytest.approx(3 * (150 + 160 * 2 + 10 * 10) * MICRO)
    assert advice.saved == pytest.approx(3 * (150 + (DOCS_SHOWN + DOCS_READ - DOCS) * 2) * MICRO)


def test_where_nothing_is_left_to_open_the_tool_for_it_is_saved_too(path: Path) -> None:
    docs = MarkdownSection(title="Docs", key="docs", template="word " * 100, summary="docs", visibility=SUMMARY)
    adapter = ScriptedAdapter([reply(50, READ_DOCS), reply(160)] * 3, tokenizer=Words())
    with record(path):
        for _ in range(3):
            MainLoop().execute(Prompt(ns="tests", key="docs", sections=[docs]), session=Session(), adapter=adapter)
    advice, sections = advised(path)
    (read_section,) = adapter.requests[0].tools
    cost_full, cost_summary = sections["docs"].cost_full, sections["docs"].cost_summary
    assert cost_full is not None and cost_summary is not None
    tool_cost = Words().count(read_section.definition) * 2 * MICRO
    assert advice.saved == pytest.approx(3 * (cost_summary - cost_full + tool_cost))


def test_a_section_that_no_run_opens_stays_summarized(path: Path) -> None:
    played(path, reply(50, call("search")), reply(60))
    advice, sections = advised(path)
    docs = sections["docs"]
    assert docs.cost_summary == pytest.approx(2 * DOCS_SHOWN * 2 * MICRO)
    assert docs.cost_full == pytest.approx(2 * DOCS * 2 * MICRO)
    assert (docs.advised, docs.findings, docs.first_use) == ("summary", ("never opened",), None)
    assert advice.saved == 0


def test_a_section_whose_tools_nobody_has_loaded_is_not_advised_in_full(path: Path) -> None:
    def ran(*script: ModelReply) -> SectionAdvice:
        late = PromptTemplate(
            ns="tests", key="late", sections=[Late(key="web", title="Web", summary="web", visibility=SUMMARY)]
        )
        with record(path):
            for _ in range(3):
                MainLoop().execute(Prompt(late), session=Session(), adapter=ScriptedAdapter(script, tokenizer=Words()))
        return advised(path)[1]["web"]

    unloaded = ran(reply(50))
    assert (unloaded.full_tokens, unloaded.cost_full, unloaded.advised) == (None, None, "")
    assert unloaded.reason == "no run has loaded its tools, so what it costs in full is not known"
    heading, definition = 3, Words().count(SEARCH.definition)
    assert ran(reply(50, READ_WEB), reply(90)).full_tokens == heading + definition


def test_the_measured_cache_makes_what_is_sent_again_cheap(path: Path) -> None:
    played(path, reply(100, call("search"), cached=50), reply(200, call("search"), cached=80), reply(200, cached=100))
    advice, sections = advised(path)
    # Of the first request half comes from the cache; of what was sent before, 180 of 300.
    assert (advice.cache_first, advice.cache_again) == (0.5, 0.6)
    first, again = 2 - 0.5 * 1.8, 2 - 0.6 * 1.8
    assert sections["docs"].cost_full == pytest.approx(DOCS * (first + 2 * again) * MICRO)
    assert sections["docs"].cost_summary == pytest.approx(DOCS_SHOWN * (first + 2 * again) * MICRO)


def test_tools_that_break_the_cache_cost_what_has_to_be_sent_afresh(path: Path) -> None:
    played(path, reply(50, READ_WEB), reply(90, call("search")), reply(95, cached=90), tool_route="append")
    advice, sections = advised(path)
    web = sections["web"]
    assert (advice.cache_first, advice.cache_again) == (0.0, 1.0)
    tools = web.full_tokens - 13
    read = 2 + 4 + 12 + 4
    brought = read + tools
    assert web.cost_summary == pytest.approx(
        (50 * 2 + (18 + brought) * 0.2 + brought * 1.8 + 50 * 1.8 + (18 + brought) * 0.2) * MICRO
    )
    assert web.cost_full == pytest.approx(web.full_tokens * (2 + 0.2) * MICRO)
    assert (web.advised, web.tool_runs) == ("full", 3)


def test_a_route_that_keeps_the_cache_costs_less(path: Path, tmp_path: Path) -> None:
    script = (reply(50, READ_WEB), reply(90, call("search"), cached=50), reply(95, cached=90))
    played(path, *script, tool_route="additional_tools")
    played(tmp_path / "append.db", *script, tool_route="append")
    kept, broken = advised(path)[1]["web"], advised(tmp_path / "append.db")[1]["web"]
    assert kept.cost_summary is not None and broken.cost_summary is not None
    assert kept.cost_summary <= broken.cost_summary


def test_a_restart_costs_the_turn_that_asked_for_it_and_no_cache_that_was_never_reported(path: Path) -> None:
    played(path, reply(50, call("search")), reply(60, READ_WEB), reply(80), supports_dynamic_tools=False)
    web = advised(path)[1]["web"]
    # The summary in the first turn, the whole second one, and in the third the section in full with the call that
    # opened it.
    assert web.cost_summary == pytest.approx((18 * 2 + 60 * 2 + 45 * 2) * MICRO)
    assert web.cost_full == pytest.approx(web.full_tokens * (2 + 2) * MICRO)


def test_a_section_that_is_opened_now_and_then_is_weighed_by_how_often(path: Path) -> None:
    played(path, reply(50, READ_DOCS), reply(160), runs=1)
    played(path, reply(50, call("search")), reply(60), runs=3)
    docs = advised(path)[1]["docs"]
    opened, closed = 50 * 2 + (DOCS_SHOWN + DOCS_READ) * 2, 2 * DOCS_SHOWN * 2
    assert docs.cost_summary == pytest.approx((opened + 3 * closed) / 4 * MICRO)
    assert docs.cost_full == pytest.approx((1 + 3 * 2) / 4 * DOCS * 2 * MICRO)
    assert (docs.opened_runs, docs.runs, docs.advised) == (1, 4, "summary")


def test_tools_that_nobody_used_are_named(path: Path) -> None:
    played(path, reply(50, READ_WEB), reply(90))
    assert "opened, but its tools were never used" in advised(path)[1]["web"].findings


def test_an_open_section_whose_tools_nobody_used_should_be_summarized(path: Path) -> None:
    played(path, reply(50), web=FULL)
    advice, sections = advised(path)
    web = sections["web"]
    assert (web.advised, web.findings) == ("summary", ("shown in full, but its tools were never used",))
    assert advice.saved == pytest.approx(3 * (web.full_tokens - DOCS_SHOWN) * 2 * MICRO)


def test_runs_cannot_tell_who_would_have_opened_what_was_open(path: Path) -> None:
    played(path, reply(50))
    intro = advised(path)[1]["intro"]
    assert (intro.advised, intro.cost_summary) == ("", None)


def test_too_few_runs_give_no_advice(path: Path) -> None:
    played(path, reply(50, READ_DOCS), reply(160), runs=2)
    docs = advised(path)[1]["docs"]
    assert (docs.advised, docs.reason) == ("", "only 2 runs; at least 3 are needed")


def test_without_a_price_costs_are_in_input_tokens(path: Path) -> None:
    played(path, reply(50, call("search"), out=5), reply(60, cached=50))
    advice, _ = advised(path, prices=None)
    assert (advice.unit, advice.cost) == ("input tokens", pytest.approx(3 * (50 + 25 + 10 + 5)))


def test_only_the_last_runs_count_when_asked(path: Path) -> None:
    played(path, reply(50, READ_DOCS), reply(160))
    played(path, reply(50))
    assert advised(path, last=3)[1]["docs"].opened_runs == 0


def test_what_opens_with_a_section_counts_as_its_own(path: Path) -> None:
    child = MarkdownSection(title="Child", key="child", template="word " * 10)
    closed = MarkdownSection(title="Shut", key="shut", template="word " * 50, summary="shut", visibility=SUMMARY)
    parent = MarkdownSection(
        title="Parent", key="parent", template="word " * 5, summary="p", visibility=SUMMARY, children=[child, closed]
    )
    with record(path):
        for number in range(4):
            script = [reply(50, call("read_section", section_key="parent.shut")), reply(90)] if number else [reply(50)]
            bound = Prompt(PromptTemplate(ns="t", key="n", sections=[parent]))
            ScriptedAdapter(script, tokenizer=Words()).evaluate(bound, session=Session())
    sections = advised(path)[1]
    # "## 1. Parent" and 5 words, "### 1.1. Child" and 10, "### 1.2. Shut" and 50: nobody has seen how the last looks.
    assert sections["parent"].full_tokens == 8 + 13 + 53
    assert (sections["parent.shut"].shown, sections["parent.shut"].opened_runs) == ("hidden", 3)
    assert sections["parent.shut"].reason == "inside 'parent', which is summarized"


def test_opening_what_a_summary_hides_is_a_cost_of_that_summary(path: Path) -> None:
    for _ in range(3):
        script = [reply(1000, call("read_section", section_key="outer.inner")), reply(1100)]
        MainLoop(recorder=record(path)).execute(
            nested(), session=Session(), adapter=ScriptedAdapter(script, tokenizer=Words())
        )
    with RunStore(path) as store:
        outer, inner = advise(store, prices=PRICES, tokenizer=Words()).prompts[0].sections
    assert (outer.opened_runs, inner.opened_runs, outer.findings, outer.advised) == (0, 3, (), "full")
    assert outer.cost_full == pytest.approx(outer.full_tokens * 2 * MICRO)
    assert outer.cost_summary is not None and outer.cost_summary > 1000 * 2 * MICRO


@pytest.mark.parametrize("runs", [1, 3])
def test_a_section_that_is_shorter_than_its_summary_is_advised_open_from_the_first_run_on(
    path: Path, runs: int
) -> None:
    short = MarkdownSection(title="Short", key="short", template="one", summary="two", visibility=SUMMARY)
    docs = MarkdownSection(title="Docs", key="docs", template="word " * 100, summary="docs", visibility=SUMMARY)
    with record(path):
        for _ in range(runs):
            adapter = ScriptedAdapter([reply(50)], tokenizer=Words())
            MainLoop().execute(Prompt(ns="t", key="k", sections=[short, docs]), session=Session(), adapter=adapter)
    _, sections = advised(path)
    why = "closing it costs more than it saves: 18 tokens, in full 4"
    assert (sections["short"].advised, sections["short"].reason) == ("full", why)
    assert sections["docs"].advised == ("summary" if runs == 3 else "")
