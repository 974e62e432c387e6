"""Templates, binding, rendering and provenance."""

from __future__ import annotations

import gc
import logging
import re
import weakref
from dataclasses import dataclass, field
from datetime import date
from enum import Enum

import pytest

from weakincentives.prompt import (
    ClearVisibilityOverride,
    CollapseSection,
    MarkdownSection,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    Section,
    SectionVisibility,
    SetVisibilityOverride,
    Span,
    Tool,
    ToolResult,
)
from weakincentives.session import Session

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass
class Task:
    objective: str


@dataclass
class Mood:
    mood: str = "calm"


@dataclass
class Summary:
    title: str
    gist: str


def text(key: str, template: str = "text", **kwargs: object) -> MarkdownSection[None]:
    return MarkdownSection(title=key.title(), key=key, template=template, **kwargs)


def a_tool(name: str) -> Tool[None, None]:
    return Tool(name=name, description="Does it.", handler=lambda params, *, context: ToolResult("ok"))


def template(*sections: MarkdownSection[None], **kwargs: object) -> PromptTemplate[None]:
    return PromptTemplate(ns="tests", key="demo", sections=sections, **kwargs)


def test_headings_are_numbered_by_depth() -> None:
    tree = template(text("a", children=[text("b", children=[text("c")]), text("d")]), text("e"))
    headings = [line for line in tree.render().text.splitlines() if line.startswith("#")]
    assert headings == ["## 1. A", "### 1.1. B", "#### 1.1.1. C", "### 1.2. D", "## 2. E"]


def test_numbers_have_no_holes() -> None:
    tree = template(text("a"), text("b", enabled=lambda: False, children=[text("x")]), text("c"))
    assert tree.render().text == "## 1. A\n\ntext\n\n## 2. C\n\ntext"


def test_a_section_without_text_is_its_heading() -> None:
    assert template(text("a", template=""), text("b")).render().text == "## 1. A\n\n## 2. B\n\ntext"


def test_bound_params_fill_every_section_of_their_type() -> None:
    tree = PromptTemplate(
        ns="tests",
        key="demo",
        sections=[
            MarkdownSection[Task](title="A", key="a", template="Do ${objective}"),
            MarkdownSection[Task](title="B", key="b", template="Really ${objective}"),
        ],
    )
    prompt = Prompt(tree).bind(Task("it"))
    assert prompt.render().text == "## 1. A\n\nDo it\n\n## 2. B\n\nReally it"


def test_own_default_then_first_default_then_no_arguments() -> None:
    tree = PromptTemplate(
        ns="tests",
        key="demo",
        sections=[
            MarkdownSection[Mood](title="A", key="a", template="${mood}", default_params=Mood("first")),
            MarkdownSection[Mood](title="B", key="b", template="${mood}", default_params=Mood("own")),
            MarkdownSection[Mood](title="C", key="c", template="${mood}"),
        ],
    )
    bodies = tree.render().text.split("\n\n")[1::2]
    assert bodies == ["first", "own", "first"]
    bare = PromptTemplate(ns="t", key="d", sections=[MarkdownSection[Mood](title="A", key="a", template="${mood}")])
    assert bare.render().text.endswith("calm")


def test_missing_required_params_name_the_fields() -> None:
    tree = PromptTemplate(
        ns="t", key="d", sections=[MarkdownSection[Task](title="A", key="a", template="${objective}")]
    )
    with pytest.raises(PromptRenderError, match=r"No Task was bound .*\(objective\); pass one to bind"):
        tree.render()


def about(title: str, **options: object) -> MarkdownSection[Task]:
    return MarkdownSection[Task](title=title, key=title, template="${objective}", summary="short", **options)


def test_params_of_a_summarized_section_are_asked_for_at_render() -> None:
    closed = about("a", visibility=SUMMARY)
    for tree in (template(closed), template(text("p", summary="s", visibility=SUMMARY, children=[closed]))):
        with pytest.raises(PromptRenderError, match="No Task was bound"):
            tree.render()
        assert "call `read_section`" in tree.render(Task("it")).text


def test_params_of_a_disabled_section_are_not_asked_for() -> None:
    off = about("off", enabled=lambda: False)
    tree = template(text("a"), off, text("b", enabled=lambda: False, children=[about("c")]))
    assert tree.render().text == "## 1. A\n\ntext"


def test_params_that_enabled_looks_at_are_asked_for() -> None:
    with pytest.raises(PromptRenderError, match="No Task was bound"):
        template(about("a", enabled=lambda task: task is not None)).render()


def test_an_override_inside_a_disabled_section_does_not_matter() -> None:
    tree = template(text("a"), text("off", enabled=lambda: False, children=[text("child")]))
    assert tree.render(visibility_overrides={("off", "child"): SUMMARY}).text == "## 1. A\n\ntext"


def test_rebinding_a_type_replaces_it() -> None:
    tree = PromptTemplate(
        ns="t", key="d", sections=[MarkdownSection[Task](title="A", key="a", template="${objective}")]
    )
    assert Prompt(tree).bind(Task("one")).bind(Task("two")).render().text.endswith("two")


def test_the_same_type_twice_in_one_bind_is_refused_at_render() -> None:
    prompt = Prompt(template(text("a"))).bind(Task("one"), Task("two"))
    for bound in (prompt, prompt.bind(Mood())):
        with pytest.raises(PromptValidationError, match="Task was bound twice in one call"):
            bound.render()


def test_binding_a_type_again_replaces_what_was_bound_twice() -> None:
    said = MarkdownSection[Task](title="A", key="a", template="${objective}")
    prompt = Prompt(PromptTemplate(ns="t", key="d", sections=[said])).bind(Task("one"), Task("two"), Mood())
    assert prompt.bind(Task("three")).render().text.endswith("three")
    with pytest.raises(PromptValidationError, match="Task was bound twice in one call"):
        prompt.bind(Task("four"), Task("five")).render()
    assert prompt.bind(Task("six")).render().text.endswith("six")


def test_params_must_be_dataclass_instances() -> None:
    with pytest.raises(
        PromptValidationError, match="Params must be instances of a dataclass or another class with fields, got"
    ):
        Prompt(template(text("a"))).bind("text")


def test_params_that_no_section_uses_are_allowed() -> None:
    assert Prompt(template(text("a"))).bind(Task("unused")).render().text == "## 1. A\n\ntext"


def test_params_that_no_section_takes_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    tree = template(MarkdownSection[Mood](title="A", key="a", template="text"))
    for _ in range(2):
        Prompt(tree).bind(Task("unused"), Mood())

    assert [record.getMessage() for record in caplog.records] == [
        "Prompt 'demo': params of type Task are bound, but no section uses them; sections use: Mood."
    ]


@pytest.mark.parametrize(("ns", "key"), [("", "k"), ("n", ""), ("  ", "k")])
def test_namespace_and_key_are_required(ns: str, key: str) -> None:
    with pytest.raises(PromptValidationError, match="needs a non-empty"):
        PromptTemplate(ns=ns, key=key)


def test_paths_that_join_to_the_same_key_are_refused() -> None:
    with pytest.raises(PromptValidationError, match=r"share the key 'a\.b'"):
        template(text("a", children=[text("b")]), text("a.b"))


def test_a_dotted_key_names_its_path_by_the_joined_form() -> None:
    tree = template(text("a.b", summary="s"))
    assert "s" in tree.render(visibility_overrides={("a.b",): SUMMARY}).text


def test_two_visible_tools_of_one_name_are_refused() -> None:
    with pytest.raises(PromptValidationError, match="'a' and 'b' both have a tool named 'go'"):
        template(text("a", tools=[a_tool("go")]), text("b", tools=[a_tool("go")]))


def test_tools_of_one_name_in_exclusive_sections_are_fine_until_both_show() -> None:
    sections = [text(key, tools=[a_tool("go")], enabled=lambda key=key: key in shown) for key in ("a", "b")]
    shown = {"a"}
    assert [tool.name for tool in template(*sections).render().tools] == ["go"]
    shown = {"a", "b"}
    with pytest.raises(PromptRenderError, match="'a' and 'b' both have a tool named 'go'"):
        template(*sections).render()


def test_a_collision_that_only_opening_makes_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    tree = template(text("a", tools=[a_tool("go")]), text("b", summary="s", visibility=SUMMARY, tools=[a_tool("go")]))
    with caplog.at_level(logging.WARNING):
        rendered = tree.render(visibility_overrides={("b",): FULL})
    assert [tool.name for tool in rendered.tools] == ["go"]
    assert "Skipping duplicate tool 'go' of section 'b'" in caplog.text


@pytest.mark.parametrize("name", ["read_section", "open_sections", "collapse_section"])
def test_disclosure_names_are_reserved(name: str) -> None:
    with pytest.raises(PromptValidationError, match=f"'{name}' is reserved"):
        template(text("a", tools=[a_tool(name)]))


def test_overrides_of_unknown_paths_are_refused() -> None:
    with pytest.raises(PromptRenderError, match=r"\('nope',\), which is not a section path"):
        template(text("a")).render(visibility_overrides={("nope",): FULL})


def test_summarizing_a_section_without_summary_is_refused() -> None:
    with pytest.raises(PromptRenderError, match="'a' has visibility SUMMARY but no summary"):
        template(text("a")).render(visibility_overrides={("a",): SUMMARY})


def test_the_session_wins_over_the_caller_and_the_caller_over_the_declaration() -> None:
    tree = template(text("a", summary="s", visibility=SUMMARY))
    session = Session()
    assert tree.render().spans[0].decided_by == "declared"
    opened = tree.render(visibility_overrides={("a",): FULL}, session=session)
    assert (opened.spans[0].visibility, opened.spans[0].decided_by) == (FULL, "override")
    session.dispatch(SetVisibilityOverride(("a",), SUMMARY))
    closed = tree.render(visibility_overrides={("a",): FULL}, session=session)
    assert (closed.spans[0].visibility, closed.spans[0].decided_by) == (SUMMARY, "session")


def test_opening_a_hidden_child_opens_its_ancestors() -> None:
    tree = template(text("a", summary="s", visibility=SUMMARY, children=[text("b", summary="t", visibility=SUMMARY)]))
    assert tree.render(visibility_overrides={("a", "b"): FULL}).text == "## 1. A\n\ntext\n\n### 1.1. B\n\ntext"


def test_opening_a_child_opens_an_ancestor_that_was_closed_before() -> None:
    child = text("b", summary="short", visibility=SUMMARY)
    tree, session = template(text("a", summary="short", visibility=SUMMARY, children=[child])), Session()
    session.dispatch(CollapseSection(("a",)))
    session.dispatch(SetVisibilityOverride(("a", "b"), FULL))
    assert tree.render(session=session).visibility == {("a",): FULL, ("a", "b"): FULL}
    session.dispatch(CollapseSection(("a",)))
    assert tree.render(session=session).visibility == {("a",): SUMMARY}


def test_paths_of_other_prompts_in_the_session_do_not_matter() -> None:
    session = Session()
    session.dispatch(SetVisibilityOverride(("elsewhere",), SUMMARY))
    assert template(text("a")).render(session=session).text == "## 1. A\n\ntext"


def test_spans_say_where_each_part_came_from() -> None:
    rendered = template(text("a", children=[text("b")]), text("c", summary="s", visibility=SUMMARY)).render()
    assert rendered.spans[:2] == (Span(("a",), 0, 13, FULL, "declared"), Span(("a", "b"), 15, 31, FULL, "declared"))
    parts = [rendered.text[span.start : span.end] for span in rendered.spans]
    assert "\n\n".join(parts) == rendered.text
    assert parts[2].startswith("## 2. C\n\ns\n\n---\n")


def test_a_prompt_in_which_nothing_is_shown_is_empty() -> None:
    for tree in (template(), template(text("a", enabled=lambda: False))):
        assert (tree.render().text, tree.render().spans) == ("", ())


def test_a_template_keeps_nothing_of_what_was_bound() -> None:
    section = MarkdownSection[Mood](title="A", key="a", template="${mood}", summary="${mood}", visibility=SUMMARY)
    tree, mood = template(section, show_prices=True), Mood("secret")
    tree.render(mood)
    tree.render(mood, visibility_overrides={("a",): FULL})
    kept = weakref.ref(mood)
    del mood
    gc.collect()
    assert kept() is None


def test_rendered_prompts_describe_their_output_and_tools() -> None:
    @dataclass
    class Params:
        city: str = ""

    tool = Tool[Params, None](name="look", description="Look.", handler=lambda p, *, context: ToolResult("ok"))
    tree = PromptTemplate[list[Summary]](ns="t", key="d", sections=[text("a", tools=[tool])], allow_extra_keys=True)
    rendered = tree.render()
    assert (rendered.output_type, rendered.container, rendered.allow_extra_keys) == (Summary, "array", True)
    assert rendered.tools == (tool,)


def test_an_output_type_that_no_answer_can_have_is_refused() -> None:
    with pytest.raises(PromptValidationError):
        PromptTemplate[complex](ns="t", key="d")


def test_a_prompt_can_declare_its_template_in_place() -> None:
    prompt = Prompt[Summary](ns="t", key="d", name="named", sections=[text("a")])
    assert (prompt.ns, prompt.key, prompt.name, prompt.render().output_type) == ("t", "d", "named", Summary)


def test_a_prompt_may_give_its_template_an_output() -> None:
    plain, typed = template(text("a")), PromptTemplate[Summary](ns="t", key="typed")
    assert Prompt[Summary](plain).render().output_type is Summary
    assert SummaryPrompt(plain).render().output_type is Summary
    assert (plain.render().output_type, Prompt[Summary](typed).template) == (None, typed)
    with pytest.raises(
        PromptValidationError, match=r"Prompt\[Mood\] cannot be made of 'typed', whose output is Summary"
    ):
        Prompt[Mood](typed)


def test_a_template_and_a_declaration_together_are_refused() -> None:
    with pytest.raises(PromptValidationError, match="not both"):
        Prompt(template(text("a")), ns="x")


class SummaryTemplate(PromptTemplate[Summary]):
    pass


class SummaryPrompt(Prompt[Summary]):
    pass


def test_an_output_type_is_inherited_by_subclasses() -> None:
    assert SummaryTemplate(ns="a", key="b").render().output_type is Summary
    assert SummaryPrompt(ns="a", key="b").render().output_type is Summary


def test_visibility_may_be_given_by_its_word() -> None:
    tree, session = template(text("a", summary="short", visibility=SUMMARY)), Session()
    assert tree.render(visibility_overrides={("a",): "full"}).visibility == {("a",): FULL}
    session.dispatch(SetVisibilityOverride(["a"], "full"))
    assert tree.render(session=session).visibility == {("a",): FULL}


def test_what_is_no_visibility_or_no_path_is_refused() -> None:
    with pytest.raises(PromptValidationError, match=r"A visibility must be .*, got None"):
        template(text("a")).render(visibility_overrides={("a",): None})
    with pytest.raises(PromptValidationError, match=r"A visibility must be .*, got 'open'"):
        SetVisibilityOverride(("a",), "open")
    for event in (ClearVisibilityOverride, CollapseSection, lambda path: SetVisibilityOverride(path, FULL)):
        with pytest.raises(PromptValidationError, match=r"must be a tuple of keys, .*, got 'a\.b'"):
            event("a.b")


@dataclass
class Unset:
    value: str = field(init=False)


@dataclass
class Strict:
    value: str = ""

    def __post_init__(self) -> None:
        if not self.value:
            raise ValueError("value is empty")


def test_a_value_that_cannot_be_filled_in_is_named() -> None:
    tree = template(MarkdownSection[Unset](title="A", key="a", template="${value}"))
    with pytest.raises(PromptRenderError, match=r"\$\{value\} of Unset cannot be filled in: AttributeError"):
        tree.render(Unset())


def test_params_that_refuse_to_be_made_empty_say_why() -> None:
    tree = template(MarkdownSection[Strict](title="A", key="a", template="${value}"))
    with pytest.raises(PromptRenderError, match=r"No Strict was bound and it cannot .* \(value is empty\); pass one"):
        tree.render()


def test_text_given_as_a_prompt_is_refused_with_the_way_out() -> None:
    with pytest.raises(PromptValidationError, match=r"Prompt takes a PromptTemplate, got 'Be kind'; write Prompt\(ns="):
        Prompt("Be kind")  # type: ignore[arg-type]


class Size(Enum):
    SMALL = "small"


@dataclass(frozen=True)
class Dish:
    name: str
    price: float

    def render(self) -> str:
        return f"{self.name}\n({self.price:.2f} EUR)"


@dataclass(frozen=True)
class Order:
    price: float = 3.14159
    count: int = 12345
    name: str = "tea"
    size: Size = Size.SMALL
    notes: tuple[str, ...] = ("no milk", "two\nlines")
    dishes: list[Dish] = field(default_factory=lambda: [Dish("Soup", 4), Dish("Pie", 5.5)])
    dish: Dish = Dish("Soup", 4)
    empty: tuple[str, ...] = ()
    prices: list[float] = field(default_factory=lambda: [1, 2.345])
    days: tuple[date, ...] = (date(2026, 5, 1), date(2026, 12, 24))
    pairs: list[tuple[int, int]] = field(default_factory=lambda: [(1, 2), (3, 4)])
    maybe: float | None = 2.5


@pytest.mark.parametrize(
    ("placeholder", "shown"),
    [
        ("${price:.2f}", "3.14"),
        ("${count:,}", "12,345"),
        ("${name:>5}", "  tea"),
        ("${name:}", "tea"),
        ("${size}", "small"),
        ("${size:>6}", " small"),
        ("${notes}", "- no milk\n- two\n  lines"),
        ("${notes:; }", "no milk; two\nlines"),
        ("${dish}", "Soup\n(4.00 EUR)"),
        ("${dishes}", "- Soup\n  (4.00 EUR)\n- Pie\n  (5.50 EUR)"),
        ("${empty}", ""),
        ("${empty:>3}", ""),
        ("${prices:.2f}", "- 1.00\n- 2.35"),
        ("${prices:>6.1f}", "-    1.0\n-    2.3"),
        ("${prices:.0%}", "- 100%\n- 235%"),
        ("${prices:,.1f}", "- 1.0\n- 2.3"),
        ("${prices:g}", "- 1\n- 2.345"),
        ("${prices:,}", "1,2.345"),
        ("${prices: - }", "1 - 2.345"),
        ("${prices: > }", "1 > 2.345"),
        ("${prices: or }", "1 or 2.345"),
        ("${prices:->}", "1->2.345"),
        ("${notes:>8.2}", "-       no\n-       tw"),
        ("${days:%d.%m.}", "- 01.05.\n- 24.12."),
        ("${days: and }", "2026-05-01 and 2026-12-24"),
        ("${pairs:02d}", "- - 01\n  - 02\n- - 03\n  - 04"),
        ("${maybe:.2f}", "2.50"),
        ("$price", "3.14159"),
        ("$${price:.2f}", "${price:.2f}"),
    ],
)
@pytest.mark.parametrize("place", ["template", "summary"])
def test_a_value_is_shown_by_its_format_its_own_render_or_as_bullets(place: str, placeholder: str, shown: str) -> None:
    texts = {"template": "x", "summary": "y", place: f"<\n{placeholder}>"}
    section = MarkdownSection[Order](key="o", title="O", **texts)
    visibility = FULL if place == "template" else SUMMARY
    rendered = template(section).render(Order(), visibility_overrides={("o",): visibility}).text
    assert rendered.startswith(f"## 1. O\n\n<\n{shown}>")
    assert section.render(Order(), visibility=visibility) == f"## O\n\n<\n{shown}>"


@pytest.mark.parametrize(
    ("line", "indent"),
    [
        ("${notes}", ""),
        ("  ${notes}", "  "),
        ("- ${notes}", "  "),
        ("10. Notes: ${notes}", "           "),
        ("\t${notes}", "\t"),
        ("a $$5 ${notes}", "     "),
        ("  ${name}: ${notes}", "  "),
        ("  ${name}: ${price} and ${notes}", "  "),
    ],
)
@pytest.mark.parametrize("before", ["First:\n", "First: ${notes:, }\n", ""])
def test_bullets_stand_in_the_column_of_their_placeholder(before: str, line: str, indent: str) -> None:
    if not before and line != line.lstrip():
        return  # A template is stripped.
    section = MarkdownSection[Order](key="o", title="O", template=f"{before}{line}\n\n${{notes}}")
    shown = template(section).render(Order()).text
    assert f"- no milk\n{indent}- two\n{indent}  lines\n\n- no milk\n- two\n  lines" in shown
    assert shown.endswith(section.render_body(Order()))


@pytest.mark.parametrize(
    "placeholder",
    [
        "${price:.2q}",
        "${count:.2}",
        "${name:.2f}",
        "${prices:.2d}",
        "${notes:.2f}",
        "${notes:d}",
        "${pairs:.2d}",
        "${prices:.2q}",
        "${maybe:d}",
    ],
)
@pytest.mark.parametrize("place", ["template", "summary"])
def test_a_format_that_cannot_fit_is_refused_when_the_section_is_declared(place: str, placeholder: str) -> None:
    texts = {"template": "x", "summary": "y", place: f"Fine: ${{price:.2f}}. Not: {placeholder}"}
    problem = f"Section 'o': the {place} has {placeholder}, a format that does not fit: "
    with pytest.raises(PromptValidationError, match=re.escape(problem)):
        MarkdownSection[Order](key="o", title="O", **texts)


@pytest.mark.parametrize(
    ("placeholder", "order"),
    [
        ("${maybe:.2f}", Order(maybe=None)),
        ("${dish:.2f}", Order()),
        ("${dishes:.2f}", Order()),
        ("${price:.2f}", Order(price="much")),  # type: ignore[arg-type]
        ("${size:.2f}", Order()),
    ],
)
def test_a_format_that_does_not_fit_the_value_is_named_with_its_section(placeholder: str, order: Order) -> None:
    sections = [text("a"), MarkdownSection[Order](key="o", title="O", template=placeholder, summary=placeholder)]
    problem = re.escape(f"Section 'o': {placeholder} of Order cannot be filled in: ")
    for render in (
        lambda: template(*sections).render(order),
        lambda: template(*sections).render(order, visibility_overrides={("o",): SUMMARY}),
        lambda: sections[1].render_body(order),
        lambda: sections[1].render(order, visibility=SUMMARY),
    ):
        with pytest.raises(PromptRenderError, match=problem + "(Type|Value)Error"):
            render()


@pytest.mark.parametrize("spec", ["999999999", ".1000f", "0>1000"])
def test_a_format_cannot_take_all_memory(spec: str) -> None:
    with pytest.raises(PromptValidationError, match="a width of at most 999"):
        MarkdownSection[Order](key="o", title="O", template=f"${{price:{spec}}}")
    shown = template(MarkdownSection[Order](key="o", title="O", template="${price:999}")).render(Order()).text
    assert len(shown) < 1_100


@pytest.mark.parametrize("visibility", [FULL, SUMMARY])
def test_a_section_without_heading_is_only_its_text(visibility: SectionVisibility) -> None:
    bare = text("bare", "Bare.", heading=False, summary="Bare.", visibility=visibility)
    rendered = template(text("a"), bare, text("b", children=[text("c", heading=False)]), text("d")).render()
    closed = '\n\n---\n[This section is summarized. To view full content, call `read_section` with key "bare".]'
    shown = f"Bare.{closed}" if visibility is SUMMARY else "Bare."
    assert rendered.text == f"## 1. A\n\ntext\n\n{shown}\n\n## 2. B\n\ntext\n\ntext\n\n## 3. D\n\ntext"
    span = rendered.spans[1]
    assert rendered.text[span.start : span.end].startswith("Bare.")


def test_a_section_without_heading_counts_if_it_has_children() -> None:
    rendered = template(text("a"), text("b", heading=False, children=[text("c")]), text("d")).render()
    assert rendered.text == "## 1. A\n\ntext\n\ntext\n\n### 2.1. C\n\ntext\n\n## 3. D\n\ntext"


def test_a_section_with_code_of_its_own_has_no_heading_either() -> None:
    class Clock(Section[None]):
        def render_body(self, params: None) -> str:
            return "Noon."

    clock = Clock(key="clock", title="Clock", heading=False)
    assert template(text("a"), clock).render().text == "## 1. A\n\ntext\n\nNoon."
    assert clock.render() == "Noon."
    with pytest.raises(PromptValidationError, match="heading must be True or False, got 'Time'"):
        Clock(key="clock", title="Clock", heading="Time")  # type: ignore[arg-type]
