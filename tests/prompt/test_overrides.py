"""Prompt overrides: descriptors, what holds and what is stale, and the store of JSON files."""

import json
import logging
from dataclasses import dataclass, field, replace
from threading import Thread

import pytest

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Section,
    SectionVisibility,
    TextSection,
    Tool,
    ToolResult,
)
from weakincentives.prompt.overrides import (
    Applied,
    JsonPromptOverridesStore,
    PromptOverride,
    PromptOverridesError,
    SectionOverride,
    StaleOverride,
    ToolOverride,
    apply_override,
    check_override,
    diff,
)


@dataclass(frozen=True)
class Tone:
    tone: str = "kind"


@dataclass(frozen=True)
class Query:
    text: str = field(metadata={"description": "what to look for"})
    limit: int = 10


def find(params: Query, *, context: object) -> ToolResult[None]:
    return ToolResult(message="found", value=None)


def make_template(
    *, body: str = "Be ${tone}.", description: str = "Find things.", closed: bool = False
) -> PromptTemplate[None]:
    tool = Tool[Query, None](name="find", description=description, handler=find, accepts_overrides=not closed)
    inner = MarkdownSection[Tone](title="Inner", key="inner.part", template=body, accepts_overrides=not closed)
    outer = MarkdownSection(title="Outer", key="outer", template="Outer text.", children=[inner], tools=[tool])
    return PromptTemplate(ns="demo", key="talk", sections=[outer])


INNER = ("outer", "inner.part")


@pytest.fixture
def store(tmp_path):
    return JsonPromptOverridesStore(tmp_path / "overrides")


def test_a_descriptor_hashes_what_an_override_replaces_and_nothing_else():
    one = make_template().descriptor
    indented = make_template(body="\n    Be ${tone}.\n  ").descriptor
    other = make_template(body="Stay ${tone}.").descriptor
    assert (one.ns, one.key, list(one.sections), list(one.tools)) == ("demo", "talk", [("outer",), INNER], ["find"])
    assert one == indented
    assert one.sections[INNER] != other.sections[INNER]
    assert one.sections[("outer",)] == other.sections[("outer",)]
    assert one.tools["find"] != make_template(description="Look.").descriptor.tools["find"]


def test_an_override_made_for_todays_text_holds():
    descriptor = make_template().descriptor
    override = (
        descriptor.new_override("latest")
        .with_section(INNER, descriptor.override_section(INNER, "Always ${tone}."))
        .with_tool("find", descriptor.override_tool("find", param_descriptions={"limit": "at most"}))
    )
    applied = check_override(descriptor, override)
    assert applied == Applied(override, ())


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (make_template(body="New ${tone}.", description="New."), "changed"),
        (make_template(closed=True), "closed"),
        (PromptTemplate(ns="demo", key="talk", sections=[]), "missing"),
    ],
)
def test_an_override_that_does_not_hold_is_reported_with_its_reason(template, reason, caplog):
    descriptor = make_template().descriptor
    override = PromptOverride(
        "demo",
        "talk",
        sections={INNER: descriptor.override_section(INNER, "x")},
        tools={"find": descriptor.override_tool("find", description="x")},
    )
    with caplog.at_level(logging.WARNING):
        assert apply_override(template.outline, template.descriptor, override) is template.outline
    applied, left_out = check_override(template.descriptor, override)
    assert (applied.sections, applied.tools) == ({}, {})
    assert [(stale.kind, stale.name, stale.reason) for stale in left_out] == [
        ("section", "outer.inner.part", reason),
        ("tool", "find", reason),
    ]
    assert "Override demo/talk@latest not applied to section 'outer.inner.part': " in caplog.text


@pytest.mark.parametrize("body", ["Costs $5.", "Be ${mood}.", "Be ${tone:.2f}."])
def test_a_body_that_cannot_be_filled_does_not_hold_and_cannot_be_made(body):
    descriptor = make_template().descriptor
    by_hand = SectionOverride(descriptor.sections[INNER].content_hash, body)
    applied = check_override(descriptor, descriptor.new_override("latest").with_section(INNER, by_hand))
    assert [stale.reason for stale in applied.stale] == ["invalid"]
    with pytest.raises(PromptValidationError, match=r"Section 'outer\.inner\.part' cannot be overridden like this"):
        descriptor.override_section(INNER, body)


@pytest.mark.parametrize(
    "words", [{"description": ""}, {"description": "x" * 2000}, {"param_descriptions": {"nope": "x"}}]
)
def test_words_that_do_not_fit_the_tool_do_not_hold_and_cannot_be_made(words):
    descriptor = make_template().descriptor
    by_hand = ToolOverride(descriptor.tools["find"].content_hash, **words)
    applied = check_override(descriptor, descriptor.new_override("latest").with_tool("find", by_hand))
    assert [stale.reason for stale in applied.stale] == ["invalid"]
    with pytest.raises(PromptValidationError, match="Tool 'find' cannot be overridden like this"):
        descriptor.override_tool("find", **words)


def test_overriding_what_is_not_there_names_what_is():
    descriptor = make_template().descriptor
    with pytest.raises(PromptValidationError, match=r"no section 'nope'; it has: outer, outer\.inner\.part"):
        descriptor.override_section(("nope",), "x")
    with pytest.raises(PromptValidationError, match=r"tuple of keys, such as \('outer', 'inner'\), not 'outer.inner'"):
        descriptor.override_section("outer.inner", "x")
    with pytest.raises(PromptValidationError, match="no tool 'nope'; it has: find"):
        descriptor.override_tool("nope", description="x")


def test_a_tool_name_that_two_sections_share_is_closed():
    def section(key: str, description: str) -> MarkdownSection:
        tool = Tool[Query, None](name="find", description=description, handler=find)
        return MarkdownSection(title=key, key=key, template="x", tools=[tool], enabled=lambda: True)

    template = PromptTemplate(ns="demo", key="twins", sections=[section("a", "one"), section("b", "two")])
    assert template.descriptor.tools["find"].accepts_overrides is False


def test_rendering_uses_the_stored_override_of_the_chosen_tag(store):
    template = make_template()
    descriptor = template.descriptor
    store.upsert(
        PromptOverride(
            "demo",
            "talk",
            "stable",
            {INNER: descriptor.override_section(INNER, "Always ${tone}.")},
            {"find": descriptor.override_tool("find", description="Seek.", param_descriptions={"text": "the words"})},
        )
    )
    stable = Prompt(template, overrides_store=store, overrides_tag="stable").bind(Tone("calm")).render()
    latest = Prompt(template, overrides_store=store).bind(Tone("calm")).render()
    assert "Always calm." in stable.text and "Be calm." in latest.text
    assert [tool.description for tool in stable.tools] == ["Seek."]
    assert stable.tools[0].schema["properties"]["text"]["description"] == "the words"
    assert [tool.description for tool in latest.tools] == ["Find things."]


def test_rendering_leaves_a_stale_override_out_and_warns(store, caplog):
    old = make_template().descriptor
    store.upsert(old.new_override("latest").with_section(INNER, old.override_section(INNER, "Old words.")))
    changed = make_template(body="Newly ${tone}.")
    with caplog.at_level(logging.WARNING):
        text = Prompt(changed, overrides_store=store).bind(Tone()).render().text
    assert "Newly kind." in text
    assert "it was written for text that has changed since" in caplog.text


def test_an_edit_shows_at_the_next_render_and_a_deletion_too(store):
    template = make_template()
    prompt = Prompt(template, overrides_store=store).bind(Tone())
    for body in ("One.", "Two."):
        override = template.descriptor.override_section(INNER, body)
        store.update(ns="demo", key="talk", change=lambda stored, o=override: stored.with_section(INNER, o))
        assert body in prompt.render().text
    assert store.delete(ns="demo", key="talk", tag="latest") is True
    assert "Be kind." in prompt.render().text
    assert store.delete(ns="demo", key="talk", tag="latest") is False


def test_an_override_can_be_edited_and_promoted():
    override = (
        PromptOverride("demo", "talk").with_section(INNER, SectionOverride("h", "b")).with_tool("t", ToolOverride("h"))
    )
    assert override.without("section", INNER).without("tool", "t") == PromptOverride("demo", "talk")
    assert override.tagged("stable") == replace(override, tag="stable")


def test_what_is_stored_comes_back_equal(store):
    override = PromptOverride(
        "demo",
        "talk",
        "any tag",
        {INNER: SectionOverride("h", "  line one\n\nüñí line\r\nlast \n"), ("a",): SectionOverride("h2", "")},
        {"find": ToolOverride("h3", None, {"x": "y"}), "seek": ToolOverride("h4", "words")},
    )
    store.upsert(override)
    assert store.get(ns="demo", key="talk", tag="any tag") == override
    assert store.list() == (override,)


def test_the_file_is_readable_and_lies_where_its_names_say(store):
    store.upsert(PromptOverride("demo", "talk", sections={("a",): SectionOverride("h", "one\ntwo")}))
    path = store.root_dir / "demo" / "talk" / "latest.json"
    assert path == store.path_of(ns="demo", key="talk")
    assert json.loads(path.read_text())["sections"] == [{"path": ["a"], "expected_hash": "h", "body": ["one", "two"]}]


def test_odd_names_stay_inside_the_root_and_apart(store):
    names = [
        "..",
        ".",
        "../../etc",
        "/abs",
        "a/b",
        "A",
        "a",
        "a%2fb",
        "c:\\x",
        "nul\0",
        "é",
        "x.",
        "l" * 300,
        "l" * 301,
        ".lock",
    ]
    for name in names:
        store.upsert(PromptOverride(name, name, name))
    assert len({str(store.path_of(ns=name, key=name, tag=name)).lower() for name in names}) == len(names)
    assert [store.get(ns=name, key=name, tag=name) for name in names] == [PromptOverride(n, n, n) for n in names]
    assert len(store.list()) == len(names)
    assert {path.name for path in store.root_dir.parent.iterdir()} == {"overrides"}


def test_list_filters_by_namespace_and_key(store):
    for ns, key in (("b", "k"), ("a", "k"), ("a", "j")):
        store.upsert(PromptOverride(ns, key))
    assert [(o.ns, o.key) for o in store.list()] == [("a", "j"), ("a", "k"), ("b", "k")]
    assert [(o.ns, o.key) for o in store.list(ns="a", key="k")] == [("a", "k")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": "other/1", "ns": "demo", "key": "talk", "tag": "latest"}',
        '{"format": "weakincentives.override/1", "ns": "demo", "key": "talk", "tag": "latest", "extra": 1}',
        '{"format": "weakincentives.override/1", "ns": "", "key": "talk", "tag": "latest"}',
        '{"format": "weakincentives.override/1", "ns": "other", "key": "talk", "tag": "latest"}',
    ],
)
def test_a_damaged_file_is_named_and_never_ignored(store, text):
    path = store.path_of(ns="demo", key="talk")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(PromptOverridesError, match=r"latest\.json"):
        store.resolve(make_template().descriptor)


def test_a_file_of_another_format_is_refused_with_the_way_out(store):
    path = store.path_of(ns="demo", key="talk")
    path.parent.mkdir(parents=True)
    path.write_text('{"format": "weakincentives.override/2", "pages": []}')
    with pytest.raises(PromptOverridesError, match="override/1'; use the release that wrote it"):
        store.resolve(make_template().descriptor)
    assert "pages" in path.read_text()


def test_a_failed_write_leaves_the_old_file_and_no_litter(store):
    store.upsert(PromptOverride("demo", "talk", sections={("a",): SectionOverride("h", "old")}))
    with pytest.raises(UnicodeEncodeError):
        store.upsert(PromptOverride("demo", "talk", sections={("a",): SectionOverride("h", "\ud800")}))
    assert store.get(ns="demo", key="talk").sections[("a",)].body == "old"
    assert [path.name for path in store.path_of(ns="demo", key="talk").parent.iterdir()] == ["latest.json"]


def test_a_change_that_moves_the_override_is_refused(store):
    with pytest.raises(PromptOverridesError, match="elsewhere"):
        store.update(ns="demo", key="talk", change=lambda stored: stored.tagged("stable"))


def test_two_writers_who_change_different_sections_both_keep_their_work(store):
    def write(number: int) -> None:
        mine = JsonPromptOverridesStore(store.root_dir)
        for index in range(5):
            path = (f"s{number}-{index}",)
            mine.update(
                ns="demo", key="talk", change=lambda stored, p=path: stored.with_section(p, SectionOverride("h", "b"))
            )

    threads = [Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.get(ns="demo", key="talk").sections) == 20


def test_a_diff_shows_what_changes_and_what_does_not_apply():
    descriptor = make_template().descriptor
    override = (
        descriptor.new_override("latest")
        .with_section(INNER, descriptor.override_section(INNER, "Always ${tone}."))
        .with_tool("find", ToolOverride("other", "Seek."))
    )
    assert diff(descriptor, override) == (
        "--- section outer.inner.part (prompt)\n"
        "+++ section outer.inner.part (latest)\n"
        "@@ -1 +1 @@\n"
        "-Be ${tone}.\n"
        "+Always ${tone}.\n"
        "# not applied: tool 'find': it was written for text that has changed since; rewrite it or delete it\n"
        "--- tool find (prompt)\n"
        "+++ tool find (latest)\n"
        "@@ -1 +1 @@\n"
        "-Find things.\n"
        "+Seek.\n"
    )


def test_a_stale_override_reads_as_a_sentence():
    stale = StaleOverride("tool", "find", "closed", "it does not accept overrides")
    assert str(stale) == "tool 'find': it does not accept overrides"


FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
DOCS = ("docs",)


def handbook(kind=MarkdownSection[Tone], text=None, **options):
    given = {"summary": "For ${tone} people.", "visibility": SUMMARY, **options}
    text = {"template": "All of it."} if text is None else text
    return PromptTemplate(ns="demo", key="book", sections=[kind(key="docs", title="Docs", **text, **given)])


def changed(template, *, summary=None, visibility=None):
    descriptor = template.descriptor
    override = descriptor.new_override("latest")
    if summary is not None:
        override = override.with_summary(DOCS, descriptor.override_summary(DOCS, summary))
    if visibility is not None:
        override = override.with_visibility(DOCS, descriptor.override_visibility(DOCS, visibility))
    return override


def shown(template, store):
    return Prompt(template, overrides_store=store).render().text


@pytest.mark.parametrize(
    ("options", "summary", "visibility", "expected"),
    [
        ({}, "If you are ${tone}, for $5.", None, "If you are kind, for $5."),
        ({}, None, FULL, "All of it."),
        ({"visibility": FULL}, None, SUMMARY, "For kind people."),
        ({"visibility": FULL, "summary": None}, "New.", SUMMARY, "New."),
        ({"visibility": FULL}, "New.", None, "All of it."),
    ],
)
def test_a_stored_summary_or_visibility_replaces_the_declared_one(store, options, summary, visibility, expected):
    template = handbook(**options)
    override = changed(template, summary=summary, visibility=visibility)
    store.upsert(override)
    assert store.get(ns="demo", key="book") == override
    assert shown(template, store).startswith(f"## 1. Docs\n\n{expected}")
    assert [tool.name for tool in Prompt(template, overrides_store=store).render().tools] == (
        [] if expected == "All of it." else ["read_section"]
    )
    removed = override.without("summary", DOCS).without("visibility", DOCS)
    assert removed == template.descriptor.new_override("latest")


@pytest.mark.parametrize(
    ("now", "stale"),
    [
        ({"summary": "Other."}, {("summary", "changed")}),
        ({"visibility": FULL}, {("visibility", "changed")}),
        ({"text": {"template": "Other."}}, set()),
        ({"accepts_overrides": False}, {("summary", "closed"), ("visibility", "closed")}),
        ({"visibility": lambda: SUMMARY}, {("visibility", "closed")}),
        ({"kind": TextSection, "text": {"text": "All of it."}}, set()),
    ],
)
def test_each_override_holds_as_long_as_what_it_replaces(store, now, stale):
    override = changed(handbook(), summary="New.", visibility=FULL)
    applied = check_override(handbook(**now).descriptor, override)
    assert {(each.kind, each.reason) for each in applied.stale} == stale
    assert ("summary" in dict(stale)) != (applied.override.summaries == override.summaries)
    assert ("visibility" in dict(stale)) != (applied.override.visibility == override.visibility)


def test_a_section_of_code_can_have_its_summary_replaced_but_not_its_text(store):
    class Clock(Section[None]):
        def render_body(self, params):
            return "Noon."

    template = handbook(kind=Clock, text={}, summary="Time.")
    store.upsert(changed(template, summary="The time of day."))
    assert "The time of day." in shown(template, store)
    with pytest.raises(PromptValidationError, match="Section 'docs' cannot be overridden like this"):
        template.descriptor.override_section(DOCS, "One.")


def test_a_summary_cannot_be_shown_where_there_is_none(store, caplog):
    template = handbook(summary=None, visibility=FULL)
    store.upsert(changed(template, visibility=SUMMARY))
    assert "All of it." in shown(template, store)
    assert "visibility 'docs': it has no summary to show; override that too" in caplog.text


def test_what_does_not_fit_cannot_be_made():
    descriptor = handbook().descriptor
    with pytest.raises(PromptValidationError, match=r"The summary of section 'docs' .*uses \$\{mood\}"):
        descriptor.override_summary(DOCS, "For ${mood} people.")
    with pytest.raises(PromptValidationError, match=r"must be SectionVisibility.FULL or .*SUMMARY, got 'hidden'"):
        descriptor.override_visibility(DOCS, "hidden")
    with pytest.raises(PromptValidationError, match="has no section 'nowhere'; it has: docs"):
        descriptor.override_visibility(("nowhere",), FULL)
    bad = descriptor.new_override("latest").with_visibility(
        DOCS, SectionOverride(descriptor.visibility[DOCS].content_hash, "half")
    )
    (stale,) = check_override(descriptor, bad).stale
    assert str(stale) == "visibility 'docs': it must be one of full, summary, got 'half'"


def test_a_diff_shows_summaries_and_visibilities():
    assert diff(handbook().descriptor, changed(handbook(), summary="New.", visibility=FULL)) == (
        "--- summary docs (prompt)\n+++ summary docs (latest)\n@@ -1 +1 @@\n-For ${tone} people.\n+New.\n"
        "--- visibility docs (prompt)\n+++ visibility docs (latest)\n@@ -1 +1 @@\n-summary\n+full\n"
    )


def test_a_visibility_that_a_function_decides_is_refused_with_that_reason():
    descriptor = handbook(visibility=lambda: SUMMARY).descriptor
    with pytest.raises(PromptValidationError, match=r"visibility of section 'docs' .*: a function decides it"):
        descriptor.override_visibility(DOCS, FULL)
