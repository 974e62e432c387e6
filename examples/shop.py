"""A small shop desk that both chat examples talk to: two closed sections, one with a tool."""

from __future__ import annotations

import os

from weakincentives import AnthropicAdapter, LocalAdapter, MarkdownSection, OpenAIAdapter, PromptTemplate, tool
from weakincentives.prompt import SectionVisibility
from weakincentives.runtime import ProviderAdapter

SUMMARY = SectionVisibility.SUMMARY


@tool
def refund(order: int) -> str:
    "Refund an order."
    return f"Order {order} is refunded."


template = PromptTemplate(
    ns="examples",
    key="shop",
    sections=[
        MarkdownSection(key="task", title="Task", template="Answer the customer of our tea shop in a sentence or two."),
        MarkdownSection(
            key="shipping",
            title="Shipping",
            template="Parcels leave within a day and take three days.",
            summary="When parcels leave and arrive.",
            visibility=SUMMARY,
        ),
        MarkdownSection(
            key="refunds",
            title="Refunds",
            template="Orders under 14 days are refunded in full.",
            summary="When and how we give money back.",
            visibility=SUMMARY,
            tools=[refund],
        ),
    ],
)


def any_adapter() -> ProviderAdapter:
    """The provider whose key is set, or the model inside the process."""
    if os.environ.get("OPENAI_API_KEY"):
        return OpenAIAdapter("gpt-5.6")
    if os.environ.get("ANTHROPIC_API_KEY"):
        return AnthropicAdapter("claude-opus-5")
    return LocalAdapter()
