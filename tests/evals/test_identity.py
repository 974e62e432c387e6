"""Kept results are those of the prompt, model and scorers of now: what changes what a model sees changes the hash."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.evals.shop import CASES, adapter, shop
from tests.rounds import rounds
from weakincentives.adapters.openai_chat import OpenAIChatAdapter
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.evals import Judge, Scorer, compare, contains, evaluate, list_evaluations, prompt_hash
from weakincentives.filesystem import Filesystem
from weakincentives.guards import Guard, MaxCalls, RequiresTool
from weakincentives.prompt import (
    Disclosure,
    JsonPromptOverridesStore,
    MarkdownSection,
    OpenOrRead,
    Prompt,
    PromptOverride,
    PromptTemplate,
    ReadSections,
    SearchSections,
    Section,
    SectionVisibility,
    Tool,
    tool,
)
from weakincentives.runtime import Settings
from weakincentives.tools import DomainFilter
from weakincentives.tools.web_search import WebSearchConfig, WebSearchSection

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Shop:
    name: str = "Lids"
    rooms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    text: str


@dataclass(frozen=True)
class Report:
    text: str
    pages: int = 1


@dataclass(frozen=True)
class Spec:
    """A prompt as values, of which a test changes one at a time."""

    task: str = "Help ${name}."
    title: str = "Task"
    heading: bool = True
    summary: str = "About orders."
    suffix: str | None = None
    orders: str = "All of orders."
    visibility: Any = SUMMARY
    inner: SectionVisibility = SUMMARY
    enabled: Any = None
    open_when: Any = None
    role: Any = "system"
    order: tuple[int, ...] = (0, 1)
    description: str = "Refund an order."
    handler: Callable[..., str] | None = None
    param: type = int
    approval: Any = None
    changes: Any = None
    outside: bool = False
    timeout: float | None = None
    read_only: bool = False
    examples: tuple[dict[str, Any], ...] = ()
    guards: tuple[Guard, ...] = ()
    inner_guards: tuple[Guard, ...] = ()
    disclosure: Disclosure | None = None
    output: Any = None
    params: tuple[Any, ...] = ()
    default: Shop | None = None
    hosted: tuple[str, ...] | None = None
    code: type[Section[Any]] | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def prompt(self) -> Prompt[Any]:
        kind = self.param

        def refund(order: Any) -> str:
            "Refund."
            return "Refunded."

        handler = self.handler or refund
        handler.__annotations__["order"] = kind
        made = tool(
            name="refund",
            description=self.description,
            approval=self.approval,
            changes=self.changes or ((Shop,) if self.approval == "effects" else None),
            outside=self.outside,
            timeout=self.timeout,
            read_only=self.read_only,
            examples=self.examples,
        )(handler)
        style = MarkdownSection(key="style", title="Style", template="Be kind.", summary="S.", visibility=self.inner)
        sections: list[Any] = [
            MarkdownSection[Shop](
                key="task", title=self.title, template=self.task, heading=self.heading, default_params=self.default
            ),
            MarkdownSection[Shop](
                key="orders",
                title="Orders",
                template=self.orders,
                summary=self.summary,
                summary_suffix=self.suffix,
                visibility=self.visibility,
                enabled=self.enabled,
                open_when=self.open_when,
                role=self.role,
                guards=self.inner_guards,
                tools=[made],
                children=[style],
            ),
        ]
        sections = [sections[place] for place in self.order]
        if self.hosted is not None:
            sections.append(WebSearchSection(WebSearchConfig(DomainFilter(self.hosted))))
        if self.code is not None:
            sections.append(self.code(key="code", title="Code"))
        template: PromptTemplate[Any] = PromptTemplate(
            ns="t",
            key="spec",
            sections=sections,
            guards=self.guards,
            disclosure=self.disclosure,
            output_type=self.output,
            **dict(self.options),
        )
        return Prompt(template).bind(*self.params)


def always(params: Shop) -> bool:
    return True


def named(params: Shop) -> bool:
    return params.name != ""


def chosen(params: Shop) -> SectionVisibility:
    return SUMMARY


def asks(text: str) -> bool:
    return "refund" in text


def asks_more(text: str) -> bool:
    return "refunds" in text


def refunds_slowly(order: Any) -> str:
    "Refund."
    return "Refunded, in a week."


class Written(Section[None]):
    def render_body(self, params: None) -> str:
        return "Written."


class Rewritten(Section[None]):
    def render_body(self, params: None) -> str:
        return "Written again."


class Own(Guard):
    def before_answer(self, answer: str, *, context: Any) -> None:
        return None


class Named(ReadSections):
    def hint(self, key: str, *, children: Any, has_tools: bool) -> str:
        return f"Read {key}."


CHANGES: dict[str, tuple[Any, ...]] = {
    "task": ("Help ${name}!", "Help $$name.", "Help ${name} ."),
    "title": ("Tasks",),
    "heading": (False,),
    "summary": ("About orders and refunds.",),
    "suffix": ("Open ${section_key}.",),
    "orders": ("All of the orders.",),
    "visibility": (FULL, chosen),
    "inner": (FULL,),
    "enabled": (always, named),
    "open_when": (asks, asks_more),
    "role": ("user",),
    "order": ((1, 0), (1,)),
    "description": ("Refund an order now.",),
    "handler": (refunds_slowly,),
    "param": (str, int | None),
    "approval": ("call", "effects"),
    "timeout": (3.0,),
    "read_only": (True,),
    "examples": (({"order": 1},), ({"order": 2},)),
    "guards": ((Own(),), (MaxCalls("refund", 1),), (MaxCalls("refund", 2),)),
    "inner_guards": ((RequiresTool("refund"),),),
    "disclosure": (
        ReadSections(suffix="key"),
        OpenOrRead(),
        SearchSections(preopen=1),
        SearchSections(menu="none"),
        Named(),
    ),
    "output": (Answer, Report, list[Answer], int),
    "params": ((Shop("Pots"),), (Shop("Pots", ("a",)),)),
    "default": (Shop("Pans"),),
    "hosted": (("a.example",), ("b.example",)),
    "code": (Written, Rewritten),
    "options": (
        (("token_budget", 100),),
        (("show_prices", True),),
        (("allow_collapse", True),),
        (("tool_timeout", 5.0),),
    ),
}


# Not for random prompts, in which they may contradict other changes.
DECLARED: dict[str, tuple[Any, ...]] = {"changes": ((Shop,), (Shop, Filesystem)), "outside": (True,)}


def changed(spec: Spec, drawn: random.Random) -> Spec:
    name = drawn.choice([*CHANGES])
    return replace(spec, **{name: drawn.choice(CHANGES[name])})


def seen(spec: Spec) -> tuple[Any, ...]:
    """What a model is shown first, and of all sections once they are open."""
    rendered = spec.prompt().render()
    view = rendered.view
    opened = view.opened({node.path: FULL for node in view.existing()})
    texts = rendered.text, "".join(opened.pieces()), rendered.structured_output and rendered.structured_output.schema
    return (*texts, [tool.definition for _, tool in opened.offered()])


@pytest.mark.parametrize("name", [*CHANGES, *DECLARED])
def test_each_change_of_a_prompt_changes_its_hash(name: str) -> None:
    specs = [Spec(), *(replace(Spec(), **{name: value}) for value in {**CHANGES, **DECLARED}[name])]
    hashes = [prompt_hash(spec.prompt()) for spec in specs]
    assert hashes == [prompt_hash(spec.prompt()) for spec in specs]
    assert len({*hashes}) == len(hashes)


@pytest.mark.parametrize("seed", range(rounds(20, 60)))
def test_prompts_of_one_hash_show_a_model_the_same(seed: int) -> None:
    drawn = random.Random(seed)
    spec = Spec()
    for _ in range(drawn.randint(1, 5)):
        spec = changed(spec, drawn)
    other = changed(spec, drawn)
    same = prompt_hash(spec.prompt()) == prompt_hash(other.prompt())
    assert same == (spec == other)
    assert not same or seen(spec) == seen(other)


def test_a_hash_is_the_same_in_every_process() -> None:
    code = "from tests.evals.test_identity import *; print(prompt_hash(Spec(guards=(Own(),), code=Written).prompt()))"
    here = prompt_hash(Spec(guards=(Own(),), code=Written).prompt())
    done = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert [each.stdout.strip() for each in done] == [here, here]


def test_what_changes_while_a_prompt_is_used_is_not_part_of_its_hash() -> None:
    calls: list[int] = []

    def refund(order: int) -> str:
        "Refund."
        calls.append(order)
        return "Refunded."

    before = prompt_hash(Spec(handler=refund).prompt())
    calls.append(1)
    assert prompt_hash(Spec(handler=refund).prompt()) == before


def overridden(store: JsonPromptOverridesStore, tag: str, drawn: random.Random) -> None:
    """Store an override of a random part of the shop."""
    descriptor = shop().descriptor
    words, override = f"Words {drawn.random()}.", PromptOverride("tests", "shop", tag)
    kind = drawn.choice(["section", "summary", "visibility", "tool"])
    path = ("refunds",)
    if kind == "section":
        override = override.with_section(path, descriptor.override_section(path, words))
    elif kind == "summary":
        override = override.with_summary(path, descriptor.override_summary(path, words))
    elif kind == "visibility":
        override = override.with_visibility(path, descriptor.override_visibility(path, FULL))
    else:
        override = override.with_tool("refund", descriptor.override_tool("refund", description=words))
    store.upsert(override)


@pytest.mark.parametrize("seed", range(8))
def test_an_override_that_was_edited_is_run_and_not_answered_with_kept_results(tmp_path: Path, seed: int) -> None:
    drawn, file = random.Random(seed), tmp_path / "runs.db"
    store = JsonPromptOverridesStore(tmp_path / "overrides")

    def ran(prompt: Prompt[Any]) -> int:
        model = adapter()
        evaluate(CASES, prompt, model, [contains()], name="before", file=file)
        return len(model.requests)

    declared = Prompt(shop())
    assert (ran(declared) > 0, ran(declared)) == (True, 0)
    overridden(store, "better", drawn)
    tagged = Prompt(shop(), overrides_store=store, overrides_tag="better")
    assert (ran(tagged) > 0, ran(tagged), ran(declared)) == (True, 0, 0)
    hashes = {each.prompt_hash for each in list_evaluations(file)}
    assert hashes == {prompt_hash(declared), prompt_hash(tagged)} and len(hashes) == 2
    overridden(store, "better", drawn)
    edited = Prompt(shop(), overrides_store=store, overrides_tag="better")
    assert (ran(edited) > 0) == (prompt_hash(edited) not in hashes)


def test_an_evaluation_says_which_override_its_prompt_had(tmp_path: Path) -> None:
    store, file, descriptor = JsonPromptOverridesStore(tmp_path / "overrides"), tmp_path / "runs.db", shop().descriptor
    override = descriptor.new_override("better")
    override = override.with_summary(("refunds",), descriptor.override_summary(("refunds",), "Money back."))
    store.upsert(override.with_tool("refund", descriptor.override_tool("refund", description="Give money back.")))
    for name, prompt in (("before", Prompt(shop())), ("after", Prompt(shop()).with_overrides(store, "better"))):
        evaluate(CASES, prompt, adapter(), [contains()], name=name, file=file)
    after, before = list_evaluations(file)
    assert (before.tag, before.variant) == ("", "as declared")
    assert (after.overridden, after.variant) == (("summary refunds", "tool refund"), "better (1 summary, 1 tool)")
    assert compare(before, after).prompts == "before: as declared; after: better (1 summary, 1 tool)."
    assert compare(before, before).prompts == "Both have the same prompt."
    changed_rules = evaluate(CASES, shop("Never."), adapter(), [contains()], name="later")
    assert compare(before, changed_rules).prompts == (
        "Both are as declared; the prompt has changed between them, in its declaration."
    )


VENDORS = ("openai", "anthropic", "litellm")


def at_address(vendor: str, address: str, key: str = "k") -> Any:
    """An adapter for a model of one name at an address."""
    if vendor == "openai":
        import openai

        from weakincentives.adapters.openai import OpenAIAdapter

        return OpenAIAdapter("m", client=openai.OpenAI(api_key=key, base_url=address))
    if vendor == "anthropic":
        import anthropic

        from weakincentives.adapters.anthropic import AnthropicAdapter

        return AnthropicAdapter("m", client=anthropic.Anthropic(api_key=key, base_url=address))
    from weakincentives.adapters.litellm import LiteLLMAdapter

    return LiteLLMAdapter("m", parameters={"api_base": address, "api_key": key})


ADAPTERS: list[Callable[[], Any]] = [
    lambda: ScriptedAdapter([]),
    lambda: ScriptedAdapter([], model="other"),
    lambda: ScriptedAdapter([], supports_dynamic_tools=False),
    lambda: OpenAIChatAdapter("m", base_url="http://a.example"),
    lambda: OpenAIChatAdapter("m", base_url="http://b.example"),
    lambda: OpenAIChatAdapter("m", base_url="http://a.example", settings=Settings(temperature=0)),
    lambda: OpenAIChatAdapter("m", base_url="http://a.example", parameters={"seed": 1}),
    lambda: OpenAIChatAdapter("m", base_url="http://a.example", output_retries=3),
    *(partial(at_address, name, address) for name in VENDORS for address in ("http://a.example", "http://b.example")),
]


def test_a_judge_s_verdict_is_kept_for_its_adapter_with_its_settings_alone() -> None:
    judges = [Judge(make(), "It is polite.") for make in (*ADAPTERS, *ADAPTERS)]
    identities = [str(judge.identity) for judge in judges]
    assert identities[: len(ADAPTERS)] == identities[len(ADAPTERS) :]
    assert len({*identities}) == len(ADAPTERS)


def test_results_are_kept_for_an_adapter_with_its_settings_alone(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"model": "other"},
        {"supports_dynamic_tools": False},
        {"settings": Settings(temperature=0)},
        {"output_retries": 3},
    ]
    ids: list[str] = []
    for each in (*options, *options):
        model = ScriptedAdapter(lambda request: "Yes.", **each)
        ids.append(evaluate(CASES, shop(), model, [contains()], name="n", file=tmp_path / "runs.db").id)
    assert ids[: len(options)] == ids[len(options) :]
    assert len({*ids}) == len(options)


def test_keys_are_no_part_of_an_adapter_s_identity() -> None:
    one, other = (OpenAIChatAdapter("m", base_url="http://a.example", api_key=key) for key in ("k1", "k2"))
    assert one.identity == other.identity
    for vendor in VENDORS:
        one, other = (at_address(vendor, "http://a.example", key) for key in ("k1", "k2"))
        assert one.identity == other.identity


def test_an_adapter_has_one_identity_before_and_after_its_client_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from weakincentives.adapters.openai import OpenAIAdapter

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    adapter = OpenAIAdapter("m")
    before = adapter.identity
    assert adapter.client is not None
    assert adapter.identity == before
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a.example")
    assert OpenAIAdapter("m").identity != before


def test_a_scorer_with_other_code_or_another_argument_scores_again(tmp_path: Path) -> None:
    scorers = [Scorer("s", lambda run: True), Scorer("s", lambda run: False), contains("a"), contains("b")]
    ids = [
        evaluate(CASES, shop(), adapter(), [scorer], name="n", file=tmp_path / "runs.db").id
        for scorer in (*scorers, *scorers)
    ]
    assert ids[:4] == ids[4:] and len({*ids}) == 4


def test_a_tool_of_another_server_s_schema_is_another_prompt() -> None:
    def prompt(schema: dict[str, Any]) -> Prompt[Any]:
        made = Tool.from_schema(name="get", description="Get.", schema=schema, handler=lambda params, *, context: "")
        return Prompt(ns="t", key="k", sections=[MarkdownSection(key="a", title="A", template="A.", tools=[made])])

    text, number = ({"type": "object", "properties": {"a": {"type": kind}}} for kind in ("string", "integer"))
    assert prompt_hash(prompt(text)) == prompt_hash(prompt(text)) != prompt_hash(prompt(number))
