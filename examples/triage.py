"""Triage, as in the quickstart of the OpenAI Agents SDK: a guardrail, and tutors to whom questions are handed over."""

import sys
from dataclasses import dataclass

from weakincentives import Conversation, MarkdownSection, OpenAIAdapter, Prompt, PromptTemplate, SectionVisibility
from weakincentives.runtime import ProviderAdapter


@dataclass(frozen=True)
class Check:
    is_homework: bool
    reasoning: str


guardrail = PromptTemplate[Check](
    ns="examples",
    key="guardrail",
    sections=[MarkdownSection(key="check", title="Check", template="Check whether the user asks about homework.")],
)
math = MarkdownSection(
    key="math",
    title="Math tutor",
    summary="For questions about math.",
    template="Help with the math. Explain your reasoning at each step, and give examples.",
    visibility=SectionVisibility.SUMMARY,
)
history = MarkdownSection(
    key="history",
    title="History tutor",
    summary="For questions about history.",
    template="Help with the history. Explain important events and their context.",
    visibility=SectionVisibility.SUMMARY,
)
task = MarkdownSection(
    key="task", title="Task", template="Open the tutor that the question is for, then answer as it says."
)
triage = PromptTemplate(ns="examples", key="triage", sections=[task, math, history])


def ask(question: str, adapter: ProviderAdapter) -> str:
    check = Conversation(Prompt(guardrail), adapter=adapter).send(question).require_output()
    if not check.is_homework:
        return f"I help with homework only. {check.reasoning}"
    return Conversation(Prompt(triage), adapter=adapter).send(question).text


if __name__ == "__main__":
    print(ask(" ".join(sys.argv[1:]) or "Who was the first president of the United States?", OpenAIAdapter("gpt-5.6")))
