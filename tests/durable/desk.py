"""Prompts and loops that the durable tests share: a question with tools, and a refund that needs approval."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weakincentives import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.adapters.scripted import call
from weakincentives.durable import DurableMainLoop, ask_approval


@dataclass(frozen=True, slots=True)
class Question:
    text: str


@tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


def prompt_with(*tools: Tool[Any, Any], disclosure: Any = None) -> Callable[[Question], Prompt[Any]]:
    """A prompt with a question and, behind a summary, the tools."""
    hidden = {} if disclosure is None else {"summary": "Tools.", "visibility": SectionVisibility.SUMMARY}

    def prepare(question: Question) -> Prompt[Any]:
        sections = [
            MarkdownSection(title="Question", key="question", template=question.text),
            MarkdownSection(title="Tools", key="tools", template="Use them.", tools=tools, **hidden),
        ]
        strategy = {} if disclosure is None else {"disclosure": disclosure}
        return Prompt(PromptTemplate[None](ns="tests", key="loop", sections=sections, **strategy))

    return prepare


@dataclass(frozen=True, slots=True)
class Refund:
    amount: int


@dataclass(frozen=True, slots=True)
class Refunded:
    amount: int


def refunding(within: float | None = None) -> Tool[Refund, int]:
    def refund(params: Refund, *, context: ToolContext) -> ToolResult[int]:
        context.session.dispatch(Refunded(params.amount))
        answer = ask_approval(context, f"Refund {params.amount}?", within=within)
        if not answer.approved:
            return ToolResult(answer.note, success=False)
        total = sum(event.amount for event in context.session[Refunded].all())
        return ToolResult(f"Refunded {total}, says {answer.by} ({context.idempotency_key}).")

    return Tool[Refund, int](name="refund", description="Refund.", handler=refund)


def prepared(within: float | None = None) -> Callable[[Refund], Prompt[None]]:
    section = MarkdownSection(title="Desk", key="desk", template="Refund.", tools=[refunding(within)])
    return lambda _: Prompt(PromptTemplate[None](ns="t", key="desk", sections=[section]))


def model(request: Any) -> Any:
    last = request.messages[-1]
    return last.text if last.role == "tool" else call("refund", call_id="c1", amount=5)


def desk(database_url: str, within: float | None = None, **options: Any) -> DurableMainLoop[Refund, None]:
    return DurableMainLoop("desk", prepared(within), ScriptedAdapter(model), database_url, **options)
