"""A prompt with a closed section whose tool adds numbers, run against a vendor's server."""

from __future__ import annotations

from typing import Any

from tests.adapters.scenarios import call
from tests.adapters.vendors import Vendor
from tests.servers.turn import Turn
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, tool
from weakincentives.session import Session


@tool(read_only=True)
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


def prompt() -> Prompt[Any]:
    hidden = MarkdownSection(
        title="Sums",
        key="sums",
        template="Add numbers with the tool.",
        summary="How to add.",
        visibility=SectionVisibility.SUMMARY,
        tools=[add],
    )
    task = MarkdownSection(title="Task", key="task", template="Answer.")
    return Prompt(PromptTemplate(ns="tests", key="routes", sections=[task, hidden], allow_collapse=True))


OPEN = Turn(calls=(call("read_section", section_key="sums"),))


USE = Turn(calls=(call("add", a=1, b=2),))


CLOSE = Turn(calls=(call("collapse_section", section_key="sums"),))


DONE = Turn("3")


def run(vendor: Vendor, *script: Any, **options: Any) -> tuple[list[Any], list[bytes], Session]:
    """The requests of one run, as JSON and as bytes."""
    session = Session()
    with vendor.server(script) as server, vendor.adapter(server, **options) as adapter:
        adapter.evaluate(prompt(), session=session)
    return [received.json for received in server.requests], [received.body for received in server.requests], session
