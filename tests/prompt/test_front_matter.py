"""Front matter is read as text by a YAML reader, or refused with the line."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from weakincentives.prompt import PromptValidationError
from weakincentives.prompt.pages import Value, front_matter, split_front_matter


def read(block: str) -> dict[str, Value]:
    fields, rest = split_front_matter(f"---\n{block}\n---\nBody", "'a.md'")
    assert rest == "Body"
    return fields


@pytest.mark.parametrize(
    ("block", "fields"),
    [
        ("name: pdf\nversion: 1.10  # newest", {"name": "pdf", "version": "1.10"}),
        ("a: it's #1", {"a": "it's"}),
        ("url: http://x.y/z#top", {"url": "http://x.y/z#top"}),
        ("a: 'it''s: quoted' # c", {"a": "it's: quoted"}),
        (r'a: "line\n\"two\" \u00e9"', {"a": 'line\n"two" é'}),
        ('a: "first\n  second"', {"a": "first second"}),
        ("a: plain\n  goes on\n\n  and on\nb: x", {"a": "plain goes on\nand on", "b": "x"}),
        ("a: |\n  one\n    two # text\n\n  three\nb: x", {"a": "one\n  two # text\n\nthree\n", "b": "x"}),
        ("a: >-\n  one\n  two\n\n  three", {"a": "one two\nthree"}),
        ("a:\n  b: c\n  d:\n    e: f\ng:", {"a": {"b": "c", "d": {"e": "f"}}, "g": ""}),
        ("a:\n- one\n- 'two: 2'\nb:\n  - three", {"a": ["one", "two: 2"], "b": ["three"]}),
        ("a: [x, 'y, z', \"q\"]\nb: []", {"a": ["x", "y, z", "q"], "b": []}),
        ("a: {b: [c, 1]}\nd:\n- e: f", {"a": {"b": ["c", "1"]}, "d": [{"e": "f"}]}),
        ("# comment\n\n'a b': c", {"a b": "c"}),
        ("a:\n  long text\n  below", {"a": "long text below"}),
    ],
)
def test_what_people_write_is_read(block: str, fields: dict[str, Value]) -> None:
    assert read(block) == fields


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("a: b\nc: d: e", r"'a.md', line 3, front matter: mapping values are not allowed here; put text with special"),
        ("a: &x b\nc: *x", "line 2, .*: aliases are not supported; write the value again"),
        ("a: &x [*x]", "line 2, .*: aliases are not supported"),
        ("a: 'b", "line 3, .*: found unexpected end of stream"),
        (r'a: "\q"', "line 2, .*: found unknown escape character 'q'"),
        (r'a: "\UFFFFFFFF"', "front matter: .*(too large|not in range)"),
        ("a: b\n\na: c", "line 4, .*: the key 'a' is there twice"),
        ("a: b\n? [c]\n: d", "line 3, .*: a key must be text"),
        ("a: b\njust words", "line 4, .*: could not find expected ':'"),
        ("a: b\n--- c", "line 3, .*: but found another document"),
        ("a: \x07", "front matter: unacceptable character #x0007"),
    ],
)
def test_anything_else_is_refused_with_its_line(block: str, problem: str) -> None:
    with pytest.raises(PromptValidationError, match=problem):
        read(block)


@pytest.mark.parametrize(
    "text", ["", "Text.", "---\nA rule, not front matter.\n\n---\nText.", "---\na: b\nnever closed"]
)
def test_a_page_without_front_matter_is_all_text(text: str) -> None:
    assert split_front_matter(text, "'a.md'") == ({}, text)


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], include_characters="\n\t"))


@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,8}", fullmatch=True), words))
@example({"a": "\u2028"})
@example({"a": "\ufeff\x85"})
def test_what_is_written_is_read_again(fields: dict[str, str]) -> None:
    assert split_front_matter(front_matter(fields) + "Body", "'a.md'") == (fields, "Body")
