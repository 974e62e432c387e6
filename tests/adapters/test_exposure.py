"""`Exposure` says what a reader of the requests finds, for every model call, on every adapter and in fallbacks."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.adapters.conversations import routes, speakers
from tests.adapters.scenarios import Stage
from tests.disclosure.desk import FULL, SUMMARY, a_tool
from tests.disclosure.trees import poke, steps, trees
from tests.rounds import rounds
from tests.servers.turn import Call, Raw, Turn
from weakincentives.adapters import FallbackAdapter
from weakincentives.prompt import (
    LateContent,
    MarkdownSection,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    ReadSections,
    SearchSections,
    WorkspaceSection,
)
from weakincentives.runtime import Conversation, Exposure, ModelCalled, ModelRequest, SectionsExposed, run_history
from weakincentives.session import Session, Snapshot

SPEAKERS = {speaker.name: speaker for speaker in [*speakers(), *routes()]}
SPEAKERS = {name: speaker for name, speaker in SPEAKERS.items() if "=" not in name or name.endswith("sonnet-5")}
# The CLI of the Claude Agent SDK takes a second to start.
# Each conversation with the CLI starts it anew.
EXAMPLES = {"claude agent sdk": rounds(2, 10)}
OTHERS = rounds(15, 60)
BROKEN = Raw(400, b'{"error":{"message":"broken"}}')


@dataclass(frozen=True)
class Year:
    number: int = 0


class LateSection(MarkdownSection[Year]):
    """A section whose tool and child are known once it is opened."""

    def load(self, resources: Any) -> LateContent:
        child = MarkdownSection[Year](
            title="S91", key="s91", template="Full 91, ${number}.", summary="Short 91.", visibility=SUMMARY
        )
        return LateContent((a_tool("late_tool"),), (child,))


def build(shape: Any, numbers: Iterator[int]) -> MarkdownSection[Year]:
    closed, has_tool, _, children = shape
    number = next(numbers)
    return MarkdownSection[Year](
        title=f"S{number}",
        key=f"s{number}",
        template=f"Full {number}, ${{number}}.",
        summary=f"Short {number}.",
        visibility=SUMMARY if closed else FULL,
        tools=[a_tool(f"tool{number}")] if has_tool else [],
        children=[build(child, numbers) for child in children],
    )


def pieces(request: str | ModelRequest) -> list[str]:
    """The texts of a request in their order, the prompt first; a request on the wire is read as JSON."""
    if isinstance(request, ModelRequest):
        return [message.text for message in request.messages]
    body = json.loads(request)
    prompt = body.get("system") or body.get("instructions")
    return [json.dumps(piece) for piece in [*([prompt] if prompt else []), *(body.get("input") or body["messages"])]]


def found(texts: list[str], number: int, year: int) -> str:
    """Where the text of a section stands: the plain rule that the library must follow."""
    full, short = re.compile(rf"Full {number}, {year}\."), re.compile(rf"Short {number}\.")
    if full.search(texts[0]):
        return "prompt"
    if any(full.search(text) for text in texts):
        return "conversation"
    return "summary" if any(short.search(text) for text in texts) else "none"


def turn(step: tuple[str, int], keys: list[str]) -> Turn:
    """A reply that takes this step; where the tool is not offered, the model is told so."""
    action, number = step
    key = keys[number % len(keys)]
    if action == "read":
        return Turn(calls=(Call("read_section", {"section_key": key}),))
    if action == "open":
        return Turn(calls=(Call("open_sections", {"section_keys": [key], "reason": "needed"}),))
    if action == "collapse":
        return Turn(calls=(Call("collapse_section", {"section_key": key}),))
    what = action.removeprefix("poke ")
    return Turn(calls=(Call("poke", {"what": "open" if what == "fail" else what, "key": key, "fail": what == "fail"}),))


class Witness:
    """A conversation whose exposure is noted at every model call."""

    def __init__(self, template: PromptTemplate[Any], adapter: Any) -> None:
        self.template = template
        self.adapter = adapter
        self.year = 0
        self.seen: list[tuple[Exposure, int]] = []
        self.chat = self._chat(Session())

    def _chat(self, session: Session) -> Conversation[Any]:
        def note(event: Any) -> None:
            if isinstance(event, ModelCalled):
                self.seen.append((session[Exposure].latest() or Exposure(), self.year))

        session.observe(note)
        prompt = Prompt(self.template).bind(Year(self.year))
        return Conversation(prompt, adapter=self.adapter, session=session, max_expansions=30)

    def take(self, action: str, number: int) -> None:
        if action == "bind":
            self.year = number
            self.chat.bind(Year(number))
        elif action == "restore":
            restored = Session()
            restored.restore(Snapshot.from_json(self.chat.session.snapshot().to_json()))
            self.chat = self._chat(restored)
        self.chat.send("Go on.")

    def check(self, requests: list[Any], numbers: list[int]) -> None:
        assert len(requests) == len(self.seen)
        for request, (exposure, year) in zip(requests, self.seen, strict=True):
            texts = pieces(request)
            sources = {path[-1]: exposed.source for path, exposed in exposure.items()}
            for number in numbers:
                assert sources.get(f"s{number}", "none") == found(texts, number, year), (number, texts)
        session = self.chat.session
        folded = Exposure()
        for event in session[SectionsExposed].all():
            folded = folded.handle(event)
        exposure = session[Exposure].latest() or Exposure()
        assert folded == exposure
        for shown in run_history(session).now.sections:
            assert shown.seen == exposure[shown.path].source


def requests_of(stage: Stage) -> list[Any]:
    """What reached the model: bodies on the wire, or the requests themselves."""
    kept = getattr(stage.adapter, "requests", None) or getattr(
        getattr(stage.adapter, "replier", None), "requests", None
    )
    return list(kept) if kept else stage.received()


def template(shapes: Any, strategy: Any) -> tuple[PromptTemplate[Any], list[str], list[int]]:
    numbers = itertools.count()
    sections = [build(shape, numbers) for shape in shapes]
    count = next(numbers)
    late = LateSection(title="S90", key="s90", template="Full 90, ${number}.", summary="Short 90.", visibility=SUMMARY)
    keys = [*(node.key for node in PromptTemplate(ns="t", key="k", sections=sections).outline.nodes), "s90", "s90.s91"]
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=[poke])
    made: PromptTemplate[Any] = PromptTemplate(
        ns="t", key="k", sections=[task, *sections, late, WorkspaceSection()], disclosure=strategy, allow_collapse=True
    )
    return made, keys, [*range(count), 90, 91]


actions = st.one_of(steps, st.tuples(st.sampled_from(["send", "bind", "restore"]), st.integers(0, 3)))
AGAIN = ("send", "bind", "restore")


@pytest.mark.limit(300)
@pytest.mark.parametrize("name", SPEAKERS)
def test_exposure_is_what_a_reader_of_the_requests_finds_on_every_adapter(name: str) -> None:
    @settings(max_examples=EXAMPLES.get(name, OTHERS), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(trees, min_size=1, max_size=3),
        st.lists(actions, max_size=10),
        st.sampled_from([ReadSections(), OpenOrRead(), SearchSections()]),
    )
    def converse(shapes: Any, script: list[tuple[str, int]], strategy: Any) -> None:
        made, keys, numbers = template(shapes, strategy)
        replies = [Turn("Done.") if action in AGAIN else turn((action, at), keys) for action, at in script]
        with SPEAKERS[name].stage(*replies, Turn("Done.")) as stage:
            witness = Witness(made, stage.adapter)
            witness.chat.send("Go.")
            for action, at in script:
                if action in AGAIN:
                    witness.take(action, at)
            witness.check(requests_of(stage), numbers)

    converse()


@pytest.mark.limit(300)
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(("openai", "anthropic", "scripted"), 2)))
def test_exposure_survives_a_fallback_to_another_adapter(first: str, second: str) -> None:
    @settings(max_examples=rounds(6, 30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(trees, min_size=1, max_size=3), st.lists(steps, max_size=6), st.lists(steps, max_size=4))
    def converse(shapes: Any, before: list[tuple[str, int]], after: list[tuple[str, int]]) -> None:
        made, keys, numbers = template(shapes, ReadSections())
        with ExitStack() as stack:
            failing = stack.enter_context(SPEAKERS[first].stage(*(turn(step, keys) for step in before), BROKEN))
            other = stack.enter_context(SPEAKERS[second].stage(*(turn(step, keys) for step in after), Turn("Done.")))
            witness = Witness(made, FallbackAdapter(failing.adapter, other.adapter))
            witness.chat.send("Go.")
            answered = [*requests_of(failing)[: len(before)], *requests_of(other)]
            witness.check(answered, numbers)

    converse()
