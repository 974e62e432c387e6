"""A user's program as strict type checkers see it: mypy and pyright check it, and a test runs it.

An ignored line is a mistake that both must find: an ignore that is not needed is an error to both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, assert_type

from weakincentives import (
    Binding,
    MainLoop,
    MarkdownSection,
    Prompt,
    PromptResponse,
    PromptTemplate,
    ResourceRegistry,
    ScriptedAdapter,
    SectionVisibility,
    Session,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.adapters.scripted import call
from weakincentives.prompt import WorkspaceSection
from weakincentives.runtime import Completed, ProviderAdapter, ToolInvoked


@dataclass(frozen=True)
class City:
    name: str
    capital: bool = False


@dataclass(frozen=True)
class Forecast:
    degrees: int


class Thermometer:
    def read(self) -> int:
        return 20


class Probe(Protocol):
    def read(self) -> int: ...


def look_up(params: City, *, context: ToolContext) -> ToolResult[Forecast]:
    degrees = context.resources.get(Thermometer).read()
    return ToolResult(message=f"Looked up {params.name}.", value=Forecast(degrees))


async def look_up_later(params: City, *, context: ToolContext) -> ToolResult[Forecast]:
    return look_up(params, context=context)


@tool
def double(number: int) -> int:
    "Double a number."
    return number * 2


@tool(read_only=True)
def spell(word: str, *, times: int = 1) -> list[str]:
    "Spell a word."
    return list(word * times)


look_up_tool = Tool[City, Forecast](name="look_up", description="Look up a forecast.", handler=look_up)
later_tool = Tool[City, Forecast](name="later", description="Look it up.", handler=look_up_later, compensate=look_up)
section = MarkdownSection[City](
    key="task",
    title="Task",
    template="How is ${name}?",
    tools=[look_up_tool, later_tool, double, spell],
    enabled=lambda city: city.name != "",
)
hints = MarkdownSection[City](
    key="hints",
    title="Hints",
    template="Ask a local.",
    summary="Hints about ${name}.",
    visibility=lambda city: SectionVisibility.FULL if city.capital else SectionVisibility.SUMMARY,
)
rules = MarkdownSection(key="rules", title="Rules", template="Be brief.", enabled=lambda: True)
everything = [section, hints, rules, WorkspaceSection(summary="Files.")]
greeting = MarkdownSection[Forecast](key="greeting", title="Greeting", template="Hi.", default_params=Forecast(1))
family = MarkdownSection(key="family", title="Family", template="See below.", children=[*everything, greeting])
several = [family, greeting]
mixed = PromptTemplate(ns="typed", key="mixed", sections=several)
plain = PromptTemplate(ns="typed", key="plain", sections=everything)
typed = PromptTemplate[Forecast](
    ns="typed",
    key="typed",
    sections=everything,
    resources=ResourceRegistry.of(Binding.instance(Thermometer, Thermometer())),
)
either = PromptTemplate[Forecast | City](ns="typed", key="either", sections=everything)
foreign = Tool.from_schema(
    name="Foreign.tool",
    description="",
    schema={"type": "object"},
    handler=lambda params, context: ToolResult(str(params)),
)


def ask(adapter: ProviderAdapter[Forecast], prompt: Prompt[Forecast]) -> Forecast:
    return adapter.evaluate(prompt, session=Session()).require_output()


def mistakes() -> None:
    """Never called: each line is an error to both type checkers."""
    double("two")  # type: ignore[arg-type]
    spell("two", time=2)  # type: ignore[call-arg]
    look_up_tool("Rome")  # type: ignore[operator]
    MarkdownSection(key="k", title="T", template="x", sumary="s")  # type: ignore[call-arg]
    PromptTemplate(ns="n", key="k", sections=["text"])  # type: ignore[list-item]
    MarkdownSection(key="k", title="T", template="x", children=["text"])  # type: ignore[list-item]
    WorkspaceSection(sumary="s")  # type: ignore[call-arg]
    MarkdownSection[City](key="k", title="T", template="x", default_params="Rome")  # type: ignore[arg-type]
    Tool[Forecast, Forecast](name="n", description="d", handler=look_up)  # type: ignore[arg-type]
    Tool[City, str](name="n", description="d", handler=look_up)  # type: ignore[arg-type]
    Tool[City, Forecast](name="n", description="d", handler=lambda city: ToolResult())  # type: ignore[arg-type]
    section.clone(sesion=Session())  # type: ignore[call-arg]
    Prompt(typed).resources.get(look_up)  # type: ignore[arg-type]


def main() -> Forecast:
    assert_type(plain, PromptTemplate[None])
    assert_type(either, PromptTemplate[Forecast | City])
    assert_type(foreign, Tool[dict[str, Any], Any])
    assert_type(rules, MarkdownSection[None])
    assert_type(section, MarkdownSection[City])
    assert_type(section.clone(), MarkdownSection[City])
    assert_type(double(2), int)
    assert_type(spell("two", times=2), list[str])
    assert_type(Binding.instance(Probe, Thermometer()), Binding[Probe])
    prompt = Prompt(typed).bind(City("Rome"), resources={Probe: Thermometer()})
    assert_type(prompt, Prompt[Forecast])
    with prompt.resources as resources:
        assert_type(resources.get(Probe).read(), int)
        assert_type(resources.get_optional(Probe), Probe | None)
    session = Session()
    model = ScriptedAdapter([call("look_up", name="Rome"), Forecast(20)])
    response = MainLoop().execute(prompt, session=session, adapter=model)
    assert_type(response, PromptResponse[Forecast])
    assert_type(response.output, Forecast | None)
    assert_type(session[ToolInvoked].latest(), ToolInvoked | None)
    for event in ScriptedAdapter([Forecast(21)]).stream(prompt, session=Session()):
        if isinstance(event, Completed):
            assert_type(event, Completed[Forecast])
            assert_type(event.response.require_output(), Forecast)
    assert ask(ScriptedAdapter([Forecast(22)]), prompt) == Forecast(22)
    return response.require_output()


if __name__ == "__main__":
    main()
