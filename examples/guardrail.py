"""An input guardrail, as in the examples of the OpenAI Agents SDK: a small prompt checks every message first."""

from dataclasses import dataclass
from typing import Any

from weakincentives import Conversation, MarkdownSection, OpenAIAdapter, Prompt, PromptTemplate
from weakincentives.guards import Guard, GuardContext, GuardRefusedError, Outcome, Refuse
from weakincentives.runtime import ProviderAdapter


@dataclass(frozen=True)
class Homework:
    reasoning: str
    is_math_homework: bool


check = PromptTemplate[Homework](
    ns="examples",
    key="homework",
    sections=[MarkdownSection(key="check", title="Check", template="Does the user ask for help with math homework?")],
)


class NoHomework(Guard):
    def __init__(self, adapter: ProviderAdapter) -> None:
        self.adapter = adapter

    async def before_run(self, words: str, *, context: GuardContext) -> Outcome | None:
        found = await Conversation(Prompt(check), adapter=self.adapter).send_async(words)
        is_homework = found.require_output().is_math_homework
        return Refuse("Sorry, I can't help you with your math homework.") if is_homework else None


def desk(adapter: ProviderAdapter) -> Conversation[Any]:
    section = MarkdownSection(key="desk", title="Desk", template="Help our customers with their questions.")
    return Conversation(
        Prompt(ns="examples", key="desk", sections=[section], guards=[NoHomework(adapter)]), adapter=adapter
    )


def reply(chat: Conversation[Any], words: str) -> str:
    try:
        return chat.send(words).text
    except GuardRefusedError as refused:
        return refused.message


if __name__ == "__main__":
    chat = desk(OpenAIAdapter("gpt-5.6"))
    while words := input("Enter a message: "):
        print(reply(chat, words))
