"""A template with a section to open, as the tests serve it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from weakincentives.content import Image
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.session import reducer

PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)


@dataclass(frozen=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, slots=True)
class Notes:
    texts: tuple[str, ...] = ()

    @reducer(on=Words)
    def add(self, event: Words) -> Notes:
        return Notes((*self.texts, event.text))


def keep(params: Words, *, context: ToolContext) -> ToolResult[None]:
    print("stdout is not ours")
    context.session.dispatch(params)
    if params.text == "broken":
        return ToolResult("It went wrong.", success=False)
    return ToolResult(f"Kept {' and '.join(context.session[Notes].all()[-1].texts)}.")


pondered: list[str] = []


async def ponder(params: Words, *, context: ToolContext) -> ToolResult[None]:
    pondered.append(params.text)
    context.session.dispatch(params)
    await asyncio.Event().wait()
    return ToolResult("Done.")


def paint(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("Painted.", attachments=(Image.from_bytes(PNG, "image/png"),))


template: PromptTemplate[None] = PromptTemplate(
    ns="tests",
    key="desk",
    sections=[
        MarkdownSection(title="Task", key="task", template="Help with notes."),
        MarkdownSection(
            title="Notes",
            key="notes",
            template="Keep notes short.",
            summary="Keeps notes.",
            visibility=SectionVisibility.SUMMARY,
            tools=[
                Tool[Words, None](name="keep", description="Keep a note.", handler=keep),
                Tool[Words, None](name="ponder", description="Take a long time over it.", handler=ponder),
                Tool[None, None](name="paint", description="Paint a picture.", handler=paint),
            ],
        ),
    ],
)


@dataclass(frozen=True, slots=True)
class Customer:
    name: str


@dataclass(frozen=True, slots=True)
class Notebook:
    owner: str


@tool(read_only=True)
def whose(*, context: ToolContext) -> str:
    "Whose notebook it is."
    return f"{context.resources.get(Notebook).owner}'s notebook"


def bound_prompt() -> Prompt[None]:
    section = MarkdownSection[Customer](title="Task", key="task", template="Serve ${name}.", tools=[whose])
    prompt: Prompt[None] = Prompt(ns="tests", key="bound", sections=[section])
    return prompt.bind(Customer("Ann"), resources={Notebook: Notebook("Ann")})
