"""A user's program as a strict type checker sees it; `./check` checks this file, and a test runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from weakincentives import (
    MainLoop,
    MarkdownSection,
    Prompt,
    PromptResponse,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    Tool,
    ToolContext,
    ToolInvoked,
    ToolResult,
    tool,
)
from weakincentives.adapters.scripted import call


@dataclass(frozen=True)
class City:
    name: str


@dataclass(frozen=True)
class Forecast:
    degrees: int


def look_up(params: City, *, context: ToolContext) -> ToolResult[Forecast]:
    return ToolResult(message=f"Looked up {params.name}.", value=Forecast(20))


@tool
def double(number: int) -> int:
    "Double a number."
    return number * 2


look_up_tool = Tool[City, Forecast](name="look_up", description="Look up a forecast.", handler=look_up)
section = MarkdownSection[City](key="task", title="Task", template="How is ${name}?", tools=[look_up_tool, double])
rules = MarkdownSection(key="rules", title="Rules", template="Be brief.")
plain = PromptTemplate(ns="typed", key="plain", sections=[section, rules])
typed = PromptTemplate[Forecast](ns="typed", key="typed", sections=[section])


def main() -> Forecast | None:
    assert_type(plain, PromptTemplate[None])
    assert_type(rules, MarkdownSection[None])
    assert_type(section, MarkdownSection[City])
    assert_type(double, Tool[Any, Any])
    prompt = Prompt(typed).bind(City("Rome"))
    assert_type(prompt, Prompt[Forecast])
    session = Session()
    model = ScriptedAdapter([call("look_up", name="Rome"), Forecast(20)])
    response = MainLoop().execute(prompt, session=session, adapter=model)
    assert_type(response, PromptResponse[Forecast])
    assert_type(session[ToolInvoked].latest(), ToolInvoked | None)
    return response.output


if __name__ == "__main__":
    main()
