"""Sections: declaration, validation, selectors, cloning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    HostedTool,
    MarkdownSection,
    OpenAndHalt,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    Section,
    SectionVisibility,
    Tool,
    ToolResult,
    WorkspaceSection,
)
from weakincentives.session import Session


@dataclass
class Tone:
    tone: str = "plain"


def test_a_section_fills_placeholders_from_its_params() -> None:
    section = MarkdownSection[Tone](title="Tone", key="tone", template="Target tone: ${tone}")
    assert section.params_type is Tone
    assert section.render(Tone("warm"), number="1") == "## 1. Tone\n\nTarget tone: warm"


def test_text_is_dedented_and_stripped() -> None:
    section = MarkdownSection(
        title="T",
        key="t",
        template="""
        one
          two
        """,
    )
    assert section.render() == "## T\n\none\n  two"


def test_two_dollars_make_one() -> None:
    assert MarkdownSection(title="T", key="t", template="costs $$5").render() == "## T\n\ncosts $5"


@pytest.mark.parametrize("text", ["costs $5", "ends with $", "${not a name}", "${unclosed"])
def test_an_odd_dollar_is_caught_at_construction(text: str) -> None:
    with pytest.raises(PromptValidationError, match=r"write '\$\$' for a dollar sign"):
        MarkdownSection[Tone](title="T", key="t", template=text)


def test_placeholders_without_params_name_the_way_out() -> None:
    with pytest.raises(PromptValidationError, match=r"\$\{question\}.*write MarkdownSection\[Params\]"):
        MarkdownSection(title="Task", key="task", template="Answer: $question")


def test_a_placeholder_that_is_no_field_lists_the_fields() -> None:
    with pytest.raises(PromptValidationError, match=r"\$\{mood\} in the template is no field of Tone; it has: tone"):
        MarkdownSection[Tone](title="T", key="t", template="${mood}")


def test_summaries_may_use_placeholders_and_plain_dollars() -> None:
    section = MarkdownSection[Tone](title="T", key="t", template="x", summary="${tone}, costs $5")
    assert section.render(Tone("dry"), visibility=SectionVisibility.SUMMARY) == "## T\n\ndry, costs $5"


def test_a_summary_placeholder_that_is_no_field_is_refused() -> None:
    with pytest.raises(PromptValidationError, match="in the summary"):
        MarkdownSection[Tone](title="T", key="t", template="x", summary="${mood}")


@pytest.mark.parametrize("key", ["", "Upper", "-dash", "a b", "x" * 65])
def test_keys_follow_the_pattern(key: str) -> None:
    with pytest.raises(PromptValidationError, match="Section key"):
        MarkdownSection(title="T", key=key, template="x")


def test_params_must_be_a_dataclass() -> None:
    with pytest.raises(PromptValidationError, match="takes a dataclass"):
        MarkdownSection[str](title="T", key="t", template="x")


def test_none_as_params_is_the_same_as_none_given() -> None:
    assert MarkdownSection[None](title="T", key="t", template="x").params_type is None


def test_default_params_must_be_of_the_params_type() -> None:
    with pytest.raises(PromptValidationError, match="default_params is a str, but the section takes Tone"):
        MarkdownSection[Tone](title="T", key="t", template="x", default_params="warm")


def test_summary_visibility_needs_a_summary() -> None:
    with pytest.raises(PromptValidationError, match="'docs' has visibility SUMMARY but no summary; pass summary="):
        MarkdownSection(title="D", key="docs", template="x", visibility=SectionVisibility.SUMMARY)


def test_a_hosted_tool_in_tools_says_where_it_belongs() -> None:
    hosted = HostedTool(kind="web_search", name="search", description="Search.", config=_Config())
    with pytest.raises(PromptValidationError, match="hosted_tools="):
        MarkdownSection(title="T", key="t", template="x", tools=[hosted])


@dataclass(frozen=True)
class _Config:
    pass


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (lambda: SectionVisibility.SUMMARY, SectionVisibility.SUMMARY),
        (lambda params: SectionVisibility(params.tone), SectionVisibility.FULL),
        (
            lambda *, session: SectionVisibility.SUMMARY if session else SectionVisibility.FULL,
            SectionVisibility.SUMMARY,
        ),
        (lambda params, *, session: SectionVisibility(params.tone), SectionVisibility.FULL),
        (lambda fixed=SectionVisibility.SUMMARY: fixed, SectionVisibility.SUMMARY),
    ],
)
def test_selectors_take_nothing_params_or_session(selector: Any, expected: SectionVisibility) -> None:
    section = MarkdownSection[Tone](title="T", key="t", template="x", summary="s", visibility=selector)
    assert section.effective_visibility(params=Tone("full"), session=Session()) is expected


def test_a_selector_that_fails_names_the_section() -> None:
    section = MarkdownSection[Tone](title="T", key="t", template="x", visibility=lambda params: params.missing)
    with pytest.raises(PromptRenderError, match="Section 't': visibility= raised AttributeError"):
        PromptTemplate(ns="a", key="b", sections=[section]).render()


def test_a_selector_must_answer_a_visibility() -> None:
    section = MarkdownSection(title="T", key="t", template="x", visibility=lambda: "full")
    with pytest.raises(PromptRenderError, match="got 'full'"):
        PromptTemplate(ns="a", key="b", sections=[section]).render()


async def _selected_later() -> bool:
    return False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enabled": _selected_later}, "enabled= must be an ordinary function"),
        ({"visibility": _selected_later}, "visibility= must be an ordinary function"),
        ({"enabled": True}, "enabled must be a callable, got True"),
        ({"visibility": "full"}, "visibility must be a SectionVisibility or a callable, got 'full'"),
        ({"title": 1}, "has no title"),
        ({"template": None}, "'t' must be text, got None"),
        ({"summary": 3}, "'t': summary must be text, got 3"),
        ({"summary_suffix": 3}, "'t': summary_suffix must be text, got 3"),
        ({"tools": "refund"}, r"tools= takes a list, got 'refund'; write tools=\[\.\.\.\]"),
        ({"children": Section}, "children= takes a list"),
        ({"tools": [_selected_later]}, "the function _selected_later in tools= is not a Tool; decorate it with @tool"),
        ({"hosted_tools": [42]}, "42 in hosted_tools= is not a HostedTool"),
    ],
)
def test_a_wrong_argument_is_caught_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptValidationError, match=message):
        MarkdownSection(**{"title": "T", "key": "t", "template": "x", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"sections": MarkdownSection(title="T", key="t", template="x")},
            r"Prompt 'b': sections= takes a list, got MarkdownSection\('t'\); write",
        ),
        ({"sections": ["hello"]}, "sections= must hold Section objects, got 'hello'; write MarkdownSection"),
        ({"disclosure": OpenAndHalt}, r"OpenAndHalt is a class; write disclosure=OpenAndHalt\(\)"),
        (
            {"disclosure": "halt"},
            r"must be a strategy with tools\(\) and suffix\(\), got 'halt'; pass ReadSections",
        ),
    ],
)
def test_a_wrong_argument_of_a_template_is_caught_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptValidationError, match=message):
        PromptTemplate(ns="a", key="b", **arguments)


def test_a_class_in_place_of_params_is_told_from_an_instance() -> None:
    template = PromptTemplate(ns="a", key="b", sections=[])
    with pytest.raises(PromptValidationError, match=r"got the class Tone; write Tone\(\.\.\.\)"):
        Prompt(template).bind(Tone)


class Clock(Section[Tone]):
    """Content made by code."""

    def render_body(self, params: Tone | None) -> str:
        assert params is not None
        return f"it is {params.tone} o'clock"


def test_a_section_written_as_a_class_knows_its_params() -> None:
    template = PromptTemplate(ns="a", key="b", sections=[Clock(title="Now", key="now")])
    assert template.render(Tone("five")).text == "## 1. Now\n\nit is five o'clock"


class Whole(Section[None]):
    def render_body(self, params: None) -> str:
        return "unused"

    def render(self, params: None = None, **place: Any) -> str:
        return f"<{place['number']} {'/'.join(place['path'])} {place['visibility'].value}>"


def test_a_section_may_render_its_heading_too() -> None:
    template = PromptTemplate(ns="a", key="b", sections=[Whole(title="W", key="w"), Whole(title="W", key="v")])
    rendered = template.render()
    assert rendered.text == "<1 w full>\n\n<2 v full>"
    assert [rendered.text[span.start : span.end] for span in rendered.spans] == ["<1 w full>", "<2 v full>"]


class Failing(Section[None]):
    def render_body(self, params: None) -> str:
        raise RuntimeError("no luck")


def test_a_section_that_fails_to_render_is_named() -> None:
    with pytest.raises(PromptRenderError, match="Section 'f' failed to render: RuntimeError: no luck"):
        PromptTemplate(ns="a", key="b", sections=[Failing(title="F", key="f")]).render()


def test_clones_share_nothing_that_can_change() -> None:
    child = MarkdownSection(title="C", key="c", template="x")
    section = MarkdownSection[Tone](title="T", key="t", template="${tone}", default_params=Tone("a"), children=[child])
    copy = section.clone()
    copy.default_params.tone = "b"
    assert section.default_params == Tone("a")
    assert copy.children[0] is not child
    assert copy.children[0].key == "c"


class Counting(MarkdownSection[None]):
    """Its tool writes to the session it was built with."""

    def __init__(self, session: Session) -> None:
        self.session = session
        super().__init__(title="Count", key="count", template="Count.")

    def tools(self) -> tuple[Tool[Any, Any], ...]:
        return (Tool(name="count", description="Count.", handler=self._count),)

    def _count(self, params: None, *, context: Any) -> ToolResult[None]:
        self.session.dispatch(Tone("counted"))
        return ToolResult("ok")

    def clone(self, **kwargs: Any) -> Counting:
        return Counting(kwargs["session"])


def test_clones_of_tool_backed_sections_are_rewired() -> None:
    old, new = Session(), Session()
    parent = MarkdownSection(title="P", key="p", template="x", children=[Counting(old)])
    cloned = parent.clone(session=new, bus=None)
    cloned.children[0].tools()[0].handler(None, context=None)
    assert (old[Tone].all(), new[Tone].all()) == ((), (Tone("counted"),))


def test_a_workspace_contributes_its_filesystem() -> None:
    files = InMemoryFilesystem({"a.txt": "hello"})
    assert WorkspaceSection(files).resources().create_context().get(Filesystem) is files


def test_a_cloned_workspace_has_files_of_its_own() -> None:
    section = WorkspaceSection(InMemoryFilesystem({"a.txt": "hello"}))
    copy = section.clone()
    copy.filesystem.write("a.txt", "changed", mode="overwrite")
    assert section.filesystem.read("a.txt") == "hello"
