"""Guards that name a tool: one that nothing can have is an error, before anything could pass the guard."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import Any

import pytest

from tests.guarding.cases import OUTSIDE, pay
from weakincentives import (
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    PromptValidationError,
    ScriptedAdapter,
    SectionVisibility,
    call,
    delegate,
    run,
    tool,
)
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.guards import Guard, GuardedCall, MaxCalls, Outcome, ReadBeforeWrite, Refuse, RequiresTool
from weakincentives.prompt import LateContent, Section
from weakincentives.resources import ScopedResourceContext


class NoPay(Guard):
    def __init__(self, *tools: str) -> None:
        self.tools = tools

    def before_tool(self, call: GuardedCall, *, context: Any) -> Outcome | None:
        return Refuse("Never.")


@tool
def refund(amount: int) -> str:
    "Refund an amount."
    OUTSIDE.append(f"refund {amount}")
    return "refunded"


class Server(Section[None]):
    """A section whose tools are known once it is loaded."""

    def load(self, resources: ScopedResourceContext) -> LateContent:
        return LateContent((refund,))

    def render_body(self, params: None) -> str:
        return "Refund."


def server(*, is_open: bool = True) -> Server:
    visibility = SectionVisibility.FULL if is_open else SectionVisibility.SUMMARY
    return Server(key="shop", title="Shop", summary="Refunds.", visibility=visibility)


def bills(*guards: Guard, tools: Any = (pay,)) -> MarkdownSection[None]:
    return MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=tools, guards=guards)


def closed(*guards: Guard) -> MarkdownSection[None]:
    return MarkdownSection(
        key="more",
        title="More",
        template="More.",
        summary="More.",
        visibility=SectionVisibility.SUMMARY,
        tools=[refund],
        guards=guards,
    )


def child(*guards: Guard, tools: Any = (pay,)) -> Any:
    template: PromptTemplate[Any] = PromptTemplate(ns="tests", key="child", sections=[bills(*guards, tools=tools)])
    return delegate(template, name="child", description="Help.")


def prompt_with(*sections: Section[Any], guards: Any = ()) -> Prompt[Any]:
    OUTSIDE.clear()
    return Prompt(ns="tests", key="names", sections=sections, guards=guards)


@pytest.mark.parametrize("guard", [NoPay("payy"), MaxCalls("payy", 1), RequiresTool("payy"), NoPay("pay", "payy")])
@pytest.mark.parametrize("where", ["template", "section", "closed section", "delegated template", "over a delegate"])
def test_a_name_that_no_tool_can_have_is_an_error_when_the_template_is_made(where: str, guard: Guard) -> None:
    with pytest.raises(PromptValidationError, match=f"guard '{guard.name}' names the tool 'payy', which no section"):
        if where == "template":
            prompt_with(bills(), guards=[guard])
        elif where == "section":
            prompt_with(bills(guard))
        elif where == "closed section":
            prompt_with(bills(), closed(guard))
        elif where == "delegated template":
            child(guard)
        else:
            prompt_with(bills(tools=[child()]), guards=[guard])


def test_tools_of_closed_sections_of_delegated_templates_and_built_in_ones_may_be_named() -> None:
    grandchild = child()
    below: PromptTemplate[Any] = PromptTemplate(ns="tests", key="below", sections=[bills(tools=[grandchild])])
    helper = delegate(below, name="helper", description="Help.")
    guards = [NoPay("refund"), NoPay("pay"), NoPay("read_section"), NoPay("recall"), NoPay("child")]
    prompt = prompt_with(bills(tools=[helper]), closed(), guards=guards)
    assert run(prompt, ScriptedAdapter(["Done."])).text == "Done."


def test_a_late_section_is_checked_before_the_first_request_that_has_its_tools() -> None:
    prompt = prompt_with(bills(), server(), guards=[NoPay("refnd")])
    model = ScriptedAdapter([call("refund", amount=5), "Done."])
    with pytest.raises(PromptEvaluationError, match="names the tool 'refnd', which no section has"):
        run(prompt, model)
    assert (model.requests, OUTSIDE) == ([], [])


def test_a_late_section_that_is_closed_may_still_bring_the_tool() -> None:
    prompt = prompt_with(bills(), server(is_open=False), guards=[NoPay("refnd")])
    model = ScriptedAdapter(["Done.", call("read_section", section_key="shop"), call("refund", amount=5), "Done."])
    assert run(prompt, model).text == "Done."
    with pytest.raises(PromptEvaluationError, match="names the tool 'refnd', which no section has"):
        run(prompt, model)
    assert OUTSIDE == []


def test_a_guard_of_a_late_tool_holds() -> None:
    prompt = prompt_with(bills(), server(), guards=[NoPay("refund")])
    run(prompt, ScriptedAdapter([call("refund", amount=5), "Done."]))
    assert OUTSIDE == []


def test_a_tool_of_a_page_that_is_not_there_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Each page may bring other tools, so a run without one is no mistake."""
    with caplog.at_level(logging.WARNING, "weakincentives"):
        run(prompt_with(bills(), guards=[NoPay("page.pick")]), ScriptedAdapter(["Done."]))
    (record,) = caplog.records
    text = "Guard 'NoPay' of 'names' names the tool 'page.pick', which no section has offered in this run."
    assert record.getMessage() == text


class OwnTools(ScriptedAdapter):
    own_tools = MappingProxyType({"Bash": refund})


@pytest.mark.parametrize("name", ["Bash", "Bahs"])
def test_a_tool_of_the_provider_is_checked_where_the_provider_has_tools(name: str) -> None:
    prompt = prompt_with(bills(), guards=[NoPay(name)])
    assert run(prompt, ScriptedAdapter(["Done."])).text == "Done."
    model = OwnTools(["Done."])
    if name == "Bash":
        assert run(prompt, model).text == "Done."
        return
    with pytest.raises(PromptEvaluationError, match="names the tool 'Bahs', which the scripted adapter does not allow"):
        run(prompt, model)
    assert model.requests == []


def test_a_guard_of_several_file_tools_works_where_some_of_them_are() -> None:
    files = VfsToolsSection(InMemoryFilesystem(), read_only=True)
    assert run(prompt_with(files, guards=[ReadBeforeWrite()]), ScriptedAdapter(["Done."])).text == "Done."
    with pytest.raises(PromptValidationError, match="guard 'ReadBeforeWrite' names the tool 'read'"):
        prompt_with(bills(), guards=[ReadBeforeWrite()])
