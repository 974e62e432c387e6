"""Chat in the terminal:  python examples/chat.py [picture ...]

Ctrl-C stops an answer, Ctrl-D ends the chat. Pictures go with the first message. Without a provider's key in the
environment, answers are quoted by the local adapter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.shop import any_adapter, template
from weakincentives import Conversation, Image, Prompt
from weakincentives.runtime import ProviderAdapter, TextDelta, ToolStarted


def talk(adapter: ProviderAdapter, lines: Iterable[str], pictures: list[Image]) -> None:
    chat = Conversation(Prompt(template), adapter=adapter)
    for line in lines:
        try:
            with chat.stream([*pictures, line]) as events:
                for event in events:
                    match event:
                        case TextDelta(text):
                            print(text, end="", flush=True)
                        case ToolStarted(name=name):
                            print(f"[{name}]", flush=True)
                        case _:
                            pass
        except KeyboardInterrupt:
            print(" (stopped)", end="")
        print("\n> ", end="", flush=True)
        pictures = []
    print(f"\n{chat.usage.total_tokens:,} tokens")


if __name__ == "__main__":
    print("> ", end="", flush=True)
    said = (line for line in map(str.strip, sys.stdin) if line)
    with suppress(KeyboardInterrupt):
        talk(any_adapter(), said, [Image.from_path(path) for path in sys.argv[1:]])
