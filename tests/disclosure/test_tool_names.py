"""Two sections with a tool of one name: the tool that was registered first stays, on every route."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from tests.disclosure.desk import FULL, SUMMARY, answers, play, section, tool_names
from tests.helpers.endings import endings
from tests.helpers.hosted_tools import OracleCodec, OracleConfig, oracle_reply, oracle_tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import (
    MarkdownSection,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    SetVisibilityOverride,
    Tool,
    ToolResult,
    VisibilityOverrides,
)
from weakincentives.runtime import Conversation, MainLoop, ToolInvoked, ToolsInjected
from weakincentives.session import Session, Snapshot


def holder(key: str, *names: str, closed: bool = True) -> MarkdownSection[None]:
    """A section whose tools say whose they are."""

    def a_tool(name: str) -> Tool[None, None]:
        return Tool(
            name=name, description=f"{name} of {key}", handler=lambda params, *, context: ToolResult(f"{key}'s {name}")
        )

    return MarkdownSection(
        title=key,
        key=key,
        template=f"All of {key}.",
        summary=f"About {key}.",
        visibility=SUMMARY if closed else FULL,
        tools=[a_tool(name) for name in names],
    )


def template(*sections: MarkdownSection[None], **options: Any) -> PromptTemplate[None]:
    return PromptTemplate(ns="t", key="k", sections=sections, **options)


def read(key: str) -> object:
    return call("read_section", section_key=key)


def owners(tools: Any) -> dict[str, str]:
    return {tool.name: tool.description for tool in tools if " of " in tool.description}


CLASH = (holder("b", "same", "other"), holder("a", "same", closed=False))


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_registered_tool_stays_when_a_section_that_stands_before_it_is_read(
    dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session()
    adapter = ScriptedAdapter([read("b"), call("same"), call("other"), "done"], supports_dynamic_tools=dynamic)
    with caplog.at_level(logging.WARNING):
        MainLoop().execute(Prompt(template(*CLASH)), session=session, adapter=adapter)
    assert [text for _, text in answers(session)][-2:] == ["a's same", "b's other"]
    assert "Skipping duplicate tool 'same' of section 'b': section 'a' has it already." in caplog.messages
    assert len(endings(session, "restarted")) == (0 if dynamic else 1)


def test_a_registered_tool_stays_when_a_strategy_starts_anew() -> None:
    session = Session()
    opened = call("open_sections", section_keys=["b"], reason="")
    adapter = ScriptedAdapter([opened, call("same"), "done"])
    MainLoop().execute(Prompt(template(*CLASH, disclosure=OpenOrRead())), session=session, adapter=adapter)
    assert answers(session)[-1] == (True, "a's same")


def test_a_registered_tool_stays_when_the_caller_opens_the_section() -> None:
    rendered = template(*CLASH).render(visibility_overrides={("b",): FULL})
    assert owners(rendered.tools) == {"other": "other of b", "same": "same of a"}


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_section_all_of_whose_tools_are_skipped_still_counts_as_opened(
    dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session()
    sections = (holder("b", "same"), holder("a", "same", closed=False))
    with caplog.at_level(logging.WARNING):
        play(template(*sections), read("b"), read("b"), "done", session=session, supports_dynamic_tools=dynamic)
    assert session[VisibilityOverrides].latest() == VisibilityOverrides({("b",): FULL})
    assert [text.partition("\n")[0] for _, text in answers(session)] == [
        "Content of section 'b':",
        "Section is already expanded.",
    ]
    assert caplog.messages == ["Skipping duplicate tool 'same' of section 'b': section 'a' has it already."]
    assert session[ToolsInjected].all() == ()


def test_a_hosted_tool_stays_when_another_section_brings_its_name() -> None:
    def oracle(key: str, mood: str, **options: Any) -> MarkdownSection[None]:
        return section(key, hosted_tools=(oracle_tool(OracleConfig(mood), name="same"),), **options)

    adapter = ScriptedAdapter([read("b"), oracle_reply("Hm.")], hosted_tool_codecs={"oracle": OracleCodec()})
    asking = template(oracle("b", "grumpy"), oracle("a", "calm", closed=False))
    response = adapter.evaluate(Prompt(asking), session=Session())
    assert [(tool.config.mood, tool.name) for tool in adapter.requests[1].hosted_tools] == [("calm", "same")]
    assert (adapter.requests[1].revoked, list(response.hosted_outputs)) == (frozenset(), ["same"])


def test_of_two_opened_sections_the_first_opened_keeps_the_name_in_every_later_render() -> None:
    both = template(holder("b", "same"), holder("a", "same"))
    session = Session()
    play(both, read("a"), read("b"), call("same"), "done", session=session)
    copy = Session()
    copy.restore(Snapshot.from_json(session.snapshot().to_json()))
    assert answers(session)[-1] == (True, "a's same")
    assert owners(both.render(session=copy).tools) == {"same": "same of a"}


def test_what_was_rendered_before_does_not_matter() -> None:
    both = template(holder("b", "same"), holder("a", "same"))
    for first, second in (("a", "b"), ("b", "a")):
        session = Session()
        for key in (first, second):
            session.dispatch(SetVisibilityOverride((key,), FULL))
        assert owners(both.render(session=session).tools) == {"same": f"same of {first}"}


def test_a_section_that_is_opened_again_comes_after_those_that_stayed_open() -> None:
    both, session = template(holder("b", "same"), holder("a", "same")), Session()
    for path, visibility in ((("b",), FULL), (("a",), FULL), (("b",), SUMMARY), (("b",), FULL)):
        session.dispatch(SetVisibilityOverride(path, visibility))
    assert owners(both.render(session=session).tools) == {"same": "same of a"}


def test_opening_what_is_open_already_changes_no_order() -> None:
    parent = section("p", closed=True, children=[holder("b", "same"), holder("a", "same", closed=False)])
    tree, session = template(parent), Session()
    session.dispatch(SetVisibilityOverride(("p", "b"), FULL))
    before = owners(tree.render(session=session).tools)
    session.dispatch(SetVisibilityOverride(("p",), FULL))
    assert owners(tree.render(session=session).tools) == before == {"same": "same of a"}


def test_a_name_stays_with_its_section_for_the_run_even_while_it_is_closed() -> None:
    session = Session()
    both = template(holder("b", "same"), holder("a", "same", "own"), allow_collapse=True)
    closed = call("collapse_section", section_key="b")
    adapter = play(both, read("b"), closed, read("a"), call("same"), read("b"), call("same"), "done", session=session)
    said = [text for _, text in answers(session)]
    assert said[2].endswith("[Tools now available: own.]")
    assert said[3] == "Tool 'same' is not available: section 'b' is closed. Open the section again to use it."
    assert said[5] == "b's same"
    assert tool_names(adapter.requests[-1].tools) == ["read_section", "same", "collapse_section", "own"]


@pytest.mark.parametrize("dynamic", [True, False])
def test_with_the_next_turn_the_name_of_a_closed_section_goes_to_one_that_is_open(dynamic: bool) -> None:
    both = template(holder("b", "same"), holder("a", "same"), allow_collapse=True)
    closing = [call("collapse_section", section_key="b"), read("a")]
    script = [read("b"), call("same"), "One.", closing, "Two.", call("same"), "Three."]
    chat = Conversation(Prompt(both), adapter=ScriptedAdapter(script, supports_dynamic_tools=dynamic))
    for words in ("Open b.", "Close it and open a.", "Use it."):
        chat.send(words)
    assert answers(chat.session)[-1] == (True, "a's same")
    assert owners(both.render(session=chat.session).tools)["same"] == "same of a"


@dataclass(frozen=True)
class Customer:
    tier: str


def variant(tier: str, closed: bool) -> MarkdownSection[Customer]:
    def handler(params: None, *, context: Any) -> ToolResult[None]:
        return ToolResult(f"{tier} refund")

    return MarkdownSection[Customer](
        title=tier,
        key=tier,
        template=f"Rules for {tier}.",
        summary="Rules.",
        visibility=SUMMARY if closed else FULL,
        enabled=lambda customer: customer.tier == tier,
        tools=[Tool(name="refund", description="Pay back.", handler=handler)],
    )


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_a_variant_that_is_enabled_later_brings_its_own_tool(closed: bool, dynamic: bool) -> None:
    variants = template(variant("basic", closed), variant("gold", closed))
    script: list[Any] = []
    for tier in ("basic", "gold", "basic"):
        script += [*([read(tier)] if closed else []), call("refund"), "Done."]
    adapter = ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    chat = Conversation(Prompt(variants).bind(Customer("basic")), adapter=adapter)
    for tier in ("basic", "gold", "basic"):
        chat.bind(Customer(tier))
        chat.send("Refund, please.")
    calls = [(event.section_key, event.result.message) for event in chat.session[ToolInvoked] if event.name == "refund"]
    assert calls == [(tier, f"{tier} refund") for tier in ("basic", "gold", "basic")]
    announced = [(event.section_key, event.tool_names) for event in chat.session[ToolsInjected]]
    assert not dynamic or announced[-2:] == [("gold", ("refund",)), ("basic", ("refund",))]
