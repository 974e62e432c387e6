"""Searching for closed sections, menus that leave summaries out, and sections opened before the first turn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.disclosure.desk import SUMMARY, Server, a_tool, answers, closed, shop, tool_names
from weakincentives import skill_sections
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import PromptValidationError
from weakincentives.prompt import MarkdownSection, OpenOrRead, Prompt, PromptTemplate, SearchSections
from weakincentives.prompt.disclosure.ranking import Index, LexicalRanker, SectionText
from weakincentives.runtime import Conversation, MainLoop, Message, SectionOpened, SectionsOpened, ToolInvoked
from weakincentives.session import Session, Snapshot

SEARCH = call("search_sections", query="manager approval for a late refund")


def test_a_search_finds_closed_sections_with_what_matched_their_price_and_tools() -> None:
    session = Session()
    with ScriptedAdapter([SEARCH, "Ask a manager."]) as adapter:
        adapter.evaluate(Prompt(shop()), session=session)
    text = answers(session)[0][1]
    assert text.splitlines()[2:5] == [
        '- "refunds.late": Late (about 14 tokens)',
        "  After thirty days a manager must approve the refund.",
        '- "refunds": Refunds (about 115 tokens; tools: refund)',
    ]
    (invoked,) = session[ToolInvoked].all()
    assert [found.key for found in invoked.result.value.sections] == ["refunds.late", "refunds"]
    assert invoked.disclosure is None


@pytest.mark.parametrize("menu", ["all", "top", "none"])
def test_what_was_found_is_opened_with_its_tools_in_the_same_conversation(menu: Any) -> None:
    session, script = Session(), [SEARCH, call("read_section", section_key="refunds"), call("refund"), "Done."]
    with ScriptedAdapter(script) as adapter:
        adapter.evaluate(Prompt(shop(menu=menu)), session=session)
    assert [success for success, _ in answers(session)] == [True, True, True]
    assert "A refund takes five days." in answers(session)[1][1]


def test_several_searches_in_one_turn_run_side_by_side() -> None:
    session = Session()
    both = [call("search_sections", query="voucher validity"), call("search_sections", query="courier on Saturdays")]
    with ScriptedAdapter([both, "Fine."]) as adapter:
        adapter.evaluate(Prompt(shop()), session=session)
    found = [invoked.result.value.sections[0].key for invoked in session[ToolInvoked].all()]
    assert sorted(found) == ["shipping", "vouchers"]


def test_a_menu_may_list_the_root_sections_only_or_nothing() -> None:
    handbook = MarkdownSection(title="Handbook", key="handbook", template="Rules.", children=[closed("tax", "19%.")])
    texts = {menu: shop(handbook, menu=menu).render().text for menu in ("all", "top", "none")}
    listed = {menu: [key for key in ("refunds", "handbook.tax") if f'"{key}"' in text] for menu, text in texts.items()}
    assert listed == {"all": ["refunds", "handbook.tax"], "top": ["refunds"], "none": []}
    assert texts["none"] == "## 1. Task\n\nHelp customers.\n\n## 2. Handbook\n\nRules."


def test_what_is_below_an_opened_section_is_listed_whatever_the_menu() -> None:
    deep = closed("guides", "All guides.", children=[closed("ovens", "Preheat.")])
    session = Session()
    with ScriptedAdapter([call("read_section", section_key="guides"), "Done."]) as adapter:
        adapter.evaluate(Prompt(shop(deep, menu="none")), session=session)
    assert 'call `read_section` with key "guides.ovens"' in answers(session)[0][1]


def test_an_unknown_key_is_answered_with_how_many_closed_sections_a_search_covers() -> None:
    session = Session()
    with ScriptedAdapter([call("read_section", section_key="refund"), "Done."]) as adapter:
        adapter.evaluate(Prompt(shop(menu="none")), session=session)
    assert answers(session) == [
        (
            False,
            "Unknown section key: 'refund'. 4 closed sections are not listed; call search_sections to find them.",
        )
    ]


def test_a_restart_shows_what_a_search_led_to() -> None:
    session, script = Session(), [SEARCH, call("read_section", section_key="refunds"), call("refund"), "Done."]
    adapter = ScriptedAdapter(script, supports_dynamic_tools=False)
    MainLoop().execute(Prompt(shop(menu="none")), session=session, adapter=adapter)
    assert answers(session)[-1] == (True, "refund done")
    assert "A refund takes five days." in adapter.requests[-1].messages[0].text


def test_a_run_goes_on_after_a_search_in_another_process() -> None:
    session = Session()
    with pytest.raises(RuntimeError), ScriptedAdapter([SEARCH, RuntimeError("gone")]) as adapter:
        adapter.evaluate(Prompt(shop(menu="none")), session=session)
    again = Session()
    again.restore(Snapshot.from_json(session.snapshot().to_json()))
    script = [call("read_section", section_key="refunds"), call("refund"), "Done."]
    response = ScriptedAdapter(script).resume(Prompt(shop(menu="none")), session=again)
    assert response.text == "Done."
    assert answers(again)[-1] == (True, "refund done")


def test_sections_that_a_section_brings_late_are_found_once_it_is_open() -> None:
    server = Server("look_up", children=(closed("invoices", "Invoices are sent by post."),), visibility=SUMMARY)
    session, asked = Session(), call("search_sections", query="invoices by post")
    with ScriptedAdapter([asked, call("read_section", section_key="server"), asked, "Done."]) as adapter:
        adapter.evaluate(Prompt(shop(server)), session=session)
    found = [[one.key for one in i.result.value.sections] for i in session[ToolInvoked] if i.name == "search_sections"]
    assert found == [[], ["server.invoices"]]


def test_skills_are_found_by_the_text_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "invoices").mkdir()
    front = "---\nname: invoices\ndescription: Write bills.\n---\n"
    (tmp_path / "invoices" / "SKILL.md").write_text(f"{front}Books have a rate of 7%.", encoding="utf-8")
    session = Session()
    with ScriptedAdapter([call("search_sections", query="rate for books"), "7%."]) as adapter:
        adapter.evaluate(Prompt(shop(*skill_sections(tmp_path))), session=session)
    (found,) = session[ToolInvoked].all()[0].result.value.sections
    assert (found.key, found.sentence) == ("invoices", "Books have a rate of 7%.")


def test_the_users_words_open_what_they_clearly_call_for() -> None:
    session = Session()
    adapter = ScriptedAdapter(["Yes."])
    with Conversation(Prompt(shop(preopen=2)), adapter=adapter, session=session) as conversation:
        conversation.send("Do couriers deliver parcels on Saturdays?")
    assert "Couriers deliver on Saturdays." in adapter.requests[0].messages[0].text
    assert "track" in tool_names(adapter.requests[0].tools)
    assert [(e.section_keys, e.decided_by) for e in session[SectionsOpened]] == [(("shipping",), "search")]


def test_a_restart_keeps_open_what_the_users_words_opened() -> None:
    adapter = ScriptedAdapter([call("read_section", section_key="refunds"), "Yes."], supports_dynamic_tools=False)
    with Conversation(Prompt(shop(preopen=1)), adapter=adapter, session=Session()) as conversation:
        conversation.send("Do couriers deliver parcels on Saturdays?")
    text = adapter.requests[1].messages[0].text
    assert "Couriers deliver on Saturdays." in text and "A refund takes five days." in text


def test_nothing_is_opened_for_words_that_fit_several_sections_alike() -> None:
    sections = [closed(f"shop{n}", "Opening hours are long.") for n in range(4)]
    template = PromptTemplate(ns="t", key="k", sections=sections, disclosure=SearchSections(preopen=1))
    ask = MarkdownSection(title="Question", key="q", template="What are the opening hours?", role="user")
    asked = PromptTemplate(ns="t", key="k", sections=[*sections, ask], disclosure=SearchSections(preopen=1))
    assert [span.decided_by for span in asked.render().spans] == ["declared"] * 5
    assert [span.decided_by for span in template.render().spans] == ["declared"] * 4


def test_a_ranker_of_ones_own_gets_one_text_a_section() -> None:
    seen: list[str] = []

    class Last:
        def index(self, texts: Any) -> Index:
            seen.extend(texts)
            return self

        def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
            return [(len(seen) - 1, 1.0)]

    session = Session()
    with ScriptedAdapter([SEARCH, "Done."]) as adapter:
        adapter.evaluate(Prompt(shop(ranker=Last())), session=session)
    assert [found.key for found in session[ToolInvoked].all()[0].result.value.sections] == ["vouchers"]
    assert seen[-1] == "Vouchers. More.\nA voucher is valid for two years."


def test_a_ranker_that_fails_is_a_failed_search_and_opens_nothing() -> None:
    class Broken:
        def index(self, texts: Any) -> Index:
            raise OSError("no model")

    session = Session()
    prompt, adapter = Prompt(shop(ranker=Broken(), preopen=1)), ScriptedAdapter([SEARCH, "Done."])
    with Conversation(prompt, adapter=adapter, session=session) as conversation:
        conversation.send("A refund?")
    assert answers(session) == [(False, "The search is not available now; go on without it.")]


@pytest.mark.parametrize("options", [{"menu": "some"}, {"preopen": -1}, {"ranker": LexicalRanker}])
def test_settings_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PromptValidationError, match=next(iter(options))):
        SearchSections(**options)


def test_text_without_spaces_between_words_is_found() -> None:
    sections = [
        SectionText("weather", "天气", "查询城市天气预报", tools=("get_forecast: 获取未来几天的天气",)),
        SectionText("trains", "火车票", "查询余票和车次"),
        SectionText("stocks", "Stocks", "Quotes and charts"),
    ]
    index = LexicalRanker().index_sections(sections)
    assert [index.rank(text, 1)[0][0] for text in ("明天上海的天气怎么样", "北京到上海的车次", "stock chart")] == [
        0,
        1,
        2,
    ]
    assert index.rank("???", 3) == []


@dataclass(frozen=True, slots=True)
class Customer:
    country: str = "DE"


def ruled(rule: Any, *tools: str) -> PromptTemplate[None]:
    tax = MarkdownSection[Customer](
        title="Tax",
        key="tax",
        template="Customs are 3% for ${country}.",
        summary="Customs.",
        visibility=SUMMARY,
        tools=[a_tool(name) for name in tools],
        open_when=rule,
    )
    guide = MarkdownSection(title="Guide", key="guide", template="Rules.", tools=[a_tool("check")], children=[tax])
    return PromptTemplate(ns="t", key="k", sections=[guide])


def test_a_rule_over_params_opens_a_section_and_an_event_says_so() -> None:
    session, template = Session(), ruled(lambda customer: customer.country == "CH")
    with ScriptedAdapter(["3%."]) as adapter:
        adapter.evaluate(Prompt(template).bind(Customer("CH")), session=session)
    assert "Customs are 3% for CH." in adapter.requests[0].messages[0].text
    assert [(e.section_keys, e.decided_by) for e in session[SectionsOpened]] == [(("guide.tax",), "rule")]
    assert [span.decided_by for span in template.render(Customer("CH")).spans] == ["declared", "rule"]
    assert [span.decided_by for span in template.render(Customer("DE")).spans] == ["declared", "declared"]


def test_a_rule_over_the_users_words_opens_a_section_when_they_are_said() -> None:
    session, said = Session(), lambda *, text: "customs" in text
    adapter = ScriptedAdapter(["Hello.", call("declare"), "3%."])
    with Conversation(Prompt(ruled(said, "declare")), adapter=adapter, session=session) as conversation:
        conversation.send("Hi!")
        conversation.send("What about customs?")
    assert answers(session) == [(True, "declare done")]
    opened = [message.text for message in adapter.requests[1].messages if "applies now" in message.text]
    assert opened == ["This section of the instructions applies now:\n\n## Tax\n\nCustoms are 3% for DE."]
    assert len(session[SectionsOpened]) == 1


def test_a_stream_tells_what_a_rule_opens() -> None:
    with ScriptedAdapter(["3%."]) as adapter:
        events = list(adapter.stream(Prompt(ruled(lambda: True)), session=Session()))
    assert [event for event in events if isinstance(event, SectionOpened)] == [SectionOpened("guide.tax")]


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_rule_over_the_session_opens_a_section_between_two_turns(dynamic: bool) -> None:
    def checked(*, session: Session | None) -> bool:
        return session is not None and any(message.role == "tool" for message in session[Message])

    session, prompt = Session(), Prompt(ruled(checked, "declare"))
    adapter = ScriptedAdapter([call("check"), call("declare"), "Done."], supports_dynamic_tools=dynamic)
    MainLoop().execute(prompt, session=session, adapter=adapter)
    assert answers(session) == [(True, "check done"), (True, "declare done")]
    assert "Customs are 3%" in "".join(message.text for message in adapter.requests[1].messages)


def test_a_section_that_the_caller_or_the_model_closed_is_not_opened_by_its_rule() -> None:
    template = ruled(lambda: True)
    rendered = template.render(visibility_overrides={("guide", "tax"): SUMMARY})
    assert [span.decided_by for span in rendered.spans] == ["declared", "override"]


def test_a_strategy_without_search_can_have_rules() -> None:
    template = PromptTemplate(
        ns="t", key="k", sections=[closed("a", "Text.", open_when=lambda: True)], disclosure=OpenOrRead()
    )
    assert template.render().text == "## 1. A\n\nText."
