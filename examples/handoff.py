"""Hand-offs, as in the routing example of the OpenAI Agents SDK: the section of the user's language takes over."""

from collections.abc import Iterator
from typing import Any

from weakincentives import Conversation, MarkdownSection, OpenAIAdapter, Prompt, SectionVisibility
from weakincentives.runtime import ProviderAdapter, TextDelta

languages = [
    MarkdownSection(
        key=language.lower(),
        title=language,
        summary=f"For users who write in {language}.",
        template=f"Speak only {language}.",
        visibility=SectionVisibility.SUMMARY,
    )
    for language in ("French", "Spanish", "English")
]
task = MarkdownSection(key="task", title="Task", template="Open the section of the user's language, and do as it says.")


def desk(adapter: ProviderAdapter) -> Conversation[Any]:
    return Conversation(Prompt(ns="examples", key="handoff", sections=[task, *languages]), adapter=adapter)


def reply(chat: Conversation[Any], words: str) -> Iterator[str]:
    with chat.stream(words) as events:
        yield from (event.text for event in events if isinstance(event, TextDelta))


if __name__ == "__main__":
    chat = desk(OpenAIAdapter("gpt-5.6"))
    while words := input("We speak French, Spanish and English. How can we help? "):
        for text in reply(chat, words):
            print(text, end="", flush=True)
        print()
