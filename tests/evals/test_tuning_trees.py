"""Tuning measures what a model sees: the closed sections of the first request, then those inside what it opens."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from tests.rounds import rounds
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.evals import Case, evaluate, opened, tune
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Section, SectionVisibility
from weakincentives.prompt.disclosure.ranking import LexicalRanker, SectionText
from weakincentives.runtime import ModelRequest

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
WORDS = [
    "lamp",
    "pump",
    "seed",
    "soil",
    "frost",
    "glass",
    "hose",
    "moss",
    "vent",
    "tray",
    "stem",
    "bulb",
    "leaf",
    "root",
]
WITHIN = 2
# A summary with the sentence below it, as the model reads it: heading, text, and the key by which it is opened.
SHOWN = re.compile(
    r"#+ (?:[\d.]+ )?(?P<title>[^\n]+)\n\n(?P<summary>[^\n]+)\n\n---\n\[[^\n]*with key \"(?P<key>[^\"]+)\""
)


class Tree:
    """A random tree of sections, each about a word of its own; summaries name some of the words below."""

    def __init__(self, drawn: random.Random, depth: int) -> None:
        self.drawn, self.words = drawn, iter(WORDS)
        self.needed: dict[str, str] = {}
        self.sections = self._level(depth, "")
        self.template: PromptTemplate[None] = PromptTemplate(ns="t", key="tree", sections=self.sections)

    def _level(self, depth: int, above: str) -> list[Section[Any]]:
        sections: list[Section[Any]] = []
        for word in [next(self.words, None) for _ in range(self.drawn.randint(2, 3))]:
            if word is None:
                continue
            children = self._level(depth - 1, f"{above}{word}.") if depth > 1 and self.drawn.random() < 0.7 else []
            self.needed[f"{above}{word}"] = word
            told = self.drawn.sample(WORDS, 2) + ([word] if self.drawn.random() < 0.6 else [])
            sections.append(
                MarkdownSection(
                    key=word,
                    title="Part",
                    template=f"All about the {word}.",
                    summary=f"About {', '.join(told)}.",
                    visibility=SUMMARY if self.drawn.random() < 0.85 else FULL,
                    children=children,
                )
            )
        return sections

    def cases(self) -> list[Case]:
        closed = {node.key for node in self.template.outline.nodes if node.section.visibility is SUMMARY}
        return [
            Case(key, f"My {word}?", metadata={"sections": [key]}) for key, word in self.needed.items() if key in closed
        ]


def follow(request: ModelRequest) -> Any:
    """A model that opens the best of the summaries it is shown together, and then of those inside what it opened."""
    question = next(message.text for message in request.messages if message.role == "user")
    texts = [message.text for message in request.messages if message.role in ("system", "tool")]
    shelves = [[match.groupdict() for match in SHOWN.finditer(text)] for text in texts]
    if sum(message.role == "assistant" for message in request.messages) == len(request.messages):
        return "Done."
    asked = [read.arguments for message in request.messages for read in message.tool_calls]
    calls = []
    for shelf in shelves:
        index = LexicalRanker().index_sections([SectionText(s["key"], s["title"], s["summary"]) for s in shelf])
        for place, _ in index.rank(question, WITHIN):
            made = call("read_section", section_key=shelf[place]["key"])
            if made.arguments not in asked:
                calls.append(made)
    return calls or "Done."


@pytest.mark.parametrize("seed", range(rounds(8, 24)))
def test_tuning_and_evaluating_find_the_same_share_of_sections(seed: int) -> None:
    tree = Tree(random.Random(seed), depth=1 + seed % 4)
    cases = tree.cases()
    run = evaluate(cases, tree.template, ScriptedAdapter(follow), [opened()], limit=1)
    found = tune(tree.template, cases, within=WITHIN)
    shares = found.before * found.held + found.chosen_before * found.chosen_on
    assert run.count("unscored") == 0
    assert (seed, round(shares)) == (seed, run.count("passed"))


def grouped(*summaries: str) -> tuple[PromptTemplate[None], list[Case]]:
    """Three closed parts with these summaries, each with a closed chapter inside that says what it is about."""
    topics = {"lamps": "lamp bulb light", "pumps": "pump noise flow", "seeds": "seed sprout sow"}
    parts = []
    for number, ((key, words), summary) in enumerate(zip(topics.items(), summaries, strict=True)):
        chapter = MarkdownSection(
            key=key, title=key, template=f"All about {words}.", summary=f"About {words}.", visibility=SUMMARY
        )
        parts.append(
            MarkdownSection(
                key=f"part{number}",
                title="Part",
                template="A part.",
                summary=summary,
                visibility=SUMMARY,
                children=[chapter],
            )
        )
    cases = []
    for place, (key, words) in enumerate(topics.items()):
        for number in range(20):
            question = f"Question {number} about my {words.split()[number % 3]}"
            cases.append(Case(f"{key}-{number}", question, metadata={"sections": [f"part{place}.{key}"]}))
    return PromptTemplate(ns="t", key="parts", sections=parts), cases


def test_the_summary_of_a_group_is_tuned_if_it_hides_what_is_inside() -> None:
    template, cases = grouped("Read this part.", "Read this part.", "Read this part.")
    found = tune(template, cases, within=1)
    assert found.adopted and {*found.summaries} == {"part0", "part1", "part2"}
    assert found.before < 0.1 and found.after > 0.9


def test_a_group_that_says_what_is_inside_leaves_nothing_to_adopt() -> None:
    template, cases = grouped("Lamp, bulb and light.", "Pump, noise and flow.", "Seed, sprout and sow.")
    found = tune(template, cases, within=1)
    assert (found.summaries, found.before, found.chosen_before) == ({}, 1.0, 1.0)


def test_sections_that_are_open_from_the_start_are_found_with_the_closed_one_around_them() -> None:
    inner = MarkdownSection(key="inner", title="Inner", template="Pots.", summary="Nothing.")
    outer = MarkdownSection(
        key="outer", title="Outer", template="Outer.", summary="About pots.", visibility=SUMMARY, children=[inner]
    )
    shown = MarkdownSection(key="shown", title="Shown", template="Shown.", summary="Nothing.")
    prompt: Prompt[None] = Prompt(ns="t", key="k", sections=[outer, shown])
    cases = [Case(f"inner-{n}", f"{n} pots?", metadata={"sections": ["outer.inner"]}) for n in range(20)]
    cases += [Case(f"shown-{n}", f"{n} pans?", metadata={"sections": ["shown"]}) for n in range(20)]
    found = tune(prompt, cases)
    assert (found.held + found.chosen_on, found.before, found.unknown) == (20, 1.0, ())
