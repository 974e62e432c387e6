"""A long conversation against a server with a small window: facts are planted early, and must stay within reach."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.adapters.vendors import Vendor
from tests.servers.loopback import Loopback, Received
from tests.servers.turn import Call, Turn
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, tool
from weakincentives.runtime import Compaction, Conversation

ORDER = "Never refund more than 50 euros."
DEPOT = "The depot is in Turin."
CODE = "ZEBRA-3"


@tool(read_only=True)
def look(n: int) -> str:
    "Look at a row."
    return f"row {n} {CODE if n == 3 else ''} " + "lorem ipsum dolor " * 112


@tool(read_only=True)
def depot(n: int) -> str:
    "Ask the depot."
    return f"The depot has {n}."


TEMPLATE = PromptTemplate(
    ns="tests",
    key="long",
    sections=[
        MarkdownSection(key="task", title="Task", template="Help the customer.", tools=[look]),
        MarkdownSection(
            key="depot",
            title="Depot",
            template=DEPOT,
            summary="Where things are.",
            visibility=SectionVisibility.SUMMARY,
            tools=[depot],
        ),
    ],
)


class LongModel:
    """Looks at a row in each exchange, reads the section in the second, and then asks the depot in each."""

    def __init__(self, rest: str = "") -> None:
        self.server: Loopback | None = None
        self.rest = rest

    def __call__(self, received: Received) -> Turn:
        assert self.server is not None
        body, size = received.json, self.server.size(received)
        text = json.dumps(body.get("input") or body["messages"])
        if received.target.endswith("/compact") or "compaction" in body or "Summarize the conversation" in text[-900:]:
            return Turn(f"The customer has asked about rows. {size} tokens.", input_tokens=size)
        number = max(map(int, re.findall(r"Question (\d+)", text)))
        if number == 2 and DEPOT not in text:
            return Turn(calls=(Call("read_section", {"section_key": "depot"}),), input_tokens=size)
        if f"row {number} " not in text:
            return Turn(calls=(Call("look", {"n": number}),), input_tokens=size)
        if number > 2 and f"The depot has {number}." not in text:
            return Turn(calls=(Call("depot", {"n": number}),), input_tokens=size)
        thought = "Let me see." if "claude" in body.get("model", "") else ""
        return Turn(f"Answer {number}. {self.rest}", input_tokens=size, reasoning=thought)


@contextmanager
def long_conversation(
    vendor: Vendor, compaction: Compaction | None, *, window: int, exchanges: int, rest: str = "", **options: Any
) -> Iterator[tuple[Conversation[Any], Loopback]]:
    """A conversation of so many exchanges, whose answers have this `rest`, and its server."""
    model = LongModel(rest)
    with vendor.server(model, window=window) as server:
        model.server = server
        chat = Conversation(Prompt(TEMPLATE), adapter=vendor.adapter(server, **options), compaction=compaction)
        for number in range(1, exchanges + 1):
            words = f"Question {number}? {ORDER if number == 1 else ''}".strip()
            assert chat.send(words).text.startswith(f"Answer {number}.")
        yield chat, server


def last_request(server: Loopback) -> str:
    """The last request that was answered, decoded."""
    return json.dumps(server.requests[-1].json)
