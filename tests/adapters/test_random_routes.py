"""Random conversations that move between routes, models and vendors, against servers that refuse what these refuse.

Whatever happened before (openings and closings, searches, compactions, restarts, going back, forks, another adapter), a
request is one that the vendor accepts, shows the model every tool that it may call, and asks for the right output.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.models import UNNAMED
from tests.adapters.vendors import ANTHROPIC, OPENAI
from tests.disclosure.desk import SUMMARY
from tests.rounds import rounds
from tests.servers.anthropic_messages import MessagesServer
from tests.servers.loopback import Loopback, Received
from tests.servers.openai_responses import ResponsesServer
from tests.servers.rules import output_form, referenced
from tests.servers.turn import Call, Turn
from weakincentives.prompt import (
    MarkdownSection,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    ReadSections,
    SearchSections,
    portable_name,
    tool,
)
from weakincentives.runtime import Compaction, Conversation, ModelCalled
from weakincentives.session import Session, Snapshot

ROUTES: dict[str, dict[str, Any]] = {
    "openai additional_tools": {"model": "gpt-5.6"},
    "openai append": {"model": "gpt-5.6", "tool_route": "append"},
    "openai older": {"model": UNNAMED},
    "openai updates": {"model": "gpt-6-sol"},
    "openai namespaces": {"model": "gpt-5.6", "tool_search": True},
    "anthropic tool_addition": {"model": "claude-opus-5"},
    "anthropic tool_reference": {"model": "claude-sonnet-5"},
    "anthropic append": {"model": "claude-sonnet-5", "tool_route": "append"},
    "anthropic bound": {"model": "claude-opus-5-5"},
    "anthropic haiku": {"model": "claude-haiku-5-5"},
    "anthropic search": {"model": "claude-sonnet-5", "tool_search": True},
}
STRATEGIES = (ReadSections(), ReadSections(voice="system"), OpenOrRead(), SearchSections(), SearchSections(menu="none"))
KEYS = ("a", "b", "b.c", "d")
MAX_TURNS = 5
# A vendor may refuse the thoughts of another model; they are then left out.
ALLOWED = ("thinking block", "encrypted content")


@dataclass(frozen=True)
class Verdict:
    good: bool


def noting(name: str) -> Any:
    @tool(name=name, description=f"Notes {name}.", read_only=True)
    def note(n: int) -> str:
        return f"{name} {n} " + "noted " * 120

    return note


def closed(key: str, *tools: str, children: Any = ()) -> MarkdownSection[Any]:
    return MarkdownSection(
        key=key,
        title=key.upper(),
        template=f"All of {key}. " * 20,
        summary=f"About {key}.",
        visibility=SUMMARY,
        tools=[noting(name) for name in tools],
        children=children,
    )


def template(strategy: Any) -> PromptTemplate[Any]:
    sections = [
        MarkdownSection(key="task", title="Task", template="Help.", tools=[noting("look")]),
        closed("a", "a_one", "a_two"),
        closed("b", "b_one", children=[closed("c", "c_one")]),
        closed("d"),
    ]
    return PromptTemplate(ns="tests", key="random", sections=sections, disclosure=strategy, allow_collapse=True)


def functions(tools: Any) -> list[str]:
    """The functions that a list of tools shows, those in namespaces too, but not what is deferred."""
    every = [each for one in tools for each in one.get("tools", (one,))]
    plain = [each["name"] for each in every if each.get("type") == "function" and not each.get("defer_loading")]
    carried = ["search_sections" for each in tools if each.get("execution") == "client"]
    return plain + carried


def seen_by_openai(body: Mapping[str, Any]) -> set[str]:
    seen = {*functions(body.get("tools", ()))}
    for item in body["input"]:
        if item.get("type") == "additional_tools":
            seen.update(functions(item["tools"]))
        elif item.get("type") == "tool_search_output":
            loaded = [each for one in item["tools"] for each in one.get("tools", (one,))]
            seen.update(each["name"] for each in loaded)
    choice = body.get("tool_choice")
    return seen if choice is None else set() if choice == "none" else {each["name"] for each in choice["tools"]}


def seen_by_anthropic(body: Mapping[str, Any]) -> set[str]:
    seen = {each["name"] for each in body.get("tools", ()) if "type" not in each and not each.get("defer_loading")}
    for message in body["messages"]:
        if not isinstance(message["content"], list):
            continue
        seen.update(referenced([message]))
        for block in message["content"]:
            added = block.get("tool") or {}
            if block["type"] == "tool_addition":
                seen.add(added.get("name") or added["definition"]["name"])
            elif block["type"] == "tool_removal":
                seen.discard(added["name"])
    return seen


def findable(body: Mapping[str, Any]) -> set[str]:
    """The deferred tools that the provider's search finds."""
    tools = body.get("tools", ())
    if not any(str(each.get("type")).startswith("tool_search") and "execution" not in each for each in tools):
        return set()
    return {each["name"] for one in tools for each in one.get("tools", (one,)) if each.get("defer_loading")}


class Model:
    """Acts at random on what it sees, on either server; `seen` and the like are those of the last request."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.turns, self.number = rng, 0, 0
        self.seen: set[str] = set()
        self.findable: set[str] = set()
        self.typed = False
        self.refusals: list[str] = []
        self.server: MessagesServer | None = None

    def __call__(self, received: Received) -> Turn:
        body, size = received.json, len(received.body) // 4
        self.number += 1
        if "compact" in received.target or "compaction" in body:
            return Turn("What happened so far.", input_tokens=size)
        if "input" in body:
            self.seen, self.typed = seen_by_openai(body), output_form(body)["type"] == "json_schema"
        else:
            assert self.server is not None
            self.seen = seen_by_anthropic(self.server.compactions.whole(body))
            self.typed = "format" in body.get("output_config", {})
        self.turns += 1
        self.findable = findable(body)
        reasoning = self.rng.choice(["", "Hm."])
        items = self._search(body) if self.rng.random() < 0.3 else ()
        if self.turns >= MAX_TURNS or not self.seen or self.rng.random() < 0.3:
            return Turn('{"good": true}' if self.typed else "Fine.", reasoning=reasoning, input_tokens=size)
        calls = tuple(self._call() for _ in range(self.rng.choice([1, 1, 2])))
        return Turn(calls=calls, items=items, reasoning=reasoning if not items else "", input_tokens=size)

    def _call(self) -> Call:
        name = self.rng.choice(sorted(self.seen))
        key = self.rng.choice(KEYS)
        arguments: dict[str, Any] = {
            "read_section": {"section_key": key},
            "open_sections": {"section_keys": [key], "reason": "needed"},
            "collapse_section": {"section_key": key},
            "search_sections": {"query": f"about {key}"},
            "recall": {"query": "noted"},
        }.get(name, {"n": self.number})
        return Call(name, arguments)

    def _search(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """A search of the provider's own, which finds one of the deferred tools."""
        tools, number = body.get("tools", ()), self.number
        if any(each.get("type") == "tool_search" and "execution" not in each for each in tools):
            found = self.rng.choice([each for each in tools if each["type"] == "namespace"])
            shared = {"call_id": None, "execution": "server", "status": "completed"}
            asked = {
                "type": "tool_search_call",
                "id": f"tsc_{number}",
                "arguments": {"paths": [found["name"]]},
                **shared,
            }
            return asked, {"type": "tool_search_output", "id": f"tso_{number}", "tools": [found], **shared}
        if any(str(each.get("type")).startswith("tool_search_tool") for each in tools):
            found = self.rng.choice([each for each in tools if each.get("defer_loading")])
            asked = {
                "type": "server_tool_use",
                "id": f"srv_{number}",
                "name": "tool_search_tool_bm25",
                "input": {"query": "x"},
            }
            references = [{"type": "tool_reference", "tool_name": found["name"]}]
            content = {"type": "tool_search_tool_search_result", "tool_references": references}
            return asked, {"type": "tool_search_tool_result", "tool_use_id": f"srv_{number}", "content": content}
        return ()


def keep_refusals(server: Loopback, into: list[str]) -> None:
    def refuse(problem: Mapping[str, Any], ordinary: Any = server.refuse) -> Any:
        into.append(json.dumps(problem))
        return ordinary(problem)

    server.refuse = refuse  # type: ignore[method-assign]


class Walk:
    """One conversation, taken from step to step."""

    def __init__(self, seed: int, stack: ExitStack) -> None:
        self.rng = random.Random(seed)
        self.model = Model(self.rng)
        openai, anthropic = stack.enter_context(ResponsesServer(self.model)), MessagesServer(self.model)
        self.model.server = stack.enter_context(anthropic)
        for server in (openai, anthropic):
            keep_refusals(server, self.model.refusals)
        self.adapters = {}
        for name, options in ROUTES.items():
            vendor, server = (OPENAI, openai) if name.startswith("openai") else (ANTHROPIC, anthropic)
            self.adapters[name] = stack.enter_context(vendor.adapter(server, **options))
        self.template = template(self.rng.choice(STRATEGIES))
        self.route = self.rng.choice(list(ROUTES))
        self.steps: list[str] = [self.route]
        self.hidden: list[str] = []
        self.chat = self._chat(Session())

    def _chat(self, session: Session) -> Conversation[Any]:
        def check(event: Any) -> None:
            if isinstance(event, ModelCalled):
                hidden = {portable_name(name) for name in event.tools} - self.model.seen - self.model.findable
                self.hidden += [f"{self.steps}: {name}" for name in sorted(hidden)]

        session.observe(check)
        window = self.compaction if hasattr(self, "compaction") else self.rng.choice([3_000, 100_000])
        self.compaction = window
        return Conversation(
            Prompt(self.template),
            adapter=self.adapters[self.route],
            session=session,
            compaction=Compaction(window=window),
        )

    def take(self) -> None:
        step = self.rng.choices(["send", "typed", "move", "restore", "fork", "rewind"], [5, 2, 3, 1, 1, 1])[0]
        self.steps.append(step)
        if step == "move":
            self.route = self.rng.choice(list(ROUTES))
            self.steps.append(self.route)
            self.chat = self._chat(self.chat.session)
        elif step == "restore":
            session = Session()
            session.restore(Snapshot.from_json(self.chat.session.snapshot().to_json()))
            self.chat = self._chat(session)
        elif step == "fork":
            self.chat = self._chat(self.chat.fork().session)
        elif step == "rewind" and (points := self.chat.checkpoints()):
            self.chat.rewind(self.rng.choice(points))
        else:
            self.send(Verdict if step == "typed" else None)

    def send(self, output: Any) -> None:
        self.model.turns = 0
        answer: Any = self.chat.send(f"Message {self.model.number}.", **({"output": output} if output else {}))
        assert self.model.typed is (output is not None), self.steps
        assert answer.output == (Verdict(True) if output else None)


@pytest.mark.parametrize("seed", range(rounds(8, 60)))
def test_every_route_is_accepted_whatever_happened_before(seed: int) -> None:
    with ExitStack() as stack:
        walk = Walk(seed, stack)
        walk.send(None)
        for _ in range(12):
            walk.take()
        refused = [text for text in walk.model.refusals if not any(allowed in text for allowed in ALLOWED)]
        assert (refused, walk.hidden) == ([], []), walk.steps
