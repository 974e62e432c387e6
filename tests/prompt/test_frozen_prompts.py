"""Templates and bound prompts never change: variants are other values, and a run keeps what it has taken."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from copy import copy
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import (
    JsonPromptOverridesStore,
    LateContent,
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    ReadSections,
    SearchSections,
    SectionVisibility,
    Tool,
    ToolResult,
)
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import run
from weakincentives.session import Session

SUMMARY = SectionVisibility.SUMMARY
STRATEGIES = [ReadSections(), OpenOrRead(), OpenToFiles(), OpenAndHalt(), SearchSections(menu="none")]


@dataclass(frozen=True)
class Answer:
    text: str


@dataclass(frozen=True)
class Customer:
    name: str


@dataclass(frozen=True)
class Tone:
    word: str


def template(**options: Any) -> PromptTemplate[Any]:
    sections = [
        MarkdownSection[Customer](title="Task", key="task", template="Serve ${name}."),
        MarkdownSection(title="Docs", key="docs", template="All.", summary="Some.", visibility=SUMMARY),
    ]
    return PromptTemplate(ns="tests", key="frozen", sections=sections, **options)


def fresh(**options: Any) -> PromptTemplate[Any]:
    return template(**options)


@pytest.mark.parametrize("name", ["disclosure", "outline", "sections", "view_options", "guards", "key", "anything"])
def test_a_template_cannot_be_changed(name: str) -> None:
    made = template()
    with pytest.raises(AttributeError, match=rf"cannot be changed, got a new value for '{name}'; make a variant"):
        setattr(made, name, None)
    with pytest.raises(AttributeError, match="cannot be changed"):
        delattr(made, name)


def test_what_a_run_takes_cannot_be_changed() -> None:
    bound = Prompt(template()).bound()
    with pytest.raises(FrozenInstanceError):
        bound.template = template()  # type: ignore[misc]
    assert not hasattr(bound, "bind")


@pytest.mark.parametrize("after", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
@pytest.mark.parametrize("before", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_a_variant_with_another_strategy_renders_as_one_declared_with_it(before: Any, after: Any) -> None:
    original = template(disclosure=before)
    text = original.render(Customer("Ann")).text
    variant = original.with_(disclosure=after)
    assert (variant.disclosure, variant.view_options.disclosure) == (after, after)
    expected = fresh(disclosure=after).render(Customer("Ann"))
    assert (variant.render(Customer("Ann")).text, variant.builtin_tools()) == (expected.text, variant.builtin_tools())
    assert [tool.name for tool in variant.render(Customer("Ann")).tools] == [tool.name for tool in expected.tools]
    assert (original.disclosure, original.render(Customer("Ann")).text) == (before, text)


OPTIONS: dict[str, Any] = {
    "name": "Other",
    "resources": ResourceRegistry.build({Tone: Tone("warm")}),
    "disclosure": OpenOrRead(suffix="key"),
    "output": Answer,
    "allow_collapse": True,
    "token_budget": 100,
    "show_prices": True,
    "tool_timeout": 3.0,
}


@pytest.mark.parametrize("seed", range(20))
def test_any_chain_of_variants_equals_a_template_declared_with_all_their_options(seed: int) -> None:
    rng = random.Random(seed)
    chosen = rng.sample(list(OPTIONS), rng.randint(1, len(OPTIONS)))
    variant = template()
    for name in chosen:
        if rng.random() < 0.5:
            variant.render(Customer("Ann"))  # Whatever this caches is not taken over.
        variant = variant.with_(**{name: OPTIONS[name]})
    declared = {"output_type" if name == "output" else name: OPTIONS[name] for name in chosen}
    expected = fresh(**declared)
    assert variant.render(Customer("Ann")) == expected.render(Customer("Ann"))
    assert (variant.name, variant.tool_timeout, variant.resources) == (
        expected.name,
        expected.tool_timeout,
        expected.resources,
    )
    assert variant.descriptor == expected.descriptor


def test_a_variant_has_only_options_that_exist_and_values_that_are_possible() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'disclosures'; known: name, "):
        template().with_(disclosures=OpenOrRead())  # type: ignore[call-arg]
    with pytest.raises(PromptValidationError, match="disclosure=OpenOrRead is a class"):
        template().with_(disclosure=OpenOrRead)  # type: ignore[arg-type]
    with pytest.raises(PromptValidationError, match="token_budget must be positive"):
        template().with_(token_budget=0)


def test_a_prompt_of_a_template_with_another_output_is_an_error_that_names_both() -> None:
    typed = template(output_type=Answer)
    assert Prompt[Answer](typed).template is typed
    with pytest.raises(PromptValidationError, match=r"Prompt\[Tone\] cannot be made of 'frozen', whose output is Answ"):
        Prompt[Tone](typed)
    assert typed.with_(output=None).structured_output is None


class Shelf(MarkdownSection[None]):
    """A section whose tools are those that are in stock."""

    stock: tuple[str, ...] = ("one",)

    def tools(self) -> tuple[Tool[Any, Any], ...]:
        return tuple(
            Tool(name=name, description=name, handler=lambda params, *, context: ToolResult("ok"))
            for name in self.stock
        )


def test_tools_that_appear_later_belong_to_later_runs_and_not_to_the_template(tmp_path: Any) -> None:
    shelf = Shelf(title="S", key="s", template="Take one.")
    shelves = PromptTemplate[None](ns="tests", key="shelf", sections=[shelf])
    outline, prompt = shelves.outline, Prompt(shelves, overrides_store=JsonPromptOverridesStore(tmp_path))
    before = prompt.bound()
    shelf.stock = ("one", "two")
    assert [tool.name for tool in before.render().tools] == ["one"]
    assert [tool.name for tool in prompt.render().tools] == ["one", "two"]
    assert shelves.outline is outline


def test_a_stored_override_that_is_edited_is_for_later_runs(tmp_path: Any) -> None:
    made, store = template(), JsonPromptOverridesStore(tmp_path)
    prompt = Prompt(made, overrides_store=store).bind(Customer("Ann"))
    before = prompt.bound()
    descriptor = made.descriptor
    override = descriptor.new_override("latest").with_section(
        ("task",), descriptor.override_section(("task",), "Greet ${name}.")
    )
    store.upsert(override)
    assert "Serve Ann." in before.render().text and before.overrides_tag == ""
    assert "Greet Ann." in prompt.render().text and prompt.overrides_tag == "latest"


def bind_params(prompt: Prompt[Any], rng: random.Random) -> None:
    prompt.bind(Customer(f"customer-{rng.random()}"))


def rebind(prompt: Prompt[Any], rng: random.Random) -> None:
    prompt.rebind([Customer(f"again-{rng.random()}")])


def bind_resources(prompt: Prompt[Any], rng: random.Random) -> None:
    prompt.bind(resources={Tone: Tone(f"tone-{rng.random()}")})


def run_it(prompt: Prompt[Any], rng: random.Random) -> None:
    run(prompt, ScriptedAdapter([call("read_section", section_key="docs"), "Done."]))


def open_resources(prompt: Prompt[Any], rng: random.Random) -> None:
    with prompt:
        run_it(prompt, rng)


CHANGES: list[Callable[[Prompt[Any], random.Random], None]] = [
    bind_params,
    rebind,
    bind_resources,
    run_it,
    open_resources,
]


def facts(prompt: Prompt[Any]) -> tuple[Any, ...]:
    bound = prompt.bound()
    return prompt.params, bound.bound_resources, prompt.template, prompt.render().text, prompt.resources.held_open


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_to_a_prompt_its_copies_stay_as_they_are(seed: int) -> None:
    rng, prompts = random.Random(seed), [Prompt(template()).bind(Customer("Ann"))]
    for _ in range(12):
        at = rng.randrange(len(prompts))
        if rng.random() < 0.4:
            prompts.append(copy(prompts[at]))
            assert facts(prompts[-1]) == facts(prompts[at])
            continue
        before = [facts(prompt) for prompt in prompts]
        taken = prompts[at].bound()
        text = taken.render().text
        rng.choice(CHANGES)(prompts[at], rng)
        after = [facts(prompt) for prompt in prompts]
        del before[at], after[at]
        assert before == after
        assert taken.render().text == text


def test_one_prompt_serves_threads_that_bind_and_run_it_at_once() -> None:
    prompt, problems = Prompt(template()).bind(Customer("Ann"), Tone("warm")), list[str]()

    def serve(number: int) -> None:
        for turn in range(20):
            name = f"{number}-{turn}"
            adapter = ScriptedAdapter([call("read_section", section_key="docs"), "Done."])
            bound = prompt.bind(Customer(name)).bound()
            # Another thread may have bound its customer in between; one run shows one of them throughout.
            run(Prompt.of(bound), adapter, session=Session())
            texts = {request.messages[0].text for request in adapter.requests}
            if len(texts) != 1 or prompt.params[1:] != (Tone("warm"),):
                problems.append(f"{name}: {texts}, {prompt.params}")

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_late_content_that_is_known_before_makes_another_template() -> None:
    made = template()
    with_content = made.with_late(("docs",), LateContent(text="Loaded."))
    assert (made.outline is with_content.outline, made.without([("docs",)]).outline.by_key.keys()) == (False, {"task"})
