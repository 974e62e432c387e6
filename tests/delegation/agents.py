"""Prompts that delegate to others."""

from __future__ import annotations

from typing import Any

from tests.approval.bank import Balance, Paid
from weakincentives import MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, ToolContext, call, delegate, tool


@tool
def spend(amount: int, context: ToolContext) -> str:
    "Spend."
    context.session.dispatch(Paid(amount))
    return f"spent {amount}"


def template(key: str, *tools: Any) -> PromptTemplate[Any]:
    section = MarkdownSection(key="task", title="Task", template="Do it.", tools=list(tools))
    return PromptTemplate(ns="tests", key=key, sections=[section])


@tool(approval="effects", changes=(Balance,))
def pay(amount: int, context: ToolContext) -> str:
    "Pay."
    context.session.dispatch(Paid(amount))
    return f"paid {amount}"


def tree(depth: int, *, leaf: Any = spend) -> tuple[Prompt[Any], ScriptedAdapter]:
    """A prompt with this many levels of children below it; the last one pays or spends 5."""
    inner = ScriptedAdapter([call(leaf.name, amount=5), "Level 0 is done."])
    made = template("level0", leaf)
    for level in range(1, depth + 1):
        below = delegate(made, description="Go down.", adapter=inner)
        made, inner = template(f"level{level}", below), ScriptedAdapter([call(below.name), f"Level {level} is done."])
    return Prompt(made), inner
