"""How summarized sections render: what is hidden, the suffix, the built-in tools, prices and budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.disclosure.desk import FULL, SUMMARY, a_tool, desk, play, section, tool_names
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import (
    Disclosure,
    EstimatedTokens,
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    ReadSections,
    SearchSections,
    SectionVisibility,
    SetVisibilityOverride,
)
from weakincentives.runtime import Conversation, Message
from weakincentives.session import Session

READ = '[This section is summarized. To view full content, call `read_section` with key "{}".]'
OPEN = '[This section is summarized. To view full content, call `open_sections` with key "{}".]'
SUFFIXES: list[tuple[Any, str, str]] = [
    (ReadSections(), "docs", READ),
    (ReadSections(), "orders", READ),
    (ReadSections(), "guide", READ),
    (OpenOrRead(), "docs", READ),
    (OpenOrRead(), "orders", OPEN),
    (
        OpenToFiles(),
        "docs",
        '[This section is summarized. To view full content, call `open_sections` with key "{0}". '
        "The content will be written to context/{0}.md for you to read.]",
    ),
    (
        OpenToFiles(),
        "orders",
        '[This section is summarized. Call `open_sections` with key "{}" to view full content including '
        "subsections: refunds. Additional tools may become available.]",
    ),
    (
        OpenToFiles(),
        "guide",
        '[This section is summarized. Call `open_sections` with key "{0}" to write content (including '
        "subsections: style, tone) to context/{0}.md.]",
    ),
    (OpenAndHalt(), "docs", OPEN),
    (
        OpenAndHalt(),
        "guide",
        '[This section is summarized. Call `open_sections` with key "{}" to view full content including '
        "subsections: style, tone.]",
    ),
]


@pytest.mark.parametrize(("strategy", "key", "words"), SUFFIXES)
def test_the_suffix_speaks_the_words_of_the_strategy(strategy: Any, key: str, words: str) -> None:
    rendered = desk(disclosure=strategy).render()
    span = next(span for span in rendered.spans if span.path == (key,))
    text = rendered.text[span.start : span.end]
    assert text.endswith(f"About {key}.\n\n---\n{words.format(key)}")


LEAD = "[A section that ends with its key in brackets is summarized. To view full content, call {}]\n\n"
LEADS: list[tuple[Any, str]] = [
    (ReadSections(suffix="key"), "`read_section` with its key."),
    (SearchSections(suffix="key"), "`read_section` with its key."),
    (OpenAndHalt(suffix="key"), "`open_sections` with its key."),
    (OpenOrRead(suffix="key"), "`read_section` with its key, or `open_sections` if it has tools."),
    (
        OpenToFiles(suffix="key"),
        "`open_sections` with its key. Content without tools will be written to context/<key>.md for you to read.",
    ),
]


@pytest.mark.parametrize(("strategy", "how"), LEADS)
def test_with_keys_as_suffixes_the_sentence_stands_once(strategy: Any, how: str) -> None:
    rendered = desk(disclosure=strategy).render()
    assert rendered.text == (
        f"## 1. Task\n\nHelp.\n\n{LEAD.format(how)}## 2. Docs\n\nAbout docs.\n[docs]\n\n"
        "## 3. Orders\n\nAbout orders.\n[orders]\n\n## 4. Guide\n\nAbout guide.\n[guide]"
    )
    texts = [rendered.text[span.start : span.end] for span in rendered.spans]
    assert texts[:2] == ["## 1. Task\n\nHelp.", "## 2. Docs\n\nAbout docs.\n[docs]"]


def test_the_sentence_is_for_what_is_listed_and_goes_with_it() -> None:
    template = desk(disclosure=ReadSections(suffix="key"))
    everything = {("docs",): FULL, ("orders", "refunds"): FULL, ("guide", "tone"): FULL}
    assert "in brackets" not in template.render(visibility_overrides=everything).text
    rendered = template.render(visibility_overrides={("docs",): FULL, ("orders",): FULL})
    assert f"{LEAD.format('`read_section` with its key.')}### 3.1. Refunds\n\nAbout refunds.\n[orders.refunds]" in (
        rendered.text
    )


def test_a_text_that_begins_with_a_closed_section_begins_with_the_sentence() -> None:
    sections = [section("a", summary_suffix="Ask for it."), section("b", heading=False)]
    template = PromptTemplate(
        ns="t",
        key="k",
        sections=sections,
        disclosure=ReadSections(suffix="key"),
        show_prices=True,
        tokenizer=EstimatedTokens(),
    )
    rendered = template.render()
    lead = LEAD.format("`read_section` with its key.")
    assert rendered.text == (
        "## 1. A\n\nAbout a.\n\n---\nAsk for it.\n[Opening it costs about 8 tokens.]\n\n"
        f"{lead}About b.\n[b]\n[Opening it costs about 4 tokens.]"
    )
    alone = PromptTemplate(ns="t", key="k", sections=[section("b")], disclosure=ReadSections(suffix="key")).render()
    assert alone.text == f"{lead}## 1. B\n\nAbout b.\n[b]" and alone.spans[0].start == len(lead)


def test_what_a_read_section_lists_says_how_to_open_it() -> None:
    adapter = play(desk(disclosure=ReadSections(suffix="key")), call("read_section", section_key="orders"), "Done.")
    (result,) = [message.text for message in adapter.requests[1].messages if message.role == "tool"]
    assert f"{LEAD.format('`read_section` with its key.')}### Refunds\n\nAbout refunds.\n[orders.refunds]" in result


@pytest.mark.parametrize("suffix", ["sentence", "key"])
def test_suffixes_and_missing_headings_cause_no_notices_between_exchanges(suffix: Any) -> None:
    bare = MarkdownSection(key="a", title="A", template="## 1. Not a heading\n\nof ours.", heading=False)
    sections = [bare, section("b"), section("c", tools=("x",))]
    template = PromptTemplate(ns="t", key="k", sections=sections, disclosure=ReadSections(suffix=suffix))
    adapter = ScriptedAdapter([call("read_section", section_key="c"), "One.", "Two."])
    with Conversation(Prompt(template), adapter=adapter) as chat:
        chat.send("First.")
        chat.send("Second.")
        roles = [message.role for message in chat.session[Message].all()]
    assert roles == ["system", "user", "assistant", "tool", "tools_added", "assistant", "user", "assistant"]


def test_a_suffix_is_a_sentence_or_a_key() -> None:
    class Old(Disclosure):
        def suffix(self, key: str) -> str:  # type: ignore[override]
            return key

    with pytest.raises(PromptValidationError, match=r"'desk': Old.suffix must be 'sentence' or 'key', got .*hint\(\)"):
        desk(disclosure=Old())
    with pytest.raises(PromptValidationError, match=r"ReadSections\.suffix must be 'sentence' or 'key', got 'keys'"):
        desk(disclosure=ReadSections(suffix="keys"))  # type: ignore[arg-type]


def test_explain_names_the_sections_that_cost_more_closed_than_open() -> None:
    long = MarkdownSection(key="long", title="Long", template="Much. " * 50, summary="Much.", visibility=SUMMARY)
    tooled = section("tooled", tools=("x",))
    plan = ScriptedAdapter().explain(
        Prompt(ns="t", key="k", sections=[*(section(f"s{n}") for n in range(12)), long, tooled])
    )
    dearer = [section.state.path[0] for section in plan.sections if section.dearer_closed]
    assert dearer == [f"s{n}" for n in range(12)]
    (line,) = [line for line in plan.render().splitlines() if "costs more" in line]
    assert line.startswith("closing costs more than it saves (") and line.endswith(
        "s0, s1, s2, s3, s4, s5, s6, s7, s8, s9 and 2 others"
    )
    assert "costs more" not in ScriptedAdapter().explain(Prompt(ns="t", key="k", sections=[long, tooled])).render()


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        (ReadSections(), ["read_section"]),
        (OpenOrRead(), ["open_sections", "read_section"]),
        (OpenToFiles(), ["open_sections"]),
        (OpenAndHalt(), ["open_sections"]),
    ],
)
def test_the_built_in_tools_come_last_and_take_no_overrides(strategy: Any, names: list[str]) -> None:
    template = PromptTemplate(
        ns="t",
        key="k",
        sections=[
            section("open", closed=False, tools=("mine",)),
            section("docs"),
            section("orders", tools=("lookup",)),
        ],
        disclosure=strategy,
    )
    tools = template.render().tools
    assert tool_names(tools) == ["mine", *names]
    assert not any(tool.accepts_overrides for tool in tools[1:])


def test_open_or_read_offers_only_what_is_needed() -> None:
    for sections, names in (([section("a")], ["read_section"]), ([section("a", tools=("x",))], ["open_sections"])):
        template = PromptTemplate(ns="t", key="k", sections=sections, disclosure=OpenOrRead())
        assert tool_names(template.render().tools) == names


def test_without_summaries_there_is_no_disclosure_tool() -> None:
    template = PromptTemplate(ns="t", key="k", sections=[section("a")])
    assert tool_names(template.render().tools) == ["read_section"]
    assert tool_names(template.render(visibility_overrides={("a",): FULL}).tools) == []


def test_children_and_tools_of_a_summarized_section_are_hidden() -> None:
    rendered = desk().render()
    assert "refunds" not in rendered.text.lower()
    assert tool_names(rendered.tools) == ["read_section"]
    assert [span.path for span in rendered.spans] == [("task",), ("docs",), ("orders",), ("guide",)]


def test_opening_shows_children_with_their_own_visibility() -> None:
    rendered = desk().render(visibility_overrides={("orders",): FULL})
    assert "### 3.1. Refunds\n\nAbout refunds." in rendered.text
    assert tool_names(rendered.tools) == ["lookup", "read_section"]


def test_disabled_children_do_not_exist_for_the_model() -> None:
    hidden = MarkdownSection(title="H", key="h", template="x", tools=[a_tool("secret")], enabled=lambda: False)
    template = PromptTemplate(
        ns="t", key="k", sections=[section("a", children=[hidden, section("b")])], disclosure=OpenToFiles()
    )
    assert "(including subsections: b) to context/a.md" in template.render().text
    assert Prompt(template).view(Session()).find("a.h") is None


def test_a_suffix_of_ones_own_replaces_the_words() -> None:
    template = PromptTemplate(
        ns="t", key="k", sections=[section("a", children=[section("b", summary_suffix="Ask for '${section_key}'.")])]
    )
    text = template.render(visibility_overrides={("a",): FULL}).text
    assert text.endswith("About b.\n\n---\nAsk for 'a.b'.")


def test_a_suffix_of_ones_own_is_followed_by_the_keys_of_the_children() -> None:
    hidden = section("gone", enabled=lambda: False)
    parent = section("a", summary_suffix="Ask for '${section_key}'.", children=[section("b"), hidden, section("c")])
    text = PromptTemplate(ns="t", key="k", sections=[parent]).render().text
    assert text.endswith("About a.\n\n---\nAsk for 'a'.\nSubsections: b, c.")


@dataclass
class Verbose:
    verbose: bool = False


@dataclass(frozen=True)
class Wanted:
    key: str


def test_visibility_may_depend_on_params_and_on_the_session() -> None:
    def chosen(*, session: Session | None) -> SectionVisibility:
        return FULL if session is not None and session[Wanted].latest() else SUMMARY

    template = PromptTemplate(
        ns="t",
        key="k",
        sections=[
            MarkdownSection[Verbose](
                title="A", key="a", template="x", summary="s", visibility=lambda p: SUMMARY if p.verbose else FULL
            ),
            MarkdownSection(title="B", key="b", template="x", summary="s", visibility=chosen),
        ],
    )
    session = Session()

    def shown(*params: Any) -> list[SectionVisibility]:
        return [span.visibility for span in template.render(*params, session=session).spans]

    assert shown() == [FULL, SUMMARY]
    session.dispatch(Wanted("b"))
    assert shown(Verbose(True)) == [SUMMARY, FULL]


def test_prices_are_off_by_default_and_say_tokens_and_tools() -> None:
    assert "costs about" not in desk().render().text
    priced = desk(show_prices=True, tokenizer=EstimatedTokens()).render().text
    assert 'key "docs".]\n[Opening it costs about 8 tokens.]' in priced
    assert ", 1 tool.]" in priced


def test_prices_do_not_hide_the_tool_that_closes_sections() -> None:
    priced = desk(show_prices=True, allow_collapse=True, tokenizer=EstimatedTokens())
    plain = desk(allow_collapse=True)
    assert [tool.name for tool in priced.render().tools] == [tool.name for tool in plain.render().tools]


def test_a_token_budget_opens_what_fits_the_cheapest_first() -> None:
    tokenizer = EstimatedTokens()
    sections = [
        MarkdownSection(title=key, key=key, template="word " * size, summary="s", visibility=SUMMARY)
        for key, size in (("big", 500), ("small", 20), ("middle", 100))
    ]
    base = PromptTemplate(ns="t", key="k", sections=sections, tokenizer=tokenizer)
    start = tokenizer.count(base.render().text) + tokenizer.count(base.render().tools[0].definition)

    def opened(budget: int) -> list[str]:
        template = PromptTemplate(ns="t", key="k", sections=sections, tokenizer=tokenizer, token_budget=budget)
        return [span.path[0] for span in template.render().spans if span.visibility is FULL]

    assert opened(1) == []
    assert opened(start + 60) == ["small"]
    assert opened(start + 250) == ["small", "middle"]
    assert opened(start + 5000) == ["big", "small", "middle"]


class Counting(EstimatedTokens):
    calls = 0

    def count(self, text: str) -> int:
        self.calls += 1
        return super().count(text)


def test_fitting_weighs_each_section_once() -> None:
    tokenizer, sections = Counting(), [section(f"s{index}") for index in range(50)]
    PromptTemplate(ns="t", key="k", sections=sections, token_budget=100_000, tokenizer=tokenizer).render()
    assert tokenizer.calls < 2 * len(sections)


def test_a_budget_leaves_alone_what_was_summarized_on_purpose() -> None:
    template = PromptTemplate(ns="t", key="k", sections=[section("a"), section("b")], token_budget=10_000)
    session = Session()
    session.dispatch(SetVisibilityOverride(("a",), SUMMARY))
    spans = template.render(session=session).spans
    assert [(span.visibility, span.decided_by) for span in spans] == [(SUMMARY, "session"), (FULL, "budget")]


def test_a_budget_must_be_positive() -> None:
    with pytest.raises(PromptValidationError, match="token_budget must be positive"):
        PromptTemplate(ns="t", key="k", token_budget=0)
