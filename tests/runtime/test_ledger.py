"""Hand-computed runs. Tokens are words, and the provider's counts are given by the script."""

from __future__ import annotations

from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.clock import FakeClock
from weakincentives.limits import TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, Tool, ToolResult
from weakincentives.runtime import (
    Ledger,
    LedgerTurn,
    MainLoop,
    Message,
    ModelReply,
    PromptRendered,
    ToolCall,
    ToolInvoked,
    ledger,
)
from weakincentives.session import Session

SUMMARY = SectionVisibility.SUMMARY


class Words:
    name = "words"
    exact = True

    def count(self, text: str) -> int:
        return len(text.split())


def search(params: None, *, context: Any) -> ToolResult[None]:
    return ToolResult("found nothing")


SEARCH = Tool[None, None](name="search", description="Search.", handler=search)


def prompt() -> Prompt[None]:
    sections = [
        MarkdownSection(title="Intro", key="intro", template="one two three"),
        MarkdownSection(title="Docs", key="docs", template="word " * 100, summary="docs", visibility=SUMMARY),
        MarkdownSection(
            title="Web", key="web", template="web " * 10, summary="web", visibility=SUMMARY, tools=[SEARCH]
        ),
    ]
    return Prompt(PromptTemplate(ns="tests", key="ledger", sections=sections))


def test_the_scripted_models_own_count_has_tools_in_it() -> None:
    session = Session()
    script = [call("read_section", section_key="web"), call("search"), "done"]
    ScriptedAdapter(script).evaluate(prompt(), session=session)
    full = [row.full_prompt_tokens for row in ledger(session).rows]
    assert full[0] is None and all(tokens is not None and tokens > 100 for tokens in full[1:])


def reply(tokens: int, *calls: ToolCall, cached: int = 0, text: str = "") -> ModelReply:
    numbered = tuple(ToolCall(f"{tokens}-{at}", c.name, c.arguments) for at, c in enumerate(calls))
    usage = TokenUsage(input_tokens=tokens, cached_tokens=cached)
    return ModelReply(text=text, tool_calls=numbered, usage=usage, stop_reason="tool_calls" if calls else "end")


READ_DOCS, READ_WEB = call("read_section", section_key="docs"), call("read_section", section_key="web")


def played(*script: ModelReply, session: Session | None = None, **options: Any) -> tuple[Session, Ledger]:
    session = session or Session()
    adapter = ScriptedAdapter(script, tokenizer=Words(), **options)
    MainLoop().execute(prompt(), session=session, adapter=adapter)
    return session, ledger(session, tokenizer=Words())


def hidden(session: Session) -> int:
    """What the full prompt has and the rendered one has not, less what only disclosure needs."""
    rendered = session[PromptRendered].all()[-1]
    closed = [section for section in rendered.sections if section.visibility is SUMMARY]
    return sum(s.full_tokens + s.tool_tokens - s.shown_tokens for s in closed) - rendered.builtin_tool_tokens


def read_cost(session: Session) -> int:
    """Words of the calls that opened something, and of what the model read in answer."""
    asked = [event.arguments for event in session[ToolInvoked].all() if event.disclosure]
    answered = [message.text for message in session[Message].all() if message.name == "read_section"]
    return sum(Words().count(text) for text in (*asked, *answered))


def test_the_parts_of_the_prompt_are_counted_as_written() -> None:
    session, _ = played(reply(50, text="done"))
    rendered = session[PromptRendered].all()[-1]
    # "## 2. Docs" and a hundred words, against "## 2. Docs", "docs", "---" and the suffix.
    docs = rendered.sections[1]
    suffix = '[This section is summarized. To view full content, call `read_section` with key "docs".]'
    assert (docs.full_tokens, docs.shown_tokens) == (103, 3 + 1 + 1 + len(suffix.split()))


def test_a_run_that_opens_nothing_saves_what_stayed_hidden_in_every_turn() -> None:
    session, found = played(reply(50, call("search")), reply(60, text="done"))
    assert found.rows == (
        LedgerTurn(1, 1, 50, 0, 50 + hidden(session)),
        LedgerTurn(2, 1, 60, 0, 60 + hidden(session)),
    )
    assert (found.turns, found.sent_tokens, found.saved) == (2, 110, 2 * hidden(session))


def test_a_turn_that_only_opened_a_section_would_not_have_happened() -> None:
    session, found = played(reply(50, READ_DOCS), reply(160, text="done"))
    # The full prompt answers at once: what it hides comes on top, and the call with its result goes.
    assert [row.full_prompt_tokens for row in found.rows] == [None, 160 + hidden(session) - read_cost(session)]
    assert read_cost(session) == 2 + 4 + 102
    assert found.saved == (160 + hidden(session) - 108) - (50 + 160)


def test_a_turn_that_opened_a_section_and_did_something_else_counts() -> None:
    for calls in ((READ_DOCS, call("search")), (call("search"), READ_DOCS)):
        _, found = played(reply(50, *calls), reply(160, text="done"))
        assert all(row.full_prompt_tokens is not None for row in found.rows)


def test_injected_tools_count_once_as_disclosed() -> None:
    session, found = played(reply(50, READ_WEB), reply(90, call("search")), reply(95, text="done"))
    tools = session[PromptRendered].all()[-1].sections[2].tool_tokens
    expected = hidden(session) - read_cost(session) - tools
    assert [row.full_prompt_tokens for row in found.rows] == [None, 90 + expected, 95 + expected]


def test_a_restart_spares_the_full_prompt_only_the_turn_that_asked_for_it() -> None:
    script = (reply(50, call("search")), reply(55, READ_WEB), reply(80, call("search")), reply(85, text="done"))
    session, found = played(*script, supports_dynamic_tools=False)
    assert [row.attempt for row in found.rows] == [1, 1, 2, 2]
    after = hidden(session) - read_cost(session)
    assert [row.full_prompt_tokens is None for row in found.rows] == [False, True, False, False]
    assert [row.full_prompt_tokens for row in found.rows[2:]] == [80 + after, 85 + after]
    assert (found.restarts, found.sent_tokens) == (1, 270)


def test_a_restart_costs_more_than_it_saves_when_the_section_was_small() -> None:
    _, found = played(reply(500, READ_WEB), reply(520, text="done"), supports_dynamic_tools=False)
    assert found.saved < 0


@pytest.mark.parametrize(
    ("route", "lost"), [("append", {"append": 50}), ("additional_tools", {}), ("tool_addition", {})]
)
def test_tokens_lost_to_the_cache_are_named_by_route(route: str, lost: dict[str, int]) -> None:
    last = reply(95, cached=64, text="done")
    _, found = played(reply(50, READ_WEB), reply(90, call("search")), last, tool_route=route)
    assert found.cache_lost_by_route == lost
    assert found.cache_lost_tokens == sum(lost.values())


def test_where_no_cache_is_reported_none_was_lost() -> None:
    _, found = played(reply(50, READ_WEB), reply(90, call("search")), reply(95, text="done"), tool_route="append")
    assert (found.cache_lost_by_route, found.cache_lost_tokens) == ({}, 0)


def test_what_the_provider_still_read_from_its_cache_was_not_lost() -> None:
    _, found = played(reply(50, READ_WEB), reply(90, cached=30, text="done"), tool_route="append")
    assert (found.cache_lost_by_route, found.cached_tokens) == ({"append": 20}, 30)


def test_a_restart_loses_no_more_than_the_new_request_has() -> None:
    _, found = played(
        reply(300, call("search")),
        reply(500, READ_WEB, cached=300),
        reply(80, text="done"),
        supports_dynamic_tools=False,
    )
    assert found.cache_lost_by_route == {"restart": 80}


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_clock_that_stands_still_changes_nothing(dynamic: bool) -> None:
    script = (reply(50, READ_DOCS), reply(160, READ_WEB), reply(190, call("search")), reply(195, text="done"))
    still = played(*script, session=Session(clock=FakeClock()), supports_dynamic_tools=dynamic)[1]
    moving = played(*script, supports_dynamic_tools=dynamic)[1]
    assert (still.rows, still.restarts) == (moving.rows, moving.restarts)
    assert still.sections == moving.sections or not dynamic


def test_each_section_has_its_own_account() -> None:
    session, found = played(reply(50, READ_WEB), reply(90, call("search")), reply(95, text="done"))
    intro, docs, web = found.sections
    state = session[PromptRendered].all()[-1].sections[2]
    assert (web.opened, web.tools_used, docs.opened, docs.tools_used) == (1, 1, 0, 0)
    assert web.full_tokens == state.full_tokens + state.tool_tokens
    assert web.sent_tokens == 3 * state.shown_tokens + 2 * (read_cost(session) + state.tool_tokens)
    assert docs.saved == 2 * 103 - 3 * docs.shown_tokens
    assert intro.sent_tokens == 3 * intro.shown_tokens


def test_a_request_for_a_section_that_does_not_exist_opens_nothing() -> None:
    _, found = played(reply(50, call("read_section", section_key="nope")), reply(60, text="done"))
    assert [section.opened for section in found.sections] == [0, 0, 0]
    assert found.rows[0].full_prompt_tokens is None


def test_a_session_without_a_run_has_an_empty_ledger() -> None:
    assert ledger(Session()) == Ledger("", (), 0, ())


def test_the_ledger_of_an_earlier_run_can_be_asked_for() -> None:
    session, first = played(reply(50, text="done"))
    ScriptedAdapter([reply(70, text="again")], tokenizer=Words()).evaluate(prompt(), session=session)
    assert ledger(session, tokenizer=Words()).sent_tokens == 70
    assert ledger(session, first.run_id, tokenizer=Words()).sent_tokens == 50
