"""A small shop: one closed section with a tool that writes, files, and a model that follows the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.evals import Case
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import ModelRequest

RULES = "Refunds take three days."


@dataclass(frozen=True, slots=True)
class Asked:
    text: str


@dataclass(frozen=True, slots=True)
class Refunded:
    order: str
    amount: int


@dataclass(slots=True)
class Calls:
    """How often the tool has really run."""

    live: int = 0


CALLS = Calls()


@tool
def refund(order: str, amount: int = 5, *, context: ToolContext) -> ToolResult[None]:
    """Refund an order."""
    CALLS.live += 1
    context.session.dispatch(Refunded(order, amount))
    assert context.filesystem is not None
    context.filesystem.write(f"{order}.txt", f"refunded {amount}")
    return ToolResult(f"Refunded {amount} for {order}.")


@tool(read_only=True)
def look_up(order: str) -> str:
    """Look up an order."""
    CALLS.live += 1
    return f"{order} was delivered."


def shop(rules: str = RULES, **options: Any) -> PromptTemplate[None]:
    return PromptTemplate(
        ns="tests",
        key="shop",
        sections=[
            MarkdownSection(key="task", title="Task", template="Help customers."),
            MarkdownSection(
                key="refunds",
                title="Refunds",
                template=rules,
                summary="How refunds work.",
                visibility=SectionVisibility.SUMMARY,
                tools=[refund, look_up],
            ),
            VfsToolsSection(),
            MarkdownSection[Asked](key="question", title="Question", template="${text}", role="user"),
        ],
        **options,
    )


def play(request: ModelRequest) -> Any:
    """Open the section, refund the order in the question, and answer."""
    turn = sum(message.role == "assistant" for message in request.messages)
    asked = next(message.text for message in request.messages if message.role == "user")
    order = asked.split()[-1].strip("?.")
    lines = [
        call("read_section", section_key="refunds"),
        call("refund", order=order),
        f"Refunded {order} in three days.",
    ]
    return lines[turn]


def adapter() -> ScriptedAdapter:
    return ScriptedAdapter(play)


CASES = (
    Case("a", "Please refund order-1", expected="order-1"),
    Case("b", {"text": "Please refund order-2"}, expected=["order-2", ["three days", "3 days"]]),
    Case("c", Asked("Please refund order-3"), expected="order-4"),
)
