"""Sections: declaration, validation, selectors, cloning."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    HostedTool,
    JsonPromptOverridesStore,
    MarkdownSection,
    OpenAndHalt,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    Section,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolResult,
    WorkspaceSection,
    tool,
)
from weakincentives.runtime import Conversation
from weakincentives.session import Bus, Session
from weakincentives.tools.web_search import web_search_tool


@dataclass
class Tone:
    tone: str = "plain"


@tool
def a_tool() -> None:
    """Do nothing."""


def test_a_section_fills_placeholders_from_its_params() -> None:
    section = MarkdownSection[Tone](title="Tone", key="tone", template="Target tone: ${tone}")
    assert section.params_type is Tone
    assert section.render(Tone("warm"), number="1") == "## 1. Tone\n\nTarget tone: warm"


class Priority(Enum):
    HIGH = "high"


class Shade(Enum):
    DARK = 1

    def __str__(self) -> str:
        return "dark"


@dataclass
class Look:
    priority: Priority = Priority.HIGH
    shade: Shade = Shade.DARK


def test_an_enum_is_filled_in_by_its_value_unless_it_has_a_text() -> None:
    section = MarkdownSection[Look](title="T", key="t", template="${priority} ${shade}", summary="${priority}")
    assert Prompt(ns="a", key="b", sections=[section]).render().text == "## 1. T\n\nhigh dark"
    assert section.render(Look()) == "## T\n\nhigh dark"
    assert section.render(Look(), visibility=SectionVisibility.SUMMARY) == "## T\n\nhigh"


def test_a_placeholder_with_a_path_is_refused() -> None:
    with pytest.raises(
        PromptValidationError, match=r"'\$\{tone.x\}' .*is .\$\{name\}' or .* with the plain name of a field"
    ):
        MarkdownSection[Tone](title="T", key="t", template="${tone.x}")


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
    with pytest.raises(PromptValidationError, match=r"\$\{mood\} in the template is not a field of Tone; it has: tone"):
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
            r"disclosure must be a strategy, got 'halt'; pass ReadSections",
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


class RenderOnly(Section[None]):
    def render(self, params: None = None, **place: Any) -> str:
        return f"-- {self.title} {place['visibility'].value} --"


def test_a_section_that_implements_only_render_is_complete() -> None:
    short = RenderOnly(title="S", key="s", summary="s", visibility=SectionVisibility.SUMMARY)
    text = PromptTemplate(ns="a", key="b", sections=[RenderOnly(title="R", key="r"), short]).render().text
    assert text.startswith("-- R full --\n\n-- S summary --\n\n---\n")


def test_a_section_without_any_text_is_refused() -> None:
    with pytest.raises(PromptValidationError, match=r"Section has no text; implement render_body\(params\), or render"):
        Section(title="T", key="t")


class Overriding(MarkdownSection[Tone]):
    """Every method decides by itself, whatever the arguments say."""

    def render_body(self, params: Tone | None) -> str:
        return f"made by code, {params.tone if params else 'plainly'}"

    def is_enabled(self, params: Tone | None = None, *, session: Session | None = None) -> bool:
        return params is None or params.tone != "off"

    def declared_visibility(self, params: Tone | None = None, *, session: Session | None = None) -> SectionVisibility:
        return SectionVisibility.SUMMARY if params and params.tone == "short" else SectionVisibility.FULL

    def tools(self) -> tuple[Tool[Any, Any], ...]:
        return (Tool(name="mine", description="Mine.", handler=lambda params, *, context: ToolResult("ok")),)


def test_a_subclass_that_overrides_methods_is_asked_instead_of_its_template() -> None:
    section = Overriding(title="O", key="o", template="never shown", summary="in short")
    template = PromptTemplate(ns="a", key="b", sections=[section])
    warm = template.render(Tone("warm"))
    assert (warm.text, [tool.name for tool in warm.tools]) == ("## 1. O\n\nmade by code, warm", ["mine"])
    assert template.render(Tone("short")).text.startswith("## 1. O\n\nin short\n\n---\n")
    assert template.render(Tone("off")).text == ""
    assert template.descriptor.sections[("o",)].accepts_overrides is False


def does(name: str) -> Tool[Any, Any]:
    return Tool(name=name, description=name, handler=lambda params, *, context: ToolResult(f"{name} done"))


class Stocked(MarkdownSection[None]):
    """Has the tools that are in stock when it is asked."""

    stock: tuple[str, ...] = ("one",)
    made: ClassVar[dict[str, Any]] = {}
    hosted: tuple[Any, ...] = ()

    def tools(self) -> tuple[Tool[Any, Any], ...]:
        return tuple(self.made.setdefault(name, does(name)) for name in self.stock)

    def hosted_tools(self) -> tuple[Any, ...]:
        return self.hosted


class Fresh(Stocked):
    def tools(self) -> tuple[Tool[Any, Any], ...]:
        return tuple(map(does, self.stock))


@pytest.mark.parametrize("kind", [Stocked, Fresh])
@pytest.mark.parametrize("overridden", [True, False])
def test_a_subclass_is_asked_for_its_tools_in_every_render(kind: Any, overridden: bool, tmp_path: Any) -> None:
    section = kind(title="S", key="s", template="Take one.")
    template = PromptTemplate[None](
        ns="a", key="b", sections=[MarkdownSection(title="P", key="p", template="Hi.", children=[section])]
    )
    store = JsonPromptOverridesStore(tmp_path) if overridden else None
    prompt = Prompt(template, overrides_store=store)
    for stock in (("one",), ("one", "two"), (), ("three",)):
        section.stock = stock
        assert tuple(tool.name for tool in prompt.render().tools) == stock
        assert tuple(tool.name for _, tool in prompt.view().offered()) == stock
        assert template.descriptor.tools.keys() == set(stock)
    section.hosted = (web_search_tool(),)
    assert [tool.name for tool in prompt.render().hosted_tools] == ["web_search"]


@pytest.mark.parametrize("kind", [Stocked, Fresh])
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_subclass_is_asked_for_its_tools_in_every_turn(kind: Any, dynamic: bool) -> None:
    section = kind(title="S", key="s", template="Take one.")
    script = [call("one"), "1", call("one"), call("two"), "2"]
    adapter = ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    chat = Conversation(Prompt(PromptTemplate[None](ns="a", key="b", sections=[section])), adapter=adapter)
    chat.send("First.")
    section.stock = ("two",)
    chat.send("Second.")
    results = [message.text for message in chat.messages if message.role == "tool"]
    assert (results[0], results[2]) == ("one done", "two done")
    assert results[1].startswith(("Unknown tool 'one'", "Tool 'one' is not available"))


@pytest.mark.parametrize("summary", ["${tonne}", "a $tonne of it"])
def test_a_wrong_placeholder_in_a_summary_fails_where_the_section_is_made(summary: str) -> None:
    class Own(Section[Tone]):
        def render_body(self, params: Tone | None) -> str:
            return "mine"

    class Bare(Section[None]):
        def render(self, params: None = None, **place: Any) -> str:
            return "mine"

    with pytest.raises(PromptValidationError, match=r"\$\{tonne\} in the summary is not a field of Tone; it has: tone"):
        Own(title="O", key="o", summary=summary)
    with pytest.raises(PromptValidationError, match=r"the summary uses \$\{tonne\} but the section takes no params"):
        Bare(title="B", key="b", summary=summary)
    assert Own(title="O", key="o", summary="${tone} for $5").summary == "${tone} for $5"


class Stubborn(MarkdownSection[None]):
    """Stays as it is, whatever the caller and the session ask for."""

    def effective_visibility(self, override: Any = None, params: Any = None, **place: Any) -> SectionVisibility:
        self.asked = (override, place["path"])
        return SectionVisibility.FULL


def test_a_subclass_that_decides_its_effective_visibility_has_the_last_word() -> None:
    section = Stubborn(title="S", key="s", template="always", summary="never", visibility=SectionVisibility.SUMMARY)
    template, session = PromptTemplate(ns="a", key="b", sections=[section]), Session()
    assert template.render().text == "## 1. S\n\nalways"
    session.dispatch(SetVisibilityOverride(("s",), SectionVisibility.SUMMARY))
    assert template.render(session=session, visibility_overrides={("s",): SectionVisibility.SUMMARY}).text.endswith("s")
    assert section.asked == (SectionVisibility.SUMMARY, ("s",))


@pytest.mark.parametrize("method", ["is_enabled", "declared_visibility", "effective_visibility"])
def test_an_overridden_method_that_fails_is_named(method: str) -> None:
    def fail(self: Any, *given: Any, **named: Any) -> Any:
        raise RuntimeError("no luck")

    made = type("Broken", (MarkdownSection,), {method: fail})
    with pytest.raises(PromptRenderError, match=rf"Section 't': {method}\(\) raised RuntimeError: no luck"):
        PromptTemplate(ns="a", key="b", sections=[made(title="T", key="t", template="x")]).render()


class Returning(MarkdownSection[None]):
    returned: Any = None

    def tools(self) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((len,), r"Section 't': the function len in tools\(\) is not a Tool; decorate it with @tool"),
        (("refund",), r"Section 't': 'refund' in tools\(\) is not a Tool"),
        (None, r"Section 't': tools\(\) must return a tuple of tools, got None"),
    ],
)
def test_a_method_that_returns_no_tools_is_a_clear_error(returned: Any, message: str) -> None:
    section = Returning(title="T", key="t", template="x")
    section.returned = returned
    with pytest.raises(PromptValidationError, match=message):
        PromptTemplate(ns="a", key="b", sections=[section])


@pytest.mark.parametrize(
    "made", [lambda: Section[Any], lambda: list[MarkdownSection[Any]], lambda: Section[Tone] | None]
)
def test_a_section_type_can_stand_in_an_annotation(made: Any) -> None:
    assert made() is not None
    assert MarkdownSection[Any](title="T", key="t", template="x").params_type is None


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


def test_no_attribute_of_a_clone_is_shared_by_chance() -> None:
    child = MarkdownSection(title="C", key="c", template="x")
    section = MarkdownSection[Tone](title="T", key="t", template="${tone}", children=[child])
    names = [f"tone_{number}" for number in range(50)]
    for owner in (section, child):
        for name in names:
            setattr(owner, name, Tone(name))
    copy = section.clone()
    for original, clone in ((section, copy), (child, copy.children[0])):
        for name in names:
            assert getattr(clone, name) == Tone(name)
            assert getattr(clone, name) is not getattr(original, name)


class Counting(MarkdownSection[None]):
    """Its tools write to the session that it was built with, by a method, a partial and a decorated method."""

    def __init__(self, session: Session, bus: Any = None) -> None:
        self.session = session
        self.bus = bus
        self.seen: list[list[str]] = [[]]
        self.lock = threading.Lock()
        by_method = Tool(name="method", description="Count.", handler=self._count, compensate=self._count)
        by_partial = Tool(name="partial", description="Count.", handler=partial(self._count, by=2))
        of_parent = Tool(name="child", description="Count.", handler=self._count)
        child = MarkdownSection(title="C", key="c", template="x", tools=[of_parent])
        super().__init__(
            title="Count",
            key="count",
            template="Count.",
            tools=[by_method, by_partial, tool(self.decorated)],
            enabled=self._is_on,
            children=[child],
        )
        self.on = True

    def _is_on(self) -> bool:
        return self.on

    def _count(self, params: None, *, context: Any, by: int = 1) -> ToolResult[None]:
        self.session.dispatch(Tone(f"counted {by}"))
        self.seen[0].append("counted")
        return ToolResult("ok")

    def decorated(self) -> str:
        """Count."""
        self._count(None, context=None, by=3)
        return "ok"


def test_a_clone_and_its_tools_act_for_the_session_and_bus_that_it_is_given() -> None:
    old, new, bus = Session(), Session(), Bus()
    section = Counting(old, Bus())
    cloned = section.clone(session=new, bus=bus)
    for made in (*cloned.tools(), *cloned.children[0].tools()):
        params = None if made.params_type is None else made.params_type()
        made.handler(params, context=None)
    assert cloned.bus is bus
    assert (old[Tone].all(), section.seen) == ((), [[]])
    assert [tone.tone for tone in new[Tone].all()] == ["counted 1", "counted 2", "counted 3", "counted 1"]
    assert cloned.seen == [["counted"] * 4]
    assert cloned.tools()[0].compensate.__self__ is cloned


def test_a_clones_selectors_are_its_own_and_what_cannot_be_copied_is_shared() -> None:
    section = Counting(Session())
    cloned = section.clone()
    section.on = False
    assert (section.is_enabled(), cloned.is_enabled()) == (False, True)
    assert cloned.session is section.session and cloned.lock is section.lock
    assert MarkdownSection(title="T", key="t", template="x", tools=[a_tool]).clone().tools()[0] is a_tool
    bus = Bus()
    assert (section.clone(bus=bus).bus, section.clone(bus=bus).summary) == (bus, None)


def test_clone_refuses_keywords_that_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sesion'"):
        MarkdownSection(title="T", key="t", template="x").clone(sesion=Session())


class Rebuilding(MarkdownSection[None]):
    def clone(self, *, session: Session | None = None, bus: Any = None) -> Rebuilding:
        return Rebuilding(title=f"{self.title} of {session}", key=self.key, template="x")


def test_an_overridden_clone_is_asked_wherever_the_section_stands() -> None:
    parent = MarkdownSection(title="P", key="p", template="x", children=[Rebuilding(title="T", key="t", template="x")])
    session = Session()
    assert parent.clone(session=session).children[0].title == f"T of {session}"


def test_a_workspace_contributes_its_filesystem() -> None:
    files = InMemoryFilesystem({"a.txt": "hello"})
    assert WorkspaceSection(files).resources().create_context().get(Filesystem) is files


def test_a_cloned_workspace_has_files_of_its_own() -> None:
    section = WorkspaceSection(InMemoryFilesystem({"a.txt": "hello"}))
    copy = section.clone()
    copy.filesystem.write("a.txt", "changed", mode="overwrite")
    assert section.filesystem.read("a.txt") == "hello"
