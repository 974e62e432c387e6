"""The prompt of the support desk: a handbook of summaries, each with its tools, and the customer's question.

The question comes last because it is the only part that changes from run to run. Each section of the handbook is a
Markdown file with its title and its summary on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from weakincentives.demo.tools import Store, desk_tools
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Section, SectionVisibility
from weakincentives.resources import Binding, ResourceRegistry

QUESTIONS = (
    "Where is order FH-20417 right now?",
    "There is a burnt smell coming from the power supply, what should I do?",
    "What is the price of a new pump for the Tower?",
    "I will be travelling for two weeks in July, how do my herbs survive?",
    "Please refund 20 euros for order FH-20391, it arrived damaged.",
    "My strawberry seeds have not come up after two weeks, is that normal?",
)

_INSTRUCTIONS = """\
You answer customers of Fernhill, who makes the indoor garden Sprig. The handbook below is summarized. Open the section
that answers the question, use the tools that come with it, and answer in one to three sentences from what it says."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the customer asks."""

    text: str


@cache
def template(visibility: SectionVisibility = SectionVisibility.SUMMARY) -> PromptTemplate[None]:
    """The desk's prompt for one question; with FULL, the whole handbook at once."""
    question = MarkdownSection[Question](title="Question", key="question", template="${text}", role="user")
    return _template("support-desk", visibility, question)


@cache
def chat() -> PromptTemplate[None]:
    """The desk's prompt for a conversation."""
    return _template("support-chat", SectionVisibility.SUMMARY)


def _template(key: str, visibility: SectionVisibility, *last: Section[Any]) -> PromptTemplate[None]:
    tools = desk_tools()
    handbook: list[Section[Any]] = [
        MarkdownSection(
            title=page.title,
            key=page.key,
            template=page.body,
            summary=page.summary,
            visibility=visibility,
            tools=tools.get(page.key, ()),
        )
        for page in pages()
    ]
    return PromptTemplate(
        ns="demo",
        key=key,
        name="support desk",
        sections=[
            MarkdownSection(title="Task", key="task", template=_INSTRUCTIONS),
            *handbook,
            *last,
        ],
        resources=ResourceRegistry.of(Binding(Store, lambda _: Store())),
    )


def ask(question: str) -> Prompt[None]:
    """The prompt for one question, with a database of its own."""
    return Prompt(template()).bind(Question(question))


@dataclass(frozen=True, slots=True)
class Page:
    """One section of the handbook."""

    key: str
    title: str
    summary: str
    body: str


@cache
def pages() -> tuple[Page, ...]:
    """All sections, ordered by key."""
    folder = files("weakincentives.demo") / "handbook"
    texts = {entry.name.removesuffix(".md"): entry.read_text(encoding="utf-8") for entry in folder.iterdir()}
    return tuple(_page(key, texts[key]) for key in sorted(texts))


def _page(key: str, text: str) -> Page:
    title, summary, body = text.split("\n\n", 2)
    return Page(key, title.removeprefix("# ").strip(), summary.removeprefix("> ").strip(), body.strip())
